"""The port to data engines: the plans that an engine executes, and the ``Engine`` protocol.

An engine takes a plan, a frozen value, and gives a result: totals, small values,
and what there may be a million of in bounded batches. Whoever plans never sees
which engine does the work; every engine gives the same result. An engine may
work in other processes and on other machines, so a plan names places
(:class:`~lakeferry.storage.StoreConfig`) and carries no open store.

Every verb takes one plan and an observer, and is safe to repeat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Literal, Protocol, Self

import pyarrow as pa

from lakeferry.errors import InvalidInput
from lakeferry.log import files
from lakeferry.log.actions import Metadata
from lakeferry.log.replay import Snapshot
from lakeferry.log.rewrite import Listed, Rewrite, Sidecars
from lakeferry.log.segment import Segment
from lakeferry.storage import Store, StoreConfig

Observer = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is to do.

Amounts are plain numbers, or a :class:`Volume` where bytes are moved.
"""


class Volume(int):
    """A number of bytes that knows how many objects they make up."""

    objects: int

    def __new__(cls, size_bytes: int, objects: int) -> Self:
        """Be ``size_bytes``, in so many objects."""
        volume = super().__new__(cls, size_bytes)
        volume.objects = objects
        return volume


EngineChoice = Literal["auto", "local", "spark"]
Name = Literal["local", "spark"]
ENGINES: tuple[EngineChoice, ...] = ("auto", "local", "spark")

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


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Copy the objects that a stretch of one table's log refers to, to another table's place.

    The objects are those of every ``add`` and ``cdc`` and of their deletion
    vectors in the segment's files, whether they are still live or not: nothing is
    reconciled. ``rename`` turns a path of the source's log into the path that the
    target's log has for the same file. What comes out relative is copied to that
    name at the target; what comes out absolute stays where it is. It is a frozen
    value that executors can be sent.

    With ``resumed`` the target is listed first, and objects that are there with
    the size that the log states are left alone.
    """

    source: StoreConfig
    target: StoreConfig
    segment: Segment
    rename: Rewrite
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class CopyTotals:
    """What a copy did. ``missing`` names some of the objects that the source doesn't have.

    An object of the source's history may be gone, by VACUUM; whether one that is
    missing matters is for the caller to say, who knows what is live.
    """

    objects: int
    bytes: int
    skipped: int
    missing_count: int
    missing: tuple[str, ...]
    """Paths as the source's log has them; at most a thousand."""
    renamed: int = 0
    """How many of the references have another path at the target than at the source."""


@dataclass(frozen=True, slots=True)
class LogCopy:
    """One log file to be put at another table, under a name of its own."""

    path: str
    new_path: str
    modified_ms: int | None = None
    """The time that the new file shall have, where its store can be told."""
    exclusive: bool = False
    """Whether other bytes under the new name are somebody else's, and stay."""
    address: str | None = None
    """Where its bytes are, if the source would have to be asked (:meth:`Store.learn`)."""
    size_bytes: int = 0
    """Its size as the source's listing has it, for an engine that doesn't read it."""


@dataclass(frozen=True, slots=True)
class LogCopyPlan:
    """Copy log files, byte for byte or with every path in them rewritten.

    ``sidecars`` gives the new path and size of those that the files name.
    """

    source: StoreConfig
    target: StoreConfig
    files: tuple[LogCopy, ...]
    rewrite: Rewrite | None = None
    sidecars: Sidecars | None = None


class Shelved(Protocol):
    """What a listing shows of a table, kept where engines find it."""

    def opened(self) -> Listed:
        """Return it; whoever needs it often keeps it."""


@dataclass(frozen=True, slots=True)
class LogExportPlan:
    """Put log files at another place, with the URIs of what they name in place of its paths.

    ``sidecars`` gives the new path and size of those that the files name.
    """

    source: StoreConfig
    target: StoreConfig
    files: tuple[LogCopy, ...]
    listed: Listed | Shelved
    sidecars: Sidecars | None = None


@dataclass(frozen=True, slots=True)
class LogExported:
    """One log file that was exported, as :class:`~lakeferry.log.rewrite.Relisted` tells of it."""

    size_bytes: int
    actions: int
    unlisted: int
    elsewhere: int
    skipped: int
    gone: tuple[str, ...]
    gone_count: int
    kin: int
    protocol: bytes | None
    metadata: bytes | None


