"""Patches PySpark's methods, so that they ask where a table is first.

delta-spark can't open a redirected source that blocks readers, so a path must be replaced before
it gets there. The patched classes are those of PySpark in the driver's process (``classic``);
Spark Connect has others, which don't use a JVM.

A patched method first looks up its session's client, by a number in the session's configuration.
Sessions that streaming clones, inside of ``foreachBatch``, inherit the number; new sessions
don't, and behave as usual. The first client installs the patches, and the last one to leave
removes them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lakeferry.errors import RedirectNotFollowed
from lakeferry.spark.client import Client
from lakeferry.spark.sql_tokens import parse_name, path_of, spell_path, spell_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTING = "spark.lakeferry.client"
_NOTES = "_lakeferry_notes"
_SOURCE = "_lakeferry_source"
"""How a table was opened: the client's method, the path or name, and the place it returned."""

Method = Callable[..., Any]

FOLLOW_IN_JVM = "spark.databricks.delta.enableTableRedirectFeature"
"""Makes delta-spark follow writer-only redirects in its own dialect."""

_lock = threading.RLock()
_numbers = itertools.count(1)
_options: dict[str, Mapping[str, str]] = {}
_told_jvm: set[str] = set()
"""Client numbers of sessions in which we set :data:`FOLLOW_IN_JVM`."""
_applied: list[tuple[type, str, Any, Any]] = []
"""Class, name, original attribute, and our replacement."""


def client_of(spark: SparkSession) -> Client | None:
    """Return the client of a session, if it has one."""
    number = spark.conf.get(_SETTING, None)
    options = _options.get(number) if number is not None else None
    return None if options is None else Client(spark, options)


def add_client(spark: SparkSession, storage_options: Mapping[str, str]) -> None:
    """Give a session a client; if it has one, replace the client's options."""
    with _lock:
        number = spark.conf.get(_SETTING, None)
        if number is None or number not in _options:
            number = str(next(_numbers))
        if not _applied:
            _apply()
        _options[number] = dict(storage_options)
        _tell(spark, number)


def _tell(spark: SparkSession, number: str) -> None:
    """Store the client's number in a session, and make its JVM follow redirects too."""
    spark.conf.set(_SETTING, number)
    # A value that the user has set is kept.
    if not spark._jsparkSession.conf().contains(FOLLOW_IN_JVM):
        spark.conf.set(FOLLOW_IN_JVM, "true")
        _told_jvm.add(number)


def _keep_client(spark: SparkSession, number: str) -> None:
    """Restore a session's client number: the statement ``RESET`` removes all settings."""
    with _lock:
        if number in _options and spark.conf.get(_SETTING, None) is None:
            _tell(spark, number)


def remove_client(spark: SparkSession) -> None:
    """Remove a session's client, if it has one."""
    with _lock:
        number = spark.conf.get(_SETTING, None)
        if number is None:
            return
        spark.conf.unset(_SETTING)
        _options.pop(number, None)
        if number in _told_jvm:
            _told_jvm.discard(number)
            if spark.conf.get(FOLLOW_IN_JVM, None) == "true":
                spark.conf.unset(FOLLOW_IN_JVM)
        if not _options:
            _withdraw()


def _apply() -> None:
    """Install all patches; if one fails, undo the others."""
    try:
        for owner, name, patch in _patches():
            before = vars(owner)[name]
            if isinstance(before, classmethod):
                after: Any = classmethod(patch(before.__func__))
            else:
                after = patch(before)
            setattr(owner, name, after)
            _applied.append((owner, name, before, after))
    except BaseException:
        _withdraw()
        raise


def _withdraw() -> None:
    while _applied:
        owner, name, before, after = _applied.pop()
        # If somebody has patched our patch, theirs stays, and ours does nothing any more.
        if vars(owner).get(name) is after:
            setattr(owner, name, before)


