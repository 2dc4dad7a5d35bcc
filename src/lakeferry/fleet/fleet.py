"""``lakeferry.Fleet``: many tables, from the inventory to the report, with the commands' words.

::

    fleet = lakeferry.Fleet("postgresql://catalog.example.com/lakeferry")
    fleet.scan("s3://warehouse")
    fleet.plan(to="s3://new/warehouse", waves=4)
    fleet.run(wave=1, parallel=4, window="22:00-05:00")
    fleet.report("fleet.html")

Each method opens the database and closes it. Without a URL it is that of the SQL catalog.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from lakeferry.api.located_table import Plan
from lakeferry.api.move_list import PARALLEL, MovedTable, Mover
from lakeferry.api.move_list_file import Wanted, read_moves
from lakeferry.api.notebook_progress import progress_in_notebook
from lakeferry.api.redirects import MoveOptions, Redirects
from lakeferry.catalogs import EditableCatalog, open_catalog
from lakeferry.catalogs.places import PlaceOptions, Places
from lakeferry.catalogs.sql_database import database_url
from lakeferry.engine import Observer, unobserved
from lakeferry.errors import InvalidInput, LakeferryError
from lakeferry.fleet import planning
from lakeferry.fleet.fleet_database import FleetDatabase
from lakeferry.fleet.fleet_report import report_html
from lakeferry.fleet.fleet_states import FleetEvent, fleet_state_before
from lakeferry.fleet.inventory import (
    FleetHistoryEntry,
    FleetTable,
    FoundTable,
    TableSurvey,
)
from lakeferry.fleet.inventory_changes import InventoryChanges
from lakeferry.fleet.job_changes import JobChanges
from lakeferry.fleet.planning import FleetPlan, FleetPlanner, TableSelection, WaveRule
from lakeferry.fleet.records import FleetRecords, FleetSummary, TableQuery
from lakeferry.fleet.running import FleetRun, FleetRunner, RunOptions
from lakeferry.fleet.scan import SCANS_AT_ONCE, FleetScan, KnownTable, Scanner
from lakeferry.fleet.single_moves import cancel_move, resume_move
from lakeferry.fleet.targets import TargetRule
from lakeferry.fleet.waves import RunWindow
from lakeferry.readable import size
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.states import RedirectState

_ALL = TableQuery(limit=None)
_RECENT = 1_000
_SHOWN = 20
_SQL_VARIABLE = "LAKEFERRY_SQL_URL"


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """Tables of the fleet, and the whole fleet in numbers."""

    tables: tuple[FleetTable, ...]
    summary: FleetSummary
    changed: bool = False
    run: FleetRun | None = None
    """What the run did that returned this."""

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of ``fleet scan``, ``plan``, ``run`` and ``status``."""
        return {
            "tables": [table.as_document() for table in self.tables],
            **self.summary.as_document(),
            **({} if self.run is None else self.run.as_document()),
            "changed": self.changed,
        }

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from lakeferry.html_tables import first_rows, notebook_view

        def told(table: FleetTable) -> tuple[str | int | None, ...]:
            survey, job = table.survey, table.job
            size_bytes = survey.size_bytes
            return (
                table.name or table.uri,
                table.state.value,
                None if job is None else job.target,
                None if job is None else job.wave,
                survey.num_files,
                None if size_bytes is None else size(size_bytes),
            )

        problems = [
            (table.name or table.uri, each.message, each.remedy)
            for table in self.tables
            for each in table.problems
        ]
        columns = ("table", "state", "to", "wave", "files", "size")
        about = ("table", "problem", "what to do")
        return notebook_view(
            "Fleet",
            self.summary.sentence(),
            first_rows(columns, map(told, self.tables), len(self.tables), "table", shown=_SHOWN),
            first_rows(about, problems, len(problems), "problem", title="Problems", shown=_SHOWN),
        )


class PlanOptions(MoveOptions, total=False):
    """The options of :meth:`Fleet.plan`: those of a move, and which tables go where and when."""

    to: str | None
    from_file: str | os.PathLike[str] | None
    select: Iterable[str]
    min_bytes: int | None
    max_bytes: int | None
    wave: int | None
    waves: int | None
    remove: bool