LISTED_FINDINGS = 10
"""So many of what a check finds are named; all are counted."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Check that another place has the live files of a version.

    ``rename`` turns a path of the source's log into the one that the target's log
    has for the same file. Without ``there`` the objects themselves are looked for,
    deletion vectors included: each of the size that the log states. With it, the
    version that this segment of the target's log makes up has to name the same
    files, with the same sizes and numbers of rows.
    """

    source: StoreConfig
    segment: Segment
    rename: Rewrite
    target: StoreConfig
    there: Segment | None = None


@dataclass(frozen=True, slots=True)
class CheckTotals:
    """What a check found, with a few of the paths as the source's log has them."""

    wanted: int
    missing_count: int
    missing: tuple[str, ...]
    unequal_count: int
    """How many are there, and not as large as the log states."""
    unequal: tuple[str, ...]
    extra_count: int
    """How many files only the other version names."""


Look = Literal["digest", "rows"]
PAIR = pa.schema(
    [
        field.with_name(f"{field.name}_{side}")
        for side in "ab"
        for field in (
            pa.field("path", pa.string()),
            pa.field("size", pa.int64()),
            pa.field("vector_kind", pa.string()),
            pa.field("vector", pa.string()),
            pa.field("vector_offset", pa.int32()),
            pa.field("vector_size", pa.int32()),
        )
    ]
)
"""A file of one table and its counterpart in another, each with its deletion vector if any."""
LOOKED: Mapping[Look, pa.Schema] = {
    "digest": pa.schema(
        [
            pa.field(f"{name}_{side}", pa.string())
            for side in "ab"
            for name in ("digest", "vector_digest")
        ]
    ),
    "rows": pa.schema([pa.field(f"rows_{side}", pa.int64()) for side in "ab"]),
}
"""What a pair shows: SHA-256 in hexadecimal, null where an object is missing; or how many rows
each file has by its own footer, null where it can't be read, zero where there is no file."""


@dataclass(frozen=True, slots=True)
class LookPlan:
    """Look at files of two tables, pair by pair; ``pairs`` has the columns of :data:`PAIR`.

    Where digests are wanted, each pair has two files.
    """

    a: StoreConfig
    b: StoreConfig
    pairs: pa.Table
    what: Look

    @property
    def title(self) -> str:
        """What an observer is told that is being done."""
        return "comparing digests" if self.what == "digest" else "counting rows"


TO_HASH = pa.schema([pa.field("name", pa.string()), pa.field("size", pa.int64())])
"""An object of a store, and about how large it is, if anybody knows."""
HASHED = pa.schema([*TO_HASH, pa.field("digest", pa.binary())])
"""An object with its size and its sha3-256; without a digest where it isn't there."""


@dataclass(frozen=True, slots=True)
class HashPlan:
    """Read objects of one store for their digests; ``objects`` are rows of :data:`TO_HASH`."""

    store: StoreConfig
    objects: pa.Table

    title: ClassVar[str] = "reading digests"
    """What an observer is told that is being done."""


REWRITTEN = pa.schema([pa.field("row", pa.int64()), *files.ADD, pa.field("outcome", pa.string())])
"""What became of a file: its number in the plan, the file that takes its place, and an outcome.

``rewritten``: the columns of :data:`lakeferry.log.files.ADD` are those of the new
file. ``kept``: the file is as it is wanted, nothing was written, and they are its
own. ``emptied``: no row of it is left, nothing was written, and they are null.
"""


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """Write data files anew, with the same rows and without what a feature left in them.

    ``files`` are live files with the columns of :data:`lakeferry.log.files.ADD`,
    written as ``before`` has it; the new ones follow ``after``: its types, and its
    names, which are physical ones where it maps columns. A column of both is one
    that users see under one name in both. Rows that a deletion vector deletes aren't
    written, the others stay in their order, and one file becomes one file.

    With ``only_where_needed`` a file is left alone that has no vector and is by its
    footer as ``after`` wants it; a column that it lacks, and which is null to
    readers, is no reason to write it. ``tight_bounds`` is whether the new statistics
    say that they are tight, which they are: for tables that support vectors.
    """

    store: StoreConfig
    files: pa.Table
    before: Metadata
    after: Metadata
    only_where_needed: bool = True
    tight_bounds: bool = False


