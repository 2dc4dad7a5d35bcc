"""Delta logs for benchmarks, written once and kept in the user's cache folder.

They are written with pyarrow and plain JSON, by neither of the two that are
measured. Data files are only named, never made: replay doesn't look at them.
Everything comes from one seed, so every run reads the same bytes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

LAYOUT = 5
"""Part of the folder's name: raise it when what is written here changes."""
ROW_GROUP_ROWS = 262_144
_MAP = pa.map_(pa.string(), pa.string())
_SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("amount", "double"), ("day", "date"))
    ],
}
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
_METADATA = {
    "id": "5f5f7a4c-6f6c-4b8a-9d6e-2f3c1e0a7b11",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(_SCHEMA, separators=(",", ":")),
    "partitionColumns": ["day"],
    "configuration": {"delta.checkpointInterval": "100"},
    "createdTime": 1_700_000_000_000,
}
_ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _MAP),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("tags", _MAP),
    ]
)
_REMOVE = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("partitionValues", _MAP),
        ("size", pa.int64()),
    ]
)
_PROTOCOL_TYPE = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
_METADATA_TYPE = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _MAP)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", _MAP),
        ("createdTime", pa.int64()),
    ]
)
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])


def cache_folder() -> Path:
    """Where logs are kept: ``LAKEFERRY_CACHE``, or the user's cache folder."""
    if chosen := os.environ.get("LAKEFERRY_CACHE"):
        return Path(chosen) / "bench"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lakeferry" / "bench"


def checkpointed(files: int, commits: int) -> Path:
    """A table with ``files`` live files in one classic checkpoint, and ``commits`` after it.

    Each commit adds 100 files and removes 50 of the checkpoint's.
    """

    def write(log: Path) -> None:
        chance = random.Random(20240501)
        version = 100
        adds = [_add(chance, number) for number in range(files)]
        _write_checkpoint(log / f"{version:020d}.checkpoint.parquet", adds)
        hint = {"version": version, "size": files + 2}
        (log / "_last_checkpoint").write_text(json.dumps(hint))
        removed = iter(chance.sample(range(files), 50 * commits))
        for number in range(version + 1, version + 1 + commits):
            new = [_add(chance, files + index) for index in range(100)]
            _write_commit(log, number, new, [adds[next(removed)] for _ in range(50)])

    return _kept(f"checkpointed-{files}-{commits}", write)


def commits_only(commits: int) -> Path:
    """A table of ``commits`` commits that add one file each, and no checkpoint."""

    def write(log: Path) -> None:
        chance = random.Random(20240502)
        for version in range(commits):
            _write_commit(log, version, [_add(chance, version)], [])

    return _kept(f"commits-{commits}", write)


def long(commits: int) -> Path:
    """A table of ``commits`` commits, and a checkpoint ten before the last of them."""

    def write(log: Path) -> None:
        from lakeferry.storage import open_store
        from lakeferry.table import DeltaLog

        chance = random.Random(20240503)
        for version in range(commits):
            _write_commit(log, version, [_add(chance, version)], [])
            # As old as it says: versions that came in one millisecond would be taken to be of
            # later ones, and the newest of them of the future.
            moment = _moment(version) / 1_000
            os.utime(log.parent / _commit_name(version), (moment, moment))
        DeltaLog(open_store(str(log.parent))).checkpoint(commits - 10)

    return _kept(f"long-{commits}", write)


def one_commit(version: int) -> dict[str, bytes]:
    """Return the objects that the commit of a version adds to a table, by their names in it.

    Each commit adds one small file, which nobody can read, but which is there.
    """
    data = bytes(100)
    add = _add(random.Random(version), version) | {"size": len(data)}
    return {_commit_name(version): _commit(version, [add], []), str(add["path"]): data}


def _kept(name: str, write: Callable[[Path], None]) -> Path:
    table = cache_folder() / f"{name}-v{LAYOUT}"
    if not table.exists():
        unfinished = table.with_name(f"{table.name}.{os.getpid()}")
        try:
            (unfinished / "_delta_log").mkdir(parents=True)
            write(unfinished / "_delta_log")
            unfinished.rename(table)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return table


def _add(chance: random.Random, number: int) -> dict[str, object]:
    day = f"2024-{number // 28 % 12 + 1:02d}-{number % 28 + 1:02d}"
    unique = f"{chance.getrandbits(128):032x}"
    parts = (unique[:8], unique[8:12], unique[12:16], unique[16:20], unique[20:])
    first = number * 1_000
    stats = {
        "numRecords": 1_000,
        "minValues": {"id": first, "amount": chance.randrange(5_000) / 100},
        "maxValues": {"id": first + 999, "amount": 1_000 - chance.randrange(5_000) / 100},
        "nullCount": {"id": 0, "amount": 0},
    }
    return {
        "path": f"day={day}/part-{number % 200:05d}-{'-'.join(parts)}.c000.snappy.parquet",
        "partitionValues": {"day": day},
        "size": 40_000 + chance.getrandbits(10),
        "modificationTime": 1_700_000_000_000 + number // 200,
        "dataChange": False,
        "stats": json.dumps(stats, separators=(",", ":")),
    }


def _write_checkpoint(path: Path, adds: list[dict[str, object]]) -> None:
    schema = pa.schema(
        [
            ("txn", _TXN),
            ("add", _ADD),
            ("remove", _REMOVE),
            ("metaData", _METADATA_TYPE),
            ("protocol", _PROTOCOL_TYPE),
        ]
    )
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _groups(adds):
            writer.write_table(pa.Table.from_pylist(rows, schema), row_group_size=ROW_GROUP_ROWS)


def _groups(adds: list[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    """Yield the rows of each row group; maps as pyarrow wants them."""
    metadata = {
        **_METADATA,
        "format": {"provider": "parquet", "options": []},
        "configuration": [("delta.checkpointInterval", "100")],
    }
    rows: list[dict[str, object]] = [{"protocol": _PROTOCOL}, {"metaData": metadata}]
    for add in adds:
        values = add["partitionValues"]
        assert isinstance(values, dict)
        rows.append({"add": {**add, "partitionValues": list(values.items())}})
        if len(rows) == ROW_GROUP_ROWS:
            yield rows
            rows = []
    if rows:
        yield rows


def _write_commit(
    log: Path, version: int, adds: list[dict[str, object]], removes: list[dict[str, object]]
) -> None:
    (log.parent / _commit_name(version)).write_bytes(_commit(version, adds, removes))


def _moment(version: int) -> int:
    return 1_700_000_000_000 + version * 1_000


def _commit_name(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def _commit(version: int, adds: list[dict[str, object]], removes: list[dict[str, object]]) -> bytes:
    info = {
        "timestamp": _moment(version),
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["day"]'},
        "operationMetrics": {"numFiles": str(len(adds))},
    }
    lines: list[dict[str, object]] = [{"commitInfo": info}]
    if version == 0:
        lines += [{"protocol": _PROTOCOL}, {"metaData": _METADATA}]
    lines += [{"add": {**add, "dataChange": True}} for add in adds]
    lines += [
        {
            "remove": {
                "path": add["path"],
                "deletionTimestamp": _moment(version),
                "dataChange": True,
                "extendedFileMetadata": True,
                "partitionValues": add["partitionValues"],
                "size": add["size"],
            }
        }
        for add in removes
    ]
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
