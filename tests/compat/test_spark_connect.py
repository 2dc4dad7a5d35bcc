"""Spark Connect with our client: the plans that it sends name tables where they are now.

The cases are those of the client for PySpark. A function whose first argument is a session runs in
the client's process (``tests/support/connect.py``).

This is with the Spark that we develop with; ``test_oldest_spark_connect.py`` tries the same with
others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake

import lakeferry
from lakeferry import spark as modern
from lakeferry.api.redirects import Redirects
from lakeferry.engines.spark.spark_versions import NEWEST_WITH_DELTA, SparkLine
from lakeferry.errors import RedirectNotFollowed
from lakeferry.storage import open_store
from tests.compat import test_spark_client as classic
from tests.matrix import environments
from tests.support import pandas_reads
from tests.support.connect import ConnectFailure, ConnectProcess, connect_process, connect_server
from tests.support.moved_session import FOLLOWED, MANY
from tests.support.redirected_tables import (
    MOVED_ON,
    ROWS,
    Places,
    Stage,
    at_stage,
    content,
    create,
    rows,
)
from tests.support.servers import S3Bucket
from tests.support.spark import s3_settings
from tests.support.spark_reads import streamed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("connect")

AT_TARGET, NEW = classic.AT_TARGET, classic.NEW
WITHOUT_A_PLUGIN = ("DeltaTable", "for_path")
"""delta-spark's own tables need a plugin in the server, and its jar can't be had."""
ON_THE_SERVER = "foreachBatch"
"""Its function runs in a session of its own."""
SLOW = ("RESTORE", "VACUUM")
"""Many jobs in Spark, and to us statements like the others."""

LINE = NEWEST_WITH_DELTA
"""The line of Spark that this module tries; ``test_oldest_spark_connect.py`` tries others."""


def cases(known: dict[str, Any]) -> list[str]:
    unwanted = (*WITHOUT_A_PLUGIN, ON_THE_SERVER, *SLOW)
    return [name for name in known if not any(word in name for word in unwanted)]


def has(line: SparkLine, test: str, case: str) -> bool:
    """Return whether PySpark of a line has what a case is about."""
    if line is environments.OLDEST and test in NOT_IN_3_5:
        return False
    if line is not NEWEST_WITH_DELTA and test in NEWEST_ALONE:
        return False
    if line is environments.OLDEST and case == "sql with a frame":
        # Its sessions take no other arguments than those of parameters.
        return False
    lacks = {each.partition(".")[2] for each in line.lacks}
    return not any(method in case for method in lacks)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test the cases that the line of its module has; other modules take the tests, too."""
    test = metafunc.function.__name__
    if test in CASES:
        names = [name for name in CASES[test] if has(metafunc.module.LINE, test, name)]
        metafunc.parametrize("name", names)


# --- What runs in the client's process ---


def install(session: SparkSession) -> None:
    modern.install(session)


def uninstall(session: SparkSession) -> None:
    modern.uninstall(session)


def read(session: SparkSession, name: str, path: str) -> list[int]:
    return classic.ids(classic.READS[name](session, path))


def append(session: SparkSession, name: str, path: str) -> None:
    classic.APPENDS[name](session, path)


def change(session: SparkSession, name: str, path: str) -> None:
    classic.OTHER_WRITES[name][0](session, path)


def load(session: SparkSession, path: str) -> list[int]:
    return classic.ids(session.read.format("delta").load(path))


def run(session: SparkSession, *texts: str) -> list[list[Any]]:
    """Run statements; return the rows of the last one, sorted."""
    for text in texts[:-1]:
        session.sql(text)
    return sorted([*row] for row in session.sql(texts[-1]).collect())


