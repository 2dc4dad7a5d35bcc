"""What the other tests of this folder rely on: a page that does wrong is found out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Error

from tests.support.browser import Visitor
from tests.support.page_checks import axe, check_narrow, press, tab_to, walk

GOOD = """<!doctype html><html lang="en"><head><title>Good</title>
<link rel="icon" href="data:,">
<style nonce="n">a { color: #004; } :focus-visible { outline: 2px solid #004; }</style></head>
<body><main><h1>Good</h1><a href="#one">one</a> <a href="#two">two</a></main></body></html>"""
PAGES = {
    "/good": GOOD,
    "/script": GOOD.replace("</main>", "<script>document.title = 'ran'</script></main>"),
    "/exception": GOOD.replace("</main>", "<script nonce='n'>nothing.there()</script></main>"),
    "/error": GOOD.replace("</main>", "<script nonce='n'>console.error('bad')</script></main>"),
    "/missing": GOOD.replace("</main>", "<img alt='' src='/not-there.png'></main>"),
    "/elsewhere": GOOD.replace("</main>", "<img alt='' src='http://example.com/x.png'></main>"),
    "/unnamed": GOOD.replace("</main>", "<input></main>"),
    "/wide": GOOD.replace("</main>", "<p style='width: 500px'>wide</p></main>"),
    "/scrolls": GOOD.replace(
        "</main>", "<div style='overflow-x: auto'><p style='width: 500px'>wide</p></div></main>"
    ),
    "/unseen": GOOD.replace("outline: 2px solid #004", "outline: none"),
    "/covered": GOOD.replace(
        "</main>", "</main><div style='position: fixed; inset: 0; background: #fff'></div>"
    ),
}
POLICY = "default-src 'none'; img-src * data:; style-src 'nonce-n'; script-src 'nonce-n'"
LOOSE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = PAGES.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        has_styles = b"style='" in body
        self.send_header("Content-Security-Policy", LOOSE if has_styles else POLICY)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_good_page_is_good(visitor: Visitor, site: str) -> None:
    page = visitor.open(f"{site}/good")
    axe(page)
    check_narrow(page)
    assert [stop.name for stop in walk(page)] == ["one", "two"]
    press(page, page.get_by_role("link", name="two"))
    assert page.url.endswith("#two")
    visitor.check()


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("script", "content security policy: script-src-elem blocked inline"),
        ("exception", "exception: .*nothing is not defined"),
        ("error", "console error: bad"),
        ("missing", "answer 404: GET .*not-there.png"),
        ("elsewhere", "request to another host: GET http://example.com/x.png"),
    ],
)
def test_what_a_page_may_not_do_is_noted(
    visitor: Visitor, site: str, path: str, problem: str
) -> None:
    with visitor.expecting(problem):
        visitor.open(f"{site}/{path}")
    # Some things are noted twice, by the page and by the browser.
    visitor.forgive("console error", "request failed: .*example.com")
    visitor.check()


def test_a_server_that_does_not_answer_is_noted(visitor: Visitor) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        gone = f"http://127.0.0.1:{server.server_port}/"
    refused = "ERR_CONNECTION_REFUSED"
    with visitor.expecting(f"request failed: .*{refused}"), pytest.raises(Error, match=refused):
        visitor.open(gone)


def test_what_was_not_expected_fails_the_test(visitor: Visitor, site: str) -> None:
    visitor.open(f"{site}/exception")
    visitor.wait_for(lambda: visitor.problems)
    with pytest.raises(AssertionError, match="nothing is not defined"):
        visitor.check()
    visitor.forgive("exception")


@pytest.mark.parametrize(
    ("path", "check", "problem"),
    [
        ("unnamed", axe, "label: Form elements must have labels"),
        ("wide", check_narrow, "the page is 5.. px wide of 400"),
        ("unseen", walk, "is_marked=False"),
        ("covered", walk, "is_covered=True"),
    ],
)
def test_what_somebody_cannot_use_is_found(
    visitor: Visitor, site: str, path: str, check: object, problem: str
) -> None:
    page = visitor.open(f"{site}/{path}")
    assert callable(check)
    with pytest.raises(AssertionError, match=problem):
        check(page)


def test_a_part_of_a_page_may_scroll(visitor: Visitor, site: str) -> None:
    check_narrow(visitor.open(f"{site}/scrolls"))


def test_what_tab_does_not_reach_is_no_stop(visitor: Visitor, site: str) -> None:
    page = visitor.open(f"{site}/good")
    with pytest.raises(AssertionError, match="Tab doesn't lead to"):
        tab_to(page, page.get_by_role("heading"))
