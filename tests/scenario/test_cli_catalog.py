"""Names on the command line: given, shown, moved, and used for tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.history import Append, History
from tests.support.servers import PostgreSQLServer, free_port
from tests.support.unity_server import UnityServer
from tests.unit.cli.program import make, run


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return make(History().then(Append(2)), tmp_path / "table")


def test_a_name_is_given_shown_moved_and_used(table: Path, tmp_path: Path) -> None:
    made = run("catalog", "register", "sql:a.b.t", table, "--json", home=tmp_path)
    assert (made.code, made.err) == (0, "")
    assert made.document == {
        "name": "sql:a.b.t",
        "location": table.as_uri(),
        "table_id": made.document["table_id"],
        "metastore_id": None,
        "managed": False,
        "changed": True,
    }
    assert (tmp_path / ".local/share/lakeferry/catalog.sqlite").exists()
    again = run("--json", "catalog", "register", "a.b.t", "./table/", home=tmp_path)
    assert again.document == {**made.document, "changed": False}
    shown = run("catalog", "--json", "show", "sql:a.b.t", home=tmp_path).document
    assert {**shown, "changed": True} == made.document
    inspected = run("inspect", "sql:a.b.t", "--json", home=tmp_path).document
    assert (inspected["location"], inspected["num_files"]) == (table.as_uri(), 2)
    same = run("verify", "sql:a.b.t", table, "--digest", "--json", home=tmp_path)
    assert (same.code, same.document["equal"]) == (0, True)
    other = make(History().then(Append(3)), tmp_path / "other")
    moved = run("catalog", "move", "a.b.t", other, "--json", home=tmp_path).document
    assert moved == {**made.document, "location": other.as_uri()}
    inspected = run("inspect", "sql:a.b.t", "--json", home=tmp_path).document
    assert inspected["num_files"] == 3
    assert not run("catalog", "move", "a.b.t", other, "--json", home=tmp_path).document["changed"]


def test_a_dry_run_prints_the_plan_and_writes_nothing(table: Path, tmp_path: Path) -> None:
    words = ("catalog", "register", "a.b.t", table)
    planned = run(*words, "--dry-run", "--json", home=tmp_path).document
    step = {"op": "register", "name": "sql:a.b.t", "from": None, "location": table.as_uri()}
    assert planned == {"dry_run": True, "plan": [step]}
    assert not (tmp_path / ".local").exists()
    assert "would let sql:a.b.t lead to" in run(*words, "--dry-run", home=tmp_path).out
    run(*words, home=tmp_path)
    nothing = {"dry_run": True, "plan": []}
    assert run(*words, "--dry-run", "--json", home=tmp_path).document == nothing
    move = ("catalog", "move", "a.b.t", "elsewhere", "--dry-run")
    step = {
        **step,
        "op": "move",
        "from": table.as_uri(),
        "location": f"{tmp_path.as_uri()}/elsewhere",
    }
    assert run(*move, "--json", home=tmp_path).document == {"dry_run": True, "plan": [step]}
    assert f"instead of {table.as_uri()}" in run(*move, home=tmp_path).out
    assert table.as_uri() in run("catalog", "show", "a.b.t", home=tmp_path).out


def test_a_name_that_leads_elsewhere_is_an_error(table: Path, tmp_path: Path) -> None:
    run("catalog", "register", "a.b.t", table, home=tmp_path)
    ended = run("catalog", "register", "a.b.t", "elsewhere", "--json", home=tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.error["code"] == "invalid_input"
    assert ended.error["location"] == table.as_uri()
    assert "catalog move" in ended.error["remedy"]


def test_a_place_without_a_table_is_a_warning(tmp_path: Path) -> None:
    ended = run("catalog", "register", "a.b.t", "nowhere", "--json", home=tmp_path)
    assert (ended.code, ended.document["changed"]) == (0, True)
    assert ended.err.startswith("warning: there is no table at")


def test_the_files_say_where_the_catalog_is(table: Path, tmp_path: Path) -> None:
    (tmp_path / "lakeferry.toml").write_text('[catalog]\nsql_url = "sqlite:///names.sqlite"\n')
    run("catalog", "register", "a.b.t", table, home=tmp_path)
    assert (tmp_path / "names.sqlite").exists()
    assert run("inspect", "sql:a.b.t", "--json", home=tmp_path).document["num_files"] == 2
    variables = {"LAKEFERRY_SQL_URL": "sqlite:///other.sqlite"}
    ended = run("inspect", "sql:a.b.t", "--json", home=tmp_path, variables=variables)
    assert (ended.code, ended.error["code"]) == (1, "table_not_found")
    assert ended.error["catalog"].endswith("/other.sqlite")


def test_a_team_shares_its_names_in_postgresql(
    postgresql: PostgreSQLServer, postgresql_url: str, table: Path, tmp_path: Path
) -> None:
    variables = {"LAKEFERRY_SQL_URL": postgresql_url}
    made = run("catalog", "register", "a.b.t", table, "--json", home=tmp_path, variables=variables)
    assert made.document["changed"] is True
    colleague = tmp_path / "colleague"
    colleague.mkdir()
    files = run("files", "sql:a.b.t", "--json", home=colleague, variables=variables)
    assert len(files.lines) == 2
    wrong = {"LAKEFERRY_SQL_URL": postgresql_url.replace(postgresql.password, "hunter2")}
    debug = {**wrong, "LAKEFERRY_DEBUG": ""}
    ended = run("inspect", "sql:a.b.t", "--json", home=tmp_path, variables=debug)
    assert (ended.code, ended.error["code"]) == (1, "catalog_unavailable")
    assert "hunter2" not in ended.err


def test_names_in_unity_catalog(unity: UnityServer, table: Path, tmp_path: Path) -> None:
    name, variables = f"unity:{unity.schema}.t", unity.environment()
    words = ("catalog", "register", name, table, "--json")
    made = run(*words, home=tmp_path, variables=variables)
    assert (made.code, made.document["changed"]) == (0, True)
    assert made.document["metastore_id"]
    assert not run(*words, home=tmp_path, variables=variables).document["changed"]
    inspected = run("inspect", name, "--json", home=tmp_path, variables=variables).document
    assert inspected["location"] == table.as_uri()
    refused = run("catalog", "move", name, "x", "--json", home=tmp_path, variables=variables)
    assert (refused.code, refused.error["code"]) == (2, "invalid_input")
    missing = run("inspect", f"{name}x", "--json", home=tmp_path, variables=variables)
    assert (missing.code, missing.error["code"]) == (1, "table_not_found")
    wrong = {**variables, "UC_TOKEN": "hunter2"}
    ended = run("catalog", "show", name, "--json", home=tmp_path, variables=wrong)
    assert "hunter2" not in ended.err
    if unity.server is not None:
        # A real server without authorization accepts every token.
        assert ended.code == 1
        assert ended.error["code"] in ("unauthorized", "forbidden")


def test_a_catalog_that_is_down_is_unavailable(tmp_path: Path) -> None:
    dead = free_port()
    for words, variables in (
        (("inspect", "unity:a.b.t"), {"UC_URL": f"http://127.0.0.1:{dead}"}),
        (
            ("catalog", "show", "a.b.t"),
            {"LAKEFERRY_SQL_URL": f"postgresql://u:hunter2@127.0.0.1:{dead}/d"},
        ),
    ):
        ended = run(*words, "--json", home=tmp_path, variables=variables)
        assert (ended.code, ended.out) == (1, "")
        assert ended.error["code"] == "catalog_unavailable"
        assert str(dead) in ended.error["message"]
        assert "hunter2" not in ended.err
