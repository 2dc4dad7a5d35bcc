"""Writes entries of the history, within the transaction of the change that they describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from lakeferry.fleet.fleet_schema import FLEET_HISTORY, database_now
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.records import encoded


def history_row(
    kind: str, uri: str | None, job_id: int | None, detail: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return an entry that is to be written."""
    return {"kind": kind, "uri": uri, "job_id": job_id, "detail": encoded(detail or {})}


def write_history(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write entries, which become visible with the transaction."""
    if rows:
        statement = sa.insert(FLEET_HISTORY).values(at_ms=database_now())
        connection.execute(statement, list(rows))


def state_values(states: Iterable[FleetState]) -> list[str]:
    """Return states as columns have them."""
    return sorted(state.value for state in states)
