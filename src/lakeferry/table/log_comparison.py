"""Compares two tables by their logs: schema, properties and live files.

Two tables are *equal* if a user of the newest version finds the same in both: schema, partition
columns, properties, and live files with the same size, partition values and number of deleted
rows. A file is identified by its path below its own table, so a copy at another place is equal.
A file that one table names by an absolute URI inside the other table is that other table's file,
so a table that refers to another's files is equal to it, too. So is a table that took such files
along when it was moved (``_adopted/``). If several live files have one path and different
deletion vectors, they are compared in the order of the vectors.

Not compared, because no query shows them: version numbers, history, the table's id, protocol
versions and features, statistics, and properties about the place or the log rather than the
content (redirects, the boundary of checkpoint protection, the start of in-commit timestamps).
Tables with the same rows in other files are different.

Data that grows with the table is joined in Arrow; differences are counted exactly and listed up
to a limit. No file is read: :mod:`lakeferry.api.verify` does that on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.log import features, file_identity
from lakeferry.log.actions import Metadata
from lakeferry.log.replay import Snapshot
from lakeferry.log.rewrite import Returned, adoption
from lakeferry.storage import Store
from lakeferry.storage.uris import relative_name
from lakeferry.table.live_files import uri_of

LISTED_DIFFERENCES = 1_000
_OUTSIDE = "../"
_NOT_CONTENT = frozenset(
    {
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.inCommitTimestampEnablementVersion",
        "delta.requireCheckpointProtectionBeforeVersion",
        "lakeferry.redirect",
        *features.REDIRECT_FEATURES,
        *(f"delta.{name}" for name in features.REDIRECT_FEATURES),
    }
)


@dataclass(frozen=True, slots=True)
class TableSide:
    """One of the two tables: its place and its newest version."""

    store: Store
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference; ``path`` names the file, column or property."""

    kind: str
    path: str | None
    a: object
    b: object


@dataclass(slots=True)
class Differences:
    """Collects differences: counts all, keeps them up to the limit."""

    listed: list[Difference] = field(default_factory=list)
    count: int = 0

    def add(self, kind: str, path: str | None, a: object, b: object) -> None:
        """Add one difference."""
        self.count += 1
        if len(self.listed) < LISTED_DIFFERENCES:
            self.listed.append(Difference(kind, path, a, b))

    def add_rows(self, kind: str, rows: pa.Table, a: str | None, b: str | None) -> None:
        """Add one difference per row; ``a`` and ``b`` name the columns to show."""
        self.count += rows.num_rows
        room = LISTED_DIFFERENCES - len(self.listed)
        shown = rows.sort_by("path").slice(0, room) if room else rows.slice(0, 0)
        for row in shown.to_pylist():
            self.listed.append(Difference(kind, row["path"], a and row[a], b and row[b]))


@dataclass(frozen=True, slots=True)
class LogComparison:
    """The differences between two logs, and the live files of both, joined."""

    differences: Differences
    files: pa.Table
    """One row per file. Columns of ``a`` end in ``_a``: null if only ``b`` has the file."""

    @property
    def files_of_both(self) -> pa.Table:
        """The rows of the files that both tables have."""
        return self.files.filter(in_both(self.files))


def compare_logs(a: TableSide, b: TableSide) -> LogComparison:
    """Compare two tables by their logs; see the module for what is equal."""
    found = Differences()
    _compare_metadata(a.snapshot.metadata, b.snapshot.metadata, found)
    columns = _partition_columns(a.snapshot.metadata)
    keys_a, keys_b = _keys(a, b), _keys(b, a)
    joined = _join(
        _listed(a, _shared_keys(a, b, keys_a, keys_b), columns),
        _listed(b, _shared_keys(b, a, keys_b, keys_a), columns),
    ).sort_by("key")
    _compare_files(joined, columns, found)
    return LogComparison(found, joined)


def in_both(files: pa.Table) -> pa.ChunkedArray:
    """Return which rows of joined files are files that both tables have."""
    return pc.and_(_is_valid(files, "size_a"), _is_valid(files, "size_b"))


# --- Metadata -----------------------------------------------------------------


