"""Ranges of blocks: sizes, intervals, and a cache for readers.

An interval of a chain, the size of a run of blocks, and a cache of blocks and intervals for a
server with many datasets. No request to a store is made here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lakeferry.transfer.chain.hashes import DIGEST_BYTES, Algorithm, Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.chain.validation import Linked
from lakeferry.transfer.wire.messages import TransferPlan

_ENTRY_BYTES = 300
_MOST_WAYS = 32


class AnyBlock(Linked, Protocol):
    """A block of either kind."""

    @property
    def size_bytes(self) -> int:
        """The block's size in bytes."""

    @property
    def objects(self) -> tuple[ObjectRef, ...]:
        """The objects that the block names."""

    @property
    def records(self) -> int:
        """The number of rows that the block adds, if it says."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The names of consecutive blocks, and their total size.

    Iterates oldest first. A block takes only the bytes of its digest.
    """

    digests: bytes
    """The digests, joined, newest first."""
    plan: TransferPlan

    def __len__(self) -> int:
        return len(self.digests) // DIGEST_BYTES

    def __iter__(self) -> Iterator[Multihash]:
        for end in range(len(self.digests), 0, -DIGEST_BYTES):
            yield Multihash(Algorithm.SHA3_256, self.digests[end - DIGEST_BYTES : end])


class BlockTally:
    """Adds up the sizes of blocks."""

    def __init__(self) -> None:
        """Start at zero."""
        self.plan = TransferPlan(0)

    def take(self, block: AnyBlock) -> None:
        """Add a block."""
        self.plan = TransferPlan(
            self.plan.num_blocks + 1,
            self.plan.num_objects + len(block.objects),
            self.plan.num_records + block.records,
            self.plan.bytes_in_raw_blocks + block.size_bytes,
            self.plan.bytes_in_raw_objects + sum(ref.size_bytes for ref in block.objects),
        )


_Way: TypeAlias = tuple[str, Multihash, Multihash | None]
"""A chain's folder, the block where a walk begins, and the one after which it ends."""


class BlockCache:
    """A cache of recently read blocks, up to a number of bytes, for many datasets.

    A block never changes, nor does the interval between two blocks, so a server reads each once.
    Both are found only under the chain that they were read from: knowing a hash gives no access
    to a dataset. Safe to use from several threads.
    """

    def __init__(self, most_bytes: int) -> None:
        """Start empty."""
        self._most = most_bytes
        self._held = 0
        self._blocks: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._ways: OrderedDict[_Way, Interval] = OrderedDict()
        self._lock = threading.Lock()

    def interval(self, way: _Way) -> Interval | None:
        """Return the blocks of an interval, if it is cached."""
        with self._lock:
            found = self._ways.get(way)
            if found is not None:
                self._ways.move_to_end(way)
            return found

    def remember(self, way: _Way, found: Interval) -> None:
        """Cache the blocks of an interval, and evict the least recently used ones."""
        if len(found.digests) >= self._most // (4 * _MOST_WAYS):
            return
        with self._lock:
            self._ways[way] = found
            while len(self._ways) > _MOST_WAYS:
                self._ways.popitem(last=False)

    def get(self, chain_folder: str, name: Multihash) -> bytes | None:
        """Return a block of a chain, if it is cached."""
        key = (chain_folder, name.digest)
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
            return found

    def put(self, chain_folder: str, name: Multihash, data: bytes) -> None:
        """Cache a block with this hash, and evict the least recently used ones."""
        key = (chain_folder, name.digest)
        with self._lock:
            if key in self._blocks or len(data) > self._most // 8:
                return
            self._blocks[key] = data
            self._held += len(data) + _ENTRY_BYTES
            while self._held > self._most:
                _, old = self._blocks.popitem(last=False)
                self._held -= len(old) + _ENTRY_BYTES
