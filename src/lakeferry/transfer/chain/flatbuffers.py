"""Reads FlatBuffers from untrusted bytes, with every bound checked.

A FlatBuffer is read in place. A *table* begins with the distance back to its *vtable*, which
says where each field stands inside of the table; scalars and structs stand there themselves,
everything else is an offset from there to a vector, a string or another table::

    vtable:  u16 its own size │ u16 the table's size │ u16 for each field: where, or 0 if absent
    table:   i32 back to the vtable │ fields
    vector:  u32 count │ elements

Nothing is read before it is known to lie within the buffer: a vtable, a field within its table,
a vector with all its elements. Offsets are positive, so there are no cycles. The depth is limited
all the same (:data:`DEEPEST`), because the reader doesn't know what its caller looks for.
Alignment isn't required: some writers don't keep it, and nothing here depends on it. A buffer
takes no memory beyond the values that are requested, whatever sizes it states.

The schema is the caller's: fields are given by their number, in the schema's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as attribute
from enum import Enum
from struct import Struct

from lakeferry.errors import InvalidInput, LimitExceeded

DEEPEST = 32
"""How many tables and buffers may be nested."""

_UNSIGNED_16 = Struct("<H")
_SIGNED_32 = Struct("<i")
_UNSIGNED_32 = Struct("<I")
_SMALLEST_VTABLE = 4
_SMALLEST_TABLE = 4
_OFFSET_BYTES = 4


class Scalar(Enum):
    """A number's type, as the schema has it."""

    UINT8 = Struct("<B")
    UINT16 = _UNSIGNED_16
    INT32 = _SIGNED_32
    UINT32 = _UNSIGNED_32
    INT64 = Struct("<q")
    UINT64 = Struct("<Q")


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A table whose vtable was checked. Its fields' values are checked when they are read.

    Each method takes a field's number and returns ``None``, or the default, if it is absent.
    """

    _data: bytes = attribute(repr=False)
    _at: int
    _size_bytes: int
    _vtable: int
    _fields: int
    _depth: int

    def number(self, field: int, kind: Scalar, default: int = 0) -> int:
        """Return a number; writers omit it if it is the default."""
        found = self.optional(field, kind)
        return default if found is None else found

    def optional(self, field: int, kind: Scalar) -> int | None:
        """Return a number, or ``None`` if it is absent."""
        packed: Struct = kind.value
        at = self._locate(field, packed.size)
        if at is None:
            return None
        (number,) = packed.unpack_from(self._data, at)
        return int(number)

    def struct(self, field: int, size_bytes: int) -> bytes | None:
        """Return the bytes of a struct, aligned or not."""
        at = self._locate(field, size_bytes)
        return None if at is None else self._data[at : at + size_bytes]

    def vector(self, field: int, element_bytes: int = 1) -> bytes | None:
        """Return the bytes of all elements of a vector of numbers or structs."""
        found = self._vector(field, element_bytes)
        if found is None:
            return None
        start, count = found
        return self._data[start : start + count * element_bytes]

    def text(self, field: int) -> str | None:
        """Return a string: a vector of UTF-8 with a zero after it."""
        found = self._vector(field, 1)
        if found is None:
            return None
        start, count = found
        if self._data[start + count : start + count + 1] != b"\0":
            raise _broken("no zero ends a string")
        try:
            return self._data[start : start + count].decode()
        except UnicodeDecodeError as error:
            raise _broken("a string isn't UTF-8") from error

    def table(self, field: int) -> FlatTable | None:
        """Return the table that a field leads to."""
        at = self._locate(field, _OFFSET_BYTES)
        return None if at is None else _table(self._data, self._follow(at), self._depth + 1)

    def tables(self, field: int) -> Iterator[FlatTable]:
        """Yield the tables of a vector; none if it is absent."""
        start, count = self._vector(field, _OFFSET_BYTES) or (0, 0)
        for at in range(start, start + count * _OFFSET_BYTES, _OFFSET_BYTES):
            yield _table(self._data, self._follow(at), self._depth + 1)

    def union(self, field: int) -> tuple[int, FlatTable | None]:
        """Return the number of a union's member, 0 for none, and its table.

        A union takes two fields: this one is the member's number, the next one its table.
        """
        return self.number(field, Scalar.UINT8), self.table(field + 1)

    def nested(self, field: int) -> FlatTable | None:
        """Return the root of a nested buffer, which is a vector of bytes."""
        data = self.vector(field)
        return None if data is None else root(data, depth=self._depth + 1)

    def _locate(self, field: int, size_bytes: int) -> int | None:
        """Return the position of a field of this size; ``None`` if it is absent."""
        if field >= self._fields:
            return None
        (offset,) = _UNSIGNED_16.unpack_from(self._data, self._vtable + 4 + 2 * field)
        if not offset:
            return None
        if offset < _SMALLEST_TABLE or offset + size_bytes > self._size_bytes:
            raise _broken(f"field {field} lies outside of its table")
        return self._at + int(offset)

    def _follow(self, at: int) -> int:
        """Return the position that an offset refers to; at least a few bytes follow it."""
        (offset,) = _UNSIGNED_32.unpack_from(self._data, at)
        if not offset:
            raise _broken("an offset leads to itself")
        if at + offset + _OFFSET_BYTES > len(self._data):
            raise _broken("an offset leads out of the buffer")
        return at + int(offset)

    def _vector(self, field: int, element_bytes: int) -> tuple[int, int] | None:
        """Return position and number of a vector's elements; all lie in the buffer."""
        at = self._locate(field, _OFFSET_BYTES)
        if at is None:
            return None
        at = self._follow(at)
        (count,) = _UNSIGNED_32.unpack_from(self._data, at)
        start = at + _OFFSET_BYTES
        if count * element_bytes > len(self._data) - start:
            raise _broken(f"a vector of {count:,} is longer than the buffer")
        return start, int(count)


