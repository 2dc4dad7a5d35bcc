"""Divides histories that are too long for one message.

All blocks of a session travel in one message. A history that doesn't fit goes in several
sessions, oldest blocks first, each with a head of its own that is one of the dataset's. Of a
push the client divides it, of a pull the server: it plans the oldest part, and a client that
gets so much that it may be a part asks again (:meth:`PartBounds.surely_hold`).
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
    """How much a part has when it ends; its last block may go beyond."""

    packed_bytes: int
    raw_bytes: int = 120 << 20
    """Together with the largest block it is what a receiver unpacks."""
    blocks: int = 50_000

    def surely_hold(self, plan: TransferPlan) -> bool:
        """Tell whether so much is never divided, and no part that isn't the last is so little."""
        raw_bytes = plan.bytes_in_raw_blocks + 2 * tarball.RECORD_BYTES * plan.num_blocks
        return raw_bytes <= self.packed_bytes and plan.num_blocks < self.blocks

    def are_passed(self, packed_bytes: int, raw_bytes: int, blocks: int) -> bool:
        """Tell whether a part with so much should end."""
        return (
            packed_bytes > self.packed_bytes or raw_bytes > self.raw_bytes or blocks >= self.blocks
        )


PUSHED = PartBounds(4 << 20)
"""In a message each byte takes 3.6, and the reference server reads 16 MiB in a frame."""

PULLED = PartBounds(8 << 20)
"""A message has 64 MiB; the rest is for the last block. A client of another make has to be
asked to pull again, so that it isn't less."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Blocks that travel in one session, oldest first, and how much is behind them."""

    head: Multihash
    batch: BlocksBatch
    plan: TransferPlan


@dataclass(frozen=True, slots=True)
class Part(Packed):
    """The same for whoever sends the objects, too."""

    refs: tuple[ObjectRef, ...]


def with_beside(
    dataset: Dataset[Any], blocks: Iterable[tuple[Multihash, bytes]]
) -> Iterator[tuple[Multihash, bytes]]:
    """Yield blocks, and behind them what lies beside them, where something does."""
    first = last = b""
    for name, data in blocks:
        first, last = first or data, data
        yield name, data
    beside = dataset.beside(dataset.parse(first), dataset.parse(last)) if last else NOTHING
    if beside:
        document = checkpoint_notes.encode(beside)
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
    """Pack as many blocks of an interval, from its beginning, as one message has room for.

    A part doesn't end where it would need an object that is gone by then, and that a later
    version does without. ``whole`` is for what can't be divided. Blocks are noted, and not
    held: there may be tens of thousands.
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

    for piece in tarball.pack(with_beside(dataset, chosen())):
        packed += piece
    assert head is not None, "an interval has blocks"
    return Packed(head, BlocksBatch(tally.plan.num_blocks, bytes(packed)), tally.plan)


def load_part(
    dataset: Dataset[Any], interval: Interval, bounds: PartBounds, *, whole: bool = False
) -> Part:
    """Pack a part, and say which objects have to be where it goes to."""
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
    # By name: whoever looks which of a page are there lists a short piece of the folder.
    sent.sort(key=lambda ref: (ref.kind.value, ref.path or "", ref.hash.text))
    return Part(packed.head, packed.batch, packed.plan, tuple(sent))


def begins_anew(dataset: Dataset[Any], interval: Interval) -> bool:
    """Tell whether an interval is a chain from its first block on."""
    first = next(iter(interval), None)
    return first is not None and dataset.parse(dataset.block(first), first).prev_hash is None
