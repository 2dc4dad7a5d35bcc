"""Parses and checks names of datasets.

Names come from peers. :meth:`DatasetName.parse` refuses everything that could mean another
folder, a folder inside a dataset, or a reserved place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from lakeferry.errors import InvalidInput

OWN_FOLDER = ".lakeferry"
"""The server's own folder, below the root and below each dataset."""
DELTA_LOG = "_delta_log"
RESERVED = frozenset({"metrics", "healthz"})
"""Reserved first segments; names that begin with a dot are reserved, too."""
LONGEST_SEGMENT = 100

WORDS_BEHIND = frozenset({"refs", "blocks", "data", "checkpoints", "info", "pull", "push"})
"""Words that follow a dataset in a URL, or are folders in it in a store.

As the second segment of a name they would make one address ambiguous.
"""
SEGMENT = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?")


@dataclass(frozen=True, slots=True, order=True)
class DatasetName:
    """A dataset's name, which is also its folder below the root. Letter case counts."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the name in a text, or raise ``InvalidInput``."""
        segments = text.split("/")
        fits = (
            len(segments) <= 2
            and all(
                len(segment) <= LONGEST_SEGMENT and SEGMENT.fullmatch(segment)
                for segment in segments
            )
            and segments[0] not in RESERVED
            and DELTA_LOG not in segments
            and not (len(segments) == 2 and segments[1] in WORDS_BEHIND)
        )
        if not fits:
            raise InvalidInput(
                "not a dataset's name",
                cause=repr(text[: 2 * LONGEST_SEGMENT]),
                remedy="write name or account/name, with letters, digits, '-', '_' and '.'; "
                "some words are reserved",
            )
        return cls(text)

    @property
    def account(self) -> str | None:
        """The part before the slash, if there is one."""
        before, slash, _ = self.text.partition("/")
        return before if slash else None

    def __str__(self) -> str:
        return self.text
