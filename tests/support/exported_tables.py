"""Tables to be exported, made through lakeFS's gateway by the engines that people write with.

Each is small and has one or more of the things that an export can get wrong; logs,
names and checkpoints are those engines' own. Only the table of very many commits is
built by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from tests.support.history import Append, Delete, DeleteRows, History, Layout, Optimize
from tests.support.repositories import Repository

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD = ("a b", "ü%/:x", "1+1=2?#&", "'\"", "%20", "日本")
"""Values that are spelled in another way as soon as they are part of a path."""


@dataclass(frozen=True)
class SparkTable:
    """A table that delta-spark writes: statements about ``{t}``, under settings of its own.

    ``first`` is the version of its last checkpoint, where an export begins.
    """

    schema: str
    statements: tuple[str, ...]
    first: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    partition: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """The version that the last statement makes."""
        return len(self.statements)

    def write(self, spark: SparkSession, location: str) -> None:
        """Write it."""
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in self.properties.items())
        with _set(spark, self.settings):
            spark.sql(
                f"CREATE TABLE delta.`{location}` {self.schema.format(using='USING delta')}"
                + (f" PARTITIONED BY ({self.partition})" if self.partition else "")
                + (f" TBLPROPERTIES ({properties})" if properties else "")
            )
            for statement in self.statements:
                spark.sql(statement.format(t=f"delta.`{location}`"))


@dataclass(frozen=True)
class RustTable:
    """A table that delta-rs writes, or bytes that are uploaded, with ``newest`` as last version."""

    write: Callable[[Repository, str], None]
    first: int
    newest: int


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def use_gateway(spark: SparkSession, repository: Repository) -> None:
    """Have a running session find the repository at lakeFS's gateway, as a bucket of its own."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in {
        "endpoint": repository.server.endpoint,
        "access.key": repository.server.access_key,
        "secret.key": repository.server.secret_key,
        "path.style.access": "true",
    }.items():
        hadoop.set(f"fs.s3a.bucket.{repository.name}.{name}", value)


# --- delta-spark --------------------------------------------------------------------


def _values(first: int) -> str:
    """Return an INSERT of three rows for each odd value, and for none."""
    texts = ["'" + value.replace("'", "\\'").replace('"', '\\"') + "'" for value in ODD]
    rows = [
        f"({first + 3 * n + m}, 'n{m}', {text})"
        for n, text in enumerate([*texts, "NULL"])
        for m in range(3)
    ]
    return f"INSERT INTO {{t}} VALUES {', '.join(rows)}"


INSERT = "INSERT INTO {t} SELECT id, concat('n', id), id % 3 FROM range(12)"
PLAIN = "(id BIGINT, name STRING, part BIGINT) {using}"
BY_SPARK = {
    "one commit": SparkTable("{using} AS SELECT id, concat('n', id) AS name FROM range(7)", ()),
    "vectors and changes in odd partitions": SparkTable(
        "(id BIGINT, name STRING, `p%ärt` STRING) {using}",
        (
            _values(0),
            "DELETE FROM {t} WHERE id IN (0, 8)",
            _values(100),
            "UPDATE {t} SET name = 'new' WHERE id IN (4, 103)",
            "DELETE FROM {t} WHERE id IN (1, 5, 12) OR `p%ärt` = '%20'",
            "UPDATE {t} SET `p%ärt` = 'a b' WHERE id IN (7, 118)",
        ),
        4,
        {
            "delta.enableDeletionVectors": "true",
            "delta.enableChangeDataFeed": "true",
            "delta.checkpointInterval": "4",
        },
        "`p%ärt`",
    ),
    "mapped columns, a checkpoint with sidecars": SparkTable(
        PLAIN,
        (
            INSERT,
            "ALTER TABLE {t} RENAME COLUMN name TO `full name`",
            "ALTER TABLE {t} RENAME COLUMN part TO `p=t`",
            "DELETE FROM {t} WHERE id = 3",
            "INSERT INTO {t} VALUES (1000, 'new', 7)",
            "DELETE FROM {t} WHERE id = 4",
        ),
        4,
        {
            "delta.columnMapping.mode": "name",
            "delta.enableDeletionVectors": "true",
            "delta.checkpointPolicy": "v2",
            "delta.checkpointInterval": "4",
        },
        "part",
        {"spark.databricks.delta.checkpointV2.topLevelFileFormat": "parquet"},
    ),
    "a checkpoint in JSON with sidecars": SparkTable(
        PLAIN,
        (INSERT, INSERT, "DELETE FROM {t} WHERE id > 7"),
        2,
        {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"},
        "part",
        {"spark.databricks.delta.checkpointV2.topLevelFileFormat": "json"},
    ),
    "a checkpoint in parts": SparkTable(
        PLAIN,
        (INSERT, INSERT, "DELETE FROM {t} WHERE id = 5"),
        2,
        {"delta.checkpointInterval": "2"},
        "part",
        {"spark.databricks.delta.checkpoint.partSize": "3"},
    ),
}


# --- delta-rs -----------------------------------------------------------------------


def _odd_partitions(repository: Repository, path: str) -> None:
    """Six versions with odd names, an update with its change files, a checkpoint of the fourth."""
    options, location = repository.gateway_options, repository.gateway_uri(path=path)
    names = [*ODD, None]
    rows = pa.table(
        {
            "id": pa.array(range(14), pa.int64()),
            "p art": pa.array(names * 2, pa.string()),
            "day": [date(2024, 1, 1 + n % 2) for n in range(14)],
        }
    )
    write_deltalake(
        location,
        rows,
        partition_by=["p art", "day"],
        configuration={"delta.enableChangeDataFeed": "true"},
        storage_options=options,
    )
    write_deltalake(location, rows.slice(0, 5), mode="append", storage_options=options)
    repository.delta_rs(path=path).update({"id": "id + 100"}, predicate="id = 3")
    repository.delta_rs(path=path).delete("id = 4")
    repository.delta_rs(path=path).create_checkpoint()
    write_deltalake(location, rows.slice(5, 4), mode="append", storage_options=options)
    repository.delta_rs(path=path).update({"id": "id + 200"}, predicate="id < 3")


def _many_appends(repository: Repository, path: str) -> None:
    """Sixty versions of delta-rs, some of which delete or compact, and a checkpoint of one."""
    for version in range(60):
        if version % 10 == 9:
            repository.delta_rs(path=path).optimize.compact()
        elif version % 10 == 5:
            repository.delta_rs(path=path).delete(f"id = {version - 3}")
        else:
            rows = pa.table({"id": pa.array([version], pa.int64())})
            write_deltalake(
                repository.gateway_uri(path=path),
                rows,
                mode="append",
                storage_options=repository.gateway_options,
            )
        if version == 52:
            repository.delta_rs(path=path).create_checkpoint()


MANY = History(Layout(partitioned=True, deletion_vectors="u")).then(
    Append(8),
    *(
        (Append(2), DeleteRows(3), Optimize(2), Append(1), Delete(2))[version % 5]
        for version in range(498)
    ),
)
"""Five hundred versions and no checkpoint; never more than a dozen files at a time."""


def _very_many_commits(repository: Repository, path: str) -> None:
    repository.upload(MANY.objects(repository.uri(path=path), with_data=True), path=path)


BY_DELTA_RS = {
    "changes in odd partitions by delta-rs": RustTable(_odd_partitions, 3, 5),
    "60 commits": RustTable(_many_appends, 52, 59),
}
VERY_MANY = RustTable(_very_many_commits, 0, 499)
