"""Opens the target of a move to a managed table.

Until the move has ended the target is opened twice: its place as a plain store, for copies, the
claim, staged log files and the lock; and its log through the catalog, which decides about *N+1*.
The catalog issues credentials for the place to the user who began the move.
"""

from __future__ import annotations

from contextlib import suppress

from lakeferry.catalogs.managed_tables import ManagedTables
from lakeferry.errors import CatalogManaged, Forbidden, LakeferryError, TableNotFound
from lakeferry.redirect import redirect_commits, steps
from lakeferry.redirect.entry import Data, Redirect, RedirectTarget
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.storage.uris import same_place
from lakeferry.table import DeltaLog
from lakeferry.table.managed import ManagedStore


def tables_of(setting: Setting, target: RedirectTarget | None) -> ManagedTables:
    """Return the catalog of a target as the owner of tables; refuse one that can't own any."""
    kind = target.kind.catalog if target is not None else None
    catalog = setting.catalog(kind) if kind is not None else None
    found = catalog.managed_tables() if catalog is not None else None
    if found is None:
        raise CatalogManaged(
            f"{target} can't be a managed table",
            cause="only Unity Catalog has managed tables",
            remedy="give a name unity:catalog.schema.table, or leave out --managed",
            features=["catalogManaged"],
            name=None,
        )
    return found


def open_place(
    setting: Setting,
    source: str,
    target: RedirectTarget | None,
    managed: ManagedTarget | None,
    location: str,
) -> Store:
    """Return the plain store of a move's target, with credentials that the catalog issues.

    For a place that the user chose they are used only if the user has none. ``source`` is the table
    that moves, for messages.
    """
    if managed is None:
        _grant_place(setting, target, location)
        return setting.open_store(location)
    tables = tables_of(setting, target)
    check_principal(tables, source, managed)
    setting.grant(location, tables.place_access(managed.table_id, location))
    return setting.open_store(location)


def place_of_move(setting: Setting, source: str, redirect: Redirect, location: str) -> Store:
    """Return the plain store of the target of a move that has begun.

    A table that was there before is opened as its catalog lets its clients open it.
    """
    journal = redirect.journal
    if journal is not None and journal.data is Data.EXISTING:
        _grant_existing(setting, redirect.target, location)
    managed = journal.managed if journal is not None else None
    return open_place(setting, source, redirect.target, managed, location)


def _grant_place(setting: Setting, target: RedirectTarget | None, location: str) -> None:
    """Keep the credentials that a catalog issues for a place that the user chose."""
    kind = target.kind.catalog if target is not None else None
    if kind is None:
        return
    # Without them the place is opened with the user's own; whoever needs the catalog asks it later.
    with suppress(LakeferryError):
        access = setting.catalog(kind).place_access(location)
        if access.renewal is not None:
            setting.grant(location, access)


def _grant_existing(setting: Setting, target: RedirectTarget | None, location: str) -> None:
    """Keep how the catalog lets a table be opened; to undo a redirect it isn't needed."""
    kind = target.kind.catalog if target is not None else None
    if target is None or kind is None:
        return
    try:
        catalog = setting.catalog(kind)
        found = catalog.find(target.name) if target.name is not None else None
        if target.table_id is not None and not (
            found is not None and found.is_same(target.table_id, target.metastore_id)
        ):
            found = catalog.find_id(target.table_id, target.metastore_id, target.name)
        if found is not None and same_place(found.location, location):
            setting.grant(location, catalog.access(found))
    except LakeferryError as failed:
        setting.warn(f"{location} is opened without its catalog: {failed}")


def log_at(setting: Setting, store: Store) -> DeltaLog:
    """Return the log of a store that is open already."""
    return setting.open_log(store, clock=setting.clock, warn=setting.warn)


def target_log(setting: Setting, redirect: Redirect, place: Store, version: int) -> DeltaLog:
    """Return the log of a move's target; ``version`` is *N*.

    The log of a managed table is the one that its catalog shows, and its *N+1* is a proposal.
    """
    managed = redirect.journal.managed if redirect.journal is not None else None
    if managed is None:
        return log_at(setting, place)
    commits = tables_of(setting, redirect.target).commits(managed.table_id, managed.private_name)
    return log_at(setting, ManagedStore(place, commits, onboarding=version, warn=setting.warn))


def drop_table(
    setting: Setting,
    target: RedirectTarget | None,
    managed: ManagedTarget | None,
    place: Store,
    move_id: str | None,
) -> bool:
    """Drop the table of a move that was taken back; return whether there is none any more.

    A table that was opened stays, and one to which somebody else has committed. So the commit
    that closes the table has to be there still.
    """
    if managed is None:
        return True
    tables = tables_of(setting, target)
    store = ManagedStore(place, tables.commits(managed.table_id, managed.private_name))
    name = f"{target.kind.catalog}:{managed.private_name}" if target is not None else ""
    try:
        latest = store.refresh().latest_version
        closed = latest == 0 or _is_closed(store, latest, move_id)
    except TableNotFound:
        return True
    if not closed:
        setting.warn(f"{name} stays, with its files: it has commits that aren't this move's")
        return False
    if tables.drop(managed.table_id, managed.private_name):
        setting.step(steps.name("drop", name, place.uri))
    return True


def _is_closed(store: ManagedStore, version: int, move_id: str | None) -> bool:
    """Return whether a table's newest version is the commit with which a cancel closed it."""
    found = redirect_commits.read_commit(store, version)
    mark = redirect_commits.mark_of(found[1].commit_info) if found is not None else None
    return mark == {"state": RedirectState.NORMAL.value, "moveId": move_id}


def check_principal(tables: ManagedTables, source: str, managed: ManagedTarget) -> None:
    """Refuse to go on with a move that another user of the catalog has begun."""
    if managed.principal is None:
        return
    present = tables.principal()
    if present == managed.principal:
        return
    raise Forbidden(
        f"the move of {source} was started by {managed.principal}",
        cause=f"only that user may use the place that the catalog allocated; you are {present}",
        remedy=f"run the same command with the token of {managed.principal}",
        principal=managed.principal,
    )
