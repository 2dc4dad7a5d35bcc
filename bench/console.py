"""How fast the console's pages come, how large they are, and whether its memory stays as it is.

* ``first paint``: the fleet's page with 10,000 tables, and the page of a table with 100,000
  commits, in Chromium with an empty cache, until something is seen; the peer is a second.
* ``first payload``: all bytes of that first visit, with style sheet, script, and what the page
  loads when it has been seen; 200 kB.
* ``memory``: of the server after 1,000 pages that Chromium has loaded, against before. 100 loads
  come first, in which everything is read once.

Run it with ``make bench``, or alone: ``python bench/console.py [LOADS]``.
"""

from __future__ import annotations

import html
import http.client
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import psutil
from support import inventory, logs
from support.measure import Bar, report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.console_process import ConsoleProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
TABLES, COMMITS, LOADS = 10_000, 100_000, 1_000
WARM_LOADS, PAINTS = 100, 5
PAINT_S, PAYLOAD_KB, MEMORY = 1.0, 200.0, 1.1
_PAINT = """() => new Promise(done => {
    const told = list => done(list.find(each => each.name === 'first-contentful-paint').startTime);
    const found = performance.getEntriesByType('paint');
    if (found.some(each => each.name === 'first-contentful-paint')) told(found);
    else new PerformanceObserver(list => told(list.getEntries())).observe({type: 'paint'});
})"""


@contextmanager
def console(folder: Path, tables: int) -> Iterator[ConsoleProcess]:
    """Run a console whose fleet has so many tables."""
    from tests.support.console_process import console_process

    home = folder / "home"
    home.mkdir()
    inventory.fill(home, tables)
    with console_process(home, variables={"LAKEFERRY_SQL_URL": inventory.url(home)}) as running:
        yield running


def payload(running: ConsoleProcess, path: str) -> int:
    """Return the bytes of a first visit to a page: with headers, and with what the page loads."""
    parts = urlsplit(running.url)
    server = http.client.HTTPConnection(str(parts.hostname), parts.port)
    cookie: dict[str, str] = {}

    def get(asked: str) -> tuple[int, str, http.client.HTTPMessage]:
        server.request("GET", asked, headers=cookie)
        answer = server.getresponse()
        body = answer.read()
        assert answer.status < http.client.BAD_REQUEST, (asked, answer.status)
        return len(body) + len(bytes(answer.headers)), body.decode(errors="replace"), answer.headers

    _, _, headers = get(f"{parts.path}?{parts.query}")
    cookie["Cookie"] = headers["Set-Cookie"].partition(";")[0]
    total, page, _ = get(running.page(path).partition(parts.netloc)[2])
    links = re.findall(r'(?:href|src)="(/[^"]*/static/[^"]+)"', page)
    links += re.findall(r'data-load="([^"]+)"', page)
    for link in sorted(set(links)):
        total += get(html.unescape(link))[0]
    server.close()
    return total


def first_paint_s(browser: Browser, running: ConsoleProcess, path: str) -> float:
    """Return after how long a visitor with an empty cache sees something: the median."""
    found = []
    for _ in range(PAINTS + 1):
        context = browser.new_context()
        page = context.new_page()
        page.goto(running.url)
        # What signing in has left in the cache is asked for again.
        session = context.new_cdp_session(page)
        session.send("Network.clearBrowserCache")
        page.goto(running.page(path))
        found.append(page.evaluate(_PAINT) / 1_000)
        context.close()
    return statistics.median(found[1:])


def memory_mib(browser: Browser, running: ConsoleProcess, paths: list[str], loads: int) -> float:
    """Load pages by turns, and return what the server holds then."""
    page = browser.new_page()
    page.goto(running.url)
    for number in range(loads):
        page.goto(running.page(paths[number % len(paths)]))
    page.close()
    return psutil.Process(running.process.pid).memory_info().rss / (1 << 20)


def main() -> int:
    loads = int(sys.argv[1]) if len(sys.argv) > 1 else LOADS
    from tests.support import components
    from tests.support.browser import chromium

    long_log = logs.long(COMMITS)
    with (
        tempfile.TemporaryDirectory() as folder,
        console(Path(folder), TABLES) as running,
        chromium(components.require("chromium")) as browser,
    ):
        pages = {
            f"fleet of {TABLES:,} tables": "/fleet",
            f"table of {COMMITS:,} commits": f"/tables?at={quote(str(long_log))}",
        }
        bars = []
        for what, path in pages.items():
            sent_kb = payload(running, path) / 1_000
            paint_s = first_paint_s(browser, running, path)
            bars.append(Bar(f"{what}: first paint, to 1 s", paint_s, PAINT_S, "s", 1.0))
            bars.append(Bar(f"{what}: first payload, to 200 kB", sent_kb, PAYLOAD_KB, "kB", 1.0))
        asked = [*pages.values(), "/jobs", "/fleet?text=table_00&sort=size_bytes&down=yes"]
        before = memory_mib(browser, running, asked, WARM_LOADS)
        after = memory_mib(browser, running, asked, loads)
        bars.append(Bar(f"memory after {loads:,} loads, to before", after, before, "MiB", MEMORY))
    return report(bars)


if __name__ == "__main__":
    sys.exit(main())
