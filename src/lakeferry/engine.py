"""The port to data engines: the plans that an engine executes, and the ``Engine`` protocol.

An engine takes a plan, which is a frozen value, and returns a result. Totals and small results
are values; results that may have a million rows come in bounded batches. The caller never sees
which engine does the work: every engine gives the same result. An engine may run in other
processes and on other machines, so a plan names places
(:class:`~lakeferry.storage.StoreConfig`) and contains no open store.

Every method takes one plan and an observer, and can safely be called again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import InvalidInput
from lakeferry.log import file_actions
from lakeferry.log.actions import Metadata
from lakeferry.log.replay import Snapshot
from lakeferry.log.rewrite import Listed, Rewrite, Sidecars
from lakeferry.log.segment import Segment
from lakeferry.storage import Store, StoreConfig

Observer = Callable[[str, int, int], None]
"""Receives the current activity, the amount done and the total amount.

Amounts are plain numbers, or a :class:`Volume` where bytes are moved.
"""


class Volume(int):
    """A number of bytes that knows how many objects they make up."""

    objects: int

    def __new__(cls, size_bytes: int, objects: int) -> Self:
        """Create a volume of ``size_bytes`` that consists of ``objects`` objects."""
        volume = super().__new__(cls, size_bytes)
        volume.objects = objects
        return volume


Verify = Literal["store", "full"]
"""How copies are verified: by what stores say about them, or by reading both ends."""
VERIFY: tuple[Verify, ...] = ("store", "full")
Compares = Literal["nothing", "copied", "all"]
"""Which objects of a copy are read at both ends and compared.

``copied`` are those that the plan copies, ``all`` also those that are at the target already.
"""

EngineChoice = Literal["auto", "local", "spark"]
Name = Literal["local", "spark"]
_ENGINES: tuple[EngineChoice, ...] = ("auto", "local", "spark")

FEW_OBJECTS = 1_000
FEW_BYTES = 1024**3
"""Jobs below both limits run locally: starting a JVM would take most of the time."""


def unobserved(what: str, done: int, total: int) -> None:
    """Ignore progress events."""


def choose(name: str, objects: int, bytes: int) -> Name:
    """Return the engine for a job with this number of objects and bytes.

    ``auto`` means Spark, except for jobs that end before a JVM would have started.
    """
    match name:
        case "local" | "spark":
            return name
        case "auto":
            return "local" if objects < FEW_OBJECTS and bytes < FEW_BYTES else "spark"
    raise InvalidInput(
        f"there is no engine called {name!r}",
        remedy=f"use one of {', '.join(_ENGINES)}",
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
    """A rebuilt version: small parts as values, its files wherever the engine keeps them.

    The engine keeps the files until :meth:`close`, so the result stays complete even if the log
    is cleaned up meanwhile.
    """

    small: Snapshot
    """The version with its protocol, metadata, transactions and domains; its tables are empty."""
    totals: ReplayTotals

    @abstractmethod
    def files(self) -> Iterator[pa.RecordBatch]:
        """Yield the live files in bounded batches, in no particular order.

        Columns are those of :data:`lakeferry.log.file_actions.ADD`, then ``raw`` and any unknown
        fields.
        """

    @abstractmethod
    def tombstones(self) -> Iterator[pa.RecordBatch]:
        """Yield the tombstones; columns are those of :data:`lakeferry.log.file_actions.REMOVE`."""

    @abstractmethod
    def close(self) -> None:
        """Release the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


