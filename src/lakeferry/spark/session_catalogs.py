"""Checks that a session's own catalog has the table that a redirect leads to.

A managed table is opened by its name, so Spark needs a catalog with the name that the catalog has
on the server, and Unity Catalog's connector. Another server may have another table of that name:
what Spark finds there has to be in the place that the redirect leads to. This is checked once for
each table and server.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from lakeferry.engines.spark.spark_calls import spark_line
from lakeferry.errors import CatalogManaged, RedirectNotFollowed
from lakeferry.spark.jvm_refusals import JVM_SAYS_NO
from lakeferry.spark.redirected_path import NewPlace
from lakeferry.spark.table_locations import active, ours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "io.unitycatalog.spark.UCSingleCatalog"
_MOST_KNOWN = 1_000
_known: dict[tuple[str | None, ...], str] = {}
"""Where a name led in the catalog with these settings."""
_lock = threading.Lock()


def check_session_catalog(spark: SparkSession, place: NewPlace, location: str) -> None:
    """Raise an error unless the session finds the table at ``location`` by its name.

    Raises :class:`~lakeferry.errors.CatalogManaged` if the session has no such catalog or the
    connector is missing, and :class:`~lakeferry.errors.RedirectNotFollowed` if the name leads to
    another table.
    """
    line = spark_line()
    if not line.opens_managed:
        raise CatalogManaged(
            f"Spark {line.line} can't open {place.identifier}, a table that its catalog manages",
            cause=f"Delta Lake {line.delta} doesn't know such tables",
            remedy="use a newer Spark (4.2 was tried), or lakeferry.open",
            name=".".join(place.name),
            location=location,
        )
    catalog = place.name[0]
    setting = f"spark.sql.catalog.{catalog}"
    plugin = spark.conf.get(setting, None)
    if plugin is None:
        raise _without_catalog(place, location, f"{setting} isn't set")
    key = (plugin, spark.conf.get(f"{setting}.uri", None), *place.name)
    if _known.get(key) == location:
        return
    session: Any = spark
    manager = session._jsparkSession.sessionState().catalogManager()
    # Spark loads a catalog with the settings of the thread's active session.
    with active(spark):
        try:
            found = manager.catalog(catalog)
        except JVM_SAYS_NO as failed:
            raise _without_catalog(place, location, _first_line(failed)) from failed
        there = _location_of(spark, found, place, location)
    if there != location:
        raise RedirectNotFollowed(
            f"{place.identifier} in this session isn't the table that moved",
            cause=f"the redirect leads to {location}, and Spark's catalog {catalog} has another "
            f"table of that name, at {there}",
            remedy=f"set {setting}.uri to the server that Lakeferry uses (UC_URL)",
            table=place.identifier,
            target=location,
        )
    with _lock:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = location


def _location_of(spark: SparkSession, catalog: Any, place: NewPlace, location: str) -> str | None:
    """Return the place of a table in one of Spark's catalogs."""
    session: Any = spark
    jvm, gateway = session._jvm, session._sc._gateway
    *schema, table = place.name[1:]
    namespace = gateway.new_array(jvm.java.lang.String, len(schema))
    for at, part in enumerate(schema):
        namespace[at] = part
    identifier = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(namespace, table)
    try:
        found = catalog.loadTable(identifier).properties().get("location")
    except JVM_SAYS_NO as failed:
        raise CatalogManaged(
            f"Spark's catalog {place.name[0]} can't open {place.identifier}",
            cause=_first_line(failed),
            remedy="ask the catalog's administrator to grant SELECT on the table, and MODIFY for "
            "writing, to the user whose token Spark has, or correct the catalog's settings as the "
            "cause says",
            name=".".join(place.name),
            location=location,
        ) from failed
    return None if found is None else ours(jvm.org.apache.hadoop.fs.Path(found).toUri())


def _without_catalog(place: NewPlace, location: str, why: str) -> CatalogManaged:
    setting = f"spark.sql.catalog.{place.name[0]}"
    return CatalogManaged(
        f"this Spark session can't open {place.identifier}, a table that its catalog manages",
        cause=why,
        remedy=f"start Spark with the jars of Unity Catalog's Spark connector (unitycatalog-spark) "
        f"in spark.jars or spark.jars.packages, with {setting}={CONNECTOR}, and with {setting}.uri "
        f"and {setting}.token",
        name=".".join(place.name),
        location=location,
    )


def _first_line(failed: Exception) -> str:
    """Return the first line of what the JVM says."""
    java: Any = getattr(failed, "java_exception", None)
    text = str(java.toString()) if java is not None else str(failed)
    return text.strip().splitlines()[0] if text.strip() else type(failed).__name__
