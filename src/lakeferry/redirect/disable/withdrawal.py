"""One withdrawal: a redirect's source and target, the lock of the target, what was copied so far.

The steps of a withdrawal are functions of a :class:`Withdrawal`, in the modules beside this one;
:mod:`~lakeferry.redirect.disable.disabling` decides when each is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakeferry.engine import NOTHING_COPIED, Compares, CopyPlan, CopyTotals, Engine
from lakeferry.errors import (
    HashMismatch,
    InvalidInput,
    NotATable,
    RedirectSpecInvalid,
    TableNotFound,
)
from lakeferry.log.replay import TableState as TableState
from lakeferry.log.rewrite import Fetched, Homeward, PlacedPaths, Returned, Rewrite
from lakeferry.log.segment import Segment
from lakeferry.redirect import (
    copy_comparison,
    data_completeness,
    dialects,
    lineage,
    owned_file_removal,
    read_entry,
    redirect_commits,
    steps,
)
from lakeferry.redirect.entry import Data, Journal, Redirect
from lakeferry.redirect.following_errors import target_missing
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog
from lakeferry.table.live_files import uri_of


@dataclass(frozen=True, slots=True)
class WithdrawalOptions:
    """The options of a withdrawal."""

    bring_back: bool = False
    """Whether changes are copied back from a target that existed before the redirect."""
    remove_target: bool = False
    data: Data | None = None
    """With ``REFERENCE``, files added since READY stay at the target for ever. ``None`` keeps the
    choice of a withdrawal that has begun; a new one uses ``COPY``."""
    abandon_target: bool = False
    """Whether to end the redirect without its target, because the target is lost."""
    compares: bool | None = None
    """Whether to read what is copied at both ends. ``None`` keeps the choice of a withdrawal that
    has begun; a new one doesn't."""


def disable_command(source_uri: str) -> str:
    """Return the command that finishes the cleanup of an ended withdrawal."""
    return f"redirect disable {shell_safe(source_uri)}"


def is_of_move(state: TableState, source_uri: str, redirect: Redirect) -> bool:
    """Return whether a table has a redirect, and it is of the same move as ``redirect``."""
    found = read_entry.read(state.protocol, state.metadata, source_uri)
    if found is None or found.journal is None or redirect.journal is None:
        return found is not None and found.journal is redirect.journal
    return found.journal.move_id == redirect.journal.move_id


def compared_objects(*, resumed: bool, compares: bool) -> Compares:
    """Return which objects of a copy are compared; if it is resumed, some may be there already."""
    if not compares:
        return "nothing"
    return "all" if resumed else "copied"


def copy_back(setting: Setting, engine: Engine, plan: CopyPlan) -> CopyTotals:
    """Copy files from a target to the source, and refuse copies that differ.

    A file of the source that differs isn't replaced: it may be the source's own.
    """
    totals = engine.copy(plan, setting.observer)
    home, away = plan.target.uri, plan.source.uri
    try:
        copy_comparison.check_copies(setting, totals.compared, away, home, plan.rename)
    except HashMismatch as wrong:
        copy = shell_safe(str(wrong.fields["uri"]))
        original = shell_safe(uri_of(away, str(wrong.fields["path"])))
        wrong.remedy = (
            f"find out which of the two is right; if it is {original}, delete {copy}; if it is "
            f"{copy}, copy it over {original}; then run the same command again: it compares both"
        )
        raise
    return totals


