"""A second replay of the log, too simple to be wrong.

The oracle that everything else is measured against: plain dictionaries, one
line at a time, no cleverness and no code of Lakeferry. pyarrow is used for one
thing, turning Parquet into Python lists. It trusts the log where the protocol
lets it: what is well-formed JSON is taken as it is, types unchecked. So it may
accept what Lakeferry refuses, and where both accept they must agree.

:func:`replay` answers for one version; :func:`bases` says from which
checkpoints it could begin, best first.
"""

from __future__ import annotations

import functools
import io
import json
import re
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.parquet as pq

Action = dict[str, Any]
Base = tuple[str, ...]
Row = dict[str, Any]


_MAPS = ("configuration", "options", "partitionValues", "tags")
_KEYS = {
    "txn": "appId",
    "add": "path",
    "remove": "path",
    "metaData": "id",
    "protocol": "minReaderVersion",
    "domainMetadata": "domain",
    "sidecar": "path",
}
ALL = tuple(_KEYS)
SMALL = tuple(name for name in ALL if name not in ("add", "remove"))


class Unreadable(Exception):
    """The log doesn't have what it takes to know the version."""


@dataclass
class Reading:
    """A version of a table, in the plainest form. Rows are sorted, and hold what isn't null."""

    version: int
    protocol: Row
    metadata: Row
    domains: dict[str, str]
    txns: dict[str, tuple[int, int | None]]
    files: list[Row]
    tombstones: list[Row]
    commit_info: Row | None = field(default=None, compare=False)


def replay(
    objects: Mapping[str, bytes],
    version: int | None = None,
    *,
    root: str = "memory://dict",
    base: Base | None = None,
    compacted: bool = True,
    without: Collection[str] = (),
    wanted: Sequence[str] = ALL,
) -> Reading:
    """Return a version, or the newest; raise :class:`Unreadable` where that can't be.

    ``base`` is the checkpoint to begin with, ``()`` for none; by default the
    newest complete one. ``compacted`` lets compacted logs stand for commits, save
    those that ``without`` names.
    ``wanted`` are the actions to read from Parquet; without ``add`` no sidecars are read.
    """
    target, chosen, deltas = segment(
        objects, version, base=base, compacted=compacted, without=without
    )
    state = _State(root)
    for action in _checkpoint(objects, chosen, wanted):
        state.take(action)
    for name in deltas:
        state.commit_info = None
        for action in _lines(objects[name]):
            state.take(action)
        if name.endswith(".compacted.json"):
            state.commit_info = None
    return state.reading(target)


def segment(
    objects: Mapping[str, bytes],
    version: int | None = None,
    *,
    base: Base | None = None,
    compacted: bool = True,
    without: Collection[str] = (),
) -> tuple[int, Base, list[str]]:
    """Return which version it is, the checkpoint it begins with, and what is replayed on it."""
    log = _Log([name for name in objects if name not in without])
    target = log.newest if version is None else version
    if not 0 <= target <= log.newest:
        raise Unreadable(f"no version {target}")
    chosen = bases(objects, target)[0] if base is None else base
    first = int(chosen[0].split("/")[1][:20]) + 1 if chosen else 0
    return target, chosen, log.deltas(first, target, compacted)


def bases(objects: Mapping[str, bytes], version: int | None = None) -> list[Base]:
    """Return the complete checkpoints up to a version, best first, and at last none: ``()``."""
    log = _Log(objects)
    target = log.newest if version is None else version
    found = [names for at, _, names in sorted(log.checkpoints, reverse=True) if at <= target]
    return [*found, ()]


def checksum(objects: Mapping[str, bytes], version: int) -> tuple[Row, Row] | None:
    """Return the protocol and the metadata that a version's checksum file states, if it does."""
    data = objects.get(f"_delta_log/{version:020d}.crc")
    try:
        said = json.loads((data or b"").decode(errors="surrogateescape"), strict=False)
        return _present(said["protocol"]), _filled(_present(said["metadata"]))
    except (ValueError, KeyError, TypeError, Unreadable):
        return None


def newest_version(objects: Mapping[str, bytes]) -> int:
    """Return the newest version, or -1 where there is none."""
    return _Log(objects).newest


