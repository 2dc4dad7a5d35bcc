"""Sends a request's body with a time limit for each piece.

aiohttp limits how long it waits for an answer, from when all was written on: a server that
stops reading would be waited for until it comes back. And a connection that is closed while
something is still to be written stays until it was, so that one that is given up is aborted.
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
    """Connections of which each body knows the one that it goes by."""

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
        """Yield them; whoever takes one has so long to come back for the next, or the end."""
        now_s = asyncio.get_running_loop().time
        async for piece in pieces:
            limit.reschedule(now_s() + silence_s)
            yield piece
            # It came back a moment too late: the request is over, and so is this.
            if limit.expired():
                return
            # How long the next one takes to be read isn't the other end's doing.
            limit.reschedule(None)
        self.is_over = True


_sending: ContextVar[_Sending | None] = ContextVar("_sending", default=None)


@asynccontextmanager
async def limited(
    data: RequestBody | None, connect_s: float, silence_s: float
) -> AsyncIterator[RequestBody | None]:
    """Give a body to be sent by one request through a :class:`Connector`.

    ``TimeoutError`` where a piece isn't taken within ``silence_s``. Of bytes it isn't told when
    they were taken: they, and all of the answer to them, have twice as long.
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
