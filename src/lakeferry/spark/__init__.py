"""The client for PySpark: follows redirects before Spark opens a table.

::

    import lakeferry.spark

    lakeferry.spark.install(spark)
    spark.read.format("delta").load("s3a://warehouse/orders")     # read where it is now
    spark.sql("DELETE FROM delta.`s3a://warehouse/orders` WHERE id = 7")

    lakeferry.spark.read(spark, "s3a://warehouse/orders")         # without installing anything

After :func:`install` a session follows redirects by itself in ``read``, ``write``,
``readStream``, ``writeStream``, ``table``, ``writeTo``, ``DeltaTable`` and in SQL,
for paths and for tables of Spark's catalog whose location is a redirected one.
Everything else reaches Spark unchanged. We find a table's place by reading its log with
:func:`lakeferry.redirect.resolve.resolve_table`, and find the tables of a statement with Spark's
own parser. A statement that would read a redirected table at its old place is refused
(:class:`~lakeferry.errors.RedirectNotFollowed`).

A redirect may lead to a table that Unity Catalog manages, which has no path that Spark could open:
what is said of the old path is said of the table's name then. The session needs Unity Catalog's
Spark connector.

A no-redirect rule for the session's ``spark.app.name`` is obeyed: the session stays at the
source, and commits only operations that the rule allows.

A session of Spark Connect (Databricks, ``pyspark-client``, ``SparkSession.builder.remote``) follows
redirects, too: in the plans that it sends. docs/spark.md says what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakeferry.errors import InvalidInput
from lakeferry.packages import naming_missing_packages

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from lakeferry.spark.session_tables import SessionTables

__all__ = ["for_path", "install", "read", "uninstall", "write"]


def read(
    spark: SparkSession,
    path: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return the table at ``path``, or where its redirect leads; ``options`` are the reader's."""
    place = _client(spark, storage_options).moved_path(path)
    reader = spark.read.format("delta").options(**options)
    if place is None or not place.name:
        return reader.load(path if place is None else place.path)
    if _is_connect(spark):
        return reader.options(**place.read_options).table(place.identifier)
    from lakeferry.spark.named_table_access import read_by_name

    return read_by_name(reader, place)


def write(
    frame: DataFrame,
    path: str,
    *,
    mode: str | None = None,
    partition_by: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Write to the table at ``path``, or where its redirect leads; ``options`` are the writer's.

    Raises :class:`~lakeferry.errors.RedirectInProgress` while a redirect is being
    set up or withdrawn.
    """
    place = _client(frame.sparkSession, storage_options).moved_path(path, "WRITE")
    writer = frame.write.format("delta").mode(mode).options(**options)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    if place is None or not place.name:
        writer.save(path if place is None else place.path)
        return
    if _is_connect(frame.sparkSession):
        writer.saveAsTable(place.identifier)
        return
    from lakeferry.spark.named_table_access import write_by_name

    write_by_name(writer, place)


def for_path(
    spark: SparkSession, path: str, *, storage_options: Mapping[str, str] | None = None
) -> DeltaTable:
    """Return the ``DeltaTable`` at ``path``, or where its redirect leads."""
    from delta.tables import DeltaTable

    place = _client(spark, storage_options).moved_path(path)
    if place is None or not place.name:
        return DeltaTable.forPath(spark, path if place is None else place.path)
    if _is_connect(spark):
        return DeltaTable.forName(spark, place.newest(path))
    from lakeferry.spark.named_table_access import named_delta_table

    table: DeltaTable = named_delta_table(DeltaTable, spark, place.newest(path))
    return table


@naming_missing_packages()
def install(session: SparkSession, *, storage_options: Mapping[str, str] | None = None) -> None:
    """Make a session follow redirects, until :func:`uninstall`.

    ``storage_options``, spelled as in delta-rs, are for reading logs; without them credentials
    come from the environment. They stay in this process. Installing again only replaces them.
    Sessions that streaming clones from this one follow redirects too; others don't.

    Unless it is set already, this also enables Delta's own option to follow writer-only
    redirects, which covers tables that views and functions of the JVM name.
    """
    if _is_connect(session):
        from lakeferry.spark import connect_session

        connect_session.add_connect_client(session, storage_options or {})
        return
    from lakeferry.spark import patches

    patches.add_client(session, storage_options or {})


def uninstall(session: SparkSession) -> None:
    """Restore a session; after the last one, PySpark's classes are restored, too."""
    if _is_connect(session):
        from lakeferry.spark import connect_session

        connect_session.remove_connect_client(session)
        return
    from lakeferry.spark import patches

    patches.remove_client(session)


@naming_missing_packages()
def _client(spark: SparkSession, storage_options: Mapping[str, str] | None) -> SessionTables:
    if _is_connect(spark):
        from lakeferry.spark import connect_session

        return connect_session.connect_client(spark, storage_options)
    from lakeferry.spark import session_clients
    from lakeferry.spark.client import Client

    if storage_options is None:
        return session_clients.client_of(spark) or Client(spark)
    return Client(spark, storage_options)


def _is_connect(session: Any) -> bool:
    """Return True for a session of Spark Connect; refuse what is no session at all."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith(("pyspark", "py4j")):
            raise
        raise InvalidInput(
            "PySpark isn't installed",
            cause=str(missing),
            remedy="pip install 'lakeferry[spark]'",
        ) from missing
    if type(session).__module__ == "pyspark.sql.connect.session":
        return True
    if not isinstance(session, SparkSession):
        raise InvalidInput(
            f"{type(session).__name__} of {type(session).__module__} isn't a session that "
            "Lakeferry can use",
            cause="Lakeferry needs a session of PySpark, with a driver in this process or with "
            "Spark Connect",
            remedy="read the place that lakeferry.resolve(path) returns",
        )
    return False