LISTED_FINDINGS = 10
"""How many findings of a check are listed; all are counted."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Copy the objects that a part of one table's log refers to, to another table's place.

    The objects are those of every ``add`` and ``cdc`` in the segment's files, and their
    deletion vectors. Files that aren't live any more are copied too: nothing is reconciled.
    ``rename`` maps a path of the source's log to the target's path for the same file. If the
    new path is relative, the object is copied to that name at the target; if it is absolute,
    the object stays where it is. ``rename`` is a frozen value that can be sent to executors.

    With ``resumed`` the target is listed first, and objects that already have the size stated
    in the log are skipped. If ``all`` are compared, it isn't listed: each object is looked for.

    With ``replaces`` an object at the target that differs from the source's is copied again.
    Without it, that is only done if its size differs: the target has objects of its own.
    """

    source: StoreConfig
    target: StoreConfig
    segment: Segment
    rename: Rewrite
    resumed: bool = False
    compares: Compares = "nothing"
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of reading objects at both ends.

    Paths are as the source's log has them, at most :data:`LISTED_FINDINGS` of each kind.
    ``bytes`` is the size of the objects; each is read twice.
    """

    objects: int = 0
    bytes: int = 0
    unequal_count: int = 0
    unequal: tuple[str, ...] = ()
    replaced_count: int = 0
    replaced: tuple[str, ...] = ()
    """Objects that had other bytes at the target, and were copied again."""
    unread_count: int = 0
    unread: tuple[str, ...] = ()
    """Objects at the target that the source doesn't have any more."""

    def plus(self, more: Compared) -> Compared:
        """Return the results of both."""
        return Compared(
            self.objects + more.objects,
            self.bytes + more.bytes,
            self.unequal_count + more.unequal_count,
            (self.unequal + more.unequal)[:LISTED_FINDINGS],
            self.replaced_count + more.replaced_count,
            (self.replaced + more.replaced)[:LISTED_FINDINGS],
            self.unread_count + more.unread_count,
            (self.unread + more.unread)[:LISTED_FINDINGS],
        )


NOTHING_COMPARED = Compared()


@dataclass(frozen=True, slots=True)
class CopyTotals:
    """The result of a copy. ``missing`` names some of the objects that the source doesn't have.

    VACUUM may have deleted objects of the source's history. The caller knows which files are
    live, and decides whether a missing one matters.
    """

    objects: int
    bytes: int
    skipped: int
    missing_count: int
    missing: tuple[str, ...]
    """Paths as the source's log has them; at most a thousand from one copy."""
    renamed: int = 0
    """How many references have a different path at the target."""
    by_store_bytes: int = 0
    """How many of the bytes the stores copied themselves, without sending them here."""
    compared: Compared = NOTHING_COMPARED
    """What was read at both ends."""
    foreseen: Callable[[], Mapping[str, Any]] | None = None
    """Returns what would be copied; only the engine of a dry run has it."""

    def counted(self) -> Mapping[str, Any]:
        """Return ``files`` and ``bytes`` that were copied, or that would be, with a forecast."""
        if self.foreseen is not None:
            return self.foreseen()
        return {"files": self.objects, "bytes": self.bytes}

    def plus(self, more: CopyTotals) -> CopyTotals:
        """Return the totals of both copies."""
        return CopyTotals(
            self.objects + more.objects,
            self.bytes + more.bytes,
            self.skipped + more.skipped,
            self.missing_count + more.missing_count,
            self.missing + more.missing,
            self.renamed + more.renamed,
            self.by_store_bytes + more.by_store_bytes,
            self.compared.plus(more.compared),
        )


NOTHING_COPIED = CopyTotals(0, 0, 0, 0, ())


class CopyForecaster(Protocol):
    """Foresees copies for a dry run: how files travel, how long it takes, what requests cost."""

    def of_files(self, source: Store, target: Store, files: pa.Table) -> Mapping[str, Any]:
        """Return the forecast of copying files with the columns ``path`` and ``size``.

        If there is a column ``rewritten``, its files pass through this process.
        """

    def of_comparison(
        self, places: Sequence[Store], objects: int, size_bytes: int
    ) -> Mapping[str, Any]:
        """Return the forecast of reading objects at all of these places to compare them."""


