"""Logs to order: a few frozen steps become the bytes of a Delta log, with no engine involved.

A :class:`History` is a layout, a way of writing and a tuple of steps. Steps are
values, so a failing test prints the history that failed; the same history gives
the same bytes everywhere::

    log = History(Layout(partitioned=True)).then(Append(2), Checkpoint(), Delete(1))
    objects = log.objects()             # name -> bytes, log and data files
    store = log.write(LocalStore(...))  # or on any store
    store = log.store()                 # or on a DictStore, commits a minute apart

Every history begins with :class:`Create` as version 0. A step that finds nothing
to act upon (a :class:`Delete` on an empty table) commits all the same, without
file actions: so any sequence of steps is a valid history, and Hypothesis may
leave out any of them (:func:`histories`).

Nothing is shared with the code under test: names, encodings, checksums and
bitmaps are made here from the protocol's text. The module is long because it is
one thing, a second writer of the protocol, whose parts use each other.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import struct
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from lakeferry.storage import Store
from tests.support.clock import DEFAULT_START_MS, ManualClock
from tests.support.stores import DictStore

Action = dict[str, Any]
AnyStore = TypeVar("AnyStore", bound=Store)
MINUTE_MS = 60_000
ROWS_PER_FILE = 3
_SPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")


def unique(what: str) -> str:
    """Return the UUID that stands for ``what``, the same in every run."""
    return str(uuid.uuid5(_SPACE, what))


# ---------------------------------------------------------------------- spelling


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine spells a commit. Every dialect says the same."""

    name: str = "spark"
    spaced: bool = False
    nulls: bool = False
    every_action: bool = False
    reversed_keys: bool = False
    escaped: bool = False
    end: bytes = b"\n"
    blank_lines: bool = False
    final_end: bool = True
    info_last: bool = False
    unknown: bool = False

    def commit(self, actions: Iterable[Action]) -> bytes:
        """Return the bytes of a commit of these actions."""
        ordered = list(actions)
        info = [action for action in ordered if "commitInfo" in action]
        timed = any("inCommitTimestamp" in action["commitInfo"] for action in info)
        if self.info_last and not timed:
            ordered = [action for action in ordered if action not in info] + info
        if self.unknown:
            ordered.append({"ofTheFuture": {"path": "not-a-file", "n": [1, None, {"ü": 1.5}]}})
        separator = self.end * (2 if self.blank_lines else 1)
        text = separator.join(self.line(action) for action in ordered)
        return text + self.end if self.final_end and text else text

    def line(self, action: Action) -> bytes:
        """Return one action as one line, without its end."""
        ((name, value),) = action.items()
        if self.nulls:
            value = dict.fromkeys(_OPTIONAL.get(name, ())) | value
        if self.unknown and name != "commitInfo":
            value = value | {"ofTheFuture": {"deep": [1, None]}}
        if self.reversed_keys:
            value = dict(reversed(value.items()))
        whole: Action = {name: value}
        if self.every_action:
            whole = {key: value if key == name else None for key in _ACTION_NAMES} | whole
        separators = (", ", ": ") if self.spaced else (",", ":")
        return json.dumps(whole, separators=separators, ensure_ascii=self.escaped).encode()


_OPTIONAL: dict[str, tuple[str, ...]] = {
    "add": ("stats", "tags", "baseRowId", "defaultRowCommitVersion", "clusteringProvider"),
    "remove": ("deletionTimestamp", "size", "tags", "deletionVector", "baseRowId"),
    "metaData": ("name", "description", "createdTime"),
    "protocol": ("readerFeatures", "writerFeatures"),
    "txn": ("lastUpdated",),
    "cdc": ("tags",),
}
_ACTION_NAMES = (
    *("txn", "add", "remove", "metaData", "protocol", "cdc"),
    *("checkpointMetadata", "sidecar", "domainMetadata", "commitInfo"),
)
SPARK = Dialect()
RUST = Dialect("rust", nulls=True, info_last=True)
EVERY_ACTION = Dialect("every action", every_action=True)
SPACED = Dialect("spaced", spaced=True, reversed_keys=True, escaped=True)
DOS = Dialect("dos", end=b"\r\n", blank_lines=True)
UNFINISHED = Dialect("no final newline", final_end=False)
FUTURE = Dialect("future", unknown=True)
DIALECTS = (SPARK, RUST, EVERY_ACTION, SPACED, DOS, UNFINISHED, FUTURE)


# ------------------------------------------------------------------------ layout


