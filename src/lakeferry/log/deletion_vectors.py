"""Deletion vector descriptors: their identity, and the path of their file.

Implements the protocol's "Deletion Vector Descriptor Schema" and its "Derived
Fields". The bitmaps themselves are not read here.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from urllib.parse import quote, unquote

from lakeferry.errors import CorruptLog

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUE = {character: value for value, character in enumerate(_Z85)}
_ENCODED_UUID_LENGTH = 20
# Characters that java.net.URI doesn't encode in a path, so that our paths are spelled like Spark's.
_SAFE = "/!$&'()*+,;=:@~-._"
_FILE = re.compile(r"deletion_vector_([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})\.bin")


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """The deleted rows of a data file, by reference (``u``, ``p``) or inline (``i``)."""

    storage_type: str
    path_or_inline_dv: str
    offset: int | None
    size_in_bytes: int
    cardinality: int

    @property
    def unique_id(self) -> str:
        """The id that distinguishes this vector from others of the same data file."""
        suffix = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline_dv}{suffix}"


def relative_path(path_or_inline_dv: str) -> str:
    """Return the percent-encoded path, below the table, of a vector of storage type ``u``."""
    split = len(path_or_inline_dv) - _ENCODED_UUID_LENGTH
    if split < 0:
        raise CorruptLog(
            "a deletion vector's descriptor can't be read",
            cause=f"{path_or_inline_dv!r} is too short to hold an encoded UUID",
            remedy="restore the commit or checkpoint that has it from a copy",
        )
    prefix, encoded = path_or_inline_dv[:split], path_or_inline_dv[split:]
    name = f"deletion_vector_{uuid.UUID(bytes=z85_decode(encoded))}.bin"
    return f"{_encoded(prefix)}/{name}" if prefix else name


def relative_descriptor(path: str) -> str | None:
    """Return the descriptor of type ``u`` for the percent-encoded ``path`` below the table.

    The exact inverse of :func:`relative_path`; ``None`` if no descriptor of type ``u`` leads to
    that path.
    """
    prefix, slash, name = path.rpartition("/")
    match = _FILE.fullmatch(name)
    folder = unquote(prefix)
    if match is None or _encoded(folder) != prefix or (slash and not prefix):
        return None
    return folder + z85_encode(uuid.UUID(match.group(1)).bytes)


def _encoded(folder: str) -> str:
    # A relative path with a colon in its first segment could be read as a scheme.
    first, slash, rest = folder.partition("/")
    return quote(first, safe=_SAFE.replace(":", "")) + slash + quote(rest, safe=_SAFE)


def z85_encode(data: bytes) -> str:
    """Encode bytes, whose number must be a multiple of four, as ZeroMQ's base 85."""
    encoded: list[str] = []
    for start in range(0, len(data), 4):
        number = int.from_bytes(data[start : start + 4], "big")
        digits = []
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits.append(_Z85[digit])
        encoded.extend(reversed(digits))
    return "".join(encoded)


def z85_decode(text: str) -> bytes:
    """Decode ZeroMQ's base 85, or raise :class:`~lakeferry.errors.CorruptLog`."""
    decoded = bytearray()
    try:
        if len(text) % 5:
            raise ValueError(f"{len(text)} characters aren't a multiple of five")
        for start in range(0, len(text), 5):
            number = 0
            for character in text[start : start + 5]:
                if character not in _VALUE:
                    raise ValueError(f"{character!r} isn't a character of Z85")
                number = number * 85 + _VALUE[character]
            if number >= 2**32:
                # Engines read this differently, and none of the results is more right.
                raise ValueError(f"{text[start : start + 5]!r} stands for more than four bytes")
            decoded += number.to_bytes(4, "big")
    except ValueError as broken:
        raise CorruptLog(
            "a deletion vector's descriptor can't be read",
            cause=f"{text!r} isn't Z85: {broken}",
            remedy="read an older version, or have the engine that wrote the vector rewrite the "
            "data file",
        ) from broken
    return bytes(decoded)