class Reach(Protocol):
    """Which objects of a folder are needed: a frozen value that executors can be sent."""

    def paths(self, store: Store) -> Iterator[pa.RecordBatch]:
        """Yield the names of what is needed, as the only column, in bounded batches.

        A chain that can't be followed to its end raises an error of its own: nothing can be
        said of the folder then.
        """


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """A folder whose objects are kept for as long as something reaches them.

    What is looked at has a name that begins with one of ``prefixes``, which don't overlap.
    ``splits`` are the letters that may follow a prefix, for those who list in parallel.
    """

    folder: str
    prefixes: tuple[str, ...]
    splits: str
    reach: Reach


ORPHAN = pa.schema(
    [
        pa.field("folder", pa.string()),
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("modified", pa.int64()),
    ]
)
"""An object that nothing reaches. Without a path: the folder's reach can't be told."""


@dataclass(frozen=True, slots=True)
class OrphanPlan:
    """Find what nothing on its shelf reaches, and that wasn't changed after a time."""

    store: StoreConfig
    shelves: tuple[KeptFolder, ...]
    until_ms: int


class Carrier(Protocol):
    """How objects get from one place to another: a frozen value that executors can be sent."""

    def carry(self, numbers: Sequence[int], tasks: int) -> Iterator[tuple[int, str]]:
        """Move the objects of these numbers, and yield each number with what became of it.

        So many ``tasks`` do so at once, this one included. To move one again is harmless.
        """


@dataclass(frozen=True, slots=True)
class CarryPlan:
    """Have objects moved by those who know how, which have the numbers from 0 on.

    They go to ``store`` or come from there. ``title`` is what an observer is told that is
    being done.
    """

    carrier: Carrier
    store: StoreConfig
    sizes: tuple[int, ...]
    title: str


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
    def copy(self, plan: CopyPlan, observer: Observer = unobserved) -> CopyTotals:
        """Copy the objects of a stretch of log; each appears at the target whole or not at all."""

    @abstractmethod
    def copy_log(self, plan: LogCopyPlan, observer: Observer = unobserved) -> tuple[int, ...]:
        """Put log files at the target, and return the size of each in the plan's order.

        A file that is there already with other bytes is replaced, and the caller sees
        to it that nobody reads it yet; an ``exclusive`` one raises
        :class:`~lakeferry.errors.CommitConflict` instead.
        """

    @abstractmethod
    def export_log(
        self, plan: LogExportPlan, observer: Observer = unobserved
    ) -> tuple[LogExported, ...]:
        """Put log files at the target, and tell of each in the plan's order.

        What is there under a new name is replaced: the caller sees to it that nobody
        reads it yet, or that it says the same.
        """

    @abstractmethod
    def check(self, plan: CheckPlan, observer: Observer = unobserved) -> CheckTotals:
        """Look for a version's files at another place."""

    @abstractmethod
    def look(self, plan: LookPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        """Yield what each pair shows, in the plan's order, in bounded batches.

        Columns are those of :data:`LOOKED` for what is asked. Nothing is done before
        the first batch is asked for.
        """

    @abstractmethod
    def hash(self, plan: HashPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        """Yield each object with its digest, rows of :data:`HASHED`, in bounded batches.

        In any order. Nothing is done before the first batch is asked for.
        """

    @abstractmethod
    def rewrite(
        self, plan: RewritePlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        """Write files anew, and yield what became of each, in any order, in bounded batches.

        Columns are those of :data:`REWRITTEN`. Nothing is done before the first batch
        is asked for. A new file has a name that nothing else has: what is written
        twice, or by a plan that fails or that nobody commits, is named by no log, and
        VACUUM removes it.

        Raises :class:`~lakeferry.errors.UnsupportedFeature` with the ``column`` for a
        type that can't be carried, before anything is written;
        :class:`~lakeferry.errors.MissingFile` and
        :class:`~lakeferry.errors.CorruptLog` with the ``path`` of a file that isn't
        there or can't be read.
        """

    @abstractmethod
    def orphans(
        self, plan: OrphanPlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        """Yield what nothing reaches, in any order, in bounded batches of :data:`ORPHAN`.

        Nothing is done before the first batch is asked for. A folder whose reach can't be
        told has no orphans, and one row that says so.
        """

    def carry(
        self,
        plan: CarryPlan,
        observer: Observer = unobserved,  # noqa: ARG002
    ) -> Iterator[tuple[int, str]]:
        """Yield each object's number with what became of it, in any order."""
        return plan.carrier.carry(range(len(plan.sizes)), 1)

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
