"""Refuses to delete a table that a redirect leads to, or that has a redirect itself.

Readers and writers of the old path would find nothing, and what was written since the move would be
lost. The same holds for a table that was brought back by reference: its old path is an ordinary
table again, and some of its files are still at the former target.

Of a table that arrived by push or pull the log may name any place as its old path. Such a place
isn't opened, so it isn't known then whether a path leads there.
"""

from __future__ import annotations

from lakeferry.api.redirects import Redirects
from lakeferry.catalogs.places import Places
from lakeferry.errors import (
    LakeferryError,
    NotATable,
    RedirectIllegalTransition,
    TableNotFound,
)
from lakeferry.redirect import lineage, owned_file_removal, read_entry, received_entries
from lakeferry.redirect.disable import target_removal
from lakeferry.redirect.enable import move_record, target_claim
from lakeferry.redirect.entry import Data, Redirect
from lakeferry.redirect.old_paths import old_paths
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog

_ALL_THE_SAME = "to delete the dataset anyway, add --force"


def check_no_path_leads(places: Places, uri: str) -> None:
    """Raise unless it is known that no redirect begins or ends at a table, or is about to."""
    with Redirects(places) as redirects:
        try:
            log = redirects.setting.log(uri)
            _check_no_move_ends(log)
            _check(redirects, log)
        except (TableNotFound, NotATable):
            return
        except RedirectIllegalTransition:
            raise
        except LakeferryError as unreadable:
            raise _undeletable(
                f"Lakeferry can't find out if a redirect leads there: {unreadable}"
            ) from unreadable


def _check_no_move_ends(log: DeltaLog) -> None:
    """Refuse a place that a move has claimed: it may have no table yet."""
    claim = target_claim.read_claim(log.store)
    if claim is None or received_entries.is_received(log.store):
        return
    raise _undeletable(
        f"the move of {claim.source} to it isn't finished",
        f"undo that first: lakeferry redirect cancel {shell_safe(claim.source)}; or, "
        f"{_ALL_THE_SAME}",
    )


def _check(redirects: Redirects, log: DeltaLog) -> None:
    uri, state = log.store.uri, log.state()
    is_received = received_entries.is_received(log.store)
    redirect = read_entry.read(state.protocol, state.metadata, uri)
    begun = move_record.read_record(log.store) is not None
    # At a target, the entry names another table as its source; that table says where it leads.
    is_own = redirect is not None and (redirect.source is None or same_place(redirect.source, uri))
    if begun or (is_own and redirect is not None and received_entries.counts(log.store, redirect)):
        what = "it is frozen" if redirect is not None and redirect.is_frozen else "it has moved"
        raise _undeletable(
            f"{what}, or is moving: programs that use its path would find no table",
            "first run 'lakeferry redirect disable' with its path (or 'redirect thaw' if it is "
            f"frozen); or, {_ALL_THE_SAME}",
        )
    if is_received:
        if any(app.startswith(lineage.APP_ID) for app in log.small_snapshot().txns):
            raise _undeletable(
                "the table was moved before or after it was pushed here: an old path may lead here"
            )
        return
    if redirect is not None:
        _check_not_referred_to(redirects, log, redirect)
    for path in old_paths(redirects.setting.log, log):
        if path.source is None:
            raise _undeletable(
                f"it was moved here, and {path.why}; an old path may still lead here"
            )
        leads_to = None if path.state is None else redirects.status(path.source).target
        if leads_to is None or same_place(leads_to, uri):
            raise _undeletable(
                f"the old path {path.source} leads here",
                "bring its rows back first: lakeferry redirect disable "
                f"{shell_safe(path.source)}; or, {_ALL_THE_SAME}",
            )


def _check_not_referred_to(redirects: Redirects, log: DeltaLog, lock: Redirect) -> None:
    """Refuse a former target if the table that was brought back from it names files there."""
    uri, journal = log.store.uri, lock.journal
    by_reference = journal is not None and journal.returns is Data.REFERENCE
    if not by_reference or lock.source is None or not lock.is_target(uri):
        return
    named = owned_file_removal.files_referred_to(redirects.setting.log(lock.source))
    if target_removal.names_files_at(uri, named):
        raise _undeletable(
            f"{lock.source} was brought back by reference, and names files here: without them its "
            "rows are lost"
        )


def _undeletable(cause: str, remedy: str = _ALL_THE_SAME) -> RedirectIllegalTransition:
    return RedirectIllegalTransition("the dataset can't be deleted", cause=cause, remedy=remedy)
