"""``lakeferry.Table``: a table, and what can be asked of it.

:class:`Table` has the same operations as the command line, under the same names. Its results
have the fields that the command line prints as JSON (``as_document``). Methods that read a
redirected table read the target, unless told not to follow; methods that describe or change a
table use the table that was named.

Reported numbers come from replaying the log. A checksum file is only compared with them: a
difference is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast, overload

import msgspec
import pyarrow as pa

from lakeferry import engine
from lakeferry.api import inspection
from lakeferry.api import verify as verification
from lakeferry.api.inspection import Inspection
from lakeferry.api.redirects import DisableOptions, MoveOptions, Redirects
from lakeferry.api.redirects import Plan as Plan
from lakeferry.api.transfers import TransferOptions, Transfers
from lakeferry.api.verify import Verification
from lakeferry.catalogs import names as names
from lakeferry.catalogs import split_name
from lakeferry.catalogs.places import PlaceOptions
from lakeferry.catalogs.places import Places as Places
from lakeferry.engine import Observer, unobserved
from lakeferry.engines.engine_choice import Engines, opening, suitable
from lakeferry.errors import CorruptLog, InvalidInput
from lakeferry.export import exporter
from lakeferry.export.exporter import Exported as Exported
from lakeferry.log import features
from lakeferry.log.properties import duration_ms as duration_ms
from lakeferry.log.replay import Snapshot
from lakeferry.protection import cleaning, dropping
from lakeferry.protection.cleaning import Cleaned as Cleaned
from lakeferry.protection.cleaning import Foreseen as Foreseen
from lakeferry.protection.drop_context import DropContext
from lakeferry.protection.dropping import Dropped as Dropped
from lakeferry.protection.dropping import ListedFeature as ListedFeature
from lakeferry.redirect import resolve as following
from lakeferry.redirect.client_effects import ClientEffect as ClientEffect
from lakeferry.redirect.client_effects import effects as effects
from lakeferry.redirect.move import Outcome as Outcome
from lakeferry.redirect.resolve import Resolution, Resolver
from lakeferry.redirect.status import Status as Status
from lakeferry.storage import Store
from lakeferry.table import DeltaLog, live_files, unsupported
from lakeferry.table.checkpoint import Written
from lakeferry.table.delta_log import Revision
from lakeferry.table.live_files import FILES as FILES
from lakeferry.table.log_comparison import TableSide
from lakeferry.transfer.client.rate_limit import parse_rate as parse_rate

if TYPE_CHECKING:
    from lakeferry.transfer.client.session_work import Transferred


class WorkOptions(TypedDict, total=False):
    """Which engine does the work of a method, and which observer receives its progress."""

    engine: str
    observer: Observer


class RedirectOptions(MoveOptions, WorkOptions, total=False):
    """The options of :meth:`Table.redirect`."""


class RedirectDisableOptions(DisableOptions, WorkOptions, total=False):
    """The options of :meth:`Table.redirect_disable`."""


class RedirectCancelOptions(WorkOptions, total=False):
    """The options of :meth:`Table.redirect_cancel`."""

    leave_copies: bool


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


class TableTransferOptions(TransferOptions, total=False):
    """The options of :meth:`Table.push` and :meth:`Table.pull`."""

    follow: bool
    engine: str | Engines
    observer: Observer


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a table's history; what its writer didn't state is ``None``."""

    version: int
    timestamp: int
    operation: str | None
    operation_parameters: Any
    operation_metrics: Any
    user_id: str | None
    user_name: str | None
    user_metadata: Any
    engine_info: str | None
    is_blind_append: bool | None
    isolation_level: str | None
    read_version: int | None
    txn_id: str | None

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``commits`` of the command ``history``."""
        return cast(dict[str, Any], msgspec.to_builtins(self))


class Table:
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

    def __init__(
        self,
        uri: str,
        storage_options: PlaceOptions | Places | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Describe a table; no store or catalog is contacted."""
        self._warn = warn
        self._name = uri
        self._places = (
            storage_options
            if isinstance(storage_options, Places)
            else Places(storage_options, environment=environment)
        )
        self.followed: str | None = None
        """The place of the target, if the last call that could follow a redirect followed one."""
        self.followed_name: str | None = None
        """The target's name in a catalog, if it was found by name."""
        self._environment = environment
        if split_name(uri) is None:
            # Invalid places and invalid options are refused at once.
            _ = self._store

    def __repr__(self) -> str:
        """Return where the table is; never its options, which may hold a secret."""
        shown = self.uri if split_name(self._name) is None else self._name
        return f"Table({shown!r})"

    @cached_property
    def _store(self) -> Store:
        return self._places.open(self._places.locate(self._name))

    @property
    def uri(self) -> str:
        """The table's place, in Lakeferry's canonical spelling."""
        return self._store.uri

    def snapshot(self, version: int | None = None, *, follow: bool = True) -> Snapshot:
        """Return a version, or the newest, with its live files as an Arrow table."""
        log = self._log(follow=follow)
        with unsupported.unless_unsupported(log, version):
            snapshot = log.snapshot(version)
        features.check_readable(snapshot.protocol)
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

    def history(self, limit: int | None = None, *, follow: bool = True) -> list[Commit]:
        """Return the commits that are still in the log, newest first."""
        log = self._log(follow=follow)
        with unsupported.unless_unsupported(log, None):
            state = log.state()
            unsupported.refuse_reader_version(state.protocol)
            if managed := features.catalog_managed(state.protocol):
                self._warn(
                    f"{self._name} is managed by its catalog ({', '.join(managed)}): commits that "
                    "the catalog has accepted and that aren't published yet are missing here"
                )
            return [_commit(revision) for revision in log.history(limit)]

    def files(
        self,
        version: int | None = None,
        *,
        timestamp_ms: int | None = None,
        follow: bool = True,
        engine: str = "auto",
        observer: Observer = unobserved,
    ) -> pa.RecordBatchReader:
        """Return the live files of a version in batches; see :data:`FILES`.

        ``timestamp_ms`` selects the version that was the newest at that time.
        """
        log = self._log(follow=follow)
        if timestamp_ms is not None:
            if version is not None:
                raise InvalidInput("a version and a timestamp at once", remedy="give one of them")
            version = log.version_at(timestamp_ms)
        with unsupported.unless_unsupported(log, version):
            snapshot, batches = self._live_files(log, version, engine, observer)
        features.check_readable(snapshot.protocol)
        return pa.RecordBatchReader.from_batches(FILES, live_files.batches(batches, log.store.uri))

    def checkpoint(self, version: int | None = None, *, dry_run: bool = False) -> Written:
        """Write a checkpoint of a version, or the newest, unless a complete one is there."""
        log = self._log()
        with unsupported.unless_unsupported(log, version, features.check_writable):
            return log.checkpoint(version, dry_run=dry_run)

    def features(self) -> list[ListedFeature]:
        """Return the features that the protocol requires, and what we can do with each."""
        log = self._log()
        with unsupported.unless_unsupported(log, None):
            protocol = log.state().protocol
        unsupported.refuse_reader_version(protocol)
        return dropping.listed(protocol)

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
                return dropping.foresee(log, name, truncate_history=truncate_history)
            engines = stack.enter_context(opening(engine, self._warn))
            work = DropContext(log, engines.choose, observer)
            return dropping.drop(work, name, truncate_history=truncate_history)

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
                raise InvalidInput(f"{retention!r} is no duration", remedy="write 12h or 7d")
        log = self._log()
        with unsupported.unless_unsupported(log, None, features.check_writable):
            if dry_run:
                return cleaning.foresee(log, retention_ms=retention_ms, before=before, force=force)
            return cleaning.clean(
                log, retention_ms=retention_ms, before=before, force=force, observer=observer
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
        return verification.verify(
            TableSide(self._store, self.snapshot(follow=False)),
            TableSide(other._store, other.snapshot(follow=False)),
            digest=digest,
            rows=rows,
            engine=engine,
            observer=observer,
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
    ) -> Exported | Plan:
        """Publish the table's log with the absolute URIs of its files; no data is copied.

        A table in lakeFS is exported to the repository's own place for exports, as ``table``
        (default: the last part of its path) of ``ref`` (default: the ref in the URI), and the
        newest ``keep`` exports there are kept; or to the place ``to``, which other tables
        require. ``register`` is a catalog name that will point to the export.
        """
        in_lakefs = self.uri.startswith("lakefs:")
        if not in_lakefs and (ref is not None or keep is not None):
            raise InvalidInput(
                "a ref and how many exports to keep are for tables in lakeFS",
                remedy="leave them out, and give the place to export to",
            )
        log = DeltaLog(self._store, warn=self._warn) if in_lakefs else self._log(follow=follow)
        with ExitStack() as stack:
            engines = stack.enter_context(opening(engine, self._warn))
            work = exporter.ExportContext(
                engines.choose, self._places.open, observer, self._warn, follow
            )
            run = exporter.Export(work, log.store, to=to, table=table, ref=ref, keep=keep)
            if register is not None:
                names.check_leads(
                    register,
                    run.target.location,
                    may_leave=run.is_earlier,
                    environment=self._environment,
                )
            if dry_run:
                named = {"op": "register", "name": register, "location": run.target.location}
                return [*run.foresee(), *([named] if register is not None else [])]
            done = run.export()
            if register is not None:
                entry = names.lead(
                    register,
                    done.location,
                    self._places.options(done.location),
                    may_leave=run.is_earlier,
                    environment=self._environment,
                )
                done = replace(done, changed=done.changed or entry.changed)
            run.prune()
            return done

    @overload
    def redirect(
        self, target: str, *, dry_run: Literal[False] = False, **options: Unpack[RedirectOptions]
    ) -> Outcome: ...

    @overload
    def redirect(
        self, target: str, *, dry_run: Literal[True], **options: Unpack[RedirectOptions]
    ) -> Plan: ...

    @overload
    def redirect(
        self, target: str, *, dry_run: bool, **options: Unpack[RedirectOptions]
    ) -> Outcome | Plan: ...

    def redirect(
        self,
        target: str,
        *,
        dry_run: bool = False,
        engine: str = "auto",
        observer: Observer = unobserved,
        **options: Unpack[MoveOptions],
    ) -> Outcome | Plan:
        """Move the table to ``target``; ``options`` are those of :meth:`Redirects.enable`."""
        with self._redirects(engine, observer) as redirects:
            if dry_run:
                return redirects.plan_enable(self.uri, target, **options)
            return redirects.enable(self.uri, target, **options)

    def redirect_status(self) -> Status:
        """Return the state of this table's redirect."""
        with self._redirects() as redirects:
            return redirects.status(self.uri)

    @overload
    def redirect_resume(
        self, *, dry_run: Literal[False] = False, **options: Unpack[WorkOptions]
    ) -> Outcome: ...

    @overload
    def redirect_resume(
        self, *, dry_run: Literal[True], **options: Unpack[WorkOptions]
    ) -> Plan: ...

    @overload
    def redirect_resume(
        self, *, dry_run: bool, **options: Unpack[WorkOptions]
    ) -> Outcome | Plan: ...

    def redirect_resume(
        self, *, dry_run: bool = False, engine: str = "auto", observer: Observer = unobserved
    ) -> Outcome | Plan:
        """Resume a move or a withdrawal that was interrupted."""
        with self._redirects(engine, observer) as redirects:
            return redirects.resume(self.uri, dry_run=dry_run)

    @overload
    def redirect_cancel(
        self, *, dry_run: Literal[False] = False, **options: Unpack[RedirectCancelOptions]
    ) -> Outcome: ...

    @overload
    def redirect_cancel(
        self, *, dry_run: Literal[True], **options: Unpack[RedirectCancelOptions]
    ) -> Plan: ...

    @overload
    def redirect_cancel(
        self, *, dry_run: bool, **options: Unpack[RedirectCancelOptions]
    ) -> Outcome | Plan: ...

    def redirect_cancel(
        self,
        *,
        leave_copies: bool = False,
        dry_run: bool = False,
        engine: str = "auto",
        observer: Observer = unobserved,
    ) -> Outcome | Plan:
        """Undo a move that hasn't passed the point of no return."""
        with self._redirects(engine, observer) as redirects:
            return redirects.cancel(self.uri, leave_copies=leave_copies, dry_run=dry_run)

    @overload
    def redirect_disable(
        self, *, dry_run: Literal[False] = False, **options: Unpack[RedirectDisableOptions]
    ) -> Outcome: ...

    @overload
    def redirect_disable(
        self, *, dry_run: Literal[True], **options: Unpack[RedirectDisableOptions]
    ) -> Plan: ...

    @overload
    def redirect_disable(
        self, *, dry_run: bool, **options: Unpack[RedirectDisableOptions]
    ) -> Outcome | Plan: ...

    def redirect_disable(
        self,
        *,
        bring_back: bool = False,
        remove_target: bool = False,
        data: str | None = None,
        abandon_target: bool = False,
        dry_run: bool = False,
        engine: str = "auto",
        observer: Observer = unobserved,
    ) -> Outcome | Plan:
        """End the redirect, and bring all changes back to this table.

        With ``abandon_target`` the target isn't used because it is gone, replaced or
        unreachable: what was written there since READY isn't brought back.
        """
        with self._redirects(engine, observer) as redirects:
            return redirects.disable(
                self.uri,
                bring_back=bring_back,
                remove_target=remove_target,
                data=data,
                abandon_target=abandon_target,
                dry_run=dry_run,
            )

    @overload
    def freeze(self, *, dry_run: Literal[False] = False, mode: str = ...) -> Outcome: ...

    @overload
    def freeze(self, *, dry_run: Literal[True], mode: str = ...) -> Plan: ...

    @overload
    def freeze(self, *, dry_run: bool, mode: str = ...) -> Outcome | Plan: ...

    def freeze(self, *, mode: str = "writer-only", dry_run: bool = False) -> Outcome | Plan:
        """Make the table read-only."""
        with self._redirects() as redirects:
            return redirects.freeze(self.uri, mode=mode, dry_run=dry_run)

    @overload
    def thaw(self, *, dry_run: Literal[False] = False) -> Outcome: ...

    @overload
    def thaw(self, *, dry_run: Literal[True]) -> Plan: ...

    @overload
    def thaw(self, *, dry_run: bool) -> Outcome | Plan: ...

    def thaw(self, *, dry_run: bool = False) -> Outcome | Plan:
        """Make the table writable again after :meth:`freeze`."""
        with self._redirects() as redirects:
            return redirects.thaw(self.uri, dry_run=dry_run)

    @overload
    def push(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TableTransferOptions]
    ) -> Transferred: ...

    @overload
    def push(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TableTransferOptions]
    ) -> Plan: ...

    @overload
    def push(
        self, url: str, *, dry_run: bool, **options: Unpack[TableTransferOptions]
    ) -> Transferred | Plan: ...

    def push(
        self,
        url: str,
        *,
        follow: bool = True,
        engine: str | Engines = "auto",
        dry_run: bool = False,
        observer: Observer = unobserved,
        **options: Unpack[TransferOptions],
    ) -> Transferred | Plan:
        """Push the dataset at this place, a Delta table or an ODF dataset, to a URL.

        ``options`` are those of :class:`~lakeferry.transfer.client.remote_dataset.Terms`:
        ``token`` (default: ``LAKEFERRY_TOKEN``; an empty one means none), ``allowed_hosts``,
        ``parallel`` (the default depends on the two ends), ``force``, ``visibility``,
        ``limit_rate``. If the table is redirected, its target is pushed, unless ``follow`` is
        false. With the Spark engine, or if there is much to move, executors move the objects.
        """
        work = self._transfers(follow, engine, observer)
        return work.push(url, dry_run=dry_run, **options)

    @overload
    def pull(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TableTransferOptions]
    ) -> Transferred: ...

    @overload
    def pull(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TableTransferOptions]
    ) -> Plan: ...

    @overload
    def pull(
        self, url: str, *, dry_run: bool, **options: Unpack[TableTransferOptions]
    ) -> Transferred | Plan: ...

    def pull(
        self,
        url: str,
        *,
        follow: bool = True,
        engine: str | Engines = "auto",
        dry_run: bool = False,
        observer: Observer = unobserved,
        **options: Unpack[TransferOptions],
    ) -> Transferred | Plan:
        """Pull the dataset at a URL to this place; ``options`` as in ``push``."""
        work = self._transfers(follow, engine, observer)
        return work.pull(url, dry_run=dry_run, **options)

    @overload
    async def async_push(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TableTransferOptions]
    ) -> Transferred: ...

    @overload
    async def async_push(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TableTransferOptions]
    ) -> Plan: ...

    @overload
    async def async_push(
        self, url: str, *, dry_run: bool, **options: Unpack[TableTransferOptions]
    ) -> Transferred | Plan: ...

    async def async_push(
        self,
        url: str,
        *,
        follow: bool = True,
        engine: str | Engines = "auto",
        dry_run: bool = False,
        observer: Observer = unobserved,
        **options: Unpack[TransferOptions],
    ) -> Transferred | Plan:
        """Do the same as :meth:`push`, without blocking the event loop."""
        work = self._transfers(follow, engine, observer)
        return await work.async_push(url, dry_run=dry_run, **options)

    @overload
    async def async_pull(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TableTransferOptions]
    ) -> Transferred: ...

    @overload
    async def async_pull(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TableTransferOptions]
    ) -> Plan: ...

    @overload
    async def async_pull(
        self, url: str, *, dry_run: bool, **options: Unpack[TableTransferOptions]
    ) -> Transferred | Plan: ...

    async def async_pull(
        self,
        url: str,
        *,
        follow: bool = True,
        engine: str | Engines = "auto",
        dry_run: bool = False,
        observer: Observer = unobserved,
        **options: Unpack[TransferOptions],
    ) -> Transferred | Plan:
        """Do the same as :meth:`pull`, without blocking the event loop."""
        work = self._transfers(follow, engine, observer)
        return await work.async_pull(url, dry_run=dry_run, **options)

    def _transfers(self, follow: bool, engine: str | Engines, observer: Observer) -> Transfers:
        find = partial(self._meant, follow=follow)
        return Transfers(find, engine, observer, self._warn, self._environment)

    def _meant(self, *, follow: bool) -> Store:
        """Return the store of this place, or of the target of its redirect."""
        # Check for a log with versions: an interrupted first pull leaves its mark there, and is
        # resumed.
        is_table = next(self._store.list("_delta_log/0"), None) is not None
        return self._log(follow=True).store if follow and is_table else self._store

    def resolve(self, app_name: str | None = None, *, write: bool = False) -> Resolution:
        """Return where the table is for a session named ``app_name``, with redirects followed."""
        with self._redirects() as redirects, names.named(self._name):
            return redirects.resolve(self.uri, app_name=app_name, write=write)

    def _redirects(self, engine: str = "auto", observer: Observer = unobserved) -> Redirects:
        return Redirects(
            self._places,
            engine=engine,
            observer=observer,
            warn=self._warn,
        )

    def _log(self, *, follow: bool = False) -> DeltaLog:
        """Return the log of the named table, or of the target of its redirect."""
        told: set[str] = set()

        def warn(text: str) -> None:
            # Resolving reads the log, and then it is read again: give each warning once.
            if text not in told:
                told.add(text)
                self._warn(text)

        here = DeltaLog(self._store, warn=warn)
        if not follow:
            return here
        resolver = Resolver(
            lambda uri: self._store if uri == self.uri else self._places.open(uri),
            self._places.catalog,
            grant=self._places.grant,
            warn=warn,
        )
        with unsupported.unless_unsupported(here, None), names.named(self._name):
            found = resolver.resolve(self.uri, allow_managed=True)
        if not found.redirected:
            return here
        self.followed, self.followed_name = found.location, found.name
        return DeltaLog(self._places.open(found.location), warn=warn)

    def _live_files(
        self, log: DeltaLog, version: int | None, wanted: str, observer: Observer
    ) -> tuple[Snapshot, Iterator[pa.RecordBatch]]:
        """Return a version and its live files in batches, from the engine that suits its log."""
        segment = log.segment(version)
        chosen = suitable(wanted, len(segment.files), segment.size_bytes, self._warn)
        if chosen == "spark":
            from lakeferry.engines import open_engine

            with ExitStack() as stack:
                spark = stack.enter_context(open_engine("spark"))
                plan = engine.ReplayPlan(log.store.config, segment)
                # If a checkpoint can't be read, the code below works around it.
                with suppress(CorruptLog):
                    replayed = stack.enter_context(spark.replay(plan, observer))
                    return replayed.small, _until_read(replayed, stack.pop_all())
        snapshot = log.snapshot_of(segment)
        return snapshot, iter(snapshot.files.to_batches())


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
    with names.named(table):
        found = following.resolve(
            place.uri,
            storage_options=storage_options,
            granted=place.storage_options,
            app_name=app_name,
            write=write,
        )
    return found.location


def _commit(revision: Revision) -> Commit:
    values = revision.commit_info.values if revision.commit_info else {}

    def get(name: str, kind: type) -> Any:
        value = values.get(name)
        return value if type(value) is kind else None

    return Commit(
        version=revision.version,
        timestamp=revision.timestamp,
        operation=get("operation", str),
        operation_parameters=values.get("operationParameters"),
        operation_metrics=values.get("operationMetrics"),
        user_id=get("userId", str),
        user_name=get("userName", str),
        user_metadata=values.get("userMetadata"),
        engine_info=get("engineInfo", str),
        is_blind_append=get("isBlindAppend", bool),
        isolation_level=get("isolationLevel", str),
        read_version=get("readVersion", int),
        txn_id=get("txnId", str),
    )


def _until_read(replayed: engine.Replayed, held: ExitStack) -> Iterator[pa.RecordBatch]:
    """Yield the files; close the engine after the last one, or when the caller stops reading."""
    with held:
        yield from replayed.files()
