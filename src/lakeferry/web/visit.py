"""``Visit``: one request of a visitor, with what a page needs to answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from lakeferry.errors import Forbidden, InvalidInput
from lakeferry.web.console import Console
from lakeferry.web.console_sessions import ConsoleSession
from lakeferry.web.page_templates import page_link, render_page
from lakeferry.web.viewer import Viewer

LIVE_HEADER, DIALOG_HEADER = "lakeferry-live", "lakeferry-dialog"
"""The script asks for a page's live regions, or for a confirmation that fits a dialog."""


@dataclass(slots=True)
class Visit:
    """A request by a visitor who may see the page; ``form`` is what was posted."""

    request: Request
    console: Console
    viewer: Viewer
    session: ConsoleSession
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path of the page in the console, wherever that is mounted."""
        return self.request.url.path.removeprefix(self.request.scope.get("root_path", ""))

    @property
    def asks_live_regions(self) -> bool:
        """Whether the script replaces what has changed: the rest of the page isn't needed."""
        return LIVE_HEADER in self.request.headers

    @property
    def asks_dialog(self) -> bool:
        """Whether the script shows a confirmation over the page."""
        return DIALOG_HEADER in self.request.headers

    def asked(self, name: str, default: str = "") -> str:
        """Return a value of the query."""
        return self.request.query_params.get(name, default)

    def asked_number(self, name: str, default: int, least: int = 0) -> int:
        """Return a number of the query; ``default`` for what is none."""
        return _number(self.asked(name), default, least)

    def form_number(self, name: str, least: int = 1) -> int | None:
        """Return a number of the form, ``None`` if the field is empty."""
        text = self.form.get(name, "")
        if not text:
            return None
        number = _number(text, least - 1, least)
        if number < least:
            raise InvalidInput(f"{text!r} isn't a whole number from {least} on")
        return number

    def path_number(self, name: str) -> int:
        """Return a number of the path, which the route has checked."""
        return int(self.request.path_params[name])

    def link(self, path: str, **query: object) -> str:
        """Return a link to a page of the console."""
        return page_link(self.console.base, path, **query)

    @property
    def back(self) -> str:
        """The page that a form was on; the first page if it names none of ours."""
        back = self.form.get("back", "")
        return back if back.startswith(f"{self.console.base}/") else self.link("/")

    def note(self, text: str) -> None:
        """Have the next page tell something."""
        self.session.notes.append(text)

    def go(self, path: str, **query: object) -> Response:
        """Answer a form: have the browser load a page."""
        return RedirectResponse(self.link(path, **query), status_code=303)

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Answer with a page; ``values`` are what its template needs."""
        takes_notes = not self.asks_live_regions and not self.asks_dialog
        context = {
            "visit": self,
            "viewer": self.viewer,
            "console": self.console,
            "base": self.console.base,
            "link": self.link,
            "csrf": self.session.csrf,
            "live_only": self.asks_live_regions,
            "here": f"{self.console.base}{self.path}",
            "navigation": [
                each
                for each in self.console.pages
                if each.in_navigation and each.is_shown(self.console, self.viewer)
            ],
            "notes": self.session.take_notes() if takes_notes else [],
            **values,
        }
        return HTMLResponse(render_page(template, context), status)

    def check_may_name(self, place: str) -> None:
        """Refuse a place that this visitor may not scan or write; see :mod:`.viewer`."""
        if self.viewer.names_any_place:
            return
        if not self.viewer.may_name(place, self.console.jobs.roots()):
            raise Forbidden(
                f"the console of this server may not use {place}",
                cause="it is neither below what was scanned, nor below a place that is allowed",
                remedy="scan it once with 'lakeferry fleet scan', or start the server with "
                "--console-place",
            )


def _number(text: str, default: int, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        return default
    return max(int(text), least) if int(text) >= least else default
