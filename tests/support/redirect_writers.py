"""Writers that append without pause while their table moves, and a board that shows their progress.

A writer asks :func:`lakeferry.resolve` where its table is, appends one row there,
and begins again, until it is told to stop; one that is far ahead rests in between.
Each attempt writes a row of its own, so what an engine said about an attempt can be
held against what the table has. The board lets others wait for what writers do, so
that nobody has to guess how long that takes.
"""

from __future__ import annotations

import fcntl
import io
import json
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import lakeferry
from lakeferry.errors import RedirectInProgress
from lakeferry.log import file_actions
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.redirect.resolve import redirect_of
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.support import processes
from tests.support.concurrent_writers import turnstile

Options = Mapping[str, str]
Append = Callable[[str, Options, int], None]
PATIENCE_S = 120.0
"""How long the slowest machine may take for a single step; nothing waits that long to go on."""
REST_S = 0.02
LONG_REST_S = 0.5
"""Long enough for the slowest engine; the slowest writer may also be one that has to wait."""
LEAD = 5
_ROWS_OF_ONE = 1_000_000


@contextmanager
def in_turn(lock: Path, *, alone: bool = False) -> Iterator[None]:
    """Pass the turnstile in the order of arrival, so that who wants to be alone gets a turn."""
    with lock.open("a") as file:
        with turnstile(lock.with_suffix(".gate"), alone=True):
            fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@dataclass(slots=True)
class Story:
    """What one writer was told: rows that are in, and rows that aren't, with the reason."""

    acknowledged: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    failure: str | None = None
    """Why the writer itself gave up; no writer should."""


class Board:
    """How many rows each writer got in, and how often each was refused, for all to see."""

    def __init__(self, writers: int) -> None:
        context = processes.context()
        self.writers = writers
        self._changed = context.Condition()
        self._acknowledged = context.Array("q", writers, lock=False)
        self._refused = context.Array("q", writers, lock=False)
        self._stopped = context.Event()

    @property
    def stopped(self) -> bool:
        """Whether writers are to end."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Have all writers end after what they are doing."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def rest(self) -> None:
        """Wait a moment before the next attempt, as a writer that was refused does."""
        self._stopped.wait(REST_S)

    def tell(self, who: int, *, refused: bool) -> None:
        """Note that a writer got a row in, or was refused."""
        with self._changed:
            (self._refused if refused else self._acknowledged)[who] += 1
            self._changed.notify_all()

    def let_others_catch_up(self, who: int) -> None:
        """Wait a while if a writer is far ahead of the slowest, which it may be starving.

        An engine that takes longer from reading a version to committing the next loses every
        race against one that never pauses.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.stopped or self._acknowledged[who] <= min(self._acknowledged) + LEAD,
                LONG_REST_S,
            )

    def all_append(self, times: int) -> None:
        """Wait until every writer has got so many more rows in."""
        self._wait_for_more(self._acknowledged, times, "append")

    def all_are_refused(self) -> None:
        """Wait until every writer was refused once more."""
        self._wait_for_more(self._refused, 1, "be refused")

    def _wait_for_more(self, counts: Any, times: int, what: str) -> None:
        with self._changed:
            goals = [count + times for count in counts]
            done = self._changed.wait_for(
                lambda: (
                    self.stopped
                    or all(now >= goal for now, goal in zip(counts, goals, strict=True))
                ),
                PATIENCE_S,
            )
            if self.stopped or not done:
                raise AssertionError(f"not every writer came to {what}: {list(counts)} of {goals}")


def append_with_delta_rs(place: str, options: Options, row: int) -> None:
    """Append a row with delta-rs."""
    from deltalake import CommitProperties, write_deltalake

    write_deltalake(
        place,
        pa.table({"id": pa.array([row], pa.int64())}),
        mode="append",
        storage_options=dict(options) or None,
        commit_properties=CommitProperties(max_commit_retries=50),
    )


def append_with_lakeferry(place: str, options: Options, row: int) -> None:
    """Append a row with our own log."""
    append_row(DeltaLog(open_store(place, options)), row)


def append_row(log: DeltaLog, row: int) -> None:
    """Append a row that has an id and no other value: a data file, and a commit that adds it."""
    read = log.state()
    # Between being told the place and reading it, it may have been locked.
    if redirect_of(read, log.store.uri) is not None:
        raise RedirectInProgress(f"{log.store.uri} has a redirect")
    physical = {
        column["name"]: column["metadata"].get("delta.columnMapping.physicalName", column["name"])
        for column in json.loads(read.metadata.schema_string)["fields"]
    }
    sink = io.BytesIO()
    pq.write_table(pa.table({physical["id"]: pa.array([row], pa.int64())}), sink)
    name, data = f"part-{uuid.uuid4()}.parquet", sink.getvalue()
    log.store.put(name, data)
    bounds = {physical["id"]: row}
    added = {
        "path": name,
        "partitionValues": {physical[each]: None for each in read.metadata.partition_columns},
        "size": len(data),
        "modificationTime": log.clock(),
        "dataChange": True,
        "stats": json.dumps({"numRecords": 1, "minValues": bounds, "maxValues": bounds}),
    }
    adds = pa.Table.from_pylist([added], schema=file_actions.ADD)
    made = log.commit(Transaction("WRITE", str(uuid.uuid4()), adds=adds, new_names=True), read)
    if isinstance(made, Conflict):
        raise made.error()


ENGINES: dict[str, Append] = {
    "delta-rs": append_with_delta_rs,
    "lakeferry": append_with_lakeferry,
}


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes, with which engine, to which table, and with which storage options."""

    who: int
    engine: str
    table: str
    options: Options
    lock: Path
    alone: bool = False
    """Whether its engine may write only while nobody else does."""

    def work(self, board: Board, append: Append) -> Story:
        """Append until the board says stop; refusals of any kind are retried."""
        story, row = Story(), (self.who + 1) * _ROWS_OF_ONE
        while not board.stopped:
            row += 1
            try:
                place = lakeferry.resolve(self.table, storage_options=self.options, write=True)
                with in_turn(self.lock, alone=self.alone):
                    append(place, self.options, row)
            except Exception as refusal:  # noqa: BLE001 - every engine has errors of its own
                story.refused[row] = f"{type(refusal).__name__}: {refusal}"
                board.tell(self.who, refused=True)
                board.rest()
            else:
                story.acknowledged.append(row)
                board.tell(self.who, refused=False)
                board.let_others_catch_up(self.who)
        return story


def _process(writer: Writer, board: Board, answer: Any) -> None:
    story = Story()
    try:
        story = writer.work(board, ENGINES[writer.engine])
    except BaseException:  # noqa: BLE001 - whoever started this process wants to know
        story.failure = traceback.format_exc()
        board.stop()
    answer.send(story)


@contextmanager
def writing(board: Board, writers: Iterable[Writer]) -> Iterator[list[Story]]:
    """Run writers in processes of their own; their stories are in the list when it is over."""
    started: list[tuple[ForkServerProcess, Any]] = []
    stories: list[Story] = []
    try:
        for writer in writers:
            ours, theirs = processes.context().Pipe(duplex=False)
            process = processes.process(_process, writer, board, theirs)
            process.start()
            theirs.close()
            started.append((process, ours))
        yield stories
    finally:
        board.stop()
        for process, ours in started:
            if ours.poll(PATIENCE_S):
                stories.append(ours.recv())
            process.join(PATIENCE_S)
            if process.is_alive():
                process.kill()
                process.join()
