"""What ``inspect`` says of a redirect: the entry, and warnings about it.

Nothing is refused here. An invalid entry is shown unchanged, with a finding beside
it; an unreachable target is a finding too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from lakeferry.catalogs import Catalog, GrantAccess, ungranted
from lakeferry.errors import (
    LakeferryError,
    NotATable,
    RedirectSpecInvalid,
    RedirectTargetMissing,
    RedirectTargetReplaced,
    TableNotFound,
)
from lakeferry.log import features
from lakeferry.log.features import TABLE_ID_PROPERTY
from lakeferry.log.replay import Snapshot
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    dialects,
    entry,
    lineage,
    managed_commits,
    move_lookup,
    read_entry,
    received_entries,
    redirect_commits,
)
from lakeferry.redirect.enable import move_record
from lakeferry.redirect.entry import Data, Redirect
from lakeferry.redirect.managed_commits import MissingRequirements
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.old_paths import OldPath, old_paths
from lakeferry.redirect.states import RedirectState
from lakeferry.redirect.target_in_catalog import find_in_catalog
from lakeferry.storage import Store
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog
from lakeferry.table.managed import ManagedStore

RedirectFinding = tuple[str, str]
"""A stable code and a sentence."""
NOWHERE = "redirect_leads_nowhere"


@dataclass(frozen=True, slots=True)
class RedirectEntry:
    """A redirect as a table carries it.

    ``feature``, ``property`` and ``value`` are what the table has. The other attributes are
    the parsed entry, ``None`` if the entry is invalid.
    """

    feature: str | None
    property: str | None
    value: str | None
    state: str | None = None
    mode: str | None = None
    dialects: tuple[str, ...] | None = None
    type: str | None = None
    target: str | None = None
    source: str | None = None
    rules: tuple[Rule, ...] | None = None

    def as_document(self) -> dict[str, Any]:
        """Return the ``redirect`` object of the output of ``inspect``."""
        rules = None if self.rules is None else [rule.as_document() for rule in self.rules]
        dialects = None if self.dialects is None else list(self.dialects)
        return asdict(self) | {"dialects": dialects, "rules": rules}


def describe_redirect(
    found: Snapshot | TableState, location: str
) -> tuple[RedirectEntry | None, Redirect | None, list[RedirectFinding]]:
    """Return the entry of a table, the parsed redirect, and findings about it."""
    protocol, metadata = found.protocol, found.metadata
    odd: list[RedirectFinding] = []
    redirect: Redirect | None = None
    try:
        redirect = read_entry.read(protocol, metadata, location)
    except RedirectSpecInvalid as invalid:
        odd.append(("redirect_spec_invalid", str(invalid)))
    if redirect is not None and redirect.doubled:
        both = "the table has redirects of both modes: the reader-writer one is followed"
        odd.append(("redirect_of_both_modes", f"{both}, and neither can be changed"))
    odd += [
        (
            "property_without_feature",
            f"{name} is set, but has no effect: the protocol lacks its feature",
        )
        for name in read_entry.stray(protocol, metadata)
    ]
    odd += [
        (
            "redirect_without_entry",
            f"feature {feature} is in the protocol, but no table property has its redirect",
        )
        for feature in sorted(features.REDIRECT_FEATURES & protocol.features)
        if not any(name in metadata.configuration for name in _properties(feature))
    ]
    return _entry(found, redirect), redirect, odd


def _properties(feature: str) -> tuple[str, str]:
    # One dialect leaves out the prefix of Delta's own properties.
    return f"delta.{feature}", feature


def _entry(found: Snapshot | TableState, redirect: Redirect | None) -> RedirectEntry | None:
    configuration = found.metadata.configuration
    if redirect is not None:
        named = dialects.property_of(redirect.dialects[0], redirect.mode)
        return RedirectEntry(
            entry.feature_of(redirect.dialects[0], redirect.mode),
            named,
            configuration[named],
            redirect.state.value,
            redirect.mode.value,
            tuple(dialect.value for dialect in redirect.dialects),
            redirect.kind.value,
            str(redirect.target) if redirect.target else None,
            redirect.source,
            redirect.rules,
        )
    present = found.protocol.features
    # An entry whose feature is present comes first: it blocks clients even if it is invalid.
    for feature in sorted(features.REDIRECT_FEATURES, key=lambda name: (name not in present, name)):
        in_force = feature if feature in present else None
        for name in _properties(feature):
            if name in configuration:
                return RedirectEntry(in_force, name, configuration[name])
        if in_force is not None:
            return RedirectEntry(in_force, None, None)
    return None


def about_unfinished(store: Store, found: Snapshot | TableState) -> Iterator[RedirectFinding]:
    """Yield a finding if a table without a redirect has an interrupted move; one request."""
    try:
        record = move_record.read_record(store)
    except LakeferryError:
        # The table itself could be read; commands that need the record report this error.
        return
    if record is not None:
        source, target = record.request.source, record.request.target
        on = f"'lakeferry redirect resume {shell_safe(source)}' continues it"
        back = f"'lakeferry redirect cancel {shell_safe(source)}' undoes it"
        adds = ""
        if (managed := record.request.managed_target) is not None:
            lacking = managed_commits.missing_requirements(found.protocol, found.metadata, managed)
            adds = f"; it gives the target what the catalog requires: {lacking}" if lacking else ""
        yield "redirect_unfinished", f"a move to {target} was interrupted: {on}, {back}{adds}"


def about_requirements(
    found: Snapshot | TableState,
    store: ManagedStore,
    open_log: Callable[[str], DeltaLog],
) -> Iterator[RedirectFinding]:
    """Yield a finding if a managed table lacks what its catalog requires, and how to set it."""
    known = managed_commits.documented_requirements(store.catalog.table_id)
    lacking = managed_commits.missing_requirements(found.protocol, found.metadata, known)
    if lacking is None:
        return
    paths: list[OldPath] = []
    with suppress(LakeferryError):
        paths = old_paths(open_log, DeltaLog(store))
    name = store.catalog.name.partition(":")[2]
    sources = [path.source for path in paths if path.source is not None]
    yield "managed_requirements_missing", lacking_sentence(name, lacking, sources)


def lacking_sentence(name: str, lacking: MissingRequirements, sources: Sequence[str]) -> str:
    """Return what a managed table lacks, what follows from it, and the command that sets it.

    ``sources`` are old paths from which the table has moved.
    """
    follows = "its catalog refuses every change of the protocol without them"
    if TABLE_ID_PROPERTY in lacking.properties:
        follows = f"{follows}, and delta-spark can't open the table"
    command = f"Spark sets them: {lacking.statement(name)}"
    if sources:
        command = f"'lakeferry redirect resume {shell_safe(sources[0])}' sets them"
    return f"{name} lacks {lacking}: {follows}; {command}"


def about_target(
    redirect: Redirect,
    found: Snapshot | TableState,
    source: DeltaLog,
    open_store: Callable[[str], Store],
    catalog: Callable[[str], Catalog],
    grant: GrantAccess = ungranted,
) -> Iterator[RedirectFinding]:
    """Yield findings about the target of a table's redirect; costs a few requests.

    ``found`` is the newest version of ``source``. An old entry that a RESTORE brought back
    after the withdrawal leads nowhere.
    """
    store = source.store
    if not received_entries.counts(store, redirect):
        yield "redirect_arrived", received_entries.NOT_FOLLOWED
        return
    if redirect.target is None or redirect.is_target(store.uri):
        return
    try:
        if redirect.state is RedirectState.ENABLING:
            yield from _about_beginning(redirect, found, source)
            return
        place = redirect.target.location
        if place is None:
            place = find_in_catalog(catalog, redirect, store.uri, grant).location
        target = DeltaLog(open_store(place)).keeping_reads()
        there = target.state()
        lineage.check_lineage(redirect, store.uri, found.metadata.id, target)
    except RedirectTargetReplaced as stranger:
        yield NOWHERE, f"{stranger}; {stranger.remedy}"
    except (RedirectTargetMissing, TableNotFound, NotATable) as missing:
        yield (
            NOWHERE,
            f"the redirect leads to {redirect.target}, where there is no table: {missing}",
        )
    except LakeferryError as failed:
        yield "redirect_target_unreachable", f"the redirect's target can't be read: {failed}"
    else:
        yield from about_lock(redirect, found, there, place, source)


def _about_beginning(
    redirect: Redirect, found: Snapshot | TableState, source: DeltaLog
) -> Iterator[RedirectFinding]:
    begun = redirect_commits.read_commit(source.source, found.version)
    begins = begun is not None and move_lookup.is_beginning(begun[1].commit_info, redirect)
    if redirect.journal is not None and not begins:
        why = (
            f"version {found.version} isn't the commit that started the move, so the move can't be "
            "resumed; 'lakeferry redirect cancel' removes the redirect"
        )
        yield NOWHERE, f"the redirect is being set up ({redirect.state.value}), and {why}"


def about_lock(
    redirect: Redirect,
    found: Snapshot | TableState,
    there: TableState,
    place: str,
    source: DeltaLog,
) -> Iterator[RedirectFinding]:
    """Yield a finding if the redirect from ``source`` to ``place`` has ended."""
    if redirect.journal is None or redirect.journal.data is Data.EXISTING:
        return
    try:
        lock = read_entry.read(there.protocol, there.metadata, place)
    except RedirectSpecInvalid as invalid:
        yield "redirect_spec_invalid", str(invalid)
        return
    if move_lookup.leads_nowhere(source, redirect, found.version):
        why = "but it was already ended: the old redirect came back, perhaps by a RESTORE"
        remedy = "'lakeferry redirect disable' removes it"
        yield NOWHERE, f"the redirect leads to {place}, {why}; {remedy}"
    elif lock is not None and lock.state is RedirectState.DROPPING and lock.is_target(place):
        why = "the redirect to it is still there: 'lakeferry redirect resume' removes it"
        yield "redirect_withdrawal_unfinished", f"{place} is closed, and {why}"