@dataclass(frozen=True, slots=True)
class Layout:
    """What kind of table it is. ``deletion_vectors`` is a storage type: ``u``, ``i`` or ``p``."""

    partitioned: bool = False
    deletion_vectors: str | None = None
    column_mapping: str | None = None
    change_data: bool = False
    domains: bool = False
    row_tracking: bool = False
    in_commit_timestamps: bool = False
    v2_checkpoints: bool = False
    absolute_paths: bool = False
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def protocol(self) -> Action:
        """The protocol action that allows all of it."""
        reader = [
            name
            for name, used in (
                ("deletionVectors", self.deletion_vectors),
                ("columnMapping", self.column_mapping),
                ("v2Checkpoint", self.v2_checkpoints),
            )
            if used
        ]
        writer = [
            name
            for name, used in (
                ("changeDataFeed", self.change_data),
                ("domainMetadata", self.domains or self.row_tracking),
                ("rowTracking", self.row_tracking),
                ("inCommitTimestamp", self.in_commit_timestamps),
            )
            if used
        ]
        if not reader and not writer:
            return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
        value: Action = {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7}
        if reader:
            value["readerFeatures"] = reader
        value["writerFeatures"] = ["appendOnly", "invariants", *reader, *writer]
        return {"protocol": value}

    @property
    def configuration(self) -> dict[str, str]:
        """The table's properties."""
        settings = {
            "delta.enableDeletionVectors": self.deletion_vectors,
            "delta.enableChangeDataFeed": self.change_data,
            "delta.enableRowTracking": self.row_tracking,
            "delta.enableInCommitTimestamps": self.in_commit_timestamps,
        }
        chosen = {name: "true" for name, used in settings.items() if used}
        if self.column_mapping:
            chosen["delta.columnMapping.mode"] = self.column_mapping
            chosen["delta.columnMapping.maxColumnId"] = str(len(self.columns))
        return chosen | dict(self.properties)

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns; ``part`` is the one it is partitioned by."""
        return ("id", "value", "part") if self.partitioned else ("id", "value")

    def physical(self, column: str) -> str:
        """Return a column's name in data files and statistics."""
        return f"col-{unique(column)}" if self.column_mapping else column

    @property
    def schema_string(self) -> str:
        """The schema as metadata has it."""
        fields = []
        for number, name in enumerate(self.columns, 1):
            mapped: Action = {}
            if self.column_mapping:
                mapped["delta.columnMapping.id"] = number
                mapped["delta.columnMapping.physicalName"] = self.physical(name)
            kind = "long" if name == "id" else "string"
            fields.append({"name": name, "type": kind, "nullable": True, "metadata": mapped})
        return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


# ------------------------------------------------------------------------- files

_PARTITIONS = ("2024-01-01", "a b", "x:y", None, "ü")
_HIVE_ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")


@dataclass(frozen=True, slots=True)
class Vector:
    """A deletion vector and the file that it is in, if it isn't inline."""

    descriptor: Action
    file: tuple[str, bytes] | None

    @property
    def unique_id(self) -> str:
        """What tells it from others of the same data file."""
        value = self.descriptor
        at = f"@{value['offset']}" if "offset" in value else ""
        return f"{value['storageType']}{value['pathOrInlineDv']}{at}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A logical file of the table."""

    number: int
    path: str
    partition_values: dict[str, str | None]
    size: int
    added_ms: int
    vector: Vector | None = None
    base_row_id: int | None = None
    first_version: int | None = None
    tags: dict[str, str] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What no other logical file has."""
        return ("file", str(self.number), self.vector.unique_id if self.vector else "")


def z85(data: bytes) -> str:
    """Return ZeroMQ's base 85 of bytes, a multiple of four."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(digits[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))


def bitmap(rows: Iterable[int]) -> bytes:
    """Return a RoaringBitmapArray of row numbers below 65,536, in the portable format."""
    chosen = sorted(rows)
    container = struct.pack("<HH", 0, len(chosen) - 1)
    head = struct.pack("<II", 12346, 1) + container
    values = struct.pack("<I", len(head) + 4) + struct.pack(f"<{len(chosen)}H", *chosen)
    data = struct.pack("<IQI", 1681511377, 1, 0) + head + values
    return data + b"\0" * (-len(data) % 4)


def respelled(path: str) -> str:
    """Return another spelling of the same path, with segments that lead nowhere."""
    other = path.replace("part-", "x/..//./part-")
    if "://" not in path:
        return f"./{other}"
    return other.replace("file:///", "file:/", 1)


# ------------------------------------------------------------------------- steps


class Step(ABC):
    """One thing that happens to a table. Subclasses are frozen values."""

    @abstractmethod
    def run(self, table: Table) -> None:
        """Let it happen."""


class Commit(Step):
    """A step that makes one version."""

    operation = "WRITE"

    @abstractmethod
    def actions(self, table: Table) -> list[Keyed]:
        """Return the version's actions."""

    def run(self, table: Table) -> None:
        table.commit(self.operation, self.actions(table))


@dataclass(frozen=True, slots=True)
class Keyed:
    """An action, and what it supersedes: earlier actions with the same key."""

    key: tuple[str, ...]
    action: Action


@dataclass(frozen=True)
class Create(Commit):
    """Version 0."""

    operation = "CREATE TABLE"

    def actions(self, table: Table) -> list[Keyed]:
        layout = table.layout
        metadata = {
            "id": unique("table"),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": layout.schema_string,
            "partitionColumns": ["part"] if layout.partitioned else [],
            "configuration": layout.configuration,
            "createdTime": table.now_ms,
        }
        return [
            Keyed(("protocol",), layout.protocol),
            Keyed(("metaData",), {"metaData": metadata}),
        ]


@dataclass(frozen=True)
class Append(Commit):
    """New files."""

    files: int = 1

    def actions(self, table: Table) -> list[Keyed]:
        return table.adds([table.new_file() for _ in range(self.files)])


@dataclass(frozen=True)
class Delete(Commit):
    """The oldest files go. ``bare`` removes say no more than they must."""

    files: int = 1
    respell: bool = False
    bare: bool = False
    operation = "DELETE"

    def actions(self, table: Table) -> list[Keyed]:
        return table.removes(table.oldest(self.files), respell=self.respell, bare=self.bare)


@dataclass(frozen=True)
class DeleteRows(Commit):
    """The oldest files lose a row: by a deletion vector, or by being written anew."""

    files: int = 1
    operation = "DELETE"

    def actions(self, table: Table) -> list[Keyed]:
        before = table.oldest(self.files)
        if table.layout.deletion_vectors is None:
            return table.removes(before) + table.adds([table.new_file() for _ in before])
        removed = table.removes(before)
        return table.adds([table.with_vector(file) for file in before]) + removed