def count_requests(session: SparkSession, text: str, expression: str) -> list[int]:
    """Return how many requests a statement and an expression lead to, with and without us."""
    remote: Any = session
    found = []
    for is_installed in (True, False):
        (modern.install if is_installed else modern.uninstall)(session)
        stub = remote.client._stub
        holder, name = (stub, "stub") if is_installed else (remote.client, "_stub")
        counting = Counting(getattr(holder, name))
        setattr(holder, name, counting)
        session.sql(text).collect()
        session.range(3).selectExpr(expression).where("id > 1").collect()
        setattr(holder, name, counting.stub)
        found.append(counting.count)
    modern.install(session)
    return found


class Counting:
    """A stub that counts its requests."""

    def __init__(self, stub: Any) -> None:
        self.count = 0
        self.stub = stub

    def __getattr__(self, name: str) -> Any:
        self.count += name in ("ExecutePlan", "AnalyzePlan", "Config")
        return getattr(self.stub, name)


def with_arguments(session: SparkSession, text: str, args: Any) -> int:
    return session.sql(text, args).count()


def table(session: SparkSession, name: str) -> list[int]:
    return classic.ids(session.table(name))


def stock_table(session: SparkSession, name: str) -> list[int]:
    """Read a table in another session of the server."""
    remote: Any = session
    other = type(remote)(remote.client._builder)
    found = classic.ids(other.table(f"spark_catalog.{name}"))
    other.client.close()
    return found


def write_tables(session: SparkSession, name: str) -> None:
    frame = classic.append_frame(session)
    frame.write.mode("append").saveAsTable(name)
    frame.write.insertInto(name)
    frame.writeTo(name).append()
    session.sql(f"UPDATE {name} SET id = 98 WHERE id = {NEW}")


def stream_tables(session: SparkSession, name: str, path: str) -> list[int]:
    classic.stream_frame(session, path).toTable(name).awaitTermination()
    return classic.ids(streamed(session, session.readStream.table(name)))


def in_catalog(session: SparkSession, name: str, path: str) -> list[Any]:
    catalog = session.catalog
    catalog.cacheTable(name)
    cached = catalog.isCached(name)
    catalog.uncacheTable(name)
    catalog.createTable("made_here", path, "delta")
    made = session.sql("DESCRIBE DETAIL made_here").collect()[0].location
    session.sql("DROP TABLE made_here")
    return [cached, [column.name for column in catalog.listColumns(name)], made]


def made_at(session: SparkSession, name: str, path: str) -> None:
    """Make a table whose place is a property or an option."""
    new = session.range(90, 91)
    if name == "createTable":
        session.catalog.createTable("made_at", source="delta", PATH=path)
    elif name == "property":
        new.writeTo("made_at").using("delta").tableProperty("location", path).createOrReplace()
    else:
        new.writeTo("made_at").using("delta").option("path", path).createOrReplace()


def for_each_batch(session: SparkSession, path: str) -> None:
    def write(frame: Any, _: int) -> None:
        modern.install(frame.sparkSession)
        frame.write.format("delta").mode("append").save(path)

    classic.stream_frame(session, path).foreachBatch(write).start().awaitTermination()


def use_s3(session: SparkSession, settings: dict[str, str], options: dict[str, str]) -> None:
    for name, value in settings.items():
        session.conf.set(name, value)
    modern.install(session, storage_options=options)


def stream_to(session: SparkSession, feed: str, path: str) -> None:
    classic.stream_frame(session, feed).format("delta").start(path).awaitTermination()


_kept: dict[str, Any] = {}


def keep_frame(session: SparkSession, path: str, view: str) -> list[int]:
    frame = _kept[path] = session.read.format("delta").load(path)
    frame.createOrReplaceTempView(view)
    return classic.ids(frame)


def kept_frame(_: SparkSession, path: str) -> list[int]:
    return classic.ids(_kept[path])


def expressions(session: SparkSession, query: str) -> int:
    from pyspark.sql import functions

    frame = session.range(20).where(f"id IN ({query})")
    return frame.withColumn("x", functions.expr(f"(SELECT max(id) FROM ({query}))")).count()


