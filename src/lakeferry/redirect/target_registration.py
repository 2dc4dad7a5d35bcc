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


def check_catalog_answers(move: Move) -> None:
    """Look up the target's name, so that a catalog that does not answer is noticed early."""
    kind, name = move.redirect.kind.catalog, move.journal.catalog_name
    if kind is not None and name is not None and move.managed is None:
        move.setting.catalog(kind).find(name)


def register_target(move: Move) -> RedirectTarget | None:
    """Register the target's name in its catalog; return how the entry names it from now on."""
    kind = move.redirect.kind.catalog
    name = move.journal.catalog_name
    if kind is None or name is None:
        return None
    place = move.place.uri
    found = move.setting.catalog(kind).register(name, place, move.bare.metadata)
    if move.redirect.kind is TargetKind.UNITY and found.metastore_id is not None:
        return RedirectTarget(move.redirect.kind, None, name, found.metastore_id, found.table_id)
    return RedirectTarget(move.redirect.kind, name=name)


def register_after_decision(move: Move) -> RedirectTarget | None:
    """Register the target's name again, once the move is decided; return the same.

    ``None``, and a warning, if the catalog refuses or does not answer: the entry keeps its name.
    """
    try:
        return register_target(move)
    except LakeferryError as failed:
        move.setting.warn(
            f"the catalog doesn't give the id of {move.redirect.target}, so the redirect refers "
            f"to the table by its name: {failed}"
        )
        return None


def unregister_target(setting: Setting, redirect: Redirect, place: str) -> bool:
    """Delete the target's name in the catalog, unless it leads elsewhere by now.

    Return whether it was there. The move is decided by now, so a catalog that
    refuses or does not answer is only a warning.
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
