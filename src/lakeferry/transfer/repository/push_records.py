"""Records of unfinished pushes, so that garbage collection keeps their objects.

::

    .lakeferry/pushes/<id>/push.json           the note: dataset, start time, state
    .lakeferry/pushes/<id>/named-<n>.json      every file that its blocks need
    .lakeferry/pushes/<id>/granted-<n>.json    files that were missing and may have been put since
    .lakeferry/sweeps/<id>.json                files that a sweep may be deleting now

A push writes which files it needs before it checks that they exist, and *then* looks for
sweeps. A sweep writes its file and *then* reads what pushes need. So at least one sees the
other: the push waits until a sweep of the same names has ended, or the sweep keeps the files
that the push needs. A push deletes its record after it sets the head, and a sweep reads heads
after records: a file that isn't in the record any more is reachable from the head.

The note is only replaced by compare-and-swap. Its push renews it. After too long a silence
garbage collection takes it over, and a push whose note was taken over doesn't commit. If the
process that wrote it has certainly ended, nobody waits for a renewal. Two
places rely on time, with a margin: a push that is committing counts as alive for a week, and a
sweep's file counts for ten minutes, while the sweep starts deletions only within half of that.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import msgspec

from lakeferry.errors import ObjectNotFound, StorageUnavailable, TimedOut
from lakeferry.storage import ObjectInfo, Store, process_identity
from lakeferry.storage.process_identity import this_process
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets.delta.delta_dataset import FIRST_PULL_CLAIM
from lakeferry.transfer.repository.dataset_names import OWN_FOLDER, DatasetName
from lakeferry.transfer.repository.push_liveness import SILENT_FOR_MS, FoundRecord, Note, PushState

PUSHES_FOLDER = f"{OWN_FOLDER}/pushes/"
SWEEPS = f"{OWN_FOLDER}/sweeps/"
SWEEP_LASTS_S = 60.0
"""How long a push waits for a sweep; a sweep starts deletions only within half of that."""
SWEEP_COUNTS_MS = 600_000
"""A sweep older than this counts as abandoned: its process was stopped."""

_NOTE_DECODER = msgspec.json.Decoder(Note)
_NOTE = "push.json"
_PAGE_PATHS = 10_000
_POLL_S = 0.1

Clock = Callable[[], int]


def now_ms() -> int:
    """Return the time of day, in milliseconds."""
    return time.time_ns() // 1_000_000


class PushRecord:
    """The record of one push, used by the push itself. Safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        dataset: DatasetName,
        head: Multihash | None,
        *,
        force: bool = False,
        holder: str = "",
        clock: Clock = now_ms,
        ticks: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Describe a push onto ``head``; nothing is written before :meth:`begin`."""
        self._store = store
        self._folder = f"{PUSHES_FOLDER}{uuid.uuid4().hex}/"
        self._note = Note(
            dataset.text,
            None if head is None else head.text,
            force,
            clock(),
            server=this_process(),
            holder=holder,
        )
        self._clock = clock
        self._lead = f"{dataset}/"
        self._text = b""
        self._pages: list[str] = []
        self._has_granted = False
        self._is_over = True
        self._ticks = ticks
        self._pause = pause
        self._lock = threading.RLock()

    def begin(self, paths: Iterable[str]) -> None:
        """Write that there is a push and which files it needs; wait for sweeps that may not see it.

        Paths are names in the store of blocks and objects, existing or not. Files that exist when
        this returns are kept for as long as the push lives.
        """
        needed = list(paths)
        with self._lock:
            self._is_over = False
            text = msgspec.json.encode(self._note)
            self._store.put(f"{self._folder}{_NOTE}", text)
            self._text = text
            self._write("named", needed)
        self._wait_for_sweeps(needed)

    def grant(self, paths: Iterable[str]) -> None:
        """Write which files were missing and may be put from now on."""
        with self._lock:
            self._has_granted |= self._write("granted", paths) > 0

    def renew(self) -> None:
        """Renew the note, or raise ``TimedOut`` if the push was declared dead."""
        with self._lock:
            if not self._is_over:
                self._become(self._note.state)

    def commit(self) -> None:
        """Write that the head is about to be set, or raise ``TimedOut`` as :meth:`renew` does.

        After this and before setting the head, the caller must check the needed files once more.
        """
        with self._lock:
            self._become(PushState.COMMITTING)

    def end(self) -> None:
        """Delete the record: the push is committed, or has left no files."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self._store.delete_many([*self._pages, f"{self._folder}{_NOTE}"])
            self._store.prune(self._folder)

    def is_needed_by_others(self, path: str) -> bool:
        """Return True if another push that may still commit needs an object; call it in a sweep."""
        records = Records(self._store)
        others = [
            found
            for found in records.found()
            if f"{PUSHES_FOLDER}{found.id}/" != self._folder
            and found.note is not None
            and found.note.state is not PushState.TAKEN
        ]
        return path in records.needed(others)

    def leave(self) -> None:
        """End without a commit. The record of files that may have been put stays for cleanup."""
        with self._lock:
            if self._is_over:
                return
            if not self._has_granted:
                self.end()
                return
            try:
                self._become(PushState.LEFT)
            finally:
                self._is_over = True

    def _become(self, state: PushState) -> None:
        note = msgspec.structs.replace(self._note, state=state, beat=self._note.beat + 1)
        text = msgspec.json.encode(note)
        path = f"{self._folder}{_NOTE}"
        for _ in range(2):
            if self._store.swap(path, self._text, text):
                break
            # An answer may have been lost, earlier or now: the stored note decides.
            try:
                there = self._store.get(path)
            except ObjectNotFound:
                raise _taken() from None
            if there == text:
                break
            if _NOTE_DECODER.decode(there).state is PushState.TAKEN:
                raise _taken()
            self._text = there
        else:
            raise StorageUnavailable("the record of a push can't be renewed")
        self._note, self._text = note, text

    def _write(self, what: str, paths: Iterable[str]) -> int:
        left, count = iter(paths), 0
        while page := [path.removeprefix(self._lead) for path in islice(left, _PAGE_PATHS)]:
            path = f"{self._folder}{what}-{len(self._pages):06}.json"
            self._pages.append(path)
            self._store.put(path, msgspec.json.encode(page))
            count += len(page)
        return count

    def _wait_for_sweeps(self, needed: Iterable[str]) -> None:
        until, names = self._ticks() + SWEEP_LASTS_S, set(needed)
        while any(not names.isdisjoint(swept) for swept in _swept(self._store, self._clock())):
            if self._ticks() > until:
                raise StorageUnavailable(
                    "garbage collection is deleting objects that the push needs"
                )
            self._pause(_POLL_S)


