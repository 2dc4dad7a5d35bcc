"""The console of ``serve``: what a token lets in, and what it doesn't."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Album, NewVisitor
from tests.support.browser import Page, Visitor
from tests.support.console_process import ConsoleProcess, console_process
from tests.support.page_checks import axe, check_narrow, press, walk
from tests.support.small_tables import SmallTable
from tests.unit.cli.program import run


@dataclass(frozen=True, slots=True)
class Served:
    """A server with two datasets and a fleet of one table."""

    console: ConsoleProcess
    home: Path
    root: Path

    def token(self, *words: str) -> tuple[str, str]:
        """Make a token; return it and its id."""
        asked = ("token", "create", "--root", self.root, *words, "--json")
        token: str = run(*asked, home=self.home).document["token"]
        return token, token.split("_")[1]

    def revoke(self, token_id: str) -> None:
        asked = ("token", "revoke", token_id, "--root", self.root, "--json")
        assert run(*asked, home=self.home).document["changed"] is True


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    home, root = folder / "home", folder / "root"
    home.mkdir()
    for name in ("ours/orders", "theirs/salaries"):
        SmallTable().write(root / name)
    SmallTable().write(folder / "lake/fleet-table")
    for words in (["scan", folder / "lake"], ["plan", "--to", folder / "new"]):
        assert run("fleet", *words, home=home).code == 0
    with console_process(home, "serve", "--root", root) as console:
        yield Served(console, home, root)


def sign_in(visitor: Visitor, served: Served, token: str) -> Page:
    """Sign in by the form that a browser is led to."""
    with visitor.expecting("answer 401"):
        page = visitor.open(served.console.url)
    visitor.forgive("console error: Failed to load resource.*401")
    page.get_by_label("Access token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()
    return page


def test_the_form_to_sign_in_is_for_everybody(
    visitor: Visitor, served: Served, album: Album
) -> None:
    token, _ = served.token()
    with visitor:
        with visitor.expecting("answer 401"):
            page = visitor.open(served.console.url)
        visitor.forgive("console error: Failed to load resource.*401")
        axe(page)
        check_narrow(page)
        assert [stop.name for stop in walk(page)] == ["", "Sign in"]
        album.take(page, "sign-in")
        field = page.get_by_label("Access token")
        for wrong in ("lf_wrong", f"{token}x"):
            field.fill(wrong)
            with visitor.expecting("answer 401: POST"):
                page.keyboard.press("Enter")
                page.get_by_role("alert").wait_for()
            visitor.forgive("console error: Failed to load resource.*401")
            # What was typed doesn't come back.
            assert wrong not in page.content()
        field.fill(token)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Sign out").wait_for()
        assert token not in page.content()
        assert all(token not in cookie["value"] for cookie in visitor.context.cookies())
        press(page, page.get_by_role("button", name="Sign out"))
        page.get_by_label("Access token").wait_for()
        with visitor.expecting("answer 401"):
            page.goto(served.console.page("/fleet"))
        visitor.forgive("console error: Failed to load resource.*401")


def test_a_token_to_read_sees_the_fleet_and_does_nothing(
    visitor: Visitor, served: Served, album: Album
) -> None:
    token, _ = served.token("--scope", "read")
    with visitor:
        page = sign_in(visitor, served, token)
        page.goto(served.console.page("/fleet"))
        expect(page.get_by_text("fleet-table").first).to_be_visible()
        expect(page.get_by_text("read only")).to_be_visible()
        for path in ("/fleet", "/fleet/tables/1", "/jobs", "/jobs/1"):
            page.goto(served.console.page(path))
            forms = page.locator("form[method=post]").all()
            assert [form.get_attribute("action") for form in forms] == ["/-/sign-out"], path
        page.goto(served.console.page("/fleet"))
        album.take(page, "fleet-read-only")
        # Even with the secret of its own session, which every page has.
        said = page.evaluate(
            """async () => {
                const csrf = document.querySelector('input[name=csrf]').value;
                const found = {};
                for (const path of ['run', 'pause', 'scan', 'plan', 'withdraw']) {
                    const fields = {csrf, confirmed: 'yes', place: '/', to: '/x'};
                    const body = new URLSearchParams(fields);
                    found[path] = (await fetch('/-/fleet/' + path, {method: 'POST', body})).status;
                }
                return found;
            }"""
        )
        assert said == dict.fromkeys(("run", "pause", "scan", "plan", "withdraw"), 403)
        visitor.forgive("answer 403: POST", "console error: Failed to load resource.*403")
    status = run("fleet", "status", "--json", home=served.home).document
    assert (status["paused"], status["counts"]["PLANNED"]) == (False, 1)


@pytest.mark.parametrize("scope", ["read", "write"])
def test_a_token_for_one_dataset_sees_that_one_alone(
    visitor: Visitor, served: Served, scope: str
) -> None:
    token, _ = served.token("--dataset", "ours/orders", "--scope", scope)
    with visitor:
        page = sign_in(visitor, served, token)
        pages = [page.content()]
        for path in ("/fleet", "/jobs", "/jobs/1", "/fleet/tables/1", "/fleet/report"):
            answer = page.goto(served.console.page(path))
            assert answer is not None
            assert answer.status == 404, path
            pages.append(page.content())
        asked = page.evaluate("fetch('/-/live').then(answer => answer.status)")
        assert asked == 404
        visitor.forgive("answer 404", "console error: Failed to load resource.*404")
        for content in pages:
            assert not re.search("salaries|fleet-table|catalog.sqlite", content)


def test_a_revoked_token_ends_its_session_and_no_other(
    new_visitor: NewVisitor, served: Served
) -> None:
    (first, first_id), (second, _) = served.token(), served.token()
    with new_visitor() as one, new_visitor() as two:
        revoked, page = sign_in(one, served, first), sign_in(two, served, second)
        served.revoke(first_id)
        # The page asks again by itself when something happens, and at the next click.
        with one.expecting("answer 401"):
            revoked.wait_for_timeout(1_000)
            revoked.goto(served.console.page("/jobs"))
        revoked.get_by_label("Access token").wait_for()
        one.forgive("console error: Failed to load resource.*401", "answer 401")
        page.goto(served.console.page("/jobs"))
        expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


def test_programs_get_the_list_of_datasets_as_before(visitor: Visitor, served: Served) -> None:
    token, _ = served.token()
    with visitor:
        answer = visitor.context.request.get(
            served.console.url,
            headers={"Accept": "application/json", "Authorization": f"Bearer {token}"},
        )
        names = [each["name"] for each in json.loads(answer.text())["datasets"]]
        assert names == ["ours/orders", "theirs/salaries"]
