"""Says which client wrote a commit, and in which version, from its ``commitInfo``.

The protocol lets a writer state anything there. The texts below are those that the clients'
sources write; delta-rs and Trino name themselves in fields of their own, too. A writer that isn't
known is named by its own text, and one that states nothing has no name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

_MOST_CHARACTERS = 120
"""How much of a writer's own text is kept: it may have any length."""


class KnownWriter(Enum):
    """The clients that are recognized by what they write."""

    LAKEFERRY = "Lakeferry"
    DELTA_SPARK = "delta-spark"
    DATABRICKS = "Databricks"
    DELTA_RS = "delta-rs"
    DUCKDB = "DuckDB"
    FLINK = "Flink"
    KERNEL = "Delta Kernel"
    STANDALONE = "Delta Standalone"
    TRINO = "Trino"


_ENGINE, _CLIENT, _CLUSTER = "engineInfo", "clientVersion", "clusterId"
_PATTERNS = (
    (KnownWriter.LAKEFERRY, _ENGINE, r"Lakeferry/(\S+)"),
    (KnownWriter.DELTA_SPARK, _ENGINE, r"Apache-Spark/\S+ Delta-Lake/(\S+)"),
    (KnownWriter.DATABRICKS, _ENGINE, r"Databricks-Runtime/(\S+)"),
    (KnownWriter.DELTA_RS, _ENGINE, r"delta-rs:(?:py-)?(\S+)"),
    # Older versions of delta-rs state no engineInfo, and applications may state their own.
    (KnownWriter.DELTA_RS, _CLIENT, r"delta-rs\.(?:py-)?(\S+)"),
    (KnownWriter.DUCKDB, _ENGINE, r"DuckDB()"),
    (KnownWriter.FLINK, _ENGINE, r"Kernel-(\S+?)/DeltaSink"),
    (KnownWriter.FLINK, _ENGINE, r"(?:flink-engine/\S+[ -])?flink-delta-connector/(\S+).*"),
    # Delta's second connector for Spark writes by the Kernel, which puts its own name before it.
    (KnownWriter.KERNEL, _ENGINE, r"Kernel-(\S+?)/.*"),
    (KnownWriter.STANDALONE, _ENGINE, r".* Delta-Standalone/(\S+)"),
    (KnownWriter.TRINO, _CLUSTER, r"trino-(\d+)-.*"),
)
"""Each client's text, and in which field it is; the first pattern that matches decides."""
_COMPILED = tuple((kind, name, re.compile(pattern)) for kind, name, pattern in _PATTERNS)
_RELEASE = re.compile(r"(\d{1,6})(?:\.(\d{1,6})\.(\d{1,6}))?", re.ASCII)

Release = tuple[int, int, int]
"""A version as numbers. Trino has one number, which is the first."""


@dataclass(frozen=True, slots=True)
class CommitWriter:
    """A client, as its commits name it.

    ``name`` is its own text, ``None`` if it stated none. ``version`` is that of the library that
    decides whether it follows redirects: of Delta, not of Spark.
    """

    name: str | None
    kind: KnownWriter | None = None
    version: str | None = None

    @property
    def release(self) -> Release | None:
        """The version as numbers; ``None`` for a build of a vendor, or a version to come."""
        found = _RELEASE.fullmatch(self.version or "")
        return None if found is None else (int(found[1]), int(found[2] or 0), int(found[3] or 0))


def commit_writer(info: Mapping[str, Any]) -> CommitWriter:
    """Return who wrote a commit, from the values of its ``commitInfo``."""
    texts = {name: _shortened(info.get(name)) for name in (_ENGINE, _CLIENT, _CLUSTER)}
    for kind, field, pattern in _COMPILED:
        if (text := texts[field]) and (found := pattern.fullmatch(text)) is not None:
            # Every node of a Trino cluster has a name of its own.
            name = f"trino-{found[1]}" if kind is KnownWriter.TRINO else text
            return CommitWriter(name, kind, found[1] or None)
    return CommitWriter(texts[_ENGINE] or texts[_CLIENT])


def _shortened(value: object) -> str | None:
    """Return a text in one line, of a length that fits into a message."""
    if not isinstance(value, str):
        return None
    return " ".join(value[: 2 * _MOST_CHARACTERS].split())[:_MOST_CHARACTERS] or None
