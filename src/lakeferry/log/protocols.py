"""Adds features to a protocol and removes them.

Implements the protocol's rules on table features: a writer at version 7 names every feature,
also legacy ones; a reader at version 3 does the same. If features are added and removed again,
the result is the original protocol, if the caller has stored its version numbers. Then clients
that know no table features can use the table again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lakeferry.log import features
from lakeferry.log.actions import (
    READER_FEATURES_VERSION,
    WRITER_FEATURES_VERSION,
    Protocol,
    as_json,
    changed,
)
from lakeferry.log.features import FeatureKind

# What documents show for values that the protocol lacks, in reading order.
_NO_PROTOCOL: dict[str, Any] = {
    "minReaderVersion": None,
    "minWriterVersion": None,
    "readerFeatures": [],
    "writerFeatures": [],
}

Versions = tuple[int, int]
"""``minReaderVersion`` and ``minWriterVersion``."""


def versions(protocol: Protocol) -> Versions:
    """Return the version numbers to store before features are added.

    :func:`without_features` needs them.
    """
    return protocol.min_reader_version, protocol.min_writer_version


def adding(protocol: Protocol, names: Iterable[str]) -> Protocol:
    """Return the protocol with additional features; the same object if it has all of them."""
    wanted = [name for name in names if name not in features.implied_features(protocol)]
    if not wanted:
        return protocol
    writers = [*(protocol.writer_features or ())]
    implied = sorted(features.implied_features(protocol) - set(writers))
    readers, reader_version = protocol.reader_features, protocol.min_reader_version
    asked = [name for name in wanted if _asks_readers(name)]
    if asked:
        known = [*(readers or ())]
        kept = [name for name in (*writers, *implied) if _asks_readers(name) and name not in known]
        readers = (*known, *kept, *asked)
        reader_version = max(reader_version, READER_FEATURES_VERSION)
    return changed(
        protocol,
        min_reader_version=reader_version,
        min_writer_version=max(protocol.min_writer_version, WRITER_FEATURES_VERSION),
        reader_features=readers,
        writer_features=(*writers, *implied, *wanted),
    )


def without_features(
    protocol: Protocol, names: Iterable[str], before: Versions | None = None
) -> Protocol:
    """Return the protocol without some features; the same object if it has none of them.

    ``before`` are the version numbers from before they were added. They are used if they mean
    the same as the features that are left.
    """
    gone = frozenset(names) & protocol.features
    if not gone:
        return protocol
    writers = tuple(name for name in protocol.writer_features or () if name not in gone)
    readers = tuple(name for name in protocol.reader_features or () if name not in gone)
    if before is not None:
        # Versions below one are invalid, and mean the same as one.
        before = max(before[0], 1), max(before[1], 1)
    # A reader version with features requires a writer version with features.
    if before is not None and _is_legacy(before):
        legacy = Protocol(*before, unknown=protocol.unknown)
        if features.implied_features(legacy) == frozenset(writers) | frozenset(readers):
            return legacy
    reader_version = protocol.min_reader_version
    reader_list: tuple[str, ...] | None = readers
    if protocol.reader_features is None:
        reader_list = None
    elif before is not None and before[0] < READER_FEATURES_VERSION:
        if frozenset(readers) == _implied_for_readers(before[0]):
            reader_version, reader_list = before[0], None
    elif before is None and not readers:
        reader_version, reader_list = 1, None
    return changed(
        protocol,
        min_reader_version=reader_version,
        reader_features=reader_list,
        writer_features=writers,
    )


def _is_legacy(found: Versions) -> bool:
    return found[0] < READER_FEATURES_VERSION and found[1] < WRITER_FEATURES_VERSION


def reduced(protocol: Protocol, names: Iterable[str]) -> Protocol:
    """Return the smallest protocol that requires all features but these.

    If version numbers alone can express the rest, they do, so that clients without table
    features can use the table again. Otherwise writers get all names, and readers too if they
    must know any feature other than column mapping.
    """
    gone = frozenset(names)
    left = features.implied_features(protocol) - gone
    for writer in range(1, WRITER_FEATURES_VERSION):
        legacy = Protocol(2 if writer >= 5 else 1, writer, unknown=protocol.unknown)
        if features.implied_features(legacy) == left:
            return legacy
    listed = (*(protocol.writer_features or ()), *(protocol.reader_features or ()))
    ordered = tuple(dict.fromkeys([*(name for name in listed if name in left), *sorted(left)]))
    readers = tuple(name for name in ordered if _is_for_readers(name, protocol))
    reader_version, reader_list = 1, None
    if frozenset(readers) == _implied_for_readers(2):
        reader_version = 2
    elif readers:
        reader_version, reader_list = READER_FEATURES_VERSION, readers
    return changed(
        protocol,
        min_reader_version=reader_version,
        min_writer_version=WRITER_FEATURES_VERSION,
        reader_features=reader_list,
        writer_features=ordered,
    )


def _is_for_readers(name: str, protocol: Protocol) -> bool:
    return name in (protocol.reader_features or ()) or _asks_readers(name)


def _asks_readers(name: str) -> bool:
    return features.feature(name, of_readers=False).kind is FeatureKind.READER_WRITER


def _implied_for_readers(version: int) -> frozenset[str]:
    return frozenset(
        row.name
        for row in features.FEATURES.values()
        if row.kind is FeatureKind.READER_WRITER
        and row.legacy is not None
        and row.legacy[0] <= version
    )


def protocol_document(protocol: Protocol) -> dict[str, Any]:
    """Return a protocol as documents show it, with every key."""
    return _NO_PROTOCOL | as_json(protocol)
