"""Makes the rows of a checkpoint from file actions, a row group at a time.

Rows from an older checkpoint keep all their fields. Rows from commits keep unknown fields as
additional columns. Values that Parquet can't store (an empty object, a field with values of
several types) are stored as JSON text, so an unknown field never prevents a checkpoint. Expired
tombstones are left out, and ``dataChange`` is always false, as every engine writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.log import arrow_versions, file_actions, properties, stats
from lakeferry.log.partition_values import parse_partition_values
from lakeferry.log.replay import FileTable, Snapshot, total_bytes
from lakeferry.log.stats_columns import partition_type, stats_type
from lakeferry.log.tombstones import unexpired_tombstones

ROW_GROUP_ROWS = 131_072
_FALSE = pa.scalar(False, pa.bool_())
_NOT_IN_REMOVE = ("stats", "tags")
_LINE = file_actions.RAW.name
# A line may have unknown actions beside the known one, with values of any type.
_PER_KEY = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


class UnevenRows(ValueError):
    """Some rows have other columns than those before them."""


class RowsToWrite:
    """The rows of ``add`` and ``remove`` in row groups, with exactly the columns to write.

    The first table of each decides about the columns. Counts are complete after the last group.
    """

    def __init__(self, snapshot: Snapshot, tables: Iterable[FileTable], now_ms: int) -> None:
        """Read the first tables; ``snapshot`` says which form statistics take."""
        self._snapshot = snapshot
        self._now_ms = now_ms
        self._tables = iter(tables)
        self._waiting: dict[str, list[pa.Table]] = {"add": [], "remove": []}
        self.count = self.num_files = self.size_bytes = 0
        self._begin()
        self.types = {
            name: pa.struct(list(found[0].schema)) for name, found in self._waiting.items()
        }

    def _begin(self) -> None:
        """Read tables until there is one of adds; kinds that weren't seen have known columns."""
        for name, table in self._tables:
            if table.num_rows:
                self._take(name, table)
            if self._waiting["add"]:
                break
        for name, found in self._waiting.items():
            if not found:
                found.append(self._shaped(name, file_actions.SCHEMAS[name].empty_table()))

    def groups(self) -> Iterator[FileTable]:
        """Yield the row groups: those of adds before the last of removes."""
        for name, table in self._tables:
            if table.num_rows:
                self._take(name, table)
                yield from self._full(name)
        for name in self._waiting:
            yield from self._full(name, is_last=True)

    def _take(self, name: str, table: pa.Table) -> None:
        if name == "add":
            self.num_files += table.num_rows
            self.size_bytes += total_bytes(table["size"])
        shaped = self._shaped(name, table)
        self.count += shaped.num_rows
        waiting = self._waiting[name]
        if waiting and waiting[0].schema != shaped.schema:
            raise UnevenRows(name)
        waiting.append(shaped)

    def _full(self, name: str, *, is_last: bool = False) -> Iterator[FileTable]:
        """Yield the row groups that are full; their last rows wait for others."""
        waiting = self._waiting[name]
        size = sum(table.num_rows for table in waiting)
        if not is_last and size < ROW_GROUP_ROWS:
            return
        whole = pa.concat_tables(waiting)
        stop = size if is_last else size - size % ROW_GROUP_ROWS
        self._waiting[name] = [whole.slice(stop)]
        for start in range(0, stop, ROW_GROUP_ROWS):
            yield name, whole.slice(start, min(ROW_GROUP_ROWS, stop - start))

    def _shaped(self, name: str, table: pa.Table) -> pa.Table:
        """Return rows with the columns to write; tombstones that have expired are left out."""
        if name == "add":
            known = _with_unknown_fields(table, "add")
            return _unchanging(with_statistics(known, self._snapshot))
        kept = unexpired_tombstones(table, self._snapshot.metadata, self._now_ms)
        removes = _with_unknown_fields(kept, "remove")
        removes = removes.drop_columns(
            [each for each in _NOT_IN_REMOVE if each in removes.schema.names]
        )
        return _unchanging(removes)


def _unchanging(table: pa.Table) -> pa.Table:
    index = table.schema.get_field_index("dataChange")
    table = table.set_column(index, "dataChange", pa.repeat(_FALSE, table.num_rows))
    return table.drop_columns([_LINE]) if _LINE in table.column_names else table


def _with_unknown_fields(table: pa.Table, name: str) -> pa.Table:
    """Add a column for each unknown field in commit lines."""
    if _LINE not in table.column_names:
        return table
    known, known_of_vector = (
        set(file_actions.SCHEMAS[name].names),
        set(file_actions.DELETION_VECTOR.names),
    )
    found: dict[str, dict[int, bytes]] = {}
    of_vectors: dict[str, dict[int, bytes]] = {}
    for row, line in enumerate(table[_LINE]):
        if not line.is_valid:
            continue
        value = _FIELDS.decode(_PER_KEY.decode(line.as_py())[name]) or {}
        for key in value.keys() - known:
            found.setdefault(key, {})[row] = bytes(value[key])
        if "deletionVector" in value:
            vector = _FIELDS.decode(value["deletionVector"]) or {}
            for key in vector.keys() - known_of_vector:
                of_vectors.setdefault(key, {})[row] = bytes(vector[key])
    if of_vectors:
        index = table.schema.get_field_index("deletionVector")
        vectors = _with_columns(_parts_of(table["deletionVector"]), of_vectors)
        rebuilt = pa.StructArray.from_arrays(
            [as_one_array(column) for column in vectors.columns],
            fields=list(vectors.schema),
            mask=as_one_array(table["deletionVector"].is_null()),
        )
        table = table.set_column(index, "deletionVector", rebuilt)
    return _with_columns(table, found)


