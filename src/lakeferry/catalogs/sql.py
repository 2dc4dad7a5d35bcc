"""Lakeferry's own catalog: table names in SQLite or PostgreSQL.

``LAKEFERRY_SQL_URL`` is the database; the default is a SQLite file in the user's
data folder. Invariants:

* reading writes nothing: a database without our table, or a missing file, is an
  empty catalog. The first registration creates the table;
* every change is one atomic statement, so that exactly one of several processes
  that register the same name wins;
* nothing waits for ever: connecting, waiting for a lock and each statement have
  timeouts;
* every failure of the database is
  :class:`~lakeferry.errors.CatalogUnavailable`, and no message contains a password.

Each call opens its own connection and closes it: catalogs are used seldom, from
many threads and processes, and an open connection could block others.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateTable

from lakeferry.catalogs.catalog import (
    CatalogTable,
    EditableCatalog,
    check_table_name,
    moved_meanwhile,
    taken,
    unless_elsewhere,
)
from lakeferry.catalogs.sql_database import DATABASE_PATIENCE_S, SqlDatabase, database_url
from lakeferry.errors import CatalogUnavailable
from lakeferry.log.actions import Metadata
from lakeferry.storage import normalise

_ATTEMPTS = 5
# Any number that other programs are unlikely to lock; this one spells "lake".
_CREATION_LOCK = 0x6C616B65

TABLES = sa.Table(
    "lakeferry_tables",
    sa.MetaData(),
    sa.Column("catalog", sa.Text, nullable=False),
    sa.Column("schema", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("location", sa.Text, nullable=False),
    sa.Column("table_id", sa.Uuid, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("catalog", "schema", "name"),
    sa.UniqueConstraint("table_id"),
)


class SqlCatalog(EditableCatalog):
    """A catalog in a database. Names are case-sensitive.

    ``url`` is an SQLAlchemy URL; nothing is sent before the first call.
    """

    kind = "sql"

    def __init__(
        self,
        url: str | sa.URL,
        *,
        patience_s: float = DATABASE_PATIENCE_S,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Check the URL; open no connection."""
        self._database = SqlDatabase(url, patience_s=patience_s)
        self._clock = clock

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> SqlCatalog:
        """Return the catalog that ``LAKEFERRY_SQL_URL`` names, or the user's own."""
        return cls(database_url(environment))

    @property
    def place(self) -> str:
        """The database, without its password and its options."""
        return self._database.place

    def find(self, name: str) -> CatalogTable | None:
        """Return the table of that name."""
        check_table_name(name)
        return self._select(_is_named(name))

    def find_id(
        self,
        table_id: str,
        metastore_id: str | None = None,
        once: str | None = None,  # noqa: ARG002
    ) -> CatalogTable | None:
        """Return the table with that id; ``None`` if a metastore is given, as we have none."""
        try:
            wanted = uuid.UUID(table_id)
        except ValueError:
            return None
        return self._select(TABLES.c.table_id == wanted) if metastore_id is None else None

    def register(self, name: str, location: str, metadata: Metadata | None = None) -> CatalogTable:  # noqa: ARG002
        """Register the table at ``location`` under a name; one of several concurrent calls wins."""
        check_table_name(name)
        place = normalise(location)
        self._make_table()
        for _ in range(_ATTEMPTS):
            if (found := self.find(name)) is not None:
                return unless_elsewhere("sql", found, place)
            # Another process may have taken the name just now; then it is read again.
            with suppress(IntegrityError):
                return self._insert(name, place)
        raise CatalogUnavailable(
            f"the name {name} keeps changing in the sql catalog at {self.place}",
            cause="other processes register and unregister it at the same time",
            remedy="try again",
            catalog=self.place,
        )

    def move(self, name: str, location: str, was: str | None = None) -> CatalogTable:
        """Change the place of a name in one statement; its id stays."""
        check_table_name(name)
        place = normalise(location)
        condition = _is_named(name)
        if was is not None:
            condition &= TABLES.c.location.in_((normalise(was), place))
        values = {"location": place, "updated_ms": self._clock()}
        with self._existing() as connection:
            if connection is not None:
                connection.execute(sa.update(TABLES).where(condition).values(values))
                row = connection.execute(sa.select(TABLES).where(_is_named(name))).one_or_none()
                if row is not None:
                    found = _table(row)
                    if found.location != place:
                        raise moved_meanwhile("sql", found)
                    return found
        raise self.missing(name)

    def tables(self, prefix: str) -> list[CatalogTable]:
        """Return the tables whose name begins with a text."""
        with self._existing() as connection:
            if connection is None:
                return []
            found = map(_table, connection.execute(sa.select(TABLES)))
            return sorted((one for one in found if one.name.startswith(prefix)), key=_by_name)

    def rename(self, table: CatalogTable, new_name: str) -> CatalogTable:
        """Give a table another name in one statement, in any catalog and schema."""
        check_table_name(new_name)
        columns = dict(zip(("catalog", "schema", "name"), new_name.split("."), strict=True))
        values = {**columns, "updated_ms": self._clock()}
        try:
            with self._existing() as connection:
                if connection is not None:
                    connection.execute(sa.update(TABLES).where(_has_id(table)).values(values))
        except IntegrityError:
            found = self.find(new_name)
            if found is not None and found.table_id != table.table_id:
                raise taken("sql", new_name, found) from None
        now = self.find_id(table.table_id)
        if now is None:
            raise self.missing(table.name)
        return now

    def remove(self, table: CatalogTable) -> bool:
        """Delete a table's name in one statement."""
        with self._existing() as connection:
            if connection is None:
                return False
            return connection.execute(sa.delete(TABLES).where(_has_id(table))).rowcount > 0

    def unregister(
        self, name: str, location: str | None = None, *, table_id: str | None = None
    ) -> bool:
        """Delete a name in one statement; return whether it existed."""
        check_table_name(name)
        found = self.find_id(table_id) if table_id is not None else None
        condition = _is_named(name) if found is None else _has_id(found)
        if location is not None:
            condition &= TABLES.c.location == normalise(location)
        with self._existing() as connection:
            if connection is None:
                return False
            return connection.execute(sa.delete(TABLES).where(condition)).rowcount > 0

    def _select(self, condition: sa.ColumnElement[bool]) -> CatalogTable | None:
        with self._existing() as connection:
            if connection is None:
                return None
            row = connection.execute(sa.select(TABLES).where(condition)).one_or_none()
            return _table(row) if row is not None else None

    def _insert(self, name: str, location: str) -> CatalogTable:
        catalog, schema, table = name.split(".")
        table_id, now = uuid.uuid4(), self._clock()
        row = {
            "catalog": catalog,
            "schema": schema,
            "name": table,
            "location": location,
            "table_id": table_id,
            "created_ms": now,
            "updated_ms": now,
        }
        with self._transaction() as connection:
            connection.execute(sa.insert(TABLES).values(row))
        return CatalogTable(name, location, str(table_id))

    @contextmanager
    def _existing(self) -> Iterator[sa.Connection | None]:
        """Yield a transaction, or ``None`` if nothing was registered yet."""
        if self._database.is_missing():
            yield None
            return
        with self._transaction() as connection:
            yield connection if sa.inspect(connection).has_table(TABLES.name) else None

    def _make_table(self) -> None:
        with self._existing() as connection:
            if connection is not None:
                return
        self._database.make_folder()
        with self._transaction() as connection:
            if self._database.file is None:
                # PostgreSQL's IF NOT EXISTS fails if two connections run it at once.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
            connection.execute(CreateTable(TABLES, if_not_exists=True))

    @cached_property
    def _engine(self) -> sa.Engine:
        return self._database.engine(poolclass=sa.NullPool)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Yield a transaction, committed at the end; a duplicate name is an IntegrityError."""
        with self._database.failures(), self._engine.begin() as connection:
            self._database.limit(connection)
            yield connection


def _is_named(name: str) -> sa.ColumnElement[bool]:
    catalog, schema, table = name.split(".")
    columns = TABLES.c
    return sa.and_(columns.catalog == catalog, columns.schema == schema, columns.name == table)


def _has_id(table: CatalogTable) -> sa.ColumnElement[bool]:
    return TABLES.c.table_id == uuid.UUID(table.table_id)


def _by_name(table: CatalogTable) -> str:
    return table.name


def _table(row: sa.Row[Any]) -> CatalogTable:
    name = f"{row.catalog}.{row.schema}.{row.name}"
    return CatalogTable(name, normalise(row.location), str(row.table_id))
