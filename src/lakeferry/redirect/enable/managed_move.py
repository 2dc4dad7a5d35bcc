"""What a move to a managed table does besides: allocates, creates, names and drops the target.

1. Before anything is copied the catalog allocates a place under a private name.
2. After the pre-copy, before ENABLING, the table is created there. Its latest version is 0 for
   the catalog, whatever its log holds, until *N+1* is ratified.
3. After the target's *N+1* is ratified, it is published and reported, and the table gets its
   final name. Then the source says READY.

A cancelled move drops its table when the source is NORMAL.
"""

from __future__ import annotations

from dataclasses import replace

from lakeferry.catalogs.managed_tables import ManagedTables, TableToCreate
from lakeferry.errors import (
    CatalogUnavailable,
    InvalidInput,
    LakeferryError,
    RedirectTargetNotEmpty,
    TableNotFound,
)
from lakeferry.log.actions import CommitInfo
from lakeferry.log.catalog_changes import changes_of
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import managed_commits, managed_place, read_entry, steps
from lakeferry.redirect.enable import (
    managed_probe,
    managed_refusals,
    move_record,
    preflight,
    unfinished_move,
)
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import RedirectTarget, TargetKind
from lakeferry.redirect.managed_target import ManagedTarget, private_name
from lakeferry.redirect.move import Move
from lakeferry.redirect.redirect_commits import Bare
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import normalise
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog
from lakeferry.table.managed import ManagedStore


def located(setting: Setting, source: DeltaLog, request: Request, state: TableState) -> Request:
    """Return a request with the place that the catalog has allocated for it.

    A move that was broken off has one, which is in its record. Otherwise all that can be refused
    without a place is refused first, as a place that was allocated can't be given back.
    """
    if not request.managed:
        return request
    tables = managed_place.tables_of(setting, request.target)
    if request.managed_target is not None:
        managed_place.check_principal(tables, request.source, request.managed_target)
        return request
    record = move_record.read_record(source.store)
    if record is not None and not record.cancelled and record.request.target == request.target:
        known = record.request.managed_target
        if known is not None:
            managed_place.check_principal(tables, request.source, known)
            return replace(request, location=record.location, managed_target=known)
    preflight.check_table(setting, request, state)
    unfinished_move.check_no_unfinished_move(setting, source.store, request)
    name = request.target.name
    assert name is not None
    tables.check(name)
    try:
        _check_fits(tables, request, state)
    except InvalidInput as refused:
        refused.remedy = f"{refused.remedy}; or leave out --managed"
        raise
    managed_probe.try_server(setting, tables, request.target, state)
    private = private_name(name, setting.new_id())
    staged = tables.stage(private)
    location = normalise(staged.location)
    setting.step(steps.name("stage", request.target, location))
    managed = ManagedTarget(
        staged.table_id,
        private,
        tables.principal(),
        staged.reader_features,
        staged.writer_features,
        staged.properties,
    )
    return replace(request, location=location, managed_target=managed)


def create_table(setting: Setting, source: DeltaLog, request: Request, state: TableState) -> None:
    """Create the target under its private name, while nobody is kept from writing.

    ``state`` is the source's. What changes until *N* is proposed together with *N+1*.
    """
    managed = request.managed_target
    if (
        managed is None
        or read_entry.read(state.protocol, state.metadata, request.source) is not None
    ):
        # Another process has begun the move by now: it has created the table.
        return
    check_still_fits(setting, request, state)
    now = setting.clock()
    wanted = managed_commits.bare_at_target(
        Bare(state.protocol, state.metadata),
        managed,
        state.version + 1,
        CommitInfo({"timestamp": now}),
    )
    domains = source.small_snapshot(state.version).domains
    description = LatestActions(wanted.protocol, wanted.metadata, domains=dict(domains))
    tables = managed_place.tables_of(setting, request.target)
    table = TableToCreate(
        managed.private_name,
        managed.table_id,
        request.location,
        changes_of(description, None),
        now,
    )
    try:
        tables.create(table)
    except LakeferryError as refused:
        _say_how_to_go_on(refused, request)
        raise
    private = f"{request.target.kind.catalog}:{managed.private_name}"
    lacking = managed_commits.missing_requirements(state.protocol, state.metadata, managed)
    added = (lacking.features, lacking.properties) if lacking is not None else ((), {})
    setting.step(steps.create_managed(private, request.location, *added))


def check_still_fits(setting: Setting, request: Request, state: TableState) -> None:
    """Refuse to begin with a table that was changed meanwhile, so that it can't be managed now."""
    if not request.managed:
        return
    try:
        _check_fits(managed_place.tables_of(setting, request.target), request, state)
    except LakeferryError as refused:
        _say_how_to_go_on(refused, request)
        raise


