"""``lakeferry plan``: what a change of a table means for its clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakeferry
from lakeferry.errors import InvalidInput, RedirectIllegalTransition
from lakeferry.log import paths
from tests.support.history import Append, DeleteRows, History, Layout, Upgrade
from tests.support.redirected_tables import content
from tests.unit.cli.program import make, run

ROWS = pa.table({"id": [1]})
KEYS = {"name", "version", "before", "during", "after", "source"}
VECTORS = History(Layout(deletion_vectors="u")).then(Append(3), DeleteRows(1), Append(1))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table that delta-rs wrote."""
    place = tmp_path / "orders"
    for _ in range(2):
        write_deltalake(str(place), ROWS, mode="append")
    return place


def clients(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [each for each in document["clients"] if each["name"].startswith(name)]


@pytest.mark.parametrize("wish", [("move",), ("protect",), ("share",)])
def test_a_plan_is_one_document_and_changes_nothing(
    wish: tuple[str, ...], table: Path, tmp_path: Path
) -> None:
    before = content(table)
    ended = run("plan", table, *wish, "--json", home=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    document = ended.document
    assert (document["location"], document["version"]) == (table.as_uri(), 1)
    assert (document["wish"], document["feature"], document["since_version"]) == (wish[0], None, 0)
    for client in document["clients"]:
        assert set(client) >= KEYS
        assert all(client[key] for key in KEYS - {"version"})
    first = document["clients"][0]
    assert (first["name"][:9], first["commits"]) == ("delta-rs:", 2)
    assert content(table) == before


@pytest.mark.parametrize(
    ("mode", "after"),
    [("reader-writer", "neither reads nor writes"), ("writer-only", "reads the frozen copy")],
)
def test_the_mode_of_a_move_decides(mode: str, after: str, table: Path, tmp_path: Path) -> None:
    document = run("plan", table, "move", "--mode", mode, "--json", home=tmp_path).document
    first = document["clients"][0]
    assert first["after"].startswith(after)
    assert first["breaks"] is True
    (ours,) = clients(document, "Lakeferry")
    assert "follows the redirect" in ours["after"]


def test_dialect_target_and_managed_change_the_answer(table: Path, tmp_path: Path) -> None:
    def newest(*words: str) -> str:
        move = ("plan", str(table), "move", "--mode", "writer-only", *words, "--json")
        return str(clients(run(*move, home=tmp_path).document, "delta-spark")[-1]["after"])

    option = "unless spark.databricks.delta.enableTableRedirectFeature=true"
    assert option in newest()
    assert option not in newest("--dialect", "rfc")
    assert option not in newest("--to", "sql:a.b.orders")
    assert "by its name" in newest("--managed")


def test_a_drop_says_what_becomes_readable_version_by_version(tmp_path: Path) -> None:
    table = make(VECTORS, tmp_path / "vectors")
    before = content(table)
    ended = run("plan", table, "drop", "deletionVectors", "--json", home=tmp_path)
    assert ended.code == 0, ended.err
    document = ended.document
    assert [step["op"] for step in document["steps"]].count("barrier") == 3
    (standalone,) = clients(document, "Delta Standalone")
    assert standalone["before"].startswith("neither reads nor writes")
    assert standalone["after"].startswith("reads; doesn't write")
    assert standalone["versions"] == [
        {"from": 0, "to": 3, "reads": "no", "because": ["minReaderVersion=3"]}
    ]
    rust = clients(document, "delta-rs")[-1]
    assert rust["breaks"] is True
    assert "checkpointProtection" in rust["after"]
    assert content(table) == before


def test_versions_before_a_feature_came_are_readable(tmp_path: Path) -> None:
    """As the log says, and not as the newest protocol does."""
    upgrade = Upgrade(("vacuumProtocolCheck",), ("vacuumProtocolCheck",))
    table = make(History().then(Append(1), upgrade, Append(1)), tmp_path / "upgraded")
    document = run("plan", table, "drop", "vacuumProtocolCheck", "--json", home=tmp_path).document
    polars = clients(document, "Polars")[0]
    assert [(each["from"], each["to"], each["reads"]) for each in polars["versions"]] == [
        (0, 1, "yes"),
        (2, 3, "no"),
    ]
    assert polars["after"].startswith("reads")


def test_people_read_tables_and_warnings(table: Path, tmp_path: Path) -> None:
    ended = run("plan", table, "move", home=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert "Clients that wrote versions 0 to 1:" in ended.out
    assert "warning: delta-rs:py-" in ended.out
    assert "trinodb/trino 454 to 483" in ended.out


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "t"),
        ("plan", "t", "burn"),
        ("plan", "t", "drop"),
        ("plan", "t", "move", "deletionVectors"),
        ("plan", "t", "share", "--mode", "writer-only"),
        ("plan", "t", "move", "--truncate-history"),
        ("plan", "t", "move", "--dialect", "klingon"),
    ],
)
def test_wrong_words_are_wrong_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    ended = run(*words, "--json", home=tmp_path)
    assert ended.code == 2
    assert json.loads(ended.err.splitlines()[-1])["error"]["code"] == "invalid_input"


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (("drop", "nonsense"), "feature_not_present"),
        (("drop", "invariants"), "feature_not_droppable"),
    ],
)
def test_what_the_change_would_refuse_is_refused(
    wish: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    table = make(History().then(Append(1)), tmp_path / "t")
    ended = run("plan", table, *wish, "--json", home=tmp_path)
    assert (ended.code, ended.error["code"]) == (1, code)


def test_a_table_that_has_moved_or_is_frozen_is_refused_with_a_way_out(
    table: Path, tmp_path: Path
) -> None:
    lakeferry.Table(str(table)).freeze()
    ended = run("plan", table, "move", "--json", home=tmp_path)
    assert (ended.code, ended.error["code"]) == (1, "redirect_in_progress")
    lakeferry.Table(str(table)).thaw()
    lakeferry.Table(str(table)).redirect(str(tmp_path / "new"))
    with pytest.raises(RedirectIllegalTransition, match="has moved already"):
        lakeferry.Table(str(table)).plan_for("move")
    # A push follows the redirect, and so does its plan.
    shared = lakeferry.Table(str(table)).plan_for("share")
    assert shared.location == (tmp_path / "new").as_uri()


def test_an_unknown_feature_is_named(tmp_path: Path) -> None:
    upgrade = Upgrade(("unheardOf",), ("unheardOf",))
    table = make(History().then(Append(1), upgrade), tmp_path / "t")
    for wish in ("move", "share", "protect"):
        ended = run("plan", table, wish, "--json", home=tmp_path)
        assert (ended.code, ended.error["code"]) == (1, "unsupported_feature"), wish
        assert ended.error["features"] == ["unheardOf"]


ODD = ["", "¯\\_(ツ)_/¯", "Apache-Spark/9 Delta-Lake/", "a" * 999, 7, None]


@pytest.mark.parametrize("engine", ODD)
def test_odd_writers_are_named_and_nothing_is_claimed(engine: object, tmp_path: Path) -> None:
    table = make(History().then(Append(1)), tmp_path / "t")
    newest = table / paths.commit(1)
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["engineInfo"] = engine
    newest.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ended = run("plan", table, "move", "--json", home=tmp_path)
    assert ended.code == 0, ended.err
    wrote = [each for each in ended.document["clients"] if each["commits"] is not None]
    assert any(each["breaks"] is None for each in wrote)
    assert all(each["name"] for each in wrote)


def test_no_jvm_is_started(table: Path, tmp_path: Path) -> None:
    """Without a Java to start, everything is as before."""
    without = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    ended = run("plan", table, "move", "--json", home=tmp_path, variables=without)
    assert ended.code == 0, ended.err


def test_wrong_words_of_the_method_are_refused(table: Path) -> None:
    opened = lakeferry.Table(str(table))
    for words in (("burn",), ("drop",), ("move", "deletionVectors")):
        with pytest.raises(InvalidInput):
            opened.plan_for(*words)
    with pytest.raises(InvalidInput, match="--mode"):
        opened.plan_for("move", mode="sideways")
