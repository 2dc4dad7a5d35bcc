"""Progress of long work on standard error: a bar on a terminal, a line now and then in a pipe.

With ``--json`` there is none: programs read that stream for errors.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakeferry.cli.output import Output

Observer = Callable[[str, int, int], None]

_LINE_EVERY_S = 5.0


@contextmanager
def waiting(output: Output, what: str) -> Iterator[None]:
    """Show that something is going on whose length isn't known; on a terminal only."""
    if output.json or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


@contextmanager
def watching(output: Output) -> Iterator[Observer]:
    """Give an observer that shows how far work has come."""
    if output.json:
        yield lambda _what, _done, _total: None
    elif not sys.stderr.isatty():
        yield _Lines().observe
    else:
        with _bar() as observer:
            yield observer


class _Lines:
    """A line when work begins to take long, and again every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + _LINE_EVERY_S

    def observe(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + _LINE_EVERY_S
            sys.stderr.write(f"{what}: {done} of {total}\n")
            sys.stderr.flush()


@contextmanager
def _bar() -> Iterator[Observer]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks = {}

        def observe(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield observe
