"""``/redirects``: where old paths lead, as chains; from the inventory, and from a search."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from starlette.responses import Response

from lakeferry.api.redirect_chains import KnownRedirect, redirect_chains
from lakeferry.api.redirect_search import RedirectList, list_redirects
from lakeferry.api.table import Places
from lakeferry.errors import InvalidInput
from lakeferry.fleet.redirect_records import MOST_REDIRECTS, recorded_redirects
from lakeferry.readable import counted
from lakeferry.web.background_work import ConsoleWork
from lakeferry.web.console import Console
from lakeferry.web.page_filters import command_line, shown_place
from lakeferry.web.page_routes import ConsolePage, act, page_at
from lakeferry.web.visit import Visit

CHAINS_ON_A_PAGE = 100
_SHOWN_UNREADABLE = 20
_LONGEST_PLACE = 2_000


@dataclass(frozen=True, slots=True)
class SearchedRedirects:
    """What the last search found, and below which place; the first of very many."""

    place: str
    redirects: tuple[KnownRedirect, ...]
    unreadable: tuple[tuple[str, str], ...]


_SEARCHED: WeakKeyDictionary[Console, SearchedRedirects] = WeakKeyDictionary()


def redirect_map(visit: Visit) -> Response:
    """Show the chains of all redirects that are known."""
    console = visit.console
    found = _SEARCHED.get(console)
    known = (*recorded_redirects(console.database), *(found.redirects if found else ()))
    asked = visit.asked("text")[:_LONGEST_PLACE]
    chains = [
        chain
        for chain in redirect_chains(known)
        if not asked or any(asked in f"{each.source} {each.target}" for each in chain.steps)
    ]
    offset = visit.asked_number("offset", 0)
    work = console.work.newest("redirects")
    return visit.page(
        "redirects.html",
        title="Redirects",
        chains=chains[offset : offset + CHAINS_ON_A_PAGE],
        total=len(chains),
        offset=offset,
        size=CHAINS_ON_A_PAGE,
        text=asked,
        page_link=lambda start: visit.link("/redirects", text=asked, offset=start or ""),
        found=found,
        work=work,
        is_bounded=len(known) >= MOST_REDIRECTS,
        command=command_line(("lakeferry", "redirect", "list", found.place if found else "PREFIX")),
    )


def search_redirects(visit: Visit) -> Response:
    """Begin to look for redirects below a place, or in a catalog."""
    place = visit.form.get("place", "").strip()
    if not place or len(place) > _LONGEST_PLACE:
        raise InvalidInput("the search needs a place", remedy="give a folder, a prefix or sql:")
    visit.check_may_name(place)
    console = visit.console
    settings = console.settings

    def search(work: ConsoleWork) -> str:
        places = Places(
            settings.storage_options,
            environment=settings.catalog_environment(),
            warn=work.warn,
        )
        found = list_redirects(place, places, observer=work.observe)
        _SEARCHED[console] = _kept(place, found)
        redirects = counted(len(found.redirects), "redirect")
        return f"{redirects} of {counted(found.tables, 'table')} below {shown_place(place)}."

    title = f"Look for redirects below {shown_place(place)}"
    command = command_line(("lakeferry", "redirect", "list", place))
    console.work.start("redirects", title, command, search)
    return visit.go("/redirects")


def _kept(place: str, found: RedirectList) -> SearchedRedirects:
    return SearchedRedirects(
        place,
        tuple(
            KnownRedirect(each.source, each.shown_state, each.target, each.mode, each.name)
            for each in found.redirects[:MOST_REDIRECTS]
        ),
        tuple((source, str(error)) for source, error in found.unreadable[:_SHOWN_UNREADABLE]),
    )


REDIRECTS_PAGE = ConsolePage(
    "Redirects",
    "/redirects",
    (page_at("/redirects", redirect_map), act("/redirects/search", search_redirects)),
)
