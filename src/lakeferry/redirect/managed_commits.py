"""What the commits at a managed target have that those at the source lack.

The target's *N* gives it the features and properties that its catalog requires, and in-commit
timestamps. All of that follows from the source's *N* and from the :class:`ManagedTarget`, so that
each process makes the same bytes. The source keeps its own protocol and properties.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from lakeferry.catalogs.managed_tables import (
    DOCUMENTED_PROPERTIES,
    DOCUMENTED_READER_FEATURES,
    DOCUMENTED_WRITER_FEATURES,
)
from lakeferry.log import actions, protocols, timestamps
from lakeferry.log.actions import CommitInfo, Metadata
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.features import TABLE_ID_PROPERTY
from lakeferry.redirect import redirect_commits, steps
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.redirect_commits import Bare
from lakeferry.redirect.redirect_context import Setting
from lakeferry.table import DeltaLog

_OF_THE_CATALOG = frozenset({*DOCUMENTED_PROPERTIES, TABLE_ID_PROPERTY})
DOCUMENTED = ManagedTarget(
    table_id="",
    private_name="",
    reader_features=DOCUMENTED_READER_FEATURES,
    writer_features=DOCUMENTED_WRITER_FEATURES,
    properties=DOCUMENTED_PROPERTIES,
)
"""What Unity Catalog requires of a table that no move of ours has brought there, as documented."""


def bare_at_target(
    bare: Bare, managed: ManagedTarget, version: int, commit_info: CommitInfo | None
) -> Bare:
    """Return the managed table that ``bare`` becomes at version *N*.

    ``commit_info`` is that of the source's *N*, which tells the time of the version.
    """
    configuration = dict(bare.metadata.configuration)
    if timestamps.in_commit_timestamps(bare.metadata) is None:
        configuration |= {
            timestamps.ENABLED: "true",
            timestamps.ENABLEMENT_VERSION: str(version),
            timestamps.ENABLEMENT_TIMESTAMP: str(
                redirect_commits.commit_time(commit_info, version)
            ),
        }
    configuration |= managed.properties
    return Bare(
        protocols.adding(bare.protocol, managed.features),
        actions.changed(bare.metadata, configuration=configuration),
    )


def without_requirements(metadata: Metadata) -> Metadata:
    """Return metadata without the properties that a catalog decides about, for comparisons."""
    kept = {
        key: value for key, value in metadata.configuration.items() if key not in _OF_THE_CATALOG
    }
    return replace(metadata, configuration=kept)


def info_at_target(bare: Bare, version: int, commit_info: CommitInfo | None) -> CommitInfo | None:
    """Return the ``commitInfo`` of the target's *N*, with the time of that version in it."""
    if commit_info is None or timestamps.in_commit_timestamps(bare.metadata) is not None:
        return commit_info
    moment = redirect_commits.commit_time(commit_info, version)
    return CommitInfo({"inCommitTimestamp": moment, **commit_info.values})


def restore_requirements(setting: Setting, target: DeltaLog, managed: ManagedTarget) -> bool:
    """Set the catalog's properties again if its id of the table is gone; return whether it was.

    A RESTORE of a version from before the move takes them away, and then delta-spark can't open
    the table any more.
    """
    state = target.state()
    configuration = state.metadata.configuration
    if TABLE_ID_PROPERTY in configuration or TABLE_ID_PROPERTY not in managed.properties:
        return False
    result = target.commit(
        Transaction(
            "SET TBLPROPERTIES",
            setting.new_id(),
            {"properties": msgspec.json.encode(dict(managed.properties)).decode()},
            metadata=actions.changed(
                state.metadata, configuration={**configuration, **managed.properties}
            ),
        ),
        state,
    )
    if isinstance(result, Conflict):
        raise result.error()
    setting.step(steps.at("set_properties", target.store.uri))
    return True
