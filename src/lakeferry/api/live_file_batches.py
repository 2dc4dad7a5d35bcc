"""Reads the live files of a version in batches, in this process or on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pyarrow as pa

from lakeferry.engine import Observer, Replayed, ReplayPlan
from lakeferry.engines.engine_choice import suitable
from lakeferry.errors import CorruptLog
from lakeferry.log.actions import Protocol
from lakeferry.log.segment import Segment
from lakeferry.table import DeltaLog
from lakeferry.table.live_files import LISTED_COLUMNS
from lakeferry.table.version_reading import VersionReading


def is_read_here(
    segment: Segment, wanted: str, warn: Callable[[str], None] = lambda _: None
) -> bool:
    """Return whether this process reads the files of a version, and not Spark."""
    return suitable(wanted, len(segment.files), segment.size_bytes, warn) == "local"


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """What is known of a version whose live files are read.

    ``read`` yields the files in batches, and may be called again.
    """

    protocol: Protocol
    version: int
    num_files: int
    size_bytes: int
    read: Callable[[], Iterator[pa.RecordBatch]]


def read_live_files(
    log: DeltaLog,
    version: int | None,
    newest: VersionReading | None,
    wanted: str,
    observer: Observer,
    warn: Callable[[str], None],
) -> ReadFiles:
    """Return a version's live files, from the engine that suits its log.

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
                first = [_until_read(replayed, stack.pop_all())]

                def read() -> Iterator[pa.RecordBatch]:
                    if first:
                        return first.pop()
                    anew = read_live_files(log, segment.version, None, wanted, observer, warn)
                    return anew.read()

                totals = replayed.totals
                counts = totals.num_files, totals.size_bytes
                return ReadFiles(replayed.small.protocol, segment.version, *counts, read)
    snapshot = log.snapshot_of(segment, known)
    # Only these columns are kept for as long as somebody holds the result.
    files = snapshot.files.select(LISTED_COLUMNS)
    return ReadFiles(
        snapshot.protocol,
        snapshot.version,
        snapshot.num_files,
        snapshot.size_bytes,
        lambda: iter(files.to_batches()),
    )


def _until_read(replayed: Replayed, held: ExitStack) -> Iterator[pa.RecordBatch]:
    """Yield the files; close the engine after the last one, or when the caller stops reading."""
    with held:
        yield from replayed.files()
