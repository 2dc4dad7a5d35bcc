"""Whether two tables hold the same: what is compared, and what isn't.

Two tables are *equal* when a user of the newest version finds the same in both:
the same schema, partition columns and properties, and the same live files, each
with the same size, partition values and number of deleted rows. A file is known
by its path below its own table, so a copy at another place is equal; a file that
one table names by an absolute URI inside the other table is that other table's
file, so a table that refers to another's files is equal to it too.

Not compared, because no query shows them: version numbers, history, the table's
id, protocol versions and features, statistics, and properties about the place or
its log rather than the content (redirects, the boundary of checkpoint protection,
since when commits carry their time). Tables with the same rows in other files
are different here.

Logs are compared with each other; ``digest`` and ``rows`` look at the files too,
and then a file that isn't there is a difference. What grows with the table is
joined in Arrow; differences are counted exactly and listed up to a bound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import Observer, unobserved
from lakeferry.errors import CorruptLog, InvalidInput, ObjectNotFound
from lakeferry.log import features, files, parquet
from lakeferry.log.actions import Metadata
from lakeferry.log.deletion_vectors import relative_path, z85_decode
from lakeferry.log.replay import Snapshot
from lakeferry.storage import Store, StoreConfig, open_config
from lakeferry.storage.uris import container_and_name, relative_name, resolve
from lakeferry.table import load

LISTED_DIFFERENCES = 1_000
_PARALLEL = 8
_BATCH_FILES = 256
_CHUNK_BYTES = 8 * 1024 * 1024
# A vector on disk is framed by its size before it and a checksum after it.
_VECTOR_SIZE_BYTES = 4
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
class Side:
    """One of the two tables: where it is, and its newest version."""

    store: Store
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that isn't the same; ``path`` names the file, column or property."""

    kind: str
    path: str | None
    a: object
    b: object


@dataclass(frozen=True, slots=True)
class Verification:
    """The result: all differences counted, the first ones listed."""

    a: Mapping[str, object]
    b: Mapping[str, object]
    differences: tuple[Difference, ...]
    difference_count: int
    rows: Mapping[str, int | None] | None
    """How many rows each table has, where they were counted."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.difference_count == 0

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of the command ``verify``."""
        return {"equal": self.equal} | cast(dict[str, Any], msgspec.to_builtins(self))


@dataclass(slots=True)
class _Found:
    """Differences on their way: counted all, kept up to the bound."""

    listed: list[Difference] = field(default_factory=list)
    count: int = 0

    def add(self, kind: str, path: str | None, a: object, b: object) -> None:
        self.count += 1
        if len(self.listed) < LISTED_DIFFERENCES:
            self.listed.append(Difference(kind, path, a, b))

    def add_rows(self, kind: str, rows: pa.Table, a: str | None, b: str | None) -> None:
        """Take in a row for each difference; ``a`` and ``b`` name the columns to show."""
        self.count += rows.num_rows
        room = LISTED_DIFFERENCES - len(self.listed)
        shown = rows.sort_by("path").slice(0, room) if room else rows.slice(0, 0)
        for row in shown.to_pylist():
            self.listed.append(Difference(kind, row["path"], a and row[a], b and row[b]))


def compare(
    a: Side, b: Side, *, digest: bool = False, rows: bool = False, observer: Observer = unobserved
) -> Verification:
    """Compare two tables; see the module for what is equal."""
    found = _Found()
    _compare_metadata(a.snapshot.metadata, b.snapshot.metadata, found)
    columns = _partition_columns(a.snapshot.metadata)
    joined = _join(_listed(a, b, columns), _listed(b, a, columns))
    _compare_files(joined, columns, found)
    both = joined.filter(pc.and_(_is_valid(joined, "size_a"), _is_valid(joined, "size_b")))
    if digest:
        _compare_digests(a, b, both, found, observer)
    totals = _compare_rows(a, b, joined, found, observer) if rows else None
    return Verification(_summary(a), _summary(b), tuple(found.listed), found.count, totals)


