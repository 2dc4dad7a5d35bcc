"""Shows progress on standard error: a bar on a terminal, lines in a pipe.

If bytes are moved (:class:`lakeferry.engine.Volume`), it shows bytes, files, speed and remaining
time. With ``--json`` there is no progress, because programs read standard error for errors.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakeferry.cli import terminal_drawing
from lakeferry.cli.output import Output
from lakeferry.readable import ProgressWords

ProgressObserver = Callable[[str, int, int], None]

_LINE_EVERY_S = 5.0


@contextmanager
def waiting(output: Output, what: str) -> Iterator[None]:
    """Show that work of unknown length is running; on a terminal only.

    It shows nothing while other progress is shown: a terminal has one place for it.
    """
    if output.json or terminal_drawing.is_shown() or not _can_draw():
        yield
        return
    from lakeferry.cli.progress_bars import ProgressBars

    with terminal_drawing.shown(ProgressBars(what)):
        yield


def _can_draw() -> bool:
    """Return True if standard error is a terminal on which a line can be replaced."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


@contextmanager
def watching(
    output: Output, first: str = "working", last: str = "finishing"
) -> Iterator[ProgressObserver]:
    """Yield an observer that shows progress.

    A terminal shows ``first`` until something is observed, and ``last`` when all of that is done,
    so it always shows activity.
    """
    if output.json:
        yield lambda _what, _done, _total: None
    elif not _can_draw():
        yield _Lines().observe
    else:
        with _bar(first, last) as observer:
            yield observer


class _Lines:
    """Writes a line when work takes long, and again every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + _LINE_EVERY_S
        self._amounts = ProgressWords(clock)

    def observe(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        told = self._amounts.told(what, done, total)
        if now >= self._next:
            self._next = now + _LINE_EVERY_S
            sys.stderr.write(f"{what}: {', '.join(told)}\n")
            sys.stderr.flush()


@contextmanager
def _bar(first: str, last: str) -> Iterator[ProgressObserver]:
    from lakeferry.cli.progress_bars import ProgressBars

    amounts = ProgressWords()
    unfinished: set[str] = set()
    bars = ProgressBars(first)

    def observe(what: str, done: int, total: int) -> None:
        bars.tell(what, amounts.told(what, done, total), done / total if total else 1.0)
        was_working = bool(unfinished)
        unfinished.discard(what) if done >= total else unfinished.add(what)
        if unfinished:
            bars.wait_for(None)
        elif was_working:
            bars.wait_for(last)

    with terminal_drawing.shown(bars):
        yield observe