def _check_fits(tables: ManagedTables, request: Request, state: TableState) -> None:
    name = request.target.name
    assert name is not None
    managed_refusals.check_one_format(state, request.source)
    tables.check_table(name, state.metadata)


def _say_how_to_go_on(refused: LakeferryError, request: Request) -> None:
    """Add to an error's remedy how the move goes on."""
    uri = shell_safe(request.source)
    ways = (
        f"'lakeferry redirect resume {uri}' continues then, and 'lakeferry redirect cancel "
        f"{uri}' undoes the move"
    )
    refused.remedy = f"{refused.remedy}; {ways}" if refused.remedy else ways


def check_name(move: Move) -> None:
    """Refuse to open the target while its final name is taken."""
    name = move.final_name
    if name is not None and not _tables(move).is_free(name):
        raise _taken(move, name)


def give_final_name(move: Move) -> RedirectTarget:
    """Publish *N+1* and give the table its final name; return how the entry names it then.

    If it hasn't the private name any more, another process has named it, and that name stays.
    """
    managed, tables = _managed(move), _tables(move)
    _check_open(move)
    present = tables.name_of(managed.table_id, managed.private_name)
    if present is None:
        raise _dropped(move)
    if present == managed.private_name:
        wanted = move.final_name
        assert wanted is not None
        if not tables.rename(managed.table_id, present, wanted):
            raise _taken(move, wanted)
        present = wanted
        move.setting.step(
            steps.name("rename", f"{move.redirect.kind.catalog}:{present}", move.place.uri)
        )
    return RedirectTarget(TargetKind.UNITY, None, present, tables.metastore_id(), managed.table_id)


def publish_decision(move: Move) -> None:
    """Publish the target's *N+1*, so that it can be read without its staged file."""
    store = move.target.store
    if move.managed is None:
        return
    assert isinstance(store, ManagedStore)
    try:
        store.publish()
    except TableNotFound:
        # Another process has ended the same cancel.
        return


def named_otherwise(target: RedirectTarget, name: str) -> RedirectTarget:
    """Return a target with another name in the same schema; refuse any other."""
    if target.name is None or target.name.rpartition(".")[0] != name.rpartition(".")[0]:
        raise InvalidInput(
            f"{target} can't be called {name}",
            cause="the catalog renames a table only within its schema",
            remedy="choose another name in the same schema",
            name=name,
        )
    return replace(target, name=name)


def _check_open(move: Move) -> None:
    """Publish and report *N+1*; refuse to go on unless the catalog's clients read all versions."""
    store, version = move.target.store, move.version + 1
    assert isinstance(store, ManagedStore)
    try:
        store.publish()
        latest = store.refresh().latest_version
        there = move.target.listing().commits
        found = move.target.state(version)
    except TableNotFound as gone:
        raise _dropped(move) from gone
    wanted = move.bare_at_target
    missing = [each for each in move.source.listing().commits if each not in there]
    same = (
        found.protocol.unordered == wanted.protocol.unordered and found.metadata == wanted.metadata
    )
    if latest < version or missing or not same:
        raise CatalogUnavailable(
            f"{store.catalog.name} differs from the table that was moved",
            cause=f"its catalog has version {latest}, and {len(missing)} versions of "
            f"{move.source.store.uri} can't be read there"
            if latest < version or missing
            else f"its version {version} has different columns or properties",
            remedy=f"'lakeferry redirect resume {shell_safe(move.source.store.uri)}' checks again",
            name=store.catalog.name,
        )


def _managed(move: Move) -> ManagedTarget:
    assert move.managed is not None
    return move.managed


def _tables(move: Move) -> ManagedTables:
    return managed_place.tables_of(move.setting, move.redirect.target)


def _taken(move: Move, name: str) -> RedirectTargetNotEmpty:
    source = shell_safe(move.source.store.uri)
    schema = name.rpartition(".")[0]
    return RedirectTargetNotEmpty(
        f"the name {name} is taken",
        cause="another table was given that name while this one moved",
        remedy=f"'lakeferry redirect resume {source} --name unity:{schema}.OTHER' continues with "
        "another name, or run 'resume' without --name once the name is free",
        target=f"unity:{name}",
    )


def _dropped(move: Move) -> TableNotFound:
    source = shell_safe(move.source.store.uri)
    name = _managed(move).private_name
    return TableNotFound(
        f"{move.source.store.uri} moves to {name}, but the catalog doesn't have that table",
        cause="it was dropped, or you no longer have the right to see it",
        remedy=f"if it was dropped, 'lakeferry redirect cancel {source} --leave-copies' makes the "
        "source an ordinary table again",
        name=name,
    )
