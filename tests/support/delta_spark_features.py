"""Which table features a delta-spark knows, asked of the check that it makes of each protocol."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake

from lakeferry.log.features import FEATURES
from tests.support.feature_tables import protocol_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class KnownFeatures:
    """The features of protocols that it reads, and of those that it writes."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


def known_features(spark: SparkSession, folder: Path) -> KnownFeatures:
    """Ask about each feature of the registry; a table for it is made in ``folder``."""
    write_deltalake(str(folder), pa.table({"id": [1]}))
    jvm: Any = spark.sparkContext._jvm
    # Without a session, a feature that is switched off counts as one that is switched on.
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
    delta = jvm.org.apache.spark.sql.delta
    log = delta.DeltaLog.forTable(spark._jsparkSession, str(folder))
    reads, writes = [], []
    for name in FEATURES:
        protocol = delta.actions.Action.fromJson(json.dumps({"protocol": protocol_with(name)}))
        if _passes(log.protocolRead, protocol):
            reads.append(name)
        if _passes(log.protocolWrite, protocol):
            writes.append(name)
    return KnownFeatures(tuple(sorted(reads)), tuple(sorted(writes)))


def _passes(check: Any, protocol: Any) -> bool:
    try:
        check(protocol)
    except Exception as refused:
        if "DELTA_UNSUPPORTED_FEATURES" not in str(refused):
            raise
        return False
    return True
