"""Reads the bitmap of a deletion vector.

Implements the protocol's "Deletion Vector Format" and "Deletion Vector File
Storage Format": a magic number, then a 64-bit Roaring bitmap in its portable
form, one 32-bit bitmap for each upper half, each made of containers for 65,536
rows: arrays, bitmaps or runs. delta-spark's own older form, with a magic number
of its own, holds the same containers and is read as well.

The data comes from other people's tables: every length is checked against the bytes available,
order and cardinality must be as the format requires, and any violation is
:class:`~lakeferry.errors.CorruptLog`. :class:`RowIndexes` keeps containers as they are stored,
so its memory is bounded by the vector's size, however many rows a run covers.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import pyarrow as pa

from lakeferry.errors import CorruptLog

BLOCK_ROWS = 1 << 16
"""Number of rows that one container covers."""
FRAME_BYTES = 8
"""Bytes around a vector's data in a file: a size before it and a checksum after it."""
FILE_VERSION = 1

_PORTABLE = 1681511377
_NATIVE = 1681511376
# The protocol's example of an inline vector has this form, with a big-endian magic number.
_NATIVE_SWAPPED = int.from_bytes(_NATIVE.to_bytes(4, "big"), "little")
_NO_RUNS, _WITH_RUNS = 12346, 12347
_OFFSETS_FROM = 4
_LARGEST_ARRAY = 4096
_BITMAP_BYTES = BLOCK_ROWS // 8


class ContainerKind(Enum):
    """How a container stores its rows."""

    ARRAY = "array"
    BITMAP = "bitmap"
    RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Container:
    """The rows of one block, as they are stored; ``last`` is the largest."""

    kind: ContainerKind
    data: bytes
    cardinality: int
    last: int

    def flags(self) -> pa.BooleanArray:
        """Return a flag for each row of the block, true if the vector contains it."""
        if self.kind is ContainerKind.BITMAP:
            # Roaring and Arrow have the same bit order.
            return pa.Array.from_buffers(pa.bool_(), BLOCK_ROWS, [None, pa.py_buffer(self.data)])
        flags = bytearray(BLOCK_ROWS)
        numbers = _numbers(self.data)
        if self.kind is ContainerKind.ARRAY:
            for row in numbers:
                flags[row] = 1
        else:
            for start, more in zip(numbers[::2], numbers[1::2], strict=True):
                flags[start : start + more + 1] = b"\1" * (more + 1)
        bytes_ = pa.Array.from_buffers(pa.uint8(), BLOCK_ROWS, [None, pa.py_buffer(flags)])
        return bytes_.cast(pa.bool_())


