"""The progress of one move: its own threads report it, and another one records it."""

from __future__ import annotations

import threading
from collections import deque

from lakeferry.fleet.inventory import FleetJob
from lakeferry.fleet.job_changes import JobStep

_STEPS = 1_000
"""How many steps of one job are kept until they are recorded."""


class MoveProgress:
    """Where a job is. Safe to use from several threads."""

    def __init__(self, job: FleetJob, step: str) -> None:
        """Begin with a step, of which nothing is known yet."""
        self.job = job
        self._lock = threading.Lock()
        self._step = step
        self._done = self._total = 0
        self._begun: deque[str] = deque(maxlen=_STEPS)

    def observe(self, what: str, done: int, total: int) -> None:
        """Note how far the job is, as an :data:`lakeferry.engine.Observer`."""
        with self._lock:
            if what != self._step:
                self._begun.append(what)
            self._step, self._done, self._total = what, int(done), int(total)

    def progress(self) -> JobStep:
        """Return where the job is, with the steps that began since the last call."""
        with self._lock:
            step, done, total = self._step, self._done, self._total
        return JobStep(self.job.id, self.job.uri, step, done, total, self.new_steps())

    def new_steps(self) -> tuple[str, ...]:
        """Return the steps that began since the last call."""
        with self._lock:
            begun = tuple(self._begun)
            self._begun.clear()
            return begun
