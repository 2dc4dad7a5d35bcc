"""``Dataset``: what every dataset can do.

What every kind of dataset has (:class:`Dataset`). Below a folder of its own::

    blocks/<hash>        blocks, as they were received
    refs/head            the hash of the last block

Everything but the head is named by the hash of its bytes and never changes. A walk goes from a
block to the one before it and checks each hash and link: the store is trusted no more than a
peer. When a walk turns out to be long, blocks are fetched together, up to a number of bytes.

Each kind of dataset defines the format of blocks, the paths of objects and what a commit does:
:mod:`lakeferry.transfer.datasets.odf`, :mod:`lakeferry.transfer.datasets.delta.delta_dataset`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby, islice
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from lakeferry.errors import (
    CommitConflict,
    CommitStateUnknown,
    CorruptLog,
    Diverged,
    HashMismatch,
    InvalidInput,
    LimitExceeded,
    MissingFile,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from lakeferry.storage import Store
from lakeferry.storage.parallel_calls import concurrently
from lakeferry.transfer.chain import hashes, validation
from lakeferry.transfer.chain.hashes import LONGEST_TEXT, Digest, Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.chain.validation import LONGEST_RUN
from lakeferry.transfer.datasets.block_ranges import AnyBlock, BlockCache, BlockTally, Interval
from lakeferry.transfer.datasets.checkpoint_notes import NOTHING, Beside
from lakeferry.transfer.wire.failure_messages import REPLACE

HEAD = "refs/head"
DATASET_CHUNK_BYTES = 1 << 20

_HEAD_BYTES = LONGEST_TEXT + 64

_BLOCKS = "blocks"
_FEW = 32  # for up to this many names no listing is tried
_LISTED_PER_NAME = 60  # one page of a listing takes as long as a round of concurrent requests
_BATCH = 64
_WRITTEN_AT_ONCE = 1_000
_LONG_WALK = 32  # after this many steps, blocks are prefetched
_AHEAD_BYTES = 64 << 20
_AHEAD_FACTOR = 4  # prefetch only if the folder has at most this many times the needed blocks
_SHOWN = 10

Run: TypeAlias = Sequence[tuple[Multihash, bytes]]
"""Blocks with the names under which they were received, oldest first."""


class DatasetFormat(Enum):
    """The kind of a dataset."""

    DELTA = "delta"
    ODF = "odf"


B = TypeVar("B", bound=AnyBlock)


class ObjectPlaces(Protocol):
    """Knows the path of an object in a store."""

    def place(self, ref: ObjectRef) -> str:
        """Return the path of an object."""


class OtherDataset(Diverged):
    """The blocks of another dataset would replace this one's."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A run of blocks that may follow a head, and the objects that it names.

    ``optional`` objects aren't needed by any version that is left when the run ends, and may be
    missing for ever. ``begins`` is set if the run is a chain of its own.
    """

    count: int
    required: tuple[ObjectRef, ...]
    optional: tuple[ObjectRef, ...] = ()
    begins: bool = False
    assumed: tuple[str, ...] = ()
    """Paths in the dataset of objects that must exist already."""
    beside: Beside = NOTHING
    """What the sender has beside the run and no block names."""


class PartEnds:
    """Follows a run while it is sent, and says where a part may end: here, after any block."""

    @property
    def may_end(self) -> bool:
        """Return True if the part may end after the last block that was taken."""
        return True

    @property
    def absent(self) -> set[ObjectRef]:
        """Return objects that don't exist any more and aren't needed at the part's end."""
        return set()

    def take(self, block: Any) -> None:
        """Continue with the next block."""


