"""Values that JSON has no type for: hashes, times, bounded numbers, bytes.

The reference dialect writes the bytes of a tarball as an array of numbers. They are read and
written in pieces, because one Python list would take eight bytes for each of them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw

from lakeferry.errors import InvalidInput
from lakeferry.transfer.chain.hashes import Multihash

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
# 63 bits: no size is larger, and every JSON reader can read that.
U64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Time = Annotated[datetime, Meta(tz=True)]

Text: TypeAlias = str | bytes | bytearray
"""A received message: a string, or its UTF-8, which takes less memory."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHUNK = 1 << 18
_NUMBERS = msgspec.json.Decoder(list[int])


def hash_or_none(text: str | None) -> Multihash | None:
    """Return the hash that a text spells, if there is a text."""
    return None if text is None else Multihash.parse(text)


def text_or_none(value: Multihash | None) -> str | None:
    """Return our spelling of a hash, if there is one."""
    return None if value is None else value.text


def time_ms(time: datetime | None) -> int | None:
    """Return a time in milliseconds since the epoch."""
    return None if time is None else (time - _EPOCH) // timedelta(milliseconds=1)


def time_of(since_epoch_ms: int | None) -> datetime | None:
    """Return milliseconds since the epoch as a time."""
    if since_epoch_ms is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=since_epoch_ms)
    except OverflowError as error:
        raise InvalidInput("not a time", cause=f"{since_epoch_ms} ms") from error


def array_of(data: bytes) -> Raw:
    """Return bytes as the JSON array of their values."""
    # In one buffer: there may be tens of megabytes.
    text = bytearray(b"[")
    for begin in range(0, len(data), _CHUNK):
        if begin:
            text += b","
        text += msgspec.json.encode(list(data[begin : begin + _CHUNK]))[1:-1]
    text += b"]"
    return Raw(text)


def bytes_of_array(array: Raw) -> bytes:
    """Return the bytes whose values are in a JSON array, which is known to be complete JSON."""
    # Not copied: there may be tens of megabytes.
    text = memoryview(array)
    if bytes(text[:1]) != b"[":
        raise InvalidInput("a payload isn't an array of bytes")
    data = bytearray()
    try:
        for piece in _pieces(text[1:-1]):
            data += bytes(_NUMBERS.decode(b"[" + piece + b"]"))
    except ValueError as error:  # includes msgspec's own errors
        raise InvalidInput("a payload isn't an array of bytes", cause=str(error)) from error
    return bytes(data)


def _pieces(text: memoryview) -> Iterator[bytes]:
    """Yield pieces cut at commas. A string or an array that is cut fails as not a number."""
    if bytes(text[-1:]) == b",":
        raise ValueError("it ends with a comma")
    begin = 0
    while begin < len(text):
        piece = bytes(text[begin : begin + _CHUNK])
        if begin + len(piece) < len(text):
            piece = piece[: piece.rfind(b",")] if b"," in piece else piece
        yield piece
        # Skip the comma.
        begin += len(piece) + 1


def base64_of(data: bytes) -> str:
    """Return bytes in base64."""
    return b64encode(data).decode()


def bytes_of_base64(text: str) -> bytes:
    """Return the bytes that a base64 text encodes."""
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidInput("a payload isn't base64", cause=str(error)) from error
