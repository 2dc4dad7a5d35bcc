"""Transactions on the fleet's tables, and the migrations that make these tables.

Invariants:

* reading creates nothing: a database without the fleet's tables is an empty fleet. The first write
  runs the migrations that are missing, in one transaction;
* one process writes at a time, in SQLite as in PostgreSQL (an advisory lock). So entries of the
  history become visible in the order of their ids, and two processes can't migrate at once.
  Transactions are short: nothing is read from a store within one;
* a database of a newer version is refused;
* if the file of a SQLite database is deleted or replaced, open connections aren't used any more.

A run writes often, so connections are kept, unlike those of the catalog. A SQLite database gets a
write-ahead log with the first write: then reading doesn't wait for writing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

from lakeferry.catalogs.sql_database import DATABASE_PATIENCE_S, SqlDatabase
from lakeferry.errors import CatalogUnavailable, IncompatibleVersion
from lakeferry.fleet import migrations
from lakeferry.fleet.fleet_schema import VERSION_TABLE

MIGRATIONS = ("0001",)
"""The known migrations, the oldest first."""
# Any number that other programs are unlikely to lock; this one spells "flee".
_WRITE_LOCK = 0x666C6565
_WRITES = "lakeferry_writes"
_Identity = tuple[int, int, int]


class FleetDatabase:
    """The database of a fleet; connections are opened when they are needed.

    Safe to use from several threads, and after a fork.
    """

    def __init__(self, url: str | sa.URL, *, patience_s: float = DATABASE_PATIENCE_S) -> None:
        """Check the URL; open no connection."""
        self._database = SqlDatabase(url, patience_s=patience_s)
        self._opened: tuple[_Identity, sa.Engine] | None = None
        self._is_current = False
        self._lock = threading.Lock()

    @property
    def place(self) -> str:
        """The database, without its password."""
        return self._database.place

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close all connections."""
        self.close()

    def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        with self._lock:
            opened, self._opened, self._is_current = self._opened, None, False
        if opened is not None:
            opened[1].dispose()

    @contextmanager
    def read(self) -> Iterator[sa.Connection | None]:
        """Yield a transaction that only reads, or ``None`` if there is no fleet yet."""
        if self._database.is_missing():
            yield None
            return
        with self._transaction(writes=False) as connection:
            if not self._is_current:
                revision = _revision(connection)
                if revision is None:
                    yield None
                    return
                self._check(revision)
                self._is_current = revision == MIGRATIONS[-1]
            yield connection

    @contextmanager
    def write(self, *, create: bool = True) -> Iterator[sa.Connection]:
        """Yield a transaction that writes, committed at the end.

        Missing tables are created. Without ``create`` they have to be there: a run whose database
        disappears must not go on with an empty one.
        """
        if create and (not self._is_current or self._database.is_missing()):
            self._migrate()
        if self._database.is_missing():
            raise self._gone()
        with self._transaction(writes=True) as connection:
            if not self._is_current:
                revision = _revision(connection)
                if revision is None:
                    raise self._gone()
                self._check(revision)
                if revision != MIGRATIONS[-1]:
                    _upgrade(connection)
                self._is_current = True
            yield connection

    def _migrate(self) -> None:
        self._database.make_folder()
        if self._database.file is not None:
            self._keep_write_ahead_log()
        with self._transaction(writes=True) as connection:
            revision = _revision(connection)
            if revision is not None:
                self._check(revision)
            if revision != MIGRATIONS[-1]:
                _upgrade(connection)
        self._is_current = True

    def _gone(self) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"the fleet's database {self.place} is gone",
            cause="it was deleted or replaced",
            remedy="restore it from a copy, or scan again: lakeferry fleet scan PREFIX",
            catalog=self.place,
        )

    def _check(self, revision: str) -> None:
        if revision not in MIGRATIONS:
            raise IncompatibleVersion(
                f"the fleet in {self.place} was written by a newer Lakeferry",
                cause=f"its tables have the version {revision}, and this program knows those up "
                f"to {MIGRATIONS[-1]}",
                remedy="install the newest version: pip install --upgrade lakeferry",
                catalog=self.place,
            )

    def _keep_write_ahead_log(self) -> None:
        with self._database.failures():
            connection = self._engine().raw_connection()
            try:
                connection.cursor().execute("PRAGMA journal_mode=WAL")
            finally:
                connection.close()

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[sa.Connection]:
        with self._database.failures():
            engine = self._engine().execution_options(**{_WRITES: writes})
            with engine.begin() as connection:
                self._database.limit(connection)
                if writes and self._database.file is None:
                    lock = sa.func.pg_advisory_xact_lock(_WRITE_LOCK)
                    connection.execute(sa.select(lock))
                yield connection

    def _engine(self) -> sa.Engine:
        """Return the engine of this process for the file that is there now."""
        with self._lock:
            identity = self._identity()
            if self._opened is not None:
                known, engine = self._opened
                if known == identity:
                    return engine
                # After a fork the connections belong to the other process.
                engine.dispose(close=known[0] == os.getpid())
                self._is_current = False
            engine = self._database.engine(pool_pre_ping=self._database.file is None)
            if self._database.file is not None:
                _begin_explicitly(engine)
            self._opened = (identity, engine)
            return engine

    def _identity(self) -> _Identity:
        """Return which process uses which file; an empty file is created if there is none."""
        if self._database.file is None:
            return (os.getpid(), 0, 0)
        self._database.file.touch(exist_ok=True)
        found = self._database.file.stat()
        return (os.getpid(), found.st_dev, found.st_ino)


def _begin_explicitly(engine: sa.Engine) -> None:
    """Have transactions of SQLite begin at their first statement, and writers wait there.

    Python's own driver begins them late, and commits before it changes a schema.
    """

    @sa.event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _revision(connection: sa.Connection) -> str | None:
    """Return the last migration of a database, or ``None`` if it has no fleet."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    versions = sa.table(VERSION_TABLE, sa.column("version_num"))
    found = connection.execute(sa.select(versions.c.version_num)).scalar_one_or_none()
    return None if found is None else str(found)


def _upgrade(connection: sa.Connection) -> None:
    # Imported late: only the first write of a database needs it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    folder = str(Path(migrations.__file__).parent)
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
