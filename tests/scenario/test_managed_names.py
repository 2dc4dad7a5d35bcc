"""Names of managed tables: listed, changed and removed, and what becomes of redirects to them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.api import table_removal
from lakeferry.api.redirects import Redirects
from lakeferry.catalogs import name_changes, names
from lakeferry.catalogs.places import Places
from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    Forbidden,
    InvalidInput,
    RedirectTargetMissing,
    TableNotFound,
)
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import normalise, open_store
from tests.support.history import Append, History
from tests.support.managed_tables import managed_table
from tests.support.terminal import shown
from tests.support.unity_server import UnityServer
from tests.unit.cli.program import run

PAST = History().then(Append(1), Append(1))


pytestmark = pytest.mark.usefixtures("unity_here")


@pytest.fixture
def source(unity: UnityServer, tmp_path: Path) -> str:
    """The old path of the managed table ``orders``."""
    uri = normalise(str(tmp_path / "orders"))
    PAST.write(open_store(uri), with_data=True)
    with Redirects() as redirects:
        redirects.enable(uri, f"unity:{unity.schema}.orders", managed=True)
    return uri


def rows(table: str) -> list[int]:
    return sorted(lakeferry.open(table).to_table()["id"].to_pylist())


def test_managed_and_external_tables_are_listed(
    unity: UnityServer, source: str, tmp_path: Path
) -> None:
    external = normalise(str(tmp_path / "external"))
    PAST.write(open_store(external), with_data=True)
    name_changes.register(f"unity:{unity.schema}.external", external)
    found = names.list_entries(f"unity:{unity.schema}.")
    assert [(each.name.rpartition(".")[2], each.managed) for each in found] == [
        ("external", False),
        ("orders", True),
    ]
    assert found[0].location == external
    assert found[1].location == lakeferry.Table(f"unity:{unity.schema}.orders").uri
    assert [names.show(each.name) for each in found] == found
    assert [names.show(f"unity:{each.table_id}") for each in found] == found


@pytest.mark.parametrize("by_id", [False, True], ids=["by its name", "by its id"])
def test_redirects_follow_a_table_that_is_renamed(
    unity: UnityServer, source: str, by_id: bool
) -> None:
    name, new = (f"unity:{unity.schema}.{each}" for each in ("orders", "renamed"))
    before, entry = rows(source), names.show(name)
    done = name_changes.rename_in_catalog(f"unity:{entry.table_id}" if by_id else name, new)
    assert (done.name, done.was, done.changed) == (new, name, True)
    assert (done.table_id, done.location) == (entry.table_id, entry.location)
    assert rows(source) == rows(new) == before
    assert not name_changes.rename_in_catalog(new, new).changed
    with pytest.raises(TableNotFound) as missing:
        name_changes.rename_in_catalog(name, new)
    assert f"lakeferry catalog list unity:{unity.schema}" in (missing.value.remedy or "")
    with Redirects() as redirects:
        assert redirects.status(source).name == new


def test_a_name_that_cannot_be_given_changes_nothing(unity: UnityServer, source: str) -> None:
    name = f"unity:{unity.schema}.orders"
    other = managed_table(unity)
    for new in (f"unity:{other.name}", f"unity:{unity.schema}_2.t", "sql:a.b.t"):
        for dry_run in (True, False):
            with pytest.raises(InvalidInput):
                name_changes.rename_in_catalog(name, new, dry_run=dry_run)
    assert name_changes.rename_in_catalog(name, f"unity:{unity.schema}.new", dry_run=True).changed
    assert names.show(name).managed


def test_two_clients_that_give_one_name_never_both_succeed(unity: UnityServer) -> None:
    """A real server may give it to both; then nobody is told that it was done."""
    tables = [managed_table(unity) for _ in range(2)]
    new = f"unity:{unity.schema}.wanted"
    begin, ended = threading.Barrier(2), []

    def rename(name: str) -> None:
        begin.wait()
        try:
            ended.append(name_changes.rename_in_catalog(f"unity:{name}", new).name)
        except (InvalidInput, CatalogUnavailable) as refused:
            ended.append(refused.code)

    threads = [threading.Thread(target=rename, args=(table.name,)) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ended) == 2
    assert ended.count(new) <= 1


def test_a_name_that_two_tables_have_is_an_error_of_its_own(unity: UnityServer) -> None:
    table, other = managed_table(unity), managed_table(unity)
    new = f"{unity.schema}.wanted"
    kept = unity.ours.tables_named(other.name)[0]
    # The other client's request arrives while the server answers ours.
    unity.ours.delta.renaming = lambda: kept.update(name="wanted")
    with pytest.raises(CatalogUnavailable, match="2 tables called"):
        name_changes.rename_in_catalog(f"unity:{table.name}", f"unity:{new}")


def test_a_managed_table_is_removed_only_with_its_files(unity: UnityServer, source: str) -> None:
    name = f"unity:{unity.schema}.orders"
    place = names.show(name).location
    with pytest.raises(CatalogManaged, match="deletes its files") as refused:
        name_changes.remove_from_catalog(name)
    assert refused.value.fields["location"] == place
    assert name_changes.remove_from_catalog(name, dry_run=True).changed
    assert rows(name) == rows(source)

    done = name_changes.remove_from_catalog(name, deletes_files=True)
    assert (done.changed, done.managed, done.location) == (True, True, place)
    again = name_changes.remove_from_catalog(name, deletes_files=True)
    assert (again.changed, again.location) == (False, None)

    # The old path says how to go on, and that works.
    with pytest.raises((RedirectTargetMissing, Forbidden)) as lost:
        lakeferry.open(source)
    assert "--abandon-target" in (lost.value.remedy or "")
    with Redirects() as redirects:
        assert redirects.disable(source, abandon_target=True).state is RedirectState.NORMAL
    assert lakeferry.open(source).count_rows() > 0


def test_commands_say_what_becomes_of_files_and_redirects(
    unity: UnityServer, source: str, tmp_path: Path
) -> None:
    variables = unity.environment()

    def asked(*words: object) -> tuple[int, str, str]:
        ended = run("catalog", *words, home=tmp_path, variables=variables)
        return ended.code, ended.out, ended.err

    name, new = (f"unity:{unity.schema}.{each}" for each in ("orders", "renamed"))
    code, out, _ = asked("rename", name, new)
    assert (code, "redirects to it follow" in out) == (0, True)
    code, out, _ = asked("list", f"unity:{unity.schema}")
    assert (code, new in out, "managed" in out) == (0, True, True)
    code, out, err = asked("remove", new)
    assert (code, "--yes" in err) == (1, True)
    for words in ((new, "--yes"), (new, "--dry-run")):
        code, out, err = asked("remove", *words)
        assert (code, f"the old path {source} leads to" in err) == (1, True)
    code, out, err = asked("remove", new, "--dry-run", "--force")
    assert (code, "would remove" in out, "deletes its files" in out) == (0, True, True)
    assert f"{source} would lead to no table" in err
    code, out, err = asked("remove", new, "--yes", "--force")
    assert (code, "the catalog deletes its files" in out) == (0, True)
    assert f"redirect disable {source} --abandon-target" in err


@pytest.mark.parametrize("is_given_away", [False, True])
def test_an_old_path_is_found_though_its_table_gets_another_name_meanwhile(
    unity: UnityServer, source: str, is_given_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, name = managed_table(unity, history=1), f"unity:{unity.schema}.orders"

    class Renaming(Places):
        """Places that are looked for just after somebody has renamed the table."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            name_changes.rename_in_catalog(name, f"unity:{unity.schema}.kept")
            if is_given_away:
                name_changes.rename_in_catalog(f"unity:{other.name}", name)

    monkeypatch.setattr(table_removal, "Places", Renaming)
    with pytest.raises(CatalogManaged, match=r"the old path .* leads to"):
        table_removal.remove_named_table(name, deletes_files=True)
    assert rows(source) == rows(f"unity:{unity.schema}.kept")


