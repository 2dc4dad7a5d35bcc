"""Objects over HTTP/1.1, each by one request that is as cheap as it can be.

For a thousand objects of a few kilobytes what a general client does for each request costs
more than the transfer, and for a large one what it does with each piece. This one knows a
single case: GET, 200, a Content-Length that was expected. Whatever else comes is nothing, and
whoever asked asks again with the general client (:mod:`lakeferry.transfer.remote`), which
finds out what is wrong. It follows nothing, decodes nothing and believes no length that it
wasn't told before.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar, cast

_LARGEST_HEAD_BYTES = 32 << 10
_CHUNK_BYTES = 1 << 20
_CHUNKS_AHEAD = 4
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,19})[ \t]*(?=\r\n)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
_CODED = re.compile(rb"\r\n(?:transfer-encoding|content-encoding):", re.IGNORECASE)
_OK = (b"HTTP/1.1 200 ", b"HTTP/1.1 200\r")

P = TypeVar("P", bound=asyncio.BaseProtocol)


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
        self._silent: set[Origin] = set()
        """Who couldn't be connected to in time; the general client knows more ways."""

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
        connection: _Connection | None = None
        if origin in self._silent:
            return None
        try:
            async with asyncio.timeout(within_s):
                connection = await self._connected(origin)
                return await connection.ask(self._request(origin, target, headers), size_bytes)
        except TimeoutError:
            if connection is None:
                self._silent.add(origin)
            return None
        except (OSError, ssl.SSLError, UnicodeError):
            return None
        finally:
            if connection is not None:
                self._put_back(origin, connection)

    async def stream(
        self,
        origin: Origin,
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
        body = _Body(size_bytes)
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

    def _request(self, origin: Origin, target: str, headers: tuple[tuple[str, str], ...]) -> bytes:
        more = "".join(f"{name}: {value}\r\n" for name, value in headers)
        text = f"GET {target} HTTP/1.1\r\nHost: {origin.said}\r\n{self._fixed}{more}\r\n"
        return text.encode("latin-1")

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
        made = await _connect(_Connection, origin)
        self._all.add(made)
        return made


async def _connect(make: Callable[[], P], origin: Origin) -> P:
    loop = asyncio.get_running_loop()
    secure = _secure() if origin.is_secure else None
    _, made = await loop.create_connection(make, origin.host, origin.port, ssl=secure)
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
        if not _is_plain(head, self._size):
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


def _is_plain(head: bytes, size_bytes: int) -> bool:
    """Tell whether a head announces so many bytes, as they are."""
    lengths = _LENGTH.findall(head)
    if not head.startswith(_OK) or _CODED.search(head) is not None or len(lengths) != 1:
        return False
    return int(lengths[0]) == size_bytes


class _Body(asyncio.BufferedProtocol):
    """One connection, and one answer that is large: its bytes are received where they stay.

    The chunks that are full wait for whoever takes them; when some do, no more is read.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size = self._left = size_bytes
        self._head: bytearray | None = bytearray(_LARGEST_HEAD_BYTES)
        self._chunk = bytearray()
        self._filled = 0
        self._full: deque[bytearray] = deque()
        self._transport: asyncio.Transport | None = None
        self._is_over = self._is_paused = self._has_stirred = False
        self._told: asyncio.Future[None] | None = None

    def ask(self, request: bytes) -> None:
        """Send the request."""
        assert self._transport is not None
        self._transport.write(request)

    async def next(self, silence_s: float) -> bytearray | None:
        """Return the next chunk; ``None`` where no more comes, or nothing for so long."""
        while not self._full:
            if self._is_over:
                return None
            self._has_stirred = False
            self._told = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(silence_s):
                    await self._told
            except TimeoutError:
                if not self._has_stirred:
                    return None
            finally:
                self._told = None
        chunk = self._full.popleft()
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()
        return chunk

    def close(self) -> None:
        """Let go."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be connected."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where to put what comes; never no room, by the rules of the event loop."""
        if self._is_over:
            return memoryview(bytearray(1))
        return memoryview(self._chunk if self._head is None else self._head)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was put there."""
        self._has_stirred = True
        if self._is_over:
            return
        self._filled += nbytes
        if self._head is not None:
            self._read_head(self._head)
        elif self._filled == len(self._chunk):
            self._hand_over()

    def _read_head(self, head: bytearray) -> None:
        end = head.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            if self._filled == len(head):
                self._end()
            return
        begun = head[end + 4 : self._filled]
        if not _is_plain(bytes(head[: end + 2]), self._size) or len(begun) > self._size:
            self._end()
            return
        self._head = None
        self._begin_chunk()
        # A chunk is larger than a head, unless all of the body is smaller.
        self._chunk[: len(begun)] = begun
        self._filled = len(begun)
        if self._filled == len(self._chunk):
            self._hand_over()

    def _begin_chunk(self) -> None:
        size = min(_CHUNK_BYTES, self._left)
        self._left -= size
        self._chunk, self._filled = bytearray(size), 0
        if size == 0:
            self._end()

    def _hand_over(self) -> None:
        self._full.append(self._chunk)
        self._begin_chunk()
        if len(self._full) >= _CHUNKS_AHEAD and not self._is_over:
            assert self._transport is not None
            self._is_paused = True
            self._transport.pause_reading()
        self._tell()

    def eof_received(self) -> bool:
        """Be told that no more comes."""
        return False

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Be cut off; what has come is of use all the same."""
        if not self._is_over and self._head is None and self._filled:
            self._full.append(self._chunk[: self._filled])
        self._end()

    def _end(self) -> None:
        self._is_over = True
        # What comes behind the last byte is nobody's, and isn't read.
        self.close()
        self._tell()

    def _tell(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(None)
