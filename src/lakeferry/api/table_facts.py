"""What people are told of a table: its facts and its columns, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from lakeferry.readable import Facts, counted, moment, size

if TYPE_CHECKING:
    from lakeferry.api.inspection import CheckpointState, Inspection, LastChange, RedirectEntry
    from lakeferry.errors import LakeferryError
    from lakeferry.log.replay import TableState

COLUMN_NAMES = ("column", "type", "nullable")
PROPERTY_NAMES = ("property", "value")
_SHOWN_COLUMNS = 50


def inspection_facts(found: Inspection) -> Facts:
    """Return what ``inspect`` tells of a table, by name."""
    protocol, metadata = found.protocol, found.metadata
    facts: Facts = [
        ("location", found.location),
        ("version", _versions(found)),
        ("files", f"{counted(found.num_files, 'file')}, {size(found.size_bytes)}"),
        ("rows", "unknown" if found.num_rows is None else f"{found.num_rows:,}"),
        ("last change", _change(found.last_change)),
        ("id", metadata.id),
    ]
    if metadata.name:
        facts.append(("name", metadata.name))
    if metadata.description:
        facts.append(("description", metadata.description))
    if metadata.created_time is not None:
        facts.append(("created", moment(metadata.created_time)))
    facts += [
        ("protocol", f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"),
        ("features in force", ", ".join(sorted(found.features)) or "none"),
        ("partitioned by", ", ".join(metadata.partition_columns) or "nothing"),
        ("checkpoints", _checkpoints(found.checkpoints)),
    ]
    if found.redirect is not None:
        facts.append(("redirect", redirect_words(found.redirect)))
    if found.boundary is not None:
        facts.append(("checkpoints protected", f"before version {found.boundary}"))
    return facts


def state_facts(found: TableState, location: str, entry: RedirectEntry | None) -> Facts:
    """Return what a notebook tells of a table whose files it doesn't read."""
    facts: Facts = [("location", location), ("version", found.version)]
    if found.metadata.description:
        facts.append(("description", found.metadata.description))
    facts.append(("partitioned by", ", ".join(found.metadata.partition_columns) or "nothing"))
    if entry is not None:
        facts.append(("redirect", redirect_words(entry)))
    return facts


def inspection_html(found: Inspection) -> str:
    """Return what a notebook shows of an inspection."""
    from lakeferry.html_tables import facts_table, first_rows, notebook_view, warning_list

    columns = list(column_rows(found.metadata.schema_string))
    properties = sorted(found.metadata.configuration.items())
    many = len(properties)
    return notebook_view(
        found.metadata.name or "Table",
        facts_table(inspection_facts(found)),
        _column_table(columns),
        first_rows(PROPERTY_NAMES, properties, many, "property", title="Properties", shown=50),
        warning_list(f"{warning.code}: {warning.message}" for warning in found.warnings),
    )


def state_html(
    found: TableState, name: str, location: str, entry: RedirectEntry | None = None
) -> str:
    """Return what a notebook shows of a table whose files it doesn't read."""
    from lakeferry.html_tables import facts_table, notebook_view

    columns = list(column_rows(found.metadata.schema_string))
    facts = facts_table(state_facts(found, location, entry))
    return notebook_view(found.metadata.name or name, facts, _column_table(columns))


def unreadable_html(name: str, error: LakeferryError) -> str:
    """Return what a notebook shows of a table that can't be read."""
    from lakeferry.html_tables import notebook_view, warning_list

    remedy = [f"remedy: {error.remedy}"] if error.remedy else []
    return notebook_view(name, warning_list([str(error)]), *remedy)


def _column_table(columns: list[tuple[str, str, str]]) -> Any:
    from lakeferry.html_tables import first_rows

    many = len(columns)
    return first_rows(COLUMN_NAMES, columns, many, "column", title="Columns", shown=_SHOWN_COLUMNS)


def redirect_words(entry: RedirectEntry) -> str | None:
    """Return a redirect's state, and where it leads."""
    if entry.state is None:
        return entry.value or entry.feature
    lead = f"to {entry.target}" if entry.target is not None else "without a target"
    return f"{entry.state}, {lead} ({entry.mode})"


def _change(change: LastChange) -> str:
    when = "unknown" if change.timestamp is None else moment(change.timestamp)
    return f"{when}, {change.operation}" if change.operation else when


def _versions(found: Inspection) -> str:
    if found.earliest_version is None or found.earliest_version >= found.version:
        return str(found.version)
    return f"{found.version} (back to {found.earliest_version} can be rebuilt)"


def _checkpoints(checkpoints: tuple[CheckpointState, ...]) -> str:
    if not checkpoints:
        return "none"
    newest = checkpoints[-1]
    state = ", incomplete" if newest.complete is False else ""
    last = f"version {newest.version} ({newest.kind}{state})"
    more = len(checkpoints) - 1
    return f"{last} and {more} older" if more else last


def column_rows(schema_string: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each column, its type, and whether it is nullable."""
    try:
        fields: list[dict[str, Any]] = msgspec.json.decode(schema_string or "{}").get("fields", [])
        for field in fields:
            nullable = "yes" if field.get("nullable", True) else "no"
            yield str(field.get("name")), type_name(field.get("type")), nullable
    except (msgspec.MsgspecError, AttributeError, RecursionError, TypeError):
        return


def type_name(kind: Any) -> str:
    """Return a type of a Delta schema in SQL syntax."""
    if not isinstance(kind, dict):
        return str(kind)
    match kind.get("type"):
        case "struct":
            fields = kind.get("fields", [])
            inside = ", ".join(f"{each['name']}: {type_name(each['type'])}" for each in fields)
            return f"struct<{inside}>"
        case "array":
            return f"array<{type_name(kind.get('elementType'))}>"
        case "map":
            return f"map<{type_name(kind.get('keyType'))}, {type_name(kind.get('valueType'))}>"
        case other:
            return str(other)
