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

from lakeferry.cli import render, terminal_drawing
from lakeferry.cli.output import Output

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
        self._amounts = _Amounts(clock)

    def observe(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        told = self._amounts.told(what, done, total)
        if now >= self._next:
            self._next = now + _LINE_EVERY_S
            sys.stderr.write(f"{what}: {', '.join(told)}\n")
            sys.stderr.flush()


class _Amounts:
    """Describes progress; for work that is measured in bytes, also its speed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[str, tuple[float, int]] = {}

    def told(self, what: str, done: int, total: int) -> tuple[str, ...]:
        """Return phrases to print with commas in between, the most important one first."""
        # Recognise a Volume by its attributes: importing the engines here would slow down each
        # command.
        objects, of_objects = getattr(done, "objects", None), getattr(total, "objects", None)
        if objects is None or of_objects is None:
            return (f"{done:,} of {total:,}",)
        now = self._clock()
        began, first = self._began.setdefault(what, (now, done))
        if done == first:
            # The time that Spark's workers need to start doesn't count as copying.
            self._began[what] = began, first = now, done
        words = [
            f"{render.size(int(done))} of {render.size(int(total))}",
            f"{objects} of {render.counted(of_objects, 'file')}",
        ]
        if now > began and done > first:
            rate = (done - first) / (now - began)
            left_s = round((total - done) / rate)
            words.append(f"{render.size(int(rate))}/s")
            words.append(f"{left_s // 60}:{left_s % 60:02} left")
        return tuple(words)


@contextmanager
def _bar(first: str, last: str) -> Iterator[ProgressObserver]:
    from lakeferry.cli.progress_bars import ProgressBars

    amounts = _Amounts()
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
