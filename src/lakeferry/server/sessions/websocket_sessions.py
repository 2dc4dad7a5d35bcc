"""Runs pushes and pulls over WebSocket.

A session is a machine without I/O (:mod:`lakeferry.transfer.session.machine`) and somebody who does
what it wants done (:mod:`lakeferry.server.sessions.pull_work`,
:mod:`lakeferry.server.sessions.push_work`). Here they are given a socket, a clock and threads.
The loop of a session waits for the first of three: something of the peer's, the end of the work
that is under way, or the time at which the machine wants to be woken. Whatever asks the store, or
takes long, is done in threads.

Sessions are bounded in number here, in time by their machine's ``Pace``, and in memory: a
socket isn't read while a message waits to be looked at, few large messages are worked on at
once, and pushes hold what they hold against a budget. A client that doesn't read what is
sent to it is dropped. Where a table's chain has to be made first, which may take very long, no
thread waits for it, and what comes then has threads of its own.

On the server's way out clients are told to come again (Close 1012). A commit that has begun
is brought to its end for as long as there is time; one that isn't given it has either moved
the head or not.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    LakeferryError,
    StorageUnavailable,
    Unauthorized,
)
from lakeferry.server import metrics as counted
from lakeferry.server.client_shares import Seat, Seats, Slot, Slots, holder_of, network_of
from lakeferry.server.http.access import DatasetAccess
from lakeferry.server.http.public_url import reached_at
from lakeferry.server.http.websockets import EXTENSION, ConnectionControl
from lakeferry.server.logs import say
from lakeferry.server.metrics import Metrics
from lakeferry.server.sessions.pull_work import Pulling
from lakeferry.server.sessions.push_work import HELD_BYTES, Budget, Pushing
from lakeferry.server.sessions.upload_reservations import Promises
from lakeferry.server.sessions.worker_threads import SessionThreads
from lakeferry.transfer.datasets.dataset import DatasetFormat
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.push_records import Heart
from lakeferry.transfer.repository.repository import Repository
from lakeferry.transfer.repository.signed_urls import Links
from lakeferry.transfer.session.events import (
    CheckAndCommit,
    Close,
    ConsiderPush,
    Finished,
    FrameKind,
    HostEvent,
    MachineAction,
    MachineEvent,
    MakePlan,
    PeerClosed,
    Received,
    ReceivedFrame,
    Send,
    SignUrls,
    Tick,
    TooLarge,
    WorkRefused,
)
from lakeferry.transfer.session.machine import Machine, Pace
from lakeferry.transfer.session.pull_server import PullServer
from lakeferry.transfer.session.push_server import PushServer
from lakeferry.transfer.session.shared_rules import has_left, without_tracebacks
from lakeferry.transfer.wire import handshake
from lakeferry.transfer.wire.handshake import Agreement, HandshakeRefusal, Operation

MOST_SESSIONS = 256
URLS_LAST_S = 3600
PLANNED_BYTES = 16 << 20
"""What blocks may have in memory that were packed and weren't asked for yet."""
ANSWERS_BYTES = 64 << 20
"""What answers that clients haven't taken may have in memory, all sessions together."""
SMALL_ANSWER_BYTES = 256 << 10
"""An answer that needs no room among those."""
SENT_WITHIN_S = 120.0
"""How long a client may take to read what makes room for more."""

_LOG = logging.getLogger(__name__)
_RETRY_AFTER_S = "5"
_UNREAD = 1  # messages that are at hand before the socket isn't read any more
_CUT = 1006
_UNKNOWN = 1005
_TRY_AGAIN_LATER = 1013
_GOODBYE_S = 0.5  # for the records of pushes that are left; their silence says the same
_OPERATIONS = {operation.value for operation in Operation}


class SessionWork(Protocol):
    """Who does what one machine wants done."""

    @property
    def amount(self) -> Mapping[str, int]:
        """How much it is about, for the log."""

    def answer(self, action: MachineAction) -> HostEvent:
        """Do it, in a thread, and return the answer."""

    def answer_bytes(self, action: MachineAction) -> int:
        """Return how large the text may be that the client gets of it."""

    def close(self) -> None:
        """Let go of what is held."""


