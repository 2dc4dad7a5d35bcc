"""A folder of a store as a store of its own."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from lakeferry.storage.store import (
    ObjectInfo,
    OpenedObject,
    Partial,
    PartsUpload,
    SignedPut,
    Store,
    StreamChunk,
)


class FolderStore(Store):
    """The objects of another store whose names begin with a folder."""

    def __init__(self, whole: Store, folder: str) -> None:
        """Use the part of ``whole`` below ``folder``."""
        self._whole = whole
        self._lead = f"{folder}/"
        self.config = replace(whole.config, uri=f"{whole.uri}/{folder}", aliases=None)
        self.calls = whole.calls

    @property
    def asks_catalog(self) -> bool:
        """Whether the store below asks the table's catalog."""
        return self._whole.asks_catalog

    @property
    def lists_ranges(self) -> bool:  # type: ignore[override]
        """Whether the store below lists ranges."""
        return self._whole.lists_ranges

    def folders(self, folder: str) -> Sequence[str] | None:
        """Return the folders directly below a folder."""
        found = self._whole.folders(self._lead + folder)
        return None if found is None else [each.removeprefix(self._lead) for each in found]

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
            yield ObjectInfo(info.path.removeprefix(self._lead), info.size_bytes, info.modified_ms)

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

    def open(self, path: str) -> OpenedObject:
        """Open an object."""
        return self._whole.open(self._lead + path)

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Get many objects."""
        return self._whole.get_many([self._lead + path for path in paths])

    def put(self, path: str, data: bytes) -> None:
        """Put an object."""
        self._whole.put(self._lead + path, data)

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Put small objects."""
        self._whole.put_many({self._lead + path: data for path, data in objects.items()})

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Put an object from its chunks."""
        self._whole.put_stream(self._lead + path, chunks, size_bytes)

    def put_stream_if_absent(
        self, path: str, chunks: Iterator[StreamChunk], size_bytes: int
    ) -> bool:
        """Put an object from its chunks unless it is there."""
        return self._whole.put_stream_if_absent(self._lead + path, chunks, size_bytes)

    def copy_within(self, path: str, new_path: str) -> None:
        """Copy an object to another name in the same place."""
        self._whole.copy_within(self._lead + path, self._lead + new_path)

    def locate(self, path: str) -> tuple[Store, str]:
        """Find an object in the whole store."""
        return self._whole.locate(self._lead + path)

    def copy_from(
        self, source: Store, path: str, new_path: str, moved: Callable[[int], None]
    ) -> int | None:
        """Copy another store's object into the folder."""
        return self._whole.copy_from(source, path, self._lead + new_path, moved)

    def restore_time(self, path: str, modified_ms: int) -> None:
        """Set an object's time."""
        self._whole.restore_time(self._lead + path, modified_ms)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put an object unless it is there."""
        return self._whole.put_if_absent(self._lead + path, data)

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Replace an object if it is what is expected."""
        return self._whole.swap(self._lead + path, expected, data)

    def entries(self, prefix: str) -> Iterator[str]:
        """Yield all names that must be deleted to empty the place."""
        found = self._whole.entries(self._lead + prefix)
        return (name.removeprefix(self._lead) for name in found)

    def prune(self, prefix: str) -> None:
        """Remove empty folders."""
        self._whole.prune(self._lead + prefix)

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete objects."""
        self._whole.delete_many([self._lead + path for path in paths])

    def partial(self, path: str) -> Partial | None:
        """Resume an object that is being received."""
        return self._whole.partial(self._lead + path)

    def parts_upload(self, path: str, size_bytes: int, *, begin: bool) -> PartsUpload | None:
        """Find an upload in parts, or begin one."""
        return self._whole.parts_upload(self._lead + path, size_bytes, begin=begin)

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Sign a URL of an object."""
        return self._whole.sign(method, self._lead + path, expires_s)

    def sign_put(self, path: str, size_bytes: int, expires_s: int) -> SignedPut:
        """Sign a URL to put an object to."""
        return self._whole.sign_put(self._lead + path, size_bytes, expires_s)
