"""Metadata blocks: what is read in one, and what no block may say."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from lakeferry.errors import (
    HashMismatch,
    IncompatibleVersion,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
)
from lakeferry.transfer.chain import odf_blocks
from lakeferry.transfer.chain.hashes import Algorithm, Multihash
from lakeferry.transfer.chain.odf_blocks import (
    LARGEST_BLOCK_BYTES,
    Block,
    DataEvent,
    DatasetKind,
    EventKind,
    ObjectKind,
    ObjectRef,
    OffsetInterval,
    Seed,
    parse_odf_block,
)
from tests.support import odf
from tests.support.odf import (
    DATASET_ID,
    NOON_NS,
    SECOND_NS,
    AddData,
    Checkpoint,
    ExecuteTransform,
    Other,
    SeedEvent,
    SetDataSchema,
    SetInfo,
    Slice,
    hash_of,
)

A, B, C = hash_of("a"), hash_of("b"), hash_of("c")
SLICE = Slice(A, 5, 9, 1_000, logical_hash=b"\x96\x80\xc0\x01\x20" + bytes(32))


def test_a_seed_says_what_the_dataset_is() -> None:
    data = odf.block(SeedEvent(dataset_kind=1))
    assert parse_odf_block(data) == Block(
        hash=Multihash.sha3_256(data),
        size_bytes=len(data),
        manifest_version=3,
        sequence_number=0,
        prev_hash=None,
        time_ns=NOON_NS,
        event=EventKind.SEED,
        seed=Seed(DATASET_ID, DatasetKind.DERIVATIVE),
    )


def test_a_dataset_s_id_as_text() -> None:
    assert Seed(DATASET_ID, DatasetKind.ROOT).did == "did:odf:fed01" + bytes(range(32)).hex()


@pytest.mark.parametrize("kind", [AddData, ExecuteTransform])
def test_a_data_event_says_where_it_continues_and_what_is_new(
    kind: type[AddData] | type[ExecuteTransform],
) -> None:
    event = kind(
        prev_checkpoint=B,
        prev_offset=4,
        new_data=SLICE,
        new_checkpoint=Checkpoint(C, 17),
        new_watermark=NOON_NS - 1,
    )
    if isinstance(event, ExecuteTransform):
        event = replace(event, inputs=[DATASET_ID, DATASET_ID])
    else:
        event = replace(event, source_state=("", "odf/etag", "x"))
    block = parse_odf_block(odf.block(event, prev=A, sequence_number=1 << 40))
    assert (block.sequence_number, block.prev_hash, block.seed) == (1 << 40, A, None)
    assert block.data == DataEvent(
        prev_offset=4,
        prev_checkpoint=B,
        new_data=ObjectRef(ObjectKind.DATA_SLICE, A, 1_000),
        new_offsets=OffsetInterval(5, 9),
        new_checkpoint=ObjectRef(ObjectKind.CHECKPOINT, C, 17),
        new_watermark_ns=NOON_NS - 1,
    )
    assert block.objects == (block.data.new_data, block.data.new_checkpoint)
    assert (block.records, block.data.last_offset) == (5, 9)


@pytest.mark.parametrize("kind", [AddData, ExecuteTransform])
def test_a_data_event_may_leave_everything_out(
    kind: type[AddData] | type[ExecuteTransform],
) -> None:
    block = parse_odf_block(odf.block(kind(), prev=A, sequence_number=1))
    assert block.data == DataEvent(None, None, None, None, None, None)
    assert (block.objects, block.records, block.data.last_offset) == ((), 0, None)


def test_zeros_are_left_out_by_writers_and_none_is_not_zero() -> None:
    first = AddData(new_data=Slice(A, 0, 0, 0), prev_offset=0)
    event = parse_odf_block(odf.block(first, prev=B, sequence_number=1)).data
    assert event is not None
    assert event.new_offsets == OffsetInterval(0, 0)
    assert event.new_data == ObjectRef(ObjectKind.DATA_SLICE, A, 0)
    assert event.prev_offset == 0
    assert event.prev_checkpoint is None


@pytest.mark.parametrize("kind", EventKind)
def test_every_event_of_the_schema_is_known(kind: EventKind) -> None:
    event = SeedEvent() if kind is EventKind.SEED else Other(kind)
    block = parse_odf_block(odf.block(event))
    assert block.event is kind
    assert (block.seed is not None) == (kind is EventKind.SEED)
    has_data = kind in (EventKind.ADD_DATA, EventKind.EXECUTE_TRANSFORM)
    assert (block.data is not None) == has_data


@pytest.mark.parametrize(
    "event", [SetInfo("text", ["a", "b"]), SetDataSchema([("a", 1)])], ids=["info", "schema"]
)
def test_other_events_name_no_objects(event: odf.Event) -> None:
    block = parse_odf_block(odf.block(event, prev=A, sequence_number=1))
    assert (block.objects, block.seed, block.data, block.records) == ((), None, None, 0)


@pytest.mark.parametrize("version", odf_blocks.READABLE_VERSIONS)
def test_both_versions_of_the_manifest_are_read(version: int) -> None:
    assert parse_odf_block(odf.block(SeedEvent(), version=version)).manifest_version == version


@pytest.mark.parametrize(
    ("struct", "time_ns"),
    [
        (odf.TIMESTAMP.pack(1970, 1, 0, 0), 0),
        (odf.TIMESTAMP.pack(1969, 365, 86_399, 999_999_999), -1),
        (odf.TIMESTAMP.pack(2024, 366, 0, 0), 1_735_603_200 * SECOND_NS),
        (odf.TIMESTAMP.pack(1, 1, 0, 0), -62_135_596_800 * SECOND_NS),
        (odf.TIMESTAMP.pack(0, 366, 0, 0), (-62_135_596_800 - 86_400) * SECOND_NS),
        (odf.TIMESTAMP.pack(-262_143, 1, 0, 0), -8_334_601_228_800 * SECOND_NS),
        (odf.TIMESTAMP.pack(262_142, 365, 0, 0), 8_210_266_790_400 * SECOND_NS),
        # A leap second.
        (odf.TIMESTAMP.pack(2016, 366, 86_399, 1_500_000_000), 1_483_228_800_500_000_000),
    ],
)
def test_a_time_is_a_year_a_day_and_seconds(struct: bytes, time_ns: int) -> None:
    data = odf.block(SeedEvent(), time=struct)
    assert parse_odf_block(data).time_ns == time_ns
    assert odf.naive(data).time_ns == time_ns


@pytest.mark.parametrize(
    "struct",
    [
        odf.TIMESTAMP.pack(2023, 366, 0, 0),
        odf.TIMESTAMP.pack(2100, 366, 0, 0),
        odf.TIMESTAMP.pack(2024, 0, 0, 0),
        odf.TIMESTAMP.pack(2024, 367, 0, 0),
        odf.TIMESTAMP.pack(2024, 1, 86_400, 0),
        odf.TIMESTAMP.pack(2024, 1, 0, 1_000_000_000),
        odf.TIMESTAMP.pack(2024, 1, 59, 2_000_000_000),
        odf.TIMESTAMP.pack(262_143, 1, 0, 0),
        odf.TIMESTAMP.pack(-(1 << 31), 1, 0, 0),
        b"\xff" * 16,
    ],
)
def test_a_time_that_never_was_is_refused(struct: bytes) -> None:
    with pytest.raises(InvalidInput, match="time"):
        parse_odf_block(odf.block(SeedEvent(), time=struct))
    with pytest.raises(InvalidInput, match="time"):
        parse_odf_block(odf.block(AddData(new_watermark=struct)))


def test_the_hash_is_checked_before_anything_is_read() -> None:
    data = odf.block(SeedEvent())
    name = Multihash.sha3_256(data)
    assert parse_odf_block(data, name).hash == name
    for wrong in (A, Multihash(Algorithm.SHA2_256, name.digest)):
        with pytest.raises(HashMismatch):
            parse_odf_block(data, wrong)
    with pytest.raises(HashMismatch):
        parse_odf_block(b"not a block at all", name)


REFUSED: dict[str, tuple[bytes, type[LakeferryError], str]] = {
    "nothing": (b"", InvalidInput, "it has 0 bytes"),
    "zeros": (bytes(100), InvalidInput, "begins outside"),
    "text": (b"<html>not found</html>", InvalidInput, "begins outside"),
    "another kind": (odf.block(SeedEvent(), kind=0x400001), InvalidInput, "kind 0x400001"),
    "no kind": (odf.block(SeedEvent(), kind=0), InvalidInput, "kind 0x0"),
    "version 1": (odf.block(SeedEvent(), version=1), IncompatibleVersion, "version 1"),
    "version 4": (odf.block(SeedEvent(), version=4), IncompatibleVersion, "version 4"),
    "no version": (odf.block(SeedEvent(), version=0), IncompatibleVersion, "version 0"),
    "no content": (odf.manifest(None), InvalidInput, "no content"),
    "empty content": (odf.manifest(b""), InvalidInput, "it has 0 bytes"),
    "content that is a manifest": (
        odf.manifest(odf.block(SeedEvent())),
        IncompatibleVersion,
        "event of the unknown kind 0",
    ),
    "no event": (odf.block(Other(0, has_table=False)), IncompatibleVersion, "kind 0"),
    "an unknown event": (odf.block(Other(14)), IncompatibleVersion, "kind 14"),
    "an event without a table": (odf.block(Other(8, has_table=False)), InvalidInput, "no event"),
    "no time": (odf.block(SeedEvent(), time=None), InvalidInput, "no system time"),
    "a seed without an id": (odf.block(SeedEvent(b"")), InvalidInput, "isn't an ed25519 key"),
    "a short id": (odf.block(SeedEvent(DATASET_ID[:-1])), InvalidInput, "ed25519"),
    "another key": (odf.block(SeedEvent(b"\xec" + DATASET_ID[1:])), InvalidInput, "ed25519"),
    "an unknown dataset": (odf.block(SeedEvent(dataset_kind=2)), InvalidInput, "kind 2"),
    "a prev hash that is none": (odf.block(SetInfo(), prev=b"x"), InvalidInput, "not a hash"),
    "an empty prev hash": (odf.block(SetInfo(), prev=b""), InvalidInput, "not a hash"),
    "a hash by another algorithm": (
        odf.block(SetInfo(), prev=Multihash(Algorithm.SHA2_256, bytes(32))),
        InvalidInput,
        "SHA2_256",
    ),
    "a slice without a hash": (
        odf.block(AddData(new_data=replace(SLICE, physical_hash=None))),
        InvalidInput,
        "DataSlice has no hash",
    ),
    "a slice whose hash leads elsewhere": (
        odf.block(AddData(new_data=replace(SLICE, physical_hash=b"../../refs/head"))),
        InvalidInput,
        "not a hash",
    ),
    "a slice without an interval": (
        odf.block(AddData(new_data=replace(SLICE, has_interval=False))),
        InvalidInput,
        "no offset interval",
    ),
    "an interval that ends too early": (
        odf.block(AddData(new_data=replace(SLICE, end=4))),
        InvalidInput,
        "ends before it begins",
    ),
    "a slice of all bytes there are": (
        odf.block(AddData(new_data=replace(SLICE, size=(1 << 64) - 1))),
        InvalidInput,
        "18,446,744,073,709,551,615 bytes",
    ),
    "a checkpoint without a hash": (
        odf.block(AddData(new_checkpoint=Checkpoint(None, 3))),
        InvalidInput,
        "Checkpoint has no hash",
    ),
    "a block that is too large": (bytes(LARGEST_BLOCK_BYTES + 1), LimitExceeded, "too large"),
}


@pytest.mark.parametrize(("data", "error", "why"), REFUSED.values(), ids=REFUSED)
def test_what_no_block_may_say_is_refused(
    data: bytes, error: type[LakeferryError], why: str
) -> None:
    with pytest.raises(error, match=why) as refused:
        parse_odf_block(data)
    assert type(refused.value) is error
    if error is not LimitExceeded:
        assert refused.value.fields == {"hash": Multihash.sha3_256(data).text}


def test_a_block_cut_anywhere_is_refused() -> None:
    event = AddData(B, 4, SLICE, Checkpoint(C, 17), NOON_NS)
    data = odf.block(event, prev=A, sequence_number=3)
    # The last two bytes fill up a vector, and nobody reads them.
    for size in range(len(data) - 2):
        with pytest.raises(LakeferryError):
            parse_odf_block(data[:size])


def test_objects_of_many_blocks_come_once_each_in_order() -> None:
    chain = odf.Chain().append(checkpoint="one").append().append(checkpoint="two")
    parsed = [parse_odf_block(data) for _, data in chain.blocks]
    refs = list(odf_blocks.objects_of(parsed))
    assert [ref.kind for ref in refs] == [
        ObjectKind.DATA_SLICE,
        ObjectKind.CHECKPOINT,
        ObjectKind.DATA_SLICE,
        ObjectKind.DATA_SLICE,
        ObjectKind.CHECKPOINT,
    ]
    assert {ref.hash: ref.size_bytes for ref in refs} == {
        name: len(data) for name, data in chain.objects.items()
    }


def test_an_object_that_is_both_a_slice_and_a_checkpoint_is_two() -> None:
    """They lie in two folders, whatever their content."""
    event = AddData(new_data=SLICE, new_checkpoint=Checkpoint(A, 1_000))
    assert len(list(odf_blocks.objects_of([parse_odf_block(odf.block(event))]))) == 2


def test_a_block_is_a_value() -> None:
    block = parse_odf_block(odf.block(SeedEvent()))
    with pytest.raises(FrozenInstanceError):
        block.sequence_number = 1  # type: ignore[misc]
    assert len({block, parse_odf_block(odf.block(SeedEvent()))}) == 1
