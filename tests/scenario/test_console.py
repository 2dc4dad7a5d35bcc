"""The console as a user has it: ``ui`` and ``serve`` as processes, used by forms over HTTP."""

from __future__ import annotations

import http.cookiejar
import json
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable

import lakeferry
from lakeferry.config import Config
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.web.console import Console
from tests.support.lake import Lake, on_disk
from tests.support.serving import serving
from tests.unit.cli.program import PROGRAM, environment, run
from tests.unit.web.console_for_tests import record

WITHIN_S = 120.0
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


class _Stay(urllib.request.HTTPRedirectHandler):
    """Returns redirects instead of following them."""

    def redirect_request(self, *said: object) -> None:
        return None


@dataclass
class Browser:
    """Keeps cookies, sends forms, follows no redirect."""

    url: str
    jar: http.cookiejar.CookieJar = field(default_factory=http.cookiejar.CookieJar)

    def ask(self, path: str, **fields: str) -> tuple[int, str, str]:
        """Return status, text and location of a page, or of a form if there are fields."""
        request = urllib.request.Request(urllib.parse.urljoin(self.url, path))
        if fields:
            request.data = urllib.parse.urlencode(fields).encode()
            request.add_header("Origin", self.url)
        opener = urllib.request.build_opener(_Stay, urllib.request.HTTPCookieProcessor(self.jar))
        try:
            answer = opener.open(request, timeout=WITHIN_S)
        except urllib.error.HTTPError as refused:
            answer = refused
        with answer:
            return answer.status, answer.read().decode(), answer.headers.get("Location", "")

    def page(self, path: str) -> str:
        """Return the text of a page that is there."""
        status, text, _ = self.ask(path)
        assert status == 200, text
        return text

    def send(self, path: str, **fields: str) -> str:
        """Send a form of the fleet's page, confirmed; return where it leads."""
        found = _CSRF.search(self.page("/-/fleet"))
        assert found is not None
        status, text, where = self.ask(path, csrf=found[1], confirmed="yes", **fields)
        assert status == 303, text
        return where

    def sign_in(self, token: str) -> None:
        """Sign in with an access token."""
        found = _CSRF.search(self.page("/-/sign-in"))
        assert found is not None
        status, text, _ = self.ask("/-/sign-in", csrf=found[1], token=token)
        assert status == 303, text


@dataclass
class Local:
    """A running ``ui`` and the browser of its user."""

    process: subprocess.Popen[bytes]
    url: str
    browser: Browser


