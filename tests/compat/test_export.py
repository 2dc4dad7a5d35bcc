"""Exports of real tables in a real lakeFS, read by those whom they are made for.

delta-spark is the judge: what it reads from the exported location, at every version
that is there, is what it reads through lakeFS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import duckdb
import polars
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

import lakeferry
from lakeferry.errors import MissingFile
from lakeferry.export.exporter import Exported
from lakeferry.storage import open_store
from tests.support import engines, lake, opinions
from tests.support.exported_tables import (
    BY_DELTA_RS,
    BY_SPARK,
    VERY_MANY,
    RustTable,
    SparkTable,
    use_gateway,
)
from tests.support.history import (
    Append,
    Checkpoint,
    Delete,
    DeleteRows,
    History,
    Kind,
    Layout,
)
from tests.support.repositories import Repository, new_repository
from tests.support.servers import LakeFSServer, S3Bucket, S3Server
from tests.support.shares import Share

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("unsplit_plans")

# Spark's group decides where they run, so that there is one JVM.
LOCAL = pytest.param("lakefs", marks=pytest.mark.lakefs)
ON_S3 = pytest.param("lakefs_on_s3", marks=pytest.mark.lakefs)
CASES: dict[str, SparkTable | RustTable] = {**BY_SPARK, **BY_DELTA_RS}
CHANGED = ("vectors and changes in odd partitions", "changes in odd partitions by delta-rs")
COMMIT = re.compile(r"_delta_log/(\d{20})\.json")


@dataclass(frozen=True)
class Published:
    """A repository with every table, committed at once, and what became of their exports."""

    repository: Repository
    commit: str
    done: dict[str, Exported] = field(default_factory=dict)

    def export(self, name: str) -> Exported:
        """Export a table of ``main``, unless that was done."""
        if name not in self.done:
            place = lakeferry.Table(
                self.repository.uri(path=name), storage_options=self.repository.options
            )
            done = place.export()
            assert isinstance(done, Exported)
            assert done.changed
            assert done.commit == self.commit
            self.done[name] = done
        return self.done[name]

    def through_lakefs(self, name: str) -> str:
        """Return what Spark calls the committed table at the gateway."""
        return f"s3a://{self.repository.name}/{self.commit}/{name}"


@pytest.fixture(scope="module")
def written(request: pytest.FixtureRequest, spark: SparkSession, versitygw: S3Server) -> Repository:
    """A repository on local disk with every table, by those who write it, through the gateway."""
    from tests.support.spark import use_s3

    repository = new_repository("lakefs", request.getfixturevalue)
    use_s3(spark, versitygw)
    use_gateway(spark, repository)
    for name, case in CASES.items():
        if isinstance(case, SparkTable):
            case.write(spark, f"s3a://{repository.name}/main/{name}")
        else:
            case.write(repository, name)
    return repository


@pytest.fixture(scope="module", params=[LOCAL, ON_S3])
def published(
    request: pytest.FixtureRequest, spark: SparkSession, written: Repository
) -> Published:
    """That one, or one on S3 with the same objects: where the bytes are changes no table."""
    repository = written
    if request.param == "lakefs_on_s3":
        repository = new_repository(request.param, request.getfixturevalue)
        use_gateway(spark, repository)
        for name in CASES:
            repository.upload(written.objects(path=name), path=name)
    return Published(repository, repository.commit())


def spark_path(location: str) -> str:
    """Return what Spark calls a place: it takes paths as they are, and decodes nothing."""
    return unquote(location)


def versions(location: str, options: Mapping[str, str]) -> list[int]:
    """Return the versions that an export has a commit of."""
    found = [COMMIT.fullmatch(each.path) for each in open_store(location, options).list("")]
    return sorted(int(match[1]) for match in found if match)


def by_dataset(orders: ds.Dataset) -> engines.Rows:
    columns = [column.to_pylist() for column in orders.to_table().columns]
    return sorted(zip(*columns, strict=True), key=repr)


def by_polars(orders: ds.Dataset) -> engines.Rows:
    return sorted(polars.scan_pyarrow_dataset(orders).collect().rows(), key=repr)


def by_duckdb(orders: ds.Dataset) -> engines.Rows:
    with duckdb.connect() as connection:
        connection.register("orders", orders)
        return sorted(connection.execute("SELECT * FROM orders").fetchall(), key=repr)


@pytest.mark.parametrize("name", CASES)
def test_spark_reads_from_the_export_what_it_reads_through_lakefs(
    name: str, published: Published, spark: SparkSession, share: Share
) -> None:
    """The newest version, and of the others this run's share."""
    case, done = CASES[name], published.export(name)
    blocks = published.repository.blocks
    assert done.version == case.newest
    all_of_them = versions(done.location, blocks)
    assert all_of_them == list(range(case.first, case.newest + 1))
    there = sorted({*share.each(all_of_them), case.newest})
    expected = engines.by_spark_at(spark, published.through_lakefs(name), there)
    assert expected[case.newest]
    location = spark_path(done.location)
    assert engines.by_spark_at(spark, location, there) == expected
    # Without being told a version, by the hint or by the listing.
    assert engines.by_spark(spark, location) == expected[case.newest]


