"""Checks that a place has every file of a version, with Arrow tables.

A version's files become rows with their names at the other place; engines differ in how many
rows a table has. There are two checks: :func:`against_objects` looks for each file among the
existing objects, and :func:`against_version` compares them with the files that another log
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import LISTED_FINDINGS, CheckTotals
from lakeferry.log import file_identity, references
from lakeferry.log.rewrite import Rewrite

CONSIDERED = ("path", "size", "deletionVector", "stats")
"""The columns of a live file that are used."""
ROWS = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("rows", pa.int64()),
    ]
)
"""A file's name there, its path in the log here, and the values stated in the log."""
_ZERO = pa.scalar(0, pa.int64())
# A number too large for an integer is ignored.
_NUM_RECORDS = r'"numRecords"\s*:\s*(?P<rows>[0-9]{1,18})\s*[,}]'


def objects(
    batches: Iterable[pa.RecordBatch], rename: Rewrite, root: str
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each object of live files: the file itself and its vector.

    A file with an absolute path, or one that leads out of the table's folder, is elsewhere and
    isn't checked.
    """
    for batch in batches:
        for paths, sizes in (
            (batch.column("path"), batch.column("size")),
            _unsized(references.vector_paths(batch.column("deletionVector"))),
        ):
            rows = _rows(paths, sizes, pa.nulls(len(paths), pa.int64()), rename, root)
            keys = rows.column("key")
            elsewhere = pc.match_substring_regex(keys, file_identity.ABSOLUTE_PATTERN)
            elsewhere = pc.or_(elsewhere, pc.starts_with(keys, "../"))
            yield rows.filter(pc.invert(elsewhere))


def live(batches: Iterable[pa.RecordBatch], rename: Rewrite, root: str) -> Iterator[pa.RecordBatch]:
    """Yield a row for each live file, with its number of rows if the log states it."""
    for batch in batches:
        stats = pc.extract_regex(batch.column("stats"), _NUM_RECORDS)
        records = pc.struct_field(stats, "rows").cast(pa.int64())
        yield _rows(batch.column("path"), batch.column("size"), records, rename, root)


def _unsized(paths: pa.Array) -> tuple[pa.Array, pa.Array]:
    return paths, pa.nulls(len(paths), pa.int64())


def _rows(
    paths: pa.Array, sizes: pa.Array, records: pa.Array, rename: Rewrite, root: str
) -> pa.RecordBatch:
    paths = paths.cast(pa.string())
    keys = file_identity.canonical_paths(rename(paths), root)
    return pa.RecordBatch.from_arrays([keys, paths, sizes, records], schema=ROWS)


def against_objects(wanted: pa.Table, pages: Iterable[pa.Table]) -> CheckTotals:
    """Look for each row among objects, given as pages of names and sizes."""
    keys = wanted["key"].combine_chunks()
    # A listing may be long, so only the wanted names are kept.
    kept = [page.filter(pc.is_in(page["name"], value_set=keys)) for page in pages]
    there = pa.concat_tables(kept).combine_chunks()
    found = pc.index_in(keys, value_set=there["name"])
    sizes = there["size"].combine_chunks().take(found)
    unequal = pc.fill_null(pc.not_equal(sizes, wanted["size"].combine_chunks()), False)
    missing = wanted["path"].filter(pc.is_null(found))
    differing = wanted["path"].filter(unequal)
    return CheckTotals(
        wanted.num_rows,
        len(missing),
        tuple(missing.slice(0, LISTED_FINDINGS).to_pylist()),
        len(differing),
        tuple(differing.slice(0, LISTED_FINDINGS).to_pylist()),
        0,
    )


def against_version(wanted: pa.Table, found: pa.Table) -> CheckTotals:
    """Compare rows with those of another version: each must occur equally often."""
    signed = pa.concat_tables(
        rows.append_column("sign", pa.repeat(pa.scalar(sign, pa.int64()), rows.num_rows))
        for rows, sign in ((wanted, 1), (found, -1))
    )
    grouped = signed.group_by(["key", "size", "rows"], use_threads=False)
    sums = grouped.aggregate([("sign", "sum"), ("path", "first")])
    missing = sums.filter(pc.greater(sums["sign_sum"], _ZERO))
    extra = sums.filter(pc.less(sums["sign_sum"], _ZERO))
    return CheckTotals(
        wanted.num_rows,
        pc.sum(missing["sign_sum"]).as_py() or 0,
        tuple(missing["path_first"].slice(0, LISTED_FINDINGS).to_pylist()),
        0,
        (),
        -(pc.sum(extra["sign_sum"]).as_py() or 0),
    )