def call_function(session: SparkSession, name: str) -> Any:
    from pyspark.sql import functions

    return session.range(1).select(functions.call_function(name)).collect()[0][0]


class Sent:
    """What a session would send: nothing but Lakeferry's own questions leaves this process."""

    def __init__(self, stub: Any) -> None:
        self.requests: list[Any] = []
        self._stub = stub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    def ExecutePlan(self, request: Any, **named: Any) -> Any:  # noqa: N802
        from lakeferry.spark.connect_server import is_unfollowed

        if is_unfollowed():
            return self._stub.ExecutePlan(request, **named)
        self.requests.append(request)
        raise ConnectionAbortedError


def delta_messages(session: SparkSession, path: str) -> list[str]:
    """Return what the messages of ``DeltaTable`` name when they leave this process."""
    import delta.connect.proto as messages
    from delta.tables import DeltaTable
    from google.protobuf import text_format

    remote: Any = session
    stub = remote.client._stub
    kept = stub.stub
    stub.stub = sent = Sent(kept)
    opened: Any = DeltaTable.forPath(session, path)
    acts: list[Callable[[], Any]] = [
        opened.alias("t").toDF().collect,
        opened.vacuum,
        lambda: opened.delete("id > 3"),
        lambda: opened.clone(path, isShallow=True),
        DeltaTable.create(session).location(path).addColumn("id", "BIGINT").execute,
    ]
    remote.client.disable_reattachable_execute()
    try:
        for act in acts:
            with contextlib.suppress(ConnectionAbortedError):
                act()
    finally:
        stub.stub = kept
        remote.client.enable_reattachable_execute()
    told = []
    for request in sent.requests:
        plan = request.plan
        if plan.HasField("command"):
            message = messages.DeltaCommand()
            plan.command.extension.Unpack(message)
        else:
            message = messages.DeltaRelation()
            root = plan.root
            inner = root.subquery_alias.input if root.HasField("subquery_alias") else root
            inner.extension.Unpack(message)
            if message.HasField("delete_from_table"):
                target = message.delete_from_table.target.extension
                target.Unpack(message)
        told.append(text_format.MessageToString(message, as_utf8=True))
    return told


def pipeline_messages(session: SparkSession, path: str, name: str) -> list[str]:
    """Return what the definitions of a pipeline name when they leave this process."""
    from google.protobuf import text_format
    from pyspark.sql.connect import proto

    remote: Any = session
    stub = remote.client._stub
    kept = stub.stub
    stub.stub = sent = Sent(kept)
    commands = [proto.PipelineCommand() for _ in range(4)]
    for command, text in (
        (commands[0], f"CREATE MATERIALIZED VIEW a AS SELECT * FROM delta.`{path}`"),
        (commands[0], f"CREATE TEMPORARY VIEW b AS SELECT * FROM {name}"),
        (commands[1], f"CREATE FLOW f AS INSERT INTO c BY NAME SELECT * FROM STREAM {name}"),
    ):
        command.define_sql_graph_elements.sql_text += f"{text};\n"
    sink = commands[2].define_output.sink_details
    sink.format, sink.options["path"] = "delta", path
    commands[3].define_flow.auto_cdc_flow_details.source = name
    told = []
    try:
        for command in commands:
            request = remote.client._execute_plan_request_with_metadata()
            request.plan.command.pipeline_command.CopyFrom(command)
            try:
                stub.ExecutePlan(request)
            except ConnectionAbortedError:
                told.append(text_format.MessageToString(sent.requests[-1].plan, as_utf8=True))
            except RedirectNotFollowed:
                told.append("refused")
    finally:
        stub.stub = kept
    return told


