"""Reads the SQL that Spark stores: the texts of views and functions.

The tables in these texts aren't in the statement that uses them. Each text comes with the
namespace in which it was written, which completes names without a schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakeferry.engines.spark.spark_calls import spark_line
from lakeferry.spark.jvm_refusals import JVM_SAYS_NO
from lakeferry.spark.sql_tokens import CATALOG, spell_path
from lakeferry.spark.table_locations import METRIC_VIEW, VIEWS, in_session_catalog, items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSION_SCHEMAS = (("session",), ("system", "session"))
"""The schemas of temporary functions."""


@dataclass(frozen=True, slots=True)
class StoredSql:
    """A query that Spark stores, and the namespace for short names in it."""

    query: str
    namespace: tuple[str, ...]

    def qualified(self, name: tuple[str, ...]) -> tuple[str, ...]:
        """Return a name with the schema that it had when the query was written."""
        return (*self.namespace, *name) if len(name) == 1 else name


@dataclass(frozen=True, slots=True)
class SqlFunction:
    """A user's function in SQL, and a query that calls it."""

    body: StoredSql
    call: str


def view(spark: SparkSession, name: Sequence[str]) -> StoredSql | None:
    """Return the query of a view, temporary or permanent; ``None`` for anything else.

    For a metric view, return a query of its source.
    """
    parts = in_session_catalog(name)
    try:
        state = _state(spark)
        identifier = state.sqlParser().parseTableIdentifier(".".join(map(spell_path, parts)))
        catalog = state.catalog()
        if not (catalog.isTempView(identifier) or catalog.tableExists(identifier)):
            return None
        found = catalog.getTempViewOrPermanentTableMetadata(identifier)
        text, kind = found.viewText(), found.tableType().name()
        if kind not in VIEWS or text.isEmpty():
            return None
        query = _source(spark, text.get()) if kind == METRIC_VIEW else text.get()
        namespace = found.viewCatalogAndNamespace()
        return StoredSql(query, tuple(items(namespace)))
    except JVM_SAYS_NO:
        return None


def _source(spark: SparkSession, text: str) -> str:
    """Return a query of a metric view's source; the view's text is YAML."""
    known: Any = spark._jvm
    source = known.org.apache.spark.sql.metricview.serde.MetricViewFactory.fromYAML(text)
    source = getattr(source, "from")()
    is_table = source.getClass().getSimpleName() == "AssetSource"
    return f"TABLE {source.name()}" if is_table else str(source.sql())


def function(spark: SparkSession, name: str) -> SqlFunction | None:
    """Return a user's function in SQL; ``None`` for a function of another kind."""
    if not spark_line().has_sql_functions:
        return None
    parts = tuple(name.split("."))
    if parts[:-1] in _SESSION_SCHEMAS or parts[0] == CATALOG:
        parts = parts[-1:] if parts[0] != CATALOG else parts[1:]
    called = ".".join(map(spell_path, parts))
    try:
        state = _state(spark)
        catalog, parser = state.catalog(), state.sqlParser()
        if len(parts) == 1 and catalog.isBuiltinFunction(parts[0]):
            return None
        identifier = parser.parseFunctionIdentifier(called)
        if not (
            catalog.isTemporaryFunction(identifier) or catalog.isPersistentFunction(identifier)
        ):
            return None
        known: Any = spark._jvm
        kind = known.org.apache.spark.sql.catalyst.catalog.SQLFunction
        info = catalog.lookupFunctionInfo(identifier)
        if not kind.isSQLFunction(info.getClassName()):
            return None
        found = kind.fromExpressionInfo(info, parser)
        parameters = found.inputParam()
        count = 0 if parameters.isEmpty() else parameters.get().length()
        query = found.queryText()
        body = query.get() if query.isDefined() else f"SELECT {found.exprText().get()}"
        start = "SELECT * FROM" if found.isTableFunc() else "SELECT"
    except JVM_SAYS_NO:
        return None
    call = f"{start} {called}({', '.join(['NULL'] * count)})"
    return SqlFunction(StoredSql(body, _namespace(found.properties())), call)


def analysed(spark: SparkSession, query: str) -> Any | None:
    """Return the analysed plan of a query; ``None`` if Spark will report an error in it."""
    state = _state(spark)
    mode = getattr(state, "executePlan$default$2")()
    try:
        return state.executePlan(state.sqlParser().parsePlan(query), mode).analyzed()
    except JVM_SAYS_NO:
        return None


def _namespace(properties: Any) -> tuple[str, ...]:
    """Return the namespace stored in a function's properties by Spark."""
    count = properties.get("catalogAndNamespace.numParts")
    numbers = range(0 if count.isEmpty() else int(count.get()))
    return tuple(properties.apply(f"catalogAndNamespace.part.{number}") for number in numbers)


def _state(spark: SparkSession) -> Any:
    session: Any = spark
    return session._jsparkSession.sessionState()
