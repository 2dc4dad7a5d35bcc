"""The cheapest GET: what is plain is returned, whatever else comes is nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import pytest
import uvloop

from lakeferry.transfer.client.plain_get import HttpOrigin, PlainGets

T = TypeVar("T")
BODY = b"x" * 5000


def here(port: int) -> HttpOrigin:
    return HttpOrigin("127.0.0.1", port, is_secure=False, said=f"127.0.0.1:{port}")


class Server:
    """Answers every request with the same bytes, and counts."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.first: bytes | None = None
        """What is answered once, before all else."""
        self.connections = 0
        self.requests: list[bytes] = []
        self.handlers: set[asyncio.Task[None] | None] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.handlers.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append(head)
                answer, self.first = self.first or self.answer, None
                writer.write(answer)
                await writer.drain()
                if b"connection: close" in answer.lower() or b"200" not in answer:
                    break
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


Get: TypeAlias = Callable[[], Awaitable[bytes | None]]
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS, autouse=True)
def loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have what a test runs run on the one and on the other event loop."""
    global run_on
    run_on = LOOPS[request.param]
    yield
    run_on = asyncio.new_event_loop


run_on = asyncio.new_event_loop


def running(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=run_on) as runner:
        return runner.run(work)


Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(
    handler: Handler, over: asyncio.Event | None = None
) -> AsyncIterator[tuple[PlainGets, HttpOrigin]]:
    """Give a server's address, and somebody to ask it; both end, and a handler is told so."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    gets = PlainGets("test")
    try:
        yield gets, here(server.sockets[0].getsockname()[1])
    finally:
        if over is not None:
            over.set()
        gets.close()
        server.close()
        await server.wait_closed()


def asking(server: Server, work: Callable[[Get], Awaitable[object]]) -> object:
    async def run() -> object:
        target = "/a%20b?c=%2F"
        try:
            async with listening(server) as (gets, origin):
                return await work(lambda: gets.get(origin, target, (("x-a", "b"),), len(BODY), 5.0))
        finally:
            await asyncio.gather(*(task for task in server.handlers if task is not None))

    return running(run())


def answered(body: bytes = BODY, status: str = "200 OK", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def once(get: Get) -> object:
    return await get()


async def thrice(get: Get) -> object:
    return [await get() for _ in range(3)]


def test_a_connection_is_used_again() -> None:
    server = Server(answered())
    assert asking(server, thrice) == [BODY] * 3
    assert server.connections == 1
    first = server.requests[0].split(b"\r\n")
    assert first[0] == b"GET /a%20b?c=%2F HTTP/1.1"
    assert b"x-a: b" in first


def test_a_connection_that_the_server_closes_isnt() -> None:
    server = Server(answered(BODY, "200 OK", "Connection: close"))
    assert asking(server, thrice) == [BODY] * 3
    assert server.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        answered(status="404 Not Found"),
        answered(status="206 Partial Content"),
        answered(b"", "302 Found", "Location: http://127.0.0.1:1/"),
        answered(BODY[:-1]),
        answered(BODY + b"y"),
        answered() + b"and more",
        answered(BODY, "200 OK", "Content-Encoding: gzip"),
        answered(BODY, "200 OK", f"Content-Length: {len(BODY)}"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
        b"nothing of the kind\r\n\r\n",
        answered()[: -len(BODY)] + b"cut",
    ],
    ids=range(12),
)
def test_whatever_isnt_plain_is_nothing(answer: bytes) -> None:
    server = Server(answer)
    if b"cut" in answer or b"a" * 1000 in answer:
        # It sends no more, and closes.
        server.answer = answer.replace(b"200 OK\r\n", b"200 OK\r\nConnection: close\r\n", 1)
    assert asking(server, once) is None

    # The same of a server whose address is known, to which there is a bare socket.
    known = Server(server.answer)
    known.first = answered(BODY, "200 OK", "Connection: close")

    async def twice(get: Get) -> object:
        return [await get(), await get()]

    assert asking(known, twice) == [BODY, None]


def test_nobody_there_is_nothing() -> None:
    async def run() -> bytes | None:
        gets = PlainGets("test")
        return await gets.get(here(1), "/", (), 1, 5.0)

    assert running(run()) is None


def test_silence_is_nothing() -> None:
    async def run() -> bytes | None:
        closed = asyncio.Event()

        async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await closed.wait()
            writer.close()

        async with listening(silent, closed) as (gets, origin):
            got = await gets.get(origin, "/", (), 1, 0.05)
            assert not gets._asking
            return got

    assert running(run()) is None


