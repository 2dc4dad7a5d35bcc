"""PySpark with our client, where a redirect leads to a table that is opened by its name only.

Each test runs with two catalogs.

``unity``: a table that became a managed one, on a real Unity Catalog with its Spark connector. Both
have to be built first, so it takes part only if variables say where they are:

    LAKEFERRY_UC_URL=http://127.0.0.1:8080 LAKEFERRY_UC_SPARK_JARS=FOLDER \\
        .venv/bin/pytest -n 0 tests/compat/test_spark_by_name.py

The folder has all jars that Spark needs: those of Delta Lake and those of the connector.

``session catalog``: a catalog for Spark can't be imitated in Python. So the table is one of Spark's
own catalog, and the test itself says what resolving the old path answers. This shows that every
call goes to the name, with its mode and options. It doesn't show that a managed table can be
opened.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lakeferry
from lakeferry import spark as modern
from lakeferry.errors import CatalogManaged, RedirectNotFollowed
from lakeferry.redirect.resolve import Resolution, resolve_table
from lakeferry.spark import session_catalogs, session_tables
from lakeferry.storage import normalise
from tests.support import spark_reads
from tests.support.shares import Share
from tests.support.spark_reads import Read, delta_table, streamed
from tests.support.unity_server import UnityServer, unity_server
from tests.support.unity_spark import REAL, use_unity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Named:
    """A session with our client; ``old`` leads to the table ``name``."""

    session: SparkSession
    control: SparkSession
    """A session without our client."""
    old: str
    name: tuple[str, ...]
    server: UnityServer | None = None
    registered: str = ""
    """A table of Spark's own catalog at the old path."""
    rename: Callable[[str], None] = lambda _: None
    """Gives the table another name in its schema."""

    @property
    def identifier(self) -> str:
        return ".".join(f"`{part}`" for part in self.name)

    def rows(self) -> list[Row]:
        """Return the rows of the table by its name, by a session without our client."""
        return content(self.control.table(self.identifier))

    def frame(self, *ids: int, day: str = "a") -> DataFrame:
        """Return rows to write."""
        return self.session.createDataFrame([(i, f"new {i}", day) for i in ids], SCHEMA)


SCHEMA = "id BIGINT, v STRING, day STRING"
PROPERTIES = (
    "'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name', "
    "'delta.enableChangeDataFeed' = 'true'"
)
UNSAFE = (
    "spark.databricks.delta.streaming.unsafeReadOnIncompatibleColumnMappingSchemaChanges.enabled"
)
NEWEST = 3
"""The version before the move."""


Before = Callable[["SparkSession", str], None]
World = Callable[..., Named]
"""Makes a table that moved. ``before`` runs before the move."""


def content(frame: DataFrame) -> list[Row]:
    return sorted(tuple(row) for row in frame.select("id", "v", "day").collect())


def create(session: SparkSession, path: str, properties: str) -> None:
    """Make a table with partitions, column mapping, deletion vectors and change data."""
    table = f"delta.`{path}`"
    session.sql(
        f"CREATE TABLE {table} ({SCHEMA}) USING delta PARTITIONED BY (day) "
        f"TBLPROPERTIES ({properties})"
    )
    for start in (0, 10):
        session.sql(
            f"INSERT INTO {table} SELECT id, concat('v', id), if(id % 2 = 0, 'a', 'b') "
            f"FROM range({start}, {start + 10}, 1, 1)"
        )
    session.sql(f"DELETE FROM {table} WHERE id = 3")