class Withdrawal:
    """The withdrawal of one table.

    Once they are known, ``locked_version`` is the target's *M+1*, and ``ended_version`` the
    version at which the source is NORMAL.
    """

    def __init__(
        self,
        setting: Setting,
        source: DeltaLog,
        target: DeltaLog,
        redirect: Redirect,
        options: WithdrawalOptions,
    ) -> None:
        """Start with nothing copied."""
        self.setting = setting
        self.source = source
        self.target = target
        self.redirect = redirect
        self.options = options
        self.copied = NOTHING_COPIED
        self.counted: Mapping[str, Any] = {}
        """What the last copy has copied; in a dry run, what it would copy."""
        self.locked_version = -1
        self.ended_version = -1
        journal = redirect.journal
        assert journal is not None
        self.journal = journal
        if journal.ready_version is None:
            raise RedirectSpecInvalid(
                f"the redirect of {source.store.uri} doesn't say when it became READY",
                value=dialects.encode_journal(journal),
            )
        self.ready_version = journal.ready_version
        self.removes_target = options.remove_target
        self.filled = False
        """Whether the source had lost files, so that all its files were checked."""
        self.has_all = False
        """Whether a check after the copy found all files that the source's log names."""
        self.kept: tuple[str, ...] = ()
        """Files at a removed target that didn't belong to the table."""
        self.compares = bool(options.compares)
        self._come_by(options.data or Data.COPY)

    @property
    def managed(self) -> ManagedTarget | None:
        """The target's staging table, if its catalog owns it."""
        return self.journal.managed

    @property
    def ready(self) -> Redirect:
        """The source's redirect as it is in the commits that come back."""
        return self.redirect.in_state(RedirectState.READY)

    def _come_by(self, data: Data) -> None:
        """Set how files that are only at the target get back to the source."""
        by_reference = data is Data.REFERENCE
        if by_reference and self.journal.data is not Data.REFERENCE:
            raise InvalidInput(
                "a table that was copied can't be brought back by reference",
                cause="the names of its files don't show which of them are at the source already",
                remedy="leave out --data reference",
            )
        if by_reference and self.removes_target:
            raise InvalidInput(
                "a target can't be removed while the source refers to its files",
                remedy="leave out --data reference or --remove-target",
            )
        self.data = data
        self.by_reference = by_reference
        home, away = self.source.store.uri, self.target.store.uri
        self.rewrite: Rewrite = Returned(away)
        self.rename: Rewrite = Returned(away)
        if self.journal.data is Data.REFERENCE:
            self.rewrite = Homeward(home, away) if by_reference else Fetched(home, away)
            self.rename = PlacedPaths(away)

    def follow(self, lock: Journal) -> None:
        """Use the options that the withdrawal began with; paths already written depend on them."""
        self.removes_target = self.removes_target or lock.removes_target
        home = self.source.store.uri
        self.compares = copy_comparison.chosen(self.options.compares, lock.compares, home)
        if lock.returns is None:
            return
        if self.options.data not in (None, lock.returns):
            raise InvalidInput(
                f"this 'redirect disable' was started with --data {lock.returns.value}, and can't "
                "continue with another value",
                cause="some of the changes may already be at the source, where --data decides the "
                "files' paths",
                remedy="leave out --data: the command then uses the value that it was started with",
            )
        self._come_by(lock.returns)

    def target_state(self) -> TableState:
        """Return the newest state of the target; raise if the target is missing."""
        try:
            return self.target.state()
        except (TableNotFound, NotATable) as missing:
            home, away = self.source.store.uri, self.target.store.uri
            raise target_missing(home, away, missing) from missing

    def check_lineage(self) -> None:
        """Refuse a target that isn't the table that moved there."""
        home = self.source.store.uri
        try:
            lineage.check_lineage(self.redirect, home, self.source.state().metadata.id, self.target)
        except (TableNotFound, NotATable) as missing:
            raise target_missing(home, self.target.store.uri, missing) from missing

    def is_locked(self) -> bool:
        """Return whether the target has the commit that locked it."""
        try:
            found = redirect_commits.read_commit(self.target.store, self.locked_version)
        except TableNotFound:
            # A catalog has dropped the table.
            return False
        mark = {"state": RedirectState.DROPPING.value, "moveId": self.journal.move_id}
        return found is not None and redirect_commits.mark_of(found[1].commit_info) == mark

    def check_still_there(self) -> None:
        """Refuse to go on if the target was replaced since it was read.

        Called after each read at the target and before the write at the source.
        """
        if not self.is_locked():
            self.check_lineage()

    def tell_changes(self) -> None:
        """Report the step that copies back the files added to the target since READY."""
        home, away = self.source.store.uri, self.target.store.uri
        self.setting.step(steps.copy_step("copy_changes", away, home, lambda: self.counted))

    def copy(self, segment: Segment, *, resumed: bool) -> None:
        """Copy the files of a segment of the target's log back; its live files must exist."""
        compared = compared_objects(resumed=resumed, compares=self.compares)
        home, away = self.source.store, self.target.store
        engine = self.setting.engine(*self.setting.measure(away, segment), True)
        plan = CopyPlan(away.config, home.config, segment, self.rename, resumed, compared)
        totals = copy_back(self.setting, engine, plan)
        self.copied = self.copied.plus(totals)
        self.counted = totals.counted()
        if totals.missing_count:
            self._refuse_lost(segment.version)

    def returned_names(self) -> pa.Array:
        """Return what the files of the target's log are called at the source."""
        return owned_file_removal.renamed_names(self.target, self.rename, self.source.store.uri)

    def _refuse_lost(self, version: int) -> None:
        """Refuse if a live file is missing. VACUUM may have deleted files of older versions."""

        def look(segment: Segment) -> None:
            data_completeness.refuse_lost(
                self.setting, self.target.store, segment, self.rewrite, self.source.store
            )

        self.target.working_around(self.target.segment(version), look)
