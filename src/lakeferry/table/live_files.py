"""Lists a table's live files by absolute URI.

A table may have a million files, so they are processed in batches, as Arrow columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import CorruptLog, InvalidInput
from lakeferry.log import file_identity
from lakeferry.log.deletion_vectors import relative_path
from lakeferry.storage.uris import container_and_name, resolve_path

_FILES_BATCH_ROWS = 8_192
# Paths that need no conversion: nothing to decode or to encode, and no dot segments.
_PLAIN_PATH = r"^([A-Za-z0-9_=,+~-][A-Za-z0-9_=,+~.-]*/)*[A-Za-z0-9_=,+~-][A-Za-z0-9_=,+~.-]*$"
_VECTOR = pa.struct(
    [
        pa.field("storage_type", pa.string()),
        pa.field("path_or_inline_dv", pa.string()),
        pa.field("offset", pa.int32()),
        pa.field("size_in_bytes", pa.int32()),
        pa.field("cardinality", pa.int64()),
        pa.field("uri", pa.string()),
    ]
)
FILES = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("partition_values", pa.map_(pa.string(), pa.string())),
        pa.field("deletion_vector", _VECTOR),
    ]
)
"""The columns of :meth:`lakeferry.Table.files`."""
LISTED_COLUMNS = ["path", "size", "partitionValues", "deletionVector"]
"""The columns of file actions that those are made of."""


def live_file_batches(rows: Iterator[pa.RecordBatch], root: str) -> Iterator[pa.RecordBatch]:
    """Yield the files of the table at ``root``, with :data:`FILES`'s columns, in small batches.

    ``rows`` have the columns of :data:`lakeferry.log.file_actions.ADD`.
    """
    for batch in itertools.chain.from_iterable(map(_in_pieces, rows)):
        path, size, values, vectors = batch.columns
        if values.null_count:
            values = pa.array(
                [pairs or [] for pairs in values.to_pylist()], FILES.field("partition_values").type
            )
        yield pa.RecordBatch.from_arrays(
            [absolute_uris(path, root), size, values, _vectors(vectors, root)], schema=FILES
        )


def _in_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    columns = batch.select(LISTED_COLUMNS)
    for start in range(0, batch.num_rows, _FILES_BATCH_ROWS):
        yield columns.slice(start, _FILES_BATCH_ROWS)


def absolute_uris(log_paths: pa.Array, root: str) -> pa.Array:
    """Return the absolute URI that each path in the log of the table at ``root`` means."""
    plain = pc.match_substring_regex(log_paths, _PLAIN_PATH)
    joined = pc.binary_join_element_wise(root, log_paths, "/")
    if pc.all(plain).as_py():
        return joined
    unusual = pc.invert(plain)
    respelled = [uri_of(root, path) for path in log_paths.filter(unusual).to_pylist()]
    return pc.replace_with_mask(joined, unusual, pa.array(respelled, pa.string()))


def _vectors(vectors: pa.StructArray, root: str) -> pa.StructArray:
    kind, where, offset, size, cardinality = (
        pc.struct_field(vectors, name)
        for name in ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")
    )
    if vectors.null_count == len(vectors):
        return pa.nulls(len(vectors), _VECTOR)
    uris = [
        _vector_uri(root, kind, path)
        for kind, path in zip(kind.to_pylist(), where.to_pylist(), strict=True)
    ]
    return pa.StructArray.from_arrays(
        [kind, where, offset, size, cardinality, pa.array(uris, pa.string())],
        fields=list(_VECTOR),
        mask=vectors.is_null(),
    )


def _vector_uri(root: str, kind: str | None, path: str) -> str | None:
    if kind in (None, "i"):
        return None
    if kind == "u":
        path = relative_path(path)
    elif kind != "p":
        raise CorruptLog("a deletion vector's descriptor can't be read", cause=f"type {kind!r}")
    return uri_of(root, path)


def uri_of(root: str, path: str) -> str:
    """Return the absolute URI that a path in the log of the table at ``root`` means."""
    try:
        return resolve_path(root, file_identity.identity(path, root))
    except InvalidInput as bad:
        raise _nowhere(path) from bad


def place_of(root: str, path: str) -> tuple[str, str]:
    """Return the store and the name of the object that a path in a log means."""
    try:
        return container_and_name(uri_of(root, path))
    except InvalidInput as bad:
        raise _nowhere(path) from bad


def _nowhere(path: str) -> CorruptLog:
    return CorruptLog(
        "the log has a path that can't be the path of a file", cause=repr(path), path=path
    )
