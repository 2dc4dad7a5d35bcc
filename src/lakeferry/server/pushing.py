"""What the server of a push has to do: judge blocks, hand out addresses, look, and commit.

Nothing is stored before the commit but the objects, which the client puts at their places
itself: of a push that ends early nothing is seen, and the next one finds those that arrived.
So a new dataset begins to be with its first commit. Its id is claimed before, that two who
push it under two names at once learn of it early, and once more when it is there, for only
then the claim holds.

Between two messages a session holds the blocks as they came, packed, and the names of their
objects, against a :class:`Budget` that all sessions share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain as chained

from lakeferry.errors import CommitConflict, Diverged, InvalidInput, LimitExceeded
from lakeferry.transfer import blocks, chain, tarball
from lakeferry.transfer.blocks import Block, ObjectRef, Seed
from lakeferry.transfer.events import (
    Action,
    BlocksTaken,
    CheckAndCommit,
    Command,
    Committed,
    ConsiderPush,
    DatasetReady,
    EnsureDataset,
    PushConsidered,
    Refused,
    SignUrls,
    TakeBlocks,
    UrlsReady,
)
from lakeferry.transfer.failures import InvalidHead, NameCollision, RefCollision, SeedOverwrite
from lakeferry.transfer.hashes import Multihash
from lakeferry.transfer.messages import TAR_GZIP, BlocksBatch, ObjectFile, PushRequest, TransferUrl
from lakeferry.transfer.odf_dataset import HEAD
from lakeferry.transfer.repository import DatasetName, Kind, Repository, Visibility
from lakeferry.transfer.signing import Links

HELD_BYTES = 256 << 20
"""What the pushes of a server may hold together."""
UNPACKED_AT_ONCE = 2
LIMITS = tarball.Limits(unpacked_bytes=256 << 20)

_REF_BYTES = 600  # of memory, about


class Budget:
    """Bytes that sessions hold, counted for all of them. Safe to use from several threads."""

    def __init__(self, most_bytes: int = HELD_BYTES) -> None:
        """Begin with nothing held."""
        self._most = most_bytes
        self._held = 0
        self._lock = threading.Lock()
        self.unpacking = threading.BoundedSemaphore(UNPACKED_AT_ONCE)
        """Held by whoever has a push's blocks unpacked in memory."""

    def take(self, size_bytes: int) -> None:
        """Count bytes in, or raise ``LimitExceeded`` where there is no room for them."""
        with self._lock:
            if self._held + size_bytes > self._most:
                raise LimitExceeded(
                    "too much is being pushed at once",
                    cause=f"{self._held:,} bytes of blocks are held",
                    remedy="push again in a while",
                )
            self._held += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count bytes out."""
        with self._lock:
            self._held -= size_bytes


class _Collision(Exception):
    """The name or the id is somebody else's; never leaves a push."""

    def __init__(self, failure: NameCollision | RefCollision | SeedOverwrite) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class _Run:
    """The blocks of a push: packed, as they came, and what they say."""

    batch: BlocksBatch
    refs: dict[tuple[str, Multihash], ObjectRef]
    seed: Seed | None
    held_bytes: int

    def unpacked(self) -> Iterator[tuple[Multihash, bytes]]:
        return _unpack(self.batch)


