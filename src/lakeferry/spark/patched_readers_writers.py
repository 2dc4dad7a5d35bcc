"""Patches for PySpark's readers, writers, data frames and catalog.

Readers and writers note the format and the path that they are given
(:mod:`lakeferry.spark.reader_state`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakeferry.engines.spark.spark_calls import frame_class
from lakeferry.spark.client import Client
from lakeferry.spark.named_table_access import (
    read_by_name,
    start_by_name,
    write_by_name,
)
from lakeferry.spark.reader_state import begin_notes, note_options, notes_of
from lakeferry.spark.redirected_path import NewPlace, needs_a_path, only_path
from lakeferry.spark.session_clients import (
    CLIENT_SETTING,
    Method,
    Patch,
    client_of,
    followed_by_us_alone,
    keep_number,
    session_of,
)
from lakeferry.spark.sql_tokens import path_of, spell_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reader_writer_patches() -> list[Patch]:
    """Return the patches of PySpark's own classes."""
    from pyspark.sql import DataFrameReader, DataFrameWriter, DataFrameWriterV2, SparkSession
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    DataFrame = frame_class()  # noqa: N806
    found: list[Patch] = [
        (SparkSession, "sql", _sql),
        (SparkSession, "table", _table),
        (DataFrameReader, "load", _load),
        (DataStreamReader, "load", _load),
        (DataFrameReader, "table", _table),
        (DataStreamReader, "table", _stream_of_table),
        (DataFrameWriter, "save", _writing_to("WRITE", write_by_name)),
        (DataStreamWriter, "start", _writing_to("STREAMING UPDATE", start_by_name)),
        (DataFrameWriter, "insertInto", patch_writing("WRITE")),
        (DataFrameWriter, "saveAsTable", _save_as_table),
        (DataStreamWriter, "toTable", _to_table),
        (DataFrame, "__init__", _making_a_frame),
        (DataFrame, "writeTo", patch_writing("WRITE")),
        (DataFrame, "mergeInto", patch_writing("MERGE")),
        (DataFrameWriterV2, "using", _noting_provider),
        (DataFrameWriterV2, "tableProperty", _placed_by("location")),
        (DataFrameWriterV2, "option", _placed_by("path")),
        (DataFrameWriterV2, "options", _placed_by_options),
        (Catalog, "cacheTable", _named_in_catalog()),
        (Catalog, "uncacheTable", _named_in_catalog()),
        (Catalog, "isCached", _named_in_catalog()),
        (Catalog, "createTable", _create_table),
        (Catalog, "listColumns", _list_columns),
        (Catalog, "getTableProperties", _named_in_catalog()),
        (Catalog, "listPartitions", _named_in_catalog()),
        (Catalog, "truncateTable", _named_in_catalog("TRUNCATE")),
        (DataFrameReader, "changes", _table),
        (DataStreamReader, "changes", _table),
    ]
    for owner in (DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter):
        found += [(owner, "format", _noting_format), (owner, "option", _noting_option)]
        found += [(owner, "options", _noting_options), (owner, "__init__", _making_notes)]
    return found


