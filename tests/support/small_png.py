"""Makes pictures of pages small: few colours, and the best compression of the standard library."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB, _RGBA, _PALETTE = 2, 6, 3
_COLOURS = 256


def small_png(picture: bytes) -> bytes:
    """Return a picture with at most 256 colours, those that are most of it, or those nearest."""
    width, height, rows = _decoded(picture)
    counts = Counter(pixel for row in rows for pixel in row)
    palette = [colour for colour, _ in counts.most_common(_COLOURS)]
    numbers = {colour: number for number, colour in enumerate(palette)}
    for colour in counts:
        if colour not in numbers:
            numbers[colour] = min(range(len(palette)), key=lambda n: _distance(palette[n], colour))
    body = b"".join(b"\0" + bytes(numbers[pixel] for pixel in row) for row in rows)
    head = struct.pack(">IIBBBBB", width, height, 8, _PALETTE, 0, 0, 0)
    parts = (
        (b"IHDR", head),
        (b"PLTE", b"".join(bytes(colour) for colour in palette)),
        (b"IDAT", zlib.compress(body, 9)),
        (b"IEND", b""),
    )
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _decoded(picture: bytes) -> tuple[int, int, list[list[tuple[int, ...]]]]:
    """Return width, height and rows of colours; of what there is, only what browsers write."""
    parts = dict[bytes, bytes]()
    for kind, data in _parts(picture):
        parts[kind] = parts.get(kind, b"") + data
    width, height, depth, kind_of_colour = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert depth == 8, depth
    channels = {_RGB: 3, _RGBA: 4}[kind_of_colour]
    raw = zlib.decompress(parts[b"IDAT"])
    rows, above = [], bytearray(width * channels)
    for start in range(0, len(raw), width * channels + 1):
        line = bytearray(raw[start + 1 : start + 1 + width * channels])
        _unfilter(raw[start], line, above, channels)
        rows.append([tuple(line[at : at + 3]) for at in range(0, len(line), channels)])
        above = line
    return width, height, rows


def _parts(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    assert picture.startswith(_SIGNATURE)
    at = len(_SIGNATURE)
    while at < len(picture):
        (length,) = struct.unpack(">I", picture[at : at + 4])
        yield picture[at + 4 : at + 8], picture[at + 8 : at + 8 + length]
        at += length + 12


def _unfilter(kind: int, line: bytearray, above: bytearray, channels: int) -> None:
    """Undo the filter of a row, as the PNG specification numbers them."""
    for at in range(len(line)):
        left = line[at - channels] if at >= channels else 0
        up, corner = above[at], above[at - channels] if at >= channels else 0
        added = (0, left, up, (left + up) // 2, 0)[kind]
        if kind == 4:
            guess = left + up - corner
            added = min((left, up, corner), key=lambda each: abs(guess - each))
        line[at] = (line[at] + added) & 255
