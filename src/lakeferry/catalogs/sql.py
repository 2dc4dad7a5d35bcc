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

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from lakeferry.catalogs.catalog import (
    VARIABLES,
    CatalogTable,
    EditableCatalog,
    check_table_name,
    taken,
    unless_elsewhere,
)
from lakeferry.errors import CatalogUnavailable, InvalidInput
from lakeferry.log.actions import Metadata
from lakeferry.storage import normalise, rights

_URL_VARIABLE = VARIABLES["sql"]
_PATIENCE_S = 10.0
"""Timeout for another process's lock, and for a server that doesn't answer."""

_POSTGRESQL = ("postgresql", "postgresql+psycopg", "postgres")
_FORMS = "write sqlite:////folder/file or postgresql://user@host/database"
_ATTEMPTS = 5
# Any number that other programs are unlikely to lock; this one spells "lake".
_CREATION_LOCK = 0x6C616B65
_SQLITE_BUSY = (5, 6)
_POSTGRESQL_BUSY = ("55P03", "57014")

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
        patience_s: float = _PATIENCE_S,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Check the URL; open no connection."""
        self._url = _parse(url)
        self._patience_s = patience_s
        self._clock = clock

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> SqlCatalog:
        """Return the catalog that ``LAKEFERRY_SQL_URL`` names, or the user's own."""
        variables = os.environ if environment is None else environment
        return cls(variables.get(_URL_VARIABLE) or default_url(variables))

    @property
    def place(self) -> str:
        """The database, without its password and its options."""
        return self._url.set(query={}).render_as_string(hide_password=True)

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

    def move(self, name: str, location: str) -> CatalogTable:
        """Change the place of a name; its id stays."""
        check_table_name(name)
        values = {"location": normalise(location), "updated_ms": self._clock()}
        with self._existing() as connection:
            if connection is not None:
                connection.execute(sa.update(TABLES).where(_is_named(name)).values(values))
                row = connection.execute(sa.select(TABLES).where(_is_named(name))).one_or_none()
                if row is not None:
                    return _table(row)
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
        with self._failures():
            missing = self._file is not None and not self._file.exists()
        if missing:
            yield None
            return
        with self._transaction() as connection:
            yield connection if sa.inspect(connection).has_table(TABLES.name) else None

    def _make_table(self) -> None:
        with self._existing() as connection:
            if connection is not None:
                return
        with self._failures():
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._transaction() as connection:
            if self._file is None:
                # PostgreSQL's IF NOT EXISTS fails if two connections run it at once.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
            connection.execute(CreateTable(TABLES, if_not_exists=True))

    @cached_property
    def _file(self) -> Path | None:
        """The file of a SQLite database; ``None`` is PostgreSQL."""
        if self._url.drivername != "sqlite":
            return None
        return Path(self._url.database or "")

    @cached_property
    def _engine(self) -> sa.Engine:
        options: dict[str, Any] = {"poolclass": sa.NullPool, "hide_parameters": True}
        if self._file is not None:
            options["connect_args"] = {"timeout": self._patience_s}
        else:
            seconds = max(2, round(self._patience_s))
            bounds = {
                "connect_timeout": seconds,
                # Detects a lost host in the middle of a statement too.
                "tcp_user_timeout": seconds * 1000,
                "keepalives_idle": seconds,
                "keepalives_interval": seconds,
                "keepalives_count": 2,
                # Server-side prepared statements don't work through a connection pooler.
                "prepare_threshold": None,
            }
            given = self._url.query
            options["connect_args"] = {k: v for k, v in bounds.items() if k not in given}
            options["isolation_level"] = "READ COMMITTED"
        try:
            return sa.create_engine(self._url, **options)
        except ImportError as missing:
            raise CatalogUnavailable(
                f"the sql catalog at {self.place} needs a driver that isn't installed",
                cause=str(missing),
                remedy="install it: pip install 'lakeferry[postgresql]'",
                catalog=self.place,
            ) from missing

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Yield a transaction, committed at the end; a duplicate name is an IntegrityError."""
        with self._failures(), self._engine.begin() as connection:
            if self._file is None:
                wait_ms = round(self._patience_s * 1000)
                bounds = {"lock_timeout": wait_ms, "statement_timeout": 2 * wait_ms}
                settings = (sa.func.set_config(k, str(v), True) for k, v in bounds.items())
                connection.execute(sa.select(*settings))
            yield connection

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Convert failures of the database or its disk to one error of ours."""
        try:
            yield
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError) as error:
            problem = getattr(error, "orig", None) or error
            if self._file is not None and (lack := _lacking(self._file, problem)) is not None:
                raise CatalogUnavailable(
                    f"the sql catalog at {self.place} can't be used",
                    cause=f"{lack.cause} (the variables {_URL_VARIABLE} and XDG_DATA_HOME decide "
                    "where the catalog is)",
                    remedy=lack.remedy,
                    catalog=self.place,
                ) from error
            busy = _is_busy(problem)
            raise CatalogUnavailable(
                f"the sql catalog at {self.place} can't be used",
                cause=self._without_secrets(" ".join(str(problem).split())),
                remedy="another process has been writing to it for a long time: try again in a "
                "moment"
                if busy
                else f"check {_URL_VARIABLE}, and that the database answers and accepts your "
                "credentials",
                catalog=self.place,
            ) from error

    def _without_secrets(self, text: str) -> str:
        secrets = [self._url.password, *(self._url.query.get(key) for key in _SECRET_OPTIONS)]
        for secret in secrets:
            if isinstance(secret, str) and secret:
                text = text.replace(secret, "***")
        return text


