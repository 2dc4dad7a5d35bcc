"""Blocks and a dataset that others wrote: read as they say, checked, packed, and written again."""

from __future__ import annotations

import pytest

from lakeferry.transfer.chain import odf_blocks, validation
from lakeferry.transfer.chain.hashes import Multihash, hash_stream
from lakeferry.transfer.chain.odf_blocks import DatasetKind, EventKind, ObjectKind, OffsetInterval
from lakeferry.transfer.wire import tarball
from tests.support import odf
from tests.support.odf import (
    GOLDEN_ODF,
    NOON_NS,
    SECOND_NS,
    AddData,
    Checkpoint,
    SeedEvent,
    SetDataSchema,
    SetInfo,
    Slice,
)

DATASET = GOLDEN_ODF / "dataset-a"
DAY_NS = 86_400 * SECOND_NS
NEW_YEAR_2024_NS = 1_704_067_200 * SECOND_NS
# As the README beside them has it.
VECTORS = {
    "adddata_prev.bin": (
        216,
        "f162086aeb7dee0502b4886761de5e45b5111c0bc9e0fbfee02e3685487109305ef56",
    ),
    "adddata_slice.bin": (
        392,
        "f16201fcf10cb843746c4c44e6c288e216995701aa073426fc4bebe14f1680f8ec6d1",
    ),
    "setinfo_120bytes.bin": (
        120,
        "f1620e4773ca5765b41781e721cb891182e43a2df35665cd82b378e54b9ea25f4f50f",
    ),
}
PREV = Multihash.parse("f16209eb949bd8ff0bb1d827f11809aebc6bd0d5955c7f368469a913c70d196620272")
SLICE = Slice(
    physical_hash=Multihash.parse(
        "f16201970ee21101d110c448f2b72aec873f9be2b4e5403a5fdf88e18ca4430d8b1cb"
    ),
    logical_hash=Multihash.parse(
        "f16208aa0c7713491425f3815c269391bd101995919065e784e66e01433d47cfc6a61"
    ),
    start=10,
    end=99,
    size=100,
)
REBUILT = {
    "adddata_prev.bin": odf.block(
        AddData(prev_checkpoint=PREV, prev_offset=9), prev=PREV, sequence_number=117
    ),
    "adddata_slice.bin": odf.block(
        AddData(PREV, 9, new_data=SLICE, new_watermark=NOON_NS), prev=PREV, sequence_number=117
    ),
    "setinfo_120bytes.bin": odf.block(SetInfo("foo"), time=2_524_651_200 * SECOND_NS),
}


def dataset_blocks() -> list[tuple[Multihash, bytes]]:
    """Walk back from the head, as a client of plain files does; oldest first."""
    found: list[tuple[Multihash, bytes]] = []
    name: Multihash | None = Multihash.parse((DATASET / "refs" / "head").read_text())
    while name is not None:
        data = (DATASET / "blocks" / name.text).read_bytes()
        found.append((name, data))
        name = odf_blocks.parse_odf_block(data, name).prev_hash
    return found[::-1]


@pytest.mark.parametrize("file", VECTORS)
def test_a_vector_has_the_hash_and_the_size_that_its_writer_says(file: str) -> None:
    size_bytes, text = VECTORS[file]
    data = (GOLDEN_ODF / file).read_bytes()
    block = odf_blocks.parse_odf_block(data, Multihash.parse(text))
    assert (block.size_bytes, block.hash.text, block.manifest_version) == (size_bytes, text, 3)
    assert block == odf.naive(data)


@pytest.mark.parametrize("file", VECTORS)
def test_the_writer_of_the_tests_makes_the_very_bytes_of_a_vector(file: str) -> None:
    assert REBUILT[file] == (GOLDEN_ODF / file).read_bytes()


def test_what_the_vectors_say() -> None:
    prev, slice_, info = (
        odf_blocks.parse_odf_block((GOLDEN_ODF / file).read_bytes()) for file in VECTORS
    )
    assert (prev.event, prev.sequence_number, prev.prev_hash) == (EventKind.ADD_DATA, 117, PREV)
    assert (prev.time_ns, prev.objects, prev.records) == (NOON_NS, (), 0)
    assert prev.data is not None
    assert (prev.data.prev_offset, prev.data.prev_checkpoint) == (9, PREV)
    assert prev.data.last_offset == 9
    assert slice_.data is not None
    assert slice_.data.new_offsets == OffsetInterval(10, 99)
    assert slice_.data.new_watermark_ns == NOON_NS
    assert [(ref.kind, ref.hash, ref.size_bytes) for ref in slice_.objects] == [
        (ObjectKind.DATA_SLICE, SLICE.physical_hash, 100)
    ]
    assert slice_.records == 90
    assert (info.event, info.sequence_number, info.prev_hash) == (EventKind.SET_INFO, 0, None)


