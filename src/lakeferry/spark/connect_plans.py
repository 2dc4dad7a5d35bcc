"""Follows redirects in the plans that a Spark Connect client sends.

A Connect client sends every reader, writer, stream, statement and call of the catalog as a
message, and each names its tables in fields of their own. So the messages are changed rather than
the methods that make them. All messages in a plan are visited, and those that name a table are
listed in one place (``_VISITS``). A plan is followed when it is sent: a data frame that was made
before its table moved reads the new place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lakeferry.errors import InvalidInput
from lakeferry.spark.connect_client import ConnectClient
from lakeferry.spark.connect_sql import functions_called, may_have_a_query
from lakeferry.spark.redirected_path import needs_a_path, not_followed, only_path
from lakeferry.spark.sql_tokens import path_of, spell_path

_SPARK = "spark.connect."
_PIPELINE = f"{_SPARK}PipelineCommand."
_DELTA = "delta.connect."
_DELTA_OPERATIONS = {
    "VacuumTable": ("VACUUM START", "VACUUM END"),
    "UpgradeTableProtocol": ("UPGRADE PROTOCOL",),
    "AddFeatureSupport": ("SET TBLPROPERTIES",),
    "DropFeatureSupport": ("DROP FEATURE",),
    "RestoreTable": ("RESTORE",),
    "OptimizeTable": ("OPTIMIZE",),
}
_DELTA_CHANGES = {
    "DeleteFromTable": "DELETE",
    "UpdateTable": "UPDATE",
    "MergeIntoTable": "MERGE",
}


class PlanFollower:
    """Changes a plan so that it names every table at its new place."""

    def __init__(self, client: ConnectClient) -> None:
        self.client = client
        self.new_views: list[str] = []
        """The views that the plan creates, in lower case."""

    def follow(self, message: Any) -> None:
        """Change a message and all messages in it."""
        waiting = [message]
        while waiting:
            here = waiting.pop()
            name = here.DESCRIPTOR.full_name
            visit = _VISITS.get(name)
            if visit is not None:
                visit(self, here)
            if name == "google.protobuf.Any":
                self._extension(here)
            elif name == f"{_SPARK}Plan" and here.WhichOneof("op_type") == "compressed_operation":
                _decompress(here)
                waiting.append(here)
            else:
                waiting += _children(here)

    # --- Reads ---

    def relation(self, relation: Any) -> None:
        """Follow a relation that reads a table."""
        if relation.WhichOneof("rel_type") != "read":
            return
        read = relation.read
        if read.WhichOneof("read_type") == "data_source":
            self._read_source(read)
        elif read.WhichOneof("read_type") == "named_table":
            self._read_table(relation)

    def _read_source(self, read: Any) -> None:
        source = read.data_source
        if not self.client.is_delta(source.format or None):
            return
        given = list(source.paths) or _path_options(source.options)
        places = [self.client.moved_path(path) for path in given]
        if not any(places):
            return
        if len(given) > 1:
            new = [
                only_path(place, path, "a list of paths")
                for place, path in zip(places, given, strict=True)
            ]
            source.paths[:] = new
            return
        (path,), (place,) = given, places
        assert place is not None
        options = _without_path(source.options)
        if not place.name:
            _replace(source.options, options)
            source.paths[:] = [place.path]
            return
        if source.schema:
            raise needs_a_path(path, place, "a reader with a schema")
        read.named_table.unparsed_identifier = place.identifier
        _replace(read.named_table.options, options | place.read_options)

    def _read_table(self, relation: Any) -> None:
        read = relation.read
        table = read.named_table
        name = table.unparsed_identifier
        place = self.client.moved_table(name)
        if place is None:
            self.client.check_view_of_name(name)
            return
        options = dict(table.options) | place.read_options
        if read.is_streaming and not place.name:
            # A stream can't be started with a path as a table name.
            read.data_source.format = "delta"
            read.data_source.paths.append(place.path)
            _replace(read.data_source.options, options)
        else:
            table.unparsed_identifier = place.identifier
            _replace(table.options, options)
        parts = self.client.parts_of(name) or ()
        if path_of(parts) is None:
            # Columns may be qualified with the table's old name.
            inner = type(relation)()
            inner.read.CopyFrom(read)
            relation.subquery_alias.input.CopyFrom(inner)
            relation.subquery_alias.alias = parts[-1]

    def changes(self, message: Any) -> None:
        """Follow the change feed of a table."""
        place = self.client.moved_table(message.unparsed_identifier)
        if place is not None:
            message.unparsed_identifier = place.newest(message.unparsed_identifier)

    # --- Writes ---

    def write(self, message: Any) -> None:
        """Follow the save of a data frame, by a path or by a name."""
        kind = message.WhichOneof("save_type")
        source = message.source if message.HasField("source") else None
        if kind == "table":
            place = self.client.moved_table(message.table.table_name, "WRITE")
            if place is not None:
                message.table.table_name = place.identifier
                message.source = "delta"
                return
        if not self.client.is_delta(source):
            return
        given = [message.path] if kind == "path" else _path_options(message.options)
        place = self.client.moved_path(given[-1], "WRITE") if given else None
        if place is None:
            return
        options = _without_path(message.options)
        if not place.name:
            if kind == "path":
                message.path = place.path
            else:
                options["path"] = place.path
            _replace(message.options, options)
            return
        if kind == "table":
            raise needs_a_path(given[-1], place, "saveAsTable")
        _replace(message.options, options)
        message.source = source or "delta"
        message.table.table_name = place.identifier
        message.table.save_method = type(message.table).TABLE_SAVE_METHOD_SAVE_AS_TABLE

    def stream(self, message: Any) -> None:
        """Follow the start of a stream."""
        operation = "STREAMING UPDATE"
        kind = message.WhichOneof("sink_destination")
        if kind == "table_name":
            name = message.table_name
            place = self.client.moved_table(name, operation)
            if place is None:
                return
            if not place.name:
                # A stream can't be started with a path as a table name.
                message.path, message.format = place.path, "delta"
                return
        else:
            if not self.client.is_delta(message.format or None):
                return
            given = [message.path] if message.path else _path_options(message.options)
            place = self.client.moved_path(given[-1], operation) if given else None
            if place is None:
                return
            options = _without_path(message.options)
            if not place.name:
                message.path = place.path
                _replace(message.options, options)
                return
            _replace(message.options, options)
        self.client.check_stream_by_name(place)
        message.table_name, message.format = place.identifier, "delta"

    def merge(self, message: Any) -> None:
        """Follow the target of ``mergeInto``."""
        place = self.client.moved_table(message.target_table_name, "MERGE")
        if place is not None:
            message.target_table_name = place.identifier

    def write_v2(self, message: Any) -> None:
        """Follow the table of ``writeTo``."""
        place = self.client.moved_table(message.table_name, "WRITE")
        if place is not None:
            message.table_name = place.identifier
        if self.client.is_delta(message.provider if message.HasField("provider") else None):
            self._place_of_new(message.table_properties, "location")
            self._place_of_new(message.options, "path")

    def _place_of_new(self, options: Any, name: str) -> None:
        """Follow the place of a new table, among its properties or options."""
        for key in [key for key in options if key.lower() == name]:
            place = self.client.moved_path(options[key], "WRITE")
            options[key] = only_path(place, options[key], f"the {name} of a new table")

    def view(self, message: Any) -> None:
        """Note a view of a data frame: the server keeps its plan, and nobody its text."""
        self.new_views.append(message.name.lower())

    # --- Texts ---

    def sql(self, message: Any) -> None:
        """Follow the tables in a statement."""
        self._statement(message, "query")

    def sql_command(self, message: Any) -> None:
        """Follow a statement as older clients send it."""
        if message.sql:
            self._statement(message, "sql")

    def _statement(self, message: Any, text: str) -> None:
        fields = message.DESCRIPTOR.fields_by_name
        positional = next(
            (
                getattr(message, name)
                for name in ("pos_arguments", "pos_args")
                if name in fields and len(getattr(message, name))
            ),
            None,
        )
        args: Any = None
        if positional is not None:
            args = [_value(each) for each in positional]
        else:
            named = next(
                (
                    getattr(message, name)
                    for name in ("named_arguments", "args")
                    if name in fields and len(getattr(message, name))
                ),
                None,
            )
            if named is not None:
                args = {name: _plain(_value(value)) for name, value in named.items()}
        followed = self.client.sql(getattr(message, text), args)
        self.new_views += self.client.views_created(getattr(message, text))
        setattr(message, text, followed.text)
        if positional is not None:
            left = [id(value) for value in followed.args]
            for at in reversed(range(len(args))):
                if id(args[at]) not in left:
                    del positional[at]

    def expression(self, message: Any) -> None:
        """Follow the tables in the text of an expression."""
        if may_have_a_query(message.expression):
            message.expression = self.client.sql(message.expression).text
        else:
            self.client.check_functions(functions_called(message.expression))

    def function(self, message: Any) -> None:
        """Check a function that is called by its name."""
        self.client.check_functions([message.function_name.lower()])

    # --- Pipelines ---

    def pipeline(self, message: Any) -> None:
        """Follow the statements that define a pipeline."""
        self._statement(message, "sql_text")

    def pipeline_sink(self, message: Any) -> None:
        """Follow the place of a pipeline's sink."""
        if not self.client.is_delta(message.format or None):
            return
        for key in [key for key in message.options if key.lower() == "path"]:
            place = self.client.moved_path(message.options[key], "STREAMING UPDATE")
            message.options[key] = only_path(place, message.options[key], "a pipeline's sink")
        for key in [key for key in message.options if key.lower() == "tablename"]:
            self._refuse_moved(message.options[key], "STREAMING UPDATE")

    def pipeline_source(self, message: Any) -> None:
        """Refuse a table that moved, as the source of a pipeline's change feed."""
        self._refuse_moved(message.source)

    def _refuse_moved(self, name: str, *operations: str) -> None:
        place = self.client.moved_table(name, *operations)
        if place is not None:
            raise not_followed(name, place)

    # --- The catalog ---

    def named(self, message: Any) -> None:
        """Follow a call of the catalog about a table."""
        name = message.table_name
        has_schema = "db_name" in message.DESCRIPTOR.fields_by_name and message.db_name
        if has_schema:
            name = f"{spell_path(message.db_name)}.{spell_path(name)}"
        operations = ("TRUNCATE",) if message.DESCRIPTOR.name == "TruncateTable" else ()
        place = self.client.moved_table(name, *operations)
        if place is None:
            return
        message.table_name = place.newest(name)
        if has_schema:
            message.ClearField("db_name")

    def create_table(self, message: Any) -> None:
        """Follow the path of ``createTable``."""
        if not self.client.is_delta(message.source or None):
            return
        given = [message.path] if message.path else _path_options(message.options)
        place = self.client.moved_path(given[-1], "CREATE TABLE") if given else None
        if place is not None:
            message.path = only_path(place, given[-1], "createTable")
            _replace(message.options, _without_path(message.options))

    # --- delta-spark's own tables ---

    def _extension(self, holder: Any) -> None:
        """Follow the plan of ``DeltaTable`` in a message of any type."""
        name = holder.type_url.rpartition("/")[2]
        if not name.startswith(_DELTA):
            return
        import delta.connect.proto as messages

        message = getattr(messages, name.removeprefix(_DELTA))()
        holder.Unpack(message)
        self.follow(message)
        holder.Pack(message)

    def delta_table(self, message: Any, *operations: str) -> None:
        """Follow a ``DeltaTable``, by a path or by a name."""
        if message.WhichOneof("access_type") == "path":
            asked = message.path.path
            place = self.client.moved_path(asked, *operations)
            if place is not None and not place.name:
                message.path.path = place.path
                return
        else:
            asked = message.table_or_view_name
            place = self.client.moved_table(asked, *operations)
            if place is None:
                self.client.check_view_of_name(asked)
        if place is not None:
            message.table_or_view_name = place.newest(asked)

    def delta_command(self, message: Any) -> None:
        """Check that a table may be changed; where it is now is followed afterwards."""
        self.delta_table(message.table, *_DELTA_OPERATIONS[message.DESCRIPTOR.name])

    def delta_change(self, message: Any) -> None:
        """Check the same where the target is a plan, which may have an alias."""
        target = message.target
        while target.WhichOneof("rel_type") == "subquery_alias":
            target = target.subquery_alias.input
        if not target.extension.type_url.endswith(f"{_DELTA}DeltaRelation"):
            return
        import delta.connect.proto as messages

        scan = messages.DeltaRelation()
        target.extension.Unpack(scan)
        if scan.HasField("scan"):
            self.delta_table(scan.scan.table, _DELTA_CHANGES[message.DESCRIPTOR.name])
            target.extension.Pack(scan)

    def delta_clone(self, message: Any) -> None:
        """Follow the target of a clone."""
        target = message.target
        is_path = path_of(("delta", target)) is not None
        find = self.client.moved_path if is_path else self.client.moved_table
        place = find(target, "CLONE")
        if place is not None:
            message.target = place.identifier if place.name else place.path

    def delta_creation(self, message: Any) -> None:
        """Follow the place of a table that a builder makes."""
        if message.location:
            message.location = self._builders_location(message.location)
        for key in [key for key in message.properties if key.lower() == "location"]:
            message.properties[key] = self._builders_location(message.properties[key])
        if message.table_name:
            named = self.client.moved_table(message.table_name, "CREATE TABLE")
            if named is not None:
                message.table_name = named.identifier

    def _builders_location(self, location: str) -> str:
        place = self.client.moved_path(location, "CREATE TABLE")
        if place is None:
            return location
        path = only_path(place, location, "the builder's location")
        # Delta compares it with its own spelling: a URI in Java has one slash there.
        return path.replace("file:///", "file:/", 1)

    def delta_convert(self, message: Any) -> None:
        """Follow the path of a table that is converted: it is one of Delta already."""
        parts = self.client.parts_of(message.identifier) or ()
        if len(parts) == 2 and path_of(("delta", parts[1])) is not None:
            place = self.client.moved_path(parts[1])
            if place is not None:
                path = only_path(place, parts[1], "convertToDelta")
                message.identifier = f"{parts[0]}.{spell_path(path)}"

    def delta_question(self, message: Any) -> None:
        """Follow the path of ``isDeltaTable``."""
        place = self.client.moved_path(message.path)
        if place is not None:
            message.path = place.path


