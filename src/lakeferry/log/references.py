"""Lists the data files, change files and vectors that log files refer to.

An ``add`` and a ``cdc`` refer to the file at their path; a deletion vector of storage type ``u``
or ``p`` refers to the file that contains it (the protocol's "Deletion Vector Descriptor Schema";
an inline vector has no file). A ``remove`` refers to nothing: it cancels an ``add``. A copy of a
table needs all referenced files, live or not, for every version that can be rebuilt, so nothing
is reconciled.

The result is an Arrow table with a row for each path, percent-encoded as in the log, and the
size stated in the log. Vectors' files have no size: one may contain many vectors. Only these
fields of an action are read. Several actions may name one file; :func:`distinct_references` removes
duplicates.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeferry.errors import CorruptLog
from lakeferry.log import checkpoint_read, decoding, parquet
from lakeferry.log.decoding import Long
from lakeferry.log.deletion_vectors import relative_path
from lakeferry.log.lines import each_line

REFERENCES = pa.schema([pa.field("path", pa.string()), pa.field("size", pa.int64())])

_BATCH_ROWS = 65_536
_NEEDED = ("path", "size", "deletionVector")


class _Vector(msgspec.Struct, gc=False):
    storageType: str
    pathOrInlineDv: str


class _Removed(msgspec.Struct, gc=False):
    path: str
    deletionVector: _Vector | None = None

    def vector_path(self) -> str | None:
        """Return the path of the file with the deletion vector, if there is one."""
        vector = self.deletionVector
        return None if vector is None else vector_path(vector.storageType, vector.pathOrInlineDv)


class NamedFile(_Removed, gc=False):
    """The fields of a file action that name files, and the file's size."""

    size: Long | None = None


class _Line(msgspec.Struct, gc=False):
    add: NamedFile | None = None
    cdc: NamedFile | None = None


class _RemoveLine(msgspec.Struct, gc=False):
    remove: _Removed | None = None


_DECODER = msgspec.json.Decoder(_Line)
_REMOVE_DECODER = msgspec.json.Decoder(_RemoveLine)


def of_lines(data: bytes, path: str) -> pa.Table:
    """Return the references of a commit, a compacted log or a JSON checkpoint.

    ``path`` is the file's name for error messages.
    """
    found: dict[str, int | None] = {}

    def take(line: bytes) -> None:
        # If it contains an escape, a line may spell its keys in an unusual way.
        if not (b'"add"' in line or b'"cdc"' in line or b"\\u" in line):
            return
        decoded = decoding.decode_files(line, _DECODER)
        for file in (decoded.add, decoded.cdc):
            if file is None:
                continue
            found[file.path] = file.size
            if (place := file.vector_path()) is not None:
                found.setdefault(place, None)

    each_line(data, path, take)
    return _table(pa.array(list(found), pa.string()), pa.array(list(found.values()), pa.int64()))


def removed_in_lines(data: bytes, path: str) -> pa.Table:
    """Return the files that a commit removes, and the files of their deletion vectors.

    They belong to the table as long as they exist, though nothing refers to them.
    """
    found: dict[str, None] = {}

    def take(line: bytes) -> None:
        if not (b'"remove"' in line or b"\\u" in line):
            return
        try:
            removed = _REMOVE_DECODER.decode(line).remove
        except msgspec.ValidationError:
            # Other lines aren't needed to read the table.
            return
        if removed is not None:
            found[removed.path] = None
            if (place := removed.vector_path()) is not None:
                found.setdefault(place, None)

    each_line(data, path, take)
    return _table(pa.array(list(found), pa.string()), pa.nulls(len(found), pa.int64()))


