"""One client that takes all it can get, and another one who comes then."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakeferry
from lakeferry.server import datasets, sessions
from lakeferry.transfer.tokens import Scope
from tests.support.hostile_clients import PULL, Hostile, frame
from tests.support.hosting import Hosted, Place, hosted
from tests.support.odf import Chain
from tests.support.reference_client import ReferenceClient, files_of, name_of

MIB = 1 << 20
SOON_S = 15.0
UPGRADE = (
    *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
    *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "x-odf-smtp-version: 1"),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hosted]:
    with hosted(Place((tmp_path / "root").as_uri())) as running:
        yield running


def asked(server: Hosted, method: str, path: str, token: str | None, *more: str) -> socket.socket:
    """Send the head of a request over a socket of its own."""
    parts = urlsplit(server.url)
    opened = socket.create_connection((parts.hostname, parts.port), timeout=30)
    opened.sendall(Hostile(server.url, "", "", "").head(method, path, token, *more))
    return opened


@contextmanager
def dribbling(sockets: list[socket.socket]) -> Iterator[None]:
    """Send a byte now and then on each of them."""
    ended = threading.Event()

    def dribble() -> None:
        while not ended.wait(0.2):
            for each in sockets:
                with suppress(OSError):
                    each.send(b"x")

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def table(folder: Path) -> lakeferry.Table:
    """Return a table whose file is too large to be taken in without a place among uploads."""
    write_deltalake(folder, pa.table({"x": list(range(100_000))}))
    return lakeferry.Table(str(folder))


def test_slow_uploads_of_one_token_cost_another_a_few_seconds(
    server: Hosted, tmp_path: Path
) -> None:
    greedy, other = server.token(), server.token()
    ReferenceClient(server.dataset("acc/evil"), greedy).push(files_of(Chain().append()))
    with ExitStack() as held:
        length = f"Content-Length: {10 * MIB}"
        slow = [
            held.enter_context(
                asked(server, "PUT", f"acc/evil/data/{name_of(b'%d' % n)}", greedy, length)
            )
            for n in range(datasets.UPLOADS_AT_ONCE + 4)
        ]
        with dribbling(slow):
            time.sleep(1)
            began_s = time.monotonic()
            done = table(tmp_path / "t").push(server.dataset("acc/mine"), token=other)
            assert time.monotonic() - began_s < SOON_S
        assert done.objects == 1
        # Whoever had to make way is told to come again.
        statuses = set()
        for each in slow:
            each.settimeout(0.2)
            with suppress(OSError):
                statuses.add(each.recv(12))
        assert b"HTTP/1.1 503" in statuses


def test_idle_sessions_of_one_token_keep_nobody_out(server: Hosted, tmp_path: Path) -> None:
    reader, other = server.token(Scope.READ), server.token()
    ReferenceClient(server.dataset("acc/open"), other).push(files_of(Chain().append()))
    with ExitStack() as held:
        idle = [
            held.enter_context(asked(server, "GET", "acc/open/pull", reader, *UPGRADE))
            for _ in range(sessions.MOST_SESSIONS)
        ]
        for number, each in enumerate(idle):
            assert each.recv(12) == b"HTTP/1.1 101"
            if number % 2:
                each.sendall(frame(1, PULL.encode()))
        began_s = time.monotonic()
        one = table(tmp_path / "t")
        one.push(server.dataset("acc/mine"), token=other)
        lakeferry.Table(str(tmp_path / "copy")).pull(server.dataset("acc/mine"), token=other)
        assert time.monotonic() - began_s < SOON_S
        # Of the idle ones, nearly all are still there.
        assert sum(is_open(each) for each in idle) > sessions.MOST_SESSIONS - 10


def is_open(connection: socket.socket) -> bool:
    """Tell whether the server hasn't closed a WebSocket."""
    connection.settimeout(0.01)
    try:
        said = connection.recv(4096)
        while said:
            if said.endswith(b"others need the place"):
                return False
            said = connection.recv(4096)
    except TimeoutError:
        return True
    except OSError:
        return False
    return False