def _patches() -> list[tuple[type, str, Callable[[Method], Method]]]:
    """Return each class and method to patch, with its patch."""
    from pyspark.sql import DataFrameReader, DataFrameWriter, SparkSession
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    found: list[tuple[type, str, Callable[[Method], Method]]] = [
        (SparkSession, "sql", _sql),
        (SparkSession, "table", _table),
        (DataFrameReader, "load", _load),
        (DataStreamReader, "load", _load),
        (DataFrameReader, "table", _table),
        (DataStreamReader, "table", _stream_of_table),
        (DataFrameWriter, "save", _saving("WRITE")),
        (DataStreamWriter, "start", _saving("STREAMING UPDATE")),
        (DataFrameWriter, "insertInto", _writing("WRITE")),
        (DataFrameWriter, "saveAsTable", _save_as_table),
        (DataStreamWriter, "toTable", _to_table),
        (DataFrame, "__init__", _making_a_frame),
        (DataFrame, "writeTo", _writing("WRITE")),
        (DataFrame, "mergeInto", _writing("MERGE")),
        (Catalog, "cacheTable", _named_in_catalog),
        (Catalog, "uncacheTable", _named_in_catalog),
        (Catalog, "isCached", _named_in_catalog),
        (Catalog, "createTable", _create_table),
        (Catalog, "listColumns", _list_columns),
        (Catalog, "getTableProperties", _named_in_catalog),
    ]
    for owner in (DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter):
        found += [(owner, "format", _noting_format), (owner, "option", _noting_option)]
        found.append((owner, "options", _noting_options))
        if "changes" in vars(owner):
            found.append((owner, "changes", _table))
    if find_spec("delta") is not None:
        found += _delta_patches()
    return found


def _delta_patches() -> list[tuple[type, str, Callable[[Method], Method]]]:
    from delta.tables import DeltaTable, DeltaTableBuilder

    found: list[tuple[type, str, Callable[[Method], Method]]] = [
        (DeltaTable, "forPath", _for_path),
        (DeltaTable, "forName", _for_name),
        (DeltaTable, "isDeltaTable", _is_delta_table),
        (DeltaTable, "convertToDelta", _convert),
        (DeltaTable, "alias", _alias),
        (DeltaTableBuilder, "location", _location),
        (DeltaTableBuilder, "tableName", _writing("CREATE TABLE")),
    ]
    for name, operations in {
        "toDF": (),
        "history": (),
        "detail": (),
        "generate": (),
        "delete": ("DELETE",),
        "update": ("UPDATE",),
        "merge": ("MERGE",),
        "optimize": ("OPTIMIZE",),
        "vacuum": ("VACUUM START", "VACUUM END"),
        "restoreToVersion": ("RESTORE",),
        "restoreToTimestamp": ("RESTORE",),
        "upgradeTableProtocol": ("UPGRADE PROTOCOL",),
        "dropFeatureSupport": ("DROP FEATURE",),
        "addFeatureSupport": ("SET TBLPROPERTIES",),
    }.items():
        found.append((DeltaTable, name, _committing(*operations)))
    clones = ("clone", "cloneAtVersion", "cloneAtTimestamp")
    return [*found, *((DeltaTable, name, _cloning) for name in clones)]


def _session(of: Any) -> SparkSession:
    """Return the session of a reader, a writer, a data frame or a table."""
    from pyspark.sql import DataFrame

    # A data frame returns a column for an attribute that it doesn't have.
    found: SparkSession = of.sparkSession if isinstance(of, DataFrame) else of._spark
    return found


# Settings of a reader or a writer before it begins.


def _notes(of: Any) -> dict[str, str]:
    notes: dict[str, str] = vars(of).setdefault(_NOTES, {})
    return notes


