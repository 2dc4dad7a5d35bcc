"""Our own catalog on a real PostgreSQL: rights, locks, and servers that don't answer."""

from __future__ import annotations

import socket
import threading
import uuid

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.schema import CreateTable

from lakeferry.catalogs import sql
from lakeferry.catalogs.sql import SqlCatalog
from lakeferry.errors import CatalogUnavailable, InvalidInput
from tests.support.servers import PostgreSQLServer

NAME = "cat.schema.t"


def test_whoever_reads_writes_nothing(postgresql: PostgreSQLServer, postgresql_url: str) -> None:
    catalog = SqlCatalog(postgresql_url)
    assert catalog.find(NAME) is None
    assert catalog.unregister(NAME) is False
    database = postgresql_url.rpartition("/")[2]
    tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'lakeferry_tables'"
    assert postgresql.execute(database, tables) == "0"
    catalog.register(NAME, "/place")
    assert postgresql.execute(database, tables) == "1"
    types = "SELECT data_type FROM information_schema.columns WHERE column_name = 'table_id'"
    assert postgresql.execute(database, types) == "uuid"


def test_a_user_who_may_only_read_finds_names(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    made = SqlCatalog(postgresql_url).register(NAME, "/place")
    reader, database = f"reader_{uuid.uuid4().hex[:8]}", postgresql_url.rpartition("/")[2]
    postgresql.execute(database, f"CREATE ROLE {reader} LOGIN PASSWORD 'hunter2'")
    postgresql.execute(database, f"GRANT SELECT ON lakeferry_tables TO {reader}")
    url = f"postgresql://{reader}:hunter2@127.0.0.1:{postgresql.port}/{database}"
    catalog = SqlCatalog(url)
    assert catalog.find(NAME) == made
    assert catalog.register(NAME, "/place") == made
    for ask in (
        lambda: catalog.register("cat.schema.u", "/x"),
        lambda: catalog.move(NAME, "/x"),
        lambda: catalog.unregister(NAME),
    ):
        with pytest.raises(CatalogUnavailable, match="permission denied") as refused:
            ask()
        assert "hunter2" not in str(refused.value.as_document())


def test_a_wrong_password_is_unavailable_and_not_repeated(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    url = postgresql_url.replace(postgresql.password, "hunter2")
    with pytest.raises(CatalogUnavailable, match="password authentication failed") as refused:
        SqlCatalog(url).find(NAME)
    assert "hunter2" not in str(refused.value.as_document())
    missing = postgresql.url("nowhere")
    with pytest.raises(CatalogUnavailable, match="nowhere"):
        SqlCatalog(missing).find(NAME)


def test_a_lock_that_is_held_for_too_long_is_unavailable(postgresql_url: str) -> None:
    SqlCatalog(postgresql_url).register(NAME, "/place")
    catalog = SqlCatalog(postgresql_url, patience_s=0.1)
    with psycopg.connect(postgresql_url) as other:
        other.execute("LOCK TABLE lakeferry_tables IN ACCESS EXCLUSIVE MODE")
        for ask in ("find", "move"):
            with pytest.raises(CatalogUnavailable) as refused:
                _ = catalog.find(NAME) if ask == "find" else catalog.move(NAME, "/x")
            assert "try again" in (refused.value.remedy or "")
        other.rollback()
    assert catalog.get(NAME).location == "file:///place"


def registered_meanwhile(url: str, *statements: str, commit: bool) -> object:
    """Register a name while another transaction is in the middle; return what came of it."""
    outcomes: list[object] = []

    def register() -> None:
        try:
            outcomes.append(SqlCatalog(url).register(NAME, "/ours").location)
        except Exception as error:  # noqa: BLE001 - it is looked at by the test
            outcomes.append(type(error))

    with psycopg.connect(url) as other:
        for statement in statements:
            other.execute(statement.encode())
        waiting = threading.Thread(target=register)
        waiting.start()
        with psycopg.connect(url, autocommit=True) as watcher:
            blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while watcher.execute(blocked).fetchone() == (0,):
                assert waiting.is_alive()
        (other.commit if commit else other.rollback)()
    waiting.join()
    return outcomes[0]


@pytest.mark.parametrize(("commit", "outcome"), [(True, InvalidInput), (False, "file:///ours")])
def test_how_another_s_transaction_ends_decides_who_has_the_name(
    postgresql_url: str, commit: bool, outcome: object
) -> None:
    SqlCatalog(postgresql_url).register("cat.schema.other", "/other")
    insert = (
        "INSERT INTO lakeferry_tables VALUES "
        "('cat', 'schema', 't', 'file:///theirs', gen_random_uuid(), 1, 1)"
    )
    assert registered_meanwhile(postgresql_url, insert, commit=commit) == outcome


@pytest.mark.parametrize("commit", [True, False])
def test_another_who_makes_the_table_at_the_same_time_is_waited_for(
    postgresql_url: str, commit: bool
) -> None:
    lock = f"SELECT pg_advisory_xact_lock({sql._CREATION_LOCK})"
    create = str(CreateTable(sql.TABLES).compile(create_engine("postgresql+psycopg://")))
    assert registered_meanwhile(postgresql_url, lock, create, commit=commit) == "file:///ours"


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u:hunter2@127.0.0.1:{silent.getsockname()[1]}/d"
        with pytest.raises(CatalogUnavailable, match="timeout") as refused:
            SqlCatalog(url, patience_s=2).find(NAME)
    assert "hunter2" not in str(refused.value.as_document())


def test_options_in_the_url_are_the_user_s(postgresql_url: str) -> None:
    catalog = SqlCatalog(f"{postgresql_url}?connect_timeout=3&application_name=ferry")
    assert catalog.register(NAME, "/place") == catalog.find(NAME)
    with pytest.raises(CatalogUnavailable):
        SqlCatalog(f"{postgresql_url}?nonsense=1").find(NAME)