@pytest.fixture(scope="module", params=["session catalog", *(["unity"] if REAL else [])])
def world(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Give a function that makes a table that moved."""
    folder = tmp_path_factory.mktemp("named")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        server = None
        if request.param == "unity":
            server = stack.enter_context(unity_server())
            server.name_in(patch)
        answers: dict[str, Resolution] = {}

        def answer(uri: str, **options: Any) -> Resolution:
            found = answers.get(uri.rstrip("/"))
            return found if found is not None else resolve_table(uri, **options)

        patch.setattr(session_tables, "resolve_table", answer)

        def made(
            before: Before = lambda *_: None,
            properties: str = PROPERTIES,
            mode: str = "reader-writer",
        ) -> Named:
            old = str(folder / f"t_{uuid.uuid4().hex[:8]}")
            control, session = spark.newSession(), spark.newSession()
            create(control, old, properties)
            registered = f"registered_{uuid.uuid4().hex[:8]}"
            control.sql(f"CREATE TABLE {registered} USING delta LOCATION '{old}'")
            stack.callback(control.sql, f"DROP TABLE {registered}")
            before(control, old)
            if server is None:
                found = in_session_catalog(control, session, old, answers)
            else:
                found = in_unity(control, session, old, server, mode)
            modern.install(session)
            stack.callback(modern.uninstall, session)
            return replace(found, registered=registered)

        yield made


def in_session_catalog(
    control: SparkSession, session: SparkSession, old: str, answers: dict[str, Resolution]
) -> Named:
    name = ("spark_catalog", "default", f"n_{uuid.uuid4().hex[:8]}")
    new = f"{old}-new"
    shutil.copytree(old, new)
    control.sql(f"CREATE TABLE {'.'.join(name)} USING delta LOCATION '{new}'")

    def lead_to(table: str) -> None:
        answers[normalise(old)] = Resolution(
            normalise(old),
            normalise(new),
            redirected=True,
            name=f"unity:{'.'.join(name[:2])}.{table}",
            managed=("catalogManaged",),
        )

    def rename(table: str) -> None:
        control.sql(f"ALTER TABLE {'.'.join(name)} RENAME TO default.{table}")
        lead_to(table)

    lead_to(name[2])
    return Named(session, control, old, name, rename=rename)


def in_unity(
    control: SparkSession, session: SparkSession, old: str, server: UnityServer, mode: str
) -> Named:
    catalog, schema = server.schema.split(".")
    name = (catalog, schema, f"n@{uuid.uuid4().hex[:8]}-x")
    for each in (control, session):
        use_unity(each, server)
    lakeferry.Table(old).redirect(f"unity:{'.'.join(name)}", mode=mode, managed=True)
    rename = partial(server.rename, ".".join(name))
    return Named(session, control, old, name, server, rename=rename)


@pytest.fixture(scope="module")
def read_only(world: World) -> Named:
    """A table that moved; the module's tests only read it."""
    return world()


@pytest.fixture(scope="module")
def named(world: World) -> Named:
    """A table that moved, for tests that write."""
    return world()


READS: dict[str, Read] = {
    **spark_reads.READS,
    "load of a list": lambda s, p: s.read.format("delta").load([p]),
    "options path": lambda s, p: s.read.format("delta").load(PATH=f"file://{p}/"),
    "sql with columns": lambda s, p: s.sql(
        f"SELECT delta.`{p}`.id, `{p}`.v, day FROM delta.`{p}` WHERE delta.`{p}`.id >= 0"
    ),
    "sql of a whole name": lambda s, p: s.sql(
        f"SELECT spark_catalog.delta.`{p}`.* FROM spark_catalog.delta.`{p}`"
    ),
    "sql twice": lambda s, p: s.sql(
        f"SELECT a.* FROM delta.`{p}` a JOIN delta.`{p}` b ON a.id = b.id"
    ),
    "sql with WITH": lambda s, p: s.sql(f"WITH t AS (SELECT * FROM delta.`{p}`) SELECT * FROM t"),
    "IDENTIFIER": lambda s, p: s.sql(f"SELECT * FROM IDENTIFIER('delta.' || '`{p}`')"),
    "a subquery": lambda s, p: s.sql(
        f"SELECT * FROM delta.`{p}` WHERE id IN (SELECT id FROM delta.`{p}`)"
    ),
    "a script": lambda s, p: s.sql(f"BEGIN SELECT * FROM delta.`{p}`; END"),
    "STREAM in sql": lambda s, p: streamed(s, s.sql(f"SELECT * FROM STREAM delta.`{p}`")),
}


def cases(named: Named, share: Share, of: Iterable[str]) -> list[str]:
    """Return all cases on the real server, and a share of them in Spark's own catalog."""
    return list(of) if named.server is not None else share.some(list(of))


def test_the_old_path_is_read_by_the_name(read_only: Named, share: Share) -> None:
    expected = read_only.rows()
    for how in cases(read_only, share, READS):
        assert content(READS[how](read_only.session, read_only.old)) == expected, how


def test_the_name_itself_is_read(read_only: Named) -> None:
    session, name = read_only.session, read_only.identifier
    assert content(session.sql(f"SELECT * FROM {name}")) == read_only.rows()
    assert content(session.table(name)) == read_only.rows()


VERSIONS: dict[str, Callable[[SparkSession, str, int], DataFrame]] = {
    "versionAsOf": lambda s, p, v: s.read.format("delta").option("versionAsOf", v).load(p),
    "versionAsOf of a table": lambda s, p, v: s.read.option("versionAsOf", v).table(f"delta.`{p}`"),
    "timestampAsOf": lambda s, p, v: s.read.format("delta").load(p, timestampAsOf=moment(s, p, v)),
    "path@v": lambda s, p, v: s.read.format("delta").load(f"{p}@v{v}"),
    "table of path@v": lambda s, p, v: s.table(f"delta.`{p}@v{v}`"),
    "sql path@v": lambda s, p, v: s.sql(f"SELECT * FROM delta.`{p}@v{v}` t WHERE t.id >= 0"),
    "VERSION AS OF": lambda s, p, v: s.sql(
        f"SELECT delta.`{p}`.* FROM delta.`{p}` VERSION AS OF {v}"
    ),
    "TIMESTAMP AS OF": lambda s, p, v: s.sql(
        f"SELECT * FROM delta.`{p}` TIMESTAMP AS OF '{moment(s, p, v)}' t"
    ),
}


def moment(session: SparkSession, path: str, version: int) -> str:
    """Return when a version was committed, by the history of the table where it is now."""
    history = session.sql(f"DESCRIBE HISTORY delta.`{path}`").where(f"version = {version}")
    return str(history.selectExpr("CAST(timestamp AS STRING)").collect()[0][0])


def test_versions_before_the_move_are_read_by_the_name(read_only: Named, share: Share) -> None:
    expected = [(i, f"v{i}", "a" if i % 2 == 0 else "b") for i in range(10)]
    for how in cases(read_only, share, VERSIONS):
        assert content(VERSIONS[how](read_only.session, read_only.old, 1)) == expected, how


CHANGES: dict[str, Read] = {
    "readChangeFeed": lambda s, p: (
        s.read.format("delta").option("readChangeFeed", True).option("startingVersion", 1).load(p)
    ),
    "table_changes": lambda s, p: s.sql(f"SELECT * FROM table_changes('delta.`{p}`', 1)"),
    "table_changes_by_path": lambda s, p: s.sql(f"SELECT * FROM table_changes_by_path('{p}', 1)"),
}


def test_changes_are_read_by_the_name(read_only: Named, share: Share) -> None:
    for how in cases(read_only, share, CHANGES):
        found = CHANGES[how](read_only.session, read_only.old).groupBy("_change_type").count()
        assert sorted(map(tuple, found.collect())) == [("delete", 1), ("insert", 20)], how


def described(session: SparkSession, text: str) -> list[Row]:
    return [tuple(row) for row in session.sql(text).collect()]


DESCRIPTIONS = (
    "DESCRIBE HISTORY {t}",
    "DESCRIBE DETAIL {t}",
    "DESCRIBE TABLE EXTENDED {t}",
    "SHOW TBLPROPERTIES {t}",
    "SHOW COLUMNS IN {t}",
)


def test_what_is_said_of_the_old_path_is_said_of_the_name(read_only: Named, share: Share) -> None:
    for statement in cases(read_only, share, DESCRIPTIONS):
        old = described(read_only.session, statement.format(t=f"delta.`{read_only.old}`"))
        new = described(read_only.control, statement.format(t=read_only.identifier))
        assert old == new, statement


def test_the_path_in_a_string_is_the_name(read_only: Named) -> None:
    detail = read_only.session.sql(f"DESCRIBE DETAIL '{read_only.old}'").collect()[0]
    assert detail["location"].rstrip("/").rpartition("/")[2] not in read_only.old


def test_python_methods_lead_to_the_name(read_only: Named) -> None:
    from delta.tables import DeltaTable

    session, old = read_only.session, read_only.old
    assert DeltaTable.isDeltaTable(session, old)
    table = DeltaTable.forPath(session, old)
    assert table.history().count() >= NEWEST + 1
    assert [each.name for each in session.catalog.listColumns(f"delta.`{old}`")] == [
        "id",
        "v",
        "day",
    ]


REFUSED: dict[str, Callable[[SparkSession, str], object]] = {
    "LOCATION": lambda s, p: s.sql(f"CREATE TABLE elsewhere USING delta LOCATION '{p}'"),
    "OPTIONS (path)": lambda s, p: s.sql(
        f"CREATE TEMP VIEW elsewhere USING delta OPTIONS (path '{p}')"
    ),
    "createTable": lambda s, p: s.catalog.createTable("elsewhere", p, "delta"),
    "saveAsTable with a path": lambda s, p: (
        s.range(1).write.format("delta").option("path", p).saveAsTable("elsewhere")
    ),
    "toTable with a path": lambda s, p: (
        s.readStream.format("rate").load().writeStream.format("delta").option("path", p)
    ).toTable("elsewhere"),
    "a partition's folder": lambda s, p: s.read.format("delta").load(f"{p}/day=a"),
    "several paths": lambda s, p: s.read.format("delta").load([p, p]),
    "forPath of a version": lambda s, p: delta_table(s, f"{p}@v1"),
}


def test_what_only_a_path_can_say_is_refused_with_the_name(read_only: Named) -> None:
    before = read_only.rows()
    for how, call in REFUSED.items():
        with pytest.raises(RedirectNotFollowed) as refused:
            call(read_only.session, read_only.old)
        assert read_only.identifier in str(refused.value.remedy), how
    assert read_only.rows() == before


def test_a_table_of_the_catalog_at_the_old_path_is_the_name(read_only: Named) -> None:
    session, table = read_only.session, read_only.registered
    expected = read_only.rows()
    assert content(session.table(table)) == expected
    assert content(session.sql(f"SELECT {table}.* FROM default.{table}")) == expected
    assert content(streamed(session, session.readStream.table(table))) == expected
    joined = session.sql(
        f"SELECT a.* FROM {table} JOIN delta.`{read_only.old}` a ON {table}.id = a.id"
    )
    assert content(joined) == expected


Write = Callable[["Named", "DataFrame"], object]
APPENDS: dict[str, Write] = {
    "save": lambda n, f: f.write.format("delta").mode("append").save(n.old),
    "save with everything": lambda n, f: f.write.save(
        n.old, "delta", "append", "day", userMetadata="told"
    ),
    "option path": lambda n, f: f.write.format("delta").mode("append").option("path", n.old).save(),
    "columns in another order": lambda n, f: (
        f.select("day", "v", "id").write.format("delta").mode("append").save(n.old)
    ),
    "saveAsTable": lambda n, f: (
        f.write.format("delta").mode("append").saveAsTable(f"delta.`{n.old}`")
    ),
    "insertInto": lambda n, f: f.write.insertInto(f"delta.`{n.old}`"),
    "writeTo": lambda n, f: f.writeTo(f"delta.`{n.old}`").append(),
    "sql": lambda n, f: n.session.sql(f"INSERT INTO delta.`{n.old}` SELECT * FROM {{f}}", f=f),
    "merge": lambda n, f: (
        delta_table(n.session, n.old)
        .alias("t")
        .merge(f.alias("s"), "t.id = s.id")
        .whenNotMatchedInsertAll()
        .execute()
    ),
    "mergeInto": lambda n, f: (
        f.alias("s").mergeInto(f"delta.`{n.old}`", never()).whenNotMatched().insertAll().merge()
    ),
    "lakeferry.spark.write": lambda n, f: modern.write(f, n.old, mode="append"),
}


def never() -> Any:
    """A condition under which no row matches another."""
    from pyspark.sql.functions import lit

    return lit(False)


def test_the_old_path_is_appended_to_by_the_name(named: Named, share: Share) -> None:
    expected = named.rows()
    for number, how in enumerate(cases(named, share, APPENDS), 1000):
        APPENDS[how](named, named.frame(number))
        expected = sorted([*expected, (number, f"new {number}", "a")])
        assert named.rows() == expected, how


def test_the_modes_of_a_write_are_those_of_the_path(named: Named) -> None:
    from pyspark.errors import AnalysisException

    def write(frame: DataFrame, mode: str | None, **options: Any) -> None:
        frame.write.format("delta").mode(mode).options(**options).save(named.old)

    before = named.rows()
    write(named.frame(1), "ignore")
    with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
        write(named.frame(1), None)
    assert named.rows() == before
    write(named.frame(2000, day="b"), "overwrite", replaceWhere="day = 'b'")
    kept = [row for row in before if row[2] == "a"]
    assert named.rows() == sorted([*kept, (2000, "new 2000", "b")])
    with pytest.raises(AnalysisException, match="DELTA_REPLACE_WHERE_MISMATCH"):
        write(named.frame(1, day="a"), "overwrite", replaceWhere="day = 'b'")
    write(named.frame(2001, day="b"), "overwrite", partitionOverwriteMode="dynamic")
    assert named.rows() == sorted([*kept, (2001, "new 2001", "b")])
    wider = named.frame(2002).selectExpr("*", "1 AS more")
    with pytest.raises(AnalysisException, match="DELTA_METADATA_MISMATCH"):
        write(wider, "overwrite")
    write(named.frame(2003), "overwrite")
    assert named.rows() == [(2003, "new 2003", "a")]
    write(wider, "append", mergeSchema=True)
    assert named.control.table(named.identifier).columns == ["id", "v", "day", "more"]
    for _ in range(2):
        write(named.frame(2004), "append", txnAppId="me", txnVersion=1)
    assert [row[0] for row in named.rows()] == [2002, 2003, 2004]


def test_statements_that_change_rows_go_to_the_name(named: Named) -> None:
    session, old = named.session, f"delta.`{named.old}`"
    named.control.sql(f"INSERT INTO {named.identifier} (id, v, day) VALUES (1, 'x', 'a')")
    for text, expected in (
        (f"UPDATE {old} SET v = 'y' WHERE {old}.id = 1", (1, "y", "a")),
        (f"UPDATE {old} t SET t.v = 'z' WHERE t.id = 1", (1, "z", "a")),
        (
            f"MERGE INTO {old} USING (SELECT 1 k) ON id = k WHEN MATCHED THEN UPDATE SET v = 'm'",
            (1, "m", "a"),
        ),
    ):
        session.sql(text)
        assert expected in named.rows()
    session.sql(f"DELETE FROM {old} WHERE id = 1")
    assert (1, "m", "a") not in named.rows()
    table = delta_table(session, named.old)
    table.update("id = 2003", {"v": "'u'"})
    assert (2003, "u", "a") in named.rows()
    table.delete("id = 2003")
    assert 2003 not in [row[0] for row in named.rows()]


def sink(named: Named, source: str, checkpoint: str) -> Any:
    frame = named.session.readStream.format("delta").load(source)
    return frame.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)


