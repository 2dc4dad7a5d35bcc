"""Reads Thrift's compact protocol, as far as Parquet footers need it.

On some broken footers, pyarrow crashes the whole process when it is asked about a column chunk.
We open other people's tables, so this module reads what we need from a footer, and checks every
length.

A struct becomes a dictionary from field number to value, a list becomes a list; the caller knows
the meaning of the numbers (:mod:`lakeferry.log.parquet`).
"""

from __future__ import annotations

import struct
from typing import Any

from lakeferry.errors import CorruptLog

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE = range(8)
_BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(8, 14)
_MAX_DEPTH = 32
_MAX_VARINT_BYTES = 10


def decode_struct(data: bytes) -> dict[int, Any]:
    """Return the struct at the beginning of ``data``, or raise ``CorruptLog``."""
    try:
        return _Reader(data).struct(0)
    except (IndexError, ValueError, struct.error) as broken:
        raise CorruptLog("a Parquet footer can't be read", cause=str(broken)) from broken


def decode_struct_at(data: bytes, start: int) -> tuple[dict[int, Any], int]:
    """Return the struct that begins at ``start``, and the position after it."""
    reader = _Reader(data, start)
    try:
        return reader.struct(0), reader.at
    except (IndexError, ValueError, struct.error) as broken:
        raise CorruptLog("a Parquet page can't be read", cause=str(broken)) from broken


class Located(bytes):
    """Text or bytes in a struct with their position, including the length before them.

    The length is stated only there, so the bytes can be replaced by longer or shorter ones.
    """

    start: int
    end: int


class LocatedStruct(dict[int, Any]):
    """A struct with its position: from ``start`` up to ``end``, including its stop byte."""

    start: int
    end: int


EMPTY_STRUCT = bytes([_STOP])
"""A struct without fields, which can replace a :class:`LocatedStruct`."""


def decode_located(data: bytes, until: int) -> dict[int, Any]:
    """Return the struct at the beginning of ``data``, up to the field ``until``.

    All bytes in it are :class:`Located`, all structs :class:`LocatedStruct`.
    """
    try:
        return _Reader(data, locate=True).struct(0, until=until)
    except (IndexError, ValueError, struct.error) as broken:
        raise CorruptLog("a Parquet footer can't be read", cause=str(broken)) from broken


def encode_bytes(value: bytes) -> bytes:
    """Return bytes as encoded in a struct, with their length before them."""
    length, encoded = len(value), bytearray()
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*encoded, length]) + value


class _Reader:
    def __init__(self, data: bytes, start: int = 0, *, locate: bool = False) -> None:
        self._data = data
        self._at = start
        self._locate = locate

    @property
    def at(self) -> int:
        """The current position."""
        return self._at

    def struct(self, depth: int, *, until: int | None = None) -> dict[int, Any]:
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        # A footer has thousands of numbers, nearly all of one byte; these are read without a call.
        data, at = self._data, self._at
        fields: dict[int, Any] = LocatedStruct() if self._locate else {}
        begun = at
        number = 0
        while True:
            header = data[at]
            at += 1
            kind = header & 0x0F
            if kind == _STOP:
                break
            if step := header >> 4:
                number += step
            else:
                self._at = at
                number = self._zigzag()
                at = self._at
            if number in fields:
                # Two readers might each use a different one.
                raise ValueError(f"field {number} is there twice")
            if _I16 <= kind <= _I64 and data[at] < 0x80:
                fields[number] = data[at] >> 1 ^ -(data[at] & 1)
                at += 1
            elif kind in (_TRUE, _FALSE):
                fields[number] = kind == _TRUE
            else:
                self._at = at
                fields[number] = self._value(kind, depth)
                at = self._at
            if number == until:
                break
        self._at = at
        if isinstance(fields, LocatedStruct):
            fields.start, fields.end = begun, at
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if _I16 <= kind <= _I64:
            return self._zigzag()
        if kind == _BINARY:
            return self._located() if self._locate else self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth + 1)
        if kind == _DOUBLE:
            return struct.unpack("<d", self._bytes(8))[0]
        if kind in (_BYTE, _TRUE, _FALSE):
            # In lists and maps a boolean takes a byte.
            return self._byte()
        if kind == _MAP:
            return self._map(depth + 1)
        if kind == _UUID:
            return self._bytes(16)
        raise ValueError(f"it has a value of the unknown kind {kind}")

    def _located(self) -> Located:
        start = self._at
        found = Located(self._bytes(self._varint()))
        found.start, found.end = start, self._at
        return found

    def _list(self, depth: int) -> list[Any]:
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        header = self._byte()
        count = header >> 4
        if count == 15:
            count = self._varint()
        self._check_count(count)
        kind = header & 0x0F
        if kind == _STRUCT:
            return [self.struct(depth + 1) for _ in range(count)]
        return [self._value(kind, depth) for _ in range(count)]

    def _map(self, depth: int) -> list[tuple[Any, Any]]:
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        count = self._varint()
        self._check_count(count)
        if not count:
            return []
        kinds = self._byte()
        return [
            (self._value(kinds >> 4, depth), self._value(kinds & 0x0F, depth)) for _ in range(count)
        ]

    def _check_count(self, count: int) -> None:
        # Every element takes at least one byte, so a larger count is invalid.
        if count > len(self._data) - self._at:
            raise ValueError("a list is longer than the footer")

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _bytes(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise ValueError("a value is longer than the footer")
        start = self._at
        self._at += length
        return self._data[start : self._at]

    def _varint(self) -> int:
        data, at = self._data, self._at
        value = data[at]
        at += 1
        if value >= 0x80:
            value &= 0x7F
            for position in range(1, _MAX_VARINT_BYTES):
                byte = data[at]
                at += 1
                value |= (byte & 0x7F) << (7 * position)
                if byte < 0x80:
                    break
            else:
                raise ValueError("a number is too long")
        self._at = at
        return value

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
