"""Reads protocol and metadata of tables with unknown features.

:func:`bare_state` reads a table's protocol and metadata and nothing else.
:func:`unless_unsupported` names the unknown features, so that an unsupported table isn't
reported as corrupt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol as Callback

from lakeferry.errors import CorruptLog, LakeferryError
from lakeferry.log import features
from lakeferry.log.actions import Protocol
from lakeferry.log.checkpoint_read import PROTOCOL_AND_METADATA
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.lines import Lines, read_protocol_and_metadata
from lakeferry.log.replay import TableState
from lakeferry.log.segment import Segment
from lakeferry.table import DeltaLog, load
from lakeferry.table.log_source import LogSource


def bare_state(log: DeltaLog, version: int | None = None) -> TableState:
    """Return a version's protocol and metadata; ignore all other actions."""
    try:
        return log.state(version)
    except CorruptLog as broken:
        segment = log.segment(version)
        found = _checkpoint_state(log.source, segment)
        for file, data in load.contents(log.source, segment.deltas):
            read_protocol_and_metadata(found, data, file.path)
        if found.protocol is None or found.metadata is None:
            raise broken from None
        return TableState(segment.version, found.protocol, found.metadata)


def _checkpoint_state(store: LogSource, segment: Segment) -> LatestActions:
    found = LatestActions()
    of_checkpoint = segment.checkpoint.files if segment.checkpoint else ()
    if not any(file.path.endswith(".json") for file in of_checkpoint):
        # In Parquet, other actions are in other columns, which aren't read.
        return load.small_rows(store, segment, Lines(), PROTOCOL_AND_METADATA)
    for file, data in load.contents(store, of_checkpoint):
        read_protocol_and_metadata(found, data, file.path)
    return found


class CheckProtocol(Callback):
    """Raises an error for a protocol with features that we don't support."""

    def __call__(self, protocol: Protocol, *, asks_catalog: bool) -> None:
        """Check it; ``asks_catalog`` if the table's catalog decides about the log that is read."""


@contextmanager
def unless_unsupported(
    log: DeltaLog, version: int | None, check: CheckProtocol = features.check_readable
) -> Iterator[None]:
    """If the log can't be read and ``check`` refuses its protocol, raise that error instead."""
    try:
        yield
    except CorruptLog as broken:
        try:
            protocol = bare_state(log, version).protocol
        except LakeferryError:
            raise broken from None
        check(protocol, asks_catalog=log.store.asks_catalog)
        raise


def refuse_reader_version(protocol: Protocol) -> None:
    """Refuse a table with an unsupported reader version; ignore its features."""
    # Without its features, so that only the version numbers are judged.
    features.check_readable(Protocol(protocol.min_reader_version, protocol.min_writer_version))
