"""Runs pushes and pulls over WebSocket.

A session is a machine without I/O (:mod:`lakeferry.transfer.session.machine`) and an object that
executes its actions (:mod:`lakeferry.server.sessions.pull_work`,
:mod:`lakeferry.server.sessions.push_work`). This module gives them a socket, a clock and threads.
The loop of a session waits for the first of three events: a message of the peer, the end of the
running work, or the time at which the machine wants a ``Tick``. Requests to the store and long
computations are done in threads.

Sessions are bounded in number here, in time by their machine's ``Pace``, and in memory: a
socket isn't read while a message waits to be processed, few large messages are processed at
once, and pushes hold blocks against a budget. A client that doesn't read what is sent to it is
dropped. If a table's chain has to be made first, which may take very long, no thread waits for
it, and the work after it has threads of its own.

When the server shuts down, clients are told to come again (Close 1012). A commit that has begun
is finished if the time allows; one that is cut off has either moved the head or not.
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
from lakeferry.server.sessions.byte_budget import HELD_BYTES, Budget
from lakeferry.server.sessions.pull_work import Pulling
from lakeferry.server.sessions.push_work import Pushing
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
"""Memory for blocks that were packed and haven't been requested yet."""
ANSWERS_BYTES = 64 << 20
"""Memory for answers that clients haven't read yet, all sessions together."""
SMALL_ANSWER_BYTES = 256 << 10
"""An answer up to this size doesn't count."""
SENT_WITHIN_S = 120.0
"""How long sending may wait for a client to read what was sent before."""

_LOG = logging.getLogger(__name__)
_RETRY_AFTER_S = "5"
_UNREAD = 1  # waiting messages after which the socket isn't read any more
_CUT = 1006
_UNKNOWN = 1005
_TRY_AGAIN_LATER = 1013
_GOODBYE_S = 0.5  # to end the records of pushes; after a crash their silence has the same effect
_OPERATIONS = {operation.value for operation in Operation}


class SessionWork(Protocol):
    """Executes the actions of one machine."""

    @property
    def amount(self) -> Mapping[str, int]:
        """The size of the transfer, for the log."""

    def answer(self, action: MachineAction) -> HostEvent:
        """Execute an action, in a thread, and return the result."""

    def answer_bytes(self, action: MachineAction) -> int:
        """Return the maximum size of the text that the client gets for an action."""

    def close(self) -> None:
        """Release what is held."""


class Sessions:
    """The WebSocket sessions of a server, for the datasets of a repository."""

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

        With ``as_reached``, links use the address by which the client reached the server.
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
        """Return routes for WebSockets at every path, and for plain requests to these two."""
        plain = [
            Route(f"/{{name:path}}/{operation.value}", self._plain, methods=["GET"])
            for operation in Operation
        ]
        return [WebSocketRoute("/{path:path}", self._open), *plain]

    def stop(self, grace_s: float) -> bool:
        """Start nothing new; return True if running commits ended within ``grace_s``."""
        self._repository.heads.stop()
        have_ended = self._threads.stop(grace_s)
        self._heart.stop(_GOODBYE_S)
        return have_ended

    # --- Before the session ---------------------------------------------------------

    async def _plain(self, request: Request) -> Response:
        """Answer a request that isn't a WebSocket, and say that it has to be one."""
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
            say(
                _LOG,
                logging.WARNING,
                "too many sessions: new ones are refused",
                sessions=len(self._seats),
            )
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
            # The server is shutting down; work that runs in a thread continues.
            say(_LOG, logging.WARNING, "a session was ended by the server's stop")
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
        except Exception:  # noqa: BLE001 - the server has to answer the other requests
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
        # Not earlier: the handshake defines the order of refusals.
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
        """Return what has to finish before an action: making the head, if it isn't made yet."""
        match action:
            case MakePlan(request):
                is_needed = request.stop_at is None
            case _:
                is_needed = isinstance(action, ConsiderPush | CheckAndCommit)
        return (
            self._repository.heads.of(name) if is_needed and kind is DatasetFormat.DELTA else None
        )


