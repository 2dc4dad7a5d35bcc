"""What a managed table's commits become at the source, where no catalog decides.

The move has added to the table what the catalog requires. At the source each of these goes or
stays, by what the commits need:

* ``catalogManaged`` and the catalog's id of the table go.
* ``v2Checkpoint`` and ``vacuumProtocolCheck`` go: no commit uses them.
* ``deletionVectors`` comes with the first commit that has a vector.
* In-commit timestamps stay, from the first commit that comes back on. A commit's file gets another
  time when it is copied to an object store, so without them the versions would lose their times.
* The properties that make Spark write vectors and V2 checkpoints get the source's own values,
  unless somebody has changed them at the target since.
* Everything else comes back: another catalog may require what we don't know.

All of that follows from the target's commit and the source's version before it, so that each
process makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from lakeferry.log import actions, features, paths, protocols, timestamps
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.log.features import implied_features
from lakeferry.log.lines import Lines
from lakeferry.log.protocols import Versions
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import dialects
from lakeferry.redirect.entry import Redirect
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.redirect_commits import Bare

_IN_NO_COMMIT = features.GONE_WITH_CATALOG | {"v2Checkpoint"}
_VECTORS = "deletionVectors"
_TIMESTAMPS = "inCommitTimestamp"
_OF_WRITERS = (
    "delta.checkpointPolicy",
    "delta.enableDeletionVectors",
    "delta.checkpoint.writeStatsAsStruct",
    "delta.checkpoint.writeStatsAsJson",
)
"""Properties that say how a table is to be written, and nothing of what is there."""
_ENABLEMENT = (timestamps.ENABLEMENT_VERSION, timestamps.ENABLEMENT_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class ManagedReturn:
    """How the table of one move comes back.

    ``entry`` is the source's redirect while it is READY, ``before`` are the version numbers of
    its protocol from before the move.
    """

    managed: ManagedTarget
    entry: Redirect
    before: Versions | None

    def commit(
        self, body: bytes, version: int, own: TableState, opened: Callable[[], Bare] | None
    ) -> tuple[bytes, TableState]:
        """Return the source's commit for one of the target, and the source's state after it.

        The paths in ``body`` are the source's already, and ``own`` is the source's state before.
        ``opened`` is given for the first commit alone. It returns what the target was like when
        it opened, since that commit needs what the move had added.
        """
        lines = Lines()
        lines.read(body, paths.commit(version))
        vectors = has_vectors(lines.adds) or has_vectors(lines.removes)
        begun = Bare(protocols.adding(own.protocol, [_VECTORS] if vectors else []), own.metadata)
        if opened is not None and (lines.protocol is None or lines.metadata is None):
            begun = opened()
        theirs = Bare(lines.protocol or begun.protocol, lines.metadata or begun.metadata)
        moment = lines.commit_info.in_commit_timestamp if lines.commit_info else None
        metadata = self._metadata(theirs.metadata, own.metadata)
        after = Bare(
            self._protocol(theirs.protocol, own.protocol, vectors=vectors, timed=True),
            _timed(metadata, own.metadata, version, moment),
        ).carrying(self.entry)
        protocol_changes = after.protocol.unordered != own.protocol.unordered
        body = _with_actions(
            body,
            lines,
            after.protocol if lines.protocol or protocol_changes else None,
            after.metadata if lines.metadata or after.metadata != own.metadata else None,
        )
        return body, TableState(version, after.protocol, after.metadata, lines.commit_info)

    def merged(self, theirs: Bare, own: Bare, *, vectors: bool) -> Bare:
        """Return the table at the source with the net change, without its redirect.

        That is one new commit, which states no time but its own.
        """
        metadata = self._metadata(theirs.metadata, own.metadata)
        configuration = _with_values_of(
            own.metadata, metadata.configuration, (timestamps.ENABLED, *_ENABLEMENT)
        )
        return Bare(
            self._protocol(theirs.protocol, own.protocol, vectors=vectors, timed=False),
            actions.changed(metadata, configuration=configuration),
        )

    def _protocol(self, theirs: Protocol, own: Protocol, *, vectors: bool, timed: bool) -> Protocol:
        added = frozenset(self.managed.features) - implied_features(own)
        gone = (added & _IN_NO_COMMIT) | features.CATALOG_FEATURES | features.REDIRECT_FEATURES
        if not vectors:
            gone |= added & {_VECTORS}
        if not timed:
            gone |= added & {_TIMESTAMPS}
        return protocols.without_features(theirs, gone, self.before)

    def _metadata(self, theirs: Metadata, own: Metadata) -> Metadata:
        unredirected = dialects.without_redirect(theirs).items()
        configuration = {k: v for k, v in unredirected if k not in features.CATALOG_PROPERTIES}
        required = self.managed.properties
        as_required = [
            name
            for name in _OF_WRITERS
            if name in required and configuration.get(name) == required[name]
        ]
        configuration = _with_values_of(own, configuration, as_required)
        return actions.changed(theirs, configuration=configuration)


def has_vectors(files: pa.Table) -> bool:
    """Return whether any of some file actions has a deletion vector."""
    return bool(files["deletionVector"].null_count < files.num_rows)


def _timed(metadata: Metadata, own: Metadata, version: int, moment: int | None) -> Metadata:
    """Return metadata whose in-commit timestamps begin where those of the source do."""
    if timestamps.in_commit_timestamps(metadata) is None:
        return metadata
    configuration = dict(metadata.configuration)
    if timestamps.in_commit_timestamps(own) is not None:
        configuration = _with_values_of(own, configuration, _ENABLEMENT)
    elif moment is not None:
        configuration |= dict(zip(_ENABLEMENT, (str(version), str(moment)), strict=True))
    return actions.changed(metadata, configuration=configuration)


def _with_values_of(
    own: Metadata, configuration: Mapping[str, str], names: Iterable[str]
) -> dict[str, str]:
    """Return properties of which some have the values that ``own`` has, or are gone as there."""
    wanted = frozenset(names)
    kept = {name: value for name, value in configuration.items() if name not in wanted}
    return kept | {name: value for name, value in own.configuration.items() if name in wanted}


def _with_actions(
    body: bytes, lines: Lines, protocol: Protocol | None, metadata: Metadata | None
) -> bytes:
    """Return a commit with another protocol and other metadata, in place of its own or added.

    The first line of a commit with an in-commit timestamp is its ``commitInfo``, and stays it.
    """
    swap: dict[bytes, bytes] = {}
    added: list[bytes] = []
    for present, wanted in ((lines.protocol, protocol), (lines.metadata, metadata)):
        if wanted is None:
            continue
        line = actions.encode_line(wanted)
        if present is None or present.raw is None:
            added.append(line)
        else:
            swap[present.raw] = line
    first, *rest = (swap.get(line.strip(), line) for line in body.split(b"\n"))
    return b"\n".join((first, *added, *rest))
