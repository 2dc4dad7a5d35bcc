"""Converts the columns of a data file to another schema of the same table.

Implements the protocol's "Column Mapping" and "Type Widening" for data files, in both
directions. A :class:`Reshaping` is made once for all files from two metadata actions.
:meth:`Reshaping.of` compares it with the schema of one file, and returns whether the file
already matches and otherwise how to convert it.

A conversion never changes what a value means: a type is cast only if the table's column may
have had it before, and a value that doesn't fit raises :class:`~lakeferry.errors.CorruptLog`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lakeferry.engines.old_calendar import SPARK_VERSION, check_same_in_both, is_of_old_calendar
from lakeferry.engines.stored_types import is_as, is_odd_list, may_become, plain_type
from lakeferry.errors import CorruptLog, UnsupportedFeature
from lakeferry.log import schema
from lakeferry.log.actions import Metadata
from lakeferry.log.schema import Array, Column, Map, Struct, Type

FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class _Field:
    """A column of new files. ``old`` is the same column of the old table, if it has it."""

    name: str
    field_id: int | None
    old: Column | None
    kind: _Kind
    is_partition: bool = False


@dataclass(frozen=True, slots=True)
class _Fields:
    fields: tuple[_Field, ...]


@dataclass(frozen=True, slots=True)
class _Elements:
    element: _Kind


@dataclass(frozen=True, slots=True)
class _Entries:
    key: _Kind
    value: _Kind


_Kind: TypeAlias = _Fields | _Elements | _Entries | pa.DataType


@dataclass(frozen=True, slots=True)
class _Way:
    """The conversion of one column, and its result.

    ``is_wanted`` is True if a file with such a column needs no conversion.
    """

    type: pa.DataType
    act: Callable[[pa.Array], pa.Array]
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class Reshaped:
    """The conversion of one file: the columns to read, and how to make each new column.

    ``is_wanted`` is True if the file already matches.
    """

    schema: pa.Schema
    sources: tuple[str | None, ...]
    ways: tuple[Callable[[pa.Array], pa.Array] | None, ...]
    is_wanted: bool

    @property
    def names(self) -> list[str]:
        """Return the columns of the old file to read."""
        return [name for name in self.sources if name is not None]

    def columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the new columns of some rows."""
        return [
            pa.nulls(batch.num_rows, field.type)
            if source is None or way is None
            else way(batch.column(source))
            for field, source, way in zip(self.schema, self.sources, self.ways, strict=True)
        ]


class Reshaping:
    """Converts files from the metadata ``before`` to the metadata ``after``."""

    def __init__(self, before: Metadata, after: Metadata) -> None:
        """Pair the columns that users see under the same name.

        Raises ``UnsupportedFeature`` with the ``column`` whose type can't be carried.
        """
        self._mode = schema.mapping_mode(before)
        self._keeps_ids = schema.mapping_mode(after) is not None
        self._renames = self._mode != schema.mapping_mode(after)
        old, new = _columns(before), _columns(after)
        self._fields = tuple(_fields(new, old, frozenset(after.partition_columns)))
        known = {column.name: column.physical_name for column in new.columns}
        self._partition_keys = {
            column.physical_name: known[column.name]
            for column in old.columns
            if column.name in before.partition_columns and column.name in known
        }

    def partition_values(self, values: list[tuple[str, str | None]]) -> list[tuple[str, Any]]:
        """Return a file's partition values under their names in the new table."""
        return [(self._partition_keys.get(key, key), value) for key, value in values]

    def of(self, found: pa.Schema, beside: frozenset[str] = frozenset()) -> Reshaped:
        """Return the conversion for a file with this schema.

        Columns named in ``beside`` don't belong to the table; they are ignored.
        """
        file = _File(self._mode, self._keeps_ids, self._renames, is_of_old_calendar(found))
        columns = pa.struct([field for field in found if field.name not in beside])
        file.check_ids(columns)
        fields = [
            field
            for field in self._fields
            if not field.is_partition or file.index(columns, field) is not None
        ]
        made = [file.field(columns, field, field.name) for field in fields]
        metadata = found.metadata or {}
        kept = {} if file.is_of_old_calendar else {SPARK_VERSION: metadata.get(SPARK_VERSION)}
        return Reshaped(
            pa.schema([each for each, _, _ in made], {k: v for k, v in kept.items() if v}),
            tuple(None if at is None else columns.field(at).name for _, at, _ in made),
            tuple(None if way is None else way.act for _, _, way in made),
            file.is_wanted(columns, made),
        )


