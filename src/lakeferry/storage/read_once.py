"""A store that caches all reads, for dry runs.

So a dry run sees the state of one moment. Small objects and completely read listings are
cached, up to a limit. A cached listing answers for every name and range that it covers.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lakeferry.errors import ObjectNotFound
from lakeferry.storage.overlay import Overlay
from lakeferry.storage.store import ObjectInfo, Store, within

MOST_NAMES = 20_000
"""Longer listings aren't cached."""
_LARGEST_BYTES = 1024 * 1024
MOST_BYTES = 16 * 1024 * 1024
"""Limit of the cached objects of a place."""


@dataclass(frozen=True, slots=True)
class _Listing:
    prefix: str
    start_after: str | None
    stop_before: str | None
    found: dict[str, ObjectInfo]

    def covers(self, prefix: str, first: str | None, before: str | None) -> bool:
        """Return whether a listing with these bounds is a part of this one."""
        begins = self.start_after is None or (first or "").encode() >= self.start_after.encode()
        ends = self.stop_before is None or (
            before is not None and before.encode() <= self.stop_before.encode()
        )
        return prefix.startswith(self.prefix) and begins and ends

    def names(self, path: str) -> bool:
        """Return whether an object of that name would be in this listing."""
        return within(path, self.prefix, self.start_after, self.stop_before)


@dataclass(slots=True)
class RememberedReads:
    """The cached reads of a place; several stores of one place share them."""

    objects: dict[str, bytes | None] = field(default_factory=dict)
    """Small objects by name; ``None`` means that there is no such object."""
    ranges: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    """Small parts of objects, by name, start and length."""
    size_bytes: int = 0
    listings: builtins.list[_Listing] = field(default_factory=list)


class ReadOnceStore(Overlay):
    """Another store, which is read and never written to."""

    def __init__(self, below: Store, reads: RememberedReads) -> None:
        """Read from ``below`` what wasn't read before."""
        super().__init__(below)
        self._reads = reads

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List the objects, and cache the listing if it is short and read completely."""
        for known in self._reads.listings:
            if known.covers(prefix, start_after, stop_before):
                wanted = _Listing(prefix, start_after, stop_before, {})
                yield from [info for path, info in known.found.items() if wanted.names(path)]
                return
        found: dict[str, ObjectInfo] = {}
        for info in super().list(prefix, start_after=start_after, stop_before=stop_before):
            if len(found) <= MOST_NAMES:
                found[info.path] = info
            yield info
        if len(found) <= MOST_NAMES:
            self._reads.listings.append(_Listing(prefix, start_after, stop_before, found))

    def head(self, path: str) -> ObjectInfo:
        """Return an object's entry from the cache, or ask the store."""
        if path:
            for known in self._reads.listings:
                if known.names(path):
                    return known.found.get(path) or self._refuse(path)
            if self._reads.objects.get(path, b"") is None:
                return self._refuse(path)
        try:
            return super().head(path)
        except ObjectNotFound:
            self._reads.objects[path] = None
            raise

    def get(self, path: str) -> bytes:
        """Get an object that wasn't read before."""
        (data,) = self._get([path])
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Get a part of an object that wasn't read before."""
        self._check_there(path)
        whole = self._reads.objects.get(path)
        if whole is not None:
            return whole[start : start + length]
        key = path, start, length
        data = self._reads.ranges.get(key)
        if data is None:
            data = super().get_range(path, start, length)
            if self._fits(data):
                self._reads.ranges[key] = data
        return data

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Get those of the objects that weren't read before."""
        return self._get(paths)

    def _get(self, paths: Sequence[str]) -> builtins.list[bytes]:
        for path in paths:
            self._check_there(path)
        left = [path for path in paths if path not in self._reads.objects]
        try:
            if len(left) == 1:
                new = {left[0]: super().get(left[0])}
            else:
                new = dict(zip(left, super().get_many(left), strict=True)) if left else {}
        except ObjectNotFound:
            if any(known.names(path) for path in left for known in self._reads.listings):
                # The listing had it: the cache is out of date.
                self._reads.listings.clear()
                self._reads.objects.clear()
                self._reads.ranges.clear()
            elif len(left) == 1:
                self._reads.objects[left[0]] = None
            raise
        found = [new[path] if path in new else self._reads.objects[path] for path in paths]
        for path, data in new.items():
            if self._fits(data):
                self._reads.objects[path] = data
        return [data for data in found if data is not None]

    def _fits(self, data: bytes) -> bool:
        """Return whether there is room for an object, and take it."""
        fits = len(data) <= _LARGEST_BYTES and self._reads.size_bytes + len(data) <= MOST_BYTES
        if fits:
            self._reads.size_bytes += len(data)
        return fits

    def _check_there(self, path: str) -> None:
        """Refuse a name that is known not to be there."""
        if path in self._reads.objects:
            if self._reads.objects[path] is None:
                self._refuse(path)
        elif any(known.names(path) and path not in known.found for known in self._reads.listings):
            self._refuse(path)

    def _refuse(self, path: str) -> ObjectInfo:
        raise ObjectNotFound(f"no object at {path!r} in {self.uri}", path=path, uri=self.uri)
