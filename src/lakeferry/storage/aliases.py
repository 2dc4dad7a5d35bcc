"""A store in which some names stand for other objects.

Executors get it for tables whose newest commits are still under the names at which they were
staged: their configuration says which object each name stands for.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from typing import TypeVar

from lakeferry.errors import ObjectNotFound
from lakeferry.storage.store import (
    ObjectInfo,
    OpenedObject,
    Partial,
    PartsUpload,
    SignedPut,
    Store,
    StoreConfig,
    StreamChunk,
    in_order,
    within,
)

Read = TypeVar("Read")


class AliasStore(Store):
    """``below``, where the names of ``aliases`` stand for the objects that they map to.

    An object that is gone under its own name is looked for under its alias: staged commits are
    deleted once they are published. Writing to an alias isn't possible.
    """

    def __init__(self, below: Store, aliases: Mapping[str, str]) -> None:
        """Set the aliases: name to the name of the object."""
        self.below = below
        self._aliases = dict(aliases)
        self.calls = below.calls

    @property
    def config(self) -> StoreConfig:  # type: ignore[override]
        """The configuration of the store below, with the aliases."""
        return replace(self.below.config, aliases=tuple(sorted(self._aliases.items())))

    @property
    def asks_catalog(self) -> bool:
        """Whether the names of the log are those that the catalog has accepted: yes."""
        return True

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List what is there; an alias has size and time of its object."""
        found = self.below.list(prefix, start_after=start_after, stop_before=stop_before)
        ours = sorted(
            (
                self.head(alias)
                for alias in self._aliases
                if within(alias, prefix, start_after, stop_before)
            ),
            key=in_order,
        )
        return merge((info for info in found if info.path not in self._aliases), ours, key=in_order)

    def entries(self, prefix: str) -> Iterator[str]:
        """Yield what empties the place."""
        return self.below.entries(prefix)

    def is_occupied(self) -> bool:
        """Return whether anything is there."""
        return self.below.is_occupied()

    def head(self, path: str) -> ObjectInfo:
        """Ask for an object."""
        return replace(self._read(path, self.below.head), path=path)

    def get(self, path: str) -> bytes:
        """Get an object."""
        return self._read(path, self.below.get)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Get a part of an object."""
        return self._read(path, lambda name: self.below.get_range(name, start, length))

    def open(self, path: str) -> OpenedObject:
        """Open an object."""
        return self._read(path, self.below.open)

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Get many objects, by one call unless an alias's object is gone."""
        names = [self.actual(path) for path in paths]
        try:
            return self.below.get_many(names)
        except ObjectNotFound:
            if names == [*paths]:
                raise
            return [self.get(path) for path in paths]

    def learn(self, path: str, uri: str) -> None:
        """Remember where the bytes of an object are."""
        self.below.learn(self.actual(path), uri)

    def put(self, path: str, data: bytes) -> None:
        """Put an object."""
        self.below.put(self.check_write(path), data)

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Put small objects."""
        self.below.put_many({self.check_write(path): data for path, data in objects.items()})

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put an object unless it is there."""
        return self.below.put_if_absent(self.check_write(path), data)

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Replace an object if it is what is expected."""
        return self.below.swap(self.check_write(path), expected, data)

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Put an object from its chunks."""
        self.below.put_stream(self.check_write(path), chunks, size_bytes)

    def put_stream_if_absent(
        self, path: str, chunks: Iterator[StreamChunk], size_bytes: int
    ) -> bool:
        """Put an object from its chunks unless it is there."""
        return self.below.put_stream_if_absent(self.check_write(path), chunks, size_bytes)

    def partial(self, path: str) -> Partial | None:
        """Resume an object that is being received."""
        return self.below.partial(self.check_write(path))

    def parts_upload(self, path: str, size_bytes: int, *, begin: bool) -> PartsUpload | None:
        """Find an upload in parts, or begin one."""
        return self.below.parts_upload(self.check_write(path), size_bytes, begin=begin)

    def drop_parts(self, is_ours: Callable[[str, int], bool]) -> int:
        """Delete uploads in parts."""
        return self.below.drop_parts(is_ours)

    def copy_within(self, path: str, new_path: str) -> None:
        """Copy an object to another name."""
        to = self.check_write(new_path)
        self._read(path, lambda name: self.below.copy_within(name, to))

    def locate(self, path: str) -> tuple[Store, str]:
        """Find the object that a name stands for."""
        return self.below.locate(self.actual(path))

    def copy_from(
        self, source: Store, path: str, new_path: str, moved: Callable[[int], None]
    ) -> int | None:
        """Copy another store's object."""
        return self.below.copy_from(source, path, self.check_write(new_path), moved)

    def restore_time(self, path: str, modified_ms: int) -> None:
        """Set an object's time."""
        self.below.restore_time(path, modified_ms)

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete objects."""
        self.below.delete_many(paths)

    def prune(self, prefix: str) -> None:
        """Remove empty folders."""
        self.below.prune(prefix)

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Sign a URL of an object."""
        name = self.actual(path) if method == "GET" else self.check_write(path)
        return self.below.sign(method, name, expires_s)

    def sign_put(self, path: str, size_bytes: int, expires_s: int) -> SignedPut:
        """Sign a URL to put an object to."""
        return self.below.sign_put(self.check_write(path), size_bytes, expires_s)

    def actual(self, path: str) -> str:
        """Return the name of the object that a name stands for."""
        return self._aliases.get(path, path)

    def check_write(self, path: str) -> str:
        """Return a name that may be written to; refuse an alias."""
        if path in self._aliases:
            raise ValueError(f"{path} stands for {self._aliases[path]} and can't be written to")
        return path

    def _read(self, path: str, read: Callable[[str], Read]) -> Read:
        actual = self.actual(path)
        try:
            return read(actual)
        except ObjectNotFound:
            if actual == path:
                raise
            return read(path)
