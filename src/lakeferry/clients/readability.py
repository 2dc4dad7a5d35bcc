"""Says which clients can read and write a version of a table, from its protocol alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakeferry.clients.client_lines import ClientLine
from lakeferry.clients.known_lines import KNOWN_LINES
from lakeferry.clients.verdicts import Ability, FeatureAnswer
from lakeferry.log.actions import Protocol


@dataclass(frozen=True, slots=True)
class ReadableRow:
    """What one client, in a run of its releases, can do with a version of a table."""

    client: str
    versions: str
    """The releases, for people: ``4.1``, ``454 to 483``."""
    reads: Ability
    writes: Ability
    because: tuple[str, ...]
    """The features, or the protocol's versions, that keep it from reading or writing."""
    note: str
    """What is possible, if it is possible in part; else empty."""
    source: str
    """How that is known: a test of this project, or a document or a source with its version."""

    def as_document(self) -> dict[str, object]:
        """Return the row as documents show it."""
        return {
            "client": self.client,
            "versions": self.versions,
            "reads": self.reads.value,
            "writes": self.writes.value,
            "because": list(self.because),
            "note": self.note,
            "source": self.source,
        }


def readable_by(
    protocol: Protocol, lines: Iterable[ClientLine] = KNOWN_LINES
) -> tuple[ReadableRow, ...]:
    """Return what each known client can do with a version that has this protocol.

    The rows are in the order of the data: Lakeferry, delta-spark, delta-rs, Polars, DuckDB, the
    kernels, Trino; of one client the older releases come first. It is a pure function of the
    protocol, so for the versions of one table it needs to be asked once for each protocol.

    ``reads`` and ``writes`` are about this version's protocol alone: they don't follow a redirect,
    and a version that is older than the newest is written by nobody. Some clients, delta-spark
    among them, look at the newest protocol before they travel back in time
    (``ClientLine.opens_old_versions_alone``).
    """
    return tuple(_row(line, protocol) for line in lines)


def _row(line: ClientLine, protocol: Protocol) -> ReadableRow:
    reads, writes = line.reads_protocol(protocol), line.writes_protocol(protocol)
    return ReadableRow(
        line.client,
        line.versions,
        reads.ability,
        writes.ability,
        tuple(dict.fromkeys((*reads.because, *writes.because))),
        "; ".join(dict.fromkeys(text for text in _notes(reads, writes) if text)),
        line.source,
    )


def _notes(reads: FeatureAnswer, writes: FeatureAnswer) -> tuple[str, str]:
    return reads.note, writes.note
