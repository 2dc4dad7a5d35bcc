"""Changes the inventory: what scans have found, and what is planned.

Each batch is one transaction, with its entries of the history. A transition is made only from a
state in which the table of transitions allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from lakeferry.errors import InvalidInput
from lakeferry.fleet.fleet_database import FleetDatabase
from lakeferry.fleet.fleet_schema import FLEET_JOBS, FLEET_TABLES, database_now
from lakeferry.fleet.fleet_states import (
    FleetEvent,
    FleetState,
    fleet_state_after,
    fleet_state_before,
)
from lakeferry.fleet.history_writing import history_row, state_values, write_history
from lakeferry.fleet.inventory import (
    TABLE_GONE,
    FleetProblem,
    FoundTable,
    MovePlan,
    TableSurvey,
)
from lakeferry.fleet.records import encoded
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import normalise
from lakeferry.storage.uris import same_place

_T, _J = FLEET_TABLES.c, FLEET_JOBS.c
_AT_ONCE = 500
"""How many rows one statement names: SQLite bounds its parameters."""


class InventoryChanges:
    """Writes what is found and planned."""

    def __init__(self, database: FleetDatabase) -> None:
        """Write to a database, which the caller closes."""
        self._database = database

    def record(self, found: Sequence[tuple[FoundTable, TableSurvey]]) -> None:
        """Add tables to the inventory, or replace what is known about them.

        A table that is READY is done, whoever moved it; one that came back is only found.
        """
        for start in range(0, len(found), _AT_ONCE):
            batch = found[start : start + _AT_ONCE]
            with self._database.write() as connection:
                _Recording(connection).record(batch)

    def confirm(self, uris: Sequence[str]) -> None:
        """Note that tables are unchanged since the last scan."""
        for start in range(0, len(uris), _AT_ONCE):
            batch = uris[start : start + _AT_ONCE]
            with self._database.write() as connection:
                connection.execute(
                    sa.update(FLEET_TABLES)
                    .where(_T.uri.in_(batch))
                    .values(scanned_ms=database_now())
                )

    def lose(self, uris: Sequence[str]) -> None:
        """Note that tables aren't there any more.

        Those that nobody planned are removed; of the others the plan is withdrawn.
        """
        problem = FleetProblem(TABLE_GONE, "the last scan didn't find the table", None)
        for start in range(0, len(uris), _AT_ONCE):
            batch = uris[start : start + _AT_ONCE]
            with self._database.write() as connection:
                forgotten = _T.uri.in_(batch) & _T.job_id.is_(None)
                connection.execute(sa.delete(FLEET_TABLES).where(forgotten))
                _withdraw(connection, batch, {"by": "scan"})
                connection.execute(
                    sa.update(FLEET_TABLES)
                    .where(_T.uri.in_(batch))
                    .values(
                        version=None,
                        problems=encoded([problem]),
                        problem_count=1,
                        scanned_ms=database_now(),
                    )
                )

    def withdraw(self, uris: Sequence[str]) -> int:
        """Take tables out of the plan whose moves don't run; return how many there were."""
        changed = 0
        for start in range(0, len(uris), _AT_ONCE):
            with self._database.write() as connection:
                changed += _withdraw(connection, uris[start : start + _AT_ONCE], {})
        return changed

    def plan(
        self, plans: Sequence[MovePlan], refused: Mapping[str, Sequence[FleetProblem]] | None = None
    ) -> int:
        """Record plans, and why tables couldn't be planned; return how many plans are new.

        A table whose move is running, or is done, keeps its plan.
        """
        changed = 0
        for start in range(0, len(plans), _AT_ONCE):
            with self._database.write() as connection:
                changed += _plan(connection, plans[start : start + _AT_ONCE])
        refusals = list((refused or {}).items())
        for start in range(0, len(refusals), _AT_ONCE):
            with self._database.write() as connection:
                _set_plan_problems(connection, dict(refusals[start : start + _AT_ONCE]))
        return changed