def compressed(session: SparkSession, path: str) -> list[int]:
    """Read with a plan so long that PySpark compresses it."""
    remote: Any = session
    remote.client._plan_compression_threshold, kept = 10, remote.client._plan_compression_threshold
    remote.client._plan_compression_algorithm = "ZSTD"
    wide = " OR ".join(f"id = {number}" for number in range(200))
    try:
        return classic.ids(session.read.format("delta").load(path).where(wide))
    finally:
        remote.client._plan_compression_threshold = kept


def moved_by_engine(_: SparkSession, source: str, target: str) -> list[Any]:
    """Move a table, export it and compare both ends, with executors of the server."""
    from lakeferry.engines.spark import copy_on_spark
    from lakeferry.engines.spark.spark_engine import SparkEngine

    seen: list[str] = []
    with pytest.MonkeyPatch.context() as large:
        large.setattr(copy_on_spark, "PLANNED_HERE_BYTES", -1)
        table = lakeferry.Table(source)
        done = table.redirect(target, engine="spark", observer=lambda what, *_: seen.append(what))
    exported = table.export(f"{target}-export", engine="spark")
    with SparkEngine() as engine:
        cores = engine.session.cores
    other = lakeferry.Table(f"{target}-export")
    same = lakeferry.Table(target).verify(other, rows=True, engine="spark").equal
    return [done.files_copied, exported.version, same, cores, sorted(set(seen))]


def with_another_version(_: SparkSession, source: str, target: str) -> None:
    from lakeferry.engines.spark import connect_engine

    with pytest.MonkeyPatch.context() as newer:
        newer.setattr(connect_engine, "LAKEFERRY_VERSION", "99")
        lakeferry.Table(source).export(target, engine="spark")


# --- The tests ---


CASES = {
    "test_readers_are_led_to_the_target": cases(classic.READS),
    "test_writers_are_led_to_the_target": cases(classic.APPENDS),
    "test_changes_are_made_at_the_target": cases(classic.OTHER_WRITES),
    "test_a_query_is_followed_however_it_names_a_table": ["ours", "locked"],
    "test_the_place_of_a_new_table_may_be_a_property_or_an_option": [
        "property",
        "option",
        "createTable",
    ],
}
"""The cases of a test, which gets one as ``name``."""
NEWEST_ALONE = (
    # Only this line has the jars for ``s3a://``.
    "test_on_s3_an_old_path_leads_to_the_target",
    # Its messages came with this line.
    "test_the_definitions_of_a_pipeline_name_the_target_or_are_refused",
)
SINCE_4_0 = ("EXECUTE", "BEGIN", "FROM {t} |>")
"""Statements that Spark 3.5 doesn't have."""
NOT_IN_3_5 = (
    # It has no functions in SQL, and its delta-spark follows no redirect.
    "test_views_and_functions_are_followed_by_the_server_or_refused",
    # Its pandas API works with older versions of pandas.
    "test_pandas_on_spark_is_led_to_the_target",
    # delta-spark 3.3 has no DeltaTable for Connect, and PySpark 3.5 compresses no plans.
    "test_delta_sparks_own_tables_name_the_target",
    "test_a_plan_may_be_compressed",
)


@pytest.fixture(scope="module")
def line(request: pytest.FixtureRequest) -> SparkLine:
    """The line of Spark of the server and of its client."""
    found: SparkLine = request.module.LINE
    return found


