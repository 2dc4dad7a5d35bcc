"""Many small objects over HTTP/1.1, each by one request that is as cheap as it can be.

For a thousand objects of a few kilobytes what a general client does for each request costs
more than the transfer. This one knows a single case: GET, 200, a Content-Length that was
expected. Whatever else comes is ``None``, and whoever asked asks again with the general
client (:mod:`lakeferry.transfer.remote`), which finds out what is wrong. It follows nothing,
decodes nothing and believes no length that it wasn't told before.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from functools import cache
from typing import cast

_LARGEST_HEAD_BYTES = 32 << 10
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,19})[ \t]*(?=\r\n)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
_CODED = re.compile(rb"\r\n(?:transfer-encoding|content-encoding):", re.IGNORECASE)
_OK = (b"HTTP/1.1 200 ", b"HTTP/1.1 200\r")


@dataclass(frozen=True, slots=True)
class Origin:
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
        self._idle: dict[Origin, list[_Connection]] = {}
        self._all: set[_Connection] = set()

    async def get(
        self,
        origin: Origin,
        target: str,
        headers: tuple[tuple[str, str], ...],
        size_bytes: int,
        within_s: float,
    ) -> bytes | None:
        """Return what a URL leads to if that is so many bytes; ``None`` if it isn't so plain.

        The target (path and query) and the headers were checked: none can break out of the
        request.
        """
        more = "".join(f"{name}: {value}\r\n" for name, value in headers)
        request = f"GET {target} HTTP/1.1\r\nHost: {origin.said}\r\n{self._fixed}{more}\r\n"
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(within_s):
                connection = await self._connected(origin)
                return await connection.ask(request.encode("latin-1"), size_bytes)
        except (OSError, TimeoutError, ssl.SSLError, UnicodeEncodeError):
            return None
        finally:
            if connection is not None:
                self._put_back(origin, connection)

    def close(self) -> None:
        """Let go of all connections."""
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._idle.clear()

    def _put_back(self, origin: Origin, connection: _Connection) -> None:
        """Keep a connection that can be asked again, and let go of any other."""
        if connection.is_idle:
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.close()
            self._all.discard(connection)

    async def _connected(self, origin: Origin) -> _Connection:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_idle:
                return connection
            self._all.discard(connection)
        loop = asyncio.get_running_loop()
        secure = _secure() if origin.is_secure else None
        _, made = await loop.create_connection(_Connection, origin.host, origin.port, ssl=secure)
        self._all.add(made)
        return made


@cache
def _secure() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Connection(asyncio.Protocol):
    """One connection, and the one answer that it waits for."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._begins: int | None = None
        self._size = 0
        self._keeps = True
        self._answer: asyncio.Future[bytes | None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it can be asked something."""
        at = self._transport
        return self._answer is None and self._keeps and at is not None and not at.is_closing()

    async def ask(self, request: bytes, size_bytes: int) -> bytes | None:
        """Send a request, and return the body of a plain answer of that size."""
        assert self._transport is not None
        self._size, self._begins = size_bytes, None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self._keeps = False
            self.close()
            raise
        finally:
            self._answer = None
            self._buffer = bytearray()

    def close(self) -> None:
        """Let go."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be connected."""
        # Not every event loop's transports are of the class that they behave like.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take what comes; what nobody asked for ends the connection."""
        if self._answer is None or self._answer.done():
            self._refuse()
            return
        self._buffer += data
        if self._begins is None and not self._read_head():
            return
        assert self._begins is not None
        come = len(self._buffer) - self._begins
        if come > self._size:
            self._refuse()
        elif come == self._size:
            self._settle(bytes(memoryview(self._buffer)[self._begins :]))

    def _read_head(self) -> bool:
        """Look at the head; tell whether it is there and plain."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _LARGEST_HEAD_BYTES:
                self._refuse()
            return False
        head = bytes(self._buffer[: end + 2])
        lengths = _LENGTH.findall(head)
        plain = head.startswith(_OK) and _CODED.search(head) is None and len(lengths) == 1
        if not plain or int(lengths[0]) != self._size:
            self._refuse()
            return False
        self._keeps = _CLOSES.search(head) is None
        self._begins = end + 4
        return True

    def eof_received(self) -> bool:
        """Be told that no more comes."""
        self._keeps = False
        return False

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Be cut off."""
        self._keeps = False
        self._settle(None)

    def _refuse(self) -> None:
        self._keeps = False
        self._settle(None)
        self.close()

    def _settle(self, data: bytes | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(data)