class _Recording:
    """Records a batch of surveys in one transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def record(self, batch: Sequence[tuple[FoundTable, TableSurvey]]) -> None:
        uris = [found.uri for found, _ in batch]
        known = {
            row.uri: row
            for row in self._connection.execute(
                sa.select(
                    *(_T.uri, _T.state, _T.version, _T.table_id, _T.job_id, _T.plan_problems),
                    *(_J.target, _J.state.label("job_state")),
                )
                .select_from(FLEET_TABLES.outerjoin(FLEET_JOBS, _T.job_id == _J.id))
                .where(_T.uri.in_(uris))
            )
        }
        rows, entries = [], []
        for found, survey in batch:
            row = known.get(found.uri)
            if row is not None and _is_outdated(row, survey):
                continue
            state = FleetState.FOUND if row is None else FleetState(row.state)
            event = None if row is None else _event_of(state, survey, row)
            if row is None and survey.redirect_state == RedirectState.READY.value:
                event = FleetEvent.FINISH
            after = state if event is None else fleet_state_after(event)
            planned = [] if row is None else msgspec.json.decode(row.plan_problems)
            count = len(survey.problems) + len(planned)
            rows.append({**_row(found, survey, after), "problem_count": count})
            job_id = None if row is None else row.job_id
            if row is None:
                entries.append(history_row("found", found.uri, None, {"root": found.root}))
            if event is not None:
                detail = {"by": "scan", "target": survey.redirect_target}
                entries.append(history_row(event.value, found.uri, job_id, detail))
                if row is not None and job_id is not None:
                    self._settle(event, row, survey)
        if rows:
            self._upsert(rows)
        write_history(self._connection, entries)

    def _settle(self, event: FleetEvent, row: Any, survey: TableSurvey) -> None:
        """Close or detach the job of a table that was found to be moved, or to be back."""
        if event is FleetEvent.RETURN:
            self._connection.execute(
                sa.update(FLEET_TABLES).where(_T.uri == row.uri).values(job_id=None)
            )
        elif row.job_state != FleetState.DONE.value:
            other = None
            if not same_target(row.target, survey.redirect_target):
                message = f"the table was moved to {survey.redirect_target}, not to {row.target}"
                code = "redirect_illegal_transition"
                other = encoded({"code": code, "message": message, "remedy": None})
            self._connection.execute(
                sa.update(FLEET_JOBS)
                .where(_J.id == row.job_id)
                .values(
                    state=fleet_state_after(event).value,
                    holder=None,
                    ended_ms=database_now(),
                    error=other,
                )
            )

    def _upsert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        kinds: Mapping[str, Callable[[sa.Table], Any]] = {
            "sqlite": sqlite.insert,
            "postgresql": postgresql.insert,
        }
        insert = kinds[self._connection.dialect.name](FLEET_TABLES)
        new = insert.excluded
        kept = {"uri", "plan_problems", "name"}
        changes: dict[str, Any] = {key: new[key] for key in rows[0] if key not in kept}
        changes["name"] = sa.func.coalesce(new.name, _T.name)
        changes["scanned_ms"] = new.scanned_ms
        statement = insert.values(scanned_ms=database_now()).on_conflict_do_update(
            index_elements=[_T.uri], set_=changes
        )
        self._connection.execute(statement, rows)


def _is_outdated(row: Any, survey: TableSurvey) -> bool:
    """Return whether a run has recorded a newer version since the table was surveyed."""
    return (
        survey.mark is not None
        and row.version is not None
        and row.table_id == _plain(survey.table_id)
        and survey.mark.version < row.version
    )


def _event_of(state: FleetState, survey: TableSurvey, row: Any) -> FleetEvent | None:
    """Return what a survey says has happened to a table since the last one.

    A running job is closed by its holder.
    """
    if row.job_state == FleetState.RUNNING.value:
        return None
    if survey.redirect_state == RedirectState.READY.value:
        return FleetEvent.FINISH if state in fleet_state_before(FleetEvent.FINISH) else None
    if state is not FleetState.DONE or survey.mark is None or survey.redirect_state is not None:
        return None
    return FleetEvent.RETURN


def _plain(text: str | None) -> str | None:
    """Return a text from somebody's log as every database can keep it."""
    if text is None:
        return None
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _row(found: FoundTable, survey: TableSurvey, state: FleetState) -> dict[str, Any]:
    mark = survey.mark
    return {
        "uri": found.uri,
        "root": found.root,
        "name": _plain(found.name),
        "state": state.value,
        "version": None if mark is None else mark.version,
        "commit_ms": None if mark is None else mark.commit_ms,
        "commit_bytes": None if mark is None else mark.commit_bytes,
        "table_id": _plain(survey.table_id),
        "size_bytes": survey.size_bytes,
        "num_files": survey.num_files,
        "commits_per_day": survey.commits_per_day,
        "features": encoded(survey.features),
        "writers": encoded(survey.writers),
        "problems": encoded(survey.problems),
        "plan_problems": "[]",
        "redirect_state": survey.redirect_state,
        "redirect_target": _plain(survey.redirect_target),
    }


