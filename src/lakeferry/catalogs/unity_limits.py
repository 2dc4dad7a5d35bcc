"""The lengths that the open Unity Catalog has room for.

It answers a longer text with status 500, which says nothing about the commit in the same request.
So lengths are checked before a request is sent. The server counts UTF-16 units, as Java does.
"""

from __future__ import annotations

from lakeferry.catalogs.columns import kebab_schema
from lakeferry.errors import InvalidInput
from lakeferry.log.catalog_changes import CatalogChanges

LONGEST_PROPERTY = 255
"""The longest name of a property, and the longest value."""
_LONGEST_COLUMN = 255
_LONGEST_COMMENT = 65_535


def check(name: str, changes: CatalogChanges) -> None:
    """Refuse a description of the table ``name`` that the server can't keep."""
    for key, value in changes.properties.items():
        _check(name, "name of the property", key, key, LONGEST_PROPERTY)
        _check(name, "value of the property", key, value, LONGEST_PROPERTY)
    if changes.metadata is not None:
        for field in kebab_schema(changes.metadata)["fields"]:
            column, comment = field["name"], field["metadata"].get("comment")
            _check(name, "name of the column", column, column, _LONGEST_COLUMN)
            if isinstance(comment, str):
                _check(name, "comment of the column", column, comment, _LONGEST_COMMENT)
    if changes.comment is not None:
        _check(name, "comment of the table", name, changes.comment, _LONGEST_COMMENT)


def _check(name: str, what: str, which: str, text: str, most: int) -> None:
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if units <= most:
        return
    shown = which if len(which) <= 80 else f"{which[:80]}..."
    raise InvalidInput(
        f"Unity Catalog can't keep the {what} {shown}",
        cause=f"it has {units:,} characters, and {most:,} are possible",
        remedy="make it shorter, or remove it",
        name=name,
        value=which,
    )
