"""What a table says at each of its versions, wherever it is; and a guest who writes to it.

:func:`told` reads a version with :mod:`tests.support.naive` and names files as the
table's first home names them, so that the same version at two places is equal. The
guest (:class:`Guest`) is an engine that knows nothing of redirects: it reads what is
there, and names files as it finds them named.
"""

from __future__ import annotations

import json
import re
import struct
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from lakeferry.log import deletion_vectors
from lakeferry.storage import Store
from tests.support import naive
from tests.support.history import bitmap, z85
from tests.support.naive import Row
from tests.support.redirects import without_moves

REDIRECT_FEATURES = frozenset(
    f"redirect{mode}{suffix}"
    for mode in ("ReaderWriter", "WriterOnly")
    for suffix in ("", "-preview")
)
_ENTRIES = frozenset({f"delta.{name}" for name in REDIRECT_FEATURES} | {"lakeferry.redirect"})
_KEPT = (
    *("partitionValues", "size", "modificationTime", "tags", "baseRowId"),
    "defaultRowCommitVersion",
)
_COMMIT = re.compile(r"_delta_log/(\d{20})\.json")


@dataclass(frozen=True)
class Told:
    """What a version says, apart from where it is and from its redirect."""

    metadata: Row
    features: frozenset[str]
    txns: dict[str, tuple[int, int | None]]
    domains: dict[str, str]
    files: dict[tuple[str, str], Row] = field(repr=False)
    changes: dict[str, int] = field(repr=False)
    """The change files that its commit names, with their sizes."""


def objects_at(store: Store) -> dict[str, bytes]:
    """Return every object at a place."""
    names = [entry.path for entry in store.list("")]
    return dict(zip(names, store.get_many(names), strict=True))


def told(
    objects: Mapping[str, bytes], place: str, homes: Iterable[str], version: int | None = None
) -> Told:
    """Return what a version at a place says; ``homes`` are all places where the table has been."""
    found = naive.replay(objects, version, root=place)
    live = {}
    for row in found.files:
        kept = {key: row[key] for key in _KEPT if key in row}
        live[at_home(row["path"], homes), _vector(row, homes)] = kept
    configuration = found.metadata["configuration"]
    return Told(
        found.metadata | {"configuration": _without(configuration, _ENTRIES)},
        _features(found.protocol) - REDIRECT_FEATURES,
        without_moves(found.txns),
        found.domains,
        live,
        _changes(objects, found.version, homes),
    )


def _without(values: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name not in names}


def _features(protocol: Row) -> frozenset[str]:
    """Return the features of a protocol, with what its version numbers stand for."""
    implied = {2: ("appendOnly", "invariants"), 3: ("checkConstraints",)}
    implied |= {4: ("changeDataFeed", "generatedColumns"), 5: ("columnMapping",)}
    implied[6] = ("identityColumns",)
    named = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    writer = protocol["minWriterVersion"]
    if writer < 7:
        named |= {name for version in implied if version <= writer for name in implied[version]}
    return frozenset(named)


def _vector(row: Row, homes: Iterable[str]) -> str:
    vector = row.get("deletionVector")
    if vector is None:
        return ""
    path = vector["pathOrInlineDv"]
    if vector["storageType"] == "i":
        return f"inline {path} {vector['cardinality']}"
    if vector["storageType"] == "u":
        path = deletion_vectors.relative_path(path)
    return f"{at_home(path, homes)}@{vector.get('offset')} {vector['cardinality']}"


def _changes(objects: Mapping[str, bytes], version: int, homes: Iterable[str]) -> dict[str, int]:
    commit = objects.get(f"_delta_log/{version:020d}.json", b"")
    actions = [json.loads(line) for line in commit.splitlines() if line.strip()]
    named = [action["cdc"] for action in actions if action.get("cdc")]
    return {at_home(change["path"], homes): change["size"] for change in named}


def at_home(path: str, homes: Iterable[str]) -> str:
    """Return a file's path as one name: relative to the table wherever that is, or absolute."""
    text = unquote(path)
    adopted = re.match(r"_adopted/(?:([a-z0-9]+)/)?([^/]+)/(.*)", text)
    if adopted is not None:
        scheme, authority, rest = adopted.groups()
        lead = {"~": ":/", "-": ":///"}.get(authority, f"://{authority}/")
        text = f"/{rest}" if scheme is None else f"{scheme}{lead}{rest}"
    text = _one_spelling(naive.canonical(text, ""))
    for home in homes:
        text = text.removeprefix(f"{_one_spelling(unquote(home))}/")
    return text


def _one_spelling(uri: str) -> str:
    return re.sub("^s3a:", "s3:", re.sub("^file:/+|^/", "file:/", uri))


def commits_at(objects: Iterable[str]) -> list[int]:
    """Return the versions whose commits are there."""
    matches = (_COMMIT.fullmatch(name) for name in objects)
    versions = (int(match.group(1)) for match in matches if match)
    return sorted(version for version in versions if version < 2**63)


# ------------------------------------------------------------------------- the guest


