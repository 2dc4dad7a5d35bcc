"""One client that takes all it can get, and another one who comes then."""

from __future__ import annotations

import base64
import json
import random
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
from lakeferry.export.webhook import SECRET_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from lakeferry.server.http import dataset_routes
from lakeferry.server.sessions import websocket_sessions
from lakeferry.transfer.repository.access_tokens import Scope, Tokens
from tests.support.hostile_clients import PULL, Hostile, frame
from tests.support.hosting import Hosted, Place, hosted
from tests.support.odf import Chain
from tests.support.reference_client import ReferenceClient, batch_of, fetch, files_of, name_of
from tests.support.servers import WEBHOOK_SECRET
from tests.support.serving import Serving, serving

MIB = 1 << 20
SOON_S = 15.0
MOST_MEMORY_BYTES = 400 * MIB
READ_BYTES = 256 << 10  # what asyncio reads at once from a connection
UPGRADE = (
    *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
    *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "x-odf-smtp-version: 1"),
)
PUSH = {
    "current_head": None,
    "transfer_plan": {"num_blocks": 1, "num_objects": 0, "num_records": 0}
    | {"bytes_in_raw_blocks": 0, "bytes_in_raw_objects": 0},
    "force_update_if_diverged": False,
    "visibility_for_created_dataset": "Private",
}


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
            for n in range(dataset_routes.UPLOADS_AT_ONCE + 4)
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
            for _ in range(websocket_sessions.MOST_SESSIONS)
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
        assert sum(is_open(each) for each in idle) > websocket_sessions.MOST_SESSIONS - 10


@pytest.mark.parametrize(
    "more",
    [
        ("X-Long: " + "x" * 9000,),
        ("Sec-WebSocket-Protocol: " + "a," * 5000,),
        tuple(f"x-{number}: y" for number in range(200)),
    ],
    ids=["a long header", "a long list of protocols", "many headers"],
)
def test_a_handshake_that_cannot_be_read_is_answered_and_closed(
    server: Hosted, more: tuple[str, ...]
) -> None:
    with asked(server, "GET", "acc/open/pull", None, *UPGRADE, *more) as opened:
        said = bytearray()
        while came := opened.recv(4096):
            said += came
    assert said.startswith(b"HTTP/1.1 431 ")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Serving]:
    """A server in a process of its own, whose memory can be looked at."""
    with serving(tmp_path, {}, forked=False) as running:
        yield running


def most_memory_bytes(server: Serving) -> int:
    return _memory_bytes(server, "VmHWM:")


def memory_bytes(server: Serving) -> int:
    return _memory_bytes(server, "VmRSS:")


def _memory_bytes(server: Serving, which: str) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith(which)]
    return int(line.split()[1]) * 1024


def heavy_table(folder: Path) -> lakeferry.Table:
    """Return a table with one commit whose block takes four mebibytes when it is packed."""
    write_deltalake(folder, pa.table({"x": [1]}))
    commit = folder / "_delta_log" / f"{0:020}.json"
    noise = base64.b64encode(random.randbytes(4 * MIB)).decode()
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    lines.append({"commitInfo": {"noise": noise}})
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines if len(line) == 1))
    return lakeferry.Table(str(folder))


def heard(connection: socket.socket) -> bytes:
    """Return the next short message of a server, or the first bytes of a long one."""
    return connection.recv(4096)


def session(held: ExitStack, server: Serving, path: str, token: str) -> socket.socket:
    """Open a session on a socket that takes little at a time."""
    parts = urlsplit(server.url)
    opened = held.enter_context(socket.socket())
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.settimeout(60)
    opened.connect((parts.hostname, parts.port))
    opened.sendall(Hostile(server.url, "", "", "").head("GET", path, token, *UPGRADE))
    assert heard(opened).startswith(b"HTTP/1.1 101")
    return opened


def test_answers_that_nobody_takes_leave_room_and_memory(process: Serving, tmp_path: Path) -> None:
    tokens = Tokens(process.store)
    reader, other = tokens.create(Scope.READ), tokens.create(Scope.WRITE)
    url = f"{process.url}/acc/heavy"
    head = heavy_table(tmp_path / "heavy").push(url, token=other).head
    with ExitStack() as held:
        for number in range(32):
            # One half takes nothing of the session's blocks, the other of a plain block.
            if number % 2:
                path = f"acc/heavy/blocks/{head}"
                parts = urlsplit(process.url)
                opened = held.enter_context(socket.socket())
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                opened.connect((parts.hostname, parts.port))
                opened.sendall(Hostile(process.url, "", "", "").head("GET", path, reader))
                continue
            opened = session(held, process, "acc/heavy/pull", reader)
            opened.sendall(frame(1, PULL.encode()))
            assert b"transfer_plan" in heard(opened)
            opened.sendall(frame(1, b"{}"))
        began_s = time.monotonic()
        done = lakeferry.Table(str(tmp_path / "copy")).pull(url, token=other)
        assert done.head == head
        assert time.monotonic() - began_s < 2 * SOON_S
    assert most_memory_bytes(process) < MOST_MEMORY_BYTES


def test_blocks_of_unfinished_pushes_are_kept_packed_and_once(
    process: Serving, tmp_path: Path
) -> None:
    writer = Tokens(process.store).create(Scope.WRITE)
    url = f"{process.url}/acc/heavy"
    head = heavy_table(tmp_path / "heavy").push(url, token=writer).head
    assert head is not None
    status, block = fetch(f"{url}/blocks/{head}", {"Authorization": f"Bearer {writer}"})
    assert status == 200
    blocks = frame(1, json.dumps({"new_blocks": batch_of([(head, block)])}).encode())
    with ExitStack() as held:
        for number in range(12):
            opened = session(held, process, f"acc/other{number}/push", writer)
            opened.sendall(frame(1, json.dumps(PUSH).encode()))
            assert b"Ok" in heard(opened)
            opened.sendall(blocks)
            assert b"Ok" in heard(opened)
        assert most_memory_bytes(process) < MOST_MEMORY_BYTES


