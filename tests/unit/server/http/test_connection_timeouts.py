"""A connection that asks for nothing or takes nothing is closed; one that is slow isn't."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import uvicorn

from lakeferry.server.http import connection_timeouts
from lakeferry.server.http.connection_timeouts import PatientProtocol
from tests.support.serving import until

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: object, receive: object, send) -> None:  # type: ignore[no-untyped-def]
    """Answer after longer than a head may take."""
    await asyncio.sleep(0.6)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"late"})


class Much:
    """Answers with so many pieces of a size."""

    def __init__(self, pieces: int, size_bytes: int) -> None:
        self.pieces = pieces
        self.size_bytes = size_bytes

    @property
    def bytes(self) -> int:
        return self.pieces * self.size_bytes

    async def __call__(self, scope: object, receive: object, send) -> None:  # type: ignore[no-untyped-def]
        length = (b"content-length", str(self.bytes).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        for left in reversed(range(self.pieces)):
            body = {"type": "http.response.body", "body": bytes(self.size_bytes)}
            await send({**body, "more_body": left > 0})


@contextmanager
def serving(
    app: Callable[..., object], sent_bytes: int | None = None, most: int | None = None
) -> Iterator[tuple[int, uvicorn.Server]]:
    """Serve on a port, with a buffer of the system's of that size for what is sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    if sent_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sent_bytes)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            limit_concurrency=most,
        )
    )
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], server
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connection_timeouts, "_HEAD_WITHIN_S", 0.3)
    with serving(app) as (port, _):
        yield port


@pytest.mark.parametrize("begun", [b"", b"GET / HTT"])
def test_who_sends_no_whole_head_is_sent_away(port: int, begun: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
        silent.sendall(begun)
        assert silent.recv(1000) == b""


def test_an_answer_that_takes_longer_is_waited_for_and_then_the_next_request(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as asking:
        for _ in range(2):
            asking.sendall(REQUEST)
            answer = b""
            while not answer.endswith(b"late\r\n0\r\n\r\n"):
                answer += asking.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200")
        assert asking.recv(1000) == b""


@contextmanager
def asking(port: int) -> Iterator[socket.socket]:
    """Ask, with little room for the answer."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        client.settimeout(10)
        client.connect(("127.0.0.1", port))
        client.sendall(REQUEST)
        yield client


@pytest.mark.parametrize("pieces", [64, 1])
def test_who_takes_nothing_of_an_answer_is_dropped(
    monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """Also of one that is written whole, so that nobody but the connection waits for its end."""
    monkeypatch.setattr(connection_timeouts, "TAKEN_WITHIN_S", 0.2)
    much = Much(pieces, (64 << 20) // pieces)
    with serving(much, 64 << 10) as (port, server), asking(port) as client:
        assert client.recv(1)
        until(lambda: not server.server_state.connections)
        read = 0
        while piece := client.recv(1 << 20):
            read += len(piece)
        assert read < much.bytes


@pytest.mark.parametrize("sent_bytes", [16 << 10, 2 << 20])
def test_who_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch, sent_bytes: int) -> None:
    """Also where the system has much of the answer, and takes no more from us for long."""
    monkeypatch.setattr(connection_timeouts, "TAKEN_WITHIN_S", 1.0)
    much = Much(8, 1 << 20)
    with serving(much, sent_bytes) as (port, _), asking(port) as client:
        read = 0
        for _ in range(150):
            read += len(client.recv(4 << 10))
            time.sleep(0.01)
        while piece := client.recv(1 << 20):
            read += len(piece)
            if read > much.bytes:
                break
        assert read > much.bytes


def test_connections_that_ask_for_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_timeouts, "SPARE_CONNECTIONS", 4)
    with serving(app, most=12) as (port, server), ExitStack() as held:
        for _ in range(30):
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            until(lambda: len(server.server_state.connections) <= 12)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as asking:
            asking.sendall(REQUEST)
            assert asking.recv(12) == b"HTTP/1.1 200"


def test_who_hardly_takes_anything_makes_way_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_timeouts, "SPARE_CONNECTIONS", 2)
    monkeypatch.setattr(connection_timeouts, "_SLOW_AFTER_S", 0.1)
    much = Much(1000, 1 << 20)
    with serving(much, sent_bytes=16 << 10, most=8) as (port, server), ExitStack() as held:
        for _ in range(20):
            slow = held.enter_context(socket.socket())
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
            slow.settimeout(10)
            slow.connect(("127.0.0.1", port))
            slow.sendall(REQUEST)
            time.sleep(0.05)
        monkeypatch.setattr(much, "pieces", 1)
        time.sleep(0.3)
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as asking:
                asking.sendall(REQUEST)
                assert asking.recv(12) == b"HTTP/1.1 200"
        assert len(server.server_state.connections) < 8
