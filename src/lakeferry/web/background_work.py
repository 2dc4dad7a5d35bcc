"""Work that takes longer than a request: scans, plans and runs, each in a thread of this process.

One piece of work of each kind runs at a time. What it reports is in memory, for pages, and bounded;
what it does is in the fleet's database. A process that is killed leaves what a killed command
leaves.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lakeferry.errors import CommitConflict, LakeferryError

KEPT_WORK = 20
_WARNINGS = 20
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class ConsoleWork:
    """One piece of work and how far it is. Its own thread writes, others read."""

    number: int
    kind: str
    title: str
    command: str
    began_ms: int
    ended_ms: int | None = None
    step: str = "starting"
    done: int = 0
    total: int = 0
    result: str | None = None
    error: dict[str, object] | None = None
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=_WARNINGS))
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the process is told to end: long work heeds it."""

    @property
    def is_running(self) -> bool:
        """Whether it hasn't ended."""
        return self.ended_ms is None

    def observe(self, what: str, done: int, total: int) -> None:
        """Note how far it is, as an :data:`lakeferry.engine.Observer`."""
        self.step, self.done, self.total = what, int(done), int(total)

    def warn(self, text: str) -> None:
        """Note a warning; the newest are kept."""
        self.warnings.append(text)


class BackgroundWork:
    """All work of one process. Safe to use from several threads."""

    def __init__(self) -> None:
        """Begin without work."""
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._kept: deque[ConsoleWork] = deque(maxlen=KEPT_WORK)
        self._threads: dict[int, threading.Thread] = {}

    def start(
        self,
        kind: str,
        title: str,
        command: str,
        job: Callable[[ConsoleWork], str],
        *,
        not_beside: tuple[str, ...] = (),
    ) -> ConsoleWork:
        """Begin work in a thread, which returns what to tell.

        It is refused while other work of its kind runs, or of a kind in ``not_beside``.
        """
        with self._lock:
            kinds = (kind, *not_beside)
            running = next((e for e in self._kept if e.is_running and e.kind in kinds), None)
            if running is not None:
                raise CommitConflict(
                    f"this is running already: {running.title}",
                    remedy="wait until it has ended",
                )
            work = ConsoleWork(next(self._numbers), kind, title, command, _now_ms())
            self._kept.append(work)
            # A process that is told to end waits for it for a moment only.
            thread = threading.Thread(
                target=self._do, args=(work, job), name=f"console-{kind}", daemon=True
            )
            self._threads[work.number] = thread
            thread.start()
        return work

    def _do(self, work: ConsoleWork, job: Callable[[ConsoleWork], str]) -> None:
        try:
            work.result = job(work)
        except LakeferryError as refused:
            work.error = refused.as_document()
        except Exception:  # noqa: BLE001 - pages say that it failed
            _LOG.exception("%s failed", work.title)
            work.error = {
                "code": "internal_error",
                "message": "an internal error: the program's log has it",
                "remedy": None,
            }
        finally:
            work.ended_ms = _now_ms()
            with self._lock:
                self._threads.pop(work.number, None)

    def running(self, kind: str | None = None) -> list[ConsoleWork]:
        """Return the work that is running, of one kind or of all."""
        with self._lock:
            return [each for each in self._kept if _runs(each, kind)]

    def newest(self, kind: str) -> ConsoleWork | None:
        """Return the newest work of a kind."""
        with self._lock:
            return next((each for each in reversed(self._kept) if each.kind == kind), None)

    def mark(self) -> tuple[object, ...]:
        """Return a value that changes whenever pages have something new to show."""
        with self._lock:
            return tuple(
                (each.number, each.step, each.done, each.total, each.ended_ms)
                for each in self._kept
            )

    def ask_to_end(self) -> None:
        """Ask all work to end."""
        with self._lock:
            for work in self._kept:
                work.stop.set()

    def wait(self, within_s: float) -> bool:
        """Wait for work to end; return whether all has ended."""
        with self._lock:
            threads = list(self._threads.values())
        deadline = time.monotonic() + within_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)


def _runs(work: ConsoleWork, kind: str | None) -> bool:
    return work.is_running and kind in (None, work.kind)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
