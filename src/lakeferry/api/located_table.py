"""Where a table is: what all methods of ``lakeferry.Table`` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TypedDict

from lakeferry.api.dry_run_plan import Plan as Plan
from lakeferry.catalogs import names, split_name
from lakeferry.catalogs.places import PlaceOptions, Places
from lakeferry.engine import VERIFY, Observer
from lakeferry.errors import InvalidInput
from lakeferry.redirect.resolve import Resolver
from lakeferry.storage import Store
from lakeferry.table import DeltaLog, unsupported
from lakeferry.table.managed import ManagedStore
from lakeferry.table.version_reading import KeepsFiles, VersionReading


def reads_both_ends(verify: str) -> bool:
    """Return whether copies are read at both ends: ``full``; otherwise ``store``."""
    if verify not in VERIFY:
        raise InvalidInput(
            f"{verify!r} isn't one of the values of --verify",
            remedy=f"use one of {', '.join(VERIFY)}",
        )
    return verify == "full"


class WorkOptions(TypedDict, total=False):
    """Which engine does the work of a method, and which observer receives its progress."""

    engine: str
    observer: Observer


class CopyOptions(WorkOptions, total=False):
    """The options of methods that copy."""

    limit_rate: int | None
    """The most bytes per second that this process moves; what a store copies isn't limited."""


class LocatedTable:
    """A place or a name in a catalog, and the log that is found there."""

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
            else Places(storage_options, environment=environment, warn=warn)
        )
        self.followed: str | None = None
        """The place of the target, if the last call that could follow a redirect followed one."""
        self.followed_name: str | None = None
        """The target's name in a catalog, if it was found by name."""
        self.followed_from: tuple[str, ...] = ()
        """The places from which redirects led to the target in that call, the first one first."""
        self._environment = environment
        if split_name(uri) is None:
            # Invalid places and invalid options are refused at once.
            _ = self._store

    def __repr__(self) -> str:
        """Return where the table is; never its options, which may hold a secret."""
        return f"Table({self.shown_name!r})"

    @cached_property
    def _store(self) -> Store:
        return self._places.open(self._places.locate(self._name))

    def look_up(self) -> None:
        """Find the table's place now; what the catalog said of it counts for the next call, too."""
        _ = self._store

    @property
    def uri(self) -> str:
        """The table's place, in Lakeferry's canonical spelling."""
        store = self._store
        if isinstance(store, ManagedStore):
            # The next call is to see the table's state at its own time.
            store.catalog.forget()
        return store.uri

    @property
    def shown_name(self) -> str:
        """How messages name the table: by its name in a catalog if it was given, or its place."""
        return self.uri if split_name(self._name) is None else self._name

    def _log(self) -> DeltaLog:
        """Return the log of the named table."""
        return self._opened(follow=False)[0]

    def _opened(
        self, *, follow: bool, keeps_files: KeepsFiles = False
    ) -> tuple[DeltaLog, VersionReading | None]:
        """Return the log of the named table, or of the target of its redirect.

        And what was read of its newest version to find out, if redirects were followed; with
        ``keeps_files`` the commits' file actions, too.
        """
        told: set[str] = set()

        def warn(text: str) -> None:
            # Several questions to one log may bring the same warning: give each one once.
            if text not in told:
                told.add(text)
                self._warn(text)

        self.followed_from = ()
        here = DeltaLog(self._store, warn=warn).keeping_reads()
        if not follow:
            return here, None
        resolver = Resolver(
            lambda uri: self._store if uri == self._store.uri else self._places.open(uri),
            self._places.catalog,
            grant=self._places.grant,
            warn=warn,
        )
        with unsupported.unless_unsupported(here, None), names.name_in_errors(self._name):
            found = resolver.resolve(
                self._store.uri, allow_managed=True, hands_on=True, keeps_files=keeps_files
            )
        store = self._store
        if found.redirected:
            self.followed, self.followed_name = found.location, found.name
            self.followed_from = found.chain[:-1]
            store = self._places.open(found.location)
        source = None if found.reading is None else found.reading.source
        return DeltaLog(store, warn=warn, source=source), found.reading
