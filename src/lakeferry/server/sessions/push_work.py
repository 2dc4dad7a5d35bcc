"""The server's work in a push: checks blocks and objects, makes URLs, commits.

Nothing is stored before the commit but the objects, which the client puts at their places
itself: of a push that ends early nothing is seen, and the next one finds those that arrived.
So a new dataset begins to be with its first commit. Its id is claimed before, that two who
push it under two names at once learn of it early, and once more when it is there, for only
then the claim holds.

Between two messages a session holds the blocks as they came, packed, and the names of their
objects, against a :class:`Budget` that all sessions share. Where it is full, pushes of the
client that holds the most make way for another client's.
"""

from __future__ import annotations

import sys
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain as chained

from lakeferry.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvalidInput,
    LimitExceeded,
    StorageError,
)
from lakeferry.server.client_shares import Seat, Seats, Sitting
from lakeferry.server.sessions.upload_reservations import Promises
from lakeferry.transfer.chain import odf_blocks
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef, Seed
from lakeferry.transfer.datasets import checkpoint_notes
from lakeferry.transfer.datasets.checkpoint_notes import Beside
from lakeferry.transfer.datasets.dataset import HEAD, DatasetFormat, Judged, OtherDataset
from lakeferry.transfer.datasets.delta import version_blocks
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.local_dataset import kind_of_block
from lakeferry.transfer.datasets.odf import OdfDataset
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.push_records import Heart, PushRecord, Sweep
from lakeferry.transfer.repository.repository import Repository, Visibility
from lakeferry.transfer.repository.signed_urls import PARTS_AT_ONCE, Links
from lakeferry.transfer.session.events import (
    BlocksTaken,
    CheckAndCommit,
    ConsiderPush,
    DatasetReady,
    EnsureDataset,
    HostEvent,
    MachineAction,
    PushConsidered,
    RunCommitted,
    SignUrls,
    TakeBlocks,
    UrlsReady,
    WorkRefused,
)
from lakeferry.transfer.wire import tarball
from lakeferry.transfer.wire.codec import LIMITS as MESSAGES
from lakeferry.transfer.wire.failure_messages import (
    InvalidHead,
    NameCollision,
    RefCollision,
    SeedOverwrite,
)
from lakeferry.transfer.wire.messages import (
    TAR_GZIP,
    BlocksBatch,
    ObjectFile,
    PushRequest,
    TransferUrl,
)

HELD_BYTES = 128 << 20
"""What the pushes of a server may hold together."""
UNPACKED_AT_ONCE = 2
IN_PARTS_BYTES = 64 << 20
"""Objects above are put in parts by clients that can, so that they go on where they stopped."""
URL_BYTES = 1000
"""What an object and its signed URL take in a message, about."""
PART_URL_BYTES = 150
LIMITS = tarball.ArchiveLimits(
    unpacked_bytes=256 << 20, entry_bytes=version_blocks.LARGEST_BLOCK_BYTES
)

FREED_WITHIN_S = 10.0
"""How long those who make way may take to let go of what they hold."""

_REF_BYTES = 260  # of memory, about, besides its path
_UNPACKED_FACTOR = 2


class Budget:
    """Bytes that sessions hold, counted for all of them. Safe to use from several threads.

    A client alone may hold everything. Where there is no room for another one, who holds less,
    sessions have to make way (:class:`~lakeferry.server.client_shares.Seats`). What those hold
    is counted until they give it back.
    """

    def __init__(self, most_bytes: int = HELD_BYTES) -> None:
        """Begin with nothing held."""
        self._most = most_bytes
        self._held: dict[Seat, int] = {}
        self._seats = Seats(most_bytes)
        self._changed = threading.Condition()
        self.unpacking = threading.BoundedSemaphore(UNPACKED_AT_ONCE)
        """Held by whoever has a push's blocks unpacked in memory."""

    def take(
        self, size_bytes: int, holder: str = "", address: str = "", sitting: Sitting | None = None
    ) -> Seat:
        """Count bytes in, or raise ``LimitExceeded`` where there is no room for them.

        A ``sitting`` may have to make way for another client.
        """
        with self._changed:
            seat = self._seats.take(holder, address, size_bytes)
            if seat is None:
                raise self._exceeded()
            seat.sitting = sitting
            try:
                self._wait_for(seat, size_bytes)
            except LimitExceeded:
                self._seats.leave(seat)
                raise
            return seat

    def resize(self, seat: Seat, size_bytes: int) -> None:
        """Count another number of bytes for a seat, or raise ``LimitExceeded``."""
        with self._changed:
            if not self._seats.resize(seat, size_bytes):
                raise self._exceeded()
            self._wait_for(seat, size_bytes)

    def give_back(self, seat: Seat) -> None:
        """Count the bytes of a seat out."""
        with self._changed:
            self._seats.leave(seat)
            self._held.pop(seat, None)
            self._changed.notify_all()

    @property
    def held(self) -> int:
        """How many bytes are held now."""
        with self._changed:
            return sum(self._held.values())

    def _wait_for(self, seat: Seat, size_bytes: int) -> None:
        """Count bytes once those who had to make way have let go of theirs."""

        def is_free() -> bool:
            others = sum(size for each, size in self._held.items() if each is not seat)
            return others + size_bytes <= self._most

        if not self._changed.wait_for(is_free, FREED_WITHIN_S):
            raise self._exceeded()
        self._held[seat] = size_bytes
        self._changed.notify_all()

    def _exceeded(self) -> LimitExceeded:
        return LimitExceeded(
            "too much is being pushed at once",
            cause=f"{sum(self._held.values()):,} bytes of blocks are held",
        )