class Dataset(ABC, Generic[B]):
    """A dataset below a folder of a store, existing or not; ``""`` is the store's root."""

    kind: DatasetFormat
    largest_block_bytes: int
    places_prove_objects: bool
    """True if an object's path contains its hash, so that a stored object has the right bytes."""
    is_replaced_at_once: bool
    """True if force replaces the content in one version, so that the run can't be divided."""
    unfinished: Exception | None = None
    """Why the last commit, which succeeded, left something for the next command to finish."""

    def __init__(
        self, store: Store, folder: str, chain_folder: str, cache: BlockCache | None = None
    ) -> None:
        """Set the folders of the dataset and of its chain; no request is sent yet.

        With a ``cache``, blocks are read from it first.
        """
        self._store = store
        self._cache = cache or BlockCache(0)
        self._folder = folder
        self._prefix = f"{folder}/" if folder else ""
        self._chain = f"{self._prefix}{chain_folder}"
        self._name = folder or store.uri

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store.uri!r}, {self._folder!r})"

    # --- What each kind defines ------------------------------------------------------

    @abstractmethod
    def parse(self, data: bytes, expected: Multihash | None = None) -> B:
        """Return the block that these bytes encode, or raise an error that says why not."""

    @abstractmethod
    def place(self, ref: ObjectRef) -> str:
        """Return the path of an object in the store."""

    @abstractmethod
    def address(self, ref: ObjectRef) -> str:
        """Return an object's path below the URL of a server whose root has this dataset."""

    @abstractmethod
    def current(self) -> Multihash | None:
        """Return the head, after adding blocks for everything the chain doesn't cover yet."""

    @abstractmethod
    def judge(
        self, run: Iterable[tuple[Multihash, bytes]], head: Multihash | None, *, force: bool
    ) -> Judged:
        """Check whether a run of a peer's blocks may follow ``head``; store nothing.

        ``Diverged`` if it doesn't follow. With ``force`` it may also begin a new chain of the same
        dataset; another dataset is ``OtherDataset``. The run is read once, a block at a time.
        """

    @abstractmethod
    def check(
        self,
        judged: Judged,
        *,
        unproven: Collection[ObjectRef] = (),
        discard: Callable[[ObjectRef], None] = lambda _: None,
    ) -> None:
        """Refuse unless every required object exists and every unproven one has the right bytes.

        A missing object is ``MissingFile``, another size ``HashMismatch``. The bytes of
        ``unproven`` objects are read. ``discard`` gets the wrong ones, where their paths don't
        contain their hashes.
        """

    def claim(self) -> None:
        """Mark the place for a dataset that is about to be created, if nothing else shows it."""

    def unclaim(self) -> None:
        """Delete the mark."""

    @abstractmethod
    def make_room(self, wrong: Sequence[ObjectRef]) -> None:
        """Delete the files in the places of these objects, or refuse.

        They can't be the objects: their sizes differ from those in the blocks.
        """

    def identity(self, data: bytes) -> str | None:  # noqa: ARG002
        """Return the id of the table that a block belongs to; ``None`` if blocks don't say it."""
        return None

    def is_made_of(self, data: bytes, name: Multihash, head: Multihash) -> bool:  # noqa: ARG002
        """Return True if a block is the root that ``force`` made from the chain with that head."""
        return False

    def is_replaced_by(self, head: Multihash, other: Multihash) -> bool:
        """Return True if ``head`` already contains everything that ``other`` refers to."""
        return head == other

    def origin(self, head: Multihash) -> Multihash | None:  # noqa: ARG002
        """Return the head of the chain whose content replaced the dataset's, or ``None``."""
        return None

    def part_ends(self) -> PartEnds:
        """Return the object that says where a run may be divided into parts."""
        return PartEnds()

    def beside(self, first: B, last: B) -> Beside:  # noqa: ARG002
        """Return what lies beside some blocks and travels with them."""
        return NOTHING

    @abstractmethod
    def commit(
        self,
        run: Run,
        expected_head: Multihash | None,
        *,
        force: bool = False,
        unproven: Collection[ObjectRef] = (),
        judged: Judged | None = None,
    ) -> Multihash:
        """Add blocks, oldest first, each with the name it was received under; return the new head.

        The blocks follow ``expected_head``, the current head (``None``: there is no dataset, and
        they begin one). Everything is checked before anything is stored. The bytes of
        ``unproven`` objects are read first. ``judged`` is the result of :meth:`judge` for the same
        run and head, if it was called.

        ``CommitConflict`` if the head is another one or changes meanwhile, ``Diverged`` if the
        blocks don't follow it, ``CommitStateUnknown`` if the store's answer is lost. Repeating a
        commit that was made succeeds. Once a reader can see the last block's content, nothing
        raises any more: what couldn't be finished is in :attr:`unfinished`.
        """

    # --- Stored content -------------------------------------------------------------

    def head(self) -> Multihash | None:
        """Return the hash of the last block; ``None`` if there is no dataset."""
        return self.head_of(self._head_text())

    @staticmethod
    def head_of(text: bytes | None) -> Multihash | None:
        """Return the hash at the beginning of a head's text."""
        if text is None:
            return None
        try:
            return Multihash.parse(text.decode("ascii").split()[0])
        except (InvalidInput, UnicodeDecodeError, IndexError) as error:
            raise CorruptLog("a dataset's head isn't a hash", cause=repr(text[:_SHOWN])) from error

    def block(self, name: Multihash) -> bytes:
        """Return a block as it is stored, or raise ``ObjectNotFound``; its hash isn't checked."""
        limit = self.largest_block_bytes
        data = self._store.get_range(self.block_path(name), 0, limit + 1)
        if len(data) > limit:
            raise LimitExceeded("a block is too large", limit=limit, hash=name.text)
        return data

    def walk(
        self, upper: Multihash, lower: Multihash | None = None, *, limit: int = LONGEST_RUN
    ) -> Iterator[tuple[bytes, B]]:
        """Yield the blocks from ``upper`` back to the one after ``lower``, or to the seed.

        A walk that ends without meeting ``lower`` is ``Diverged``; one longer than ``limit`` is
        ``LimitExceeded``. A missing block and a damaged block have errors of their own.
        """
        # If the block of ``lower`` is stored here, its number says when to give up.
        floor = -1 if lower is None else self._number(lower)
        if floor is None:
            raise diverged(upper, lower)
        current: Multihash | None = upper
        later: B | None = None
        count = 0
        ahead: dict[str, bytes] = {}
        was_ahead = False
        while current is not None and current != lower:
            if count == limit:
                raise LimitExceeded("a chain is too long", cause=f"more than {limit:,} blocks")
            data = self._cache.get(self._chain, current)
            if data is None:
                if count >= _LONG_WALK and later is not None and not was_ahead:
                    was_ahead = True
                    ahead = self._ahead(min(later.sequence_number - floor, limit))
                data = ahead.pop(self.block_path(current), None) or self._present_block(current)
            block = self.parse(data, current)
            self._cache.put(self._chain, current, data)
            if later is not None:
                validation.link(validation.ChainHead.of(block), later)
            if block.sequence_number <= floor:
                raise diverged(upper, lower)
            yield data, block
            count, later, current = count + 1, block, block.prev_hash
        if current != lower:
            raise diverged(upper, lower)

    def interval(
        self,
        upper: Multihash,
        lower: Multihash | None = None,
        *,
        ignore_missing_tail: bool = False,
        limit: int = LONGEST_RUN,
    ) -> Interval:
        """Return the blocks after ``lower`` up to ``upper``; without ``lower``, the whole chain.

        If the walk doesn't meet ``lower``: ``Diverged``, or the whole chain if that was requested.
        """
        way = (self._chain, upper, lower)
        if (known := self._cache.interval(way)) is not None and len(known) <= limit:
            return known
        digests = bytearray()
        tally = BlockTally()
        try:
            for _, block in self.walk(upper, lower, limit=limit):
                digests += block.hash.digest
                tally.take(block)
        except Diverged:
            if not ignore_missing_tail:
                raise
            return self.interval(upper, limit=limit)
        found = Interval(bytes(digests), tally.plan)
        self._cache.remember(way, found)
        return found

    def read(self, names: Iterable[Multihash]) -> Iterator[tuple[Multihash, bytes]]:
        """Yield blocks in the given order, fetched in batches, each with its hash checked."""
        left = iter(names)
        while batch := list(islice(left, _BATCH)):
            known = {name: self._cache.get(self._chain, name) for name in batch}
            left_out = [name for name, data in known.items() if data is None]
            found = self._store.get_many([self.block_path(name) for name in left_out])
            known |= zip(left_out, found, strict=True)
            for name in batch:
                data = known[name]
                assert data is not None
                hashes.check_hash(Multihash.sha3_256(data), name)
                yield name, data

    # --- Objects --------------------------------------------------------------------

    def block_path(self, name: Multihash) -> str:
        """Return the path of a block in the store."""
        return f"{self._chain}{_BLOCKS}/{name.text}"

    def sizes(self, refs: Sequence[ObjectRef]) -> list[int | None]:
        """Return the stored size of each object in bytes, ``None`` if it doesn't exist.

        Few objects are requested one by one, concurrently. For many the folder is listed; the
        listing stops when the folder is so large that single requests are cheaper.
        """
        paths = [self.place(ref) for ref in refs]
        found = self._sizes(paths)
        return [found.get(path) for path in paths]

    def missing(self, refs: Sequence[ObjectRef]) -> list[ObjectRef]:
        """Return the objects that don't exist with their declared size."""
        sizes = self.sizes(refs)
        return [ref for ref, size in zip(refs, sizes, strict=True) if size != ref.size_bytes]

    def _check_there(self, wanted: Sequence[ObjectRef]) -> None:
        """Refuse unless every object exists and has its declared size.

        A missing object is ``MissingFile``, another size ``HashMismatch``.
        """
        stored = self.sizes(wanted)
        missing = [_shown(ref) for ref, size in zip(wanted, stored, strict=True) if size is None]
        if missing:
            raise MissingFile(
                f"{len(missing):,} of the objects that the blocks name are missing",
                cause=", ".join(missing[:_SHOWN]),
                remedy="send them, then commit again",
                missing=missing[:_SHOWN],
                missing_count=len(missing),
            )
        for ref, size in zip(wanted, stored, strict=True):
            if size is not None and size != ref.size_bytes:
                raise self._other_size(ref, size)

    def _other_size(self, ref: ObjectRef, size_bytes: int) -> HashMismatch:
        return HashMismatch(
            f"the object {_shown(ref)} doesn't have the size that its block says",
            cause=f"{size_bytes:,} bytes, and not {ref.size_bytes:,}",
            hash=ref.hash.text,
        )

    def _hash(self, path: str) -> Multihash:
        return digest_of(self._store, path).multihash()

    # --- Commit ---------------------------------------------------------------------

    def _store_blocks(self, run: Run) -> None:
        wanted = {self.block_path(name): data for name, data in run}
        there = self._sizes(list(wanted))
        new = iter([path for path, data in wanted.items() if there.get(path) != len(data)])
        while some := list(islice(new, _WRITTEN_AT_ONCE)):
            self._store.put_many({path: wanted[path] for path in some})

    def _swap_head(
        self, text: bytes | None, new: bytes, last: Multihash, expected: Multihash | None
    ) -> None:
        """Move the head to ``last`` if its text is still ``text``, with the hash ``expected``."""
        lost: StorageUnavailable | None = None
        try:
            if self._store.swap(f"{self._chain}{HEAD}", text, new):
                return
        except StorageUnavailable as error:
            if not error.fields.get("outcome_unknown"):
                raise
            lost = error
        # The same client may have retried after a lost answer, or our own answer was lost.
        try:
            head = self.head()
            if head == last or (head is not None and self._leads_to(head, last)):
                return
        except StorageError as error:
            raise self._unknown(last, error) from error
        if lost is not None and head == expected:
            # The write may still take effect.
            raise self._unknown(last, lost) from lost
        raise conflict(expected, head)

    def _leads_to(self, head: Multihash, name: Multihash) -> bool:
        """Return True if a block is in the chain that ends with ``head``."""
        try:
            for _ in self.walk(head, name):
                pass
        except Diverged:
            return False
        return True

    def _unknown(self, last: Multihash, error: StorageError) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"Lakeferry doesn't know whether {last} became the head of {self._name}",
            cause=str(error),
            remedy="push again: a push that already succeeded changes nothing",
            head=last.text,
        )

    # --- The store ------------------------------------------------------------------

    def _head_text(self) -> bytes | None:
        try:
            return self._store.get_range(f"{self._chain}{HEAD}", 0, _HEAD_BYTES)
        except ObjectNotFound:
            return None

    def _present_block(self, name: Multihash) -> bytes:
        try:
            return self.block(name)
        except ObjectNotFound as error:
            raise MissingFile(
                f"a block of {self._name} is missing",
                cause=name.text,
                remedy=f"copy {self.block_path(name)} from a complete copy of the dataset",
                hash=name.text,
            ) from error

    def _ahead(self, wanted: int) -> dict[str, bytes]:
        """Return all blocks by path, if the folder has few and the walk needs most of them."""
        paths: list[str] = []
        size_bytes = 0
        for info in self._store.list(f"{self._chain}{_BLOCKS}/"):
            paths.append(info.path)
            size_bytes += info.size_bytes
            if len(paths) > wanted * _AHEAD_FACTOR or size_bytes > _AHEAD_BYTES:
                return {}
        try:
            return dict(zip(paths, self._store.get_many(paths), strict=True))
        except ObjectNotFound:
            # Garbage collection deleted one meanwhile; the walk requests what it needs.
            return {}

    def _number(self, name: Multihash) -> int | None:
        try:
            return self.parse(self.block(name), name).sequence_number
        except ObjectNotFound:
            return None

    def _sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the sizes of the objects that exist."""
        found: dict[str, int] = {}
        left: list[str] = []
        for folder, group in groupby(sorted(set(paths)), lambda path: path.rpartition("/")[0]):
            wanted, lead = list(group), f"{folder}/" if folder else ""
            left += wanted if len(wanted) <= _FEW else self._list(lead, wanted, found)
        asked = zip(left, concurrently(self._size, left), strict=True)
        return found | {path: size for path, size in asked if size is not None}

    def _list(self, folder: str, wanted: list[str], found: dict[str, int]) -> list[str]:
        """Add sizes from a listing to ``found``; return the names that it didn't reach."""
        names, most = set(wanted), len(wanted) * _LISTED_PER_NAME
        first, last = wanted[0], wanted[-1]
        listing = self._store.list(folder, start_after=first[:-1] or None, stop_before=f"{last}0")
        for count, info in enumerate(listing):
            if count == most:
                return [path for path in wanted if path >= info.path]
            if info.path in names:
                found[info.path] = info.size_bytes
        return []

    def _size(self, path: str) -> int | None:
        try:
            return self._store.head(path).size_bytes
        except ObjectNotFound:
            return None


