"""The tables of a statement, found in its tokens as Spark's parser finds them."""

from __future__ import annotations

from typing import Any

import pytest

from lakeferry.spark.client import without_replaced
from lakeferry.spark.connect_sql import (
    TokenParsed,
    functions_called,
    may_have_a_query,
    names_in_explanation,
    token_statement,
)
from lakeferry.spark.redirected_path import NewPlace
from lakeferry.spark.sql_tokens import parse_name, path_of
from lakeferry.spark.statement_rewrite import edited
from lakeferry.spark.statement_tables import RelationPlace
from tests.compat.test_spark_sql import COMMITTED, LEFT_ALONE, NEW, REPLACED, about


def parsed(text: str) -> TokenParsed:
    found = token_statement(text)
    assert found is not None, text
    return found


def replaced(text: str, table: str) -> str:
    found = token_statement(text)
    if found is None:
        return text
    named = [each for each in found.statement.relations if about(each, table)]
    return edited(text, [edit for each in named for edit in found.edits(each, NewPlace(NEW))])


def names(text: str) -> list[str]:
    return [".".join(each.names[0]) for each in parsed(text).statement.relations if each.names]


@pytest.mark.parametrize(("table", "text", "expected"), REPLACED, ids=[e[1] for e in REPLACED])
def test_texts_name_the_new_place_as_with_a_parser(table: str, text: str, expected: str) -> None:
    assert replaced(text, table) == expected.format(new=NEW)


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_other_texts_are_left_alone(text: str) -> None:
    assert replaced(text, "/a") == text


@pytest.mark.parametrize(("text", "operations"), COMMITTED, ids=[e[0] for e in COMMITTED])
def test_statements_say_what_they_would_commit(text: str, operations: tuple[str, ...]) -> None:
    relations = parsed(text).statement.relations
    (found,) = (each for each in relations if about(each, "/a") or each.literal == "delta.`/a`")
    assert found.operations == operations


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM a, b JOIN c ON c.x = a.x, (d) , e", "a b c d e"),
        ("SELECT f(a, b), c FROM t", "t"),
        ("SELECT a FROM (b JOIN c, d) WHERE x IN (e, f)", "b c d"),
        ("SELECT EXTRACT(YEAR FROM a), TRIM(BOTH 'x' FROM b) FROM c", "c"),
        ("SELECT a IS NOT DISTINCT FROM b FROM c", "c"),
        ("WITH a AS (SELECT * FROM a), b AS (TABLE a) SELECT * FROM a, b, c", "a c"),
        ("WITH RECURSIVE a AS (SELECT * FROM a) SELECT * FROM a", ""),
        ("SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) UNION SELECT * FROM a", "a"),
        ("WITH a AS (SELECT 1) INSERT INTO a SELECT * FROM a", "a"),
        ("INSERT INTO a SELECT * FROM b ORDER BY c, d", "a b"),
        ("CACHE TABLE a AS SELECT * FROM b", "a b"),
        ("DROP TABLE a", ""),
        ("CREATE VIEW a AS SELECT * FROM b", ""),
        ("CREATE TEMP VIEW a AS SELECT * FROM b", "b"),
        ("EXPLAIN SELECT * FROM a", "a"),
        ("SELECT a FROM b TIMESTAMP AS OF date_sub(now(), 1) c", "b"),
        ("WITH a AS (SELECT 1 x) MERGE INTO t USING a ON t.x = a.x WHEN MATCHED THEN DELETE", "t"),
        ("BEGIN FOR r AS WITH a AS (SELECT 1) TABLE a DO SELECT * FROM a; END FOR; END", "a"),
        ("BEGIN FOR WITH a AS (SELECT 1) TABLE a DO SELECT * FROM a; END FOR; END", "a"),
        ("SELECT * FROM s.IDENTIFIER('a')", "s.a"),
        ("SELECT * FROM IDENTIFIER('s').a JOIN IDENTIFIER('s') . IDENTIFIER('b')", "s.a s.b"),
        ("DELETE FROM s.IDENTIFIER('a') WHERE id = 1", "s.a"),
        ("WITH IDENTIFIER('a') AS (SELECT 1) SELECT * FROM a, identifier", "identifier"),
        ("SELECT 1 AS IDENTIFIER('a') FROM b", "b"),
        ("-- in C:\\\r\nSELECT * FROM a", "a"),
        ("/* with /*+ a hint */ SELECT * FROM a", "a"),
    ],
)
def test_names_of_tables_are_known_by_the_words_before_them(text: str, expected: str) -> None:
    assert names(text) == expected.split()


