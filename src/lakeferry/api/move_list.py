"""Moves the tables of a list, several at a time; a list that was interrupted can be run again.

::

    wanted = read_moves(open("moves.csv"), "moves.csv")
    with Mover() as mover:
        report = move_all(mover, wanted, parallel=4)

A failed move is reported and the others continue. If the list is run again, tables that are
READY stay as they are, unfinished moves are resumed, and the others are moved.

Every move has its own :class:`~lakeferry.api.redirects.Redirects`, so threads share only Spark,
whose session runs one job at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from lakeferry.api.located_table import Plan
from lakeferry.api.move_list_file import Wanted, read_moves
from lakeferry.api.redirects import Redirects
from lakeferry.catalogs import open_catalog
from lakeferry.catalogs.places import PlaceOptions
from lakeferry.engine import Engine, Name, Observer, unobserved
from lakeferry.engines import open_engine
from lakeferry.engines.shared_engine import SharedEngine
from lakeferry.errors import Interrupted, LakeferryError, RedirectInProgress
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.storage.uris import same_place

__all__ = ["PARALLEL", "MovedTable", "Mover", "Report", "Wanted", "move_all", "read_moves"]

PARALLEL = 4
"""How many tables move at a time by default."""
STOPPING_S = 0.5
"""How long to wait for interrupted moves to end."""


@dataclass(frozen=True, slots=True)
class MovedTable:
    """The result of one line of a list. ``error`` is set if the move failed."""

    source: str
    target: str
    outcome: Outcome | None = None
    error: dict[str, object] | None = None
    warnings: tuple[str, ...] = ()

    def as_document(self) -> dict[str, object]:
        """Return one element of ``moves`` of ``redirect enable --from-file``."""
        outcome = self.outcome
        return {
            "source": self.source,
            "target": self.target,
            "state": outcome.state.value if outcome else None,
            "error": self.error,
            "changed": outcome.changed if outcome else False,
            "version": outcome.version if outcome else None,
            "files_copied": outcome.files_copied if outcome else 0,
            "bytes_copied": outcome.bytes_copied if outcome else 0,
            "bytes_copied_by_store": outcome.by_store_bytes if outcome else 0,
            "files_compared": outcome.compared.objects if outcome and outcome.compared else None,
            "blocked_ms": outcome.blocked_ms if outcome else None,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a list, in its order. ``interrupted`` is True if somebody stopped it."""

    moves: tuple[MovedTable, ...]
    interrupted: bool = False

    @property
    def failed(self) -> tuple[MovedTable, ...]:
        """The moves that failed."""
        return tuple(move for move in self.moves if move.error is not None)

    def as_document(self) -> dict[str, object]:
        """Return the JSON document of ``redirect enable --from-file``."""
        moves = [move.as_document() for move in self.moves]
        return {"moves": moves, "changed": any(move["changed"] for move in moves)}


