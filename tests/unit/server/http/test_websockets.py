"""How much of what clients send, or leave unread, is in memory, and for how long."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from lakeferry.server.http import connection_timeouts, websocket_frames, websockets
from lakeferry.server.http.websockets import SMALL_MESSAGE_BYTES, SessionSocket
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
    answer_bytes: int = 0

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            if "too_large" in message:
                await send({"type": "websocket.close", "code": 1009})
                return
            self.arrived += 1
            await asyncio.to_thread(self.look.wait, 30)
            text = str(len(message["utf8"])).ljust(self.answer_bytes)
            await send({"type": "websocket.send", "text": text})

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
    monkeypatch.setattr(websockets, "ROOM_BYTES", 8 * SMALL_MESSAGE_BYTES)
    monkeypatch.setattr(websockets, "SHARE_BYTES", 5 * SMALL_MESSAGE_BYTES)
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
    monkeypatch.setattr(websockets, "LOOKED_AT_EVERY_S", 0.05)
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


@contextmanager
def bare(server: Answering) -> Iterator[socket.socket]:
    """Open a WebSocket that reads nothing by itself, and has little room for what comes."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        client.settimeout(30)
        client.connect(server.listener.getsockname())
        client.sendall(
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        yield client


def frame(opcode: int, data: bytes) -> bytes:
    """Return a short frame, masked with nothing."""
    return bytes([0x80 | opcode, 0x80 | len(data)]) + bytes(4) + data


def test_whoever_leaves_a_large_answer_unread_is_dropped(
    server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_timeouts, "TAKEN_WITHIN_S", 0.2)
    server.look.set()
    server.answer_bytes = 32 << 20
    with bare(server) as silent:
        silent.sendall(frame(1, b"one"))
        until(lambda: server.arrived == 1)
        until(lambda: not server.server.server_state.connections)


def test_pings_whose_answers_are_left_unread_are_not_all_answered(
    server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_frames, "CONTROL_FRAMES", 1 << 30)
    ping, count = frame(9, bytes(125)), 100_000
    with bare(server) as silent:
        silent.sendall(ping * count)
        # With the Close behind them, what there is of answers comes to an end.
        silent.sendall(frame(8, (1000).to_bytes(2, "big")))
        read = 0
        while piece := silent.recv(1 << 20):
            read += len(piece)
    assert 0 < read < count * (len(ping) - 4)


# --- What is refused before it is there -----------------------------------------------------


def said(client: socket.socket) -> tuple[int, bytes]:
    """Return the opcode and the payload of a short frame of the server's."""
    head = client.recv(2, socket.MSG_WAITALL)
    assert len(head) == 2, "it closed without a word"
    return head[0] & 15, client.recv(head[1] & 127, socket.MSG_WAITALL)


@pytest.mark.parametrize("flood", [frame(9, b""), frame(10, b"x"), frame(9, bytes(125))])
def test_a_flood_of_control_frames_ends_the_connection(server: Answering, flood: bytes) -> None:
    with bare(server) as client:
        with suppress(OSError):
            client.sendall(flood * (websocket_frames.CONTROL_FRAMES + 1))
        while (found := said(client))[0] == 10:
            pass
        assert found[0] == 8
        assert int.from_bytes(found[1][:2], "big") == 1002


def test_a_message_in_fragments_of_a_byte_is_refused(server: Answering) -> None:
    server.look.set()
    text, piece, last = b"\x01\x80" + bytes(4), b"\x00\x81" + bytes(5), b"\x80\x81" + bytes(5)
    with bare(server) as client:
        client.sendall(text + piece * 1000 + last)
        assert said(client) == (1, b"1001")
        with suppress(OSError):
            client.sendall(text + piece * websocket_frames.MOST_FRAGMENTS)
        assert said(client)[0] == 8


def test_fragments_and_masks_come_out_as_one_text(server: Answering) -> None:
    server.look.set()
    client = server.connect()
    for size in (1, 2, 3, 5, 4095, 4097, 70_001, 300_001):
        client.send(iter(["\u00e4" * size, "y", "", "z" * size]))
        assert int(client.recv(30)) == 3 * size + 1


@pytest.mark.parametrize("first", [0x81, 0x01, 0x82])
def test_a_message_is_refused_by_its_announced_length(server: Answering, first: int) -> None:
    announced = bytes([first, 0xFF]) + (1 << 40).to_bytes(8, "big")
    with bare(server) as client:
        client.sendall(announced)
        # Without a byte of it, or even of its mask.
        assert said(client)[0] == 8
