"""Pages of other origins change and see nothing, and the token of ``ui`` stays where it was."""

from __future__ import annotations

import html
import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

import lakeferry
from tests.browser.conftest import NewVisitor
from tests.support.browser import REBOUND, Visitor
from tests.support.console_process import ConsoleProcess, console_process
from tests.support.small_tables import SmallTable
from tests.unit.cli.program import environment, run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose fleet has one planned table."""
    folder = tmp_path_factory.mktemp("safety")
    home = folder / "home"
    home.mkdir()
    SmallTable().write(folder / "lake/orders")
    for words in (["scan", folder / "lake"], ["plan", "--to", folder / "new"]):
        assert run("fleet", *words, home=home).code == 0
    return home


@pytest.fixture(scope="module")
def console(home: Path) -> Iterator[ConsoleProcess]:
    with console_process(home) as console:
        yield console


@contextmanager
def page_of_a_stranger(body: str) -> Iterator[str]:
    """Serve one page on another port, which is another origin and the same site."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = f"<!doctype html><title>Stranger</title><link rel=icon href='data:,'>{body}"
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def entries(home: Path) -> int:
    """Return how long the fleet's history is, which every change makes longer."""
    return len(lakeferry.Fleet(environment=environment(home)).history())


def form(url: str, fields: dict[str, str]) -> str:
    inputs = "".join(
        f"<input type=hidden name={name} value='{html.escape(value)}'>"
        for name, value in fields.items()
    )
    return f"<form id=f method=post action='{url}'>{inputs}</form><script>f.submit()</script>"


@pytest.mark.parametrize("policy", ["", "<meta name=referrer content=no-referrer>"])
@pytest.mark.parametrize("action", ["/fleet/pause", "/fleet/run", "/sign-out"])
def test_a_form_of_another_origin_changes_nothing(
    visitor: Visitor, console: ConsoleProcess, home: Path, action: str, policy: str
) -> None:
    with visitor:
        page = visitor.open(console.url)
        # Even a form that has got hold of the session's own secret.
        csrf = page.locator("input[name=csrf]").first.get_attribute("value")
        assert csrf
        before = entries(home)
        asked = form(console.page(action), {"csrf": csrf, "confirmed": "yes"})
        with page_of_a_stranger(policy + asked) as url, visitor.expecting("answer 403: POST"):
            visitor.open(url)
            page.get_by_text("the request came from another site").wait_for()
        visitor.forgive("console error: Failed to load resource.*403")
        assert entries(home) == before
        # The session is still there.
        page.goto(console.page("/fleet"))
        expect(page.get_by_role("heading", name="Fleet")).to_be_visible()


def test_a_form_without_the_secret_of_its_session_changes_nothing(
    visitor: Visitor, console: ConsoleProcess, home: Path
) -> None:
    with visitor:
        page = visitor.open(console.url)
        before = entries(home)
        for wrong in ("", "x", "é"):
            page.goto(console.page("/fleet"))
            with visitor.expecting("answer 403: POST"):
                # At once: the page renews its forms when something has happened.
                page.locator("form[action$='/fleet/run'] input[name=csrf]").evaluate(
                    "(field, wrong) => { field.value = wrong; field.form.requestSubmit(); }", wrong
                )
                page.get_by_role("dialog").get_by_text("the form is too old").wait_for()
            visitor.forgive("console error: Failed to load resource.*403")
        assert entries(home) == before