def _swept(store: Store, now_ms: int) -> Iterator[list[str]]:
    """Yield the names that running sweeps may delete; delete the files of abandoned sweeps."""
    old: list[str] = []
    for info in store.list(SWEEPS):
        if now_ms - info.modified_ms > SWEEP_COUNTS_MS:
            old.append(info.path)
            continue
        try:
            yield msgspec.json.decode(store.get(info.path), type=list[str])
        except ObjectNotFound:
            continue
    if old:
        store.delete_many(old)


def _taken() -> TimedOut:
    return TimedOut(
        "the push was given up",
        cause="its server didn't renew the push's record in time, and its objects may have been "
        "deleted",
    )


# --- Used by garbage collection -----------------------------------------------------------


class Records:
    """All records below a root. Pages are read once: they never change."""

    def __init__(self, store: Store) -> None:
        """Use a store."""
        self._store = store
        self._needed: dict[str, frozenset[str]] = {}

    def found(self) -> list[FoundRecord]:
        """Return the records that exist now."""
        listed: dict[str, list[ObjectInfo]] = {}
        for info in self._store.list(PUSHES_FOLDER):
            id_, slash, _ = info.path.removeprefix(PUSHES_FOLDER).partition("/")
            if slash:
                listed.setdefault(id_, []).append(info)
        return [one for id_, infos in listed.items() if (one := self._read(id_, infos))]

    def _read(self, id_: str, infos: list[ObjectInfo]) -> FoundRecord | None:
        path = f"{PUSHES_FOLDER}{id_}/{_NOTE}"
        pages = tuple(info.path for info in infos if info.path != path)
        seen_ms = max(info.modified_ms for info in infos)
        if len(pages) == len(infos):
            return FoundRecord(id_, None, b"", seen_ms, pages)
        try:
            text = self._store.get(path)
            return FoundRecord(id_, _NOTE_DECODER.decode(text), text, seen_ms, pages)
        except ObjectNotFound:
            # The push has ended meanwhile, and its head is set.
            return None
        except msgspec.MsgspecError:
            return FoundRecord(id_, None, text, seen_ms, (*pages, path))

    def take(self, found: FoundRecord) -> FoundRecord | None:
        """Take over the note of a push that seems dead; ``None`` if the push has renewed it."""
        if found.note is None or found.note.state is PushState.TAKEN:
            return found
        note = msgspec.structs.replace(found.note, state=PushState.TAKEN)
        text = msgspec.json.encode(note)
        path = f"{PUSHES_FOLDER}{found.id}/{_NOTE}"
        if not self._store.swap(path, found.text, text):
            return None
        return replace(found, note=note, text=text)

    def forget(self, found: FoundRecord) -> None:
        """Delete the record of a push whose files have been cleaned up."""
        note = [] if found.note is None else [f"{PUSHES_FOLDER}{found.id}/{_NOTE}"]
        self._store.delete_many([*found.pages, *note])
        self._store.prune(f"{PUSHES_FOLDER}{found.id}/")

    def granted(self, found: FoundRecord) -> Iterator[list[str]]:
        """Yield names in the store that a push may have put, a page at a time."""
        for page in found.pages:
            if "/granted-" in page and found.note is not None:
                # A client may have requested the same object several times.
                named = dict.fromkeys(self._page(page))
                yield [f"{found.note.dataset}/{path}" for path in named]

    def needed(self, living: Iterable[FoundRecord]) -> set[str]:
        """Return the names in the store that these pushes need.

        Pages without a note are left over from a push that has ended: it needs nothing.
        """
        needed: set[str] = set()
        known: dict[str, frozenset[str]] = {}
        for found in living:
            for page in found.pages:
                if found.note is None or "/named-" not in page:
                    continue
                paths = self._needed.get(page)
                if paths is None:
                    paths = frozenset(self._page(page))
                known[page] = paths
                needed.update(f"{found.note.dataset}/{path}" for path in paths)
        self._needed = known
        return needed

    def _page(self, path: str) -> list[str]:
        try:
            return msgspec.json.decode(self._store.get(path), type=list[str])
        except (ObjectNotFound, msgspec.MsgspecError):
            return []


