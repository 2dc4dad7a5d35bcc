"""Tables that have a feature in their protocol, and don't use it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from lakeferry.log.features import FEATURES, FeatureKind

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
FOR_READERS = "aFeatureOfTheFuture"
FOR_WRITERS = "aFeatureOfTheFutureForWriters"
"""Features that nobody knows."""


def with_required(name: str) -> frozenset[str]:
    """Return a feature and those that it requires."""
    found, more = {name}, [name]
    while more:
        row = FEATURES.get(more.pop())
        new = set(row.requires if row else ()) - found
        found |= new
        more += new
    return frozenset(found)


def protocol_with(*names: str) -> dict[str, Any]:
    """Return a protocol with exactly these features."""
    readers = sorted(name for name in names if _is_for_readers(name))
    listed = {"readerFeatures": readers} if readers else {}
    versions = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    return {**versions, **listed, "writerFeatures": sorted(names)}


def _is_for_readers(name: str) -> bool:
    if name in (FOR_READERS, FOR_WRITERS):
        return name == FOR_READERS
    return FEATURES[name].kind is FeatureKind.READER_WRITER


class FeatureTables:
    """Makes tables of two rows with a protocol, by copies of one."""

    def __init__(self, folder: Path) -> None:
        """Make the first one, with delta-rs."""
        self._folder = folder
        self._first = folder / "first"
        write_deltalake(str(self._first), ROWS)
        self._made = 0

    def table(self, protocol: dict[str, Any]) -> str:
        """Make another table."""
        self._made += 1
        place = self._folder / f"table-{self._made}"
        shutil.copytree(self._first, place)
        path = place / "_delta_log" / "00000000000000000000.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        actions.sort(key=lambda action: "commitInfo" not in action)
        timed = "inCommitTimestamp" in protocol.get("writerFeatures", ())
        if timed:
            actions[0]["commitInfo"]["inCommitTimestamp"] = 1_700_000_000_000
        for action in actions:
            if "protocol" in action:
                action["protocol"] = protocol
            if timed and "metaData" in action:
                action["metaData"]["configuration"] = {"delta.enableInCommitTimestamps": "true"}
        path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
        return str(place)
