"""Writes an export's files and publishes it.

Nobody can open the place before the export is complete. The files that would make it a table
(the first commit, a checkpoint) wait under names that readers ignore, and are renamed last. A
place that already has an export always shows its old version or a later one: the new checkpoint
is renamed first, then the commits in order, then the hint, and then stale files are deleted.
Only if a log file of the same name must get other bytes, the place is closed meanwhile.

Before anything is published, every file of the newest version must have been listed. If a log
names files that weren't listed, the version is replayed to see whether it contains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from lakeferry.engine import (
    LogCopy,
    LogCopyPlan,
    LogExported,
    LogExportPlan,
    ReplayPlan,
    Shelved,
)
from lakeferry.errors import (
    CorruptLog,
    InvalidInput,
    LakeferryError,
    MissingFile,
    ObjectNotFound,
)
from lakeferry.export import exported_log, manifest, presence, surveys, tidying
from lakeferry.export.export_context import ExportContext
from lakeferry.export.export_place import ExportPlace, Lost
from lakeferry.export.export_plan import Prepared
from lakeferry.export.manifest import MANIFEST_FOLDER, Leftover, Manifest
from lakeferry.export.origins import Origin
from lakeferry.export.stored_listing import shelve
from lakeferry.export.surveys import Survey
from lakeferry.log import features, paths
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.log.checkpoint_read import Rows
from lakeferry.log.last_checkpoint import Hint, encode_hint
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFileKind
from lakeferry.log.rewrite import Listed
from lakeferry.log.rewrite.listed_uris import LISTED_GONE
from lakeferry.log.segment import Segment
from lakeferry.redirect import read_entry
from lakeferry.redirect.states import RedirectState
from lakeferry.table import DeltaLog, load

CHECKED_BASE_BYTES = 64 * 1024 * 1024
"""Checkpoints up to this size are replayed before they are published as the log's beginning."""
_AT_ONCE = 16
_OTHER_MS = -1
"""The time of a file that isn't the one of that name at the source."""


@dataclass(slots=True)
class Told:
    """What the export has reported about its files so far."""

    files: dict[str, LogExported] = field(default_factory=dict)

    def count(self, name: str) -> int:
        """Return the sum of the counter ``name``."""
        return sum(getattr(each, name) for each in self.files.values())

    def last(self, name: str) -> Lines:
        """Return the newest protocol or metadata, as lines."""
        found = Lines()
        for path, each in sorted(self.files.items()):
            line = getattr(each, name)
            if line is not None and path.endswith(".json"):
                found.read(line, path)
        return found


