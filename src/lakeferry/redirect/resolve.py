"""Follows redirects: returns where the table of a path is.

What a client sees depends on the state of the redirect: while it is being set
up the source, from then on the target; writers are refused while it is being
set up or withdrawn. A session that matches a no-redirect rule stays at the
source. Redirects are followed from table to table, up to :data:`MAX_HOPS`.

A table costs one GET for its hint, one LIST and one GET for its checksum file, and a
target one GET more, to check that it is the table that moved (:mod:`.lineage`).
:class:`Resolver` caches what it found for a short time. On a cache hit it makes two
requests: does the source still end with the same commit, and is the target still the
table that moved? A catalog is asked every time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lakeferry.catalogs import (
    NO_ACCESS,
    Catalog,
    CatalogAccess,
    GrantAccess,
    ungranted,
)
from lakeferry.catalogs.places import Places
from lakeferry.errors import (
    CatalogManaged,
    CorruptLog,
    LakeferryError,
    NotATable,
    RedirectRuleViolated,
    RedirectSpecInvalid,
    TableNotFound,
)
from lakeferry.log import features, paths
from lakeferry.log.paths import LogFile
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    following_errors,
    lineage,
    move_lookup,
    read_entry,
    received_entries,
)
from lakeferry.redirect.entry import Redirect, RedirectTarget
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.target_in_catalog import find_in_catalog
from lakeferry.storage import Store, normalise, open_store
from lakeferry.storage.uris import same_place
from lakeferry.table import DeltaLog
from lakeferry.table.version_reading import KeepsFiles, VersionReading

MAX_HOPS = 8
"""How many redirects in a row are followed."""
CACHE_SECONDS = 60.0
_MAX_REMEMBERED = 10_000
_LEADS_BACK = "it leads back to where it has been"


@dataclass(frozen=True, slots=True)
class Resolution:
    """Where a table is for the session that asked."""

    source: str
    location: str
    redirected: bool
    rule: Rule | None = None
    """The no-redirect rule that kept the session at the source."""
    chain: tuple[str, ...] = ()
    """All places in the order they were followed, from the source to the location."""
    name: str | None = None
    """The name in a catalog that the last redirect leads to, as ``sql:cat.schema.t``."""
    access: CatalogAccess = field(default=NO_ACCESS, repr=False, compare=False)
    """How the catalog that named the location lets it be opened."""
    managed: tuple[str, ...] = ()
    """The features by which its catalog decides about its commits: no path is enough then."""
    reading: VersionReading | None = field(default=None, repr=False, compare=False)
    """What was read of the newest version at the location, if the caller asked for it."""

    def only_by_name(self) -> CatalogManaged:
        """Return the error for a managed table of which only the path can be given."""
        name = None if self.name is None else self.name.partition(":")[2]
        return following_errors.managed_by_catalog(self.location, self.managed, name)

    def check_operation(self, operation: str) -> None:
        """Refuse an operation that the matching no-redirect rule doesn't allow."""
        if self.rule is not None and not self.rule.allows(operation):
            raise RedirectRuleViolated(
                f"{operation} isn't allowed at {self.source}",
                cause=f"the table is redirected, and the no-redirect rule '{self.rule}' "
                "doesn't list that operation",
                remedy="use an application name for which there is no rule, or change the rule",
                location=self.source,
                operation=operation,
                rule=self.rule.as_document(),
            )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A cache entry: one table as it was found."""

    version: int
    redirect: Redirect | None
    table_id: str
    withdrawn: bool
    """Whether its redirect is an old one that a RESTORE has brought back."""
    managed: tuple[str, ...]
    """The features by which a catalog decides about its commits."""
    asked: bool
    """Whether it was opened with that catalog."""
    commit: LogFile | None
    """The commit of that version as it was listed, if the log still had it."""
    at: float


class _Logs:
    """The logs that one call reads; each of their files is read once.

    ``readings`` has the place that was read last.
    """

    def __init__(
        self,
        open_store: Callable[[str], Store],
        warn: Callable[[str], None],
        keeps_files: KeepsFiles,
    ) -> None:
        self._open = open_store
        self._warn = warn
        self._keeps_files = keeps_files
        self._logs: dict[str, DeltaLog] = {}
        self.readings: dict[str, VersionReading] = {}

    def at(self, place: str) -> DeltaLog:
        """Return the log of the table at a place."""
        if place not in self._logs:
            self._logs[place] = DeltaLog(self._open(place), warn=self._warn).keeping_reads()
        return self._logs[place]

    def newest(self, place: str) -> VersionReading:
        """Read the newest version of the table at a place."""
        # A table that a redirect leads away from may have many files.
        self.readings.clear()
        reading = self.at(place).newest(keeps_files=self._keeps_files)
        self.readings[place] = reading
        return reading


class Resolver:
    """Follows redirects, and caches what it found for a short time.

    ``open_store`` opens the store of a place, ``catalog`` the catalog of a kind.
    Thread-safe.
    """

    def __init__(
        self,
        open_store: Callable[[str], Store] = open_store,
        catalog: Callable[[str], Catalog] | None = None,
        *,
        grant: GrantAccess = ungranted,
        warn: Callable[[str], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
        cache_seconds: float = CACHE_SECONDS,
        finds_names: bool = False,
    ) -> None:
        """Start with an empty cache.

        ``finds_names``: the name of a target that was renamed in its catalog is looked up, which
        may take many requests. Otherwise such a target is returned without a name.
        """
        self._open = open_store
        self._catalog = catalog or _catalog_of_the_environment
        self._grant = grant
        self._warn = warn
        self._monotonic = monotonic
        self._cache_seconds = cache_seconds
        self._finds_names = finds_names
        self._seen: dict[str, _Seen] = {}
        self._anchors: dict[tuple[str, str | None], lineage.Anchor] = {}
        self._lock = threading.Lock()

    def resolve(
        self,
        table: str,
        *,
        app_name: str | None = None,
        write: bool = False,
        allow_managed: bool = False,
        hands_on: bool = False,
        keeps_files: KeepsFiles = False,
    ) -> Resolution:
        """Return where ``table`` is for a session named ``app_name``, to read or to ``write``.

        A managed table is refused, as a path alone isn't enough to read it. ``allow_managed``
        accepts one that is opened with its catalog, or that isn't redirected. ``hands_on`` is for
        a caller that reads the table next: the result has what was read of it, unless that was
        cached; with ``keeps_files`` also the commits' file actions, which may be very many.
        """
        granted: dict[str, CatalogAccess] = {}
        logs = _Logs(self._open, self._warn, keeps_files)
        found, target = self._followed(normalise(table), app_name, write, granted, logs)
        if hands_on:
            found = replace(found, reading=logs.readings.get(found.location))
        if found.managed:
            found = self._with_name(found, target)
        if found.managed and not (
            allow_managed and (not found.redirected or self._is_asked(found.location))
        ):
            raise found.only_by_name()
        return replace(found, access=granted.get(found.location, NO_ACCESS))

    def _followed(
        self,
        source: str,
        app_name: str | None,
        write: bool,
        granted: dict[str, CatalogAccess],
        logs: _Logs,
    ) -> tuple[Resolution, RedirectTarget | None]:
        """Return where redirects lead, and the last target."""
        chain = [source]
        target: RedirectTarget | None = None
        named: str | None = None
        while True:
            here = chain[-1]
            try:
                seen = self._look(here, chain[-2] if len(chain) > 1 else None, logs)
            except CorruptLog as broken:
                raise following_errors.unreadable(broken, here) from broken
            redirect = seen.redirect
            if redirect is None or redirect.is_target(here):
                if write and redirect is not None:
                    raise following_errors.writes_blocked(here, redirect.state)
                break
            rule = redirect.rule_for(app_name)
            if rule is not None:
                kept = Resolution(source, here, len(chain) > 1, rule, tuple(chain), named)
                return replace(kept, managed=seen.managed), target
            if write and redirect.state.refuses_writers:
                raise following_errors.writes_blocked(here, redirect.state)
            if not redirect.state.sends_readers_on:
                break
            if seen.withdrawn:
                raise following_errors.withdrawn(here, redirect)
            target = redirect.target
            following, named = self._place(redirect, here, granted)
            if any(same_place(following, place) for place in chain):
                raise following_errors.endless([*chain, following], _LEADS_BACK)
            if len(chain) > MAX_HOPS:
                why = f"it has more than {MAX_HOPS} redirects"
                raise following_errors.endless([*chain, following], why)
            self._check_lineage(here, seen, following, logs)
            chain.append(following)
        found = Resolution(source, here, len(chain) > 1, None, tuple(chain), named)
        return replace(found, managed=seen.managed), target

    def _with_name(self, found: Resolution, target: RedirectTarget | None) -> Resolution:
        """Return the place of a managed table with the current name of the target's id.

        A table that was renamed may have no name yet, or one that is only its id.
        """
        if target is None or target.kind.catalog is None or target.table_id is None:
            return found
        kind = target.kind.catalog
        if found.name not in (None, f"{kind}:{target.table_id}"):
            return found
        with suppress(LakeferryError):
            known = self._catalog(kind).find_id(target.table_id, target.metastore_id, target.name)
            if known is not None and known.name != target.table_id:
                return replace(found, name=f"{kind}:{known.name}")
        return replace(found, name=None)

    def check_leads_elsewhere(
        self, table: str, source: str, *, allow_managed: bool = False
    ) -> tuple[str, ...]:
        """Refuse a table whose redirects lead back to ``source``; return where they lead."""
        chain = self.resolve(table, allow_managed=allow_managed).chain
        if any(same_place(place, source) for place in chain):
            raise following_errors.endless([source, *chain], _LEADS_BACK)
        return chain

    def forget(self, table: str) -> None:
        """Remove a table from the cache, so that the next call reads it from the store."""
        with self._lock:
            self._seen.pop(normalise(table), None)

    def _look(self, place: str, led_from: str | None, logs: _Logs) -> _Seen:
        """Return the table at a place; ``led_from`` is the table whose redirect led there."""
        now = self._monotonic()
        seen = self._seen.get(place)
        fresh = seen is not None and now - seen.at < self._cache_seconds
        # Only the first table of a chain is checked again: a target that is moved or
        # withdrawn meanwhile refuses writers by itself.
        first = led_from is None
        if seen and fresh and not (first and self._has_moved_on(place, seen)):
            return seen
        log = logs.at(place)
        store = log.store
        try:
            reading = logs.newest(place)
        except (TableNotFound, NotATable) as missing:
            if led_from is None:
                raise
            raise following_errors.target_missing(led_from, place, missing) from missing
        state = reading.state()
        found = self._in_force(store, state, place)
        managed = features.catalog_managed(state.protocol)
        withdrawn = found is not None and move_lookup.leads_nowhere(log, found, state.version)
        asked = bool(managed) and store.asks_catalog
        table_id = state.metadata.id
        seen = _Seen(
            state.version, found, table_id, withdrawn, managed, asked, reading.segment.commit, now
        )
        with self._lock:
            if len(self._seen) >= _MAX_REMEMBERED:
                self._seen.clear()
                self._anchors.clear()
            self._seen[place] = seen
        return seen

    def _is_asked(self, place: str) -> bool:
        """Return whether a table that was just looked at is opened with its catalog."""
        seen = self._seen.get(place)
        return self._open(place).asks_catalog if seen is None else seen.asked

    def _check_lineage(self, source: str, seen: _Seen, target: str, logs: _Logs) -> None:
        """Refuse a target that isn't the table that moved there.

        Checked every time, for one GET: a replaced target leaves no sign at the source.
        """
        redirect = seen.redirect
        if redirect is None or redirect.journal is None:
            return
        key = (target, redirect.journal.move_id)
        log = logs.at(target)
        known = self._anchors.get(key)
        if known is not None and known.holds(log.source):
            return
        with self._lock:
            self._seen.pop(target, None)
            self._anchors.pop(key, None)
        try:
            anchor = lineage.check_lineage(redirect, source, seen.table_id, log)
        except (TableNotFound, NotATable) as missing:
            raise following_errors.target_missing(source, target, missing) from missing
        if anchor is not None:
            with self._lock:
                self._anchors[key] = anchor

    def _in_force(self, store: Store, state: TableState, place: str) -> Redirect | None:
        """Return the redirect of a table, unless the entry arrived by push or pull."""
        try:
            found = redirect_of(state, place, self._warn)
            if found is None or received_entries.counts(store, found):
                return found
        except RedirectSpecInvalid:
            if not received_entries.is_received(store):
                raise
        self._warn(f"{place}: {received_entries.NOT_FOLLOWED}")
        return None

    def _has_moved_on(self, place: str, seen: _Seen) -> bool:
        """Return whether the log ends with another commit than before; costs one LIST.

        It has a newer version, or the table was replaced, for example from a backup.
        """
        if seen.commit is None:
            return True
        listed = self._open(place).list(
            f"{paths.LOG_DIR}/",
            start_after=paths.before_version(seen.version),
            stop_before=paths.END_OF_VERSIONS,
        )
        newer = paths.before_version(seen.version + 1)
        same = False
        for found in listed:
            if found.path > newer:
                return True
            if found.path == seen.commit.path:
                sizes = found.size_bytes == seen.commit.size_bytes
                same = sizes and found.modified_ms == seen.commit.modified_ms
        return not same

    def _place(
        self, redirect: Redirect, source: str, granted: dict[str, CatalogAccess]
    ) -> tuple[str, str | None]:
        """Return where a redirect's target is, and its name in its catalog."""
        target = redirect.target
        assert target is not None
        if target.location is not None:
            return target.location, None

        def grant(place: str, access: CatalogAccess) -> None:
            granted[place] = access
            self._grant(place, access)

        found = find_in_catalog(
            self._catalog, redirect, source, grant, finds_name=self._finds_names
        )
        if found.name == target.table_id and not self._finds_names:
            return found.location, None
        return found.location, f"{target.kind.catalog}:{found.name}"


