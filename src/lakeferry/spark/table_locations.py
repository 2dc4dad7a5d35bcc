"""How Spark writes locations, and where its catalog's tables are.

Spark takes a path literally (``%`` means ``%``), and a path without a scheme is on the default
file system of its configuration. Our URIs are percent-encoded once and have one scheme for S3.
This module converts both ways with Hadoop's own classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lakeferry.engines.spark.spark_calls import session_class
from lakeferry.errors import InvalidInput
from lakeferry.spark.jvm_refusals import JVM_SAYS_NO
from lakeferry.spark.sql_tokens import CATALOG, is_delta_format, spell_path
from lakeferry.storage import normalise
from lakeferry.storage.uris import split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


METRIC_VIEW = "METRIC_VIEW"
VIEWS = ("VIEW", METRIC_VIEW)
"""Table types of views in the catalog."""


def uri_of_location(spark: SparkSession, path: str) -> str | None:
    """Return the URI that a path means to Spark; ``None`` if we can't look there."""
    jvm, session = _jvm(spark)
    try:
        found = jvm.org.apache.hadoop.fs.Path(path)
        if found.toUri().getScheme() is None:
            settings = session.sessionState().newHadoopConf()
            found = jvm.org.apache.hadoop.fs.FileSystem.get(settings).makeQualified(found)
    except JVM_SAYS_NO:
        return None
    return ours(found.toUri())


def spelled(spark: SparkSession, uri: str) -> str:
    """Return our URI as a path for Spark."""
    place = split(uri)
    scheme = place.scheme
    if scheme == "s3":
        settings = _jvm(spark)[1].sessionState().newHadoopConf()
        scheme = scheme if settings.get("fs.s3.impl") else "s3a"
    return f"{scheme}://{place.authority}/{place.path}"


def location_of(spark: SparkSession, name: Sequence[str]) -> str | None:
    """Return where a Delta table of Spark's own catalog is, by the parts of its name.

    ``None`` for temporary views, views, tables of other formats and catalogs, and for missing
    tables.
    """
    parts = list(name)
    try:
        if len(parts) == 3 and parts[0].lower() == CATALOG:
            parts = parts[1:]
        elif len(parts) > 2 or spark.catalog.currentCatalog() != CATALOG:
            return None
        state = _jvm(spark)[1].sessionState()
        catalog = state.catalog()
        table = state.sqlParser().parseTableIdentifier(".".join(map(spell_path, parts)))
        if catalog.isTempView(table) or not catalog.tableExists(table):
            return None
        found = catalog.getTableMetadata(table)
        provider, place = found.provider(), found.storage().locationUri()
        if provider.isEmpty() or not is_delta_format(provider.get()) or place.isEmpty():
            return None
        return ours(place.get())
    except JVM_SAYS_NO:
        return None


def is_view(spark: SparkSession, name: Sequence[str]) -> bool:
    """Return True if a name of Spark's own catalog is a view, temporary or permanent."""
    try:
        state = _jvm(spark)[1].sessionState()
        catalog = state.catalog()
        parts = in_session_catalog(name)
        table = state.sqlParser().parseTableIdentifier(".".join(map(spell_path, parts)))
        if catalog.isTempView(table):
            return True
        if not catalog.tableExists(table):
            return False
        return catalog.getTableMetadata(table).tableType().name() in VIEWS
    except JVM_SAYS_NO:
        return False


def in_session_catalog(name: Sequence[str]) -> list[str]:
    """Return a name without its catalog, as the session's catalog expects it.

    Temporary views are in ``system.session``, too.
    """
    parts = list(name)
    if len(parts) == 3:
        first, second = parts[0].lower(), parts[1].lower()
        if first == CATALOG or (first, second) == ("system", "session"):
            return parts[1:]
    return parts


def qualified(spark: SparkSession, name: Sequence[str]) -> tuple[str, ...]:
    """Return a name of Spark's own catalog with its catalog and schema."""
    parts = tuple(name)
    if len(parts) == 1:
        parts = (spark.catalog.currentDatabase(), *parts)
    return parts if len(parts) > 2 else (CATALOG, *parts)


@contextmanager
def active(spark: SparkSession, other: Any = None) -> Iterator[None]:
    """Make a session active in this thread, because Spark reads settings from it.

    ``other`` is another session of the JVM to make active instead.
    """
    jvm, session = _jvm(spark)
    sessions = session_class(jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(session if other is None else other)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def items(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(at) for at in range(sequence.size())]


def ours(uri: Any) -> str | None:
    """Return a Java URI as one of ours; ``None`` if we can't look there."""
    try:
        place = normalise(uri.toString())
    except InvalidInput:
        # A store that we don't support has no redirect of ours.
        return None
    # Spark accesses lakeFS in its own way, with settings that we don't have.
    return None if split(place).scheme == "lakefs" else place


def _jvm(spark: SparkSession) -> tuple[Any, Any]:
    session: Any = spark
    return session._jvm, session._jsparkSession
