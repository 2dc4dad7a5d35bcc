"""SQL with our client: every table that Spark's parser finds is followed, or refused."""

from __future__ import annotations

import functools
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import write_deltalake

from lakeferry import spark as modern
from lakeferry.errors import RedirectNotFollowed, RedirectTargetReplaced
from lakeferry.spark import patches, session_clients
from lakeferry.spark.client import Client
from lakeferry.spark.redirected_path import NewPlace
from lakeferry.spark.sql_tokens import path_of
from lakeferry.spark.statement_rewrite import edited, parse_statement
from lakeferry.spark.statement_tables import Relation
from tests.support.moved_session import FOLLOWED, MANY, Moved, moved_session
from tests.support.redirected_tables import MOVED_ON, ROWS, content, create, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEW = "s3a://new/t"


@pytest.fixture(scope="module")
def moved(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, unsplit_plans: None
) -> Iterator[Moved]:
    with moved_session(spark, tmp_path_factory.mktemp("moved")) as found:
        yield found


def test_a_query_is_followed_however_it_names_a_table(moved: Moved) -> None:
    """Nothing else would: delta-spark reads this source, and finds the old rows."""
    path = moved.places["ours"].source
    names = {"t": "ours", "p": path, "s": moved.schema}
    found = {text: moved.count(text.format(**names)) for text in FOLLOWED}
    assert found == dict.fromkeys(FOLLOWED, MANY)


def test_a_column_is_the_one_of_its_own_schema(moved: Moved, tmp_path: Path) -> None:
    """Another schema has a table with the name of one that moved."""
    schema, session = moved.schema, moved.session
    other = f"other_{uuid.uuid4().hex}"
    write_deltalake(str(tmp_path / "t"), rows([MOVED_ON, 50]))
    session.sql(f"CREATE DATABASE {other}")
    session.sql(f"CREATE TABLE {other}.ours USING delta LOCATION '{tmp_path / 't'}'")
    here, there = f"{schema}.ours", f"{other}.ours"
    match = f"SELECT 1 FROM {there} WHERE {here}.id = {there}.id"
    found = {
        text: sorted(map(tuple, session.sql(text).collect()))
        for text in (
            f"SELECT {here}.id FROM {here} JOIN {there} ON {here}.id = {there}.id",
            f"SELECT {here}.* FROM {here}, {there} WHERE {there}.id = {here}.id",
            f"SELECT {here}.id FROM ours WHERE EXISTS ({match})",
        )
    }
    assert found == {text: [(MOVED_ON,)] for text in found}
    with pytest.raises(RedirectNotFollowed):
        session.sql(f"SELECT ours.id FROM ours UNION SELECT {here}.id FROM {here}, {there}")
    session.sql(f"DROP DATABASE {other} CASCADE")


def test_the_class_of_the_data_source_is_delta_too(moved: Moved) -> None:
    source = "org.apache.spark.sql.delta.sources.DeltaDataSource"
    path, session = moved.places["ours"].source, moved.session
    moved.views().sql(f"CREATE TABLE by_class USING {source} LOCATION '{path}'")
    session.sql(f"CREATE TABLE made_by_class USING {source} LOCATION '{path}'")
    session.sql(f"CREATE TEMP VIEW seen_by_class USING {source} OPTIONS (path '{path}')")
    for name in ("by_class", "made_by_class", "seen_by_class"):
        assert session.table(name).count() == MANY
        assert moved.count(f"BEGIN SELECT * FROM {name}; END") == MANY


def test_a_stream_of_a_moved_table_does_not_become_a_batch(moved: Moved) -> None:
    with pytest.raises(RedirectNotFollowed):
        moved.session.sql("SELECT * FROM STREAM ours")


