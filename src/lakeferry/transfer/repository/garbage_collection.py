"""Deletes objects that no dataset and no unfinished push needs.

Three things are looked for, and each goes only when it is older than the grace period:

* what pushes were given addresses for, and which ended, or went silent, without a commit:
  known from their records, so that the requests this takes grow with the unfinished pushes
  and with what was pushed since, and not with the repository;
* objects and blocks of ODF datasets that the chain from the head doesn't reach: a full scan,
  which is an engine's work (:class:`~lakeferry.engine.OrphanPlan`);
* files that a server on local disk began to write and never gave a name, and parts of
  objects that nobody joined, there and on S3, while no push is under way.

What is found is deleted in waves. Within a wave, which pushes wait for, everything is asked
again that may have changed since: what pushes under way need, and then what the blocks that
were added need (:mod:`lakeferry.transfer.repository.push_records` says why nothing falls
between). A dataset whose chain can't be followed loses nothing, and is named in the result.

Of Delta tables only what is known from records is looked at, and files without a name, while
no push is under way: VACUUM is theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from lakeferry.engine import (
    FEW_BYTES,
    FEW_OBJECTS,
    Engine,
    KeptFolder,
    Observer,
    OrphanPlan,
    unobserved,
)
from lakeferry.errors import (
    CorruptLog,
    InvalidInput,
    ObjectNotFound,
    StorageError,
    TimedOut,
)
from lakeferry.storage import ObjectInfo, Store
from lakeferry.storage.local_durability import PARTS_PREFIX, is_temporary
from lakeferry.storage.objects import concurrently
from lakeferry.transfer.chain.hashes import Algorithm, Multihash
from lakeferry.transfer.datasets.delta.delta_dataset import CLAIM
from lakeferry.transfer.datasets.odf import FOLDERS, OdfDataset
from lakeferry.transfer.repository.dataset_names import DELTA_LOG, OWN_FOLDER
from lakeferry.transfer.repository.needed_objects import (
    DeltaReaching,
    OdfReach,
    OdfReaching,
    Reaching,
    Untold,
)
from lakeferry.transfer.repository.push_records import (
    FoundRecord,
    PushState,
    Records,
    Sweep,
    is_claimed,
)
from lakeferry.transfer.repository.push_records import now_ms as _now_ms
from lakeferry.transfer.repository.repository import (
    DAMAGED,
    check_root,
    is_name,
    is_only_marked,
    is_table,
    marked_folders,
    odf_folders,
)

GRACE_MS = 24 * 3600 * 1000
WAVE = 1_000
LEFTOVER_MS = 3600 * 1000
"""How old a file without a name is at least before it goes: somebody may be writing it."""

_SHELVES = ("blocks", *FOLDERS.values())
_HASHED = Multihash(Algorithm.SHA3_256, bytes(32)).text[:5]
_DIGITS = "0123456789abcdef"
_ATTEMPTS = 3


class Why(Enum):
    """Why something is garbage."""

    UNFINISHED = "unfinished_push"
    UNREACHED = "unreached"
    LEFTOVER = "leftover"


@dataclass(frozen=True, slots=True)
class Garbage:
    """An object that may go."""

    path: str
    size_bytes: int
    why: Why

    def as_step(self) -> dict[str, Any]:
        """Return a step of a plan."""
        return {
            "op": "delete",
            "path": self.path,
            "bytes": self.size_bytes,
            "because": self.why.value,
        }


@dataclass(frozen=True, slots=True)
class GarbageCollected:
    """What was deleted, by its names below the root."""

    deleted: tuple[str, ...]
    bytes: int
    pushes: int
    """How many unfinished pushes were tidied up."""
    damaged: tuple[str, ...] = ()
    """Datasets whose chain can't be followed: nothing of theirs was looked at."""

    @property
    def changed(self) -> bool:
        """Whether anything was there to go."""
        return bool(self.deleted or self.pushes)

    def as_document(self) -> dict[str, Any]:
        """Return what the command ``gc`` prints as JSON."""
        return {
            "deleted": list(self.deleted),
            "bytes": self.bytes,
            "unfinished_pushes": self.pushes,
            "damaged": list(self.damaged),
            "changed": self.changed,
        }


@dataclass(slots=True)
class _Tally:
    garbage: list[Garbage] = field(default_factory=list)
    pushes: int = 0
    damaged: set[str] = field(default_factory=set)
    planned: set[str] = field(default_factory=set)