@contextmanager
def local(home: Path) -> Iterator[Local]:
    with (home / "ui.log").open("ab") as errors:
        process = subprocess.Popen(
            [str(PROGRAM), "ui", "--json"],
            cwd=home,
            env=environment(home),
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert first, (home / "ui.log").read_text()
        url = json.loads(first)["url"]
        parts = urllib.parse.urlsplit(url)
        browser = Browser(f"{parts.scheme}://{parts.netloc}")
        status, _, where = browser.ask(url)
        assert (status, where) == (303, "/-/")
        yield Local(process, url, browser)
    finally:
        process.kill()
        process.wait(WITHIN_S)
        process.stdout.close()


def until(holds: Callable[[], bool], told: Callable[[], str] = str) -> None:
    """Wait for something that another process does."""
    pause = threading.Event()
    for _ in range(int(WITHIN_S / 0.02)):
        if holds():
            return
        pause.wait(0.02)
    raise AssertionError(told())


def count(fleet: lakeferry.Fleet, state: FleetState) -> int:
    return fleet.status().summary.counts.get(state, 0)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return on_disk(tmp_path)


def fleet_of(lake: Lake) -> lakeferry.Fleet:
    return lakeferry.Fleet(environment=environment(lake.home))


def test_a_newcomer_gets_from_nothing_to_moved_tables(lake: Lake) -> None:
    fleet, folder = fleet_of(lake), lake.home / "demo"
    with local(lake.home) as ui:
        browser = ui.browser
        assert "No tables at hand?" in browser.page("/-/fleet")
        with listening(browser) as events:
            browser.send("/-/fleet/demo", folder=str(folder))
            until(lambda: "Plan</button>" in browser.page("/-/fleet"))
            browser.send("/-/fleet/plan", to=str(folder / "new"), waves="2")
            until(lambda: "Run…</button>" in browser.page("/-/fleet"))
            assert browser.send("/-/fleet/run", parallel="2") == "/-/jobs"
            until(lambda: "All tables have moved" in browser.page("/-/fleet"))
            until(lambda: any("has moved" in each for each in events))
        jobs = browser.page("/-/jobs")
        assert jobs.count("writers waited") >= 6
        moved = DeltaTable(str(folder / "new/sales/returns")).to_pyarrow_table()
        assert moved.num_rows == 30_000
        ids = [int(line.removeprefix("id: ")) for line in events if line.startswith("id: ")]
        assert ids == sorted(ids)
        assert ids[-1] <= fleet.history(limit=100_000)[-1].id


@contextmanager
def listening(browser: Browser) -> Iterator[list[str]]:
    """Collect the lines of a connection to the live events, until the end."""
    lines: list[str] = []
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(browser.jar))
    answer = opener.open(f"{browser.url}/-/live", timeout=WITHIN_S)
    assert answer.headers["Content-Type"].startswith("text/event-stream")

    def each() -> None:
        try:
            while line := answer.readline():
                lines.append(line.decode().strip())
        except (OSError, ValueError, AttributeError):
            return

    thread = threading.Thread(target=each, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        answer.close()


def test_a_setting_that_is_no_database_is_told_at_the_start(lake: Lake) -> None:
    ended = run("ui", "--json", home=lake.home, variables={"LAKEFERRY_SQL_URL": "nonsense"})
    assert (ended.code, ended.out) == (2, "")
    assert ended.error["message"] == "LAKEFERRY_SQL_URL isn't a URL of a database"


def test_the_console_of_one_is_closed_to_the_other(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with local(lake.home) as one, local(tmp_path / "other") as two:
        assert one.url != two.url
        names = {cookie.name for ui in (one, two) for cookie in ui.browser.jar}
        assert len(names) == 2
        # A browser sends the cookies of all ports.
        for cookie in one.browser.jar:
            two.browser.jar.set_cookie(cookie)
        assert two.browser.ask("/-/fleet")[0] == 200
        assert Browser(one.browser.url, one.browser.jar).ask("/-/fleet")[0] == 200
        stranger = Browser(one.browser.url)
        assert stranger.ask("/-/fleet")[0] == 401
        assert stranger.ask("/-/live")[0] == 401


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_ends_in_good_order_with_pages_connected(lake: Lake, how: int, code: int) -> None:
    with local(lake.home) as ui, listening(ui.browser) as events:
        until(lambda: bool(events))
        ui.process.send_signal(how)
        assert ui.process.wait(WITHIN_S) == code
        assert "Traceback" not in (lake.home / "ui.log").read_text()


def make_tables(lake: Lake, number: int) -> None:
    for each in range(number):
        lake.make(f"old/t{each}")


def test_a_server_that_is_killed_goes_on_by_its_button(lake: Lake) -> None:
    tables = 8
    make_tables(lake, tables)
    lake.done("fleet", "scan", lake.uri("old"))
    fleet = fleet_of(lake)
    place = ("--console-place", lake.uri("new"))
    with serving(lake.home, {}, *place) as server:
        token = made_token(lake, server.store.uri, "write")
        browser = Browser(server.url)
        browser.sign_in(token)
        browser.send("/-/fleet/plan", to=lake.uri("new"))
        until(lambda: count(fleet, FleetState.PLANNED) == tables, server.shown)
        browser.send("/-/fleet/run", parallel="1")
        until(lambda: count(fleet, FleetState.DONE) >= 1, server.shown)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(WITHIN_S)
    done = count(fleet, FleetState.DONE)
    assert 1 <= done < tables
    with serving(lake.home, {}, *place) as server:
        browser = Browser(server.url)
        assert browser.ask("/-/fleet")[0] == 401
        browser.sign_in(token)
        browser.send("/-/fleet/run", parallel="2")
        until(lambda: count(fleet, FleetState.DONE) == tables, server.shown)
        until(lambda: "All tables have moved" in browser.page("/-/fleet"), server.shown)
    finished = [each for each in fleet.history(limit=100_000) if each.kind == "finish"]
    assert len(finished) == len({each.job_id for each in finished}) == tables
    for number in range(tables):
        old = lake.done("redirect", "status", lake.uri(f"old/t{number}"))
        assert (old["state"], old["target"]) == ("READY", lake.uri(f"new/t{number}"))


def made_token(lake: Lake, root: str, scope: str, *words: str) -> str:
    ended = run(
        "token", "create", "--root", root, "--scope", scope, *words, "--json", home=lake.home
    )
    token: str = ended.document["token"]
    return token


def test_memory_stays_flat_over_a_thousand_pages(lake: Lake) -> None:
    console = Console(Config(environment=environment(lake.home)))
    tables = [f"file:///lake/t{number:05}" for number in range(10_000)]
    record(console, *tables, plans=True)
    assert console.wait(0)
    paths = ["/-/fleet", "/-/fleet?offset=9950", "/-/fleet?text=t099", "/-/jobs", "/-/jobs/77"]
    with local(lake.home) as ui:
        process = psutil.Process(ui.process.pid)
        for number in range(200):
            ui.browser.page(paths[number % len(paths)])
        before = process.memory_info().rss
        for number in range(1_000):
            ui.browser.page(paths[number % len(paths)])
        assert process.memory_info().rss - before < 16 << 20


def test_a_server_shows_each_token_what_it_is_for(lake: Lake) -> None:
    make_tables(lake, 1)
    lake.done("fleet", "scan", lake.uri("old"))
    with serving(lake.home, {}) as server:
        root = server.store.uri
        reader, limited = Browser(server.url), Browser(server.url)
        reading = made_token(lake, root, "read")
        reader.sign_in(reading)
        limited.sign_in(made_token(lake, root, "write", "--dataset", "acme/orders"))
        assert "old/t0" in reader.page("/-/fleet").replace("<wbr>", "")
        assert limited.ask("/-/fleet")[0] == 404
        assert "old/t0" not in limited.page("/-/datasets")
        with listening(reader) as events:
            until(lambda: any(line.startswith("id: ") for line in events))
            lake.done("token", "revoke", reading.split("_")[1], "--root", root)
            until(lambda: reader.ask("/-/fleet")[0] == 401)
        # What was there before the console is as it was.
        request = urllib.request.Request(
            server.url, headers={"Accept": "application/json", "Authorization": f"Bearer {reading}"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=WITHIN_S)
        refused.value.close()
        assert refused.value.code == 401


def test_a_run_that_is_stopped_with_its_server_is_continued(lake: Lake) -> None:
    tables = 8
    make_tables(lake, tables)
    fleet = fleet_of(lake)
    fleet.scan(lake.uri("old"))
    fleet.plan(to=lake.uri("new"))
    with local(lake.home) as ui:
        ui.browser.send("/-/fleet/run", parallel="1")
        until(lambda: count(fleet, FleetState.DONE) >= 1)
        ui.process.send_signal(signal.SIGTERM)
        assert ui.process.wait(WITHIN_S) == 0
    # What ran has been given back, so the next run doesn't wait for leases.
    assert count(fleet, FleetState.RUNNING) == 0
    assert not fleet.status().summary.paused
    lake.done("fleet", "run")
    assert count(fleet, FleetState.DONE) == tables