def test_unfinished_pushes_of_one_token_keep_nobody_out(process: Serving, tmp_path: Path) -> None:
    tokens = Tokens(process.store)
    greedy, other = tokens.create(Scope.WRITE), tokens.create(Scope.WRITE)
    mine = heavy_table(tmp_path / "heavy")
    head = mine.push(f"{process.url}/acc/heavy", token=greedy).head
    assert head is not None
    url = f"{process.url}/acc/heavy/blocks/{head}"
    status, block = fetch(url, {"Authorization": f"Bearer {greedy}"})
    assert status == 200
    blocks = frame(1, json.dumps({"new_blocks": batch_of([(head, block)])}).encode())
    with ExitStack() as held:
        unfinished: list[socket.socket] = []
        is_taken = True
        while is_taken:
            assert len(unfinished) < websocket_sessions.MOST_SESSIONS
            opened = session(held, process, f"acc/other{len(unfinished)}/push", greedy)
            opened.sendall(frame(1, json.dumps(PUSH).encode()))
            assert b"Ok" in heard(opened)
            opened.sendall(blocks)
            said = heard(opened)
            is_taken = b"Ok" in said
            unfinished.append(opened)
        assert b"limit_exceeded" in said
        began_s = time.monotonic()
        assert mine.push(f"{process.url}/acc/mine", token=other).head == head
        assert time.monotonic() - began_s < SOON_S
        assert sum(map(is_open, unfinished)) >= len(unfinished) - 6
        assert most_memory_bytes(process) < MOST_MEMORY_BYTES


def test_bodies_of_events_that_nobody_vouches_for_take_no_memory(process: Serving) -> None:
    before_bytes = most_memory_bytes(process)
    path, length = ".lakeferry/lakefs", f"Content-Length: {MIB - 1}"
    parts = urlsplit(process.url)
    with ExitStack() as held:
        for _ in range(300):
            opened = held.enter_context(
                socket.create_connection((parts.hostname, parts.port), timeout=5)
            )
            # Whether the signature is right shows when all is there.
            claimed = (f"{SIGNATURE_HEADER}: sha256=0", f"{TIMESTAMP_HEADER}: 1", length)
            opened.sendall(Hostile(process.url, "", "", "").head("POST", path, None, *claimed))
            opened.setblocking(False)
            with suppress(OSError):
                opened.send(bytes(MIB - 2))
        # Long enough for a server that would take all of it.
        time.sleep(4)
        began_s = time.monotonic()
        status, _ = process.post(b"{}", {SECRET_HEADER: WEBHOOK_SECRET})
        assert status == 400
        assert time.monotonic() - began_s < SOON_S
        assert most_memory_bytes(process) - before_bytes < 130 * MIB


@pytest.mark.parametrize("ends", [True, False], ids=["whole", "cut off"])
def test_large_messages_that_came_to_nothing_leave_no_memory(process: Serving, ends: bool) -> None:
    writer = Tokens(process.store).create(Scope.WRITE)
    client = ReferenceClient(f"{process.url}/acc/open", writer)
    client.push(files_of(Chain().append()))
    before_bytes = memory_bytes(process)
    size = 15 * MIB
    text = frame(1, b"", size) + b"[" * (size if ends else size - 1)
    for _ in range(16):
        with ExitStack() as held:
            opened = session(held, process, "acc/open/pull", writer)
            opened.sendall(frame(1, PULL.encode()))
            assert b"transfer_plan" in heard(opened)
            opened.sendall(frame(1, b"{}"))
            while not heard(opened).endswith(b"}}"):
                pass
            opened.sendall(text)
            if ends:
                assert heard(opened)
    assert memory_bytes(process) - before_bytes < 64 * MIB


def test_uploads_that_wait_for_a_place_take_no_memory(process: Serving) -> None:
    writer = Tokens(process.store).create(Scope.WRITE)
    ReferenceClient(f"{process.url}/acc/evil", writer).push(files_of(Chain().append()))
    before_bytes, connections = most_memory_bytes(process), 700
    parts = urlsplit(process.url)
    statuses = set()
    with ExitStack() as held:
        opened = []
        for number in range(connections):
            each = held.enter_context(socket.create_connection((parts.hostname, parts.port)))
            path = f"acc/evil/data/{name_of(b'%d' % number)}"
            length = f"Content-Length: {10 * MIB}"
            each.sendall(Hostile(process.url, "", "", "").head("PUT", path, writer, length))
            each.setblocking(False)
            for _ in range(2):
                with suppress(OSError):
                    each.send(bytes(MIB))
                time.sleep(0.002)
            opened.append(each)
        for each in opened:
            each.setblocking(True)
            each.settimeout(0.05)
            with suppress(OSError):
                statuses.add(each.recv(12))
        assert b"HTTP/1.1 503" in statuses
        for each in opened:
            each.close()
        assert fetch(f"{process.url}/healthz")[0] == 200
        # Each has sent up to 2 MiB, of which the server may read one piece.
        assert most_memory_bytes(process) - before_bytes < connections * READ_BYTES


def is_open(connection: socket.socket) -> bool:
    """Tell whether the server hasn't closed a WebSocket."""
    connection.settimeout(0.01)
    try:
        said = connection.recv(4096)
        while said:
            if said.endswith(b"other clients are waiting"):
                return False
            said = connection.recv(4096)
    except TimeoutError:
        return True
    except OSError:
        return False
    return False
