"""Packs many blocks into one payload: a gzipped tar archive.

One regular file for each block, oldest first. Its name is the block's hash as text, without a
folder; its content is the block's exact bytes. After a Delta table's blocks there may be one more
file, also named by its hash (``checkpoint_notes.py``). Nothing else may be in the archive. It is
written in GNU's format like the reference implementation's, with owner, group, mode and time left
empty, so that the same blocks always make the same payload.

The reader doesn't trust the bytes. It checks each header before it reads the content, and refuses
anything but a plain file named by a hash: no folders, links, devices, long names or extended
headers, so no name can lead out of a folder. Input is decompressed piece by piece and counted
(:class:`ArchiveLimits`), so a payload that expands too far is refused as soon as it passes a
limit. Only one block is in memory at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lakeferry.errors import InvalidInput, LimitExceeded
from lakeferry.transfer.chain.hashes import Algorithm, Multihash
from lakeferry.transfer.chain.odf_blocks import LARGEST_BLOCK_BYTES

RECORD_BYTES = 512
MEDIA_TYPE = "application/tar+gzip"

_PIECE_BYTES = 64 << 10
_GZIP = 16 + zlib.MAX_WBITS
_NAME = slice(0, 100)
_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_TYPE = 156
_MAGIC = slice(257, 265)
_PREFIX = slice(345, 500)
_GNU = b"ustar  \0"
_POSIX = b"ustar\x0000"
_OLD = bytes(8)
_FILES = (ord("0"), 0)
_TYPES = {
    ord("1"): "a link",
    ord("2"): "a symbolic link",
    ord("3"): "a device",
    ord("4"): "a device",
    ord("5"): "a folder",
    ord("6"): "a pipe",
    ord("x"): "an extended header",
    ord("g"): "an extended header",
    ord("L"): "a long name",
    ord("K"): "a long link",
}
_ZEROS = bytes(RECORD_BYTES)
_LARGEST_TAIL_BYTES = 1 << 20  # writers pad to 10 KiB, or to a block size of their own


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits for a peer's archive; beyond them it is refused with ``LimitExceeded``."""

    packed_bytes: int = 64 << 20
    """Size of the payload as received."""
    unpacked_bytes: int = 512 << 20
    """Size of the whole archive, with headers and padding."""
    entries: int = 100_000
    entry_bytes: int = LARGEST_BLOCK_BYTES


_DEFAULT_LIMITS = ArchiveLimits()


def pack_blocks(blocks: Iterable[tuple[Multihash, bytes]], *, gzip: bool = True) -> Iterator[bytes]:
    """Yield an archive of these blocks piece by piece, in the given order."""
    if not gzip:
        yield from _archive(blocks)
        return
    # The header that zlib writes names no file and no time.
    packer = zlib.compressobj(wbits=_GZIP)
    for piece in _archive(blocks):
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


def unpack(
    payload: bytes | Iterable[bytes],
    *,
    limits: ArchiveLimits = _DEFAULT_LIMITS,
    gzip: bool = True,
) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the blocks of an archive with their names, in its order; no name comes twice.

    The blocks' hashes aren't checked here (``blocks.parse`` does). A payload that isn't such an
    archive is ``InvalidInput``, at the first error: don't use what was yielded until the end is
    reached.
    """
    pieces = _pieces(payload, limits)
    source = _Source(_inflated(pieces) if gzip else pieces, limits)
    seen: set[bytes] = set()
    while (header := source.take(RECORD_BYTES, optional=True)) and header != _ZEROS:
        name, size_bytes = _entry(header)
        if len(seen) == limits.entries:
            raise _too_much("entries", limits.entries)
        if size_bytes > limits.entry_bytes:
            raise _too_much("bytes in one entry", limits.entry_bytes)
        if name.digest in seen:
            raise _broken(f"it has {name} twice")
        seen.add(name.digest)
        data = source.take(size_bytes)
        source.take(-size_bytes % RECORD_BYTES)
        yield name, data
    source.finish()


def _archive(blocks: Iterable[tuple[Multihash, bytes]]) -> Iterator[bytes]:
    for name, data in blocks:
        yield _header(name, len(data))
        yield data
        yield bytes(-len(data) % RECORD_BYTES)
    yield 2 * _ZEROS


def _header(name: Multihash, size_bytes: int) -> bytes:
    header = bytearray(RECORD_BYTES)
    text = name.text.encode()
    header[: len(text)] = text
    header[_SIZE] = b"%011o\0" % size_bytes
    header[136:148] = b"%011o\0" % 0
    header[_MAGIC] = _GNU
    header[_CHECKSUM] = b"%07o\0" % _checksum(header)
    return bytes(header)


def _checksum(header: bytes | bytearray) -> int:
    """Return the sum of a header's bytes, with spaces in place of the sum's own field."""
    return sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ")


def _entry(header: bytes) -> tuple[Multihash, int]:
    """Return name and size of a header's file; refuse anything but a plain file."""
    if _octal(header[_CHECKSUM], "checksum") != _checksum(header):
        raise _broken("a header's checksum is wrong")
    if header[_MAGIC] not in (_GNU, _POSIX, _OLD):
        raise _broken("a header is of no known format")
    if header[_TYPE] not in _FILES:
        what = _TYPES.get(header[_TYPE], f"an entry of type {header[_TYPE]:#04x}")
        raise _broken(f"it has {what}")
    text, _, rest = header[_NAME].partition(b"\0")
    # POSIX has a folder name in another field; readers of other formats use it differently.
    if rest.strip(b"\0") or header[_PREFIX].strip(b"\0"):
        raise _broken("a name has something behind or before it")
    try:
        name = Multihash.parse(text.decode("ascii"))
    except (InvalidInput, UnicodeDecodeError) as error:
        raise _broken(f"an entry's name isn't a hash: {text!r}") from error
    if name.algorithm is not Algorithm.SHA3_256:
        raise _broken(f"an entry is named by {name.algorithm.name}: {text!r}")
    return name, _size(header[_SIZE])