class Mover:
    """Moves tables, in any number of threads, until it is stopped."""

    def __init__(
        self,
        storage_options: PlaceOptions | None = None,
        *,
        engine: str = "auto",
        environment: Mapping[str, str] | None = None,
        warn: Callable[[str], None] = lambda _: None,
        limit_rate: int | None = None,
    ) -> None:
        """Store the settings of all moves. ``warn`` receives each warning only once.

        ``limit_rate`` is for all moves together. Once a move needs Spark, its executors have one
        half of it and this process has the other.
        """
        self._options = storage_options
        self._engine = engine
        self._catalog = partial(open_catalog, environment=environment)
        self._warn = warn
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._spark: SharedEngine | None = None
        self._limit_rate = limit_rate
        self._rate = None if limit_rate is None else ByteRate(limit_rate)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop Spark, if it was started."""
        with self._lock:
            shared, self._spark = self._spark, None
        if shared is not None:
            shared.engine.close()

    def stop(self) -> None:
        """Start no further move, and end running ones when they next report progress.

        If such a move is requested again, it continues from there.
        """
        self._stopped.set()

    def move(self, wanted: Wanted, observer: Observer = unobserved) -> MovedTable:
        """Move one table, or resume its move, and return the result; never raises.

        ``observer`` receives the progress of this move, from any thread.
        """
        warnings: list[str] = []
        outcome: Outcome | None = None
        error: dict[str, object] | None = None
        try:
            self._check()
            with self._redirects(warnings.append, observer) as redirects:
                warnings += _old_readers(redirects, wanted)
                outcome = _move(redirects, wanted)
        except Exception as failed:  # noqa: BLE001 - the others go on
            error = _told(failed)
        self._tell(warnings)
        return MovedTable(wanted.source, wanted.target, outcome, error, tuple(warnings))

    def plan(self, wanted: Wanted) -> Plan:
        """Return the plan of :meth:`move`, or raise the error with which it would be refused."""
        with self._redirects(lambda text: self._tell([text])) as redirects:
            self._tell(_old_readers(redirects, wanted))
            try:
                return redirects.plan_enable(wanted.source, wanted.target, **wanted.options)
            except RedirectInProgress:
                if not _has_begun(redirects, wanted):
                    raise
                steps = redirects.resume(wanted.source, dry_run=True)
                assert isinstance(steps, list)
                return steps

    def _redirects(self, warn: Callable[[str], None], observer: Observer = unobserved) -> Redirects:
        def observe(what: str, done: int, total: int) -> None:
            self._check()
            observer(what, done, total)

        return Redirects(
            self._options,
            engine=self._engine,
            open_engine=self._open_engine,
            catalog=self._catalog,
            observer=observe,
            warn=warn,
            limit_rate=self._limit_rate,
        )

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _interrupted()

    def _tell(self, warnings: Iterable[str]) -> None:
        with self._lock:
            new = [text for text in dict.fromkeys(warnings) if text not in self._told]
            self._told.update(new)
        for text in new:
            self._warn(text)

    def _open_engine(self, name: Name) -> Engine:
        rate = self._rate
        if name != "spark":
            return open_engine(name) if rate is None else open_engine(name, rate)
        with self._lock:
            if self._spark is None:
                opened = open_engine(name) if rate is None else open_engine(name, rate.halve())
                self._spark = SharedEngine(opened)
            return self._spark


def move_all(
    mover: Mover,
    wanted: Sequence[Wanted],
    *,
    parallel: int = PARALLEL,
    observer: Observer = unobserved,
) -> Report:
    """Move every table of a list, ``parallel`` at a time, and return the results.

    An interrupt (Ctrl-C) stops ``mover`` and isn't raised: no further move begins, running ones
    get a moment to end, and the report shows how far each has come.
    """
    what = "moving tables"
    done: dict[int, MovedTable] = {}
    interrupted = False
    pool = ThreadPoolExecutor(max(1, parallel), thread_name_prefix="move")
    futures: dict[Future[MovedTable], int] = {}
    try:
        observer(what, 0, len(wanted))
        for index, each in enumerate(wanted):
            futures[pool.submit(mover.move, each)] = index
        left = set(futures)
        while left:
            ended, left = wait(left, return_when=FIRST_COMPLETED)
            done |= {futures[future]: future.result() for future in ended}
            observer(what, len(done), len(wanted))
    except KeyboardInterrupt:
        interrupted = True
        mover.stop()
        with suppress(KeyboardInterrupt):
            pool.shutdown(wait=False, cancel_futures=True)
            begun = [future for future in futures if not future.cancelled()]
            ended, _ = wait(begun, STOPPING_S)
            done |= {futures[future]: future.result() for future in ended}
    finally:
        pool.shutdown(wait=not interrupted, cancel_futures=True)
    moves = (done.get(index) or _unfinished(each) for index, each in enumerate(wanted))
    return Report(tuple(moves), interrupted)


def _move(redirects: Redirects, wanted: Wanted) -> Outcome:
    try:
        return redirects.enable(wanted.source, wanted.target, **wanted.options)
    except RedirectInProgress:
        if not _has_begun(redirects, wanted):
            raise
        is_full = wanted.options.get("verify") == "full"
        outcome = redirects.resume(wanted.source, verify="full" if is_full else None)
        assert isinstance(outcome, Outcome)
        return outcome


def _old_readers(redirects: Redirects, wanted: Wanted) -> list[str]:
    """Return a warning for each client that wrote lately and will read old rows."""
    with suppress(LakeferryError):
        found = redirects.recent_writers(
            wanted.source,
            wanted.target,
            mode=wanted.options.get("mode", "reader-writer"),
            dialects=wanted.options.get("dialects", ()),
        )
        return [f"{wanted.source}: {each.message}" for each in found or () if each.reads_old_rows]
    return []


def _has_begun(redirects: Redirects, wanted: Wanted) -> bool:
    """Return True if the unfinished move is the requested one."""
    request = redirects.request(wanted.source, wanted.target, **wanted.options)
    found = redirects.status(wanted.source)
    if (
        found.state is not RedirectState.ENABLING
        or found.mode != request.mode.value
        or found.type != request.target.kind.value
        or found.managed != request.managed
    ):
        return False
    if request.managed:
        # The catalog has chosen the place.
        return found.name == str(request.target)
    return found.target is not None and same_place(found.target, request.location)


def _told(failed: Exception) -> dict[str, object]:
    if isinstance(failed, LakeferryError):
        return failed.as_document()
    return {
        "code": "internal_error",
        "message": f"an internal error: {type(failed).__name__}: {failed}",
        "remedy": "please report it",
    }


def _interrupted() -> Interrupted:
    return Interrupted("interrupted", remedy="run the command again: the list continues from here")


def _unfinished(wanted: Wanted) -> MovedTable:
    return MovedTable(wanted.source, wanted.target, None, _interrupted().as_document())
