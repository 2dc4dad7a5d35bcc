"""Gets objects over plain HTTP with little work for each.

For a thousand objects of a few kilobytes what a general client does for each request costs
more than the transfer, and for a large one what it does with each piece. This one knows a
single case: GET, 200, a Content-Length that was expected. Whatever else comes is nothing, and
whoever asked asks again with the general client
(:mod:`lakeferry.transfer.client.remote_dataset`), which finds out what is wrong. It follows
nothing, decodes nothing and believes no length that it wasn't told before. Small answers come by
``plain_wires.py``, large ones by ``plain_body.py``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from lakeferry.transfer.client.plain_body import LargeBody
from lakeferry.transfer.client.plain_wires import (
    PlainConnection,
    Readiness,
    SocketWire,
    StreamWire,
    WhenReceived,
)

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True)
class HttpOrigin:
    """Whom to ask; ``said`` is what the server is called in the request."""

    host: str
    port: int
    is_secure: bool
    said: str


class PlainGets:
    """Connections that are used again where their servers let them."""

    def __init__(self, user_agent: str) -> None:
        """Connect nowhere yet."""
        self._fixed = f"Accept: */*\r\nAccept-Encoding: identity\r\nUser-Agent: {user_agent}\r\n"
        self._idle: dict[HttpOrigin, list[PlainConnection]] = {}
        self._known: dict[HttpOrigin, tuple[int, Any]] = {}
        """At which address the event loop has found whom; by a bare socket it is cheaper."""
        self._silent: set[HttpOrigin] = set()
        """Who couldn't be connected to in time; the general client knows more ways."""
        self._asking: set[Asking] = set()
        self._readiness: Readiness | None = None
        self._timer: asyncio.Handle | None = None
        self._looks_at_s = 0.0

    def ask(
        self,
        origin: HttpOrigin,
        target: str,
        headers: tuple[tuple[str, str], ...],
        size_bytes: int,
        within_s: float,
        then: WhenReceived,
    ) -> Asking:
        """Ask for what a URL leads to; ``then`` hears it if it is so many bytes, not at once.

        It hears ``None`` if it isn't so plain. The target (path and query) and the headers were
        checked: none can break out of the request.
        """
        due_s = asyncio.get_running_loop().time() + within_s
        request = self._request(origin, target, headers)
        asking = Asking(self, origin, request, size_bytes, due_s, then)
        self._asking.add(asking)
        if self._timer is None or self._looks_at_s > due_s:
            self._look_at(due_s)
        asking.begin()
        return asking

    def _look_at(self, due_s: float) -> None:
        """Have one timer for all: those who ask are many, and hardly one is ever late."""
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at_s = due_s
        self._timer = asyncio.get_running_loop().call_at(due_s, self._end_what_is_due)

    def _end_what_is_due(self) -> None:
        now_s, self._timer = asyncio.get_running_loop().time(), None
        for asking in [one for one in self._asking if one.due_s <= now_s]:
            asking.end(None, in_time=False)
        # Those who heard of it may have asked for more, which is due later than what is left.
        if self._asking:
            self._look_at(min(one.due_s for one in self._asking))

    async def get(
        self,
        origin: HttpOrigin,
        target: str,
        headers: tuple[tuple[str, str], ...],
        size_bytes: int,
        within_s: float,
    ) -> bytes | None:
        """Return what :meth:`ask` would tell."""
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def heard(data: bytes | None) -> None:
            if not answer.done():
                answer.set_result(data)

        asking = self.ask(origin, target, headers, size_bytes, within_s, heard)
        try:
            return await answer
        finally:
            asking.cancel()

    async def stream(
        self,
        origin: HttpOrigin,
        target: str,
        headers: tuple[tuple[str, str], ...],
        size_bytes: int,
        *,
        connect_s: float,
        silence_s: float,
    ) -> AsyncGenerator[bytearray, None]:
        """Yield what a URL leads to, if that is so many bytes, chunk by chunk.

        Nothing comes where it isn't so plain, and less where it breaks off.
        """
        body = LargeBody(size_bytes)
        if origin in self._silent:
            return
        try:
            try:
                async with asyncio.timeout(connect_s):
                    await _connect(lambda: body, origin)
            except TimeoutError:
                self._silent.add(origin)
                return
            body.ask(self._request(origin, target, headers))
            while (chunk := await body.next(silence_s)) is not None:
                yield chunk
        except (OSError, ssl.SSLError, UnicodeError):
            return
        finally:
            body.close()

    def _request(
        self, origin: HttpOrigin, target: str, headers: tuple[tuple[str, str], ...]
    ) -> bytes:
        more = "".join(f"{name}: {value}\r\n" for name, value in headers)
        text = f"GET {target} HTTP/1.1\r\nHost: {origin.said}\r\n{self._fixed}{more}\r\n"
        return text.encode("latin-1")

    def close(self) -> None:
        """Let go of all connections; whoever waits for an answer hears of none."""
        for asking in list(self._asking):
            asking.cancel()
        for wires in self._idle.values():
            for wire in wires:
                wire.close()
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._readiness is not None:
            self._readiness.close()
            self._readiness = None

    # --- For those who ask ----------------------------------------------------------------

    def wire(self, origin: HttpOrigin) -> PlainConnection | None:
        """Return a connection that is there, or can be begun; ``OSError`` if it can't be.

        ``None`` where the event loop has to make it (:meth:`connected`).
        """
        idle = self._idle.get(origin)
        while idle:
            wire = idle.pop()
            if wire.is_idle:
                return wire
        known = self._known.get(origin)
        if known is None:
            return None
        if self._readiness is None:
            self._readiness = Readiness()
        try:
            return SocketWire(self._readiness, *known)
        except OSError:
            # It may be somewhere else by now.
            del self._known[origin]
            raise

    async def connected(self, origin: HttpOrigin) -> PlainConnection:
        """Return a connection that the event loop makes."""
        wire = await _connect(StreamWire, origin)
        if not origin.is_secure and (peer := wire.peer) is not None:
            self._known[origin] = peer
        return wire

    def ended(
        self, asking: Asking, wire: PlainConnection | None, *, is_answered: bool, in_time: bool
    ) -> None:
        """Keep a connection that can be asked again, and let go of any other."""
        self._asking.discard(asking)
        is_reached = wire is not None and (not isinstance(wire, SocketWire) or wire.has_sent)
        if not is_answered and not is_reached:
            self._known.pop(asking.origin, None)
            if not in_time:
                self._silent.add(asking.origin)
        if wire is None:
            return
        if wire.is_idle:
            self._idle.setdefault(asking.origin, []).append(wire)
        else:
            wire.close()

    def is_silent(self, origin: HttpOrigin) -> bool:
        """Tell whether it is of no use to ask."""
        return origin in self._silent