class Collector:
    """Tidies up below one root, or says what would go."""

    def __init__(
        self,
        store: Store,
        *,
        grace_ms: int = GRACE_MS,
        dry_run: bool = False,
        clock: Callable[[], int] = _now_ms,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use a store; what time it is, is asked once."""
        self._store = store
        self._grace_ms = grace_ms
        self._dry_run = dry_run
        self._now_ms = clock()
        self._ticks = ticks
        self._records = Records(store)
        self._tally = _Tally()

    @property
    def garbage(self) -> list[Garbage]:
        """What went, or would go."""
        return self._tally.garbage

    def collected(self) -> GarbageCollected:
        """Return what was done."""
        tally = self._tally
        return GarbageCollected(
            tuple(each.path for each in tally.garbage),
            sum(each.size_bytes for each in tally.garbage),
            tally.pushes,
            tuple(sorted(tally.damaged)),
        )

    # --- Unfinished pushes ----------------------------------------------------------

    def unfinished(self) -> None:
        """Tidy up behind pushes that ended without a commit, or went silent."""
        for found in self._records.found():
            if not found.is_dead(self._now_ms, self._grace_ms):
                continue
            dead = found if self._dry_run else self._records.take(found)
            if dead is not None and self._behind(dead):
                self._tally.pushes += 1
                # By its record the mark is known to be its own.
                if dead.note is not None:
                    self._unclaim(dead.note.dataset)
                if not self._dry_run:
                    self._records.forget(dead)

    def _unclaim(self, name: str) -> None:
        """Take away the mark of a table that was about to come and didn't."""
        mark = self._info(f"{name}/{CLAIM}")
        if mark is None or not self._is_old(mark):
            return
        # Of a table that is there the mark says nothing, and it stays.
        if is_only_marked(self._store, name) and not is_claimed(self._store, name, self._now_ms):
            self._note([mark], Why.UNFINISHED)
            if not self._dry_run:
                self._store.delete_many([mark.path])
                self._store.prune(f"{name}/{DELTA_LOG}")

    def _behind(self, dead: FoundRecord) -> bool:
        """Delete what a push has left, and tell whether there is nothing to come back for."""
        if dead.note is None:
            return True
        name = dead.note.dataset
        dataset = self._open(name)
        since = None
        if dead.note.head is not None and not dead.note.force:
            since = Multihash.parse(dead.note.head)
        is_done = True
        for page in self._records.granted(dead):
            for start in range(0, len(page), WAVE):
                infos = concurrently(self._info, page[start : start + WAVE])
                there = [info for info in infos if info is not None]
                old = [info for info in there if self._is_old(info)]
                try:
                    self._sweep(dataset, old, since, Why.UNFINISHED)
                except Untold:
                    return False
                except DAMAGED:
                    self._tally.damaged.add(name)
                    return False
                is_done &= len(old) == len(there)
        return is_done

    def _open(self, name: str) -> Reaching:
        is_delta = is_table(self._store, name)
        return (DeltaReaching if is_delta else OdfReaching)(self._store, name)

    def _info(self, path: str) -> ObjectInfo | None:
        try:
            return self._store.head(path)
        except ObjectNotFound:
            return None

    # --- Full scan ------------------------------------------------------------------

    def unreached(
        self, engines: Callable[[int, int], Engine], observer: Observer = unobserved
    ) -> None:
        """Delete what no chain reaches; ``engines`` gives the engine for a job of some size."""
        heads = {name: head for name in odf_folders(self._store) for head in self._head(name)}
        shelves = tuple(_shelf(name, head) for name, head in heads.items())
        plan = OrphanPlan(self._store.config, shelves, self._now_ms - self._grace_ms)
        wave: list[ObjectInfo] = []
        folder = ""

        def sweep() -> None:
            try:
                self._sweep(
                    OdfReaching(self._store, folder), wave, heads.get(folder), Why.UNREACHED
                )
            except DAMAGED:
                self._tally.damaged.add(folder)
            wave.clear()

        for row in _rows(engines(*self._size(shelves)).orphans(plan, observer)):
            if row["path"] is None:
                self._tally.damaged.add(row["folder"])
                continue
            if not _is_ours(row["path"]):
                continue
            if row["folder"] != folder or len(wave) == WAVE:
                sweep()
            folder = row["folder"]
            wave.append(ObjectInfo(row["path"], row["size"], row["modified"]))
        sweep()
        for name in list(marked_folders(self._store)):
            self._unclaim(name)
        self._leftovers([shelf.folder for shelf in shelves])

    def _head(self, name: str) -> Iterator[Multihash | None]:
        """Yield a dataset's head, or nothing where it makes no sense."""
        try:
            yield OdfDataset(self._store, name).head()
        except CorruptLog:
            self._tally.damaged.add(name)

    def _size(self, shelves: Sequence[KeptFolder]) -> tuple[int, int]:
        """Return how much there is, as far as it takes to know that it isn't little."""
        objects = size_bytes = 0
        for shelf in shelves:
            for prefix in shelf.prefixes:
                for info in self._store.list(prefix):
                    objects, size_bytes = objects + 1, size_bytes + info.size_bytes
                    if objects >= FEW_OBJECTS or size_bytes >= FEW_BYTES:
                        return objects, size_bytes
        return objects, size_bytes

    def _leftovers(self, folders: Sequence[str]) -> None:
        until_ms = self._now_ms - max(self._grace_ms, LEFTOVER_MS)
        # A push joins its parts when it commits, however long ago they came.
        found = self._records.found()
        is_pushed = any(not each.is_dead(self._now_ms, self._grace_ms) for each in found)
        if not self._store.uri.startswith("file:"):
            if not is_pushed and not self._dry_run:
                # Not everybody may list them, and they are no objects yet.
                with suppress(StorageError):
                    self._store.drop_parts(until_ms)
            return
        for path, is_kept in self._nameless(folders):
            if is_pushed and is_kept:
                continue
            info = self._info(path)
            if info is not None and info.modified_ms <= until_ms:
                self._tally.garbage.append(Garbage(path, info.size_bytes, Why.LEFTOVER))
                if not self._dry_run:
                    self._store.delete_many([path])

    def _nameless(self, folders: Sequence[str]) -> Iterator[tuple[str, bool]]:
        """Yield files that have no name yet, and whether a push may come back for them.

        What isn't an ODF dataset is a Delta table, or what a first push wanted to become one.
        """
        seen: set[str] = set()
        for folder in (OWN_FOLDER, *folders, ""):
            for path in self._store.entries(f"{folder}/" if folder else ""):
                name = path.rpartition("/")[2]
                if not is_temporary(name) or path in seen:
                    continue
                seen.add(path)
                if folder:
                    yield path, name.startswith(PARTS_PREFIX)
                elif is_name(path.partition("/")[0]) and "/" in path:
                    yield path, True

    # --- Waves ----------------------------------------------------------------------

    def _is_old(self, info: ObjectInfo) -> bool:
        return info.modified_ms <= self._now_ms - self._grace_ms

    def _sweep(
        self,
        dataset: Reaching,
        found: Sequence[ObjectInfo],
        since: Multihash | None,
        why: Why,
    ) -> None:
        """Delete those of the objects that really nobody needs."""
        if not found:
            return
        # What takes long, a long chain, is done before anybody has to wait.
        head = dataset.head()
        left = self._free(dataset, found, since)
        if self._dry_run or not left:
            self._note(left, why)
            return
        for _ in range(_ATTEMPTS):
            with Sweep(self._store, [info.path for info in left], self._ticks) as sweep:
                free = self._free(dataset, left, head)
                if sweep.has_time:
                    self._store.delete_many([info.path for info in free])
                    self._note(free, why)
                    return
        raise TimedOut(
            "the store is too slow to tidy up",
            cause="what pushes need took longer to find out than they wait",
            remedy="try again when less is going on",
        )

    def _free(
        self, dataset: Reaching, found: Sequence[ObjectInfo], since: Multihash | None
    ) -> list[ObjectInfo]:
        # In this order: a push ends after its head is set.
        living = [each for each in self._records.found() if self._is_living(each)]
        needed = self._records.needed(living)
        left = [info for info in found if info.path not in needed]
        reached = dataset.reached([info.path for info in left], since)
        return [info for info in left if info.path not in reached]

    def _is_living(self, found: FoundRecord) -> bool:
        if self._dry_run:
            return not found.is_dead(self._now_ms, self._grace_ms)
        return found.note is not None and found.note.state is not PushState.TAKEN

    def _note(self, gone: Sequence[ObjectInfo], why: Why) -> None:
        for info in gone:
            # Of a plan nothing was done, so that it is found again by another way.
            if self._dry_run and info.path in self._tally.planned:
                continue
            self._tally.planned.update([info.path] if self._dry_run else [])
            self._tally.garbage.append(Garbage(info.path, info.size_bytes, why))


def _shelf(name: str, head: Multihash | None) -> KeptFolder:
    prefixes = tuple(f"{name}/{shelf}/{_HASHED}" for shelf in _SHELVES)
    return KeptFolder(name, prefixes, _DIGITS, OdfReach(name, head))


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for start in range(0, len(batch), WAVE):
            yield from batch.slice(start, WAVE).to_pylist()


def _is_ours(path: str) -> bool:
    """Tell whether an object has the name of one: what else lies there isn't ours to delete."""
    leaf = path.rpartition("/")[2]
    try:
        return Multihash.parse(leaf).text == leaf
    except InvalidInput:
        return False


def collect(
    store: Store,
    engines: Callable[[int, int], Engine],
    *,
    grace_ms: int = GRACE_MS,
    unfinished_only: bool = False,
    dry_run: bool = False,
    observer: Observer = unobserved,
    clock: Callable[[], int] = _now_ms,
) -> GarbageCollected | list[Garbage]:
    """Tidy up below a root and return what went; with ``dry_run``, what would go.

    A root that isn't there is ``ObjectNotFound``, for it is a name that was mistaken; a folder
    with nothing in it is one.
    """
    if grace_ms < 0:
        raise InvalidInput("a grace period is no negative time")
    check_root(store)
    collector = Collector(store, grace_ms=grace_ms, dry_run=dry_run, clock=clock)
    collector.unfinished()
    if not unfinished_only:
        collector.unreached(engines, observer)
    return collector.garbage if dry_run else collector.collected()
