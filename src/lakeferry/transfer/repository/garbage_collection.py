"""Deletes objects that no dataset and no unfinished push needs.

It looks for four kinds of garbage, and deletes each only when it is older than the grace period:

* objects that a push got URLs for and never committed, because it ended or went silent. They are
  known from the push's record, so the number of requests grows with the unfinished pushes and
  with the blocks pushed since, and not with the repository;
* objects and blocks of ODF datasets that the chain from the head doesn't reach: a full scan,
  which is an engine's work (:class:`~lakeferry.engine.OrphanPlan`);
* the folders of deleted datasets, when they were deleted longer ago than the grace period;
* temporary files that a server on local disk never renamed, and parts of objects that nobody
  joined, there and on S3, while no push is running.

Garbage is deleted in waves. Pushes wait for a wave, and within it everything that may have
changed is read again: what running pushes need, and then what the blocks added since need
(:mod:`lakeferry.transfer.repository.push_records` says why nothing is missed in between). In a
dataset whose chain can't be followed nothing is deleted; the result names it.

In Delta tables only two things are deleted: objects that records name, and temporary files while
no push is running. The rest is the work of VACUUM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
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
    CommitConflict,
    CorruptLog,
    InvalidInput,
    ObjectNotFound,
    StorageError,
    TimedOut,
)
from lakeferry.log.paths import MOVE_CLAIM
from lakeferry.storage import ObjectInfo, Store
from lakeferry.storage.local_durability import PARTS_PREFIX, is_temporary
from lakeferry.storage.parallel_calls import concurrently
from lakeferry.storage.parallel_listing import list_all
from lakeferry.transfer.chain.hashes import Algorithm, Multihash
from lakeferry.transfer.datasets.delta.delta_dataset import FIRST_PULL_CLAIM
from lakeferry.transfer.datasets.odf import FOLDERS, OdfDataset
from lakeferry.transfer.datasets.stored_chain import HEAD
from lakeferry.transfer.repository.dataset_folders import (
    NAME_HELD,
    DatasetFolders,
    DeletedDataset,
)
from lakeferry.transfer.repository.dataset_names import DELTA_LOG, OWN_FOLDER, DatasetName
from lakeferry.transfer.repository.last_push import forget_push
from lakeferry.transfer.repository.last_write import last_write
from lakeferry.transfer.repository.needed_objects import (
    DeltaReaching,
    OdfReach,
    OdfReaching,
    Reaching,
    Untold,
)
from lakeferry.transfer.repository.push_liveness import FoundRecord, PushState
from lakeferry.transfer.repository.push_records import Records, Sweep, is_push_claimed
from lakeferry.transfer.repository.push_records import now_ms as _now_ms
from lakeferry.transfer.repository.repository import (
    DAMAGED,
    Repository,
    check_root,
    id_claims,
    is_name,
    is_only_marked,
    is_table,
    marked_folders,
    odf_folders,
    record_without_dataset,
)

GRACE_MS = 24 * 3600 * 1000
WAVE = 1_000
LEFTOVER_MS = 3600 * 1000
"""Minimum age of a temporary file before it is deleted: it may still be being written."""

_SHELVES = ("blocks", *FOLDERS.values())
_HASHED = Multihash(Algorithm.SHA3_256, bytes(32)).text[:5]
_DIGITS = "0123456789abcdef"
_ATTEMPTS = 3


class Why(Enum):
    """Why something is garbage."""

    UNFINISHED = "unfinished_push"
    UNREACHED = "unreached"
    LEFTOVER = "leftover"
    DELETED = "deleted_dataset"


@dataclass(frozen=True, slots=True)
class Garbage:
    """An object that may be deleted."""

    path: str
    size_bytes: int
    why: Why

    def as_step(self) -> dict[str, Any]:
        """Return it as a step of a plan."""
        return {
            "op": "delete",
            "path": self.path,
            "bytes": self.size_bytes,
            "because": self.why.value,
        }


@dataclass(frozen=True, slots=True)
class GarbageCollected:
    """What was deleted, by names below the root."""

    deleted: tuple[str, ...]
    bytes: int
    pushes: int
    """The number of unfinished pushes that were cleaned up."""
    damaged: tuple[str, ...] = ()
    """Datasets whose chain can't be followed: nothing was deleted there."""
    written: tuple[str, ...] = ()
    """Folders of deleted datasets that somebody wrote to afterwards: nothing was deleted there."""

    @property
    def changed(self) -> bool:
        """Return True if there was any garbage."""
        return bool(self.deleted or self.pushes)

    def as_document(self) -> dict[str, Any]:
        """Return what the command ``gc`` prints as JSON."""
        return {
            "deleted": list(self.deleted),
            "bytes": self.bytes,
            "unfinished_pushes": self.pushes,
            "damaged": list(self.damaged),
            "written": list(self.written),
            "changed": self.changed,
        }