@dataclass(frozen=True)
class Optimize(Commit):
    """The oldest files become one, and no data changes."""

    files: int = 2
    operation = "OPTIMIZE"

    def actions(self, table: Table) -> list[Keyed]:
        before = table.oldest(self.files)
        after = [table.new_file()] if before else []
        return table.adds(after, change=False) + table.removes(before, change=False)


@dataclass(frozen=True)
class Restore(Commit):
    """Files that were removed come back as they were."""

    files: int = 1
    operation = "RESTORE"

    def actions(self, table: Table) -> list[Keyed]:
        gone = [file for file in table.gone.values() if file.number not in table.live]
        back = {file.number: file for file in gone}
        return table.adds(list(back.values())[: self.files])


@dataclass(frozen=True)
class Restate(Commit):
    """The oldest files are committed again, with other tags."""

    files: int = 1
    operation = "COMPUTE STATS"

    def actions(self, table: Table) -> list[Keyed]:
        tagged = [
            replace(file, tags={"restated": str(table.version + 1)})
            for file in table.oldest(self.files)
        ]
        return table.adds(tagged, change=False)


@dataclass(frozen=True)
class SetProperties(Commit):
    """Other properties; the rest of the metadata stays."""

    properties: tuple[tuple[str, str], ...]
    operation = "SET TBLPROPERTIES"

    def actions(self, table: Table) -> list[Keyed]:
        return [table.metadata_with(dict(self.properties))]


@dataclass(frozen=True)
class KeepTime(Commit):
    """In-commit timestamps begin here, on a table that had none."""

    operation = "SET TBLPROPERTIES"

    def actions(self, table: Table) -> list[Keyed]:
        if table.timed:
            return []
        table.timed = True
        properties = {
            "delta.enableInCommitTimestamps": "true",
            "delta.inCommitTimestampEnablementVersion": str(table.version + 1),
            "delta.inCommitTimestampEnablementTimestamp": str(table.now_ms),
        }
        protocol = table.protocol_with(writer=("inCommitTimestamp",))
        return [protocol, table.metadata_with(properties)]


@dataclass(frozen=True)
class Upgrade(Commit):
    """The protocol names further features."""

    reader: tuple[str, ...] = ()
    writer: tuple[str, ...] = ()
    operation = "UPGRADE PROTOCOL"

    def actions(self, table: Table) -> list[Keyed]:
        return [table.protocol_with(self.reader, self.writer)]


@dataclass(frozen=True)
class Stream(Commit):
    """A streaming write: a transaction identifier and a file."""

    app_id: str = "stream"
    batch: int = 0
    last_updated: int | None = None
    operation = "STREAMING UPDATE"

    def actions(self, table: Table) -> list[Keyed]:
        value: Action = {"appId": self.app_id, "version": self.batch}
        if self.last_updated is not None:
            value["lastUpdated"] = self.last_updated
        return [Keyed(("txn", self.app_id), {"txn": value}), *table.adds([table.new_file()])]


@dataclass(frozen=True)
class Domain(Commit):
    """A metadata domain is set, or dropped where ``configuration`` is ``None``."""

    name: str = "app.domain"
    configuration: str | None = "{}"

    def actions(self, table: Table) -> list[Keyed]:
        return [table.domain(self.name, self.configuration)]


@dataclass(frozen=True)
class Change(Commit):
    """An update with change data files beside it."""

    operation = "UPDATE"

    def actions(self, table: Table) -> list[Keyed]:
        before = table.oldest(1)
        changes = []
        for file in before:
            path = f"_change_data/cdc-{file.number:05d}-{unique(f'cdc/{table.version}')}.parquet"
            table.objects[path] = b"changes"
            value = {
                "path": path,
                "partitionValues": file.partition_values,
                "size": 7,
                "dataChange": False,
            }
            changes.append(Keyed((), {"cdc": value}))
        return table.removes(before) + table.adds([table.new_file()]) + changes


@dataclass(frozen=True)
class Lines(Commit):
    """A commit of these very actions; whoever writes it knows what it does."""

    lines: tuple[str, ...] = ()

    def actions(self, table: Table) -> list[Keyed]:
        return [Keyed((), json.loads(line)) for line in self.lines]


@dataclass(frozen=True)
class Speak(Step):
    """From here on commits are written in another dialect."""

    dialect: Dialect

    def run(self, table: Table) -> None:
        table.dialect = self.dialect


class Kind(Enum):
    """Every way to write a checkpoint; ``V2_CLASSIC`` has V2 content under a classic name."""

    CLASSIC = "classic"
    MULTI_PART = "multi-part"
    V2_JSON = "v2 json"
    V2_PARQUET = "v2 parquet"
    V2_CLASSIC = "v2 in a classic name"

    @property
    def is_v2(self) -> bool:
        """Whether the table needs the feature for it."""
        return self not in (Kind.CLASSIC, Kind.MULTI_PART)


@dataclass(frozen=True)
class Checkpoint(Step):
    """The version so far, as a checkpoint.

    ``sidecars`` of 0 keeps file actions in the checkpoint itself. ``stats`` is
    ``text``, ``parsed``, ``both`` or ``none``. ``lost_part`` isn't written.
    """

    kind: Kind = Kind.CLASSIC
    parts: int = 2
    sidecars: int = 2
    stats: str = "text"
    hint: bool = True
    lost_part: int | None = None
    unknown: bool = False
    empty_structs: bool = False
    row_group_rows: int | None = None

    def run(self, table: Table) -> None:
        _write_checkpoint(table, self)


