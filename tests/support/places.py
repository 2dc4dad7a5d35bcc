"""Several places in one store: what several tables, and a table that moves, need.

A :class:`Place` is a store below a folder of another store. Places of one store
share its clock, its counters and its faults, so a test can let the n-th call of a
procedure go wrong wherever it is made, and a simulation can interleave calls to
all of them::

    world = FaultyStore(DictStore(uri="memory://world"), at(7, Fault.STOP_AFTER))
    opened = opener(world)
    opened("memory://world/old"), opened("memory://world/new")
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from lakeferry.storage import ObjectInfo, Store, StoreConfig
from lakeferry.storage.uris import relative_name, same_place


class Place(Store):
    """The objects of another store whose names begin with a folder."""

    def __init__(self, whole: Store, folder: str) -> None:
        """Be the part of ``whole`` below ``folder``."""
        self._whole = whole
        self._lead = f"{folder}/"
        self.config = StoreConfig(f"{whole.uri}/{folder}", whole.config.options)
        self.calls = whole.calls

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List what is below the folder."""
        found = self._whole.list(
            self._lead + prefix,
            start_after=None if start_after is None else self._lead + start_after,
            stop_before=None if stop_before is None else self._lead + stop_before,
        )
        for info in found:
            yield replace(info, path=info.path.removeprefix(self._lead))

    def head(self, path: str) -> ObjectInfo:
        """Ask for an object; the root itself is a folder and no object."""
        name = self._lead + path if path else self._lead.rstrip("/")
        return replace(self._whole.head(name), path=path)

    def get(self, path: str) -> bytes:
        """Get an object."""
        return self._whole.get(self._lead + path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Get a part of an object."""
        return self._whole.get_range(self._lead + path, start, length)

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Get many objects."""
        return self._whole.get_many([self._lead + path for path in paths])

    def put(self, path: str, data: bytes) -> None:
        """Put an object."""
        self._whole.put(self._lead + path, data)

    def put_stream(self, path: str, chunks: Iterator[bytes], size_bytes: int) -> None:
        """Put an object from its chunks."""
        self._whole.put_stream(self._lead + path, chunks, size_bytes)

    def copy_within(self, path: str, new_path: str) -> None:
        """Copy an object to another name in the same place."""
        self._whole.copy_within(self._lead + path, self._lead + new_path)

    def restore_time(self, path: str, modified_ms: int) -> None:
        """Set an object's time."""
        self._whole.restore_time(self._lead + path, modified_ms)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put an object unless it is there."""
        return self._whole.put_if_absent(self._lead + path, data)

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Replace an object if it is what is expected."""
        return self._whole.swap(self._lead + path, expected, data)

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete objects."""
        self._whole.delete_many([self._lead + path for path in paths])

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Sign a URL of an object."""
        return self._whole.sign(method, self._lead + path, expires_s)


def opener(whole: Store) -> Callable[[str | StoreConfig], Store]:
    """Return what opens any place in ``whole``, by its URI or by its configuration."""

    def opened(place: str | StoreConfig) -> Store:
        uri = place if isinstance(place, str) else place.uri
        folder = relative_name(whole.uri, uri)
        if folder is None and not same_place(uri, whole.uri):
            raise AssertionError(f"{uri} isn't in {whole.uri}")
        return whole if folder is None else Place(whole, folder)

    return opened


def below(objects: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    """Return those of the objects that are in a folder, by their names below it."""
    lead = f"{folder}/"
    return {name[len(lead) :]: data for name, data in objects.items() if name.startswith(lead)}


def inside(folder: str, objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return objects by the names that they have above their folder."""
    return {f"{folder}/{name}": data for name, data in objects.items()}