def root(data: bytes, *, depth: int = 0) -> FlatTable:
    """Return the root table of a buffer.

    The buffer has neither a file identifier nor its size before it.
    """
    if len(data) < _OFFSET_BYTES:
        raise _broken(f"it has {len(data)} bytes")
    (offset,) = _UNSIGNED_32.unpack_from(data)
    return _table(data, int(offset), depth)


def _table(data: bytes, at: int, depth: int) -> FlatTable:
    """Return the table at a position, after checking that it and its vtable lie in the buffer."""
    if depth > DEEPEST:
        raise LimitExceeded(
            "a FlatBuffer can't be read",
            cause=f"it is nested more than {DEEPEST} deep",
            limit=DEEPEST,
        )
    if not 0 < at <= len(data) - _SMALLEST_TABLE:
        raise _broken("a table begins outside of the buffer")
    (back,) = _SIGNED_32.unpack_from(data, at)
    vtable = at - int(back)
    if not 0 <= vtable <= len(data) - _SMALLEST_VTABLE:
        raise _broken("a vtable begins outside of the buffer")
    (vtable_bytes,) = _UNSIGNED_16.unpack_from(data, vtable)
    (size_bytes,) = _UNSIGNED_16.unpack_from(data, vtable + 2)
    if vtable_bytes < _SMALLEST_VTABLE or vtable_bytes % 2:
        raise _broken(f"a vtable has {vtable_bytes} bytes")
    if vtable + vtable_bytes > len(data):
        raise _broken("a vtable ends outside of the buffer")
    if size_bytes < _SMALLEST_TABLE:
        raise _broken(f"a table has {size_bytes} bytes")
    if at + size_bytes > len(data):
        raise _broken("a table ends outside of the buffer")
    return FlatTable(data, at, int(size_bytes), vtable, (int(vtable_bytes) - 4) // 2, depth)


def _broken(cause: str) -> InvalidInput:
    return InvalidInput("a FlatBuffer can't be read", cause=cause)
