"""Counts the calls to a store, so that tests and benchmarks can check them."""

from __future__ import annotations

import threading
from collections import Counter


class Calls:
    """How often each verb was used, and on what. Safe to use from several threads.

    A verb is the call to the store, not its network requests: ``GET`` for each
    object fetched whole, ``RANGE`` for each part of one, ``LIST`` for each page
    asked for where the store has pages (else one per listing), ``HEAD``,
    ``PUT``, ``PUT_IF_ABSENT``, ``SWAP``, ``COPY``, ``DELETE`` for each object deleted,
    ``SIGN``, and on local disk ``UTIME``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count: Counter[str] = Counter()
        self._log: list[tuple[str, str]] = []
        self._bytes_read = 0

    def add(self, verb: str, path: str) -> None:
        """Count one use of ``verb`` on ``path``, successful or not."""
        with self._lock:
            self._count[verb] += 1
            if len(self._log) < _LOG_LIMIT:
                self._log.append((verb, path))

    def add_bytes(self, count: int) -> None:
        """Note that a get brought ``count`` bytes."""
        with self._lock:
            self._bytes_read += count

    def __getitem__(self, verb: str) -> int:
        """How often ``verb`` was used."""
        with self._lock:
            return self._count[verb]

    @property
    def bytes_read(self) -> int:
        """How many bytes came back from gets, whole or ranged."""
        with self._lock:
            return self._bytes_read

    @property
    def log(self) -> tuple[tuple[str, str], ...]:
        """The first calls in order, as (verb, path); bounded."""
        with self._lock:
            return tuple(self._log)

    def reset(self) -> None:
        """Begin again at zero."""
        with self._lock:
            self._count.clear()
            self._log.clear()
            self._bytes_read = 0


_LOG_LIMIT = 10_000
