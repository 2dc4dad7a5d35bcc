"""The engine on Spark, for everything that touches much data.

It uses the user's session, or starts its own with the first plan
(:mod:`lakeferry.engines.spark.spark_session`). Plans are sent to executors inside functions,
places as configurations; the job modules describe the details.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from lakeferry.engine import (
    CarryPlan,
    CheckPlan,
    CheckTotals,
    CopyPlan,
    CopyTotals,
    Engine,
    HashPlan,
    LogCopyPlan,
    LogExported,
    LogExportPlan,
    LookPlan,
    Observer,
    OrphanPlan,
    Replayed,
    ReplayPlan,
    RewritePlan,
    unobserved,
)
from lakeferry.engines.spark import (
    comparison_on_spark,
    connect_engine,
    copy_on_spark,
    orphans_on_spark,
    presence_on_spark,
    replay_on_spark,
    rewrite_on_spark,
    transfer_on_spark,
)
from lakeferry.engines.spark.spark_errors import our_errors
from lakeferry.engines.spark.spark_session import EngineSession, open_session
from lakeferry.errors import InvalidInput
from lakeferry.storage import StoreConfig


class SparkEngine(Engine):
    """Executes plans as Spark jobs."""

    name = "spark"

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, limit_rate: int | None = None
    ) -> None:
        """Store settings for our own session; a user's session isn't changed.

        ``limit_rate`` is the most bytes per second that executors move in copies and exports.
        """
        self._settings = dict(settings or {})
        self._limit_rate = limit_rate
        self._session: EngineSession | None = None

    @property
    def session(self) -> EngineSession:
        """The session, started if there is none."""
        return self._started(unobserved)

    def _started(self, observer: Observer) -> EngineSession:
        """Return the session, started if there is none; the observer is told about a start."""
        if self._session is None:
            self._session = connect_engine.open_remote_session(observer) or open_session(
                self._settings, observer
            )
        return self._session

    def replay(self, plan: ReplayPlan, observer: Observer = unobserved) -> Replayed:
        """Replay the log on executors, and keep the files there."""
        _check_reachable(plan.store)
        with our_errors():
            return replay_on_spark.replay(self._started(observer), plan, observer)

    def copy(self, plan: CopyPlan, observer: Observer = unobserved) -> CopyTotals:
        """Copy on executors, from store to store."""
        _check_reachable(plan.source, plan.target)
        with our_errors():
            session = self._started(observer)
            return copy_on_spark.copy_objects_on_spark(session, plan, observer, self._limit_rate)

    def copy_log(self, plan: LogCopyPlan, observer: Observer = unobserved) -> tuple[int, ...]:
        """Copy on executors, from store to store."""
        _check_reachable(plan.source, plan.target)
        with our_errors():
            session = self._started(observer)
            return copy_on_spark.copy_log_on_spark(session, plan, observer, self._limit_rate)

    def export_log(
        self, plan: LogExportPlan, observer: Observer = unobserved
    ) -> tuple[LogExported, ...]:
        """Export on executors, from store to store."""
        _check_reachable(plan.source, plan.target)
        with our_errors():
            session = self._started(observer)
            return copy_on_spark.export_log_on_spark(session, plan, observer, self._limit_rate)

    def check(self, plan: CheckPlan, observer: Observer = unobserved) -> CheckTotals:
        """Replay on executors, and join with the other place's files."""
        _check_reachable(plan.source, plan.target)
        with our_errors():
            return presence_on_spark.check_presence_on_spark(
                self._started(observer), plan, observer
            )

    def look(self, plan: LookPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        """Look at files on executors."""
        _check_reachable(plan.a, plan.b)
        return comparison_on_spark.look_on_spark(self._started(observer), plan, observer)

    def hash(self, plan: HashPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        """Read objects on executors."""
        _check_reachable(plan.store)
        return comparison_on_spark.hash(self._started(observer), plan, observer)

    def rewrite(
        self, plan: RewritePlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        """Rewrite on executors, from store to store."""
        _check_reachable(plan.store)
        return rewrite_on_spark.rewrite(self._started(observer), plan, observer)

    def orphans(
        self, plan: OrphanPlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        """List folders and follow chains on executors, and join the results there."""
        _check_reachable(plan.store)
        return orphans_on_spark.orphans(self._started(observer), plan, observer)

    def carry(self, plan: CarryPlan, observer: Observer = unobserved) -> Iterator[tuple[int, str]]:
        """Move objects on executors."""
        _check_reachable(plan.store)
        with our_errors():
            yield from transfer_on_spark.carry(self._started(observer), plan, observer)

    def close(self) -> None:
        """Stop the session if we started it."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _check_reachable(*configs: StoreConfig) -> None:
    for config in configs:
        if config.uri.startswith("memory:"):
            raise InvalidInput(
                f"executors can't reach {config.uri}",
                cause="it is in the memory of this process",
                remedy="choose a place on disk or in an object store; in Python, "
                'engine="local" uses memory too',
                location=config.uri,
            )
