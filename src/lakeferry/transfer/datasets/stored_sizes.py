"""Finds the stored sizes of many objects in few requests.

Few objects are requested one by one, concurrently. For many in one folder the folder is listed; the
listing stops when the folder is so large that single requests are cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from lakeferry.errors import ObjectNotFound
from lakeferry.storage import Store
from lakeferry.storage.parallel_calls import concurrently

_FEW = 32  # for up to this many names no listing is tried
_LISTED_PER_NAME = 60  # one page of a listing takes as long as a round of concurrent requests


def stored_sizes(store: Store, paths: Sequence[str]) -> dict[str, int]:
    """Return the sizes of the objects that exist."""
    found: dict[str, int] = {}
    left: list[str] = []
    for folder, group in groupby(sorted(set(paths)), lambda path: path.rpartition("/")[0]):
        wanted, lead = list(group), f"{folder}/" if folder else ""
        left += wanted if len(wanted) <= _FEW else _list(store, lead, wanted, found)
    asked = zip(left, concurrently(lambda path: _size(store, path), left), strict=True)
    return found | {path: size for path, size in asked if size is not None}


def _list(store: Store, folder: str, wanted: list[str], found: dict[str, int]) -> list[str]:
    """Add sizes from a listing to ``found``; return the names that it didn't reach."""
    names, most = set(wanted), len(wanted) * _LISTED_PER_NAME
    first, last = wanted[0], wanted[-1]
    listing = store.list(folder, start_after=first[:-1] or None, stop_before=f"{last}0")
    for count, info in enumerate(listing):
        if count == most:
            return [path for path in wanted if path >= info.path]
        if info.path in names:
            found[info.path] = info.size_bytes
    return []


def _size(store: Store, path: str) -> int | None:
    try:
        return store.head(path).size_bytes
    except ObjectNotFound:
        return None
