"""Copies data and log to the target in rounds while writers continue.

Each round reads the log up to the newest version, copies the data files that it refers
to, and then copies the log files. Rounds get shorter, until the rest is small enough to
be copied while writers are blocked. :meth:`Crossing.round` runs each round, also the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lakeferry.engine import NOTHING_COPIED, CheckPlan, CheckTotals, Compares, CopyPlan
from lakeferry.errors import (
    CorruptLog,
    HashMismatch,
    MissingFile,
    NotEqual,
    VersionNotAvailable,
)
from lakeferry.log.paths import LogFile, LogFileKind
from lakeferry.log.replay import TableState as TableState
from lakeferry.log.rewrite import Absolute, Adopted
from lakeferry.log.segment import Checkpoint, Listing, Segment
from lakeferry.redirect import copy_comparison, read_entry, steps
from lakeferry.redirect.enable import log_staging, move_record
from lakeferry.redirect.entry import Data
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog

MAX_ROUNDS = 20
SMALL_TAIL_COMMITS = 8
"""How many commits may be left to copy when writers are blocked."""


class Crossing:
    """The copy of one table to its target, and what was copied so far.

    ``resumed``: some files may be at the target already. ``is_rest``: the move has begun, and
    only the rest is copied. ``guard`` is called before log files are put, and raises if the
    place doesn't belong to this move any more: a process may be paused for any time between
    two calls.

    ``compares``: each file is read at both ends after it was copied, before the round ends. Files
    that versions up to ``compared_version`` name were compared by an earlier process. So while
    writers are blocked, only the rest is.
    """

    def __init__(
        self,
        setting: Setting,
        source: DeltaLog,
        target: Store,
        data: Data,
        move_id: str,
        guard: Callable[[], None],
        *,
        resumed: bool,
        is_rest: bool = False,
        compares: bool = False,
        compared_version: int = -1,
    ) -> None:
        """Start with nothing copied."""
        self.move_id = move_id
        self.guard = guard
        self.setting = setting
        self.source = source
        self.target = target
        self.data = data
        self.resumed = resumed
        self.is_rest = is_rest
        self.compares = compares
        self._compared_version = compared_version
        self.copied = NOTHING_COPIED
        self._rest: Mapping[str, Any] = {}
        self.urgent = False
        """Whether writers are blocked until the next copy is done."""
        self.version = -1
        """The newest version that was copied."""
        self._unreadable: frozenset[str] = frozenset()
        """Checkpoints and compacted logs that can't be rewritten and aren't copied."""
        references = self.data is Data.REFERENCE
        self._stage = log_staging.StagedLog(
            self.setting,
            self.source.store,
            self.target,
            move_id,
            Absolute(source.store.uri) if references else Adopted(source.store.uri),
            rewrites_all=references,
            compares=compares,
        )

    def precopy(self, state: TableState) -> TableState:
        """Copy the table in rounds until little is left; return the source's newest state.

        ``state`` was loaded before.
        """
        for _ in range(MAX_ROUNDS):
            before = self.version
            listing = self.source.listing()
            if listing.newest_version != state.version:
                state = self.source.state()
            if read_entry.read(state.protocol, state.metadata, self.source.store.uri) is not None:
                # Another process moves the table; its ENABLING commit must not be copied.
                return state
            self.round(listing)
            if before >= 0 and self.version - before <= SMALL_TAIL_COMMITS:
                break
        log_staging.check_unopened(self.target)
        return state

    def round(self, listing: Listing, before: int | None = None) -> None:
        """Copy all versions up to the newest, or those before ``before``."""
        try:
            self._round(listing, before)
        except HashMismatch as wrong:
            uri = shell_safe(self.source.store.uri)
            wrong.remedy = (
                f"'lakeferry redirect resume {uri}' copies what differs again, and compares it; "
                f"'lakeferry redirect cancel {uri}' undoes the move"
            )
            if before is not None and log_staging.is_unstaged(str(wrong.fields.get("path"))):
                # No process replaces it from here on, as another one may have opened the table.
                copy = shell_safe(str(wrong.fields["uri"]))
                wrong.remedy = (
                    f"delete {copy}; then 'lakeferry redirect resume {uri}' writes it again, and "
                    f"compares it; or 'lakeferry redirect cancel {uri}' undoes the move"
                )
            raise

    def _round(self, listing: Listing, before: int | None) -> None:
        newest = listing.newest_version if before is None else before - 1
        if newest <= self.version:
            return
        if self.version < 0:
            self._tell(listing, newest)
        after = self.version
        if any(version not in listing.commits for version in range(after + 1, newest + 1)):
            # Log cleanup has deleted commits that weren't copied; a checkpoint has their files.
            after = -1
        missing = 0
        if self.data is Data.COPY:
            again = self.resumed if self.version < 0 else after < 0
            for segment, compares in self._stretches(listing, after, newest, again=again):
                missing += self._copy(segment, compares, again=again)
        self._stage.urgent = self.urgent
        self.guard()
        if before is None:
            self.look()
        self._put(listing, newest)
        self.version = newest
        if self.compares:
            self._compared_version = newest
            if before is None:
                move_record.note_compared(self.source.store, self.move_id, newest)
        if after < 0 or missing:
            # Files of older versions may be missing; those of the newest version must exist.
            self.check(listing)

    def _stretches(
        self, listing: Listing, after: int, newest: int, *, again: bool
    ) -> Iterator[tuple[Segment, Compares]]:
        """Yield the parts of the log to copy, and which of their objects are compared.

        Objects that are at the target already are compared unless they were before.
        """
        uri, settled = self.source.store.uri, min(self._compared_version, newest)
        if not self.compares:
            yield stretch(listing, after, newest, uri), "nothing"
            return
        if after < 0 <= settled:
            # What is gone of them is copied again. If this process ends before that is compared,
            # the next one must compare it, and can't know which files these were.
            move_record.forget_compared(self.source.store, self.move_id)
            earliest = listing.earliest_version()
            if again and earliest is not None and earliest <= settled:
                yield stretch(listing, after, settled, uri), "copied"
                move_record.note_compared(self.source.store, self.move_id, settled)
                after = settled
        if after < newest:
            yield stretch(listing, after, newest, uri), "all" if again else "copied"

    def _tell(self, listing: Listing, newest: int) -> None:
        """Report the steps of a round. Rounds after the first copy new versions."""
        here, there, step = self.source.store.uri, self.target.uri, self.setting.step
        if self.is_rest:
            step(steps.copy_step("copy_rest", here, there, lambda: self._rest))
            return
        if self.data is Data.COPY:
            step(steps.copy_data(here, there, lambda: self._counted(newest)))
        rewrites = self.data is Data.REFERENCE
        files = [
            file
            for file in log_staging.carried(listing, newest + 1)
            # A checksum file may contain paths, so it isn't copied if paths change.
            if not (rewrites and file.kind is LogFileKind.CHECKSUM)
        ]
        step(
            steps.copy_log_step(
                here, there, len(files), lambda: self._log_counted(files), rewrite=rewrites
            )
        )

    def _counted(self, version: int) -> dict[str, Any]:
        """Return the number and bytes of a version's live files; older ones are copied too."""
        found = self.source.snapshot(version)
        forecasts, counts = self.setting.forecasts, (found.num_files, found.size_bytes)
        told = dict(forecasts.of_files(self.source.store, self.target, found.files))
        if self.compares:
            told |= forecasts.of_comparison((self.source.store, self.target), *counts)
        return {"files": found.num_files, "bytes": found.size_bytes, **told}

    def _log_counted(self, files: Sequence[LogFile]) -> dict[str, Any]:
        """Return the bytes of log files, and how they travel."""
        references = self.data is Data.REFERENCE
        # Text is rewritten in any case, and what opens no table is put if it is absent.
        columns = {
            "path": pa.array([file.path for file in files], pa.string()),
            "size": pa.array([file.size_bytes for file in files], pa.int64()),
            "rewritten": pa.array(
                [references or file.path.endswith(".json") or not file.opens for file in files],
                pa.bool_(),
            ),
        }
        told = self.setting.forecasts.of_files(self.source.store, self.target, pa.table(columns))
        return {"bytes": sum(file.size_bytes for file in files), **told}

    def _put(self, listing: Listing, newest: int) -> None:
        """Copy the log's files, except unreadable ones that the commits make redundant."""
        while True:
            files = log_staging.carried(listing, newest + 1)
            readable = [file for file in files if file.path not in self._unreadable]
            try:
                self._stage.put(readable, changed=self.copied.renamed > 0)
                return
            except CorruptLog as broken:
                self._unreadable |= self._left_out(broken, listing, newest)
                self.setting.warn(f"{broken}; that file isn't copied")

    def _left_out(self, broken: CorruptLog, listing: Listing, newest: int) -> frozenset[str]:
        """Return the unreadable files that needn't be copied, or raise the error."""
        path = str(broken.fields.get("path", ""))
        found = {path} & {file.path for files in listing.compacted.values() for file in files}
        for checkpoint in listing.checkpoints:
            names = {file.path for file in checkpoint.files}
            found |= names if path in names else set()
        if not found - self._unreadable:
            raise broken
        try:
            listing.segment(newest, without=self._unreadable | found)
        except (CorruptLog, VersionNotAvailable):
            raise broken from None
        return frozenset(found)

    def look(self) -> None:
        """List our files at the target; refuse if another table was created there."""
        self._stage.look()

    def withdraw(self) -> bool:
        """Delete our log files from another table's log; return whether that was possible."""
        if self._is_copy():
            return False
        self._stage.withdraw()
        return True

    def _is_copy(self) -> bool:
        """Return whether the target has the same table, copied by other means."""
        there = DeltaLog(self.target)
        listing = there.listing()
        # Only the first files of the log are compared: later ones may be ours.
        if 0 in listing.commits:
            first = listing.commits[0].path
            return self.target.get(first) == self._stage.own(first)
        earliest = listing.earliest_version()
        return earliest is not None and (
            there.state(earliest).metadata.id == self.source.state().metadata.id
        )

    def _copy(self, segment: Segment, compares: Compares, *, again: bool) -> int:
        """Copy the objects of a segment, and compare some; return how many are missing.

        ``again``: some of them may be at the target already.
        """
        objects, size_bytes = self.setting.measure(self.source.store, segment)
        engine = self.setting.engine(objects, size_bytes, self.urgent)
        totals = engine.copy(
            CopyPlan(
                self.source.store.config,
                self.target.config,
                segment,
                Adopted(self.source.store.uri),
                again,
                compares,
                replaces=True,
            ),
            self.setting.observer,
        )
        self.copied = self.copied.plus(totals)
        if self.is_rest:
            self._rest = totals.counted()
        uri = self.source.store.uri
        copy_comparison.check_copies(
            self.setting, totals.compared, uri, self.target.uri, Adopted(uri)
        )
        return totals.missing_count

    def check(self, listing: Listing) -> None:
        """Check that all live files of the newest version were copied completely.

        Uses the listing of the copy: a checkpoint written later isn't at the target.
        """
        segment = listing.segment(self.version, without=self._unreadable)
        self.source.working_around(segment, self._check, listing, self._unreadable)

    def _check(self, segment: Segment) -> None:
        if self.data is Data.COPY:
            self._check_objects(segment)
            if not self.copied.renamed:
                return
        # If paths are spelled differently at the target, its replay may cancel other actions.
        found = self._looked_for(segment, self._as_staged(segment))
        if found.missing_count or found.extra_count:
            raise NotEqual(
                f"the log at {self.target.uri} differs from the log of {self.source.store.uri}",
                cause=f"{found.missing_count} of {found.wanted} live files are only in the "
                f"source's log, {found.extra_count} only in the target's",
                remedy="report this defect of Lakeferry to its developers; nothing has changed at "
                "the source",
            )

    def _check_objects(self, segment: Segment) -> None:
        found = self._looked_for(segment, None)
        if found.missing_count:
            self._refuse_missing(found.missing, found.missing_count)
        if found.unequal_count:
            path = found.unequal[0]
            raise NotEqual(
                f"the size of {path} isn't the size in the log of {self.source.store.uri}",
                cause="the file was changed after it was committed, or the log has the wrong size",
                remedy="restore that file from a copy, or write its rows again with your engine",
                path=path,
            )

    def _looked_for(self, segment: Segment, there: Segment | None) -> CheckTotals:
        """Compare a version's files with a version of the target, or with its objects."""
        here, rename = self.source.store.config, self._stage.rewrite
        plan = CheckPlan(here, segment, rename, self.target.config, there)
        engine = self.setting.engine(len(segment.files), segment.size_bytes)
        return engine.check(plan, self.setting.observer)

    def _as_staged(self, segment: Segment) -> Segment:
        """Return the log files of a version as staged at the target, with their sizes there."""

        def there(file: LogFile) -> LogFile:
            waiting = log_staging.as_staged(file, self.move_id)
            return replace(waiting, size_bytes=self.target.head(waiting.path).size_bytes)

        base = segment.checkpoint
        if base is not None:
            base = replace(base, files=tuple(there(file) for file in base.files))
        deltas = tuple(there(file) for file in segment.deltas)
        return Segment(segment.version, base, deltas, None, None)

    def _refuse_missing(self, gone: tuple[str, ...], count: int) -> None:
        raise MissingFile(
            f"{count} data files of {self.source.store.uri} are missing",
            cause=f"the log names them, but they aren't there: {', '.join(gone)}",
            remedy="restore them from a copy, or remove them from the table, as deltalake's "
            "DeltaTable.repair() does",
            path=gone[0],
            count=count,
        )

    def publish(self, listing: Listing, before: int) -> None:
        """Publish the staged log files; the lock must be there before."""
        # A checkpoint that was written since the copy isn't needed.
        brought = [file for file in log_staging.carried(listing, before) if self._stage.has(file)]
        log_staging.publish_staged(self.target, brought, self.move_id)


def stretch(listing: Listing, after: int, newest: int, location: str) -> Segment:
    """Return the log files after version ``after`` up to ``newest``, or all of them."""
    base: Checkpoint | None = None
    if after < 0:
        earliest = listing.earliest_version()
        if earliest is None:
            raise CorruptLog(
                f"the log of {location} has gaps",
                remedy="restore the missing log files from a copy; or, if 'lakeferry files "
                f"{shell_safe(location)}' still reads the table, run 'lakeferry checkpoint "
                f"{shell_safe(location)}' first",
                location=location,
            )
        # Commits before a gap in the log may remain; no version can be built from them.
        if earliest > 0 or 0 not in listing.commits:
            base = next(
                each
                for each in reversed(listing.checkpoints)
                if each.complete and each.version == earliest
            )
    deltas = tuple(
        listing.commits[version] for version in sorted(listing.commits) if after < version <= newest
    )
    return Segment(newest, base, deltas, None, None)
