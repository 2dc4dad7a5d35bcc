"""FlatBuffers from strangers: read as the runtime reads them, or refused at the first lie."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import flatbuffers
import pytest

from lakeferry.errors import InvalidInput, LimitExceeded
from lakeferry.transfer.chain.flatbuffers import DEEPEST, FlatTable, Scalar, root

LARGEST_COUNT = (1 << 31) - 1


def buffer(*fields: bytes | None, tail: bytes = b"", size: int | None = None) -> bytes:
    """Return a buffer with one table, whose fields stand in it in this order, and a tail.

    The table begins at 4 + the vtable's size; its fields begin 4 bytes later.
    """
    slots, inline = b"", b""
    for field in fields:
        slots += struct.pack("<H", 0 if field is None else 4 + len(inline))
        inline += field or b""
    vtable = struct.pack("<HH", 4 + len(slots), 4 + len(inline) if size is None else size) + slots
    at = 4 + len(vtable)
    return struct.pack("<I", at) + vtable + struct.pack("<i", len(vtable)) + inline + tail


def offset(distance: int) -> bytes:
    return struct.pack("<I", distance)


def vector(count: int, elements: bytes = b"") -> bytes:
    return struct.pack("<I", count) + elements


def nested(depth: int) -> bytes:
    """Return tables within each other, each with one field, which leads to the next one."""
    builder: Any = flatbuffers.Builder(64)
    inner = None
    for _ in range(depth):
        builder.StartObject(1)
        if inner is not None:
            builder.PrependUOffsetTRelativeSlot(0, inner, 0)
        inner = builder.EndObject()
    builder.Finish(inner)
    return bytes(builder.Output())


def test_numbers_are_read_by_their_type() -> None:
    table = root(
        buffer(b"\xff", None, b"\xfe\xff\xff\xff", b"\x02" + bytes(7), b"\xff" * 8, b"\x01\x02")
    )
    assert table.number(0, Scalar.UINT8) == 255
    assert table.number(1, Scalar.UINT64, default=7) == 7
    assert table.optional(1, Scalar.UINT64) is None
    assert table.number(2, Scalar.INT32) == -2
    assert table.number(2, Scalar.UINT32) == 0xFFFFFFFE
    assert table.optional(3, Scalar.INT64) == 2
    assert table.number(4, Scalar.INT64) == -1
    assert table.number(4, Scalar.UINT64) == (1 << 64) - 1
    assert table.number(5, Scalar.UINT16) == 0x0201
    # A vtable may be shorter than the schema: its writer knew fewer fields.
    assert table.number(6, Scalar.UINT8) == 0
    assert table.table(6) is None
    assert table.vector(99) is None
    assert table.text(99) is None
    assert table.nested(99) is None
    assert table.struct(99, 16) is None
    assert list(table.tables(99)) == []
    assert table.union(98) == (0, None)


def test_a_struct_may_stand_anywhere() -> None:
    value = bytes(range(16))
    for shift in range(8):
        assert root(buffer(b"x" * shift, value)).struct(1, 16) == value


def test_vectors_strings_and_tables_are_followed() -> None:
    builder: Any = flatbuffers.Builder(64)
    inner = []
    for number in (5, 6):
        builder.StartObject(1)
        builder.PrependUint8Slot(0, number, 0)
        inner.append(builder.EndObject())
    builder.StartVector(4, 2, 4)
    for one in reversed(inner):
        builder.PrependUOffsetTRelative(one)
    tables = builder.EndVector()
    text = builder.CreateString("grüße")
    data = builder.CreateByteVector(b"\1\2\3\4")
    inside = builder.CreateByteVector(buffer(b"\x2a"))
    builder.StartObject(6)
    builder.PrependUOffsetTRelativeSlot(0, tables, 0)
    builder.PrependUOffsetTRelativeSlot(1, text, 0)
    builder.PrependUOffsetTRelativeSlot(2, data, 0)
    builder.PrependUint8Slot(3, 9, 0)
    builder.PrependUOffsetTRelativeSlot(4, inner[0], 0)
    builder.PrependUOffsetTRelativeSlot(5, inside, 0)
    builder.Finish(builder.EndObject())
    table = root(bytes(builder.Output()))
    assert [one.number(0, Scalar.UINT8) for one in table.tables(0)] == [5, 6]
    assert table.text(1) == "grüße"
    assert table.vector(2) == b"\1\2\3\4"
    member, found = table.union(3)
    assert found is not None
    assert (member, found.number(0, Scalar.UINT8)) == (9, 5)
    within = table.nested(5)
    assert within is not None
    assert within.number(0, Scalar.UINT8) == 42


def test_a_vector_ends_where_the_buffer_does() -> None:
    assert root(buffer(offset(4), tail=vector(3, b"abc"))).vector(0) == b"abc"
    assert root(buffer(offset(4), tail=vector(0))).vector(0) == b""
    assert root(buffer(offset(4), tail=vector(2, b"abcd"))).vector(0, 2) == b"abcd"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it has 0 bytes"),
        (b"\4\0\0", "it has 3 bytes"),
        (offset(0) + bytes(8), "table begins outside"),
        (offset(9) + bytes(8), "table begins outside"),
        (offset(0xFFFFFFFF) + bytes(8), "table begins outside"),
        # The vtable is before the buffer, behind it, or cut by its end.
        (offset(4) + struct.pack("<i", 5) + bytes(8), "vtable begins outside"),
        (offset(4) + struct.pack("<i", -(1 << 31)) + bytes(8), "vtable begins outside"),
        (offset(4) + struct.pack("<i", (1 << 31) - 1) + bytes(8), "vtable begins outside"),
        (offset(4) + struct.pack("<i", -5) + bytes(4), "vtable begins outside"),
        (offset(4) + struct.pack("<iHH", -4, 6, 4), "vtable ends outside"),
        (offset(4) + struct.pack("<iHH", -4, 0xFFFE, 4), "vtable ends outside"),
        (offset(4) + struct.pack("<iHH", -4, 2, 4), "vtable has 2 bytes"),
        (offset(4) + struct.pack("<iHH", -4, 5, 4) + bytes(9), "vtable has 5 bytes"),
        (offset(4) + struct.pack("<iHH", -4, 4, 3), "table has 3 bytes"),
        (offset(4) + struct.pack("<iHH", -4, 4, 9), "table ends outside"),
        # A table that is its own vtable: its distance of 0 is read as the vtable's size.
        (offset(4) + bytes(8), "vtable has 0 bytes"),
    ],
)
def test_a_table_outside_of_the_buffer_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        root(data)


def into_table(table: FlatTable) -> FlatTable | None:
    return table.table(0)


def into_buffer(table: FlatTable) -> FlatTable | None:
    return table.nested(0)


def ask_number(table: FlatTable) -> object:
    return table.number(0, Scalar.UINT64)


def ask_vector(table: FlatTable) -> object:
    return table.vector(0)


def ask_wide_vector(table: FlatTable) -> object:
    return table.vector(0, 8)


def ask_text(table: FlatTable) -> object:
    return table.text(0)


def ask_tables(table: FlatTable) -> object:
    return list(table.tables(0))


@pytest.mark.parametrize(
    ("ask", "data", "why"),
    [
        (ask_number, buffer(b"1234567", tail=bytes(9)), "field 0 lies outside"),
        (ask_number, buffer(bytes(8), size=11), "field 0 lies outside"),
        # A field where the distance to the vtable stands.
        (ask_number, buffer(bytes(8)).replace(b"\4\0", b"\2\0"), "field 0 lies outside"),
        (ask_vector, buffer(offset(0), tail=vector(0)), "leads to itself"),
        (ask_vector, buffer(offset(5), tail=vector(0)), "leads out of the buffer"),
        (ask_vector, buffer(offset(0xFFFFFFFC), tail=vector(0)), "leads out of the buffer"),
        (ask_vector, buffer(offset(4), tail=vector(4, b"abc")), "a vector of 4 is longer"),
        (ask_vector, buffer(offset(4), tail=vector(LARGEST_COUNT, b"a")), "2,147,483,647 is"),
        (ask_vector, buffer(offset(4), tail=vector(0xFFFFFFFF, b"a")), "4,294,967,295 is"),
        (ask_wide_vector, buffer(offset(4), tail=vector(2, bytes(15))), "a vector of 2 is longer"),
        (ask_tables, buffer(offset(4), tail=vector(LARGEST_COUNT, bytes(64))), "2,147,483,647"),
        (ask_tables, buffer(offset(4), tail=vector(1, offset(0))), "leads to itself"),
        (ask_tables, buffer(offset(4), tail=vector(1, offset(4))), "leads out of the buffer"),
        (ask_text, buffer(offset(4), tail=vector(3, b"abc")), "no zero ends"),
        (ask_text, buffer(offset(4), tail=vector(3, b"abcd")), "no zero ends"),
        (ask_text, buffer(offset(4), tail=vector(1, b"\xff\0")), "isn't UTF-8"),
        (into_table, buffer(offset(0)), "leads to itself"),
        (into_table, buffer(offset(4), tail=struct.pack("<i", 0)), "vtable has 0 bytes"),
        (into_buffer, buffer(offset(4), tail=vector(0)), "it has 0 bytes"),
        (into_buffer, buffer(offset(4), tail=vector(4, offset(4))), "table begins outside"),
    ],
)
def test_a_field_that_leads_astray_is_refused(
    ask: Callable[[FlatTable], object], data: bytes, why: str
) -> None:
    table = root(data)
    with pytest.raises(InvalidInput, match=why) as refused:
        ask(table)
    assert refused.value.code == "invalid_input"


def descend(
    table: FlatTable | None, step: Callable[[FlatTable], FlatTable | None] = into_table
) -> int:
    depth = 0
    while table is not None:
        table, depth = step(table), depth + 1
    return depth


def test_tables_lie_within_each_other_up_to_a_bound() -> None:
    assert descend(root(nested(DEEPEST + 1))) == DEEPEST + 1
    for depth in (DEEPEST + 2, 1_000):
        with pytest.raises(LimitExceeded) as refused:
            descend(root(nested(depth)))
        assert refused.value.fields == {"limit": DEEPEST}


def test_buffers_lie_within_each_other_up_to_the_same_bound() -> None:
    data = buffer(None)
    for _ in range(100):
        data = buffer(offset(4), tail=vector(len(data), data))
    with pytest.raises(LimitExceeded):
        descend(root(data), into_buffer)


def test_a_table_that_stands_for_many_is_looked_at_one_at_a_time() -> None:
    """Every element of a long vector leads to one table: no list of them is made."""
    count = 20_000
    offsets = b"".join(offset(4 * (count - index)) for index in range(count))
    shared = struct.pack("<iHH", -4, 4, 4)
    tables = root(buffer(offset(4), tail=vector(count, offsets) + shared)).tables(0)
    tracemalloc.start()
    try:
        assert sum(1 for _ in tables) == count
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000
