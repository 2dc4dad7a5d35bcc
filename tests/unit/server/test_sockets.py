"""How much of what clients send is in memory at once, over all connections of a server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from lakeferry.server import sockets
from lakeferry.server.sockets import SMALL_MESSAGE_BYTES, SessionSocket
from tests.support.serving import until

LARGE = "x" * (2 * SMALL_MESSAGE_BYTES)
PART = b"\x81\xff" + (4 * len(LARGE)).to_bytes(8, "big") + bytes(len(LARGE))
"""The first quarter of a text, as it is on the wire."""


@dataclass
class Answering:
    """A server that answers each message with its length, once it is told to look at it."""

    look: threading.Event = field(default_factory=threading.Event)
    clients: ExitStack = field(default_factory=ExitStack)
    arrived: int = 0

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            self.arrived += 1
            await asyncio.to_thread(self.look.wait, 30)
            await send({"type": "websocket.send", "text": str(len(message["text"]))})

    def start(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                interface="asgi3",
                ws=SessionSocket,
                ws_ping_interval=None,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                timeout_graceful_shutdown=1,
            )
        )
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True
        )
        self.thread.start()
        until(lambda: self.server.started)

    def connect(self) -> ClientConnection:
        url = f"ws://127.0.0.1:{self.listener.getsockname()[1]}/"
        opened = connect(url, compression=None, ping_interval=None, proxy=None, close_timeout=1)
        return self.clients.enter_context(opened)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    monkeypatch.setattr(sockets, "LARGE_AT_ONCE", 2)
    made = Answering()
    made.start()
    yield made
    made.look.set()
    made.clients.close()
    made.server.should_exit = True
    made.thread.join(30)
    made.listener.close()


def test_of_large_messages_so_many_are_in_memory_and_the_others_come_later(
    server: Answering,
) -> None:
    clients = [server.connect() for _ in range(5)]
    threads = [threading.Thread(target=each.send, args=(LARGE,), daemon=True) for each in clients]
    for thread in threads:
        thread.start()
    until(lambda: server.arrived == 2)
    # Those who send little aren't held up, and how many there are makes no difference.
    small = [server.connect() for _ in range(4)]
    for each in small:
        each.send("small")
    until(lambda: server.arrived == 6)
    server.look.set()
    assert [int(each.recv(30)) for each in clients] == [len(LARGE)] * 5
    assert [int(each.recv(30)) for each in small] == [len("small")] * 4


def test_a_connection_may_send_one_large_message_after_the_other(server: Answering) -> None:
    server.look.set()
    client = server.connect()
    for size in (1, 3, 2):
        client.send(LARGE * size)
        assert int(client.recv(30)) == len(LARGE) * size


def test_whoever_leaves_in_the_middle_makes_room(server: Answering) -> None:
    server.look.set()
    for _ in range(3):
        broken = server.connect()
        broken.socket.sendall(PART)
        broken.socket.shutdown(socket.SHUT_RDWR)
    last = server.connect()
    last.send(LARGE)
    assert int(last.recv(30)) == len(LARGE)


def test_whoever_has_room_and_sends_nothing_is_dropped(
    server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "LOOKED_AT_EVERY_S", 0.05)
    server.look.set()
    silent = [server.connect() for _ in range(2)]
    for each in silent:
        each.socket.sendall(PART)
    other = server.connect()
    other.send(LARGE)
    assert int(other.recv(30)) == len(LARGE)
    for each in silent:
        with pytest.raises(ConnectionClosed):
            each.recv(30)
