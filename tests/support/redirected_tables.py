"""Real tables in every stage of a redirect, brought there by the procedures and stopped there.

A table is made by delta-rs on local disk, with the rows :data:`ROWS`. Where its
target is open, one more row (:data:`MOVED_ON`) was written there since, so that
the two ends differ for as long as they may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake

from lakeferry.api.redirects import Redirects
from lakeferry.log import paths
from lakeferry.storage import Store, open_store
from lakeferry.table import DeltaLog
from tests.support import engines
from tests.support.stores import Fault, FaultyStore, Stopped, on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = list(range(10))
MOVED_ON = 10
"""The row that was written to the target after it had opened."""
MODES = ("reader-writer", "writer-only")


class Stage(Enum):
    """How far a redirect has come. One is between two states: the target alone is locked."""

    ENABLING = "ENABLING"
    READY = "READY"
    WITHDRAWING = "READY, with the target DROPPING"
    DROPPING = "DROPPING"


@dataclass(frozen=True)
class Places:
    """Both ends of a redirect on local disk."""

    source: Path
    target: Path

    @property
    def logs(self) -> dict[str, bytes]:
        """Every file of both logs: a write that is refused leaves them as they are."""
        return {
            str(path): path.read_bytes()
            for place in (self.source, self.target)
            for path in sorted(place.glob("_delta_log/**/*"))
            if path.is_file()
        }

    def move(self, **options: Any) -> None:
        """Take the redirect to READY."""
        with Redirects() as moves:
            moves.enable(str(self.source), str(self.target), **options)


def content(place: Path) -> dict[str, bytes]:
    """Every file under a place, byte for byte."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def rows(ids: Iterable[int]) -> pa.Table:
    """Rows as the tables here have them."""
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(location: object) -> list[int]:
    """The rows at a place, by an engine that knows no redirects."""
    return sorted(row[0] for row in engines.by_delta_rs(str(location)))


def newest_version(place: Path) -> int:
    """The newest version at a place, whatever redirect it carries."""
    return DeltaLog(open_store(str(place))).segment().version


def create(folder: Path, name: str = "table") -> Places:
    """Make a table that no redirect has touched, and name a place for it to go to."""
    places = Places(folder / name, folder / f"{name}-moved")
    for half in (ROWS[:5], ROWS[5:]):
        write_deltalake(str(places.source), rows(half), mode="append")
    return places


def at_stage(folder: Path, stage: Stage, mode: str, **options: Any) -> Places:
    """Make a table and take its redirect so far, and no further."""
    places = create(folder, f"{stage.name.lower()}-{mode}")
    source, target = str(places.source), str(places.target)
    if stage is Stage.ENABLING:
        begins = newest_version(places.source) + 1
        stopped_after(
            places.source,
            begins,
            lambda moves: moves.enable(source, target, mode=mode, **options),
        )
        return places
    places.move(mode=mode, **options)
    write_deltalake(target, rows([MOVED_ON]), mode="append")
    if stage is not Stage.READY:
        locked = newest_version(places.target) + 1
        last = places.target if stage is Stage.WITHDRAWING else places.source
        stopped_after(last, locked, lambda moves: moves.disable(source))
    return places


def stopped_after(place: Path, version: int, act: Callable[[Redirects], object]) -> None:
    """Run a procedure in a process that ends once it has committed that version at that place."""

    def opened(uri: str) -> Store:
        store = open_store(uri)
        if uri != place.as_uri():
            return store
        end = on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=paths.commit(version))
        return FaultyStore(store, end)

    with Redirects() as moves:
        moves.setting = replace(moves.setting, open_store=opened)
        try:
            act(moves)
        except Stopped:
            return
    raise AssertionError(f"version {version} was never committed at {place}")


OURS = "lakeferry.spark"
STOCK = "delta-spark"
STOCK_FOLLOWING = "delta-spark with its option"
"""The three clients that a Spark session can be."""


@contextmanager
def client_session(spark: SparkSession, client: str) -> Iterator[SparkSession]:
    """Give a session in the same JVM that is one of the three clients."""
    session = spark.newSession()
    if client == STOCK_FOLLOWING:
        session.conf.set("spark.databricks.delta.enableTableRedirectFeature", "true")
    if client != OURS:
        yield session
        return
    from lakeferry import spark as ours

    ours.install(session)
    yield session
    ours.uninstall(session)