class FleetRunOptions(TypedDict, total=False):
    """The options of :meth:`Fleet.run`: what it moves, when, and how fast."""

    wave: int | None
    parallel: int
    window: str | None
    time_zone: str | None
    waits: bool
    limit_rate: int | None
    stop: threading.Event | None


class Fleet:
    """Many tables, recorded in a database; see the module's docstring."""

    def __init__(
        self,
        url: str | None = None,
        storage_options: PlaceOptions | None = None,
        *,
        engine: str = "auto",
        environment: Mapping[str, str] | None = None,
        warn: Callable[[str], None] = lambda _: None,
        observer: Observer = unobserved,
    ) -> None:
        """Describe a fleet; nothing is contacted. ``url`` replaces ``LAKEFERRY_SQL_URL``."""
        variables = dict(os.environ if environment is None else environment)
        if url is not None:
            variables[_SQL_VARIABLE] = url
        self._environment = variables
        self._storage_options = storage_options
        self._engine = engine
        self._warn = warn
        self._observer = observer

    def database(self) -> FleetDatabase:
        """Return the fleet's database, which the caller closes."""
        return FleetDatabase(database_url(self._environment))

    @overload
    def scan(
        self, *roots: str, dry_run: Literal[False] = False, at_once: int = ...
    ) -> FleetStatus: ...

    @overload
    def scan(self, *roots: str, dry_run: Literal[True], at_once: int = ...) -> Plan: ...

    @overload
    def scan(self, *roots: str, dry_run: bool, at_once: int = ...) -> FleetStatus | Plan: ...

    def scan(
        self, *roots: str, dry_run: bool = False, at_once: int = SCANS_AT_ONCE
    ) -> FleetStatus | Plan:
        """Find the tables below prefixes and in catalogs, and record what a plan has to know.

        Without prefixes, everything that was scanned before is scanned again.
        """
        steps = Plan()
        with self.database() as database, progress_in_notebook(self._observer) as observer:
            records, changes = FleetRecords(database), InventoryChanges(database)
            marks = records.marks()
            known = {uri: KnownTable(*each) for uri, each in marks.items()}
            wanted = roots or tuple(dict.fromkeys(each.root for each in known.values()))
            if not wanted:
                raise InvalidInput(
                    "there is nothing to scan",
                    cause="no prefix is given, and none was scanned before",
                    remedy="give a prefix or a catalog: lakeferry fleet scan PREFIX",
                )
            to = FleetScan(changes.record, changes.confirm, changes.lose)
            if dry_run:
                to = _told_to(steps)
            scanner = Scanner(
                self._places(),
                known,
                at_once=at_once,
                observer=observer,
                warn=self._warn,
                catalog=self._catalog,
            )
            totals = scanner.scan(wanted, to)
            if dry_run:
                return steps
            found = set(totals.found)
            tables = [each for each in records.tables(_ALL).tables if each.uri in found]
            return FleetStatus(
                tuple(tables), records.summary(), bool(totals.surveyed or totals.gone)
            )

    @overload
    def plan(
        self, *, dry_run: Literal[False] = False, **options: Unpack[PlanOptions]
    ) -> FleetStatus: ...

    @overload
    def plan(self, *, dry_run: Literal[True], **options: Unpack[PlanOptions]) -> Plan: ...

    @overload
    def plan(self, *, dry_run: bool, **options: Unpack[PlanOptions]) -> FleetStatus | Plan: ...

    def plan(self, *, dry_run: bool = False, **options: Unpack[PlanOptions]) -> FleetStatus | Plan:
        """Choose targets and waves, and forecast each move by a dry run of it.

        Without targets, the plans that there are stay, and ``wave`` or ``waves`` divide them anew.
        ``remove`` takes tables out of the plan instead.
        """
        given: dict[str, Any] = dict(options)
        to, from_file, location = (given.pop(key, None) for key in ("to", "from_file", "location"))
        selection = TableSelection(
            tuple(given.pop("select", None) or ()),
            given.pop("min_bytes", None),
            given.pop("max_bytes", None),
        )
        removes = given.pop("remove", False)
        rule = WaveRule(given.pop("wave", None), given.pop("waves", None))
        if rule.wave is not None and rule.waves is not None:
            raise InvalidInput(
                "wave and waves can't be combined", remedy="give the one or the other"
            )
        with self.database() as database:
            records = FleetRecords(database)
            tables = records.tables(_ALL).tables
            selected = [table for table in tables if selection.has(table)]
            if removes:
                return self._withdrawn(database, selected, dry_run=dry_run)
            if to is not None or from_file is not None:
                ready = [table for table in selected if planning.may_be_planned(table)]
                if from_file is None:
                    ready = planning.not_yet_there(ready, tables, str(to))
                moves = (
                    planning.wanted_by_rule(ready, TargetRule(str(to), location), given)
                    if from_file is None
                    else planning.wanted_by_list(selected, _listed(from_file, given))
                )
                made = self._planned(records, moves, rule, [table.uri for table in tables])
            elif rule == WaveRule():
                made = FleetPlan()
            else:
                made = planning.replanned(selected, rule)
            if dry_run:
                return Plan(made.as_steps())
            changed = 0
            if made.plans or made.refused:
                changed = InventoryChanges(database).plan(made.plans, made.refused)
                tables = records.tables(_ALL).tables
            uris = {table.uri for table in selected}
            shown = tuple(table for table in tables if table.uri in uris)
            return FleetStatus(shown, records.summary(), bool(changed))

    def _withdrawn(
        self, database: FleetDatabase, selected: Sequence[FleetTable], *, dry_run: bool
    ) -> FleetStatus | Plan:
        before = fleet_state_before(FleetEvent.WITHDRAW)
        uris = [table.uri for table in selected if table.state in before]
        if dry_run:
            return Plan({"op": "withdraw_plan", "table": uri} for uri in uris)
        changed = InventoryChanges(database).withdraw(uris) if uris else 0
        records = FleetRecords(database)
        chosen = {table.uri for table in selected}
        tables = [each for each in records.tables(_ALL).tables if each.uri in chosen]
        return FleetStatus(tuple(tables), records.summary(), bool(changed))

    def _planned(
        self,
        records: FleetRecords,
        moves: Sequence[tuple[FleetTable, Wanted]],
        rule: WaveRule,
        known: Sequence[str],
    ) -> FleetPlan:
        with self._mover(None) as mover, progress_in_notebook(self._observer) as observer:
            planner = FleetPlanner(
                mover.plan, pauses_ms=records.summary().pauses_ms, observer=observer
            )
            return planner.plan(moves, rule, known)

    @overload
    def run(
        self, *, dry_run: Literal[False] = False, **options: Unpack[FleetRunOptions]
    ) -> FleetStatus: ...

    @overload
    def run(self, *, dry_run: Literal[True], **options: Unpack[FleetRunOptions]) -> Plan: ...

    @overload
    def run(self, *, dry_run: bool, **options: Unpack[FleetRunOptions]) -> FleetStatus | Plan: ...

    def run(
        self,
        *,
        dry_run: bool = False,
        wave: int | None = None,
        parallel: int = PARALLEL,
        window: str | None = None,
        time_zone: str | None = None,
        waits: bool = False,
        limit_rate: int | None = None,
        stop: threading.Event | None = None,
    ) -> FleetStatus | Plan:
        """Move what is planned, wave by wave, and continue what failed or was stopped.

        A table whose move fails doesn't stop the others of its wave. Begins no move outside of
        ``window``; with ``waits`` it waits until the window opens. When ``stop`` is set, this run
        ends as with :meth:`pause` and ``stop_running``; other runs go on.
        """
        hours = None if window is None else RunWindow.parse(window, time_zone)
        with self.database() as database, ExitStack() as stack:
            records = FleetRecords(database)
            planned = [
                table.job
                for table in records.tables(replace(_ALL, wave=wave, sort="wave")).tables
                if table.job is not None and table.job.state in planning.TO_RUN
            ]
            if dry_run:
                return Plan(
                    {"op": "move", "source": job.uri, "target": job.target, "wave": job.wave}
                    for job in planned
                )
            if not planned:
                return FleetStatus((), records.summary(), run=FleetRun())
            runner = FleetRunner(
                JobChanges(database),
                lambda: stack.enter_context(self._mover(limit_rate)),
                RunOptions(wave, parallel, hours, waits),
                blocks_writers=self._blocks_writers,
                locate=lambda name: self._places().locate(name),
                warn=self._warn,
                observer=stack.enter_context(progress_in_notebook(self._observer)),
                stop=stop,
            )
            ended = runner.run()
            return self._after(records, ended)

    def _after(self, records: FleetRecords, ended: FleetRun) -> FleetStatus:
        """Return what is known after a run, even if the database is gone."""
        try:
            uris = set(ended.uris)
            tables = [each for each in records.tables(_ALL).tables if each.uri in uris]
            summary = records.summary()
        except LakeferryError as lost:
            self._warn(f"the state of the tables can't be shown: {lost}")
            tables, summary = [], FleetSummary({}, 0, 0, paused=False)
        return FleetStatus(tuple(tables), summary, bool(ended.moved), ended)

    def pause(self, *, stop_running: bool = False, dry_run: bool = False) -> bool:
        """Ask all runs to start no more moves; return whether that changed anything.

        Running moves finish, unless ``stop_running`` is true: then they stop where
        they next report progress. :meth:`run` continues.
        """
        with self.database() as database:
            records = FleetRecords(database)
            summary = records.summary()
            if summary.total == 0:
                return False
            if dry_run:
                return not summary.paused
            return JobChanges(database).pause(stops_running=stop_running)

    def resume(self, job_id: int) -> MovedTable:
        """Go on with the move of one job that failed or was stopped, outside of any run."""
        with self.database() as database, self._mover(None) as mover:
            return resume_move(database, mover, job_id, self._observer)

    def cancel(self, job_id: int) -> Outcome | None:
        """Undo the move of one job that failed or was stopped, and take it out of the plan.

        Returns ``None`` if the move had left nothing to undo.
        """
        with self.database() as database:
            return cancel_move(database, self._redirects, job_id, self._observer)

    def status(self, query: TableQuery | None = None) -> FleetStatus:
        """Return the tables that a query asks for, by default all, as they are recorded."""
        with self.database() as database:
            records = FleetRecords(database)
            return FleetStatus(records.tables(query or _ALL).tables, records.summary())

    def history(
        self, since: int = 0, *, job_id: int | None = None, limit: int = _RECENT
    ) -> tuple[FleetHistoryEntry, ...]:
        """Return what was recorded after the entry ``since``, the oldest first."""
        with self.database() as database:
            return FleetRecords(database).history(since, job_id=job_id, limit=limit)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a report about the whole fleet: one HTML file without scripts."""
        with self.database() as database:
            records = FleetRecords(database)
            tables, summary = records.tables(_ALL).tables, records.summary()
            newest = records.newest_history(_RECENT)
            text = report_html(tables, summary, newest, database.place)
        target = Path(path)
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
        return target

    def _places(self) -> Places:
        return Places(self._storage_options, environment=self._environment, warn=self._warn)

    def _redirects(self, observer: Observer) -> Redirects:
        return Redirects(self._places(), engine=self._engine, observer=observer, warn=self._warn)

    def _catalog(self, kind: str) -> EditableCatalog:
        return open_catalog(kind, self._environment)

    def _mover(self, limit_rate: int | None) -> Mover:
        return Mover(
            self._storage_options,
            engine=self._engine,
            environment=self._environment,
            warn=self._warn,
            limit_rate=limit_rate,
        )

    def _blocks_writers(self, uri: str) -> bool:
        try:
            with Redirects(self._places()) as redirects:
                return redirects.status(uri).state is RedirectState.ENABLING
        except LakeferryError:
            return False


def _listed(from_file: str | os.PathLike[str], options: Mapping[str, Any]) -> tuple[Wanted, ...]:
    with Path(from_file).open(newline="", encoding="utf-8-sig") as lines:
        return read_moves(lines, str(from_file), options)


def _told_to(steps: Plan) -> FleetScan:
    """Return what a dry run does with findings: it lists them."""

    def record(found: Sequence[tuple[FoundTable, TableSurvey]]) -> None:
        steps.extend({"op": "record_table", "table": each.uri} for each, _ in found)

    def lose(uris: Sequence[str]) -> None:
        steps.extend({"op": "forget_table", "table": uri} for uri in uris)

    return FleetScan(record, lambda _: None, lose)
