"""``lakeferry.Table``: a table, and what can be asked of it.

:class:`Table` has the same operations as the command line, under the same names. Its results
have the fields that the command line prints as JSON (``as_document``). Methods that read a
redirected table read the target, unless told not to follow; methods that describe or change a
table use the table that was named.

Reported numbers come from replaying the log. A checksum file is only compared with them: a
difference is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal, TypedDict, Unpack, overload

from lakeferry.api import inspection, table_facts
from lakeferry.api import verify as verification
from lakeferry.api.change_plan import MoveTraits, TablePlan, plan_table
from lakeferry.api.history import History, commit_of
from lakeferry.api.inspection import Inspection
from lakeferry.api.live_file_batches import is_read_here, read_live_files
from lakeferry.api.live_file_counts import LiveFileCounts, LiveFileCountsCache
from lakeferry.api.live_file_list import LiveFiles
from lakeferry.api.located_table import Plan as Plan
from lakeferry.api.located_table import WorkOptions, reads_both_ends
from lakeferry.api.log_summary import LogSummary
from lakeferry.api.log_summary_cache import LogSummaryCache
from lakeferry.api.notebook_progress import progress_in_notebook
from lakeferry.api.redirect_methods import RedirectMethods
from lakeferry.api.table_timeline import TableTimeline, read_timeline
from lakeferry.api.transfers import TransferMethods
from lakeferry.api.verify import Verification
from lakeferry.catalogs import name_changes as name_changes
from lakeferry.catalogs import names as names
from lakeferry.catalogs.places import Places as Places
from lakeferry.clients.redirect_effects import ClientEffect as ClientEffect
from lakeferry.clients.redirect_effects import effects as effects
from lakeferry.engine import Observer, unobserved
from lakeferry.engines.copy_forecast import CopyForecasts
from lakeferry.engines.engine_choice import Engines, opening
from lakeferry.errors import InvalidInput, LakeferryError
from lakeferry.export import exporter
from lakeferry.export.exporter import Exported as Exported
from lakeferry.log import features
from lakeferry.log.properties import duration_ms as duration_ms
from lakeferry.log.properties import log_retention_ms
from lakeferry.log.replay import Snapshot
from lakeferry.log.segment import Segment
from lakeferry.protection import cleaning, dropping
from lakeferry.protection.cleaning import Cleaned as Cleaned
from lakeferry.protection.cleaning import Foreseen as Foreseen
from lakeferry.protection.drop_context import DropContext
from lakeferry.protection.dropping import Dropped as Dropped
from lakeferry.protection.dropping import ListedFeature as ListedFeature
from lakeferry.redirect import resolve as following
from lakeferry.redirect.managed_commits import as_unmanaged
from lakeferry.redirect.outcome import Outcome as Outcome
from lakeferry.redirect.recent_writers import RecentWriter as RecentWriter
from lakeferry.redirect.redirect_findings import describe_redirect
from lakeferry.redirect.status import Status as Status
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.table import DeltaLog, live_files, unsupported
from lakeferry.table.checkpoint import Written
from lakeferry.table.live_files import FILES as FILES
from lakeferry.table.log_comparison import TableSide
from lakeferry.table.managed import ManagedStore
from lakeferry.table.managed import PublishedCommits as PublishedCommits
from lakeferry.transfer.client.rate_limit import parse_rate as parse_rate


class DropOptions(WorkOptions, total=False):
    """The options of :meth:`Table.drop_feature`."""

    truncate_history: bool


class CleanupOptions(TypedDict, total=False):
    """The options of :meth:`Table.cleanup`."""

    retention: str | None
    before: int | None
    force: bool
    observer: Observer


class ExportOptions(TypedDict, total=False):
    """The options of :meth:`Table.export`."""

    table: str | None
    keep: int | None
    register: str | None
    ref: str | None
    follow: bool
    engine: str | Engines
    observer: Observer
    limit_rate: int | None
    verify: str


class Table(RedirectMethods, TransferMethods):
    """A Delta table at a place.

    ``uri`` is a local path, a URI (``file``, ``s3``, ``gs``, ``az``) or a name in a catalog
    (``sql:cat.schema.t``, ``unity:cat.schema.t``). ``storage_options`` are spelled as in
    delta-rs, and override the environment and a catalog's credentials. They apply to every place
    that the table leads to, unless they are a function from a place to its options.
    ``environment`` replaces the process's environment when catalogs are located. ``warn``
    receives a sentence for each problem in the log that could be worked around.

    No store or catalog is contacted before the first method is called, and every call sees the
    table's current state. A catalog name is resolved once, by the first call or by ``uri``.
    """

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the columns, for which no file action is read.

        A table that can't be read is shown with the reason.
        """
        try:
            log = self._log()
            state = unsupported.bare_state(log)
            entry = describe_redirect(state, log.store.uri)[0]
            return table_facts.state_html(state, self._name, log.store.uri, entry)
        except LakeferryError as unreadable:
            return table_facts.unreadable_html(self._name, unreadable)

    def snapshot(self, version: int | None = None, *, follow: bool = True) -> Snapshot:
        """Return a version, or the newest, with its live files as an Arrow table."""
        log, newest = self._opened(follow=follow, keeps_files=version is None)
        with unsupported.unless_unsupported(log, version):
            snapshot = log.snapshot(version, newest)
        features.check_readable(snapshot.protocol, asks_catalog=log.store.asks_catalog)
        return snapshot

    def inspect(self, version: int | None = None) -> Inspection:
        """Describe a version, or the newest, and what is odd about the table."""
        return inspection.inspect(
            self._store,
            version,
            open_store=self._places.open,
            catalog=self._places.catalog,
            grant=self._places.grant,
        )

    def timeline(self, before: int | None = None) -> TableTimeline:
        """Return a page of versions, the newest first, with what each of them changed.

        Without ``before`` it is the newest page. Redirects aren't followed. See
        :mod:`lakeferry.api.table_timeline`.
        """
        return read_timeline(DeltaLog(self._store, warn=self._warn), before)

    def log_summary(self, cache: LogSummaryCache | None = None) -> LogSummary:
        """Return the log in numbers, from its listing: commits and checkpoints over time.

        ``cache`` keeps the listings of the last logs, and lists only what is new. Redirects aren't
        followed.
        """
        kept = LogSummaryCache() if cache is None else cache
        return kept.summary(DeltaLog(self._store, warn=self._warn))

    def live_file_counts(self, cache: LiveFileCountsCache | None = None) -> LiveFileCounts:
        """Return the live files of the newest version by size and by partition.

        ``cache`` keeps what was counted of the last versions. Redirects aren't followed.
        """
        kept = LiveFileCountsCache(1) if cache is None else cache
        return kept.of_newest(DeltaLog(self._store, warn=self._warn))

    def history(self, limit: int | None = None, *, follow: bool = True) -> History:
        """Return the commits that are still in the log, newest first."""
        log, newest = self._opened(follow=follow)
        with unsupported.unless_unsupported(log, None):
            newest = newest or log.newest()
            state = newest.state()
            unsupported.refuse_reader_version(state.protocol)
            managed = features.catalog_managed(state.protocol)
            if managed and not log.store.asks_catalog:
                self._warn(
                    f"{self._name} is managed by its catalog ({', '.join(managed)}): commits that "
                    "the catalog has accepted and that aren't published yet are missing here"
                )
            return History(commit_of(revision) for revision in log.history(limit, newest))

    def files(
        self,
        version: int | None = None,
        *,
        timestamp_ms: int | None = None,
        follow: bool = True,
        engine: str = "auto",
        observer: Observer = unobserved,
    ) -> LiveFiles:
        """Return the live files of a version, a stream of batches; see :data:`FILES`.

        ``timestamp_ms`` selects the version that was the newest at that time.
        """

        def keeps_files(segment: Segment) -> bool:
            # Spark reads the files of a long log, which may not fit into this process.
            return version is None and timestamp_ms is None and is_read_here(segment, engine)

        log, newest = self._opened(follow=follow, keeps_files=keeps_files)
        if timestamp_ms is not None:
            if version is not None:
                raise InvalidInput(
                    "a version and a timestamp can't be combined", remedy="give one of them"
                )
            version = log.version_at(timestamp_ms, state=None if newest is None else newest.state())
        with unsupported.unless_unsupported(log, version), progress_in_notebook(observer) as shown:
            found = read_live_files(log, version, newest, engine, shown, self._warn)
        features.check_readable(found.protocol, asks_catalog=log.store.asks_catalog)
        location = log.store.uri
        return LiveFiles(
            location,
            found.version,
            found.num_files,
            found.size_bytes,
            lambda: live_files.live_file_batches(found.read(), location),
        )

    def checkpoint(self, version: int | None = None, *, dry_run: bool = False) -> Written:
        """Write a checkpoint of a version, or the newest, unless a complete one is there."""
        log = self._log()
        with unsupported.unless_unsupported(log, version, features.check_writable):
            return log.checkpoint(version, dry_run=dry_run)

    def publish(self) -> PublishedCommits:
        """Publish the commits of a managed table that its catalog has accepted.

        An old path that leads to the table is followed. Also finds staged files that have lost
        their version and are older than the log's retention; they may be deleted.
        """
        log = self._opened(follow=True)[0]
        store = log.store
        if not isinstance(store, ManagedStore) or not store.asks_catalog:
            raise InvalidInput(
                f"{self._name} has nothing to publish",
                cause="no catalog decides about its commits",
                remedy="give the name of a managed table: unity:catalog.schema.table",
            )
        retention_ms = log_retention_ms(log.state().metadata.configuration)
        return store.publish(losers_before_ms=log.clock() - retention_ms)

    def features(self) -> list[ListedFeature]:
        """Return the features that the protocol requires, and what we can do with each."""
        log = self._log()
        with unsupported.unless_unsupported(log, None):
            state = log.state()
        unsupported.refuse_reader_version(state.protocol)
        store = log.store
        return dropping.listed_features(state, store.uri, asks_catalog=store.asks_catalog)

    @overload
    def drop_feature(
        self, name: str, *, dry_run: Literal[False] = False, **options: Unpack[DropOptions]
    ) -> Dropped: ...

    @overload
    def drop_feature(
        self, name: str, *, dry_run: Literal[True], **options: Unpack[DropOptions]
    ) -> Plan: ...

    @overload
    def drop_feature(
        self, name: str, *, dry_run: bool, **options: Unpack[DropOptions]
    ) -> Dropped | Plan: ...

    def drop_feature(
        self,
        name: str,
        *,
        truncate_history: bool = False,
        dry_run: bool = False,
        engine: str = "auto",
        observer: Observer = unobserved,
    ) -> Dropped | Plan:
        """Drop a table feature and keep history readable; see :mod:`lakeferry.protection`.

        ``truncate_history`` selects the old way: history is deleted when its retention allows
        it.
        """
        log = self._log()
        with ExitStack() as stack, unsupported.unless_unsupported(log, None):
            if dry_run:
                return Plan(dropping.foresee_drop(log, name, truncate_history=truncate_history))
            engines = stack.enter_context(opening(engine, self._warn))
            observer = stack.enter_context(progress_in_notebook(observer))
            work = DropContext(log, engines.choose, observer)
            return dropping.drop(work, name, truncate_history=truncate_history)

    def plan_for(
        self,
        wish: str,
        feature: str | None = None,
        *,
        truncate_history: bool = False,
        mode: str = "reader-writer",
        data: str = "copy",
        dialects: Iterable[str] = (),
        managed: bool = False,
        to_name: bool = False,
    ) -> TablePlan:
        """Return what a change means for the table's clients: before, during and after it.

        ``wish`` is ``move``, ``protect``, ``share``, or ``drop`` with a feature. The options after
        ``truncate_history`` are those of a move; ``to_name`` says that its target is a name in a
        catalog. Nothing is changed. What the change itself would refuse is refused.
        """
        log, _ = self._opened(follow=wish == "share")
        traits = MoveTraits(mode, data, tuple(dialects), managed, to_name)
        return plan_table(log, wish, feature, traits=traits, truncate_history=truncate_history)

    @overload
    def cleanup(
        self, *, dry_run: Literal[False] = False, **options: Unpack[CleanupOptions]
    ) -> Cleaned: ...

    @overload
    def cleanup(self, *, dry_run: Literal[True], **options: Unpack[CleanupOptions]) -> Foreseen: ...

    @overload
    def cleanup(
        self, *, dry_run: bool, **options: Unpack[CleanupOptions]
    ) -> Cleaned | Foreseen: ...

    def cleanup(
        self,
        *,
        retention: str | None = None,
        before: int | None = None,
        force: bool = False,
        dry_run: bool = False,
        observer: Observer = unobserved,
    ) -> Cleaned | Foreseen:
        """Delete log files older than ``retention``, or of versions before ``before``.

        ``retention`` is a duration (``7d``, ``interval 7 days``), by default the table's own; a
        shorter one needs ``force``. ``before`` is the oldest version to keep.
        """
        retention_ms = None
        if retention is not None:
            retention_ms = duration_ms(retention)
            if retention_ms is None:
                raise InvalidInput(
                    f"{retention!r} isn't a duration",
                    remedy="write a number and a unit, such as 12h or 7d",
                )
        log = self._log()
        with unsupported.unless_unsupported(log, None, features.check_writable):
            if dry_run:
                return cleaning.foresee_cleaning(
                    log, retention_ms=retention_ms, before=before, force=force
                )
            with progress_in_notebook(observer) as shown:
                return cleaning.clean(
                    log, retention_ms=retention_ms, before=before, force=force, observer=shown
                )

    def verify(
        self,
        other: Table,
        *,
        digest: bool = False,
        rows: bool = False,
        engine: str = "auto",
        observer: Observer = unobserved,
    ) -> Verification:
        """Compare the newest version of this table (``a``) with that of another (``b``).

        ``digest`` compares the bytes of files that both have, ``rows`` counts
        the rows of every file. See :mod:`lakeferry.table.log_comparison`
        for what is equal.
        """
        a, b = (TableSide(each._store, each.snapshot(follow=False)) for each in (self, other))
        if a.store.asks_catalog != b.store.asks_catalog:
            # What a move into the catalog has added is no difference.
            a, b = (replace(each, snapshot=as_unmanaged(each.snapshot)) for each in (a, b))
        with progress_in_notebook(observer) as shown:
            return verification.verify(
                a,
                b,
                digest=digest,
                rows=rows,
                engine=engine,
                observer=shown,
                warn=self._warn,
            )

    @overload
    def export(
        self,
        to: str | None = None,
        *,
        dry_run: Literal[False] = False,
        **options: Unpack[ExportOptions],
    ) -> Exported: ...

    @overload
    def export(
        self, to: str | None = None, *, dry_run: Literal[True], **options: Unpack[ExportOptions]
    ) -> Plan: ...

    @overload
    def export(
        self, to: str | None = None, *, dry_run: bool, **options: Unpack[ExportOptions]
    ) -> Exported | Plan: ...

    def export(
        self,
        to: str | None = None,
        *,
        table: str | None = None,
        keep: int | None = None,
        register: str | None = None,
        ref: str | None = None,
        follow: bool = True,
        dry_run: bool = False,
        engine: str | Engines = "auto",
        observer: Observer = unobserved,
        limit_rate: int | None = None,
        verify: str = "store",
    ) -> Exported | Plan:
        """Publish the table's log with the absolute URIs of its files; no data is copied.

        A table in lakeFS is exported to the repository's own place for exports, as ``table``
        (default: the last part of its path) of ``ref`` (default: the ref in the URI), and the
        newest ``keep`` exports there are kept; or to the place ``to``, which other tables
        require. ``register`` is a catalog name that will point to the export. ``limit_rate`` is
        the most bytes of log files per second that are read. With ``verify="full"`` each file that
        was written is read again and compared, before the export can be opened.
        """
        rate = None if limit_rate is None else ByteRate(limit_rate)
        in_lakefs = self.uri.startswith("lakefs:")
        if not in_lakefs and (ref is not None or keep is not None):
            raise InvalidInput(
                "the options ref and keep are only for tables in lakeFS",
                remedy="leave them out, and give the place to export to",
            )
        log, _ = self._opened(follow=follow and not in_lakefs)
        with ExitStack() as stack:
            engines = stack.enter_context(opening(engine, self._warn, rate))
            observer = stack.enter_context(progress_in_notebook(observer))
            work = exporter.ExportContext(
                engines.choose,
                self._places.open,
                observer,
                self._warn,
                follow,
                CopyForecasts(limit_rate),
                reads_both_ends(verify),
            )
            run = exporter.Export(
                work,
                log.store,
                to=to,
                table=table,
                ref=ref,
                keep=keep,
                former=() if in_lakefs else self.followed_from,
                reads=log.source,
            )
            if register is not None:
                name_changes.check_leads(
                    register,
                    run.target.location,
                    may_leave=run.is_earlier,
                    environment=self._environment,
                )
            if dry_run:
                named = {"op": "register", "name": register, "location": run.target.location}
                return Plan([*run.foresee(), *([named] if register is not None else [])])
            done = run.export()
            if register is not None:
                entry = name_changes.lead(
                    register,
                    done.location,
                    self._places.options(done.location),
                    may_leave=run.is_earlier,
                    environment=self._environment,
                )
                done = replace(done, changed=done.changed or entry.changed)
            run.prune()
            return done


def resolve(
    table: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    app_name: str | None = None,
    write: bool = False,
) -> str:
    """Return the URI of a table, for engines that don't follow redirects.

    ``table`` is anything that :class:`Table` accepts. ``write`` raises an error if the table
    can't be written to at the moment. Results are cached for a short time, but every call checks
    whether the table has moved since.
    """
    place = names.locate(table)
    with names.name_in_errors(table):
        found = following.resolve_table(
            place.uri,
            storage_options=storage_options,
            access=place.access,
            app_name=app_name,
            write=write,
        )
    return found.location