@pytest.mark.parametrize("name", CASES)
def test_others_read_the_same_from_its_arrow_dataset(
    name: str, published: Published, spark: SparkSession
) -> None:
    case, done = CASES[name], published.export(name)
    repository = published.repository
    committed = repository.uri(published.commit, name)
    for version in range(case.first, case.newest + 1):
        exported = lakeferry.open(done.location, version=version, storage_options=repository.blocks)
        managed = lakeferry.open(committed, version=version, storage_options=repository.options)
        assert by_dataset(exported) == by_dataset(managed), version
    orders = lakeferry.open(done.location, storage_options=repository.blocks)
    expected = engines.by_spark(spark, published.through_lakefs(name))
    for read in (by_dataset, by_polars, by_duckdb):
        assert read(orders) == expected, read


@pytest.mark.parametrize("name", CHANGED)
def test_the_change_feed_of_an_export_is_the_tables_own(
    name: str, published: Published, spark: SparkSession
) -> None:
    case, done = CASES[name], published.export(name)

    def changes(location: str) -> list[tuple[Any, ...]]:
        opinions.forget(spark)
        reader = spark.read.format("delta").option("readChangeFeed", "true")
        feed = reader.option("startingVersion", case.first).load(location)
        # When a version came to be is when its file was written, in another place another time.
        return sorted(map(tuple, feed.drop("_commit_timestamp").collect()), key=repr)

    found = changes(spark_path(done.location))
    assert found == changes(published.through_lakefs(name))
    kinds = {row[-2] for row in found}
    assert {"update_preimage", "update_postimage"} <= kinds


