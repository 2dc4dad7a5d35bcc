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

FOLLOWED = [
    "WITH {t} AS (SELECT * FROM {t}) SELECT * FROM {t}",
    "SELECT * FROM (WITH x AS (SELECT * FROM {t}) SELECT * FROM x)",
    "SELECT * FROM range(11) WHERE id IN (WITH {t} AS (SELECT * FROM {t}) SELECT id FROM {t})",
    "SELECT * FROM ({t})",
    "SELECT * FROM ({t} JOIN {t} b USING (id))",
    "FROM {t} |> WHERE {t}.id >= 0",
    "TABLE {t}",
    "SELECT /*+ BROADCAST({t}) */ {t}.id FROM {t} TABLESAMPLE (99 ROWS) -- all",
    "SELECT id FROM {t} WHERE id > 0 UNION SELECT min(id) FROM (SELECT * FROM {t}) x",
    "EXECUTE IMMEDIATE 'SELECT * FROM {t}'",
    "EXECUTE IMMEDIATE 'SELECT * ' || 'FROM {t}'",
    "BEGIN IF EXISTS (SELECT 1 FROM {t} WHERE id = 10) THEN SELECT * FROM {t}; END IF; END",
    "SELECT * FROM IDENTIFIER('{t}')",
    "SELECT * FROM IDENTIFIER(lower('{t}')) AS x WHERE x.id >= 0",
    "SELECT '😀' AS smile, delta.`{p}`.id FROM delta.`{p}`",
    "SELECT {s}.{t}.id FROM {t} WHERE spark_catalog.{s}.{t}.id >= 0",
    "SELECT {s}.{t}.* FROM {s}.{t} ORDER BY {s}.{t}.id",
    "SELECT `{p}`.id FROM delta.`{p}`",
]
"""Statements that read all rows of the table {t} of the schema {s}, at {p}."""


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
