"""A visitor of the console without a server and a browser: requests to the application itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette

from lakeferry.config import Config
from lakeferry.web.local_console import local_console

_PORT = 8471


@dataclass(frozen=True)
class Answered:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The page."""
        return self.body.decode()


@dataclass
class AsgiVisitor:
    """The user of ``lakeferry ui``, signed in."""

    app: Starlette
    cookies: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Config) -> AsgiVisitor:
        """Return the user of a console with these settings."""
        _, app, url = local_console(settings, _PORT)
        visitor = cls(app)
        parts = urlsplit(url)
        assert visitor.get(f"{parts.path}?{parts.query}").status in (200, 303)
        return visitor

    def get(self, target: str) -> Answered:
        """Request a page."""
        return asyncio.run(self._get(target))

    async def _get(self, target: str) -> Answered:
        path, _, query = target.partition("?")
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (b"host", f"127.0.0.1:{_PORT}".encode()),
                *([(b"cookie", cookie.encode())] if cookie else []),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", _PORT),
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        for name, value in sent[0]["headers"]:
            if name == b"set-cookie":
                for each in SimpleCookie(value.decode()).values():
                    self.cookies[each.key] = each.value
        body = b"".join(each.get("body", b"") for each in sent[1:])
        return Answered(sent[0]["status"], headers, body)