class _Conversation:
    """A machine, its socket, and its running work, at most one action at a time."""

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
        """End the session, because another client needs the place more. Safe from any thread."""
        self._makes_way = True
        # A server that has shut down has told all its clients to come again already.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(
                self._inbox.put_nowait, PeerClosed(_CUT, "others need its place")
            )

    async def run(self) -> None:
        """Run until the machine has ended."""
        reading = asyncio.create_task(self._read())
        try:
            # The first event starts the machine's clock.
            event: MachineEvent = Tick()
            while True:
                actions = await self._receive(event)
                # Before sending: an answer tells the client that it is its turn.
                self._limit(self._machine.most_bytes)
                if isinstance(event, Received | ReceivedFrame | TooLarge):
                    # The machine has kept what it needs of the message, so its room is free. A
                    # list of objects is kept whole, and may have to wait: it keeps its room.
                    self._is_unread = any(isinstance(action, SignUrls) for action in actions)
                    if not self._is_unread:
                        self._room.release()
                del event
                await self._do(actions)
                # Free the memory: actions may be large, and the client silent for long.
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
                await self._say(self._socket.close(_TRY_AGAIN_LATER, "other clients are waiting"))

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
        # Only this loop uses the machine, so a thread may run it meanwhile.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, self._machine.receive, event, _now_ms())

    async def _read(self) -> None:
        while True:
            await self._room.acquire()
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code", _UNKNOWN)
                # The server reports a broken connection with the code of a Close without a code.
                if code == _UNKNOWN and "reason" not in message:
                    code = _CUT
                self._inbox.put_nowait(PeerClosed(code, message.get("reason") or ""))
                return
            self._inbox.put_nowait(_event(message))
            # Free the memory: the message may be large, and the next one may take long.
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
            # The peer has closed or is gone; the reader reports it.
            say(_LOG, logging.DEBUG, "the client has gone", **self._label)

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
        # Free the memory: the result may be large.
        self._under_way = None
        self._inbox.put_nowait(work.result())

    def _answer(self, action: MachineAction, first: Future[Any] | None) -> HostEvent:
        try:
            if first is not None:
                first.result()
            return self._answering(action)
        except LakeferryError as refused:
            # The session keeps the error, and a traceback would keep the blocks in memory.
            return WorkRefused(without_tracebacks(refused))
        except Exception as mistake:  # noqa: BLE001 - the server has to serve the others
            _LOG.exception("session %s: %s failed", self._label["session"], type(action).__name__)
            return WorkRefused(
                StorageUnavailable("the server failed", cause=type(mistake).__name__)
            )

    def _leave(self) -> None:
        """Release what is held, once no thread uses it any more."""
        self._answers.close()
        if self._under_way is None or self._under_way.cancel():
            self._work.close()
        else:
            self._under_way.add_done_callback(lambda _: self._work.close())


class _Answers:
    """Reserves room for the large answers of one session, one at a time.

    Room is reserved before an answer is made, and released when the client has read the text.
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
        """Return True if an answer isn't being made because there is no room for it."""
        return self._task is not None and not self._task.done() and self._slot is None

    def when_there_is_room(self, size_bytes: int, begin: Callable[[], None]) -> None:
        """Call ``begin`` once there is room for its answer; at once if the answer is small."""
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
            # The client's next request shows that it has read nearly all of the last answer.
            await before
        async with self._room.slot(self._holder, size_bytes) as slot:
            # While the answer is being made, the client isn't slow.
            slot.since_s = math.inf
            slot.interrupt = wire.drop
            self._slot = slot
            try:
                # While the server shuts down, nothing new begins.
                with suppress(RuntimeError):
                    begin()
                await self._is_sent.wait()
                await wire.written()
            finally:
                self._slot = None
                self._tidy()

    def begin(self, text_bytes: int) -> None:
        """Record that the answer is made, and its size."""
        slot, wire = self._slot, self._wire
        if slot is not None and wire is not None:
            slot.since_s = asyncio.get_running_loop().time()
            slot.moved_bytes = lambda: -wire.unwritten_bytes()
            self._room.shrink(slot, text_bytes)

    def sent(self) -> None:
        """Record that the answer was sent."""
        self._is_sent.set()

    def close(self) -> None:
        """Release the room; a client that hasn't read its answer by now is cut off."""
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
    """Convert a message of the socket into an event."""
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
