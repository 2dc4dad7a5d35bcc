"""Type changes that a schema records, and whether Lakeferry can read across them.

Implements the protocol's "Type Widening": a reader must fail on an unsupported change in
``delta.typeChanges``. Older files have values of the old type, and reading them as the new type
may give wrong values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lakeferry.errors import UnsupportedFeature
from lakeferry.log.schema_text import primitive_type

_KEY = "delta.typeChanges"
_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
"""How many digits before the point a decimal needs for an integer type.

The protocol requires ten for bytes and shorts, too; delta-spark accepts any that hold all
values.
"""


def check_type_changes(field: Mapping[str, Any]) -> None:
    """Raise ``UnsupportedFeature`` if a field of a schema had an unsupported type change.

    Nested fields aren't checked.
    """
    changes = (field.get("metadata") or {}).get(_KEY)
    if changes is None:
        return
    if not isinstance(changes, list):
        raise ValueError(f"{_KEY} of {field['name']!r} isn't a list")
    for change in changes:
        before, after = change["fromType"], change["toType"]
        if not is_supported(before, after):
            raise UnsupportedFeature(
                "the table can't be read",
                cause=f"its column {field['name']!r} was changed from {before} to {after}, "
                "which isn't supported",
                remedy="read it with the engine that changed the type",
                features=["typeWidening"],
                column=field["name"],
            )


def is_supported(before: object, after: object) -> bool:
    """Return True if values of one type can be read as another, by the protocol's list."""
    if not isinstance(before, str) or not isinstance(after, str):
        return False
    if before == after or after in _WIDER.get(before, ()):
        return True
    wider = _decimal(after)
    if wider is None:
        return False
    if before in _DIGITS:
        return int(wider.precision - wider.scale) >= _DIGITS[before]
    narrower = _decimal(before)
    if narrower is None or wider.scale < narrower.scale:
        return False
    return bool(wider.precision - wider.scale >= narrower.precision - narrower.scale)


def _decimal(kind: str) -> pa.Decimal128Type | None:
    try:
        found = primitive_type(kind)
    except pa.ArrowException:
        return None
    return found if found is not None and pa.types.is_decimal(found) else None
