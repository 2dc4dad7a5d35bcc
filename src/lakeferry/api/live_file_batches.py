"""Reads the live files of a version in batches, in this process or on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pyarrow as pa

from lakeferry.engine import Observer, Replayed, ReplayPlan
from lakeferry.engines.engine_choice import suitable
from lakeferry.errors import CorruptLog
from lakeferry.log.replay import Snapshot
from lakeferry.log.segment import Segment
from lakeferry.table import DeltaLog
from lakeferry.table.version_reading import VersionReading


def is_read_here(
    segment: Segment, wanted: str, warn: Callable[[str], None] = lambda _: None
) -> bool:
    """Return whether this process reads the files of a version, and not Spark."""
    return suitable(wanted, len(segment.files), segment.size_bytes, warn) == "local"


def read_live_files(
    log: DeltaLog,
    version: int | None,
    newest: VersionReading | None,
    wanted: str,
    observer: Observer,
    warn: Callable[[str], None],
) -> tuple[Snapshot, Iterator[pa.RecordBatch]]:
    """Return a version and its live files in batches, from the engine that suits its log.

    ``newest`` is what was read of the newest version just before, if it was.
    """
    known = newest if newest is not None and version in (None, newest.version) else None
    segment = log.segment(version) if known is None else known.segment
    if not is_read_here(segment, wanted, warn):
        from lakeferry.engines import open_engine

        with ExitStack() as stack:
            spark = stack.enter_context(open_engine("spark"))
            plan = ReplayPlan(log.store.config, segment)
            # If a checkpoint can't be read, the code below works around it.
            with suppress(CorruptLog):
                replayed = stack.enter_context(spark.replay(plan, observer))
                return replayed.small, _until_read(replayed, stack.pop_all())
    snapshot = log.snapshot_of(segment, known)
    return snapshot, iter(snapshot.files.to_batches())


def _until_read(replayed: Replayed, held: ExitStack) -> Iterator[pa.RecordBatch]:
    """Yield the files; close the engine after the last one, or when the caller stops reading."""
    with held:
        yield from replayed.files()
