"""Reads protocol and metadata of tables with features that aren't known.

:func:`bare_state` reads a table's protocol and metadata and looks at nothing else.
:func:`unless_unsupported` names the features that are in the way, so that a table which we
don't understand isn't called corrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakeferry.errors import CorruptLog, LakeferryError
from lakeferry.log import features
from lakeferry.log.actions import Protocol
from lakeferry.log.checkpoint_read import PROTOCOL_AND_METADATA
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.lines import Lines, read_protocol_and_metadata
from lakeferry.log.replay import TableState
from lakeferry.log.segment import Segment
from lakeferry.storage import Store
from lakeferry.table import DeltaLog, load


def bare_state(log: DeltaLog, version: int | None = None) -> TableState:
    """Return a version's protocol and metadata, whatever else is in the files that have them."""
    try:
        return log.state(version)
    except CorruptLog as broken:
        segment = log.segment(version)
        found = _checkpoint_state(log.store, segment)
        for file, data in load.contents(log.store, segment.deltas):
            read_protocol_and_metadata(found, data, file.path)
        if found.protocol is None or found.metadata is None:
            raise broken from None
        return TableState(segment.version, found.protocol, found.metadata)


def _checkpoint_state(store: Store, segment: Segment) -> LatestActions:
    found = LatestActions()
    of_checkpoint = segment.checkpoint.files if segment.checkpoint else ()
    if not any(file.path.endswith(".json") for file in of_checkpoint):
        # In Parquet, other actions are other columns, which aren't looked at.
        return load.small_rows(store, segment, Lines(), PROTOCOL_AND_METADATA)
    for file, data in load.contents(store, of_checkpoint):
        read_protocol_and_metadata(found, data, file.path)
    return found


@contextmanager
def unless_unsupported(
    log: DeltaLog,
    version: int | None,
    check: Callable[[Protocol], None] = features.check_readable,
) -> Iterator[None]:
    """Where a log can't be read, raise what ``check`` has against its protocol, if it has."""
    try:
        yield
    except CorruptLog as broken:
        try:
            protocol = bare_state(log, version).protocol
        except LakeferryError:
            raise broken from None
        check(protocol)
        raise


def refuse_reader_version(protocol: Protocol) -> None:
    """Raise for a table whose reader version is beyond us, whatever its features."""
    # Without its features, so that only the version numbers are judged.
    features.check_readable(Protocol(protocol.min_reader_version, protocol.min_writer_version))
