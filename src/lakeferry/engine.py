"""What a data engine can do: the port between those who plan and those who move data.

An engine takes a plan, a frozen value, and gives a result: totals, small values,
and what there may be a million of in bounded batches. Whoever plans never sees
which engine does the work; every engine gives the same result. An engine may
work in other processes and on other machines, so a plan names places
(:class:`~lakeferry.storage.StoreConfig`) and carries no open store.

Every verb takes one plan and an observer, and is safe to repeat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Literal, Self

import pyarrow as pa

from lakeferry.errors import InvalidInput
from lakeferry.log.replay import Snapshot
from lakeferry.log.segment import Segment
from lakeferry.storage import StoreConfig

Observer = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is to do."""

Choice = Literal["auto", "local", "spark"]
Name = Literal["local", "spark"]
ENGINES: tuple[Choice, ...] = ("auto", "local", "spark")

FEW_OBJECTS = 1_000
FEW_BYTES = 1024**3
"""Below both, starting a JVM would be most of the work."""


def unobserved(what: str, done: int, total: int) -> None:
    """Observe nothing."""


def choose(name: str, objects: int, bytes: int) -> Name:
    """Return which engine does a job of that many objects and bytes.

    ``auto`` is Spark, except for jobs that are over before a JVM has started.
    """
    match name:
        case "local" | "spark":
            return name
        case "auto":
            return "local" if objects < FEW_OBJECTS and bytes < FEW_BYTES else "spark"
    raise InvalidInput(
        f"there is no engine called {name!r}",
        remedy=f"use one of {', '.join(ENGINES)}",
        engine=name,
    )


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Rebuild the version that the segment makes up, from the log at the store's root."""

    store: StoreConfig
    segment: Segment


@dataclass(frozen=True, slots=True)
class ReplayTotals:
    """How much a version holds. ``size_bytes`` is that of all live files together."""

    num_files: int
    size_bytes: int
    num_tombstones: int


class Replayed(ABC):
    """A rebuilt version: what is small as values, its files wherever the engine keeps them.

    The engine holds on to the files until :meth:`close`, so a log that is cleaned
    up meanwhile takes nothing away.
    """

    small: Snapshot
    """The version with its protocol, metadata, transactions and domains; its tables are empty."""
    totals: ReplayTotals

    @abstractmethod
    def files(self) -> Iterator[pa.RecordBatch]:
        """Yield the live files in bounded batches, in no order that means anything.

        Columns are those of :data:`lakeferry.log.files.ADD`, then ``raw`` and the
        fields that we don't know, where there are any.
        """

    @abstractmethod
    def tombstones(self) -> Iterator[pa.RecordBatch]:
        """Yield the tombstones likewise, with :data:`lakeferry.log.files.REMOVE`'s columns."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Engine(ABC):
    """Executes plans. One engine serves any number of them, one after the other."""

    name: ClassVar[Name]

    @abstractmethod
    def replay(self, plan: ReplayPlan, observer: Observer = unobserved) -> Replayed:
        """Rebuild a version of a table with all of its files.

        A log file that can't be read raises
        :class:`~lakeferry.errors.CorruptLog` with its ``path`` here, not when the
        result is used.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the engine has started itself; what it was given stays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
