"""What is known of a run of releases of one client: features, redirects, and how it is known.

A line answers for a whole protocol. Implements what the protocol says in "Table Features": a
client that doesn't know a feature refuses the table. So a feature that a line doesn't name is
refused, if all of the line's features are known, and unknown otherwise.

The answers are about protocols: whether the client opens such a table, and appends to it. What else
a table may use, such as a type of a column, isn't in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lakeferry.clients.verdicts import Ability, FeatureAnswer, together
from lakeferry.log.actions import READER_FEATURES_VERSION, WRITER_FEATURES_VERSION, Protocol
from lakeferry.log.commit_writer import CommitWriter, KnownWriter, Release
from lakeferry.log.features import FEATURES, implied_features

OPTION = "spark.databricks.delta.enableTableRedirectFeature=true"
"""The setting with which delta-spark 4.0 and newer follows some redirects."""
PROTOCOL_TEXT = "the protocol: a client must refuse a feature that it doesn't know"


class RedirectSupport(Enum):
    """How far a client follows redirects by itself."""

    FULL = "full"
    OPTION = "option"
    """A writer-only redirect in the dialect delta-spark, if its option is on."""
    IGNORED_OPTION = "ignored option"
    """Delta's option changes nothing: no code follows, or none that knows the entry's dialect."""
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ClientLine:
    """Releases of one client from ``since`` on, and before ``until``, that behave alike.

    ``reads`` has reader-writer features, ``writes`` features of both kinds. ``partly_reads`` and
    ``partly_writes`` say of features what is possible. ``complete``: features that aren't named are
    refused. ``source`` says how it is known: a test of this project, or a document or a source file
    with its version. ``tried`` is the release that the tests run.
    """

    client: str
    versions: str
    source: str
    writer: KnownWriter | None = None
    since: Release | None = None
    until: Release | None = None
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    partly_reads: Mapping[str, str] = field(default_factory=dict)
    partly_writes: Mapping[str, str] = field(default_factory=dict)
    refuses_to_read: frozenset[str] = frozenset()
    """Features for writers that keep it from reading."""
    max_reader_version: int = READER_FEATURES_VERSION
    max_writer_version: int = WRITER_FEATURES_VERSION
    complete: bool = True
    redirects: RedirectSupport = RedirectSupport.NONE
    redirects_source: str = PROTOCOL_TEXT
    opens_old_versions_alone: bool | None = None
    """Whether time travel works although the newest protocol is one that it refuses."""
    tried: str | None = None

    def is_about(self, writer: CommitWriter) -> bool:
        """Return whether the line has this client in this version."""
        if self.writer is None or writer.kind is not self.writer:
            return False
        if self.since is None and self.until is None:
            return True
        release = writer.release
        return release is not None and self.has_release(release)

    def has_release(self, release: Release) -> bool:
        """Return whether a release is one of this line."""
        return (self.since is None or self.since <= release) and (
            self.until is None or release < self.until
        )

    def reading(self, name: str) -> FeatureAnswer:
        """Return whether the client reads tables that have a feature for readers."""
        return self._answer(name, self.reads, self.partly_reads)

    def writing(self, name: str) -> FeatureAnswer:
        """Return whether the client appends to tables that have a feature."""
        return self._answer(name, self.writes, self.partly_writes)

    def reads_protocol(self, protocol: Protocol) -> FeatureAnswer:
        """Return whether the client reads a version with this protocol."""
        if protocol.min_reader_version > self.max_reader_version and self.complete:
            return FeatureAnswer(Ability.NO, (f"minReaderVersion={protocol.min_reader_version}",))
        refused = tuple(sorted(self.refuses_to_read & implied_features(protocol)))
        if refused:
            return FeatureAnswer(Ability.NO, refused)
        return together(self.reading(name) for name in reader_features(protocol))

    def writes_protocol(self, protocol: Protocol) -> FeatureAnswer:
        """Return whether the client appends to a version with this protocol."""
        if self.complete:
            if protocol.min_reader_version > self.max_reader_version:
                return FeatureAnswer(
                    Ability.NO, (f"minReaderVersion={protocol.min_reader_version}",)
                )
            if protocol.min_writer_version > self.max_writer_version:
                return FeatureAnswer(
                    Ability.NO, (f"minWriterVersion={protocol.min_writer_version}",)
                )
        return together(self.writing(name) for name in sorted(implied_features(protocol)))

    def _answer(
        self, name: str, supported: frozenset[str], partly: Mapping[str, str]
    ) -> FeatureAnswer:
        if name in partly:
            return FeatureAnswer(Ability.PARTLY, (name,), partly[name])
        if name in supported:
            return FeatureAnswer(Ability.YES)
        return FeatureAnswer(Ability.NO if self.complete else Ability.UNKNOWN, (name,))


def reader_features(protocol: Protocol) -> tuple[str, ...]:
    """Return the features that a protocol asks of readers, by name."""
    listed = frozenset(protocol.reader_features or ())
    version = protocol.min_reader_version
    implied = {
        row.name
        for row in FEATURES.values()
        if row.legacy is not None and 1 < row.legacy[0] <= version < READER_FEATURES_VERSION
    }
    return tuple(sorted(listed | implied))
