"""Copies the changes of an existing target back, and refuses names that both tables use.

The target was a table of its own before the redirect, so no version number matches: the changes
come back in one commit (:mod:`~lakeferry.redirect.disable.net_change`). What only a managed table
has stays there (:mod:`~lakeferry.redirect.disable.managed_return`).

The target isn't locked: it was there before the redirect, and goes on without it. So its changes
are brought while the redirect is READY, and what was written meanwhile once more in DROPPING, when
nobody begins to write by the old path any more. What comes later is told.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import CheckPlan, CopyPlan, CopyTotals
from lakeferry.errors import Diverged, HashMismatch, InvalidInput, LakeferryError
from lakeferry.log import actions, features, protocols
from lakeferry.log.replay import Snapshot
from lakeferry.log.replay import TableState as TableState
from lakeferry.log.rewrite import Fetched, Rewrite
from lakeferry.log.segment import Segment
from lakeferry.redirect import (
    data_completeness,
    lineage,
    managed_commits,
    owned_file_removal,
    redirect_commits,
    steps,
)
from lakeferry.redirect.disable import bring_back, net_change, source_divergence
from lakeferry.redirect.disable.managed_return import ManagedReturn, has_vectors
from lakeferry.redirect.disable.withdrawal import compared_objects, copy_back
from lakeferry.redirect.disable.withdrawn_target import target_place
from lakeferry.redirect.entry import Redirect
from lakeferry.redirect.redirect_commits import Bare
from lakeferry.redirect.redirect_context import Setting
from lakeferry.table import DeltaLog


@dataclass(frozen=True, slots=True)
class Brought:
    """The source's newest state, and what was copied to it."""

    state: TableState
    copied: CopyTotals
    version: int | None
    """The target's version that the source has now; ``None`` if it isn't known."""
    problem: LakeferryError | None = None
    """Why the rest couldn't be brought."""


def bring_existing(
    setting: Setting,
    source: DeltaLog,
    target: DeltaLog,
    state: TableState,
    redirect: Redirect,
    *,
    compares: bool,
) -> Brought:
    """Commit the changes of an existing target at the source.

    Source and target are independent tables: each keeps its id, and a name that both use
    for different files is refused.
    """
    since = redirect.journal.ready_version if redirect.journal else None
    if since is None:
        raise InvalidInput(
            "the changes can't be brought back",
            cause="another program made the redirect, and the time when it became READY is unknown",
            remedy="leave out --bring-back, and copy the rows that you need from the target",
        )
    source_divergence.own_commits(source, target.store.uri, since, state)
    segment = target.segment()
    theirs = target.snapshot_of(segment)
    lineage.check_lineage(redirect, source.store.uri, state.metadata.id, target)
    rewrite = Fetched(source.store.uri, target.store.uri)

    counted: dict[str, Any] = {}
    setting.step(
        steps.copy_step("copy_changes", target.store.uri, source.store.uri, lambda: counted)
    )

    def copy(segment: Segment) -> CopyTotals:
        refuse_clashes(setting, source, target, segment, theirs, rewrite)
        engine = setting.engine(*setting.measure(target.store, segment))
        compared = compared_objects(resumed=True, compares=compares)
        plan = CopyPlan(target.store.config, source.store.config, segment, rewrite, True, compared)
        totals = copy_back(setting, engine, plan)
        counted.update(totals.counted())
        if totals.missing_count:
            data_completeness.refuse_lost(setting, target.store, segment, rewrite, source.store)
        return totals

    totals = target.working_around(segment, copy)
    mine = source.state(state.version)
    managed = target.store.asks_catalog
    if managed:
        theirs = _without_its_catalog(theirs, mine, redirect)
    merged = protocols.adding(mine.protocol, sorted(features.implied_features(theirs.protocol)))
    kept = actions.changed(theirs.metadata, id=mine.metadata.id)
    theirs = replace(theirs, protocol=merged, metadata=kept)
    brought = net_change.commit_net_change(setting, source, theirs, rewrite, state)
    setting.removal.drop_returned_uploads(
        source.store,
        lambda: owned_file_removal.renamed_names(target, rewrite, source.store.uri),
        since,
        brought.version,
    )
    if managed:
        bring_back.tell_features(setting, source.store.uri, mine.protocol, brought.protocol)
    return Brought(brought, totals, theirs.version)


