"""``Redirects``: the commands of ``lakeferry redirect`` as Python methods.

:class:`Redirects` combines the procedures of :mod:`lakeferry.redirect` with places, catalogs and
engines. It has the operations of the command line; its results have the fields that the command
line prints (``as_document``)::

    with Redirects() as redirects:
        redirects.enable("/lake/orders", "s3://archive/orders", mode="writer-only")

An engine is started for the first job that needs it, and stopped at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack, overload

from lakeferry import engine as port
from lakeferry.api.located_table import Plan, reads_both_ends
from lakeferry.catalogs import Catalog, split_name
from lakeferry.catalogs.places import PlaceOptions, Places
from lakeferry.engine import Engine, Observer, unobserved
from lakeferry.engines.copy_forecast import CopyForecasts
from lakeferry.engines.engine_choice import Engines
from lakeferry.engines.rehearsed_engine import rehearsed
from lakeferry.errors import InvalidInput
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    cancel,
    freeze,
    no_redirect_rules,
    read_entry,
    received_entry_commands,
    rehearsal,
    resuming,
    status,
)
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling, move_record, preflight
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Data, Dialect, Mode, RedirectTarget, TargetKind
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.recent_writers import RecentWriter, recent_writers
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.resolve import Resolution, Resolver
from lakeferry.redirect.status import Status
from lakeferry.storage import normalise
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.table import DeltaLog


class MoveOptions(TypedDict, total=False):
    """The options of a move, with the names and values of the command line."""

    mode: str
    data: str
    dialects: Iterable[str]
    rules: Iterable[str]
    to_existing: bool
    unverified: bool
    location: str | None
    replace_closed_target: bool
    managed: bool
    verify: str


class DisableOptions(TypedDict, total=False):
    """The options of a withdrawal."""

    bring_back: bool
    remove_target: bool
    data: str | None
    abandon_target: bool
    verify: str | None


class Redirects:
    """Operations on redirects, given places, catalogs and engines."""

    def __init__(
        self,
        storage_options: PlaceOptions | Places | None = None,
        *,
        engine: str = "auto",
        open_engine: Callable[[port.Name], Engine] | None = None,
        catalog: Callable[[str], Catalog] | None = None,
        observer: Observer = unobserved,
        warn: Callable[[str], None] = lambda _: None,
        limit_rate: int | None = None,
    ) -> None:
        """Store the settings; nothing is contacted or started yet.

        ``limit_rate`` is the most bytes per second that copies move through this process, or
        through Spark's executors. Engines from ``open_engine`` have to see to it themselves.
        """
        self._places = (
            storage_options
            if isinstance(storage_options, Places)
            else Places(storage_options, catalog=catalog)
        )
        rate = None if limit_rate is None else ByteRate(limit_rate)
        self._engines = Engines(engine, warn, opener=open_engine, rate=rate)
        self._warn = warn
        self.setting = Setting(
            engine=self._engines.choose,
            open_store=self._places.open,
            catalog=self._places.catalog,
            grant=self._places.grant,
            observer=observer,
            warn=warn,
            forecasts=CopyForecasts(limit_rate),
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop what was started."""
        self.close()

    def close(self) -> None:
        """Stop the engines that were started."""
        self._engines.close()

    def enable(self, source: str, target: str, **options: Unpack[MoveOptions]) -> Outcome:
        """Move the table at ``source`` to ``target``: a place, or a name in a catalog."""
        return self._enable(self.setting, self.request(source, target, **options))

    def plan_enable(self, source: str, target: str, **options: Unpack[MoveOptions]) -> Plan:
        """Return what :meth:`enable` would do."""
        request = self.request(source, target, **options)
        return self._rehearsed(lambda setting: self._enable(setting, request))

    def _enable(self, setting: Setting, request: Request) -> Outcome:
        state = received_entry_commands.check_no_received_entry(setting, request.source)
        self._warn_of_dangers(request, state)
        return enabling.enable(setting, request, state)

    def _warn_of_dangers(self, request: Request, state: TableState) -> None:
        # If the existing redirect is requested again, the user has had the warnings before.
        if read_entry.read(state.protocol, state.metadata, request.source) is None:
            for danger in preflight.dangers(request, state):
                self._warn(danger)

    def _do(self, procedure: Callable[[Setting], Outcome], *, dry_run: bool) -> Outcome | Plan:
        """Run a procedure, or return the steps that it would take."""
        return self._rehearsed(procedure) if dry_run else procedure(self.setting)

    def _rehearsed(self, procedure: Callable[[Setting], Outcome]) -> Plan:
        engine = partial(rehearsed, forecasts=self.setting.forecasts)
        steps = rehearsal.rehearse(self.setting, engine, procedure)
        return Plan(step.as_document() for step in steps)

    @overload
    def resume(
        self,
        source: str,
        *,
        name: str | None = None,
        dry_run: Literal[False] = False,
        verify: str | None = None,
    ) -> Outcome: ...

    @overload
    def resume(
        self,
        source: str,
        *,
        name: str | None = None,
        dry_run: Literal[True],
        verify: str | None = None,
    ) -> Plan: ...

    @overload
    def resume(
        self,
        source: str,
        *,
        name: str | None = None,
        dry_run: bool,
        verify: str | None = None,
    ) -> Outcome | Plan: ...

    def resume(
        self,
        source: str,
        *,
        name: str | None = None,
        dry_run: bool = False,
        verify: str | None = None,
    ) -> Outcome | Plan:
        """Continue an interrupted :meth:`enable` or :meth:`disable`.

        ``name`` is another name, ``unity:catalog.schema.table``, for a managed target whose name
        was taken meanwhile. ``verify`` may be ``full``; without it, copies are verified as the
        procedure began.
        """
        uri = self.place(source)
        compares = None if verify is None else reads_both_ends(verify)
        other = None if name is None else _unity_name(name)

        def resume(setting: Setting) -> Outcome:
            received_entry_commands.check_no_received_entry(setting, uri)
            chosen = self._engines.wanted != "auto"
            record = None if chosen else move_record.read_record(setting.open_store(uri))
            if record is not None:
                self._engines.wanted = record.request.engine
            return resuming.resume(setting, uri, other, compares)

        return self._do(resume, dry_run=dry_run)

    @overload
    def cancel(
        self, source: str, *, leave_copies: bool = False, dry_run: Literal[False] = False
    ) -> Outcome: ...

    @overload
    def cancel(
        self, source: str, *, leave_copies: bool = False, dry_run: Literal[True]
    ) -> Plan: ...

    @overload
    def cancel(
        self, source: str, *, leave_copies: bool = False, dry_run: bool
    ) -> Outcome | Plan: ...

    def cancel(
        self, source: str, *, leave_copies: bool = False, dry_run: bool = False
    ) -> Outcome | Plan:
        """Undo a move that hasn't passed the point of no return.

        ``leave_copies`` gives up a move before ENABLING even if its target is unreachable.
        """
        uri = self.place(source)

        def take_back(setting: Setting) -> Outcome:
            withdrawn = received_entry_commands.withdraw_received(setting, uri)
            return withdrawn or cancel.cancel(setting, uri, leave_copies=leave_copies)

        return self._do(take_back, dry_run=dry_run)

    @overload
    def disable(
        self, source: str, *, dry_run: Literal[False] = False, **options: Unpack[DisableOptions]
    ) -> Outcome: ...

    @overload
    def disable(
        self, source: str, *, dry_run: Literal[True], **options: Unpack[DisableOptions]
    ) -> Plan: ...

    @overload
    def disable(
        self, source: str, *, dry_run: bool, **options: Unpack[DisableOptions]
    ) -> Outcome | Plan: ...

    def disable(
        self,
        source: str,
        *,
        bring_back: bool = False,
        remove_target: bool = False,
        data: str | None = None,
        abandon_target: bool = False,
        dry_run: bool = False,
        verify: str | None = None,
    ) -> Outcome | Plan:
        """End a redirect, and bring all changes back to the source.

        With ``abandon_target`` the target isn't used because it is gone, replaced or
        unreachable: what was written there since READY isn't brought back. With ``verify="full"``
        every file that is copied back is read at both ends and compared.
        """
        uri = self.place(source)
        compares = None if verify is None else reads_both_ends(verify)
        returns = None if data is None else _chosen(Data, data, "--data")
        options = disabling.WithdrawalOptions(
            bring_back, remove_target, returns, abandon_target, compares
        )

        def withdraw(setting: Setting) -> Outcome:
            withdrawn = received_entry_commands.withdraw_received(
                setting, uri, asks_for_target=bring_back or remove_target
            )
            return withdrawn or disabling.disable(setting, uri, options)

        return self._do(withdraw, dry_run=dry_run)

    @overload
    def freeze(
        self, table: str, *, dry_run: Literal[False] = False, mode: str = ...
    ) -> Outcome: ...

    @overload
    def freeze(self, table: str, *, dry_run: Literal[True], mode: str = ...) -> Plan: ...

    @overload
    def freeze(self, table: str, *, dry_run: bool, mode: str = ...) -> Outcome | Plan: ...

    def freeze(
        self, table: str, *, mode: str = Mode.WRITER_ONLY.value, dry_run: bool = False
    ) -> Outcome | Plan:
        """Make a table read-only."""
        uri, kind = self.place(table), _chosen(Mode, mode, "--mode")

        def make_read_only(setting: Setting) -> Outcome:
            received_entry_commands.check_no_received_entry(setting, uri)
            return freeze.freeze(setting, uri, kind)

        return self._do(make_read_only, dry_run=dry_run)

    @overload
    def thaw(self, table: str, *, dry_run: Literal[False] = False) -> Outcome: ...

    @overload
    def thaw(self, table: str, *, dry_run: Literal[True]) -> Plan: ...

    @overload
    def thaw(self, table: str, *, dry_run: bool) -> Outcome | Plan: ...

    def thaw(self, table: str, *, dry_run: bool = False) -> Outcome | Plan:
        """Make a frozen table writable again."""
        uri = self.place(table)
        return self._do(lambda setting: freeze.thaw(setting, uri), dry_run=dry_run)

    def status(self, source: str) -> Status:
        """Return the state of a table's redirect."""
        return status.status(self.setting, self.place(source))

    def recent_writers(
        self,
        source: str,
        target: str,
        *,
        mode: str = Mode.READER_WRITER.value,
        dialects: Iterable[str] = (),
    ) -> tuple[RecentWriter, ...] | None:
        """Return the clients that wrote the newest commits, and what a move does to each.

        Those that will read old rows come first. ``None`` if the table has a redirect already.
        """
        uri = self.place(source)
        # The move itself warns of what is odd in the log.
        log = DeltaLog(self.setting.open_store(uri), clock=self.setting.clock).keeping_reads()
        newest = log.newest()
        state = newest.state()
        if read_entry.read(state.protocol, state.metadata, uri) is not None:
            return None
        read_entry.check_no_stray(state.protocol, state.metadata, uri)
        chosen = tuple(_chosen(Dialect, each, "--dialect") for each in dialects)
        kind = _chosen(Mode, mode, "--mode")
        written = chosen or preflight.default_dialects(kind, to_name=split_name(target) is not None)
        return recent_writers(log, newest, kind, written)

    def resolve(
        self, table: str, *, app_name: str | None = None, write: bool = False
    ) -> Resolution:
        """Return where a table is, with redirects followed."""
        resolver = Resolver(
            self._places.open,
            self._places.catalog,
            grant=self._places.grant,
            warn=self._warn,
            finds_names=True,
        )
        return resolver.resolve(self.place(table), app_name=app_name, write=write)

    def place(self, table: str) -> str:
        """Return the URI of a table, given a path, a URI or a name in a catalog."""
        return self._places.locate(table)

    def request(
        self,
        source: str,
        target: str,
        *,
        mode: str = Mode.READER_WRITER.value,
        data: str = Data.COPY.value,
        dialects: Iterable[str] = (),
        rules: Iterable[str] = (),
        to_existing: bool = False,
        unverified: bool = False,
        location: str | None = None,
        replace_closed_target: bool = False,
        managed: bool = False,
        verify: str = "store",
    ) -> Request:
        """Return the request for a move, with places and names resolved."""
        compares = reads_both_ends(verify)
        if compares and to_existing:
            raise InvalidInput(
                "--verify full can't be combined with --to-existing",
                cause="nothing is copied to a target that exists",
                remedy="leave out --verify; 'lakeferry verify SOURCE TARGET --digest' reads both "
                "tables and compares them",
            )
        if managed:
            _check_managed(target, data, dialects := tuple(dialects), to_existing, location)
            _refuse_with_managed("--replace-closed-target", replace_closed_target)
            named = RedirectTarget(TargetKind.UNITY, name=target.partition(":")[2])
            leads_to, place = named, ""
        else:
            leads_to, place = self._target(target, location, exists=to_existing)
        moved = Data.EXISTING if to_existing else _chosen(Data, data, "--data")
        if moved is Data.EXISTING and not to_existing:
            raise InvalidInput("--data has to be copy or reference", remedy="use --to-existing")
        return Request(
            self.place(source),
            leads_to,
            place,
            _chosen(Mode, mode, "--mode"),
            moved,
            tuple(_chosen(Dialect, each, "--dialect") for each in dialects),
            no_redirect_rules.parse_rules(rules),
            not unverified,
            self._engines.wanted,
            replace_closed_target,
            managed,
            compares=compares,
        )

    def _target(
        self, target: str, location: str | None, *, exists: bool
    ) -> tuple[RedirectTarget, str]:
        """Return a target and its place; ``exists``: a table has to be there."""
        named = split_name(target)
        if named is None:
            place = normalise(target)
            if location is not None:
                raise InvalidInput(
                    "--location is only for names in a catalog", remedy="leave out --location"
                )
            return RedirectTarget(TargetKind.OBJECT_STORE, place), place
        kind, name = named
        leads_to = RedirectTarget(
            TargetKind.UNITY if kind == "unity" else TargetKind.SQL, name=name
        )
        if location is not None:
            return leads_to, normalise(location)
        catalog = self._places.catalog(kind)
        found = catalog.get(name) if exists else catalog.find(name)
        if found is None:
            raise InvalidInput(
                f"the catalog doesn't know where to put {name}",
                cause="the name isn't registered yet, so it has no place",
                remedy="give the place with --location",
            )
        return leads_to, self._places.of_entry(catalog, found)


