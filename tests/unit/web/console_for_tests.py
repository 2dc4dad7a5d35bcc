"""A console in this process, as ``ui`` and ``serve`` have it, with a fleet of a test's making."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from lakeferry.config import Config
from lakeferry.export.job_queue import Queue
from lakeferry.fleet.inventory import (
    FleetProblem,
    FoundTable,
    MoveForecast,
    MovePlan,
    TableMark,
    TableSurvey,
)
from lakeferry.fleet.inventory_changes import InventoryChanges
from lakeferry.transfer.repository.access_tokens import Scope, Tokens
from lakeferry.transfer.repository.dataset_changes import DatasetChanges
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.repository import Repository
from lakeferry.web.console import Console, DatasetRoot
from lakeferry.web.console_app import RequestBounds, create_console_app
from lakeferry.web.local_console import local_console
from lakeferry.web.request_rules import origin_of
from lakeferry.web.sign_in import TokenSignIn
from tests.support.stores import DictStore

PORT = 8899
UI = f"http://127.0.0.1:{PORT}"
SERVER = "https://lake.example.com"
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


def settings(folder: Path) -> Config:
    """Return settings with a database in a folder."""
    return Config(environment={"LAKEFERRY_SQL_URL": f"sqlite:///{folder}/catalog.sqlite"})


def survey(version: int = 3, size: int = 1000, problems: Sequence[str] = ()) -> TableSurvey:
    """Return what a scan found out about a table."""
    return TableSurvey(
        TableMark(version, 1, 1),
        "id",
        size,
        7,
        1.5,
        problems=tuple(FleetProblem("corrupt_log", each, "repair it") for each in problems),
    )


def record(console: Console, *uris: str, plans: bool = False, **found: object) -> None:
    """Put tables into the inventory, and plan them."""
    changes = InventoryChanges(console.database)
    made = survey(**found)  # type: ignore[arg-type]
    changes.record([(FoundTable(uri, "file:///lake"), made) for uri in uris])
    if plans:
        forecast = MoveForecast(7, 1000, 2000, 100, "an assumption")
        changes.plan(
            [MovePlan(uri, uri.replace("/lake/", "/new/"), 1, {}, forecast) for uri in uris]
        )


@dataclass
class Visitor:
    """A browser that visits a console."""

    console: Console
    client: TestClient
    base: str = "/-"
    csrf: str = ""

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Return status and text of a page."""
        answer = self.client.get(f"{self.base}{path}", headers=headers)
        found = _CSRF.search(answer.text)
        self.csrf = found[1] if found else self.csrf
        return answer.status_code, answer.text

    def page(self, path: str) -> str:
        """Return the text of a page that is there."""
        status, text = self.get(path)
        assert status == 200, text
        return text

    def post(
        self, path: str, headers: dict[str, str] | None = None, **fields: str
    ) -> tuple[int, str]:
        """Send a form with the visitor's CSRF token, and return status and text or location."""
        if not self.csrf:
            self.get("/fleet")
        answer = self.client.post(
            f"{self.base}{path}",
            data={"csrf": self.csrf, **fields},
            headers={"Origin": str(self.client.base_url).rstrip("/"), **(headers or {})},
            follow_redirects=False,
        )
        return answer.status_code, answer.headers.get("location", "") or answer.text


def local_visitor(folder: Path) -> Visitor:
    """Return the user of ``ui``, who has opened the URL."""
    console, app, url = local_console(settings(folder), PORT)
    visitor = Visitor(console, TestClient(app, base_url=UI))
    parts = urlsplit(url)
    visitor.client.get(f"{parts.path}?{parts.query}")
    return visitor


def datasets_of(store: DictStore, tokens: Tokens, url: str) -> DatasetRoot:
    """Return what a server at ``url`` serves; no redirect leads to any of its tables."""
    repository = Repository(store, clock=store.clock)
    changes = DatasetChanges(repository, lambda _: None, clock=store.clock)
    queue = Queue(store, clock=store.clock)
    return DatasetRoot(store.uri, repository, tokens, changes, queue, url)


@dataclass
class ConsoleServer:
    """A console of ``serve`` on a store in memory."""

    folder: Path
    store: DictStore = field(default_factory=DictStore)
    places: tuple[str, ...] = ()
    url: str = SERVER

    def __post_init__(self) -> None:
        """Make the application."""
        self.tokens = Tokens(self.store)
        base = "/-"
        root = datasets_of(self.store, self.tokens, self.url)
        self.console = Console(settings(self.folder), base, root)
        is_secure = self.url.startswith("https:")
        sign_in = TokenSignIn(self.tokens, is_secure=is_secure, base=base, places=self.places)
        bounds = RequestBounds(origins=frozenset({origin_of(self.url)}))
        app = create_console_app(self.console, sign_in, bounds)
        self.app = Starlette(routes=[Mount(base, app)])

    def token(self, scope: Scope = Scope.READ, dataset: str | None = None) -> str:
        """Return a new token."""
        covered = None if dataset is None else DatasetName(dataset)
        return self.tokens.create(scope, dataset=covered)

    def visitor(self) -> Visitor:
        """Return a visitor who hasn't signed in."""
        return Visitor(self.console, TestClient(self.app, base_url=self.url))

    def signed_in(self, scope: Scope = Scope.READ, dataset: str | None = None) -> Visitor:
        """Return a visitor with a new token."""
        visitor = self.visitor()
        visitor.get("/sign-in")
        status, where = visitor.post("/sign-in", token=self.token(scope, dataset))
        assert (status, where) == (303, "/-/")
        visitor.csrf = ""
        return visitor
