"""Bringing a table back: from READY to NORMAL.

1. The target's *M+1* says DROPPING and locks it: all writes go there, so this is
   where they are cut off.
2. The data that came since READY is brought to the source, then the commits, under
   the same numbers; each that changes metadata or protocol keeps the source's entry.
3. The source's *M+1* says DROPPING, its *M+2* NORMAL.

Where the source has commits of its own by then, or the target's are cleaned up,
numbers can't match: then the net change comes back in one commit
(:mod:`~lakeferry.redirect.net_change`). The target stays locked for ever: two
writable tables with one id would be a trap.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import CopyPlan
from lakeferry.errors import (
    CommitConflict,
    Diverged,
    InvalidInput,
    LakeferryError,
    MissingFile,
    NotATable,
    RedirectIllegalTransition,
    RedirectSpecInvalid,
    TableNotFound,
)
from lakeferry.log import actions, paths, protocols, references
from lakeferry.log.actions import CommitInfo
from lakeferry.log.commit import Conflict
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFile
from lakeferry.log.replay import State as TableState
from lakeferry.log.rewrite import Homeward, Relative, Returned, Rewrite, Unchanged, rewrite_lines
from lakeferry.log.segment import Segment
from lakeferry.redirect import cancel, commits, dialects, model, moving, net_change, staging, states
from lakeferry.redirect.model import Data, Redirect
from lakeferry.redirect.moving import Outcome
from lakeferry.redirect.resolve import find_in_catalog
from lakeferry.redirect.setting import Setting
from lakeferry.redirect.states import Event, State
from lakeferry.table import DeltaLog, load
from lakeferry.table.commit import Committed

MAX_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Options:
    """How the table comes back."""

    bring_back: bool = False
    """Whether the changes of a target that was there before come back too."""
    remove_target: bool = False
    data: Data = Data.COPY
    """By ``REFERENCE`` the files that came since stay at the target, for ever."""


def disable(setting: Setting, source_uri: str, options: Options = Options()) -> Outcome:  # noqa: B008
    """End a redirect, with everything that changed brought back. Twice is once."""
    source = setting.log(source_uri)
    state = source.state()
    redirect = dialects.read(state.protocol, state.metadata, source_uri)
    if redirect is None:
        return Outcome(State.NORMAL, source_uri, None, state.version, False)
    model.check_own(redirect, source_uri)
    if redirect.state is not State.DROPPING:
        states.after(redirect.state, Event.DISABLE, source_uri)
    if redirect.journal is None or redirect.journal.data is Data.EXISTING:
        return _disable_existing(setting, source, state, redirect, options)
    began = time.monotonic()
    way = Way(
        setting, source, setting.log(_place(setting, redirect, source_uri)), redirect, options
    )
    try:
        way.lock()
        version = way.bring()
    except LakeferryError:
        # Somebody else may have ended it under our hands: then that is what happened.
        state = source.state()
        if is_of_move(state, source_uri, redirect):
            raise
        version = state.version
        # What becomes of the target is for that somebody to say.
        options = replace(options, remove_target=False)
    blocked_ms = round((time.monotonic() - began) * 1000)
    moving.settle(source, version, setting)
    moving.forget_name(setting, redirect, way.target.store.uri)
    if options.remove_target:
        way.remove_target()
    return Outcome(
        State.NORMAL,
        source_uri,
        str(redirect.target),
        version,
        True,
        way.objects,
        way.bytes,
        blocked_ms,
    )


def is_of_move(state: TableState, source_uri: str, redirect: Redirect) -> bool:
    """Tell whether a table still has that redirect, and not none or that of another move."""
    found = dialects.read(state.protocol, state.metadata, source_uri)
    if found is None or found.journal is None or redirect.journal is None:
        return found is not None and found.journal is redirect.journal
    return found.journal.move_id == redirect.journal.move_id


def has_begun(setting: Setting, redirect: Redirect) -> bool:
    """Tell whether a redirect of ours is being withdrawn."""
    if redirect.state is State.DROPPING:
        return True
    if redirect.journal is None or redirect.journal.data is Data.EXISTING:
        return False
    target = setting.log(_place(setting, redirect, redirect.source or ""))
    try:
        state = target.state()
    except (TableNotFound, NotATable):
        return False
    found = dialects.read(state.protocol, state.metadata, target.store.uri)
    return found is not None and found.state is State.DROPPING and found.is_target(target.store.uri)


def _place(setting: Setting, redirect: Redirect, source_uri: str) -> str:
    """Return where the target is now: a catalog may have moved it since."""
    target = redirect.target
    if target is None or target.location is not None or redirect.state is State.ENABLING:
        return moving.place_of(redirect)
    return find_in_catalog(setting.catalog, target, source_uri, setting.grant)


class Way:
    """The way back of one table: both its ends, and what has been brought."""

    def __init__(
        self,
        setting: Setting,
        source: DeltaLog,
        target: DeltaLog,
        redirect: Redirect,
        options: Options,
    ) -> None:
        """Begin with nothing brought."""
        self.setting = setting
        self.source = source
        self.target = target
        self.redirect = redirect
        self.options = options
        self.objects = 0
        self.bytes = 0
        journal = redirect.journal
        assert journal is not None
        self.journal = journal
        if journal.ready_version is None:
            raise RedirectSpecInvalid(
                f"the redirect of {source.store.uri} doesn't say since when it is READY",
                value=dialects.encode_journal(journal),
            )
        self.ready_version = journal.ready_version
        by_reference = options.data is Data.REFERENCE
        if by_reference and journal.data is not Data.REFERENCE:
            raise InvalidInput(
                "a table that was copied can't come back by reference",
                cause="which of its files are at the source already can't be told by their names",
                remedy="leave out --data reference",
            )
        if by_reference and options.remove_target:
            raise InvalidInput(
                "a target whose files are referred to can't be removed",
                remedy="leave out --data reference or --remove-target",
            )
        self.by_reference = by_reference
        home, away = source.store.uri, target.store.uri
        self.rewrite: Rewrite = Returned()
        self.rename: Rewrite = Returned()
        if journal.data is Data.REFERENCE:
            self.rewrite = Homeward(home, away) if by_reference else Relative(home)
            self.rename = Unchanged()

    # --- The target ---------------------------------------------------------

    def lock(self) -> None:
        """Take the target to DROPPING, on top of whatever is there; fine where it is there."""
        for _ in range(MAX_ATTEMPTS):
            state = self.target.state()
            found = dialects.read(state.protocol, state.metadata, self.target.store.uri)
            if found is not None:
                self._check_ours(found)
                self.locked_version = state.version
                return
            # A lock is for ever: where the two have gone separate ways, it is never set.
            net_change.own_commits(self, self.source.state())
            entry = commits.lock(
                self.source.store.uri,
                self.target.store.uri,
                State.DROPPING,
                replace(self.journal, protocol=protocols.versions(state.protocol)),
            )
            after = commits.Bare(state.protocol, state.metadata).carrying(entry)
            wanted = commits.transition(
                state, after, State.DROPPING, self.journal.move_id, self.setting.new_id()
            )
            result = self.target.commit(wanted, state)
            if isinstance(result, Committed):
                self.locked_version = result.version
                return
            conflict = result
        raise conflict.error()

    def _check_ours(self, found: Redirect) -> None:
        move_id = found.journal.move_id if found.journal else None
        ours = found.is_target(self.target.store.uri) and move_id == self.journal.move_id
        if not ours or found.state is not State.DROPPING:
            raise RedirectIllegalTransition(
                f"{self.target.store.uri} has a redirect of its own",
                cause=f"it leads to {found.target or 'nowhere'}, its state is {found.state.value}",
                remedy="end that redirect first",
                location=self.target.store.uri,
                state=found.state.value,
            )

    def remove_target(self) -> None:
        """Delete everything at the target, unless the source refers to something there.

        What opens it goes first: half a table without its lock would be a trap.
        """
        store = self.target.store
        if self._is_referred_to():
            self.setting.warn(
                f"{store.uri} stays: an earlier withdrawal by reference was broken off, and "
                f"{self.source.store.uri} refers to files there"
            )
            return
        staging.delete(store, list(staging.published(store)))
        staging.delete(store, (entry.path for entry in store.list("")))
        store.prune("")

    def _is_referred_to(self) -> bool:
        listing = load.list_log(self.source.store, self.ready_version)
        since = [file for version, file in listing.commits.items() if version > self.ready_version]
        away = Relative(self.target.store.uri)
        for file, body in load.contents(self.source.store, since):
            found = references.of_lines(body, file.path)["path"].combine_chunks()
            if pc.any(pc.not_equal(away(found), found)).as_py():
                return True
        return False

    # --- The source ---------------------------------------------------------

    def bring(self) -> int:
        """Bring back what changed, and end the redirect; return the source's last version."""
        state = self.source.state()
        found = dialects.read(state.protocol, state.metadata, self.source.store.uri)
        if found is not None and found.state is State.READY:
            self._check_same_move(state)
            last = self.locked_version - 1
            if self._matches(state):
                self._bring_data(state.version + 1, last)
                self._bring_commits(state.version + 1, last)
                state = self._drop_with_target(self.source.state())
            else:
                state = net_change.bring(self, state)
                self._check_same_move(state)
                state = drop(self.setting, self.source, state)
        self._check_same_move(state)
        return remove(self.setting, self.source, state)

    def _check_same_move(self, state: TableState) -> None:
        """Refuse to end another redirect than the one that was to be ended.

        Between two calls somebody else may end this one and move the table again.
        """
        if not is_of_move(state, self.source.store.uri, self.redirect):
            raise CommitConflict(
                f"the redirect of {self.source.store.uri} was ended by somebody else",
                remedy="'redirect status' tells what there is now",
                reason="move_ended",
            )

    def _matches(self, state: TableState) -> bool:
        """Tell whether numbers match: the source has nothing that the target lacks."""
        listing = load.list_log(self.target.store, self.ready_version)
        wanted = range(self.ready_version + 1, self.locked_version + 1)
        if any(version not in listing.commits for version in wanted):
            return False
        if state.version > self.locked_version:
            return False
        for version in range(self.ready_version + 1, state.version + 1):
            ours = commits.read_commit(self.source.store, version)
            if ours is None or not self.was_brought(version, *ours):
                return False
        return True

    def was_brought(self, version: int, body: bytes, lines: Lines) -> bool:
        """Tell whether a commit of the source is the target's commit of that version.

        By its bytes; where it carries an entry whose rules have changed since, by its id.
        """
        theirs = commits.read_commit(self.target.store, version)
        if theirs is None:
            return False
        mine, other = lines.commit_info, theirs[1].commit_info
        txn_id = mine.txn_id if mine else None
        same_id = txn_id is not None and other is not None and txn_id == other.txn_id
        return same_id or body == self._homely(theirs[0], paths.commit(version))

    def _bring_data(self, first: int, last: int) -> None:
        """Copy what a stretch of the target's commits refers to."""
        deltas = self._deltas(first, last)
        if not deltas or self.by_reference:
            return
        segment = Segment(last, None, deltas, None, None)
        self.copy(segment, resumed=False)

    def copy(self, segment: Segment, *, resumed: bool) -> None:
        """Copy a stretch of the target's log home; what is live there has to be there."""
        read = [*segment.deltas, *(segment.checkpoint.files if segment.checkpoint else ())]
        log_bytes = sum(file.size_bytes for file in read)
        engine = self.setting.engine(log_bytes // 1_000, 0, True)
        plan = CopyPlan(
            self.target.store.config, self.source.store.config, segment, self.rename, resumed
        )
        totals = engine.copy(plan, self.setting.observer)
        self.objects += totals.objects
        self.bytes += totals.bytes
        if totals.missing_count:
            self._refuse_lost(segment.version, pa.array(totals.missing, pa.string()))

    def _refuse_lost(self, version: int, missing: pa.Array) -> None:
        """Refuse where a live file is gone; of older versions files may have been cleaned up."""
        live = self.target.snapshot(version).files["path"].combine_chunks()
        lost = missing.filter(pc.is_in(missing, value_set=live))
        if len(lost):
            raise MissingFile(
                f"{len(lost)} data files of {self.target.store.uri} are missing",
                cause=f"the log names them, and they aren't there: {lost[0].as_py()}",
                remedy="restore them from a copy",
                path=lost[0].as_py(),
            )

    def _deltas(self, first: int, last: int) -> tuple[LogFile, ...]:
        listing = load.list_log(self.target.store, first)
        return tuple(listing.commits[version] for version in range(first, last + 1))

    def _bring_commits(self, first: int, last: int) -> None:
        """Put the target's commits at the source, under their own numbers."""
        for file, body in load.contents(self.target.store, self._deltas(first, last)):
            ours = self._homely(body, file.path)
            conflict = self.source.backfill(file.version, ours)
            if conflict is not None:
                raise Diverged(
                    f"{self.source.store.uri} was written to while its redirect was withdrawn",
                    cause=f"version {conflict.version} isn't the target's",
                    remedy="look at that commit; 'redirect resume' goes on once the source is left "
                    "alone",
                    version=conflict.version,
                )
            self.source.store.restore_time(file.path, file.modified_ms)

    def _homely(self, body: bytes, path: str) -> bytes:
        """Return a commit of the target as the source has it: its own paths, its own entry."""
        body = rewrite_lines(body, self.rewrite)
        lines = Lines()
        lines.read(body, path)
        entry = self.redirect.in_state(State.READY)
        swap: dict[bytes, bytes] = {}
        if lines.protocol is not None and lines.protocol.raw is not None:
            kept = protocols.adding(lines.protocol, entry.features)
            swap[lines.protocol.raw] = actions.encode_line(kept)
        if lines.metadata is not None and lines.metadata.raw is not None:
            configuration = dict(lines.metadata.configuration) | dialects.properties(entry)
            ours = actions.changed(lines.metadata, configuration=configuration)
            swap[lines.metadata.raw] = actions.encode_line(ours)
        if not swap:
            return body
        return b"\n".join(swap.get(line.strip(), line) for line in body.split(b"\n"))

    def _drop_with_target(self, state: TableState) -> TableState:
        """Commit the source's *M+1* as the target's *M+1* says."""
        self._check_same_move(state)
        found = commits.read_commit(self.target.store, self.locked_version)
        info = found[1].commit_info if found else None
        return drop(self.setting, self.source, state, info)


def drop(
    setting: Setting, source: DeltaLog, state: TableState, decided: CommitInfo | None = None
) -> TableState:
    """Take the source to DROPPING; ``decided`` is the target's commit of the same version."""
    redirect = dialects.read(state.protocol, state.metadata, source.store.uri)
    if redirect is None or redirect.state is State.DROPPING:
        return state
    states.after(redirect.state, Event.DISABLE, source.store.uri)
    bare = commits.bare(state.protocol, state.metadata, redirect.journal)
    after = bare.carrying(redirect.in_state(State.DROPPING))
    move_id = redirect.journal.move_id if redirect.journal else None
    txn_id = (decided.txn_id if decided else None) or setting.new_id()
    wanted = commits.transition(state, after, State.DROPPING, move_id, txn_id)
    moment = commits.time_of(decided, state.version + 1) if decided else setting.clock()
    result = source.commit_exactly(wanted, state, moment)
    if isinstance(result, Conflict):
        mark = commits.mark_of(result.winner) or {}
        if mark.get("state") != State.DROPPING.value or mark.get("moveId") != move_id:
            raise result.error()
    return source.state()


def remove(setting: Setting, source: DeltaLog, state: TableState) -> int:
    """Take the entry and the feature away; fine where somebody else just did."""
    redirect = dialects.read(state.protocol, state.metadata, source.store.uri)
    if redirect is None:
        return state.version
    states.after(redirect.state, Event.REMOVE, source.store.uri)
    try:
        return cancel.remove_entry(setting, source, state, redirect)
    except CommitConflict:
        now = source.state()
        if dialects.read(now.protocol, now.metadata, source.store.uri) is not None:
            raise
        return now.version


def _disable_existing(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    redirect: Redirect,
    options: Options,
) -> Outcome:
    """End a redirect to a table of its own, which stays as it is."""
    if options.remove_target:
        raise InvalidInput(
            "the target was there before the redirect, and stays",
            remedy="leave out --remove-target",
        )
    objects = size_bytes = 0
    if options.bring_back and redirect.state is State.READY:
        target = setting.log(_place(setting, redirect, source.store.uri))
        state, objects, size_bytes = net_change.bring_existing(setting, source, target, state)
    state = drop(setting, source, state)
    version = remove(setting, source, state)
    moving.settle(source, version, setting)
    return Outcome(
        State.NORMAL,
        source.store.uri,
        str(redirect.target),
        version,
        True,
        objects,
        size_bytes,
    )
