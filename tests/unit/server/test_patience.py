"""A connection that asks for nothing is closed, and one that asks for much isn't."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from lakeferry.server import patience
from lakeferry.server.patience import PatientProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: object, receive: object, send) -> None:  # type: ignore[no-untyped-def]
    """Answer after longer than a head may take."""
    await asyncio.sleep(0.6)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"late"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(patience, "HEAD_WITHIN_S", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, http=PatientProtocol, ws="none", lifespan="off", log_config=None)
    )
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)
    listener.close()


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