class Asking:
    """One request on its way."""

    __slots__ = (
        "_connecting",
        "_gets",
        "_is_over",
        "_request",
        "_size_bytes",
        "_then",
        "_wire",
        "due_s",
        "origin",
    )

    def __init__(
        self,
        gets: PlainGets,
        origin: HttpOrigin,
        request: bytes,
        size_bytes: int,
        due_s: float,
        then: WhenReceived,
    ) -> None:
        self.origin = origin
        self.due_s = due_s
        self._is_over = False
        self._gets = gets
        self._request = request
        self._size_bytes = size_bytes
        self._then: WhenReceived | None = then
        self._wire: PlainConnection | None = None
        self._connecting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Send the request, or begin to."""
        loop = asyncio.get_running_loop()
        if self._gets.is_silent(self.origin):
            loop.call_soon(self.end, None)
            return
        try:
            self._wire = self._gets.wire(self.origin)
        except OSError:
            loop.call_soon(self.end, None)
            return
        if self._wire is None:
            self._connecting = loop.create_task(self._connect())
        else:
            self._wire.ask(self._request, self._size_bytes, self.end)

    async def _connect(self) -> None:
        try:
            self._wire = await self._gets.connected(self.origin)
        except Exception:  # noqa: BLE001 - the general client finds out what it is
            self._connecting = None
            self.end(None)
            return
        self._connecting = None
        self._wire.ask(self._request, self._size_bytes, self.end)

    def cancel(self) -> None:
        """Want it no more; ``then`` hears nothing."""
        if self._then is not None:
            self._then = None
            self.end(None)

    def end(self, data: bytes | None, *, in_time: bool = True) -> None:
        """Tell what came of it, once."""
        if self._is_over:
            return
        self._is_over = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._wire is not None and data is None:
            self._wire.close()
        is_answered = data is not None
        self._gets.ended(self, self._wire, is_answered=is_answered, in_time=in_time)
        then, self._then, self._wire = self._then, None, None
        if then is not None:
            then(data)


async def _connect(make: Callable[[], P], origin: HttpOrigin) -> P:
    loop = asyncio.get_running_loop()
    secure = _secure() if origin.is_secure else None
    _, made = await loop.create_connection(make, origin.host, origin.port, ssl=secure)
    return made


@cache
def _secure() -> ssl.SSLContext:
    return ssl.create_default_context()
