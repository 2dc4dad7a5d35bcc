"""Copies a target's changes back to the source, version by version.

:class:`Way` locks the target, copies the changes to the source, and ends the redirect
there; :mod:`~lakeferry.redirect.disable.disabling` decides when. Its checks are public, for
callers that only want to know what would be done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import CopyPlan
from lakeferry.errors import (
    CommitConflict,
    CorruptLog,
    Diverged,
    InvalidInput,
    MissingFile,
    NotATable,
    RedirectIllegalTransition,
    RedirectSpecInvalid,
    RedirectTargetMissing,
    RedirectTargetReplaced,
    TableNotFound,
)
from lakeferry.log import actions, features, paths, protocols
from lakeferry.log.actions import CommitInfo
from lakeferry.log.commit import Conflict
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFile
from lakeferry.log.replay import TableState as TableState
from lakeferry.log.rewrite import (
    Adopted,
    Fetched,
    Homeward,
    PlacedPaths,
    Relative,
    Returned,
    Rewrite,
    rewrite_lines,
)
from lakeferry.log.segment import Segment
from lakeferry.redirect import (
    catalog_name,
    data_completeness,
    dialects,
    file_removal,
    lineage,
    move,
    read_entry,
    received_entries,
    redirect_commits,
    states,
    steps,
)
from lakeferry.redirect.disable import net_change
from lakeferry.redirect.enable import precopy
from lakeferry.redirect.entry import Data, Journal, Redirect
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.resolve import find_in_catalog, target_missing
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog, load
from lakeferry.table.live_files import uri_of
from lakeferry.table.put_commit import Committed

_MAX_ATTEMPTS = 10
_REPLACED = (RedirectTargetReplaced, RedirectTargetMissing, CorruptLog)
"""The errors which mean that the target isn't the table that moved."""
_AT_ONCE = 100
"""How many commits are read between two checks that the target wasn't replaced."""


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


def target_place(setting: Setting, redirect: Redirect, source_uri: str) -> str:
    """Return where the target is now. A catalog may have moved it since."""
    target = redirect.target
    if target is None or target.location is not None or redirect.state is RedirectState.ENABLING:
        return move.place_of_target(redirect)
    return find_in_catalog(setting.catalog, redirect, source_uri, setting.grant).location


def check_target(
    setting: Setting, source_uri: str, state: TableState, redirect: Redirect
) -> DeltaLog:
    """Return the target's log; refuse if it has no table, or not the one that moved.

    ``state`` is the source's.
    """
    target = setting.log(target_place(setting, redirect, source_uri))
    try:
        target.state()
        lineage.check_lineage(redirect, source_uri, state.metadata.id, target)
    except (TableNotFound, NotATable) as missing:
        raise target_missing(source_uri, target.store.uri, missing) from missing
    return target


def is_closed(lock: Redirect, place: str) -> bool:
    """Return whether ``lock`` is the entry of a closed target at ``place``."""
    return lock.state is RedirectState.DROPPING and lock.is_target(place)


def disable_command(source_uri: str) -> str:
    """Return the command that finishes the cleanup of an ended withdrawal."""
    return f"redirect disable {shell_safe(source_uri)}"


def _ending(redirect: Redirect, arrived: bool) -> str:
    """Return the command that ends a redirect, depending on its state."""
    if redirect.state is RedirectState.ENABLING and not arrived:
        return "thaw" if redirect.is_frozen else "cancel"
    return "disable"


def is_of_move(state: TableState, source_uri: str, redirect: Redirect) -> bool:
    """Return whether a table has a redirect, and it is of the same move as ``redirect``."""
    found = read_entry.read(state.protocol, state.metadata, source_uri)
    if found is None or found.journal is None or redirect.journal is None:
        return found is not None and found.journal is redirect.journal
    return found.journal.move_id == redirect.journal.move_id


