"""Writes a few small Delta tables, for those who try the console without tables of their own.

The tables have several commits each, partitions and a property, so that pages have something to
show. They are ordinary tables for every engine.
"""

from __future__ import annotations

import io
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lakeferry.errors import InvalidInput
from lakeferry.log import paths
from lakeferry.log.actions import Action, CommitInfo, FileLine, Metadata, Protocol, encode_line
from lakeferry.storage import Store, open_store
from lakeferry.version import LAKEFERRY_VERSION

_ENGINE = f"Lakeferry/{LAKEFERRY_VERSION} demo"
_REGIONS = ("east", "north", "south", "west")


@dataclass(frozen=True, slots=True)
class DemoTable:
    """A table to write: ``commits`` appends of ``rows`` rows each."""

    path: str
    commits: int
    rows: int


DEMO_TABLES = (
    DemoTable("sales/orders", 12, 200_000),
    DemoTable("sales/customers", 4, 20_000),
    DemoTable("sales/returns", 6, 5_000),
    DemoTable("web/clicks", 20, 100_000),
    DemoTable("web/sessions", 8, 50_000),
    DemoTable("finance/invoices", 3, 10_000),
)


def make_demo_tables(folder: Path) -> Path:
    """Write the tables below ``old`` in a folder that is new or empty, and return that place."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(
            f"{folder} isn't empty", remedy="name a folder that isn't there yet, or an empty one"
        )
    old = folder / "old"
    try:
        for table in DEMO_TABLES:
            (old / table.path).mkdir(parents=True)
            _write(open_store(str(old / table.path)), table)
    except OSError as failed:
        raise InvalidInput(
            f"the demo tables can't be written to {folder}",
            cause=failed.strerror or str(failed),
            remedy="name a folder in which you may write",
        ) from failed
    return old


def _write(store: Store, table: DemoTable) -> None:
    name = table.path.rpartition("/")[2]
    for version in range(table.commits):
        data = _rows(version * table.rows, table.rows)
        region = _REGIONS[version % len(_REGIONS)]
        file = f"region={region}/part-{version:05}-{uuid.uuid4()}.parquet"
        body = _parquet(data)
        store.put_if_absent(file, body)
        operation = "WRITE" if version else "CREATE TABLE AS SELECT"
        now_ms = time.time_ns() // 1_000_000
        actions: list[Action] = [
            CommitInfo(
                {
                    "timestamp": now_ms,
                    "operation": operation,
                    "operationParameters": {"mode": "Append"},
                    "engineInfo": _ENGINE,
                }
            )
        ]
        if version == 0:
            actions += [Protocol(1, 2), _metadata(name, now_ms)]
        actions.append(_add(file, body, region, data, now_ms))
        lines = b"".join(encode_line(action) + b"\n" for action in actions)
        store.put_if_absent(paths.commit(version), lines)


def _rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "amount": pa.array([(each * 7919 % 100_003) / 100 for each in ids], pa.float64()),
            "note": pa.array([f"{each * 2654435761 % 4294967296:08x}" for each in ids]),
        }
    )


def _parquet(data: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(data, sink, compression="snappy")
    return sink.getvalue()


def _metadata(name: str, now_ms: int) -> Metadata:
    kinds = {"id": "long", "amount": "double", "note": "string", "region": "string"}
    fields = [
        {"name": column, "type": kind, "nullable": True, "metadata": {}}
        for column, kind in kinds.items()
    ]
    schema = msgspec.json.encode({"type": "struct", "fields": fields}).decode()
    return Metadata(
        str(uuid.uuid4()),
        schema,
        partition_columns=("region",),
        configuration={"delta.appendOnly": "false"},
        name=name,
        created_time=now_ms,
    )


def _add(file: str, body: bytes, region: str, data: pa.Table, now_ms: int) -> FileLine:
    ids = data["id"]
    stats = {
        "numRecords": data.num_rows,
        "minValues": {"id": ids[0].as_py()},
        "maxValues": {"id": ids[-1].as_py()},
        "nullCount": {"id": 0},
    }
    add = {
        "path": file,
        "partitionValues": {"region": region},
        "size": len(body),
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": msgspec.json.encode(stats).decode(),
    }
    return FileLine("add", msgspec.json.encode({"add": add}))
