"""Tells whether somebody has written to a dataset's folder since it was deleted.

A table's folder is an ordinary table for every engine, so it may be written without the server.
Files of our own beside its log don't count: a pull that goes on after the deletion writes some.
"""

from __future__ import annotations

import msgspec

from lakeferry.log.paths import LogFileKind
from lakeferry.log.paths import parse as parse_log_file
from lakeferry.storage import Store
from lakeferry.storage.parallel_listing import list_all
from lakeferry.transfer.datasets.stored_chain import HEAD
from lakeferry.transfer.repository.dataset_names import DELTA_LOG


class LastWrite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest file of a table's log, or a head, by the store's clock, and the newest version."""

    modified_ms: int
    version: int = -1

    def is_before(self, other: LastWrite) -> bool:
        """Return True if somebody has written between this and ``other``.

        Some stores date files in whole seconds, so the version counts as well.
        """
        return self.modified_ms < other.modified_ms or self.version < other.version


def last_write(store: Store, folder: str) -> LastWrite | None:
    """Return the last write to a folder's log and head; ``None`` if it has neither."""
    times_ms = [info.modified_ms for info in list_all(store, f"{folder}/{HEAD}")]
    version = -1
    for info in list_all(store, f"{folder}/{DELTA_LOG}/"):
        if file := parse_log_file(info.path.removeprefix(f"{folder}/")):
            times_ms.append(info.modified_ms)
            version = max(version, file.version if file.kind is LogFileKind.COMMIT else -1)
    return LastWrite(max(times_ms), version) if times_ms else None