_SECRET_OPTIONS = ("password", "sslpassword", "passfile")


def default_url(environment: Mapping[str, str]) -> sa.URL:
    """Return the URL of the user's own catalog, in the user's data folder."""
    data = environment.get("XDG_DATA_HOME") or ""
    # The XDG standard says that a relative folder is to be ignored.
    if not data.startswith("/"):
        data = str(Path(environment.get("HOME") or "~").expanduser() / ".local" / "share")
    return sa.URL.create("sqlite", database=str(Path(data) / "lakeferry" / "catalog.sqlite"))


def _parse(text: str | sa.URL) -> sa.URL:
    """Return the parsed URL of a supported database; error texts never repeat the URL."""
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        # The error has neither the URL nor the parser's message, as both may have a password.
        raise InvalidInput(f"{_URL_VARIABLE} isn't a URL of a database", remedy=_FORMS) from None
    if url.drivername in _POSTGRESQL:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise InvalidInput(
            f"{_URL_VARIABLE} names a database that isn't supported: {url.drivername}",
            remedy=_FORMS,
        )
    file = url.database or ":memory:"
    if file == ":memory:" or file.startswith("file:") or url.query:
        raise InvalidInput(
            f"{_URL_VARIABLE} names no file",
            cause="a catalog in memory is lost when the command ends, and options after the file's "
            "name aren't supported",
            remedy=_FORMS,
        )
    return url.set(drivername="sqlite", database=str(Path(file).absolute()))


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


def _lacking(file: Path, problem: BaseException) -> rights.Lacking | None:
    """Return the missing right on a SQLite file, if that caused the problem."""
    code = getattr(problem, "sqlite_errorcode", None)
    reads_only = isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_READONLY
    if not (reads_only or code == sqlite3.SQLITE_CANTOPEN or isinstance(problem, PermissionError)):
        return None
    return rights.missing(str(file), writing=reads_only or not file.exists(), in_place=True)


def _is_busy(problem: BaseException) -> bool:
    """Return whether waiting for a lock timed out, by the drivers' error codes."""
    code = getattr(problem, "sqlite_errorcode", None)
    if isinstance(code, int):
        return code & 0xFF in _SQLITE_BUSY
    return getattr(problem, "sqlstate", None) in _POSTGRESQL_BUSY