class Pushing:
    """One push of an ODF dataset, at the end that gets it."""

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
    ) -> None:
        """Receive a dataset.

        ``puts_prove`` says that nothing gets to an object's place without having its hash;
        elsewhere objects are read before a commit. ``check`` raises once the client isn't
        allowed to write any more.
        """
        self._repository = repository
        self._name = name
        self._dataset = repository.odf(name)
        self._links = links
        self._budget = budget
        self._puts_prove = puts_prove
        self._urls_last_s = urls_last_s
        self._check = check
        self._request: PushRequest | None = None
        self._run: _Run | None = None
        self._blocks = self._objects = 0

    @property
    def amount(self) -> str:
        """How much is pushed, for the log."""
        return f"blocks={self._blocks} objects={self._objects}"

    def answer(self, action: Action) -> Command:
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
                    return DatasetReady()
                case SignUrls(objects):
                    self._check()
                    return UrlsReady(self._urls(objects))
                case CheckAndCommit():
                    self._check()
                    self._commit()
                    return Committed()
        except _Collision as collision:
            return Refused(collision.failure)
        raise AssertionError(action)

    def close(self) -> None:
        """Let go of what is held."""
        if self._run is not None:
            self._budget.give_back(self._run.held_bytes)
            self._run = None

    # --- The request and its blocks -------------------------------------------------

    def _consider(self, request: PushRequest) -> Command:
        head = self._dataset.head()
        if head != request.current_head:
            return Refused(InvalidHead(request.current_head, head))
        self._request = request
        return PushConsidered()

    @property
    def _asked(self) -> PushRequest:
        assert self._request is not None
        return self._request

    def _take(self, batch: BlocksBatch) -> None:
        refs: dict[tuple[str, Multihash], ObjectRef] = {}
        count = 0

        def noted(run: Iterator[tuple[Multihash, Block]]) -> Iterator[tuple[Multihash, Block]]:
            nonlocal count
            for name, block in run:
                count += 1
                for ref in block.objects:
                    if refs.setdefault((ref.kind.value, ref.hash), ref) != ref:
                        raise InvalidInput("blocks give one object two sizes", hash=ref.hash.text)
                yield name, block

        parsed = ((name, blocks.parse(data, name)) for name, data in _unpack(batch))
        first = next(parsed, None)
        if first is not None:
            chain.extend_all(self._state(first[1]), noted(chained([first], parsed)))
        elif self._asked.current_head is None:
            raise InvalidInput("a new dataset begins with a seed", cause="there are no blocks")
        if count != batch.num_blocks:
            raise InvalidInput(
                "the archive has another number of blocks",
                cause=f"{count:,}, and not {batch.num_blocks:,}",
            )
        held_bytes = len(batch.payload) + len(refs) * _REF_BYTES
        self._budget.take(held_bytes)
        self._blocks, self._objects = count, len(refs)
        self._run = _Run(batch, refs, first and first[1].seed, held_bytes)

    def _state(self, first: Block) -> chain.State | None:
        """Return the state that the blocks have to continue."""
        head = self._asked.current_head
        if head is None:
            return None
        if self._asked.force and first.prev_hash is None:
            try:
                self._dataset.check_seed(first)
            except Diverged as other:
                raise _Collision(SeedOverwrite()) from other
            return None
        return chain.state_at(block for _, block in self._dataset.walk(head))

    @property
    def _taken(self) -> _Run:
        assert self._run is not None
        return self._run

    def _claim(self) -> None:
        """See that a new dataset may have its name, and its id that name."""
        seed = self._taken.seed
        if self._asked.current_head is not None or seed is None:
            return
        if self._repository.kind(self._name) is Kind.DELTA:
            raise _Collision(NameCollision(self._name.text))
        try:
            self._repository.check_free(self._name)
        except CommitConflict as taken:
            raise _Collision(NameCollision(self._name.text)) from taken
        self._claim_id(seed)

    def _claim_id(self, seed: Seed) -> None:
        try:
            self._repository.claim_id(self._name, seed)
        except CommitConflict as taken:
            raise _Collision(RefCollision(seed.did)) from taken

    # --- Objects --------------------------------------------------------------------

    def _urls(self, objects: tuple[ObjectFile, ...]) -> tuple[TransferUrl | None, ...]:
        known = self._taken.refs
        try:
            refs = [known[one.kind.value, one.physical_hash] for one in objects]
        except KeyError as other:
            raise InvalidInput(
                "an object is to be sent that no block names", cause=str(other.args[0][1])
            ) from None
        return tuple(
            None if size == ref.size_bytes else self._url(ref)
            for ref, size in zip(refs, self._dataset.sizes(refs), strict=True)
        )

    def _url(self, ref: ObjectRef) -> TransferUrl:
        path = self._dataset.object_path(ref.kind, ref.hash)
        url, expires_ms = self._links.put(path, ref.size_bytes, lasts_s=self._urls_last_s)
        return TransferUrl(url, (), expires_ms)

    # --- Commit ---------------------------------------------------------------------

    def _commit(self) -> None:
        """Make the blocks the dataset's, if all is there and nobody else was faster."""
        run, expected = self._taken, self._asked.current_head
        head = self._dataset.head()
        if run.batch.num_blocks == 0:
            if head != expected:
                raise CommitConflict("somebody else pushed in the meantime")
            return
        if head == expected:
            # It may take long; what turns out to be another head now needs none of it.
            refs = list(run.refs.values())
            self._dataset.check(refs, unproven=self._unproven(refs))
            self._claim()
        with self._budget.unpacking:
            last = self._dataset.commit(list(run.unpacked()), expected, force=self._asked.force)
        if expected is None and run.seed is not None:
            self._settle(run.seed, last)

    def _unproven(self, refs: list[ObjectRef]) -> set[Multihash]:
        """Return the objects of which only their place says what they are."""
        if self._puts_prove:
            return set()
        unproven = set(refs)
        head = self._asked.current_head
        if self._asked.force and head is not None and self._taken.seed is not None:
            # Those of the chain that is replaced were read when it was committed.
            for _, block in self._dataset.walk(head):
                unproven.difference_update(block.objects)
        return {ref.hash for ref in unproven}

    def _settle(self, seed: Seed, last: Multihash) -> None:
        """Say who may see the new dataset; withdraw it if its id has become another's."""
        try:
            self._claim_id(seed)
        except _Collision:
            if self._dataset.head() == last:
                self._repository.store.delete_many([f"{self._name}/{HEAD}"])
            raise
        self._repository.set_visibility(self._name, Visibility[self._asked.visibility.name])


def _unpack(batch: BlocksBatch) -> Iterator[tuple[Multihash, bytes]]:
    return tarball.unpack(batch.payload, limits=LIMITS, gzip=batch.media_type == TAR_GZIP)
