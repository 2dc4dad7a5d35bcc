"""The demo's writer: a process that appends by the old path and counts its rows.

It writes with delta-rs wherever :func:`lakeferry.resolve` leads, about twice a
second, and knows nothing of the move. An append that is refused is tried again,
with the same rows, until it is acknowledged; so what it says it has written can be
counted in the table afterwards.

The two processes communicate by pipes: the writer sends one line of JSON per event, the demo one
byte per request. When the request pipe is closed, the writer ends after its current append; so
it never outlives the demo, however that ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lakeferry.errors import LakeferryError, TimedOut

FIRST_ID = 10_000_000
ROWS_PER_COMMIT = 10
REGIONS = ("north", "east", "south", "west")
COLUMNS = ("id", "region", "amount")
_EVERY_S = 0.5
_RETRY_S = 0.05
_PATIENCE_S = 60.0
_HOLD, _GO = b"h", b"g"
_PROGRAM = "from lakeferry.examples.demo import writer; writer.run_writer()"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One append that was committed. ``waited_ms`` is what refusals before it cost."""

    at_ms: int
    place: str
    attempts: int
    waited_ms: int


@dataclass(frozen=True, slots=True)
class RefusedAttempt:
    """One attempt that was refused, and retried."""

    at_ms: int
    why: str


class Writer:
    """The writer as the demo sees it: started, listened to, and always ended."""

    def __init__(self, table: Path, log: Path) -> None:
        """Start the writer; what goes wrong with it is written to ``log``."""
        self.acknowledged: list[Acknowledged] = []
        self.refused: list[RefusedAttempt] = []
        self._log = log
        self._held = False
        self._ended = False
        self._changed = threading.Condition()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(table)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        threading.Thread(target=self._listen, name="demo-writer", daemon=True).start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the writer: at once, if something went wrong, and nobody counts any more."""
        if error is not None:
            self._process.kill()
        self._ask(b"")
        try:
            self._process.wait(_PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def rows(self) -> int:
        """How many rows were acknowledged so far."""
        return len(self.acknowledged) * ROWS_PER_COMMIT

    @property
    def ids(self) -> range:
        """The ids of the rows that were acknowledged so far."""
        return range(FIRST_ID, FIRST_ID + self.rows)

    def wait_for(self, more: int) -> None:
        """Wait until this many more appends are acknowledged."""
        wanted = len(self.acknowledged) + more
        self.wait_until(lambda: len(self.acknowledged) >= wanted)

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until ``done`` returns True for the events so far."""
        with self._changed:
            if not self._changed.wait_for(lambda: done() or self._ended, _PATIENCE_S):
                raise self._failed(TimedOut, "gets no further")
        if not done():
            raise self._failed(LakeferryError, "ended too early")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the writer do nothing for a while; it is between two appends then."""
        self._ask(_HOLD)
        self.wait_until(lambda: self._held)
        try:
            yield
        finally:
            self._held = False
            self._ask(_GO)

    def stop(self) -> None:
        """Let the writer finish its current append, and end."""
        self._ask(b"")
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, _PATIENCE_S):
                raise self._failed(TimedOut, "doesn't end")
        if self._process.wait() != 0:
            raise self._failed(LakeferryError, "failed")

    def _ask(self, word: bytes) -> None:
        """Send a word; none closes the pipe."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            if word:
                self._process.stdin.write(word)
                self._process.stdin.flush()
            else:
                self._process.stdin.close()

    def _failed(self, kind: type[LakeferryError], how: str) -> LakeferryError:
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        reasons = last or [refused.why for refused in self.refused[-1:]]
        return kind(
            f"the demo's writer {how}",
            cause=reasons[0] if reasons else None,
            remedy=f"look at {self._log}",
        )

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                # An incomplete line comes from a writer that was killed.
                with suppress(json.JSONDecodeError), self._changed:
                    self._hear(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _hear(self, message: dict[str, Any]) -> None:
        match message.pop("what"):
            case "acknowledged":
                self.acknowledged.append(Acknowledged(**message))
            case "refused":
                self.refused.append(RefusedAttempt(**message))
            case "held":
                self._held = True


# --- The process itself ------------------------------------------------------


def run_writer() -> None:
    """Append until the request pipe is closed."""
    # Ctrl-C reaches every process of a terminal; this one ends when its pipe does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    table = sys.argv[1]
    batch, attempts = 0, 0
    due = first_tried = time.monotonic()
    while _pause(due):
        if attempts == 0:
            first_tried = time.monotonic()
        attempts += 1
        try:
            place = append(table, batch)
        except Exception as refusal:
            if not _is_refusal(refusal):
                raise
            _say("refused", at_ms=_now_ms(), why=str(refusal).splitlines()[0])
            due = time.monotonic() + _RETRY_S
            continue
        waited_ms = round((time.monotonic() - first_tried) * 1000) if attempts > 1 else 0
        _say("acknowledged", at_ms=_now_ms(), place=place, attempts=attempts, waited_ms=waited_ms)
        batch, attempts = batch + 1, 0
        due = max(due + _EVERY_S, time.monotonic())


def append(table: str, batch: int) -> str:
    """Append the rows of a batch, and return where they went."""
    import deltalake

    import lakeferry

    place = lakeferry.resolve(table, write=True)
    first = FIRST_ID + batch * ROWS_PER_COMMIT
    rows = orders(range(first, first + ROWS_PER_COMMIT), REGIONS[batch % len(REGIONS)])
    deltalake.write_deltalake(place, rows, mode="append")
    return place


def orders(ids: range, region: str) -> Any:
    """Return orders of one region as an Arrow table."""
    import pyarrow as pa

    values = [list(ids), [region] * len(ids), [float(each) for each in ids]]
    return pa.table(dict(zip(COLUMNS, values, strict=True)))


def _is_refusal(error: Exception) -> bool:
    """Return True if the table refused, either in Lakeferry or in delta-rs."""
    from deltalake.exceptions import DeltaError

    return isinstance(error, LakeferryError | DeltaError)


def _pause(until: float) -> bool:
    """Wait for a moment and handle requests; return False when the pipe is closed."""
    while True:
        left = until - time.monotonic()
        asked, _, _ = select.select([0], [], [], max(left, 0))
        if not asked:
            return True
        word = os.read(0, 1)
        if word == _HOLD:
            _say("held")
            word = os.read(0, 1)
        if not word:
            return False


def _say(what: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"what": what, **facts}) + "\n")
    sys.stdout.flush()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