def bring_rest(
    setting: Setting, source: DeltaLog, redirect: Redirect, first: Brought, *, compares: bool
) -> Brought:
    """Bring what was written to an existing target since ``first``; the source is DROPPING.

    Nothing that fails here is an error, except for a wrong copy, since the redirect ends in any
    case, and the target keeps what it has: :func:`tell_left` names it.
    """
    done = first
    try:
        if done.version is None:
            done = replace(done, version=_version_before(source, redirect, done))
        target = setting.log(target_place(setting, redirect, source.store.uri))
        if done.version is None or target.state().version > done.version:
            rest = bring_existing(setting, source, target, done.state, redirect, compares=compares)
            done = replace(rest, copied=first.copied.plus(rest.copied))
    except HashMismatch:
        raise
    except LakeferryError as problem:
        done = replace(done, problem=problem)
        with suppress(LakeferryError):
            # Another process may have brought it, or ended the redirect.
            done = replace(done, state=source.state())
            done = replace(done, version=_version_before(source, redirect, done))
    return done


def tell_left(setting: Setting, source: DeltaLog, redirect: Redirect, done: Brought) -> None:
    """Tell which versions of an existing target weren't brought back, if any or if unknown."""
    brought, problem = done.version, done.problem
    copied = "they stay there, and the rows that you need can be copied from there"
    try:
        newest = setting.log(target_place(setting, redirect, source.store.uri)).state().version
        if brought is None or newest > brought:
            # Another process may have brought more.
            brought = _version_before(source, redirect, replace(done, state=source.state()))
    except LakeferryError as unreadable:
        newest, problem = None, problem or unreadable
    why = "" if problem is None else f" ({problem})"
    if brought is None or newest is None:
        since = "" if brought is None else f" after {brought}"
        setting.warn(
            f"{redirect.target} may have versions{since} that weren't brought back{why}; {copied}"
        )
    elif newest > brought:
        first = brought + 1
        span = f"{first}" if first == newest else f"{first} to {newest}"
        setting.warn(
            f"{redirect.target} has versions that weren't brought back: {span}{why}; {copied}"
        )


def _version_before(source: DeltaLog, redirect: Redirect, done: Brought) -> int | None:
    """Return the newest version of the target that commits at the source have brought."""
    journal = redirect.journal
    if journal is None or journal.target_commit is None or journal.ready_version is None:
        return done.version
    brought = max(journal.target_commit.version, done.version or 0)
    for version in range(journal.ready_version + 1, done.state.version + 1):
        found = redirect_commits.read_commit(source.store, version)
        info = found[1].commit_info if found is not None else None
        mark = redirect_commits.mark_of(info)
        if info is not None and mark is not None and mark.get("state") == net_change.BROUGHT:
            brought = max(brought, net_change.brought_version(info))
    return brought


def _without_its_catalog(theirs: Snapshot, mine: TableState, redirect: Redirect) -> Snapshot:
    """Return a managed table as it is at the source, where no catalog decides.

    Nobody has recorded what the catalog required of this table, so these are the documented
    requirements.
    """
    back = ManagedReturn(managed_commits.DOCUMENTED, redirect, None)
    bare = back.merged(
        Bare(theirs.protocol, theirs.metadata),
        Bare(mine.protocol, mine.metadata),
        vectors=has_vectors(theirs.files),
    )
    return replace(theirs, protocol=bare.protocol, metadata=bare.metadata)


def refuse_clashes(
    setting: Setting,
    source: DeltaLog,
    target: DeltaLog,
    segment: Segment,
    theirs: Snapshot,
    rewrite: Rewrite,
) -> None:
    """Refuse if a file of the target would replace another file at the source."""
    named = theirs.files["path"].combine_chunks().cast(pa.string())
    doubled = pc.count_distinct(named).as_py() - pc.count_distinct(rewrite(named)).as_py()
    plan = CheckPlan(target.store.config, segment, rewrite, source.store.config)
    found = setting.engine(theirs.num_files, 0).check(plan, setting.observer)
    if found.unequal_count or doubled:
        example = found.unequal[0] if found.unequal else "a file that the log names in two ways"
        raise Diverged(
            f"{target.store.uri} can't be brought back to {source.store.uri}",
            cause=f"both have files of the same name but different sizes: {example}",
            remedy="leave out --bring-back, and copy the rows that you need from the target",
            location=source.store.uri,
            target=target.store.uri,
        )