def test_a_table_that_moved_after_it_was_opened_is_refused(moved: Moved, tmp_path: Path) -> None:
    from delta.tables import DeltaTable

    places = create(tmp_path, "late")
    table = DeltaTable.forPath(moved.session, str(places.source))
    assert table.toDF().count() == len(ROWS)
    places.move(mode="writer-only", dialects=("rfc",))
    acts: list[Callable[[], object]] = [table.toDF, table.detail, table.delete]
    for act in acts:
        with pytest.raises(RedirectNotFollowed, match="has moved since"):
            act()
    # Delta refuses a location that isn't spelled as it does itself.
    again = DeltaTable.createIfNotExists(moved.session).location(str(places.source))
    assert again.addColumn("id", "BIGINT").execute().toDF().count() == len(ROWS)


@pytest.mark.parametrize("table", ["ours", "locked"])
def test_what_a_statement_keeps_is_of_the_target(moved: Moved, table: str) -> None:
    before = content(moved.places[table].source)
    sql = moved.session.sql
    path = moved.places[table].source
    sql(f"CREATE OR REPLACE TEMP VIEW seen USING delta OPTIONS (path '{path}')")
    assert moved.count("SELECT * FROM seen") == MANY
    sql(f"CACHE TABLE kept AS SELECT * FROM {table}")
    assert moved.count("SELECT * FROM kept") == MANY
    sql("UNCACHE TABLE kept")
    sql("DROP VIEW kept")
    sql(f"CREATE TABLE copied USING delta AS WITH {table} AS (SELECT * FROM {table}) TABLE {table}")
    assert moved.count("SELECT * FROM copied") == MANY
    sql("DELETE FROM copied")
    for source in (table, f"{table} AS a", f"(SELECT * FROM {table}) a"):
        known_as = "a" if source != table else table
        sql(
            f"MERGE INTO copied USING {source} ON copied.id = {known_as}.id "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        assert moved.count("SELECT * FROM copied") == MANY
    sql("DROP TABLE copied")
    sql(f"COMMENT ON TABLE {table} IS 'at the target'")
    moved.session.catalog.cacheTable(table)
    assert moved.session.catalog.isCached(table)
    moved.session.catalog.uncacheTable(table)
    assert content(moved.places[table].source) == before


def test_a_view_is_followed_in_the_jvm_or_refused(moved: Moved) -> None:
    other = moved.views()
    session = moved.session
    for name in ("both", "ours"):
        other.sql(f"CREATE VIEW view_of_{name} AS SELECT * FROM {name}")
        other.sql(
            f"CREATE FUNCTION most_of_{name}() RETURNS BIGINT RETURN SELECT max(id) FROM {name}"
        )
    other.sql("CREATE VIEW view_of_view AS SELECT max(id) AS id FROM view_of_ours")
    assert moved.count("SELECT * FROM view_of_both") == MANY
    assert moved.count("BEGIN SELECT * FROM view_of_both; END") == MANY
    assert session.table("view_of_both").count() == MANY
    assert session.sql("SELECT most_of_both()").collect()[0][0] == MOVED_ON
    refused: list[Callable[[], object]] = [
        lambda: session.table("view_of_ours"),
        lambda: session.range(1).selectExpr("(SELECT max(id) FROM ours)"),
        lambda: session.range(1).where("id IN (SELECT id FROM ours)"),
    ]
    texts = [
        "SELECT * FROM view_of_ours",
        "SELECT 1 WHERE 3 IN (SELECT id FROM view_of_view)",
        "SELECT most_of_ours()",
        "INSERT INTO both SELECT * FROM view_of_ours",
        "INSERT INTO both SELECT most_of_ours()",
        "CREATE TABLE never USING delta AS SELECT * FROM view_of_view",
        "CACHE TABLE never AS SELECT * FROM view_of_ours",
        "BEGIN SELECT * FROM view_of_ours; END",
        "BEGIN SELECT most_of_ours(); END",
        "EXECUTE IMMEDIATE 'SELECT * FROM view_of_ours'",
        "EXECUTE IMMEDIATE 'SELECT most_of_ours()'",
    ]
    refused += [functools.partial(session.sql, text) for text in texts]
    for act in refused:
        with pytest.raises(RedirectNotFollowed, match="ours at its old place") as error:
            act()
        # The remedy names the table's new place, as SQL takes it.
        place = (error.value.remedy or "").split(" instead")[0].removeprefix("use ")
        assert place.startswith("delta.`")
    assert moved.count(f"SELECT * FROM {place}") == MANY
    assert not other.catalog.tableExists("never")


def test_a_function_is_refused_wherever_it_is_called(moved: Moved) -> None:
    """Its tables aren't in the statement, and some commands hide their query once analysed."""
    other = moved.views()
    other.sql(
        "CREATE FUNCTION newest(a BIGINT) RETURNS BIGINT RETURN a + (SELECT max(id) FROM ours)"
    )
    other.sql("CREATE FUNCTION all_of() RETURNS TABLE (id BIGINT) RETURN SELECT id FROM ours")
    session = moved.session
    session.sql("CREATE TEMPORARY FUNCTION here() RETURNS BIGINT RETURN SELECT max(id) FROM ours")
    texts = [
        "BEGIN DECLARE x BIGINT; SET x = newest(0); SELECT x; END",
        "BEGIN DECLARE x BIGINT DEFAULT 1; SELECT newest(x); END",
        "BEGIN DECLARE x BIGINT DEFAULT 1; SELECT id + x FROM all_of(); END",
        "BEGIN DECLARE x BIGINT DEFAULT 1; WHILE x < here() DO SET x = x + 1; END WHILE; END",
        "CREATE TABLE never USING delta AS SELECT newest(1) AS id",
        "CREATE TABLE never USING delta AS SELECT * FROM all_of()",
        "CREATE TABLE never USING delta AS SELECT here() AS id",
        "CREATE TABLE never USING delta AS SELECT system.session.here() AS id",
        f"CREATE TABLE never USING delta AS SELECT spark_catalog.{moved.schema}.newest(1) AS id",
        "CACHE TABLE never AS SELECT * FROM all_of()",
        "BEGIN CREATE VIEW never AS SELECT * FROM ours; SELECT * FROM never; END",
        "BEGIN CREATE TEMPORARY FUNCTION g() RETURNS BIGINT RETURN SELECT max(id) FROM ours; END",
    ]
    for text in texts:
        with pytest.raises(RedirectNotFollowed):
            session.sql(text)
    assert not other.catalog.tableExists("never")


def test_queries_in_expressions_of_a_data_frame_are_refused(moved: Moved) -> None:
    from pyspark.sql import functions

    other = moved.views()
    other.sql("CREATE FUNCTION most() RETURNS BIGINT RETURN SELECT max(id) FROM ours")
    numbers = moved.session.range(20)
    query = functions.expr("(SELECT max(id) FROM ours)")
    asked: list[Callable[[], object]] = [
        lambda: numbers.where("id IN (TABLE ours)"),
        lambda: numbers.where("id < most()"),
        lambda: numbers.selectExpr("most()"),
        lambda: numbers.select(query),
        lambda: numbers.select(functions.call_function("most")),
        lambda: numbers.withColumn("x", query),
        lambda: numbers.groupBy("id").agg(functions.max(query)),
        lambda: numbers.alias("a").join(numbers.alias("b"), functions.expr("a.id = most()")),
        lambda: numbers.orderBy(query),
    ]
    for act in asked:
        with pytest.raises(RedirectNotFollowed):
            act()
    assert numbers.where("id IN (TABLE both)").count() == MANY


def test_variables_in_a_text_and_lists_of_paths_are_followed(moved: Moved) -> None:
    session = moved.session
    path = str(moved.places["ours"].source)
    session.conf.set("moved.name", "ours")
    session.conf.set("moved.path", path)
    for text in (
        "SELECT ${moved.name}.id FROM ${moved.name}",
        "SELECT '${moved.path}' AS a, id FROM ours",
        "SELECT * FROM delta.`${moved.path}`",
    ):
        assert moved.count(text) == MANY, text
    assert session.read.format("delta").load([path]).count() == MANY


def test_what_is_known_only_while_a_script_runs_is_refused(moved: Moved) -> None:
    for text in (
        "BEGIN DECLARE t STRING DEFAULT 'SELECT * FROM ours'; EXECUTE IMMEDIATE t; END",
        "BEGIN DECLARE t STRING DEFAULT 'ours'; SELECT * FROM IDENTIFIER(t); END",
        "BEGIN USE default; SELECT * FROM ours; END",
        "BEGIN CREATE OR REPLACE TEMP VIEW ours AS SELECT 1 AS id; SELECT * FROM ours; END",
    ):
        with pytest.raises(RedirectNotFollowed):
            moved.session.sql(text)
    moved.session.sql("DECLARE OR REPLACE VARIABLE q STRING DEFAULT 'SELECT * FROM ours'")
    assert moved.count("EXECUTE IMMEDIATE q") == MANY
    with pytest.raises(RedirectNotFollowed):
        # The script's variable hides the session's, whose text would be run instead.
        moved.session.sql("BEGIN DECLARE q STRING DEFAULT 'SELECT 1'; EXECUTE IMMEDIATE q; END")


def test_a_stranger_at_the_target_is_not_read(moved: Moved, tmp_path: Path) -> None:
    other, session = moved.views(), moved.session
    places = create(tmp_path, "left")
    other.sql(f"CREATE TABLE left_behind USING delta LOCATION '{places.source}'")
    places.move(mode="writer-only")
    shutil.rmtree(places.target)
    write_deltalake(str(places.target), rows([77]))
    other.sql("CREATE VIEW by_name AS SELECT * FROM left_behind")
    other.sql(f"CREATE VIEW by_path AS SELECT * FROM delta.`{places.source}`")
    other.sql("CREATE FUNCTION last_of() RETURNS BIGINT RETURN SELECT max(id) FROM by_name")
    acts: list[Callable[[], object]] = [
        lambda: session.read.format("delta").load(str(places.source)),
        lambda: session.sql("SELECT * FROM (left_behind)"),
        lambda: session.table("left_behind"),
        # delta-spark follows by itself there, and doesn't ask which table it finds.
        lambda: session.sql("SELECT * FROM by_name"),
        lambda: session.sql("CREATE TABLE never USING delta AS SELECT * FROM by_path"),
        lambda: session.table("by_path"),
        lambda: session.sql("SELECT last_of()"),
    ]
    for act in acts:
        with pytest.raises(RedirectTargetReplaced):
            act()


def test_the_jvm_follows_while_the_client_is_installed(spark: SparkSession) -> None:
    setting = session_clients.FOLLOW_IN_JVM
    session, refusing = spark.newSession(), spark.newSession()
    refusing.conf.set(setting, "false")
    for each in (session, refusing):
        modern.install(each)
        modern.install(each)
    assert session.conf.get(setting) == "true"
    assert refusing.conf.get(setting) == "false"
    assert not spark.newSession()._jsparkSession.conf().contains(setting)
    for each in (session, refusing):
        modern.uninstall(each)
    assert not session._jsparkSession.conf().contains(setting)
    assert refusing.conf.get(setting) == "false"


def test_an_install_that_fails_midway_leaves_nothing_behind(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_clients.client_options.clear()
    patches._withdraw()
    wanted = patches._patches()
    before = {(owner, name): vars(owner)[name] for owner, name, _ in wanted}

    def fails(_: Any) -> Any:
        raise RuntimeError("no such method")

    with monkeypatch.context() as broken:
        broken.setattr(patches, "_patches", lambda: [*wanted[:3], (Client, "sql", fails)])
        with pytest.raises(RuntimeError):
            modern.install(spark.newSession())
    assert {key: vars(key[0])[key[1]] for key in before} == before
    session = spark.newSession()
    modern.install(session)
    assert all(vars(owner)[name] is not before[owner, name] for owner, name, _ in wanted)
    modern.uninstall(session)


def about(relation: Relation, table: str) -> bool:
    paths = {relation.path, *(path_of(name) for name in relation.names)}
    return table in paths or any(".".join(name) == table for name in relation.names)


def replaced(session: SparkSession, text: str, table: str) -> str:
    """Put the new place wherever a table is named."""
    found = parse_statement(session, text)
    if found is None:
        return text
    named = [each for each in found.statement.relations if about(each, table)]
    return edited(text, [edit for each in named for edit in found.edits(each, NewPlace(NEW))])


REPLACED = [
    ("/a", "select * from DELTA . `/a` t", "select * from DELTA . `{new}` t"),
    ("/a", "SELECT * FROM spark_catalog.delta.`/a`", "SELECT * FROM spark_catalog.delta.`{new}`"),
    ("/a", "SELECT delta.`/a`.id FROM delta.`/a`", "SELECT delta.`{new}`.id FROM delta.`{new}`"),
    ("/a", "VACUUM '/a' RETAIN 0 HOURS", "VACUUM '{new}' RETAIN 0 HOURS"),
    ("/a", 'DESCRIBE HISTORY "/a"', "DESCRIBE HISTORY '{new}'"),
    ("/a", "DESC DETAIL '/a'", "DESC DETAIL '{new}'"),
    (
        "/a",
        "CREATE TABLE t USING delta LOCATION '/a'",
        "CREATE TABLE t USING delta LOCATION '{new}'",
    ),
    ("/a", "CREATE TEMP VIEW v AS TABLE delta.`/a`", "CREATE TEMP VIEW v AS TABLE delta.`{new}`"),
    ("/a, b", "SELECT * FROM delta.`/a, b`", "SELECT * FROM delta.`{new}`"),
    ("db.t", "SELECT t.id FROM db.t", "SELECT t.id FROM (delta.`{new}` AS `t`)"),
    ("db.t", "SELECT * FROM db.t x", "SELECT * FROM (delta.`{new}` AS `t`) x"),
    ("db.t", "SELECT * FROM u, db.t", "SELECT * FROM u, (delta.`{new}` AS `t`)"),
    (
        "db.t",
        "SELECT * FROM db.t VERSION  AS OF 3 WHERE id",
        "SELECT * FROM (delta.`{new}` VERSION  AS OF 3 AS `t`) WHERE id",
    ),
    ("a, b.c", "SELECT * FROM `a, b`.`c`", "SELECT * FROM (delta.`{new}` AS `c`)"),
    ("db.t", "INSERT INTO db.t VALUES (1)", "INSERT INTO delta.`{new}` VALUES (1)"),
    ("db.t", "INSERT INTO u TABLE db.t", "INSERT INTO u TABLE delta.`{new}`"),
    ("db.t", "UPDATE db.t SET t.x = 1", "UPDATE delta.`{new}` AS `t` SET t.x = 1"),
    ("db.t", "UPDATE db.t AS y SET y.x = 1", "UPDATE delta.`{new}` AS y SET y.x = 1"),
    ("db.t", "DELETE FROM db.t WHERE t.x", "DELETE FROM delta.`{new}` AS `t` WHERE t.x"),
    (
        "db.t",
        "MERGE INTO db.t USING s ON t.i = s.i WHEN MATCHED THEN DELETE",
        "MERGE INTO delta.`{new}` AS `t` USING s ON t.i = s.i WHEN MATCHED THEN DELETE",
    ),
    ("db.t", "OPTIMIZE db.t ZORDER BY (t)", "OPTIMIZE delta.`{new}` ZORDER BY (t)"),
    ("db.t", "DESCRIBE db.t", "DESCRIBE delta.`{new}`"),
    (
        "t",
        "WITH t AS (SELECT * FROM t) SELECT * FROM t",
        "WITH t AS (SELECT * FROM (delta.`{new}` AS `t`)) SELECT * FROM t",
    ),
]
LEFT_ALONE = [
    "SELECT 'delta.`/a`'",
    "SELECT 1 -- FROM delta.`/a`\n",
    "SELECT 1 /* delta.`/a` /* deeper */ delta.`/a` */",
    "SELECT * FROM parquet.`/a`",
    "SELECT * FROM other.delta.`/a`",
    "SELECT * FROM t WHERE path = '/a'",
    "CREATE TABLE t USING parquet LOCATION '/a'",
    "CREATE DATABASE d LOCATION '/a'",
    "DROP TABLE delta.`/a`",
    "CREATE OR REPLACE VIEW v AS SELECT * FROM delta.`/a`",
    "SELECT * FROM delta.`/a",
    "",
]
COMMITTED = [
    ("SELECT * FROM delta.`/a`", ()),
    ("DESCRIBE TABLE EXTENDED delta.`/a`", ()),
    ("INSERT INTO TABLE delta.`/a` VALUES (1)", ("WRITE",)),
    ("INSERT OVERWRITE delta.`/a` SELECT 1", ("WRITE",)),
    ("INSERT INTO delta.`/a` REPLACE WHERE x = 1 SELECT 1", ("WRITE",)),
    ("WITH s AS (SELECT 1) INSERT INTO delta.`/a` SELECT * FROM s", ("WRITE",)),
    ("MERGE INTO delta.`/a` t USING s ON t.id = s.id WHEN MATCHED THEN DELETE", ("MERGE",)),
    ("UPDATE delta.`/a` SET x = 1", ("UPDATE",)),
    ("DELETE FROM delta.`/a` WHERE x", ("DELETE",)),
    ("EXPLAIN FORMATTED DELETE FROM delta.`/a`", ("DELETE",)),
    ("OPTIMIZE '/a'", ("OPTIMIZE",)),
    ("VACUUM delta.`/a`", ("VACUUM START", "VACUUM END")),
    ("VACUUM delta.`/a` RETAIN 1 HOURS DRY RUN", ()),
    ("RESTORE TABLE delta.`/a` TO VERSION AS OF 1", ("RESTORE",)),
    ("REORG TABLE delta.`/a` APPLY (PURGE)", ("REORG",)),
    ("TRUNCATE TABLE delta.`/a`", ("TRUNCATE",)),
    ("ALTER TABLE delta.`/a` ADD COLUMNS (x INT)", ("ADD COLUMNS",)),
    ("ALTER TABLE delta.`/a` DROP FEATURE x", ("DROP FEATURE",)),
    ("CREATE TABLE IF NOT EXISTS delta.`/a` (x INT) USING delta", ("CREATE TABLE",)),
    ("CREATE TABLE delta.`/a` USING delta AS SELECT 1", ("CREATE TABLE AS SELECT",)),
    (
        "CREATE OR REPLACE TABLE delta.`/a` USING delta AS (SELECT 1)",
        ("CREATE OR REPLACE TABLE AS SELECT",),
    ),
    ("CREATE OR REPLACE TABLE delta.`/a` SHALLOW CLONE t", ("CLONE",)),
    ("CREATE OR REPLACE TABLE u SHALLOW CLONE t LOCATION '/a'", ("CLONE",)),
    ("CREATE TABLE t USING delta LOCATION '/a'", ("CREATE TABLE",)),
    ("INSERT INTO IDENTIFIER('delta.`/a`') VALUES (1)", ("WRITE",)),
    ("BEGIN UPDATE delta.`/a` SET x = 1; END", ("UPDATE",)),
]


def test_texts_name_the_new_place(spark: SparkSession) -> None:
    found = [replaced(spark, text, table) for table, text, _ in REPLACED]
    assert found == [expected.format(new=NEW) for _, _, expected in REPLACED]
    assert [replaced(spark, text, "/a") for text in LEFT_ALONE] == LEFT_ALONE


def test_statements_say_what_they_would_commit(spark: SparkSession) -> None:
    found = []
    for text, _ in COMMITTED:
        parsed = parse_statement(spark, text)
        assert parsed is not None, text
        (relation,) = (each for each in parsed.statement.relations if about(each, "/a"))
        found.append((text, relation.operations))
    assert found == COMMITTED
