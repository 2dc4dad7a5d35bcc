"""Moves that are watched: the page shows by itself what happens, and everything is done on it."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Page, expect

import lakeferry
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.storage import Store, open_store
from tests.browser.conftest import Album, NewVisitor
from tests.support.browser import WITHIN_S, Visitor
from tests.support.console_process import ConsoleProcess, console_process
from tests.support.http_proxy import CountingProxy, SeenRequest
from tests.support.redirect_writers import Board, Writer, writing
from tests.support.servers import S3Bucket
from tests.support.small_tables import ROWS_OF_FILE, SmallTable, table_ids
from tests.unit.cli.program import environment, run

TABLES = 12
FILES = 24
FILE_BYTES = 1 << 18


def fleet_of(home: Path) -> lakeferry.Fleet:
    return lakeferry.Fleet(environment=environment(home))


def moved(fleet: lakeferry.Fleet) -> int:
    """Return how many tables have moved."""
    return fleet.status().summary.counts.get(FleetState.DONE, 0)


def begin_run(page: Page, console: ConsoleProcess, parallel: int) -> None:
    """Begin a run on the fleet's page, and see that jobs are shown."""
    page.goto(console.page("/fleet"))
    page.get_by_label("Tables at a time").fill(str(parallel))
    page.get_by_role("button", name="Run…").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^Move")).click()
    page.wait_for_url("**/jobs")


def test_a_fleet_is_moved_in_two_waves_paused_killed_and_completed_on_the_page(
    new_visitor: NewVisitor, album: Album, tmp_path: Path
) -> None:
    lake, home = tmp_path / "lake", tmp_path / "home"
    names = [f"{'ab'[number % 2]}/t{number:02}" for number in range(TABLES)]
    for name in names:
        SmallTable(FILES, filler_bytes=FILE_BYTES).write(lake / "old" / name)
    home.mkdir()
    fleet = fleet_of(home)
    fleet.scan(str(lake / "old"))
    fleet.plan(to=str(lake / "new"), waves=2)
    board = Board(2)
    written = [names[0], names[-1]]
    writers = [
        Writer(who, "lakeferry", str(lake / "old" / name), {}, tmp_path / f"lock{who}")
        for who, name in enumerate(written)
    ]
    with writing(board, writers) as stories:
        board.all_append(2)
        with console_process(home) as console, new_visitor() as visitor:
            page = visitor.open(console.url)
            begin_run(page, console, 1)
            page.get_by_role("heading", name="Running now").wait_for()
            album.take(page, "jobs-running")
            expect(page.locator("#jobs-list .state-done").first).to_be_visible()
            page.get_by_role("button", name="Pause…").click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text("Running moves finish.")
            dialog.get_by_role("button", name="Pause").click()
            page.locator(".card", has_text="The fleet is paused").wait_for()
            expect(page.locator(".state-running")).to_have_count(0)
            expect(page.locator("#jobs-list tbody tr")).to_have_count(TABLES)
            done = page.locator("#jobs-list .state-done").count()
            assert 1 <= done < TABLES
            album.take(page, "jobs-paused")
            # The second run is killed with the server when it has moved some more.
            page.get_by_role("link", name="Continue").click()
            page.get_by_role("heading", name="Next: continue the paused fleet").wait_for()
            begin_run(page, console, 1)
            visitor.wait_for(lambda: moved(fleet) > done)
            with visitor.expecting("request failed: .*/live"):
                console.kill()
            expect(page.get_by_role("status").first).to_have_text("Connecting…")
            visitor.forgive("ERR_CONNECTION_REFUSED", "console error: Failed to load resource")
            assert moved(fleet) < TABLES
        again = console_process(home, "ui", "--port", console.port)
        with again as console, new_visitor() as visitor:
            page = visitor.open(console.url)
            page.get_by_role("heading", name="Next: continue the interrupted run").wait_for()
            album.take(page, "fleet-after-a-crash")
            page.goto(console.page("/jobs"))
            page.get_by_role("heading", name="Interrupted").wait_for()
            expect(page.get_by_role("button", name="Pause…")).to_have_count(0)
            begin_run(page, console, 2)
            page.get_by_role("link", name="Fleet", exact=True).first.click()
            page.get_by_role("heading", name="All tables have moved").wait_for()
            board.all_append(2)
            page.get_by_role("link", name="Jobs", exact=True).click()
            expect(page.locator("#jobs-list .state-done")).to_have_count(TABLES)
            check_histories(page)
            album.take(page, "jobs-done")
    for name in names:
        rows = Counter(range(FILES * ROWS_OF_FILE))
        if name in written:
            story = stories[written.index(name)]
            assert story.failure is None, story.failure
            rows.update(story.acknowledged)
        assert Counter(table_ids(lake / "new" / name)) == rows, name