_Visit = Callable[[PlanFollower, Any], None]
_VISITS: dict[str, _Visit] = {
    f"{_SPARK}Relation": PlanFollower.relation,
    f"{_SPARK}RelationChanges": PlanFollower.changes,
    f"{_SPARK}WriteOperation": PlanFollower.write,
    f"{_SPARK}WriteOperationV2": PlanFollower.write_v2,
    f"{_SPARK}WriteStreamOperationStart": PlanFollower.stream,
    f"{_SPARK}MergeIntoTableCommand": PlanFollower.merge,
    f"{_SPARK}CreateDataFrameViewCommand": PlanFollower.view,
    f"{_SPARK}SQL": PlanFollower.sql,
    f"{_SPARK}SqlCommand": PlanFollower.sql_command,
    f"{_SPARK}Expression.ExpressionString": PlanFollower.expression,
    f"{_SPARK}Expression.UnresolvedFunction": PlanFollower.function,
    f"{_SPARK}CallFunction": PlanFollower.function,
    f"{_SPARK}CreateTable": PlanFollower.create_table,
    f"{_SPARK}CreateExternalTable": PlanFollower.create_table,
    **{
        f"{_SPARK}{name}": PlanFollower.named
        for name in (
            "CacheTable",
            "UncacheTable",
            "IsCached",
            "ListColumns",
            "GetTableProperties",
            "ListPartitions",
            "TruncateTable",
        )
    },
    f"{_PIPELINE}DefineSqlGraphElements": PlanFollower.pipeline,
    f"{_PIPELINE}DefineOutput.SinkDetails": PlanFollower.pipeline_sink,
    f"{_PIPELINE}DefineFlow.AutoCdcFlowDetails": PlanFollower.pipeline_source,
    f"{_DELTA}DeltaTable": PlanFollower.delta_table,
    f"{_DELTA}CloneTable": PlanFollower.delta_clone,
    f"{_DELTA}CreateDeltaTable": PlanFollower.delta_creation,
    f"{_DELTA}ConvertToDelta": PlanFollower.delta_convert,
    f"{_DELTA}IsDeltaTable": PlanFollower.delta_question,
    **{f"{_DELTA}{name}": PlanFollower.delta_command for name in _DELTA_OPERATIONS},
    **{f"{_DELTA}{name}": PlanFollower.delta_change for name in _DELTA_CHANGES},
}
"""What to do with the messages that name a table, by their names."""


