"""What the commits at a managed target have that those at the source lack.

The target's *N* gives it the features and properties that its catalog requires, and in-commit
timestamps. All of that follows from the source's *N* and from the :class:`ManagedTarget`, so that
each process makes the same bytes. The source keeps its own protocol and properties.
"""

from __future__ import annotations

from lakeferry.errors import InvalidInput, UnsupportedFeature
from lakeferry.log import actions, features, protocols, timestamps
from lakeferry.log.actions import CommitInfo
from lakeferry.log.catalog_changes import written_properties
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import redirect_commits
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.redirect_commits import Bare

LONGEST_PROPERTY = 255
"""How many characters the open Unity Catalog takes of a property's name, and of its value."""
_UNIFORM = "delta.universalFormat.enabledFormats"
_ICEBERG = ("icebergCompatV1", "icebergCompatV2", "icebergCompatV3")


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


def info_at_target(bare: Bare, version: int, commit_info: CommitInfo | None) -> CommitInfo | None:
    """Return the ``commitInfo`` of the target's *N*, with the time of that version in it."""
    if commit_info is None or timestamps.in_commit_timestamps(bare.metadata) is not None:
        return commit_info
    moment = redirect_commits.commit_time(commit_info, version)
    return CommitInfo({"inCommitTimestamp": moment, **commit_info.values})


def check_fits(state: TableState, source: str) -> None:
    """Refuse a table that can't become a managed one, by its properties and features."""
    formats = state.metadata.configuration.get(_UNIFORM, "")
    iceberg = [name for name in _ICEBERG if name in features.implied_features(state.protocol)]
    if formats.strip() or iceberg:
        raise UnsupportedFeature(
            f"{source} can't become a managed table",
            cause=f"it is also kept in another format ({formats or ', '.join(iceberg)}), which a "
            "catalog takes only of tables that it has created",
            remedy="switch that off first: ALTER TABLE ... UNSET TBLPROPERTIES "
            f"('{_UNIFORM}'), and drop the feature; or leave out --managed",
            features=iceberg or [formats],
        )
    for name, value in written_properties(state.metadata.configuration).items():
        if len(name) > LONGEST_PROPERTY or len(value) > LONGEST_PROPERTY:
            raise InvalidInput(
                f"{source} can't become a managed table",
                cause=f"its property {name[:80]} has {max(len(name), len(value))} characters, and "
                f"Unity Catalog keeps {LONGEST_PROPERTY}",
                remedy="remove the property, or make it shorter; or leave out --managed",
                location=source,
                value=name,
            )