def check_histories(page: Page) -> None:
    """Open every job: each was planned and taken, and has finished once."""
    links = page.locator("#jobs-list tbody th a")
    for path in [links.nth(number).get_attribute("href") for number in range(TABLES)]:
        assert path is not None
        page.goto(urljoin(page.url, path))
        kinds = Counter(page.locator("#job-history strong").all_inner_texts())
        assert kinds["plan"] == kinds["finish"] == 1, kinds
        assert kinds["take"] >= 1, kinds
        assert not kinds["fail"], kinds


@contextmanager
def gated(upstream: str, puts: int) -> Iterator[tuple[CountingProxy, threading.Event]]:
    """Let so many data files through to a store, and nothing more until the event is set."""
    opened = threading.Event()
    left = iter(range(puts))

    def rule(request: SeenRequest) -> None:
        if request.method == "PUT" and ".parquet" in request.target and next(left, None) is None:
            # The proxy has a thread for each connection, and this one holds them all up.
            opened.wait(WITHIN_S)

    with CountingProxy(upstream.removeprefix("http://")) as proxy:
        proxy.rule = rule
        try:
            yield proxy, opened
        finally:
            opened.set()


def fail_to_move(home: Path, variables: dict[str, str], target: Store) -> None:
    """Have the fleet's moves fail because something is at the target, and take that away."""
    name = f"_delta_log/{0:020}.json"
    target.put(name, b"{}")
    assert run("fleet", "run", home=home, variables=variables).code == 1
    target.delete_many([name])


@pytest.mark.parametrize("begun", ["run", "resume"])
def test_a_move_is_watched_from_its_start_to_ready(
    visitor: Visitor, album: Album, tmp_path: Path, s3_bucket: S3Bucket, begun: str
) -> None:
    lake, home = tmp_path / "lake", tmp_path / "home"
    home.mkdir()
    SmallTable(60, commits=4).write(lake / "old/orders")
    new = f"{s3_bucket.uri}/new"
    with gated(s3_bucket.server.endpoint, 30) as (proxy, opened):
        store = {**s3_bucket.server.environment(), "AWS_ENDPOINT_URL": proxy.url}
        for words in (["scan", lake / "old"], ["plan", "--to", new]):
            assert run("fleet", *words, home=home, variables=store).code == 0
        if begun == "resume":
            fail_to_move(home, store, open_store(f"{new}/orders", s3_bucket.storage_options))
        with console_process(home, variables=store) as console, visitor:
            page = visitor.open(console.url)
            if begun == "run":
                begin_run(page, console, 1)
            else:
                page.goto(console.page("/jobs"))
            page.locator("#jobs-list tbody th a").click()
            page.wait_for_url("**/jobs/*")
            state = page.locator("#job-state")
            if begun == "resume":
                expect(state.locator(".badge")).to_have_text("failed")
                page.get_by_role("button", name="Resume…").click()
                page.get_by_role("dialog").get_by_role("button", name="Resume").click()
            expect(state.locator(".badge")).to_have_text("running")
            # It stands still half way, and one sees where.
            half_way = re.compile(r"copying data: [1-9][\d.]* KiB of [\d.]+ KiB")
            expect(state).to_contain_text(half_way)
            assert 0.1 < state.get_by_role("progressbar").evaluate("bar => bar.position") < 0.9
            album.take(page, f"job-running-{begun}")
            opened.set()
            expect(state.locator(".badge")).to_have_text("done")
            expect(state).to_contain_text("Writers waited")
            expect(page.locator("#job-history")).to_contain_text("finish")
            album.take(page, f"job-done-{begun}")
            page.get_by_role("link", name="Jobs", exact=True).first.click()
            expect(page.locator("#jobs-pauses svg")).to_be_visible()
        told = run("redirect", "status", lake / "old/orders", "--json", home=home, variables=store)
    assert (told.document["state"], told.document["target"]) == ("READY", f"{new}/orders")
