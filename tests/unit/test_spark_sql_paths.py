"""Tables in SQL texts: found where they are, with what would be committed there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.spark.references import Reference, references, replaced
from lakeferry.spark.tokens import Kind, parse_name, path_of, spell_string, spell_table, tokens

NEW = "s3a://new/t"


def moved(text: str) -> str:
    """Put the new place wherever a path is."""
    return replaced(text, [(each, NEW) for each in references(text) if each.path is not None])


def moved_names(text: str, *names: str) -> str:
    """Put the new place wherever one of these names of the catalog is."""
    found = [each for each in references(text) if ".".join(each.name) in names]
    return replaced(text, [(each, NEW) for each in found])


def paths(text: str) -> list[tuple[str | None, tuple[str, ...]]]:
    return [(each.path, each.operations) for each in references(text) if each.path is not None]


def names(text: str) -> list[str]:
    return [".".join(each.name) for each in references(text) if each.name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM delta.`/a`", "SELECT * FROM delta.`s3a://new/t`"),
        ("select * from DELTA . `/a` t", "select * from DELTA . `s3a://new/t` t"),
        ("SELECT * FROM delta.`file:/a`", "SELECT * FROM delta.`s3a://new/t`"),
        (
            "SELECT * FROM spark_catalog.delta.`/a`",
            "SELECT * FROM spark_catalog.delta.`s3a://new/t`",
        ),
        (
            "SELECT delta.`/a`.id FROM delta.`/a` WHERE delta.`/a`.id",
            "SELECT delta.`s3a://new/t`.id FROM delta.`s3a://new/t` WHERE delta.`s3a://new/t`.id",
        ),
        (
            "WITH x AS (SELECT * FROM delta.`/a` VERSION AS OF 3) SELECT * FROM x",
            "WITH x AS (SELECT * FROM delta.`s3a://new/t` VERSION AS OF 3) SELECT * FROM x",
        ),
        ("VACUUM '/a' RETAIN 0 HOURS", "VACUUM 's3a://new/t' RETAIN 0 HOURS"),
        ('DESCRIBE HISTORY "/a"', "DESCRIBE HISTORY 's3a://new/t'"),
        ("DESC DETAIL '/a'", "DESC DETAIL 's3a://new/t'"),
        (
            "SELECT * FROM table_changes_by_path('/a', 0)",
            "SELECT * FROM table_changes_by_path('s3a://new/t', 0)",
        ),
        (
            "SELECT * FROM table_changes('delta.`/a`', 0)",
            "SELECT * FROM table_changes('delta.`s3a://new/t`', 0)",
        ),
        (
            "SELECT * FROM IDENTIFIER('delta.`/a`')",
            "SELECT * FROM IDENTIFIER('delta.`s3a://new/t`')",
        ),
        (
            "CREATE TABLE t USING delta LOCATION '/a'",
            "CREATE TABLE t USING delta LOCATION 's3a://new/t'",
        ),
        (
            "CREATE TEMP VIEW v AS TABLE delta.`/a`",
            "CREATE TEMP VIEW v AS TABLE delta.`s3a://new/t`",
        ),
    ],
)
def test_paths_are_replaced(text: str, expected: str) -> None:
    assert moved(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'delta.`/a`'",
        'SELECT "it\'s delta.`/a`"',
        r"SELECT 'it\'s delta.`/a`'",
        "SELECT 'it''s delta.`/a`'",
        r"SELECT r'\', '/a' -- delta.`/a`",
        "SELECT 1 -- FROM delta.`/a`\n",
        "SELECT 1 -- goes on \\\n FROM delta.`/a`",
        "SELECT 1 /* delta.`/a` /* deeper */ delta.`/a` */",
        "SELECT 1 /* never closed delta.`/a`",
        "CREATE FUNCTION f() RETURNS INT LANGUAGE PYTHON AS $$ delta.`/a` $$",
        "CREATE FUNCTION f() AS $tag$ $$ delta.`/a` $tag$",
        "SELECT `delta.``/a```",
        "SELECT * FROM parquet.`/a`",
        "SELECT * FROM other.delta.`/a`",
        "SELECT * FROM delta.`a`",
        "SELECT delta.a FROM t",
        "SELECT * FROM t WHERE path = '/a'",
        "CREATE TABLE t USING parquet LOCATION '/a'",
        "CREATE DATABASE d LOCATION '/a'",
        "DROP TABLE delta.`/a`",
        "CREATE OR REPLACE VIEW v AS SELECT * FROM delta.`/a`",
        "SELECT 'never closed FROM delta.`/a`",
        "SELECT * FROM delta.`/a",
        "",
        ";;",
    ],
)
def test_everything_else_is_left_alone(text: str) -> None:
    assert paths(text) == []
    assert moved(text) == text


@pytest.mark.parametrize(
    ("text", "operations"),
    [
        ("SELECT * FROM delta.`/a`", ()),
        ("DESCRIBE TABLE EXTENDED delta.`/a`", ()),
        ("INSERT INTO delta.`/a` VALUES (1)", ("WRITE",)),
        ("INSERT INTO TABLE delta.`/a` VALUES (1)", ("WRITE",)),
        ("INSERT OVERWRITE TABLE delta.`/a` SELECT 1", ("WRITE",)),
        ("insert overwrite delta.`/a` select 1", ("WRITE",)),
        ("WITH s AS (SELECT 1) INSERT INTO delta.`/a` SELECT * FROM s", ("WRITE",)),
        ("MERGE INTO delta.`/a` t USING s ON t.id = s.id WHEN MATCHED THEN DELETE", ("MERGE",)),
        ("MERGE WITH SCHEMA EVOLUTION INTO delta.`/a` USING s ON true", ("MERGE",)),
        ("UPDATE delta.`/a` SET x = 1", ("UPDATE",)),
        ("DELETE FROM delta.`/a` WHERE x", ("DELETE",)),
        ("EXPLAIN FORMATTED DELETE FROM delta.`/a`", ("DELETE",)),
        ("OPTIMIZE delta.`/a` ZORDER BY (x)", ("OPTIMIZE",)),
        ("OPTIMIZE '/a'", ("OPTIMIZE",)),
        ("VACUUM delta.`/a`", ("VACUUM START", "VACUUM END")),
        ("VACUUM delta.`/a` RETAIN 1 HOURS DRY RUN", ()),
        ("RESTORE TABLE delta.`/a` TO VERSION AS OF 1", ("RESTORE",)),
        ("RESTORE delta.`/a` TO VERSION AS OF 1", ("RESTORE",)),
        ("REORG TABLE delta.`/a` APPLY (PURGE)", ("REORG",)),
        ("TRUNCATE TABLE delta.`/a`", ("TRUNCATE",)),
        ("ALTER TABLE delta.`/a` ADD COLUMNS (x INT)", ("ADD COLUMNS",)),
        ("ALTER TABLE delta.`/a` SET TBLPROPERTIES ('a' = 'b')", ("SET TBLPROPERTIES",)),
        ("ALTER TABLE delta.`/a` DROP FEATURE x", ("DROP FEATURE",)),
        ("ALTER TABLE delta.`/a` SOMETHING NEW", ("ALTER TABLE",)),
        ("CREATE TABLE delta.`/a` (x INT) USING delta", ("CREATE TABLE",)),
        ("CREATE TABLE IF NOT EXISTS delta.`/a` (x INT) USING delta", ("CREATE TABLE",)),
        ("CREATE TABLE delta.`/a` USING delta AS SELECT 1", ("CREATE TABLE AS SELECT",)),
        ("REPLACE TABLE delta.`/a` (x INT) USING delta", ("REPLACE TABLE",)),
        (
            "CREATE OR REPLACE TABLE delta.`/a` USING delta AS (SELECT 1)",
            ("CREATE OR REPLACE TABLE AS SELECT",),
        ),
        ("CREATE OR REPLACE TABLE delta.`/a` SHALLOW CLONE t", ("CLONE",)),
        ("CREATE TABLE t USING delta LOCATION '/a'", ("CREATE TABLE",)),
        ("INSERT INTO IDENTIFIER('delta.`/a`') VALUES (1)", ("WRITE",)),
    ],
)
def test_statements_say_what_they_would_commit(text: str, operations: tuple[str, ...]) -> None:
    assert paths(text) == [("/a", operations)]


def test_every_path_has_its_own_operations() -> None:
    text = (
        "INSERT INTO delta.`/a` SELECT x.* FROM delta.`/a` x JOIN delta.`/b` ON delta.`/b`.i = x.i"
    )
    assert paths(text) == [("/a", ("WRITE",)), ("/a", ()), ("/b", ()), ("/b", ())]
    text = "MERGE INTO delta.`/a` USING delta.`/b` ON true WHEN NOT MATCHED THEN INSERT *"
    assert paths(text) == [("/a", ("MERGE",)), ("/b", ())]
    text = "CREATE TABLE delta.`/a` SHALLOW CLONE delta.`/b`"
    assert paths(text) == [("/a", ("CLONE",)), ("/b", ())]
    text = "BEGIN UPDATE delta.`/a` SET x = 1; VACUUM '/b'; END"
    assert paths(text) == [("/a", ("UPDATE",)), ("/b", ("VACUUM START", "VACUUM END"))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM db.t, u JOIN `my db`.`v w` ON t.i = u.i", ["db.t", "u", "my db.v w"]),
        ("SELECT a, b FROM t GROUP BY x, y ORDER BY z, w", ["t"]),
        ("SELECT * FROM (SELECT a, b FROM t), u WHERE a IN (1, b, c)", ["t", "u"]),
        ("WITH a AS (SELECT 1), b(x, y) AS (SELECT * FROM t) SELECT * FROM a, b, c", ["t", "c"]),
        ("SELECT EXTRACT(YEAR FROM day), TRIM(BOTH 'x' FROM name) FROM t", ["t"]),
        ("SELECT * FROM t WHERE a IS NOT DISTINCT FROM b", ["t"]),
        ("SELECT * FROM range(10), LATERAL explode(x)", []),
        ("INSERT INTO TABLE t SELECT * FROM VALUES (1)", ["t"]),
        ("INSERT INTO db.t (a, b) VALUES (1, 2)", ["db.t"]),
        ("INSERT OVERWRITE DIRECTORY '/x' SELECT * FROM t", ["t"]),
        ("MERGE INTO t USING s ON t.i = s.i WHEN MATCHED THEN UPDATE SET x = 1", ["t", "s"]),
        ("SELECT * FROM t JOIN s USING (i)", ["t", "s"]),
        ("CREATE TABLE t USING delta AS SELECT * FROM s", ["t", "s"]),
        ("CREATE TABLE IF NOT EXISTS db.t (x INT)", ["db.t"]),
        ("ALTER TABLE t ADD COLUMN x INT", ["t"]),
        ("ALTER TABLE t RENAME TO u", []),
        ("DROP TABLE IF EXISTS t", []),
        ("SHOW COLUMNS FROM t", []),
        ("DESCRIBE HISTORY db.t", ["db.t"]),
        ("DESCRIBE db.t", ["db.t"]),
        ("SELECT * FROM table_changes('db.t', 0)", ["db.t"]),
        ("SELECT * FROM t TABLESAMPLE (5 ROWS)", ["t"]),
        ("SELECT CASE WHEN EXISTS (SELECT 1 FROM t) THEN 1 END", ["t"]),
        ("TABLE t", ["t"]),
        ("SELECT x AS history, y optimize FROM t ORDER BY x DESC", ["t"]),
    ],
)
def test_names_of_tables_are_found_where_tables_are_named(text: str, expected: list[str]) -> None:
    assert names(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT t.id FROM db.t", "SELECT t.id FROM delta.`s3a://new/t` AS `t`"),
        (
            "SELECT * FROM db.t WHERE t.id = 1",
            "SELECT * FROM delta.`s3a://new/t` AS `t` WHERE t.id = 1",
        ),
        (
            "SELECT * FROM db.t x WHERE x.id = 1",
            "SELECT * FROM delta.`s3a://new/t` x WHERE x.id = 1",
        ),
        ("SELECT * FROM db.t AS x", "SELECT * FROM delta.`s3a://new/t` AS x"),
        (
            "SELECT * FROM u, db.t JOIN v ON true",
            "SELECT * FROM u, delta.`s3a://new/t` AS `t` JOIN v ON true",
        ),
        (
            "SELECT * FROM (SELECT * FROM db.t)",
            "SELECT * FROM (SELECT * FROM delta.`s3a://new/t` AS `t`)",
        ),
        (
            "SELECT * FROM db.t VERSION  AS OF 3 WHERE id",
            "SELECT * FROM delta.`s3a://new/t` VERSION  AS OF 3 AS `t` WHERE id",
        ),
        (
            "SELECT * FROM db.t TIMESTAMP AS OF '2024-01-01' x",
            "SELECT * FROM delta.`s3a://new/t` TIMESTAMP AS OF '2024-01-01' x",
        ),
        (
            "SELECT * FROM db.t TIMESTAMP AS OF now() - INTERVAL 1 DAY",
            "SELECT * FROM delta.`s3a://new/t` TIMESTAMP AS OF now() - INTERVAL 1 DAY",
        ),
        ("INSERT INTO db.t VALUES (1)", "INSERT INTO delta.`s3a://new/t` VALUES (1)"),
        ("UPDATE db.t SET t.x = 1", "UPDATE delta.`s3a://new/t` AS `t` SET t.x = 1"),
        ("DELETE FROM db.t WHERE t.x", "DELETE FROM delta.`s3a://new/t` AS `t` WHERE t.x"),
        (
            "MERGE INTO db.t USING s ON t.i = s.i WHEN MATCHED THEN DELETE",
            "MERGE INTO delta.`s3a://new/t` AS `t` USING s ON t.i = s.i WHEN MATCHED THEN DELETE",
        ),
        ("OPTIMIZE db.t", "OPTIMIZE delta.`s3a://new/t`"),
        (
            "SELECT * FROM table_changes('db.t', 0)",
            "SELECT * FROM table_changes('delta.`s3a://new/t`', 0)",
        ),
    ],
)
def test_a_name_becomes_a_path_that_columns_can_still_be_called_by(
    text: str, expected: str
) -> None:
    assert moved_names(text, "db.t") == expected


def test_quotes_in_places_are_spelled_so_that_they_stay() -> None:
    place = "/it's `so`\\"
    table = spell_table(place)
    assert path_of(parse_name(table) or ()) == place
    (token,) = tokens(spell_string(place))
    assert (token.kind, token.value) == (Kind.STRING, place)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_any_place_survives_being_spelled(place: str) -> None:
    (reference,) = references("SELECT * FROM delta.`/a`")
    text = replaced("SELECT * FROM delta.`/a`", [(reference, f"/{place}")])
    assert [each.path for each in references(text)] == [f"/{place}"]
    (token,) = tokens(spell_string(place))
    assert token.value == place


@given(st.text(st.sampled_from("ab '\"`\\-/*.,();\n$rR1delta"), max_size=40))
def test_any_text_is_taken_apart_without_loss(text: str) -> None:
    found = tokens(text)
    ends = [0, *(token.end for token in found)]
    starts = [*(token.start for token in found), len(text)]
    assert all(end <= start for end, start in zip(ends, starts, strict=True))
    assert all(token.start < token.end for token in found)
    assert all(isinstance(each, Reference) for each in references(text))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t", ("t",)),
        ("db.`a.b`", ("db", "a.b")),
        ("delta.`/x``y`", ("delta", "/x`y")),
        ("a b", None),
        ("a.", None),
        (".a", None),
        ("f(x)", None),
        ("", None),
    ],
)
def test_names_are_parsed(text: str, parts: tuple[str, ...] | None) -> None:
    assert parse_name(text) == parts
