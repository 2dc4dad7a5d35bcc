"""A thread that appends one row after the other, and knows which of them were acknowledged."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakeferry.catalogs.places import Places
from lakeferry.redirect.resolve import resolve_table
from lakeferry.table import DeltaLog
from tests.support.redirect_writers import PATIENCE_S, append_row


def append_by_lakeferry(table: str, row: int) -> None:
    """Append a row where a path leads, also through a catalog."""
    found = resolve_table(table, write=True, allow_managed=True)
    places = Places()
    places.grant(found.location, found.access)
    append_row(DeltaLog(places.open(found.location)), row)


class SteadyWriter:
    """Appends rows with the ids from ``first`` on. An id that was refused isn't used again."""

    def __init__(self, append: Callable[[int], None], first: int, rest_s: float) -> None:
        """``append`` adds the row with an id to the table, or raises an error.

        ``rest_s`` is between two rows, so that a test that reads every version has few to read.
        """
        self.acknowledged: list[int] = []
        self.refused: dict[int, Exception] = {}
        self._append = append
        self._first = first
        self._rest_s = rest_s
        self._changed = threading.Condition()
        self._stopped = threading.Event()

    def run(self) -> None:
        """Append until :meth:`stop` is called."""
        for row in itertools.count(self._first):
            try:
                self._append(row)
            except Exception as refused:  # noqa: BLE001 - every engine has errors of its own
                self.refused[row] = refused
            else:
                with self._changed:
                    self.acknowledged.append(row)
                    self._changed.notify_all()
            if self._stopped.wait(self._rest_s):
                return

    def stop(self) -> None:
        """End after the row that is being appended."""
        self._stopped.set()

    def goes_on(self, rows: int = 2) -> None:
        """Wait until so many more rows are acknowledged."""
        with self._changed:
            goal = len(self.acknowledged) + rows
            done = self._changed.wait_for(lambda: len(self.acknowledged) >= goal, PATIENCE_S)
        assert done, f"only {len(self.acknowledged)} rows; refused: {self.refused}"


@contextmanager
def steadily(append: Callable[[int], None], first: int, rest_s: float) -> Iterator[SteadyWriter]:
    """Let a writer append meanwhile; it has begun, and goes on at the end."""
    writer = SteadyWriter(append, first, rest_s)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        writer.goes_on()
        yield writer
        writer.goes_on()
    finally:
        writer.stop()
        thread.join()
