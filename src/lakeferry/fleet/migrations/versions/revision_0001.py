"""The first migration: creates the inventory, the jobs and the history.

The catalog's own table, ``lakeferry_tables``, may be there already, and isn't touched.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "lakeferry_fleet_tables",
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
        sqlite_autoincrement=True,
    )
    op.create_index("lakeferry_fleet_tables_by_state", "lakeferry_fleet_tables", ["state", "uri"])
    op.create_table(
        "lakeferry_fleet_jobs",
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
        sqlite_autoincrement=True,
    )
    op.create_index(
        "lakeferry_fleet_jobs_by_state", "lakeferry_fleet_jobs", ["state", "wave", "id"]
    )
    op.create_index("lakeferry_fleet_jobs_by_table", "lakeferry_fleet_jobs", ["fleet_table", "id"])
    op.create_table(
        "lakeferry_fleet_history",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("uri", sa.Text),
        sa.Column("job_id", sa.BigInteger),
        sa.Column("detail", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("lakeferry_fleet_history_by_job", "lakeferry_fleet_history", ["job_id", "id"])
    op.create_index("lakeferry_fleet_history_by_kind", "lakeferry_fleet_history", ["kind", "id"])
