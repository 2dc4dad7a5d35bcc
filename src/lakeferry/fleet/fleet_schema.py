"""The fleet's tables in the database, as the newest migration leaves them.

``lakeferry_fleet_tables`` is the inventory, ``lakeferry_fleet_jobs`` the plans and what became of
them, ``lakeferry_fleet_history`` what happened, never changed or deleted. Values that no condition
asks for are JSON. Times are milliseconds by the database's clock.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

VERSION_TABLE = "lakeferry_schema_version"
"""Where Alembic keeps which migration was the last one."""
FLEET_METADATA = sa.MetaData()
# SQLite counts only a column of this very type by itself.
_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")

FLEET_TABLES = sa.Table(
    "lakeferry_fleet_tables",
    FLEET_METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("uri", sa.Text, nullable=False, unique=True),
    sa.Column("root", sa.Text, nullable=False),
    sa.Column("name", sa.Text),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger),
    sa.Column("commit_ms", sa.BigInteger),
    sa.Column("commit_bytes", sa.BigInteger),
    sa.Column("table_id", sa.Text),
    sa.Column("size_bytes", sa.BigInteger),
    sa.Column("num_files", sa.BigInteger),
    sa.Column("commits_per_day", sa.Double),
    sa.Column("features", sa.Text, nullable=False),
    sa.Column("writers", sa.Text, nullable=False),
    sa.Column("problems", sa.Text, nullable=False),
    sa.Column("problem_count", sa.Integer, nullable=False),
    sa.Column("plan_problems", sa.Text, nullable=False),
    sa.Column("redirect_state", sa.Text),
    sa.Column("redirect_target", sa.Text),
    sa.Column("scanned_ms", sa.BigInteger, nullable=False),
    sa.Column("job_id", sa.BigInteger),
    sa.Index("lakeferry_fleet_tables_by_state", "state", "uri"),
    sqlite_autoincrement=True,
)

FLEET_JOBS = sa.Table(
    "lakeferry_fleet_jobs",
    FLEET_METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("fleet_table", sa.BigInteger, nullable=False),
    sa.Column("uri", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("forecast", sa.Text, nullable=False),
    sa.Column("holder", sa.Text),
    sa.Column("lease_until_ms", sa.BigInteger),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("started_ms", sa.BigInteger),
    sa.Column("ended_ms", sa.BigInteger),
    sa.Column("step", sa.Text),
    sa.Column("done", sa.BigInteger),
    sa.Column("total", sa.BigInteger),
    sa.Column("blocked_ms", sa.BigInteger),
    sa.Column("outcome", sa.Text),
    sa.Column("error", sa.Text),
    sa.Index("lakeferry_fleet_jobs_by_state", "state", "wave", "id"),
    sa.Index("lakeferry_fleet_jobs_by_table", "fleet_table", "id"),
    sqlite_autoincrement=True,
)

FLEET_HISTORY = sa.Table(
    "lakeferry_fleet_history",
    FLEET_METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("uri", sa.Text),
    sa.Column("job_id", sa.BigInteger),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Index("lakeferry_fleet_history_by_job", "job_id", "id"),
    sa.Index("lakeferry_fleet_history_by_kind", "kind", "id"),
    sqlite_autoincrement=True,
)


class database_now(FunctionElement[int]):  # noqa: N801 - it is used like SQLAlchemy's functions
    """The database's clock in milliseconds since the epoch."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _sqlite_now(_element: database_now, _compiler: SQLCompiler, **_: object) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@compiles(database_now, "postgresql")
def _postgresql_now(_element: database_now, _compiler: SQLCompiler, **_: object) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"
