"""The database of the catalog and of the fleet: its URL, its time limits, and how it fails.

``LAKEFERRY_SQL_URL`` names it: SQLite or PostgreSQL; the default is a SQLite file in the user's
data folder. Every failure of the database is :class:`~lakeferry.errors.CatalogUnavailable`, and no
message contains a password. Connecting, waiting for a lock and each statement have time limits.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from lakeferry.catalogs.catalog import VARIABLES
from lakeferry.errors import CatalogUnavailable, InvalidInput
from lakeferry.storage import rights

_URL_VARIABLE = VARIABLES["sql"]
DATABASE_PATIENCE_S = 10.0
"""Timeout for another process's lock, and for a server that doesn't answer."""

_POSTGRESQL = ("postgresql", "postgresql+psycopg", "postgres")
_FORMS = "write sqlite:////folder/file or postgresql://user@host/database"
_SQLITE_BUSY = (5, 6)
_POSTGRESQL_BUSY = ("55P03", "57014")
_SECRET_OPTIONS = ("password", "sslpassword", "passfile")


class SqlDatabase:
    """A database by its SQLAlchemy URL; nothing is sent before the first connection."""

    def __init__(self, url: str | sa.URL, *, patience_s: float = DATABASE_PATIENCE_S) -> None:
        """Check the URL; open no connection."""
        self._url = _parse(url)
        self._patience_s = patience_s
        self.file = Path(self._url.database or "") if self._url.drivername == "sqlite" else None
        """The file of a SQLite database; ``None`` is PostgreSQL."""

    @property
    def place(self) -> str:
        """The database, without its password and its options."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    def is_missing(self) -> bool:
        """Return whether the file of a SQLite database doesn't exist."""
        with self.failures():
            return self.file is not None and not self.file.exists()

    def make_folder(self) -> None:
        """Create the folder of a SQLite database."""
        with self.failures():
            if self.file is not None:
                self.file.parent.mkdir(parents=True, exist_ok=True)

    def engine(self, **options: Any) -> sa.Engine:
        """Return an engine whose connections have time limits; ``options`` are SQLAlchemy's."""
        chosen: dict[str, Any] = {"hide_parameters": True, **options}
        if self.file is not None:
            chosen["connect_args"] = {"timeout": self._patience_s}
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
            chosen["connect_args"] = {k: v for k, v in bounds.items() if k not in given}
            chosen["isolation_level"] = "READ COMMITTED"
        try:
            return sa.create_engine(self._url, **chosen)
        except ImportError as missing:
            raise CatalogUnavailable(
                f"the sql catalog at {self.place} needs a driver that isn't installed",
                cause=str(missing),
                remedy="install it: pip install 'lakeferry[postgresql]'",
                catalog=self.place,
            ) from missing

    def limit(self, connection: sa.Connection) -> None:
        """Set the time limits of a transaction that has begun."""
        if self.file is None:
            wait_ms = round(self._patience_s * 1000)
            bounds = {"lock_timeout": wait_ms, "statement_timeout": 2 * wait_ms}
            settings = (sa.func.set_config(k, str(v), True) for k, v in bounds.items())
            connection.execute(sa.select(*settings))

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Convert failures of the database or its disk to one error of ours."""
        try:
            yield
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError) as error:
            problem = getattr(error, "orig", None) or error
            if self.file is not None and (lack := _lacking(self.file, problem)) is not None:
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


def database_url(environment: Mapping[str, str] | None = None) -> str | sa.URL:
    """Return the URL that ``LAKEFERRY_SQL_URL`` has, or that of the user's own catalog."""
    variables = os.environ if environment is None else environment
    return variables.get(_URL_VARIABLE) or default_url(variables)


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