class _Collision(Exception):
    """The name or the id is somebody else's; never leaves a push."""

    def __init__(self, failure: NameCollision | RefCollision | SeedOverwrite) -> None:
        super().__init__(failure)
        self.failure = failure


class _Refs:
    """The objects that blocks name, each once, found by kind, hash and path.

    There may be hundreds of thousands. A dictionary would take about as much as they do.
    """

    def __init__(self, refs: Iterable[ObjectRef]) -> None:
        self._refs = list({_key(ref): ref for ref in refs}.values())
        order = sorted((hash(_key(ref)), at) for at, ref in enumerate(self._refs))
        self._hashes = array("q", (hashed for hashed, _ in order))
        self._places = array("q", (at for _, at in order))

    def __len__(self) -> int:
        return len(self._refs)

    def __iter__(self) -> Iterator[ObjectRef]:
        return iter(self._refs)

    def find(self, kind: str, name: Multihash, path: str | None) -> ObjectRef:
        key = kind, name, path
        hashed = hash(key)
        at = bisect_left(self._hashes, hashed)
        while at < len(self._hashes) and self._hashes[at] == hashed:
            found = self._refs[self._places[at]]
            if _key(found) == key:
                return found
            at += 1
        raise InvalidInput("an object is to be sent that no block names", cause=str(name))


def _key(ref: ObjectRef) -> tuple[str, Multihash, str | None]:
    return ref.kind.value, ref.hash, ref.path


@dataclass(frozen=True, slots=True)
class _Run:
    """The blocks of a push: packed, as they came, and what they say."""

    batch: BlocksBatch
    refs: _Refs
    judged: Judged
    seed: Seed | None
    held_bytes: int

    def unpacked(self) -> Iterator[tuple[Multihash, bytes]]:
        return _unpack(self.batch, [])


