"""Runs a transfer in an event loop for callers that have none.

It uses uvloop, in a thread beside the main one. In the main thread uvloop would take over the
file descriptor by which Python reports signals, and the command line wouldn't end promptly after
Ctrl-C (``cli/interrupts.py``); in any other thread it leaves signals alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import uvloop

_T = TypeVar("_T")


def run_in_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a coroutine.

    Ctrl-C cancels it, and is raised when it has ended; a second Ctrl-C doesn't wait for it.
    """
    if threading.current_thread() is not threading.main_thread():
        return uvloop.run(main)
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
    done: Future[_T] = Future()

    async def held() -> _T:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        return await main

    def work() -> None:
        try:
            done.set_result(uvloop.run(held()))
        except BaseException as error:  # noqa: BLE001 - it is passed to the main thread
            done.set_exception(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(work), name="transfer-loop")
    try:
        thread.start()
        return done.result()
    except KeyboardInterrupt:
        loop, task = begun.result()
        # It may have ended by now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)
        with suppress(asyncio.CancelledError):
            return done.result()
        raise
