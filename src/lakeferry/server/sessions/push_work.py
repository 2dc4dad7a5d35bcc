"""The server's work in a push: checks blocks and objects, makes URLs, commits.

Before the commit only objects are stored, and the client puts them at their places itself. A
push that ends early leaves nothing visible, and the next push finds the objects that arrived.
So a new dataset exists from its first commit. Its id is claimed before the commit, so that of
two clients that push it under two names one is refused early; and once more after it, because
only then the claim holds.

Between two messages a session holds the blocks packed, as they came, and the names of their
objects. They count against a budget that all sessions share
(:mod:`lakeferry.server.sessions.byte_budget`). When it is full, pushes of the client that holds the
most make way for another client's.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain as chained

from lakeferry.errors import CommitConflict, CommitStateUnknown, InvalidInput, StorageError
from lakeferry.server.session_seats import Seat
from lakeferry.server.sessions.byte_budget import Budget
from lakeferry.server.sessions.named_objects import ObjectRefs
from lakeferry.server.sessions.object_name_claims import Promises
from lakeferry.server.sessions.upload_urls import UploadUrls, urls_bytes
from lakeferry.transfer.chain import odf_blocks
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef, Seed
from lakeferry.transfer.datasets import checkpoint_notes
from lakeferry.transfer.datasets.checkpoint_notes import Beside
from lakeferry.transfer.datasets.dataset import DatasetFormat, Judged, OtherDataset
from lakeferry.transfer.datasets.delta import version_blocks
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.local_dataset import kind_of_block
from lakeferry.transfer.datasets.odf import OdfDataset
from lakeferry.transfer.datasets.stored_chain import HEAD
from lakeferry.transfer.repository import dataset_sizes
from lakeferry.transfer.repository.dataset_changes import check_names_around
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.last_push import LastPush, record_push
from lakeferry.transfer.repository.push_records import PushRecord, Sweep, now_ms
from lakeferry.transfer.repository.push_renewal import Heart
from lakeferry.transfer.repository.repository import Repository, Visibility
from lakeferry.transfer.repository.signed_urls import Links
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

_LIMITS = tarball.ArchiveLimits(
    unpacked_bytes=256 << 20, entry_bytes=version_blocks.LARGEST_VERSION_BLOCK_BYTES
)

_LOG = logging.getLogger(__name__)
_REF_BYTES = 260  # memory of a reference, about, without its path
_UNPACKED_FACTOR = 2


class _Collision(Exception):
    """The name or the id belongs to another dataset; never leaves a push."""

    def __init__(self, failure: NameCollision | RefCollision | SeedOverwrite) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class _Run:
    """The blocks of a push, packed as they came, and what was read from them."""

    batch: BlocksBatch
    refs: ObjectRefs
    judged: Judged
    seed: Seed | None
    held_bytes: int

    def unpacked(self) -> Iterator[tuple[Multihash, bytes]]:
        return _unpack(self.batch, [])


class Pushing:
    """The server's end of one push.

    For a new dataset, the first block decides its kind.
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
        folder: DatasetName | None = None,
        token_id: str | None = None,
    ) -> None:
        """Receive the dataset ``name``; its ``folder`` has the same name by default.

        ``puts_prove`` means that the server checks the hash of every PUT; otherwise objects are
        read before a commit. ``check`` raises as soon as the client has lost the right to write.
        ``extended`` clients send
        :data:`~lakeferry.transfer.wire.handshake.EXTENDED_HEADER`. ``session`` is the push's place
        among the sessions; it tells which pushes share the budget. ``token_id`` is recorded when
        the push has succeeded.
        """
        self._repository = repository
        self._name = name
        self._folder = name if folder is None else folder
        self._open: OdfDataset | DeltaDataset | None = None
        self._budget = budget
        self._puts_prove = puts_prove
        self._check = check
        self._urls = UploadUrls(
            links,
            puts_prove=puts_prove,
            extended=extended,
            urls_last_s=urls_last_s,
            promises=promises or Promises(),
        )
        self._heart = heart or Heart()
        self._token_id = token_id
        self._session = session or Seat("", "")
        self._is_committing = False
        self._record: PushRecord | None = None
        self._request: PushRequest | None = None
        self._run: _Run | None = None
        self._held: Seat | None = None
        self._blocks = self._objects = 0

    @property
    def amount(self) -> dict[str, int]:
        """The size of the push, for the log."""
        return {"blocks": self._blocks, "objects": self._objects}

    def answer(self, action: MachineAction) -> HostEvent:
        """Execute an action of the session and return the result."""
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
                    return UrlsReady(self._signed(objects))
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
        """Return the maximum size of the text that the client gets for an action."""
        if not isinstance(action, SignUrls):
            return 0
        return min(urls_bytes(action.objects), MESSAGES.urls_message_bytes)

    def close(self) -> None:
        """Release what is held."""
        self._urls.release()
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
        """Since when the push could make way. One that works now makes way last."""
        sitting = self._session.sitting
        if sitting is None or self._is_committing:
            return None
        since_s = sitting.silent_since_s
        return time.monotonic() if since_s is None else since_s

    @property
    def has_spoken(self) -> bool:
        """Always true: if blocks are held, the client has spoken."""
        return True

    def make_way(self) -> None:
        """End the session; the client may retry."""
        if self._session.sitting is not None:
            self._session.sitting.make_way()

    # --- The request and its blocks -------------------------------------------------

    @property
    def _dataset(self) -> OdfDataset | DeltaDataset:
        assert self._open is not None
        return self._open

    def _settle_kind(self, kind: DatasetFormat) -> None:
        if self._open is None:
            self._open = self._repository.dataset(self._folder, kind)
        elif self._open.kind is not kind:
            if self._repository.claim_of(self._folder) is not None:
                raise self._name_collision(self._folder)
            # For blocks the reference client knows only this refusal; its text tells the reason.
            raise _Collision(SeedOverwrite())

    def _consider(self, request: PushRequest) -> HostEvent:
        there = self._repository.kind(self._folder)
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
        # The real size is known after unpacking; until then this estimate counts.
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
            raise InvalidInput(
                "a new dataset has to begin with a seed", cause="there are no blocks"
            )
        else:
            judged = Judged(0, ())
        if judged.count != batch.num_blocks:
            raise InvalidInput(
                "the archive has another number of blocks",
                cause=f"{judged.count:,} instead of {batch.num_blocks:,}",
            )
        refs = ObjectRefs(chained(judged.required, judged.optional))
        seed = None
        if first is not None and self._dataset.kind is DatasetFormat.ODF:
            seed = odf_blocks.parse_odf_block(first[1], first[0]).seed
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
        """Claim the name for a new dataset, and its id for that name."""
        seed = self._taken.seed
        if self._asked.current_head is not None or self._open is None:
            return
        if self._repository.kind(self._folder) not in (None, self._open.kind):
            raise self._name_collision(self._folder)
        self._check_renamed()
        try:
            self._repository.check_free(self._folder, self._open.kind)
            # From now on, a client that begins a dataset below this name finds the claim. A
            # dataset begun before it is found by the second check.
            self._open.claim()
            self._repository.check_free(self._folder, self._open.kind)
        except CommitConflict as taken:
            self._open.unclaim()
            raise self._name_collision(DatasetName.parse(str(taken.fields["other"]))) from taken
        if seed is not None:
            self._claim_id(seed)

    def _check_renamed(self) -> None:
        """Refuse a new dataset above or below another one that has its name from a rename."""
        if not self._repository.folders.read().named:
            return
        try:
            check_names_around(self._repository, self._name)
        except CommitConflict as taken:
            raise _Collision(NameCollision(self._name.text)) from taken

    def _name_collision(self, other: DatasetName) -> _Collision:
        """Return the refusal of a name because of another dataset, or of its first push."""
        claim = self._repository.claim_of(other)
        if claim is None:
            return _Collision(NameCollision(self._name.text))
        held_s = -(-claim.lasts_ms // 1000)
        is_same = bool(claim.holder) and claim.holder == self._session.holder
        return _Collision(NameCollision(self._name.text, held_s, is_same))

    def _remember(self) -> None:
        """Record what the push needs, so that garbage collection keeps it."""
        run = self._taken
        if run.batch.num_blocks == 0:
            return
        record = PushRecord(
            self._repository.store,
            self._folder,
            self._asked.current_head,
            force=self._asked.force,
            holder=self._session.holder,
        )
        self._record = record
        record.begin(chained(self._block_paths(), map(self._dataset.place, run.refs)))
        self._repository.folders.check_push(self._name, self._folder)
        self._heart.add(record)

    def _block_paths(self) -> Iterator[str]:
        return (self._dataset.block_path(name) for name, _ in self._taken.unpacked())

    def _forget(self, *, leave: bool) -> None:
        record, self._record = self._record, None
        if record is not None:
            self._heart.remove(record, leave=leave)

    def _claim_id(self, seed: Seed) -> None:
        try:
            self._repository.claim_id(self._folder, seed)
        except CommitConflict as taken:
            raise _Collision(RefCollision(seed.did)) from taken

    def _signed(self, objects: tuple[ObjectFile, ...]) -> tuple[TransferUrl | None, ...]:
        known = self._taken.refs
        refs = [known.find(one.kind.value, one.physical_hash, one.path) for one in objects]
        return self._urls.make(self._dataset, refs, self._record)

    # --- Commit ---------------------------------------------------------------------

    def _commit(self) -> None:
        """Add the blocks to the dataset, if all objects exist and no other commit came first."""
        run, expected = self._taken, self._asked.current_head
        head = self._open.current() if self._open is not None else None
        if run.batch.num_blocks == 0:
            if head != expected:
                raise CommitConflict("somebody else pushed in the meantime")
            return
        if head == expected:
            # Joining may take long; if the head has changed already, it isn't needed.
            self._urls.join_parts()
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
            # The head may still be set, so the record stays and keeps what the push needs.
            self._forget(leave=False)
            raise
        if self._dataset.unfinished is not None:
            _LOG.warning(
                "%s has all versions that were pushed, but what is kept beside them couldn't be "
                "updated; the next push or pull does it: %s",
                self._name,
                self._dataset.unfinished,
            )
        if expected is None:
            self._settle(run.seed, last)
        if self._dataset.kind is DatasetFormat.ODF:
            dataset_sizes.keep_size(self._repository, self._folder, expected, last, run.judged)
        done = LastPush(now_ms(), self._token_id, last.text, self._blocks, self._objects)
        record_push(self._repository.store, self._folder, done)
        self._forget(leave=False)
        if record is not None:
            # The head is set; garbage collection finds a record that can't be deleted now.
            with suppress(StorageError):
                record.end()

    def _say_who_sees(self, head: Multihash) -> None:
        """Record who may see the dataset before the head is set or moved."""
        if self._asked.current_head is None:
            visibility = Visibility[self._asked.visibility.name]
            self._repository.propose_visibility(self._folder, head, visibility)
        else:
            self._repository.confirm_visibility(self._folder)

    def _check_objects(self, run: _Run) -> None:
        unproven = self._unproven(list(run.refs))
        assert self._open is not None
        self._open.check(run.judged, unproven=unproven, discard=self._discard)

    def _discard(self, ref: ObjectRef) -> None:
        """Delete a file that this push has put and that differs from its block.

        If a PUT has to have its object's hash, the file can't be ours. Otherwise it may still be
        another push's, which was given the same name.
        """
        if self._puts_prove or ref not in self._urls.granted or self._record is None:
            return
        path = self._dataset.place(ref)
        with Sweep(self._repository.store, [path]):
            # Keep this order: a push deletes its record after its head is set.
            is_needed = self._record.is_needed_by_others(path)
            if not is_needed and self._dataset.current() == self._asked.current_head:
                self._repository.store.delete_many([path])

    def _unproven(self, refs: list[ObjectRef]) -> set[ObjectRef]:
        """Return the objects whose bytes nobody has checked yet.

        The path of a table's file doesn't prove its bytes; files from before the push stay.
        """
        unproven = set(refs)
        places_prove = self._dataset.places_prove_objects
        if self._puts_prove and places_prove:
            unproven -= self._urls.granted
        head = self._asked.current_head
        if head is None or not unproven:
            return unproven
        # Objects of stored blocks were read, or their PUT was checked, when those were committed.
        if self._asked.force and self._taken.judged.begins:
            for _, block in self._dataset.walk(head):
                unproven.difference_update(block.objects)
        elif places_prove:
            # A checkpoint that the new blocks refer to again.
            last = self._dataset.parse(self._dataset.block(head), head)
            unproven.difference_update(last.objects)
        return unproven

    def _settle(self, seed: Seed | None, last: Multihash) -> None:
        """Record who may see the new dataset; withdraw it if another one has its id now.

        The dataset exists, so a store that fails now doesn't make the push fail: the id was
        claimed before, and the proposed visibility counts, until the next push confirms it.
        """
        try:
            if seed is not None:
                self._claim_id(seed)
            self._repository.set_visibility(self._folder, Visibility[self._asked.visibility.name])
        except _Collision:
            if self._dataset.head() == last:
                self._repository.store.delete_many([f"{self._folder}/{HEAD}"])
            raise
        except StorageError as error:
            _LOG.warning("the records of the new dataset %s are incomplete: %s", self._name, error)


def _unpack(batch: BlocksBatch, beside: list[Beside]) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the blocks; add to ``beside`` what the client says of what lies beside them."""
    gzip = batch.media_type == TAR_GZIP
    entries = tarball.unpack(batch.payload, limits=_LIMITS, gzip=gzip)
    return checkpoint_notes.split_archive(entries, beside)
