"""What holds for every page: axe-core finds nothing, the keyboard is enough, 400 px are enough."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from playwright.sync_api import Locator, Page

from tests.support.browser import NARROW, WIDE

MOST_STOPS = 400
_AXE = "axe_playwright_python"
_RUN_AXE = """async () => {
    const found = await axe.run(document, {resultTypes: ['violations']});
    return found.violations.map(violation => ({
        rule: violation.id,
        help: violation.help,
        nodes: violation.nodes.map(node => `${node.target.join(' ')}: ${node.failureSummary}`),
    }));
}"""
# What has the focus, and how one sees that it has.
_FOCUSED = """() => {
    const element = document.activeElement;
    if (!element || element === document.body || element === document.documentElement) return null;
    if (!window.stopsSeen) window.stopsSeen = new Map();
    if (!stopsSeen.has(element)) stopsSeen.set(element, stopsSeen.size);
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    const outlined = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
    const middle = document.elementFromPoint(
        Math.min(Math.max(box.left + box.width / 2, 0), innerWidth - 1),
        Math.min(Math.max(box.top + box.height / 2, 0), innerHeight - 1),
    );
    return {
        number: stopsSeen.get(element),
        element: element.outerHTML.slice(0, 160),
        name: (
            element.getAttribute('aria-label') || element.innerText || element.value || ''
        ).trim(),
        is_seen: box.width > 0 && box.height > 0
            && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
        is_marked: element.matches(':focus-visible') && (outlined || style.boxShadow !== 'none'),
        is_covered: !(middle && (element.contains(middle) || middle.contains(element))),
    };
}"""
# What was clicked or focused last is where Tab would begin.
_BEGIN_WALK = """() => {
    window.stopsSeen = new Map();
    document.body.tabIndex = -1;
    document.body.focus();
    document.body.removeAttribute('tabindex');
}"""
_TOO_WIDE = """async () => {
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    const said = [`the page is ${document.documentElement.scrollWidth} px wide of ${width}`];
    for (const each of document.body.querySelectorAll('*')) {
        const right = each.getBoundingClientRect().right;
        const inside = each.clientWidth && each.scrollWidth > each.clientWidth + 1;
        if (right > width + 0.5 || inside) said.push(`${right} ${each.outerHTML.slice(0, 120)}`);
    }
    return said;
}"""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the Tab key has led, and whether one sees it."""

    number: int
    element: str
    name: str
    is_seen: bool
    is_marked: bool
    is_covered: bool


@cache
def _axe() -> str:
    """Return the source of axe-core, which its package only carries."""
    return (resources.files(_AXE) / "axe.min.js").read_text("utf-8")


def axe(page: Page) -> None:
    """Fail if axe-core finds something in the page as it is now."""
    page.evaluate(_axe())
    found: list[dict[str, Any]] = page.evaluate(_RUN_AXE)
    assert not found, "\n".join(
        f"{each['rule']}: {each['help']}\n  " + "\n  ".join(each["nodes"]) for each in found
    )


def focused(page: Page) -> Stop | None:
    """Return what has the focus, or ``None`` if that is the page itself."""
    found = page.evaluate(_FOCUSED)
    return None if found is None else Stop(**found)


def walk(page: Page) -> list[Stop]:
    """Press Tab until every stop was visited; fail where one doesn't see the focus."""
    page.evaluate(_BEGIN_WALK)
    stops: list[Stop] = []
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        stop = focused(page)
        if stop is None or stop.number < len(stops):
            break
        stops.append(stop)
    else:
        raise AssertionError(f"no end after {MOST_STOPS} stops")
    hidden = [each for each in stops if not each.is_seen or not each.is_marked or each.is_covered]
    assert not hidden, "\n".join(["one doesn't see where the focus is:", *map(str, hidden)])
    return stops


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            stop = focused(page)
            assert stop is not None
            assert stop.is_seen, stop
            assert stop.is_marked, stop
            return
    raise AssertionError(f"Tab doesn't lead to {wanted}")


def press(page: Page, wanted: Locator, key: str = "Enter") -> None:
    """Go to an element by Tab alone, and press a key there."""
    tab_to(page, wanted)
    page.keyboard.press(key)


def check_view(page: Page) -> None:
    """Fail if somebody can't use a page: in the light, in the dark, by keys, or on 400 px."""
    axe(page)
    page.emulate_media(color_scheme="dark")
    axe(page)
    page.emulate_media(color_scheme="light")
    walk(page)
    check_narrow(page)
    page.set_viewport_size(NARROW)
    axe(page)
    walk(page)
    page.set_viewport_size(WIDE)


def check_narrow(page: Page) -> None:
    """Fail if a page of 400 px has to be scrolled sideways; parts of it may scroll."""
    page.set_viewport_size(NARROW)
    found = page.evaluate(_TOO_WIDE)
    page.set_viewport_size(WIDE)
    assert not found, "\n".join(found)
