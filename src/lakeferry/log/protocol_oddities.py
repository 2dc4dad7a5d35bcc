"""Finds oddities of protocols: what the specification forbids, and engines treat differently.

We report it and go on reading. A commit of ours must not add anything odd.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from lakeferry.log.actions import READER_FEATURES_VERSION, WRITER_FEATURES_VERSION, Protocol
from lakeferry.log.features import FEATURES, FeatureKind, in_force


class Oddity(Enum):
    """A property of a protocol that the specification doesn't allow."""

    READER_LIST_WITHOUT_VERSION = "readerFeatures is set although minReaderVersion is below 3"
    WRITER_LIST_WITHOUT_VERSION = "writerFeatures is set although minWriterVersion is below 7"
    READER_LIST_MISSING = "minReaderVersion is 3 and readerFeatures is missing"
    WRITER_LIST_MISSING = "minWriterVersion is 7 and writerFeatures is missing"
    READER_AHEAD_OF_WRITER = "minReaderVersion is 3 and minWriterVersion is below 7"
    VERSION_BELOW_ONE = "a version number is below 1"
    READER_ONLY = "listed for readers and not for writers"
    NOT_FOR_READERS = "a reader-writer feature that isn't listed for readers"
    FOR_READERS_TOO = "a writer feature that is listed for readers"
    DEPENDENCY_MISSING = "a feature that it depends on is missing"
    ACTIVE_WITHOUT_FEATURE = "the properties use it, but the protocol doesn't list it"


DELTA_SPARK_ACCEPTS = frozenset({Oddity.READER_ONLY, Oddity.NOT_FOR_READERS})
"""The oddities that delta-spark accepts; with any other it refuses to open the table.

It checks the last two only for features that it knows itself. For example, a redirect's
property without the feature blocks no client.
"""


@dataclass(frozen=True, slots=True)
class ProtocolWarning:
    """One oddity and the features that have it."""

    oddity: Oddity
    features: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The oddity for a person to read."""
        names = ", ".join(self.features)
        return f"{names}: {self.oddity.value}" if names else self.oddity.value


def warnings(
    protocol: Protocol, configuration: Mapping[str, str] | None = None
) -> tuple[ProtocolWarning, ...]:
    """Return the oddities of a protocol, and with the table's properties those of both together."""
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    listed = protocol.reader_features is not None
    found = [
        ProtocolWarning(oddity)
        for oddity, holds in (
            (Oddity.READER_LIST_WITHOUT_VERSION, reader < READER_FEATURES_VERSION and listed),
            (
                Oddity.WRITER_LIST_WITHOUT_VERSION,
                writer < WRITER_FEATURES_VERSION and protocol.writer_features is not None,
            ),
            (Oddity.READER_LIST_MISSING, reader >= READER_FEATURES_VERSION and not listed),
            (
                Oddity.WRITER_LIST_MISSING,
                writer >= WRITER_FEATURES_VERSION and protocol.writer_features is None,
            ),
            (
                Oddity.READER_AHEAD_OF_WRITER,
                reader >= READER_FEATURES_VERSION and writer < WRITER_FEATURES_VERSION,
            ),
            (Oddity.VERSION_BELOW_ONE, reader < 1 or writer < 1),
        )
        if holds
    ]
    for oddity, names in _odd_features(protocol, configuration or {}):
        if names:
            found.append(ProtocolWarning(oddity, tuple(sorted(names))))
    return tuple(found)


def _odd_features(
    protocol: Protocol, configuration: Mapping[str, str]
) -> Iterable[tuple[Oddity, set[str]]]:
    readers = set(protocol.reader_features or ())
    writers = set(protocol.writer_features or ())
    rows = in_force(protocol)
    names = {row.name for row in rows}
    for_both = {row.name for row in rows if row.kind is FeatureKind.READER_WRITER}
    # A reader version can stand for a legacy feature that only writers list: (2, 7, columnMapping).
    by_version = {
        row.name
        for row in rows
        if row.legacy is not None
        and row.legacy[0] <= protocol.min_reader_version < READER_FEATURES_VERSION
    }
    yield Oddity.READER_ONLY, readers - writers
    yield Oddity.NOT_FOR_READERS, (for_both & writers) - readers - by_version
    yield Oddity.FOR_READERS_TOO, readers & (names - for_both)
    yield (
        Oddity.DEPENDENCY_MISSING,
        {row.name for row in rows if not names.issuperset(row.requires)},
    )
    # Legacy protocols promise what their version implies, and nothing is checked there. A
    # feature's preview in the protocol stands for the feature.
    if protocol.min_writer_version >= WRITER_FEATURES_VERSION:
        yield (
            Oddity.ACTIVE_WITHOUT_FEATURE,
            {
                row.name
                for row in FEATURES.values()
                if row.is_active(configuration) and not {row.name, _counterpart(row.name)} & names
            },
        )


def _counterpart(name: str) -> str:
    return name.removesuffix("-preview") if name.endswith("-preview") else f"{name}-preview"
