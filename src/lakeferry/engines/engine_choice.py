"""Chooses the engine for a job, and opens each engine at most once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self

from lakeferry import engine
from lakeferry.engine import Engine, Name
from lakeferry.engines import open_engine, spark_is_installed
from lakeferry.engines.shared_engine import SharedEngine
from lakeferry.errors import InvalidInput
from lakeferry.storage.byte_rate import ByteRate

Warn = Callable[[str], None]


def suitable(wanted: str, objects: int, size_bytes: int, warn: Warn) -> Name:
    """Return the engine for a job; if Spark is missing, ``auto`` means this process."""
    chosen = engine.choose(wanted, objects, size_bytes)
    if chosen == "spark" and wanted == "auto" and not spark_is_installed():
        warn("Spark or Java isn't installed; this process does the work without Spark")
        return "local"
    return chosen


class Engines:
    """Returns a suitable engine for each job. Safe to use from several threads.

    An engine is opened for the first job that needs it. Set ``shared`` if jobs come from several
    threads at the same time: Spark then runs one at a time.
    """

    def __init__(
        self,
        wanted: str = "auto",
        warn: Warn = lambda _: None,
        *,
        shared: bool = False,
        opener: Callable[[Name], Engine] | None = None,
        rate: ByteRate | None = None,
    ) -> None:
        """Use ``auto``, ``local`` or ``spark``; another name is refused at once.

        ``opener`` opens the engines; without one they respect ``rate``.
        """
        engine.choose(wanted, 0, 0)
        self.wanted = wanted
        self._warn = warn
        self._opener = opener
        self._rate = rate
        self._shared = shared
        self._lock = threading.Lock()
        self._opened: dict[Name, Engine] = {}
        self._given: dict[Name, Engine] = {}
        self._is_over = False

    def choose(self, objects: int, size_bytes: int, urgent: bool = False) -> Engine:
        """Return the engine for a job with this number of objects and bytes.

        If writers wait (``urgent``), a small job runs locally, without waiting for Spark to
        schedule it.
        """
        wanted = "auto" if urgent and self.wanted == "spark" else self.wanted
        name = suitable(wanted, objects, size_bytes, self._warn)
        with self._lock:
            if self._is_over:
                raise InvalidInput("the engines are closed", remedy="open new ones")
            if name not in self._opened:
                opened = self._opened[name] = self._open(name)
                is_shared = self._shared and name == "spark"
                self._given[name] = SharedEngine(opened) if is_shared else opened
            return self._given[name]

    def _open(self, name: Name) -> Engine:
        if self._opener is not None:
            return self._opener(name)
        return open_engine(name) if self._rate is None else open_engine(name, self._rate)

    def close(self) -> None:
        """Close the opened engines; running jobs fail."""
        with self._lock:
            self._is_over = True
            opened = list(self._opened.values())
            self._opened.clear()
            self._given.clear()
        for each in opened:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def opening(
    engines: str | Engines, warn: Warn, rate: ByteRate | None = None
) -> AbstractContextManager[Engines]:
    """Yield engines and close them afterwards, unless the caller passed in its own."""
    if not isinstance(engines, Engines):
        return Engines(engines, warn, rate=rate)
    if rate is not None:
        raise InvalidInput(
            "engines that are open already can't get another rate",
            remedy="leave out limit_rate, or give the name of an engine",
        )
    return nullcontext(engines)
