"""Where ``GET /`` of a server leads, and which addresses stay the datasets'."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from lakeferry.errors import InvalidInput
from lakeferry.transfer.repository.access_tokens import Tokens
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.web.server_console import CONSOLE_PATH, server_console
from tests.support.stores import DictStore
from tests.unit.web.console_for_tests import datasets_of, settings


def client(folder: Path, url: str = "http://testserver") -> TestClient:
    store = DictStore()
    root = datasets_of(store, Tokens(store), url)
    _, routes = server_console(settings(folder), root, url)

    async def dataset(request: Request) -> Response:
        return PlainTextResponse("a dataset's")

    return TestClient(Starlette(routes=[*routes, Route("/{path:path}", dataset)]))


@pytest.mark.parametrize(
    ("accept", "is_browser"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("application/json", False),
        ("text/html, application/json", False),
        ("*/*", False),
    ],
)
def test_browsers_are_led_to_the_console(tmp_path: Path, accept: str, is_browser: bool) -> None:
    answer = client(tmp_path).get("/", headers={"Accept": accept}, follow_redirects=False)
    if is_browser:
        assert (answer.status_code, answer.headers["location"]) == (303, "/-/")
    else:
        assert answer.text == "a dataset's"


def test_links_begin_with_the_path_of_the_public_url(tmp_path: Path) -> None:
    visited = client(tmp_path, "https://example.com/ferry/")
    headers = {"Accept": "text/html"}
    assert visited.get("/", headers=headers, follow_redirects=False).headers["location"] == (
        "/ferry/-/"
    )
    text = visited.get("/-/sign-in").text
    assert 'href="/ferry/-/static/console.css' in text
    assert 'action="/ferry/-/sign-in"' in text


def test_no_dataset_is_called_as_the_console() -> None:
    for name in (CONSOLE_PATH.removeprefix("/"), "-/fleet"):
        with pytest.raises(InvalidInput):
            DatasetName.parse(name)
