"""File actions as Arrow tables: their columns, and what makes two of them one logical file.

Implements the protocol's "Add File and Remove File" for what there may be a
million of. Columns carry Delta's own field names. A table of file actions may
have more columns than the schemas here: fields of a checkpoint that we don't
know keep their own name and type, and ``raw`` is the text of the commit line
that a row was read from (null for rows from a checkpoint).

The identity of a logical file is its path and the unique id of its deletion
vector. Two spellings of one path (``file:/x`` and ``/x``, ``%41`` and ``A``)
are one path: engines spell the same file in different ways.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

STRING_MAP = pa.map_(pa.string(), pa.string())
DELETION_VECTOR = pa.struct(
    [
        pa.field("storageType", pa.string()),
        pa.field("pathOrInlineDv", pa.string()),
        pa.field("offset", pa.int32()),
        pa.field("sizeInBytes", pa.int32()),
        pa.field("cardinality", pa.int64()),
        pa.field("maxRowIndex", pa.int64()),
    ]
)
ADD = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("partitionValues", STRING_MAP),
        pa.field("size", pa.int64()),
        pa.field("modificationTime", pa.int64()),
        pa.field("dataChange", pa.bool_()),
        pa.field("stats", pa.string()),
        pa.field("tags", STRING_MAP),
        pa.field("deletionVector", DELETION_VECTOR),
        pa.field("baseRowId", pa.int64()),
        pa.field("defaultRowCommitVersion", pa.int64()),
        pa.field("clusteringProvider", pa.string()),
    ]
)
REMOVE = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("deletionTimestamp", pa.int64()),
        pa.field("dataChange", pa.bool_()),
        pa.field("extendedFileMetadata", pa.bool_()),
        pa.field("partitionValues", STRING_MAP),
        pa.field("size", pa.int64()),
        pa.field("stats", pa.string()),
        pa.field("tags", STRING_MAP),
        pa.field("deletionVector", DELETION_VECTOR),
        pa.field("baseRowId", pa.int64()),
        pa.field("defaultRowCommitVersion", pa.int64()),
    ]
)
RAW = pa.field("raw", pa.large_binary())
SCHEMAS = {"add": ADD, "remove": REMOVE}

_ABSOLUTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb"}


def is_absolute(path: str) -> bool:
    """Tell whether a path of the log is absolute: it has a scheme, or begins with a slash."""
    return path.startswith("/") or _ABSOLUTE.match(path) is not None


def canonical_path(path: str, root: str) -> str:
    """Return the one spelling of ``path`` by which logical files are compared.

    ``root`` is the table's URI; a path that begins with ``/`` belongs to the
    same store.
    """
    if path.startswith("/"):
        base = urlsplit(root)
        path = f"{base.scheme}://{base.netloc}{path}"
    match = _ABSOLUTE.match(path)
    if match is None:
        return _decoded(path)
    scheme = match.group(1).lower()
    scheme = _ALIASES.get(scheme, scheme)
    below = path[match.end() :]
    authority = ""
    if below.startswith("/"):
        authority, _, below = below[1:].partition("/")
    if scheme == "file":
        # file:/x, file:///x and file://localhost/x are one place.
        authority = "" if authority == "localhost" else authority
        below = below.lstrip("/")
    return f"{scheme}://{authority}/{_decoded(below)}"


def _decoded(path: str) -> str:
    """Decode what stands for text; octets that don't, and line feeds, stay as they are spelled."""
    if "%" not in path:
        return path
    folder, slash, name = path.rpartition("/")
    # A million files of a partitioned table share a few folders.
    return _decoded_part(folder) + slash + (_decoded_part(name) if "%" in name else name)


@lru_cache(maxsize=4096)
def _decoded_part(text: str) -> str:
    try:
        return unquote(text, errors="strict").replace("\n", "%0A")
    except UnicodeDecodeError:
        return text


def canonical_paths(paths: pa.Array, root: str) -> pa.Array:
    """Return the canonical spelling of each path; free where nothing needs one."""
    if _are_plain(paths):
        return paths
    unusual = pc.or_(
        pc.or_(pc.match_substring(paths, "%"), pc.match_substring(paths, ":")),
        pc.starts_with(paths, "/"),
    )
    if not pc.any(unusual).as_py():
        return paths
    respelled = pa.array(
        [canonical_path(path, root) for path in paths.filter(unusual).to_pylist()], pa.string()
    )
    return pc.replace_with_mask(paths, unusual, respelled)


def _are_plain(paths: pa.Array) -> bool:
    """Tell whether no path has a character that a canonical spelling might change.

    Searching the bytes of all paths at once is ten times faster than asking path by path.
    """
    if not len(paths):
        return True
    _, offsets, data = paths.buffers()
    if data is None:
        return True
    first, last = (
        int.from_bytes(offsets[4 * at : 4 * at + 4].to_pybytes(), "little")
        for at in (paths.offset, paths.offset + len(paths))
    )
    text = data.slice(first, last - first).to_pybytes()
    return b"%" not in text and b":" not in text and not pc.any(pc.starts_with(paths, "/")).as_py()


def vector_ids(vectors: pa.StructArray) -> pa.Array:
    """Return each vector's unique id, or null where a file has none."""
    kind = pc.struct_field(vectors, "storageType")
    where = pc.struct_field(vectors, "pathOrInlineDv")
    offset = pc.cast(pc.struct_field(vectors, "offset"), pa.string())
    bare = pc.binary_join_element_wise(kind, where, "")
    at_offset = pc.binary_join_element_wise(bare, offset, "@")
    return pc.coalesce(at_offset, bare)


def keys(paths: pa.Array, vectors: pa.StructArray | None, root: str) -> pa.Array:
    """Return one string for each row that is equal exactly where the logical file is.

    A canonical path has no line feed in it, so one keeps the path and the id apart.
    """
    return keys_of(canonical_paths(paths, root), vectors)


def keys_of(spelled: pa.Array, vectors: pa.StructArray | None) -> pa.Array:
    """Return the keys of files whose paths have their canonical spelling already."""
    if vectors is None or vectors.null_count == len(vectors):
        return spelled
    with_vector = pc.binary_join_element_wise(spelled, vector_ids(vectors), "\n")
    return pc.coalesce(with_vector, spelled)


def conform(actions: pa.StructArray, schema: pa.Schema) -> pa.RecordBatch:
    """Return a checkpoint's ``add`` or ``remove`` structs as columns, ``schema``'s first.

    Fields the checkpoint lacks are null; fields that we don't know follow under
    their own names. Rows must not be null.
    """
    kind = cast(pa.StructType, actions.type)
    children = dict(zip([field.name for field in kind], actions.flatten(), strict=True))
    columns: dict[str, pa.Array] = {}
    for field in schema:
        child = children.pop(field.name, None)
        columns[field.name] = _as_type(child, field.type, len(actions))
    columns.update(children)
    return pa.RecordBatch.from_pydict(columns)


def _as_type(column: pa.Array | None, wanted: pa.DataType, length: int) -> pa.Array:
    if column is None:
        return pa.nulls(length, wanted)
    if column.type == wanted:
        return column
    if pa.types.is_struct(wanted) and pa.types.is_struct(column.type):
        found = {field.name: index for index, field in enumerate(column.type)}
        flat = column.flatten()
        parts = [
            _as_type(flat[found[field.name]] if field.name in found else None, field.type, length)
            for field in wanted
        ]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=column.is_null())
    return column.cast(wanted)
