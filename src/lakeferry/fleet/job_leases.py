"""Decides which jobs a run may take: those that no running process holds.

A job belongs to its holder, a run, until its lease ends by the database's clock. The lease only
saves work: a move that two runs make at once is made once.
"""

from __future__ import annotations

import sqlalchemy as sa

from lakeferry.fleet.fleet_schema import FLEET_JOBS, database_now
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.storage.process_identity import has_ended

_J = FLEET_JOBS.c


def free_to_take(connection: sa.Connection) -> sa.ColumnElement[bool]:
    """Return the condition for jobs that are queued, or that no running process holds."""
    return sa.or_(
        _J.state == FleetState.QUEUED.value,
        sa.and_(
            _J.state == FleetState.RUNNING.value,
            sa.or_(_J.lease_until_ms < database_now(), _J.holder.in_(ended_holders(connection))),
        ),
    )


def ended_holders(connection: sa.Connection) -> list[str]:
    """Return the holders of running jobs whose process, on this machine, has ended."""
    holders = connection.execute(
        sa.select(_J.holder).where(_J.state == FleetState.RUNNING.value).distinct()
    ).scalars()
    return [each for each in holders if each and has_ended(each.partition("/")[0])]