def test_a_stream_writes_by_the_name_and_goes_on(named: Named, tmp_path: Path) -> None:
    source, checkpoint = str(tmp_path / "source"), str(tmp_path / "checkpoint")
    starts: tuple[Callable[[Any], Any], ...] = (
        lambda w: w.format("delta").start(named.old),
        lambda w: w.option("path", named.old).start(format="delta"),
        lambda w: w.toTable(f"delta.`{named.old}`", format="delta"),
        lambda w: w.toTable(named.identifier, format="delta"),
    )
    before = named.rows()
    added = []
    for number, start in enumerate(starts if named.server else starts[:2], 3000):
        named.frame(number).write.format("delta").mode("append").save(source)
        start(sink(named, source, checkpoint)).awaitTermination()
        added.append((number, f"new {number}", "a"))
        assert named.rows() == sorted([*before, *added])


def test_two_tables_of_one_statement_are_both_found(read_only: Named, named: Named) -> None:
    session, one, two = read_only.session, f"delta.`{read_only.old}`", f"delta.`{named.old}`"
    before, more = named.rows(), (4000, "both", "b")
    session.sql(f"INSERT INTO {two} (id, v, day) SELECT max(id) * 0 + 4000, 'both', 'b' FROM {one}")
    assert named.rows() == sorted([*before, more])
    pairs = session.sql(f"SELECT {one}.id AS a, {two}.id AS b FROM {one} CROSS JOIN {two}")
    expected = [(a[0], b[0]) for a in read_only.rows() for b in named.rows()]
    assert sorted(map(tuple, pairs.collect())) == sorted(expected)


