"""The threads of the server's sessions, one pool for each kind of work.

Each kind of work has a pool of its own size. Work that depends on other work waits without a
thread, and starts when that has ended.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, TypeVar

from lakeferry.server.sessions.byte_budget import UNPACKED_AT_ONCE
from lakeferry.transfer.session.events import (
    BlocksReady,
    CheckAndCommit,
    Close,
    Finished,
    HostEvent,
    LoadBlocks,
    MachineAction,
    MachineEvent,
    PeerClosed,
    Received,
    ReceivedFrame,
    Send,
    TakeBlocks,
    Tick,
    TooLarge,
    UrlsReady,
)

_LARGE_TEXT = 256 << 10
_MANY = 1_000
_VERY_MANY = 10_000  # an answer with this many takes several times its size while it is made

_TIDIED_EVERY_S = 1.0
_TRIM: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's function that returns freed memory to the system; without it glibc keeps the memory."""

_T = TypeVar("_T")


class SessionThreads:
    """Thread pools for a session's work: many small pieces, few large ones, some commits."""

    def __init__(self) -> None:
        """Create the pools; threads start with the first work."""
        self._small = ThreadPoolExecutor(16, "session")
        self._tables = ThreadPoolExecutor(4, "session-table")
        self._large = ThreadPoolExecutor(2, "session-large")
        # A pool of their own: they wait until others have unpacked, and mustn't delay pulls.
        self._taking = ThreadPoolExecutor(UNPACKED_AT_ONCE, "session-take")
        self._commits = ThreadPoolExecutor(8, "session-commit")
        self._committing: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._is_tidying = False

    def pool_of(self, subject: MachineAction | MachineEvent) -> ThreadPoolExecutor | None:
        """Return the pool for an action or event; ``None`` if it needs no thread."""
        match subject:
            case CheckAndCommit():
                return self._commits
            case TakeBlocks():
                return self._taking
            case LoadBlocks() | BlocksReady():
                return self._large
            case Received(text):
                return self._large if len(text) > _LARGE_TEXT else None
            case UrlsReady(urls) if len(urls) > _VERY_MANY:
                return self._large
            case UrlsReady(urls):
                return self._small if len(urls) > _MANY else None
            case Send() | Close() | Finished() | Tick() | ReceivedFrame() | TooLarge():
                return None
            case PeerClosed():
                return None
        return self._small if isinstance(subject, MachineAction) else None

    def submit(
        self, action: MachineAction, work: Callable[[], HostEvent], after: Future[Any] | None = None
    ) -> Future[HostEvent]:
        """Start work now, or when ``after`` has ended."""
        pool = self.pool_of(action)
        assert pool is not None
        if after is None:
            return self._start(action, pool, work)
        begun: Future[HostEvent] = Future()

        def run() -> None:
            if begun.set_running_or_notify_cancel():
                begun.set_result(work())

        def go(_: object) -> None:
            # During shutdown nothing new starts.
            with suppress(RuntimeError):
                self._start(action, self._tables if pool is self._small else pool, run)

        after.add_done_callback(go)
        return begun

    def _start(
        self, action: MachineAction, pool: ThreadPoolExecutor, work: Callable[[], _T]
    ) -> Future[_T]:
        begun = pool.submit(work)
        if isinstance(action, CheckAndCommit):
            with self._lock:
                self._committing.add(begun)
            begun.add_done_callback(self._end)
        return begun

    def tidy(self) -> None:
        """Return memory to the system soon; call it after something large has been freed."""
        if _TRIM is None or self._is_tidying:
            return
        # One call also covers what ends in the meantime.
        self._is_tidying = True
        asyncio.get_running_loop().call_later(_TIDIED_EVERY_S, self._trim, _TRIM)

    def _trim(self, trim: Callable[[int], int]) -> None:
        self._is_tidying = False
        # During shutdown nothing new starts.
        with suppress(RuntimeError):
            self._small.submit(trim, 0)

    def stop(self, grace_s: float) -> bool:
        """Start nothing new; return True if running commits ended within ``grace_s``."""
        for pool in (self._small, self._tables, self._large, self._taking, self._commits):
            pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = set(self._committing)
        return not wait(left, grace_s).not_done

    def _end(self, done: Future[Any]) -> None:
        with self._lock:
            self._committing.discard(done)