class Way:
    """The withdrawal of one table: its source and target, and what was copied so far."""

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
        self.objects = 0
        self.bytes = 0
        self.locked_version = -1
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
        self._filled = False
        """Whether the source had lost files, so that all its files were checked."""
        self._has_all = False
        """Whether a check after the copy found all files that the source's log names."""
        self.kept: tuple[str, ...] = ()
        """Files at a removed target that didn't belong to the table."""
        self._come_by(options.data or Data.COPY)

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
        if lock.returns is None:
            return
        if self.options.data not in (None, lock.returns):
            raise InvalidInput(
                f"the withdrawal began with --data {lock.returns.value}, and can't continue with "
                "another",
                cause="some of the changes may already be at the source, where --data decides the "
                "files' paths",
                remedy="leave out --data: the withdrawal then uses the value that it began with",
            )
        self._come_by(lock.returns)

    # --- The target ---------------------------------------------------------

    def lock(self) -> None:
        """Commit DROPPING on top of the target's newest version, unless it is locked already."""
        txn_id = self.setting.new_id()
        conflict: Conflict | None = None
        for _ in range(_MAX_ATTEMPTS):
            try:
                state = self.target_state()
                self.check_lineage()
            except _REPLACED:
                # It was replaced while we put the lock there.
                if conflict is not None:
                    self._retract(conflict.version, txn_id)
                    self.check_lineage()
                raise
            if (lock := self.lock_at(state)) is not None:
                self.follow(lock)
                self.locked_version = state.version
                self.check_removal()
                self._fill(state.version - 1)
                return
            read_entry.check_no_stray(state.protocol, state.metadata, self.target.store.uri)
            # A lock is permanent, so it isn't set if source and target have diverged.
            self.own_commits(self.source.state())
            if conflict is None:
                self.check_removal()
            if not self._filled:
                self._fill(state.version)
            result = self._put_lock(state, txn_id)
            if isinstance(result, Committed):
                try:
                    self.check_lineage()
                except _REPLACED:
                    # Only for these errors: otherwise another process may rely on the lock.
                    self._retract(result.version, txn_id)
                    raise
                self.locked_version = result.version
                place, dropping = self.target.store.uri, RedirectState.DROPPING
                self.setting.step(steps.commit_step(place, result.version, dropping))
                return
            conflict = result
        assert conflict is not None
        raise conflict.error()

    def lacks(self) -> int:
        """Return how many files the source has lost that the target may have."""
        # A target that refers to the source's files has none of them.
        if self.journal.data is Data.REFERENCE or self.redirect.state is RedirectState.DROPPING:
            return 0
        return data_completeness.lacking_files(self.setting, self.source)

    def lack_without_target(self) -> data_completeness.Lack:
        """Return which live files the source would lack if the target were deleted."""
        home = self.source.store
        if self.redirect.state is RedirectState.DROPPING:
            return self.lack_at_home(file_removal.files_referred_to(self.source))
        named = file_removal.files_referred_to(self.target)
        outside = data_completeness.lack_outside(
            self.setting, self.target, named, self.rewrite, home.uri
        )
        if self.journal.data is not Data.REFERENCE:
            # Files that the source's own folder has lost are copied back.
            return outside
        rename = Homeward(home.uri, self.target.store.uri)
        inside = data_completeness.lack_inside(self.setting, self.target, rename, home.config)
        return data_completeness.both(inside, outside)

    def lack_at_home(self, named: pa.Array) -> data_completeness.Lack:
        """Return which files of its newest version the source lacks; its log names ``named``."""
        found = data_completeness.lack(self.setting, self.source, named)
        self._has_all = not found.count
        return found

    def check_removal(self) -> None:
        """Refuse ``--remove-target`` where the target may have the only copies of live files."""
        if not self.options.remove_target:
            return
        home, place = self.source.store.uri, self.target.store.uri
        lack = self.lack_without_target()
        if lack.count:
            raise MissingFile(
                f"{place} can't be removed",
                cause=f"{lack.count} data files that {home} names are gone, and the target may "
                f"have the only copies: {', '.join(lack.examples)}",
                remedy=f"first put them back where they were ({self.copies(lack)}), and run the "
                f"same command again; or leave out --remove-target to keep {place}",
                path=lack.examples[0],
                count=lack.count,
                target=place,
            )

    def copies(self, lack: data_completeness.Lack) -> str:
        """Return a text that says where copies of the missing files are."""
        home, place = self.source.store.uri, self.target.store.uri
        path = lack.examples[0]
        gone = shell_safe(uri_of(home, path))
        if self.journal.data is Data.REFERENCE:
            return f"the move made no copy of {gone}"
        (name,) = Adopted(home)(pa.array([path], pa.string())).to_pylist()
        return f"the copy of {gone} is {shell_safe(uri_of(place, name))}"

    def _fill(self, version: int) -> None:
        """Copy back files that the source has lost; users may delete old ones to free space.

        Includes all versions, for time travel. Done before the lock, as it may take long.
        """
        if not (lost := self.lacks()):
            return
        self._filled = True
        home, away = self.source.store.uri, self.target.store.uri
        self.setting.step(steps.copy_missing(away, home, lost))
        self.setting.warn(f"data files are gone from {home}: they are copied back from {away}")
        everything = precopy.stretch(self.target.listing(), -1, version, away)
        self.target.working_around(everything, partial(self.copy, resumed=True))

    def _put_lock(self, state: TableState, txn_id: str) -> Committed | Conflict:
        """Commit the lock on top of ``state`` of the target."""
        entry = redirect_commits.lock(
            self.source.store.uri,
            self.target.store.uri,
            RedirectState.DROPPING,
            replace(
                self.journal,
                protocol=protocols.versions(state.protocol),
                returns=self.data,
                removes_target=self.removes_target,
            ),
        )
        received_entries.locked(self.target.store, entry)
        # Remove an old entry that a RESTORE brought back.
        plain = actions.changed(
            state.metadata, configuration=dialects.without_redirect(state.metadata)
        )
        after = redirect_commits.Bare(state.protocol, plain).carrying(entry)
        move_id = self.journal.move_id
        wanted = redirect_commits.transition(state, after, RedirectState.DROPPING, move_id, txn_id)
        result = self.target.commit(wanted, state)
        received_entries.locked(self.target.store, entry)
        return result

    def _retract(self, version: int, txn_id: str) -> None:
        """Delete our lock from another table that replaced the target just before the commit."""
        redirect_commits.retract(self.target.store, version, txn_id, self.journal.move_id)

    def check_lineage(self) -> None:
        """Refuse a target that isn't the table that moved there."""
        home = self.source.store.uri
        try:
            lineage.check_lineage(self.redirect, home, self.source.state().metadata.id, self.target)
        except (TableNotFound, NotATable) as missing:
            raise target_missing(home, self.target.store.uri, missing) from missing

    def is_locked(self) -> bool:
        """Return whether the target has the commit that locked it."""
        found = redirect_commits.read_commit(self.target.store, self.locked_version)
        mark = {"state": RedirectState.DROPPING.value, "moveId": self.journal.move_id}
        return found is not None and redirect_commits.mark_of(found[1].commit_info) == mark

    def check_still_there(self) -> None:
        """Refuse to go on if the target was replaced since it was read.

        Called after each read at the target and before the write at the source.
        """
        if not self.is_locked():
            self.check_lineage()

    def target_state(self) -> TableState:
        """Return the newest state of the target; raise if the target is missing."""
        try:
            return self.target.state()
        except (TableNotFound, NotATable) as missing:
            home, away = self.source.store.uri, self.target.store.uri
            raise target_missing(home, away, missing) from missing

    def own_commits(self, state: TableState) -> int:
        """Return the number of the source's commits since READY; refuse if one changed data."""
        return net_change.own_commits(
            self.source, self.target.store.uri, self.ready_version, state, self.was_brought
        )

    def lock_at(self, state: TableState) -> Journal | None:
        """Return this withdrawal's lock, if the target has it; refuse another redirect.

        An entry that was written for the source is an old one, which a RESTORE at the target
        has brought back. It is ignored.
        """
        place = self.target.store.uri
        found = read_entry.read(state.protocol, state.metadata, place)
        if found is None:
            return None
        # Anyone who received the table's history knows the move's id and could forge an entry.
        arrived = not received_entries.counts(self.target.store, found)
        journal = found.journal
        if journal is not None and found.is_target(place) and not arrived:
            is_lock = (
                found.state is RedirectState.DROPPING and journal.move_id == self.journal.move_id
            )
            if is_lock:
                return journal
        home = self.source.store.uri
        if found.source is not None and same_place(found.source, home) and not arrived:
            return None
        if is_closed(found, place) and not arrived:
            raise RedirectIllegalTransition(
                f"{place}, to which {home} leads, is closed",
                cause=f"it was the target of {found.source} too, and its rows were brought back to "
                "that source",
                remedy=f"'lakeferry redirect disable {shell_safe(home)} --abandon-target' makes "
                f"{home} an ordinary table again, with the rows that it had at READY; then disable "
                f"the redirect of {found.source} too",
                location=home,
                target=place,
                state=found.state.value,
            )
        raise RedirectIllegalTransition(
            f"{place} has a redirect of its own",
            cause=f"it leads to {found.target or 'nowhere'}, its state is {found.state.value}",
            remedy=f"end that redirect first: lakeferry redirect {_ending(found, arrived)} "
            f"{shell_safe(place)}; then run the same command again",
            location=place,
            state=found.state.value,
        )

    def clear(self) -> bool:
        """Delete the target's name, and the target if requested; return whether it worked.

        The redirect has ended, so a failure is only a warning and the next 'disable' retries. A
        target that doesn't belong to this move any more keeps both.
        """
        place = self.target.store.uri
        command = disable_command(self.source.store.uri)
        locked: list[bool] = []
        move.attempt(self.setting, place, lambda: locked.append(self.is_locked()), command)
        if not any(locked):
            if self.removes_target and locked:
                self.setting.warn(f"{place} isn't deleted: another table is there now")
            return False
        forgot: list[bool] = []
        move.attempt(
            self.setting,
            f"the name of {place} in its catalog",
            lambda: forgot.append(catalog_name.forget_name(self.setting, self.redirect, place)),
            command,
        )
        if self.removes_target:
            what = f"the deletion of {place}"
            move.attempt(self.setting, what, self.remove_target, f"{command} --remove-target")
        return any(forgot) or self.removes_target

    def remove_target(self) -> None:
        """Delete the target, unless the source refers to something there."""
        store = self.target.store
        named = file_removal.files_referred_to(self.source)
        if not self._has_all and self.lack_at_home(named).count:
            alone = (
                f"{self.source.store.uri} lacks data files, and the only copies may be at the "
                "target"
            )
            self.setting.warn(f"{store.uri} isn't deleted: {alone}")
            return
        if self.is_referred_to(named):
            self.setting.warn(
                f"{store.uri} isn't deleted: an earlier withdrawal by reference was interrupted, "
                f"and {self.source.store.uri} refers to files there"
            )
            return
        self.setting.step(steps.at("delete", store.uri))
        self.kept = self.setting.removal.remove_table(
            self.target, self.source, self.journal.move_id, self.is_locked
        )

    def is_referred_to(self, named: pa.Array) -> bool:
        """Return whether the source's log (``named``) refers to files at the target."""
        away = Relative(self.target.store.uri)
        return bool(pc.any(pc.not_equal(away(named), named)).as_py())

    # --- The source ---------------------------------------------------------

    def bring(self) -> int:
        """Copy the changes back and end the redirect; return the source's last version."""
        state = self.source.state()
        found = read_entry.read(state.protocol, state.metadata, self.source.store.uri)
        if found is not None and found.state is RedirectState.READY:
            self._check_same_move(state)
            last = self.locked_version - 1
            if self.matches(state):
                self._bring_data(state.version + 1, last)
                self._bring_commits(state.version + 1, last)
                state = self._drop_with_target(self.source.state())
            else:
                state = net_change.bring(self, state)
                self._check_same_move(state)
                state = drop_target(self.setting, self.source, state, place=self.target.store.uri)
        self._check_same_move(state)
        return remove(self.setting, self.source, state)

    def _check_same_move(self, state: TableState) -> None:
        """Refuse if the source has another redirect than the one to be ended.

        Another process may end this one and move the table again between two calls. The
        caller then treats the withdrawal as ended.
        """
        if not is_of_move(state, self.source.store.uri, self.redirect):
            raise CommitConflict(
                f"the redirect of {self.source.store.uri} was ended by somebody else",
                reason="move_ended",
            )

    def matches(self, state: TableState) -> bool:
        """Return whether version numbers match: the source has no commit that the target lacks."""
        listing = load.list_log(self.target.store, self.ready_version)
        wanted = range(self.ready_version + 1, self.locked_version + 1)
        if any(version not in listing.commits for version in wanted):
            return False
        if state.version > self.locked_version:
            return False
        for version in range(self.ready_version + 1, state.version + 1):
            ours = redirect_commits.read_commit(self.source.store, version)
            if ours is None or not self.was_brought(version, *ours):
                return False
        return True

    def was_brought(self, version: int, body: bytes, lines: Lines) -> bool:
        """Return whether a commit of the source is the target's commit of the same version.

        Equal ids or equal bytes; bytes differ if it carries an entry whose rules changed since.
        """
        theirs = redirect_commits.read_commit(self.target.store, version)
        if theirs is None:
            return False
        mine, other = lines.commit_info, theirs[1].commit_info
        txn_id = mine.txn_id if mine else None
        same_id = txn_id is not None and other is not None and txn_id == other.txn_id
        return same_id or body == self._homely(theirs[0], paths.commit(version))

    def _bring_data(self, first: int, last: int) -> None:
        """Copy the files that the target's commits ``first`` to ``last`` refer to."""
        deltas = self._deltas(first, last)
        if not deltas or self.by_reference:
            return
        self.tell_changes()
        segment = Segment(last, None, deltas, None, None)
        self.copy(segment, resumed=self._filled)

    def tell_changes(self) -> None:
        """Report the step that copies back the files added to the target since READY."""
        home, away = self.source.store.uri, self.target.store.uri
        self.setting.step(steps.copy_step("copy_changes", away, home))

    def copy(self, segment: Segment, *, resumed: bool) -> None:
        """Copy the files of a segment of the target's log back; its live files must exist."""
        objects, size_bytes = self.setting.measure(self.target.store, segment)
        engine = self.setting.engine(objects, size_bytes, True)
        plan = CopyPlan(
            self.target.store.config, self.source.store.config, segment, self.rename, resumed
        )
        totals = engine.copy(plan, self.setting.observer)
        self.objects += totals.objects
        self.bytes += totals.bytes
        if totals.missing_count:
            self._refuse_lost(segment.version)

    def _refuse_lost(self, version: int) -> None:
        """Refuse if a live file is missing. VACUUM may have deleted files of older versions."""

        def look(segment: Segment) -> None:
            net_change.refuse_lost(
                self.setting, self.target.store, segment, self.rewrite, self.source.store
            )

        self.target.working_around(self.target.segment(version), look)

    def _deltas(self, first: int, last: int) -> tuple[LogFile, ...]:
        listing = load.list_log(self.target.store, first)
        found = [listing.commits.get(version) for version in range(first, last + 1)]
        if None in found:
            self.check_lineage()
            gone = first + found.index(None)
            raise CommitConflict(
                f"version {gone} of {self.target.store.uri} is gone",
                cause="the target's log was cleaned up meanwhile",
                remedy="run the same command again: it brings all changes back in one commit",
                version=gone,
                reason="history_cleaned",
            )
        return tuple(file for file in found if file is not None)

    def _bring_commits(self, first: int, last: int) -> None:
        """Write the target's commits to the source, with the same version numbers."""
        files = iter(self._deltas(first, last))
        if first <= last:
            home, away = self.source.store.uri, self.target.store.uri
            self.setting.step(steps.copy_commits(away, home, first, last))
        while some := list(islice(files, _AT_ONCE)):
            bodies = list(load.contents(self.target.store, some))
            self.check_still_there()
            for file, body in bodies:
                self._bring_commit(file, body)

    def _bring_commit(self, file: LogFile, body: bytes) -> None:
        conflict = self.source.backfill(file.version, self._homely(body, file.path))
        if conflict is not None:
            raise Diverged(
                f"{self.source.store.uri} was written to while its redirect was withdrawn",
                cause=f"its version {conflict.version} isn't a commit of the target",
                remedy="stop the writer of that commit; then 'lakeferry redirect resume "
                f"{shell_safe(self.source.store.uri)}' continues the withdrawal",
                version=conflict.version,
            )
        self.source.store.restore_time(file.path, file.modified_ms)

    def _homely(self, body: bytes, path: str) -> bytes:
        """Return a commit of the target with the source's paths and the source's entry."""
        body = rewrite_lines(body, self.rewrite)
        lines = Lines()
        lines.read(body, path)
        entry = self.redirect.in_state(RedirectState.READY)
        swap: dict[bytes, bytes] = {}
        # The target may have had its own entry for a while, if it was frozen.
        if lines.protocol is not None and lines.protocol.raw is not None:
            own = protocols.without_features(
                lines.protocol, features.REDIRECT_FEATURES, self.journal.protocol
            )
            swap[lines.protocol.raw] = actions.encode_line(protocols.adding(own, entry.features))
        if lines.metadata is not None and lines.metadata.raw is not None:
            configuration = dialects.without_redirect(lines.metadata) | dialects.properties(entry)
            ours = actions.changed(lines.metadata, configuration=configuration)
            swap[lines.metadata.raw] = actions.encode_line(ours)
        if not swap:
            return body
        return b"\n".join(swap.get(line.strip(), line) for line in body.split(b"\n"))

    def _drop_with_target(self, state: TableState) -> TableState:
        """Commit the source's *M+1* to match the target's *M+1*."""
        self._check_same_move(state)
        self.check_still_there()
        found = redirect_commits.read_commit(self.target.store, self.locked_version)
        info = found[1].commit_info if found else None
        return drop_target(self.setting, self.source, state, info, place=self.target.store.uri)