class Sessions:
    """The sessions of a server with the ODF datasets of a repository."""

    def __init__(
        self,
        repository: Repository,
        access: DatasetAccess,
        links: Links,
        *,
        puts_prove: bool,
        as_reached: bool = False,
        pace: Pace | None = None,
        most: int = MOST_SESSIONS,
        held_bytes: int = HELD_BYTES,
        urls_last_s: int = URLS_LAST_S,
        metrics: Metrics | None = None,
    ) -> None:
        """Serve a repository; for ``puts_prove`` see :class:`Pushing`.

        ``as_reached`` has links lead each client to the address by which it came.
        """
        self._repository = repository
        self._access = access
        self._links = links
        self._puts_prove = puts_prove
        self._as_reached = as_reached
        self._pace = pace
        self._seats = Seats(most)
        self._answers = Slots(ANSWERS_BYTES)
        self._planned = Budget(PLANNED_BYTES)
        self._urls_last_s = urls_last_s
        self._metrics = metrics or Metrics()
        self._budget = Budget(held_bytes)
        self._metrics.watch_held(lambda: self._budget.held)
        self._promises = Promises()
        self._heart = Heart()
        self._threads = SessionThreads()

    def routes(self) -> list[BaseRoute]:
        """Return what answers WebSockets of all paths, and plain requests to these two."""
        plain = [
            Route(f"/{{name:path}}/{operation.value}", self._plain, methods=["GET"])
            for operation in Operation
        ]
        return [WebSocketRoute("/{path:path}", self._open), *plain]

    def stop(self, grace_s: float) -> bool:
        """Begin nothing more, and tell whether commits under way ended within ``grace_s``."""
        self._repository.heads.stop()
        have_ended = self._threads.stop(grace_s)
        self._heart.stop(_GOODBYE_S)
        return have_ended

    # --- Before the session ---------------------------------------------------------

    async def _plain(self, request: Request) -> Response:
        """Answer what isn't a WebSocket; there is no other good answer than that it should be."""
        refused = await self._negotiated(request)
        if isinstance(refused, HandshakeRefusal):
            return _response(refused)
        return Response(status_code=400)

    async def _open(self, socket: WebSocket) -> None:
        agreed = await self._negotiated(socket)
        address = network_of(_client(socket))
        token = handshake.bearer_token(socket.headers.items())
        holder = holder_of(token if isinstance(token, str) else None, address)
        seat = None if isinstance(agreed, HandshakeRefusal) else self._seats.take(holder, address)
        if not isinstance(agreed, HandshakeRefusal) and seat is None:
            say(_LOG, logging.WARNING, "no more sessions are let in", sessions=len(self._seats))
            agreed = HandshakeRefusal(503, headers=(("Retry-After", _RETRY_AFTER_S),))
        if isinstance(agreed, HandshakeRefusal):
            last = socket.scope["path"].rpartition("/")[2]
            op = last if last in _OPERATIONS else "other"
            self._metrics.refused.labels(op, agreed.status).inc()
            await socket.send_denial_response(_response(agreed))
            return
        assert seat is not None
        try:
            await self._run(socket, seat, *agreed)
        except asyncio.CancelledError:
            # The server is on its way out, and what is under way in a thread goes on.
            say(_LOG, logging.WARNING, "a session was cut off")
        finally:
            self._seats.leave(seat)

    async def _negotiated(
        self, asked: HTTPConnection
    ) -> tuple[Operation, DatasetName, Agreement] | HandshakeRefusal:
        path = asked.scope["path"].removeprefix("/")
        before, _, last = path.rpartition("/")
        try:
            operation, name = Operation(last), DatasetName.parse(before)
        except (ValueError, InvalidInput):
            return HandshakeRefusal(404)
        try:
            found = await run_in_threadpool(self._decide, operation, name, asked.headers.items())
        except LakeferryError as failed:
            told = {"op": operation.value, "dataset": name.text, "code": failed.code}
            say(_LOG, logging.ERROR, "handshake failed", **told, error=str(failed))
            return HandshakeRefusal(503, headers=(("Retry-After", _RETRY_AFTER_S),))
        except Exception:  # noqa: BLE001 - the others are to be answered
            _LOG.exception("%s of %s can't be decided", operation.value, name)
            return HandshakeRefusal(500)
        if isinstance(found, HandshakeRefusal):
            say(
                _LOG,
                logging.INFO,
                "handshake refused",
                op=operation.value,
                dataset=name.text,
                client=_client(asked),
                status=found.status,
            )
            return found
        return operation, name, found

    def _decide(
        self, operation: Operation, name: DatasetName, headers: Sequence[tuple[str, str]]
    ) -> Agreement | HandshakeRefusal:
        found = handshake.negotiate(operation, headers, self._access.standing(headers, name))
        is_pull = isinstance(found, Agreement) and operation is Operation.PULL
        # Only here, for the order of refusals is the handshake's.
        if is_pull and self._repository.kind(name) is None:
            return HandshakeRefusal(404)
        return found

    # --- The session ----------------------------------------------------------------

    async def _run(
        self,
        socket: WebSocket,
        seat: Seat,
        operation: Operation,
        name: DatasetName,
        agreed: Agreement,
    ) -> None:
        authorization = socket.headers.getlist("authorization")
        is_push = operation is Operation.PUSH

        def check() -> None:
            refusal = self._access.refusal(authorization, name, write=is_push)
            if refusal is not None:
                kind = Unauthorized if refusal.status == 401 else Forbidden
                raise kind("the token isn't good any more")

        machine: PullServer | PushServer
        work: SessionWork
        reached = reached_at(socket) if self._as_reached else None
        links = self._links if reached is None else self._links.at(reached)
        links = links.for_holder(seat.holder)
        kind = await run_in_threadpool(self._repository.kind, name)
        if is_push:
            machine = PushServer(agreed.dialect, pace=self._pace)
            work = Pushing(
                self._repository,
                name,
                links,
                self._budget,
                puts_prove=self._puts_prove,
                urls_last_s=self._urls_last_s,
                check=check,
                extended=agreed.extended,
                promises=self._promises,
                heart=self._heart,
                session=seat,
            )
        else:
            machine = PullServer(agreed.dialect, pace=self._pace)
            work = Pulling(
                self._repository.dataset(name, kind or DatasetFormat.ODF),
                links,
                urls_last_s=self._urls_last_s,
                check=check,
                kept=self._planned,
            )
        op = operation.value
        label = {"session": uuid.uuid4().hex[:12], "op": op, "dataset": name.text}
        began = time.monotonic()
        say(_LOG, logging.INFO, "session begins", **label, client=_client(socket))
        await socket.accept(subprotocol=agreed.subprotocol)
        answer = counted.counting(self._metrics, op, work.answer)
        with self._metrics.sessions.labels(op).track_inprogress():
            try:
                seat.sitting = conversation = _Conversation(
                    socket,
                    machine,
                    work,
                    answer,
                    self._threads,
                    label,
                    lambda action: self._first(action, name, kind),
                    _Answers(self._answers, seat.holder, socket, self._threads.tidy),
                )
                await conversation.run()
            finally:
                error = machine.error
                is_done = error is None and machine.is_over
                left = has_left(error)
                outcome = counted.DONE if is_done else error.code if error else counted.FAILED
                outcome = counted.LEFT if left else outcome
                seconds = time.monotonic() - began
                self._metrics.ended.labels(op, outcome).inc()
                self._metrics.session_seconds.labels(op).observe(seconds)
                self._threads.tidy()
                say(
                    _LOG,
                    logging.INFO,
                    "session done" if is_done else "client left" if left else "session failed",
                    **label,
                    client=_client(socket),
                    **work.amount,
                    seconds=round(seconds, 3),
                    code=counted.LEFT if left else error and error.code,
                    error=error and str(error),
                )

    def _first(
        self, action: MachineAction, name: DatasetName, kind: DatasetFormat | None
    ) -> Future[Any] | None:
        """Return what is to be waited for before something is done: the head, where it is made."""
        match action:
            case MakePlan(request):
                is_needed = request.stop_at is None
            case _:
                is_needed = isinstance(action, ConsiderPush | CheckAndCommit)
        return (
            self._repository.heads.of(name) if is_needed and kind is DatasetFormat.DELTA else None
        )


