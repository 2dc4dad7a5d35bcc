"""Delta tables of several files, written by hand: quickly, and with names that nobody else allows.

Their rows have ids from 0 on, so that a test can count them.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

ROWS_OF_FILE = 100


@dataclass(frozen=True, slots=True)
class SmallTable:
    """A table to write. ``filler_bytes`` are in each file, beside the ids.

    ``partitions`` are values of a column; files take them in turn.
    """

    files: int = 4
    commits: int | None = None
    """As many as files, if that isn't said."""
    filler_bytes: int = 0
    column: str | None = None
    partitions: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    engine: str = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"

    def write(self, place: Path) -> None:
        """Write the table to a new folder."""
        log = place / "_delta_log"
        log.mkdir(parents=True)
        now_ms = time.time_ns() // 1_000_000
        commits = self.commits or self.files
        for version in range(commits):
            lines = [self._info(now_ms + version, version)]
            if version == 0:
                lines += [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}]
                lines += [self._metadata(now_ms)]
            files = range(version, self.files, commits)
            lines += [self._add(place, number, now_ms) for number in files]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (log / f"{version:020}.json").write_text(text)

    def _info(self, now_ms: int, version: int) -> dict[str, object]:
        made = "WRITE" if version else "CREATE TABLE AS SELECT"
        told = {"timestamp": now_ms, "operation": made, "engineInfo": self.engine}
        return {"commitInfo": told}

    def _metadata(self, now_ms: int) -> dict[str, object]:
        kinds = {"id": "long"}
        kinds |= {"filler": "binary"} if self.filler_bytes else {}
        kinds |= {self.column: "string"} if self.column else {}
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in kinds.items()
        ]
        return {
            "metaData": {
                "id": f"00000000-0000-4000-8000-{now_ms % 10**12:012}",
                "name": self.name,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [self.column] if self.column else [],
                "configuration": dict(self.properties),
                "createdTime": now_ms,
            }
        }

    def _add(self, place: Path, number: int, now_ms: int) -> dict[str, object]:
        first = number * ROWS_OF_FILE
        columns = {"id": pa.array(range(first, first + ROWS_OF_FILE), pa.int64())}
        if self.filler_bytes:
            filler = [bytes([number % 251]) * (self.filler_bytes // ROWS_OF_FILE)] * ROWS_OF_FILE
            columns["filler"] = pa.array(filler, pa.binary())
        sink = io.BytesIO()
        options = {"compression": "none", "use_dictionary": False}
        pq.write_table(pa.table(columns), sink, **options)
        body, name = sink.getvalue(), f"part-{number:05}.parquet"
        (place / name).write_bytes(body)
        value = self.partitions[number % len(self.partitions)] if self.partitions else None
        return {
            "add": {
                "path": quote(name),
                "partitionValues": {self.column: value} if self.column else {},
                "size": len(body),
                "modificationTime": now_ms,
                "dataChange": True,
                "stats": json.dumps({"numRecords": ROWS_OF_FILE}),
            }
        }


def table_ids(place: Path | str, storage_options: Mapping[str, str] | None = None) -> list[int]:
    """Return the ids of a table, as delta-rs reads them."""
    table = DeltaTable(str(place), storage_options=dict(storage_options or {}))
    found: list[int] = table.to_pyarrow_table(columns=["id"])["id"].to_pylist()
    return sorted(found)
