"""Reads a table's protection boundary, and refuses tables that must not be touched."""

from __future__ import annotations

from lakeferry.errors import FeatureRequired, RedirectInProgress
from lakeferry.log import features, properties
from lakeferry.log.replay import TableState
from lakeferry.redirect import read_entry

FEATURE = "checkpointProtection"
PROPERTY = properties.PROTECTED_BEFORE


def boundary_of(state: TableState, location: str) -> int | None:
    """Return the version before which checkpoints are protected, or ``None``.

    The property without the feature is refused: clients that don't know the property
    ignore it, so it protects nothing, and the intention is unclear.
    """
    value = state.metadata.configuration.get(PROPERTY)
    if FEATURE in features.implied_features(state.protocol):
        return properties.protected_before(state.metadata.configuration) or 0
    if value is not None:
        raise FeatureRequired(
            f"{location} has protected history, but writers don't have to respect it",
            cause=f"the property {PROPERTY} is {value!r}, but the protocol lacks {FEATURE}",
            remedy="remove the property, or add the feature with the engine that set it",
            location=location,
            features=[FEATURE],
        )
    return None


def check_no_redirect(state: TableState, location: str, done: str) -> None:
    """Refuse a table that carries a redirect: its log is the journal of a move."""
    redirect = read_entry.read(state.protocol, state.metadata, location)
    if redirect is None:
        return
    target = f" to {redirect.target}" if redirect.target else ""
    raise RedirectInProgress(
        f"{location} can't be {done}",
        cause=f"it has a redirect{target}, which is {redirect.state.value}",
        remedy="end the redirect first: 'lakeferry redirect thaw' if the table is frozen, "
        "'redirect cancel' if its move is unfinished, else 'redirect disable'; or use its target",
        location=location,
        state=redirect.state.value,
    )