class _Conversation:
    """A machine, its socket, and the work that is under way for it, of which there is one."""

    def __init__(
        self,
        socket: WebSocket,
        machine: Machine[Any],
        work: SessionWork,
        answer: Callable[[MachineAction], HostEvent],
        threads: SessionThreads,
        label: Mapping[str, str],
        first: Callable[[MachineAction], Future[Any] | None],
        answers: _Answers,
    ) -> None:
        self._socket = socket
        self._machine = machine
        self._work = work
        self._answering = answer
        self._threads = threads
        self._label = label
        self._first = first
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[MachineEvent] = asyncio.Queue()
        self._room = asyncio.Semaphore(_UNREAD)
        self._is_unread = False
        self._under_way: Future[HostEvent] | None = None
        self._makes_way = False
        self.has_spoken = False
        self.silent_since_s: float | None = None
        self._answers = answers
        wire = _wire(socket)
        self._limit: Callable[[int], None] = wire.limit if wire is not None else lambda _: None

    def make_way(self) -> None:
        """End, for another client needs the place more. Any thread may call it."""
        self._makes_way = True
        # A server that is gone has told all its clients to come again.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(
                self._inbox.put_nowait, PeerClosed(_CUT, "others need its place")
            )

    async def run(self) -> None:
        """Go on until the machine is over."""
        reading = asyncio.create_task(self._read())
        try:
            # With its first event its time begins.
            event: MachineEvent = Tick()
            while True:
                actions = await self._receive(event)
                # The client learns that it is its turn by what is sent below.
                self._limit(self._machine.most_bytes)
                if isinstance(event, Received | ReceivedFrame | TooLarge):
                    # Nothing of the message is needed any more but what the machine has kept. Of
                    # a list of objects that is as much, and it may have to wait.
                    self._is_unread = any(isinstance(action, SignUrls) for action in actions)
                    if not self._is_unread:
                        self._room.release()
                del event
                await self._do(actions)
                # What was said or is to be done may be large, and the client silent for long.
                del actions
                if self._machine.is_over:
                    return
                is_at_work = self._answers.is_awaited or (
                    self._under_way is not None and not self._under_way.done()
                )
                self.silent_since_s = None if is_at_work else time.monotonic()
                event = await self._next()
                self.silent_since_s = None
                self.has_spoken |= isinstance(event, Received)
        finally:
            reading.cancel()
            self._leave()
            if self._makes_way:
                await self._say(self._socket.close(_TRY_AGAIN_LATER, "others need the place"))

    async def _next(self) -> MachineEvent:
        wake_ms = self._machine.wake_ms
        wait_s = None if wake_ms is None else max(0, wake_ms - _now_ms()) / 1000
        try:
            async with asyncio.timeout(wait_s):
                return await self._inbox.get()
        except TimeoutError:
            return Tick()

    async def _receive(self, event: MachineEvent) -> tuple[MachineAction, ...]:
        pool = self._threads.pool_of(event)
        if pool is None:
            return self._machine.receive(event, _now_ms())
        # Nobody else uses the machine meanwhile: this is its only loop.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, self._machine.receive, event, _now_ms())

    async def _read(self) -> None:
        while True:
            await self._room.acquire()
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code", _UNKNOWN)
                # The server says of a connection that broke what a Close without a code says.
                if code == _UNKNOWN and "reason" not in message:
                    code = _CUT
                self._inbox.put_nowait(PeerClosed(code, message.get("reason") or ""))
                return
            self._inbox.put_nowait(_event(message))
            # It may be large, and the next one is long in coming.
            del message

    async def _do(self, actions: tuple[MachineAction, ...]) -> None:
        for action in actions:
            await self._do_one(action)

    async def _do_one(self, action: MachineAction) -> None:
        match action:
            case Send(text):
                self._answers.begin(len(text))
                await self._say(self._socket.send_text(text))
                self._answers.sent()
            case Close(code, reason):
                await self._say(self._socket.close(code, reason))
            case Finished():
                pass
            case _:
                self._answers.when_there_is_room(
                    self._work.answer_bytes(action), partial(self._begin, action)
                )

    async def _say(self, saying: Any) -> None:
        try:
            async with asyncio.timeout(SENT_WITHIN_S):
                await saying
        except TimeoutError:
            self._inbox.put_nowait(PeerClosed(_CUT, "it doesn't read"))
        except (WebSocketDisconnect, OSError, RuntimeError):
            # It has closed, or is gone; the reader says so.
            say(_LOG, logging.DEBUG, "nobody is there to be told", **self._label)

    def _begin(self, action: MachineAction) -> None:
        if self._is_unread:
            self._is_unread = False
            self._room.release()
        loop = asyncio.get_running_loop()

        def done(work: Future[HostEvent]) -> None:
            if not work.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(self._end_work, work)

        first = self._first(action)
        self._under_way = self._threads.submit(
            action, lambda: self._answer(action, first), after=first
        )
        self._under_way.add_done_callback(done)

    def _end_work(self, work: Future[HostEvent]) -> None:
        # What it has found may be large.
        self._under_way = None
        self._inbox.put_nowait(work.result())

    def _answer(self, action: MachineAction, first: Future[Any] | None) -> HostEvent:
        try:
            if first is not None:
                first.result()
            return self._answering(action)
        except LakeferryError as refused:
            # Its traceback has the blocks that it was about, and the session keeps the error.
            return WorkRefused(without_tracebacks(refused))
        except Exception as mistake:  # noqa: BLE001 - the others are to be served
            _LOG.exception("session %s: %s failed", self._label["session"], type(action).__name__)
            return WorkRefused(
                StorageUnavailable("the server failed", cause=type(mistake).__name__)
            )

    def _leave(self) -> None:
        """Let go of what is held, when nobody uses it any more."""
        self._answers.close()
        if self._under_way is None or self._under_way.cancel():
            self._work.close()
        else:
            self._under_way.add_done_callback(lambda _: self._work.close())


