"""What the commits at a managed target have that those at the source lack.

The target's *N* gives it the features and properties that its catalog requires, and in-commit
timestamps. All of that follows from the source's *N* and from the :class:`ManagedTarget`, so that
each process makes the same bytes. The source keeps its own protocol and properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from lakeferry.catalogs.managed_tables import (
    DOCUMENTED_PROPERTIES,
    DOCUMENTED_READER_FEATURES,
    DOCUMENTED_WRITER_FEATURES,
)
from lakeferry.log import actions, protocols, timestamps
from lakeferry.log.actions import CommitInfo, Metadata, Protocol
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.features import TABLE_ID_PROPERTY, implied_features
from lakeferry.log.replay import Snapshot
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import read_entry, redirect_commits, steps
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.redirect_commits import Bare
from lakeferry.redirect.redirect_context import Setting
from lakeferry.table import DeltaLog

_MAX_ATTEMPTS = 10
"""How often the requirements are set again if other writers commit first."""
_OF_THE_CATALOG = frozenset({*DOCUMENTED_PROPERTIES, TABLE_ID_PROPERTY})
DOCUMENTED = ManagedTarget(
    table_id="",
    private_name="",
    reader_features=DOCUMENTED_READER_FEATURES,
    writer_features=DOCUMENTED_WRITER_FEATURES,
    properties=DOCUMENTED_PROPERTIES,
)
"""What Unity Catalog requires of a table that no move of ours has brought there, as documented."""


@dataclass(frozen=True, slots=True)
class MissingRequirements:
    """What a table lacks of what a catalog requires of the tables that it manages."""

    features: tuple[str, ...]
    properties: Mapping[str, str]
    """Properties that are missing or have another value, with the value that is required."""

    def __str__(self) -> str:
        """Return them in words."""
        texts = [f"{name} = {value}" for name, value in self.properties.items()]
        parts = [("table features", self.features), ("properties", texts)]
        return " and ".join(f"the {what} {', '.join(each)}" for what, each in parts if each)

    def as_document(self) -> dict[str, Any]:
        """Return ``lacking`` of the command ``redirect status``."""
        return {"features": list(self.features), "properties": dict(self.properties)}

    def statement(self, name: str) -> str:
        """Return the statement with which Spark sets them at a table."""
        wanted = {f"delta.feature.{feature}": "supported" for feature in self.features}
        listed = ", ".join(f"'{key}' = '{v}'" for key, v in {**wanted, **self.properties}.items())
        return f"ALTER TABLE {name} SET TBLPROPERTIES ({listed})"


def missing_requirements(
    protocol: Protocol, metadata: Metadata, managed: ManagedTarget
) -> MissingRequirements | None:
    """Return what a table lacks of a catalog's requirements; ``None`` if it lacks nothing."""
    present, configuration = implied_features(protocol), metadata.configuration
    lacking = MissingRequirements(
        tuple(name for name in managed.features if name not in present),
        {key: v for key, v in managed.properties.items() if configuration.get(key) != v},
    )
    return lacking if lacking.features or lacking.properties else None


def documented_requirements(table_id: str) -> ManagedTarget:
    """Return the documented requirements of the table that has this id in Unity Catalog."""
    properties = {**DOCUMENTED.properties, TABLE_ID_PROPERTY: table_id}
    return replace(DOCUMENTED, table_id=table_id, properties=properties)


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


def as_unmanaged(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without the properties that a catalog requires, for comparisons."""
    configuration = snapshot.metadata.configuration
    kept = {key: value for key, value in configuration.items() if key not in _OF_THE_CATALOG}
    return replace(snapshot, metadata=replace(snapshot.metadata, configuration=kept))


def info_at_target(bare: Bare, version: int, commit_info: CommitInfo | None) -> CommitInfo | None:
    """Return the ``commitInfo`` of the target's *N*, with the time of that version in it."""
    if commit_info is None or timestamps.in_commit_timestamps(bare.metadata) is not None:
        return commit_info
    moment = redirect_commits.commit_time(commit_info, version)
    return CommitInfo({"inCommitTimestamp": moment, **commit_info.values})


def restore_requirements(setting: Setting, target: DeltaLog, managed: ManagedTarget) -> bool:
    """Set again what the catalog requires and the table lacks; return whether that was anything.

    A RESTORE of a version from before the move takes properties away, and then delta-spark can't
    open the table any more. The catalog accepts other values of them, and refuses every later
    change of the protocol. If another writer commits first, its version is looked at again. A table
    that a way back has locked meanwhile stays as it is, since nothing may follow the lock.
    """
    conflict: Conflict | None = None
    for _ in range(_MAX_ATTEMPTS):
        state = target.state()
        found = read_entry.read(state.protocol, state.metadata, target.store.uri)
        if found is not None and found.is_target(target.store.uri):
            return False
        lacking = missing_requirements(state.protocol, state.metadata, managed)
        if lacking is None:
            return False
        result = target.commit(_restoring(setting, state, lacking), state)
        if not isinstance(result, Conflict):
            setting.step(steps.at("set_properties", target.store.uri))
            return True
        conflict = result
    assert conflict is not None
    raise conflict.error()


def _restoring(setting: Setting, state: TableState, lacking: MissingRequirements) -> Transaction:
    """Return the transaction that sets what a table lacks."""
    configuration = {**state.metadata.configuration, **lacking.properties}
    return Transaction(
        "SET TBLPROPERTIES",
        setting.new_id(),
        {"properties": msgspec.json.encode(dict(lacking.properties)).decode()},
        protocol=protocols.adding(state.protocol, lacking.features) if lacking.features else None,
        metadata=actions.changed(state.metadata, configuration=configuration),
    )
