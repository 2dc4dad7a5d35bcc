"""Checks which block may follow which.

Two layers. *Links* hold for every kind of block: its bytes have its name, it names the block
before it, its sequence number is the next one, its time isn't earlier. :func:`link` checks them
for anything that is :class:`Linked`, and returns all that the next block is compared with.
*ODF's own rules* are in :func:`extend`: a seed begins the chain and comes nowhere else, offsets
continue without a gap, each data event starts from the checkpoint that the last one left,
watermarks never decrease.

:class:`ChainState` describes the end of a chain in a few numbers. So chains are checked as blocks
arrive, in constant memory, and the check can continue later from a stored head
(:func:`state_at`). No set of seen blocks is needed: a block that comes twice, too early or in a
circle doesn't have the next sequence number, and can't name its predecessor's hash.

A state exists only for checked blocks. The content of events (schemas, sources, inputs of
transforms) isn't checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from lakeferry.errors import Diverged, InvalidInput, LimitExceeded
from lakeferry.transfer.chain import hashes
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import Block, DataEvent, EventKind

LONGEST_RUN = 1_000_000
"""How many blocks one run may have."""
LARGEST_SEQUENCE_NUMBER = (1 << 63) - 1


class Linked(Protocol):
    """Members of every kind of block. ``hash`` is computed from its bytes, not received."""

    @property
    def hash(self) -> Multihash:
        """The block's name."""

    @property
    def prev_hash(self) -> Multihash | None:
        """The name of the block before it; ``None`` for the first one."""

    @property
    def sequence_number(self) -> int:
        """Its place in the chain."""

    @property
    def time_ns(self) -> int:
        """When it was written: nanoseconds since 1970."""


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last block of a chain, with what the next block is compared with."""

    hash: Multihash
    sequence_number: int
    time_ns: int

    @classmethod
    def of(cls, block: Linked) -> ChainHead:
        """Return the head of a chain that ends with this block."""
        return cls(block.hash, block.sequence_number, block.time_ns)


def link(
    head: ChainHead | None, block: Linked, *, first_sequence_number: int | None = 0
) -> ChainHead:
    """Return the new head after a block that follows ``head``, or raise ``InvalidInput``.

    Without a head the block must begin a chain: it names no predecessor and has the first
    sequence number; ``None`` for that allows any number.
    When walking back from a known block, each step is ``link(Head.of(previous), block)``.
    """
    if head is None:
        if block.prev_hash is not None:
            raise _broken(block, f"a chain can't begin with it: it follows {block.prev_hash}")
        if first_sequence_number not in (None, block.sequence_number):
            raise _broken(block, f"a chain can't begin with number {block.sequence_number}")
    else:
        if block.prev_hash is None:
            raise _broken(block, f"it should begin a chain, but follows {head.hash}")
        if block.prev_hash != head.hash:
            raise _broken(
                block, f"it names {block.prev_hash} as the block before it, but follows {head.hash}"
            )
        if block.sequence_number != head.sequence_number + 1:
            raise _broken(block, f"number {block.sequence_number} follows {head.sequence_number}")
        if block.time_ns < head.time_ns:
            raise _broken(block, "it is older than the block before it")
    if block.sequence_number > LARGEST_SEQUENCE_NUMBER:
        raise _broken(block, f"number {block.sequence_number} is more than a chain can have")
    return ChainHead.of(block)


@dataclass(frozen=True, slots=True)
class ChainState:
    """The state of an ODF chain after its last block."""

    head: ChainHead
    last_offset: int | None = None
    """The number of the dataset's last row."""
    last_checkpoint: Multihash | None = None
    """The checkpoint of the last data event; ``None`` if it has none, or if there is no event."""
    watermark_ns: int | None = None