def test_a_view_of_the_old_copy_is_refused_with_the_name(world: World) -> None:
    """A writer-only redirect leaves a copy that Spark could read."""
    view = f"kept_{uuid.uuid4().hex[:8]}"
    moved = world(
        lambda s, old: s.sql(f"CREATE VIEW {view} AS SELECT * FROM delta.`{old}`"),
        mode="writer-only",
    )
    moved.control.sql(f"INSERT INTO {moved.identifier} (id, v, day) VALUES (60, 'new', 'b')")
    session = moved.session
    try:
        assert content(session.read.format("delta").load(moved.old)) == moved.rows()
        reads: tuple[Callable[[], Any], ...] = (
            lambda: session.table(view),
            lambda: session.sql(f"SELECT * FROM {view}"),
            lambda: session.sql(f"CREATE TEMP VIEW v AS SELECT * FROM {view}"),
        )
        for read in reads:
            with pytest.raises(RedirectNotFollowed) as refused:
                read()
            assert moved.identifier in str(refused.value.remedy)
    finally:
        moved.control.sql(f"DROP VIEW {view}")


STREAMED = ("'delta.enableDeletionVectors' = 'true'", "'delta.columnMapping.mode' = 'name'")


def following(session: SparkSession, path: str, folder: Path) -> list[Row]:
    """Read on in a stream of a table, and return all rows that it has ever read."""
    frame = session.readStream.format("delta").option("maxFilesPerTrigger", 1).load(path)
    writer = frame.writeStream.format("delta").trigger(availableNow=True)
    to = str(folder / "read")
    writer.option("checkpointLocation", str(folder / "seen")).start(to).awaitTermination()
    return content(session.read.format("delta").load(to))