def test_the_dataset_is_a_chain_that_ends_with_its_head() -> None:
    named = [(name, odf_blocks.parse_odf_block(data, name)) for name, data in dataset_blocks()]
    assert [block.event for _, block in named] == [
        EventKind.SEED,
        EventKind.SET_INFO,
        EventKind.SET_DATA_SCHEMA,
        *[EventKind.ADD_DATA] * 3,
    ]
    state = validation.extend_all(None, named)
    assert state is not None
    assert state.head.hash.text == (DATASET / "refs" / "head").read_text()
    assert (state.head.sequence_number, state.last_offset) == (5, 29)
    assert state == validation.state_at(block for _, block in reversed(named))
    seed = named[0][1].seed
    assert seed is not None
    assert seed.dataset_kind is DatasetKind.ROOT
    assert seed.did.startswith("did:odf:fed01")


def test_the_dataset_s_objects_are_those_that_its_blocks_name() -> None:
    parsed = [odf_blocks.parse_odf_block(data) for _, data in dataset_blocks()]
    named = [ref for block in parsed for ref in block.objects]
    distinct = list(odf_blocks.objects_of(parsed))
    assert (len(named), len(distinct)) == (6, 5)
    folders = {ObjectKind.DATA_SLICE: "data", ObjectKind.CHECKPOINT: "checkpoints"}
    there = {path for folder in folders.values() for path in (DATASET / folder).iterdir()}
    assert there == {DATASET / folders[ref.kind] / ref.hash.text for ref in distinct}
    for ref in distinct:
        data = (DATASET / folders[ref.kind] / ref.hash.text).read_bytes()
        assert (len(data), hash_stream([data])) == (ref.size_bytes, ref.hash)


def test_the_dataset_s_blocks_go_through_an_archive_unchanged() -> None:
    named = dataset_blocks()
    assert list(tarball.unpack(b"".join(tarball.pack_blocks(named)))) == named


def test_the_writer_of_the_tests_makes_the_very_bytes_of_the_dataset() -> None:
    """The values that a reader finds, written again, are the bytes that were read."""
    originals = [data for _, data in dataset_blocks()]
    seed = odf.naive(originals[0]).seed
    assert seed is not None
    events: list[odf.Event] = [
        SeedEvent(seed.dataset_id),
        SetInfo("golden test dataset", ["test", "golden"]),
        SetDataSchema(
            [
                *(("offset", 12), ("op", 11), ("system_time", 23)),
                *(("event_time", 23), ("city", 24), ("population", 16)),
            ]
        ),
        *(add_data_again(data) for data in originals[3:]),
    ]
    times = [NEW_YEAR_2024_NS] * 3
    times += [NEW_YEAR_2024_NS + day * DAY_NS + 3_723_456_000_000 for day in (1, 2, 3)]
    prev: Multihash | None = None
    for number, (event, time, original) in enumerate(zip(events, times, originals, strict=True)):
        rebuilt = odf.block(event, prev=prev, sequence_number=number, time=time)
        assert rebuilt == original
        prev = Multihash.sha3_256(original)


def add_data_again(data: bytes) -> AddData:
    """Return the event that a block was written from; its logical hash stands in its bytes."""
    event = odf.naive(data).data
    assert event is not None
    assert event.new_data is not None
    assert event.new_offsets is not None
    assert event.new_checkpoint is not None
    physical = event.new_data.hash.encoded
    at = data.index(physical) + len(physical) + 2 + 4
    return AddData(
        prev_checkpoint=event.prev_checkpoint,
        prev_offset=event.prev_offset,
        new_data=Slice(
            event.new_data.hash,
            event.new_offsets.start,
            event.new_offsets.end,
            event.new_data.size_bytes,
            logical_hash=data[at : at + len(physical)],
        ),
        new_checkpoint=Checkpoint(event.new_checkpoint.hash, event.new_checkpoint.size_bytes),
        new_watermark=event.new_watermark_ns,
    )
