"""Copies a table's log to the target, invisible until it is complete.

All commits except the first get their final names at once. Files with which the place
could be opened as a table (the first commit, every checkpoint, a compacted log from
the beginning) are staged under names that no engine reads, in :data:`STAGING_FOLDER`.
:func:`publish_staged` copies them to their final names, inside the store, after the lock was
put: so a client that finds a table there finds a locked one.

A cancel deletes the staged files, which makes publishing impossible. Each move has its
own folder for them, so that a process that was paused during a cancel can't publish
the files that a later move to the same place has staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from lakeferry.engine import LogCopy, LogCopyPlan
from lakeferry.errors import CommitConflict, ObjectNotFound
from lakeferry.log import paths
from lakeferry.log.paths import LogFile, LogFileKind
from lakeferry.log.rewrite import Rewrite, rewrite_lines
from lakeferry.log.segment import Listing
from lakeferry.redirect.enable import target_claim
from lakeferry.storage import Store
from lakeferry.storage.local_durability import PARTS_PREFIX, is_temporary

if TYPE_CHECKING:
    from lakeferry.redirect.redirect_context import Setting

STAGING_FOLDER = paths.OWN_DIR
RECORD_FILE = f"{STAGING_FOLDER}/move.json"
"""The record of a move, at its source (:mod:`~lakeferry.redirect.enable.move_record`)."""
_STAGED = "staged-"
_PROBE = "probe-"
_DELETED_AT_ONCE = 1_000


def carried(listing: Listing, before: int) -> tuple[LogFile, ...]:
    """Return the log files that cover only versions before ``before``, oldest first."""
    complete = [each for each in listing.checkpoints if each.complete]
    found = [
        *listing.commits.values(),
        *listing.checksums.values(),
        *(file for several in listing.compacted.values() for file in several),
        *(file for each in complete for file in each.files),
    ]
    return tuple(
        sorted((file for file in found if file.version < before), key=lambda file: file.path)
    )


def staged_name(path: str, move_id: str) -> str:
    """Return the name under which a log file is staged."""
    return f"{STAGING_FOLDER}/{move_id}/{_STAGED}{path.removeprefix(f'{paths.LOG_DIR}/')}"


def as_staged(file: LogFile, move_id: str) -> LogFile:
    """Return a log file with its name at the target before publishing: its own, or staged."""
    return replace(file, path=staged_name(file.path, move_id)) if _waits(file) else file


class StagedLog:
    """Copies the log of one table to its target; remembers which files are there already.

    ``rewrites_all``: every path changes. Otherwise Parquet files are copied unchanged
    until a path is found that changes. ``compares``: each file is read after it was written.
    """

    def __init__(
        self,
        setting: Setting,
        source: Store,
        target: Store,
        move_id: str,
        rewrite: Rewrite,
        *,
        rewrites_all: bool,
        compares: bool = False,
    ) -> None:
        """Start with no files copied."""
        self.move_id = move_id
        self.setting = setting
        self.source = source
        self.target = target
        self.rewrite = rewrite
        self.rewrites_all = rewrites_all
        self._compares = compares
        self.urgent = False
        self._done: set[str] = set()
        self._present: frozenset[str] = frozenset()
        self._sidecars: dict[str, tuple[str, int]] = {}

    def look(self) -> None:
        """List the target's log, all of which is ours; refuse if it can be opened as a table."""
        self._present = check_unopened(self.target)

    def own(self, path: str) -> bytes | None:
        """Return the bytes of a text log file as we copy it, or ``None`` if the source lacks it."""
        try:
            data = self.source.get(path)
        except ObjectNotFound:
            return None
        return rewrite_lines(data, self.rewrite) if path.endswith(".json") else data

    def withdraw(self) -> None:
        """Delete our files from another table's log: those with exactly the bytes that we wrote."""
        names = [name for name in _log_names(self.target) if name.endswith((".json", ".crc"))]
        delete(self.target, (name for name in names if self.target.get(name) == self.own(name)))

    def has(self, file: LogFile) -> bool:
        """Return whether a log file was copied to the target, staged or not."""
        return file.path in self._done

    def put(self, files: Iterable[LogFile], *, changed: bool) -> int:
        """Copy log files to the target, staged where needed; return how many were new.

        ``changed``: some path so far is spelled differently at the target.
        """
        changed = changed or self.rewrites_all
        new = [
            file
            for file in files
            if file.path not in self._done
            # A checksum file may contain paths; it is optional, so it is left out.
            and not (changed and file.kind is LogFileKind.CHECKSUM)
        ]
        if any(file.kind.is_checkpoint for file in new):
            # A checkpoint with a classic name may have sidecars, too.
            self._put_sidecars(rewrite=changed)
        text = [file for file in new if file.path.endswith(".json")]
        rest = [file for file in new if not file.path.endswith(".json")]
        self._copy(text, self.rewrite)
        self._copy(rest, self.rewrite if changed else None)
        self._done.update(file.path for file in new)
        return len(new)

    def _put_sidecars(self, *, rewrite: bool) -> None:
        found = [
            LogFile(LogFileKind.V2, 0, entry.path, 0, size_bytes=entry.size_bytes)
            for entry in self.source.list(f"{paths.SIDECAR_DIR}/")
            # Skip the checksum files that Hadoop writes beside each file on local disk.
            if entry.path.endswith(".parquet") and entry.path not in self._done
        ]
        sizes = self._copy(found, self.rewrite if rewrite else None)
        for file, size in zip(found, sizes, strict=True):
            name = file.path.rpartition("/")[2]
            self._sidecars[name] = (name, size)
            self._done.add(file.path)

    def _copy(self, files: list[LogFile], rewrite: Rewrite | None) -> tuple[int, ...]:
        if not files:
            return ()
        size_bytes = sum(file.size_bytes for file in files)
        engine = self.setting.engine(len(files), size_bytes, self.urgent)
        plan = LogCopyPlan(
            self.source.config,
            self.target.config,
            tuple(
                LogCopy(
                    file.path,
                    as_staged(file, self.move_id).path,
                    file.modified_ms or None,
                    self._is_exclusive(file),
                    size_bytes=file.size_bytes,
                )
                for file in files
            ),
            rewrite,
            self._sidecars if rewrite is not None else None,
            self._compares,
        )
        try:
            return engine.copy_log(plan, self.setting.observer)
        except CommitConflict as taken:
            raise target_claim.not_free(self.target.uri, str(taken)) from taken

    def _is_exclusive(self, file: LogFile) -> bool:
        """Return whether to use put-if-absent: the file isn't staged and wasn't there before."""
        waits = file.opens
        return not waits and file.path not in self._present


