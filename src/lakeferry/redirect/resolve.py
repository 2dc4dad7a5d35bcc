"""Where a path leads: redirects followed, as modern clients follow them.

What a client sees depends on the state of the redirect: while it is being set
up the source, from then on the target; writers are refused while it is being
set up or withdrawn. A session that a no-redirect rule is about stays at the
source. Redirects are followed from table to table, up to a bound.

A table costs one GET for its hint, one LIST and one GET for its checksum file.
:class:`Resolver` remembers what it found: asked again within a short while, it
asks the store once whether the source has a new version. A catalog is asked
every time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lakeferry.catalogs import Catalog, CatalogTable, Grant, ungranted
from lakeferry.errors import (
    NotATable,
    RedirectCycle,
    RedirectInProgress,
    RedirectRuleViolated,
    RedirectTargetMissing,
    TableNotFound,
)
from lakeferry.log import paths
from lakeferry.log.replay import State as TableState
from lakeferry.redirect import dialects
from lakeferry.redirect.model import Redirect, Rule, Target
from lakeferry.redirect.states import State
from lakeferry.storage import Store, normalise, open_store
from lakeferry.storage.uris import same_place
from lakeferry.table import DeltaLog

MAX_HOPS = 8
"""How many redirects in a row are followed."""
CACHE_SECONDS = 60.0
_MAX_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Resolution:
    """Where a table is for the one who asked."""

    source: str
    location: str
    redirected: bool
    rule: Rule | None = None
    """The no-redirect rule that kept the session at the source."""
    chain: tuple[str, ...] = ()
    """Every place on the way, the source first and the location last."""

    def check_operation(self, operation: str) -> None:
        """Refuse what the rule that kept the session at the source doesn't allow."""
        if self.rule is not None and not self.rule.allows(operation):
            raise RedirectRuleViolated(
                f"{operation} isn't allowed at {self.source}",
                cause=f"the table is redirected, and the no-redirect rule '{self.rule}' "
                "doesn't list that operation",
                remedy="use an application name that no rule is about, or change the rule",
                location=self.source,
                operation=operation,
                rule=self.rule.as_document(),
            )


@dataclass(frozen=True, slots=True)
class _Seen:
    """One table as it was found."""

    version: int
    redirect: Redirect | None
    at: float


