"""Our client and our server in one thread, without a network: every storage call is in order.

The client is the real one, from :class:`~lakeferry.transfer.client.push_and_pull.Push` down;
of the server there are its machines and what works for them. In between, where sockets would be,
a call of one is a call of the other. So a run makes the same storage calls each time, and a
fault, or the end of either process, can be put at any of them::

    world = World(DictStore())
    with without_network():
        running(world, lambda: async_push(store, DATASET, terms))

A process ends by :class:`~tests.support.stores.Stopped`. Of a client nothing happens any more
then, and ``running`` raises it. A server that ends this way is gone for its clients.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar
from unittest import mock
from urllib.parse import unquote

import aiohttp
from yarl import URL

from lakeferry.errors import LakeferryError, ObjectNotFound, StorageUnavailable
from lakeferry.server.http.dataset_routes import RequestTarget
from lakeferry.server.sessions.byte_budget import Budget
from lakeferry.server.sessions.pull_work import Pulling
from lakeferry.server.sessions.push_work import Pushing
from lakeferry.storage import Store, parallel_calls
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.client.remote_dataset import NoWebSocket, Remote, Terms
from lakeferry.transfer.client.shared_limits import StoreThreads
from lakeferry.transfer.datasets.dataset import DatasetFormat
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.push_records import PushRecord, now_ms
from lakeferry.transfer.repository.push_renewal import Heart
from lakeferry.transfer.repository.repository import Repository
from lakeferry.transfer.repository.signed_urls import Links, Signer
from lakeferry.transfer.session import events as e
from lakeferry.transfer.session.pull_server import PullServer
from lakeferry.transfer.session.push_server import PushServer
from lakeferry.transfer.wire.handshake import Operation, handshake_error
from lakeferry.transfer.wire.messages import MessageDialect, TransferUrl
from tests.support.stores import Stopped

T = TypeVar("T")

NAME = DatasetName.parse("acc/d")
SERVER = "http://server"
DATASET = f"{SERVER}/{NAME}"


class World:
    """A server over a store."""

    def __init__(
        self, store: Store, *, puts_prove: bool = True, clock: Callable[[], int] = now_ms
    ) -> None:
        self.store = store
        self.repository = Repository(store, clock=clock)
        self.puts_prove = puts_prove
        self.alive = True
        self.sessions = 0
        self.budget = Budget()
        self._sockets: set[_Socket] = set()

    def end(self) -> None:
        """Be gone."""
        self.alive = False
        for socket in list(self._sockets):
            socket.cut()

    def session(self, operation: Operation, kind: DatasetFormat | None) -> tuple[Any, Any]:
        """Return the server's machine of a session and what works for it."""
        repository = self.repository
        links = Links(self.store, Signer(bytes(32)), SERVER)
        common: dict[str, Any] = {"urls_last_s": 3600, "check": lambda: None}
        if operation is Operation.PUSH:
            common |= {"puts_prove": self.puts_prove, "heart": _Beatless()}
            common |= {"folder": repository.folders.folder_for_push(NAME)}
            work = Pushing(repository, NAME, links, self.budget, **common)
            return PushServer(MessageDialect.REFERENCE), work
        dataset = repository.dataset(self._folder(), kind or DatasetFormat.ODF)
        return PullServer(MessageDialect.REFERENCE), Pulling(dataset, links, **common)

    def connect(self, operation: Operation) -> _Socket:
        """Let a client in, unless it wants what isn't there."""
        self._check_alive()
        self.sessions += 1
        kind = self._kind() if operation is Operation.PULL else None
        if operation is Operation.PULL and kind is None:
            raise NoWebSocket(handshake_error(404, "", DATASET))
        try:
            socket = _Socket(self, *self.session(operation, kind))
        except Stopped:
            self.end()
            raise StorageUnavailable("the connection broke", cause="the server ended") from None
        self._sockets.add(socket)
        return socket

    def left(self, socket: _Socket) -> None:
        self._sockets.discard(socket)

    def answer(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """Answer a request for a file."""
        self._check_alive()
        try:
            target = RequestTarget.of(path)
            assert target is not None
            if method == "GET":
                return 200, self._content(target)
            assert data is not None
            if self.puts_prove and Multihash.sha3_256(data).text != target.leaf:
                return 400, b""
            place = self.repository.dataset(target.dataset, target.kind).place(target.ref())
            if target.kind is DatasetFormat.ODF:
                self.store.put(place, data)
            elif not self.store.put_if_absent(place, data) and self.store.get(place) != data:
                return 409, b""
            return 200, b""
        except ObjectNotFound:
            return 404, b""
        except StorageUnavailable:
            return 503, b""
        except Stopped:
            self.end()
            raise StorageUnavailable("the connection broke", cause="the server ended") from None

    def _content(self, target: RequestTarget) -> bytes:
        """Return what a request's path names, as the routes of the real server find it."""
        if target.folder not in ("refs", "blocks"):
            place = self.repository.dataset(target.dataset, target.kind).place(target.ref())
            return self.store.get(place)
        folder = self._folder()
        odf = self.repository.odf(folder)
        if target.folder == "refs":
            head = odf.head()
            if head is None and self.repository.kind(folder) is DatasetFormat.DELTA:
                head = self.repository.delta(folder).current()
            if head is None:
                raise ObjectNotFound("no head")
            return head.text.encode()
        name = Multihash.parse(target.leaf)
        try:
            return self.store.get(odf.block_path(name))
        except ObjectNotFound:
            return self.store.get(self.repository.delta(folder).block_path(name))

    def _folder(self) -> DatasetName:
        """Return the folder of the dataset."""
        folder = self.repository.folders.read().folder(NAME)
        if folder is None:
            raise ObjectNotFound("no dataset has this name")
        return folder

    def _kind(self) -> DatasetFormat | None:
        try:
            return self.repository.kind(self._folder())
        except ObjectNotFound:
            return None
        except Stopped:
            self.end()
            raise StorageUnavailable("the connection broke", cause="the server ended") from None

    def _check_alive(self) -> None:
        if not self.alive:
            raise StorageUnavailable("no connection", cause="nobody is there")


class _Beatless(Heart):
    """Sees records of pushes out at once; no push here takes so long that one is renewed."""

    def add(self, record: PushRecord) -> None:
        """Leave it as it is."""

    def remove(self, record: PushRecord, *, leave: bool = False) -> None:
        """Say, if so, that its push ended without a commit."""
        if leave:
            with suppress(LakeferryError):
                record.leave()


class _Socket:
    """What a client has of a session, as far as it uses it; the server's end is inside."""

    def __init__(self, world: World, machine: Any, work: Any) -> None:
        self._world = world
        self._machine = machine
        self._work = work
        self._inbox: asyncio.Queue[aiohttp.WSMessage] = asyncio.Queue()
        self._gone = False
        self.close_code: int | None = None
        self._tell(e.Tick())

    async def send_str(self, text: str) -> None:
        if self._gone:
            raise aiohttp.ClientConnectionResetError
        self._tell(e.Received(text))

    async def receive(self) -> aiohttp.WSMessage:
        return await self._inbox.get()

    async def close(self, *, code: int = 1000, message: bytes = b"") -> bool:
        if not self._gone:
            self.close_code = code
            self._tell(e.PeerClosed(code, message.decode()))
            self.cut()
        return True

    def cut(self) -> None:
        self._gone = True
        self._world.left(self)
        if self._world.alive:
            try:
                self._work.close()
            except Stopped:
                self._world.end()
        self._inbox.put_nowait(aiohttp.WSMessage(aiohttp.WSMsgType.CLOSED, None, None))

    def _tell(self, first: e.MachineEvent) -> None:
        """Let the server's end hear something, and do all that comes of it."""
        events: deque[e.MachineEvent] = deque([first])
        try:
            while events:
                now_ms = time.monotonic_ns() // 1_000_000
                for action in self._machine.receive(events.popleft(), now_ms):
                    match action:
                        case e.Send(text):
                            self._say(aiohttp.WSMsgType.TEXT, text)
                        case e.Close(code, reason):
                            self._say(aiohttp.WSMsgType.CLOSE, code, reason)
                        case e.Finished():
                            pass
                        case _:
                            events.append(self._answer(action))
        except Stopped:
            self._world.end()

    def _answer(self, action: e.MachineAction) -> e.HostEvent:
        try:
            command: e.HostEvent = self._work.answer(action)
            return command
        except LakeferryError as refused:
            return e.WorkRefused(refused)

    def _say(self, kind: aiohttp.WSMsgType, data: Any, extra: str | None = None) -> None:
        self._inbox.put_nowait(aiohttp.WSMessage(kind, data, extra))


class _Content:
    def __init__(self, data: bytes) -> None:
        self._left = data

    async def read(self, count: int = -1) -> bytes:
        piece = self._left if count < 0 else self._left[:count]
        self._left = self._left[len(piece) :]
        return piece

    async def readany(self) -> bytes:
        return await self.read()


class _Response:
    def __init__(self, status: int, data: bytes) -> None:
        self.status = status
        self.reason = ""
        self.headers: Mapping[str, str] = {}
        self.content_length = len(data)
        self.content = _Content(data)


class _Remote(Remote):
    """A server that is in the same process."""

    world: World

    @asynccontextmanager
    async def request(  # type: ignore[override]
        self,
        method: str,
        url: TransferUrl,
        headers: Mapping[str, str] | None = None,
        data: bytes | AsyncIterator[bytes] | None = None,
    ) -> AsyncIterator[_Response]:
        path = unquote(URL(self.admit(url.url).path, encoded=True).path).removeprefix("/")
        assert data is None or isinstance(data, bytes)
        yield _Response(*self.world.answer(method, path, data))

    async def connect(self, operation: Operation) -> Any:
        return self.world.connect(operation)


# --- Processes ----------------------------------------------------------------------------

_DIED: ContextVar[asyncio.Event] = ContextVar("died")
_WORLD: ContextVar[World] = ContextVar("world")


async def _inline(_: StoreThreads, act: Callable[[], T]) -> T:
    """Make a storage call here and now, in place of a thread."""
    died = _DIED.get()
    if died.is_set():
        raise asyncio.CancelledError
    try:
        return act()
    except Stopped:
        # A process that has ended doesn't go on, not even to tidy up.
        died.set()
        await asyncio.get_running_loop().create_future()
        raise


@contextmanager
def without_network() -> Iterator[None]:
    """Let clients reach the world that they run in, and make all storage calls in order."""

    @asynccontextmanager
    async def opened(url: str, terms: Terms) -> AsyncIterator[Remote]:
        remote = _Remote(url, terms, None)  # type: ignore[arg-type]
        remote.world = _WORLD.get()
        yield remote

    with (
        mock.patch.object(Remote, "open", opened),
        mock.patch.object(StoreThreads, "run", _inline),
        mock.patch.object(parallel_calls, "CONCURRENCY", 1),
    ):
        yield


def running(world: World, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a client's process in a world to its end, whichever that is."""

    async def process() -> T:
        died = asyncio.Event()
        _DIED.set(died)
        _WORLD.set(world)
        task = asyncio.create_task(work())
        death = asyncio.create_task(died.wait())
        await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if died.is_set():
            # What is left of it is cancelled, all at once, when the loop ends.
            raise Stopped
        return task.result()

    return asyncio.run(process())
