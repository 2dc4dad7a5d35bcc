"""Plans moves: targets, waves, and a forecast of each move by a dry run of it.

A move is planned only if its dry run succeeds: what it would refuse is a problem of the table, with
a remedy, and the table stays as it is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from lakeferry.api.move_list_file import Wanted
from lakeferry.catalogs import KINDS, split_name
from lakeferry.clients.wish_effects import MoveWish, TableClients, client_effects, protocol_of
from lakeferry.engine import Observer, unobserved
from lakeferry.errors import InvalidInput, LakeferryError
from lakeferry.fleet.fleet_states import FleetEvent, FleetState, fleet_state_before
from lakeferry.fleet.inventory import (
    ClientForecast,
    FleetProblem,
    FleetTable,
    MoveForecast,
    MovePlan,
    TableSurvey,
)
from lakeferry.fleet.targets import TargetRule, path_below_root, target_problems
from lakeferry.fleet.waves import PlannedMove, assign_waves
from lakeferry.redirect.enable import preflight
from lakeferry.redirect.entry import Data, Dialect, Mode
from lakeferry.storage import normalise
from lakeferry.storage.uris import relative_name

TO_RUN = fleet_state_before(FleetEvent.QUEUE) | {FleetState.QUEUED, FleetState.RUNNING}
"""The states of jobs that a run has something to do with."""
_LOCAL_PAUSE_MS, _REMOTE_PAUSE_MS = 100, 2_000
_ASSUMED = "an assumption: no move has finished yet"
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class TableSelection:
    """Which tables of the inventory are planned. All conditions together; none means all."""

    patterns: tuple[str, ...] = ()
    """Like ``eu/*``: of the URI, the name, or the path below what was scanned."""
    min_bytes: int | None = None
    max_bytes: int | None = None

    def has(self, table: FleetTable) -> bool:
        """Return whether a table is selected."""
        size = table.survey.size_bytes
        if self.min_bytes is not None and (size is None or size < self.min_bytes):
            return False
        if self.max_bytes is not None and (size is None or size > self.max_bytes):
            return False
        texts = (table.uri, path_below_root(table), (table.name or "").partition(":")[2])
        return not self.patterns or any(
            fnmatchcase(text, pattern) for pattern in self.patterns for text in texts if text
        )


@dataclass(frozen=True, slots=True)
class WaveRule:
    """In which wave tables are moved: one for all, or so many by size; else the one they have."""

    wave: int | None = None
    waves: int | None = None

    def assign(self, moves: Sequence[tuple[FleetTable, str]]) -> dict[str, int]:
        """Return the wave of each table by its URI."""
        if self.waves is not None and moves:
            planned = [
                PlannedMove(table.uri, target, table.survey.size_bytes or 0)
                for table, target in moves
            ]
            return assign_waves(planned, self.waves)
        return {
            table.uri: self.wave or (1 if table.job is None else table.job.wave)
            for table, _ in moves
        }


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Plans to record, and why other tables can't be moved."""

    plans: tuple[MovePlan, ...] = ()
    refused: Mapping[str, tuple[FleetProblem, ...]] = field(default_factory=dict)

    def as_steps(self) -> list[dict[str, Any]]:
        """Return the steps that ``--dry-run`` prints."""
        return [
            {
                "op": "plan_move",
                "source": plan.uri,
                "target": plan.target,
                "wave": plan.wave,
                "forecast": plan.forecast.as_document(),
            }
            for plan in self.plans
        ]


def may_be_planned(table: FleetTable) -> bool:
    """Return whether a table's state allows a plan, and it was there at the last scan."""
    return table.state in fleet_state_before(FleetEvent.PLAN) and table.survey.mark is not None


def move_source(table: FleetTable) -> str:
    """Return how a table is named to its move.

    Unity Catalog issues credentials for tables that are opened by their names.
    """
    is_named = table.name is not None and table.name.startswith("unity:")
    return table.name if is_named and table.name is not None else table.uri


def not_yet_there(
    selected: Iterable[FleetTable], tables: Iterable[FleetTable], to: str
) -> list[FleetTable]:
    """Return the tables that are neither targets of finished moves nor below the prefix ``to``."""
    arrived = {table.survey.redirect_target for table in tables} - {None}
    is_prefix = "{" not in to and to.partition(":")[0] not in KINDS
    root = normalise(to) if is_prefix else None
    return [
        table
        for table in selected
        if table.uri not in arrived
        and (table.name is None or table.name not in arrived)
        and (root is None or (table.uri != root and relative_name(root, table.uri) is None))
    ]


def wanted_by_rule(
    tables: Iterable[FleetTable], rule: TargetRule, options: Mapping[str, Any]
) -> list[tuple[FleetTable, Wanted]]:
    """Return the move of each table by a rule for targets."""
    found = []
    for table in tables:
        place = rule.place(table)
        more = {} if place is None else {"location": place}
        wanted = Wanted(0, move_source(table), rule.target(table), {**options, **more})
        found.append((table, wanted))
    return found


def wanted_by_list(
    tables: Iterable[FleetTable], moves: Sequence[Wanted]
) -> list[tuple[FleetTable, Wanted]]:
    """Return the tables of a list of moves; refuse a list with tables that weren't scanned."""
    known = {name: table for table in tables for name in (table.uri, table.name) if name}
    unknown = [move.source for move in moves if move.source not in known]
    if unknown:
        raise InvalidInput(
            "the list has tables that no scan has found",
            cause=f"{', '.join(unknown[:_SHOWN])}{' and others' if len(unknown) > _SHOWN else ''}",
            remedy="scan the folders or catalogs that they are in: lakeferry fleet scan PREFIX",
            sources=unknown,
        )
    return [
        (
            known[move.source],
            Wanted(move.line, move_source(known[move.source]), move.target, move.options),
        )
        for move in moves
        if may_be_planned(known[move.source])
    ]


class FleetPlanner:
    """Plans moves by dry runs, several at a time. ``rehearse`` returns the steps of a move."""

    def __init__(
        self,
        rehearse: Callable[[Wanted], Sequence[dict[str, Any]]],
        *,
        pauses_ms: Sequence[int] = (),
        at_once: int = 4,
        observer: Observer = unobserved,
    ) -> None:
        """``pauses_ms`` are those of finished moves, by which others are estimated."""
        self._rehearse = rehearse
        self._pauses_ms = pauses_ms
        self._at_once = at_once
        self._observer = observer

    def plan(
        self, moves: Sequence[tuple[FleetTable, Wanted]], rule: WaveRule, known: Iterable[str]
    ) -> FleetPlan:
        """Return the plans; ``known`` are the places of all tables of the inventory."""
        places = {
            table.uri: [
                each for each in (wanted.target, wanted.options.get("location")) if each is not None
            ]
            for table, wanted in moves
            if not wanted.options.get("to_existing")
        }
        refused = {uri: (problem,) for uri, problem in target_problems(places, set(known)).items()}
        rest = [(table, wanted) for table, wanted in moves if table.uri not in refused]
        waves = rule.assign([(table, wanted.target) for table, wanted in rest])
        plans = []
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="plan") as pool:
            forecasts = pool.map(lambda move: self._forecast(*move), rest)
            for number, ((table, wanted), found) in enumerate(zip(rest, forecasts, strict=True), 1):
                if isinstance(found, FleetProblem):
                    refused[table.uri] = (found,)
                else:
                    wave = waves[table.uri]
                    plans.append(
                        MovePlan(
                            table.uri,
                            wanted.target,
                            wave,
                            dict(wanted.options),
                            found,
                            wanted.source,
                        )
                    )
                self._observer("planning moves", number, len(rest))
        return FleetPlan(tuple(plans), refused)

    def _forecast(self, table: FleetTable, wanted: Wanted) -> MoveForecast | FleetProblem:
        try:
            steps = self._rehearse(wanted)
        except LakeferryError as refused:
            return FleetProblem.of(refused)
        copies = [step for step in steps if "duration_ms" in step]
        # The log is copied, too, and takes its time. But a person asks for the table's files.
        of_data = [step for step in copies if step["op"] != "copy_log"]
        pause_ms, basis = self._pause(wanted)
        return MoveForecast(
            sum(step["files"] for step in of_data),
            sum(step["bytes"] for step in of_data),
            sum(step["duration_ms"] or 0 for step in copies),
            pause_ms,
            basis,
            clients_of(table.survey, wanted, pause_ms),
        )

    def _pause(self, wanted: Wanted) -> tuple[int, str]:
        if self._pauses_ms:
            count = len(self._pauses_ms)
            basis = f"the median of {count} finished moves"
            return round(statistics.median(self._pauses_ms)), basis
        is_local = wanted.source.startswith("file:") and wanted.target.startswith("file:")
        return _LOCAL_PAUSE_MS if is_local else _REMOTE_PAUSE_MS, _ASSUMED


def clients_of(survey: TableSurvey, wanted: Wanted, pause_ms: int) -> tuple[ClientForecast, ...]:
    """Return what the clients that wrote a table can do before, during and after its move."""
    mode = Mode(wanted.options.get("mode", Mode.READER_WRITER.value))
    chosen = tuple(Dialect(each) for each in wanted.options.get("dialects", ()))
    to_name = split_name(wanted.target) is not None
    wish = MoveWish(
        mode,
        chosen or preflight.default_dialects(mode, to_name=to_name),
        bool(wanted.options.get("managed")),
        Data(wanted.options.get("data", Data.COPY.value)),
        f"about {pause_ms} ms",
    )
    writers = tuple((each.commit_writer, each.commits) for each in survey.writers)
    table = TableClients(protocol_of(survey.features), writers=writers)
    found = client_effects(table, wish, known=False)
    return tuple(
        ClientForecast(
            writer.name,
            writer.client_version,
            each.before,
            each.during,
            each.after,
            each.source,
            each.breaks,
        )
        for writer, each in zip(survey.writers, found, strict=True)
    )


def replanned(tables: Iterable[FleetTable], rule: WaveRule) -> FleetPlan:
    """Return the plans that tables have, in other waves."""
    planned = [
        (table, table.job)
        for table in tables
        if table.job is not None and table.state in (FleetState.PLANNED, FleetState.QUEUED)
    ]
    waves = rule.assign([(table, job.target) for table, job in planned])
    return FleetPlan(
        tuple(
            MovePlan(table.uri, job.target, waves[table.uri], job.options, job.forecast, job.source)
            for table, job in planned
            if waves[table.uri] != job.wave
        )
    )