def _parts_of(structs: pa.ChunkedArray) -> pa.Table:
    """Return each field of the structs as a column."""
    whole = as_one_array(structs)
    return pa.Table.from_arrays(whole.flatten(), schema=pa.schema(list(whole.type)))


def _with_columns(table: pa.Table, found: dict[str, dict[int, bytes]]) -> pa.Table:
    """Add a column for each field; if the column exists, fill in the missing values."""
    for key, texts in sorted(found.items()):
        column = _from_texts([texts.get(row) for row in range(table.num_rows)])
        if key in table.column_names:
            index = table.schema.get_field_index(key)
            merged = _merged(column, table[key], texts)
            table = table.set_column(index, pa.field(key, merged.type), merged)
        else:
            table = table.append_column(key, column)
    return table


def _from_texts(texts: list[bytes | None]) -> pa.Array:
    """Parse JSON texts, and return the values in a type that can hold all of them."""
    try:
        values = [None if text is None else msgspec.json.decode(text) for text in texts]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return pa.array([_text(text) for text in texts], pa.string())
    return inferred_values(values, texts)


def _text(text: bytes | None) -> str | None:
    return None if text is None or text == b"null" else text.decode(errors="replace")


def inferred_values(values: list[Any], texts: list[bytes | None] | None = None) -> pa.Array:
    """Return the values in a type that can hold all of them, or else their JSON texts."""
    try:
        column = pa.array(values)
        if _is_storable(column.type):
            return column
    except (pa.ArrowException, OverflowError, UnicodeError):
        # One field with values of several types: Parquet has no such column, so it stays text.
        pass
    if texts is None:
        texts = [msgspec.json.encode(value) for value in values]
    return pa.array([_text(text) for text in texts], pa.string())


def _is_storable(kind: pa.DataType) -> bool:
    """Return True if Parquet has the type: it has no struct without fields."""
    if pa.types.is_struct(kind) and not kind.num_fields:
        return False
    return all(_is_storable(kind.field(index).type) for index in range(kind.num_fields))


def _merged(ours: pa.Array, theirs: pa.ChunkedArray, texts: dict[int, bytes]) -> pa.ChunkedArray:
    """Return the commits' values of a field, and the old checkpoint's values for other rows."""
    name = "field"
    schemas = [pa.schema([pa.field(name, each.type)]) for each in (ours, theirs)]
    try:
        both = pa.unify_schemas(schemas, promote_options="permissive").field(name).type
        return pc.coalesce(
            as_one_array(_cast(pa.chunked_array([ours]), both)), as_one_array(_cast(theirs, both))
        )
    except pa.ArrowException:
        # The field has had values of several types over time. Text in the old checkpoint is
        # kept unchanged: it may be the JSON text of such values.
        is_text = pa.types.is_string(theirs.type) or pa.types.is_large_string(theirs.type)
        old = arrow_versions.to_rows(theirs)
        return pa.array(
            [
                _text(texts[row])
                if row in texts
                else (value if is_text or value is None else msgspec.json.encode(value).decode())
                for row, value in enumerate(old)
            ],
            pa.string(),
        )


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast the column to the wider type; a struct may lack some of its fields."""
    if column.type == kind:
        return column
    alone = pa.table({"field": column})
    wider = pa.schema([pa.field("field", kind)]).empty_table()
    return pa.concat_tables([wider, alone], promote_options="permissive")["field"]


def with_statistics(adds: pa.Table, snapshot: Snapshot) -> pa.Table:
    """Convert statistics and partition values to the forms that the table's properties require."""
    metadata = snapshot.metadata
    configuration = metadata.configuration
    if "stats_parsed" in adds.column_names:
        text = stats.format_stats(adds["stats_parsed"])
        index = adds.schema.get_field_index("stats")
        adds = adds.set_column(index, "stats", pc.coalesce(adds["stats"], text))
    # Commit lines may have the typed forms, too, in whatever types their JSON has.
    typed_forms = ("stats_parsed", "partitionValues_parsed")
    adds = adds.drop_columns([name for name in typed_forms if name in adds.column_names])
    if properties.writes_stats_as_struct(configuration):
        kind = stats_type(
            metadata.schema_string,
            configuration,
            metadata.partition_columns,
            tight_bounds="deletionVectors" in snapshot.protocol.features,
        )
        adds = adds.append_column("stats_parsed", stats.parse_stats(adds["stats"], kind))
        typed = partition_type(metadata.schema_string, metadata.partition_columns)
        if typed is not None:
            values = parse_partition_values(as_one_array(adds["partitionValues"]), typed)
            adds = adds.append_column("partitionValues_parsed", values)
    if not properties.writes_stats_as_json(configuration):
        adds = adds.drop_columns(["stats"])
    return adds


def as_one_array(column: pa.ChunkedArray) -> Any:
    """Return a column as one array."""
    return column.combine_chunks()