def _size(field: bytes) -> int:
    if field[0] & 0x80:
        # GNU writes numbers that don't fit, sizes from 8 GiB, in binary.
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    return _octal(field, "size")


def _octal(field: bytes, what: str) -> int:
    digits = field.lstrip(b" ").rstrip(b" \0")
    if not digits or digits.strip(b"01234567"):
        raise _broken(f"a header's {what} isn't a number: {field!r}")
    return int(digits, 8)


def _pieces(payload: bytes | Iterable[bytes], limits: ArchiveLimits) -> Iterator[memoryview]:
    """Yield the payload in small pieces, up to its limit."""
    packed_bytes = 0
    for chunk in (payload,) if isinstance(payload, bytes) else payload:
        packed_bytes += len(chunk)
        if packed_bytes > limits.packed_bytes:
            raise _too_much("bytes", limits.packed_bytes)
        view = memoryview(chunk)
        for at in range(0, len(view), _PIECE_BYTES):
            yield view[at : at + _PIECE_BYTES]


def _inflated(pieces: Iterator[memoryview]) -> Iterator[bytes]:
    """Yield a gzip stream's content in small pieces; its checksum is verified at the end."""
    unpacker = zlib.decompressobj(wbits=_GZIP)
    for piece in pieces:
        data, rest = b"-", bytes(piece)
        # Even when all input is consumed, decompressed bytes may still be inside.
        while (rest or data) and not unpacker.eof:
            try:
                data = unpacker.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                raise _broken(f"it isn't gzip: {error}") from error
            rest = unpacker.unconsumed_tail
            yield data
        if rest or unpacker.unused_data:
            raise _broken("something follows the gzip stream")
    if not unpacker.eof:
        raise _broken("the gzip stream ends too early")


class _Source:
    """An archive's bytes, taken in order and counted."""

    def __init__(
        self, pieces: Iterator[bytes] | Iterator[memoryview], limits: ArchiveLimits
    ) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")
        self._limit_bytes = limits.unpacked_bytes
        self._taken_bytes = 0

    def take(self, size_bytes: int, *, optional: bool = False) -> bytes:
        """Return exactly that many bytes; or none at the end, if ``optional``."""
        taken = bytearray()
        while len(taken) < size_bytes and self._fill():
            wanted = size_bytes - len(taken)
            taken += self._piece[:wanted]
            self._piece = self._piece[wanted:]
        if len(taken) < size_bytes and not (optional and not taken):
            raise _broken("the archive ends too early")
        return bytes(taken)

    def finish(self) -> None:
        """Read to the end; only a limited number of zeros may follow."""
        tail_bytes = 0
        while self._fill():
            tail_bytes += len(self._piece)
            if tail_bytes > _LARGEST_TAIL_BYTES:
                raise _too_much("bytes behind the archive's end", _LARGEST_TAIL_BYTES)
            if any(self._piece):
                raise _broken("something follows the archive's end")
            self._piece = memoryview(b"")

    def _fill(self) -> bool:
        """Load the next piece; return False at the end."""
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._taken_bytes += len(piece)
            if self._taken_bytes > self._limit_bytes:
                raise _too_much("bytes unpacked", self._limit_bytes)
            self._piece = memoryview(piece)
        return True


def _broken(cause: str) -> InvalidInput:
    return InvalidInput(
        "an archive of blocks can't be read",
        cause=cause,
        remedy="it has to be a tar of plain files, each named by its block's hash",
    )


def _too_much(what: str, limit: int) -> LimitExceeded:
    return LimitExceeded(
        "an archive of blocks is too large", cause=f"more than {limit:,} {what}", limit=limit
    )
