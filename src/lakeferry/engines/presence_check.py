"""Checks that a place has every file of a version, with Arrow tables.

A version's files become rows with their names at the other place; engines differ in how many
rows a table has. There are two checks: :func:`against_objects` looks for each file among the
existing objects, and :func:`against_version` compares them with the files that another log
names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import LISTED_FINDINGS, CheckTotals
from lakeferry.log import file_identity, fingerprints, references
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
_COMPARED = ["key", "size", "rows"]
_ZERO = pa.scalar(0, pa.int64())
_SIGNS = pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64())
RowSource = Callable[[], Iterator[pa.RecordBatch]]
"""Returns the same rows with each call."""
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


def against_version(wanted: RowSource, found: RowSource) -> CheckTotals:
    """Compare rows with those of another version: each must occur equally often.

    Memory has the rows' hashes, and those rows whose hashes don't occur equally often.
    """
    hashes = [_hashes(rows()) for rows in (wanted, found)]
    signs = [pa.repeat(sign, len(each)) for sign, each in zip(_SIGNS, hashes, strict=True)]
    signed = pa.table([pa.chunked_array(hashes), pa.chunked_array(signs)], ["hash", "sign"])
    sums = signed.group_by("hash", use_threads=False).aggregate([("sign", "sum")])
    differing = sums["hash"].filter(pc.not_equal(sums["sign_sum"], _ZERO)).combine_chunks()
    if not len(differing):
        return CheckTotals(len(hashes[0]), 0, (), 0, (), 0)
    totals = _compared(*(_having(rows(), differing) for rows in (wanted, found)))
    return replace(totals, wanted=len(hashes[0]))


def _hashes(rows: Iterable[pa.RecordBatch]) -> pa.Array:
    found = (fingerprints.of_rows(batch.select(_COMPARED)) for batch in rows)
    return pa.concat_arrays([pa.array([], pa.int64()), *found])


def _having(rows: Iterable[pa.RecordBatch], hashes: pa.Array) -> pa.Table:
    """Return the rows with one of these hashes."""
    found = (
        batch.filter(pc.is_in(fingerprints.of_rows(batch.select(_COMPARED)), value_set=hashes))
        for batch in rows
    )
    return pa.Table.from_batches(found, schema=ROWS)


def _compared(wanted: pa.Table, found: pa.Table) -> CheckTotals:
    signed = pa.concat_tables(
        rows.append_column("sign", pa.repeat(sign, rows.num_rows))
        for rows, sign in zip((wanted, found), _SIGNS, strict=True)
    )
    grouped = signed.group_by(_COMPARED, use_threads=False)
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
