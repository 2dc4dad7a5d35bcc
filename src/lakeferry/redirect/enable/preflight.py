"""Checks everything that must hold before a move, and changes nothing.

All these checks run before the first write of a move. They write only a probe at
both places, and delete it again: whether put-if-absent works at a store can only be
found out by trying.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lakeferry.errors import (
    CatalogManaged,
    InvalidInput,
    ObjectNotFound,
    RedirectCycle,
    RedirectTargetNotEmpty,
    StorageUnavailable,
)
from lakeferry.log import features, properties, timestamps
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import managed_place, read_entry
from lakeferry.redirect.enable import log_staging
from lakeferry.redirect.entry import (
    Data,
    Dialect,
    Journal,
    Mode,
    Redirect,
    RedirectTarget,
    TargetKind,
)
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.storage.uris import relative_name, same_place, split, without_links
from lakeferry.table.outer_table import outer_table

_CATALOG_CLEANS = (
    "after the move the catalog decides about VACUUM, OPTIMIZE and log cleanup of the table; "
    "delta-spark refuses VACUUM and OPTIMIZE"
)
FEW_CAN_OPEN = (
    "delta-rs, Polars and DuckDB can't open a managed table; lakeferry.open gives them an Arrow "
    "dataset, also by the old path"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for. ``location`` is where the target's files are, or will be."""

    source: str
    target: RedirectTarget
    location: str
    mode: Mode = Mode.READER_WRITER
    data: Data = Data.COPY
    dialects: tuple[Dialect, ...] = ()
    rules: tuple[Rule, ...] = ()
    verified: bool = True
    """Whether to compare an existing target's content with the source's."""
    engine: str = "auto"
    """Which engine the user wants; ``resume`` uses it too."""
    replace_closed: bool = False
    """Whether to delete a closed target of an earlier redirect of the same source."""
    managed: bool = False
    """Whether the target's catalog is to own it. Then the catalog chooses ``location``, which is
    empty until it has done so."""
    managed_target: ManagedTarget | None = None
    """The staging table of the move, once it is allocated."""
    compares: bool = False
    """Whether to read every file that is copied at both ends; ``resume`` does so, too."""

    @property
    def spoken(self) -> tuple[Dialect, ...]:
        """The dialects to write: the user's, or else those that most clients understand."""
        to_name = self.target.kind is not TargetKind.OBJECT_STORE
        return self.dialects or default_dialects(self.mode, to_name=to_name)


def default_dialects(mode: Mode, *, to_name: bool) -> tuple[Dialect, ...]:
    """Return the dialects to write where the user chose none; ``to_name``: to a catalog."""
    if mode is Mode.WRITER_ONLY and not to_name:
        return (Dialect.RFC, Dialect.DELTA_SPARK)
    return (Dialect.RFC,)


def entry(request: Request, versions: tuple[int, int] | None, move_id: str) -> Redirect:
    """Return the entry that begins a move, with all that ``resume`` has to know.

    ``versions`` are the protocol's version numbers before the redirect.
    """
    in_catalog = request.target.kind is not TargetKind.OBJECT_STORE
    return Redirect(
        request.mode,
        RedirectState.ENABLING,
        request.target.kind,
        request.target,
        request.spoken,
        request.source,
        request.rules,
        Journal(
            request.data,
            versions,
            request.location if in_catalog else None,
            request.target.name if in_catalog else None,
            move_id=move_id,
            verified=request.verified,
            traced=request.data is not Data.EXISTING,
            managed=request.managed_target,
            compares=request.compares,
        ),
    )


def check_move(setting: Setting, request: Request, state: TableState) -> None:
    """Refuse a move that can't succeed; write nothing."""
    check_table(setting, request, state)
    _check_places(request)


def check_table(setting: Setting, request: Request, state: TableState) -> None:
    """Refuse what :func:`check_move` refuses, except for the places."""
    _check_unmanaged(setting, request, state)
    features.check_carriable(state.protocol)
    features.check_readable(state.protocol)
    features.check_writable(state.protocol)
    read_entry.check_no_stray(state.protocol, state.metadata, request.source)
    _check_dialects(request)
    _check_catalog(setting, request)


def _check_unmanaged(setting: Setting, request: Request, state: TableState) -> None:
    """Refuse to move a table that its catalog manages."""
    managed = features.catalog_managed(state.protocol)
    if managed and setting.open_store(request.source).asks_catalog:
        raise CatalogManaged(
            f"the table at {request.source} can't be moved from its catalog",
            cause=f"it is a managed table ({', '.join(managed)}): no path leads to it that could "
            "be redirected",
            remedy="if it was moved there, 'lakeferry redirect disable' with its old path brings "
            "it back; or copy it with 'lakeferry export' or 'lakeferry push' and its name",
            features=list(managed),
            name=None,
            location=request.source,
        )


def _check_places(request: Request) -> None:
    source, target = without_links(request.source), without_links(request.location)
    if same_place(source, target):
        raise RedirectCycle(
            f"{source} can't be redirected to itself",
            remedy="choose another target",
            chain=[source, target],
        )
    if relative_name(source, target) is not None or relative_name(target, source) is not None:
        raise InvalidInput(
            "a table can't be inside another one",
            cause=f"{source} and {target}",
            remedy="choose a target beside the table",
        )
    # A dry run makes the place of a managed table up.
    in_memory = split(target).scheme == "memory" and not request.managed
    if in_memory and split(source).scheme != "memory":
        raise InvalidInput(
            f"a table can't be redirected to {target}",
            cause="it is in the memory of one process, and is lost when the process ends",
            remedy="choose a target on disk or in an object store",
        )


