"""A Spark session with our client, and tables of the catalog that moved."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import write_deltalake

from lakeferry import spark as modern
from tests.support.redirected_tables import MOVED_ON, ROWS, Places, create, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY = len(ROWS) + 1
"""Rows at a target; its source has one fewer."""


@dataclass(frozen=True)
class Moved:
    """A session with our client, and tables of its schema that moved.

    ``both`` and ``ours`` are writer-only; stock Spark follows the first one. ``locked``
    is reader-writer: stock Spark can't open it.
    """

    session: SparkSession
    schema: str
    places: dict[str, Places]

    def count(self, text: str, args: Any = None) -> int:
        """Return how many rows a query has."""
        return int(self.session.sql(text, args).count())

    def views(self) -> SparkSession:
        """Return a session without our client, for views that name the old places."""
        other = self.session.newSession()
        other.sql(f"USE {self.schema}")
        return other


@contextmanager
def moved_session(spark: SparkSession, folder: Path) -> Iterator[Moved]:
    """Give such a session, and take it all away again."""
    schema = f"moved_{uuid.uuid4().hex}"
    spark.sql(f"CREATE DATABASE {schema}")
    options: dict[str, dict[str, Any]] = {
        "both": {"mode": "writer-only"},
        "ours": {"mode": "writer-only", "dialects": ("rfc",)},
        "locked": {"mode": "reader-writer"},
    }
    places = {}
    for name, given in options.items():
        places[name] = create(folder, name)
        spark.sql(f"CREATE TABLE {schema}.{name} USING delta LOCATION '{places[name].source}'")
        places[name].move(**given)
        write_deltalake(str(places[name].target), rows([MOVED_ON]), mode="append")
    session = spark.newSession()
    modern.install(session)
    session.sql(f"USE {schema}")
    yield Moved(session, schema, places)
    modern.uninstall(session)
    spark.sql(f"DROP DATABASE {schema} CASCADE")