def same_target(planned: str, found: str | None) -> bool:
    """Return whether a table that is moving, or has moved, to ``found`` goes where it is planned.

    Both are URIs, or names in a catalog.
    """
    if found is None or planned == found:
        return found is not None
    with suppress(InvalidInput):
        return same_place(normalise(planned), normalise(found))
    return False


def _withdraw(connection: sa.Connection, uris: Sequence[str], detail: Mapping[str, Any]) -> int:
    event = FleetEvent.WITHDRAW
    rows = connection.execute(
        sa.select(_T.uri, _T.job_id).where(
            _T.uri.in_(uris),
            _T.job_id.is_not(None),
            _T.state.in_(state_values(fleet_state_before(event))),
        )
    ).all()
    after = fleet_state_after(event).value
    ids = [row.job_id for row in rows]
    connection.execute(sa.update(FLEET_JOBS).where(_J.id.in_(ids)).values(state=after, holder=None))
    connection.execute(
        sa.update(FLEET_TABLES).where(_T.job_id.in_(ids)).values(state=after, job_id=None)
    )
    write_history(
        connection, [history_row(event.value, row.uri, row.job_id, detail) for row in rows]
    )
    return len(rows)


def _set_plan_problems(
    connection: sa.Connection, refused: Mapping[str, Sequence[FleetProblem]]
) -> None:
    """Keep why tables couldn't be planned; an empty list says that they could."""
    rows = connection.execute(sa.select(_T.uri, _T.problems).where(_T.uri.in_(refused))).all()
    if rows:
        connection.execute(
            sa.update(FLEET_TABLES)
            .where(_T.uri == sa.bindparam("of_uri"))
            .values(
                plan_problems=sa.bindparam("new_problems"),
                problem_count=sa.bindparam("new_count"),
            ),
            [
                {
                    "of_uri": row.uri,
                    "new_problems": encoded(refused[row.uri]),
                    "new_count": len(msgspec.json.decode(row.problems)) + len(refused[row.uri]),
                }
                for row in rows
            ],
        )


def _plan(connection: sa.Connection, plans: Sequence[MovePlan]) -> int:
    event = FleetEvent.PLAN
    before, after = fleet_state_before(event), fleet_state_after(event).value
    wanted = {plan.uri: plan for plan in plans}
    rows = connection.execute(
        sa.select(_T.id, _T.uri, _T.job_id, _J.state, _J.target, _J.wave, _J.options)
        .select_from(FLEET_TABLES.outerjoin(FLEET_JOBS, _T.job_id == _J.id))
        .where(_T.uri.in_(wanted), _T.state.in_(state_values(before)))
    ).all()
    old, new, changed = [], [], []
    for row in rows:
        plan = wanted[row.uri]
        asked = (after, plan.target, plan.wave, encoded(plan.options))
        if (row.state, row.target, row.wave, row.options) != asked:
            changed.append(row.uri)
        values = {
            "new_source": plan.named_source,
            "new_target": plan.target,
            "new_wave": plan.wave,
            "new_options": encoded(plan.options),
            "new_forecast": encoded(plan.forecast),
        }
        if row.job_id is not None:
            old.append({**values, "of_id": row.job_id})
        else:
            new.append({**values, "of_table": row.id, "of_uri": row.uri})
    changes: dict[str, Any] = {
        name: sa.bindparam(f"new_{name}")
        for name in ("source", "target", "wave", "options", "forecast")
    }
    if old:
        connection.execute(
            sa.update(FLEET_JOBS)
            .where(_J.id == sa.bindparam("of_id"))
            .values(state=after, holder=None, error=None, **changes),
            old,
        )
    if new:
        ends: dict[str, Any] = {
            "fleet_table": sa.bindparam("of_table"),
            "uri": sa.bindparam("of_uri"),
        }
        connection.execute(
            sa.insert(FLEET_JOBS).values(state=after, attempts=0, **ends, **changes), new
        )
    ids = [row.id for row in rows]
    newest = sa.select(sa.func.max(_J.id)).where(_J.fleet_table == _T.id).scalar_subquery()
    connection.execute(
        sa.update(FLEET_TABLES).where(_T.id.in_(ids)).values(state=after, job_id=newest)
    )
    _set_plan_problems(connection, {row.uri: () for row in rows})
    jobs = connection.execute(
        sa.select(_T.uri, _T.job_id).where(_T.uri.in_(changed)).order_by(_T.id)
    ).all()
    entries = []
    for uri, job_id in jobs:
        detail = {"target": wanted[uri].target, "wave": wanted[uri].wave}
        entries.append(history_row(event.value, uri, job_id, detail))
    write_history(connection, entries)
    return len(changed)
