"""The console of ``serve``: mounted below :data:`CONSOLE_PATH`, for visitors with access tokens.

``GET /`` leads browsers there. For clients that accept JSON, ``GET /`` stays the list of datasets,
and every other address is a dataset's, as before: no dataset's name begins with ``-``.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import Scope

from lakeferry.config import Config
from lakeferry.web.console import Console, DatasetRoot
from lakeferry.web.console_app import RequestBounds, create_console_app
from lakeferry.web.request_rules import origin_of
from lakeferry.web.sign_in import TokenSignIn

CONSOLE_PATH = "/-"


class BrowserRoute(Route):
    """A route for browsers: it matches only if HTML is accepted, and JSON isn't."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a request is a browser's, for this path."""
        accepted = b",".join(value for name, value in scope.get("headers", ()) if name == b"accept")
        if b"text/html" not in accepted or b"application/json" in accepted:
            return Match.NONE, {}
        return super().matches(scope)


def server_console(
    settings: Config, datasets: DatasetRoot, url: str, places: Sequence[str] = ()
) -> tuple[Console, list[BaseRoute]]:
    """Return the console of a server at ``url``, and its routes, which come before all others.

    Visitors with a token to write may scan and plan below the server's root and ``places``.
    """
    parts = urlsplit(url)
    base = f"{parts.path.rstrip('/')}{CONSOLE_PATH}"
    console = Console(settings, base, datasets)
    sign_in = TokenSignIn(
        datasets.tokens,
        is_secure=parts.scheme == "https",
        base=base,
        places=(datasets.uri, *places),
    )
    app = create_console_app(console, sign_in, RequestBounds(origins=frozenset({origin_of(url)})))

    async def home(_: Request) -> Response:
        return RedirectResponse(f"{base}/", status_code=303)

    return console, [BrowserRoute("/", home, methods=["GET"]), Mount(CONSOLE_PATH, app)]