@pytest.mark.parametrize("properties", STREAMED if REAL else STREAMED[:1])
def test_a_stream_of_the_old_path_goes_on_after_the_move(
    world: World, tmp_path: Path, properties: str
) -> None:
    """With column mapping, delta-spark needs a setting once. docs/managed.md says so."""

    def before(session: SparkSession, old: str) -> None:
        read = following(session, old, tmp_path)
        assert len(read) == len(content(session.read.format("delta").load(old)))
        session.sql(f"INSERT INTO delta.`{old}` VALUES (50, 'unread', 'a')")

    moved = world(before, properties)
    moved.control.sql(f"INSERT INTO {moved.identifier} VALUES (51, 'new', 'b')")
    unsafe = str(moved.server is not None and "columnMapping" in properties)
    moved.session.conf.set(UNSAFE, unsafe)
    assert following(moved.session, moved.old, tmp_path) == moved.rows()
    moved.session.conf.unset(UNSAFE)
    moved.control.sql(f"INSERT INTO {moved.identifier} VALUES (52, 'newer', 'b')")
    assert following(moved.session, moved.old, tmp_path) == moved.rows()
    if moved.server is not None:
        # The table comes back, with rows that the stream hasn't read, and gets more of them.
        moved.control.sql(f"INSERT INTO {moved.identifier} VALUES (53, 'before', 'b')")
        lakeferry.Table(moved.old).redirect_disable()
        moved.session.sql(f"INSERT INTO delta.`{moved.old}` VALUES (54, 'back', 'b')")
        at_home = content(moved.control.read.format("delta").load(moved.old))
        assert at_home[-2:] == [(53, "before", "b"), (54, "back", "b")]
        moved.session.conf.set(UNSAFE, unsafe)
        assert following(moved.session, moved.old, tmp_path) == at_home


