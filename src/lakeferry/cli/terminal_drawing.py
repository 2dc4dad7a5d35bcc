"""Draws progress at the end of a terminal, and removes it while other text is printed.

Only one drawing is shown at a time. It is redrawn in place, so other output to the terminal,
such as a warning, must be written inside of :func:`aside`. Otherwise both would be on one line.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_TIMES_A_SECOND = 8
_PATIENCE_S = 0.5
_lock = threading.RLock()
_drawn: RenderableType | None = None
_live: Live | None = None


def is_shown() -> bool:
    """Return True while something is drawn."""
    return _drawn is not None


@contextmanager
def shown(drawn: RenderableType) -> Iterator[None]:
    """Draw something on standard error during the context, and remove it afterwards."""
    global _drawn
    with _lock:
        _drawn = drawn
        _begin()
    try:
        yield
    finally:
        with _lock:
            _end()
            _drawn = None


@contextmanager
def aside() -> Iterator[None]:
    """Remove the drawing while something else is written."""
    if _drawn is None:
        yield
        return
    with _lock:
        _end()
        yield
        _begin()


def over() -> None:
    """Stop drawing for the rest of the program, even in a context that hasn't ended.

    After an interrupt we don't wait for a thread that was stopped while it drew.
    """
    global _drawn
    if _drawn is None:
        return
    locked = _lock.acquire(timeout=_PATIENCE_S)
    _drawn = None
    _end()
    if locked:
        _lock.release()


def _begin() -> None:
    """Draw again, below the last output."""
    from rich.console import Console
    from rich.live import Live

    global _live
    if _drawn is not None and _live is None:
        # Others write by :func:`aside`; a stream that is replaced would hide the terminal.
        _live = Live(
            _drawn,
            console=Console(stderr=True),
            refresh_per_second=_TIMES_A_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        _live.start(refresh=True)


def _end() -> None:
    global _live
    if _live is not None:
        _live.stop()
        _live = None
