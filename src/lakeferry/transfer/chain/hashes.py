"""Multihashes: parse, print, compute, check.

Blocks, data slices and checkpoints are named by the sha3-256 of their bytes. Inside a block such
a name is a multihash: the number of the algorithm, the digest's length, the digest. As text it is
a multibase string. We write one spelling, ``f1620`` and 64 lower-case hexadecimal digits, and
read three more::

    f…  base16, lower case        F…  base16, upper case
    z…  base58btc                 u…  base64url without padding

Each spelling has exactly one text for a given hash, and anything else is refused. So a name is
safe in a path after it was parsed: paths always use :attr:`Multihash.text`, never the peer's
text.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import unhexlify
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from lakeferry.errors import HashMismatch, InvalidInput

DIGEST_BYTES = 32
"""The length of a digest, for all known algorithms."""
LONGEST_TEXT = 128
"""Longer than any known spelling of a hash: a longer text isn't parsed."""

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUES = {letter: value for value, letter in enumerate(_BASE58)}
_SHOWN = 80


class Algorithm(IntEnum):
    """The algorithm of a digest, by its number among multicodecs."""

    SHA2_256 = 0x12
    SHA3_256 = 0x16
    ARROW0_SHA3_256 = 0x300016
    """A hash of rows and not of bytes; transfer never computes it."""


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


# All valid prefixes of a digest: the algorithm's number and the digest's length.
_PREFIXES = {algorithm: _varint(algorithm) + bytes([DIGEST_BYTES]) for algorithm in Algorithm}
_SIZES_BYTES = {len(prefix) + DIGEST_BYTES for prefix in _PREFIXES.values()}


@dataclass(frozen=True, slots=True, order=True)
class Multihash:
    """A digest and its algorithm. Equal values are the same name, in whatever spelling."""

    algorithm: Algorithm
    digest: bytes

    def __post_init__(self) -> None:
        if len(self.digest) != DIGEST_BYTES:
            raise InvalidInput(
                "not a hash", cause=f"its digest has {len(self.digest)} bytes, not {DIGEST_BYTES}"
            )

    @classmethod
    def sha3_256(cls, data: bytes | memoryview) -> Self:
        """Return the name of these bytes."""
        return cls(Algorithm.SHA3_256, hashlib.sha3_256(data).digest())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the multihash that these bytes encode, without any rest."""
        if len(data) in _SIZES_BYTES:
            for algorithm, prefix in _PREFIXES.items():
                if data.startswith(prefix) and len(data) == len(prefix) + DIGEST_BYTES:
                    return cls(algorithm, data[len(prefix) :])
        shown = data[: _SHOWN // 2].hex()
        raise InvalidInput("not a hash", cause=f"{len(data)} bytes, {shown or 'none'}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the multihash that a text spells, or raise ``InvalidInput``."""
        if len(text) > LONGEST_TEXT:
            raise InvalidInput("not a hash", cause=f"a text of {len(text):,} characters")
        decode = _DECODERS.get(text[:1])
        if decode is None:
            raise InvalidInput("not a hash", cause=repr(text[:_SHOWN]))
        try:
            found = cls.from_bytes(decode(text[1:]))
        except ValueError as error:
            raise InvalidInput("not a hash", cause=repr(text[:_SHOWN])) from error
        return found

    @property
    def encoded(self) -> bytes:
        """The multihash as bytes, as in a block."""
        return _PREFIXES[self.algorithm] + self.digest

    @property
    def text(self) -> str:
        """Our spelling: lower-case base16."""
        return f"f{self.encoded.hex()}"

    def spelled(self, base: str) -> str:
        """Return the text in one of the bases ``f``, ``F``, ``z`` and ``u``."""
        return base + _ENCODERS[base](self.encoded)

    def __str__(self) -> str:
        return self.text


class Digest:
    """The hash and number of bytes that are added piece by piece.

    ``hashlib`` lets other threads run while it processes more than a few kilobytes.
    """

    __slots__ = ("_algorithm", "_hasher", "size_bytes")

    def __init__(self, algorithm: Algorithm = Algorithm.SHA3_256) -> None:
        maker = _HASHERS.get(algorithm)
        if maker is None:
            raise InvalidInput(f"{algorithm.name} isn't a hash of bytes")
        self._algorithm = algorithm
        self._hasher = maker()
        self.size_bytes = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next bytes."""
        self._hasher.update(data)
        self.size_bytes += data.nbytes if isinstance(data, memoryview) else len(data)

    def multihash(self) -> Multihash:
        """Return the name of all bytes added so far."""
        return Multihash(self._algorithm, self._hasher.digest())

    def check(self, expected: Multihash) -> None:
        """Raise ``HashMismatch`` unless the bytes added so far have this name."""
        check_hash(self.multihash(), expected)


def hash_stream(chunks: Iterable[bytes | bytearray | memoryview]) -> Multihash:
    """Return the name of all these bytes together."""
    digest = Digest()
    for chunk in chunks:
        digest.update(chunk)
    return digest.multihash()


def check_hash(actual: Multihash, expected: Multihash) -> None:
    """Raise ``HashMismatch`` unless the two are equal."""
    if actual != expected:
        raise HashMismatch(
            f"the bytes don't match the hash {expected}",
            cause=f"their hash is {actual}",
            remedy="transfer it again; if that doesn't help, ask the owner of the sender's "
            "dataset: its copy is damaged",
            expected=expected.text,
            actual=actual.text,
        )


_HASHERS: dict[Algorithm, Callable[[], hashlib._Hash]] = {
    Algorithm.SHA2_256: hashlib.sha256,
    Algorithm.SHA3_256: hashlib.sha3_256,
}


def _from_base16(text: str) -> bytes:
    # bytes.fromhex() would skip white space, and allow many spellings of one hash.
    if text != text.lower():
        raise ValueError("upper case")
    return unhexlify(text)


def _from_base16_upper(text: str) -> bytes:
    if text != text.upper():
        raise ValueError("lower case")
    return unhexlify(text)


def _to_base58(data: bytes) -> str:
    number, letters = int.from_bytes(data, "big"), ""
    while number:
        number, value = divmod(number, 58)
        letters = _BASE58[value] + letters
    return _BASE58[0] * (len(data) - len(data.lstrip(b"\0"))) + letters


def _from_base58(text: str) -> bytes:
    number = 0
    for letter in text:
        if (value := _BASE58_VALUES.get(letter)) is None:
            raise ValueError("no letter of base58")
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip(_BASE58[0]))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _to_base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _from_base64(text: str) -> bytes:
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    # Python skips letters that aren't base64, and ignores spare bits.
    if _to_base64(data) != text:
        raise ValueError("not how base64url spells it")
    return data


_DECODERS: dict[str, Callable[[str], bytes]] = {
    "f": _from_base16,
    "F": _from_base16_upper,
    "z": _from_base58,
    "u": _from_base64,
}
_ENCODERS: dict[str, Callable[[bytes], str]] = {
    "f": lambda data: data.hex(),
    "F": lambda data: data.hex().upper(),
    "z": _to_base58,
    "u": _to_base64,
}