@pytest.fixture(scope="module")
def server_folder(line: SparkLine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(f"connect-{line.line}")


@pytest.fixture(scope="module")
def connect(line: SparkLine, server_folder: Path) -> Iterator[ConnectProcess]:
    """A client of a real server."""
    with (
        connect_server(server_folder, line) as url,
        connect_process(url, server_folder, line) as process,
    ):
        process.call(install)
        yield process


@pytest.fixture(scope="module")
def moved(connect: ConnectProcess, server_folder: Path) -> dict[str, Places]:
    """Tables of the current schema, as in ``tests/support/moved_session.py``."""
    options: dict[str, dict[str, Any]] = {
        "both": {"mode": "writer-only"},
        "ours": {"mode": "writer-only", "dialects": ("rfc",)},
        "locked": {"mode": "reader-writer"},
    }
    connect.call(run, "CREATE DATABASE moved", "USE moved")
    places = {}
    for name, given in options.items():
        places[name] = create(server_folder / "o d ü", name)
        connect.call(run, f"CREATE TABLE {name} USING delta LOCATION '{places[name].source}'")
        places[name].move(**given)
        write_deltalake(str(places[name].target), rows([MOVED_ON]), mode="append")
    return places


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return at_stage(tmp_path / "o d ü", Stage.READY, "reader-writer")


def test_readers_are_led_to_the_target(
    name: str, connect: ConnectProcess, moved: dict[str, Places]
) -> None:
    assert connect.call(read, name, moved["locked"].source) == AT_TARGET


def test_writers_are_led_to_the_target(name: str, connect: ConnectProcess, places: Places) -> None:
    before = content(places.source)
    connect.call(append, name, places.source)
    assert classic.at(places.target) == [*AT_TARGET, NEW]
    assert content(places.source) == before


def test_changes_are_made_at_the_target(name: str, connect: ConnectProcess, places: Places) -> None:
    before = content(places.source)
    connect.call(change, name, places.source)
    assert classic.at(places.target) == classic.OTHER_WRITES[name][1]
    assert content(places.source) == before


def test_a_query_is_followed_however_it_names_a_table(
    name: str, connect: ConnectProcess, line: SparkLine, moved: dict[str, Places]
) -> None:
    names = {"t": name, "p": moved[name].source, "s": "moved"}
    texts = FOLLOWED if name == "ours" else FOLLOWED[:3]
    if line is environments.OLDEST:
        texts = [text for text in texts if not text.startswith(SINCE_4_0)]
    found = {text: len(connect.call(run, text.format(**names))) for text in texts}
    assert found == dict.fromkeys(texts, MANY)


def test_arguments_may_name_a_table(
    connect: ConnectProcess, line: SparkLine, moved: dict[str, Places]
) -> None:
    assert connect.call(with_arguments, "SELECT * FROM IDENTIFIER(?)", ["ours"]) == MANY
    computed = ("SELECT * FROM IDENTIFIER(:name || 's')", {"name": "our"})
    if line.binds_in_text:
        # With Delta's parser, these servers bind no parameters, so they can't tell.
        with pytest.raises(ConnectFailure, match="known only when it runs"):
            connect.call(with_arguments, *computed)
    else:
        assert connect.call(with_arguments, *computed) == MANY
    with pytest.raises(ConnectFailure, match="known only when it runs"):
        connect.call(with_arguments, "SELECT * FROM IDENTIFIER('our' || ?)", ["s"])


def test_arguments_may_give_a_place(connect: ConnectProcess, moved: dict[str, Places]) -> None:
    path = str(moved["ours"].source)
    for text, args in (
        ("CREATE TABLE of_argument USING delta LOCATION :p", {"p": path}),
        ("CREATE TABLE of_argument USING delta COMMENT 'c' LOCATION '/' ?", [path[1:]]),
    ):
        connect.call(with_arguments, text, args)
        assert connect.call(stock_table, "moved.of_argument") == AT_TARGET
        connect.call(run, "DROP TABLE of_argument")
    for text in (
        f"EXECUTE IMMEDIATE 'CREATE TABLE never USING delta LOCATION ?' USING '{path}'",
        "CREATE TABLE never USING delta LOCATION :p",
    ):
        with pytest.raises(ConnectFailure, match="known only when it runs"):
            connect.call(run, text)


def test_tables_of_the_catalog_are_found_at_the_target(
    connect: ConnectProcess, tmp_path: Path
) -> None:
    places = create(tmp_path, "late")
    name = "moved.late"
    connect.call(run, f"CREATE TABLE {name} USING delta LOCATION '{places.source}'")
    assert connect.call(table, name) == ROWS
    assert connect.call(keep_frame, str(places.source), "of_late") == ROWS
    places.move(mode="writer-only", dialects=("rfc",))
    before = content(places.source)
    connect.call(write_tables, name)
    assert connect.call(table, name) == [*ROWS, 98, 98, 98]
    # A plan is followed when it is sent. The server keeps that of a view.
    assert connect.call(kept_frame, str(places.source)) == [*ROWS, 98, 98, 98]
    for text in ("SELECT * FROM of_late", "SELECT 1 WHERE 3 IN (TABLE of_late)"):
        with pytest.raises(ConnectFailure, match="RedirectNotFollowed"):
            connect.call(run, text)
    with pytest.raises(ConnectFailure, match="RedirectNotFollowed"):
        connect.call(table, "of_late")
    assert connect.call(stream_tables, name, places.source) == [*ROWS, 98, 98, 98, NEW]
    found = connect.call(in_catalog, name, places.source)
    assert found == [True, ["id"], f"file:{places.target}"]
    assert content(places.source) == before
    # Other sessions of the server aren't led anywhere.
    assert connect.call(stock_table, name) == ROWS


def test_views_and_functions_are_followed_by_the_server_or_refused(
    connect: ConnectProcess, moved: dict[str, Places]
) -> None:
    for name in ("both", "ours"):
        connect.call(
            run,
            f"CREATE VIEW view_of_{name} AS SELECT * FROM {name}",
            f"CREATE FUNCTION most_of_{name}() RETURNS BIGINT RETURN SELECT max(id) FROM {name}",
        )
    # A helper of PySpark has this name.
    connect.call(
        run, "CREATE FUNCTION column() RETURNS BIGINT RETURN SELECT max(id) FROM ours", "SELECT 1"
    )
    connect.call(run, "CREATE VIEW view_of_view AS SELECT max(id) AS id FROM view_of_ours")
    assert connect.call(table, "view_of_both") == AT_TARGET
    assert len(connect.call(run, "SELECT * FROM view_of_both")) == MANY
    assert connect.call(run, "SELECT most_of_both()") == [[MOVED_ON]]
    assert connect.call(call_function, "most_of_both") == MOVED_ON
    for text in (
        "SELECT * FROM view_of_ours",
        "SELECT 1 WHERE 3 IN (SELECT id FROM view_of_view)",
        "SELECT most_of_ours()",
        "SELECT IDENTIFIER('most_of_ours')()",
        "SELECT IDENTIFIER('most_' || 'of_ours')()",
        "INSERT INTO both SELECT IDENTIFIER('most_' || 'of_ours')()",
        "SELECT * FROM IDENTIFIER('table_changes')('ours', 0)",
        "SELECT column()",
        "INSERT INTO both SELECT * FROM view_of_ours",
        "CREATE TABLE never USING delta AS SELECT * FROM view_of_view",
        "BEGIN SELECT * FROM view_of_ours; END",
        "EXECUTE IMMEDIATE 'SELECT most_of_ours()'",
        # No word before it says that it is a table.
        "SELECT * FROM VALUES (1) AS v(x), ours",
        "BEGIN DECLARE t STRING DEFAULT 'ours'; SELECT * FROM IDENTIFIER(t); END",
        "BEGIN USE default; SELECT * FROM ours; END",
    ):
        with pytest.raises(ConnectFailure, match="RedirectNotFollowed"):
            connect.call(run, text)
    for function in (table, call_function):
        name = "view_of_ours" if function is table else "most_of_ours"
        with pytest.raises(ConnectFailure, match="RedirectNotFollowed"):
            connect.call(function, name)
    # A column may have the name of a table that moved.
    assert len(connect.call(run, "SELECT ours FROM (SELECT id AS ours FROM both) x")) == MANY
    assert connect.call(expressions, "SELECT id FROM ours") == MANY


def test_the_place_of_a_new_table_may_be_a_property_or_an_option(
    name: str, connect: ConnectProcess, moved: dict[str, Places], tmp_path: Path
) -> None:
    places = create(tmp_path)
    places.move(mode="writer-only", dialects=("rfc",))
    write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")
    before = content(places.source)
    connect.call(made_at, name, places.source)
    expected = AT_TARGET if name == "createTable" else [90]
    assert connect.call(stock_table, "moved.made_at") == expected
    connect.call(run, "DROP TABLE made_at")
    assert content(places.source) == before


def test_a_relative_path_is_the_servers(
    connect: ConnectProcess, moved: dict[str, Places], server_folder: Path
) -> None:
    relative = os.path.relpath(moved["ours"].source, server_folder)
    assert connect.call(load, relative) == AT_TARGET
    assert connect.call(load, f"file://{moved['ours'].source}/@v0") == ROWS[:5]


def test_writers_are_refused_while_a_redirect_changes(
    connect: ConnectProcess, line: SparkLine, tmp_path: Path
) -> None:
    places = at_stage(tmp_path, Stage.ENABLING, "writer-only")
    logs = places.logs
    for name in ("save", "saveAsTable", "INSERT", "MERGE", "mergeInto", "stream"):
        if not has(line, "", name):
            continue
        with pytest.raises(ConnectFailure, match="RedirectInProgress"):
            connect.call(append, name, places.source)
    for name in ("DELETE", "OPTIMIZE", "VACUUM", "ALTER"):
        with pytest.raises(ConnectFailure, match="RedirectInProgress"):
            connect.call(change, name, places.source)
    assert places.logs == logs
    assert connect.call(load, places.source) == ROWS


def test_what_names_no_table_asks_the_server_nothing(connect: ConnectProcess) -> None:
    # The functions that the server brings are asked for once.
    connect.call(run, "SELECT abs(1)")
    for text in ("SELECT 1 + abs(-3) AS x", "SELECT CASE WHEN 1 > 2 THEN 'a' ELSE NULL END"):
        ours, stock = connect.call(count_requests, text, "abs(id) AS id")
        assert ours == stock, text


def test_a_rule_keeps_a_session_at_the_source(connect: ConnectProcess, tmp_path: Path) -> None:
    places = create(tmp_path)
    places.move(mode="writer-only", rules=["lakeferry-tests:OPTIMIZE"])
    write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")
    logs = places.logs
    assert connect.call(load, places.source) == ROWS
    for name in ("save", "INSERT"):
        with pytest.raises(ConnectFailure, match="RedirectRuleViolated"):
            connect.call(append, name, places.source)
    assert places.logs == logs


def test_a_batch_function_follows_where_it_installs_the_client(
    connect: ConnectProcess, places: Places
) -> None:
    connect.call(for_each_batch, places.source)
    assert classic.at(places.target) == [*AT_TARGET, NEW]


def test_delta_sparks_own_tables_name_the_target(connect: ConnectProcess, places: Places) -> None:
    told = connect.call(delta_messages, places.source)
    assert len(told) == 5
    for said in told:
        assert str(places.target) in said
        assert f'{places.source}"' not in said


def test_the_definitions_of_a_pipeline_name_the_target_or_are_refused(
    connect: ConnectProcess, moved: dict[str, Places]
) -> None:
    old, new = str(moved["ours"].source), str(moved["ours"].target)
    views, flow, sink, source = connect.call(pipeline_messages, old, "moved.ours")
    assert views.count(new) == 2
    assert f"{old}`" not in views
    assert new in sink
    assert (flow, source) == ("refused", "refused")


def test_pandas_on_spark_is_led_to_the_target(connect: ConnectProcess, tmp_path: Path) -> None:
    places = create(tmp_path)
    path, name = str(places.source), "default.of_pandas"
    connect.call(run, f"CREATE TABLE {name} USING delta LOCATION '{path}'")
    places.move(mode="writer-only", dialects=("rfc",))
    write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")
    before = content(places.source)
    found = connect.call(pandas_reads.read_all, path, name)
    assert found == dict.fromkeys(pandas_reads.READS, AT_TARGET)
    assert connect.call(pandas_reads.read_version, path, 0) == ROWS[:5]
    written = connect.call(pandas_reads.write_all, path, name, NEW)
    assert classic.at(places.target) == [*AT_TARGET, *[NEW] * written]
    assert content(places.source) == before


@pytest.mark.parametrize("scheme", ["s3a", "s3"])
def test_on_s3_an_old_path_leads_to_the_target(
    scheme: str, connect: ConnectProcess, s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    options = s3_bucket.storage_options
    source, target = f"{s3_bucket.uri}/o d/table", f"{s3_bucket.uri}/moved"
    write_deltalake(source, rows(ROWS), storage_options=options)
    with Redirects(options) as moves:
        moves.enable(source, target, mode="writer-only", dialects=("rfc",))
    write_deltalake(target, rows([MOVED_ON]), mode="append", storage_options=options)
    store = open_store(source, options)
    before = {entry.path: store.get(entry.path) for entry in store.list("")}
    old = f"{scheme}://{s3_bucket.name}/o d/table"
    connect.call(use_s3, s3_settings(s3_bucket.server), options)
    try:
        reads = ("load", "table", "sql", "stream", "lakeferry.spark.read")
        for name in reads if scheme == "s3a" else reads[:1]:
            assert connect.call(read, name, old) == AT_TARGET, name
        names = ["INSERT"]
        if scheme == "s3a":
            names += ["save", "saveAsTable", "writeTo", "lakeferry.spark.write"]
        for name in names:
            connect.call(append, name, old)
        connect.call(stream_to, tmp_path / "feed", old)
        found = DeltaTable(target, storage_options=options).to_pyarrow_table()["id"].to_pylist()
        assert sorted(found) == [*AT_TARGET, *[NEW] * (len(names) + 1)]
        connect.call(run, f"DELETE FROM delta.`{old}` WHERE id = {NEW}")
        assert connect.call(read, "load", old) == AT_TARGET
    finally:
        connect.call(install)
    assert {entry.path: store.get(entry.path) for entry in store.list("")} == before


def test_a_plan_may_be_compressed(connect: ConnectProcess, moved: dict[str, Places]) -> None:
    assert connect.call(compressed, moved["locked"].source) == AT_TARGET


def test_an_uninstalled_session_is_as_before(
    connect: ConnectProcess, moved: dict[str, Places]
) -> None:
    connect.call(uninstall)
    try:
        assert connect.call(load, moved["both"].source) == ROWS
        with pytest.raises(ConnectFailure, match="redirectReaderWriter"):
            connect.call(load, moved["locked"].source)
    finally:
        connect.call(install)
    assert lakeferry.resolve(str(moved["locked"].source))
    assert connect.call(load, moved["locked"].source) == AT_TARGET


# --- The engine ---


def test_the_engine_works_on_the_servers_executors(connect: ConnectProcess, tmp_path: Path) -> None:
    places = create(tmp_path)
    copied, version, same, cores, seen = connect.call(moved_by_engine, places.source, places.target)
    assert (copied, same, cores) == (2, True, 2)
    assert version is not None
    assert "copying data" in seen
    assert classic.at(places.target) == ROWS


def test_executors_with_another_lakeferry_are_refused(
    connect: ConnectProcess, tmp_path: Path
) -> None:
    places = create(tmp_path)
    with pytest.raises(ConnectFailure, match="can't run Lakeferry's jobs") as refused:
        connect.call(with_another_version, places.source, places.target)
    assert "install lakeferry==99" in refused.value.remedy
    assert not list(places.target.rglob("0*.json"))