def _check_managed(
    target: str, data: str, dialects: tuple[str, ...], to_existing: bool, location: str | None
) -> None:
    """Refuse what can't be said of a managed table, whose place its catalog chooses."""
    named = split_name(target)
    if named is None or named[0] != "unity":
        raise InvalidInput(
            f"{target} can't be a managed table",
            cause="only Unity Catalog has managed tables",
            remedy="give a name unity:catalog.schema.table, or leave out --managed",
        )
    _refuse_with_managed("--location", location is not None)
    _refuse_with_managed("--to-existing", to_existing)
    _refuse_with_managed("--data reference", data == Data.REFERENCE.value)
    _refuse_with_managed("--dialect delta-spark", Dialect.DELTA_SPARK.value in dialects)


def _unity_name(text: str) -> str:
    """Return the name in Unity Catalog that a text like ``unity:c.s.t`` gives."""
    named = split_name(text)
    if named is None or named[0] != "unity":
        raise InvalidInput(
            f"{text} isn't a name in Unity Catalog", remedy="write unity:catalog.schema.table"
        )
    return named[1]


def _refuse_with_managed(option: str, given: bool) -> None:
    if given:
        raise InvalidInput(
            f"{option} can't be combined with --managed",
            cause="the catalog owns a managed table: it chooses the place, and clients find the "
            "table by its name",
            remedy=f"leave out {option}, or --managed",
        )


def _chosen(kind: Any, value: str, option: str) -> Any:
    try:
        return kind(value)
    except ValueError as bad:
        names = ", ".join(each.value for each in kind)
        raise InvalidInput(
            f"{value!r} isn't one of the values of {option}", remedy=f"use one of {names}"
        ) from bad
