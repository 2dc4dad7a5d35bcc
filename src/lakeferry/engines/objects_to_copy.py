"""Decides which objects a copy must copy, and under which names.

Everything is done on Arrow tables; engines differ in how many rows a table has.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engines.object_copy import name_of
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

_PAGE_ROWS = 131_072
"""Looking for a page among a million wanted names costs the same for a small page."""
_ODD = r"//|(?:^|/)\.\.?(?:/|$)"


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
