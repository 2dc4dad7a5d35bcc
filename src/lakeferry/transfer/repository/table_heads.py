"""Caches the heads of Delta tables whose chains are still being made.

Making the blocks of new versions means reading their files. A caller that needs a head waits for
a future, without a thread of its own: so a large table delays only those who need its head.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from lakeferry.errors import StorageUnavailable
from lakeferry.transfer.chain.hashes import Multihash

_AT_ONCE = 2
"""Number of tables whose chains are made at the same time."""

N = TypeVar("N", bound=Hashable)


class Heads(Generic[N]):
    """Computes heads in a few threads, one per table. Safe to use from several threads.

    An answer is never older than its request: a caller that comes while a head is being computed
    gets the result of the next computation, together with all who come before that starts.
    """

    def __init__(self, find: Callable[[N], Multihash | None], at_once: int = _AT_ONCE) -> None:
        """Compute heads with ``find``; no thread is started before the first request."""
        self._find = find
        self._pool = ThreadPoolExecutor(at_once, "heads")
        self._asked: dict[N, Future[Multihash | None]] = {}
        self._busy: set[N] = set()
        self._is_over = False
        self._lock = threading.Lock()

    def of(self, name: N) -> Future[Multihash | None]:
        """Return a future for a head; it is shared, and callers can't cancel it."""
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
        """Start nothing new; callers whose computation hasn't begun get an error."""
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
            except BaseException as failed:  # noqa: BLE001 - it is passed to the callers
                answer.set_exception(failed)
        with self._lock:
            # After those of other tables.
            if name in self._asked:
                self._pool.submit(self._answer, name)
            else:
                self._busy.discard(name)


def _over() -> StorageUnavailable:
    return StorageUnavailable("the server is stopping")
