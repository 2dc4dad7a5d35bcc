"""A table's schema: the tree of its columns, and what Arrow calls it.

Implements the protocol's "Schema Serialization Format" and the names of "Column
Mapping". Every field is nullable to Arrow, as it is to Spark when it reads: what
a writer has to keep is no promise about files that were there before.

A schema that can't be understood is :class:`~lakeferry.errors.CorruptLog`; one
that has a type which Arrow or we don't have, ``variant`` for one, is
:class:`~lakeferry.errors.UnsupportedFeature` with the type and its feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lakeferry.errors import CorruptLog, UnsupportedFeature
from lakeferry.log.actions import Metadata
from lakeferry.log.stats import primitive_type

MAPPING_MODE = "delta.columnMapping.mode"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_ID = "delta.columnMapping.id"
_FEATURES = {"variant": "variantType", "geometry": "geospatial", "geography": "geospatial"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column or a field of one. Without column mapping both names are one."""

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


Type: TypeAlias = Struct | Array | Map | pa.DataType


def mapping_mode(metadata: Metadata) -> str | None:
    """Return how data files name columns: by ``name`` or ``id``, or ``None`` for their own names.

    Raises ``UnsupportedFeature`` for a mode that the protocol doesn't have.
    """
    mode = metadata.configuration.get(MAPPING_MODE, "none").lower()
    if mode not in ("none", "name", "id"):
        raise UnsupportedFeature(
            "the table can't be read",
            cause=f"its columns are mapped by {mode!r}, which isn't known",
            features=["columnMapping"],
        )
    return None if mode == "none" else mode


def columns(metadata: Metadata) -> Struct:
    """Return the tree of a table's columns."""
    is_mapped = mapping_mode(metadata) is not None
    try:
        schema = msgspec.json.decode(metadata.schema_string, type=dict[str, Any])
        if schema["type"] != "struct":
            raise ValueError(f"it is a {schema['type']!r}")
        return _struct(schema, is_mapped)
    except (
        msgspec.MsgspecError,
        pa.ArrowException,
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as broken:
        raise CorruptLog("the table's schema can't be read", cause=repr(broken)) from broken


def _struct(kind: Mapping[str, Any], is_mapped: bool) -> Struct:
    return Struct(tuple(_column(field, is_mapped) for field in kind["fields"]))


def _column(field: Mapping[str, Any], is_mapped: bool) -> Column:
    name = field["name"]
    mapped = (field.get("metadata") or {}) if is_mapped else {}
    physical = mapped.get(_PHYSICAL_NAME, name)
    if not isinstance(name, str) or not isinstance(physical, str):
        raise ValueError(f"{name!r} is no column's name")
    return Column(name, physical, mapped.get(_ID), _type(field["type"], is_mapped))


def _type(kind: Any, is_mapped: bool) -> Type:
    if isinstance(kind, str):
        return _primitive(kind)
    if kind["type"] == "struct":
        return _struct(kind, is_mapped)
    if kind["type"] == "array":
        return Array(_type(kind["elementType"], is_mapped))
    if kind["type"] == "map":
        return Map(_type(kind["keyType"], is_mapped), _type(kind["valueType"], is_mapped))
    return _primitive(str(kind["type"]))


def _primitive(kind: str) -> pa.DataType:
    # A column that is null throughout is in no data file.
    found = pa.null() if kind == "void" else primitive_type(kind)
    if found is None:
        family = kind.partition("(")[0]
        raise UnsupportedFeature(
            "the table can't be read as Arrow",
            cause=f"it has a column of the type {kind!r}",
            remedy="read it with Spark: lakeferry.spark follows redirects there",
            features=[_FEATURES.get(family, family)],
        )
    return found


def arrow_type(kind: Type) -> pa.DataType:
    """Return a type as Arrow has it, with the names that users see."""
    if isinstance(kind, Struct):
        return pa.struct([pa.field(each.name, arrow_type(each.type)) for each in kind.columns])
    if isinstance(kind, Array):
        return pa.list_(arrow_type(kind.element))
    if isinstance(kind, Map):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    return kind


def arrow_schema(table: Struct) -> pa.Schema:
    """Return a table's schema as Arrow has it, with the names that users see."""
    return pa.schema([pa.field(each.name, arrow_type(each.type)) for each in table.columns])