@dataclass(frozen=True)
class Compact(Step):
    """The last so many commits as one compacted log; the commits stay."""

    commits: int = 2

    def run(self, table: Table) -> None:
        first = table.version - self.commits + 1
        if first < 0 or self.commits < 2:
            return
        newest: dict[tuple[str, ...], Action] = {}
        for delta in table.deltas[first:]:
            _supersede(newest, delta)
        name = f"{first:020d}.{table.version:020d}.compacted.json"
        table.log(name, table.dialect.commit(newest.values()))


@dataclass(frozen=True)
class Checksum(Step):
    """A checksum file of the version; ``files_off`` makes it contradict the log."""

    full: bool = False
    files_off: int = 0

    def run(self, table: Table) -> None:
        adds = [action["add"] for action in table.state.values() if "add" in action]
        value: Action = {
            "txnId": unique(f"txn/{table.version}"),
            "tableSizeBytes": sum(add["size"] for add in adds),
            "numFiles": len(adds) + self.files_off,
            "numMetadata": 1,
            "numProtocol": 1,
            "metadata": table.state["metaData",]["metaData"],
            "protocol": table.state["protocol",]["protocol"],
        }
        if table.timed:
            value["inCommitTimestampOpt"] = table.time_of(table.version)
        if self.full:
            value["setTransactions"] = table.values_of("txn")
            value["domainMetadata"] = table.values_of("domainMetadata")
            value["fileSizeHistogram"] = {
                "sortedBinBoundaries": [0, 8192],
                "fileCounts": [len(adds), 0],
                "totalBytes": [value["tableSizeBytes"], 0],
            }
            value["allFiles"] = adds
        table.log(f"{table.version:020d}.crc", json.dumps(value).encode())


class HintState(Enum):
    """What is wrong with ``_last_checkpoint``."""

    MISSING = "it isn't there"
    STALE = "it names the oldest checkpoint"
    DANGLING = "it names a version that has no checkpoint"
    BEYOND = "it names a version that doesn't exist"
    CORRUPT = "it is no JSON"
    FALSIFIED = "its checksum is that of other content"


@dataclass(frozen=True)
class Hint(Step):
    """Something happens to ``_last_checkpoint``."""

    state: HintState

    def run(self, table: Table) -> None:
        name = "_delta_log/_last_checkpoint"
        written = sorted(table.checkpoints)
        without = [v for v in range(table.version + 1) if v not in written]
        match self.state:
            case HintState.MISSING:
                table.objects.pop(name, None)
            case HintState.STALE if written:
                table.objects[name] = hint(written[0], 4)
            case HintState.DANGLING if without:
                table.objects[name] = hint(without[-1], 4)
            case HintState.BEYOND:
                table.objects[name] = hint(table.version + 5, 4)
            case HintState.CORRUPT:
                table.objects[name] = b'{"version":'
            case HintState.FALSIFIED:
                table.objects[name] = hint(0, 1).replace(b'"version":0', b'"version":1')
            case _:
                pass


@dataclass(frozen=True)
class Clutter(Step):
    """Files that others leave in a log and that are none of it."""

    def run(self, table: Table) -> None:
        for name in (
            ".00000000000000000000.json.crc",
            "00000000000000000001.json.tmp",
            "00000000000000000001.checkpoint.parquet.crc",
            "00000000000000000000.checkpoint.0000000003.0000000002.parquet",
            "0.json",
            "99999999999999999999.json",
            "00000000000000000000.checkpoint.not-a-uuid.parquet",
            "00000000000000000009.00000000000000000003.compacted.json",
            f"_staged_commits/{99:020d}.{unique('staged')}.json",
            f"_sidecars/{unique('orphan')}.parquet",
            "_changelog/00000000000000000000.json",
            "__tmp_path_dir/00000000000000000077.json",
        ):
            table.log(name, b"\x00crc not for you")


@dataclass(frozen=True)
class Clean(Step):
    """Metadata cleanup: what is older than the newest checkpoint goes."""

    def run(self, table: Table) -> None:
        newest = max(table.checkpoints, default=0)
        for name in list(table.objects):
            found = re.match(r"_delta_log/(\d{20})\.", name)
            if found and int(found.group(1)) < newest:
                del table.objects[name]
        for version in [version for version in table.checkpoints if version < newest]:
            for name in table.checkpoints.pop(version):
                table.objects.pop(name, None)


# ----------------------------------------------------------------------- history


@dataclass(frozen=True, slots=True)
class History:
    """A table's whole life, as values."""

    layout: Layout = field(default_factory=Layout)
    steps: tuple[Step, ...] = (Create(),)
    dialect: Dialect = SPARK

    def then(self, *steps: Step) -> History:
        """Return the history that goes on with these steps."""
        return replace(self, steps=self.steps + steps)

    @property
    def newest_version(self) -> int:
        """The version that the last commit makes."""
        return sum(isinstance(step, Commit) for step in self.steps) - 1

    def objects(self, root: str = "memory://dict", *, with_data: bool = False) -> dict[str, bytes]:
        """Return every object of the table at ``root``.

        With ``with_data`` data files are real Parquet that engines can read; else
        they are bytes of the right number.
        """
        return dict(_objects(self, root, with_data))

    def write(self, store: AnyStore, *, with_data: bool = False) -> AnyStore:
        """Put every object on a store, and return the store."""
        for name, data in self.objects(store.uri, with_data=with_data).items():
            store.put(name, data)
        return store

    def store(self, uri: str = "memory://dict") -> DictStore:
        """Return a store with the table on it, its commits a minute apart."""
        return dated(self.objects(uri), uri)


