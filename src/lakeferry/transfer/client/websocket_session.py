"""Drives a state machine over a WebSocket.

The machine decides, and this module acts: :func:`converse` passes it events from the socket, the
clock and the host, one at a time, and executes its actions. The host's work runs in tasks of its
own, so that the server's messages are read meanwhile; each result is passed to the machine when
the work ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol

import aiohttp

from lakeferry.errors import LakeferryError
from lakeferry.transfer.session.events import (
    Begin,
    CheckAndCommit,
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
    Tick,
    WorkRefused,
)
from lakeferry.transfer.session.machine import Machine

_LOST = 1006
_SEND_S = 300.0


class Host(Protocol):
    """Does the machine's work."""

    async def answer(self, action: MachineAction) -> HostEvent | None:
        """Execute an action and return its result; ``None`` if :meth:`work` reports it later."""

    async def work(self, tell: asyncio.Queue[MachineEvent]) -> None:
        """Run work beside the dialogue, such as moving objects, until cancelled."""


async def converse(
    socket: aiohttp.ClientWebSocketResponse, machine: Machine[Any], host: Host
) -> None:
    """Run one session to its end; raise the error that it ends with, if any.

    When this returns, nothing of the session is running: it waits for a commit that has begun,
    and cancels everything else.
    """
    talk = _Conversation(socket, machine, host)
    try:
        await talk.hold()
    finally:
        await talk.end()
    if machine.error is not None:
        raise machine.error


class _Conversation:
    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, machine: Machine[Any], host: Host
    ) -> None:
        self._socket = socket
        self._machine = machine
        self._host = host
        # The machine bounds it: one text at a time, and two pages of objects.
        self._inbox: asyncio.Queue[MachineEvent] = asyncio.Queue()
        self._heard = asyncio.Semaphore(8)
        self._tasks: set[asyncio.Task[None]] = set()
        self._commits: set[asyncio.Task[None]] = set()

    async def hold(self) -> None:
        self._spawn(self._listen())
        self._spawn(self._guarded(self._host.work(self._inbox)))
        self._inbox.put_nowait(Begin())
        while not self._machine.is_over:
            event = await self._next()
            if isinstance(event, Received):
                self._heard.release()
            for action in self._machine.receive(event, _now_ms()):
                await self._do(action)

    async def end(self) -> None:
        if self._commits:
            await asyncio.wait(self._commits)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            await self._socket.close()

    async def _next(self) -> MachineEvent:
        if not self._inbox.empty():
            return self._inbox.get_nowait()
        wake_ms = self._machine.wake_ms
        timeout_s = None if wake_ms is None else max(0.0, (wake_ms - _now_ms()) / 1000)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._inbox.get()
        except TimeoutError:
            return Tick()

    async def _do(self, action: MachineAction) -> None:
        match action:
            case Send(text):
                # The server's end is reported by the reader.
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with asyncio.timeout(_SEND_S):
                        await self._socket.send_str(text)
            case Close(code, reason):
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    await self._socket.close(code=code, message=reason.encode())
            case Finished():
                pass
            case CheckAndCommit():
                self._commits.add(self._spawn(self._answer(action)))
            case _:
                self._spawn(self._answer(action))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._commits.discard)
        return task

    async def _answer(self, action: MachineAction) -> None:
        async def answer() -> None:
            command = await self._host.answer(action)
            if command is not None:
                self._inbox.put_nowait(command)

        await self._guarded(answer())

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except LakeferryError as error:
            self._inbox.put_nowait(WorkRefused(error))
        except Exception as error:  # noqa: BLE001 - an unexpected error must end the session
            mistake = LakeferryError(f"an internal error: {error!r}")
            mistake.__cause__ = error
            self._inbox.put_nowait(WorkRefused(mistake))

    async def _listen(self) -> None:
        """Pass on the server's messages until it closes, no faster than they are processed."""
        while True:
            await self._heard.acquire()
            try:
                said = await self._socket.receive()
            except (aiohttp.ClientError, OSError):
                self._inbox.put_nowait(PeerClosed())
                return
            match said.type:
                case aiohttp.WSMsgType.TEXT:
                    self._inbox.put_nowait(Received(said.data))
                case aiohttp.WSMsgType.BINARY:
                    self._inbox.put_nowait(ReceivedFrame(FrameKind.BINARY))
                case aiohttp.WSMsgType.CLOSE:
                    self._inbox.put_nowait(PeerClosed(said.data or _LOST, said.extra or ""))
                    return
                case aiohttp.WSMsgType.PING | aiohttp.WSMsgType.PONG:
                    self._heard.release()
                case _:
                    # The transport reports a message that is too large or isn't UTF-8.
                    code = self._socket.close_code or _LOST
                    self._inbox.put_nowait(PeerClosed(code, str(said.data or "")[:100]))
                    return


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
