"""Whole tables for benchmarks, data files included: small ones, many of them."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_SCHEMA = {
    "type": "struct",
    "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
}
_PER_COMMIT = 1_000


def write(folder: Path, files: int, *, rows: int = 1, checkpoint: bool = True) -> Path:
    """Write a table of that many data files, all alike, a thousand to a commit."""
    from deltalake import DeltaTable

    data = _parquet(rows)
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    stats = json.dumps({"numRecords": rows}, separators=(",", ":"))
    metadata = {
        "id": "0c2f3c4e-7a5b-4c1d-9e8f-1a2b3c4d5e6f",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_SCHEMA, separators=(",", ":")),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 1_700_000_000_000,
    }
    for version, start in enumerate(range(0, files, _PER_COMMIT)):
        lines: list[dict[str, object]] = [{"commitInfo": {"operation": "WRITE", "timestamp": 0}}]
        if version == 0:
            lines += [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}]
            lines += [{"metaData": metadata}]
        for number in range(start, min(start + _PER_COMMIT, files)):
            name = f"part-{number:07d}.parquet"
            (folder / name).write_bytes(data)
            add = {"path": name, "partitionValues": {}, "size": len(data), "modificationTime": 0}
            lines.append({"add": {**add, "dataChange": True, "stats": stats}})
        text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
        (log / f"{version:020d}.json").write_text(text + "\n")
    if checkpoint:
        DeltaTable(str(folder)).create_checkpoint()
    return folder


def furnish(made: Path, folder: Path) -> Path:
    """Copy a table that has only a log, and give it the files that its log adds.

    They have the size that the log says and take no room.
    """
    shutil.copytree(made, folder)
    log = folder / "_delta_log"
    wanted = {}
    for commit in log.glob("*.json"):
        added = (json.loads(line).get("add") for line in commit.read_bytes().splitlines())
        wanted |= {add["path"]: add["size"] for add in added if add}
    for checkpoint in log.glob("*.checkpoint.parquet"):
        adds = pq.ParquetFile(checkpoint).read(columns=["add.path", "add.size"])["add"]
        for chunk in adds.chunks:
            wanted |= dict(zip(*(field.to_pylist() for field in chunk.flatten()), strict=True))
    wanted.pop(None, None)
    for parent in {name.rpartition("/")[0] for name in wanted}:
        (folder / parent).mkdir(parents=True, exist_ok=True)
    for name, size_bytes in wanted.items():
        file = os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY)
        os.ftruncate(file, size_bytes)
        os.close(file)
    return folder


def _parquet(rows: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(range(rows), pa.int64())}), sink)
    return sink.getvalue()