@dataclass(frozen=True, slots=True)
class NameClaim:
    """A first push that holds the name of a new table."""

    holder: str
    """The client, as :attr:`Note.holder`; empty if it isn't known yet."""
    lasts_ms: int
    """How long the name stays held if the push gives no other sign of life."""


def claim_of(store: Store, dataset: str, now_ms: int) -> NameClaim | None:
    """Return the claim of a new table's name, or ``None`` if no first push still runs.

    The mark is written before the record, which follows within the time that a push may be
    silent. A record as new as the mark belongs to the push that left it.
    """
    path = f"{dataset}/{FIRST_PULL_CLAIM}"
    try:
        marked_ms = store.head(path).modified_ms
        writer = store.get(path).decode(errors="replace")
    except ObjectNotFound:
        return None
    records = [one for one in Records(store).found() if one.is_of(dataset)]
    claims = [
        NameClaim("" if one.note is None else one.note.holder, one.left_ms(now_ms))
        for one in records
        if one.is_alive(now_ms)
    ]
    if claims:
        return max(claims, key=lambda claim: claim.lasts_ms)
    has_record = any(one.seen_ms >= marked_ms for one in records)
    left_ms = marked_ms + SILENT_FOR_MS - now_ms
    if has_record or left_ms <= 0 or process_identity.has_ended(writer):
        return None
    return NameClaim("", left_ms)


def is_push_claimed(store: Store, dataset: str, now_ms: int) -> bool:
    """Return True if a new table's name is claimed: its first push still runs."""
    return claim_of(store, dataset, now_ms) is not None


class Sweep:
    """A period in which some objects may be deleted; pushes can see it."""

    def __init__(
        self, store: Store, paths: Iterable[str], ticks: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare to delete these objects and no others."""
        self._store = store
        self._shown = msgspec.json.encode(list(paths))
        self._path = f"{SWEEPS}{uuid.uuid4().hex}.json"
        self._ticks = ticks
        self._began_s = 0.0

    def __enter__(self) -> Sweep:
        self._began_s = self._ticks()
        self._store.put(self._path, self._shown)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After a failure, requested deletions may still be running.
        if kind is None:
            self._store.delete_many([self._path])

    @property
    def has_time(self) -> bool:
        """Return True while pushes still wait long enough for a deletion to finish."""
        return self._ticks() - self._began_s < SWEEP_LASTS_S / 2
