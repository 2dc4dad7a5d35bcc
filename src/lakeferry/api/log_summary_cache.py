"""Keeps the listings of the logs that were asked for last, so that only what is new is listed.

A log grows at its end, and is cleaned up from its beginning. So a kept listing is still good if
its oldest commit is there as it was: then the newest versions are listed again, and nothing else.
What is changed in the middle of a log, as by somebody who deletes files by hand, is seen after
:data:`KEPT_MS`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from lakeferry.api.log_summary import ListedLog, LogSummary
from lakeferry.errors import ObjectNotFound
from lakeferry.log import paths
from lakeferry.table import DeltaLog

KEPT_COMMITS = 1_000_000
"""How many commits all kept listings have together; each takes 24 bytes."""
KEPT_MS = 300_000
"""After this time, a log is listed as a whole again."""
_SECOND_MS = 1_000
LISTED_AGAIN = 200
"""How many of the newest versions are listed again: checkpoints are written after commits."""


class LogSummaryCache:
    """The listings of the logs that were asked for last. Safe to use from several threads."""

    def __init__(self, most: int = KEPT_COMMITS) -> None:
        """Keep listings that have ``most`` commits together."""
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[ListedLog, int]] = OrderedDict()

    @property
    def commits(self) -> int:
        """How many commits the kept listings have."""
        with self._lock:
            return self._commits()

    def _commits(self) -> int:
        return sum(len(listed) for listed, _ in self._kept.values())

    def summary(self, log: DeltaLog) -> LogSummary:
        """Return a log in numbers, as it is now."""
        name, now_ms = log.store.uri, log.clock()
        with self._lock:
            known, since_ms = self._kept.get(name, (None, 0))
        found = None
        if known is not None and 0 <= now_ms - since_ms < KEPT_MS:
            found = _continued(log, known)
        if found is None:
            since_ms = now_ms
            found = list_log_window(log)
        with self._lock:
            self._kept[name] = found, since_ms
            self._kept.move_to_end(name)
            while self._kept and self._commits() > self._most:
                self._kept.popitem(last=False)
        return found.summary()


def list_log_window(
    log: DeltaLog, since: int = 0, before: int | None = None, known: ListedLog | None = None
) -> ListedLog:
    """List the versions from ``since`` on, up to ``before``; they follow those of ``known``."""
    entries = log.store.list(
        f"{paths.LOG_DIR}/",
        start_after=paths.before_version(since) if since else None,
        stop_before=paths.END_OF_VERSIONS if before is None else paths.before_version(before),
    )
    try:
        return ListedLog(entries, known)
    except ObjectNotFound:
        return ListedLog(())


def _continued(log: DeltaLog, known: ListedLog) -> ListedLog | None:
    """Return the listing with what is new; ``None`` if the log isn't the one that it was."""
    oldest, newest = known.oldest_commit, known.newest
    if oldest is None or newest is None:
        return None
    try:
        now = log.store.head(oldest.path)
    except ObjectNotFound:
        return None
    # Some stores tell whole seconds here, and more in a listing.
    is_later = abs(now.modified_ms - oldest.modified_ms) >= _SECOND_MS
    if is_later or now.size_bytes != oldest.size_bytes:
        return None
    since = max(newest - LISTED_AGAIN, 0)
    found = list_log_window(log, since, known=known.before(since))
    return found if found.newest is not None and found.newest >= newest else None