class Guest:
    """An engine that writes to a table as it finds it, with a few commits of every kind."""

    def __init__(self, store: Store) -> None:
        """Write to the table at a store's root."""
        self._store = store

    def stay(self) -> int:
        """Append, delete, update, and change properties; return how many commits that makes."""
        visits = [self._append, self._delete, self._delete_rows, self._change, self._describe]
        for visit in visits:
            read = naive.replay(objects_at(self._store), root=self._store.uri)
            self._commit(read, visit(read))
        return len(visits)

    def _commit(self, read: naive.Reading, actions: list[Row]) -> None:
        version = read.version + 1
        now = _now(read)
        info: Row = {"timestamp": now, "operation": "GUEST", "txnId": str(uuid.uuid4())}
        if read.metadata["configuration"].get("delta.enableInCommitTimestamps") == "true":
            info = {"inCommitTimestamp": now} | info
        lines = [json.dumps(action) for action in [{"commitInfo": info}, *actions]]
        name = f"_delta_log/{version:020d}.json"
        assert self._store.put_if_absent(name, "\n".join(lines).encode())

    def _append(self, read: naive.Reading) -> list[Row]:
        """Put the content of a live file under a new name."""
        model = next(row for row in read.files if "deletionVector" not in row)
        name = f"guest-{uuid.uuid4()}.parquet"
        self._store.put(name, self._content(model["path"]))
        return self._adding(read, [model | {"path": name, "tags": {"by": "the guest"}}])

    def _delete(self, read: naive.Reading) -> list[Row]:
        return [_removing(read.files[0])]

    def _delete_rows(self, read: naive.Reading) -> list[Row]:
        """Delete a row by a vector where the table has vectors, and else a whole file."""
        row = next(row for row in read.files if not row["path"].startswith("guest-"))
        if "deletionVectors" not in _features(read.protocol):
            return [_removing(row)]
        data, name = bitmap(range(2)), uuid.uuid4()
        framed = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        self._store.put(f"deletion_vector_{name}.bin", b"\x01" + framed)
        vector = {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": 1}
        vector |= {"sizeInBytes": len(data), "cardinality": 2}
        stats = json.loads(row.get("stats") or '{"numRecords":3}') | {"tightBounds": False}
        added = row | {"deletionVector": vector, "stats": json.dumps(stats), "dataChange": True}
        return [_removing(row), {"add": added}]

    def _change(self, read: naive.Reading) -> list[Row]:
        """Replace a file, and tell the changes where the table keeps them."""
        row = next(row for row in read.files if "deletionVector" not in row)
        name, changes = f"guest-{uuid.uuid4()}.parquet", f"_change_data/{uuid.uuid4()}.parquet"
        self._store.put(name, self._content(row["path"]))
        told: list[Row] = []
        if read.metadata["configuration"].get("delta.enableChangeDataFeed") == "true":
            self._store.put(changes, b"changes")
            values = {"path": changes, "partitionValues": row["partitionValues"], "size": 7}
            told.append({"cdc": values | {"dataChange": False}})
        return [_removing(row), *self._adding(read, [row | {"path": name}]), *told]

    def _describe(self, read: naive.Reading) -> list[Row]:
        """Set a property, an application's transaction and, where they are allowed, a domain."""
        configuration = read.metadata["configuration"] | {"guest": "was here"}
        actions: list[Row] = [
            {"metaData": read.metadata | {"configuration": configuration}},
            {"protocol": read.protocol},
            {"txn": {"appId": "guest", "version": 7, "lastUpdated": _now(read)}},
        ]
        if "domainMetadata" in _features(read.protocol):
            domain = {"domain": "guest", "configuration": '{"a":1}', "removed": False}
            actions.append({"domainMetadata": domain})
        return actions

    def _adding(self, read: naive.Reading, rows: list[Row]) -> list[Row]:
        """Return the actions that add files, with fresh row ids where rows have any."""
        if "rowTracking" not in _features(read.protocol):
            return [{"add": row | {"dataChange": True}} for row in rows]
        mark: int = json.loads(read.domains["delta.rowTracking"])["rowIdHighWaterMark"]
        actions: list[Row] = []
        for row in rows:
            fresh = {"baseRowId": mark + 1, "defaultRowCommitVersion": read.version + 1}
            actions.append({"add": row | fresh | {"dataChange": True}})
            mark += 3
        configuration = json.dumps({"rowIdHighWaterMark": mark})
        domain = {"domain": "delta.rowTracking", "configuration": configuration, "removed": False}
        return [*actions, {"domainMetadata": domain}]

    def _content(self, path: str) -> bytes:
        from lakeferry.storage import open_store
        from lakeferry.storage.uris import container_and_name, is_absolute_uri

        if not is_absolute_uri(path):
            return self._store.get(unquote(path))
        container, name = container_and_name(path)
        return open_store(container, self._store.config.options).get(name)


def _now(read: naive.Reading) -> int:
    # Later than the version before, however quickly they follow each other.
    return time.time_ns() // 1_000_000 + read.version


def _removing(row: Row) -> Row:
    kept = ("path", "partitionValues", "size", "deletionVector", "baseRowId")
    value = {key: row[key] for key in (*kept, "defaultRowCommitVersion") if key in row}
    return {
        "remove": value
        | {"deletionTimestamp": 1_794_000_000_000, "dataChange": True, "extendedFileMetadata": True}
    }
