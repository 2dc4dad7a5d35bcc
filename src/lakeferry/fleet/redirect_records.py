"""Reads which tables of the fleet have a redirect, as the last scan or move recorded it."""

from __future__ import annotations

import sqlalchemy as sa

from lakeferry.api.redirect_chains import KnownRedirect
from lakeferry.fleet.fleet_database import FleetDatabase
from lakeferry.fleet.fleet_schema import FLEET_TABLES
from lakeferry.redirect.states import RedirectState

MOST_REDIRECTS = 5_000


def recorded_redirects(
    database: FleetDatabase, limit: int = MOST_REDIRECTS
) -> tuple[KnownRedirect, ...]:
    """Return the redirects of the fleet's tables, by place; at most ``limit``."""
    columns = FLEET_TABLES.c
    wanted = (
        sa.select(columns.uri, columns.redirect_state, columns.redirect_target)
        .where(columns.redirect_state.is_not(None))
        .where(columns.redirect_state != RedirectState.NORMAL.value)
        .order_by(columns.uri)
        .limit(limit)
    )
    with database.read() as connection:
        if connection is None:
            return ()
        rows = connection.execute(wanted).all()
    return tuple(KnownRedirect(row.uri, row.redirect_state, row.redirect_target) for row in rows)