def _waits(file: LogFile) -> bool:
    return not file.path.startswith(f"{paths.SIDECAR_DIR}/") and file.opens


def is_unstaged(name: str) -> bool:
    """Return whether an object at a target is a log file under its own name."""
    return name.startswith(f"{paths.LOG_DIR}/") and not name.startswith(f"{STAGING_FOLDER}/")


def publish_staged(store: Store, files: Iterable[LogFile], move_id: str) -> None:
    """Copy the staged files to their final names, the first commit last."""
    waiting = [file for file in files if _waits(file)]
    waiting.sort(key=lambda file: (file.kind is LogFileKind.COMMIT, file.path))
    for file in waiting:
        store.copy_within(staged_name(file.path, move_id), file.path)


def check_unopened(store: Store) -> frozenset[str]:
    """Return the names in a place's log; refuse if it can already be opened as a table."""
    names = frozenset(_log_names(store))
    for name in sorted(names):
        if _opens(name):
            raise target_claim.not_free(
                store.uri, f"another process made a table there meanwhile: {name}"
            )
    return names


def published_files(store: Store) -> Iterator[str]:
    """Yield the names of all log files with which the table at a place can be opened."""
    return (name for name in _log_names(store) if _opens(name))


def _log_names(store: Store) -> Iterator[str]:
    found = store.list(f"{paths.LOG_DIR}/", stop_before=paths.END_OF_VERSIONS)
    return (entry.path for entry in found)


def _opens(name: str) -> bool:
    file = paths.parse(name)
    return file is not None and file.opens


def staged_files(store: Store, move_id: str | None = None) -> Iterator[str]:
    """Yield the names of all staged log files at a place, or only those of one move."""
    for name in store.entries(f"{STAGING_FOLDER}/{move_id}/" if move_id else f"{STAGING_FOLDER}/"):
        # The folder is also used for exports, transfers and the move's record.
        if name.rpartition("/")[2].startswith((_STAGED, _PROBE)) or is_unnamed(name):
            yield name


def is_unnamed(name: str) -> bool:
    """Return whether a file is a temporary one, left by an interrupted write."""
    last = name.rpartition("/")[2]
    return is_temporary(last) and not last.startswith(PARTS_PREFIX)


def delete(store: Store, names: Iterable[str], still: Callable[[], bool] = lambda: True) -> None:
    """Delete objects in waves of bounded size; stop when ``still`` returns ``False``."""
    waves = iter(names)
    while wave := list(islice(waves, _DELETED_AT_ONCE)):
        if not still():
            return
        store.delete_many(wave)
