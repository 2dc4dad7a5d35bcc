"""Reads and writes ``_last_checkpoint``, and decides when it changes.

Implements the protocol's "Last Checkpoint File Schema" and "JSON checksum". The file is a hint:
if it is missing, stale or corrupt, readers list the log instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

_OBJECT = msgspec.json.Decoder(dict[str, Any])
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Hint:
    """The content of ``_last_checkpoint``: where a recent checkpoint is."""

    version: int
    size: int | None = None
    parts: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None


class _Hint(msgspec.Struct):
    version: int
    size: int | None = None
    parts: int | None = None
    sizeInBytes: int | None = None
    numOfAddFiles: int | None = None


_HINT = msgspec.json.Decoder(_Hint)


def decode_hint(data: bytes) -> Hint | None:
    """Return the hint, or ``None`` if it is invalid: a bad hint is never an error."""
    try:
        plain = _OBJECT.decode(data)
        value = _HINT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if value.version < 0:
        return None
    stated = plain.get("checksum")
    if isinstance(stated, str) and stated != json_checksum(data):
        return None
    return Hint(value.version, value.size, value.parts, value.sizeInBytes, value.numOfAddFiles)


def encode_hint(hint: Hint) -> bytes:
    """Return the bytes of ``_last_checkpoint``, with their own checksum in them."""
    value = {
        "version": hint.version,
        "size": hint.size,
        "parts": hint.parts,
        "sizeInBytes": hint.size_in_bytes,
        "numOfAddFiles": hint.num_of_add_files,
    }
    present = {key: item for key, item in value.items() if item is not None}
    present["checksum"] = json_checksum(msgspec.json.encode(present))  # type: ignore[assignment]
    return msgspec.json.encode(present)


def moves_hint(new: Hint, current: Hint | None, leads: Callable[[Hint], bool]) -> bool:
    """Return whether a new checkpoint's hint replaces the current one.

    A hint moves forward only, unless ``leads`` says that its checkpoint doesn't exist.
    """
    return current is None or current.version < new.version or not leads(current)


def json_checksum(document: bytes) -> str:
    """Return the MD5 of the canonical form of a JSON object without ``checksum``."""
    return hashlib.md5(canonical_json(document).encode(), usedforsecurity=False).hexdigest()


def canonical_json(document: bytes) -> str:
    """Return the canonical form of a JSON object, from which its checksum is computed."""
    top = {key: raw for key, raw in _RAW.decode(document).items() if key != "checksum"}
    pairs = sorted(
        (pair for key, raw in top.items() for pair in _pairs(_quoted(key), bytes(raw))),
        key=lambda pair: pair[0].encode(),
    )
    return ",".join(f"{path}={value}" for path, value in pairs)


def _pairs(path: str, raw: bytes) -> Iterator[tuple[str, str]]:
    text = raw.strip()
    if text.startswith(b"{"):
        for key, value in _RAW.decode(text).items():
            yield from _pairs(f"{path}+{_quoted(key)}", bytes(value))
    elif text.startswith(b"["):
        for index, value in enumerate(msgspec.json.decode(text, type=list[msgspec.Raw])):
            yield from _pairs(f"{path}+{index}", bytes(value))
    elif text.startswith(b'"'):
        yield path, _quoted(msgspec.json.decode(text, type=str))
    else:
        # Numbers and literals are their own canonical form, so they stay text.
        yield path, text.decode()


def _quoted(text: str) -> str:
    return '"' + quote(text, safe="-._~") + '"'