@functools.lru_cache(maxsize=64)
def _objects(history: History, root: str, with_data: bool) -> Mapping[str, bytes]:
    """Return what a history leaves: a value of values, which many tests ask for again and again."""
    table = Table(history.layout, root, history.dialect, with_data)
    for step in history.steps:
        step.run(table)
    return table.objects


def dated(objects: Mapping[str, bytes], uri: str = "memory://dict") -> DictStore:
    """Return a store with these objects, each commit a minute younger than the one before."""
    store = DictStore(objects, uri=uri, clock=ManualClock())
    for name in objects:
        found = re.fullmatch(r"_delta_log/(\d{20})\.json", name)
        if found and int(found.group(1)) < 2**32:
            store.set_modified(name, DEFAULT_START_MS + int(found.group(1)) * MINUTE_MS)
    return store


@dataclass(slots=True)
class Table:
    """A table while its history happens; steps use it, tests don't."""

    layout: Layout
    root: str
    dialect: Dialect
    with_data: bool
    objects: dict[str, bytes] = field(default_factory=dict)
    deltas: list[list[Keyed]] = field(default_factory=list)
    state: dict[tuple[str, ...], Action] = field(default_factory=dict)
    live: dict[int, DataFile] = field(default_factory=dict)
    gone: dict[tuple[str, ...], DataFile] = field(default_factory=dict)
    checkpoints: dict[int, list[str]] = field(default_factory=dict)
    timed: bool = field(init=False)
    numbers: int = 0
    row_ids: int = 0
    _now: int = 0

    def __post_init__(self) -> None:
        self.timed = self.layout.in_commit_timestamps

    @property
    def version(self) -> int:
        """The newest version; -1 before the first."""
        return len(self.deltas) - 1

    @property
    def now_ms(self) -> int:
        """When the next version is made."""
        return self.time_of(len(self.deltas))

    def time_of(self, version: int) -> int:
        """Return when a version was made: a minute after the one before."""
        return DEFAULT_START_MS + version * MINUTE_MS

    def log(self, name: str, data: bytes) -> None:
        """Write a file of the log."""
        self.objects[f"_delta_log/{name}"] = data

    def commit(self, operation: str, keyed: list[Keyed]) -> None:
        """Make the next version."""
        info: Action = {
            "timestamp": self.now_ms,
            "operation": operation,
            "operationParameters": {"description": "ümlaut"},
            "engineInfo": "history",
            "txnId": unique(f"txn/{len(self.deltas)}"),
        }
        if self.timed:
            info = {"inCommitTimestamp": self.now_ms} | info
        actions = [{"commitInfo": info}, *(item.action for item in keyed)]
        self.log(f"{len(self.deltas):020d}.json", self.dialect.commit(actions))
        self.deltas.append(keyed)
        _supersede(self.state, keyed)

    def values_of(self, name: str) -> list[Any]:
        """Return every live action of one kind."""
        found = [action[name] for action in self.state.values() if name in action]
        return [value for value in found if not value.get("removed")]

    def metadata_with(self, properties: dict[str, str]) -> Keyed:
        """Return the metadata with further properties."""
        value = dict(self.state["metaData",]["metaData"])
        value["configuration"] = value["configuration"] | properties
        return Keyed(("metaData",), {"metaData": value})

    def protocol_with(self, reader: tuple[str, ...] = (), writer: tuple[str, ...] = ()) -> Keyed:
        """Return the protocol with further features."""
        value = self.state["protocol",]["protocol"]
        readers = dict.fromkeys([*value.get("readerFeatures", ()), *reader])
        writers = dict.fromkeys([*value.get("writerFeatures", ()), *reader, *writer])
        upgraded: Action = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
        if readers:
            upgraded["readerFeatures"] = list(readers)
        upgraded["writerFeatures"] = list(writers)
        return Keyed(("protocol",), {"protocol": upgraded})

    def domain(self, name: str, configuration: str | None) -> Keyed:
        """Return a domain's action; its tombstone keeps what it was."""
        before = self.state.get(("domain", name), {"domainMetadata": {"configuration": "{}"}})
        kept = before["domainMetadata"]["configuration"]
        value = {
            "domain": name,
            "configuration": kept if configuration is None else configuration,
            "removed": configuration is None,
        }
        return Keyed(("domain", name), {"domainMetadata": value})

    def oldest(self, files: int) -> list[DataFile]:
        """Return the files that are live for longest."""
        return list(self.live.values())[:files]

    def new_file(self) -> DataFile:
        """Write a data file and return it."""
        number, self.numbers = self.numbers, self.numbers + 1
        layout = self.layout
        part = _PARTITIONS[number % len(_PARTITIONS)]
        folder = ""
        if layout.partitioned:
            shown = "__HIVE_DEFAULT_PARTITION__" if part is None else part
            folder = f"part={_HIVE_ESCAPED.sub(lambda m: f'%{ord(m.group()):02X}', shown)}/"
        quirk = ("", " ä", "!")[number % 3]
        name = f"{folder}part-{number:05d}-{unique(f'file/{number}')}{quirk}.c000.parquet"
        data = self._data(number)
        self.objects[name] = data
        path = quote(name, safe="/=!")
        if layout.absolute_paths:
            path = f"{self.root}/{path}"
        values = {layout.physical("part"): part} if layout.partitioned else {}
        file = DataFile(number, path, values, len(data), self.now_ms)
        if layout.row_tracking:
            file = replace(file, base_row_id=self.row_ids, first_version=len(self.deltas))
            self.row_ids += ROWS_PER_FILE
        return file

    def _data(self, number: int) -> bytes:
        if not self.with_data:
            return b"." * (20 + number % 50)
        fields, values = [], ([number * 10 + n for n in range(ROWS_PER_FILE)], ["a", "b", "c"])
        for index, (name, kind) in enumerate((("id", pa.int64()), ("value", pa.string())), 1):
            tag = {"PARQUET:field_id": str(index)} if self.layout.column_mapping else None
            fields.append(pa.field(self.layout.physical(name), kind, metadata=tag))
        sink = io.BytesIO()
        pq.write_table(pa.table(list(values), schema=pa.schema(fields)), sink)
        return sink.getvalue()

    def with_vector(self, file: DataFile) -> DataFile:
        """Return the file with one row less, by a deletion vector of the layout's kind."""
        gone = file.vector.descriptor["cardinality"] if file.vector else 0
        rows = range(min(gone + 1, ROWS_PER_FILE))
        data = bitmap(rows)
        kind = self.layout.deletion_vectors or "i"
        descriptor: Action = {"storageType": kind, "pathOrInlineDv": z85(data)}
        stored = None
        if kind != "i":
            # Two vectors may share a file, so the offset isn't always the first.
            name = uuid.UUID(unique(f"vector/{file.number}/{len(self.deltas)}"))
            prefix = ("", "ab")[file.number % 2]
            padding = (b"", b"other")[file.number % 2]
            path = f"{prefix}/deletion_vector_{name}.bin".lstrip("/")
            framed = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
            stored = (path, b"\x01" + padding + framed)
            self.objects[path] = stored[1]
            where = f"{self.root}/{path}" if kind == "p" else prefix + z85(name.bytes)
            descriptor |= {"pathOrInlineDv": where, "offset": 1 + len(padding)}
        descriptor |= {"sizeInBytes": len(data), "cardinality": len(rows)}
        return replace(file, vector=Vector(descriptor, stored))

    def adds(self, files: Iterable[DataFile], *, change: bool = True) -> list[Keyed]:
        """Return the actions that add files."""
        keyed = []
        for file in files:
            self.live.pop(file.number, None)
            self.live[file.number] = file
            keyed.append(Keyed(file.key, {"add": self._add(file, change)}))
        if keyed and self.layout.row_tracking:
            mark = json.dumps({"rowIdHighWaterMark": self.row_ids - 1})
            keyed.append(self.domain("delta.rowTracking", mark))
        return keyed

    def _add(self, file: DataFile, change: bool) -> Action:
        physical = self.layout.physical
        low, high = file.number * 10, file.number * 10 + ROWS_PER_FILE - 1
        stats: Action = {
            "numRecords": ROWS_PER_FILE,
            "minValues": {physical("id"): low, physical("value"): "a"},
            "maxValues": {physical("id"): high, physical("value"): "c"},
            "nullCount": {physical("id"): 0, physical("value"): 0},
        }
        if file.vector:
            stats["tightBounds"] = False
        value: Action = {
            "path": file.path,
            "partitionValues": file.partition_values,
            "size": file.size,
            "modificationTime": file.added_ms,
            "dataChange": change,
            "stats": json.dumps(stats, separators=(",", ":")),
        }
        return value | {
            name: item
            for name, item in (
                ("tags", file.tags),
                ("deletionVector", file.vector.descriptor if file.vector else None),
                ("baseRowId", file.base_row_id),
                ("defaultRowCommitVersion", file.first_version),
            )
            if item is not None
        }

    def removes(
        self,
        files: Iterable[DataFile],
        *,
        change: bool = True,
        respell: bool = False,
        bare: bool = False,
    ) -> list[Keyed]:
        """Return the actions that remove files."""
        keyed = []
        for file in files:
            del self.live[file.number]
            self.gone[file.key] = file
            value: Action = {
                "path": respelled(file.path) if respell else file.path,
                "deletionTimestamp": self.now_ms,
                "dataChange": change,
            }
            if not bare:
                value |= {
                    "extendedFileMetadata": True,
                    "partitionValues": file.partition_values,
                    "size": file.size,
                }
            if file.vector:
                value["deletionVector"] = file.vector.descriptor
            if file.base_row_id is not None:
                value["baseRowId"] = file.base_row_id
                value["defaultRowCommitVersion"] = file.first_version
            keyed.append(Keyed(file.key, {"remove": value}))
        return keyed


