"""What our Unity server keeps of a managed table, and the rules by which it changes.

They are those of the real server, version 0.7; a refused change raises :class:`Refused`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.obedient_server import Reply

MOST_UNPUBLISHED = 10
LONGEST_PROPERTY = 255
LONGEST_COLUMN = 255
LONGEST_COMMENT = 65_535
READER_FEATURES = ["catalogManaged", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors"]
WRITER_FEATURES = [*READER_FEATURES, "inCommitTimestamp"]
PROPERTIES = {
    "delta.checkpointPolicy": "v2",
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpoint.writeStatsAsJson": "true",
}
TABLE_ID = "io.unitycatalog.tableId"
NAME = re.compile(r"[A-Za-z0-9_@-]{1,255}")
PRIMITIVES = re.compile(
    r"boolean|byte|short|integer|long|float|double|date|timestamp|timestamp_ntz|string|binary|"
    r"variant|decimal\(\d+,\d+\)"
)
_NESTED = {
    "struct": ("fields",),
    "array": ("element-type", "contains-null"),
    "map": ("key-type", "value-type", "value-contains-null"),
}
_DOMAINS = {
    "delta.clustering": ("clusteringColumns", "clustering"),
    "delta.rowTracking": ("rowIdHighWaterMark", "rowTracking"),
}
TABLE_FIELDS = {
    "name",
    "location",
    "table-type",
    "columns",
    "protocol",
    "properties",
    "last-commit-timestamp-ms",
}
TABLE_OPTIONS = {"partition-columns", "comment", "domain-metadata", "uniform"}
_COMMIT = {"version", "timestamp", "file-name", "file-size", "file-modification-timestamp"}
_UPDATES = {
    "add-commit": "commit",
    "set-latest-backfilled-version": "latest-published-version",
    "set-properties": "updates",
    "remove-properties": "removals",
    "set-protocol": "protocol",
    "set-columns": "columns",
    "set-partition-columns": "partition-columns",
    "set-table-comment": "comment",
    "set-domain-metadata": "updates",
    "remove-domain-metadata": "domains",
}


class Refused(Exception):
    """An error answer."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.reply: Reply = delta_error(status, kind, message)


@dataclass(slots=True)
class Managed:
    """What the server keeps of a managed table beside its entry among all tables."""

    protocol: dict[str, Any]
    properties: dict[str, str]
    columns: dict[str, Any]
    partition_columns: list[str]
    comment: str | None = None
    domains: dict[str, Any] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    """The unpublished ones and the last one, oldest first."""
    backfilled: int = 0
    created_ms: int = 0
    updated_ms: int = 0
    last_commit: tuple[int, int] = (0, 0)

    @property
    def latest(self) -> int:
        return self.commits[-1]["version"] if self.commits else 0

    @property
    def unpublished(self) -> list[dict[str, Any]]:
        return [each for each in self.commits if each["version"] > self.backfilled]

    def derived(self) -> dict[str, str]:
        """Return the properties that clients see and don't write."""
        protocol = self.protocol
        features = {*protocol.get("reader-features", ()), *protocol.get("writer-features", ())}
        found = {f"delta.feature.{name}": "supported" for name in features} | {
            "delta.minReaderVersion": str(protocol["min-reader-version"]),
            "delta.minWriterVersion": str(protocol["min-writer-version"]),
            "delta.lastUpdateVersion": str(self.last_commit[0]),
            "delta.lastCommitTimestamp": str(self.last_commit[1]),
        }
        if (clustering := self.domains.get("delta.clustering")) is not None:
            paths = ",".join(
                "[" + ",".join(f'"{part}"' for part in path) + "]"
                for path in clustering["clusteringColumns"]
            )
            found["clusteringColumns"] = f"[{paths}]"
        if (row_ids := self.domains.get("delta.rowTracking")) is not None:
            mark = str(row_ids["rowIdHighWaterMark"])
            found["delta.rowTracking.rowIdHighWaterMark"] = mark
        return found


