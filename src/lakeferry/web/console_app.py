"""The console's application: its pages, who is let in, and what refusals look like.

=====================  ====================================================================
``GET /``              leads to the first page that the visitor may see
``GET /sign-in``       the form for a token; in ``ui``, exchanges the token of the URL
``POST /sign-in``      begins a session; ``POST /sign-out`` ends it
``GET /live``          server-sent events (:mod:`lakeferry.web.live_feed`)
``GET /static/NAME``   the style sheet, the script and the icon
=====================  ====================================================================

All else is in :mod:`lakeferry.web.pages`. A visitor without a session gets the form to sign in,
with 401; what isn't for a visitor doesn't exist. Pages are made in a few threads of their own, so
that they can't delay the other work of a server.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from lakeferry.errors import (
    CatalogUnavailable,
    CommitConflict,
    Forbidden,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    ObjectNotFound,
    StorageError,
    TableNotFound,
    TimedOut,
    Unauthorized,
)
from lakeferry.web.console import Console
from lakeferry.web.console_sessions import ConsoleSession
from lakeferry.web.page_routes import ConsolePage, PageRoute
from lakeferry.web.page_templates import page_link, render_page, static_files
from lakeferry.web.pages.fleet_overview import FLEET_PAGE
from lakeferry.web.pages.move_jobs import JOBS_PAGE
from lakeferry.web.pages.redirect_map import REDIRECTS_PAGE
from lakeferry.web.pages.served_datasets import DATASETS_PAGE
from lakeferry.web.pages.served_exports import EXPORTS_PAGE
from lakeferry.web.pages.table_timeline_pages import TABLES_PAGE
from lakeferry.web.request_rules import (
    CSRF_FIELD,
    SafeHeaders,
    check_csrf,
    check_host,
    check_origin,
    read_form,
)
from lakeferry.web.sign_in import TOKEN_FIELD, SignIn, console_session_of, let_in, let_out
from lakeferry.web.viewer import Viewer
from lakeferry.web.visit import DIALOG_HEADER, LIVE_HEADER, Visit

PAGES: tuple[ConsolePage, ...] = (
    FLEET_PAGE,
    JOBS_PAGE,
    TABLES_PAGE,
    REDIRECTS_PAGE,
    DATASETS_PAGE,
    EXPORTS_PAGE,
)
"""The pages, in the order of the navigation."""
PAGES_AT_ONCE = 8
_SIGN_IN_COOKIE = "lakeferry_sign_in"
_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """Which requests are ours. ``hosts`` empty: any; ``origins`` beside that of the ``Host``."""

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()


def create_console_app(
    console: Console,
    sign_in: SignIn,
    bounds: RequestBounds | None = None,
    pages: Sequence[ConsolePage] = PAGES,
) -> Starlette:
    """Return the application; the caller mounts it where ``console.base`` says."""
    console.pages = pages
    bounds = bounds or RequestBounds()
    gate = _Gate(console, sign_in, bounds)
    routes: list[BaseRoute] = [
        Route("/", gate.home, methods=["GET"]),
        Route("/sign-in", gate.sign_in_page, methods=["GET"]),
        Route("/sign-in", gate.begin_session, methods=["POST"]),
        Route("/sign-out", gate.end_session, methods=["POST"]),
        Route("/live", gate.live, methods=["GET"]),
        Route("/static/{name}", gate.static, methods=["GET"]),
    ]
    routes += [
        Route(each.path, gate.answering(each), methods=[each.method])
        for page in pages
        for each in page.routes
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(SafeHeaders, origins=bounds.origins)],
        exception_handlers={HTTPException: gate.refuse_address},
    )


class _Gate:
    """Decides about every request before a page gets it."""

    def __init__(self, console: Console, sign_in: SignIn, bounds: RequestBounds) -> None:
        self._console = console
        self._sign_in = sign_in
        self._bounds = bounds
        self._places: anyio.CapacityLimiter | None = None

    # --- Pages and actions ----------------------------------------------------------

    def answering(self, route: PageRoute) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a route."""

        async def answer(request: Request) -> Response:
            return await self._guarded(request, lambda: self._answer(request, route))

        return answer

    async def _answer(self, request: Request, route: PageRoute) -> Response:
        found = await self._admitted(request)
        if found is None:
            return self._outside(request)
        session, viewer = found
        visit = Visit(request, self._console, viewer, session)
        if route.method == "POST":
            check_origin(request, self._bounds.origins)
            visit.form = await read_form(request)
            check_csrf(visit.form, session.csrf)
        if not route.needs(viewer):
            return self._failed(visit, _not_for(route, viewer))
        try:
            return await self._in_thread(lambda: _acted(visit, route))
        except LakeferryError as refused:
            return self._failed(visit, refused)

    async def home(self, request: Request) -> Response:
        """Lead a visitor to the first page that there is for it."""

        async def answer() -> Response:
            found = await self._admitted(request)
            if found is None:
                return self._outside(request)
            session, viewer = found
            visit = Visit(request, self._console, viewer, session)
            for page in self._console.pages:
                if page.in_navigation and page.is_shown(self._console, viewer):
                    return RedirectResponse(visit.link(page.path), status_code=303)
            return await self._in_thread(lambda: visit.page("nothing.html", title="Lakeferry"))

        return await self._guarded(request, answer)

    async def live(self, request: Request) -> Response:
        """Answer with the events of a connected page."""

        async def answer() -> Response:
            found = await self._admitted(request)
            if found is None or not found[1].sees_fleet:
                return Response(status_code=401 if found is None else 404)

            async def is_allowed() -> bool:
                now = await self._admitted(request)
                return now is not None and now[1].sees_fleet

            last = request.headers.get("last-event-id", "")
            last_id = int(last) if last.isascii() and last.isdecimal() and len(last) < 19 else None
            try:
                events = self._console.feed.listen(last_id, is_allowed)
            except LimitExceeded as full:
                return Response(str(full), 503, {"Retry-After": "10"}, "text/plain")
            return StreamingResponse(
                events, headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream"
            )

        return await self._guarded(request, answer)

    async def static(self, request: Request) -> Response:
        """Answer with a static file, which browsers keep: its link changes with its content."""

        async def answer() -> Response:
            file = static_files().get(request.path_params["name"])
            if file is None:
                raise HTTPException(404)
            kept = "private, max-age=31536000, immutable"
            is_named = request.query_params.get("v") == file.version
            headers = {"Cache-Control": kept if is_named else "no-cache"}
            return Response(file.data, headers=headers, media_type=file.media_type)

        return await self._guarded(request, answer)

    # --- Signing in and out ---------------------------------------------------------

    async def sign_in_page(self, request: Request) -> Response:
        """Show the form for a token; exchange the token that the URL of ``ui`` has."""

        async def answer() -> Response:
            token = request.query_params.get(TOKEN_FIELD)
            if token is None or not self._console.is_local:
                return self._outside(request, status=200)
            try:
                session_id = self._sign_in.admit(token)
            except Unauthorized as refused:
                return self._outside(request, refused)
            response = self._onwards(request, page_link(self._console.base, "/"))
            let_in(response, self._sign_in, session_id)
            return response

        return await self._guarded(request, answer)

    async def begin_session(self, request: Request) -> Response:
        """Take a token by a form, and begin a session."""

        async def answer() -> Response:
            check_origin(request, self._bounds.origins)
            form = await read_form(request)
            given, cookie = form.get(CSRF_FIELD, ""), request.cookies.get(_SIGN_IN_COOKIE, "")
            if not cookie or not hmac.compare_digest(given.encode(), cookie.encode()):
                raise Forbidden("the form is too old", remedy="load the page again")
            try:
                token = form.get(TOKEN_FIELD, "")
                session_id = await self._in_thread(lambda: self._sign_in.admit(token))
            except Unauthorized as refused:
                return self._outside(request, refused)
            response = RedirectResponse(page_link(self._console.base, "/"), status_code=303)
            self._sign_in.sessions.end(request.cookies.get(self._sign_in.cookie))
            let_in(response, self._sign_in, session_id)
            response.delete_cookie(_SIGN_IN_COOKIE, path=self._sign_in.path)
            return response

        return await self._guarded(request, answer)

    async def end_session(self, request: Request) -> Response:
        """End the session of a visitor."""

        async def answer() -> Response:
            session = console_session_of(self._sign_in, request.cookies)
            check_origin(request, self._bounds.origins)
            if session is not None:
                check_csrf(await read_form(request), session.csrf)
            response = RedirectResponse(page_link(self._console.base, "/sign-in"), 303)
            let_out(request, response, self._sign_in)
            return response

        return await self._guarded(request, answer)

    async def _admitted(self, request: Request) -> tuple[ConsoleSession, Viewer] | None:
        session = console_session_of(self._sign_in, request.cookies)
        if session is None:
            return None
        viewer = await self._in_thread(lambda: self._sign_in.viewer(session))
        if viewer is None:
            self._sign_in.sessions.end(request.cookies.get(self._sign_in.cookie))
            return None
        return session, viewer

    def _outside(
        self, request: Request, refused: LakeferryError | None = None, status: int = 401
    ) -> Response:
        """Answer a visitor who hasn't signed in."""
        if LIVE_HEADER in request.headers or DIALOG_HEADER in request.headers:
            return Response(status_code=401)
        if refused is None and _came_by_link(request):
            # With SameSite=Strict the cookie doesn't come with a link from another site. It does
            # with the same request by a page of ours.
            query = dict(request.query_params)
            return self._onwards(request, page_link(self._console.base, _path(request), **query))
        csrf = secrets.token_urlsafe(32)
        text = render_page(
            "sign_in.html",
            {
                "title": "Sign in",
                "base": self._console.base,
                "is_local": self._console.is_local,
                "csrf": csrf,
                "refused": refused,
            },
        )
        response = HTMLResponse(text, 401 if refused is not None else status)
        if not self._console.is_local:
            response.set_cookie(
                _SIGN_IN_COOKIE,
                csrf,
                path=self._sign_in.path,
                httponly=True,
                samesite="strict",
                secure=self._sign_in.is_secure,
                max_age=3600,
            )
        return response

    def _onwards(self, request: Request, link: str) -> Response:
        """Lead a browser to another page, from a page of ours if it came from another site."""
        if not _came_by_link(request):
            return RedirectResponse(link, status_code=303)
        again = f"{link}{'&' if '?' in link else '?'}again=1"
        return HTMLResponse(render_page("onwards.html", {"to": again, "base": self._console.base}))

    # --- Refusals -------------------------------------------------------------------

    async def _guarded(
        self, request: Request, answer: Callable[[], Awaitable[Response]]
    ) -> Response:
        try:
            check_host(request.headers, self._bounds.hosts)
            return await answer()
        except HTTPException:
            raise
        except ClientDisconnect:
            return Response(status_code=400)
        except LakeferryError as refused:
            return self._bare_refusal(refused)
        except Exception:  # noqa: BLE001 - the server has to answer the other requests
            _LOG.exception("%s %s failed", request.method, request.url.path)
            return self._bare_refusal(_internal())

    def _failed(self, visit: Visit, error: LakeferryError) -> Response:
        """Answer with an error, on a page with the navigation."""
        status = status_of(error)
        if status >= 500:
            _LOG.error("%s %s: %s", visit.request.method, visit.request.url.path, error)
            if not self._console.is_local:
                # What a store or a database says isn't for everybody with a token.
                error = LakeferryError("the server can't do this now: its log has the reason")
        return visit.page("refused.html", status=status, title="Not done", error=error)

    def _bare_refusal(self, error: LakeferryError) -> Response:
        context = {"title": "Not done", "base": self._console.base, "error": error}
        return HTMLResponse(render_page("refused_bare.html", context), status_of(error))

    async def refuse_address(self, request: Request, error: Exception) -> Response:  # noqa: ARG002
        """Answer for an address that isn't there, or not for this method."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        response = self._bare_refusal(ObjectNotFound("there is no such page"))
        response.status_code = status
        return response

    async def _in_thread(self, call: Callable[[], _Result]) -> _Result:
        if self._places is None:
            self._places = anyio.CapacityLimiter(PAGES_AT_ONCE)
        return await anyio.to_thread.run_sync(call, limiter=self._places)


def _acted(visit: Visit, route: PageRoute) -> Response:
    if route.consequence is not None and visit.form.get("confirmed") != "yes":
        asked = route.consequence(visit)
        if asked is not None:
            hidden = {
                name: value
                for name, value in visit.form.items()
                if name not in (CSRF_FIELD, "confirmed")
            }
            template = "confirm_dialog.html" if visit.asks_dialog else "confirm.html"
            return visit.page(template, title=asked.title, asked=asked, hidden=hidden)
    return route.answer(visit)


def _not_for(route: PageRoute, viewer: Viewer) -> LakeferryError:
    if route.method == "POST" and viewer.sees_fleet:
        return Forbidden(
            "your token is only for reading", remedy="sign in with a token that may write"
        )
    return ObjectNotFound("there is no such page")


def _path(request: Request) -> str:
    """Return the path of a request in the console, wherever that is mounted."""
    return request.url.path.removeprefix(request.scope.get("root_path", ""))


def _came_by_link(request: Request) -> bool:
    return (
        request.method == "GET"
        and request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        and request.headers.get("sec-fetch-mode") == "navigate"
        and "again" not in request.query_params
    )


def _internal() -> LakeferryError:
    return LakeferryError("an internal error: the program's log has it")


def status_of(error: LakeferryError) -> int:
    """Return the HTTP status of an error's page."""
    match error:
        case InvalidInput():
            return 400
        case Unauthorized():
            return 401
        case Forbidden():
            return 403
        case ObjectNotFound() | TableNotFound():
            return 404
        case CommitConflict():
            return 409
        case LimitExceeded():
            return 413
        case TimedOut():
            return 408
        case StorageError() | CatalogUnavailable():
            return 503
        case _ if type(error) is LakeferryError:
            return 500
        case _:
            return 409