def _supersede(state: dict[tuple[str, ...], Action], keyed: Iterable[Keyed]) -> None:
    for item in keyed:
        if item.key:
            state.pop(item.key, None)
            state[item.key] = item.action


# ------------------------------------------------------------------- checkpoints

_TEXT, _LONG, _INT, _BOOL = pa.string(), pa.int64(), pa.int32(), pa.bool_()
_MAP = pa.map_(_TEXT, _TEXT)
_VECTOR = pa.struct(
    [
        ("storageType", _TEXT),
        ("pathOrInlineDv", _TEXT),
        ("offset", _INT),
        ("sizeInBytes", _INT),
        ("cardinality", _LONG),
    ]
)
_COLUMNS: dict[str, list[tuple[str, pa.DataType]]] = {
    "txn": [("appId", _TEXT), ("version", _LONG), ("lastUpdated", _LONG)],
    "add": [
        ("path", _TEXT),
        ("partitionValues", _MAP),
        ("size", _LONG),
        ("modificationTime", _LONG),
        ("dataChange", _BOOL),
        ("stats", _TEXT),
        ("tags", _MAP),
        ("deletionVector", _VECTOR),
        ("baseRowId", _LONG),
        ("defaultRowCommitVersion", _LONG),
    ],
    "remove": [
        ("path", _TEXT),
        ("deletionTimestamp", _LONG),
        ("dataChange", _BOOL),
        ("extendedFileMetadata", _BOOL),
        ("partitionValues", _MAP),
        ("size", _LONG),
        ("deletionVector", _VECTOR),
        ("baseRowId", _LONG),
        ("defaultRowCommitVersion", _LONG),
    ],
    "metaData": [
        ("id", _TEXT),
        ("name", _TEXT),
        ("description", _TEXT),
        ("format", pa.struct([("provider", _TEXT), ("options", _MAP)])),
        ("schemaString", _TEXT),
        ("partitionColumns", pa.list_(_TEXT)),
        ("configuration", _MAP),
        ("createdTime", _LONG),
    ],
    "protocol": [
        ("minReaderVersion", _INT),
        ("minWriterVersion", _INT),
        ("readerFeatures", pa.list_(_TEXT)),
        ("writerFeatures", pa.list_(_TEXT)),
    ],
    "domainMetadata": [("domain", _TEXT), ("configuration", _TEXT), ("removed", _BOOL)],
    "checkpointMetadata": [("version", _LONG), ("tags", _MAP)],
    "sidecar": [
        ("path", _TEXT),
        ("sizeInBytes", _LONG),
        ("modificationTime", _LONG),
        ("tags", _MAP),
    ],
}
_V1 = ("txn", "add", "remove", "metaData", "protocol", "domainMetadata")