def _making_notes(original: Method) -> Method:
    @functools.wraps(original)
    def init(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        begin_notes(self)

    return init


def _noting_format(original: Method) -> Method:
    @functools.wraps(original)
    def format(self: Any, source: str) -> Any:
        notes_of(self)["format"] = source
        return original(self, source)

    return format


def _noting_provider(original: Method) -> Method:
    @functools.wraps(original)
    def using(self: Any, provider: str) -> Any:
        notes_of(self)["format"] = provider
        return original(self, provider)

    return using


def _noting_option(original: Method) -> Method:
    @functools.wraps(original)
    def option(self: Any, key: str, value: Any) -> Any:
        note_options(self, {key: value})
        return original(self, key, value)

    return option


def _noting_options(original: Method) -> Method:
    @functools.wraps(original)
    def options(self: Any, **options: Any) -> Any:
        note_options(self, options)
        return original(self, **options)

    return options


def _with_place(
    of: Any,
    path: Any,
    format: str | None,
    options: dict[str, Any],
    *operations: str,
) -> tuple[Any, NewPlace | None]:
    """Return the path to use, and correct the option ``path``, if the format is Delta.

    If the table has only a name now, its place is returned too, and the option is left out.
    """
    client = client_of(session_of(of))
    if client is None or not client.is_delta(format or notes_of(of).get("format")):
        return path, None
    given = [key for key in options if key.lower() == "path"]
    asked: Any
    if path is None:
        asked = str(options[given[-1]]) if given else notes_of(of).get("path")
    else:
        asked = path[0] if isinstance(path, list) and len(path) == 1 else path
    if isinstance(asked, list):
        return [_only_path(client, each, "a list of paths", *operations) for each in asked], None
    place = client.moved_path(asked, *operations) if isinstance(asked, str) else None
    if place is None:
        return path, None
    if path is None or place.name:
        for key in given:
            del options[key]
    if place.name:
        return None, place
    if path is None:
        of.option("path", place.path)
        return None, None
    return place.path, None


def _only_path(client: Client, path: Any, call: str, *operations: str) -> Any:
    """Return the path at which a table is now, for a call that can't be given a name."""
    if not isinstance(path, str):
        return path
    return only_path(client.moved_path(path, *operations), path, call)


def _moved(session: Any, name: Any, *operations: str) -> tuple[Client | None, NewPlace | None]:
    """Return the session's client, and where a table moved to, if ``name`` is a name."""
    client = client_of(session) if isinstance(name, str) else None
    return client, None if client is None else client.moved_table(name, *operations)


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
            number = self.conf.get(CLIENT_SETTING) or ""
            try:
                frame = original(self, followed.text, followed.args)
            finally:
                if not followed.is_query:
                    keep_number(self, number)
            # Whatever is not a query was checked before, but for what our parsing didn't find.
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
        path, place = _with_place(self, path, format, options)
        if place is not None:
            return read_by_name(self.options(**options), place, schema)
        return original(self, path, format, schema, **options)

    return load


def _reading(
    original: Method, of: Any, session: Any, name: Any, read_moved: Callable[[NewPlace], Any]
) -> Any:
    """Return the data frame of a table, by ``original`` or where it moved to."""
    client, found = _moved(session, name)
    if found is None:
        frame = original(of, name)
        if client is not None:
            client.check_view(name, frame)
        return frame
    frame = read_moved(found)
    parts = (client.parts_of(name) if client is not None else None) or ()
    # Columns may be qualified with the table's old name.
    return frame if path_of(parts) else frame.alias(parts[-1])


def _table(original: Method) -> Method:
    from pyspark.sql import SparkSession

    @functools.wraps(original)
    def table(self: Any, tableName: str) -> Any:  # noqa: N803
        session = self if isinstance(self, SparkSession) else session_of(self)

        def read_moved(place: NewPlace) -> Any:
            if place.travels:
                return read_by_name(self.read if self is session else self, place)
            return original(self, place.identifier)

        return _reading(original, self, session, tableName, read_moved)

    return table


def _making_a_frame(original: Method) -> Method:
    """Patch the methods that make data frames: a subquery in their expressions may name a table.

    Expressions come as text, as columns and as function calls, in many methods.
    """

    @functools.wraps(original)
    def init(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        client = client_of(session_of(self))
        if client is not None and client.has_subquery(self):
            client.check_read(self)

    return init


def _named_in_catalog(*operations: str) -> Callable[[Method], Method]:
    """Patch a method of the catalog that takes the name of a table."""

    def patch(original: Method) -> Method:
        @functools.wraps(original)
        def act(self: Any, tableName: str, *more: Any, **named: Any) -> Any:  # noqa: N803
            _, found = _moved(self._sparkSession, tableName, *operations)
            name = tableName if found is None else found.newest(tableName)
            return original(self, name, *more, **named)

        return act

    return patch


def _list_columns(original: Method) -> Method:
    @functools.wraps(original)
    def list_columns(self: Any, tableName: str, dbName: str | None = None) -> Any:  # noqa: N803
        name = tableName if dbName is None else ".".join(map(spell_path, (dbName, tableName)))
        _, found = _moved(self._sparkSession, name)
        if found is None:
            return original(self, tableName, dbName)
        return original(self, found.newest(name))

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
        given = [key for key in options if key.lower() == "path"]
        asked = options[given[-1]] if given and path is None else path
        if client is not None and isinstance(asked, str) and client.is_delta(source):
            place = client.moved_path(asked, "CREATE TABLE")
            if place is not None:
                path = only_path(place, asked, "createTable")
                options = {key: options[key] for key in options if key not in given}
        return original(self, tableName, path, source, *more, **options)

    return create_table


def _stream_of_table(original: Method) -> Method:
    @functools.wraps(original)
    def table(self: Any, tableName: str) -> Any:  # noqa: N803
        def read_moved(place: NewPlace) -> Any:
            if place.name:
                return original(self, place.newest(tableName))
            # A stream can't be started with a path as a table name.
            return self.format("delta").load(place.path)

        return _reading(original, self, session_of(self), tableName, read_moved)

    return table


def _writing_to(operation: str, by_name: Method) -> Callable[[Method], Method]:
    """Patch a method that takes the path to write; ``by_name`` writes to a table by its name."""

    def patch(original: Method) -> Method:
        @functools.wraps(original)
        def write(
            self: Any, path: str | None = None, format: str | None = None, *more: Any, **named: Any
        ) -> Any:
            path, place = _with_place(self, path, format, named, operation)
            if place is not None:
                return by_name(self, place, format, *more, **named)
            return original(self, path, format, *more, **named)

        return write

    return patch


def patch_writing(operation: str) -> Callable[[Method], Method]:
    """Patch a method that takes the name of a table to write."""

    def patch(original: Method) -> Method:
        parameter = _first_parameter(original)

        @functools.wraps(original)
        def write(self: Any, *given: Any, **named: Any) -> Any:
            name = given[0] if given else named.get(parameter)
            _, found = _moved(session_of(self), name, operation)
            if found is not None:
                given, named = _with_first(parameter, found.identifier, given, named)
            return original(self, *given, **named)

        return write

    return patch


def _save_as_table(original: Method) -> Method:
    @functools.wraps(original)
    def save_as_table(
        self: Any, name: str, format: str | None = None, *more: Any, **named: Any
    ) -> Any:
        _, found = _moved(session_of(self), name, "WRITE")
        if found is not None:
            # For a path the format must be stated; for a table the catalog knows it.
            return original(self, found.identifier, "delta", *more, **named)
        _, place = _with_place(self, None, format, named, "WRITE")
        if place is not None:
            raise needs_a_path(notes_of(self).get("path", name), place, "saveAsTable")
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
        operation = "STREAMING UPDATE"
        _, found = _moved(session_of(self), tableName, operation)
        if found is not None and found.name:
            return start_by_name(self, found, "delta", *more, **named)
        if found is not None:
            # A stream can't be started with a path as a table name.
            return self.start(found.path, "delta", *more, **named)
        _, place = _with_place(self, None, format, named, operation)
        if place is not None:
            raise needs_a_path(notes_of(self).get("path", tableName), place, "toTable")
        with followed_by_us_alone(session_of(self)):
            return original(self, tableName, format, *more, **named)

    return to_table


def _placed_by(name: str) -> Callable[[Method], Method]:
    """Patch a method that sets a property of a new table, one of which is the table's place."""

    def patch(original: Method) -> Method:
        signature = inspect.signature(original)
        parameter = _first_parameter(original)

        @functools.wraps(original)
        def act(self: Any, *given: Any, **named: Any) -> Any:
            bound = signature.bind(self, *given, **named)
            key, value = bound.arguments[parameter], bound.arguments["value"]
            bound.arguments["value"] = _place_of_new(self, key, value, name)
            return original(*bound.args, **bound.kwargs)

        return act

    return patch


def _placed_by_options(original: Method) -> Method:
    @functools.wraps(original)
    def options(self: Any, **options: Any) -> Any:
        placed = {key: _place_of_new(self, key, options[key], "path") for key in options}
        return original(self, **placed)

    return options


def _place_of_new(of: Any, key: str, value: Any, name: str) -> Any:
    """Return the value of a property of a new table: if it is the table's place, the current one.

    The data source may be given later, so it counts only if it was already.
    """
    client = client_of(session_of(of))
    source = notes_of(of).get("format")
    if client is None or key.lower() != name or not (source is None or client.is_delta(source)):
        return value
    return _only_path(client, value, f"the {name} of a new table", "WRITE")


def _first_parameter(original: Method) -> str:
    return list(inspect.signature(original).parameters)[1]


def _with_first(
    parameter: str, value: str, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if given:
        return (value, *given[1:]), named
    return given, {**named, parameter: value}
