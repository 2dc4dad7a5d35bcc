"""Shows the progress of a call in a notebook, below its cell.

A notebook is recognised by its kernel; elsewhere nothing is shown. The display is one output that
is replaced, so it needs no widgets, and a saved notebook keeps its last state. A caller that gives
an observer sees progress there, and not here.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from lakeferry.engine import Observer, unobserved
from lakeferry.readable import ProgressWords, counted, elapsed

_LEAST_PAUSE_S = 0.2
"""How long a display stays, so that a kernel isn't flooded with messages."""
_SHOWN_PARTS = 12


@contextmanager
def progress_in_notebook(observer: Observer) -> Iterator[Observer]:
    """Yield the observer to use: the given one, or in a notebook one that shows progress."""
    display = _notebook_display() if observer is unobserved else None
    if display is None:
        yield observer
        return
    progress = NotebookProgress(display)
    try:
        yield progress.observe
    finally:
        progress.end()


class DisplayHandle(Protocol):
    """An output of a notebook that can be replaced."""

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        """Replace it."""


Display = Callable[[dict[str, str]], DisplayHandle]


def _notebook_display() -> Display | None:
    """Return what shows an output in the notebook whose kernel this process is, if it is one."""
    # Importing IPython would take longer than most calls; a kernel has imported it.
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None

    def display(data: dict[str, str]) -> DisplayHandle:
        handle: DisplayHandle = ipython.display.display(data, raw=True, display_id=True)
        return handle

    return display


@dataclass(slots=True)
class _ObservedPart:
    """A part of the work: how much is done, in words and as a fraction, and how long it took."""

    words: str
    share: float
    began: float
    seconds: float = 0.0


class NotebookProgress:
    """The progress of one call. Observations may come from any thread."""

    def __init__(self, display: Display, clock: Callable[[], float] = time.monotonic) -> None:
        """Show nothing yet; ``clock`` returns seconds."""
        self._display = display
        self._clock = clock
        self._words = ProgressWords(clock)
        self._lock = threading.Lock()
        self._parts: dict[str, _ObservedPart] = {}
        self._left_out = 0
        self._handle: DisplayHandle | None = None
        self._shown_at = 0.0
        self._is_shown = True

    def observe(self, what: str, done: int, total: int) -> None:
        """Show how much of a part is done, unless the last display was just now."""
        with self._lock:
            now = self._clock()
            part = self._parts.get(what)
            if part is None:
                self._make_room()
                part = self._parts[what] = _ObservedPart("", 0.0, now)
            if part.share < 1:
                part.seconds = now - part.began
            part.words = ", ".join(self._words.told(what, done, total))
            part.share = min(done / total, 1.0) if total else 1.0
            self._is_shown = False
            if self._handle is None or now - self._shown_at >= _LEAST_PAUSE_S:
                self._show(now)

    def end(self) -> None:
        """Show what was observed last."""
        with self._lock:
            if not self._is_shown:
                self._show(self._clock())

    def _make_room(self) -> None:
        """Leave out a part that ended if there are many; a fleet has one for each table."""
        if len(self._parts) < _SHOWN_PARTS:
            return
        ended = next((name for name, part in self._parts.items() if part.share >= 1), None)
        if ended is not None:
            del self._parts[ended]
            self._left_out += 1

    def _show(self, now: float) -> None:
        self._shown_at, self._is_shown = now, True
        shown = {"text/html": self._html(), "text/plain": self._plain()}
        if self._handle is None:
            self._handle = self._display(shown)
        else:
            self._handle.update(shown, raw=True)

    def _html(self) -> str:
        from lakeferry.html_tables import html, joined, notebook_view, shortened

        left = html(' style="text-align:left"')
        rows = joined(
            html(
                '<tr><td{}>{}</td><td><progress max="1" value="{}"></progress></td>'
                "<td{}>{}</td><td>{}</td></tr>",
                *(left, shortened(what), f"{part.share:.4f}"),
                *(left, shortened(part.words), elapsed(part.seconds)),
            )
            for what, part in self._listed()
        )
        table = html("<table><tbody>{}</tbody></table>", rows)
        return notebook_view("", table, *self._rest())

    def _plain(self) -> str:
        lines = [f"{what}: {part.words} ({elapsed(part.seconds)})" for what, part in self._listed()]
        return "\n".join([*lines, *self._rest()])

    def _listed(self) -> list[tuple[str, _ObservedPart]]:
        return list(self._parts.items())[:_SHOWN_PARTS]

    def _rest(self) -> list[str]:
        more = self._left_out + max(len(self._parts) - _SHOWN_PARTS, 0)
        return [f"and {counted(more, 'more part')}"] if more else []