class ExportPublication:
    """Writes one export to its place."""

    def __init__(
        self, work: ExportContext, origin: Origin, place: ExportPlace, ready: Prepared
    ) -> None:
        """Start with nothing written."""
        self.work = work
        self.origin = origin
        self.where = place
        self.target = place.target
        self.place = place.target.place
        self.there = place.there
        self.ready = ready
        self.told = Told()
        self._listed = origin.listed(ready.survey)
        # The folder's name has the start time; the files in it keep the source's times.
        self._staged = f"{MANIFEST_FOLDER}/{work.clock()}-{work.new_id()}/"

    def run(self) -> Manifest:
        """Write and publish; return the final manifest.

        Raises :class:`Lost` if somebody else has changed the target, or the files to reuse: then
        everything must be inspected again.
        """
        try:
            return self._run()
        except Lost:
            with suppress(LakeferryError):
                # What waits is deleted after a day in any case.
                tidying.discard(self.work, self.place, self._staged)
            raise

    def _run(self) -> Manifest:
        # A complete export keeps its manifest until this one is checked: until then, new files are
        # only written where readers don't look.
        settled = self.there is not None and self.there.complete
        if not settled:
            self._claim()
        waiting = self._write()
        self._check_base()
        counts = self.told.count("unlisted") + self.told.count("elsewhere")
        # Outside of lakeFS, nothing reports what has happened to files exported before.
        untold = len(self.ready.plan.write) < len(self.ready.plan.names)
        if counts or (untold and self.origin.lakefs is None):
            self.check_live()
        table_id = self._check_state()
        if settled:
            self._claim()
        self._check_claimed()
        hint, plan = self._hint(), self.ready.plan
        stale = plan.stale if plan.published and not plan.closes else ()
        if plan.closes:
            self._close()
        elif not plan.published:
            # Commits of an export that was broken off would continue this one's log.
            tidying.delete_stale(self.place, plan.stale)
        self._publish(waiting)
        newer = [name for name in stale if exported_log.is_newer(name, self.ready.content.version)]
        if newer:
            # The table went back: until newer versions are gone, readers see those.
            tidying.write_hint(self.place, hint)
            tidying.delete_stale(self.place, newer)
        # Now readers see the version, and nothing that fails is an error any more.
        leftover = tidying.tidy(self.work, self.place, hint, stale, self._staged)
        return self._complete(self._manifest(table_id, leftover))

    def _complete(self, written: Manifest) -> Manifest:
        """Write the final manifest, and set the pointer to it."""
        try:
            swapped = manifest.swap(self.place, self._claimed, written)
        except Exception as failed:  # noqa: BLE001 - success isn't to become an error
            if not manifest.is_there(self.place, written):
                self.work.warn(
                    f"{self.target.location} can be read, but its manifest says that it isn't "
                    f"complete: {failed}; run the export again, which writes all files again"
                )
                return written
            swapped = True
        if not swapped:
            raise Lost
        tidying.point(self.work, self.target)
        return written

    @cached_property
    def _claimed(self) -> Manifest:
        """The manifest until the export is complete."""
        before = {} if self.there is None else self.there.log
        log = {**before, **self.ready.entries}
        if self.ready.plan.closes:
            # Until the place is closed, files of these names have other bytes.
            log = {name: replace(entry, modified_ms=_OTHER_MS) for name, entry in log.items()}
        return Manifest(
            self.origin.source,
            self.origin.commit,
            self.ready.content.version,
            complete=False,
            table_id=self.there.table_id if self.there else None,
            log=log,
            highest=self._highest,
            former=self.where.former,
        )

    @property
    def _highest(self) -> int:
        before = self.there.highest if self.there is not None else 0
        return max(before, self.ready.content.version)

    def _claim(self) -> None:
        """Write the manifest that claims the place for this export."""
        if not manifest.swap(self.place, self.there, self._claimed):
            raise Lost

    def _check_claimed(self) -> None:
        if manifest.read_manifest(self.place) != self._claimed:
            raise Lost

    def _write(self) -> dict[str, str]:
        """Export new files, and return the names under which some of them wait."""
        ready, plan, staged, told = self.ready, self.ready.plan, self._staged, self.told
        sizes = [ready.entries[name].size_bytes for name in plan.write]
        engine = self.work.engine(len(sizes), sum(sizes))
        listed: Listed | Shelved = self._listed
        if engine.name == "spark":
            listed = shelve(self._listed, self.place, f"{staged}listed.arrow")
        waiting: dict[str, str] = {}
        for name in plan.write:
            # In a place with readers, files must appear in order.
            if paths.parse(name) and (plan.published or exported_log.opens(name)):
                waiting[name] = f"{staged}{name.rpartition('/')[2]}"
        sidecars = [name for name in plan.write if paths.parse(name) is None]
        rest = [name for name in plan.write if paths.parse(name) is not None]
        renamed: dict[str, tuple[str, int]] = {}
        for names in (sidecars, rest):
            files = tuple(
                LogCopy(
                    name,
                    waiting.get(name, name),
                    # Readers without in-commit timestamps select versions by file time.
                    modified_ms=_time(ready.survey, name),
                    address=ready.entries[name].address,
                    size_bytes=ready.entries[name].size_bytes,
                )
                for name in names
            )
            plan_of_files = LogExportPlan(
                self.origin.store.config,
                self.place.config,
                files,
                listed,
                renamed or None,
                managed=self.origin.store.asks_catalog,
                compares=self.work.compares,
            )
            try:
                done = engine.export_log(plan_of_files, self.work.observer) if files else ()
            except ObjectNotFound as gone:
                if gone.fields.get("bucket_missing"):
                    raise
                # We wrote it a moment ago, so it was deleted; a file missing at the source is
                # another error.
                raise Lost from gone
            told.files |= dict(zip(names, done, strict=True))
            if names is sidecars:
                renamed = self._renamed(ready.rows)
        return waiting

    def _renamed(self, rows: Rows) -> dict[str, tuple[str, int]]:
        found: dict[str, tuple[str, int]] = {}
        for sidecar in rows.sidecars:
            name = load.sidecar_name(self.origin.store.uri, sidecar)
            found[sidecar.path] = (name.rpartition("/")[2], self.told.files[name].size_bytes)
        return found

    def _check_base(self) -> None:
        """Refuse a checkpoint that contradicts itself: readers have no commits to check it."""
        base = self.ready.content.segment.checkpoint
        if base is None or not self.ready.base_is_new or base.size_bytes > CHECKED_BASE_BYTES:
            return
        load.snapshot(self.origin.reads, Segment.of_checkpoint(base))

    def check_live(self) -> None:
        """Raise an error if a file of the version to publish is missing."""
        ready, listed = self.ready, self._listed
        segment = ready.content.segment
        if not ready.survey.whole and (lakefs := self.origin.lakefs) is not None:
            survey = surveys.survey_lakefs(lakefs)
            listed = self.origin.listed(surveys.without_lost(survey, self.work.open_store))
        engine = self.work.engine(len(segment.files), segment.size_bytes)
        self.work.observer("looking for files", 0, 1)
        if engine.name == "local":
            # Use this store, which knows where the log's bytes are.
            batches: Iterable[pa.RecordBatch] = load.snapshot(
                self.origin.reads, segment
            ).files.to_batches()
            presence.check_live_files(batches, listed, self.work.open_store)
        else:
            plan = ReplayPlan(self.origin.store.config, segment)
            with engine.replay(plan, self.work.observer) as replayed:
                presence.check_live_files(replayed.files(), listed, self.work.open_store)
        self.work.observer("looking for files", 1, 1)

    def _check_state(self) -> str | None:
        """Raise an error for an unsupported or a different table; return the table's id."""
        ready, told = self.ready, self.told
        protocol = told.last("protocol").protocol or ready.rows.protocol
        metadata = told.last("metadata").metadata or ready.rows.metadata
        known = ready.earlier[0].table_id if ready.earlier else None
        if (protocol is None) != (metadata is None) and known is not None:
            # The other action is in a file that was reused.
            log = DeltaLog(self.origin.store, source=self.origin.reads)
            state = log.state(ready.content.version)
            protocol, metadata = state.protocol, state.metadata
        if protocol is not None:
            features.check_readable(protocol, asks_catalog=self.origin.store.asks_catalog)
        if self.origin.lakefs is not None and self.work.follows and protocol and metadata:
            _check_stays(protocol, metadata, self.origin.store.uri)
        table_id = metadata.id if metadata is not None else known
        if (protocol is None or metadata is None) and known is None:
            raise CorruptLog(
                f"version {ready.content.version} has no protocol or no metadata",
                remedy="restore the missing log files from a copy",
                version=ready.content.version,
            )
        before = self.there.table_id if self.there is not None else None
        if self.target.shelf is None and before is not None and before != table_id:
            raise self.where.taken("the table that was exported to it was replaced by another one")
        return table_id

    def _publish(self, waiting: Mapping[str, str]) -> None:
        """Give all files their names; those that open the place last, unless it is open already."""
        ready, plan = self.ready, self.ready.plan
        if plan.take and ready.earlier is not None:
            self._take(plan.take, ready.earlier[1], opening=False)

        def turn(name: str) -> tuple[bool, bool, str]:
            # First the checkpoint, then one commit after the other, so an open place shows one
            # version after the other. In a closed place, the files that open it come last.
            return plan.closes and exported_log.opens(name), not _is_checkpoint(name), name

        for name in sorted(waiting, key=turn):
            try:
                self.place.copy_within(waiting[name], name)
            except ObjectNotFound as gone:
                raise Lost from gone
        if plan.take and ready.earlier is not None:
            self._take(plan.take, ready.earlier[1], opening=True)

    def _hint(self) -> str | None:
        """Return the hint to write, in the form of :func:`tidying.write_hint`."""
        ready, shelf = self.ready, self.target.shelf
        base = ready.content.segment.checkpoint
        if base is None:
            return tidying.NO_HINT
        if ready.base_is_new:
            parts = [each for name, each in self.told.files.items() if _is_checkpoint(name)]
            hint = Hint(
                base.version,
                size=sum(each.actions for each in parts),
                parts=len(base.files) if base.kind is LogFileKind.MULTI_PART else None,
                size_in_bytes=sum(each.size_bytes for each in parts),
            )
            return encode_hint(hint).decode()
        if not ready.plan.take or ready.earlier is None or shelf is None:
            return None
        earlier, folder = ready.earlier
        if earlier.leftover is not None and earlier.leftover.hint is not None:
            return earlier.leftover.hint
        try:
            return shelf.get(f"{folder}{paths.LAST_CHECKPOINT}").decode()
        except ObjectNotFound:
            return tidying.NO_HINT

    def _take(self, names: Sequence[str], folder: str, *, opening: bool) -> None:
        self._bring([name for name in names if exported_log.opens(name) is opening], folder)

    def _bring(self, names: Sequence[str], folder: str) -> None:
        """Copy files of an earlier export inside the store."""
        if not names:
            return
        if self.work.compares:
            self._bring_and_compare(names, folder)
            return
        shelf, target = self.target.shelf, self.target
        assert shelf is not None

        def bring(name: str) -> None:
            try:
                shelf.copy_within(f"{folder}{name}", f"{target.folder}{name}")
            except ObjectNotFound as gone:
                raise Lost from gone

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(bring, names):
                pass

    def _bring_and_compare(self, names: Sequence[str], folder: str) -> None:
        """Copy files of an earlier export, and read them at both ends."""
        shelf, target = self.target.shelf, self.target
        assert shelf is not None
        files = tuple(
            LogCopy(
                f"{folder}{name}",
                f"{target.folder}{name}",
                modified_ms=_time(self.ready.survey, name),
                size_bytes=self.ready.entries[name].size_bytes,
            )
            for name in names
        )
        plan = LogCopyPlan(shelf.config, shelf.config, files, compares=True)
        try:
            self.work.engine(len(files), plan.amount).copy_log(plan, self.work.observer)
        except MissingFile as gone:
            raise Lost from gone

    def _close(self) -> None:
        """Delete the files that open the place, and stale ones, before others are replaced."""
        names = [entry.path for entry in self.place.list(f"{paths.LOG_DIR}/")]
        self.place.delete_many([paths.LAST_CHECKPOINT])
        self.place.delete_many([name for name in names if exported_log.opens(name)])
        tidying.delete_stale(self.place, self.ready.plan.stale)

    def _manifest(self, table_id: str | None, leftover: Leftover | None) -> Manifest:
        ready, told = self.ready, self.told
        before = ready.earlier[0] if ready.earlier is not None else None
        absent = {name for each in told.files.values() for name in each.gone}
        absent |= set(ready.survey.lost)
        truncated = any(len(each.gone) >= LISTED_GONE or each.kin for each in told.files.values())
        reuses = len(ready.plan.write) < len(ready.plan.names)
        if before is not None and reuses:
            truncated = truncated or before.absent is None
            absent |= set(before.absent or ())
        entries = {
            name: replace(entry, skipped=told.files[name].skipped)
            if name in told.files
            else (before.log[name] if before is not None else entry)
            for name, entry in ready.entries.items()
        }
        too_many = truncated or len(absent) > manifest.MOST_ABSENT
        return Manifest(
            self.origin.source,
            self.origin.commit,
            ready.content.version,
            complete=True,
            table_id=table_id,
            objects=ready.survey.objects,
            log=entries,
            absent=None if too_many else tuple(sorted(absent)),
            highest=self._highest,
            leftover=leftover,
            former=self.where.former,
        )


def _check_stays(protocol: Protocol, metadata: Metadata, uri: str) -> None:
    """Raise an error if a table in lakeFS was redirected: its files are in no commit."""
    found = read_entry.read(protocol, metadata, uri)
    if found is not None and found.state is RedirectState.READY and not found.is_target(uri):
        raise InvalidInput(
            f"{uri} is redirected to another place",
            cause="an export from lakeFS contains exactly what a commit contains",
            remedy="export the table that it leads to (lakeferry redirect resolve), or use "
            "--no-follow",
            uri=uri,
        )


def _time(survey: Survey, name: str) -> int | None:
    return survey.log[name].modified_ms or None if name in survey.log else None


def _is_checkpoint(name: str) -> bool:
    """Return True if a file belongs to a checkpoint; sidecars do."""
    file = paths.parse(name)
    return file is None or file.kind.is_checkpoint
