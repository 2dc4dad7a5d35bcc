"""Clients that mean harm to a server, many kinds at once, in a process of their own.

``python -m tests.support.hostile_clients URL READ_TOKEN WRITE_TOKEN OBJECT_PATH`` goes on until
it is ended. All of them speak over bare sockets, so that they can do what no library would.
``OBJECT_PATH`` names a large object of the public dataset ``acc/public``; ``acc/evil`` is theirs.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias
from urllib.parse import urlsplit

MIB = 1 << 20
EMOJI = "\U0001f600".encode() * (MIB // 4)
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PULL = json.dumps({"begin_after": None, "stop_at": None, "force_update_if_diverged": False})


class Hostile:
    """All kinds of them, against one server."""

    def __init__(self, url: str, read_token: str, write_token: str, object_path: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.read_token, self.write_token = read_token, write_token
        self.object_path = object_path

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Streams]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=4 << 10)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def head(self, method: str, path: str, token: str | None, *more: str) -> bytes:
        lines = [f"{method} /{path} HTTP/1.1", f"Host: {self.host}:{self.port}", *more]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        return "\r\n".join([*lines, "", ""]).encode()

    @asynccontextmanager
    async def session(self, path: str, token: str | None) -> AsyncIterator[Streams]:
        more = (
            *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
            *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "x-odf-smtp-version: 1"),
        )
        async with self.connection() as (reader, writer):
            writer.write(self.head("GET", path, token, *more))
            await reader.readuntil(b"\r\n\r\n")
            yield reader, writer

    # --- The kinds --------------------------------------------------------------------

    async def heavy(self) -> None:
        """Send 60 MiB of text that nobody asked for, without a token, at some step."""
        async with self.session("acc/public/pull", None) as (_, writer):
            for text in (PULL, "{}")[: random.randrange(3)]:
                writer.write(frame(1, text.encode()))
                await asyncio.sleep(0.2)
            writer.write(frame(1, b"", 60 * MIB, last=random.random() < 0.5))
            for _ in range(60):
                writer.write(EMOJI)
                await writer.drain()

    async def heavy_push(self) -> None:
        """Send 60 MiB where a push's blocks are expected, or nearly so many, slowly."""
        request = {
            "current_head": None,
            "transfer_plan": {"num_blocks": 0, "num_objects": 0, "num_records": 0}
            | {"bytes_in_raw_blocks": 0, "bytes_in_raw_objects": 0},
            "force_update_if_diverged": False,
            "visibility_for_created_dataset": "Private",
        }
        path = f"acc/evil{random.randrange(1 << 30)}/push"
        async with self.session(path, self.write_token) as (reader, writer):
            writer.write(frame(1, json.dumps(request).encode()))
            await reader.read(1000)
            writer.write(frame(1, b"", 60 * MIB))
            is_slow = random.random() < 0.5
            for _ in range(60):
                writer.write(EMOJI)
                await writer.drain()
                await asyncio.sleep(5 if is_slow else 0)
            await reader.read(1000)

    async def slow_put(self) -> None:
        """Send an object a byte at a time."""
        name = "f1620" + random.randbytes(32).hex()
        async with self.connection() as (_, writer):
            length = f"Content-Length: {10 * MIB}"
            writer.write(self.head("PUT", f"acc/evil/data/{name}", self.write_token, length))
            while not writer.transport.is_closing():
                writer.write(b"x")
                await asyncio.sleep(1)

    async def idle_session(self) -> None:
        """Open a session and say nothing, or one thing and then nothing."""
        async with self.session("acc/public/pull", self.read_token) as (reader, writer):
            if random.random() < 0.5:
                writer.write(frame(1, PULL.encode()))
                await asyncio.sleep(0.5)
                writer.write(frame(1, b"{}"))
            while await reader.read(1000):
                pass

    async def idle_connection(self) -> None:
        """Connect and ask for nothing, or for something very slowly."""
        async with self.connection() as (reader, writer):
            if random.random() < 0.5:
                writer.write(b"GET /healthz HTT")
            await reader.read(1000)

    async def slow_download(self) -> None:
        """Ask for a large object, and hardly take any of it."""
        async with self.connection() as (reader, writer):
            writer.write(self.head("GET", self.object_path, None))
            while await reader.read(1):  # noqa: ASYNC110 - it is slow on purpose
                await asyncio.sleep(1)

    async def many_frames(self) -> None:
        """Send pings, or a message in fragments of a byte."""
        async with self.session("acc/public/pull", None) as (_, writer):
            flood = random.choice([frame(9, b""), frame(0, b"x", last=False)])
            writer.write(frame(1, b"{", last=False) + flood * 20_000)
            await writer.drain()
            await asyncio.sleep(1)

    async def wrong_hash(self) -> None:
        """Ask for a file by another hash, and for blocks that aren't there."""
        async with self.connection() as (reader, writer):
            folder, _, path = self.object_path.rpartition("/data/")
            name = "f1620" + random.randbytes(32).hex()
            file = path.partition("/")[2]
            for asked in (f"{folder}/data/{name}/{file}", f"{folder}/blocks/{name}"):
                writer.write(self.head("GET", asked, None))
            assert b" 404 " in await reader.readline()
            await asyncio.sleep(0.1)

    async def huge_head(self) -> None:
        """Send a head without an end."""
        async with self.connection() as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * MIB)
            await reader.read(1000)
            await asyncio.sleep(0.1)

    async def run(self) -> None:
        """Go on for ever; whoever is dropped comes again."""
        kinds: list[tuple[Callable[[], Coroutine[Any, Any, None]], int]] = [
            (self.heavy, 3),
            (self.heavy_push, 3),
            (self.slow_put, 30),
            (self.idle_session, 300),
            (self.idle_connection, 200),
            (self.slow_download, 60),
            (self.many_frames, 2),
            (self.wrong_hash, 2),
            (self.huge_head, 2),
        ]
        await asyncio.gather(*(again(kind) for kind, count in kinds for _ in range(count)))


async def again(kind: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.sleep(random.random())
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await kind()
        await asyncio.sleep(random.random())


def frame(opcode: int, data: bytes, announced: int | None = None, *, last: bool = True) -> bytes:
    """Return a frame, masked with nothing; it may announce more than it has."""
    length = len(data) if announced is None else announced
    first = (0x80 if last else 0) | opcode
    if length < 126:
        return bytes([first, 0x80 | length]) + bytes(4) + data
    return bytes([first, 0xFF]) + length.to_bytes(8, "big") + bytes(4) + data


if __name__ == "__main__":
    asyncio.run(Hostile(*sys.argv[1:]).run())