def test_the_question_is_about_the_table_that_is_dropped(
    unity: UnityServer, tmp_path: Path
) -> None:
    meant, other = managed_table(unity, history=1), managed_table(unity, history=1)
    name = f"unity:{meant.name}"

    def swap() -> None:
        name_changes.rename_in_catalog(name, f"unity:{unity.schema}.kept")
        name_changes.rename_in_catalog(f"unity:{other.name}", name)

    words, variables = ("catalog", "remove", name), unity.environment()
    code, text = shown(*words, home=tmp_path, answer="y", asked=swap, variables=variables)
    told = " ".join(text.split())
    assert (code, "now belongs to another table" in told) == (1, True)
    assert "with --to-existing can't be found" in told
    found = names.list_entries(f"unity:{unity.schema}.")
    assert sorted(each.table_id or "" for each in found) == sorted(
        each.staging.table_id for each in (meant, other)
    )
    # The same command asks about that one.
    code, text = shown(*words, home=tmp_path, answer="y", variables=variables)
    assert code == 0
    (left,) = names.list_entries(f"unity:{unity.schema}.")
    assert left.table_id == meant.staging.table_id


def test_a_name_of_our_own_catalog_is_changed_and_removed(tmp_path: Path) -> None:
    table = tmp_path / "t"
    PAST.write(open_store(str(table)), with_data=True)

    def done(*words: object) -> str:
        ended = run(*words, home=tmp_path)
        assert ended.code == 0, ended.err
        return ended.out

    moved = tmp_path / "moved"
    done("redirect", "enable", table, "sql:a.b.t", "--location", moved, "--engine", "local")
    out = done("catalog", "rename", "a.b.t", "a.b.u")
    assert "catalog register sql:a.b.t" in out
    # The redirect has the name. It is given back, as that line says.
    assert run("redirect", "resolve", table, home=tmp_path).code == 1
    done("catalog", "register", "sql:a.b.t", moved)
    assert moved.as_uri() in done("redirect", "resolve", table)
    assert "sql:a.b.u" in done("catalog", "list", "sql:a.b.u")
    assert "its files stay" in done("catalog", "remove", "a.b.u")
    assert (moved / "_delta_log").is_dir()
