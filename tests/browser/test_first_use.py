"""A newcomer on an empty machine gets to moved tables by the words of the pages."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from playwright.sync_api import expect

from tests.browser.conftest import Album
from tests.support.browser import Visitor
from tests.support.console_process import console_process
from tests.support.page_checks import axe, check_narrow, press, walk
from tests.unit.cli.program import run


def test_a_newcomer_gets_to_moved_demo_tables_by_following_the_page(
    visitor: Visitor, album: Album, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with console_process(home) as console, visitor:
        page = visitor.open(console.url)
        expect(page.get_by_role("heading", level=2)).to_have_text("Begin: find your tables")
        album.take(page, "first-use")
        album.document(page, "begin", 400)
        # The first thing that the page offers to somebody without tables.
        page.get_by_text("No tables at hand? Make a few").click()
        page.get_by_role("button", name="Make demo tables").click()
        plan = page.get_by_role("heading", name="Next: plan where the tables go")
        plan.wait_for()
        expect(page.get_by_role("row")).to_have_count(7)
        album.take(page, "first-use-found")
        # The page suggests a new place for them.
        page.get_by_role("button", name="Plan", exact=True).click()
        page.get_by_role("heading", name="Next: run the moves").wait_for()
        page.get_by_role("button", name="Run…").click()
        page.get_by_role("dialog").get_by_role("heading", name="Move 6 tables?").wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Move 6 tables").click()
        page.wait_for_url("**/jobs")
        page.get_by_role("link", name="Fleet", exact=True).first.click()
        page.get_by_role("heading", name="All tables have moved").wait_for()
        expect(page.get_by_role("cell", name="done")).to_have_count(6)
        album.take(page, "first-use-moved")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download the report").click()
        assert "sales/orders" in Path(download.value.path()).read_text()
    demo = home / "lakeferry-demo"
    told = run("redirect", "status", demo / "old/sales/orders", "--json", home=home).document
    assert (told["state"], told["target"]) == ("READY", f"file://{demo}/new/sales/orders")
    moved = DeltaTable(str(demo / "new/sales/orders")).to_pyarrow_table(columns=["id"])
    assert sorted(moved["id"].to_pylist()) == list(range(12 * 200_000))


def test_the_same_is_done_with_the_keyboard_alone(visitor: Visitor, tmp_path: Path) -> None:
    home = tmp_path / "home"
    ids = pa.table({"id": pa.array(range(10), pa.int64())})
    write_deltalake(str(tmp_path / "lake/t"), ids)
    with console_process(home) as console, visitor:
        page = visitor.open(console.url)
        walk(page)
        press(page, page.get_by_label("Folder, bucket or catalog"), "Control+A")
        page.keyboard.type(str(tmp_path / "lake"))
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Next: plan where the tables go").wait_for()
        press(page, page.get_by_label("New place"), "Control+A")
        page.keyboard.type(str(tmp_path / "new"))
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Next: run the moves").wait_for()
        run_button = page.get_by_role("button", name="Run…")
        press(page, run_button)
        dialog = page.get_by_role("dialog")
        dialog.wait_for()
        axe(page)
        check_narrow(page)
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        # One is where one was.
        expect(run_button).to_be_focused()
        page.keyboard.press("Enter")
        dialog.wait_for()
        press(page, dialog.get_by_role("button", name="Move 1 table"))
        page.wait_for_url("**/jobs")
        press(page, page.get_by_role("link", name="Fleet", exact=True))
        page.get_by_role("heading", name="All tables have moved").wait_for()
    assert DeltaTable(str(tmp_path / "new/t")).to_pyarrow_table().equals(ids)