def _children(message: Any) -> Iterator[Any]:
    """Yield the messages directly in a message."""
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            if descriptor.message_type.fields_by_name["value"].message_type is not None:
                yield from value.values()
        elif hasattr(value, "DESCRIPTOR"):
            yield value
        else:
            yield from value


def _decompress(plan: Any) -> None:
    """Replace a compressed plan by the plan itself."""
    import zstandard

    packed = plan.compressed_operation
    codec = type(packed).DESCRIPTOR.fields_by_name["compression_codec"].enum_type
    if codec.values_by_number[packed.compression_codec].name != "COMPRESSION_CODEC_ZSTD":
        raise InvalidInput(
            "a plan is compressed in a way that Lakeferry doesn't know",
            cause=codec.values_by_number[packed.compression_codec].name,
            remedy="spark.conf.set('spark.connect.session.planCompression.threshold', '-1')",
        )
    kinds = type(packed).DESCRIPTOR.fields_by_name["op_type"].enum_type.values_by_number
    is_command = kinds[packed.op_type].name == "OP_TYPE_COMMAND"
    content = zstandard.ZstdDecompressor().decompress(packed.data)
    whole = plan.command if is_command else plan.root
    whole.ParseFromString(content)
    whole.SetInParent()


def _path_options(options: Any) -> list[str]:
    return [value for key, value in options.items() if key.lower() == "path"][-1:]


def _without_path(options: Any) -> dict[str, str]:
    return {key: value for key, value in options.items() if key.lower() != "path"}


def _replace(options: Any, new: dict[str, str]) -> None:
    """Replace the content of a message's options; ``new`` may have been made from them."""
    options.clear()
    options.update(new)


@dataclass(slots=True)
class _Argument:
    """A positional argument that can't be the name of a table."""

    value: Any = None


class _Text(str):
    """A positional argument that is a text; two of them may be equal."""


def _value(argument: Any) -> _Text | _Argument:
    """Return an argument of a statement: its value if it is a simple literal."""
    literal = argument.literal if "literal" in argument.DESCRIPTOR.fields_by_name else argument
    kind = literal.WhichOneof("literal_type")
    if kind == "string":
        return _Text(literal.string)
    is_simple = kind in ("boolean", "byte", "short", "integer", "long", "float", "double")
    return _Argument(getattr(literal, kind) if is_simple else None)


def _plain(value: _Text | _Argument) -> Any:
    """Return a value for a statement of our own; ``None`` if we can't give it."""
    return value.value if isinstance(value, _Argument) else str(value)