class NoForecasts:
    """Foresees nothing, where nobody asks."""

    def of_files(self, source: Store, target: Store, files: pa.Table) -> Mapping[str, Any]:  # noqa: ARG002
        """Return nothing."""
        return {}

    def of_comparison(
        self,
        places: Sequence[Store],  # noqa: ARG002
        objects: int,  # noqa: ARG002
        size_bytes: int,  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """Return nothing."""
        return {}


@dataclass(frozen=True, slots=True)
class LogCopy:
    """One log file to put at another table under a new name."""

    path: str
    new_path: str
    modified_ms: int | None = None
    """The modification time of the new file, if its store can set one."""
    exclusive: bool = False
    """If true, an existing object with other bytes belongs to somebody else and isn't replaced."""
    address: str | None = None
    """Address of its bytes, so that the source needn't be asked for it (:meth:`Store.learn`)."""
    size_bytes: int = 0
    """Its size in the source's listing, for progress and for an engine that doesn't read it."""


@dataclass(frozen=True, slots=True)
class LogCopyPlan:
    """Copy log files, byte for byte or with every path in them rewritten.

    ``sidecars`` gives the new path and size of each sidecar that the files name. With
    ``compares`` each file is read at the target and compared with what was written.
    """

    source: StoreConfig
    target: StoreConfig
    files: tuple[LogCopy, ...]
    rewrite: Rewrite | None = None
    sidecars: Sidecars | None = None
    compares: bool = False

    @property
    def amount(self) -> Volume:
        """Return the listed sizes of all files together."""
        return _listed_amount(self.files)


def _listed_amount(files: Sequence[LogCopy]) -> Volume:
    return Volume(sum(file.size_bytes for file in files), len(files))


class Shelved(Protocol):
    """A table's listing, stored where engines can load it."""

    def opened(self) -> Listed:
        """Return the listing. Callers that need it often keep the result."""


@dataclass(frozen=True, slots=True)
class LogExportPlan:
    """Put log files at another place, with URIs instead of the paths in them.

    ``sidecars`` gives the new path and size of each sidecar that the files name. ``managed``: the
    source has a catalog that decides about its commits, which the copy leaves. With ``compares``
    each file is read at the target and compared with what was written.
    """

    source: StoreConfig
    target: StoreConfig
    files: tuple[LogCopy, ...]
    listed: Listed | Shelved
    sidecars: Sidecars | None = None
    managed: bool = False
    compares: bool = False

    @property
    def amount(self) -> Volume:
        """Return the listed sizes of all files together."""
        return _listed_amount(self.files)


@dataclass(frozen=True, slots=True)
class LogExported:
    """One exported log file, as :class:`~lakeferry.log.rewrite.Relisted` describes it."""

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


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Check that another place has the live files of a version.

    ``rename`` maps a path of the source's log to the target's path for the same file. Without
    ``there``, the objects themselves are checked, deletion vectors included: each must have the
    size stated in the log. With ``there``, a segment of the target's log, the target's version
    must name the same files with the same sizes and numbers of rows.
    """

    source: StoreConfig
    segment: Segment
    rename: Rewrite
    target: StoreConfig
    there: Segment | None = None


@dataclass(frozen=True, slots=True)
class CheckTotals:
    """The result of a check, with some of the paths as the source's log has them."""

    wanted: int
    missing_count: int
    missing: tuple[str, ...]
    unequal_count: int
    """How many objects exist with a size other than the one in the log."""
    unequal: tuple[str, ...]
    extra_count: int
    """How many files only the target's version names."""


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
"""The columns that each kind of look returns.

Digests: SHA-256 in hexadecimal, null where an object is missing. Rows: the number in each
file's footer, null where the file can't be read, zero where there is no file.
"""


@dataclass(frozen=True, slots=True)
class LookPlan:
    """Read files of two tables, pair by pair; ``pairs`` has the columns of :data:`PAIR`.

    For digests, each pair must have two files.
    """

    a: StoreConfig
    b: StoreConfig
    pairs: pa.Table
    what: Look

    @property
    def title(self) -> str:
        """Return the name of the activity for the observer."""
        return "comparing digests" if self.what == "digest" else "counting rows"

    @property
    def amount(self) -> Volume:
        """Return the sizes of all files together."""
        size_bytes = sum(pc.sum(self.pairs[f"size_{side}"]).as_py() or 0 for side in "ab")
        return Volume(size_bytes, 2 * self.pairs.num_rows)


TO_HASH = pa.schema([pa.field("name", pa.string()), pa.field("size", pa.int64())])
"""An object of a store and its approximate size, if known."""
HASHED = pa.schema([*TO_HASH, pa.field("digest", pa.binary())])
"""An object with its size and sha3-256; the digest is null where the object is missing."""


@dataclass(frozen=True, slots=True)
class HashPlan:
    """Compute digests of one store's objects; ``objects`` are rows of :data:`TO_HASH`."""

    store: StoreConfig
    objects: pa.Table

    title: ClassVar[str] = "reading digests"
    """The name of the activity for the observer."""

    @property
    def amount(self) -> Volume:
        """Return the sizes of all objects together."""
        return Volume(pc.sum(self.objects["size"]).as_py() or 0, self.objects.num_rows)


REWRITTEN = pa.schema(
    [pa.field("row", pa.int64()), *file_actions.ADD, pa.field("outcome", pa.string())]
)
"""The result for one file: its number in the plan, the file that replaces it, and an outcome.

``rewritten``: the columns of :data:`lakeferry.log.file_actions.ADD` describe the new file.
``kept``: the file was already right and nothing was written; the columns describe the old file.
``emptied``: no row is left and nothing was written; the columns are null.
"""


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """Rewrite data files with the same rows, but without the traces of a feature.

    ``files`` are live files with the columns of :data:`lakeferry.log.file_actions.ADD`, written
    according to ``before``. New files follow ``after``: its types, and its column names
    (physical names if it maps columns). Columns of both are the same if users see them under
    the same name. Rows that a deletion vector deletes aren't written, the others keep their
    order, and each file becomes one file.

    With ``only_where_needed``, a file is left alone if it has no vector and its footer already
    matches ``after``. A missing column, which readers see as null, is no reason to rewrite.
    ``tight_bounds`` says whether the new statistics state that their bounds are tight (they
    are); set it for tables that support vectors.
    """

    store: StoreConfig
    files: pa.Table
    before: Metadata
    after: Metadata
    only_where_needed: bool = True
    tight_bounds: bool = False

    @property
    def amount(self) -> Volume:
        """Return the sizes of all files together."""
        return Volume(pc.sum(self.files["size"]).as_py() or 0, self.files.num_rows)


class Reach(Protocol):
    """Finds the objects of a folder that are needed: a frozen value that executors can get."""

    def paths(self, store: Store) -> Iterator[pa.RecordBatch]:
        """Yield the names of the needed objects, as the only column, in bounded batches.

        Raises an error if a chain can't be followed to its end: then it isn't known which
        objects of the folder are needed.
        """


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """A folder whose objects are kept as long as something refers to them.

    Only names that begin with one of ``prefixes`` are looked at; prefixes don't overlap.
    ``splits`` are the letters that may follow a prefix, used to list in parallel.
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
"""An object that nothing refers to. The path is null if the folder's references aren't known."""


@dataclass(frozen=True, slots=True)
class OrphanPlan:
    """Find objects that nothing on the shelf refers to, and that are older than a given time."""

    store: StoreConfig
    shelves: tuple[KeptFolder, ...]
    until_ms: int


class Carrier(Protocol):
    """Moves objects from one place to another: a frozen value that can be sent to executors."""

    def carry(
        self, numbers: Sequence[int], tasks: int, tell: Callable[[int, int], None]
    ) -> Iterator[tuple[int, str]]:
        """Move the objects with these numbers, and yield each number with its outcome.

        ``tasks`` is how many tasks do so at the same time, this one included. ``tell`` is called
        with the bytes and objects that are moved so far. Moving an object again is harmless.
        """


@dataclass(frozen=True, slots=True)
class CarryPlan:
    """Move objects with a :class:`Carrier`, which numbers them from 0.

    Objects go to ``store`` or come from there. ``title`` is the name of the activity for the
    observer.
    """

    carrier: Carrier
    store: StoreConfig
    sizes: tuple[int, ...]
    title: str

    @property
    def amount(self) -> Volume:
        """Return the sizes of all objects together."""
        return Volume(sum(self.sizes), len(self.sizes))


class Engine(ABC):
    """Executes plans, one after the other."""

    name: ClassVar[Name]

    @abstractmethod
    def replay(self, plan: ReplayPlan, observer: Observer = unobserved) -> Replayed:
        """Rebuild a version of a table with all of its files.

        Raises :class:`~lakeferry.errors.CorruptLog` with the ``path`` of a log file that can't
        be read. The error is raised here, not when the result is used.
        """

    @abstractmethod
    def copy(self, plan: CopyPlan, observer: Observer = unobserved) -> CopyTotals:
        """Copy the objects of a part of a log; each appears at the target whole or not at all."""

    @abstractmethod
    def copy_log(self, plan: LogCopyPlan, observer: Observer = unobserved) -> tuple[int, ...]:
        """Put log files at the target, and return their sizes in the plan's order.

        An existing file with other bytes is replaced; the caller makes sure that nobody reads
        it yet. If the file is ``exclusive``, :class:`~lakeferry.errors.CommitConflict` is
        raised instead.
        """

    @abstractmethod
    def export_log(
        self, plan: LogExportPlan, observer: Observer = unobserved
    ) -> tuple[LogExported, ...]:
        """Put log files at the target, and return a description of each in the plan's order.

        Existing files are replaced: the caller makes sure that nobody reads them yet, or that
        their content stays the same.
        """

    @abstractmethod
    def check(self, plan: CheckPlan, observer: Observer = unobserved) -> CheckTotals:
        """Check that a version's files exist at another place."""

    @abstractmethod
    def look(self, plan: LookPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        """Yield the result of each pair, in the plan's order, in bounded batches.

        Columns are those of :data:`LOOKED` for the kind of look. Work begins when the first
        batch is requested.
        """

    @abstractmethod
    def hash(self, plan: HashPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        """Yield each object with its digest, rows of :data:`HASHED`, in bounded batches.

        The order is arbitrary. Work begins when the first batch is requested.
        """

    @abstractmethod
    def rewrite(
        self, plan: RewritePlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        """Rewrite files, and yield the result for each, in any order, in bounded batches.

        Columns are those of :data:`REWRITTEN`. Work begins when the first batch is requested.
        Each new file has a unique name. If a file is written twice, or the plan fails or is
        never committed, no log names the extra files, and VACUUM removes them.

        Raises :class:`~lakeferry.errors.UnsupportedFeature` with the ``column`` for a type that
        can't be carried, before anything is written; :class:`~lakeferry.errors.MissingFile` and
        :class:`~lakeferry.errors.CorruptLog` with the ``path`` of a file that is missing or
        can't be read.
        """

    @abstractmethod
    def orphans(
        self, plan: OrphanPlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        """Yield unreferenced objects, in any order, in bounded batches of :data:`ORPHAN`.

        Work begins when the first batch is requested. If a folder's references aren't known, it
        yields no orphans, only one row that says so.
        """

    def carry(
        self,
        plan: CarryPlan,
        observer: Observer = unobserved,
    ) -> Iterator[tuple[int, str]]:
        """Yield each object's number with its outcome, in any order."""

        def tell(size_bytes: int, objects: int) -> None:
            observer(plan.title, Volume(size_bytes, objects), plan.amount)

        return plan.carrier.carry(range(len(plan.sizes)), 1, tell)

    @abstractmethod
    def close(self) -> None:
        """Free what the engine has started itself; resources that it was given stay open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
