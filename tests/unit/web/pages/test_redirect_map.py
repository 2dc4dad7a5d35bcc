from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest

from lakeferry.api.table import Table
from lakeferry.config import Config
from lakeferry.fleet.fleet import Fleet
from tests.support.history import Append, History
from tests.unit.cli.program import make
from tests.unit.web.asgi_visitor import AsgiVisitor
from tests.unit.web.console_for_tests import local_visitor


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fleet.db"


def test_chains_of_the_inventory_are_shown_with_their_states(tmp_path: Path, url: str) -> None:
    lake = tmp_path / "<script>"
    make(History().then(Append(1)), lake / "a")
    Table(str(lake / "a")).redirect(str(lake / "b"), engine="local")
    Table(str(lake / "b")).redirect(str(lake / "c"), engine="local")
    make(History().then(Append(1)), lake / "frozen")
    Table(str(lake / "frozen")).freeze()
    Fleet(url).scan(str(lake))
    visitor = AsgiVisitor.of(Config(environment={"LAKEFERRY_SQL_URL": url}))
    table = visitor.get(f"/-/tables?{urlencode({'at': str(lake / 'a')})}").text
    assert "redirect: READY to" in table
    assert ">ready<" in table
    page = visitor.get("/-/redirects")
    assert page.status == 200
    assert "2 chains" in page.text
    assert "<script>" not in page.text
    assert page.text.count("leads to") == 2
    assert page.text.count(">ready<") == 2
    assert "the table is here" in page.text


def test_without_redirects_it_says_so(url: str) -> None:
    page = AsgiVisitor.of(Config(environment={"LAKEFERRY_SQL_URL": url})).get("/-/redirects")
    assert "No redirect is known" in page.text
    assert 'name="place"' in page.text


def test_a_search_needs_a_place(tmp_path: Path) -> None:
    visitor = local_visitor(tmp_path)
    status, text = visitor.post("/redirects/search", place=" ")
    assert (status, "give a folder, a prefix or sql:" in text) == (400, True)
    assert visitor.post("/redirects/search", place="x" * 9_000)[0] == 400


def test_a_search_finds_redirects_that_the_inventory_lacks(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    make(History().then(Append(1)), lake / "a")
    Table(str(lake / "a")).redirect(str(lake / "b"), engine="local")
    visitor = local_visitor(tmp_path)
    assert visitor.post("/redirects/search", place=str(lake))[0] == 303
    assert visitor.console.work.wait(30)
    page = visitor.page("/redirects")
    assert "1 redirect of 2 tables" in page
    assert "leads to" in page