def check_not_in_a_table(setting: Setting, request: Request) -> None:
    """Refuse a target in the folder of another table: that one's VACUUM would delete its files."""
    if request.managed or request.data is Data.EXISTING:
        return
    # Nobody has been asked for access to the folders above it.
    config = replace(setting.open_store(request.location).config, uri=request.location)
    outer = outer_table(config)
    if outer is not None:
        raise InvalidInput(
            "a table can't be inside another one",
            cause=f"{request.location} is in the folder of {outer}, whose VACUUM would delete its "
            "files",
            remedy="choose a target that isn't in a table's folder",
            location=request.location,
        )


def _check_dialects(request: Request) -> None:
    spoken = request.spoken
    if len(set(spoken)) != len(spoken):
        raise InvalidInput("a dialect is given twice")
    if Dialect.DELTA_SPARK in spoken and request.target.kind is not TargetKind.OBJECT_STORE:
        raise InvalidInput(
            "the dialect 'delta-spark' can't name a table in a catalog",
            remedy="use the dialect rfc or catalog",
        )
    if Dialect.RFC in spoken and Dialect.CATALOG in spoken:
        raise InvalidInput(
            "the dialects 'rfc' and 'catalog' use the same features",
            remedy="choose one of them",
        )


def _check_catalog(setting: Setting, request: Request) -> None:
    kind = request.target.kind.catalog
    if kind is None or request.target.name is None:
        return
    catalog = setting.catalog(kind)
    if request.managed:
        _check_managed_name(setting, request)
        return
    found = catalog.find(request.target.name)
    if request.data is Data.EXISTING:
        return
    if found is None:
        # Checked early: when the target's name is registered, writers are blocked.
        catalog.check_schema(request.target.name)
    elif not same_place(found.location, request.location):
        raise RedirectTargetNotEmpty(
            f"the name {request.target.name} is taken",
            cause=f"it is the name of a table at {found.location}",
            remedy="choose another name, or use --to-existing for a table that is there",
            target=str(request.target),
        )


def _check_managed_name(setting: Setting, request: Request) -> None:
    """Refuse a name that is taken. Until the move is decided the table has a private one."""
    name = request.target.name
    assert name is not None
    if not managed_place.tables_of(setting, request.target).is_free(name):
        raise RedirectTargetNotEmpty(
            f"the name {name} is taken",
            cause="a table has it in the catalog",
            remedy="choose another name, or use --to-existing for a table that is there",
            target=str(request.target),
        )


def try_name(setting: Setting, request: Request, state: TableState) -> None:
    """Refuse a target that the catalog wouldn't register; find out by a trial registration."""
    kind, name = request.target.kind.catalog, request.target.name
    if kind is None or name is None or request.managed:
        # A managed table is created before ENABLING, which is the trial.
        return
    catalog = setting.catalog(kind)
    if catalog.find(name) is None:
        catalog.try_registration(name, request.location, state.metadata)


def probe(store: Store, unique: str) -> None:
    """Refuse a place that can't be written to, or where put-if-absent doesn't work."""
    name = f"{log_staging.STAGING_FOLDER}/probe-{unique}"
    first = store.put_if_absent(name, b"first")
    try:
        second = store.put_if_absent(name, b"second")
        there = _read(store, name)
    finally:
        store.delete_many([name])
        store.prune(log_staging.STAGING_FOLDER)
    # A cancel may have deleted the probe meanwhile; then the two answers are enough.
    if not first or second or there not in (b"first", None):
        raise StorageUnavailable(
            f"{store.uri} can't prevent one writer from overwriting another",
            cause="the store ignored the condition of a conditional put",
            remedy="Lakeferry can't move a table safely on this store; use one with a working "
            "put-if-absent",
            uri=store.uri,
        )


def _read(store: Store, name: str) -> bytes | None:
    try:
        return store.get(name)
    except ObjectNotFound:
        return None


def dangers(request: Request, state: TableState) -> tuple[str, ...]:
    """Return warnings about what won't work after the move, or not for all clients."""
    found = []
    configuration = state.metadata.configuration
    if request.data is Data.REFERENCE:
        found.append(
            "delta-rs, Polars and DuckDB can't read a target that names its files by absolute "
            "paths; Spark can, and lakeferry.open gives the others an Arrow dataset"
        )
        if "vacuumProtocolCheck" not in features.implied_features(state.protocol):
            found.append(
                "a VACUUM of the source by a client that doesn't check the protocol deletes files "
                "that the target needs; use --data copy, or add the feature vacuumProtocolCheck"
            )
    if request.managed:
        found += [_CATALOG_CLEANS, FEW_CAN_OPEN]
    if timestamps.in_commit_timestamps(state.metadata) is None and (
        request.managed or split(request.location).scheme != "file"
    ):
        found.append(
            "time travel by timestamp uses file times, and a copy to an object store changes them; "
            "use time travel by version, or enable in-commit timestamps before the move"
        )
    if request.mode is Mode.WRITER_ONLY:
        found.append(
            "clients without support for redirects keep reading the source, frozen at this "
            "version, without a warning"
        )
    if request.data is Data.EXISTING:
        found.append(
            "versions and the table's id may differ at the target: streaming queries that are "
            "restarted through the redirect will fail"
        )
    retention = properties.log_retention_ms(configuration)
    if retention < properties.DAY_MS:
        found.append(
            "the table's log retention is below a day: old versions may be deleted during the move"
        )
    return tuple(found)
