"""Drives a state machine over a WebSocket.

The machine decides and this does: :func:`converse` tells it what the socket, the clock and the
host say, one at a time, and carries out its actions. What only the host can do runs in tasks
of its own, so that the server is heard meanwhile, and is answered by commands in the order in
which it is done.
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
    """What does the machine's work."""

    async def answer(self, action: MachineAction) -> HostEvent | None:
        """Do one thing and return the machine's answer; ``None`` where others will give it."""

    async def work(self, tell: asyncio.Queue[MachineEvent]) -> None:
        """Do what goes on beside the dialogue, such as moving objects, until cancelled."""


async def converse(
    socket: aiohttp.ClientWebSocketResponse, machine: Machine[Any], host: Host
) -> None:
    """Hold one session to its end; raise the error that it ends with, if any.

    However it ends, nothing of it goes on afterwards: a commit that has begun is waited for,
    and everything else is cancelled.
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
        # Bounded by what the machine allows: one text at a time, and two pages of objects.
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
                # The server's end is what the reader sees.
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
        except Exception as error:  # noqa: BLE001 - a task's mistake ends the session, not silently
            mistake = LakeferryError(f"something that should not happen: {error!r}")
            mistake.__cause__ = error
            self._inbox.put_nowait(WorkRefused(mistake))

    async def _listen(self) -> None:
        """Hand on what the server sends until it closes; not faster than it is dealt with."""
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
                    # Too large a message, or no UTF-8, is an error of the transport's.
                    code = self._socket.close_code or _LOST
                    self._inbox.put_nowait(PeerClosed(code, str(said.data or "")[:100]))
                    return


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