def _note_options(of: Any, options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        if key.lower() == "path":
            _notes(of)["path"] = str(value)


def _noting_format(original: Method) -> Method:
    @functools.wraps(original)
    def format(self: Any, source: str) -> Any:
        _notes(self)["format"] = source
        return original(self, source)

    return format


def _noting_option(original: Method) -> Method:
    @functools.wraps(original)
    def option(self: Any, key: str, value: Any) -> Any:
        _note_options(self, {key: value})
        return original(self, key, value)

    return option


def _noting_options(original: Method) -> Method:
    @functools.wraps(original)
    def options(self: Any, **options: Any) -> Any:
        _note_options(self, options)
        return original(self, **options)

    return options


def _with_place(
    of: Any,
    path: Any,
    format: str | None,
    options: dict[str, Any],
    find: Callable[[Client, str], str],
) -> Any:
    """Return the path to use, and correct the option ``path``, if the format is Delta."""
    client = client_of(_session(of))
    if client is None or not client.is_delta(format or _notes(of).get("format")):
        return path
    if isinstance(path, str):
        return find(client, path)
    if isinstance(path, list):
        return [find(client, each) if isinstance(each, str) else each for each in path]
    given = [key for key in options if key.lower() == "path"]
    noted = str(options[given[-1]]) if given else _notes(of).get("path")
    if path is None and noted is not None:
        place = find(client, noted)
        if place != noted:
            for key in given:
                del options[key]
            of.option("path", place)
    return path


# Reading.


def _sql(original: Method) -> Method:
    from pyspark.sql.sql_formatter import SQLStringFormatter

    @functools.wraps(original)
    def sql(self: SparkSession, sqlQuery: str, args: Any = None, **kwargs: Any) -> Any:  # noqa: N803
        client = client_of(self)
        if client is None or not isinstance(sqlQuery, str):
            return original(self, sqlQuery, args, **kwargs)
        # Values between braces become names of views first; Spark parses the resulting text.
        formatter = SQLStringFormatter(self)
        try:
            text = formatter.format(sqlQuery, **kwargs) if kwargs else sqlQuery
            followed = client.sql(text, args)
            number = self.conf.get(_SETTING) or ""
            try:
                frame = original(self, followed.text, followed.args)
            finally:
                if not followed.is_query:
                    _keep_client(self, number)
            if followed.is_query:
                client.check_read(frame, followed.known)
            return frame
        finally:
            if kwargs:
                formatter.clear()

    return sql


def _load(original: Method) -> Method:
    @functools.wraps(original)
    def load(
        self: Any, path: Any = None, format: str | None = None, schema: Any = None, **options: Any
    ) -> Any:
        path = _with_place(self, path, format, options, Client.readable)
        return original(self, path, format, schema, **options)

    return load


def _table(original: Method) -> Method:
    from pyspark.sql import SparkSession

    @functools.wraps(original)
    def table(self: Any, tableName: str) -> Any:  # noqa: N803
        client = client_of(self if isinstance(self, SparkSession) else _session(self))
        found = client.table(tableName) if client and isinstance(tableName, str) else None
        if found is None:
            frame = original(self, tableName)
            if client is not None and isinstance(tableName, str):
                client.check_view(tableName, frame)
            return frame
        parts = parse_name(tableName) or ()
        frame = original(self, spell_table(found))
        # Columns may be qualified with the table's old name.
        return frame if path_of(parts) else frame.alias(parts[-1])

    return table


def _making_a_frame(original: Method) -> Method:
    """Patch the methods that make data frames: a subquery in their expressions may name a table.

    Expressions come as text, as columns and as function calls, in many methods.
    """

    @functools.wraps(original)
    def init(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        client = client_of(_session(self))
        if client is not None and client.has_subquery(self):
            client.check_read(self)

    return init


def _named_in_catalog(original: Method) -> Method:
    @functools.wraps(original)
    def act(self: Any, tableName: str, *more: Any, **named: Any) -> Any:  # noqa: N803
        client = client_of(self._sparkSession)
        found = client.table(tableName) if client and isinstance(tableName, str) else None
        return original(self, tableName if found is None else spell_table(found), *more, **named)

    return act


def _list_columns(original: Method) -> Method:
    @functools.wraps(original)
    def list_columns(self: Any, tableName: str, dbName: str | None = None) -> Any:  # noqa: N803
        client = client_of(self._sparkSession)
        name = tableName if dbName is None else ".".join(map(spell_path, (dbName, tableName)))
        found = client.table(name) if client and isinstance(name, str) else None
        if found is None:
            return original(self, tableName, dbName)
        return original(self, spell_table(found))

    return list_columns


def _create_table(original: Method) -> Method:
    @functools.wraps(original)
    def create_table(
        self: Any,
        tableName: str,  # noqa: N803
        path: str | None = None,
        source: str | None = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        client = client_of(self._sparkSession)
        if client is not None and isinstance(path, str) and client.is_delta(source):
            path = client.writable(path, "CREATE TABLE")
        return original(self, tableName, path, source, *more, **options)

    return create_table


def _stream_of_table(original: Method) -> Method:
    @functools.wraps(original)
    def table(self: Any, tableName: str) -> Any:  # noqa: N803
        client = client_of(_session(self))
        found = client.table(tableName) if client and isinstance(tableName, str) else None
        if found is None:
            frame = original(self, tableName)
            if client is not None and isinstance(tableName, str):
                client.check_view(tableName, frame)
            return frame
        # A stream can't be started with a path as a table name.
        parts = parse_name(tableName) or ()
        frame = self.format("delta").load(found)
        return frame if path_of(parts) else frame.alias(parts[-1])

    return table


# Writing.


def _saving(operation: str) -> Callable[[Method], Method]:
    def patch(original: Method) -> Method:
        @functools.wraps(original)
        def save(
            self: Any, path: str | None = None, format: str | None = None, *more: Any, **named: Any
        ) -> Any:
            path = _with_place(self, path, format, named, _for_writing(operation))
            return original(self, path, format, *more, **named)

        return save

    return patch


def _writing(operation: str) -> Callable[[Method], Method]:
    """Patch a method that takes the name of a table to write."""

    def patch(original: Method) -> Method:
        parameter = _first_parameter(original)

        @functools.wraps(original)
        def write(self: Any, *given: Any, **named: Any) -> Any:
            name = given[0] if given else named.get(parameter)
            client = client_of(_session(self))
            found = client.table(name, operation) if client and isinstance(name, str) else None
            if found is not None:
                given, named = _with_first(parameter, spell_table(found), given, named)
            return original(self, *given, **named)

        return write

    return patch


def _save_as_table(original: Method) -> Method:
    @functools.wraps(original)
    def save_as_table(
        self: Any, name: str, format: str | None = None, *more: Any, **named: Any
    ) -> Any:
        client = client_of(_session(self))
        found = client.table(name, "WRITE") if client and isinstance(name, str) else None
        if found is not None:
            # For a path the format must be stated; for a table the catalog knows it.
            return original(self, spell_table(found), "delta", *more, **named)
        _with_place(self, None, format, named, _for_writing("WRITE"))
        return original(self, name, format, *more, **named)

    return save_as_table


def _to_table(original: Method) -> Method:
    @functools.wraps(original)
    def to_table(
        self: Any,
        tableName: str,  # noqa: N803
        format: str | None = None,
        *more: Any,
        **named: Any,
    ) -> Any:
        client = client_of(_session(self))
        operation = "STREAMING UPDATE"
        found = (
            client.table(tableName, operation) if client and isinstance(tableName, str) else None
        )
        if found is not None:
            # A stream can't be started with a path as a table name.
            return self.start(found, "delta", *more, **named)
        _with_place(self, None, format, named, _for_writing(operation))
        return original(self, tableName, format, *more, **named)

    return to_table


def _for_writing(operation: str) -> Callable[[Client, str], str]:
    return lambda client, path: client.writable(path, operation)


def _first_parameter(original: Method) -> str:
    return list(inspect.signature(original).parameters)[1]


def _with_first(
    parameter: str, value: str, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if given:
        return (value, *given[1:]), named
    return given, {**named, parameter: value}


# Delta's own tables.


def _for_path(original: Method) -> Method:
    @functools.wraps(original)
    def for_path(cls: Any, sparkSession: Any, path: str, *more: Any, **named: Any) -> Any:  # noqa: N803
        client = client_of(sparkSession)
        if client is None or not isinstance(path, str):
            return original(cls, sparkSession, path, *more, **named)
        place = client.readable(path)
        table = original(cls, sparkSession, place, *more, **named)
        setattr(table, _SOURCE, (Client.writable, path, place))
        return table

    return for_path


def _for_name(original: Method) -> Method:
    @functools.wraps(original)
    def for_name(cls: Any, sparkSession: Any, tableOrViewName: str) -> Any:  # noqa: N803
        client = client_of(sparkSession)
        if client is None or not isinstance(tableOrViewName, str):
            return original(cls, sparkSession, tableOrViewName)
        found = client.table(tableOrViewName)
        name = tableOrViewName if found is None else spell_table(found)
        table = original(cls, sparkSession, name)
        setattr(table, _SOURCE, (Client.table, tableOrViewName, found))
        return table

    return for_name


def _is_delta_table(original: Method) -> Method:
    @functools.wraps(original)
    def is_delta_table(cls: Any, sparkSession: Any, identifier: str) -> bool:  # noqa: N803
        client = client_of(sparkSession)
        if client is not None and isinstance(identifier, str):
            identifier = client.readable(identifier)
        return bool(original(cls, sparkSession, identifier))

    return is_delta_table


def _convert(original: Method) -> Method:
    @functools.wraps(original)
    def convert(cls: Any, sparkSession: Any, identifier: str, *more: Any, **named: Any) -> Any:  # noqa: N803
        client = client_of(sparkSession)
        parts = parse_name(identifier) if client and isinstance(identifier, str) else None
        if client is not None and parts is not None and len(parts) == 2:
            path = path_of(("delta", parts[1]))
            if path is not None and client.readable(path) != path:
                # It is a Delta table already; Delta would return the one at the old place.
                return cls.forPath(sparkSession, path)
        return original(cls, sparkSession, identifier, *more, **named)

    return convert


def _cloning(original: Method) -> Method:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def clone(self: Any, *given: Any, **named: Any) -> Any:
        client = client_of(_session(self))
        bound = signature.bind(self, *given, **named)
        target = bound.arguments["target"]
        if client is not None and isinstance(target, str):
            if path_of(("delta", target)) is not None:
                bound.arguments["target"] = client.writable(target, "CLONE")
            else:
                place = client.table(target, "CLONE")
                bound.arguments["target"] = target if place is None else place
        return original(*bound.args, **bound.kwargs)

    return _committing()(clone)


def _alias(original: Method) -> Method:
    @functools.wraps(original)
    def alias(self: Any, *given: Any, **named: Any) -> Any:
        other = original(self, *given, **named)
        if _SOURCE in vars(self):
            setattr(other, _SOURCE, vars(self)[_SOURCE])
        return other

    return alias


def _location(original: Method) -> Method:
    @functools.wraps(original)
    def location(self: Any, location: str) -> Any:
        client = client_of(_session(self))
        if client is not None and isinstance(location, str):
            place = client.writable(location, "CREATE TABLE")
            if place != location:
                # Delta compares it with its own spelling: a URI in Java has one slash there.
                session: Any = _session(self)
                location = session._jvm.org.apache.hadoop.fs.Path(place).toString()
        return original(self, location)

    return location


def _committing(*operations: str) -> Callable[[Method], Method]:
    """Patch an operation of an opened table: the table must still be where it was opened."""

    def patch(original: Method) -> Method:
        @functools.wraps(original)
        def commit(self: Any, *more: Any, **named: Any) -> Any:
            client = client_of(_session(self))
            if client is not None and _SOURCE in vars(self):
                check, source, place = vars(self)[_SOURCE]
                if check(client, source, *operations) != place:
                    raise RedirectNotFollowed(
                        f"the table that was opened by {source} has moved since",
                        cause="a DeltaTable stays where the table was when it was opened",
                        remedy="open it again, with DeltaTable.forPath or forName",
                        table=source,
                    )
            return original(self, *more, **named)

        return commit

    return patch
