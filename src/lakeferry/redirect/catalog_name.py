"""Registers a move's target in its catalog, and unregisters it.

The name is registered before the move is decided, while writers are blocked: a refusal
by the catalog then ends the move. After the decision, failures are only warnings.
"""

from __future__ import annotations

from lakeferry.errors import LakeferryError
from lakeferry.redirect import steps
from lakeferry.redirect.entry import Redirect, RedirectTarget, TargetKind
from lakeferry.redirect.move import Move
from lakeferry.redirect.redirect_context import Setting


class TakenBack(Exception):
    """The catalog refused the target, and the source is NORMAL again; ``error`` says why."""

    def __init__(self, refused: LakeferryError, source: str) -> None:
        """Keep the refusal, with what became of the move."""
        super().__init__(str(refused))
        self.error = type(refused)(
            refused.message,
            cause=f"{refused.cause or 'the catalog refused'}; the move was undone, and "
            f"{source} is an ordinary table again",
            remedy=f"{refused.remedy}; then start the move again" if refused.remedy else None,
            **refused.fields,
        )


def ask(move: Move) -> None:
    """Ask the catalog for the name, so that one that can't be asked is known early."""
    kind, name = move.redirect.kind.catalog, move.journal.catalog_name
    if kind is not None and name is not None and move.managed is None:
        move.setting.catalog(kind).find(name)


def give(move: Move) -> RedirectTarget | None:
    """Give the target its name in the catalog; return how the entry names it from now on."""
    kind = move.redirect.kind.catalog
    name = move.journal.catalog_name
    if kind is None or name is None:
        return None
    place = move.place.uri
    found = move.setting.catalog(kind).register(name, place, move.bare.metadata)
    if move.redirect.kind is TargetKind.UNITY and found.metastore_id is not None:
        return RedirectTarget(move.redirect.kind, None, name, found.metastore_id, found.table_id)
    return RedirectTarget(move.redirect.kind, name=name)


def decided(move: Move) -> RedirectTarget | None:
    """Return how the entry names the target from now on, after the move was decided.

    A catalog that refuses by now, or doesn't answer, leaves the name that the move began with.
    """
    try:
        return give(move)
    except LakeferryError as failed:
        move.setting.warn(
            f"the catalog doesn't give the id of {move.redirect.target}, so the redirect refers "
            f"to the table by its name: {failed}"
        )
        return None


def forget_name(setting: Setting, redirect: Redirect, place: str) -> bool:
    """Delete the target's name in the catalog, unless it leads elsewhere by now.

    Tell whether it was there. How the move ends is decided by now, so a catalog that
    refuses, or doesn't answer, is a warning.
    """
    kind = redirect.kind.catalog
    name = redirect.journal.catalog_name if redirect.journal else None
    managed = redirect.journal is not None and redirect.journal.managed is not None
    if kind is None or name is None or managed:
        # A managed table has a private name until the move is decided, and is dropped by its id.
        return False
    table_id = redirect.target.table_id if redirect.target else None
    try:
        was_there = setting.catalog(kind).unregister(name, place, table_id=table_id)
    except LakeferryError as failed:
        setting.warn(
            f"{kind}:{name} may still be registered in the catalog, and leads to {place}, where "
            f"nobody can write: {failed}; ask the owner of that table in the catalog to drop it"
        )
        return False
    if was_there:
        setting.step(steps.name("unregister", redirect.target, place))
    return was_there
