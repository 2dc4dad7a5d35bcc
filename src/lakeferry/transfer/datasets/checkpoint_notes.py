"""Notes that travel beside a chain: which versions have checkpoints and checksum files.

These files are written after their version, by any writer, and again if they are lost. So no
block names them, and no hash of the chain depends on them. The blocks of a run travel with a
document that says which of the run's versions have them::

    lakeferry-delta-beside-1
    {"checkpoints":[10,20],"checksums":[1,2,3]}

It comes after the blocks, in the same archive, under its own hash. The files themselves aren't
sent. A checkpoint repeats the commits; if it differed, in its rows or in footer statistics by
which readers skip rows, readers would believe it and not the commits. The receiver makes its own
from the commits (:mod:`lakeferry.transfer.datasets.delta.receiver_checkpoints`).

Pure: no store, no clock. A document comes from a peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from lakeferry.errors import InvalidInput
from lakeferry.log.paths import MAX_VERSION
from lakeferry.log.segment import Listing
from lakeferry.transfer.chain.hashes import Multihash

_MAGIC = b"lakeferry-delta-beside-1\n"
MOST_VERSIONS = 1_000
"""Most versions of each kind; if there are more, only the newest are listed."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Versions that have a checkpoint, and versions that have a checksum file, in order."""

    checkpoints: tuple[int, ...] = ()
    checksums: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.checkpoints or self.checksums)


NOTHING = Beside()


class _Document(msgspec.Struct, frozen=True):
    checkpoints: list[int]
    checksums: list[int]


_DOCUMENT = msgspec.json.Decoder(_Document)


def of_listing(listing: Listing) -> Beside:
    """Return which versions of a listing have these files."""
    whole = {one.version for one in listing.checkpoints if one.complete}
    return Beside(_newest(whole), _newest(listing.checksums))


def _newest(versions: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(versions)[-MOST_VERSIONS:])


def encode_note(beside: Beside) -> bytes:
    """Return the document for a note."""
    document = _Document(list(beside.checkpoints), list(beside.checksums))
    return _MAGIC + msgspec.json.encode(document)


def is_beside(data: bytes) -> bool:
    """Return True if an entry of an archive is such a document, and not a block."""
    return data.startswith(_MAGIC)


def parse_note(data: bytes) -> Beside:
    """Return the note in a document."""
    try:
        found = _DOCUMENT.decode(data.removeprefix(_MAGIC))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidInput(
            "the checkpoint notes of a chain can't be read", cause=str(error)
        ) from error
    for versions in (found.checkpoints, found.checksums):
        if len(versions) > MOST_VERSIONS:
            raise InvalidInput(
                "a chain has too many checkpoint notes", cause=f"{len(versions):,} versions"
            )
        if any(not 0 <= version <= MAX_VERSION for version in versions):
            raise InvalidInput("a checkpoint note is of a version that isn't in the chain")
    return Beside(_newest(set(found.checkpoints)), _newest(set(found.checksums)))


def split_archive(
    entries: Iterable[tuple[Multihash, bytes]], found: list[Beside]
) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the blocks of an archive; add the note in its document to ``found``."""
    for name, data in entries:
        if not is_beside(data):
            yield name, data
            continue
        if found or Multihash.sha3_256(data) != name:
            raise InvalidInput(
                "an archive needs one document of checkpoint notes, named by its hash"
            )
        found.append(parse_note(data))
