"""A table's schema: its tree of columns, and the Arrow schema.

Implements the protocol's "Schema Serialization Format" and the names of "Column Mapping". In
Arrow every field is nullable, as in Spark's reader: a constraint for writers doesn't apply to
files that existed before.

An invalid schema is :class:`~lakeferry.errors.CorruptLog`. A type that Arrow or we don't
support, such as ``geometry``, is :class:`~lakeferry.errors.UnsupportedFeature` with the type and
its feature, unless the caller leaves such columns unread (:class:`Unreadable`). An unsupported
type change is the same error (:mod:`lakeferry.log.type_changes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from lakeferry.errors import CorruptLog, UnsupportedFeature
from lakeferry.log import type_changes
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.log.schema_text import built_schema, primitive_type

MAPPING_MODE = "delta.columnMapping.mode"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_ID = "delta.columnMapping.id"
_FEATURES = {"variant": "variantType", "geometry": "geospatial", "geography": "geospatial"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field of one. Without column mapping both names are the same."""

    name: str
    physical_name: str
    field_id: int | None
    type: Type


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields; a table's schema is one."""

    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """Any number of elements of one type."""

    element: Type


@dataclass(frozen=True, slots=True)
class Map:
    """Keys with their values."""

    key: Type
    value: Type


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A type that can't be read, by its name in Delta. In Arrow it becomes null."""

    name: str


Type: TypeAlias = Struct | Array | Map | pa.DataType | Unreadable
VARIANT = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])
"""A variant in data files, unless it is shredded."""
_VARIANT_SHREDDING = frozenset({"variantShredding", "variantShredding-preview"})


def mapping_mode(metadata: Metadata) -> str | None:
    """Return how data files name columns: by ``name``, by ``id``, or ``None`` for their own names.

    Raises ``UnsupportedFeature`` for an unknown mode.
    """
    mode = metadata.configuration.get(MAPPING_MODE, "none").lower()
    if mode not in ("none", "name", "id"):
        raise UnsupportedFeature(
            "the table can't be read",
            cause=f"its column mapping mode is {mode!r}, which isn't supported",
            features=["columnMapping"],
        )
    return None if mode == "none" else mode


@dataclass(frozen=True, slots=True)
class _Reading:
    """How to read a schema; ``protocol`` is set if unreadable types are allowed in it."""

    is_mapped: bool
    protocol: Protocol | None


def schema_columns(metadata: Metadata, *, with_unreadable: Protocol | None = None) -> Struct:
    """Return the tree of a table's columns.

    ``with_unreadable`` is the table's protocol. If it is given, types that can't be read become
    :class:`Unreadable`, and variants that aren't shredded :data:`VARIANT`; otherwise they are
    errors.
    """
    reading = _Reading(mapping_mode(metadata) is not None, with_unreadable)
    if not metadata.schema_string:
        raise CorruptLog(
            "the table has no schema",
            cause="the schemaString of its metaData is missing or empty",
            remedy="write to it with an engine that sets the schema, or restore its metaData",
        )
    return built_schema(metadata.schema_string, lambda schema: _struct(schema, reading))


def _struct(kind: Mapping[str, Any], reading: _Reading) -> Struct:
    return Struct(tuple(_column(field, reading) for field in kind["fields"]))


def _column(field: Mapping[str, Any], reading: _Reading) -> Column:
    name = field["name"]
    mapped = (field.get("metadata") or {}) if reading.is_mapped else {}
    physical = mapped.get(_PHYSICAL_NAME, name)
    if not isinstance(name, str) or not isinstance(physical, str):
        raise ValueError(f"{name!r} isn't a column's name")
    type_changes.check_type_changes(field)
    return Column(name, physical, mapped.get(_ID), _type(field["type"], reading))


def _type(kind: Any, reading: _Reading) -> Type:
    if isinstance(kind, str):
        return _primitive(kind, reading)
    if kind["type"] == "struct":
        return _struct(kind, reading)
    if kind["type"] == "array":
        return Array(_type(kind["elementType"], reading))
    if kind["type"] == "map":
        return Map(_type(kind["keyType"], reading), _type(kind["valueType"], reading))
    return _primitive(str(kind["type"]), reading)


def _primitive(kind: str, reading: _Reading) -> pa.DataType | Unreadable:
    # A column that is always null is in no data file.
    found = pa.null() if kind == "void" else primitive_type(kind)
    if found is None and reading.protocol is not None:
        # In a shredded variant, parts of the value are in separate columns.
        shredded = _VARIANT_SHREDDING.intersection(reading.protocol.features)
        return VARIANT if kind == "variant" and not shredded else Unreadable(kind)
    if found is None:
        # The caller decides what to do about it.
        raise unreadable_error("the table", kind)
    return found


def unreadable_error(what: str, kind: str, remedy: str | None = None) -> UnsupportedFeature:
    """Return the error for something whose type can't be read."""
    family = kind.partition("(")[0]
    return UnsupportedFeature(
        f"{what} can't be read as Arrow",
        cause=f"it has a column of the type {kind!r}",
        remedy=remedy,
        features=[_FEATURES.get(family, family)],
    )


def unreadable_type(kind: Type) -> str | None:
    """Return the name of a type in ``kind``, at any depth, that can't be read; else ``None``."""
    if isinstance(kind, Unreadable):
        return kind.name
    parts: tuple[Type, ...] = ()
    if isinstance(kind, Struct):
        parts = tuple(each.type for each in kind.columns)
    elif isinstance(kind, Array):
        parts = (kind.element,)
    elif isinstance(kind, Map):
        parts = (kind.key, kind.value)
    return next((found for part in parts if (found := unreadable_type(part))), None)


def arrow_type(kind: Type) -> pa.DataType:
    """Return a type for Arrow, with the names that users see."""
    if isinstance(kind, Struct):
        return pa.struct([pa.field(each.name, arrow_type(each.type)) for each in kind.columns])
    if isinstance(kind, Array):
        return pa.list_(arrow_type(kind.element))
    if isinstance(kind, Map):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    return pa.null() if isinstance(kind, Unreadable) else kind


def arrow_schema(table: Struct) -> pa.Schema:
    """Return a table's schema for Arrow, with the names that users see."""
    return pa.schema([pa.field(each.name, arrow_type(each.type)) for each in table.columns])


def has_floats(kind: Type) -> bool:
    """Return True if values of a type contain floats or doubles, at any depth."""
    if isinstance(kind, Struct):
        return any(has_floats(each.type) for each in kind.columns)
    if isinstance(kind, Array):
        return has_floats(kind.element)
    if isinstance(kind, Map):
        return has_floats(kind.key) or has_floats(kind.value)
    return not isinstance(kind, Unreadable) and bool(pa.types.is_floating(kind))
