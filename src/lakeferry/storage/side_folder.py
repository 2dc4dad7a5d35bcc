"""A store that may be read-only: one folder of it is then kept elsewhere.

Writes below one folder go to the store itself. If the store refuses them, they go to another
store instead, under the same names. From then on they are read from there, also after the two
stores are opened again. All other objects are only in the first store.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from pathlib import Path
from typing import TypeVar

from lakeferry.errors import Forbidden, ObjectNotFound
from lakeferry.storage.store import (
    ObjectInfo,
    OpenedObject,
    Store,
    StoreConfig,
    StreamChunk,
    in_order,
)

_T = TypeVar("_T")


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return Lakeferry's cache folder on this machine."""
    if chosen := environment.get("LAKEFERRY_CACHE"):
        return Path(chosen)
    home = environment.get("XDG_CACHE_HOME")
    return Path(home or Path(environment.get("HOME") or "~").expanduser() / ".cache") / "lakeferry"


class Aside(Store):
    """``store``, with objects below ``folder`` in ``other`` if they can't be written here."""

    def __init__(self, store: Store, folder: str, other: Store) -> None:
        """Check whether objects were kept aside before."""
        self._store = store
        self._lead = f"{folder}/"
        self._other = other
        self.calls = store.calls
        self.is_used = next(other.list(self._lead), None) is not None
        """Whether objects are kept in the other store."""

    @property
    def config(self) -> StoreConfig:  # type: ignore[override]
        """The configuration of the store below, as it is now."""
        return self._store.config

    @property
    def asks_catalog(self) -> bool:
        """Whether the store below asks the table's catalog."""
        return self._store.asks_catalog

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List what is there, and what is kept aside."""
        found = self._store.list(prefix, start_after=start_after, stop_before=stop_before)
        if not self.is_used or not _meet(prefix, self._lead):
            return found
        aside = list(self._other.list(prefix, start_after=start_after, stop_before=stop_before))
        names = {info.path for info in aside}
        return merge((info for info in found if info.path not in names), aside, key=in_order)

    def head(self, path: str) -> ObjectInfo:
        """Ask for an object."""
        return self._read(path, lambda store: store.head(path))

    def get(self, path: str) -> bytes:
        """Get an object."""
        return self._read(path, lambda store: store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Get a part of an object."""
        return self._read(path, lambda store: store.get_range(path, start, length))

    def open(self, path: str) -> OpenedObject:
        """Open an object."""
        return self._read(path, lambda store: store.open(path))

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Get many objects; one by one where some may be kept aside."""
        if self.is_used and any(path.startswith(self._lead) for path in paths):
            return [self.get(path) for path in paths]
        return self._store.get_many(paths)

    def learn(self, path: str, uri: str) -> None:
        """Remember where the bytes of an object are."""
        self._store.learn(path, uri)

    def put(self, path: str, data: bytes) -> None:
        """Put an object."""
        self._write(path, lambda store: store.put(path, data))

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Put small objects, all of which are below the folder, or none."""
        if objects:
            self._write(next(iter(objects)), lambda store: store.put_many(objects))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put an object unless it is there."""
        return self._write(path, lambda store: store.put_if_absent(path, data))

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Replace an object if it is what is expected, wherever that is."""
        if not self.is_used:
            try:
                return self._store.swap(path, expected, data)
            except Forbidden:
                if not self._may_be_aside(path):
                    raise
        if not path.startswith(self._lead):
            return self._store.swap(path, expected, data)
        try:
            self._other.head(path)
        except ObjectNotFound:
            # The first object in the other store replaces the one that can't be replaced here.
            if self._there(path) == expected:
                return self._other.put_if_absent(path, data)
            return False
        return self._other.swap(path, expected, data)

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Put an object from its chunks; if that is refused, the chunks read so far are lost."""
        store = self._other if self.is_used and path.startswith(self._lead) else self._store
        store.put_stream(path, chunks, size_bytes)

    def copy_within(self, path: str, new_path: str) -> None:
        """Copy an object, across the two if need be."""
        try:
            if not (self.is_used and new_path.startswith(self._lead)):
                self._store.copy_within(path, new_path)
                return
        except Forbidden:
            if not self._may_be_aside(new_path):
                raise
        self._other.put(new_path, self.get(path))

    def locate(self, path: str) -> tuple[Store, str]:
        """Find an object that can't be kept aside."""
        return (self, path) if path.startswith(self._lead) else self._store.locate(path)

    def copy_from(
        self, source: Store, path: str, new_path: str, moved: Callable[[int], None]
    ) -> int | None:
        """Copy another store's object, where the store itself has the new one."""
        if new_path.startswith(self._lead):
            return None
        return self._store.copy_from(source, path, new_path, moved)

    def restore_time(self, path: str, modified_ms: int) -> None:
        """Set an object's time where that can be."""
        self._store.restore_time(path, modified_ms)

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete objects, each in the store that has it."""
        if not self.is_used:
            self._store.delete_many(paths)
            return
        self._other.delete_many([path for path in paths if path.startswith(self._lead)])
        if left := [path for path in paths if not path.startswith(self._lead)]:
            self._store.delete_many(left)

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Sign a request for what is here."""
        return self._store.sign(method, path, expires_s)

    def _read(self, path: str, act: Callable[[Store], _T]) -> _T:
        if self.is_used and path.startswith(self._lead):
            try:
                return act(self._other)
            except ObjectNotFound:
                pass
        return act(self._store)

    def _write(self, path: str, act: Callable[[Store], _T]) -> _T:
        if not (self.is_used and path.startswith(self._lead)):
            try:
                return act(self._store)
            except Forbidden:
                if not self._may_be_aside(path):
                    raise
        return act(self._other)

    def _may_be_aside(self, path: str) -> bool:
        """Return whether refused writes below the folder go to the other store."""
        if path.startswith(self._lead):
            self.is_used = True
            return True
        return False

    def _there(self, path: str) -> bytes | None:
        try:
            return self._store.get(path)
        except ObjectNotFound:
            return None


def _meet(prefix: str, lead: str) -> bool:
    return prefix.startswith(lead) or lead.startswith(prefix)
