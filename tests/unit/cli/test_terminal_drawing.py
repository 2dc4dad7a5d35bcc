from __future__ import annotations

import os
import pty
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from rich.text import Text

from lakeferry.cli import terminal_drawing
from lakeferry.cli.output import Output

ERASE_LINE, SHOW_CURSOR = "\x1b[2K", "\x1b[?25h"


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Lead both streams to a terminal; what is yielded returns all up to the end of a text.

    It is no fixture: pytest sets the streams anew when a test begins.
    """
    ours, its = pty.openpty()
    stream = os.fdopen(its, "w")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    unread = ""

    def read(until: str) -> str:
        nonlocal unread
        while until not in unread:
            assert select.select([ours], [], [], 30)[0], (until, unread)
            unread += os.read(ours, 1).decode("latin-1").replace("\r", "")
        found, unread = unread, ""
        return found

    try:
        yield read
    finally:
        monkeypatch.undo()
        stream.close()
        os.close(ours)


def test_what_is_written_meanwhile_has_lines_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(json=False)
    with terminal(monkeypatch) as written, terminal_drawing.shown(Text("busy")):
        written("busy")
        for write in (output.warn, output.note, lambda text: output.page().line(text)):
            write("look here")
            before = written("look here\n").rpartition("look here")[0]
            # The cursor goes up to the line that was drawn, which is erased.
            assert before.rpartition(ERASE_LINE)[2] in ("warning: ", "note: ", "")
            written("busy")


def test_nothing_is_left_of_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as written:
        with terminal_drawing.shown(Text("busy")):
            assert terminal_drawing.is_shown()
            written("busy")
        assert not terminal_drawing.is_shown()
        Output(json=False).warn("look")
        end = written("look\n")
    assert end.endswith(f"{ERASE_LINE}warning: look\n")
    assert SHOW_CURSOR in end


def test_an_error_is_told_while_a_thread_that_draws_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with terminal_drawing._lock:
            taken.set()
            done.wait()

    holder = threading.Thread(target=hold, daemon=True)
    with terminal(monkeypatch) as written, terminal_drawing.shown(Text("busy")):
        holder.start()
        taken.wait()
        written("busy")
        Output(json=False).fail({"code": "interrupted", "message": "interrupted"})
        # Nothing is drawn below the error, and the cursor is there again.
        assert SHOW_CURSOR in written("error: interrupted\n")
        Output(json=False).warn("later")
        assert written("later\n") == "warning: later\n"
        done.set()
        holder.join()
