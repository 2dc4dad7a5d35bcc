"""Objects that nobody takes: a store, or a proxy before it, that accepts and doesn't read."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from lakeferry.engine import Volume
from lakeferry.errors import TimedOut
from lakeferry.transfer.client.remote_dataset import Patience, Remote
from lakeferry.transfer.client.request_body import limited
from lakeferry.transfer.wire.messages import TransferUrl
from tests.support.transfer_server import TransferServer
from tests.support.transfers import push
from tests.unit.transfer.client.test_push_and_pull import (
    in_parts,
    laid_out,
    stored,
    terms,
    with_large_object,
)

SIZE = 24 << 20
"""More than the buffers of a connection hold."""
SHORT = Patience(attempts=2, first_wait_s=0.001, longest_wait_s=0.01, connect_s=5, silence_s=0.3)


@dataclass
class Deaf:
    """Connections that were accepted; nothing more than the first bytes is read from them."""

    url: str
    connections: list[socket.socket] = field(default_factory=list)


@contextmanager
def deaf(answer: bytes = b"") -> Iterator[Deaf]:
    """Take connections, and read no body; say ``answer`` to each request, whatever it is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        found = Deaf(f"http://127.0.0.1:{listener.getsockname()[1]}")

        def accept() -> None:
            with suppress(OSError):
                while True:
                    one, _ = listener.accept()
                    found.connections.append(one)
                    one.recv(100)
                    one.sendall(answer)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield found
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for one in found.connections:
                one.close()


@pytest.mark.parametrize("in_several_parts", [False, True])
def test_a_push_to_a_store_that_stops_reading_ends(in_several_parts: bool) -> None:
    built, path = with_large_object(SIZE)
    with deaf() as store, TransferServer() as server:
        if in_several_parts:
            in_parts(server, path, 1, part_bytes=SIZE)
            tell = server.edit

            def elsewhere(name: str, message: object) -> object:
                changed = tell(name, message)
                if name == "urls":
                    [one] = changed["Ok"]["object_transfer_strategies"]
                    one["upload_to"]["lakeferry_parts"]["url"] = f"{store.url}/parts"
                return changed

            server.edit = elsewhere
        else:
            server.url_base = store.url
        with pytest.raises(TimedOut):
            push(stored(laid_out(built)), server.url, terms(patience=SHORT))
        assert len(store.connections) == SHORT.attempts
        assert server.head is None


@pytest.mark.parametrize("numbers", [(), (1, 2, 3, 4, 5)])
def test_a_push_tells_how_far_it_is_within_an_object(numbers: tuple[int, ...]) -> None:
    size = 9 << 20
    built, path = with_large_object(size)
    told: list[tuple[int, int, int]] = []

    def observe(_: str, done: int, total: int) -> None:
        assert isinstance(done, Volume)
        told.append((int(done), done.objects, int(total)))

    with TransferServer() as server:
        if numbers:
            in_parts(server, path, *numbers)
        push(stored(laid_out(built)), server.url, terms(), observer=observe)
    *inside, last = told
    assert last == (size, 1, size)
    assert len(inside) >= 2
    assert inside == sorted(inside)
    assert all(0 < done <= size and not objects for done, objects, _ in inside)


def test_a_push_tells_how_far_it_is_within_a_part() -> None:
    size = 4 << 20
    built, path = with_large_object(size)
    told: list[int] = []
    with TransferServer() as server:
        in_parts(server, path, 1, part_bytes=size)
        push(
            stored(laid_out(built)),
            server.url,
            terms(),
            observer=lambda _what, done, _total: told.append(done),
        )
    assert told == sorted(told)
    # Each slice that is sent is reported.
    assert len({done for done in told if 0 < done < size}) >= 10


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield bytes(SIZE // count)


def put(to: str, data: bytes | AsyncIterator[bytes], patience: Patience = SHORT) -> int:
    """Make one request with a body, and return the answer's status."""

    async def make() -> int:
        async with Remote.open(to, terms(patience=patience)) as remote:
            length = {"content-length": str(SIZE)}
            async with remote.request("PUT", TransferUrl(to), length, data) as response:
                return response.status

    return asyncio.run(make())


@pytest.mark.parametrize("count", [1, 100])
def test_a_body_that_isnt_taken_is_given_up(count: int) -> None:
    with deaf() as store, pytest.raises(TimedOut):
        put(f"{store.url}/x", pieces(count))


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_bytes_that_arent_taken_are_given_up() -> None:
    patience = Patience(connect_s=0.1, silence_s=0.1)
    with deaf() as store, pytest.raises(TimedOut):
        put(f"{store.url}/x", bytes(SIZE), patience)


def test_an_answer_before_the_body_was_taken_is_heard() -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
    with deaf(refusal) as store:
        assert put(f"{store.url}/x", pieces(100)) == 403


def test_how_long_a_piece_takes_to_be_read_isnt_the_other_ends_doing() -> None:
    async def read() -> AsyncIterator[bytes]:
        for _ in range(3):
            # Longer than others have to take a piece of it.
            await asyncio.sleep(0.03)
            yield b"x"

    async def run() -> None:
        async with limited(read(), 0, 0.02) as body:
            assert isinstance(body, AsyncIterator)
            assert [piece async for piece in body] == [b"x"] * 3

    asyncio.run(run())
