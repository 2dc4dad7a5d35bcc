"""Renews the records of running pushes, so that they count as alive."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from lakeferry.errors import LakeferryError, TimedOut
from lakeferry.transfer.repository.push_records import PushRecord

RENEWED_EVERY_S = 20.0


class Heart:
    """Renews the records of a server's running pushes, and ends those that are left.

    Both send requests to the store, so a thread does them; it runs while there is a push.
    """

    def __init__(self, every_s: float = RENEWED_EVERY_S) -> None:
        """Start without records."""
        self._every_s = every_s
        self._living: set[PushRecord] = set()
        self._leaving: list[PushRecord] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, record: PushRecord) -> None:
        """Renew a record from now on."""
        with self._changed:
            self._living.add(record)
            self._start()

    def remove(self, record: PushRecord, *, leave: bool = False) -> None:
        """Stop renewing it; with ``leave``, write that its push ended without a commit."""
        with self._changed:
            self._living.discard(record)
            if leave:
                self._leaving.append(record)
                self._start()
            self._changed.notify()

    def stop(self, grace_s: float) -> None:
        """Wait up to ``grace_s`` until the records that are left have been written."""
        with self._changed:
            thread = self._thread
            self._living.clear()
            self._changed.notify()
        if thread is not None:
            thread.join(grace_s)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pushes", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        due = time.monotonic() + self._every_s
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._leaving or not self._living, max(0.0, due - time.monotonic())
                )
                leaving, self._leaving = self._leaving, []
                if not leaving and not self._living:
                    self._thread = None
                    return
                living: list[PushRecord] = []
                if time.monotonic() >= due:
                    living, due = list(self._living), time.monotonic() + self._every_s
            for record in leaving:
                # If this can't be written, the silence of the push has the same effect.
                with suppress(LakeferryError):
                    record.leave()
            for record in living:
                try:
                    record.renew()
                except TimedOut:
                    # The push gets the error when it wants to commit.
                    self.remove(record)
                except LakeferryError:
                    # The next renewal may succeed, and there are several before the limit.
                    continue
