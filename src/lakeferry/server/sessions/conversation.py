"""Runs one session: a machine without I/O, its socket, and its running work.

The loop of a session waits for the first of three events: a message of the peer, the end of the
running work, or the time at which the machine wants a ``Tick``. Requests to the store and long
computations are done in threads. A socket isn't read while a message waits to be processed, and a
client that doesn't read what is sent to it is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from lakeferry.errors import LakeferryError, StorageUnavailable
from lakeferry.server.http.websockets import EXTENSION, ConnectionControl
from lakeferry.server.logs import say
from lakeferry.server.sessions.answer_room import AnswerRoom
from lakeferry.server.sessions.worker_threads import SessionThreads
from lakeferry.transfer.session.events import (
    Close,
    Finished,
    FrameKind,
    HostEvent,
    MachineAction,
    MachineEvent,
    PeerClosed,
    Received,
    ReceivedFrame,
    Send,
    SignUrls,
    Tick,
    TooLarge,
    WorkRefused,
)
from lakeferry.transfer.session.machine import Machine
from lakeferry.transfer.session.server_refusals import without_tracebacks

SENT_WITHIN_S = 120.0
"""How long sending may wait for a client to read what was sent before."""

_LOG = logging.getLogger(__name__)
_UNREAD = 1  # waiting messages after which the socket isn't read any more
_CUT = 1006
_UNKNOWN = 1005
_TRY_AGAIN_LATER = 1013


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


class Conversation:
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
        answers: AnswerRoom,
    ) -> None:
        """Prepare a session; ``answer`` executes an action, after what ``first`` returns for it."""
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
        wire = wire_of(socket)
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


def wire_of(socket: WebSocket) -> ConnectionControl | None:
    """Return the control of a socket's connection, if the server gives one."""
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


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