def delta_error(status: int, kind: str, message: str) -> Reply:
    """Return an error as everything below ``/delta/v1`` writes it."""
    return status, {"error": {"message": message, "type": kind, "code": status, "stack": None}}


def invalid(message: str) -> Refused:
    return Refused(400, "InvalidParameterValueException", message)


def check_fields(body: Any, required: set[str], optional: set[str] | None = None) -> None:
    if not isinstance(body, dict):
        raise invalid("failed to parse a JSON document")
    for key in body.keys() - required - (optional or set()):
        raise invalid(f'Unrecognized field "{key}"')
    for key in required:
        if body.get(key) is None:
            raise invalid(f"{key} is required.")


def check_new_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise invalid("Name cannot contain a period, space, forward-slash, or control characters")


def check_lengths(properties: Mapping[str, str]) -> None:
    for key, value in properties.items():
        _check_length("PROPERTY_KEY", key, LONGEST_PROPERTY)
        _check_length("PROPERTY_VALUE", value, LONGEST_PROPERTY)


def _check_length(column: str, text: str, most: int) -> None:
    """Fail as the server's database does, which counts UTF-16 units."""
    if len(text.encode("utf-16-le")) // 2 > most:
        what = f"Value too long for column {column}"
        raise Refused(500, "InternalServerErrorException", what)


