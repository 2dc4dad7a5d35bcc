"""Tries whether a catalog takes tables that have a history.

The catalog's specification knows only managed tables that are created empty. So two throwaway
tables are made under private names, one of them with a log that doesn't begin at version 0:
created, committed to, renamed and dropped. They have the columns and the properties of the table
that is to move, so that a refusal of those shows before anything is copied.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from lakeferry.catalogs.managed_tables import ManagedTables, TableToCreate
from lakeferry.errors import CatalogManaged, InvalidInput, LakeferryError
from lakeferry.log import actions, paths
from lakeferry.log.actions import CommitInfo
from lakeferry.log.catalog_changes import changes_of
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import managed_commits, managed_place, redirect_commits, steps
from lakeferry.redirect.enable import log_staging
from lakeferry.redirect.entry import RedirectTarget
from lakeferry.redirect.managed_target import ManagedTarget, private_name
from lakeferry.redirect.redirect_commits import Bare
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store, normalise
from lakeferry.table.managed import ManagedStore

_LEAD = "probe_"
_NEWEST = 2
"""*N* of a throwaway table: the version that makes it a managed one."""


def try_server(
    setting: Setting, tables: ManagedTables, target: RedirectTarget, state: TableState
) -> None:
    """Refuse a catalog that doesn't take such a table with a history.

    It is tried once in a process for tables of the same schema, features and properties.
    """
    key = _key(target, state)
    if not tables.has_to_be_tried or key in tables.taken:
        return
    for begins in (0, 1):
        _try_table(setting, tables, target, state, begins)
    tables.taken |= {key}


def _key(target: RedirectTarget, state: TableState) -> str:
    """Return a text that differs where a catalog may answer otherwise."""
    schema = (target.name or "").rpartition(".")[0]
    metadata = redirect_commits.without_raw_text(state.metadata)
    plain = replace(metadata, id="", created_time=None, name=None)
    told = (actions.encode_line(state.protocol), actions.encode_line(plain))
    return f"{schema} {hashlib.sha256(b''.join(told)).hexdigest()}"


def _try_table(
    setting: Setting, tables: ManagedTables, target: RedirectTarget, state: TableState, begins: int
) -> None:
    assert target.name is not None
    name = private_name(target.name, f"{_LEAD}{setting.new_id()}")
    staged = tables.stage(name)
    location = normalise(staged.location)
    managed = ManagedTarget(
        staged.table_id,
        name,
        None,
        staged.reader_features,
        staged.writer_features,
        staged.properties,
    )
    place = managed_place.open_place(setting, name, target, managed, location)
    try:
        _write_history(setting, place, managed, state, begins)
        _use(setting, tables, managed, place, begins)
    finally:
        _remove(setting, tables, managed, place)
    setting.step(steps.name("try", f"unity:{name}", location))


def _write_history(
    setting: Setting, place: Store, managed: ManagedTarget, state: TableState, begins: int
) -> None:
    """Write versions 0 to *N*, without files."""
    now = setting.clock()
    plain = Bare(state.protocol, redirect_commits.without_raw_text(state.metadata))
    place.put_if_absent(paths.commit(0), redirect_commits.locked_body(_info(now), plain))
    place.put_if_absent(paths.commit(1), actions.encode_line(_info(now + 1)) + b"\n")
    if begins:
        managed_place.log_at(setting, place).checkpoint(begins)
        place.delete_many([paths.commit(version) for version in range(begins)])
    upgraded = managed_commits.bare_at_target(plain, managed, _NEWEST, _info(now + _NEWEST))
    body = redirect_commits.locked_body(_info(now + _NEWEST), upgraded)
    place.put_if_absent(paths.commit(_NEWEST), body)


def _use(
    setting: Setting, tables: ManagedTables, managed: ManagedTarget, place: Store, begins: int
) -> None:
    """Create the table, commit to it, rename it; raise if it isn't what it should be then."""
    log = managed_place.log_at(setting, place)
    state = log.state()
    described = changes_of(LatestActions(state.protocol, state.metadata), None)
    now = setting.clock()
    table = TableToCreate(managed.private_name, managed.table_id, place.uri, described, now)
    try:
        tables.create(table)
    except InvalidInput as refused:
        refused.remedy = (
            "remove from the table what the catalog doesn't take; or leave out --managed"
        )
        raise
    commits = tables.commits(managed.table_id, managed.private_name)
    store = ManagedStore(place, commits, onboarding=_NEWEST)
    version = _NEWEST + 1
    body = actions.encode_line(_info(now + version)) + b"\n"
    try:
        is_ours = store.put_if_absent(paths.commit(version), body)
    except InvalidInput as refused:
        raise _refused(managed, f"its first commit was refused: {refused}") from refused
    if not is_ours:
        raise _refused(managed, f"its first commit can't have version {version}")
    store.publish()
    latest = ManagedStore(place, commits).refresh().latest_version
    if latest != version:
        raise _refused(managed, f"its latest version is {latest} after a commit of {version}")
    found = managed_place.log_at(setting, ManagedStore(place, commits)).listing()
    if found.earliest_version() != begins or version not in found.commits:
        raise _refused(managed, "its older versions can't be read")
    renamed = f"{managed.private_name}_renamed"
    if not tables.rename(managed.table_id, managed.private_name, renamed):
        raise _refused(managed, "it can't be renamed")


def _remove(setting: Setting, tables: ManagedTables, managed: ManagedTarget, place: Store) -> None:
    """Drop the table and delete its files. What fails here is a warning."""
    try:
        tables.drop(managed.table_id, managed.private_name)
        log_staging.delete(place, list(place.entries("")))
        place.prune("")
    except LakeferryError as failed:
        setting.warn(f"the throwaway table unity:{managed.private_name} may be left: {failed}")


def _info(moment: int) -> CommitInfo:
    return CommitInfo(
        {
            "inCommitTimestamp": moment,
            "timestamp": moment,
            "operation": redirect_commits.REDIRECT_OPERATION,
            "operationParameters": {},
            "txnId": f"{_LEAD}{moment}",
        }
    )


def _refused(managed: ManagedTarget, why: str) -> CatalogManaged:
    return CatalogManaged(
        "this catalog can't take a table with its history",
        cause=f"a throwaway table was tried, and {why}",
        remedy="leave out --managed: the table is registered as an external one then",
        features=["catalogManaged"],
        name=managed.private_name,
    )