def redirect_of(
    state: TableState, place: str, warn: Callable[[str], None] = lambda _: None
) -> Redirect | None:
    """Return the redirect that a table carries; warn if its entry is unusual."""
    for name in read_entry.stray(state.protocol, state.metadata):
        warn(
            f"{place} has the property {name} without its table feature: the redirect isn't "
            "followed"
        )
    found = read_entry.read(state.protocol, state.metadata, place)
    if found is not None and found.doubled:
        warn(f"{place} has redirects of both modes: the reader-writer one is followed")
    return found


def _catalog_of_the_environment(kind: str) -> Catalog:
    from lakeferry.catalogs import open_catalog

    return open_catalog(kind)


_resolvers: dict[tuple[tuple[str, str], ...], tuple[Resolver, Places]] = {}
_resolvers_lock = threading.Lock()


def resolve_table(
    table: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    access: CatalogAccess = NO_ACCESS,
    app_name: str | None = None,
    write: bool = False,
    allow_managed: bool = False,
    hands_on: bool = False,
    keeps_files: KeepsFiles = False,
) -> Resolution:
    """Return where ``table`` is; results are cached for a short time.

    ``storage_options`` apply to every place on the way, ``access`` is how a
    catalog lets ``table`` itself be opened. ``allow_managed`` is for callers that open the
    location with :attr:`Resolution.access`, ``hands_on`` and ``keeps_files`` for those that read
    it next.
    """
    options = dict(storage_options or {})
    key = tuple(sorted(options.items()))
    with _resolvers_lock:
        if key not in _resolvers:
            opened = Places(options)
            _resolvers[key] = Resolver(opened.open, grant=opened.grant), opened
        resolver, places = _resolvers[key]
    if access is not NO_ACCESS:
        places.grant(table, access)
    return resolver.resolve(
        table,
        app_name=app_name,
        write=write,
        allow_managed=allow_managed,
        hands_on=hands_on,
        keeps_files=keeps_files,
    )
