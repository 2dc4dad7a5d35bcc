"""The engine on Spark, for everything that touches much data.

It uses the session that the user has, or starts one of its own with its first
plan (:mod:`lakeferry.engines.spark_session`). Plans go to executors inside the
functions they run, places as configurations: see the jobs for what each does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkException, PySparkImportError

from lakeferry.engine import Engine, Observer, Replayed, ReplayPlan, unobserved
from lakeferry.engines import spark_replay
from lakeferry.engines.spark_jobs.failures import found_in
from lakeferry.engines.spark_session import Session, open_session
from lakeferry.errors import InvalidInput, LakeferryError
from lakeferry.storage import StoreConfig

_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Failed)\b.*:")


class SparkEngine(Engine):
    """Executes plans as Spark jobs."""

    name = "spark"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """Keep settings for a session of ours; a session of the user's stays as it is."""
        self._settings = dict(settings or {})
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session, started if there is none."""
        if self._session is None:
            self._session = open_session(self._settings)
        return self._session

    def replay(self, plan: ReplayPlan, observer: Observer = unobserved) -> Replayed:
        """Replay the log on executors, and keep the files there."""
        _check_reachable(plan.store)
        with our_errors():
            return spark_replay.replay(self.session, plan, observer)

    def close(self) -> None:
        """Stop the session if it is ours."""
        if self._session is not None:
            self._session.close()
            self._session = None


@contextmanager
def our_errors() -> Iterator[None]:
    """Raise what an executor raised, where it is one of our errors."""
    try:
        yield
    except PySparkImportError as missing:
        raise InvalidInput(
            "Spark lacks a package that it needs",
            cause=str(missing),
            remedy="pip install 'lakeferry[spark]', or use --engine local",
        ) from None
    except PySparkException as failed:
        # Spark's exception asks the JVM for its text whenever it is printed, and the
        # JVM may be gone by then: so it isn't kept as the cause of ours.
        text = str(failed)
        ours = found_in(text)
        if ours is None:
            ours = LakeferryError("a Spark job failed", cause=_heart_of(text))
        raise ours from None


def _heart_of(text: str) -> str:
    """Return the line that says what went wrong: the last of a Python traceback, else the first."""
    lines = [line for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or ["it gave no reason"])[-1 if raised else 0].strip()


def _check_reachable(config: StoreConfig) -> None:
    if config.uri.startswith("memory:"):
        raise InvalidInput(
            f"executors can't reach {config.uri}",
            cause="it is in this process's memory",
            remedy="use --engine local",
            location=config.uri,
        )