def extend(state: ChainState | None, block: Block) -> ChainState:
    """Return the state after one more block, or raise ``InvalidInput`` with the broken rule.

    Without a state the block must be a seed.
    """
    head = link(state.head if state else None, block)
    if state is None:
        if block.event is not EventKind.SEED:
            raise _broken(block, f"a chain begins with a seed, not with {block.event.name}")
        return ChainState(head)
    if block.event is EventKind.SEED:
        raise _broken(block, "a seed isn't the first block of a chain")
    if block.data is None:
        return ChainState(head, state.last_offset, state.last_checkpoint, state.watermark_ns)
    _check_data_event(state, block, block.data)
    return _after(head, block.data)


def extend_all(
    state: ChainState | None, blocks: Iterable[tuple[Multihash, Block]], *, limit: int = LONGEST_RUN
) -> ChainState | None:
    """Return the state after a run of blocks, each with the name it was received under.

    The run is read one block at a time, oldest first. A run that doesn't begin where ``state``
    ends is ``Diverged``; a name that isn't the block's is ``HashMismatch``; more blocks than
    ``limit`` are ``LimitExceeded``. An empty run leaves the state unchanged.
    """
    for count, (name, block) in enumerate(blocks):
        if count >= limit:
            raise LimitExceeded("too many blocks", cause=f"more than {limit:,}", limit=limit)
        hashes.check_hash(block.hash, name)
        if count == 0:
            _check_beginning(state, block)
        state = extend(state, block)
    return state


def state_at(newest_first: Iterable[Block]) -> ChainState:
    """Return the state of a stored chain, given its blocks from the head back.

    Blocks are read only as far back as needed: to the last data event, or to the seed. Links
    between them are checked.
    """
    later: Block | None = None
    head: ChainHead | None = None
    for block in newest_first:
        if later is None:
            head = ChainHead.of(block)
        else:
            link(ChainHead.of(block), later)
        assert head is not None
        if block.data is not None:
            return _after(head, block.data)
        if block.prev_hash is None:
            extend(None, block)
            return ChainState(head)
        later = block
    raise InvalidInput(
        "a chain has no beginning",
        cause=f"nothing is before {later.hash}" if later else "it has no blocks",
    )


def _after(head: ChainHead, event: DataEvent) -> ChainState:
    """Return the state after a data event, which has all of its values."""
    checkpoint = event.new_checkpoint.hash if event.new_checkpoint else None
    return ChainState(head, event.last_offset, checkpoint, event.new_watermark_ns)


def _check_beginning(state: ChainState | None, block: Block) -> None:
    head = state.head.hash if state else None
    if block.prev_hash != head:
        raise Diverged(
            "the blocks don't continue the chain",
            cause=f"they follow {block.prev_hash}, and its head is {head}",
            remedy="pull first; or replace the other chain with --force",
            head=head.text if head else None,
            follows=block.prev_hash.text if block.prev_hash else None,
        )


def _check_data_event(state: ChainState, block: Block, event: DataEvent) -> None:
    if event.prev_offset != state.last_offset:
        raise _broken(
            block,
            f"it continues from the offset {event.prev_offset}, "
            f"and the last one is {state.last_offset}",
        )
    if event.prev_checkpoint != state.last_checkpoint:
        raise _broken(
            block,
            f"it starts from the checkpoint {event.prev_checkpoint}, "
            f"and the last one is {state.last_checkpoint}",
        )
    expected = 0 if event.prev_offset is None else event.prev_offset + 1
    if event.new_offsets is not None and event.new_offsets.start != expected:
        raise _broken(
            block, f"its rows begin with {event.new_offsets.start}, and the next one is {expected}"
        )
    if state.watermark_ns is not None and (
        event.new_watermark_ns is None or event.new_watermark_ns < state.watermark_ns
    ):
        raise _broken(block, "its watermark goes back")


def _broken(block: Linked, cause: str) -> InvalidInput:
    return InvalidInput(
        f"the block {block.hash} doesn't fit into its chain",
        cause=cause,
        remedy="ask the owner of the sender's dataset: its chain is damaged, or its blocks are not "
        "in order",
        hash=block.hash.text,
        sequence_number=block.sequence_number,
    )