# --- Two schemas ---------------------------------------------------------------


def _columns(metadata: Metadata) -> Struct:
    """Return a table's columns, or raise an error for one that can't be carried."""
    try:
        return schema.schema_columns(metadata)
    except UnsupportedFeature as unsupported:
        for field in msgspec.json.decode(metadata.schema_string)["fields"]:
            alone = msgspec.json.encode({"type": "struct", "fields": [field]}).decode()
            try:
                schema.schema_columns(replace(metadata, schema_string=alone))
            except UnsupportedFeature as found:
                raise UnsupportedFeature(
                    f"files with the column {field['name']!r} can't be rewritten",
                    cause=found.cause,
                    column=field["name"],
                    features=found.fields.get("features"),
                ) from unsupported
        raise


def _fields(
    new: Struct, old: Struct | None, partitions: frozenset[str] = frozenset()
) -> Iterator[_Field]:
    known = {column.name: column for column in old.columns} if old else {}
    for column in new.columns:
        before = known.get(column.name)
        kind = _kind(column.type, before.type if before else None)
        if kind is not None:
            is_partition = column.name in partitions
            yield _Field(column.physical_name, column.field_id, before, kind, is_partition)


def _kind(new: Type, old: Type | None) -> _Kind | None:
    """Return a type with its old counterpart; ``None`` for a type that no data file has."""
    if isinstance(new, Struct):
        fields = tuple(_fields(new, old if isinstance(old, Struct) else None))
        return _Fields(fields) if fields else None
    if isinstance(new, Array):
        element = _kind(new.element, old.element if isinstance(old, Array) else None)
        return None if element is None else _Elements(element)
    if isinstance(new, Map):
        before = (old.key, old.value) if isinstance(old, Map) else (None, None)
        key, value = _kind(new.key, before[0]), _kind(new.value, before[1])
        return None if key is None or value is None else _Entries(key, value)
    return None if pa.types.is_null(new) else new


# --- One file ------------------------------------------------------------------

_Made: TypeAlias = tuple[pa.Field, int | None, _Way | None]
"""A field of the new file, its index in the old file, and the conversion."""


