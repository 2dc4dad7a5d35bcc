"""Caches the heads of Delta tables whose chains are still being made.

To make the blocks of new versions is to read their files. Whoever wants to know a head asks
here and waits for an answer, without a thread of its own: so a large table keeps those
waiting who want it, and nobody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from lakeferry.errors import StorageUnavailable
from lakeferry.transfer.chain.hashes import Multihash

AT_ONCE = 2
"""Tables whose chains are made at a time."""

N = TypeVar("N", bound=Hashable)


class Heads(Generic[N]):
    """Heads that are found out in a few threads, each table's in one. Safe to use from several.

    An answer is never older than its question: who asks while a head is being found out is
    answered by the next time, together with all who ask until that begins.
    """

    def __init__(self, find: Callable[[N], Multihash | None], at_once: int = AT_ONCE) -> None:
        """Find heads out by ``find``; no thread is begun before somebody asks."""
        self._find = find
        self._pool = ThreadPoolExecutor(at_once, "heads")
        self._asked: dict[N, Future[Multihash | None]] = {}
        self._busy: set[N] = set()
        self._is_over = False
        self._lock = threading.Lock()

    def of(self, name: N) -> Future[Multihash | None]:
        """Return the answer to come; it is others', too, and nobody can cancel it."""
        with self._lock:
            if name in self._asked:
                return self._asked[name]
            answer: Future[Multihash | None] = Future()
            answer.set_running_or_notify_cancel()
            if self._is_over:
                answer.set_exception(_over())
                return answer
            self._asked[name] = answer
            if name not in self._busy:
                self._busy.add(name)
                self._pool.submit(self._answer, name)
            return answer

    def stop(self) -> None:
        """Begin nothing more; whoever waits for what hasn't begun is told so."""
        with self._lock:
            self._is_over = True
            left = list(self._asked.values())
            self._asked.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for answer in left:
            answer.set_exception(_over())

    def _answer(self, name: N) -> None:
        with self._lock:
            answer = self._asked.pop(name, None)
        if answer is not None:
            try:
                answer.set_result(self._find(name))
            except BaseException as failed:  # noqa: BLE001 - it is the answer
                answer.set_exception(failed)
        with self._lock:
            # Behind those of other tables.
            if name in self._asked:
                self._pool.submit(self._answer, name)
            else:
                self._busy.discard(name)


def _over() -> StorageUnavailable:
    return StorageUnavailable("the server is on its way out")