class _Answers:
    """The room that the large answers of one session take, of which there is one at a time.

    It is taken before an answer is made, and given back when the client has taken the text.
    """

    def __init__(
        self, room: Slots, holder: str, socket: WebSocket, tidy: Callable[[], None]
    ) -> None:
        self._room = room
        self._tidy = tidy
        self._holder = holder
        self._wire = _wire(socket)
        self._task: asyncio.Task[None] | None = None
        self._slot: Slot | None = None
        self._text_bytes = 0
        self._is_sent = asyncio.Event()

    @property
    def is_awaited(self) -> bool:
        """Whether an answer isn't made because there is no room for it."""
        return self._task is not None and not self._task.done() and self._slot is None

    def when_there_is_room(self, size_bytes: int, begin: Callable[[], None]) -> None:
        """Begin something once there is room for its answer; at once if that is small."""
        if size_bytes <= SMALL_ANSWER_BYTES or self._wire is None:
            begin()
            return
        self._is_sent.clear()
        self._task = asyncio.create_task(self._hold(size_bytes, begin, self._wire, self._task))

    async def _hold(
        self,
        size_bytes: int,
        begin: Callable[[], None],
        wire: ConnectionControl,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            # The client has asked for more, and so has nearly all of the last answer.
            await before
        async with self._room.slot(self._holder, size_bytes) as slot:
            # As long as it is made, it isn't the client's fault that nothing goes.
            slot.since_s = math.inf
            slot.interrupt = wire.drop
            self._slot = slot
            try:
                # On the server's way out nothing begins any more.
                with suppress(RuntimeError):
                    begin()
                await self._is_sent.wait()
                await wire.written()
            finally:
                self._slot = None
                self._tidy()

    def begin(self, text_bytes: int) -> None:
        """Note that an answer is made, and how large it is."""
        slot, wire = self._slot, self._wire
        if slot is not None and wire is not None:
            slot.since_s = asyncio.get_running_loop().time()
            slot.moved_bytes = lambda: -wire.unwritten_bytes()
            self._room.shrink(slot, text_bytes)

    def sent(self) -> None:
        """Note that it was sent."""
        self._is_sent.set()

    def close(self) -> None:
        """Give the room back; whoever hasn't taken an answer by now doesn't get the rest."""
        if self._task is None or self._task.done():
            return
        if self._is_sent.is_set() and self._wire is not None and self._wire.unwritten_bytes():
            self._wire.drop()
        self._task.cancel()


def _wire(socket: WebSocket) -> ConnectionControl | None:
    found: ConnectionControl | None = (
        socket.scope.get("extensions", {}).get(EXTENSION, {}).get("wire")
    )
    return found


def _event(message: Mapping[str, Any]) -> MachineEvent:
    """Return what the client said, as the socket tells it."""
    text = message.get("utf8", message.get("text"))
    if "too_large" in message:
        return TooLarge(message["too_large"])
    return ReceivedFrame(FrameKind.BINARY) if text is None else Received(text)


def _client(connection: HTTPConnection) -> str | None:
    return connection.client.host if connection.client else None


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _response(refusal: HandshakeRefusal) -> Response:
    headers = dict(refusal.headers)
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(refusal.body or None, refusal.status, headers, refusal.content_type)
