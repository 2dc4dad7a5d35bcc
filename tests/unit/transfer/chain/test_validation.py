"""Chains: which block may follow which, and how far a check remembers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lakeferry.errors import Diverged, HashMismatch, InvalidInput, LimitExceeded
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import Block, OffsetInterval, parse_odf_block
from lakeferry.transfer.chain.validation import (
    LARGEST_SEQUENCE_NUMBER,
    ChainHead,
    ChainState,
    extend,
    extend_all,
    link,
    state_at,
)
from tests.support.odf import (
    NOON_NS,
    SECOND_NS,
    AddData,
    Chain,
    ExecuteTransform,
    SeedEvent,
    SetInfo,
    Slice,
    hash_of,
)


def named(chain: Chain) -> list[tuple[Multihash, Block]]:
    return [(name, parse_odf_block(data)) for name, data in chain.blocks]


def checked(chain: Chain) -> ChainState:
    state = extend_all(None, named(chain))
    assert state is not None
    return state


def good() -> Chain:
    return Chain().add(SetInfo("x")).append(checkpoint="one").append().append(checkpoint="two")


# --- What is a chain ----------------------------------------------------------------------


def test_a_chain_comes_to_what_its_last_blocks_say() -> None:
    chain = good().add(SetInfo("y"))
    assert checked(chain) == ChainState(
        head=ChainHead(chain.head, 5, NOON_NS + 5 * SECOND_NS),
        last_offset=29,
        last_checkpoint=hash_of("two"),
        watermark_ns=NOON_NS + 4,
    )


def test_a_chain_may_be_no_more_than_its_seed() -> None:
    chain = Chain()
    assert checked(chain) == ChainState(ChainHead(chain.head, 0, NOON_NS))


def test_a_run_goes_on_from_where_another_ended() -> None:
    blocks = named(good())
    for cut in range(1, len(blocks) + 1):
        assert extend_all(extend_all(None, blocks[:cut]), blocks[cut:]) == checked(good())


def test_an_empty_run_changes_nothing() -> None:
    assert extend_all(None, []) is None
    state = checked(good())
    assert extend_all(state, []) is state


def test_data_events_may_bring_no_rows_and_drop_their_checkpoint() -> None:
    chain = good().append(rows=0, new_checkpoint=None)
    assert checked(chain).last_offset == 29
    assert checked(chain).last_checkpoint is None
    chain.append(prev_checkpoint=None, new_checkpoint=None)
    assert checked(chain).last_offset == 39


def test_blocks_of_the_same_time_may_follow_each_other() -> None:
    chain = Chain().add(SetInfo("x"), time=NOON_NS).add(SetInfo("y"), time=NOON_NS)
    assert checked(chain).head.time_ns == NOON_NS


def test_transforms_follow_the_same_rules() -> None:
    first = ExecuteTransform(new_data=Slice(hash_of("a"), 0, 4, 9))
    second = ExecuteTransform(prev_offset=4, new_data=Slice(hash_of("b"), 5, 5, 9))
    assert checked(Chain(dataset_kind=1).add(first).add(second)).last_offset == 5
    with pytest.raises(InvalidInput, match="offset"):
        checked(Chain(dataset_kind=1).add(first).add(replace(second, prev_offset=3)))


# --- What isn't ---------------------------------------------------------------------------


BROKEN: dict[str, tuple[Chain, str]] = {
    "a seed in the middle": (good().add(SeedEvent()), "a seed isn't the first block"),
    "a seed that begins again": (good().add(SeedEvent(), prev=None), "it should begin a chain"),
    "a block that begins again": (good().add(SetInfo(), prev=None), "it should begin a chain"),
    "a block behind another one": (
        good().add(SetInfo(), prev=hash_of("x")),
        "as the block before it",
    ),
    "a block beside the last one": (
        good().add(SetInfo(), prev=good().blocks[-2][0], sequence_number=4),
        "as the block before it",
    ),
    "a number left out": (good().add(SetInfo(), sequence_number=6), "number 6 follows 4"),
    "a number again": (good().add(SetInfo(), sequence_number=4), "number 4 follows 4"),
    "a number that began anew": (good().add(SetInfo(), sequence_number=0), "number 0"),
    "the largest number there is": (
        good().add(SetInfo(), sequence_number=(1 << 64) - 1),
        "number 18446744073709551615",
    ),
    "a time that goes back": (good().add(SetInfo(), time=NOON_NS), "it is older"),
    "rows that overlap": (good().append(prev_offset=28), "from the offset 28"),
    "rows behind a gap": (good().append(prev_offset=30), "from the offset 30"),
    "rows from nowhere": (good().append(prev_offset=None), "from the offset None"),
    "a first slice that isn't first": (
        Chain().append(prev_offset=0),
        "from the offset 0, and the last one is None",
    ),
    "a slice that begins later": (
        good().append(new_data=Slice(hash_of("x"), 31, 40, 1)),
        "begin with 31, and the next one is 30",
    ),
    "a first slice that begins later": (
        Chain().append(new_data=Slice(hash_of("x"), 1, 4, 1)),
        "begin with 1, and the next one is 0",
    ),
    "another checkpoint": (good().append(prev_checkpoint=hash_of("one")), "the checkpoint f1620"),
    "a forgotten checkpoint": (good().append(prev_checkpoint=None), "the checkpoint None"),
    "a checkpoint from nowhere": (
        Chain().append(prev_checkpoint=hash_of("one")),
        "and the last one is None",
    ),
    "a checkpoint that was dropped": (
        good().append(new_checkpoint=None).append(),
        "and the last one is None",
    ),
    "a watermark that goes back": (good().append(new_watermark=NOON_NS), "watermark goes back"),
    "a watermark that is gone": (good().append(new_watermark=None), "watermark goes back"),
}


@pytest.mark.parametrize(("chain", "why"), BROKEN.values(), ids=BROKEN)
def test_a_block_that_breaks_a_rule_is_refused(chain: Chain, why: str) -> None:
    blocks = named(chain)
    state = extend_all(None, blocks[:-1])
    with pytest.raises(InvalidInput, match=why) as refused:
        extend(state, blocks[-1][1])
    assert refused.value.fields["hash"] == chain.head.text
    with pytest.raises(InvalidInput, match=why):
        extend_all(None, blocks)


@pytest.mark.parametrize("first", [SetInfo("x"), AddData()], ids=["info", "data"])
def test_only_a_seed_begins_a_chain(first: Any) -> None:
    chain = Chain()
    chain.blocks.clear()
    with pytest.raises(InvalidInput, match="begins with a seed"):
        checked(chain.add(first))


def test_a_seed_is_number_zero() -> None:
    chain = Chain()
    chain.blocks.clear()
    with pytest.raises(InvalidInput, match="can't begin with number 7"):
        checked(chain.add(SeedEvent(), sequence_number=7))


def test_a_seed_has_nothing_before_it() -> None:
    chain = Chain()
    chain.blocks.clear()
    seed = parse_odf_block(chain.add(SeedEvent(), prev=hash_of("x")).blocks[0][1])
    with pytest.raises(InvalidInput, match="can't begin with it"):
        extend(None, seed)


def test_blocks_out_of_order_are_refused() -> None:
    blocks = named(good())
    swapped = [*blocks[:2], blocks[3], blocks[2], blocks[4]]
    with pytest.raises(InvalidInput, match="as the block before it"):
        extend_all(None, swapped)
    with pytest.raises(Diverged):
        extend_all(None, blocks[::-1])


def test_a_block_that_comes_twice_is_refused() -> None:
    blocks = named(good())
    for index in range(1, len(blocks)):
        with pytest.raises(InvalidInput):
            extend_all(None, [*blocks[: index + 1], blocks[index], *blocks[index + 1 :]])


def test_a_circle_is_refused_after_its_first_round() -> None:
    blocks = named(good())
    taken = 0

    def round_and_round() -> Iterator[tuple[Multihash, Block]]:
        nonlocal taken
        while True:
            for block in blocks:
                taken += 1
                yield block

    with pytest.raises(InvalidInput, match="begin a chain"):
        extend_all(None, round_and_round())
    assert taken == len(blocks) + 1


def test_a_block_under_another_name_is_refused() -> None:
    blocks = named(good())
    blocks[2] = (blocks[3][0], blocks[2][1])
    with pytest.raises(HashMismatch):
        extend_all(None, blocks)


def test_a_run_that_continues_another_chain_has_diverged() -> None:
    chain, other = good(), good().add(SetInfo("other"))
    state = checked(chain)
    beside = named(other.add(SetInfo("more")))[-1:]
    with pytest.raises(Diverged) as refused:
        extend_all(state, beside)
    assert refused.value.code == "diverged"
    assert refused.value.fields == {
        "head": chain.head.text,
        "follows": beside[0][1].prev_hash and beside[0][1].prev_hash.text,
    }
    # The whole chain from its seed doesn't continue anything either.
    with pytest.raises(Diverged):
        extend_all(state, named(chain))


def test_a_run_without_its_beginning_has_nothing_to_continue() -> None:
    with pytest.raises(Diverged):
        extend_all(None, named(good())[1:])


def test_a_run_has_a_limit() -> None:
    blocks = named(good())
    assert extend_all(None, blocks, limit=len(blocks)) == checked(good())
    with pytest.raises(LimitExceeded) as refused:
        extend_all(None, blocks, limit=len(blocks) - 1)
    assert refused.value.fields == {"limit": len(blocks) - 1}


# --- From a head that is known ------------------------------------------------------------


def counted(blocks: Iterable[Block], taken: list[Block]) -> Iterator[Block]:
    for block in blocks:
        taken.append(block)
        yield block


@pytest.mark.parametrize("length", range(1, 8))
def test_the_state_of_a_stored_chain_is_found_from_its_head(length: int) -> None:
    blocks = named(good().add(SetInfo("y")).add(SetInfo("z")))[:length]
    assert state_at(block for _, block in reversed(blocks)) == extend_all(None, blocks)


def test_no_more_blocks_are_read_than_back_to_the_last_data() -> None:
    blocks = [block for _, block in named(good().add(SetInfo("y")).add(SetInfo("z")))]
    taken: list[Block] = []
    state_at(counted(reversed(blocks), taken))
    assert taken == blocks[-1:-4:-1]


def test_a_stored_chain_with_a_wrong_link_is_refused() -> None:
    blocks = [block for _, block in named(good().add(SetInfo("y")).add(SetInfo("z")))]
    with pytest.raises(InvalidInput, match="as the block before it"):
        state_at([blocks[-1], blocks[-3]])
    with pytest.raises(InvalidInput, match="nothing is before"):
        state_at([blocks[-1]])
    with pytest.raises(InvalidInput, match="it has no blocks"):
        state_at([])


# --- Any kind of block --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Version:
    """A block of another kind: no more than what links ask for."""

    hash: Multihash
    prev_hash: Multihash | None
    sequence_number: int
    time_ns: int = 0


def versions(first: int, count: int) -> list[Version]:
    found: list[Version] = []
    for number in range(first, first + count):
        prev = found[-1].hash if found else None
        found.append(Version(hash_of(str(number)), prev, number))
    return found


def test_links_are_the_same_for_other_blocks_which_may_begin_anywhere() -> None:
    head: ChainHead | None = None
    for block in versions(41, 5):
        head = link(head, block, first_sequence_number=None)
    assert head == ChainHead(hash_of("45"), 45, 0)
    with pytest.raises(InvalidInput, match="can't begin with number 41"):
        link(None, versions(41, 1)[0])
    late = replace(versions(41, 1)[0], sequence_number=LARGEST_SEQUENCE_NUMBER + 1)
    with pytest.raises(InvalidInput, match="more than a chain can have"):
        link(None, late, first_sequence_number=None)


def test_links_hold_backwards_too() -> None:
    *_, before, last = versions(0, 3)
    assert link(ChainHead.of(before), last) == ChainHead.of(last)
    with pytest.raises(InvalidInput):
        link(ChainHead.of(replace(before, sequence_number=7)), last)


def test_a_long_chain_takes_no_more_memory_than_a_short_one() -> None:
    """Blocks come and go one by one; only the state stays."""

    first, second = (block for _, block in named(Chain().append(1)))
    event = second.data
    assert event is not None

    def growing(count: int) -> Iterator[tuple[Multihash, Block]]:
        block = first
        for number in range(count):
            yield block.hash, block
            block = replace(
                second,
                hash=hash_of(str(number)),
                prev_hash=block.hash,
                sequence_number=number + 1,
                data=replace(
                    event,
                    prev_offset=number - 1 if number else None,
                    new_offsets=OffsetInterval(number, number),
                ),
            )

    tracemalloc.start()
    try:
        state = extend_all(None, growing(10_000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert state is not None
    assert (state.head.sequence_number, state.last_offset) == (9_999, 9_998)
    assert peak_bytes < 100_000
