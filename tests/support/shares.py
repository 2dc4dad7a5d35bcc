"""Which share of the exhaustive suites a run takes.

Some suites try one thing thousands of times, each time a little differently: interleavings by
their seeds, kills at every call, damage by its number. All of that in each run would take longer
than anybody waits. So a run takes one share of several, says which one at its start and with
each failure, and the next run takes the next one. ``--share 2/11``, or ``LAKEFERRY_SHARE=2/11``,
chooses one, to repeat a run; ``--share all`` takes everything, as ``make soak`` does.

Every case is in exactly one share, so that after as many runs as there are shares all of them
were tried. Cases that were made for one defect aren't shared out: they run every time.
"""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TypeVar

import pytest

Case = TypeVar("Case")

SHARES = 11
"""Between how many runs the cases are divided.

A prime, so that whoever always runs the tests in two or three parts doesn't take the same
shares again and again.
"""
VARIABLE = "LAKEFERRY_SHARE"


@dataclass(frozen=True, slots=True)
class Share:
    """One of so many shares, counted from 1."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ValueError(f"there is no share {self.number} of {self.of}")

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read ``2/5`` or ``all``."""
        if text == "all":
            return WHOLE
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if match is None:
            raise ValueError(f"{text!r} is no share: write 2/5, or all")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        """Return what :meth:`parse` reads."""
        return "all" if self.of == 1 else f"{self.number}/{self.of}"

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to other runs."""
        return self.of == 1

    def block(self, count: int) -> range:
        """Return consecutive numbers below ``count``: for what has a number, such as a seed.

        Consecutive, because what a number stands for is often chosen by its remainder.
        """
        return range(count * (self.number - 1) // self.of, count * self.number // self.of)

    def each(self, cases: Iterable[Case], before: int = 0) -> list[Case]:
        """Return every so many-th case, from this share's first one on: for what is in an order.

        ``before`` is how many cases another test has that these go on from, so that a few costly
        cases of each are in different shares.
        """
        first = (self.number - 1 - before) % self.of
        return list(islice(cases, first, None, self.of))

    def onwards(self, first: int = 0) -> Iterator[int]:
        """Yield the indexes that :meth:`each` would take, from ``first`` on and without an end.

        For loops that find out themselves when there is nothing more to break.
        """
        return count(first + self.number - 1, self.of)

    def some(self, cases: Sequence[Case]) -> list[Case]:
        """Return cases as :meth:`each` does, but at least one: for a few that are costly.

        With fewer cases than shares, several shares have the same one.
        """
        return self.each(cases) or [cases[(self.number - 1) % len(cases)]]

    def has(self, index: int) -> bool:
        """Tell whether :meth:`each` returns the case with this index."""
        return index % self.of == self.number - 1


WHOLE = Share(1, 1)
TAKEN = pytest.StashKey[Share]()
"""Where a run keeps its share."""


def chosen(option: str | None, folder: Path) -> Share:
    """Return the share of a run: by the command line, the environment, or whose turn it is."""
    if text := option or os.environ.get(VARIABLE):
        return Share.parse(text)
    return next_in(folder)


def next_in(folder: Path) -> Share:
    """Return the share after the last run's, which a file in a folder knows, and note it there.

    Where nothing is known, or nothing can be noted, it is any one.
    """
    place = folder / "share"
    try:
        last = Share.parse(place.read_text().strip())
    except (OSError, ValueError):
        last = Share(random.SystemRandom().randint(1, SHARES), SHARES)
    taken = Share(last.number % SHARES + 1, SHARES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Two runs at once may take the same one, but neither finds half a file.
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            file.write(f"{taken}\n")
        Path(file.name).replace(place)
    except OSError:
        pass
    return taken
