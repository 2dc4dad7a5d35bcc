"""Runs migrations on the connection that the caller has opened; Alembic loads this module."""

from __future__ import annotations

from alembic import context

from lakeferry.fleet.fleet_schema import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
