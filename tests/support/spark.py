"""Spark with Delta Lake in the tests' own process.

A process has at most one Spark context, so tests share one session (the fixture
``spark``). Settings that are about S3 are Hadoop's, and may be given later:
``use_s3`` points ``s3a://`` and ``s3://`` at a server, and each bucket keeps the
server that it was first opened with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support import java
from tests.support.servers import S3Server

_LOG4J = Path(__file__).with_name("log4j2.properties")


def session(
    jars: Path | None,
    folder: Path,
    *,
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] = java.OPTIONS,
) -> SparkSession:
    """Start Spark with the jars of a folder; what it writes stays in ``folder``.

    The jars are on the class path rather than in ``spark.jars``, which copies
    each of them at every start, or ``spark.jars.packages``, which resolves them. Without a folder
    it is a Spark without Delta Lake.
    """
    delta = {
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.executor.extraClassPath": f"{jars}/*",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    }
    options = [
        *java_options,
        f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
        f"-Dderby.system.home={folder}",
        f"-Djava.io.tmpdir={folder}",
    ]
    builder = SparkSession.builder.master(master).appName("lakeferry-tests")
    for name, value in {
        **({} if jars is None else delta),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        # The default of 200, and Delta's of 50, make a count take a minute.
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        # VACUUM and DROP FEATURE list with as many tasks as this says, and that is 10,000.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        # Tests ask many questions about a few rows: compiling a plan takes longer than they do.
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def unsplit(spark: SparkSession) -> Iterator[None]:
    """Have a session not split its plans up for a while: for queries of a few rows each."""
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, kept in before.items():
        if kept is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, kept)


def s3_settings(server: S3Server) -> dict[str, str]:
    """Hadoop's settings for a server, for ``s3a://`` and ``s3://`` paths."""
    return {
        "fs.s3a.endpoint": server.endpoint,
        "fs.s3a.endpoint.region": server.region,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.access.key": server.access_key,
        "fs.s3a.secret.key": server.secret_key,
        "fs.s3a.attempts.maximum": "3",
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }


def use_s3(spark: SparkSession, server: S3Server) -> None:
    """Have a running session find buckets on this server from now on."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in s3_settings(server).items():
        hadoop.set(name, value)