def _summary(side: Side) -> dict[str, object]:
    snapshot = side.snapshot
    return {
        "location": side.store.uri,
        "version": snapshot.version,
        "num_files": snapshot.num_files,
        "size_bytes": snapshot.size_bytes,
    }


# --- Metadata -----------------------------------------------------------------


def _compare_metadata(a: Metadata, b: Metadata, found: _Found) -> None:
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
    """Return the schema's columns by name, in order; what isn't a schema is one column of text."""
    if not metadata.schema_string:
        return {}
    try:
        fields = msgspec.json.decode(metadata.schema_string)["fields"]
        return {column["name"]: column for column in fields}
    except (msgspec.MsgspecError, KeyError, TypeError):
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


def _listed(side: Side, other: Side, columns: list[tuple[str, str]]) -> pa.Table:
    """Return a side's live files with flat columns only, as joins want them."""
    table = side.snapshot.files
    vectors = table["deletionVector"].combine_chunks()
    listed = {
        "key": _keys(table["path"].combine_chunks(), side.store.uri, other.store.uri),
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
        # An empty text and null are one partition value.
        found = pc.map_lookup(values, pa.scalar(physical, pa.string()), "first")
        listed[f"partition{index}"] = pc.fill_null(found, "")
    return pa.table(listed)


def _keys(paths: pa.Array, root: str, other_root: str) -> pa.Array:
    """Return what each file is called for the comparison.

    That is its decoded path below its own table, else below the other table,
    else its absolute URI.
    """
    spelled = files.canonical_paths(paths, root)
    outside = pc.match_substring_regex(spelled, "^[A-Za-z][A-Za-z0-9+.-]*:/")
    if not pc.any(outside).as_py():
        return spelled
    inside = set(spelled.filter(pc.invert(outside)).to_pylist())
    respelled = []
    for path in paths.filter(outside).to_pylist():
        uri = uri_of(root, path)
        name = relative_name(root, uri)
        if name is None:
            borrowed = relative_name(other_root, uri)
            # One's own file of that name stays apart from the borrowed one.
            name = borrowed if borrowed is not None and borrowed not in inside else uri
        respelled.append(name)
    return pc.replace_with_mask(spelled, outside, pa.array(respelled, pa.string()))


def uri_of(root: str, path: str) -> str:
    """Return the absolute URI that a path in the log of the table at ``root`` means."""
    try:
        return resolve(root, files.identity(path, root))
    except InvalidInput as bad:
        raise CorruptLog(
            "the log names a file that can't be anywhere", cause=f"{path!r}", path=path
        ) from bad


def _join(a: pa.Table, b: pa.Table) -> pa.Table:
    joined = a.join(b, keys="key", join_type="full outer", left_suffix="_a", right_suffix="_b")
    path = pc.coalesce(joined["path_a"], joined["path_b"])
    return joined.append_column("path", path)


def _is_valid(table: pa.Table, name: str) -> pa.ChunkedArray:
    return pc.is_valid(table[name])


def _compare_files(joined: pa.Table, columns: list[tuple[str, str]], found: _Found) -> None:
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


# --- The files themselves -----------------------------------------------------


class _Objects:
    """The objects that a table's log names, inside the table or elsewhere."""

    def __init__(self, side: Side) -> None:
        self._store = side.store
        self._elsewhere: dict[str, Store] = {}

    def uri(self, path: str) -> str:
        return uri_of(self._store.uri, path)

    def find(self, path: str) -> tuple[Store, str]:
        uri = self.uri(path)
        name = relative_name(self._store.uri, uri)
        if name is not None:
            return self._store, name
        root, name = container_and_name(uri)
        if root not in self._elsewhere:
            self._elsewhere[root] = open_config(StoreConfig(root, self._store.config.options))
        return self._elsewhere[root], name

    def digest(self, path: str) -> str | None:
        """Return the SHA-256 of an object, or ``None`` where it isn't there."""
        store, name = self.find(path)
        total = hashlib.sha256()
        try:
            size = store.head(name).size_bytes
            for start in range(0, size, _CHUNK_BYTES):
                total.update(store.get_range(name, start, min(_CHUNK_BYTES, size - start)))
        except ObjectNotFound:
            return None
        return total.hexdigest()

    def vector_digest(self, row: Mapping[str, Any], side: str) -> str | None:
        """Return the SHA-256 of a deletion vector, or ``None`` where there is none."""
        kind, text = row[f"vector_kind_{side}"], row[f"vector_{side}"]
        if kind is None:
            return None
        size = row[f"vector_size_{side}"]
        if kind == "i":
            return hashlib.sha256(z85_decode(text)[:size]).hexdigest()
        store, name = self.find(relative_path(text) if kind == "u" else text)
        start = (row[f"vector_offset_{side}"] or 0) + _VECTOR_SIZE_BYTES
        try:
            return hashlib.sha256(store.get_range(name, start, size)).hexdigest()
        except ObjectNotFound:
            return None

    def rows(self, path: str, size: int) -> int | None:
        """Return how many rows a Parquet file's footer counts; ``None`` where it can't be read."""
        store, name = self.find(path)
        try:
            _, tail = load.fetch_footer(store, name, size)
            return parquet.read_footer(tail, size).num_rows
        except (ObjectNotFound, CorruptLog):
            return None


Looked = tuple[dict[str, Any], Any, Any]


def _look(
    joined: pa.Table,
    what: str,
    look: Callable[[dict[str, Any]], Looked],
    observer: Observer,
) -> Iterator[Looked]:
    """Look at each file of the table in parallel, a bounded number at a time."""
    done = 0
    observer(what, done, joined.num_rows)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for batch in joined.to_batches(max_chunksize=_BATCH_FILES):
            for looked in pool.map(look, batch.to_pylist()):
                yield looked
                done += 1
                observer(what, done, joined.num_rows)


def _compare_digests(a: Side, b: Side, both: pa.Table, found: _Found, observer: Observer) -> None:
    objects_a, objects_b = _Objects(a), _Objects(b)

    def look(row: dict[str, Any]) -> Looked:
        digests_a = (objects_a.digest(row["path_a"]), objects_a.vector_digest(row, "a"))
        if objects_a.uri(row["path_a"]) == objects_b.uri(row["path_b"]):
            return row, digests_a, (digests_a[0], objects_b.vector_digest(row, "b"))
        return row, digests_a, (objects_b.digest(row["path_b"]), objects_b.vector_digest(row, "b"))

    for row, of_a, of_b in _look(both, "comparing digests", look, observer):
        if of_a[0] is None or of_b[0] is None:
            found.add("missing_file", row["path"], of_a[0], of_b[0])
        elif of_a[0] != of_b[0]:
            found.add("digest", row["path"], of_a[0], of_b[0])
        if row["deleted_a"] == row["deleted_b"] and of_a[1] != of_b[1]:
            found.add("deletion_vector_digest", row["path"], of_a[1], of_b[1])


def _compare_rows(
    a: Side, b: Side, joined: pa.Table, found: _Found, observer: Observer
) -> dict[str, int | None]:
    objects = {"a": _Objects(a), "b": _Objects(b)}

    def count(row: dict[str, Any], side: str) -> int | None:
        if row[f"size_{side}"] is None:
            return 0
        rows = objects[side].rows(row[f"path_{side}"], row[f"size_{side}"])
        return None if rows is None else rows - cast(int, row[f"deleted_{side}"])

    def look(row: dict[str, Any]) -> Looked:
        return row, count(row, "a"), count(row, "b")

    totals: dict[str, int | None] = {"a": 0, "b": 0}
    for row, *counts in _look(joined, "counting rows", look, observer):
        in_both = row["size_a"] is not None and row["size_b"] is not None
        if None in counts:
            found.add("unreadable_file", row["path"], *counts)
        elif in_both and counts[0] != counts[1]:
            found.add("row_count", row["path"], *counts)
        for side, rows in zip(totals, counts, strict=True):
            total = totals[side]
            totals[side] = None if rows is None or total is None else total + rows
    if totals["a"] != totals["b"]:
        found.add("row_count", None, totals["a"], totals["b"])
    return totals
