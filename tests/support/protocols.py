"""Protocols for tests, written in few words."""

from __future__ import annotations

from lakeferry.log.actions import Protocol


def protocol_of(
    reader: int, writer: int, readers: str | None = None, writers: str | None = None
) -> Protocol:
    """Return a protocol; each list of features is one text of words."""
    return Protocol(
        reader,
        writer,
        None if readers is None else tuple(readers.split()),
        None if writers is None else tuple(writers.split()),
    )