class _Log:
    """The names of a log, by what they are."""

    def __init__(self, objects: Iterable[str]) -> None:
        self.commits: dict[int, str] = {}
        self.compacted: dict[int, dict[int, str]] = {}
        self.checkpoints: list[tuple[int, int, Base]] = []
        parts: dict[tuple[int, int], dict[int, str]] = {}
        for path in sorted(objects):
            folder, _, name = path.rpartition("/")
            words = name.split(".")
            if folder != "_delta_log" or not re.fullmatch("[0-9]{20}", words[0]):
                continue
            version = int(words[0])
            if version >= 2**63:
                continue
            if words[1:] == ["json"]:
                self.commits[version] = path
            elif words[1:] == ["checkpoint", "parquet"]:
                self.checkpoints.append((version, 0, (path,)))
            elif words[1:2] == ["checkpoint"] and len(words) == 4 and _is_uuid(words[2]):
                if words[3] in ("json", "parquet"):
                    self.checkpoints.append((version, 2, (path,)))
            elif words[1:2] == ["checkpoint"] and len(words) == 5 and words[4] == "parquet":
                if all(re.fullmatch("[0-9]{10}", word) for word in words[2:4]):
                    parts.setdefault((version, int(words[3])), {})[int(words[2])] = path
            elif (
                words[2:] == ["compacted", "json"]
                and re.fullmatch("[0-9]{20}", words[1])
                and version < int(words[1]) < 2**63
            ):
                self.compacted.setdefault(version, {})[int(words[1])] = path
        for (version, count), found in parts.items():
            if all(number in found for number in range(1, count + 1)) and count:
                names = tuple(found[number] for number in range(1, count + 1))
                self.checkpoints.append((version, 1, names))
        versions = [*self.commits, *(version for version, _, _ in self.checkpoints)]
        self.newest = max(versions, default=-1)

    def deltas(self, first: int, last: int, compacted: bool) -> list[str]:
        names = []
        while first <= last:
            runs = [end for end in self.compacted.get(first, {}) if end <= last]
            if compacted and runs:
                names.append(self.compacted[first][max(runs)])
                first = max(runs)
            elif first in self.commits:
                names.append(self.commits[first])
            else:
                raise Unreadable(f"commit {first} is missing")
            first += 1
        return names


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


class _State:
    def __init__(self, root: str) -> None:
        self.root = root
        self.protocol: Row | None = None
        self.metadata: Row | None = None
        self.commit_info: Row | None = None
        self.domains: dict[str, Row] = {}
        self.txns: dict[str, Row] = {}
        self.files: dict[tuple[str, str], Row] = {}
        self.tombstones: dict[tuple[str, str], Row] = {}

    def take(self, action: Action) -> None:
        for name, value in action.items():
            if value is None:
                continue
            if name == "protocol":
                self.protocol = value
            elif name == "metaData":
                self.metadata = value
            elif name == "commitInfo":
                self.commit_info = value
            elif name == "txn":
                app_id = _required(value, "appId")
                if "version" not in value:
                    raise Unreadable("a txn without a version")
                self.txns[app_id] = value
            elif name == "domainMetadata":
                self.domains[_required(value, "domain")] = value
            elif name in ("add", "remove"):
                key = (canonical(_required(value, "path"), self.root), vector_id(value))
                self.files.pop(key, None)
                self.tombstones.pop(key, None)
                (self.files if name == "add" else self.tombstones)[key] = value

    def reading(self, version: int) -> Reading:
        if self.protocol is None or self.metadata is None:
            raise Unreadable("no protocol or no metadata")
        return Reading(
            version,
            _present(self.protocol),
            _filled(_present(self.metadata)),
            {
                name: domain.get("configuration", "")
                for name, domain in self.domains.items()
                if not domain.get("removed")
            },
            {name: (txn["version"], txn.get("lastUpdated")) for name, txn in self.txns.items()},
            in_order(self.files.values(), ADD_FIELDS),
            in_order(self.tombstones.values(), REMOVE_FIELDS),
            self.commit_info,
        )


ADD_FIELDS = (
    *("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags"),
    *("deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider"),
)
REMOVE_FIELDS = (
    *("path", "deletionTimestamp", "dataChange", "extendedFileMetadata", "partitionValues"),
    *("size", "stats", "tags", "deletionVector", "baseRowId", "defaultRowCommitVersion"),
)
_VECTOR_FIELDS = (
    *("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality", "maxRowIndex"),
)


def in_order(actions: Iterable[Row], fields: Sequence[str]) -> list[Row]:
    """Return what these fields say in each action, in an order of its own."""
    rows = [{name: row[name] for name in fields if row.get(name) is not None} for row in actions]
    for row in rows:
        if isinstance(row.get("partitionValues"), dict):
            values = row["partitionValues"].items()
            row["partitionValues"] = {name: _as_text(value) for name, value in values}
        if isinstance(row.get("deletionVector"), dict):
            vector = row["deletionVector"]
            row["deletionVector"] = {
                name: vector[name] for name in _VECTOR_FIELDS if vector.get(name) is not None
            }
    return sorted(rows, key=lambda row: (str(row["path"]), vector_id(row)))


