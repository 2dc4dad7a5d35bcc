"""One browser per worker, a new visitor per test, and pictures of what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from lakeferry.storage import Store
from tests.support import components
from tests.support.browser import NARROW, WIDE, Browser, Page, Visitor, chromium
from tests.support.small_png import small_png

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "pictures"
DOCUMENTED = ROOT / "docs" / "images"
_DOCUMENTED_WIDTH = 1_120
NewVisitor = Callable[..., Visitor]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that renews the documentation's pictures."""
    parser.addoption(
        "--update-screenshots",
        action="store_true",
        help="write the pictures of the console that the documentation shows",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each module on one worker: its tests share a browser and servers."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group(f"browser {item.path.stem}"))


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, one for all tests of a worker."""
    with chromium(components.require("chromium")) as running:
        yield running


@pytest.fixture
def new_visitor(browser: Browser) -> Iterator[NewVisitor]:
    """Make visitors, each with cookies of its own; nothing may go wrong in their pages."""
    visitors: list[Visitor] = []

    def make(**options: Any) -> Visitor:
        visitors.append(Visitor(browser, **options))
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.leave()
    for visitor in visitors:
        visitor.check()


@pytest.fixture
def visitor(new_visitor: NewVisitor) -> Visitor:
    """The visitor of a test that needs one."""
    return new_visitor()


@dataclass(frozen=True, slots=True)
class Album:
    """Where pictures of pages are kept, by the names of the tests that took them."""

    folder: Path
    documented: Path | None

    def take(self, page: Page, name: str) -> None:
        """Keep a picture of a whole page, in the light and in the dark, and of 400 px."""
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=self.folder / f"{name}-{scheme}.png", full_page=True)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(NARROW)
        page.screenshot(path=self.folder / f"{name}-narrow.png", full_page=True)
        page.set_viewport_size(WIDE)

    def document(self, page: Page, name: str, height: int = WIDE["height"]) -> None:
        """Renew the picture ``console-NAME.png`` of the documentation, if that was asked for.

        It is the upper part of the page. The place of this machine's database isn't in it.
        """
        if self.documented is None:
            return
        page.set_viewport_size({"width": _DOCUMENTED_WIDTH, "height": height})
        page.evaluate("scrollTo(0, 0); document.querySelector('footer').hidden = true")
        picture = page.screenshot(caret="hide", animations="disabled")
        (self.documented / f"console-{name}.png").write_bytes(small_png(picture))
        page.evaluate("document.querySelector('footer').hidden = false")
        page.set_viewport_size(WIDE)


@pytest.fixture(scope="session")
def album(pytestconfig: pytest.Config) -> Album:
    """Keeps pictures in ``build/pictures``."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    renews = pytestconfig.getoption("--update-screenshots", False)
    if renews:
        DOCUMENTED.mkdir(exist_ok=True)
    return Album(PICTURES, DOCUMENTED if renews else None)


def copy_up(folder: Path, store: Store) -> None:
    """Put the files of a folder into a store, under the same names."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            store.put(file.relative_to(folder).as_posix(), file.read_bytes())
