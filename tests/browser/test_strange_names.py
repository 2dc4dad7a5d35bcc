"""Names that strangers chose are shown as text: no page runs what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Album
from tests.support.browser import Visitor
from tests.support.console_process import ConsoleProcess, console_process
from tests.support.page_checks import axe, check_narrow
from tests.support.small_tables import SmallTable
from tests.unit.cli.program import run

RUNS = "document.documentElement.dataset.ran=1"
IMAGE = f"<img src=x onerror={RUNS}>"
SCRIPT = f'"><script>{RUNS}</script>'
SVG = f"<svg onload={RUNS}>"
ATTRIBUTE = f"' autofocus onfocus={RUNS} x='"
TEMPLATE = "{{ 7 * 7 }}{% raw %}"
# What follows the arrow is shown from right to left: a name that looks like another one.
BACKWARDS = "–\u202etxt"
# A file name has no slash.
FOLDERS = (
    IMAGE,
    SCRIPT.replace("/", "&sol;"),
    ATTRIBUTE,
    TEMPLATE,
    "javascript:alert(1)",
    "–\u202etxt",
)
SHOWN = (*FOLDERS[:-1], quote(BACKWARDS))


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """A console whose fleet has tables with such names, one of them with a problem."""
    folder = tmp_path_factory.mktemp("strange")
    home, lake = folder / "home", folder / "lake"
    home.mkdir()
    for name in FOLDERS:
        SmallTable(
            files=3,
            column=SCRIPT,
            partitions=(IMAGE, SCRIPT, ATTRIBUTE),
            properties={IMAGE: SCRIPT, "delta.userMetadata": IMAGE},
            name=SCRIPT,
            engine=f"{IMAGE}/1.0 {SCRIPT}",
        ).write(lake / name)
    # Its problem, too, says where it is.
    broken = lake / f"broken {SVG}" / "_delta_log"
    broken.mkdir(parents=True)
    (broken / f"{0:020}.json").write_text("{" + SCRIPT)
    for words in (["scan", lake], ["plan", "--to", folder / f"new {SVG}"]):
        assert run("fleet", *words, "--json", home=home).code == 0
    with console_process(home) as console:
        yield console


def check_nothing_ran(page: Page) -> None:
    assert page.evaluate("document.documentElement.dataset.ran") is None
    assert page.locator("img[src=x]").count() == 0


def test_lists_show_them_as_text(visitor: Visitor, console: ConsoleProcess, album: Album) -> None:
    with visitor:
        page = visitor.open(console.url)
        for name in SHOWN:
            expect(page.get_by_role("rowheader").filter(has_text=name)).to_have_count(1)
        # Their problem, and where they are to go.
        expect(page.locator("#fleet-tables")).to_contain_text(f"broken {SVG}")
        expect(page.locator("#fleet-tables")).to_contain_text(f"new {SVG}")
        axe(page)
        check_narrow(page)
        check_nothing_ran(page)
        album.take(page, "strange-names")
        page.goto(console.page("/jobs"))
        for name in SHOWN:
            expect(page.get_by_role("rowheader").filter(has_text=name)).to_have_count(1)
        check_nothing_ran(page)


def test_a_table_and_its_job_show_them_as_text(
    visitor: Visitor, console: ConsoleProcess, album: Album
) -> None:
    with visitor:
        page = visitor.open(console.url)
        links = page.locator("#fleet-tables tbody th a")
        origin = console.url.partition("/-/")[0]
        for path in [links.nth(number).get_attribute("href") for number in range(links.count())]:
            assert path is not None
            page.goto(f"{origin}{path}")
            check_nothing_ran(page)
            if page.get_by_role("link", name=re.compile("^Job [0-9]")).count():
                expect(page.locator("main")).to_contain_text(IMAGE)
                expect(page.locator("main")).to_contain_text(SCRIPT)
                # The question names the table, and the command that does the same.
                page.get_by_role("button", name="Take it out of the plan…").click()
                page.get_by_role("dialog").wait_for()
                check_nothing_ran(page)
                page.keyboard.press("Escape")
                page.get_by_role("link", name=re.compile("^Job [0-9]")).click()
                page.wait_for_url("**/jobs/*")
                check_nothing_ran(page)
            else:
                expect(page.locator(".problem")).to_have_count(1)
                album.take(page, "strange-problem")


@pytest.mark.parametrize("text", [IMAGE, SCRIPT, ATTRIBUTE])
def test_what_was_asked_is_shown_as_text(
    visitor: Visitor, console: ConsoleProcess, text: str
) -> None:
    with visitor:
        page = visitor.open(console.url)
        field = page.get_by_label("Path, name or target")
        field.fill(f"{text} nowhere")
        expect(page.locator("#fleet-tables")).to_contain_text("No table fits this filter.")
        page.reload()
        expect(field).to_have_value(f"{text} nowhere")
        check_nothing_ran(page)


def test_what_is_refused_is_shown_as_text(visitor: Visitor, console: ConsoleProcess) -> None:
    with visitor:
        page = visitor.open(console.url)
        page.get_by_text("Scan", exact=True).first.click()
        page.get_by_label("Folder, bucket or catalog").fill(f"/nowhere/{IMAGE}")
        page.get_by_role("button", name="Scan").click()
        expect(page.locator(".work", has_text="Scan /nowhere/")).to_contain_text(IMAGE)
        expect(page.locator(".work .problem, .work p").first).to_be_visible()
        check_nothing_ran(page)
        for path in (f"/{IMAGE}", f"/fleet/tables/{SCRIPT}", f"/fleet?sort={SCRIPT}&state={IMAGE}"):
            asked = page.goto(console.page(path))
            assert asked is not None
            check_nothing_ran(page)
        visitor.forgive("answer 404", "console error: Failed to load resource.*404")
        visitor.check()
