"""A store whose changes stay in memory, for dry runs.

Writes stay in memory; reads return what would be there. Small objects are kept whole. A copy
is kept as a reference to the original object and read from there, so that the memory of a
dry run doesn't grow with the table.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge

from lakeferry.errors import ObjectNotFound
from lakeferry.storage.store import (
    ObjectInfo,
    Store,
    StoreConfig,
    StreamChunk,
    exactly,
    in_order,
    within,
)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An object that was written: its bytes."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def get(self) -> bytes:
        return self.data

    def get_range(self, start: int, length: int) -> bytes:
        return self.data[start : start + length]


@dataclass(frozen=True, slots=True)
class ReferredObject:
    """An object that is a copy of another one, its bytes changed by ``change`` if given.

    A listing shows the size of the original.
    """

    store: Store
    path: str
    size_bytes: int
    change: Callable[[bytes], bytes] | None = None

    def get(self) -> bytes:
        """Return the bytes of the original, changed if need be."""
        data = self.store.get(self.path)
        return data if self.change is None else self.change(data)

    def get_range(self, start: int, length: int) -> bytes:
        """Return a part of the object; a changed object is read whole."""
        if self.change is None:
            return self.store.get_range(self.path, start, length)
        return self.get()[start : start + length]


@dataclass(slots=True)
class OverlayChanges:
    """The changes to one store, which several overlays of one place share."""

    objects: dict[str, _Kept | ReferredObject | None] = field(default_factory=dict)
    """Written objects by name; ``None`` is a deleted name."""
    left: tuple[str, ...] | None = None
    """Prefixes of the names to keep, after all others were deleted at once."""


class Overlay(Store):
    """Another store with changes in memory."""

    def __init__(self, below: Store, changes: OverlayChanges | None = None) -> None:
        """Put an overlay over ``below``, which is only read."""
        self._below = below
        self._changes = OverlayChanges() if changes is None else changes
        self.calls = below.calls

    @property
    def config(self) -> StoreConfig:  # type: ignore[override]
        """The configuration of the store below, as it is now."""
        return self._below.config

    @property
    def asks_catalog(self) -> bool:
        """Whether the store below asks the table's catalog."""
        return self._below.asks_catalog

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """Yield the objects that would be there."""
        changed = self._changes.objects
        here = sorted(
            (
                ObjectInfo(path, held.size_bytes, 0)
                for path, held in changed.items()
                if held is not None and within(path, prefix, start_after, stop_before)
            ),
            key=in_order,
        )
        found = (
            info
            for part in self._listed(prefix)
            for info in self._below.list(part, start_after=start_after, stop_before=stop_before)
        )
        yield from merge((one for one in found if one.path not in changed), here, key=in_order)

    def entries(self, prefix: str) -> Iterator[str]:
        """Yield the entries of the store below, and the objects written here."""
        changed = self._changes.objects
        here = sorted(
            path for path, held in changed.items() if held is not None and path.startswith(prefix)
        )
        found = (name for part in self._listed(prefix) for name in self._below.entries(part))
        yield from merge((name for name in found if name not in changed), here, key=str.encode)

    def is_occupied(self) -> bool:
        """Return whether anything would be there."""
        if self._changes.left is not None or any(self._changes.objects.values()):
            return next(self.list(""), None) is not None
        return self._below.is_occupied()

    def head(self, path: str) -> ObjectInfo:
        """Return an object's size and time; changes here come first."""
        held = self._held(path)
        return self._below.head(path) if held is None else ObjectInfo(path, held.size_bytes, 0)

    def get(self, path: str) -> bytes:
        """Return an object; changes here come first."""
        held = self._held(path)
        return self._below.get(path) if held is None else held.get()

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of an object; changes here come first."""
        held = self._held(path)
        if held is None:
            return self._below.get_range(path, start, length)
        return held.get_range(start, length)

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Return many objects; those of the store below are fetched by one call."""
        found: dict[str, bytes] = {}
        elsewhere: dict[int, tuple[Store, dict[str, str]]] = {}
        for path in paths:
            held = self._held(path)
            if held is None:
                elsewhere.setdefault(id(self._below), (self._below, {}))[1][path] = path
            elif isinstance(held, ReferredObject) and held.change is None:
                elsewhere.setdefault(id(held.store), (held.store, {}))[1][path] = held.path
            else:
                found[path] = held.get()
        for store, names in elsewhere.values():
            found.update(zip(names, store.get_many(list(names.values())), strict=True))
        return [found[path] for path in paths]

    def put(self, path: str, data: bytes) -> None:
        """Keep it here."""
        self._changes.objects[path] = _Kept(bytes(data))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Keep it here, unless the name is taken."""
        if self.exists(path):
            return False
        self.put(path, data)
        return True

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Keep it here, if the present object equals ``expected``."""
        try:
            there: bytes | None = self.get(path)
        except ObjectNotFound:
            there = None
        if there != expected:
            return False
        self.put(path, data)
        return True

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Keep it here."""
        self.put(path, b"".join(exactly(chunks, size_bytes, path)))

    def copy_within(self, path: str, new_path: str) -> None:
        """Keep a reference to the original."""
        held = self._held(path)
        if held is None:
            held = ReferredObject(self._below, path, self._below.head(path).size_bytes)
        self.refer(new_path, held)

    def locate(self, path: str) -> tuple[Store, str]:
        """Find an object, and the root itself, in the store below, unless it was changed here."""
        return (self, path) if path and self.is_changed(path) else self._below.locate(path)

    def refer(self, path: str, copied: _Kept | ReferredObject) -> None:
        """Add an object that is a reference to another one."""
        self._changes.objects[path] = copied

    def is_changed(self, path: str) -> bool:
        """Return whether an object was written or deleted here."""
        return path in self._changes.objects or not self._is_left(path)

    def delete_many(self, paths: Sequence[str]) -> None:
        """Remember the names as deleted."""
        self._changes.objects |= dict.fromkeys(paths)

    def leave_only(self, prefixes: Sequence[str]) -> None:
        """Delete everything except the names with one of these prefixes, without listing."""
        kept = sorted({*prefixes}, key=str.encode)
        left = tuple(each for each in kept if not each.startswith(tuple({*kept} - {each})))
        self._changes.left = tuple(each for each in left if self._is_left(each))
        self._changes.objects = {
            path: held for path, held in self._changes.objects.items() if path.startswith(left)
        }

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Let the store below sign."""
        return self._below.sign(method, path, expires_s)

    def _listed(self, prefix: str) -> Iterator[str]:
        """Yield the prefixes to list in the store below."""
        left = self._changes.left
        if left is None:
            yield prefix
            return
        for each in left:
            if each.startswith(prefix):
                yield each
            elif prefix.startswith(each):
                yield prefix
                return

    def _is_left(self, path: str) -> bool:
        return self._changes.left is None or path.startswith(self._changes.left)

    def _held(self, path: str) -> _Kept | ReferredObject | None:
        """Return an object written here, or ``None`` if the store below has to be asked."""
        changed = self._changes.objects
        held = changed.get(path)
        if held is None and (path in changed or not self._is_left(path)):
            raise ObjectNotFound(f"no object at {path!r}", path=path)
        return held
