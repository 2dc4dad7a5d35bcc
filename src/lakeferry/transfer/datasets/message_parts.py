"""Divides histories that are too long for one message.

All blocks of a session travel in one message. A history that doesn't fit is sent in several
sessions, oldest blocks first; each part ends with a block of the dataset as its head. In a push
the client divides it, in a pull the server: it plans the oldest part, and a client that receives
enough blocks for a part to have ended pulls again (:meth:`PartBounds.surely_hold`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.datasets import checkpoint_notes
from lakeferry.transfer.datasets.block_ranges import AnyBlock, BlockTally, Interval
from lakeferry.transfer.datasets.checkpoint_notes import NOTHING
from lakeferry.transfer.datasets.dataset import Dataset, PartEnds
from lakeferry.transfer.wire import tarball
from lakeferry.transfer.wire.messages import BlocksBatch, TransferPlan


@dataclass(frozen=True, slots=True)
class PartBounds:
    """The size at which a part ends; its last block may exceed it."""

    packed_bytes: int
    raw_bytes: int = 120 << 20
    """A receiver unpacks at most this and the largest block."""
    blocks: int = 50_000

    def surely_hold(self, plan: TransferPlan) -> bool:
        """Return True if a transfer of this size is surely complete, and not a part of one."""
        raw_bytes = plan.bytes_in_raw_blocks + 2 * tarball.RECORD_BYTES * plan.num_blocks
        return raw_bytes <= self.packed_bytes and plan.num_blocks < self.blocks

    def are_passed(self, packed_bytes: int, raw_bytes: int, blocks: int) -> bool:
        """Return True if a part of this size should end."""
        return (
            packed_bytes > self.packed_bytes or raw_bytes > self.raw_bytes or blocks >= self.blocks
        )


PUSHED = PartBounds(4 << 20)
"""In a message each byte takes 3.6, and the reference server reads 16 MiB in a frame."""

PULLED = PartBounds(8 << 20)
"""A message has 64 MiB; the rest is for the last block. Not smaller, because the user of another
client has to repeat the pull for each part."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Blocks that travel in one session, oldest first, and how many follow them."""

    head: Multihash
    batch: BlocksBatch
    plan: TransferPlan


@dataclass(frozen=True, slots=True)
class Part(Packed):
    """The same, with the objects, for the end that sends them."""

    refs: tuple[ObjectRef, ...]


def with_beside(
    dataset: Dataset[Any], blocks: Iterable[tuple[Multihash, bytes]]
) -> Iterator[tuple[Multihash, bytes]]:
    """Yield blocks, and after them the note about what lies beside them, if there is one."""
    first = last = b""
    for name, data in blocks:
        first, last = first or data, data
        yield name, data
    beside = dataset.beside(dataset.parse(first), dataset.parse(last)) if last else NOTHING
    if beside:
        document = checkpoint_notes.encode_note(beside)
        yield Multihash.sha3_256(document), document


def pack_part(
    dataset: Dataset[Any],
    interval: Interval,
    bounds: PartBounds,
    *,
    ends: PartEnds | None = None,
    whole: bool = False,
    note: Callable[[AnyBlock], object] = lambda _: None,
) -> Packed:
    """Pack the first blocks of an interval, as many as one message has room for.

    A part doesn't end where it would need an object that doesn't exist any more and that a later
    version doesn't need. ``whole`` is for an interval that can't be divided. Only the blocks'
    names are kept in memory: there may be tens of thousands.
    """
    packed = bytearray()
    ends = ends or dataset.part_ends()
    head: Multihash | None = None
    tally = BlockTally()

    def chosen() -> Iterator[tuple[Multihash, bytes]]:
        nonlocal head
        for name, data in dataset.read(interval):
            plan = tally.plan
            is_enough = bounds.are_passed(len(packed), plan.bytes_in_raw_blocks, plan.num_blocks)
            if head is not None and is_enough and not whole and ends.may_end:
                return
            block = dataset.parse(data, name)
            ends.take(block)
            note(block)
            tally.take(block)
            head = name
            yield name, data

    for piece in tarball.pack_blocks(with_beside(dataset, chosen())):
        packed += piece
    assert head is not None, "an interval has blocks"
    return Packed(head, BlocksBatch(tally.plan.num_blocks, bytes(packed)), tally.plan)


def load_part(
    dataset: Dataset[Any], interval: Interval, bounds: PartBounds, *, whole: bool = False
) -> Part:
    """Pack a part, and list the objects that the receiver must have."""
    ends = dataset.part_ends()
    refs: dict[ObjectRef, None] = {}
    packed = pack_part(
        dataset,
        interval,
        bounds,
        ends=ends,
        whole=whole,
        note=lambda block: refs.update(dict.fromkeys(block.objects)),
    )
    absent = ends.absent
    sent = [ref for ref in refs if ref not in absent]
    # Sorted by name, so that finding the existing objects of a page lists few of the folder.
    sent.sort(key=lambda ref: (ref.kind.value, ref.path or "", ref.hash.text))
    return Part(packed.head, packed.batch, packed.plan, tuple(sent))


def begins_anew(dataset: Dataset[Any], interval: Interval) -> bool:
    """Return True if an interval begins with the first block of a chain."""
    first = next(iter(interval), None)
    return first is not None and dataset.parse(dataset.block(first), first).prev_hash is None