def drop_target(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    decided: CommitInfo | None = None,
    *,
    place: str | None = None,
    abandoned: bool = False,
) -> TableState:
    """Commit DROPPING at the source; ``decided`` is the target's commit of the same version.

    ``place`` is where the target was. A later cleanup needs it, as the target's name may lead
    elsewhere by then. ``abandoned``: what was written to the target wasn't copied back.
    """
    redirect = read_entry.read(state.protocol, state.metadata, source.store.uri)
    if redirect is None or redirect.state is RedirectState.DROPPING:
        return state
    states.after(redirect.state, RedirectEvent.DISABLE, source.store.uri)
    if redirect.journal is None:
        # Some dialects can't express a withdrawal without our journal.
        redirect = replace(redirect, journal=Journal(Data.EXISTING, move_id=setting.new_id()))
        received_entries.mark_set_here(source.store, redirect)
    if abandoned and redirect.journal is not None:
        redirect = replace(redirect, journal=replace(redirect.journal, abandoned=True))
    if place is not None and redirect.journal is not None and redirect.kind.catalog is not None:
        redirect = replace(redirect, journal=replace(redirect.journal, location=place))
        received_entries.mark_set_here(source.store, redirect)
    bare = redirect_commits.bare(state.protocol, state.metadata, redirect.journal)
    after = bare.carrying(redirect.in_state(RedirectState.DROPPING))
    move_id = redirect.journal.move_id if redirect.journal else None
    txn_id = (decided.txn_id if decided else None) or setting.new_id()
    wanted = redirect_commits.transition(state, after, RedirectState.DROPPING, move_id, txn_id)
    moment = (
        redirect_commits.commit_time(decided, state.version + 1) if decided else setting.clock()
    )
    result = source.commit_exactly(wanted, state, moment)
    if isinstance(result, Conflict):
        mark = redirect_commits.mark_of(result.winner) or {}
        if mark.get("state") != RedirectState.DROPPING.value or mark.get("moveId") != move_id:
            raise result.error()
    else:
        version = state.version + 1
        setting.step(steps.commit_step(source.store.uri, version, RedirectState.DROPPING))
    return source.state()


def remove(setting: Setting, source: DeltaLog, state: TableState) -> int:
    """Remove the entry and the feature; succeed if another process just did so."""
    redirect = read_entry.read(state.protocol, state.metadata, source.store.uri)
    if redirect is None:
        return state.version
    states.after(redirect.state, RedirectEvent.REMOVE, source.store.uri)
    try:
        return redirect_commits.remove_entry(setting, source, state, redirect)
    except CommitConflict:
        now = source.state()
        if read_entry.read(now.protocol, now.metadata, source.store.uri) is not None:
            raise
        return now.version
