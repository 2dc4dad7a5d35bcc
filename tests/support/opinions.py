"""What an engine says about a table, in one form, so that opinions can be compared.

delta-spark is asked through its own ``DeltaLog`` in the JVM, which tells about
the log without reading data, so that tables without their data files can be
compared too. We are asked through :class:`lakeferry.table.DeltaLog`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakeferry.log import actions, arrow_versions, file_identity
from lakeferry.log.replay import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Opinion:
    """One version of a table as an engine sees it."""

    version: int
    protocol: dict[str, Any]
    metadata: dict[str, Any]
    live: dict[tuple[str, str | None], dict[str, Any]]

    @property
    def size_bytes(self) -> int:
        """The size of all live files."""
        return sum(int(file["size"]) for file in self.live.values())


def ours(snapshot: Snapshot, root: str) -> Opinion:
    """Say what we say."""
    columns = ["path", "size", "partitionValues", "deletionVector", "modificationTime"]
    live = {}
    for row in arrow_versions.to_rows(snapshot.files.select(columns)):
        live[_key(row, root)] = _comparable(row)
    return Opinion(
        snapshot.version,
        _protocol(actions.as_json(snapshot.protocol)),
        _metadata(actions.as_json(snapshot.metadata)),
        live,
    )


def forget(spark: SparkSession) -> None:
    """Have delta-spark forget all tables that it knows."""
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def spark_log(spark: SparkSession, location: str) -> Any:
    """Return delta-spark's own log of the table, read anew."""
    jvm: Any = spark.sparkContext._jvm
    forget(spark)
    delta_log = jvm.org.apache.spark.sql.delta.DeltaLog
    return delta_log.forTable(spark._jsparkSession, location)


def delta_spark(spark: SparkSession, location: str, version: int | None = None) -> Opinion:
    """Say what delta-spark says, or let its exception through."""
    jvm: Any = spark.sparkContext._jvm
    none = jvm.scala.Option.empty()
    log = spark_log(spark, location)
    if version is None:
        snapshot = log.update(False, none, none)
    else:
        snapshot = log.getSnapshotAt(version, none, none, False)
    live = {}
    for text in snapshot.allFiles().toJSON().collectAsList():
        row = json.loads(text)
        live[_key(row, location)] = _comparable(row)
    return Opinion(
        snapshot.version(),
        _protocol(json.loads(snapshot.protocol().json())["protocol"]),
        _metadata(json.loads(snapshot.metadata().json())["metaData"]),
        live,
    )


def _key(row: dict[str, Any], root: str) -> tuple[str, str | None]:
    vector = row.get("deletionVector")
    offset = None if vector is None else vector.get("offset")
    unique = (
        None
        if vector is None
        else f"{vector['storageType']}{vector['pathOrInlineDv']}"
        + ("" if offset is None else f"@{offset}")
    )
    return file_identity.identity(row["path"], root), unique


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "size": row["size"],
        "modificationTime": row["modificationTime"],
        # Spark's JSON leaves out map entries that are null.
        "partitionValues": {
            key: value
            for key, value in (row.get("partitionValues") or {}).items()
            if value is not None
        },
        "cardinality": (row.get("deletionVector") or {}).get("cardinality"),
    }


def _protocol(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "minReaderVersion": value["minReaderVersion"],
        "minWriterVersion": value["minWriterVersion"],
        "readerFeatures": sorted(value.get("readerFeatures") or ()),
        "writerFeatures": sorted(value.get("writerFeatures") or ()),
    }


def _metadata(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": value["id"],
        "name": value.get("name"),
        "schemaString": value.get("schemaString") or "",
        "partitionColumns": list(value.get("partitionColumns") or ()),
        "configuration": dict(value.get("configuration") or {}),
        "createdTime": value.get("createdTime"),
    }
