"""What is particular to our own catalog: its URL, its file, and how it fails."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from lakeferry.catalogs.sql import SqlCatalog
from lakeferry.errors import CatalogUnavailable, InvalidInput
from tests.support.servers import free_port

NAME = "cat.schema.t"


def in_folder(folder: Path, *, patience_s: float = 10) -> SqlCatalog:
    return SqlCatalog(f"sqlite:///{folder}/catalog.sqlite", patience_s=patience_s)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HOME": "/home/u"}, "/home/u/.local/share"),
        ({"HOME": "/home/u", "XDG_DATA_HOME": "/data"}, "/data"),
        ({"HOME": "/home/u", "XDG_DATA_HOME": "relative"}, "/home/u/.local/share"),
        ({"HOME": "/home/u", "LAKEFERRY_SQL_URL": ""}, "/home/u/.local/share"),
    ],
)
def test_without_a_url_it_is_a_file_of_the_user(variables: dict[str, str], folder: str) -> None:
    place = SqlCatalog.from_environment(variables).place
    assert place == f"sqlite:///{folder}/lakeferry/catalog.sqlite"


@pytest.mark.parametrize(
    "url", ["postgresql://u@h:5/d", "postgres://u@h:5/d", "postgresql+psycopg://u@h:5/d"]
)
def test_every_spelling_of_postgresql_means_the_one_driver(url: str) -> None:
    assert SqlCatalog(url).place == "postgresql+psycopg://u@h:5/d"


@pytest.mark.parametrize(
    "url",
    [
        "hunter2",
        "://u:hunter2@h/d",
        "mysql://u:hunter2@h/d",
        "postgresql+psycopg2://u:hunter2@h/d",
        "postgresql://u:hunter2@h:port/d",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=memory&uri=true",
        "sqlite:///x?timeout=3",
    ],
)
def test_urls_that_cannot_work_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput, match="LAKEFERRY_SQL_URL") as refused:
        SqlCatalog(url)
    assert refused.value.remedy
    assert "hunter2" not in str(refused.value.as_document())
    assert refused.value.__cause__ is None


def test_whoever_reads_writes_nothing(tmp_path: Path) -> None:
    catalog = in_folder(tmp_path / "new")
    assert catalog.find(NAME) is None
    assert catalog.unregister(NAME) is False
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "catalog.sqlite").touch()
    assert in_folder(tmp_path / "old").find(NAME) is None
    assert (tmp_path / "old" / "catalog.sqlite").stat().st_size == 0


def test_a_catalog_that_is_removed_has_no_names(tmp_path: Path) -> None:
    catalog = in_folder(tmp_path)
    catalog.register(NAME, "/place")
    (tmp_path / "catalog.sqlite").unlink()
    assert catalog.find(NAME) is None
    assert catalog.register(NAME, "/elsewhere").location == "file:///elsewhere"


def test_times_are_kept_in_milliseconds(tmp_path: Path) -> None:
    now = 1_700_000_000_000
    catalog = SqlCatalog(f"sqlite:///{tmp_path}/catalog.sqlite", clock=lambda: now)
    catalog.register(NAME, "/place")
    now += 5
    catalog.move(NAME, "/elsewhere")
    with sqlite3.connect(tmp_path / "catalog.sqlite") as connection:
        rows = connection.execute("SELECT created_ms, updated_ms FROM lakeferry_tables").fetchall()
    connection.close()
    assert rows == [(1_700_000_000_000, 1_700_000_000_005)]


def test_locations_in_any_spelling_come_back_in_ours(tmp_path: Path) -> None:
    catalog = in_folder(tmp_path)
    assert catalog.register(NAME, "s3a://bucket/a b/").location == "s3://bucket/a%20b"
    with sqlite3.connect(tmp_path / "catalog.sqlite") as connection:
        connection.execute("UPDATE lakeferry_tables SET location = 's3n://bucket//x/'")
    connection.close()
    assert catalog.get(NAME).location == "s3://bucket/x"


def test_a_metastore_s_table_is_none_of_ours(tmp_path: Path) -> None:
    catalog = in_folder(tmp_path)
    made = catalog.register(NAME, "/place")
    assert catalog.find_id(made.table_id, made.table_id) is None


def test_a_database_that_is_locked_for_too_long_is_unavailable(tmp_path: Path) -> None:
    in_folder(tmp_path).register(NAME, "/place")
    locked = sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)
    locked.execute("BEGIN EXCLUSIVE")
    catalog = in_folder(tmp_path, patience_s=0.05)
    for ask in (
        lambda: catalog.find(NAME),
        lambda: catalog.register("cat.schema.u", "/x"),
        lambda: catalog.move(NAME, "/x"),
        lambda: catalog.unregister(NAME),
    ):
        with pytest.raises(CatalogUnavailable, match="locked") as refused:
            ask()
        assert "try again" in (refused.value.remedy or "")
    locked.execute("ROLLBACK")
    locked.close()
    assert catalog.get(NAME).location == "file:///place"


def test_a_name_that_comes_and_goes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = in_folder(tmp_path)
    catalog.register(NAME, "/place")
    # Others have taken it away whenever it is looked for, and taken it whenever it is wanted.
    monkeypatch.setattr(catalog, "find", lambda _: None)
    with pytest.raises(CatalogUnavailable, match="keeps changing"):
        catalog.register(NAME, "/other")
    monkeypatch.undo()
    assert catalog.get(NAME).location == "file:///place"


def test_files_that_are_no_database_are_unavailable(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(CatalogUnavailable, match="not a database") as refused:
        in_folder(tmp_path).find(NAME)
    assert "LAKEFERRY_SQL_URL" in (refused.value.remedy or "")
    (tmp_path / "file").touch()
    with pytest.raises(CatalogUnavailable):
        in_folder(tmp_path / "file").register(NAME, "/place")


def test_a_server_that_is_down_is_unavailable_and_the_password_is_not_shown() -> None:
    port = free_port()
    url = f"postgresql://user:hunter2@127.0.0.1:{port}/d?sslpassword=hunter3"
    with pytest.raises(CatalogUnavailable) as refused:
        SqlCatalog(url, patience_s=2).find(NAME)
    shown = str(refused.value.as_document())
    assert f"127.0.0.1:{port}/d" in shown
    assert "hunter" not in shown


def test_the_catalogs_are_imported_without_a_database_s_driver() -> None:
    program = (
        "import sys, lakeferry.catalogs.names\n"
        "unwanted = {'sqlalchemy', 'psycopg', 'sqlite3', 'urllib.request'} & set(sys.modules)\n"
        "sys.exit(','.join(sorted(unwanted)) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_postgresql_without_its_driver_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['psycopg'] = None\n"
        "from lakeferry.catalogs.sql import SqlCatalog\n"
        "from lakeferry.errors import CatalogUnavailable\n"
        "try: SqlCatalog('postgresql://u@h/d').find('a.b.c')\n"
        "except CatalogUnavailable as refused: print(refused.remedy)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ)
    )
    assert "lakeferry[postgresql]" in ended.stdout, ended.stderr
