"""Every view with tables behind it: seen in both schemes, on 400 px, used by clicks and by keys."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from lakeferry.storage import open_store
from tests.browser.conftest import Album, copy_up
from tests.support.browser import Page, Visitor
from tests.support.console_process import ConsoleProcess, console_process
from tests.support.page_checks import check_view, press
from tests.support.servers import S3Server
from tests.support.small_tables import ROWS_OF_FILE, SmallTable, table_ids
from tests.unit.cli.program import run

NAMES = ("sales/orders", "sales/returns", "web/clicks", "web/sessions", "finance/invoices")


@pytest.fixture(scope="module")
def console(
    tmp_path_factory: pytest.TempPathFactory, versitygw: S3Server
) -> Iterator[ConsoleProcess]:
    """A console whose fleet has tables in most states: moved, failed, planned, with problems."""
    folder = tmp_path_factory.mktemp("views")
    home, tables = folder / "home", folder / "tables"
    home.mkdir()
    for number, name in enumerate(NAMES):
        SmallTable(3 + number, filler_bytes=1 << (10 + 2 * number)).write(tables / name)
    broken = tables / "finance/broken/_delta_log"
    broken.mkdir(parents=True)
    (broken / f"{0:020}.json").write_text("{")
    bucket = versitygw.create_bucket("warehouse")
    old, new = f"{bucket.uri}/old", f"{bucket.uri}/new"
    copy_up(tables, open_store(old, bucket.storage_options))
    variables = versitygw.environment()

    def fleet(*words: object) -> int:
        return run("fleet", *words, home=home, variables=variables).code

    assert fleet("scan", old) == 0
    assert fleet("plan", "--to", new, "--select", "sales/*", "--select", "web/*", "--wave", 1) == 0
    # Somebody has put something else there meanwhile.
    SmallTable().write(folder / "other")
    copy_up(folder / "other", open_store(f"{new}/web/clicks", bucket.storage_options))
    assert fleet("run", "--wave", 1) == 1
    assert fleet("plan", "--to", new, "--select", "finance/invoices", "--wave", 2) == 0
    with console_process(home, variables=variables) as console:
        yield console


@pytest.fixture
def page(visitor: Visitor, console: ConsoleProcess) -> Iterator[Page]:
    with visitor:
        yield visitor.open(console.url)


def rows(page: Page) -> list[str]:
    """Return the tables that are listed."""
    found = page.locator("#fleet-tables tbody th a").all_inner_texts()
    return [name.partition("/old/")[2] for name in found]


def expect_rows(page: Page, *names: str) -> None:
    """Wait until these tables are listed, in this order."""
    links = page.locator("#fleet-tables tbody th a")
    expect(links).to_have_text([re.compile(f"/old/{name}$") for name in names])


def test_the_fleet(page: Page, album: Album) -> None:
    expect(page.get_by_role("heading", name="Fleet", exact=True)).to_be_visible()
    tiles = page.locator(".tiles li").all_inner_texts()
    assert any(tile.split()[:2] == ["3", "done"] for tile in tiles), tiles
    assert any(tile.split()[:2] == ["1", "failed"] for tile in tiles), tiles
    assert sorted(rows(page)) == sorted([*NAMES, "finance/broken"])
    check_view(page)
    album.take(page, "fleet")
    album.document(page, "fleet", 1_180)


def test_tables_are_sorted_and_filtered_while_one_types(
    page: Page, console: ConsoleProcess
) -> None:
    page.get_by_role("link", name="Size").click()
    expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")
    largest = rows(page)
    assert largest[:2] == ["finance/invoices", "web/sessions"]
    page.get_by_role("link", name="Size").click()
    expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "ascending")
    assert [name for name in rows(page) if name in NAMES] == list(NAMES)
    page.get_by_label("Path, name or target").press_sequentially("sales")
    expect_rows(page, "sales/orders", "sales/returns")
    # The address is that of the filtered page, in the same order.
    page.reload()
    expect_rows(page, "sales/orders", "sales/returns")
    page.get_by_label("Path, name or target").fill("")
    expect(page.locator("#fleet-tables tbody tr")).to_have_count(6)
    page.get_by_label("With problems").check()
    expect(page.locator("#fleet-tables tbody tr")).to_have_count(2)
    assert set(rows(page)) == {"finance/broken", "web/clicks"}
    page.get_by_label("State", exact=True).select_option("failed")
    expect_rows(page, "web/clicks")
    page.get_by_label("Path, name or target").fill("nothing")
    page.get_by_role("link", name="Show all").click()
    expect(page.locator("#fleet-tables tbody tr")).to_have_count(6)


def test_a_tile_shows_the_tables_that_it_counts(page: Page) -> None:
    page.locator(".tiles").get_by_role("link", name="done").click()
    expect(page.locator("#fleet-tables tbody tr")).to_have_count(3)


def test_a_table_with_a_problem_says_what_to_do(page: Page, album: Album) -> None:
    page.get_by_role("link", name="finance/broken").click()
    expect(page.locator(".problem")).to_contain_text("What to do:")
    check_view(page)
    album.take(page, "fleet-table-broken")
    page.get_by_role("link", name="Fleet").first.click()
    page.get_by_role("link", name="web/clicks").first.click()
    expect(page.locator("#table-head")).to_contain_text("failed")
    check_view(page)
    album.take(page, "fleet-table-failed")


def test_a_table_that_is_planned_is_taken_out_of_the_plan_and_planned_again(
    page: Page, album: Album
) -> None:
    page.get_by_role("link", name="finance/invoices").first.click()
    expect(page.locator("main")).to_contain_text("What the move means")
    check_view(page)
    album.take(page, "fleet-table")
    target = page.locator("#table-head .code").inner_text()
    press(page, page.get_by_role("button", name="Take it out of the plan…"))
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("code")).to_contain_text("lakeferry fleet plan --remove --select")
    check_view(page)
    album.take(page, "confirm")
    # Nothing is done by looking.
    dialog.get_by_role("link", name="Not now").click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#table-head .badge")).to_have_text("planned")
    page.get_by_role("button", name="Take it out of the plan…").click()
    dialog.get_by_role("button", name="Take it out").click()
    expect(page.get_by_text("It is out of the plan.")).to_be_visible()
    expect(page.locator("#table-head .badge")).to_have_text("found")
    page.get_by_role("link", name="Fleet").first.click()
    plan = page.locator("form[action$='/fleet/plan']")
    if not plan.get_by_label("New place").is_visible():
        page.locator("summary", has_text="Plan").click()
    plan.get_by_label("New place").fill(target.partition("/finance/")[0])
    plan.get_by_label("Only tables like").fill("finance/invoices")
    plan.get_by_role("button", name="Plan").click()
    expect(page.locator(".work", has_text="1 move planned.")).to_be_visible()


def test_jobs(page: Page, album: Album) -> None:
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.locator("#jobs-pauses svg")).to_be_visible()
    page.get_by_label("State", exact=True).select_option("failed")
    expect(page.locator("#jobs-list tbody tr")).to_have_count(1)
    page.get_by_label("State", exact=True).select_option("")
    expect(page.locator("#jobs-list tbody tr")).not_to_have_count(1)
    page.get_by_label("Wave").select_option("1")
    page.wait_for_url("**/jobs?wave=1")
    assert page.locator("#jobs-list tbody tr").count() >= 4
    check_view(page)
    album.take(page, "jobs")
    album.document(page, "jobs", 940)


def test_a_failed_move_is_cancelled_or_resumed_on_its_page(
    page: Page, album: Album, console: ConsoleProcess, versitygw: S3Server
) -> None:
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.locator("#jobs-list").get_by_role("link", name="web/clicks").click()
    expect(page.locator("#job-state .badge")).to_have_text("failed")
    check_view(page)
    album.take(page, "job-failed")
    page.get_by_role("button", name="Resume…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("code")).to_contain_text("lakeferry redirect resume")
    dialog.get_by_role("link", name="Not now").click()
    page.get_by_role("button", name="Cancel the move…").click()
    expect(dialog).to_contain_text("is deleted")
    dialog.get_by_role("button", name="Cancel the move").click()
    expect(page.locator("#job-state .badge")).to_have_text("found")
    # What was there before the move is still there.
    target = page.locator("#job-state .code").first.inner_text()
    assert len(table_ids(target, versitygw.settings())) == 4 * ROWS_OF_FILE


def test_without_script_forms_ask_on_a_page_of_their_own(
    new_visitor: object, console: ConsoleProcess, album: Album
) -> None:
    assert callable(new_visitor)
    with new_visitor(java_script_enabled=False) as visitor:
        page = visitor.open(console.url)
        page.get_by_label("Path, name or target").fill("sales")
        page.get_by_role("button", name="Filter").click()
        assert rows(page) == ["sales/orders", "sales/returns"]
        page.goto(console.page("/fleet"))
        page.get_by_role("button", name="Run…").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Move")
        album.take(page, "confirm-page")
        page.get_by_role("link", name="Not now").click()
        expect(page.get_by_role("heading", name="Fleet", exact=True)).to_be_visible()


def test_what_is_not_there_says_so(visitor: Visitor, page: Page, console: ConsoleProcess) -> None:
    for path in ("/fleet/tables/999", "/jobs/999", "/nothing"):
        with visitor.expecting("answer 404"):
            page.goto(console.page(path))
        expect(page.get_by_role("heading", name="Not done")).to_be_visible()
        check_view(page)
    # It isn't asked for again when something happens: that would be an error each time.
    visitor.forgive("console error: Failed to load resource.*404")
