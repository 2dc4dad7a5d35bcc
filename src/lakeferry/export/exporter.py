"""Exporting a table: its log, at another place, with the URIs of its files in it.

What is exported is the last complete checkpoint, the commit at its version and
every commit since, or all commits where there is no checkpoint; their versions
keep their numbers. Checksum files stay behind, since they may name files, and
compacted logs, which say nothing that the commits don't.

Nobody can open the place before all of it is there: what would make it a table
(the first commit, a checkpoint) waits under a name that no reader looks at, and is
given its own name last. A place that has been exported to before shows the version
that it had, or a later one, at every moment: the new checkpoint comes first, the
commits in their order, the hint after them, and then what isn't wanted any more goes.
Only where a log file of the same name has to get other bytes, the place is closed
for that while.

Before anything is published, every file that the newest version has must have been
listed. If a log names files that weren't, the version is replayed to see whether it
is among them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pyarrow as pa

from lakeferry.engine import (
    Engine,
    LogCopy,
    LogExported,
    LogExportPlan,
    Observer,
    ReplayPlan,
    unobserved,
)
from lakeferry.errors import (
    CommitConflict,
    CorruptLog,
    Forbidden,
    InvalidInput,
    ObjectNotFound,
    Unauthorized,
)
from lakeferry.export import contents, manifest, origins, presence, pruning, reuse, surveys
from lakeferry.export.contents import Content
from lakeferry.export.manifest import FOLDER, Entry, Manifest
from lakeferry.export.origins import OpenStore
from lakeferry.export.reuse import Looked
from lakeferry.export.shelf import shelve
from lakeferry.export.surveys import Survey
from lakeferry.log import features, paths
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.log.checkpoint_read import Rows
from lakeferry.log.checksum import Hint, encode_hint
from lakeferry.log.lines import Lines
from lakeferry.log.paths import Kind
from lakeferry.log.rewrite import Listed
from lakeferry.log.segment import Segment
from lakeferry.redirect import dialects
from lakeferry.redirect.states import State
from lakeferry.storage import Store
from lakeferry.storage.lakefs import LakeFSStore
from lakeferry.storage.uris import join, relative_name
from lakeferry.table import DeltaLog, load

_AT_ONCE = 16
_SMALL = ("protocol", "metaData", "sidecar")


@dataclass(frozen=True, slots=True)
class Work:
    """What an export is given: who does the work, how places are opened, who is told."""

    engine: Callable[[int, int], Engine]
    open_store: OpenStore
    observer: Observer = unobserved
    warn: Callable[[str], None] = lambda _: None
    follows: bool = True
    """Whether a redirected table is to be followed; one in lakeFS can't be, and is refused."""
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Exported:
    """An export that is there. ``incremental_from`` is the version it went on from, if any."""

    location: str
    version: int
    files_written: int
    actions_skipped: int
    incremental_from: int | None
    changed: bool
    commit: str | None = None

    def as_document(self) -> dict[str, Any]:
        """Return the document of the command ``export``."""
        return {
            "location": self.location,
            "version": self.version,
            "files_written": self.files_written,
            "actions_skipped": self.actions_skipped,
            "incremental_from": self.incremental_from,
            "commit": self.commit,
            "changed": self.changed,
        }