class Resolver:
    """Follows redirects, and remembers what it found for a short while.

    ``open_store`` gives the store of a place, ``catalog`` the catalog of a kind.
    One resolver may serve many threads.
    """

    def __init__(
        self,
        open_store: Callable[[str], Store] = open_store,
        catalog: Callable[[str], Catalog] | None = None,
        *,
        grant: Grant = ungranted,
        warn: Callable[[str], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
        cache_seconds: float = CACHE_SECONDS,
    ) -> None:
        """Remember nothing yet."""
        self._open = open_store
        self._catalog = catalog or _catalog_of_the_environment
        self._grant = grant
        self._warn = warn
        self._monotonic = monotonic
        self._cache_seconds = cache_seconds
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    def resolve(
        self, table: str, *, app_name: str | None = None, write: bool = False
    ) -> Resolution:
        """Return where ``table`` is for a session of that name, to read it or to ``write``."""
        source = normalise(table)
        chain = [source]
        while True:
            here = chain[-1]
            redirect = self._redirect(here, first=len(chain) == 1, source=source)
            if redirect is None or redirect.is_target(here):
                if write and redirect is not None:
                    raise _in_progress(here, redirect.state)
                return Resolution(source, here, len(chain) > 1, None, tuple(chain))
            rule = redirect.rule_for(app_name)
            if rule is not None:
                return Resolution(source, here, len(chain) > 1, rule, tuple(chain))
            if write and redirect.state.refuses_writers:
                raise _in_progress(here, redirect.state)
            if not redirect.state.sends_readers_on:
                return Resolution(source, here, len(chain) > 1, None, tuple(chain))
            assert redirect.target is not None
            following = self._place(redirect.target, here)
            if any(same_place(following, place) for place in chain):
                raise _cycle([*chain, following], "it leads back to where it has been")
            if len(chain) > MAX_HOPS:
                raise _cycle([*chain, following], f"it has more than {MAX_HOPS} redirects")
            chain.append(following)

    def check_leads_elsewhere(self, table: str, source: str) -> None:
        """Refuse a table from which redirects lead back to ``source``."""
        chain = self.resolve(table).chain
        if any(same_place(place, source) for place in chain):
            raise _cycle([source, *chain], "it leads back to where it has been")

    def forget(self, table: str) -> None:
        """Ask the store anew when this table is next asked for."""
        with self._lock:
            self._seen.pop(normalise(table), None)

    def _redirect(self, place: str, *, first: bool, source: str) -> Redirect | None:
        now = self._monotonic()
        seen = self._seen.get(place)
        fresh = seen is not None and now - seen.at < self._cache_seconds
        # Of a chain only the beginning is looked at again: a target that is moved or
        # withdrawn meanwhile refuses writers by itself.
        if seen and fresh and not (first and self._has_moved_on(place, seen.version)):
            return seen.redirect
        try:
            state = DeltaLog(self._open(place), warn=self._warn).state()
        except (TableNotFound, NotATable) as missing:
            if first:
                raise
            raise RedirectTargetMissing(
                f"the redirect of {source} leads to {place}, where no table is",
                cause=str(missing),
                remedy="restore the target from a copy: what was written since READY is there",
                location=source,
                target=place,
            ) from missing
        found = redirect_of(state, place, self._warn)
        with self._lock:
            if len(self._seen) >= _MAX_REMEMBERED:
                self._seen.clear()
            self._seen[place] = _Seen(state.version, found, now)
        return found

    def _has_moved_on(self, place: str, version: int) -> bool:
        newer = self._open(place).list(
            f"{paths.LOG_DIR}/",
            start_after=paths.before_version(version + 1),
            stop_before=paths.END_OF_VERSIONS,
        )
        return next(newer, None) is not None

    def _place(self, target: Target, source: str) -> str:
        if target.location is not None:
            return target.location
        return find_in_catalog(self._catalog, target, source, self._grant)


def redirect_of(
    state: TableState, place: str, warn: Callable[[str], None] = lambda _: None
) -> Redirect | None:
    """Return the redirect that a table carries, and say what is odd about it."""
    for name in dialects.stray(state.protocol, state.metadata):
        warn(f"{place} has the property {name} without its feature: it isn't followed")
    found = dialects.read(state.protocol, state.metadata, place)
    if found is not None and found.doubled:
        warn(f"{place} has redirects of both modes: the reader-writer one is followed")
    return found


def find_in_catalog(
    catalog: Callable[[str], Catalog],
    target: Target,
    source: str,
    grant: Grant = ungranted,
) -> str:
    """Ask the catalog where the target is, and for what it takes to open it there."""
    kind = target.kind.catalog
    assert kind is not None
    asked = catalog(kind)
    found: CatalogTable | None = None
    if target.table_id is not None:
        place = asked.locate_id(target.table_id, target.metastore_id)
        if place is not None:
            found = CatalogTable("", normalise(place), target.table_id, target.metastore_id)
    else:
        assert target.name is not None
        found = asked.find(target.name)
    if found is None:
        raise RedirectTargetMissing(
            f"the redirect of {source} leads to {target}, which the catalog doesn't have",
            remedy="register the table again: lakeferry catalog register NAME LOCATION",
            location=source,
            target=str(target),
        )
    location = normalise(found.location)
    options = asked.credentials(found)
    if options:
        grant(location, options)
    return location


def _catalog_of_the_environment(kind: str) -> Catalog:
    from lakeferry.catalogs import open_catalog

    return open_catalog(kind)


def _in_progress(place: str, state: State) -> RedirectInProgress:
    what = "set up" if state is State.ENABLING else "withdrawn"
    return RedirectInProgress(
        f"{place} can't be written to now",
        cause=f"its redirect is being {what} ({state.value})",
        remedy="try again in a moment; 'redirect status' tells how far it is",
        location=place,
        state=state.value,
    )


def _cycle(chain: list[str], why: str) -> RedirectCycle:
    return RedirectCycle(
        f"the redirect of {chain[0]} has no end",
        cause=f"{why}: {' -> '.join(chain)}",
        remedy="end one of these redirects with 'redirect disable'",
        chain=chain,
    )


_resolvers: dict[tuple[tuple[str, str], ...], Resolver] = {}
_resolvers_lock = threading.Lock()


def resolve(
    table: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    app_name: str | None = None,
    write: bool = False,
) -> Resolution:
    """Return where ``table`` is; what was found is remembered for a short while.

    ``storage_options`` are those of every place on the way.
    """
    options = dict(storage_options or {})
    key = tuple(sorted(options.items()))
    with _resolvers_lock:
        if key not in _resolvers:
            granted: dict[str, Mapping[str, str]] = {}
            _resolvers[key] = Resolver(
                lambda uri: open_store(uri, {**granted.get(normalise(uri), {}), **options}),
                grant=granted.__setitem__,
            )
        resolver = _resolvers[key]
    return resolver.resolve(table, app_name=app_name, write=write)
