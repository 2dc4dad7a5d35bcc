"""Draws progress: a line for each part of the work, on a screen of any width.

A line has a spinner, the name of the work, a bar, the amount done, and the elapsed time. If
there isn't enough room, words are left out first, then the bar, then the time; the spinner and
the amount stay. Otherwise a screen of 80 columns would show no change while one large file is
copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakeferry.cli.screen import cells, without_middle
from lakeferry.readable import elapsed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_SIGNS, _PLAIN_SIGNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "-\\|/"
_SIGNS_A_SECOND = 10
_SIGN = 2
_TIME = 8
_LEAST_BAR, _MOST_BAR = 10, 40


@dataclass(frozen=True, slots=True)
class BarColumns:
    """How many cells each column of the drawing has; 0 is for one that is left out."""

    what: int
    bar: int
    told: int
    time: int


def _columns(screen: int, whats: Iterable[str], told: Sequence[Sequence[str]]) -> BarColumns:
    """Return the widths of the columns for lines with these names and these words."""
    room = screen - _SIGN
    what = min(max(map(cells, whats), default=0), room // 2)
    room -= what
    least = min(1 + max((cells(words[0]) for words in told), default=0), room)
    has_time = room - least >= _TIME
    room -= _TIME if has_time else 0
    has_bar = room - least > _LEAST_BAR
    for_words = room - 1 - (_LEAST_BAR + 1 if has_bar else 0)
    words = max((cells(fitting(each, for_words)) for each in told), default=0)
    bar = min(_MOST_BAR, room - words - 2) if has_bar else 0
    return BarColumns(what, bar, words, _TIME if has_time else 0)


def fitting(words: Sequence[str], room: int) -> str:
    """Return the words that fit; the first and the last are dropped last."""
    kept = list(words)
    while len(kept) > 1 and cells(", ".join(kept)) > room:
        del kept[1]
    return without_middle(", ".join(kept), max(room, 1))


@dataclass(slots=True)
class _Part:
    """A part of the work: the fraction that is done, and when it began and ended."""

    words: tuple[str, ...]
    share: float
    began: float
    ended: float | None = None


class ProgressBars:
    """The progress that a person sees."""

    def __init__(self, first: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Show ``first`` until the work reports something."""
        self._clock = clock
        self._parts: dict[str, _Part] = {}
        self._waiting: str | None = None
        self._since = 0.0
        self.wait_for(first)

    def tell(self, what: str, words: tuple[str, ...], share: float) -> None:
        """Set the progress of a part: in words, and as a number from 0 to 1."""
        now = self._clock()
        part = self._parts.setdefault(what, _Part(words, share, now))
        part.words, part.share = words, share
        part.ended = None if share < 1 else part.ended or now

    def wait_for(self, what: str | None) -> None:
        """Show in the first line what the work waits for; ``None`` means nothing."""
        self._waiting, self._since = what, self._clock()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw for the screen as it is now."""
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        now = self._clock()
        signs = _SIGNS if console.encoding.startswith("utf") else _PLAIN_SIGNS
        sign = signs[int(now * _SIGNS_A_SECOND) % len(signs)]
        screen = options.max_width
        parts = list(self._parts.items())
        wide = _columns(screen, (what for what, _ in parts), [part.words for _, part in parts])
        if self._waiting is not None:
            text = f"{sign} {without_middle(self._waiting, max(screen - _SIGN, 1))}"
            since = _time(now - self._since)
            yield Text(text + (since if cells(text + since) <= screen else ""), no_wrap=True)
        for what, part in parts:
            ended = now if part.ended is None else part.ended
            name = without_middle(what, max(wide.what, 1))
            line = Text(f"{sign if part.ended is None else ' '} {name}", no_wrap=True, end="")
            line.append(" " * (wide.what - cells(name)))
            if wide.bar:
                yield line
                yield Text(" ", end="")
                yield ProgressBar(1, min(part.share, 1), width=wide.bar)
                line = Text(no_wrap=True, end="")
            words = fitting(part.words, wide.told)
            line.append(f" {words}{' ' * (wide.told - cells(words))}")
            yield line
            yield Text(_time(ended - part.began) if wide.time else "")


def _time(seconds: float) -> str:
    return f" {elapsed(seconds):>7}"