def _compare_metadata(a: Metadata, b: Metadata, found: Differences) -> None:
    if a.format_provider != b.format_provider:
        found.add("format", None, a.format_provider, b.format_provider)
    fields_a, fields_b = _fields(a), _fields(b)
    for name in fields_a | fields_b:
        if fields_a.get(name) != fields_b.get(name):
            found.add("schema", name, fields_a.get(name), fields_b.get(name))
    if fields_a.keys() == fields_b.keys() and list(fields_a) != list(fields_b):
        found.add("column_order", None, list(fields_a), list(fields_b))
    if a.partition_columns != b.partition_columns:
        found.add("partition_columns", None, list(a.partition_columns), list(b.partition_columns))
    for name in sorted((a.configuration.keys() | b.configuration.keys()) - _NOT_CONTENT):
        if a.configuration.get(name) != b.configuration.get(name):
            found.add("configuration", name, a.configuration.get(name), b.configuration.get(name))


def _fields(metadata: Metadata) -> dict[str, Any]:
    """Return the schema's columns by name, in order; an invalid schema is one column of text."""
    if not metadata.schema_string:
        return {}
    try:
        fields = msgspec.json.decode(metadata.schema_string)["fields"]
        return {column["name"]: column for column in fields}
    except (msgspec.MsgspecError, KeyError, RecursionError, TypeError):
        return {"": metadata.schema_string}


def _partition_columns(metadata: Metadata) -> list[tuple[str, str]]:
    """Return the partition columns as (logical, physical) names."""
    fields = _fields(metadata)
    mapped = metadata.configuration.get("delta.columnMapping.mode", "none") != "none"
    pairs = []
    for name in metadata.partition_columns:
        column = fields.get(name)
        physical = column.get("metadata", {}) if mapped and isinstance(column, dict) else {}
        pairs.append((name, physical.get("delta.columnMapping.physicalName", name)))
    return pairs


# --- Live files ---------------------------------------------------------------


def _listed(side: TableSide, keys: pa.Array, columns: list[tuple[str, str]]) -> pa.Table:
    """Return a side's live files with flat columns only, as joins require."""
    table = side.snapshot.files
    vectors = table["deletionVector"].combine_chunks()
    listed = {
        "key": keys,
        "path": table["path"],
        "size": table["size"],
        "deleted": pc.fill_null(pc.struct_field(vectors, "cardinality"), 0),
        "vector_kind": pc.struct_field(vectors, "storageType"),
        "vector": pc.struct_field(vectors, "pathOrInlineDv"),
        "vector_offset": pc.struct_field(vectors, "offset"),
        "vector_size": pc.struct_field(vectors, "sizeInBytes"),
    }
    values = table["partitionValues"].combine_chunks()
    for index, (_, physical) in enumerate(columns):
        # An empty text and null are the same partition value.
        found = pc.map_lookup(values, pa.scalar(physical, pa.string()), "first")
        listed[f"partition{index}"] = pc.fill_null(found, "")
    return _numbered(pa.table(listed))


def _numbered(listed: pa.Table) -> pa.Table:
    """Return the files with unique keys, even if several have one path."""
    if pc.count_distinct(listed["key"]).as_py() == listed.num_rows:
        return listed
    ordered = listed.sort_by(
        [(name, "ascending") for name in ("key", "deleted", "size", "vector_size")]
    )
    numbered, seen, last = [], 0, None
    for key in ordered["key"].to_pylist():
        seen = seen + 1 if key == last else 0
        last = key
        # No decoded path has a line feed.
        numbered.append(f"{key}\n{seen}" if seen else key)
    return ordered.set_column(0, "key", pa.array(numbered, pa.string()))