def test_a_name_with_a_computed_part_is_computed() -> None:
    text = "INSERT INTO IDENTIFIER(:schema).a SELECT IDENTIFIER(:b).c"
    (found,) = parsed(text).statement.relations
    assert found.place is RelationPlace.COMPUTED
    assert found.operations == ("WRITE",)
    assert parsed(text).expression(found) == "IDENTIFIER(:schema).a"


def test_a_computed_name_may_be_that_of_a_query() -> None:
    found = parsed("WITH a AS (SELECT 1) SELECT * FROM IDENTIFIER('a')")
    assert found.statement.relations == ()
    assert ("a",) in found.others


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SELECT IDENTIFIER('f')(1), a FROM b", "'f'"),
        ("SELECT IDENTIFIER('f' || 1)() FROM b", "'f' || 1"),
        ("SELECT * FROM IDENTIFIER('f')(1) JOIN b", "'f'"),
    ],
)
def test_the_name_of_a_function_may_be_computed(text: str, name: str) -> None:
    found = parsed(text)
    (computed,) = found.statement.computed_functions
    assert found.expression(computed) == name
    assert found.is_call(computed)
    assert [each.names for each in found.statement.relations] == [(("b",),)]


def test_a_function_may_be_named_by_an_identifier_in_a_schema() -> None:
    assert parsed("SELECT s.IDENTIFIER('f')() FROM b").statement.functions == {"s.f"}


def test_a_computed_name_before_columns_is_that_of_a_table() -> None:
    written = parsed("INSERT INTO IDENTIFIER('a' || 1) (id) VALUES (1)").statement
    assert (len(written.relations), written.computed_functions) == (1, ())


def test_a_change_feed_may_be_read_by_the_functions_full_name() -> None:
    for schema in ("system.builtin.", "BUILTIN."):
        text = f"SELECT * FROM {schema}table_changes_by_path('/a', 0)"
        assert replaced(text, "/a") == text.replace("'/a'", f"'{NEW}'")


def test_a_materialized_view_reads_the_new_place() -> None:
    text = "CREATE OR REFRESH MATERIALIZED VIEW v AS SELECT * FROM delta.`/a`"
    assert replaced(text, "/a") == text.replace("/a", NEW)


@pytest.mark.parametrize("text", ["(SELECT 1)", "x IN (TABLE t)", "IDENTIFIER('f')()", "${query}"])
def test_an_expression_may_have_a_query(text: str) -> None:
    assert may_have_a_query(text)


def test_of_other_expressions_only_functions_are_asked_about() -> None:
    text = "sum(x) + s.f(`select`, 'FROM t') > 3"
    assert not may_have_a_query(text)
    assert functions_called(text) == {"sum", "s.f"}


def test_an_insert_may_change_the_schema() -> None:
    (found,) = parsed("INSERT WITH SCHEMA EVOLUTION INTO a SELECT 1").statement.relations
    assert (found.place, found.operations) == (RelationPlace.NAME, ("WRITE",))
    (found,) = parsed("MERGE WITH SCHEMA EVOLUTION INTO a t USING (SELECT 1)").statement.relations
    assert (found.place, found.operations) == (RelationPlace.NAME, ("MERGE",))


def test_strings_beside_each_other_are_one_location() -> None:
    found = token_statement("REPLACE TABLE t USING delta LOCATION '/a' 'b' AS SELECT 1")
    assert found is not None
    assert [each.path for each in found.statement.relations if each.path] == ["/ab"]


def test_every_other_name_of_a_text_is_returned_too() -> None:
    found = parsed("SELECT a.x, b AS c FROM VALUES (1) AS v(y), d.e").others
    assert {("a", "x"), ("b",), ("d", "e")} <= set(found)
    assert ("c",) not in found


def test_a_script_says_what_it_creates_and_changes() -> None:
    found = parsed("BEGIN USE x; CREATE VIEW v AS SELECT * FROM a; SELECT * FROM b; END").statement
    assert found.is_script
    assert found.changes_namespace
    assert [each.names[0] for each in found.renamed] == [("a",)]
    assert [each.names[0] for each in found.relations] == [("b",)]