# --- Bare sockets, once an address is known ----


class Slow(Server):
    """Closes after each answer, and takes and gives a little at a time."""

    def __init__(self, pieces: int = 1, pause_s: float = 0.0) -> None:
        super().__init__(answered(BODY, "200 OK", "Connection: close"))
        self.pieces = pieces
        self.pause_s = pause_s

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.handlers.add(asyncio.current_task())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            await asyncio.sleep(self.pause_s)
            if not (piece := await reader.read(1 << 18)):
                break
            head += piece
        self.requests.append(head)
        step = -(-len(self.answer) // self.pieces)
        for at in range(0, len(self.answer), step):
            writer.write(self.answer[at : at + step])
            await writer.drain()
            await asyncio.sleep(0.001 if self.pieces > 1 else 0)
        writer.close()


@pytest.mark.parametrize("pieces", [1, 2, 40])
def test_an_answer_is_whole_however_it_is_cut(pieces: int) -> None:
    server = Slow(pieces)
    assert asking(server, thrice) == [BODY] * 3
    assert server.connections == 3


def test_a_request_that_doesnt_fit_at_once_is_sent_all_the_same() -> None:
    server = Slow(pause_s=0.002)
    long = tuple((f"x-{number}", "y" * 60_000) for number in range(200))

    async def run() -> list[bytes | None]:
        async with listening(server) as (gets, origin):
            return [await gets.get(origin, "/", long, len(BODY), 30.0) for _ in range(2)]

    assert running(run()) == [BODY] * 2
    first, second = server.requests
    assert first == second
    assert len(first) > 200 * 60_000


def test_what_comes_behind_an_answer_is_not_the_next_one() -> None:
    closing, wrong = answered(BODY, "200 OK", "Connection: close"), answered(b"w" * len(BODY))

    class Shifted(Server):
        async def __call__(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            self.connections += 1
            with suppress(asyncio.IncompleteReadError, OSError):
                await reader.readuntil(b"\r\n\r\n")
                if self.connections == 1:
                    writer.write(closing)
                else:
                    # The head, and then more than the body in one piece.
                    writer.write(answered()[: -len(BODY)])
                    await writer.drain()
                    await asyncio.sleep(0.02)
                    writer.write(BODY + wrong)
                    await writer.drain()
                    await reader.read()
            writer.close()

    assert asking(Shifted(b""), thrice) == [BODY, None, None]


def test_an_answer_before_all_of_the_request_is_sent_leaves_nothing_for_the_next() -> None:
    async def run() -> tuple[list[bytes | None], int]:
        handlers: list[asyncio.Task[None] | None] = []
        over = asyncio.Event()

        async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handlers.append(asyncio.current_task())
            # It says that the connection stays, and reads no more of it.
            writer.write(answered())
            await writer.drain()
            await over.wait()
            writer.close()

        long = tuple((f"x-{number}", "y" * 60_000) for number in range(700))
        async with listening(hasty, over) as (gets, origin):
            # The first one makes the address known; while it is asked, others need their own.
            first = await asyncio.gather(*(gets.get(origin, "/", (), 5000, 5.0) for _ in "ab"))
            for wire in gets._idle.pop(origin):
                wire.close()
            rest = [await gets.get(origin, "/", long, 5000, 5.0) for _ in range(3)]
        await asyncio.gather(*(task for task in handlers if task is not None))
        return [*first, *rest], len(handlers)

    assert running(run()) == ([BODY] * 5, 5)


def test_who_asks_again_when_time_is_up_keeps_nobody_waiting() -> None:
    async def run() -> None:
        over = asyncio.Event()

        async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await over.wait()
            writer.close()

        second: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        async with listening(silent, over) as (gets, origin):

            def again(_: bytes | None) -> None:
                gets.ask(origin, "/", (), 1, 600.0, lambda _: None)

            gets.ask(origin, "/", (), 1, 0.05, again)
            gets.ask(origin, "/", (), 1, 0.15, second.set_result)
            async with asyncio.timeout(60):
                assert await second is None

    running(run())


def test_who_has_gone_is_nothing_and_who_comes_back_is_found() -> None:
    async def run() -> list[bytes | None]:
        gets, got = PlainGets("test"), []
        server = Server(answered(BODY, "200 OK", "Connection: close"))
        port = 0
        for _ in range(2):
            there = await asyncio.start_server(server, "127.0.0.1", port)
            port = there.sockets[0].getsockname()[1]
            got += [await gets.get(here(port), "/", (), len(BODY), 5.0) for _ in range(2)]
            there.close()
            await there.wait_closed()
            got.append(await gets.get(here(port), "/", (), len(BODY), 5.0))
        gets.close()
        return got

    assert running(run()) == [BODY, BODY, None] * 2


def test_a_connection_that_is_closed_while_nobody_asks_isnt_used() -> None:
    class Twice(Server):
        async def __call__(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            self.connections += 1
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answer)
            await writer.drain()
            writer.close()

    async def slowly(get: Get) -> object:
        got = []
        for _ in range(3):
            got.append(await get())
            await asyncio.sleep(0.05)
        return got

    server = Twice(answered())
    assert asking(server, slowly) == [BODY] * 3
    assert server.connections == 3


def test_many_at_once_and_some_that_nobody_wants_any_more() -> None:
    server = Server(answered(BODY, "200 OK", "Connection: close"))

    async def many(get: Get) -> object:
        await get()
        asked = [asyncio.ensure_future(get()) for _ in range(100)]
        await asyncio.sleep(0)
        for one in asked[::3]:
            one.cancel()
        done = await asyncio.gather(*asked, return_exceptions=True)
        return [one for number, one in enumerate(done) if number % 3]

    assert asking(server, many) == [BODY] * 66


def test_silence_of_one_that_is_known_is_nothing_and_leaves_nothing_behind() -> None:
    async def run() -> list[bytes | None]:
        closed = asyncio.Event()
        answers = iter([answered(BODY, "200 OK", "Connection: close")])

        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            if answer := next(answers, None):
                writer.write(answer)
            else:
                await closed.wait()
            writer.close()

        async with listening(once, closed) as (gets, origin):
            first = await gets.get(origin, "/", (), len(BODY), 5.0)
            second = await asyncio.gather(
                *(gets.get(origin, "/", (), len(BODY), limit_s) for limit_s in (0.2, 0.05))
            )
            assert not gets._asking
            # It was there, and said nothing: it may say something the next time.
            assert not gets.is_silent(origin)
            return [first, *second]

    assert running(run()) == [BODY, None, None]


# --- What is large ----------------------------------------------------------------------

LARGE = bytes(range(256)) * 12_345


def streaming(
    answer: bytes, size_bytes: int = len(LARGE), *, pieces: int = 1, cut: bool = False
) -> bytes:
    """Return what a stream yields of a server that answers so."""

    async def run() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            step = -(-len(answer) // pieces)
            for at in range(0, len(answer), step):
                writer.write(answer[at : at + step])
                await writer.drain()
                await asyncio.sleep(0)
            if cut:
                writer.close()
            else:
                await gone.wait()
                writer.close()

        gone = asyncio.Event()
        came = bytearray()
        async with listening(serve, gone) as (gets, origin):
            async for chunk in gets.stream(
                origin, "/", (), size_bytes, connect_s=5.0, silence_s=0.3
            ):
                # Slower than it comes, so that reading has to wait.
                await asyncio.sleep(0)
                came += chunk
        return bytes(came)

    return running(run())


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_what_is_large_comes_whole_however_it_is_cut(pieces: int) -> None:
    assert streaming(answered(LARGE), pieces=pieces) == LARGE


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
def test_every_size_comes_whole(size: int) -> None:
    assert streaming(answered(LARGE[:size]), size) == LARGE[:size]


def test_what_breaks_off_comes_as_far_as_it_came() -> None:
    whole = answered(LARGE)
    assert streaming(whole[:-100], cut=True) == LARGE[:-100]
    assert LARGE.startswith(streaming(whole[:-100]))


@pytest.mark.parametrize(
    "answer",
    [
        answered(LARGE, "206 Partial Content"),
        answered(LARGE[:-1]),
        answered(LARGE, "200 OK", "Content-Encoding: gzip"),
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
        b"HTTP/1.1 200 OK\r\n",
        b"",
    ],
    ids=range(6),
)
def test_nothing_comes_of_what_isnt_plain(answer: bytes) -> None:
    assert streaming(answer, cut=True) == b""
    assert streaming(answer) == b""


def test_bytes_behind_the_last_are_nobody_s() -> None:
    assert streaming(answered(LARGE) + b"and more") == LARGE


def test_nothing_comes_of_nobody() -> None:
    async def run() -> list[bytearray]:
        stream = PlainGets("test").stream(here(1), "/", (), 9, connect_s=5.0, silence_s=5.0)
        return [chunk async for chunk in stream]

    assert running(run()) == []