def _keys(side: TableSide, other: TableSide) -> pa.Array:
    """Return each file's key for the comparison.

    The key is the decoded path below its own table, else below the other table, else the
    absolute URI.
    """
    paths, root = _paths(side), side.store.uri
    spelled = file_identity.canonical_paths(paths, root)
    outside = pc.match_substring_regex(spelled, "^[A-Za-z][A-Za-z0-9+.-]*:/")
    if not pc.any(outside).as_py():
        return spelled
    inside = set(spelled.filter(pc.invert(outside)).to_pylist())
    respelled = []
    for path in paths.filter(outside).to_pylist():
        uri = uri_of(root, path)
        name = relative_name(root, uri)
        if name is None:
            borrowed = relative_name(other.store.uri, uri)
            # The table's own file of that name must not be confused with the borrowed one.
            name = borrowed if borrowed is not None and borrowed not in inside else uri
        respelled.append(name)
    return pc.replace_with_mask(spelled, outside, pa.array(respelled, pa.string()))


def _shared_keys(
    side: TableSide, other: TableSide, keys: pa.Array, other_keys: pa.Array
) -> pa.Array:
    """Return the keys; a file that the other table names differently gets the other table's key.

    These are adopted files, and files whose path leads out of the table's folder.
    """
    paths = _paths(side)
    asked = pc.or_(
        pc.starts_with(paths, f"{adoption.ADOPTED_FOLDER}/"), pc.starts_with(keys, _OUTSIDE)
    )
    if not pc.any(asked).as_py():
        return keys
    # The table's own file of that name must not be confused with it.
    candidates = set(other_keys.to_pylist()) - set(keys.to_pylist())
    shared = [
        next((name for name in _other_names(path, key, side, other) if name in candidates), key)
        for path, key in zip(
            paths.filter(asked).to_pylist(), keys.filter(asked).to_pylist(), strict=True
        )
    ]
    return pc.replace_with_mask(keys, asked, pa.array(shared, pa.string()))


def _other_names(path: str, key: str, side: TableSide, other: TableSide) -> Iterator[str]:
    """Yield the names that the other table may have for a file, if they differ from this one's."""
    if not key.startswith(_OUTSIDE):
        yield from _homes(path, side, other)
        return
    uri = uri_of(side.store.uri, path)
    for table in (side, other):
        # The URI may lead back into this table, or into the other one.
        if (name := relative_name(table.store.uri, uri)) is not None:
            yield name
    yield uri


def _homes(path: str, side: TableSide, other: TableSide) -> Iterator[str]:
    """Yield the names of an adopted file before it was adopted, latest first."""
    root = other.store.uri
    returned = Returned(side.store.uri)
    while path.startswith(f"{adoption.ADOPTED_FOLDER}/"):
        home = returned(pa.array([path]))[0].as_py()
        if home == path:
            # It is somebody else's folder of that name.
            return
        path = home
        if not file_identity.is_absolute_path(path):
            yield file_identity.canonical_path(path, root)
            continue
        uri = uri_of(root, path)
        name = relative_name(root, uri)
        yield uri if name is None else name


def _paths(side: TableSide) -> pa.Array:
    return side.snapshot.files["path"].combine_chunks()


def _join(a: pa.Table, b: pa.Table) -> pa.Table:
    joined = a.join(b, keys="key", join_type="full outer", left_suffix="_a", right_suffix="_b")
    path = pc.coalesce(joined["path_a"], joined["path_b"])
    return joined.append_column("path", path)


def _is_valid(table: pa.Table, name: str) -> pa.ChunkedArray:
    return pc.is_valid(table[name])


def _compare_files(joined: pa.Table, columns: list[tuple[str, str]], found: Differences) -> None:
    in_a, in_b = _is_valid(joined, "size_a"), _is_valid(joined, "size_b")
    found.add_rows("only_in_a", joined.filter(pc.invert(in_b)), "size_a", None)
    found.add_rows("only_in_b", joined.filter(pc.invert(in_a)), None, "size_b")
    both = joined.filter(pc.and_(in_a, in_b))
    for kind, name in (("size", "size"), ("deletion_vector", "deleted")):
        differ = pc.not_equal(both[f"{name}_a"], both[f"{name}_b"])
        found.add_rows(kind, both.filter(differ), f"{name}_a", f"{name}_b")
    for index in range(len(columns)):
        left, right = f"partition{index}_a", f"partition{index}_b"
        differ = pc.not_equal(both[left], both[right])
        found.add_rows("partition_values", both.filter(differ), left, right)
