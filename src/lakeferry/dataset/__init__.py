"""``lakeferry.open``: one version of a table as an Arrow dataset.

::

    import duckdb, lakeferry, polars

    orders = lakeferry.open("s3://warehouse/orders")
    orders.to_table(columns=["id"], filter=pc.field("day") == date(2024, 1, 1))
    duckdb.sql("SELECT count(*) FROM orders WHERE id > 7")
    polars.scan_pyarrow_dataset(orders).filter(polars.col("id") > 7).collect()

It follows redirects, files that the log names by absolute URI, and deletion
vectors, whichever of them the engine itself knows nothing about. Opening reads
the log and nothing else; data files are read when the dataset is scanned.

**Pruning.** Partition values come from the log, and files whose partition can't
match are never opened. Of the others Arrow reads footers and leaves out row
groups by their statistics; statistics in the log aren't used. Statistics of floats
and doubles say nothing about NaN, so Arrow doesn't see them.

**NaN.** A filter means what it means to Arrow: NaN is neither smaller nor larger than
a number, and unequal to itself. Polars and DuckDB think otherwise (NaN is the largest
number), and hand their filters to Arrow all the same, with any Arrow dataset. For
Polars' own answer use ``polars.scan_pyarrow_dataset(orders, allow_pyarrow_filter=False)``.

**Deletion vectors.** Arrow has no filter on a row's number, and a dataset in
Python can't make one up that Arrow's own scans would obey. So a file with a
vector looks to Arrow like a file that never had those rows: it is written anew
when a scan opens it (:mod:`lakeferry.dataset.arrow_files`) and forgotten when the scan
has passed. A file that no scan opens costs nothing, memory is bounded by a batch
and a few small files, and every way to read the dataset gives the same rows. The
price is that such a file is read and written once more than others; from scans
that name their columns, only those and the filter's are
(:mod:`lakeferry.dataset.scanning`).

**Types.** A column that is wider in the table than in a file is cast, one that a
file lacks is null. Instants are ``timestamp[us, UTC]``, timestamps without a zone
``timestamp[us]``. A partition value that is an instant without a zone is taken to
be UTC. A variant is a struct of its two parts in Parquet, ``metadata`` and ``value``.
Shredded variants and geometries can't be read: such a column has the type ``null``
here, and a scan that asks for it is refused, while other columns can be read.
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
from lakeferry.log.replay import Snapshot
from lakeferry.log.stats import parse_partition_values
from lakeferry.redirect.resolve import resolve
from lakeferry.storage import StoreConfig, open_config
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
    ``unity:cat.schema.t``). A redirect is followed as for a session
    named ``app_name``, unless ``follow`` is false; a version means the same at
    both ends of it. ``storage_options`` are spelled as delta-rs spells them, are
    those of every place that the table is spread over, and beat the environment.

    Files with deletion vectors are written anew while they are scanned; see the
    module for why, and for what it costs. Raises
    :class:`~lakeferry.errors.UnsupportedFeature` for tables that can't be read
    right; a scan that finds a file gone raises
    :class:`~lakeferry.errors.MissingFile`, or Arrow's own ``FileNotFoundError``
    for a local file that it opened by itself.
    """
    places = Places(storage_options)
    uri = places.locate(table)
    if follow:
        with names.named(table):
            found = resolve(
                uri,
                storage_options=storage_options,
                granted=places.granted(uri),
                app_name=app_name,
            )
        if found.redirected:
            uri = found.location
            places.grant(uri, found.storage_options)
    config = StoreConfig(uri, places.options(uri))
    log = DeltaLog(open_config(config))
    with unsupported.unless_unsupported(log, version):
        snapshot = log.snapshot(version)
    return of_snapshot(snapshot, config)


def of_snapshot(snapshot: Snapshot, config: StoreConfig) -> ds.Dataset:
    """Return a version that was read from the table at ``config.uri`` as a dataset."""
    features.check_readable(snapshot.protocol)
    table = schema.columns(snapshot.metadata, with_unreadable=snapshot.protocol)
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
    """Return what the log says of each file's partition; files of one partition share it."""
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
    """Return what is equal for the same value alone: zero and minus zero are equal to Arrow."""
    if pa.types.is_floating(value.type) and value.is_valid:
        return float(value.as_py()).hex()
    return value


def _partition_values(maps: pa.MapArray, column: schema.Column) -> pa.Array:
    """Return one partition column's values; a text that is none of its type is corrupt."""
    if pa.types.is_null(column.type):
        return pa.nulls(len(maps))
    kind = pa.struct([pa.field(column.physical_name, column.type)])
    (values,) = parse_partition_values(maps, kind).flatten()
    texts = pc.map_lookup(maps, pa.scalar(column.physical_name, maps.type.key_type), "first")
    lost = pc.and_(pc.is_null(values), pc.not_equal(pc.fill_null(texts, ""), ""))
    if pc.any(lost).as_py():
        text = texts.filter(lost)[0].as_py()
        raise CorruptLog(
            f"the log has a value that {column.name!r} can't have",
            cause=f"{text!r} is no {column.type}",
            remedy="write the file's rows anew with the right value, and remove the file",
            column=column.name,
        )
    return values
