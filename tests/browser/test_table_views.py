"""A table's own page and the map of redirects, for tables that stand somewhere in a move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Album
from tests.support.browser import Page, Visitor
from tests.support.console_process import ConsoleProcess, console_process
from tests.support.page_checks import check_view, press
from tests.support.small_tables import SmallTable
from tests.unit.cli.program import run

STRANGE = '"><img src=x onerror=document.documentElement.dataset.ran=1>'


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables that have moved, one of them twice, and one with strange partitions."""
    folder = tmp_path_factory.mktemp("tables")
    home = folder / "home"
    home.mkdir()
    SmallTable(
        60,
        column=STRANGE,
        partitions=(STRANGE, "north", "south"),
        properties={STRANGE: STRANGE, "delta.appendOnly": "true"},
    ).write(folder / "orders")
    SmallTable(4).write(folder / "first")
    for old, new in (("first", "second"), ("second", "third")):
        moved = run("redirect", "enable", folder / old, folder / new, "--json", home=home)
        assert moved.code == 0, moved.err
    return folder


@pytest.fixture(scope="module")
def console(lake: Path) -> Iterator[ConsoleProcess]:
    with console_process(lake / "home") as console:
        yield console


@pytest.fixture
def page(visitor: Visitor, console: ConsoleProcess) -> Iterator[Page]:
    with visitor:
        yield visitor.open(console.url)


def show(page: Page, place: Path) -> None:
    """Ask for a table by the form, with keys."""
    page.get_by_role("link", name="Tables", exact=True).click()
    press(page, page.get_by_label("Path, URI or name of a table"), "Control+A")
    page.keyboard.type(str(place))
    page.keyboard.press("Enter")
    page.locator("#commits").wait_for()


def test_a_table_is_asked_for_and_shown(page: Page, lake: Path, album: Album) -> None:
    page.get_by_role("link", name="Tables", exact=True).click()
    check_view(page)
    album.take(page, "tables")
    show(page, lake / "orders")
    # Files come by themselves, after the rest.
    expect(page.locator("#table-files")).to_contain_text("60")
    for text in (STRANGE, "delta.appendOnly", "north"):
        expect(page.locator("main")).to_contain_text(text)
    assert page.evaluate("document.documentElement.dataset.ran") is None
    check_view(page)
    album.take(page, "table")
    versions = page.get_by_role("region", name="Versions").locator("tbody tr")
    newest = versions.first.inner_text()
    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**before=*")
    assert versions.first.inner_text() != newest
    check_view(page)
    page.get_by_role("link", name="Newest").click()
    expect(versions.first).to_contain_text("59")


def test_files_have_a_page_of_their_own(
    visitor: Visitor, page: Page, lake: Path, console: ConsoleProcess, album: Album
) -> None:
    page.goto(console.page(f"/tables/files?at={lake / 'orders'}"))
    expect(page.get_by_role("heading", name="Files of the newest version")).to_be_visible()
    check_view(page)
    album.take(page, "table-files")
    with visitor.expecting("answer 404"):
        page.goto(console.page(f"/tables?at={lake / 'nothing'}"))
    visitor.forgive("console error: Failed to load resource.*404")
    expect(page.get_by_role("heading", name="Not done")).to_be_visible()


def test_a_table_that_has_moved_says_where_to(page: Page, lake: Path, album: Album) -> None:
    show(page, lake / "first")
    expect(page.locator("main")).to_contain_text("READY")
    expect(page.locator("main")).to_contain_text(str(lake / "second"))
    check_view(page)
    album.take(page, "table-moved")


def test_redirects_are_shown_as_chains(page: Page, lake: Path, album: Album) -> None:
    page.get_by_role("link", name="Redirects", exact=True).click()
    check_view(page)
    press(page, page.get_by_label("Look for redirects below"), "Control+A")
    page.keyboard.type(str(lake))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="1 chain")).to_be_visible()
    for name in ("first", "second", "third"):
        expect(page.locator("main")).to_contain_text(str(lake / name))
    check_view(page)
    album.take(page, "redirects")
