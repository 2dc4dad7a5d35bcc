"""SQL with our client in sessions with settings of their own, and forms that Spark hides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import write_deltalake

from lakeferry import spark as modern
from lakeferry.errors import RedirectNotFollowed
from lakeferry.spark import session_clients
from lakeferry.spark.client import Client
from tests.support.moved_session import MANY, Moved, moved_session
from tests.support.redirected_tables import MOVED_ON, content, create, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PARAMETERS = "spark.sql.legacy.parameterSubstitution.constantsOnly"
"""delta-spark's parser drops parameters, unless Spark puts them into the parsed plan."""


@pytest.fixture(scope="module")
def moved(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, unsplit_plans: None
) -> Iterator[Moved]:
    with moved_session(spark, tmp_path_factory.mktemp("moved")) as found:
        yield found


@pytest.fixture
def session(moved: Moved, spark: SparkSession) -> Iterator[SparkSession]:
    """A session with settings of its own, while another one is the thread's active session."""
    made = spark.newSession()
    made.sql(f"USE {moved.schema}")
    modern.install(made)
    yield made
    modern.uninstall(made)


def written(session: SparkSession, text: str) -> list[int]:
    """Return the rows that a query gives to a table."""
    session.sql("DROP TABLE IF EXISTS taken")
    session.sql("CREATE TABLE taken (found BIGINT) USING delta")
    session.sql(f"INSERT INTO taken {text}")
    return sorted(row[0] for row in session.sql("SELECT * FROM taken").collect())


def test_a_text_is_parsed_with_the_settings_of_its_session(
    moved: Moved, session: SparkSession
) -> None:
    session.conf.set("spark.sql.ansi.enabled", "true")
    session.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")
    path = moved.places["ours"].source
    for text in ('SELECT "ours"."id" FROM "ours"', f'SELECT id FROM delta."{path}"'):
        assert session.sql(text).count() == MANY, text
    assert written(session, 'SELECT max("id") FROM "ours"') == [MOVED_ON]
    session.conf.unset("spark.sql.ansi.doubleQuotedIdentifiers")
    # Here ``Ours`` is another name than ``ours``.
    session.conf.set("spark.sql.caseSensitive", "true")
    text = "WITH Ours AS (SELECT 1 AS id) SELECT max(id) FROM ours"
    assert written(session, text) == [MOVED_ON]
    session.conf.unset("spark.sql.caseSensitive")
    assert written(session, text) == [1]


def test_names_that_spark_prints_in_part_are_followed(moved: Moved, session: SparkSession) -> None:
    session.conf.set("spark.sql.debug.maxToStringFields", "1")
    for name in (f"{moved.schema}.ours", f"spark_catalog.{moved.schema}.ours"):
        assert written(session, f"SELECT max(id) FROM {name}") == [MOVED_ON]


def test_queries_in_window_definitions_are_followed(session: SparkSession) -> None:
    text = (
        "SELECT max(id) OVER w + (SELECT 0) FROM both WINDOW w AS (PARTITION BY "
        "(SELECT max(id) FROM ours)), v AS (ORDER BY (WITH ours AS (TABLE ours) SELECT 1))"
    )
    changed = Client(session).sql(f"CREATE TABLE taken USING delta AS {text}").text
    assert "FROM ours" not in changed
    assert "TABLE ours" not in changed
    assert session.sql(text).count() == MANY


def test_parameters_that_name_a_table_are_followed_or_refused(session: SparkSession) -> None:
    session.conf.set(PARAMETERS, "true")
    asked: list[tuple[str, Any]] = [
        ("SELECT ? AS a, max(id) FROM IDENTIFIER(?) WHERE id < ?", [MOVED_ON, "ours", 99]),
        ("SELECT :a AS a, max(id) FROM IDENTIFIER(:t)", {"a": MOVED_ON, "t": "ours"}),
        ("EXECUTE IMMEDIATE ? USING ?", ["SELECT ?, max(id) FROM ours", MOVED_ON]),
    ]
    for text, args in asked:
        assert session.sql(text, args).collect()[0][:] == (MOVED_ON, MOVED_ON), text
    for text in (
        "EXECUTE IMMEDIATE 'SELECT max(id) FROM IDENTIFIER(?)' USING 'ours'",
        "EXECUTE IMMEDIATE 'SELECT max(id) FROM IDENTIFIER(:t)' USING 'ours' AS t",
        (
            "BEGIN DECLARE t STRING DEFAULT 'ours'; "
            "EXECUTE IMMEDIATE 'SELECT max(id) FROM IDENTIFIER(?)' USING t; END"
        ),
    ):
        with pytest.raises(RedirectNotFollowed):
            session.sql(text)


def test_names_that_a_script_gives_do_not_lead_to_an_old_place(
    moved: Moved, session: SparkSession, tmp_path: Path
) -> None:
    path = moved.places["ours"].source
    write_deltalake(str(tmp_path / "other"), rows([1]))
    view = "CREATE OR REPLACE TEMP VIEW {} USING delta OPTIONS (path {});"
    first = view.format("one", f"'{tmp_path / 'other'}'")
    halves = f"'{str(path)[:5]}' '{str(path)[5:]}'"
    for where in (f"'{path}'", halves):
        text = f"BEGIN {first} {view.format('two', where)} SELECT max(id) FROM two; END"
        assert session.sql(text).collect()[0][0] == MOVED_ON
    session.sql(f"CREATE TABLE again USING delta LOCATION '{tmp_path / 'other'}'")
    for text in (
        f"BEGIN ALTER TABLE again SET LOCATION '{path}'; SELECT max(id) FROM again; END",
        f"BEGIN CREATE TABLE more LIKE again LOCATION '{path}'; SELECT max(id) FROM more; END",
        "BEGIN ALTER TABLE ours RENAME TO theirs; SELECT max(id) FROM theirs; END",
    ):
        with pytest.raises(RedirectNotFollowed):
            session.sql(text)
    assert session.sql("SELECT max(id) FROM again").collect()[0][0] == 1


