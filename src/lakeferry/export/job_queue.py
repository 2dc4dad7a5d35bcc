"""A queue of export jobs in a store.

The queue is below ``.lakeferry/exports/`` of the server's root, so it survives a restart::

    jobs/ID.json            what to do; an ID begins with the time of arrival
    attempts/ID/N.json      who holds the job, or when it can be retried, and why
    seen/IDENTITY.json      accepted events, for as long as they could be replayed
    failed/ID.json          jobs that were given up, with their errors
    done/ID.json            finished jobs, with the tables that they exported

A job is written before its event is marked as seen, and deleted after its work is done. So a
server may crash between any two calls: no job is lost, and a job that runs twice does no harm,
because exports are repeatable.

Servers that share a root share the queue. To start an attempt, a server creates the file with
the next number; only one server succeeds. The attempt is a lease for :data:`LEASE_MS`, which is
renewed while the work goes on. Jobs of one ref don't run at the same time. A lease saves work
and keeps order; if a wrong clock breaks it, no data is damaged.

Failed attempts and attempts of crashed servers both count, so a job that crashes its server is
given up, too.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar

import msgspec

from lakeferry.errors import LakeferryError, LimitExceeded, ObjectNotFound
from lakeferry.export.webhook import TAG_EVENTS, WINDOW_MS, CommitEvent
from lakeferry.storage import Store

QUEUE_FOLDER = ".lakeferry/exports/"
LEASE_MS = 15_000
PAUSES_MS = (2_000, 10_000, 60_000, 300_000)
"""The pause after the first attempt, after the second, and so on."""
_MOST_ATTEMPTS = len(PAUSES_MS) + 1
MOST_JOBS = 10_000
"""The most jobs in the queue; further requests must be retried later."""
REMEMBERED_MS = 24 * 3600 * 1000
"""How long an event is remembered; longer than the window in which it would be accepted."""
FAILURES_KEPT_MS = 30 * 24 * 3600 * 1000
DONE_KEPT_MS = 7 * 24 * 3600 * 1000

assert REMEMBERED_MS > 2 * WINDOW_MS

_JOBS, _ATTEMPTS, _SEEN, _FAILED, _DONE = (
    f"{QUEUE_FOLDER}{name}/" for name in ("jobs", "attempts", "seen", "failed", "done")
)
_ORPHANED_MS = 3600 * 1000
_Record = TypeVar("_Record")
_ID = re.compile(r"[0-9]{13,}-[0-9a-f]{12}-[0-9a-f]{20}")
_ATTEMPT = re.compile(rf"{_ATTEMPTS}({_ID.pattern})/([0-9]{{3}})\.json")


class Job(msgspec.Struct, frozen=True):
    """One event's work: export the tables of a commit under the name of a ref."""

    id: str
    kind: str
    repository: str
    ref: str
    commit: str
    received_ms: int
    identity: str

    @property
    def is_tag(self) -> bool:
        """Whether the ref is a tag."""
        return self.kind in TAG_EVENTS


_JOB_DECODER = msgspec.json.Decoder(Job)


class Attempt(msgspec.Struct, frozen=True):
    """One attempt at a job; the first has ``number`` 1.

    Until ``until_ms`` no other attempt can start: while ``is_running``, this attempt holds the
    lease; afterwards, the job pauses.
    """

    job: str
    number: int
    holder: str
    until_ms: int
    is_running: bool = True
    errors: tuple[dict[str, Any], ...] = ()


_ATTEMPT_DECODER = msgspec.json.Decoder(Attempt)


class JobTable(msgspec.Struct, frozen=True):
    """A table that a job has exported; without ``changed`` it was exported already."""

    table: str
    location: str
    changed: bool


class DoneJob(msgspec.Struct, frozen=True):
    """A finished job."""

    job: Job
    done_ms: int
    tables: tuple[JobTable, ...] = ()


class FailedJob(msgspec.Struct, frozen=True):
    """A job that was given up."""

    job: Job
    attempts: int
    failed_ms: int
    errors: tuple[dict[str, Any], ...] = ()


class WaitingJob(msgspec.Struct, frozen=True):
    """A job in the queue; ``attempt`` is the last one, if there was any."""

    job: Job
    attempt: Attempt | None


_DONE_DECODER = msgspec.json.Decoder(DoneJob)
_FAILED_DECODER = msgspec.json.Decoder(FailedJob)


