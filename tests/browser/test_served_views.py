"""Datasets that were pushed and tables that were exported from lakeFS, on the pages of a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from lakeferry.export.job_queue import Queue
from lakeferry.storage import open_store
from tests.browser.conftest import Album
from tests.browser.test_server_console import Served, sign_in
from tests.support.browser import Page, Visitor
from tests.support.console_process import console_process
from tests.support.page_checks import check_view, press
from tests.support.repositories import Repository
from tests.support.servers import WEBHOOK_SECRET, LakeFSServer
from tests.support.serving import until
from tests.support.small_tables import SmallTable
from tests.unit.cli.program import run

PUSHED = ("sales/orders", "sales/returns", "web/clicks")


@pytest.fixture(scope="module")
def repository(lakefs: LakeFSServer) -> Repository:
    """A repository with a table, and a description of one that somebody will break."""
    lakefs.create_repository("shop")
    made = Repository(lakefs, "shop", {})
    made.append(1, 2, 3, path="orders")
    described = {
        f"{name}.yaml": f"name: {name}\ntype: delta\npath: {name}\n".encode()
        for name in ("orders", "broken")
    }
    made.upload(described, path="_lakefs_tables")
    made.commit()
    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, repository: Repository) -> Iterator[Served]:
    """A server to which tables were pushed, and that has begun to export."""
    folder = tmp_path_factory.mktemp("served")
    home, root = folder / "home", folder / "root"
    home.mkdir()
    variables = {**repository.variables, "LAKEFERRY_WEBHOOK_SECRET": WEBHOOK_SECRET}
    with console_process(home, "serve", "--root", root, variables=variables) as console:
        server = Served(console, home, root)
        pushes, _ = server.token("--scope", "write", "--name", "nightly", "--note", "asked by Ana")
        server.token("--dataset", "sales/orders", "--name", "auditor", "--expires", "30d")
        for number, name in enumerate(PUSHED):
            place = folder / f"table-{number}"
            SmallTable(3, filler_bytes=1 << (12 + 4 * number)).write(place)
            words = ("push", place, f"{console.url}/{name}", "--token", pushes)
            assert run(*words, home=home).code == 0
        yield server


def as_operator(visitor: Visitor, served: Served) -> Page:
    token, _ = served.token("--scope", "write", "--name", "operator")
    return sign_in(visitor, served, token)


def test_datasets_show_what_was_pushed_and_which_tokens_there_are(
    visitor: Visitor, served: Served, album: Album
) -> None:
    with visitor:
        page = as_operator(visitor, served)
        page.get_by_role("link", name="Datasets", exact=True).click()
        rows = page.get_by_role("region", name="Datasets", exact=True).locator("tbody tr")
        expect(rows).to_have_count(len(PUSHED))
        for row, name in zip(rows.all(), PUSHED, strict=True):
            expect(row).to_contain_text(name)
            expect(row).to_contain_text("by nightly")
        tokens = page.get_by_role("region", name="Tokens", exact=True)
        for text in ("nightly", "asked by Ana", "auditor", "operator"):
            expect(tokens).to_contain_text(text)
        check_view(page)
        album.take(page, "datasets")


def test_a_dataset_is_renamed_published_and_deleted_by_keys(
    visitor: Visitor, served: Served, album: Album
) -> None:
    with visitor:
        page = as_operator(visitor, served)
        page.goto(served.console.page("/datasets/sales/returns"))
        expect(page.locator("main")).to_contain_text("Send new versions")
        tokens = page.get_by_role("region", name="Tokens", exact=True)
        expect(tokens).to_contain_text("nightly")
        expect(tokens).not_to_contain_text("auditor")
        check_view(page)
        album.take(page, "dataset")
        dialog = page.get_by_role("dialog")
        press(page, page.get_by_label("New name"), "Control+A")
        page.keyboard.type("sales/returned")
        page.keyboard.press("Enter")
        expect(dialog.locator("code")).to_contain_text("lakeferry dataset rename")
        check_view(page)
        dialog.get_by_role("button", name="Rename").press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("sales/returned")
        press(page, page.get_by_role("button", name="Make it public…"))
        dialog.get_by_role("button", name="Make it public").press("Enter")
        expect(page.locator("#dataset-facts")).to_contain_text("(public)")
        press(page, page.get_by_role("button", name="Delete…"))
        expect(dialog).to_contain_text("Nobody can pull sales/returned")
        check_view(page)
        album.take(page, "dataset-delete")
        dialog.get_by_role("button", name="Delete").press("Enter")
        rows = page.get_by_role("region", name="Datasets", exact=True).locator("tbody tr")
        expect(rows).to_have_count(len(PUSHED) - 1)
        listed = run("ls", served.root, "--json", home=served.home).document["datasets"]
        assert [each["name"] for each in listed] == ["sales/orders", "web/clicks"]


def test_a_token_for_one_dataset_sees_that_one_and_no_tokens(
    visitor: Visitor, served: Served, album: Album
) -> None:
    token, _ = served.token("--dataset", "sales/orders")
    with visitor:
        page = sign_in(visitor, served, token)
        page.get_by_role("link", name="sales/orders").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("sales/orders")
        assert page.locator("form[method=post]").count() == 1, "to sign out"
        for text in ("nightly", "auditor", "web/clicks"):
            expect(page.locator("body")).not_to_contain_text(text)
        check_view(page)
        album.take(page, "dataset-read-only")


def test_exports_are_shown_as_lakefs_asks_for_them(
    visitor: Visitor, served: Served, repository: Repository, album: Album
) -> None:
    queue = Queue(open_store(str(served.root)))
    with visitor:
        page = as_operator(visitor, served)
        page.get_by_role("link", name="Exports", exact=True).click()
        expect(page.locator("main")).to_contain_text("lakeferry lakefs init REPOSITORY")
        check_view(page)
        album.take(page, "exports-none")
        asked = ("lakefs", "init", repository.name, "--url", served.console.url.rstrip("/"))
        assert run(*asked, home=served.home, variables=repository.variables).code == 0
        # The commit of the action is the first that calls the server. It changes no table.
        until(lambda: len(queue.newest_done(5)) == 1, served.console.log.read_text)
        repository.upload({f"_delta_log/{0:020}.json": b"{"}, path="broken")
        repository.append(4, path="orders")
        wrong = repository.commit()
        until(lambda: bool(queue.failures()), served.console.log.read_text)
        repository.append(5, path="orders")
        commit = repository.commit()
        until(lambda: len(queue.newest_done(5)) == 2, served.console.log.read_text)
        page.reload()
        done = page.get_by_role("region", name="Finished exports")
        expect(done).to_contain_text(commit[:12])
        expect(done).to_contain_text("orders")
        expect(done).to_contain_text("no table had changed")
        for text in (wrong[:12], "broken", "corrupt_log"):
            expect(page.locator("main .problem")).to_contain_text(text)
        check_view(page)
        album.take(page, "exports")
