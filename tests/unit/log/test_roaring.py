"""Bitmaps of deletion vectors: the protocol's own example, and what surrounds them in files."""

from __future__ import annotations

import struct
import zlib

import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log import roaring
from lakeferry.log.deletion_vectors import z85_decode
from tests.support.history import bitmap

INLINE = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"


def framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def test_the_protocols_example_has_its_rows() -> None:
    found = roaring.decode_bitmap(z85_decode(INLINE))
    flags = found.flags(0, 40).to_pylist()
    assert [row for row, flag in enumerate(flags) if flag] == [3, 4, 7, 11, 18, 29]
    assert (found.cardinality, found.last) == (6, 29)


def test_an_empty_vector_deletes_nothing() -> None:
    found = roaring.decode_bitmap(struct.pack("<IQ", 1681511377, 0))
    assert (found.cardinality, found.last) == (0, None)
    assert found.flags(5, 3).to_pylist() == [False] * 3


def test_a_vector_is_taken_out_of_its_frame() -> None:
    data = bitmap([1, 5])
    assert roaring.unframed(framed(data), len(data)) == data


@pytest.mark.parametrize(
    ("stored", "size", "why"),
    [
        (framed(b"abcd")[:-1], 4, "too short"),
        (framed(b"abcd"), 3, "too short"),
        (framed(b"abcde")[1:], 4, "the log says"),
        (framed(b"abcd")[:-1] + b"\xff", 4, "checksum"),
        (b"", 0, "too short"),
    ],
)
def test_a_frame_that_is_wrong_is_refused(stored: bytes, size: int, why: str) -> None:
    with pytest.raises(CorruptLog, match=why):
        roaring.unframed(stored, size)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "too early"),
        (struct.pack("<I", 1681511378), "magic number"),
        (struct.pack("<IQ", 1681511377, 2**63), "too early"),
        (struct.pack("<IQIII", 1681511377, 1, 2**31, 12346, 0), "upper half"),
        (struct.pack("<IQIII", 1681511377, 1, 0, 12345, 0), "begins with"),
        (struct.pack("<IQIIIQ", 1681511377, 1, 0, 12346, 2**20, 0), "containers"),
        (bitmap([1, 2]) + b"\0\0\0\0", "follows"),
        (bitmap([1, 2])[:-4] + b"\2\0\1\0", "order"),
    ],
)
def test_a_bitmap_that_is_wrong_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(CorruptLog, match=why):
        roaring.decode_bitmap(data)
