"""Ranges of blocks: sizes, intervals, and a cache for readers.

An interval of a chain, what a run of blocks amounts to, and a cache of blocks and of the ways
between them for whoever serves many datasets. No store is asked here.
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
        """How many bytes it has."""

    @property
    def objects(self) -> tuple[ObjectRef, ...]:
        """The objects that it names."""

    @property
    def records(self) -> int:
        """How many rows it adds, as far as it says."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Blocks that follow each other, by their names, and how much they amount to.

    Iterates oldest first. A block takes the bytes of its digest and no more.
    """

    digests: bytes
    """One behind the other, newest first."""
    plan: TransferPlan

    def __len__(self) -> int:
        return len(self.digests) // DIGEST_BYTES

    def __iter__(self) -> Iterator[Multihash]:
        for end in range(len(self.digests), 0, -DIGEST_BYTES):
            yield Multihash(Algorithm.SHA3_256, self.digests[end - DIGEST_BYTES : end])


class BlockTally:
    """How much blocks amount to, counted one by one."""

    def __init__(self) -> None:
        """Begin with none."""
        self.plan = TransferPlan(0)

    def take(self, block: AnyBlock) -> None:
        """Count a block in."""
        self.plan = TransferPlan(
            self.plan.num_blocks + 1,
            self.plan.num_objects + len(block.objects),
            self.plan.num_records + block.records,
            self.plan.bytes_in_raw_blocks + block.size_bytes,
            self.plan.bytes_in_raw_objects + sum(ref.size_bytes for ref in block.objects),
        )


_Way: TypeAlias = tuple[str, Multihash, Multihash | None]
"""A chain's folder, the block that a walk begins at, and the one that it ends behind."""


class BlockCache:
    """Blocks that were read lately, up to so many bytes of them, for many datasets.

    A block never changes, nor does the way from one to another, so that whoever serves many
    reads each once. Both are found only under the chain that they were read from: that a hash
    is known doesn't open a dataset. Safe to use from several threads.
    """

    def __init__(self, most_bytes: int) -> None:
        """Begin with none."""
        self._most = most_bytes
        self._held = 0
        self._blocks: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._ways: OrderedDict[_Way, Interval] = OrderedDict()
        self._lock = threading.Lock()

    def interval(self, way: _Way) -> Interval | None:
        """Return the blocks on a way that was walked before, if that is remembered."""
        with self._lock:
            found = self._ways.get(way)
            if found is not None:
                self._ways.move_to_end(way)
            return found

    def remember(self, way: _Way, found: Interval) -> None:
        """Remember the blocks on a way, and forget what nobody asked for longest."""
        if len(found.digests) >= self._most // (4 * _MOST_WAYS):
            return
        with self._lock:
            self._ways[way] = found
            while len(self._ways) > _MOST_WAYS:
                self._ways.popitem(last=False)

    def get(self, chain_folder: str, name: Multihash) -> bytes | None:
        """Return a block of a chain, if it is there."""
        key = (chain_folder, name.digest)
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
            return found

    def put(self, chain_folder: str, name: Multihash, data: bytes) -> None:
        """Keep a block that has this hash, and forget those that nobody asked for longest."""
        key = (chain_folder, name.digest)
        with self._lock:
            if key in self._blocks or len(data) > self._most // 8:
                return
            self._blocks[key] = data
            self._held += len(data) + _ENTRY_BYTES
            while self._held > self._most:
                _, old = self._blocks.popitem(last=False)
                self._held -= len(old) + _ENTRY_BYTES