@dataclass(frozen=True, slots=True)
class _File:
    """Finds a file's columns, and decides whether they already match."""

    mode: str | None
    keeps_ids: bool
    renames: bool
    is_of_old_calendar: bool

    def check_ids(self, columns: pa.StructType) -> None:
        # Readers see only nulls in such a file, if they read it at all.
        if self.mode == "id" and not any(_id(field) is not None for field in columns):
            raise CorruptLog("a data file can't be read", cause="its columns have no field ids")

    def index(self, columns: pa.StructType, field: _Field) -> int | None:
        """Return the index of a column in a struct of the file, or ``None``."""
        old = field.old
        if old is None:
            return None
        if self.mode == "id":
            ids = [_id(each) for each in columns]
            return None if old.field_id not in (set(ids) - {None}) else ids.index(old.field_id)
        names = [each.name for each in columns]
        if old.physical_name in names:
            return names.index(old.physical_name)
        # Without a mapping, names are compared without letter case, as Spark does.
        folded = [name.casefold() for name in names] if self.mode is None else []
        alike = folded.count(old.physical_name.casefold())
        return folded.index(old.physical_name.casefold()) if alike == 1 else None

    def field(self, columns: pa.StructType, field: _Field, path: str) -> _Made:
        at = self.index(columns, field)
        way = None if at is None else self.way(field.kind, columns.field(at).type, path)
        kind = _type(field.kind, self.keeps_ids) if way is None else way.type
        return _named(field.name, kind, field.field_id if self.keeps_ids else None), at, way

    def is_wanted(self, columns: pa.StructType, made: list[_Made]) -> bool:
        """Return True if the columns of a struct in the file already match."""
        if not all(way is None or way.is_wanted for _, _, way in made):
            return False
        if not self.renames:
            return True
        # A dropped column may have the name of a new one.
        there = [(new, columns.field(at)) for new, at, _ in made if at is not None]
        return len(there) == columns.num_fields and all(
            old.name == new.name and _id(old) == _id(new) for new, old in there
        )

    def way(self, kind: _Kind, found: pa.DataType, path: str) -> _Way:
        if isinstance(kind, _Fields) and pa.types.is_struct(found):
            return self._struct(kind, found, path)
        if isinstance(kind, _Elements) and (pa.types.is_list(found) or is_odd_list(found)):
            return self._list(kind, found, path)
        if isinstance(kind, _Entries) and pa.types.is_map(found):
            return self._map(kind, found, path)
        if isinstance(kind, pa.DataType) and may_become(plain_type(found), kind):
            return self._leaf(kind, found)
        raise CorruptLog(
            "a data file contradicts the table's schema",
            cause=f"its column {path!r} is of type {found}",
            column=path,
        )

    def _struct(self, kind: _Fields, found: pa.StructType, path: str) -> _Way:
        made = [self.field(found, field, f"{path}.{field.name}") for field in kind.fields]
        fields = [field for field, _, _ in made]

        def act(values: pa.StructArray) -> pa.StructArray:
            children = values.flatten()
            parts = [
                pa.nulls(len(values), field.type)
                if at is None or way is None
                else way.act(children[at])
                for field, at, way in made
            ]
            return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())

        return _Way(pa.struct(fields), act, self.is_wanted(found, made))

    def _list(self, kind: _Elements, found: pa.DataType, path: str) -> _Way:
        element = self.way(kind.element, found.value_type, f"{path}.element")
        wanted = pa.list_(self._inner("element", element, found.value_field))

        def act(values: pa.Array) -> pa.ListArray:
            if not pa.types.is_list(values.type):
                values = values.cast(pa.list_(values.type.value_field))
            return _with_children(wanted, values, element.act(values.values))

        is_same = not self.renames or _id(found.value_field) == _id(wanted.value_field)
        return _Way(wanted, act, element.is_wanted and is_same)

    def _map(self, kind: _Entries, found: pa.MapType, path: str) -> _Way:
        key = self.way(kind.key, found.key_type, f"{path}.key")
        value = self.way(kind.value, found.item_type, f"{path}.value")
        wanted = pa.map_(
            self._inner("key", key, found.key_field).with_nullable(False),
            self._inner("value", value, found.item_field),
        )

        def act(values: pa.MapArray) -> pa.MapArray:
            entries = pa.StructArray.from_arrays(
                [key.act(values.keys), value.act(values.items)],
                fields=[wanted.key_field, wanted.item_field],
            )
            return _with_children(wanted, values, entries)

        pairs = ((found.key_field, wanted.key_field), (found.item_field, wanted.item_field))
        is_same = not self.renames or all(_id(old) == _id(new) for old, new in pairs)
        return _Way(wanted, act, key.is_wanted and value.is_wanted and is_same)

    def _inner(self, name: str, way: _Way, found: pa.Field) -> pa.Field:
        # Ids of fields without a name aren't part of a mapping; some tables require them
        # anyway.
        return _named(name, way.type, _id(found) if self.keeps_ids else None)

    def _leaf(self, wanted: pa.DataType, found: pa.DataType) -> _Way:
        kind = plain_type(found)

        def act(values: pa.Array) -> pa.Array:
            if isinstance(values, pa.ExtensionArray):
                values = values.storage
            if not pa.types.is_timestamp(values.type):
                # Instants stored as INT96 don't have the type that the footer means yet.
                values = values.cast(kind)
            values = values.cast(wanted)
            if self.is_of_old_calendar:
                check_same_in_both(values)
            return values

        return _Way(wanted, act, is_as(kind, wanted))


def _named(name: str, kind: pa.DataType, field_id: int | None) -> pa.Field:
    return pa.field(name, kind, metadata=None if field_id is None else {FIELD_ID: str(field_id)})


def _id(field: pa.Field) -> int | None:
    text: bytes | None = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def _type(kind: _Kind, keeps_ids: bool) -> pa.DataType:
    """Return the type of a column that a file lacks."""
    if isinstance(kind, _Fields):
        return pa.struct(
            _named(each.name, _type(each.kind, keeps_ids), each.field_id if keeps_ids else None)
            for each in kind.fields
        )
    if isinstance(kind, _Elements):
        return pa.list_(pa.field("element", _type(kind.element, keeps_ids)))
    if isinstance(kind, _Entries):
        return pa.map_(_type(kind.key, keeps_ids), _type(kind.value, keeps_ids))
    return kind


def _with_children(wanted: pa.DataType, values: pa.Array, children: pa.Array) -> pa.Array:
    """Return a list or a map with the offsets of ``values`` and other children."""
    where = values.buffers()[:2]
    return pa.Array.from_buffers(
        wanted, len(values), where, offset=values.offset, children=[children]
    )