def _as_text(value: Any) -> Any:
    """Return a partition value as the text that it is, with or without quotes."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _required(value: Any, name: str) -> str:
    if not isinstance(value, dict) or not isinstance(value.get(name), str):
        raise Unreadable(f"an action without {name}")
    return str(value[name])


def _present(value: Any) -> Row:
    if not isinstance(value, dict):
        raise Unreadable("an action that is no object")
    return {name: item for name, item in value.items() if item is not None}


def _filled(metadata: Row) -> Row:
    """Return metadata with what its absence means; a property that is null is absent."""
    defaults = {"schemaString": "", "partitionColumns": [], "configuration": {}}
    form = {"provider": "parquet", "options": {}} | _present(metadata.get("format") or {})
    filled = defaults | metadata | {"format": form}
    for place, name in ((filled, "configuration"), (form, "options")):
        if isinstance(place[name], dict):
            place[name] = _present(place[name])
    return filled


def vector_id(action: Row) -> str:
    """Return what tells a file's deletion vector from others; empty where it has none."""
    vector = action.get("deletionVector")
    if not vector:
        return ""
    offset = vector.get("offset")
    at = "" if offset is None else f"@{offset}"
    return f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}{at}"


def canonical(path: str, root: str) -> str:
    """Return the one spelling of a path: without empty and dot segments, local ones with scheme."""
    lead = re.match("([A-Za-z][A-Za-z0-9+.-]*:(?=/))?(//[^/]*)?", path)
    assert lead is not None
    scheme, authority = (lead[1] or "").lower(), lead[2] or ""
    below = path[lead.end() :]
    if not scheme and authority in ("", "//") and below.startswith("/"):
        scheme = "file:" if root.startswith("file:") else ""
    return scheme + ("" if authority == "//" else authority) + _without_dots(below)


def _without_dots(path: str) -> str:
    if "/" not in path:
        return path
    path, mark, query = path.partition("?")
    before = None
    while before != path:
        before = path
        path = re.sub("/+", "/", path)
        path = re.sub(r"(^|/)\./", r"\1", path)
        path = re.sub(r"(^|/)\.$", r"\1", path)
        # One at a time: what stands before it may have to go first.
        path = re.sub(r"(^|/)(?!\.\.?(?:/|$))[^/]+/\.\.(/|$)", r"\1", path, count=1)
    return path + mark + query


def _decoded(path: str) -> bytes:
    return unquote_to_bytes(path.encode(errors="surrogateescape"))


def _lines(data: bytes) -> Iterable[Action]:
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            # A string that no action has a use for may be any bytes.
            action = json.loads(line.decode(errors="surrogateescape"), strict=False)
        except (ValueError, RecursionError) as broken:
            raise Unreadable(f"no JSON: {line[:80]!r}") from broken
        if not isinstance(action, dict):
            raise Unreadable("a line that is no object")
        yield action


def _checkpoint(
    objects: Mapping[str, bytes], base: Base, wanted: Sequence[str]
) -> Iterable[Action]:
    sidecars = []
    for name in base:
        data = objects[name]
        rows = _lines(data) if name.endswith(".json") else _parquet(data, wanted)
        for action in rows:
            sidecar = action.pop("sidecar", None)
            if sidecar is not None:
                sidecars.append(_required(sidecar, "path"))
            yield action
    for path in sidecars if "add" in wanted else ():
        name = _decoded(path).decode(errors="replace").rpartition("/")[2]
        found = objects.get(f"_delta_log/_sidecars/{name}")
        if found is None:
            raise Unreadable(f"no sidecar {name}")
        yield from _parquet(found, ("add", "remove"))


_SAID_TWICE = ("stats_parsed", "partitionValues_parsed")


def _parquet(data: bytes, names: Sequence[str]) -> Iterable[Action]:
    """Return the rows of a Parquet file as actions. All fields null is as good as null."""
    for row in _rows(data, tuple(names)):
        for name, value in row.items():
            if value is not None and value.get(_KEYS[name]) is not None:
                yield {name: _said(value)}


@functools.lru_cache(maxsize=256)
def _rows(data: bytes, names: tuple[str, ...]) -> list[Row]:
    """Return the rows of a Parquet file: the same bytes are asked for after every step."""
    try:
        parquet = pq.ParquetFile(io.BytesIO(data))
        columns = [
            f"{column.name}.{child.name}"
            for column in parquet.schema_arrow
            if column.name in names
            for child in column.type
            if child.name not in _SAID_TWICE
        ]
        table = parquet.read(columns=columns, use_threads=False)
        rows: list[Row] = [_with_maps(row) for row in table.to_pylist()]
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as broken:
        raise Unreadable(f"no Parquet: {broken}") from broken
    return rows


def _with_maps(value: Any) -> Any:
    """Return a value of Parquet with its maps, which pyarrow reads as lists of pairs."""
    if not isinstance(value, dict):
        return value
    return {
        name: dict(item) if name in _MAPS and isinstance(item, list) else _with_maps(item)
        for name, item in value.items()
    }


def _said(value: Row) -> Row:
    """Return a row without what is null."""
    return {
        name: _said(item) if name in ("format", "deletionVector") else item
        for name, item in value.items()
        if item is not None
    }
