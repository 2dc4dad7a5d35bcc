"""What every request has to fulfil, and what every answer carries: hosts, origins, headers, forms.

* In ``ui`` the ``Host`` has to be this machine: a web page whose name resolves to 127.0.0.1 (DNS
  rebinding) is refused.
* A POST from another origin is refused. Pages have ``Referrer-Policy: no-referrer``, and with it
  browsers send ``Origin: null`` for forms: that is accepted unless ``Sec-Fetch-Site`` says that the
  request comes from elsewhere. The CSRF token is checked in any case.
* Pages load nothing from elsewhere, run no inline script, aren't framed, and aren't kept.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request

from lakeferry.errors import Forbidden, InvalidInput, LimitExceeded, TimedOut

CSRF_FIELD = "csrf"
CONTENT_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_OPENER_POLICY = ("Cross-Origin-Opener-Policy", "same-origin")
_LARGEST_FORM_BYTES = 256 << 10
_MOST_FIELDS = 100
_FORM_WITHIN_S = 15.0
_FORM_TYPE = "application/x-www-form-urlencoded"
_OURS = ("same-origin", "none")


class SafeHeaders:
    """Wraps an application and gives each answer the headers that protect pages."""

    def __init__(self, app: Any, origins: frozenset[str] = frozenset()) -> None:
        """Protect the answers of ``app``, which browsers find at ``origins``."""
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""

        async def protected(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if is_trustworthy(scope, self._origins):
                    headers[_OPENER_POLICY[0]] = _OPENER_POLICY[1]
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, protected)


def is_trustworthy(scope: Any, origins: frozenset[str]) -> bool:
    """Return whether browsers heed ``Cross-Origin-Opener-Policy`` at the address of a request.

    That is by HTTPS, which a proxy may speak for one of ``origins``, and on this machine. Elsewhere
    they ignore it, and warn.
    """
    host = Headers(scope=scope).get("host", "").lower()
    if scope.get("scheme") == "https" or f"https://{host}" in origins:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def check_host(headers: Headers, hosts: frozenset[str]) -> None:
    """Refuse a request whose ``Host`` isn't one of ``hosts``; an empty set allows all."""
    named = headers.getlist("host")
    if hosts and (len(named) != 1 or named[0].lower() not in hosts):
        raise Forbidden(
            "this address isn't the console's",
            remedy="open the URL that the program printed",
        )


def check_origin(request: Request, origins: frozenset[str]) -> None:
    """Refuse a POST that another site has sent. ``origins`` are ours beside the ``Host``'s."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    ours = {
        *origins,
        *(f"{scheme}://{request.headers.get('host')}" for scheme in _schemes(request)),
    }
    is_foreign = origin not in ours if origin not in (None, "null") else False
    if is_foreign or (site is not None and site not in _OURS):
        raise Forbidden("the request came from another site", remedy="use the form on the page")


def _schemes(request: Request) -> tuple[str, ...]:
    # A proxy may speak HTTPS to the browser, and HTTP to us.
    return ("https",) if request.url.scheme == "https" else ("http", "https")


def check_csrf(form: Mapping[str, str], expected: str) -> None:
    """Refuse a form without the token of its session."""
    if not hmac.compare_digest(form.get(CSRF_FIELD, "").encode(), expected.encode()):
        raise Forbidden("the form is too old", remedy="load the page again, and repeat the action")


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of a repeated one, the last. Size and time are bounded."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        raise InvalidInput("this isn't a form")
    body = bytearray()
    try:
        async with asyncio.timeout(_FORM_WITHIN_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _LARGEST_FORM_BYTES:
                    raise LimitExceeded(f"the form has more than {_LARGEST_FORM_BYTES:,} bytes")
    except TimeoutError as late:
        raise TimedOut("the form didn't arrive in time") from late
    try:
        fields = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError as wrong:
        raise InvalidInput("the form can't be read", cause=str(wrong)) from wrong
    return {name: value.strip() for name, value in fields}


def origin_of(url: str) -> str:
    """Return the origin of a URL, as browsers send it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()