@dataclass(frozen=True, slots=True)
class RowIndexes:
    """A set of row indexes, grouped by block. Blocks ascend."""

    blocks: tuple[int, ...]
    containers: tuple[Container, ...]

    @property
    def cardinality(self) -> int:
        """Number of rows."""
        return sum(container.cardinality for container in self.containers)

    @property
    def last(self) -> int | None:
        """The largest row index; ``None`` if the set is empty."""
        if not self.blocks:
            return None
        return self.blocks[-1] * BLOCK_ROWS + self.containers[-1].last

    def flags(self, start: int, length: int) -> pa.BooleanArray:
        """Return a flag for each of ``length`` rows from ``start`` on, true if it is in the set."""
        pieces = [pa.array([], pa.bool_())]
        end = start + length
        at = bisect_left(self.blocks, start // BLOCK_ROWS)
        while start < end:
            block, offset = divmod(start, BLOCK_ROWS)
            if at < len(self.blocks) and self.blocks[at] == block:
                piece = self.containers[at].flags().slice(offset, end - start)
                at += 1
            else:
                following = self.blocks[at] * BLOCK_ROWS if at < len(self.blocks) else end
                count = min(end, following) - start
                piece = pa.repeat(pa.scalar(False), count)
            pieces.append(piece)
            start += len(piece)
        return pa.concat_arrays(pieces)


def decode_bitmap(data: bytes) -> RowIndexes:
    """Return the rows of a vector's data, or raise ``CorruptLog``."""
    try:
        return _Reader(data).rows()
    except (struct.error, ValueError) as broken:
        raise CorruptLog("a deletion vector can't be read", cause=str(broken)) from broken


def unframed(stored: bytes, size_bytes: int) -> bytes:
    """Return a vector's data, given the bytes at its offset in a file; the checksum is verified.

    ``size_bytes`` is the size stated in the log.
    """
    if len(stored) != size_bytes + FRAME_BYTES:
        raise CorruptLog(
            "a deletion vector can't be read",
            cause=f"its file is {size_bytes + FRAME_BYTES - len(stored)} bytes too short",
        )
    size, checksum = struct.unpack(">I", stored[:4])[0], struct.unpack(">I", stored[-4:])[0]
    if size != size_bytes:
        raise CorruptLog(
            "a deletion vector can't be read",
            cause=f"it has {size} bytes, but the log says {size_bytes}",
        )
    data = stored[4:-4]
    if zlib.crc32(data) != checksum:
        raise CorruptLog("a deletion vector can't be read", cause="its checksum is wrong")
    return data


def _numbers(data: bytes) -> array[int]:
    """Return little-endian 16-bit numbers."""
    numbers = array("H", data)
    if struct.pack("=H", 1) != b"\1\0":
        numbers.byteswap()
    return numbers


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._blocks: list[int] = []
        self._containers: list[Container] = []

    def rows(self) -> RowIndexes:
        (magic,) = self._take("<I")
        if magic == _PORTABLE:
            (count,) = self._take("<Q")
            # A bitmap takes a key and at least eight bytes, so a larger count is invalid.
            self._check_count(count, 12)
            before = -1
            for _ in range(count):
                (key,) = self._take("<I")
                if not before < key < 1 << 31:
                    raise ValueError(f"the upper half {key} isn't where it should be")
                before = key
                self._bitmap(key)
        elif magic in (_NATIVE, _NATIVE_SWAPPED):
            number = "<I" if magic == _NATIVE else ">I"
            (count,) = self._take(number)
            self._check_count(count, 12)
            for key in range(count):
                (size,) = self._take(number)
                start = self._at
                self._bitmap(key)
                if self._at - start != size:
                    raise ValueError(f"a bitmap has {self._at - start} bytes instead of {size}")
        else:
            raise ValueError(f"its magic number is {magic}")
        # Inline vectors are padded to a multiple of four.
        if self._data[self._at :].strip(b"\0") or len(self._data) - self._at > 3:
            raise ValueError("something follows after its end")
        return RowIndexes(tuple(self._blocks), tuple(self._containers))

    def _bitmap(self, upper: int) -> None:
        (cookie,) = self._take("<I")
        with_runs = cookie & 0xFFFF == _WITH_RUNS
        if with_runs:
            count = (cookie >> 16) + 1
            run_flags = self._bytes((count + 7) // 8)
        elif cookie == _NO_RUNS:
            (count,) = self._take("<I")
            run_flags = b""
        else:
            raise ValueError(f"a bitmap begins with {cookie}")
        if count > BLOCK_ROWS:
            raise ValueError(f"a bitmap has {count} containers")
        header = struct.unpack(f"<{2 * count}H", self._bytes(4 * count))
        if not with_runs or count >= _OFFSETS_FROM:
            # Skip the containers' offsets: containers follow each other, so these aren't needed.
            self._bytes(4 * count)
        before = -1
        for index in range(count):
            key, cardinality = header[2 * index], header[2 * index + 1] + 1
            if key <= before:
                raise ValueError("its containers aren't in order")
            before = key
            is_run = bool(run_flags) and bool(run_flags[index // 8] >> index % 8 & 1)
            self._blocks.append((upper << 16) + key)
            self._containers.append(self._container(is_run, cardinality))

    def _container(self, is_run: bool, cardinality: int) -> Container:
        if is_run:
            return self._runs(cardinality)
        if cardinality > _LARGEST_ARRAY:
            data = self._bytes(_BITMAP_BYTES)
            bits = int.from_bytes(data, "little")
            if bits.bit_count() != cardinality:
                raise ValueError("a bitmap's cardinality is wrong")
            return Container(ContainerKind.BITMAP, data, cardinality, bits.bit_length() - 1)
        data = self._bytes(2 * cardinality)
        numbers = _numbers(data)
        if any(a >= b for a, b in pairwise(numbers)):
            raise ValueError("an array's rows aren't in order")
        return Container(ContainerKind.ARRAY, data, cardinality, numbers[-1])

    def _runs(self, cardinality: int) -> Container:
        (count,) = self._take("<H")
        data = self._bytes(4 * count)
        numbers = _numbers(data)
        end = covered = 0
        for start, more in zip(numbers[::2], numbers[1::2], strict=True):
            if start < end or start + more >= BLOCK_ROWS:
                raise ValueError("runs overlap, or end outside of their block")
            end = start + more + 1
            covered += more + 1
        if covered != cardinality:
            raise ValueError("the cardinality of runs is wrong")
        return Container(ContainerKind.RUNS, data, cardinality, end - 1)

    def _take(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _bytes(self, length: int) -> bytes:
        self._check_count(length, 1)
        start = self._at
        self._at += length
        return self._data[start : self._at]

    def _check_count(self, count: int, size_bytes: int) -> None:
        if count > (len(self._data) - self._at) // size_bytes:
            raise ValueError("it ends too early")