class Pushing:
    """One push of a dataset, at the end that gets it.

    Which kind of dataset it is, where there is none yet, the first block says.
    """

    def __init__(
        self,
        repository: Repository,
        name: DatasetName,
        links: Links,
        budget: Budget,
        *,
        puts_prove: bool,
        urls_last_s: int,
        check: Callable[[], None],
        extended: bool = False,
        promises: Promises | None = None,
        heart: Heart | None = None,
        session: Seat | None = None,
    ) -> None:
        """Receive a dataset.

        ``puts_prove`` says that nothing gets to an object's place without having its hash;
        elsewhere objects are read before a commit. ``check`` raises once the client isn't
        allowed to write any more. ``extended`` clients are those of
        :data:`~lakeferry.transfer.wire.handshake.EXTENDED_HEADER`. ``session`` is
        its place among the sessions, and says who shares the budget.
        """
        self._repository = repository
        self._name = name
        self._open: OdfDataset | DeltaDataset | None = None
        self._links = links
        self._budget = budget
        self._puts_prove = puts_prove
        self._urls_last_s = urls_last_s
        self._check = check
        self._extended = extended
        self._promises = promises or Promises()
        self._in_parts: dict[str, ObjectRef] = {}
        self._heart = heart or Heart()
        self._session = session or Seat("", "")
        self._is_committing = False
        self._record: PushRecord | None = None
        self._granted: set[ObjectRef] = set()
        """What wasn't there, so that it has come since, if it has."""
        self._request: PushRequest | None = None
        self._run: _Run | None = None
        self._held: Seat | None = None
        self._blocks = self._objects = 0

    @property
    def amount(self) -> dict[str, int]:
        """How much is pushed, for the log."""
        return {"blocks": self._blocks, "objects": self._objects}

    def answer(self, action: MachineAction) -> HostEvent:
        """Do what the session wants done."""
        try:
            match action:
                case ConsiderPush(request):
                    return self._consider(request)
                case TakeBlocks(batch):
                    self._take(batch)
                    return BlocksTaken()
                case EnsureDataset():
                    self._claim()
                    self._remember()
                    return DatasetReady()
                case SignUrls(objects):
                    self._check()
                    return UrlsReady(self._urls(objects))
                case CheckAndCommit():
                    self._check()
                    self._is_committing = True
                    try:
                        self._commit()
                    finally:
                        self._is_committing = False
                    self._release()
                    return RunCommitted()
        except _Collision as collision:
            return WorkRefused(collision.failure)
        raise AssertionError(action)

    def answer_bytes(self, action: MachineAction) -> int:
        """Return how large the text may be that the client gets of something."""
        if not isinstance(action, SignUrls):
            return 0
        in_parts = sum((one.size_bytes or 0) > IN_PARTS_BYTES for one in action.objects)
        size = len(action.objects) * URL_BYTES + in_parts * PARTS_AT_ONCE * PART_URL_BYTES
        return min(size, MESSAGES.urls_message_bytes)

    def close(self) -> None:
        """Let go of what is held."""
        self._promises.release(self)
        self._forget(leave=True)
        self._release()

    def _release(self) -> None:
        self._run = None
        if self._held is not None:
            self._budget.give_back(self._held)
            self._held = None

    # --- Making way for another client's push ---------------------------------------

    @property
    def silent_since_s(self) -> float | None:
        """Since when it could make way. While it works it does so as the last one."""
        sitting = self._session.sitting
        if sitting is None or self._is_committing:
            return None
        since_s = sitting.silent_since_s
        return time.monotonic() if since_s is None else since_s

    @property
    def has_spoken(self) -> bool:
        """Whether its client has said anything, as it has if blocks are held."""
        return True

    def make_way(self) -> None:
        """End the session, and let the client come again."""
        if self._session.sitting is not None:
            self._session.sitting.make_way()

    # --- The request and its blocks -------------------------------------------------

    @property
    def _dataset(self) -> OdfDataset | DeltaDataset:
        assert self._open is not None
        return self._open

    def _settle_kind(self, kind: DatasetFormat) -> None:
        if self._open is None:
            self._open = self._repository.dataset(self._name, kind)
        elif self._open.kind is not kind:
            # Of blocks the reference client knows no other refusal, and this says what it is.
            raise _Collision(SeedOverwrite())

    def _consider(self, request: PushRequest) -> HostEvent:
        there = self._repository.kind(self._name)
        if there is not None:
            self._settle_kind(there)
        head = self._open.current() if self._open is not None else None
        if head != request.current_head:
            return WorkRefused(InvalidHead(request.current_head, head))
        self._request = request
        return PushConsidered()

    @property
    def _asked(self) -> PushRequest:
        assert self._request is not None
        return self._request

    def _take(self, batch: BlocksBatch) -> None:
        # How much it is shows when it was unpacked, and until then this has to do.
        assumed_bytes = _UNPACKED_FACTOR * len(batch.payload)
        seat = self._budget.take(
            assumed_bytes, self._session.holder, self._session.address, sitting=self
        )
        try:
            with self._budget.unpacking:
                run = self._looked_at(batch)
            self._budget.resize(seat, run.held_bytes)
        except BaseException:
            self._budget.give_back(seat)
            raise
        self._held = seat
        self._blocks, self._objects = run.judged.count, len(run.refs)
        self._run = run

    def _looked_at(self, batch: BlocksBatch) -> _Run:
        beside: list[Beside] = []
        unpacked = _unpack(batch, beside)
        first = next(unpacked, None)
        if first is not None:
            self._settle_kind(kind_of_block(first[1]))
            judged = self._judged(chained([first], unpacked))
            judged = replace(judged, beside=beside[0]) if beside else judged
        elif self._asked.current_head is None:
            raise InvalidInput("a new dataset begins with a seed", cause="there are no blocks")
        else:
            judged = Judged(0, ())
        if judged.count != batch.num_blocks:
            raise InvalidInput(
                "the archive has another number of blocks",
                cause=f"{judged.count:,}, and not {batch.num_blocks:,}",
            )
        refs = _Refs(chained(judged.required, judged.optional))
        seed = None
        if first is not None and self._dataset.kind is DatasetFormat.ODF:
            seed = odf_blocks.parse(first[1], first[0]).seed
        paths = chained((ref.path for ref in refs), judged.assumed)
        held_bytes = len(batch.payload) + len(refs) * _REF_BYTES + sum(map(sys.getsizeof, paths))
        return _Run(batch, refs, judged, seed, held_bytes)

    def _judged(self, run: Iterator[tuple[Multihash, bytes]]) -> Judged:
        asked = self._asked
        try:
            return self._dataset.judge(run, asked.current_head, force=asked.force)
        except OtherDataset as other:
            raise _Collision(SeedOverwrite()) from other

    @property
    def _taken(self) -> _Run:
        assert self._run is not None
        return self._run

    def _claim(self) -> None:
        """See that a new dataset may have its name, and its id that name."""
        seed = self._taken.seed
        if self._asked.current_head is not None or self._open is None:
            return
        if self._repository.kind(self._name) not in (None, self._open.kind):
            raise _Collision(NameCollision(self._name.text))
        try:
            self._repository.check_free(self._name, self._open.kind)
            # Whoever begins a dataset below this name from now on finds that it is one;
            # whoever has begun one before is found.
            self._open.claim()
            self._repository.check_free(self._name, self._open.kind)
        except CommitConflict as taken:
            self._open.unclaim()
            raise _Collision(NameCollision(self._name.text)) from taken
        if seed is not None:
            self._claim_id(seed)

    def _remember(self) -> None:
        """Have it known what the push needs, so that nobody takes it away for garbage."""
        run = self._taken
        if run.batch.num_blocks == 0:
            return
        record = PushRecord(
            self._repository.store,
            self._name,
            self._asked.current_head,
            force=self._asked.force,
        )
        self._record = record
        record.begin(chained(self._block_paths(), map(self._dataset.place, run.refs)))
        self._heart.add(record)

    def _block_paths(self) -> Iterator[str]:
        return (self._dataset.block_path(name) for name, _ in self._taken.unpacked())

    def _forget(self, *, leave: bool) -> None:
        record, self._record = self._record, None
        if record is not None:
            self._heart.remove(record, leave=leave)

    def _claim_id(self, seed: Seed) -> None:
        try:
            self._repository.claim_id(self._name, seed)
        except CommitConflict as taken:
            raise _Collision(RefCollision(seed.did)) from taken

    # --- Objects --------------------------------------------------------------------

    def _urls(self, objects: tuple[ObjectFile, ...]) -> tuple[TransferUrl | None, ...]:
        known = self._taken.refs
        refs = [known.find(one.kind.value, one.physical_hash, one.path) for one in objects]
        sizes = self._dataset.sizes(refs)
        self._make_room(refs, sizes)
        self._granted.update(
            ref for ref, size in zip(refs, sizes, strict=True) if size != ref.size_bytes
        )
        if self._record is not None:
            self._record.grant(
                self._dataset.place(ref)
                for ref, size in zip(refs, sizes, strict=True)
                if size != ref.size_bytes
            )
        named: set[ObjectRef] = set()
        urls: list[TransferUrl | None] = []
        for ref, size in zip(refs, sizes, strict=True):
            is_to_come = size != ref.size_bytes and self._is_its_turn(ref, named)
            urls.append(self._url(ref) if is_to_come else None)
        return tuple(urls)

    def _is_its_turn(self, ref: ObjectRef, named: set[ObjectRef]) -> bool:
        """Tell whether to have an object sent: not twice, where a store refuses the second."""
        if self._puts_prove or self._extended:
            return True
        first = ref not in named
        named.add(ref)
        return first and self._promises.claim(self, self._dataset.place(ref))

    def _make_room(self, refs: list[ObjectRef], sizes: list[int | None]) -> None:
        """Take away what is in an object's place and can't be it: a PUT replaces nothing."""
        wrong = [
            ref
            for ref, size in zip(refs, sizes, strict=True)
            if size is not None and size != ref.size_bytes
        ]
        if wrong:
            self._dataset.make_room(wrong)

    def _url(self, ref: ObjectRef) -> TransferUrl | None:
        path = self._dataset.place(ref)
        if self._extended and ref.size_bytes > IN_PARTS_BYTES:
            self._in_parts[path] = ref
            return self._links.put_parts(
                path,
                ref.size_bytes,
                ref.hash,
                lasts_s=self._urls_last_s,
                shown=self._dataset.address(ref),
            )
        return self._links.put(
            path,
            ref.size_bytes,
            lasts_s=self._urls_last_s,
            shown=self._dataset.address(ref),
        )

    # --- Commit ---------------------------------------------------------------------

    def _commit(self) -> None:
        """Make the blocks the dataset's, if all is there and nobody else was faster."""
        run, expected = self._taken, self._asked.current_head
        head = self._open.current() if self._open is not None else None
        if run.batch.num_blocks == 0:
            if head != expected:
                raise CommitConflict("somebody else pushed in the meantime")
            return
        if head == expected:
            # It may take long; what turns out to be another head now needs none of it.
            for path, ref in self._in_parts.items():
                self._links.join_parts(path, ref.size_bytes, ref.hash)
            self._check_objects(run)
            self._claim()
        record = self._record
        if record is not None:
            record.grant(self._block_paths())
            record.commit()
        try:
            with self._budget.unpacking:
                unpacked = list(run.unpacked())
                self._say_who_sees(unpacked[-1][0])
                last = self._dataset.commit(
                    unpacked, expected, force=self._asked.force, judged=run.judged
                )
        except CommitStateUnknown:
            # Its head may still come: what it needs stays for as long as that may take.
            self._forget(leave=False)
            raise
        if expected is None:
            self._settle(run.seed, last)
        self._forget(leave=False)
        if record is not None:
            # The head is set, and what can't be taken away now is found by who tidies up.
            with suppress(StorageError):
                record.end()

    def _say_who_sees(self, head: Multihash) -> None:
        """Have it known who may see the dataset before the head makes it one, or moves."""
        if self._asked.current_head is None:
            visibility = Visibility[self._asked.visibility.name]
            self._repository.propose_visibility(self._name, head, visibility)
        else:
            self._repository.confirm_visibility(self._name)

    def _check_objects(self, run: _Run) -> None:
        unproven = self._unproven(list(run.refs))
        assert self._open is not None
        self._open.check(run.judged, unproven=unproven, discard=self._discard)

    def _discard(self, ref: ObjectRef) -> None:
        """Take away a file that this push has put and that isn't what its block says.

        Where a PUT has to have its object's hash, it is somebody else's. Elsewhere it may be:
        another push may have been given the same name.
        """
        if self._puts_prove or ref not in self._granted or self._record is None:
            return
        path = self._dataset.place(ref)
        with Sweep(self._repository.store, [path]):
            # In this order: a push ends after its head is set.
            is_needed = self._record.is_needed_by_others(path)
            if not is_needed and self._dataset.current() == self._asked.current_head:
                self._repository.store.delete_many([path])

    def _unproven(self, refs: list[ObjectRef]) -> set[ObjectRef]:
        """Return the objects of which only their place says what they are.

        Of a table's file it says nothing: whatever was there before is left alone.
        """
        unproven = set(refs)
        places_prove = self._dataset.places_prove_objects
        if self._puts_prove and places_prove:
            unproven -= self._granted
        head = self._asked.current_head
        if head is None or not unproven:
            return unproven
        # What blocks that are there name was read, or came through us, when they were committed.
        if self._asked.force and self._taken.judged.begins:
            for _, block in self._dataset.walk(head):
                unproven.difference_update(block.objects)
        elif places_prove:
            # A checkpoint that is carried on.
            last = self._dataset.parse(self._dataset.block(head), head)
            unproven.difference_update(last.objects)
        return unproven

    def _settle(self, seed: Seed | None, last: Multihash) -> None:
        """Say who may see the new dataset; withdraw it if its id has become another's."""
        try:
            if seed is not None:
                self._claim_id(seed)
        except _Collision:
            if self._dataset.head() == last:
                self._repository.store.delete_many([f"{self._name}/{HEAD}"])
            raise
        self._repository.set_visibility(self._name, Visibility[self._asked.visibility.name])


def _unpack(batch: BlocksBatch, beside: list[Beside]) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the blocks; what the client says of what lies beside them is added to the list."""
    gzip = batch.media_type == TAR_GZIP
    entries = tarball.unpack(batch.payload, limits=LIMITS, gzip=gzip)
    return checkpoint_notes.split(entries, beside)
