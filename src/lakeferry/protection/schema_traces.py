"""Finds a feature's traces in a schema, and removes them.

Implements the fields of "Column Mapping" and "Type Widening" in the protocol's
schema. Everything else in a schema, known or not, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from lakeferry.errors import CorruptLog
from lakeferry.log.actions import Metadata, changed

_PHYSICAL = "delta.columnMapping.physicalName"
_MAPPING = ("delta.columnMapping.id", _PHYSICAL, "delta.columnMapping.nested.ids")
_TYPE_CHANGES = ("delta.typeChanges",)
_MAPPING_PROPERTIES = ("delta.columnMapping.mode", "delta.columnMapping.maxColumnId")
_ILLEGAL = frozenset(" ,;{}()\n\t=")
"""Characters that column names may not have in tables without column mapping."""

Field = dict[str, Any]


def without_mapping(metadata: Metadata) -> Metadata:
    """Return metadata without column mapping: data files have the names that users see."""
    configuration = {
        name: value
        for name, value in metadata.configuration.items()
        if name not in _MAPPING_PROPERTIES
    }
    stripped = _without(metadata, _MAPPING)
    return changed(metadata, schema_string=stripped, configuration=configuration)


def without_type_changes(metadata: Metadata) -> Metadata:
    """Return metadata without the records of type changes."""
    return changed(metadata, schema_string=_without(metadata, _TYPE_CHANGES))


def has_type_changes(metadata: Metadata) -> bool:
    """Return whether a column had a narrower type before."""
    return any(_TYPE_CHANGES[0] in (field.get("metadata") or {}) for _, field in _fields(metadata))


def illegal_names(metadata: Metadata) -> list[str]:
    """Return the column names that are only possible with column mapping."""
    seen: set[str] = set()
    found = []
    for path, _ in _fields(metadata):
        folded = "\n".join(path).lower()
        if folded in seen or _ILLEGAL.intersection(path[-1]) or not path[-1]:
            found.append(".".join(path))
        seen.add(folded)
    return found


def geospatial_columns(metadata: Metadata) -> list[str]:
    """Return the columns that contain a geometry or a geography."""
    return [
        ".".join(path)
        for path, field in _fields(metadata)
        if any(str(kind).startswith(("geometry", "geography")) for kind in _leaves(field["type"]))
    ]


def logical_paths(metadata: Metadata) -> Mapping[tuple[str, ...], list[str]]:
    """Return each column's logical path by its physical one."""
    found: dict[tuple[str, ...], list[str]] = {}

    def walk(kind: Any, logical: tuple[str, ...], physical: tuple[str, ...]) -> None:
        for field in kind.get("fields", ()) if isinstance(kind, dict) else ():
            name = (field.get("metadata") or {}).get(_PHYSICAL, field["name"])
            path = (*physical, name)
            found[path] = [*logical, field["name"]]
            walk(field["type"], (*logical, field["name"]), path)

    walk(_tree(metadata), (), ())
    return found


def _tree(metadata: Metadata) -> Field:
    try:
        return msgspec.json.decode(metadata.schema_string, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as broken:
        raise CorruptLog("the table's schema can't be read", cause=str(broken)) from broken


def _without(metadata: Metadata, keys: tuple[str, ...]) -> str:
    def strip(field: Field) -> Field:
        kept = {k: v for k, v in (field.get("metadata") or {}).items() if k not in keys}
        return {**field, "metadata": kept}

    return msgspec.json.encode(_mapped(_tree(metadata), strip)).decode()


def _mapped(kind: Any, change: Callable[[Field], Field]) -> Any:
    """Return a type with every field in it changed."""
    if not isinstance(kind, dict):
        return kind
    match kind.get("type"):
        case "struct":
            fields = [
                {**change(field), "type": _mapped(field["type"], change)}
                for field in kind["fields"]
            ]
            return {**kind, "fields": fields}
        case "array":
            return {**kind, "elementType": _mapped(kind["elementType"], change)}
        case "map":
            key, value = _mapped(kind["keyType"], change), _mapped(kind["valueType"], change)
            return {**kind, "keyType": key, "valueType": value}
    return kind


def _fields(metadata: Metadata) -> Iterator[tuple[tuple[str, ...], Field]]:
    """Yield every field at any depth, with its path; elements of arrays and maps have no name."""
    yield from _fields_of(_tree(metadata), ())


def _fields_of(kind: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Field]]:
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        path = (*above, field["name"])
        yield path, field
        yield from _fields_of(field["type"], path)
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            yield from _fields_of(kind[part], (*above, part))


def _leaves(kind: Any) -> Iterator[Any]:
    if not isinstance(kind, dict):
        yield kind
        return
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            yield from _leaves(kind[part])