def test_another_origin_reads_nothing(visitor: Visitor, console: ConsoleProcess) -> None:
    asked = f"""<p id=said></p><iframe src='{console.page("/fleet")}'></iframe>
        <script src='{console.page("/fleet")}'></script><script>
        const tries = [
            fetch('{console.page("/fleet")}', {{credentials: 'include'}}).then(a => a.text()),
            fetch('{console.page("/fleet")}', {{credentials: 'include', mode: 'no-cors'}})
                .then(answer => answer.text()),
            new Promise((done, failed) => {{
                const source = new EventSource(
                    '{console.page("/live")}', {{withCredentials: true}}
                );
                source.onopen = () => done('open');
                source.onerror = () => failed();
            }}),
        ];
        Promise.allSettled(tries).then(all => {{
            said.innerText = all.map(each => each.value || each.status).join();
        }});
        </script>"""
    with visitor:
        visitor.open(console.url)
        with page_of_a_stranger(asked) as url:
            page = visitor.open(url)
            expect(page.locator("#said")).to_have_text("rejected,rejected,rejected")
            frame = page.frames[-1]
            assert "Fleet" not in frame.content()
        # The browser says of each why it was refused.
        assert visitor.problems
        visitor.problems.clear()


def test_a_name_that_leads_to_this_machine_does_not_open_the_console(
    visitor: Visitor, console: ConsoleProcess
) -> None:
    with visitor:
        page = visitor.open(console.url.replace("127.0.0.1", REBOUND))
        expect(page.locator("main")).to_contain_text("this address isn't the console's")
        assert not visitor.context.cookies()
        visitor.problems.clear()


def test_the_token_of_the_first_address_is_nowhere_afterwards(
    visitor: Visitor, console: ConsoleProcess
) -> None:
    (token,) = parse_qs(urlsplit(console.url).query)["token"]
    with visitor:
        page = visitor.open(console.url)
        page.wait_for_url("**/fleet")
        page.get_by_role("link", name="Jobs", exact=True).click()
        page.wait_for_url("**/jobs")
        page.go_back()
        page.wait_for_url("**/fleet")
        assert page.evaluate("document.referrer") == ""
        assert token not in page.content()
        first, *others = visitor.requests
        assert token in first.url
        for request in others:
            assert token not in request.url
            assert token not in str(request.all_headers()), request.url
        assert all(token not in cookie["value"] for cookie in visitor.context.cookies())
        for cookie in visitor.context.cookies():
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def test_without_the_token_nothing_is_seen(visitor: Visitor, console: ConsoleProcess) -> None:
    with visitor:
        for path in ("/", "/fleet", "/jobs", "/fleet/tables/1", "/fleet/report"):
            with visitor.expecting("answer 401"):
                page = visitor.open(console.page(path))
            visitor.forgive("console error: Failed to load resource.*401")
            assert "orders" not in page.content()
        with visitor.expecting("answer 401"):
            assert not page.evaluate("fetch('/-/live').then(answer => answer.ok)")
        with visitor.expecting("answer 401"):
            page = visitor.open(console.page("/sign-in?token=wrong"))
            expect(page.get_by_role("alert")).to_contain_text("isn't the address")
        visitor.forgive("console error: Failed to load resource.*401")


def test_two_consoles_do_not_share_a_session(
    new_visitor: NewVisitor, console: ConsoleProcess, tmp_path: Path
) -> None:
    with new_visitor() as visitor, console_process(tmp_path / "other") as other:
        page = visitor.open(console.url)
        expect(page.get_by_text("1 table waits to be moved")).to_be_visible()
        visitor.open(other.url)
        expect(page.get_by_role("heading", name="Begin: find your tables")).to_be_visible()
        # Each still knows its visitor.
        visitor.open(console.page("/fleet"))
        expect(page.get_by_text("1 table waits to be moved")).to_be_visible()
        ours, theirs = (
            next(c for c in visitor.context.cookies() if c["name"].endswith(str(each.port)))
            for each in (console, other)
        )
        # What opens one doesn't open the other, under either name.
        for name in (ours["name"], theirs["name"]):
            asked = http.client.HTTPConnection("127.0.0.1", other.port)
            asked.request("GET", "/-/fleet", headers={"Cookie": f"{name}={ours['value']}"})
            assert asked.getresponse().status == 401
            asked.close()
        visitor.leave()
