"""SQL whose tables aren't in the statement itself: in cursors, texts in scripts, views."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import write_deltalake
from py4j.protocol import Py4JError

from lakeferry import spark as modern
from lakeferry.errors import RedirectNotFollowed, RedirectTargetReplaced
from lakeferry.spark import statement_rewrite
from tests.support.moved_session import MANY, Moved, moved_session
from tests.support.redirected_tables import MOVED_ON, Places, content, create, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def moved(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, unsplit_plans: None
) -> Iterator[Moved]:
    with moved_session(spark, tmp_path_factory.mktemp("moved")) as found:
        found.session.sql("CREATE TABLE taken (found BIGINT) USING delta")
        yield found


def taken(session: SparkSession, text: str) -> list[int]:
    """Return the rows that a statement leaves in the table ``taken``."""
    session.sql("DELETE FROM taken")
    session.sql(text)
    return sorted(row[0] for row in session.sql("SELECT * FROM taken").collect())


def refused(session: SparkSession, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(RedirectNotFollowed):
            session.sql(text)
        assert session.sql("SELECT * FROM taken").count() == 0, text


def test_views_of_every_kind_are_checked(moved: Moved) -> None:
    """What they read is only in the plan, which a statement that isn't a query doesn't show."""
    session, other = moved.session, moved.views()
    old = moved.places["ours"].source
    other.sql(
        "CREATE VIEW measured WITH METRICS LANGUAGE YAML AS $$\nversion: 0.1\nsource: ours\n"
        "dimensions:\n- name: large\n  expr: id > 100\n"
        "measures:\n- name: most\n  expr: max(id)\n$$"
    )
    jvm: Any = session._jsparkSession
    jvm.sql(f"CREATE OR REPLACE TEMP VIEW kept AS SELECT * FROM {moved.schema}.ours")
    most = "SELECT measure(most) AS found FROM measured GROUP BY large"
    before = content(old)
    session.sql("DELETE FROM taken")
    refused(
        session,
        [
            f"INSERT INTO taken {most}",
            f"BEGIN INSERT INTO taken {most}; END",
            "INSERT INTO taken SELECT max(id) FROM system.session.kept",
            "INSERT INTO taken SELECT max(id) FROM SYSTEM.`session`.kept",
            "INSERT INTO taken SELECT max(id) FROM session.kept",
            "INSERT INTO taken SELECT max(id) FROM IDENTIFIER('session.' || 'kept')",
            "UPDATE system.session.kept SET id = 1",
        ],
    )
    for name in ("measured", "system.session.kept"):
        with pytest.raises(RedirectNotFollowed):
            session.table(name)
        with pytest.raises(RedirectNotFollowed):
            session.read.table(name)
    assert content(old) == before


def test_a_function_whose_name_is_computed_is_checked(moved: Moved) -> None:
    session, other = moved.session, moved.views()
    old = moved.places["ours"].source
    other.sql("CREATE FUNCTION most() RETURNS BIGINT RETURN SELECT max(id) FROM ours")
    other.sql("CREATE FUNCTION each() RETURNS TABLE (id BIGINT) RETURN SELECT id FROM ours")
    before = content(old)
    session.sql("DELETE FROM taken")
    refused(
        session,
        [
            "INSERT INTO taken SELECT IDENTIFIER('most')()",
            "INSERT INTO taken SELECT IDENTIFIER('mo' || 'st')()",
            "INSERT INTO taken SELECT * FROM IDENTIFIER('each')()",
            "INSERT INTO taken SELECT * FROM IDENTIFIER('ea' || 'ch')()",
            "BEGIN INSERT INTO taken SELECT IDENTIFIER('mo' || 'st')(); END",
            "BEGIN DECLARE f STRING DEFAULT 'most'; INSERT INTO taken SELECT IDENTIFIER(f)(); END",
            "BEGIN DECLARE f STRING DEFAULT 'each'; INSERT INTO taken FROM IDENTIFIER(f)(); END",
        ],
    )
    assert taken(session, "INSERT INTO taken SELECT IDENTIFIER('ab' || 's')(-3)") == [3]
    assert taken(session, "INSERT INTO taken SELECT * FROM IDENTIFIER('ran' || 'ge')(1)") == [0]
    # A table with the columns to write, and a column.
    text = "INSERT INTO IDENTIFIER('ta' || 'ken') (found) SELECT IDENTIFIER('i' || 'd') FROM ours"
    assert len(taken(session, text)) == MANY
    script = (
        "BEGIN DECLARE c STRING DEFAULT 'id'; INSERT INTO taken SELECT IDENTIFIER(c) FROM both; END"
    )
    assert len(taken(session, script)) == MANY
    assert content(old) == before


def test_the_changes_of_a_table_are_those_of_the_target(moved: Moved, tmp_path: Path) -> None:
    session, other = moved.session, moved.views()
    places = Places(tmp_path / "feed", tmp_path / "feed-moved")
    other.sql(
        f"CREATE TABLE feed (id BIGINT) USING delta LOCATION '{places.source}' "
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    other.sql("INSERT INTO feed VALUES (1)")
    other.sql("CREATE VIEW of_feed AS SELECT id FROM table_changes('feed', 0)")
    places.move(mode="writer-only", dialects=("rfc",))
    other.sql(f"INSERT INTO delta.`{places.target}` VALUES ({MOVED_ON})")
    for function, table in (("table_changes", "feed"), ("table_changes_by_path", places.source)):
        for schema in ("", "builtin.", "SYSTEM.builtin."):
            found = session.sql(f"SELECT id FROM {schema}{function}('{table}', 0)").collect()
            assert MOVED_ON in {row.id for row in found}, (schema, function)
        for name in (f"'{function}'", f"'builtin.' || '{function}'"):
            with pytest.raises(RedirectNotFollowed):
                session.sql(f"SELECT id FROM IDENTIFIER({name})('{table}', 0)")
    for text in ("SELECT * FROM of_feed", "INSERT INTO taken SELECT * FROM of_feed"):
        with pytest.raises(RedirectNotFollowed):
            session.sql(text)
    with pytest.raises(RedirectNotFollowed):
        session.table("of_feed")
    feed = session.read.format("delta").option("readChangeFeed", "true")
    found = feed.option("startingVersion", 0).load(str(places.source)).collect()
    assert MOVED_ON in {row.id for row in found}
    session.sql("DROP TABLE feed")


def test_a_stream_from_an_old_place_is_refused(moved: Moved) -> None:
    session = moved.session
    jvm: Any = session._jsparkSession
    jvm.readStream().table(f"{moved.schema}.ours").createOrReplaceTempView("flowing")
    acts: list[Callable[[], object]] = [
        lambda: session.table("flowing"),
        lambda: session.readStream.table("flowing"),
        lambda: session.sql("SELECT * FROM flowing"),
    ]
    for act in acts:
        with pytest.raises(RedirectNotFollowed, match="ours at its old place"):
            act()
    session.readStream.table("ours").createOrReplaceTempView("followed")
    assert session.table("followed").isStreaming


def test_queries_of_cursors_are_followed_or_refused(moved: Moved) -> None:
    session = moved.session
    session.conf.set("spark.sql.scripting.cursorEnabled", "true")
    first = "BEGIN DECLARE x BIGINT; DECLARE t STRING DEFAULT 'ours'; DECLARE c CURSOR FOR "
    last = "; OPEN c; FETCH c INTO x; INSERT INTO taken VALUES (x); CLOSE c; END"
    for query in (
        "SELECT max(id) FROM ours",
        "/* ours */ WITH ours AS (TABLE ours)\nSELECT max(id) FROM (ours) FOR READ ONLY",
        "SELECT max(id) FROM IDENTIFIER('ours')",
    ):
        assert taken(session, f"{first}{query}{last}") == [MOVED_ON], query
    moved.views().sql("CREATE OR REPLACE VIEW seen AS SELECT * FROM ours")
    session.sql("DELETE FROM taken")
    refused(
        session,
        [
            f"{first}SELECT max(id) FROM seen{last}",
            f"{first}SELECT max(id) FROM IDENTIFIER(t){last}",
        ],
    )
    moved.views().sql("DROP VIEW seen")


def test_a_text_that_a_script_executes_is_a_part_of_it(moved: Moved, spark: SparkSession) -> None:
    """What it creates, renames or makes the namespace is there for the statements that follow."""
    session, schema = moved.session, moved.schema
    place = moved.places["ours"].source
    moved.views().sql(f"CREATE TABLE again USING delta LOCATION '{moved.places['both'].target}'")
    body = "INSERT INTO taken SELECT max(id) FROM"
    view = "CREATE OR REPLACE VIEW never AS SELECT * FROM ours"
    function = "CREATE TEMPORARY FUNCTION never() RETURNS BIGINT RETURN SELECT max(id) FROM ours"
    renamed = f"ALTER TABLE again SET LOCATION ''{place}''"
    hidden = "CREATE OR REPLACE TEMP VIEW ours AS SELECT 1 AS id"
    session.sql("DELETE FROM taken")
    refused(
        session,
        [
            f"BEGIN EXECUTE IMMEDIATE '{view}'; {body} never; END",
            f"BEGIN EXECUTE IMMEDIATE '{function}'; {body} VALUES (never()) AS v (id); END",
            f"BEGIN EXECUTE IMMEDIATE '{renamed}'; {body} again; END",
            f"BEGIN EXECUTE IMMEDIATE '{hidden}'; {body} ours; END",
            f"BEGIN {hidden}; EXECUTE IMMEDIATE '{body} ours'; END",
        ],
    )
    elsewhere = spark.newSession()
    modern.install(elsewhere)
    for text in (
        f"BEGIN USE {schema}; EXECUTE IMMEDIATE '{body} ours'; END",
        f"BEGIN EXECUTE IMMEDIATE 'USE {schema}'; {body} ours; END",
        f"BEGIN EXECUTE IMMEDIATE 'USE {schema}'; EXECUTE IMMEDIATE '{body} ours'; END",
    ):
        with pytest.raises(RedirectNotFollowed):
            elsewhere.sql(text)
    text = (
        f"BEGIN EXECUTE IMMEDIATE '{body.replace('taken', f'{schema}.taken')} {schema}.ours'; END"
    )
    elsewhere.sql(text)
    modern.uninstall(elsewhere)
    assert [row[0] for row in session.sql("SELECT * FROM taken").collect()] == [MOVED_ON]
    seen = "CREATE OR REPLACE TEMP VIEW seen AS SELECT * FROM ours"
    assert taken(session, f"BEGIN EXECUTE IMMEDIATE '{seen}'; {body} seen; END") == [MOVED_ON]
    session.sql("DROP VIEW seen")


def test_a_stranger_is_not_read_through_a_computed_name(moved: Moved, tmp_path: Path) -> None:
    other, session = moved.views(), moved.session
    places = create(tmp_path, "left")
    other.sql(f"CREATE TABLE left_there USING delta LOCATION '{places.source}'")
    places.move(mode="writer-only")
    shutil.rmtree(places.target)
    write_deltalake(str(places.target), rows([77]))
    other.sql("CREATE VIEW computed AS SELECT * FROM IDENTIFIER('left_' || 'there')")
    other.sql(
        "CREATE VIEW weighed WITH METRICS LANGUAGE YAML AS $$\nversion: 0.1\n"
        "source: SELECT * FROM left_there\ndimensions:\n- name: large\n  expr: id > 100\n"
        "measures:\n- name: most\n  expr: max(id)\n$$"
    )
    for text in (
        "SELECT * FROM computed",
        "INSERT INTO taken SELECT id FROM computed",
        "SELECT measure(most) FROM weighed GROUP BY large",
        "INSERT INTO taken SELECT measure(most) FROM weighed GROUP BY large",
    ):
        with pytest.raises(RedirectTargetReplaced):
            session.sql(text)


def test_a_statement_that_is_too_deep_to_be_looked_through_is_not_run(
    moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much of its stack the JVM has left differs: Spark may do what we couldn't."""
    session = moved.session
    session.sql("DELETE FROM taken")

    def overflows(_: Any) -> str:
        raise Py4JError("java.lang.StackOverflowError")

    refused(session, [f"INSERT INTO taken SELECT id FROM ours WHERE id <> 1{' + 1' * 20_000}"])
    with monkeypatch.context() as deep:
        deep.setattr(statement_rewrite, "tree_of", overflows)
        for text in (
            "CREATE TABLE never USING delta AS SELECT * FROM ours",
            "FROM ours INSERT INTO taken SELECT id INSERT INTO taken SELECT id",
            "WITH x AS (TABLE ours) INSERT INTO taken TABLE x",
            "SELECT * FROM ours",
        ):
            with pytest.raises(RedirectNotFollowed):
                session.sql(text)
        # What a query reads is known when it has been analysed.
        assert session.sql("SELECT 1 + 1").collect()[0][0] == 2
    assert not moved.views().catalog.tableExists("never")
    assert session.sql("SELECT * FROM taken").count() == 0
    assert session.sql("SELECT * FROM ours").count() == MANY
