"""Sends a request's body with a time limit for each piece.

aiohttp limits the wait for an answer only after the whole body was written, so it would wait for
ever for a server that stops reading. A closed connection also stays until its buffer was written,
so a connection that is given up is aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeAlias

import aiohttp
from aiohttp.connector import Connection

RequestBody: TypeAlias = bytes | AsyncIterator[bytes]


class Connector(aiohttp.TCPConnector):
    """Connections; each request body knows the connection that it uses."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - it is aiohttp's
    ) -> Connection:
        """Return a connection for a request."""
        connection = await super().connect(req, traces, timeout)
        sending = _sending.get()
        if sending is not None:
            sending.transport = connection.transport
        return connection


class _Sending:
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_over = False

    async def pieces(
        self, pieces: AsyncIterator[bytes], limit: asyncio.Timeout, silence_s: float
    ) -> AsyncIterator[bytes]:
        """Yield them; the caller must ask for the next one, or for the end, within the limit."""
        now_s = asyncio.get_running_loop().time
        async for piece in pieces:
            limit.reschedule(now_s() + silence_s)
            yield piece
            # The limit passed before the next piece was requested: the request has failed.
            if limit.expired():
                return
            # The time for reading the next piece here isn't the server's fault.
            limit.reschedule(None)
        self.is_over = True


_sending: ContextVar[_Sending | None] = ContextVar("_sending", default=None)


@asynccontextmanager
async def limited(
    data: RequestBody | None, connect_s: float, silence_s: float
) -> AsyncIterator[RequestBody | None]:
    """Yield a body for one request through a :class:`Connector`.

    ``TimeoutError`` if a piece isn't written within ``silence_s``. A body in one piece can't be
    watched: writing it and getting the whole answer may take twice as long.
    """
    if data is None:
        yield None
        return
    sending = _Sending()
    token = _sending.set(sending)
    try:
        async with asyncio.timeout(None) as limit:
            if isinstance(data, bytes):
                within_s = connect_s + 2 * silence_s
                limit.reschedule(asyncio.get_running_loop().time() + within_s)
                yield data
                sending.is_over = True
            else:
                yield sending.pieces(data, limit, silence_s)
    finally:
        _sending.reset(token)
        if not sending.is_over and sending.transport is not None:
            sending.transport.abort()
