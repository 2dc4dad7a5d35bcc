"""Rewrites the paths in checkpoint rows and Parquet files; other values stay."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeferry.errors import CorruptLog
from lakeferry.log import parquet
from lakeferry.log.rewrite.path_rewrite import (
    PassObserver,
    Rewrite,
    Sidecars,
    rewrite_vectors,
    unreported,
)

_BATCH_ROWS = 131_072
_BATCHES_AHEAD = 2
_ARROW_SCHEMA = b"ARROW:schema"
_ACTIONS = ("add", "remove", "cdc")


def rewrite_batch(
    batch: pa.RecordBatch,
    rewrite: Rewrite,
    sidecars: Sidecars | None = None,
    *,
    adds: Rewrite | None = None,
) -> pa.RecordBatch:
    """Return rows of a checkpoint or sidecar, in their own schema, with paths rewritten.

    ``adds`` is used for ``add`` actions instead, by callers that need to see their paths.
    """
    columns = []
    for column, kind in zip(batch.columns, batch.schema, strict=True):
        if kind.name in _ACTIONS and pa.types.is_struct(kind.type):
            own = adds if adds is not None and kind.name == "add" else rewrite
            columns.append(_rewrite_actions(column, own))
        elif kind.name == "sidecar" and sidecars and pa.types.is_struct(kind.type):
            columns.append(_rewrite_sidecars(column, sidecars))
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _rewrite_actions(actions: pa.StructArray, rewrite: Rewrite) -> pa.StructArray:
    if actions.null_count == len(actions):
        return actions
    changed = {}
    present = pc.is_valid(actions)
    if _has(actions, "path"):
        paths = child_column(actions, "path")
        named = pc.and_(present, pc.is_valid(paths))
        new = rewrite(paths.filter(named).cast(pa.string())).cast(paths.type)
        changed["path"] = pc.replace_with_mask(paths, named, new)
    if _has(actions, "deletionVector"):
        vectors = child_column(actions, "deletionVector")
        changed["deletionVector"] = _rewrite_vector_column(vectors, present, rewrite)
    return with_fields(actions, changed)


def _rewrite_vector_column(
    vectors: pa.StructArray, present: pa.Array, rewrite: Rewrite
) -> pa.StructArray:
    kinds, where = child_column(vectors, "storageType"), child_column(vectors, "pathOrInlineDv")
    for part in (vectors, kinds, where):
        present = pc.and_(present, pc.is_valid(part))
    if not pc.any(present).as_py():
        return vectors
    joined = pc.binary_join_element_wise(kinds.filter(present), where.filter(present), "\n")
    both = joined.dictionary_encode()
    distinct = [
        (text[0], text[2]) for text in (one.partition("\n") for one in both.dictionary.to_pylist())
    ]
    rewritten = rewrite_vectors(distinct, rewrite)
    new_kinds = pa.array([kind for kind, _ in rewritten], kinds.type).take(both.indices)
    new_where = pa.array([text for _, text in rewritten], where.type).take(both.indices)
    return with_fields(
        vectors,
        {
            "storageType": pc.replace_with_mask(kinds, present, new_kinds),
            "pathOrInlineDv": pc.replace_with_mask(where, present, new_where),
        },
    )


def _rewrite_sidecars(rows: pa.StructArray, sidecars: Sidecars) -> pa.StructArray:
    # There are few of them, so Python objects are fast enough.
    paths, sizes = child_column(rows, "path"), child_column(rows, "sizeInBytes")
    found = [
        sidecars.get(path) if present else None
        for path, present in zip(paths.to_pylist(), rows.is_valid().to_pylist(), strict=True)
    ]
    new_paths = pa.array([None if new is None else new[0] for new in found], paths.type)
    new_sizes = pa.array([None if new is None else new[1] for new in found], sizes.type)
    return with_fields(
        rows,
        {"path": pc.coalesce(new_paths, paths), "sizeInBytes": pc.coalesce(new_sizes, sizes)},
    )


def child_column(rows: pa.StructArray, name: str) -> pa.Array:
    """Return a field as it is stored: where the row is null, it may have any value.

    If writers declare the field as required, as delta-rs does, it must keep a value there. So
    the nulls of rows are never copied into their fields.
    """
    return rows.field(rows.type.get_field_index(name))


def _has(rows: pa.StructArray, name: str) -> bool:
    return name in cast(pa.StructType, rows.type).names


def with_fields(rows: pa.StructArray, changed: Mapping[str, pa.Array]) -> pa.StructArray:
    """Return actions with other values in some of their fields."""
    kind = cast(pa.StructType, rows.type)
    children = [
        changed[child.name] if child.name in changed else rows.field(index)
        for index, child in enumerate(kind)
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(rows))


def rewrite_parquet(
    source: bytes | io.RawIOBase | io.BufferedIOBase,
    rewrite: Rewrite,
    sidecars: Sidecars | None = None,
    *,
    adds: Rewrite | None = None,
    done: PassObserver = unreported,
) -> bytes:
    """Return a checkpoint or sidecar file with its paths rewritten.

    ``rewrite`` and ``adds`` must be thread-safe, as in :func:`rewrite_batches`.
    """
    return rewrite_batches(
        source, lambda batch: rewrite_batch(batch, rewrite, sidecars, adds=adds), done
    )


def rewrite_batches(
    source: bytes | io.RawIOBase | io.BufferedIOBase,
    change: Callable[[pa.RecordBatch], pa.RecordBatch],
    done: PassObserver = unreported,
) -> bytes:
    """Return a checkpoint or sidecar file with its rows changed, a few batches at a time.

    Batches are changed in threads, so ``change`` must be thread-safe. Schema, key-value
    metadata, compression, row groups (large ones are divided) and all other values stay.
    Timestamps in the deprecated INT96, as Spark writes them in parsed statistics, become
    microseconds. ``done`` is called with the fraction of the rows that are written.
    """
    try:
        file = pq.ParquetFile(
            io.BytesIO(source) if isinstance(source, bytes) else source,
            coerce_int96_timestamp_unit="us",
        )
    except (pa.ArrowException, OSError) as broken:
        raise CorruptLog("a checkpoint can't be read", cause=str(broken)) from broken
    footer = parquet.footer_of(source)
    sink, options, schema = io.BytesIO(), _writer_options(file, footer), parquet.schema_of(file)
    with pq.ParquetWriter(sink, schema, **options) as writer:

        def rewritten(batch: pa.RecordBatch) -> pa.RecordBatch:
            return change(batch).cast(schema)

        rows = 0
        for batch in _ahead(rewritten, _all_batches(file)):
            writer.write_batch(batch)
            rows += batch.num_rows
            done(rows / max(1, file.metadata.num_rows))
        # If Arrow writes the schema, it also writes the metadata in it.
        written = {_ARROW_SCHEMA, *(schema.metadata or {})} if options["store_schema"] else set()
        metadata = file.metadata.metadata or {}
        writer.add_key_value_metadata(
            {key: value for key, value in metadata.items() if key not in written}
        )
    return sink.getvalue()


def _all_batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    for group in range(file.num_row_groups):
        yield from _batches(file, group)


def _ahead(
    act: Callable[[pa.RecordBatch], pa.RecordBatch], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rewritten batches in order, with a few of them in progress."""
    with ThreadPoolExecutor(_BATCHES_AHEAD) as pool:
        waiting: deque[Future[pa.RecordBatch]] = deque()
        for batch in batches:
            waiting.append(pool.submit(act, batch))
            if len(waiting) > _BATCHES_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _batches(file: pq.ParquetFile, group: int) -> Iterable[pa.RecordBatch]:
    try:
        yield from file.iter_batches(_BATCH_ROWS, row_groups=[group])
    except (pa.ArrowException, OSError) as broken:
        raise CorruptLog("a checkpoint can't be read", cause=str(broken)) from broken


def _writer_options(file: pq.ParquetFile, footer: parquet.Footer) -> dict[str, object]:
    columns = [file.schema.column(index) for index in range(len(file.schema))]
    first = next((chunk for chunks in footer.row_groups for chunk in chunks), None)
    return {
        "compression": first.codec if first else "SNAPPY",
        "store_schema": _ARROW_SCHEMA in (file.metadata.metadata or {}),
        "store_decimal_as_integer": any(
            column.logical_type.type == "DECIMAL" and column.physical_type.startswith("INT")
            for column in columns
        ),
    }