def test_a_shallow_clone_in_lakefs_names_the_bytes_of_its_source(
    lakefs_on_s3: LakeFSServer, spark_s3: SparkSession, request: pytest.FixtureRequest
) -> None:
    """Its log has absolute paths, of the gateway; its own files and the source's are found."""
    repository = new_repository("lakefs_on_s3", request.getfixturevalue)
    use_gateway(spark_s3, repository)
    history = PLAIN_TABLES["vectors in files, a checkpoint in parts"]
    repository.upload(history.objects(with_data=True))
    source, clone = (f"s3a://{repository.name}/main/{path}" for path in ("t", "a clone"))
    spark_s3.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`")
    spark_s3.sql(f"DELETE FROM delta.`{clone}` WHERE id IN (22, 61)")
    repository.commit()
    expected = engines.by_spark_at(spark_s3, clone, [0, 1])
    assert len(expected[1]) == len(expected[0]) - 2
    table = lakeferry.Table(repository.uri(path="a clone"), storage_options=repository.options)
    done = table.export()
    assert isinstance(done, Exported)
    assert engines.by_spark_at(spark_s3, spark_path(done.location), [0, 1]) == expected
    orders = lakeferry.open(done.location, storage_options=repository.blocks)
    assert by_dataset(orders) == expected[1]


def test_spark_reads_objects_that_were_imported_where_they_are(
    lakefs_on_s3: LakeFSServer,
    spark_s3: SparkSession,
    s3_bucket: S3Bucket,
    request: pytest.FixtureRequest,
) -> None:
    repository = new_repository("lakefs_on_s3", request.getfixturevalue)
    history = PLAIN_TABLES["vectors in files, a checkpoint in parts"]
    source = f"{s3_bucket.uri}/da%20ta"
    history.write(open_store(source, s3_bucket.storage_options), with_data=True)
    repository.import_from(f"{s3_bucket.uri}/da ta/")
    table = lakeferry.Table(repository.uri(), storage_options=repository.options)
    done = table.export()
    assert isinstance(done, Exported)
    expected = engines.by_spark(spark_s3, spark_path(source))
    assert expected
    assert engines.by_spark(spark_s3, spark_path(done.location)) == expected


@pytest.mark.parametrize("name", ["one commit", CHANGED[0]])
def test_what_others_do_with_absolute_paths_by_themselves(name: str, published: Published) -> None:
    """delta-rs's own query engine follows them in one bucket; all others look below the table."""
    repository, location = published.repository, published.export(name).location
    blocks = repository.blocks
    expected = by_dataset(lakeferry.open(location, storage_options=blocks))
    assert engines.by_delta_rs(location, options=blocks) == expected
    with pytest.raises(FileNotFoundError, match="No such file"):
        engines.by_polars(location, options=blocks)
    table = DeltaTable(location, storage_options=blocks or None)
    if name == "one commit":
        # Datasets of delta-rs know no deletion vectors, and refuse tables with them.
        with pytest.raises(FileNotFoundError, match=r"exported/main/.*/(s3|file):/"):
            table.to_pyarrow_dataset().to_table()
    if not blocks:
        # For S3 it needs another extension, which is nowhere to be had without its own server.
        with pytest.raises(duckdb.IOException, match=r"exported/main/.*/file:/"):
            engines.by_duckdb(location)


@pytest.mark.lakefs
def test_five_hundred_commits_without_a_checkpoint_are_read(
    spark_s3: SparkSession, request: pytest.FixtureRequest
) -> None:
    repository = new_repository("lakefs_on_s3", request.getfixturevalue)
    use_gateway(spark_s3, repository)
    VERY_MANY.write(repository, "t")
    published = Published(repository, repository.commit())
    done = published.export("t")
    assert versions(done.location, repository.blocks) == list(range(500))
    some = [250, 499]
    expected = engines.by_spark_at(spark_s3, published.through_lakefs("t"), some)
    assert len(expected[499]) > 10
    assert engines.by_spark_at(spark_s3, done.location, some) == expected
    for version in range(0, 500, 99):
        exported = lakeferry.open(done.location, version=version, storage_options=repository.blocks)
        managed = lakeferry.open(
            repository.uri(published.commit), version=version, storage_options=repository.options
        )
        assert exported.count_rows() == managed.count_rows(), version


def test_what_an_export_that_failed_leaves_is_no_table_to_spark(
    lakefs: LakeFSServer, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    repository = new_repository("lakefs", request.getfixturevalue)
    history = History().then(Append(1), Append(1), Append(1))
    repository.upload(history.objects(with_data=True))
    repository.delete(next(name for name in repository.names() if name.startswith("part-00001")))
    commit = repository.commit()
    table = lakeferry.Table(repository.uri(), storage_options=repository.options)
    with pytest.raises(MissingFile):
        table.export()
    with pytest.raises(Exception, match=r"DELTA_|PATH_NOT_FOUND|FileNotFound"):
        engines.by_spark(spark, str(repository.folder / f"_lakefs/exported/main/{commit}/t"))


PLAIN_TABLES = {
    "vectors in files, a checkpoint in parts": History(
        Layout(partitioned=True, deletion_vectors="u")
    ).then(
        Append(6), DeleteRows(2), Checkpoint(Kind.MULTI_PART), DeleteRows(2), Delete(1), Append(1)
    ),
    "inline vectors, a checkpoint with sidecars": History(
        Layout(partitioned=True, deletion_vectors="i", v2_checkpoints=True, column_mapping="name")
    ).then(Append(6), DeleteRows(2), Checkpoint(Kind.V2_PARQUET), DeleteRows(3), Append(1)),
    "absolute paths and vectors, a checkpoint in JSON": History(
        Layout(deletion_vectors="p", v2_checkpoints=True, absolute_paths=True)
    ).then(Append(6), DeleteRows(2), Checkpoint(Kind.V2_JSON), DeleteRows(2), Append(1)),
    "no checkpoint": History(Layout(partitioned=True)).then(Append(3), Delete(1), Append(2)),
}
WAYS = (
    ("disk", "disk", "vectors in files, a checkpoint in parts"),
    ("disk", "disk", "inline vectors, a checkpoint with sidecars"),
    ("disk", "disk", "no checkpoint"),
    ("s3", "s3", "absolute paths and vectors, a checkpoint in JSON"),
    ("s3", "disk", "vectors in files, a checkpoint in parts"),
)


@pytest.mark.parametrize(("source", "target", "name"), WAYS)
def test_a_plain_table_is_read_from_where_it_was_exported_to(
    source: str,
    target: str,
    name: str,
    spark_s3: SparkSession,
    s3_bucket: S3Bucket,
    tmp_path: Path,
) -> None:
    lakes = {"disk": lake.on_disk(tmp_path), "s3": lake.on_s3(tmp_path, s3_bucket)}
    history, options = PLAIN_TABLES[name], dict(lakes["s3"].variables)
    old, new = lakes[source].uri("t%20%C3%A4"), lakes[target].uri("for%20readers/t")
    history.write(open_store(old, options), with_data=True)
    done = lakes["s3"].done("export", old, "--to", new)
    assert (done["location"], done["version"]) == (new, history.newest_version)
    there = versions(new, options)
    assert there[-1] == history.newest_version
    expected = engines.by_spark_at(spark_s3, spark_path(old), there)
    assert expected[history.newest_version]
    assert engines.by_spark_at(spark_s3, spark_path(new), there) == expected
    orders = lakeferry.open(new, storage_options=options)
    assert by_dataset(orders) == expected[history.newest_version]


def test_delta_rs_follows_absolute_paths_in_one_store_and_no_further(
    s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    options = s3_bucket.storage_options
    source, beside = f"{s3_bucket.uri}/t", f"{s3_bucket.uri}/for readers"
    History().then(Append(2)).write(open_store(source, options), with_data=True)
    table = lakeferry.Table(source, storage_options=options)
    expected = by_dataset(lakeferry.open(source, storage_options=options))
    for target in (beside, str(tmp_path / "for readers")):
        table.export(target)
        orders = lakeferry.open(target, storage_options=options)
        assert by_dataset(orders) == expected
    assert engines.by_delta_rs(beside, options=options) == expected
    with pytest.raises(DeltaError, match="No suitable object store"):
        engines.by_delta_rs(str(tmp_path / "for readers"), options=options)
