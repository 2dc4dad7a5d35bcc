"""Real Chromium, and visitors whose pages may not do what a page of ours never does.

A visitor is a browser context with cookies of its own, and notes everything that goes wrong in
its pages: errors on the console, exceptions, requests that fail, answers of 400 and above,
violations of the content security policy, requests to another host. A test in which that happens
fails, unless it says with :meth:`Visitor.expecting` that it has to.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    ViewportSize,
    expect,
    sync_playwright,
)

WIDE: ViewportSize = {"width": 1280, "height": 800}
NARROW: ViewportSize = {"width": 400, "height": 800}
WITHIN_S = 60.0
REBOUND = "rebound.example"
"""A name that leads to this machine, in the browser alone."""
expect.set_options(timeout=WITHIN_S * 1_000)
_OPTIONS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # One name leads to this machine, as a stranger's may, and no other leads anywhere.
    f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_VIOLATION_BINDING = "noteViolationOfPolicy"
_LISTEN_FOR_VIOLATIONS = f"""
addEventListener('securitypolicyviolation', violation => {_VIOLATION_BINDING}(
    `${{violation.effectiveDirective}} blocked ${{violation.blockedURI}}`
), true);
"""
_ABORTED = "net::ERR_ABORTED"


@contextmanager
def chromium(program: Path) -> Iterator[Browser]:
    """Run Chromium without a window until the context ends."""
    options = list(_OPTIONS)
    if os.geteuid() == 0:
        # Its sandbox needs a user who isn't root.
        options.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=options)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Somebody who looks at pages; see the module's docstring."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        """``options`` are those of a browser context."""
        usual = {"viewport": WIDE, "color_scheme": "light", "reduced_motion": "reduce"}
        self.problems: list[str] = []
        self.requests: list[Request] = []
        self.context: BrowserContext = browser.new_context(**usual | options)
        self.context.set_default_timeout(WITHIN_S * 1_000)
        self._hosts: set[str] = set()
        self._listen()
        self.page: Page = self.context.new_page()

    def _listen(self) -> None:
        self.context.on("console", self._note_message)
        self.context.on("weberror", lambda error: self._note(f"exception: {error.error}"))
        self.context.on("request", self._note_request)
        self.context.on("requestfailed", self._note_failure)
        self.context.on("response", self._note_answer)
        self.context.expose_binding(
            _VIOLATION_BINDING, lambda _, said: self._note(f"content security policy: {said}")
        )
        self.context.add_init_script(_LISTEN_FOR_VIOLATIONS)

    def open(self, url: str) -> Page:
        """Open a URL, whose host may be asked from now on; return the page."""
        self.allow(url)
        self.page.goto(url)
        return self.page

    def allow(self, url: str) -> None:
        """Let pages ask the host of a URL."""
        self._hosts.add(urlsplit(url).netloc)

    @contextmanager
    def expecting(self, *patterns: str) -> Iterator[None]:
        """Forgive what matches one of the patterns; each has to match something by the end."""
        before = len(self.problems)
        yield
        self.wait_for(
            lambda: all(_found(each, self.problems[before:]) for each in patterns),
            lambda: f"{patterns} expected, found {self.problems[before:]}",
        )
        self.forgive(*patterns, since=before)

    def forgive(self, *patterns: str, since: int = 0) -> None:
        """Forget what went wrong and matches one of the patterns."""
        kept = [
            each
            for each in self.problems[since:]
            if not any(re.search(pattern, each) for pattern in patterns)
        ]
        self.problems[since:] = kept

    def wait_for(
        self, holds: Callable[[], object], explain: Callable[[], str] = lambda: "it didn't happen"
    ) -> None:
        """Wait for something that isn't in the page; the browser's events arrive meanwhile."""
        deadline = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < deadline, explain()
            # Playwright's own wait: events of the browser are handled only inside of its calls.
            self.page.wait_for_timeout(25)

    def check(self) -> None:
        """Fail if something went wrong that nobody expected."""
        assert not self.problems, "\n".join(["in the browser:", *self.problems])

    def leave(self) -> None:
        """Close the pages, which don't see then how their server ends."""
        self.context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _note(self, problem: str) -> None:
        self.problems.append(problem)

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self._note(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def _note_request(self, request: Request) -> None:
        self.requests.append(request)
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "about") and parts.netloc not in self._hosts:
            self._note(f"request to another host: {request.method} {request.url}")

    def _note_failure(self, request: Request) -> None:
        # A page that is left stops what it was loading, as its connection for events.
        if request.failure != _ABORTED:
            self._note(f"request failed: {request.method} {request.url}: {request.failure}")

    def _note_answer(self, response: Response) -> None:
        if response.status >= 400:
            asked = response.request
            self._note(f"answer {response.status}: {asked.method} {asked.url}")


def _found(pattern: str, problems: list[str]) -> bool:
    return any(re.search(pattern, each) for each in problems)


__all__ = ["NARROW", "REBOUND", "WIDE", "WITHIN_S", "Browser", "Page", "Visitor", "chromium"]