class _Lost(Exception):
    """What was to be taken over from an earlier export isn't there any more."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """All that is known before anything is written."""

    survey: Survey
    content: Content
    rows: Rows
    entries: Mapping[str, Entry]
    plan: contents.Plan
    earlier: tuple[Manifest, str] | None
    """What is taken over from, and its folder."""

    @property
    def base_is_new(self) -> bool:
        """Whether the checkpoint is exported now."""
        base = self.content.segment.checkpoint
        return base is not None and base.files[0].path in self.plan.write


@dataclass(slots=True)
class _Told:
    """What exporting has told of the files so far."""

    files: dict[str, LogExported] = field(default_factory=dict)

    def count(self, name: str) -> int:
        return sum(getattr(each, name) for each in self.files.values())

    def last(self, name: str) -> Lines:
        """Return the newest protocol or metadata, as lines that have been read."""
        found = Lines()
        for path, each in sorted(self.files.items()):
            line = getattr(each, name)
            if line is not None and path.endswith(".json"):
                found.read(line, path)
        return found


class Export:
    """One export of the table at a store's root, to a place of its own or to ``to``.

    ``table`` and ``ref`` are what it is called in lakeFS's place for exports, ``keep``
    how many exports of both stay there, this one included. What makes no sense, and a
    place that somebody else has, is refused at once; nothing is written yet.
    """

    def __init__(
        self,
        work: Work,
        store: Store,
        *,
        to: str | None = None,
        table: str | None = None,
        ref: str | None = None,
        keep: int | None = None,
    ) -> None:
        """Find out what is exported, and where to."""
        self.work = work = replace(work, open_store=cache(work.open_store))
        if keep is not None:
            pruning.check(keep, to)
        self.keep = keep
        if isinstance(store, LakeFSStore):
            self.origin = origins.of_lakefs(store, ref, work.open_store)
        else:
            self.origin = origins.of_table(store)
        self.target = origins.target_of(self.origin, to, table, work.open_store)
        self.place = self.target.place
        self.there = self._claimed()
        self._looked: Looked | None = None
        self.is_there = (
            self.there is not None
            and self.there.complete
            and self.origin.commit is not None
            and self.there.commit == self.origin.commit
        )

    def _claimed(self) -> Manifest | None:
        """Return what the place says of itself; refuse one that somebody else has."""
        found = manifest.read(self.place)
        if found is None and self.place.is_occupied():
            raise self._taken("something is there that Lakeferry hasn't exported to it")
        if found is not None and found.source != self.origin.source:
            raise self._taken(f"it holds an export of {found.source}")
        return found

    def _taken(self, cause: str) -> CommitConflict:
        return CommitConflict(
            f"{self.target.location} isn't free for an export of {self.origin.source}",
            cause=cause,
            remedy="choose another place, or remove what is there",
            location=self.target.location,
        )

    # --- What there is to do --------------------------------------------------------

    def foresee(self) -> list[dict[str, Any]]:
        """Return the steps that the export takes."""
        steps: list[dict[str, Any]] = []
        if not self.is_there:
            ready = self._prepare(reuses=True)
            location = self.target.location
            done = (("export_log", ready.plan.write), ("take_over", ready.plan.take))
            version = ready.content.version
            for op, names in done:
                if names:
                    steps.append({"op": op, "to": location, "version": version, "files": [*names]})
            if ready.plan.stale:
                steps.append({"op": "delete", "from": location, "files": [*ready.plan.stale]})
        if self.keep is not None:
            old = pruning.old(self.target, self.origin.source, self.keep)
            steps += [{"op": "prune", "location": location} for location in old]
        return steps

    def prune(self) -> None:
        """Delete older exports of the same table and ref, if that was asked for."""
        if self.keep is not None:
            pruning.prune(self.target, self.origin.source, self.keep)

    def is_earlier(self, location: str) -> bool:
        """Tell whether a place is, or was, one of an earlier export of the same table."""
        shelf = self.target.shelf
        if shelf is not None and self.origin.ref is not None:
            name = relative_name(join(shelf.uri, self.origin.ref), location)
            if name is not None and name.endswith(f"/{self.target.folder.split('/')[2]}"):
                return True
        found = manifest.read(self.work.open_store(location))
        return found is not None and found.source == self.origin.source

    def export(self) -> Exported:
        """Export, unless the very same is there already."""
        there = self.there
        if self.is_there and there is not None:
            skipped = sum(entry.skipped for entry in there.log.values())
            return Exported(
                *(self.target.location, there.version, 0, skipped, None, False),
                self.origin.commit,
            )
        reuses, without = True, frozenset[str]()
        while True:
            try:
                return self._export(self._prepare(reuses=reuses, without=without))
            except _Lost:
                reuses = False
            except CorruptLog as broken:
                without |= self._workable(broken, without)

    def _workable(self, broken: CorruptLog, without: frozenset[str]) -> frozenset[str]:
        """Return which checkpoint to leave out after such an error, or raise it."""
        path = broken.fields.get("path")
        survey = None if self._looked is None else self._looked.survey
        if survey is None or not isinstance(path, str):
            raise broken
        if path in survey.sidecars:
            base = contents.content_of(survey.listing, without).segment.checkpoint
            path = base.files[0].path if base else path
        file = survey.log.get(path)
        if path in without or file is None or not file.kind.is_checkpoint:
            raise broken
        # The commits before a checkpoint that can't be read go on being there, or say so.
        self.work.warn(f"the checkpoint {path} is left out: {broken}")
        return frozenset({path})

    def _prepare(self, *, reuses: bool, without: frozenset[str] = frozenset()) -> _Prepared:
        earlier = self._earlier() if reuses else None
        if self._looked is None or not reuses:
            self._looked = self._look(earlier[0] if earlier else None)
        return self._planned(self._looked, earlier, without)

    def _earlier(self) -> tuple[Manifest, str] | None:
        found = self.target.last()
        return found if found is not None and found[0].source == self.origin.source else None

    def _look(self, earlier: Manifest | None) -> Looked:
        """Survey the source; what is lost doesn't count."""
        self.work.observer("listing", 0, 1)
        if (lakefs := self.origin.lakefs) is None:
            survey = surveys.of_store(self.origin.store)
            looked = Looked(survey, _unchanged(survey, earlier))
        else:
            looked = reuse.look(lakefs, earlier)
            try:
                survey = surveys.without_lost(looked.survey, self.work.open_store)
            except (Forbidden, Unauthorized) as closed:
                if self.target.shelf is not None:
                    raise
                self.work.warn(f"it wasn't checked that all files are there: {closed}")
                survey = looked.survey
            looked = replace(looked, survey=survey)
        self.work.observer("listing", 1, 1)
        return looked

    def _planned(
        self, looked: Looked, earlier: tuple[Manifest, str] | None, without: frozenset[str]
    ) -> _Prepared:
        survey, store = looked.survey, self.origin.store
        if survey.listing.is_empty:
            # Says whether nothing is there, or something else.
            DeltaLog(store).listing()
        content = contents.content_of(survey.listing, without)
        for name in (*(file.path for file in content.files), *survey.sidecars):
            if name in survey.log_addresses:
                store.learn(name, survey.log_addresses[name])
        base = content.segment.checkpoint
        rows, sidecars = Rows(), []
        if base is not None and earlier and all(f.path in looked.reusable for f in base.files):
            sidecars = [name for name in earlier[0].log if paths.parse(name) is None]
        elif base is not None:
            rows = load.small_rows(store, Segment.of_checkpoint(base), Lines(), _SMALL)
            sidecars = [load.sidecar_name(store.uri, each) for each in rows.sidecars]
        for name in sidecars:
            if name not in survey.sidecars:
                raise load.vanished(name)
        entries = {
            name: Entry(survey.log_addresses.get(name), survey.sidecars[name])
            for name in sorted(set(sidecars))
        } | {
            file.path: Entry(survey.log_addresses.get(file.path), file.size_bytes)
            for file in content.files
        }
        plan = contents.plan(
            content,
            entries,
            reusable=looked.reusable if earlier else frozenset(),
            in_place=self.target.shelf is None,
            stable=survey.addresses is None,
            there={} if self.there is None else self.there.log,
            present=self._present(),
        )
        return _Prepared(survey, content, rows, entries, plan, earlier)

    def _present(self) -> frozenset[str]:
        """Return the log files at the place; refuse one that somebody else has written to."""
        if self.there is None:
            return frozenset()
        listed = self.place.list(f"{paths.LOG_DIR}/")
        names = [entry.path for entry in listed if not entry.path.startswith(f"{FOLDER}/")]
        found = frozenset(
            name for name in names if paths.parse(name) or name.startswith(paths.SIDECAR_DIR)
        )
        strange = min(found - frozenset(self.there.log), default=None)
        if strange is not None:
            raise self._taken(f"somebody wrote {strange} into it")
        return found

    # --- Doing it -------------------------------------------------------------------

    def _export(self, ready: _Prepared) -> Exported:
        plan, listed = ready.plan, self.origin.listed(ready.survey)
        told = _Told()
        before = self.there
        if not plan.changes and before is not None and before.complete:
            self._check_live(ready, listed)
            return self._done(ready, before, changed=False)
        self._claim(ready)
        staged = f"{FOLDER}/{self.work.new_id()}/"
        names = self._write(ready, listed, staged, told)
        if told.count("unlisted") or told.count("elsewhere") or self.origin.lakefs is None:
            self._check_live(ready, listed)
        table_id = self._check_state(ready, told)
        if plan.closes:
            self._close()
        self._publish(ready, names, told)
        self._clear(staged, plan.stale)
        written = self._manifest(ready, told, table_id)
        manifest.write(self.place, written)
        self.target.point()
        return self._done(ready, written, changed=True)

    def _done(self, ready: _Prepared, written: Manifest, *, changed: bool) -> Exported:
        plan = ready.plan
        went_on = changed and len(plan.write) < len(plan.names)
        return Exported(
            self.target.location,
            written.version,
            len(plan.write) if changed else 0,
            sum(entry.skipped for entry in written.log.values()),
            ready.earlier[0].version if ready.earlier is not None and went_on else None,
            changed,
            self.origin.commit,
        )

    def _claim(self, ready: _Prepared) -> None:
        """Say at the place what comes to it, so that nobody takes it for anything else."""
        before = {} if self.there is None else dict(self.there.log)
        claim = Manifest(
            self.origin.source,
            self.origin.commit,
            ready.content.version,
            complete=False,
            table_id=self.there.table_id if self.there else None,
            log={**before, **ready.entries},
        )
        manifest.write(self.place, claim)

    def _write(self, ready: _Prepared, listed: Listed, staged: str, told: _Told) -> dict[str, str]:
        """Export what is new, and return the names under which some of it waits."""
        plan = ready.plan
        sizes = [ready.entries[name].size_bytes for name in plan.write]
        engine = self.work.engine(len(sizes), sum(sizes))
        shelved = listed
        if engine.name == "spark":
            shelved = shelve(listed, self.place, f"{staged}listed.arrow")  # type: ignore[assignment]
        waiting: dict[str, str] = {}
        for name in plan.write:
            # In a place that is read already, nothing may come out of its order.
            if paths.parse(name) and (plan.published or contents.opens(name)):
                waiting[name] = f"{staged}{name.rpartition('/')[2]}"
        sidecars = [name for name in plan.write if paths.parse(name) is None]
        rest = [name for name in plan.write if paths.parse(name) is not None]
        renamed: dict[str, tuple[str, int]] = {}
        for names in (sidecars, rest):
            files = tuple(
                LogCopy(name, waiting.get(name, name), address=ready.entries[name].address)
                for name in names
            )
            plan_of_files = LogExportPlan(
                self.origin.store.config, self.place.config, files, shelved, renamed or None
            )
            done = engine.export_log(plan_of_files, self.work.observer) if files else ()
            told.files |= dict(zip(names, done, strict=True))
            if names is sidecars:
                renamed = self._renamed(ready.rows, told)
        return waiting

    def _renamed(self, rows: Rows, told: _Told) -> dict[str, tuple[str, int]]:
        found: dict[str, tuple[str, int]] = {}
        for sidecar in rows.sidecars:
            name = load.sidecar_name(self.origin.store.uri, sidecar)
            found[sidecar.path] = (name.rpartition("/")[2], told.files[name].size_bytes)
        return found

    def _check_live(self, ready: _Prepared, listed: Listed) -> None:
        """Refuse to publish a version of which a file isn't there."""
        segment = ready.content.segment
        if not ready.survey.whole and (lakefs := self.origin.lakefs) is not None:
            survey = surveys.of_lakefs(lakefs, halves=False)
            listed = self.origin.listed(surveys.without_lost(survey, self.work.open_store))
        engine = self.work.engine(len(segment.files), segment.size_bytes)
        self.work.observer("looking for files", 0, 1)
        if engine.name == "local":
            # With this very store, which has been told where the log's bytes are.
            batches: Iterable[pa.RecordBatch] = load.snapshot(
                self.origin.store, segment
            ).files.to_batches()
            presence.check(batches, listed, self.work.open_store)
        else:
            plan = ReplayPlan(self.origin.store.config, segment)
            with engine.replay(plan, self.work.observer) as replayed:
                presence.check(replayed.files(), listed, self.work.open_store)
        self.work.observer("looking for files", 1, 1)

    def _check_state(self, ready: _Prepared, told: _Told) -> str | None:
        """Refuse what we don't understand, and another table; return the table's id."""
        protocol = told.last("protocol").protocol or ready.rows.protocol
        metadata = told.last("metadata").metadata or ready.rows.metadata
        known = ready.earlier[0].table_id if ready.earlier else None
        if protocol is not None:
            features.check_readable(protocol)
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
            raise self._taken("the table that was exported to it was replaced by another one")
        return table_id

    def _publish(self, ready: _Prepared, waiting: Mapping[str, str], told: _Told) -> None:
        """Give everything its name: what opens the place last, unless it is open already."""
        plan = ready.plan
        if plan.take and ready.earlier is not None:
            self._take(plan.take, ready.earlier[1], opening=False)
        # The checkpoint, and then one commit after the other: so a place that is open shows
        # one version after the other. In one that isn't, only what opens it has waited.
        for name in sorted(waiting, key=lambda name: (not _is_checkpoint(name), name)):
            self.place.copy_within(waiting[name], name)
        if plan.take and ready.earlier is not None:
            self._take(plan.take, ready.earlier[1], opening=True)
        base = ready.content.segment.checkpoint
        if base is None:
            self.place.delete_many([paths.LAST_CHECKPOINT])
        elif ready.base_is_new:
            parts = [each for name, each in told.files.items() if _is_checkpoint(name)]
            hint = Hint(
                base.version,
                size=sum(each.actions for each in parts),
                parts=len(base.files) if base.kind is Kind.MULTI_PART else None,
                size_in_bytes=sum(each.size_bytes for each in parts),
            )
            self.place.put(paths.LAST_CHECKPOINT, encode_hint(hint))
        elif plan.take and ready.earlier is not None:
            self._bring([paths.LAST_CHECKPOINT], ready.earlier[1])

    def _take(self, names: Sequence[str], folder: str, *, opening: bool) -> None:
        self._bring([name for name in names if contents.opens(name) is opening], folder)

    def _bring(self, names: Sequence[str], folder: str) -> None:
        """Copy files of an earlier export, inside the store."""
        shelf, target = self.target.shelf, self.target
        assert shelf is not None

        def bring(name: str) -> None:
            try:
                shelf.copy_within(f"{folder}{name}", f"{target.folder}{name}")
            except ObjectNotFound as gone:
                raise _Lost from gone

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(bring, names):
                pass

    def _close(self) -> None:
        """Take away what opens the place, while files in it are replaced."""
        names = [entry.path for entry in self.place.list(f"{paths.LOG_DIR}/")]
        self.place.delete_many([paths.LAST_CHECKPOINT])
        self.place.delete_many([name for name in names if contents.opens(name)])

    def _clear(self, staged: str, stale: Sequence[str]) -> None:
        """Delete what waited, and what isn't wanted any more."""
        for name in stale:
            self.place.delete_many([name])
        self.place.delete_many([entry.path for entry in self.place.list(staged)])
        self.place.prune(staged.rstrip("/"))

    def _manifest(self, ready: _Prepared, told: _Told, table_id: str | None) -> Manifest:
        before = ready.earlier[0] if ready.earlier is not None else None
        absent = {name for each in told.files.values() for name in each.gone}
        truncated = any(each.gone_count and not each.gone for each in told.files.values())
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
        )


def _check_stays(protocol: Protocol, metadata: Metadata, uri: str) -> None:
    """Refuse a table in lakeFS that has moved: its files are in no commit."""
    found = dialects.read(protocol, metadata, uri)
    if found is not None and found.state is State.READY and not found.is_target(uri):
        raise InvalidInput(
            f"{uri} is redirected to another place",
            cause="an export of lakeFS is of what a commit has",
            remedy="export the table that it leads to (lakeferry redirect resolve), or use "
            "--no-follow",
            uri=uri,
        )


def _is_checkpoint(name: str) -> bool:
    """Tell whether a file is one of a checkpoint's, sidecars included."""
    file = paths.parse(name)
    return file is None or file.kind.is_checkpoint


def _unchanged(survey: Survey, earlier: Manifest | None) -> frozenset[str]:
    """Return the log files that are as they were when they were exported."""
    if earlier is None:
        return frozenset()
    sizes = {name: file.size_bytes for name, file in survey.log.items()} | dict(survey.sidecars)
    return frozenset(
        name for name, entry in earlier.log.items() if sizes.get(name) == entry.size_bytes
    )