def by_action(updates: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what each update says, by its action."""
    found: dict[str, Any] = {}
    if not updates:
        raise invalid("At least one update is required.")
    for update in updates:
        action = update.get("action")
        if action not in _UPDATES:
            raise invalid(f"Could not resolve type id '{action}'")
        if action in found:
            raise invalid(f"At most one {action} is allowed per request.")
        check_fields(update, {"action", _UPDATES[action]})
        found[action] = update[_UPDATES[action]]
    for one, other in (
        ("set-properties", "remove-properties"),
        ("set-domain-metadata", "remove-domain-metadata"),
    ):
        if set(found.get(one, ())) & set(found.get(other, ())):
            raise invalid(f"{one} and {other} overlap")
    return found


def change(after: Managed, updates: Mapping[str, Any]) -> None:
    """Change the description, in the order of the real server."""
    if "set-columns" in updates or "set-partition-columns" in updates:
        after.columns = checked_columns(updates.get("set-columns", after.columns))
        wanted = updates.get("set-partition-columns", after.partition_columns)
        after.partition_columns = checked_partitions(wanted, after.columns)
    if "set-protocol" in updates:
        after.protocol = checked_protocol(updates["set-protocol"])
    changed = updates.get("set-properties", {})
    check_lengths(changed)
    after.properties |= changed
    for key in updates.get("remove-properties", ()):
        after.properties.pop(key, None)
    if "set-domain-metadata" in updates:
        if not updates["set-domain-metadata"]:
            raise invalid("set-domain-metadata requires at least one domain.")
        after.domains |= checked_domains(updates["set-domain-metadata"])
    for name in updates.get("remove-domain-metadata", ()):
        if name not in _DOMAINS:
            raise invalid(f"Unknown domain: {name}")
        after.domains.pop(name, None)
    after.comment = updates.get("set-table-comment", after.comment)
    _check_length("COMMENT", after.comment or "", LONGEST_COMMENT)
    if "set-protocol" in updates:
        check_contract(after)
    else:
        _check_domain_features(after)


def backfill(after: Managed, version: int, commit: Mapping[str, Any] | None) -> None:
    if not after.commits:
        raise invalid("Backfill request requires a prior commit; the commit log is empty.")
    if version > after.latest or (commit is not None and version >= commit["version"]):
        raise invalid(f"Should not backfill version {version}")
    after.backfilled = max(version, after.backfilled)
    last = after.commits[-1]
    after.commits = [each for each in after.unpublished if each is not last] + [last]


def append(after: Managed, commit: dict[str, Any], table_id: str) -> None:
    version = commit["version"]
    if after.commits and version != after.latest + 1:
        what = f"the next version after the latest commit {after.latest}, but got {version}"
        raise invalid(f"Commit version must be {what}")
    unpublished = after.unpublished
    if len(unpublished) >= MOST_UNPUBLISHED:
        what = f"Max number of commits per table reached: {table_id}"
        raise Refused(429, "ResourceExhaustedException", what)
    after.commits = [*unpublished, commit]


def check_commit(commit: Mapping[str, Any]) -> None:
    check_fields(commit, _COMMIT)
    for key in _COMMIT - {"file-name"}:
        if commit[key] <= 0:
            raise invalid(f"Field must be positive: {key.replace('-', '_')}")
    name = commit["file-name"]
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        raise invalid("file_name must be one segment")


def checked_protocol(protocol: dict[str, Any]) -> dict[str, Any]:
    check_fields(
        protocol,
        {"min-reader-version", "min-writer-version"},
        {"reader-features", "writer-features"},
    )
    return protocol


def checked_columns(columns: dict[str, Any]) -> dict[str, Any]:
    _check_type(columns, "columns")
    names = [each["name"].lower() for each in columns["fields"]]
    if len(set(names)) < len(names):
        raise invalid("columns have duplicate names")
    for each in columns["fields"]:
        _check_length("NAME", each["name"], LONGEST_COLUMN)
        _check_length("COMMENT", each["metadata"].get("comment") or "", LONGEST_COMMENT)
    return columns


def _check_type(kind: Any, path: str) -> None:
    if isinstance(kind, str):
        if not PRIMITIVES.fullmatch(kind):
            raise invalid(f"{path}: Unsupported Delta primitive type: {kind}")
        return
    parts = _NESTED.get(kind.get("type"))
    if parts is None:
        raise invalid(f"{path}: Unsupported type")
    check_fields(kind, {"type", *parts})
    for part in parts:
        if part.endswith("-type"):
            _check_type(kind[part], f"{path}.{part}")
    if kind["type"] == "struct":
        if not kind["fields"]:
            raise invalid(f"{path}.fields must contain at least one field.")
        for number, each in enumerate(kind["fields"]):
            check_fields(each, {"name", "type", "nullable", "metadata"})
            _check_type(each["type"], f"{path}.fields[{number}].type")


def checked_partitions(wanted: list[str], columns: Mapping[str, Any]) -> list[str]:
    names = {each["name"].lower(): each["name"] for each in columns["fields"]}
    for name in wanted:
        if name.lower() not in names:
            raise invalid(f"partition-columns references unknown column: {name}")
    return [names[name.lower()] for name in wanted]


def checked_domains(domains: dict[str, Any]) -> dict[str, Any]:
    for name, content in domains.items():
        if name not in _DOMAINS:
            raise invalid(f'Unrecognized field "{name}"')
        check_fields(content, {_DOMAINS[name][0]})
    return domains


def check_contract(table: Managed) -> None:
    protocol = table.protocol
    readers = set(protocol.get("reader-features") or ())
    writers = set(protocol.get("writer-features") or ())
    if protocol["min-reader-version"] < 3 or protocol["min-writer-version"] < 7:
        raise invalid("MANAGED table requires reader version 3 and writer version 7.")
    if not readers <= writers:
        raise invalid("reader-features must be a subset of writer-features.")
    for kind, there, wanted in (
        ("reader", readers, READER_FEATURES),
        ("writer", writers, WRITER_FEATURES),
    ):
        for name in wanted:
            if name not in there:
                raise invalid(f"MANAGED table missing required {kind}-feature '{name}'.")
    for key, value in PROPERTIES.items():
        if (found := table.properties.get(key)) != value:
            what = f"required property '{key}' must be '{value}' (got '{found}')."
            raise invalid(f"MANAGED table {what}")
    _check_domain_features(table)


def _check_domain_features(table: Managed) -> None:
    for name in table.domains:
        feature = _DOMAINS[name][1]
        if feature not in (table.protocol.get("writer-features") or ()):
            what = f"requires the '{feature}' writer feature."
            raise invalid(f"domain-metadata.{name} {what}")