@dataclass(slots=True)
class _Tally:
    garbage: list[Garbage] = field(default_factory=list)
    pushes: int = 0
    damaged: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    planned: set[str] = field(default_factory=set)


class Collector:
    """Collects garbage below one root, or with a dry run lists it."""

    def __init__(
        self,
        store: Store,
        *,
        grace_ms: int = GRACE_MS,
        dry_run: bool = False,
        clock: Callable[[], int] = _now_ms,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use a store; the time by which things are old is read once."""
        self._store = store
        self._grace_ms = grace_ms
        self._dry_run = dry_run
        self._clock = clock
        self._now_ms = clock()
        self._ticks = ticks
        self._records = Records(store)
        self._tally = _Tally()
        self._granted: set[str] = set()
        """Names of their own, as in Delta tables, that dead pushes may have uploaded to."""

    @property
    def garbage(self) -> list[Garbage]:
        """Everything that was deleted, or would be."""
        return self._tally.garbage

    def collected(self) -> GarbageCollected:
        """Return the result."""
        tally = self._tally
        return GarbageCollected(
            tuple(each.path for each in tally.garbage),
            sum(each.size_bytes for each in tally.garbage),
            tally.pushes,
            tuple(sorted(tally.damaged)),
            tuple(sorted(tally.written)),
        )

    # --- Unfinished pushes ----------------------------------------------------------

    def unfinished(self) -> None:
        """Clean up after pushes that ended without a commit, or went silent."""
        for found in self._records.found():
            if not found.is_dead(self._now_ms, self._grace_ms):
                continue
            dead = found if self._dry_run else self._records.take(found)
            if dead is not None and self._behind(dead):
                self._tally.pushes += 1
                # The record proves that the mark was this push's.
                if dead.note is not None:
                    self._unclaim(dead.note.dataset)
                    self._withdraw(dead.note.dataset)
                if not self._dry_run:
                    self._records.forget(dead)
        if self._granted:
            self._drop_parts()

    def _withdraw(self, name: str) -> None:
        """Delete who was to see a dataset that was never created."""
        if self._is_being_pushed(name):
            return
        path = record_without_dataset(self._store, name, self._now_ms)
        if path is not None:
            self._delete_old(path, Why.UNFINISHED)
            if not self._dry_run:
                self._store.prune(f"{name}/{OWN_FOLDER}")

    def _unclaimed_ids(self) -> None:
        """Delete the claims of ids whose datasets were never created, or aren't there any more."""
        for info, name in id_claims(self._store):
            is_unused = is_name(name) and not self._store.exists(f"{name}/{HEAD}")
            if is_unused and not self._is_being_pushed(name):
                self._delete_old(info.path, Why.UNFINISHED)

    def _is_being_pushed(self, name: str) -> bool:
        """Return True if a push to that name may still be committed."""
        found = self._records.found()
        return any(one.is_of(name) and not one.is_dead(self._now_ms, 0) for one in found)

    def _delete_old(self, path: str, why: Why) -> None:
        info = self._info(path)
        if info is None or not self._is_old(info):
            return
        self._note([info], why)
        if not self._dry_run:
            self._store.delete_many([path])

    def _unclaim(self, name: str) -> None:
        """Delete the mark of a table that was never created."""
        mark = self._info(f"{name}/{FIRST_PULL_CLAIM}")
        if mark is None or not self._is_old(mark):
            return
        # The mark of an existing table means nothing, and stays.
        if is_only_marked(self._store, name) and not is_push_claimed(
            self._store, name, self._now_ms
        ):
            self._note([mark], Why.UNFINISHED)
            if not self._dry_run:
                self._store.delete_many([mark.path])
                self._store.prune(f"{name}/{DELTA_LOG}")

    def _behind(self, dead: FoundRecord) -> bool:
        """Delete what a push has left; return True if no later run has to come back for more."""
        if dead.note is None:
            return True
        name = dead.note.dataset
        dataset = self._open(name)
        since = None
        if dead.note.head is not None and not dead.note.force:
            since = Multihash.parse(dead.note.head)
        is_done = True
        for page in self._records.granted(dead):
            if not self._dry_run and not self._is_local:
                self._granted.update(path for path in page if not _is_ours(path))
            for start in range(0, len(page), WAVE):
                infos = concurrently(self._info, page[start : start + WAVE])
                there = [info for info in infos if info is not None]
                old = [info for info in there if self._is_old(info)]
                try:
                    if not self._dry_run:
                        dataset.finish()
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

    # --- Deleted datasets -----------------------------------------------------------

    def deleted(self) -> None:
        """Delete the objects of deleted datasets.

        No name leads to their folders, and no push may begin there. But a folder can be written
        without the server: then everything in it stays.
        """
        folders = DatasetFolders(self._store, self._clock)
        for folder, dataset in folders.read().deleted.items():
            if self._now_ms - dataset.deleted_ms < self._grace_ms:
                continue
            if self._dry_run:
                self._empty(folder, dataset, lambda: None)
                continue
            try:
                self._empty_alone(folders, folder, dataset)
            except (CommitConflict, TimedOut) as held:
                # Another run deletes there, or took this one for dead, and goes on with it.
                if held.fields.get("reason") != NAME_HELD:
                    raise

    def _empty_alone(self, folders: DatasetFolders, folder: str, dataset: DeletedDataset) -> None:
        """Empty a deleted dataset's folder, while no other run does."""
        with folders.hold((), (DatasetName(folder),)) as held:
            # Another run may have emptied the folder, which may be a new dataset's by now.
            if held.table.deleted.get(folder) != dataset:
                return
            if self._empty(folder, dataset, held.renew):
                self._store.prune(folder)
                forget_push(self._store, folder)
                held.decide(
                    lambda table: table.emptied(folder),
                    lambda table: folder not in table.deleted,
                )

    def _empty(self, folder: str, dataset: DeletedDataset, check: Callable[[], None]) -> bool:
        """Delete what a deleted dataset's folder holds; return False if it has to stay.

        ``check`` is called before each wave, and raises if another run has taken over.
        """
        if self._is_in_use(folder, dataset):
            self._tally.written.add(folder)
            return False
        # The log or the head goes first: what is left after a crash can't be read as a dataset.
        for lead in (f"{folder}/{DELTA_LOG}/", f"{folder}/{HEAD}", f"{folder}/"):
            self._delete_all(self._held(folder, lead), check)
        return True

    def _is_in_use(self, folder: str, dataset: DeletedDataset) -> bool:
        """Return whether somebody has written to a deleted dataset's folder, or is about to.

        A table may move there, or be pulled there, without the server. Until it has a log, only a
        mark tells so, and what was there when the dataset was deleted may have been such a mark.
        """
        written = last_write(self._store, folder)
        if written is not None and (dataset.written is None or dataset.written.is_before(written)):
            return True
        if self._store.exists(f"{folder}/{MOVE_CLAIM}"):
            return True
        if written is None and is_push_claimed(self._store, folder, self._now_ms):
            return True
        if "/" in folder:
            return False
        inside = Repository(self._store).datasets_below(DatasetName(folder))
        return next(inside, None) is not None

    def _held(self, folder: str, lead: str) -> Iterator[ObjectInfo]:
        """Yield what a dataset's folder holds; what its links lead to may be somebody else's."""
        if not self._is_local:
            yield from list_all(self._store, lead)
            return
        if next(self._store.entries(folder), None) == folder:
            # The folder itself is a link.
            yield ObjectInfo(folder, 0, 0)
            return
        for name in self._store.entries(f"{folder}/"):
            if f"{name}/".startswith(lead):
                yield self._info(name) or ObjectInfo(name, 0, 0)

    def _delete_all(self, found: Iterator[ObjectInfo], check: Callable[[], None]) -> None:
        while wave := list(islice(found, WAVE)):
            check()
            if not self._dry_run:
                self._store.delete_many([info.path for info in wave])
            self._note(wave, Why.DELETED)

    # --- Full scan ------------------------------------------------------------------

    def unreached(
        self, engines: Callable[[int, int], Engine], observer: Observer = unobserved
    ) -> None:
        """Delete what no chain reaches; ``engines`` returns the engine for a job's size."""
        deleted = DatasetFolders(self._store).read().deleted
        datasets = [name for name in odf_folders(self._store) if name not in deleted]
        heads = {name: head for name in datasets for head in self._head(name)}
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
        self._unclaimed_ids()
        self._leftovers([shelf.folder for shelf in shelves])

    def _head(self, name: str) -> Iterator[Multihash | None]:
        """Yield a dataset's head, or nothing if the head file is damaged."""
        try:
            yield OdfDataset(self._store, name).head()
        except CorruptLog:
            self._tally.damaged.add(name)

    def _size(self, shelves: Sequence[KeptFolder]) -> tuple[int, int]:
        """Return the number and bytes of objects; stop counting once the job is known as large."""
        objects = size_bytes = 0
        for shelf in shelves:
            for prefix in shelf.prefixes:
                for info in list_all(self._store, prefix):
                    objects, size_bytes = objects + 1, size_bytes + info.size_bytes
                    if objects >= FEW_OBJECTS or size_bytes >= FEW_BYTES:
                        return objects, size_bytes
        return objects, size_bytes

    def _leftovers(self, folders: Sequence[str]) -> None:
        until_ms = self._leftover_until_ms
        if not self._is_local:
            self._drop_parts()
            return
        is_pushed = self._has_pushes()
        for path, is_kept in self._nameless(folders):
            if is_pushed and is_kept:
                continue
            info = self._info(path)
            if info is not None and info.modified_ms <= until_ms:
                self._tally.garbage.append(Garbage(path, info.size_bytes, Why.LEFTOVER))
                if not self._dry_run:
                    self._store.delete_many([path])

    @property
    def _is_local(self) -> bool:
        return self._store.uri.startswith("file:")

    @property
    def _leftover_until_ms(self) -> int:
        return self._now_ms - max(self._grace_ms, LEFTOVER_MS)

    def _has_pushes(self) -> bool:
        """Return True if a push runs: it joins its parts when it commits, however old they are."""
        found = self._records.found()
        return any(not each.is_dead(self._now_ms, self._grace_ms) for each in found)

    def _drop_parts(self) -> None:
        """Delete what pushes to a cloud have left of their uploads, and nobody else's uploads."""
        until_ms = self._leftover_until_ms

        def is_ours(path: str, begun_ms: int) -> bool:
            return begun_ms < until_ms and (_is_ours(path) or path in self._granted)

        if not self._dry_run and not self._has_pushes():
            # Listing parts may be forbidden, and parts aren't objects yet.
            with suppress(StorageError):
                self._store.drop_parts(is_ours)

    def _nameless(self, folders: Sequence[str]) -> Iterator[tuple[str, bool]]:
        """Yield temporary files, each with True if a running push may still use it.

        A folder that isn't an ODF dataset is a Delta table, or a first push was to create one.
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
        """Delete those of the objects that nothing needs."""
        if not found:
            return
        # Follow a long chain first, before pushes have to wait.
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
            "the store is too slow for garbage collection",
            cause="running pushes wait only a short time for garbage collection, and finding the "
            "objects that they need took longer",
            remedy="run 'lakeferry gc' again when fewer pushes are running",
        )

    def _free(
        self, dataset: Reaching, found: Sequence[ObjectInfo], since: Multihash | None
    ) -> list[ObjectInfo]:
        # Keep this order: a push deletes its record after its head is set.
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
            # A dry run deletes nothing, so two ways may find the same object.
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
    """Return True if a path is one of ours; other files in the folder are never deleted."""
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
    """Collect garbage below a root and return the result; ``dry_run`` deletes nothing.

    A root that doesn't exist is ``ObjectNotFound``, because the name is probably mistaken; an empty
    folder is a root.
    """
    if grace_ms < 0:
        raise InvalidInput("a grace period can't be negative")
    check_root(store)
    collector = Collector(store, grace_ms=grace_ms, dry_run=dry_run, clock=clock)
    collector.unfinished()
    if not unfinished_only:
        collector.deleted()
        collector.unreached(engines, observer)
    return collector.garbage if dry_run else collector.collected()