def test_an_explanation_says_which_tables_a_parser_saw() -> None:
    plan = "'Project ['id]\n+- 'UnresolvedRelation [A, b], [], false"
    told = f"== Parsed Logical Plan ==\n{plan}\n\n== Analyzed Logical Plan ==\n"
    assert names_in_explanation(told) == ["a, b"]
    assert names_in_explanation("Error occurred during query planning: \n[X] no") is None
    assert names_in_explanation("") is None


def test_the_text_of_execute_immediate_can_be_replaced() -> None:
    for text in (
        "EXECUTE IMMEDIATE 'a' || 'b' INTO x USING 1",
        "EXECUTE IMMEDIATE q INTO x USING 1",
    ):
        found = parsed(text)
        (relation,) = found.statement.relations
        new = edited(text, found.edit_statement(relation, "SELECT 1"))
        assert new == "EXECUTE IMMEDIATE 'SELECT 1' INTO x USING 1"


@pytest.mark.parametrize(
    ("text", "args", "expected", "left"),
    [
        (
            "CREATE TABLE t (a INT) USING delta LOCATION :p COMMENT :c",
            {"p": "/a", "c": "/b"},
            "CREATE TABLE t (a INT) USING delta LOCATION '{new}' COMMENT :c",
            {"p": "/a", "c": "/b"},
        ),
        (
            "CREATE TABLE t USING delta COMMENT ? LOCATION ?",
            ["/b", "/a"],
            "CREATE TABLE t USING delta COMMENT ? LOCATION '{new}'",
            ["/b"],
        ),
        (
            "CREATE TABLE t USING delta LOCATION '/' : p",
            {"p": "a"},
            "CREATE TABLE t USING delta LOCATION '{new}'",
            {"p": "a"},
        ),
        (
            "CREATE TEMP VIEW v USING delta OPTIONS (path ?, x ?)",
            ["/a", "y"],
            "CREATE TEMP VIEW v USING delta OPTIONS (path '{new}', x ?)",
            ["y"],
        ),
        ("VACUUM :p", {"p": "/a"}, "VACUUM '{new}'", {"p": "/a"}),
        (
            "SELECT '?', `?`, ? FROM IDENTIFIER(?) -- ?",
            [1, "delta.`/a`"],
            "SELECT '?', `?`, ? FROM delta.`{new}` -- ?",
            [1],
        ),
        (
            "SELECT * FROM delta.`/a` VERSION AS OF :v t WHERE t.x::v = :w",
            {"v": 3, "w": "x"},
            "SELECT * FROM delta.`{new}` VERSION AS OF :v t WHERE t.x::v = :w",
            {"v": 3, "w": "x"},
        ),
        ("EXECUTE IMMEDIATE ? USING ?", ["x", "/a"], "EXECUTE IMMEDIATE ? USING ?", ["x", "/a"]),
    ],
)
def test_parameters_are_literals_with_their_values(
    text: str, args: Any, expected: str, left: Any
) -> None:
    found = token_statement(text, default="delta", args=args)
    assert found is not None
    edits = []
    for each in found.statement.relations:
        option = found.option_path(each) if each.route[-1:] == ("options",) else None
        named = path_of(parse_name(each.literal or "") or ())
        if about(each, "/a") or "/a" in (option, named):
            edits += found.edits(each, NewPlace(NEW))
    assert edited(text, edits) == expected.format(new=NEW)
    assert without_replaced(found, edits, args) == left
    assert found.computed_paths == ()


def test_a_version_that_is_a_parameter_is_a_part_of_the_table() -> None:
    text = "SELECT * FROM db.t VERSION AS OF :v WHERE id"
    found = token_statement(text, args={"v": 3})
    assert found is not None
    (relation,) = found.statement.relations
    new = edited(text, found.edits(relation, NewPlace(NEW)))
    assert new == f"SELECT * FROM (delta.`{NEW}` VERSION AS OF :v AS `t`) WHERE id"


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t USING delta LOCATION ?",
        "CREATE TABLE t USING delta LOCATION '/' :p",
        "CREATE TEMP VIEW v USING delta OPTIONS (path = :p)",
        "VACUUM :p",
        "DESCRIBE HISTORY ?",
    ],
)
def test_a_path_whose_parameter_has_no_known_value_is_noted(text: str) -> None:
    assert len(parsed(text).computed_paths) == 1
    found = token_statement(text, args={"p": 1})
    assert found is not None
    assert len(found.computed_paths) == 1


def test_a_path_of_another_format_may_be_computed() -> None:
    assert parsed("CREATE TABLE t USING parquet LOCATION ?").computed_paths == ()
