"""The console of ``ui``: on this machine only, for the user who started it."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from lakeferry.config import Config
from lakeferry.web.console import Console
from lakeferry.web.console_app import RequestBounds, create_console_app
from lakeferry.web.page_templates import page_link
from lakeferry.web.server_console import CONSOLE_PATH
from lakeferry.web.sign_in import TOKEN_FIELD, UserSignIn

UI_HOST = "127.0.0.1"


def local_console(settings: Config, port: int) -> tuple[Console, Starlette, str]:
    """Return the console for a port of this machine, its application, and the URL to open."""
    console = Console(settings, CONSOLE_PATH)
    sign_in = UserSignIn(port, CONSOLE_PATH)
    hosts = frozenset(f"{name}:{port}" for name in (UI_HOST, "localhost"))
    bounds = RequestBounds(hosts, frozenset(f"http://{host}" for host in hosts))
    app = create_console_app(console, sign_in, bounds)

    async def home(_: Request) -> Response:
        return RedirectResponse(f"{CONSOLE_PATH}/", status_code=303)

    whole = Starlette(routes=[Route("/", home), Mount(CONSOLE_PATH, app)])
    link = page_link(CONSOLE_PATH, "/sign-in", **{TOKEN_FIELD: sign_in.token})
    return console, whole, f"http://{UI_HOST}:{port}{link}"
