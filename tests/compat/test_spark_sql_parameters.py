"""SQL whose parameters name a table, where Spark 4.1 and newer allow a literal only.

Spark puts the values of parameters into the text, then parses it. Delta Lake's parser doesn't yet
(https://github.com/delta-io/delta/issues/7640), so these sessions have the parser that is behind
it: Spark's own, as on platforms whose parsers hand parameters on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from lakeferry import spark as modern
from lakeferry.errors import RedirectNotFollowed
from tests.support.moved_session import MANY, Moved, moved_session
from tests.support.redirected_tables import MOVED_ON, content

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def moved(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, unsplit_plans: None
) -> Iterator[Moved]:
    with moved_session(spark, tmp_path_factory.mktemp("moved")) as found:
        yield found


def with_sparks_parser(session: Any) -> None:
    """Give a session the parser to which Delta Lake's passes what isn't a statement of its own."""
    state = session._jsparkSession.sessionState()
    parser = state.getClass().getDeclaredField("sqlParser")
    parser.setAccessible(True)
    parser.set(state, state.sqlParser().delegate())


@pytest.fixture(scope="module")
def session(moved: Moved, spark: SparkSession) -> Iterator[SparkSession]:
    made = spark.newSession()
    with_sparks_parser(made)
    made.sql(f"USE {moved.schema}")
    modern.install(made)
    yield made
    modern.uninstall(made)


def test_spark_puts_parameters_into_the_text(session: SparkSession) -> None:
    """The sessions of this module do what those of such a platform do."""
    assert session.sql("SELECT 1 LIMIT :n", {"n": 1}).collect()[0][0] == 1
    session.sql("CREATE TABLE plain USING parquet COMMENT :c AS SELECT 1 AS id", {"c": "kept"})
    assert session.catalog.getTable("plain").description == "kept"


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("CREATE TABLE made USING delta LOCATION :p", {"p": "{p}"}),
        ("CREATE TABLE made USING delta LOCATION ?", ["{p}"]),
        ("CREATE TABLE made USING delta COMMENT ? LOCATION ?", ["{p}", "{p}"]),
        ("CREATE TABLE made USING delta LOCATION '{half}' :p", {"p": "{rest}"}),
        ("CREATE TABLE made USING delta LOCATION '{half}' '{rest}'", None),
        ("CREATE TABLE made USING delta OPTIONS (path :p)", {"p": "{p}"}),
        ("CREATE TABLE made USING delta OPTIONS (path '{half}' '{rest}')", None),
        ("CREATE TABLE IDENTIFIER(?) USING delta LOCATION ?", ["made", "{p}"]),
        ("BEGIN CREATE TABLE made USING delta LOCATION :p; END", {"p": "{p}"}),
        ("EXECUTE IMMEDIATE :q", {"q": "CREATE TABLE made USING delta LOCATION '{p}'"}),
        ("CREATE TABLE made USING delta AS SELECT * FROM IDENTIFIER(:t)", {"t": "ours"}),
        ("CREATE TABLE made USING delta AS SELECT * FROM ours VERSION AS OF :v", {"v": "{v}"}),
        ("CREATE TABLE made USING delta AS SELECT * FROM ours LIMIT ?", [99]),
        ("CREATE TABLE made USING delta AS SELECT * FROM ours WHERE id < :n", {"n": 99, "m": 1}),
    ],
)
def test_a_table_is_made_of_the_new_place(
    moved: Moved, session: SparkSession, text: str, args: Any
) -> None:
    place = moved.places["ours"]
    old = str(place.source)
    newest = moved.session.sql("DESCRIBE HISTORY ours LIMIT 1").collect()[0].version
    words = {"p": old, "half": old[:7], "rest": old[7:], "v": newest}

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return newest if value == "{v}" else value.format(**words)
        return value

    if isinstance(args, dict):
        args = {name: filled(value) for name, value in args.items()}
    elif args is not None:
        args = [filled(value) for value in args]
    before = content(place.source)
    session.sql(filled(text), args)
    try:
        found = moved.views().sql("SELECT max(id), count(*) FROM made").collect()[0]
        assert found[:] == (MOVED_ON, MANY)
    finally:
        session.sql("DROP TABLE made")
    assert content(place.source) == before


def test_a_view_with_a_parameter_reads_the_new_place(moved: Moved, session: SparkSession) -> None:
    path = str(moved.places["locked"].source)
    session.sql("CREATE TEMP VIEW seen USING delta OPTIONS (path = :p)", {"p": path})
    assert session.sql("SELECT * FROM seen").count() == MANY


def test_queries_are_followed_with_their_parameters(session: SparkSession) -> None:
    for text, args in (
        ("SELECT * FROM IDENTIFIER(:t) WHERE ':t' <> 'ours' AND id >= :n", {"t": "ours", "n": 0}),
        ("SELECT * FROM IDENTIFIER(?) WHERE id >= ?", ["ours", 0]),
        ("FROM ours |> WHERE ours.id >= :n |> LIMIT :m", {"n": 0, "m": 99}),
    ):
        assert session.sql(text, args).count() == MANY, text


def test_what_only_the_executed_text_gets_is_refused(moved: Moved, session: SparkSession) -> None:
    path = moved.places["ours"].source
    before = content(path)
    for text in (
        f"EXECUTE IMMEDIATE 'CREATE TABLE never USING delta LOCATION :p' USING '{path}' AS p",
        f"EXECUTE IMMEDIATE 'CREATE TABLE never USING delta LOCATION ?' USING '{path}'",
        "EXECUTE IMMEDIATE 'SELECT * FROM ours VERSION AS OF ?' USING 0",
        f"BEGIN EXECUTE IMMEDIATE 'CREATE TABLE never USING delta LOCATION ?' USING '{path}'; END",
    ):
        with pytest.raises(RedirectNotFollowed, match="known only when it runs"):
            session.sql(text)
    assert not session.catalog.tableExists("never")
    assert content(path) == before


def test_a_statement_that_only_its_parser_understands_is_refused(
    moved: Moved, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parser of the session may take parameters where Spark's own takes none."""
    from lakeferry.spark import statement_parameters

    path = str(moved.places["ours"].source)
    with monkeypatch.context() as other:
        other.setattr(statement_parameters, "_replaced", lambda *_: None)
        with pytest.raises(RedirectNotFollowed, match="known only when it runs"):
            session.sql("CREATE TABLE never USING delta LOCATION :p", {"p": path})
    assert not session.catalog.tableExists("never")


def test_other_statements_are_sent_as_they_are(session: SparkSession) -> None:
    from lakeferry.spark.client import Client

    args = {"p": 1}
    followed = Client(session).sql("SELECT :p", args)
    assert followed.text == "SELECT :p"
    assert followed.args is args