def _shown(ref: ObjectRef) -> str:
    return ref.hash.text if ref.path is None else ref.path


def digest_of(store: Store, path: str, chunk_bytes: int = DATASET_CHUNK_BYTES) -> Digest:
    """Return an object's digest; its bytes are read in chunks."""
    digest = Digest()
    while True:
        chunk = store.get_range(path, digest.size_bytes, chunk_bytes)
        digest.update(chunk)
        # A chunk shorter than requested is the last one.
        if len(chunk) < chunk_bytes:
            return digest


def diverged(upper: Multihash, lower: Multihash | None) -> Diverged:
    """Return the error for a walk that doesn't meet the other end's head."""
    return Diverged(
        "the two ends have different histories",
        cause=f"{lower} isn't among the blocks before {upper}",
        remedy=REPLACE,
        head=upper.text,
        tail=lower and lower.text,
    )


def conflict(claimed: Multihash | None, actual: Multihash | None) -> CommitConflict:
    """Return the error for a head that differs from the one the commit expected."""
    return CommitConflict(
        "somebody else pushed in the meantime",
        cause=f"the head is {actual or 'none'}, not {claimed or 'none'}",
        remedy="pull first, then push again",
        claimed_head=claimed and claimed.text,
        actual_head=actual and actual.text,
    )