class Queue:
    """The queue below a store's root, as used by one server. Safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        holder: str | None = None,
    ) -> None:
        """Open the queue; ``holder`` is this server's name."""
        self._store = store
        self._clock = clock
        self._holder = holder or uuid.uuid4().hex
        self._lock = threading.Lock()
        self._last_ms = 0

    # --- Jobs arrive ----------------------------------------------------------------

    def accept(self, event: CommitEvent) -> Job | None:
        """Add an event's job to the queue; return ``None`` if the event was accepted before.

        Raises :class:`~lakeferry.errors.LimitExceeded` if the queue is full. If the store fails
        midway, the job may be in the queue, and the event may be accepted again.
        """
        seen = f"{_SEEN}{event.identity}.json"
        if self._store.exists(seen):
            return None
        if sum(1 for _ in islice(self._job_ids(), MOST_JOBS)) >= MOST_JOBS:
            raise LimitExceeded(
                f"{MOST_JOBS:,} exports are waiting already",
                remedy="find the reason in the server's log; then export the table by hand: "
                "lakeferry export lakefs://REPOSITORY/REF/PATH",
                jobs=MOST_JOBS,
            )
        job = self._new_job(event)
        path = f"{_JOBS}{job.id}.json"
        self._store.put_if_absent(path, msgspec.json.encode(job))
        mark = msgspec.json.encode({"job": job.id, "holder": self._holder})
        if not self._store.put_if_absent(seen, mark):
            # The store's client may have retried after a lost answer.
            there = self._store.get(seen)
            if there != mark:
                if msgspec.json.decode(there, type=dict[str, str]).get("job") != job.id:
                    self._store.delete_many([path])
                return None
        return job

    def _new_job(self, event: CommitEvent) -> Job:
        with self._lock:
            self._last_ms = received_ms = max(self._clock(), self._last_ms + 1)
        where = sha256(f"{event.repository}/{event.ref}".encode()).hexdigest()[:12]
        return Job(
            id=f"{received_ms:013}-{where}-{event.identity[:20]}",
            kind=event.kind,
            repository=event.repository,
            ref=event.ref,
            commit=event.commit,
            received_ms=received_ms,
            identity=event.identity,
        )

    # --- Work begins ----------------------------------------------------------------

    def claim(self) -> tuple[Job, Attempt] | None:
        """Start an attempt at the oldest job that can be tried now."""
        now_ms = self._clock()
        last = self._last_attempts()
        busy = {_where(id_) for id_, tried in last.items() if _holds(tried, now_ms)}
        for id_ in list(islice(self._job_ids(), MOST_JOBS)):
            tried = last.get(id_)
            if _where(id_) in busy or (tried is not None and tried.until_ms > now_ms):
                continue
            job = self._read_job(id_)
            if job is None:
                continue
            number = 1 if tried is None else tried.number + 1
            if number > _MOST_ATTEMPTS:
                # The server of the last attempt has crashed.
                lost = LakeferryError("The server ended during the last attempt")
                self._give_up(job, number - 1, [lost.as_document()])
                continue
            attempt = Attempt(id_, number, self._holder, now_ms + LEASE_MS)
            if not self._put_first(attempt):
                continue
            if any(
                other != id_ and _holds(begun, now_ms)
                for other, begun in self._last_attempts(_where(id_)).items()
            ):
                # Another server has just taken another job of this ref.
                self.release(attempt)
                continue
            return job, attempt
        return None

    def _put_first(self, attempt: Attempt) -> bool:
        path, data = _path(attempt), msgspec.json.encode(attempt)
        return self._store.put_if_absent(path, data) or self._store.get(path) == data

    def renew(self, attempt: Attempt) -> None:
        """Renew the lease; do nothing if the attempt has ended."""
        until_ms = self._clock() + LEASE_MS
        self._put(msgspec.structs.replace(attempt, until_ms=until_ms))

    # --- Work ends ------------------------------------------------------------------

    def finish(self, job: Job, tables: Sequence[JobTable] = ()) -> None:
        """Remove a finished job from the queue, and record what it has exported."""
        done = DoneJob(job, self._clock(), tuple(tables))
        # The record is only for people. The work is done, and must not be repeated for it.
        with suppress(LakeferryError):
            self._store.put(f"{_DONE}{job.id}.json", msgspec.json.encode(done))
        self._remove(job)

    def _remove(self, job: Job) -> None:
        self._store.delete_many([f"{_JOBS}{job.id}.json"])
        self._forget_attempts(job.id)

    def fail(
        self, job: Job, attempt: Attempt, errors: Sequence[dict[str, Any]], *, again: bool
    ) -> int | None:
        """Schedule a retry and return the pause, or give the job up and return ``None``.

        It is given up after :data:`_MOST_ATTEMPTS`, or if ``again`` is false.
        """
        if not again or attempt.number >= _MOST_ATTEMPTS:
            self._give_up(job, attempt.number, errors)
            return None
        pause_ms = PAUSES_MS[attempt.number - 1]
        self._put(
            msgspec.structs.replace(
                attempt,
                until_ms=self._clock() + pause_ms,
                is_running=False,
                errors=tuple(errors),
            )
        )
        return pause_ms

    def release(self, attempt: Attempt) -> None:
        """Cancel an attempt: anybody can start the job at once."""
        self._store.delete_many([_path(attempt)])

    def _give_up(self, job: Job, attempts: int, errors: Sequence[dict[str, Any]]) -> None:
        document = {
            "job": job,
            "attempts": attempts,
            "failed_ms": self._clock(),
            "errors": list(errors),
        }
        self._store.put(f"{_FAILED}{job.id}.json", msgspec.json.encode(document, enc_hook=str))
        self._remove(job)

    # --- What is there --------------------------------------------------------------

    def pending(self) -> list[Job]:
        """Return the unfinished jobs in the order of arrival."""
        found = (self._read_job(id_) for id_ in list(islice(self._job_ids(), MOST_JOBS)))
        return [job for job in found if job is not None]

    def waiting(self, limit: int) -> list[WaitingJob]:
        """Return the oldest unfinished jobs, each with its last attempt."""
        found = (self._read_job(id_) for id_ in list(islice(self._job_ids(), limit)))
        last = self._last_attempts()
        return [WaitingJob(job, last.get(job.id)) for job in found if job is not None]

    def newest_done(self, limit: int) -> list[DoneJob]:
        """Return the finished jobs that came last, the newest first."""
        return self._newest(_DONE, _DONE_DECODER, limit)

    def newest_failed(self, limit: int) -> list[FailedJob]:
        """Return the jobs that were given up and came last, the newest first."""
        return self._newest(_FAILED, _FAILED_DECODER, limit)

    def _newest(
        self, folder: str, decoder: msgspec.json.Decoder[_Record], limit: int
    ) -> list[_Record]:
        paths = deque((each.path for each in self._store.list(folder)), maxlen=limit)
        found = []
        for path in reversed(paths):
            # It may have been deleted meanwhile, or be a job whose file was damaged.
            with suppress(ObjectNotFound, msgspec.MsgspecError):
                found.append(decoder.decode(self._store.get(path)))
        return found

    def failures(self) -> list[dict[str, Any]]:
        """Return the jobs that were given up, with their errors, in the order of arrival."""
        paths = [found.path for found in islice(self._store.list(_FAILED), MOST_JOBS)]
        found = []
        for data in self._store.get_many(paths):
            with suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(data, type=dict[str, Any]))
        return found

    def prune(self) -> None:
        """Delete expired events, old failures, old records of finished jobs, and leftovers."""
        now_ms = self._clock()
        old = [f.path for f in self._store.list(_SEEN) if f.modified_ms < now_ms - REMEMBERED_MS]
        for folder, kept_ms in ((_FAILED, FAILURES_KEPT_MS), (_DONE, DONE_KEPT_MS)):
            old += [
                found.path
                for found in self._store.list(folder)
                if found.modified_ms < now_ms - kept_ms
            ]
        orphans = [
            (found.path, match[1])
            for found in self._store.list(_ATTEMPTS)
            if found.modified_ms < now_ms - _ORPHANED_MS and (match := _ATTEMPT.match(found.path))
        ]
        if orphans:
            waiting = set(self._job_ids())
            old += [path for path, id_ in orphans if id_ not in waiting]
        if old:
            self._store.delete_many(old)
            self._store.prune(_ATTEMPTS)

    def _job_ids(self) -> Iterator[str]:
        for found in self._store.list(_JOBS):
            id_ = found.path.removeprefix(_JOBS).removesuffix(".json")
            if _ID.fullmatch(id_):
                yield id_

    def _read_job(self, id_: str) -> Job | None:
        """Return a job, or ``None`` if it was finished meanwhile or its file is damaged."""
        path = f"{_JOBS}{id_}.json"
        try:
            return _JOB_DECODER.decode(self._store.get(path))
        except ObjectNotFound:
            return None
        except msgspec.MsgspecError:
            # Keep a copy for people to inspect; it no longer blocks other jobs.
            self._store.copy_within(path, f"{_FAILED}{id_}.json")
            self._store.delete_many([path])
            return None

    def _last_attempts(self, where: str | None = None) -> dict[str, Attempt]:
        """Return the last attempt at each job, or at the jobs of one ref."""
        # A listing is sorted, so the last name of a job has the highest number.
        paths = {
            match[1]: found.path
            for found in self._store.list(_ATTEMPTS)
            if (match := _ATTEMPT.fullmatch(found.path)) and where in (None, _where(match[1]))
        }
        last: dict[str, Attempt] = {}
        for id_, path in paths.items():
            # It may have been deleted meanwhile.
            with suppress(ObjectNotFound, msgspec.MsgspecError):
                last[id_] = _ATTEMPT_DECODER.decode(self._store.get(path))
        return last

    def _forget_attempts(self, id_: str) -> None:
        folder = f"{_ATTEMPTS}{id_}/"
        if paths := [found.path for found in self._store.list(folder)]:
            self._store.delete_many(paths)
            self._store.prune(folder)

    def _put(self, attempt: Attempt) -> None:
        self._store.put(_path(attempt), msgspec.json.encode(attempt, enc_hook=str))


def _path(attempt: Attempt) -> str:
    return f"{_ATTEMPTS}{attempt.job}/{attempt.number:03}.json"


def _where(id_: str) -> str:
    """Return the common prefix of the ids of one ref's jobs."""
    return id_.split("-")[1]


def _holds(attempt: Attempt, now_ms: int) -> bool:
    return attempt.is_running and attempt.until_ms > now_ms
