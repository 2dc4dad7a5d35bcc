"""What a page of the console is made of: addresses, who may use them, and forms that act.

A module of :mod:`lakeferry.web.pages` defines one :class:`ConsolePage`::

    def fleet(visit: Visit) -> Response:
        return visit.page("fleet.html", tables=...)

    def scan(visit: Visit) -> Response:
        ...
        return visit.go("/fleet")

    FLEET_PAGE = ConsolePage(
        "Fleet", "/fleet", (page_at("/fleet", fleet), act("/fleet/scan", scan))
    )

The functions are ordinary ones and run in threads. A visitor for whom ``needs`` is false gets 404
for a page, and 403 for an action whose page is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response

from lakeferry.web.console import Console
from lakeferry.web.viewer import Viewer
from lakeferry.web.visit import Visit

PageAnswer = Callable[[Visit], Response]
Needs = Callable[[Viewer], bool]


@dataclass(frozen=True, slots=True)
class Consequence:
    """What an action does, which is asked before it is done."""

    title: str
    text: str
    button: str
    command: str
    """The command line that does the same."""
    is_danger: bool = False


@dataclass(frozen=True, slots=True)
class PageRoute:
    """One address. With ``consequence``, a form is confirmed before ``answer`` gets it."""

    path: str
    answer: PageAnswer
    method: str
    needs: Needs
    consequence: Callable[[Visit], Consequence | None] | None = None


def _sees_fleet(viewer: Viewer) -> bool:
    return viewer.sees_fleet


def _runs_fleet(viewer: Viewer) -> bool:
    return viewer.runs_fleet


def _is_for_the_fleet(_: Console, viewer: Viewer) -> bool:
    return viewer.sees_fleet


def page_at(path: str, answer: PageAnswer, *, needs: Needs = _sees_fleet) -> PageRoute:
    """Return the route of a page."""
    return PageRoute(path, answer, "GET", needs)


def act(
    path: str,
    answer: PageAnswer,
    *,
    needs: Needs = _runs_fleet,
    consequence: Callable[[Visit], Consequence | None] | None = None,
) -> PageRoute:
    """Return the route of a form. ``consequence`` returns what has to be confirmed, if anything."""
    return PageRoute(path, answer, "POST", needs, consequence)


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A part of the console: its place in the navigation, and its addresses."""

    title: str
    path: str
    routes: tuple[PageRoute, ...]
    is_shown: Callable[[Console, Viewer], bool] = _is_for_the_fleet
    """Whether the navigation shows it to a visitor."""
    in_navigation: bool = True
