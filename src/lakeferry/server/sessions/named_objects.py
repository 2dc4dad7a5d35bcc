"""Collections of the objects that blocks name, in little memory: there may be very many."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from lakeferry.errors import InvalidInput
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.datasets.block_ranges import AnyBlock


class ObjectRefs:
    """The objects that blocks name, each once, found by kind, hash and path.

    There may be hundreds of thousands; a dictionary would double the memory.
    """

    def __init__(self, refs: Iterable[ObjectRef]) -> None:
        """Keep these objects."""
        self._refs = list({_key(ref): ref for ref in refs}.values())
        order = sorted((hash(_key(ref)), at) for at, ref in enumerate(self._refs))
        self._hashes = array("q", (hashed for hashed, _ in order))
        self._places = array("q", (at for _, at in order))

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._refs)

    def __iter__(self) -> Iterator[ObjectRef]:
        """Yield each object once."""
        return iter(self._refs)

    def find(self, kind: str, name: Multihash, path: str | None) -> ObjectRef:
        """Return an object, or raise ``InvalidInput`` if no block names it."""
        key = kind, name, path
        hashed = hash(key)
        at = bisect_left(self._hashes, hashed)
        while at < len(self._hashes) and self._hashes[at] == hashed:
            found = self._refs[self._places[at]]
            if _key(found) == key:
                return found
            at += 1
        raise InvalidInput(
            "the client wants to send an object that no block names", cause=str(name)
        )


def _key(ref: ObjectRef) -> tuple[str, Multihash, str | None]:
    return ref.kind.value, ref.hash, ref.path


class ObjectKeys:
    """The objects that a table's blocks name, in eight bytes each: there may be many.

    Two objects may have the same eight bytes. An attacker can't choose such a pair, because
    Python's hash of a text has a random key in each process.
    """

    def __init__(self) -> None:
        """Start without objects."""
        self._keys = array("q")
        self._is_sorted = True

    def take(self, block: AnyBlock) -> None:
        """Add the objects that a block names."""
        self._keys.extend(map(_hashed, block.objects))
        self._is_sorted = False

    def __contains__(self, ref: ObjectRef) -> bool:
        """Return True if a block names the object."""
        if not self._is_sorted:
            self._keys = array("q", sorted(self._keys))
            self._is_sorted = True
        key = _hashed(ref)
        at = bisect_left(self._keys, key)
        return at < len(self._keys) and self._keys[at] == key


def _hashed(ref: ObjectRef) -> int:
    return hash((ref.kind.value, ref.hash.text, ref.path))
