"""A queue of export jobs in a store.

Everything is below ``.lakeferry/exports/`` of the server's root, so that it survives
the server::

    jobs/ID.json            what is to be done; an ID begins with the time of arrival
    attempts/ID/N.json      who is at it, or when it may be tried again, and why
    seen/IDENTITY.json      events that were accepted, for as long as one could be replayed
    failed/ID.json          what was given up, with its errors

A job is there before its event counts as seen, and goes after its work is done. So a
server may end between any two of its calls: no job is lost, and one that is done
twice does no harm, since exports are repeatable.

Servers that share a root share the queue. An attempt is begun by putting the next
number where none is yet, which one server wins; it holds for :data:`LEASE_MS` and is
renewed while the work goes on. Jobs of one ref aren't worked on side by side. A lease
saves work and keeps order; nothing breaks where a clock makes it fail.

Attempts count whether they failed or their server was never heard of again, so a job
that ends its server is given up, too.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from typing import Any

import msgspec

from lakeferry.errors import LakeferryError, LimitExceeded, ObjectNotFound
from lakeferry.export.webhook import TAG_EVENTS, WINDOW_MS, CommitEvent
from lakeferry.storage import Store

FOLDER = ".lakeferry/exports/"
LEASE_MS = 15_000
PAUSES_MS = (2_000, 10_000, 60_000, 300_000)
"""How long a job rests after its first attempt, after its second, and so on."""
MOST_ATTEMPTS = len(PAUSES_MS) + 1
MOST_JOBS = 10_000
"""How many may wait; who asks for more is told to come again."""
REMEMBERED_MS = 24 * 3600 * 1000
"""How long an event is known; beyond the window in which it would be accepted at all."""
FAILURES_KEPT_MS = 30 * 24 * 3600 * 1000

assert REMEMBERED_MS > 2 * WINDOW_MS

_JOBS, _ATTEMPTS, _SEEN, _FAILED = (
    f"{FOLDER}{name}/" for name in ("jobs", "attempts", "seen", "failed")
)
_ORPHANED_MS = 3600 * 1000
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


class Attempt(msgspec.Struct, frozen=True):
    """One try at a job, whose ``number`` is the first one's 1.

    Until ``until_ms`` nobody else begins another: while ``is_running``, because this
    one holds the job; later, because the job rests.
    """

    job: str
    number: int
    holder: str
    until_ms: int
    is_running: bool = True
    errors: tuple[dict[str, Any], ...] = ()


class Queue:
    """The queue below a store's root, as one server sees it. Safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        holder: str | None = None,
    ) -> None:
        """Use a store; ``holder`` is what this server calls itself."""
        self._store = store
        self._clock = clock
        self._holder = holder or uuid.uuid4().hex
        self._lock = threading.Lock()
        self._last_ms = 0

    # --- Jobs arrive ----------------------------------------------------------------

    def accept(self, event: CommitEvent) -> Job | None:
        """Put an event's job into the queue, or return ``None`` where the event was here before.

        Raises :class:`~lakeferry.errors.LimitExceeded` where too many wait. Where the
        store fails midway, the job may be in the queue, and the event be accepted once more.
        """
        seen = f"{_SEEN}{event.identity}.json"
        if self._store.exists(seen):
            return None
        if sum(1 for _ in islice(self._job_ids(), MOST_JOBS)) >= MOST_JOBS:
            raise LimitExceeded(
                f"{MOST_JOBS:,} exports wait already",
                remedy="see in the server's log why they aren't done, and send the event again",
                jobs=MOST_JOBS,
            )
        job = self._new_job(event)
        path = f"{_JOBS}{job.id}.json"
        self._store.put_if_absent(path, msgspec.json.encode(job))
        mark = msgspec.json.encode({"job": job.id, "holder": self._holder})
        if not self._store.put_if_absent(seen, mark):
            # The store's client may have tried again after an answer was lost.
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
        """Begin an attempt at the job that came first among those that may be tried now."""
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
            if number > MOST_ATTEMPTS:
                # Whoever was at it the last time was never heard of again.
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
                # Another server took another job of this ref in the same moment.
                self.release(attempt)
                continue
            return job, attempt
        return None

    def _put_first(self, attempt: Attempt) -> bool:
        path, data = _path(attempt), msgspec.json.encode(attempt)
        return self._store.put_if_absent(path, data) or self._store.get(path) == data

    def renew(self, attempt: Attempt) -> None:
        """Hold the job for a lease more; not after the attempt has ended."""
        until_ms = self._clock() + LEASE_MS
        self._put(msgspec.structs.replace(attempt, until_ms=until_ms))

    # --- Work ends ------------------------------------------------------------------

    def finish(self, job: Job) -> None:
        """Take a job out of the queue: its work is done."""
        self._store.delete_many([f"{_JOBS}{job.id}.json"])
        self._forget_attempts(job.id)

    def fail(
        self, job: Job, attempt: Attempt, errors: Sequence[dict[str, Any]], *, again: bool
    ) -> int | None:
        """Let the job rest and return for how long, or give it up and return ``None``.

        It is given up after :data:`MOST_ATTEMPTS`, and where trying ``again`` is of no use.
        """
        if not again or attempt.number >= MOST_ATTEMPTS:
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
        """Take an attempt back, as if it had never begun: anybody may begin it at once."""
        self._store.delete_many([_path(attempt)])

    def _give_up(self, job: Job, attempts: int, errors: Sequence[dict[str, Any]]) -> None:
        document = {
            "job": job,
            "attempts": attempts,
            "failed_ms": self._clock(),
            "errors": list(errors),
        }
        self._store.put(f"{_FAILED}{job.id}.json", msgspec.json.encode(document, enc_hook=str))
        self.finish(job)

    # --- What is there --------------------------------------------------------------

    def pending(self) -> list[Job]:
        """Return the jobs that aren't done, in the order of their arrival."""
        found = (self._read_job(id_) for id_ in list(islice(self._job_ids(), MOST_JOBS)))
        return [job for job in found if job is not None]

    def failures(self) -> list[dict[str, Any]]:
        """Return what was given up, with its errors, in the order of arrival."""
        paths = [found.path for found in islice(self._store.list(_FAILED), MOST_JOBS)]
        found = []
        for data in self._store.get_many(paths):
            with suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(data, type=dict[str, Any]))
        return found

    def prune(self) -> None:
        """Forget events that couldn't be replayed any more, old failures, and leftovers."""
        now_ms = self._clock()
        old = [f.path for f in self._store.list(_SEEN) if f.modified_ms < now_ms - REMEMBERED_MS]
        old += [
            found.path
            for found in self._store.list(_FAILED)
            if found.modified_ms < now_ms - FAILURES_KEPT_MS
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
        """Return a job, or ``None`` where somebody has done it meanwhile, or spoilt it."""
        path = f"{_JOBS}{id_}.json"
        try:
            return msgspec.json.decode(self._store.get(path), type=Job)
        except ObjectNotFound:
            return None
        except msgspec.MsgspecError:
            # Kept where a person finds it, and out of the way of the others.
            self._store.copy_within(path, f"{_FAILED}{id_}.json")
            self._store.delete_many([path])
            return None

    def _last_attempts(self, where: str | None = None) -> dict[str, Attempt]:
        """Return the last attempt at each job that was tried, or at those of one ref."""
        # A listing is sorted, so that the last name of a job has its highest number.
        paths = {
            match[1]: found.path
            for found in self._store.list(_ATTEMPTS)
            if (match := _ATTEMPT.fullmatch(found.path)) and where in (None, _where(match[1]))
        }
        last: dict[str, Attempt] = {}
        for id_, path in paths.items():
            # It may be over meanwhile.
            with suppress(ObjectNotFound, msgspec.MsgspecError):
                last[id_] = msgspec.json.decode(self._store.get(path), type=Attempt)
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
    """Return what the ids of all jobs of one ref have in common."""
    return id_.split("-")[1]


def _holds(attempt: Attempt, now_ms: int) -> bool:
    return attempt.is_running and attempt.until_ms > now_ms
