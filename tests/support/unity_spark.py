"""Spark with the connector of a real Unity Catalog.

Both have to be built first. So what needs them takes part only if variables say where they are:
``LAKEFERRY_UC_URL`` (with ``LAKEFERRY_UC_TOKEN``), and ``LAKEFERRY_UC_SPARK_JARS`` for a folder
with all jars that Spark needs: those of Delta Lake and those of the connector. If the catalog has
its tables in a bucket, ``AWS_ENDPOINT_URL`` and ``AWS_REGION`` say where that is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lakeferry.spark import session_catalogs
from tests.support.unity_server import UnityServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REAL = bool(os.environ.get("LAKEFERRY_UC_URL") and os.environ.get("LAKEFERRY_UC_SPARK_JARS"))


def use_unity(session: SparkSession, server: UnityServer) -> None:
    """Have a session find the tables of the server's catalog by their names."""
    setting = f"spark.sql.catalog.{server.schema.partition('.')[0]}"
    session.conf.set(setting, session_catalogs.CONNECTOR)
    session.conf.set(f"{setting}.uri", server.url)
    session.conf.set(f"{setting}.token", server.token or "")
    if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
        hadoop = session.sparkContext._jsc.hadoopConfiguration()
        for name, value in {
            "fs.s3a.endpoint": endpoint,
            "fs.s3a.endpoint.region": os.environ["AWS_REGION"],
            "fs.s3a.path.style.access": "true",
            "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        }.items():
            hadoop.set(name, value)
