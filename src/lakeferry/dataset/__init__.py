"""``lakeferry.open``: one version of a table as an Arrow dataset.

::

    import duckdb, lakeferry, polars

    orders = lakeferry.open("s3://warehouse/orders")
    orders.to_table(columns=["id"], filter=pc.field("day") == date(2024, 1, 1))
    duckdb.sql("SELECT count(*) FROM orders WHERE id > 7")
    polars.scan_pyarrow_dataset(orders).filter(polars.col("id") > 7).collect()

It follows redirects, and reads files that the log names by absolute URI and files with deletion
vectors, even if the engine supports none of these. Opening a table reads only the log; data
files are read when the dataset is scanned.

**Pruning.** Partition values come from the log, and files whose partition can't match are never
opened. For the other files Arrow reads footers and skips row groups by their statistics;
statistics in the log aren't used. Statistics of floats and doubles say nothing about NaN, so
they are hidden from Arrow.

**NaN.** Filters follow Arrow's rules: NaN is neither smaller nor larger than a number, and
unequal to itself. Polars and DuckDB have other rules (NaN is the largest number), but still pass
their filters to Arrow, with any Arrow dataset. For Polars' own result use
``polars.scan_pyarrow_dataset(orders, allow_pyarrow_filter=False)``.

**Deletion vectors.** Arrow can't filter by row number, and a dataset in Python can't add such a
filter to Arrow's own scans. So Arrow sees a file with a vector as a file that never had the
deleted rows: the file is rewritten when a scan opens it (:mod:`lakeferry.dataset.arrow_files`),
and the copy is dropped after the scan. Files that no scan opens cost nothing, memory is bounded
by a batch and a few small files, and every way to read the dataset gives the same rows. The
price is one more read and write of each such file. If a scan names its columns, only those and
the filter's columns are rewritten (:mod:`lakeferry.dataset.scanning`).

**Types.** A column that is wider in the table than in a file is cast; a column that a file lacks
is null. Instants are ``timestamp[us, UTC]``, timestamps without a zone ``timestamp[us]``. If a
partition value is an instant without a zone, UTC is assumed. A variant is a struct of its two
parts in Parquet, ``metadata`` and ``value``. Shredded variants and geometries can't be read:
such a column has the type ``null``, and a scan that asks for it is refused, but other columns
can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakeferry.catalogs import names
from lakeferry.catalogs.places import Places
from lakeferry.dataset.arrow_files import VECTOR_MARK, DataFiles
from lakeferry.dataset.scanning import TableDataset
from lakeferry.errors import CorruptLog
from lakeferry.log import features, schema
from lakeferry.log.deletion_vectors import DeletionVector
from lakeferry.log.partition_values import parse_partition_values
from lakeferry.log.replay import Snapshot
from lakeferry.redirect.resolve import resolve_table
from lakeferry.storage import StoreConfig
from lakeferry.table import DeltaLog, unsupported
from lakeferry.table.data_files import described
from lakeferry.table.live_files import absolute_uris


def open(
    table: str,
    *,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    app_name: str | None = None,
    follow: bool = True,
) -> ds.Dataset:
    """Return a version of a table, or its newest, as a :class:`pyarrow.dataset.Dataset`.

    ``table`` is a local path, a URI or a name in a catalog (``sql:cat.schema.t``,
    ``unity:cat.schema.t``). Redirects are followed as in a session named ``app_name``, unless
    ``follow`` is false; a version number means the same at source and target.
    ``storage_options`` are spelled as in delta-rs, apply to every place that has files of the
    table, and override the environment.

    Files with deletion vectors are rewritten during a scan; the module explains why, and the
    cost. Raises :class:`~lakeferry.errors.UnsupportedFeature` for tables that can't be read
    correctly. A scan raises :class:`~lakeferry.errors.MissingFile` for a missing file, or
    Arrow's own ``FileNotFoundError`` for a local file that Arrow opened itself.
    """
    places = Places(storage_options)
    uri = places.locate(table)
    newest = None
    if follow:
        with names.name_in_errors(table):
            found = resolve_table(
                uri,
                storage_options=storage_options,
                access=places.granted(uri),
                app_name=app_name,
                allow_managed=True,
                hands_on=True,
                keeps_files=version is None,
            )
        newest = found.reading
        if found.redirected:
            uri = found.location
            places.grant(uri, found.access)
    store = places.open(uri)
    log = DeltaLog(store, source=None if newest is None else newest.source)
    with unsupported.unless_unsupported(log, version):
        snapshot = log.snapshot(version, newest)
    return of_snapshot(snapshot, store.config)


def of_snapshot(snapshot: Snapshot, config: StoreConfig) -> ds.Dataset:
    """Return a version, read from the table at ``config.uri``, as a dataset."""
    features.check_readable(snapshot.protocol, asks_catalog=config.aliases is not None)
    table = schema.schema_columns(snapshot.metadata, with_unreadable=snapshot.protocol)
    live = snapshot.files
    sizes: dict[str, int] = {}
    vectors: dict[str, DeletionVector] = {}
    paths: list[str] = []
    for uri, size, vector in zip(
        absolute_uris(live["path"].combine_chunks(), config.uri).to_pylist(),
        live["size"].to_pylist(),
        live["deletionVector"].to_pylist(),
        strict=True,
    ):
        sizes[uri] = size
        path = uri
        if vector is not None:
            own = described(vector)
            path = f"{uri}{VECTOR_MARK}{own.unique_id}"
            vectors[path] = own
        paths.append(path)
    files = DataFiles(
        config,
        sizes,
        vectors,
        table,
        schema.mapping_mode(snapshot.metadata),
        hides_floats=schema.has_floats(table),
    )
    expressions = _partition_expressions(snapshot, table)
    return TableDataset(
        schema.arrow_schema(table), files, dict(zip(paths, expressions, strict=True))
    )


def _partition_expressions(snapshot: Snapshot, table: schema.Struct) -> list[pc.Expression | None]:
    """Return each file's partition as an expression; files of one partition share it."""
    known = {column.name: column for column in table.columns}
    columns = []
    for name in snapshot.metadata.partition_columns:
        column = known.get(name)
        if column is None or not isinstance(column.type, pa.DataType):
            raise CorruptLog(
                "the table's schema can't be read",
                cause=f"it has no column {name!r}, by which the table is partitioned",
                remedy="restore the commit or checkpoint with the table's metaData from a copy",
            )
        columns.append(column)
    if not columns:
        return [None] * snapshot.num_files
    maps = snapshot.files["partitionValues"].combine_chunks()
    typed = [_partition_values(maps, column) for column in columns]
    shared: dict[tuple[Any, ...], pc.Expression] = {}
    expressions: list[pc.Expression | None] = []
    for values in zip(*typed, strict=True):
        key = tuple(map(_exactly, values))
        if key not in shared:
            parts = [
                pc.field(column.name) == value
                if value.is_valid
                else pc.field(column.name).is_null()
                for column, value in zip(columns, values, strict=True)
            ]
            shared[key] = reduce(and_, parts)
        expressions.append(shared[key])
    return expressions


def _exactly(value: pa.Scalar) -> object:
    """Return a key that is equal only for the same value: to Arrow, zero equals minus zero."""
    if pa.types.is_floating(value.type) and value.is_valid:
        return float(value.as_py()).hex()
    return value


def _partition_values(maps: pa.MapArray, column: schema.Column) -> pa.Array:
    """Return one partition column's values; raise an error if a text doesn't fit the type."""
    if pa.types.is_null(column.type):
        return pa.nulls(len(maps))
    kind = pa.struct([pa.field(column.physical_name, column.type)])
    (values,) = parse_partition_values(maps, kind).flatten()
    texts = pc.map_lookup(maps, pa.scalar(column.physical_name, maps.type.key_type), "first")
    lost = pc.and_(pc.is_null(values), pc.not_equal(pc.fill_null(texts, ""), ""))
    if pc.any(lost).as_py():
        text = texts.filter(lost)[0].as_py()
        raise CorruptLog(
            f"the log has a value that isn't valid for {column.name!r}",
            cause=f"{text!r} isn't a {column.type}",
            remedy="write the file's rows again with the right value, and remove the file",
            column=column.name,
        )
    return values
