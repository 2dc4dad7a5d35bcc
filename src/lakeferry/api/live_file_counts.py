"""Counts a version's live files by size and by partition, as Arrow aggregates.

The files are read a table at a time and none is kept, so a million files take the memory of one
part of the checkpoint. Results are small, and those of the last versions are kept.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import LimitExceeded
from lakeferry.log.segment import Segment
from lakeferry.table import DeltaLog
from lakeferry.table.version_reading import VersionReading

KEPT_STATISTICS = 32
MOST_LOG_BYTES = 256 * 1024 * 1024
"""A version whose log files are larger isn't counted for a page."""
SHOWN_PARTITIONS = 20
_MOST_PARTITIONS = 100_000
_KIB = 1024


@dataclass(frozen=True, slots=True)
class SizeClass:
    """How many files are at least ``from_bytes`` and less than ``to_bytes`` large."""

    from_bytes: int
    to_bytes: int | None
    files: int
    size_bytes: int


_BOUNDS = tuple(_KIB * 4**power for power in range(3, 11))
"""Where the classes of sizes begin: from 64 KiB to 1 GiB, each four times the one before."""


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The files of one partition; ``values`` is ``None`` for all partitions that aren't shown."""

    values: tuple[tuple[str, str | None], ...] | None
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LiveFileCounts:
    """The live files of a version in numbers."""

    version: int
    files: int
    size_bytes: int
    with_deleted_rows: int
    classes: tuple[SizeClass, ...]
    partitions: tuple[PartitionFiles, ...]
    """The largest partitions, and then all others together; empty if there are no columns."""
    partition_count: int | None
    """``None`` if there are more than are counted."""


class LiveFileCountsCache:
    """The statistics of the versions that were asked for last. Safe to use from several threads."""

    def __init__(self, most: int = KEPT_STATISTICS) -> None:
        """Keep the statistics of ``most`` versions."""
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], LiveFileCounts] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._kept)

    def of_newest(self, log: DeltaLog) -> LiveFileCounts:
        """Return the statistics of the newest version."""
        segment = log.segment()
        newest = segment.files[0] if segment.files else None
        # A table may have been replaced by another one, with the same version.
        mark = None if newest is None else (newest.path, newest.size_bytes, newest.modified_ms)
        key = (log.store.uri, segment.version, mark)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = count_live_files(log, segment)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found


def count_live_files(log: DeltaLog, segment: Segment) -> LiveFileCounts:
    """Return the statistics of the version that a segment makes up."""
    if segment.size_bytes > MOST_LOG_BYTES:
        raise LimitExceeded(
            "the log of this version is too large to count its files for a page",
            cause=f"its files have {segment.size_bytes:,} bytes",
            remedy="use 'lakeferry inspect' or 'lakeferry files'",
        )
    return log.working_around(segment, lambda usable: _counted(log, usable))


def _counted(log: DeltaLog, segment: Segment) -> LiveFileCounts:
    reading = VersionReading(log.source, None, segment)
    bounds = pa.array(_BOUNDS)
    classes = [[0, 0] for _ in range(len(_BOUNDS) + 1)]
    partitions: dict[str | None, list[int]] = {}
    deleted = 0
    for files in _live_tables(reading):
        sizes = files["size"].combine_chunks()
        for number, size_bytes, count in _by_class(sizes, bounds):
            classes[number][0] += count
            classes[number][1] += size_bytes
        deleted += len(files) - files["deletionVector"].null_count
        for text, size_bytes, count in _by_partition(files):
            key = text if text in partitions or len(partitions) < _MOST_PARTITIONS else None
            known = partitions.setdefault(key, [0, 0])
            known[0] += count
            known[1] += size_bytes
    shown, partition_count = _largest(partitions)
    return LiveFileCounts(
        segment.version,
        sum(count for count, _ in classes),
        sum(size_bytes for _, size_bytes in classes),
        deleted,
        tuple(
            SizeClass(low, high, *counted)
            for low, high, counted in zip((0, *_BOUNDS), (*_BOUNDS, None), classes, strict=True)
        ),
        shown,
        partition_count,
    )


def _live_tables(reading: VersionReading) -> Iterator[pa.Table]:
    wanted = ["size", "partitionValues", "deletionVector"]
    for name, table in reading.file_tables():
        if name == "add" and table.num_rows:
            yield table.select(wanted)


def _by_class(sizes: pa.Array, bounds: pa.Array) -> Iterator[tuple[int, int, int]]:
    number = pa.array([0] * len(sizes), pa.int64())
    for bound in bounds:
        number = pc.add(number, pc.cast(pc.greater_equal(sizes, bound), pa.int64()))
    found = (
        pa.table({"class": number, "size": sizes})
        .group_by("class")
        .aggregate([("size", "sum"), ("size", "count")])
    )
    yield from zip(
        *(found[name].to_pylist() for name in ("class", "size_sum", "size_count")), strict=True
    )


def _by_partition(files: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Yield each partition as text that names it, with the bytes and the number of its files."""
    values = files["partitionValues"].combine_chunks()
    if len(values.keys) == 0:
        return
    # Equal maps are found by their text: Arrow doesn't group by maps.
    texts = pa.array([_spelled(pairs) for pairs in values.to_pylist()], pa.string())
    found = (
        pa.table({"partition": texts, "size": files["size"]})
        .group_by("partition")
        .aggregate([("size", "sum"), ("size", "count")])
    )
    yield from zip(
        *(found[name].to_pylist() for name in ("partition", "size_sum", "size_count")), strict=True
    )


def _spelled(pairs: Any) -> str:
    return json.dumps(sorted(pairs or []))


def _largest(
    partitions: dict[str | None, list[int]],
) -> tuple[tuple[PartitionFiles, ...], int | None]:
    others = partitions.pop(None, None)
    by_size = sorted(partitions.items(), key=lambda each: (-each[1][1], each[0] or ""))
    shown = [
        PartitionFiles(
            tuple((str(name), value) for name, value in json.loads(text or "[]")), *counted
        )
        for text, counted in by_size[:SHOWN_PARTITIONS]
    ]
    rest = [counted for _, counted in by_size[SHOWN_PARTITIONS:]]
    if others is not None:
        rest.append(others)
    if rest:
        files, size_bytes = (sum(each[index] for each in rest) for index in (0, 1))
        shown.append(PartitionFiles(None, files, size_bytes))
    return tuple(shown), None if others is not None else len(partitions)
