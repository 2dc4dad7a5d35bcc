"""Deletion vectors against a naive writer of the format, and against bytes that are wrong."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.errors import CorruptLog
from lakeferry.log import roaring
from lakeferry.log.roaring import BLOCK_ROWS, ContainerKind

PORTABLE, NATIVE = 1681511377, 1681511376


def runs_of(rows: list[int]) -> list[tuple[int, int]]:
    """Return rows as runs: each is its first row and how many more there are."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and row == sum(runs[-1]) + 1:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((row, 0))
    return runs


def bitmap32(rows: Iterable[int], with_runs: bool) -> bytes:
    """Write a 32-bit bitmap; with runs, every other container is one of runs."""
    blocks: dict[int, list[int]] = {}
    for row in sorted(rows):
        blocks.setdefault(row // BLOCK_ROWS, []).append(row % BLOCK_ROWS)
    is_run = [with_runs and index % 2 == 0 for index in range(len(blocks))]
    header = b"".join(struct.pack("<HH", key, len(low) - 1) for key, low in blocks.items())
    bodies = []
    for run, low in zip(is_run, blocks.values(), strict=True):
        if run:
            runs = runs_of(low)
            body = struct.pack("<H", len(runs))
            body += b"".join(struct.pack("<HH", start, more) for start, more in runs)
        elif len(low) > 4096:
            bits = sum(1 << row for row in low)
            body = bits.to_bytes(BLOCK_ROWS // 8, "little")
        else:
            body = struct.pack(f"<{len(low)}H", *low)
        bodies.append(body)
    if with_runs and blocks:
        lead = struct.pack("<I", 12347 | (len(blocks) - 1) << 16)
        flags = sum(1 << index for index, run in enumerate(is_run) if run)
        lead += flags.to_bytes((len(blocks) + 7) // 8, "little")
        has_offsets = len(blocks) >= 4
    else:
        lead, has_offsets = struct.pack("<II", 12346, len(blocks)), True
    at = len(lead) + len(header) + (4 * len(blocks) if has_offsets else 0)
    offsets = b""
    for body in bodies:
        offsets += struct.pack("<I", at)
        at += len(body)
    return lead + header + (offsets if has_offsets else b"") + b"".join(bodies)


def vector(rows: Iterable[int], *, with_runs: bool = False, native: bool = False) -> bytes:
    """Write a vector's data."""
    uppers: dict[int, list[int]] = {}
    for row in rows:
        uppers.setdefault(row >> 32, []).append(row & 0xFFFFFFFF)
    if native:
        data = struct.pack("<II", NATIVE, max(uppers, default=-1) + 1)
        for upper in range(max(uppers, default=-1) + 1):
            one = bitmap32(uppers.get(upper, ()), with_runs)
            data += struct.pack("<I", len(one)) + one
        return data
    data = struct.pack("<IQ", PORTABLE, len(uppers))
    for upper in sorted(uppers):
        data += struct.pack("<I", upper) + bitmap32(uppers[upper], with_runs)
    return data


def rows_in(found: roaring.RowIndexes) -> list[int]:
    """Unfold a set of rows, block by block."""
    rows = []
    for block in found.blocks:
        flags = found.flags(block * BLOCK_ROWS, BLOCK_ROWS).to_pylist()
        rows += [block * BLOCK_ROWS + row for row, flag in enumerate(flags) if flag]
    return rows


@st.composite
def row_sets(draw: st.DrawFn, max_upper: int = 2**31 - 1) -> set[int]:
    """Draw rows: scattered ones, long ranges of them, and blocks that are nearly full."""
    rows: set[int] = set()
    near = st.integers(0, 3 * BLOCK_ROWS)
    for _ in range(draw(st.integers(0, 3))):
        base = draw(st.sampled_from([0, 2**32 - 2 * BLOCK_ROWS, 2**32]))
        base += draw(st.sampled_from([0, 0, max_upper])) << 32 if base != 2**32 else 0
        rows |= {base + row for row in draw(st.sets(near, max_size=20))}
        start, length = draw(near), draw(st.integers(0, 9000))
        step = draw(st.integers(1, 3))
        rows |= set(range(base + start, base + start + length, step))
    return {row for row in rows if row < 2**63 and row >> 32 <= max_upper}


@given(row_sets(), st.booleans())
def test_what_is_written_is_read(rows: set[int], with_runs: bool) -> None:
    found = roaring.decode_bitmap(vector(rows, with_runs=with_runs))
    assert rows_in(found) == sorted(rows)
    assert found.cardinality == len(rows)
    assert found.last == max(rows, default=None)


@given(row_sets(max_upper=1), st.booleans())
def test_the_form_of_delta_spark_is_read(rows: set[int], with_runs: bool) -> None:
    found = roaring.decode_bitmap(vector(rows, with_runs=with_runs, native=True))
    assert rows_in(found) == sorted(rows)


@given(row_sets(max_upper=0), st.integers(0, 4 * BLOCK_ROWS), st.integers(0, 3 * BLOCK_ROWS))
def test_flags_are_those_of_the_range(rows: set[int], start: int, length: int) -> None:
    flags = roaring.decode_bitmap(vector(rows)).flags(start, length)
    assert flags.type == pa.bool_()
    assert flags.to_pylist() == [row in rows for row in range(start, start + length)]


@given(st.data(), row_sets(max_upper=1), st.booleans())
def test_wrong_bytes_are_refused_or_mean_what_they_say(
    data: st.DataObject, rows: set[int], with_runs: bool
) -> None:
    """Any cut is refused; any changed byte is refused, or gives a set that is one."""
    right = vector(rows, with_runs=with_runs)
    with pytest.raises(CorruptLog):
        roaring.decode_bitmap(right[: data.draw(st.integers(0, len(right) - 1))])
    at = data.draw(st.integers(0, len(right) - 1))
    wrong = bytearray(right)
    wrong[at] ^= data.draw(st.integers(1, 255))
    try:
        found = roaring.decode_bitmap(bytes(wrong))
    except CorruptLog:
        return
    assert list(found.blocks) == sorted(set(found.blocks))
    assert found.cardinality == sum(
        pc.sum(container.flags()).as_py() for container in found.containers
    )


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    lead = struct.pack("<IQ", PORTABLE, 1)
    for data in (noise, lead + noise, lead + struct.pack("<II", 0, 12346) + noise):
        try:
            found = roaring.decode_bitmap(data)
        except CorruptLog:
            continue
        assert found.cardinality <= 8 * len(data) * BLOCK_ROWS


def test_a_run_of_a_block_takes_no_more_memory_than_its_bytes() -> None:
    blocks = 2**16
    header = b"".join(struct.pack("<HH", key, BLOCK_ROWS - 1) for key in range(blocks))
    body = struct.pack("<HHH", 1, 0, BLOCK_ROWS - 1)
    lead = struct.pack("<I", 12347 | (blocks - 1) << 16) + b"\xff" * (blocks // 8)
    bitmap = lead + header + b"\0" * (4 * blocks) + body * blocks
    found = roaring.decode_bitmap(struct.pack("<IQI", PORTABLE, 1, 0) + bitmap)
    assert found.cardinality == 2**32
    assert {container.kind for container in found.containers} == {ContainerKind.RUNS}
    assert sum(len(container.data) for container in found.containers) == 4 * blocks