def test_a_version_may_be_written_with_a_capital(moved: Moved, session: SparkSession) -> None:
    place = moved.places["ours"]
    newest = session.sql("DESCRIBE HISTORY ours LIMIT 1").collect()[0].version
    path = f"{place.source}@V{newest}"
    assert session.read.format("delta").load(path).count() == MANY
    assert session.sql(f"SELECT * FROM delta.`{path}`").count() == MANY


def test_a_session_follows_after_its_settings_are_reset(session: SparkSession) -> None:
    session.sql("RESET")
    assert session.sql("SELECT * FROM ours").count() == MANY
    assert session.table("ours").count() == MANY
    assert session.conf.get(session_clients.FOLLOW_IN_JVM) == "true"


def test_a_statement_of_many_queries_is_followed(moved: Moved, session: SparkSession) -> None:
    text = " UNION ALL ".join(["SELECT max(id) FROM ours"] * 700)
    assert "FROM ours" not in Client(session).sql(text).text


def test_a_name_that_is_a_part_of_another_stays(moved: Moved, session: SparkSession) -> None:
    place = moved.places["ours"].target.as_uri()
    changed = Client(session).sql("CREATE TABLE elsewhere.ours SHALLOW CLONE ours").text
    assert changed == f"CREATE TABLE elsewhere.ours SHALLOW CLONE delta.`{place}`"


def test_delta_tables_are_cloned_and_converted_where_they_are(
    moved: Moved, session: SparkSession, tmp_path: Path
) -> None:
    from delta.tables import DeltaTable

    place = moved.places["ours"]
    before = content(place.source)
    assert DeltaTable.convertToDelta(session, f"parquet.`{place.source}`").toDF().count() == MANY
    write_deltalake(str(tmp_path / "late"), rows([1]))
    table = DeltaTable.forPath(session, str(tmp_path / "late"))
    from lakeferry.api.redirects import Redirects

    with Redirects() as moves:
        moves.enable(str(tmp_path / "late"), str(tmp_path / "moved"), mode="writer-only")
    acts: list[Callable[[], object]] = [
        lambda: table.clone(str(tmp_path / "copy"), True),
        lambda: table.cloneAtVersion(0, str(tmp_path / "copy"), True),
        lambda: table.addFeatureSupport("appendOnly"),
    ]
    for act in acts:
        with pytest.raises(RedirectNotFollowed, match="has moved since"):
            act()
    assert not (tmp_path / "copy").exists()
    # A clone into a table that moved is one into its new place.
    late = DeltaTable.forPath(session, str(tmp_path / "late"))
    late.delete()
    again = DeltaTable.forName(session, "both").clone(str(tmp_path / "late"), True, True)
    assert again.toDF().count() == MANY
    assert DeltaTable.forPath(session, str(tmp_path / "moved")).toDF().count() == MANY
    assert content(place.source) == before


def test_the_catalog_describes_the_table_where_it_is(moved: Moved, session: SparkSession) -> None:
    session.sql("ALTER TABLE locked ADD COLUMN more INT")
    session.sql("ALTER TABLE locked SET TBLPROPERTIES ('a' = 'b')")
    for given in (("locked",), (f"{moved.schema}.locked",), ("locked", moved.schema)):
        columns = session.catalog.listColumns(*given)
        assert [column.name for column in columns] == ["id", "more"]
    assert session.catalog.getTableProperties("locked")["a"] == "b"


def test_the_place_of_a_new_table_may_be_a_property_or_an_option(
    moved: Moved, session: SparkSession, tmp_path: Path
) -> None:
    """Whether it is replaced or only named, nothing is written to the old place."""
    from delta.tables import DeltaTable

    places = create(tmp_path, "apart")
    places.move(mode="writer-only", dialects=("rfc",))
    path, before = str(places.source), content(places.source)
    session.conf.set("spark.sql.sources.default", "delta")
    new = session.range(90, 91)
    acts: list[Callable[[], object]] = [
        lambda: new.writeTo("made").tableProperty("location", path).createOrReplace(),
        lambda: new.writeTo("made").using("delta").option("path", value=path).createOrReplace(),
        lambda: new.writeTo("made").using("delta").options(PATH=path).createOrReplace(),
        lambda: session.catalog.createTable("made", source="delta", PATH=path),
        lambda: session.sql(f"CREATE TABLE made (id BIGINT) OPTIONS (PATH '{path}')"),
        lambda: (
            DeltaTable.create(session)
            .tableName("made")
            .property("location", path)
            .addColumn("id", "BIGINT")
            .execute()
        ),
    ]
    for act in acts:
        act()
        (detail,) = moved.views().sql("DESCRIBE DETAIL made").collect()
        assert detail.location == f"file:{places.target}"
        session.sql("DROP TABLE made")
    assert content(places.source) == before
    assert session.read.load(path).count() == 1
