"""Decides which objects a copy must copy, and under which names.

Everything is done on Arrow tables; engines differ in how many rows a table has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engines.object_copy import Copied, CopyPlaces, Gone, Hands, name_of
from lakeferry.log import file_identity
from lakeferry.log.rewrite import Rewrite
from lakeferry.storage import Store
from lakeferry.storage.parallel_listing import list_all

LISTED_MISSING = 1_000
WANTED = pa.schema(
    [pa.field("path", pa.string()), pa.field("name", pa.string()), pa.field("size", pa.int64())]
)
"""A path of the source's log, the object's name at the target, and the size stated in the log."""
NAMED = WANTED.append(pa.field("renamed", pa.bool_()))
LISTED = pa.schema([pa.field("name", pa.string()), pa.field("size", pa.int64())])

_PAGE_ROWS = 16_384
_BATCH_ROWS = 1_024
_TOGETHER_OBJECTS = 256
_TOGETHER_BYTES = 8 * 1024 * 1024
_ODD = r"//|(?:^|/)\.\.?(?:/|$)"

_Row = tuple[str, str, int | None]
CopyOutcome = tuple[str, int | None, Copied | None]
"""A path, the size in the log, and the copied object: ``None`` if it is missing."""


def named_objects(references: pa.Table, rename: Rewrite, target_uri: str) -> pa.Table:
    """Return the references with their names at the target; null if the object isn't copied.

    An object with a relative new path is copied. It stays if its new path is absolute, or if it
    keeps a path that leads out of the table's folder.
    """
    paths = references["path"].combine_chunks()
    new = rename(paths)
    beside = pc.and_(pc.starts_with(new, "../"), pc.not_equal(new, paths))
    elsewhere = pc.or_(pc.match_substring_regex(new, file_identity.ABSOLUTE_PATTERN), beside)
    inside = pc.invert(elsewhere)
    names = _names(new.filter(inside), target_uri)
    names = pc.replace_with_mask(pa.nulls(len(paths), pa.string()), inside, names)
    columns = [paths, names, references["size"].combine_chunks(), pc.not_equal(new, paths)]
    return pa.Table.from_arrays(columns, schema=NAMED)


def _names(paths: pa.Array, root: str) -> pa.Array:
    """Return the store names of relative paths: normalised, and decoded once."""
    odd = pc.or_(pc.match_substring(paths, "%"), pc.match_substring_regex(paths, _ODD))
    if not pc.any(odd).as_py():
        return paths
    names = [name_of(path, root) for path in paths.filter(odd).to_pylist()]
    return pc.replace_with_mask(paths, odd, pa.array(names, pa.string()))


def list_place(store: Store) -> Iterator[pa.Table]:
    """Yield names and sizes of everything at a place, in bounded batches."""
    names: list[str] = []
    sizes: list[int] = []
    for entry in list_all(store):
        names.append(entry.path)
        sizes.append(entry.size_bytes)
        if len(names) == _PAGE_ROWS:
            yield pa.table([pa.array(names), pa.array(sizes)], schema=LISTED)
            names, sizes = [], []
    yield pa.table([pa.array(names, pa.string()), pa.array(sizes, pa.int64())], schema=LISTED)


def to_copy(named: pa.Table) -> pa.Table:
    """Return the rows to copy."""
    return named.filter(pc.is_valid(named["name"])).select(WANTED.names)


def without_present(wanted: pa.Table, target: Store) -> pa.Table:
    """Return the rows that still must be copied, given the objects at the target.

    An object is skipped if it exists with the size stated in the log. The log has no size for a
    vector's file; objects appear completely or not at all, so an existing one is complete. Only
    an empty file can't be: no vector's file is empty.
    """
    names = wanted["name"].combine_chunks()
    # A listing may be long, so only the wanted names are kept.
    pages = [page.filter(pc.is_in(page["name"], value_set=names)) for page in list_place(target)]
    present = pa.concat_tables(pages).combine_chunks()
    found = pc.index_in(names, value_set=present["name"])
    there = present["size"].combine_chunks().take(found)
    stated = wanted["size"].combine_chunks()
    done = pc.or_kleene(
        pc.equal(there, stated), pc.and_kleene(pc.is_null(stated), pc.greater(there, 0))
    )
    return wanted.filter(pc.invert(pc.fill_null(done, False)))


def copy_each(
    hands: Hands, places: CopyPlaces, target: Store, batches: Iterable[pa.RecordBatch]
) -> Iterator[CopyOutcome]:
    """Copy all rows of :data:`WANTED`, and yield the result of each, in order."""

    def copy_one(row: _Row, done: Mapping[str, Copied]) -> CopyOutcome:
        path, new_name, size = row
        if new_name in done:
            return path, size, done[new_name]
        store, name = places.find(path)
        try:
            return path, size, hands.copy(store, name, target, new_name, size)
        except Gone:
            return path, size, None

    def copy(rows: Sequence[_Row]) -> list[CopyOutcome]:
        done: Mapping[str, Copied] = {}
        if len(rows) > 1:
            found = {new_name: places.find(path) for path, new_name, _ in rows}
            here = {new: name for new, (store, name) in found.items() if store is places.table}
            size_bytes = sum(size or 0 for _, new, size in rows if new in here)
            done = hands.copy_together(places.table, target, here, size_bytes)
        return [copy_one(row, done) for row in rows]

    together = target.writes_together and hands.parallel > 1
    most_bytes = min(_TOGETHER_BYTES, hands.small_bytes)
    groups = _groups(_rows(batches), most_bytes) if together else ([row] for row in _rows(batches))
    return chain.from_iterable(hands.each(copy, groups))


def _groups(rows: Iterator[_Row], most_bytes: int) -> Iterator[list[_Row]]:
    """Put small objects together that follow each other; others stay alone."""
    group: list[_Row] = []
    size_bytes = 0
    for row in rows:
        is_small = row[2] is not None and row[2] <= most_bytes // 8
        if group and (
            not is_small
            or len(group) == _TOGETHER_OBJECTS
            or size_bytes + (row[2] or 0) > most_bytes
        ):
            yield group
            group, size_bytes = [], 0
        if is_small:
            group.append(row)
            size_bytes += row[2] or 0
        else:
            yield [row]
    if group:
        yield group


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, str, int | None]]:
    for batch in batches:
        for start in range(0, len(batch), _BATCH_ROWS):
            some = batch.slice(start, _BATCH_ROWS)
            columns = (some.column(name).to_pylist() for name in WANTED.names)
            yield from zip(*columns, strict=True)


@dataclass(slots=True)
class CopyTally:
    """Results so far; the first missing objects are named."""

    objects: int = 0
    size_bytes: int = 0
    by_store_bytes: int = 0
    missing_count: int = 0
    missing: list[str] = field(default_factory=list)

    def add(self, path: str, copied: Copied | None) -> None:
        """Add the result of one object."""
        if copied is not None:
            self.objects += 1
            self.size_bytes += copied.size_bytes
            self.by_store_bytes += copied.size_bytes if copied.by_store else 0
            return
        self.missing_count += 1
        if len(self.missing) < LISTED_MISSING:
            self.missing.append(path)