def _write_checkpoint(table: Table, step: Checkpoint) -> None:
    version = table.version
    if step.kind.is_v2 and not table.layout.v2_checkpoints:
        raise ValueError(f"a {step.kind.value} checkpoint needs Layout(v2_checkpoints=True)")
    small, files = _rows(table)
    before = set(table.objects)
    stem = f"{version:020d}.checkpoint"
    parts = None
    if step.kind is Kind.CLASSIC:
        table.log(f"{stem}.parquet", _parquet(table, small + files, _V1, step))
    elif step.kind is Kind.MULTI_PART:
        rows, parts = small + files, step.parts
        for part in range(1, parts + 1):
            if part != step.lost_part:
                data = _parquet(table, rows[part - 1 :: parts], _V1, step)
                table.log(f"{stem}.{part:010d}.{parts:010d}.parquet", data)
    else:
        _write_v2(table, step, small, files)
    written = [name for name in table.objects if name not in before]
    if step.lost_part is None:
        table.checkpoints[version] = table.checkpoints.get(version, []) + written
        if step.hint:
            rows = small + files
            size = sum(len(table.objects[name]) for name in written)
            adds = sum("add" in row for row in files)
            table.log("_last_checkpoint", hint(version, len(rows), size, adds, parts))


def _write_v2(table: Table, step: Checkpoint, small: list[Action], files: list[Action]) -> None:
    version = table.version
    stem = f"{version:020d}.checkpoint"
    rows: list[Action] = [{"checkpointMetadata": {"version": version, "tags": {}}}, *small]
    if step.sidecars:
        for index in range(step.sidecars):
            name = f"{unique(f'sidecar/{version}/{step.kind.value}/{index}')}.parquet"
            data = _parquet(table, files[index :: step.sidecars], ("add", "remove"), step)
            table.log(f"_sidecars/{name}", data)
            sidecar = {
                "path": name,
                "sizeInBytes": len(data),
                "modificationTime": table.time_of(version),
                "tags": {},
            }
            rows.append({"sidecar": sidecar})
    else:
        rows += files
    name = f"{stem}.{unique(f'checkpoint/{version}/{step.kind.value}')}"
    if step.kind is Kind.V2_JSON:
        table.log(f"{name}.json", table.dialect.commit(rows))
    else:
        name = stem if step.kind is Kind.V2_CLASSIC else name
        table.log(f"{name}.parquet", _parquet(table, rows, tuple(_COLUMNS), step))


def _rows(table: Table) -> tuple[list[Action], list[Action]]:
    """Return the rows of a checkpoint: those that aren't about files, and those that are."""
    small, files = [], []
    for action in table.state.values():
        ((name, value),) = action.items()
        if name == "domainMetadata" and value["removed"]:
            continue
        if name in ("add", "remove"):
            files.append({name: value | {"dataChange": False}})
        else:
            small.append(action)
    return small, files


def _parquet(table: Table, rows: list[Action], names: tuple[str, ...], step: Checkpoint) -> bytes:
    columns = {}
    for name in names:
        fields = list(_COLUMNS[name])
        values = [row.get(name) for row in rows]
        if name == "add":
            fields, values = _with_stats(table, fields, values, step)
        if step.unknown and name in ("add", "metaData", "protocol"):
            fields.append(("ofTheFuture", _TEXT))
            values = [value and value | {"ofTheFuture": "kept"} for value in values]
        kind = pa.struct(fields)
        if step.empty_structs:
            values = [value or {} for value in values]
        columns[name] = pa.array([_as_arrow(value, kind) for value in values], kind)
    if step.unknown:
        columns["ofTheFuture"] = pa.array([None] * len(rows), pa.struct([("x", _INT)]))
    sink = io.BytesIO()
    whole = pa.table(columns)
    pq.write_table(whole, sink, compression="snappy", row_group_size=step.row_group_rows)
    return sink.getvalue()