def of_parquet(
    source: bytes | io.RawIOBase, path: str, row_groups: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """Yield the references of a checkpoint's Parquet file, or of some of its row groups."""
    opened = pa.BufferReader(source) if isinstance(source, bytes) else source
    try:
        file = pq.ParquetFile(opened, page_checksum_verification=True)
        columns = _columns(file.schema_arrow)
        groups = range(file.num_row_groups) if row_groups is None else row_groups
        if not columns:
            return
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=columns):
            # Parquet doesn't guarantee that its strings are UTF-8, and Arrow doesn't check.
            batch.validate(full=True)
            yield of_adds(pa.Table.from_struct_array(batch.column("add")))
    except (CorruptLog, pa.ArrowException, OSError, UnicodeError, ValueError) as broken:
        raise checkpoint_read.corrupt(path, str(broken)) from broken


def needed_ranges(footer: parquet.Footer, row_groups: Sequence[int]) -> list[parquet.Range]:
    """Return the byte ranges of a checkpoint's Parquet file that :func:`of_parquet` reads."""
    needed = replace(
        footer,
        row_groups=tuple(
            tuple(chunk for chunk in chunks if chunk.path[1:2] and chunk.path[1] in _NEEDED)
            for chunks in footer.row_groups
        ),
    )
    return parquet.ranges(needed, ("add",), row_groups)


def _columns(schema: pa.Schema) -> list[str]:
    index = schema.get_field_index("add")
    if index < 0:
        return []
    kind = schema.field(index).type
    if not pa.types.is_struct(kind) or kind.get_field_index("path") < 0:
        raise CorruptLog("its column add has no field path")
    return [f"add.{name}" for name in _NEEDED if kind.get_field_index(name) >= 0]


def of_adds(adds: pa.Table) -> pa.Table:
    """Return the references of rows with the columns of :data:`lakeferry.log.file_actions.ADD`.

    Rows without a path have none; the columns for size and vector may be missing.
    """
    there = adds.filter(pc.is_valid(adds["path"]))
    paths = there["path"].combine_chunks().cast(pa.string())
    sizes = pa.nulls(len(paths), pa.int64())
    if "size" in there.column_names:
        sizes = there["size"].combine_chunks().cast(pa.int64())
    found = _table(paths, sizes)
    if "deletionVector" not in there.column_names:
        return found
    vectors = there["deletionVector"].combine_chunks()
    if vectors.null_count == len(vectors):
        return found
    places = vector_paths(vectors)
    return pa.concat_tables([found, _table(places, pa.nulls(len(places), pa.int64()))])


def vector_paths(vectors: pa.StructArray) -> pa.Array:
    """Return the paths of the files that contain deletion vectors, without duplicates."""
    kinds = pc.struct_field(vectors, "storageType")
    texts = pc.struct_field(vectors, "pathOrInlineDv")
    outside = pc.fill_null(pc.not_equal(kinds, pa.scalar("i", kinds.type)), False)
    between = pa.scalar("\n", texts.type)
    both = pc.binary_join_element_wise(kinds.filter(outside), texts.filter(outside), between)
    told = (one.partition("\n") for one in pc.unique(both).drop_null().to_pylist())
    places = (vector_path(kind, text) for kind, _, text in told)
    return pa.array([place for place in places if place is not None], pa.string())


def vector_path(kind: str, text: str) -> str | None:
    """Return the path of the file with a deletion vector; ``None`` for an inline vector."""
    match kind:
        case "u":
            return relative_path(text)
        case "p":
            return text
        case "i":
            return None
    raise CorruptLog(
        "a deletion vector's descriptor can't be read", cause=f"its storage type is {kind!r}"
    )


def distinct_references(tables: Iterable[pa.Table]) -> pa.Table:
    """Return every path once, with a size if any row states one."""
    whole = pa.concat_tables([REFERENCES.empty_table(), *tables])
    if not whole.num_rows:
        return whole
    grouped = whole.group_by("path", use_threads=False).aggregate([("size", "max")])
    return grouped.rename_columns({"size_max": "size"}).select(REFERENCES.names)


def _table(paths: pa.Array, sizes: pa.Array) -> pa.Table:
    return pa.Table.from_arrays([paths, sizes], schema=REFERENCES)
