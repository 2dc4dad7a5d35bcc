"""Finds objects that nothing refers to, by merging sorted listings.

Engines differ in where they combine listings and references. Here, in one process, a listing
comes sorted and in pages, and each page is merged with the sorted references in its range.
Memory holds the references of one shelf, and one page.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import ORPHAN, KeptFolder
from lakeferry.errors import (
    CorruptLog,
    Diverged,
    HashMismatch,
    InvalidInput,
    LimitExceeded,
    MissingFile,
)
from lakeferry.storage import ObjectInfo, Store
from lakeferry.storage.parallel_listing import list_all

ORPHANS_TITLE = "looking for objects that nothing refers to"
REACHED = pa.schema([pa.field("folder", pa.string()), pa.field("path", pa.string())])
"""A name that is needed; null if the folder's references aren't known."""
_PAGE_ROWS = 16_384
_UNTOLD = (CorruptLog, Diverged, HashMismatch, InvalidInput, LimitExceeded, MissingFile)


def reached(store: Store, shelf: KeptFolder) -> Iterator[pa.RecordBatch]:
    """Yield the references to a shelf's objects, as rows of :data:`REACHED`."""
    try:
        for batch in shelf.reach.paths(store):
            folders = pa.repeat(pa.scalar(shelf.folder), len(batch))
            yield pa.RecordBatch.from_arrays([folders, batch.column(0)], schema=REACHED)
    except _UNTOLD:
        yield pa.RecordBatch.from_pylist([{"folder": shelf.folder}], schema=REACHED)


def listed_objects(
    store: Store, shelf: KeptFolder, prefixes: Iterable[str], until_ms: int
) -> Iterator[pa.RecordBatch]:
    """Yield a shelf's objects that are old enough, as rows of :data:`lakeferry.engine.ORPHAN`."""
    for prefix in prefixes:
        page: list[ObjectInfo] = []
        for info in list_all(store, prefix):
            if info.modified_ms <= until_ms:
                page.append(info)
            if len(page) == _PAGE_ROWS:
                yield _rows(shelf.folder, page)
                page = []
        if page:
            yield _rows(shelf.folder, page)


def _rows(folder: str, page: list[ObjectInfo]) -> pa.RecordBatch:
    columns = [
        pa.repeat(pa.scalar(folder), len(page)),
        pa.array([info.path for info in page], pa.string()),
        pa.array([info.size_bytes for info in page], pa.int64()),
        pa.array([info.modified_ms for info in page], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ORPHAN)


def untold(folder: str) -> pa.RecordBatch:
    """Return the row that says that a folder's references aren't known."""
    return pa.RecordBatch.from_pylist([{"folder": folder}], schema=ORPHAN)


def merged(store: Store, shelf: KeptFolder, until_ms: int) -> Iterator[pa.RecordBatch]:
    """Yield the objects on a shelf that nothing refers to."""
    table = pa.Table.from_batches(reached(store, shelf), schema=REACHED)
    if table["path"].null_count:
        yield untold(shelf.folder)
        return
    needed = table["path"].combine_chunks()
    needed = needed.take(pc.array_sort_indices(needed))
    names = _Sorted(needed)
    for page in listed_objects(store, shelf, shelf.prefixes, until_ms):
        paths = page.column("path")
        first = bisect_left(names, paths[0].as_py().encode())
        end = bisect_right(names, paths[-1].as_py().encode())
        on_page = needed.slice(first, end - first)
        left = page.filter(pc.invert(pc.is_in(paths, value_set=on_page)))
        if len(left):
            yield left


class _Sorted:
    """An Arrow array as a sequence of bytes; a search reads only a few elements."""

    def __init__(self, names: pa.Array) -> None:
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> bytes:
        name: str = self._names[index].as_py()
        return name.encode()
