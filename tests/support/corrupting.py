"""Stores whose copies go wrong: they keep other bytes than those they were given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from lakeferry.storage import Store
from lakeferry.storage.local_store import LocalStore
from lakeferry.storage.store import StreamChunk
from tests.support.stores import DictStore


def flipped(data: bytes) -> bytes:
    """Return data of the same size in which one byte is another one."""
    return bytes([data[0] ^ 1]) + data[1:] if data else data


class CorruptingStore(DictStore):
    """Flips a byte of each object whose name contains one of ``wrong``, as often as that says."""

    wrong: dict[str, int]

    def __init__(
        self,
        objects: Mapping[str, bytes] | None = None,
        *,
        uri: str = "memory://dict",
        wrong: Mapping[str, int] | None = None,
    ) -> None:
        """Begin with ``objects``, which are right."""
        super().__init__(objects, uri=uri)
        self.wrong = dict(wrong or {})

    def _spoilt(self, path: str, data: bytes) -> bytes:
        for part, times in self.wrong.items():
            if part in path and times > 0:
                self.wrong[part] = times - 1
                return flipped(data)
        return data

    def put(self, path: str, data: bytes) -> None:
        """Write the object, or one like it."""
        super().put(path, self._spoilt(path, data))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write the object, or one like it, unless the name is taken."""
        return super().put_if_absent(path, self._spoilt(path, data))

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Write the object, or one like it."""
        super().put_stream(path, iter([self._spoilt(path, b"".join(chunks))]), size_bytes)


def spoil_copies_on_disk(patch: pytest.MonkeyPatch, place: str, name: str) -> None:
    """Let the system's copies of files below ``place`` have another byte, if ``name`` is in theirs.

    Files that are written aren't changed.
    """
    one, many = LocalStore.copy_from, LocalStore.copy_many_from

    def spoil(store: LocalStore, names: Iterable[str]) -> None:
        for path in names:
            if place in f"{store.uri}/{path}" and name in path:
                store.put(path, flipped(store.get(path)))

    def copy_from(store: LocalStore, source: Store, path: str, new: str, *rest: Any) -> int | None:
        size = one(store, source, path, new, *rest)
        spoil(store, [new] if size is not None else [])
        return size

    def copy_many_from(
        store: LocalStore, source: Store, objects: Mapping[str, str], *rest: Any
    ) -> dict[str, int]:
        done = many(store, source, objects, *rest)
        spoil(store, done)
        return done

    patch.setattr(LocalStore, "copy_from", copy_from)
    patch.setattr(LocalStore, "copy_many_from", copy_many_from)