def test_a_renamed_table_is_found_by_its_new_name(world: World) -> None:
    moved, name = world(), f"other_{uuid.uuid4().hex[:8]}"
    opened = delta_table(moved.session, moved.old)
    assert len(moved.rows()) == opened.toDF().count()
    moved.rename(name)
    renamed = replace(moved, name=(*moved.name[:2], name))
    assert content(renamed.session.read.format("delta").load(renamed.old)) == renamed.rows()
    with pytest.raises(RedirectNotFollowed, match="has moved since"):
        opened.delete("id = 1")
    delta_table(moved.session, moved.old).delete("id = 1")
    assert 1 not in [row[0] for row in renamed.rows()]


@pytest.fixture
def elsewhere(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], tuple[SparkSession, str]]]:
    """Give a function that returns a session, and a path that leads to a name and a place."""
    session, old = spark.newSession(), str(tmp_path / "old")
    spark.range(1).write.format("delta").save(old)
    modern.install(session)

    def leading(name: str, place: str) -> tuple[SparkSession, str]:
        found = Resolution(normalise(old), normalise(place), redirected=True, name=name)
        monkeypatch.setattr(
            session_tables,
            "resolve_table",
            lambda *_, **__: replace(found, managed=("catalogManaged",)),
        )
        return session, old

    yield leading
    modern.uninstall(session)


