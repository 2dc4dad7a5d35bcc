"""``redirect list``: every table with a redirect, below a prefix or in a catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakeferry
from lakeferry.api.redirect_search import list_redirects
from lakeferry.catalogs import name_changes
from lakeferry.catalogs.places import Places
from lakeferry.errors import TableNotFound
from lakeferry.storage import normalise
from tests.support.history import Append, History
from tests.unit.cli.program import make, run


def lake(folder: Path) -> Path:
    for name in ("moved", "frozen", "plain", "deep/moved", "broken"):
        make(History().then(Append(2)), folder / "lake" / name)
    for name in ("moved", "deep/moved"):
        target = folder / "new" / name
        lakeferry.Table(str(folder / "lake" / name)).redirect(str(target), engine="local")
    lakeferry.Table(str(folder / "lake" / "frozen")).freeze()
    (folder / "lake/broken/_delta_log/00000000000000000000.json").write_text("{")
    return folder / "lake"


def test_redirects_below_a_prefix_are_listed(tmp_path: Path) -> None:
    here = lake(tmp_path)
    found = list_redirects(str(here), parallel=2)
    uri = normalise(str(here))
    document = found.as_document()
    assert [
        (each["source"], each["state"], each["mode"], each["target"], each["frozen"])
        for each in document["redirects"]
    ] == [
        (
            f"{uri}/deep/moved",
            "READY",
            "reader-writer",
            normalise(f"{tmp_path}/new/deep/moved"),
            False,
        ),
        (f"{uri}/frozen", "ENABLE-REDIRECT-IN-PROGRESS", "writer-only", None, True),
        (f"{uri}/moved", "READY", "reader-writer", normalise(f"{tmp_path}/new/moved"), False),
    ]
    assert document["tables"] == 4
    (unreadable,) = document["unreadable"]
    assert (unreadable["source"], unreadable["error"]["code"]) == (f"{uri}/broken", "corrupt_log")
    # A table is a prefix, too, and a target has no redirect.
    assert [each.source for each in list_redirects(f"{here}/moved").redirects] == [f"{uri}/moved"]
    assert list_redirects(f"{tmp_path}/new").redirects == ()
    with pytest.raises(TableNotFound):
        list_redirects(f"{tmp_path}/nothing")


def test_redirects_of_a_catalog_are_listed(tmp_path: Path) -> None:
    here = lake(tmp_path)
    environment = {"LAKEFERRY_SQL_URL": f"sqlite:///{tmp_path}/catalog.db"}
    for name in ("moved", "plain", "frozen"):
        name_changes.register(f"sql:lake.s.{name}", f"{here}/{name}", environment=environment)
    places = Places(environment=environment)
    found = list_redirects("sql:lake.s", places)
    assert [each.source.rpartition("/")[2] for each in found.redirects] == ["frozen", "moved"]
    assert (found.tables, found.unreadable) == (3, ())
    assert list_redirects("sql:other", places).tables == 0


def test_the_command_prints_one_document_and_warns_of_what_it_cannot_read(tmp_path: Path) -> None:
    here = lake(tmp_path)
    listed = run("redirect", "list", here, "--json", home=tmp_path)
    assert listed.code == 0
    assert len(listed.document["redirects"]) == 3
    assert "lake/broken can't be read" in listed.err
    shown = run("redirect", "list", here, "--parallel", "1", home=tmp_path).out.splitlines()
    assert [line.split("\t")[1] for line in shown] == ["state", "READY", "FROZEN", "READY"]
    nothing = run("redirect", "list", tmp_path / "nothing", "--json", home=tmp_path)
    assert (nothing.code, nothing.error["code"]) == (1, "table_not_found")
