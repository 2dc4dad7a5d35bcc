"""Reads a chain of blocks from a store, checking each hash and link.

A chain has these files below a folder of its own::

    blocks/<hash>        blocks, as they were received
    refs/head            the hash of the last block

Everything but the head is named by the hash of its bytes and never changes. A walk goes from a
block to the one before it and checks each hash and link: the store is trusted no more than a
peer. When a walk turns out to be long, blocks are fetched together, up to a number of bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from lakeferry.errors import (
    CorruptLog,
    Diverged,
    InvalidInput,
    LimitExceeded,
    MissingFile,
    ObjectNotFound,
)
from lakeferry.storage import Store
from lakeferry.transfer.chain import hashes, validation
from lakeferry.transfer.chain.hashes import LONGEST_TEXT, Multihash
from lakeferry.transfer.chain.validation import LONGEST_RUN
from lakeferry.transfer.datasets.block_ranges import AnyBlock, BlockCache, BlockTally, Interval
from lakeferry.transfer.wire.failure_messages import REPLACE

HEAD = "refs/head"

_HEAD_BYTES = LONGEST_TEXT + 64
_BLOCKS = "blocks"
_BATCH = 64
_LONG_WALK = 32  # after this many steps, blocks are prefetched
_AHEAD_BYTES = 64 << 20
_AHEAD_FACTOR = 4  # prefetch only if the folder has at most this many times the needed blocks
_SHOWN = 10

B = TypeVar("B", bound=AnyBlock)


class StoredChain(ABC, Generic[B]):
    r"""A chain below a folder of a store, existing or not; \`\`""\`\` is the store's root."""

    largest_block_bytes: int

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

    @abstractmethod
    def parse(self, data: bytes, expected: Multihash | None = None) -> B:
        """Return the block that these bytes encode, or raise an error that says why not."""

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

    def block_path(self, name: Multihash) -> str:
        """Return the path of a block in the store."""
        return f"{self._chain}{_BLOCKS}/{name.text}"

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


def diverged(upper: Multihash, lower: Multihash | None) -> Diverged:
    """Return the error for a walk that doesn't meet the other end's head."""
    return Diverged(
        "the two ends have different histories",
        cause=f"{lower} isn't among the blocks before {upper}",
        remedy=REPLACE,
        head=upper.text,
        tail=lower and lower.text,
    )