def test_without_a_catalog_the_error_names_the_settings(
    elsewhere: Callable[[str, str], tuple[SparkSession, str]],
) -> None:
    session, old = elsewhere("unity:nowhere.s.t", "/somewhere")
    setting = "spark.sql.catalog.nowhere"
    for plugin, why in (
        (None, f"{setting} isn't set"),
        ("io.unitycatalog.spark.NoSuchCatalog", "NoSuchCatalog"),
    ):
        if plugin is not None:
            session.conf.set(setting, plugin)
        with pytest.raises(CatalogManaged) as refused:
            session.read.format("delta").load(old)
        assert refused.value.fields["name"] == "nowhere.s.t"
        assert why in str(refused.value.cause)
        assert f"{setting}={session_catalogs.CONNECTOR}" in str(refused.value.remedy)
        assert f"{setting}.uri" in str(refused.value.remedy)


def test_a_table_that_spark_cant_open_is_refused(
    elsewhere: Callable[[str, str], tuple[SparkSession, str]],
) -> None:
    session, old = elsewhere("unity:spark_catalog.default.nothing_there", "/somewhere")
    with pytest.raises(CatalogManaged, match="can't open") as refused:
        session.sql(f"INSERT INTO delta.`{old}` VALUES (1)")
    assert "nothing_there" in str(refused.value.cause)


def test_another_table_of_that_name_is_refused(
    elsewhere: Callable[[str, str], tuple[SparkSession, str]], spark: SparkSession
) -> None:
    name = f"other_{uuid.uuid4().hex[:8]}"
    spark.sql(f"CREATE TABLE {name} (id BIGINT) USING delta")
    session, old = elsewhere(f"unity:spark_catalog.default.{name}", "/somewhere")
    try:
        with pytest.raises(RedirectNotFollowed, match="isn't the table that moved") as refused:
            session.range(1).write.format("delta").mode("append").save(old)
        assert "spark.sql.catalog.spark_catalog.uri" in str(refused.value.remedy)
        assert spark.table(name).count() == 0
    finally:
        spark.sql(f"DROP TABLE {name}")


def test_a_table_whose_name_isnt_known_is_refused(
    elsewhere: Callable[[str, str], tuple[SparkSession, str]],
) -> None:
    session, old = elsewhere("unity:9d1c4f2e", "/somewhere")
    with pytest.raises(CatalogManaged, match="is managed by its catalog"):
        session.read.format("delta").load(old)
