"""What callers of Spark without Python see of a redirect: a Scala job, spark-sql, a JDBC client.

They run in the JVM, where nothing of Lakeferry is. Each names the old path of a table that moved,
in a session with delta-spark's option and in one without it. A JDBC client has a session of its
own at the Thrift server, as dbt has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import write_deltalake

from tests.support.redirected_tables import (
    MODES,
    MOVED_ON,
    OURS,
    ROWS,
    STOCK,
    STOCK_FOLLOWING,
    Places,
    content,
    create,
    ids,
    rows,
)
from tests.support.servers import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTION = "spark.databricks.delta.enableTableRedirectFeature"
AT_TARGET = [*ROWS, MOVED_ON]
NEW = 20
REFUSED = "redirect(ReaderWriter|WriterOnly)|DELTA_NO_REDIRECT_RULES_VIOLATED"

Run = Callable[[str], list[int]]
"""Runs a statement, and returns the numbers that it answers with."""


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Places]:
    """A table for each mode that moved, with one more row at the target."""
    made = {mode: create(tmp_path_factory.mktemp(mode)) for mode in MODES}
    for mode, places in made.items():
        places.move(mode=mode)
        write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")
    return made


@pytest.fixture(scope="module")
def thrift_server(spark: SparkSession) -> Iterator[str]:
    """The address of Spark's Thrift server, in the same JVM."""
    jvm: Any = spark.sparkContext._jvm
    port = free_port()
    properties = {
        "hive.server2.thrift.port": str(port),
        "hive.server2.thrift.bind.host": "127.0.0.1",
        # A session that ends looks for Hive's own catalog, which isn't there, for 40 s.
        "hive.hmshandler.retry.attempts": "0",
    }
    for name, value in properties.items():
        jvm.java.lang.System.setProperty(name, value)
    server = jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2
    # The second argument keeps the JVM when the server stops.
    running = server.startWithSparkSession(spark._jsparkSession, False)
    yield f"jdbc:hive2://127.0.0.1:{port}/default"
    running.stop()
    for name in properties:
        jvm.java.lang.System.clearProperty(name)


def in_scala(session: SparkSession) -> Run:
    jvm: Any = session._jsparkSession

    def run(statement: str) -> list[int]:
        return [row.getLong(0) for row in jvm.sql(statement).collectAsList()]

    return run


def in_spark_sql(session: SparkSession) -> Run:
    """Run statements by the class that the program ``spark-sql`` uses."""
    jvm: Any = session.sparkContext._jvm

    def run(statement: str) -> list[int]:
        driver = jvm.org.apache.spark.sql.hive.thriftserver.SparkSQLDriver(session._jsparkSession)
        lines = jvm.java.util.ArrayList()
        driver.run(statement)
        driver.getResults(lines)
        driver.close()
        return [int(line) for line in lines]

    return run


def by_jdbc(connection: Any) -> Run:
    def run(statement: str) -> list[int]:
        asked = connection.createStatement()
        found = []
        if asked.execute(statement):
            answers = asked.getResultSet()
            while answers.next():
                found.append(answers.getLong(1))
        asked.close()
        return found

    return run


@pytest.fixture(scope="module")
def caller(
    spark: SparkSession, spark_as: Callable[[str], SparkSession], thrift_server: str
) -> Iterator[Callable[[str, str], Run]]:
    """Choose a caller and its client. Connections are kept: the server takes long to open one."""
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.Class.forName("org.apache.hive.jdbc.HiveDriver")
    connections: dict[str, Any] = {}

    def choose(way: str, client: str) -> Run:
        if way != "JDBC":
            return {"Scala": in_scala, "spark-sql": in_spark_sql}[way](spark_as(client))
        if client not in connections:
            options = f"?{OPTION}=true" if client == STOCK_FOLLOWING else ""
            connect = jvm.java.sql.DriverManager.getConnection
            connections[client] = connect(thrift_server + options, "someone", "")
        return by_jdbc(connections[client])

    yield choose
    for connection in connections.values():
        connection.close()


CALLERS = [
    pytest.param(way, client, id=f"{way}-{client}")
    for way in ("Scala", "spark-sql", "JDBC")
    for client in (STOCK, STOCK_FOLLOWING, OURS)
    # Nothing of ours is in the sessions of a Thrift server.
    if (way, client) != ("JDBC", OURS)
]


@pytest.mark.parametrize(("way", "client"), CALLERS)
def test_a_writer_only_redirect_is_followed_with_the_option_alone(
    way: str,
    client: str,
    caller: Callable[[str, str], Run],
    moved: dict[str, Places],
) -> None:
    places, run = moved["writer-only"], caller(way, client)
    read = f"SELECT id FROM delta.`{places.source}`"
    write = f"INSERT INTO delta.`{places.source}` VALUES ({NEW})"
    if client == STOCK:
        logs = places.logs
        assert sorted(run(read)) == ROWS
        with pytest.raises(Exception, match=REFUSED):
            run(write)
        assert places.logs == logs
        return
    # "install" sets the option for its session, so its JVM follows too.
    before = content(places.source)
    assert sorted(run(read)) == AT_TARGET
    run(write)
    assert ids(places.target) == [*AT_TARGET, NEW]
    run(f"DELETE FROM delta.`{places.source}` WHERE id = {NEW}")
    assert content(places.source) == before


@pytest.mark.parametrize(("way", "client"), CALLERS)
def test_a_reader_writer_redirect_is_refused(
    way: str, client: str, caller: Callable[[str, str], Run], moved: dict[str, Places]
) -> None:
    places, run = moved["reader-writer"], caller(way, client)
    before = places.logs
    with pytest.raises(Exception, match="redirectReaderWriter"):
        run(f"SELECT id FROM delta.`{places.source}`")
    with pytest.raises(Exception, match=REFUSED):
        run(f"INSERT INTO delta.`{places.source}` VALUES ({NEW})")
    assert places.logs == before