def _with_stats(
    table: Table, fields: list[tuple[str, pa.DataType]], values: list[Any], step: Checkpoint
) -> tuple[list[tuple[str, pa.DataType]], list[Any]]:
    """Let statistics be text, parsed, both or neither."""
    if step.stats in ("none", "parsed"):
        fields = [item for item in fields if item[0] != "stats"]
    if step.stats in ("parsed", "both"):
        physical = table.layout.physical
        extremes = pa.struct([(physical("id"), _LONG), (physical("value"), _TEXT)])
        counts = pa.struct([(physical("id"), _LONG), (physical("value"), _LONG)])
        parsed = [("minValues", extremes), ("maxValues", extremes), ("nullCount", counts)]
        kind = pa.struct([("numRecords", _LONG), *parsed, ("tightBounds", _BOOL)])
        fields.append(("stats_parsed", kind))
        values = [v and v | {"stats_parsed": json.loads(v["stats"])} for v in values]
        if table.layout.partitioned:
            column = physical("part")
            fields.append(("partitionValues_parsed", pa.struct([(column, _TEXT)])))
            values = [v and v | {"partitionValues_parsed": v["partitionValues"]} for v in values]
    return fields, values


def _as_arrow(value: Any, kind: pa.DataType) -> Any:
    """Return a value as Arrow takes it: maps as pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return list(value.items())
    if pa.types.is_struct(kind):
        return {item.name: _as_arrow(value.get(item.name), item.type) for item in kind}
    return value


def hint(
    version: int,
    size: int,
    size_bytes: int | None = None,
    adds: int | None = None,
    parts: int | None = None,
) -> bytes:
    """Return a ``_last_checkpoint`` with its own checksum."""
    value = {"version": version, "size": size, "parts": parts}
    value |= {"sizeInBytes": size_bytes, "numOfAddFiles": adds}
    present = {name: item for name, item in value.items() if item is not None}
    canonical = ",".join(f'"{name}"={present[name]}' for name in sorted(present))
    checksum = hashlib.md5(canonical.encode(), usedforsecurity=False).hexdigest()
    return json.dumps(present | {"checksum": checksum}, separators=(",", ":")).encode()


# ------------------------------------------------------------------- random ones


def layouts() -> st.SearchStrategy[Layout]:
    """Draw any layout; most of what it could be is off."""
    rarely = st.sampled_from([False, False, True])
    return st.builds(
        Layout,
        partitioned=st.booleans(),
        deletion_vectors=st.sampled_from([None, None, "u", "i", "p"]),
        column_mapping=st.sampled_from([None, None, "name", "id"]),
        change_data=rarely,
        domains=rarely,
        row_tracking=rarely,
        in_commit_timestamps=rarely,
        v2_checkpoints=st.booleans(),
        absolute_paths=rarely,
    )


def commits() -> st.SearchStrategy[Commit]:
    """Draw any commit."""
    few = st.integers(1, 3)
    names = st.sampled_from(["a", "b", "delta.ä"])
    return st.one_of(
        st.builds(Append, few),
        st.builds(Delete, few, respell=st.booleans(), bare=st.booleans()),
        st.builds(DeleteRows, few),
        st.builds(Optimize, few),
        st.builds(Restore, few),
        st.builds(Restate, few),
        st.builds(SetProperties, st.tuples(st.tuples(names, st.text(max_size=3)))),
        st.builds(Upgrade, writer=st.sampled_from([("appendOnly",), ("checkConstraints",)])),
        st.builds(Stream, names, st.integers(0, 2**62), st.none() | st.integers(0, 2**50)),
        st.builds(Domain, names, st.none() | st.text(max_size=5)),
        st.just(Change()),
        st.just(KeepTime()),
        st.just(Append(0)),
    )


def checkpoints(kinds: Iterable[Kind] = tuple(Kind)) -> st.SearchStrategy[Checkpoint]:
    """Draw a complete checkpoint of one of these kinds."""
    return st.builds(
        Checkpoint,
        st.sampled_from(list(kinds)),
        parts=st.integers(2, 3),
        sidecars=st.integers(0, 2),
        stats=st.sampled_from(["text", "parsed", "both", "none"]),
        hint=st.booleans(),
        unknown=st.booleans(),
        empty_structs=st.booleans(),
        row_group_rows=st.sampled_from([None, 1, 3]),
    )


def extras() -> st.SearchStrategy[Step]:
    """Draw something that changes no version: helpers of the log, clutter, another dialect."""
    return st.one_of(
        st.builds(Speak, st.sampled_from(DIALECTS)),
        st.builds(Compact, st.integers(2, 4)),
        st.builds(Checksum, st.booleans()),
        st.builds(Hint, st.sampled_from(list(HintState))),
        st.just(Clutter()),
        st.just(Checkpoint(Kind.MULTI_PART, parts=3, lost_part=2)),
    )


def histories(*, max_steps: int = 10, with_checkpoints: bool = True) -> st.SearchStrategy[History]:
    """Draw a valid history. Its log is whole: every version can be rebuilt from commits alone."""

    def with_layout(layout: Layout) -> st.SearchStrategy[History]:
        steps = [commits(), commits(), extras()]
        if with_checkpoints:
            steps.append(checkpoints(kinds_for(layout)))
        return st.builds(
            lambda dialect, drawn: History(layout, (Create(), *drawn), dialect),
            st.sampled_from(DIALECTS),
            st.lists(st.one_of(steps), max_size=max_steps),
        )

    return layouts().flatmap(with_layout)


def kinds_for(layout: Layout) -> tuple[Kind, ...]:
    """Return the kinds of checkpoints that a table of this layout may have."""
    if layout.v2_checkpoints:
        return (Kind.CLASSIC, Kind.V2_JSON, Kind.V2_PARQUET, Kind.V2_CLASSIC)
    return (Kind.CLASSIC, Kind.MULTI_PART)
