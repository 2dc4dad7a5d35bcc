"""The pages of one table and of redirects: seen in both schemes, on 400 px, and checked by axe."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from lakeferry.storage import open_store
from tests.browser.conftest import Album
from tests.support.browser import Page, Visitor
from tests.support.console_process import ConsoleProcess, console_process
from tests.support.history import (
    Append,
    Checkpoint,
    Delete,
    History,
    Layout,
    SetProperties,
    Upgrade,
)
from tests.support.page_checks import check_view
from tests.support.servers import S3Server
from tests.unit.cli.program import run


@pytest.fixture(scope="module")
def console(
    tmp_path_factory: pytest.TempPathFactory, versitygw: S3Server
) -> Iterator[ConsoleProcess]:
    """A console with a table that was moved twice, and one that is frozen."""
    home = tmp_path_factory.mktemp("tables") / "home"
    home.mkdir()
    past = History(Layout(partitioned=True)).then(
        *[Append(2)] * 60,
        Checkpoint(),
        Upgrade(reader=("deletionVectors",), writer=("deletionVectors",)),
        SetProperties((("delta.appendOnly", "false"),)),
        Delete(3),
    )
    bucket = versitygw.create_bucket("lake")
    assert versitygw.folder is not None
    log = versitygw.folder / bucket.name / "orders/_delta_log"
    places = {name: f"{bucket.uri}/{name}" for name in ("orders", "second", "third", "frozen")}
    for history, name in ((past, "orders"), (History().then(Append(1)), "frozen")):
        history.write(open_store(places[name], bucket.storage_options), with_data=True)
    # A few commits a day, until today; more on some days than on others.
    moment = (log / f"{0:020}.json").stat().st_mtime
    for number, commit in enumerate(sorted(log.glob("*.json"), reverse=True)):
        os.utime(commit, (moment, moment))
        moment -= 3_600 * (1 + number * number % 11)
    variables = versitygw.environment()
    for words in (
        ("redirect", "enable", places["orders"], places["second"], "--engine", "local"),
        ("redirect", "enable", places["second"], places["third"], "--engine", "local"),
        ("redirect", "freeze", places["frozen"]),
        ("fleet", "scan", bucket.uri),
    ):
        assert run(*words, home=home, variables=variables).code == 0
    with console_process(home, variables=variables) as console:
        yield console


@pytest.fixture
def page(visitor: Visitor, console: ConsoleProcess) -> Iterator[Page]:
    with visitor:
        yield visitor.open(console.url)


def test_a_table_from_the_redirect_that_leads_to_it(page: Page, album: Album) -> None:
    page.get_by_role("link", name="Redirects").click()
    expect(page.locator(".moves-map > li")).to_have_count(2)
    check_view(page)
    album.take(page, "redirects-twice")
    album.document(page, "redirects", 620)
    page.locator(".moves-map > li").last.get_by_role("link").first.click()
    expect(page.locator("h1")).to_contain_text("orders")
    # The files come with a second request.
    expect(page.locator("#table-files")).to_contain_text("117 files")
    album.document(page, "table")
    page.locator("details summary").first.click()
    check_view(page)
    album.take(page, "table-moved-twice")
    page.get_by_role("link", name="Older").click()
    expect(page.locator("tbody th").last).to_contain_text("0")
    page.get_by_role("link", name="Newest").click()
    expect(page.get_by_role("heading", name="Newest versions")).to_be_visible()


def test_a_table_by_its_place(page: Page, visitor: Visitor) -> None:
    page.get_by_role("link", name="Tables", exact=True).click()
    check_view(page)
    page.get_by_label("Path, URI or name of a table").fill("/there/is/none")
    with visitor.expecting("404"):
        page.get_by_role("button", name="Show").click()
        expect(page.locator("main")).to_contain_text("there is no table")
