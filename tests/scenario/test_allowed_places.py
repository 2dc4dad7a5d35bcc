"""Where a token to write may have the server of ``serve`` put tables, asked by forms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from lakeferry.config import Config
from lakeferry.transfer.repository.access_tokens import Scope, Tokens
from lakeferry.web.console import Console
from lakeferry.web.server_console import server_console
from tests.support.stores import DictStore
from tests.unit.web.console_for_tests import datasets_of

_URL = "https://lake.example.com"
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


class Writer:
    """A visitor with a token to write, of a server that allows one place."""

    def __init__(self, folder: Path, place: str) -> None:
        store = DictStore()
        tokens = Tokens(store)
        settings = Config(environment={"LAKEFERRY_SQL_URL": f"sqlite:///{folder}/fleet.sqlite"})
        root = datasets_of(store, tokens, _URL)
        self.console: Console
        self.console, routes = server_console(settings, root, _URL, (place,))
        self.client = TestClient(Starlette(routes=routes), base_url=_URL, follow_redirects=False)
        token = tokens.create(Scope.WRITE)
        assert self.post("/sign-in", "/sign-in", token=token)[0] == 303

    def post(self, form: str, to: str, /, **fields: str) -> tuple[int, str]:
        """Send a form of a page; return status and text."""
        found = _CSRF.search(self.client.get(f"/-{form}").text)
        assert found is not None
        answer = self.client.post(
            f"/-{to}", data={"csrf": found[1], **fields}, headers={"Origin": _URL}
        )
        return answer.status_code, answer.text

    def plan(self, to: str) -> int:
        """Ask for a plan, wait until its work has ended, and return the status."""
        status, _ = self.post("/fleet", "/fleet/plan", to=to)
        assert self.console.work.wait(30)
        return status


@pytest.mark.parametrize(
    "to",
    [
        "file://{allowed}{{name}}",
        "file://{allowed}/../{{name}}",
        "file://{allowed}/./../{{name}}",
        "file://{allowed}/..",
        "file://{allowed}/%2e%2e/x",
        "{allowed}-{{name}}",
        "{allowed}/link/{{name}}",
        "{allowed}/link",
        "{{name}}",
        "s3://bucket/{{name}}",
        "sql:main.sales.{{name}}",
    ],
)
def test_a_plan_for_a_place_that_is_not_allowed_is_refused(tmp_path: Path, to: str) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to(tmp_path)
    writer = Writer(tmp_path, str(allowed))
    assert writer.plan(to.format(allowed=allowed)) == 403
    assert writer.console.work.newest("plan") is None


@pytest.mark.parametrize("to", ["{allowed}", "{allowed}/{{name}}", "file://{allowed}/x-{{path}}"])
def test_a_plan_for_a_place_that_is_allowed_begins(tmp_path: Path, to: str) -> None:
    writer = Writer(tmp_path, str(tmp_path / "allowed"))
    assert writer.plan(to.format(allowed=tmp_path / "allowed")) == 303
    assert writer.console.work.newest("plan") is not None


@pytest.mark.parametrize("name", ["path", "base"])
def test_a_link_from_another_site_may_have_any_query(tmp_path: Path, name: str) -> None:
    writer = Writer(tmp_path, str(tmp_path))
    writer.client.cookies.clear()
    answer = writer.client.get(
        f"/-/tables?{name}=x",
        headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    )
    assert answer.status_code == 200
    assert f"/-/tables?{name}=x&amp;again=1" in answer.text
