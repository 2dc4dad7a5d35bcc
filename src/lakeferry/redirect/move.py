"""One move: the commits at its source and target, and the commit that decides.

:class:`Move` knows both ends of a move that has begun. The source says ENABLING at
version *N*; the target opens or closes at *N+1*. The first put of the target's *N+1*
decides how the move ends: :meth:`Move.decide` tries it and returns the commit that is
there, also if another process put it. The source's *N+1* then records the same decision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lakeferry.errors import CommitConflict, TableNotFound
from lakeferry.log import paths
from lakeferry.log.actions import CommitInfo, Txn
from lakeferry.log.conflicts import Conflict
from lakeferry.log.lines import Lines
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    lineage,
    managed_commits,
    read_entry,
    received_entries,
    redirect_commits,
    steps,
)
from lakeferry.redirect.enable import log_staging, target_claim
from lakeferry.redirect.entry import Journal, Redirect, RedirectTarget
from lakeferry.redirect.managed_place import log_at
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.redirect_commits import Bare
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog


@dataclass(frozen=True, slots=True)
class Move:
    """A move that has begun at the source.

    ``begun`` is the source's state at version *N*, ``body`` the bytes of that commit.

    ``place`` is the plain store where the target is: copies, the claim, staged log files and the
    lock are written and deleted there. ``target`` is the log that clients see. For a managed
    table its catalog decides which commits that log has; otherwise it is the log at ``place``.
    """

    setting: Setting
    source: DeltaLog
    place: Store
    target: DeltaLog
    redirect: Redirect
    begun: TableState
    body: bytes
    name: str | None = None
    """The name that a managed target gets, if it isn't the one in the journal."""

    @property
    def version(self) -> int:
        """*N*, the version at which the source began to move."""
        return self.begun.version

    @property
    def journal(self) -> Journal:
        """The journal in the source's *N*, which ``resume`` needs."""
        assert self.redirect.journal is not None
        return self.redirect.journal

    @property
    def bare(self) -> Bare:
        """The table's protocol and metadata without the redirect."""
        return redirect_commits.bare(self.begun.protocol, self.begun.metadata, self.journal)

    @property
    def managed(self) -> ManagedTarget | None:
        """The target's staging table, if its catalog owns it."""
        return self.journal.managed

    @property
    def final_name(self) -> str | None:
        """The target's name in its catalog once the move is decided."""
        return self.name or self.journal.catalog_name

    @property
    def bare_at_target(self) -> Bare:
        """The table at the target, without a lock: what a managed table requires is added."""
        if self.managed is None:
            return self.bare
        info = self.begun.commit_info
        return managed_commits.bare_at_target(self.bare, self.managed, self.version, info)

    @property
    def place_log(self) -> DeltaLog:
        """The log that the files at :attr:`place` make up."""
        return self.target if self.managed is None else log_at(self.setting, self.place)

    @property
    def lock(self) -> Redirect:
        """The entry that keeps writers away from the target until it opens."""
        home, away = self.source.store.uri, self.place.uri
        return redirect_commits.lock(home, away, RedirectState.ENABLING, self.journal)

    @property
    def locked(self) -> TableState:
        """The target's state at version *N*."""
        both, info = self.bare_at_target.carrying(self.lock), self.begun.commit_info
        if self.managed is not None:
            info = managed_commits.info_at_target(self.bare, self.version, info)
        return TableState(self.version, both.protocol, both.metadata, info)

    @property
    def lock_body(self) -> bytes:
        """The bytes of the target's commit *N*; the same for every process that puts it."""
        locked = self.locked
        info = locked.commit_info
        # It has the mark by which the move was found.
        assert info is not None
        return redirect_commits.locked_body(info, Bare(locked.protocol, locked.metadata))

    def check_not_replaced(self) -> None:
        """Read the source's *N* back and refuse if its bytes differ from ours.

        A writer whose log store has no atomic put-if-absent may have replaced it.
        """
        found = redirect_commits.read_commit(self.source.store, self.version)
        if found is None or found[0] != self.body:
            raise Conflict(
                self.version,
                "version_replaced",
                "the commit that started the move was overwritten by a writer without "
                "put-if-absent",
                found[1].commit_info if found else None,
            ).error()

    def is_locked(self) -> bool:
        """Return whether the target's *N* exists and is this move's."""
        found = redirect_commits.read_commit(self.place, self.version)
        return found is not None and found[0] == self.lock_body

    def is_taken(self) -> bool:
        """Return whether another table is at the target of a move that hasn't ended.

        The claim exists until the move ends. If it is missing, somebody emptied the place.
        A catalog gives the place of a managed table to one table only.
        """
        if self.managed is not None:
            return False
        store = self.place
        if target_claim.read_claim(store) is not None:
            return False
        return next(log_staging.published_files(store), None) is not None

    def put_lock(self) -> None:
        """Write the target's *N*: the source's version *N*, locked for writers."""
        received_entries.move_received(self.source.store, self.place, self.lock)
        if self.place_log.backfill(self.version, self.lock_body) is not None:
            raise self._in_the_way(self.version)

    def decide(self, state: RedirectState) -> tuple[RedirectState, CommitInfo]:
        """Put the target's *N+1*, to open or to close it; return what is there afterwards.

        ``READY`` opens, ``NORMAL`` closes.
        """
        locked = self.locked
        after = self.bare_at_target
        if state is not RedirectState.READY and self.managed is None:
            entry = redirect_commits.lock(
                self.source.store.uri, self.place.uri, RedirectState.DROPPING, self.journal
            )
            after = after.carrying(entry)
        opening, txn_id = self._opening_txns(state), self.setting.new_id()
        wanted = redirect_commits.transition(
            locked, after, state, self.journal.move_id, txn_id, txns=opening
        )
        result = self.target.commit_exactly(wanted, locked, self.setting.clock())
        if not isinstance(result, Conflict) and self.is_taken() and not self._is_settled():
            # Another table was created there at that moment; don't lock that one.
            redirect_commits.retract(
                self.target.store, self.version + 1, txn_id, self.journal.move_id
            )
            raise self._replaced()
        found = self.decision()
        if found is None:
            raise self._undecided("another process has deleted the commit again")
        if not isinstance(result, Conflict):
            opens = state is RedirectState.READY
            there = RedirectState.NORMAL if opens else RedirectState.DROPPING
            self._told(self.target, self.version + 1, there)
        return found

    def _is_settled(self) -> bool:
        """Return whether the claim is missing because the move has ended, as our commit says.

        A process that follows our commit ends the move at the source, and then releases the claim.
        Another table at the target doesn't have our lock.
        """
        return self.ended() is not None and self.is_locked()

    def decision(self) -> tuple[RedirectState, CommitInfo] | None:
        """Return what the target's *N+1* says, or ``None`` if it doesn't exist yet."""
        found = self._commit_that_decides()
        if found is None:
            return None
        lines = found[1]
        mark = redirect_commits.mark_of(lines.commit_info)
        if lines.metadata is None or lines.commit_info is None or mark is None:
            raise self._foreign()
        if mark.get("moveId") != self.journal.move_id:
            raise self._undecided("the commit there was made by another move")
        if self.managed is not None:
            # The place belongs to this move alone, and an entry is too long for the catalog: so
            # the closing commit has none, and the mark says which of the two commits it is.
            ends = (RedirectState.READY, RedirectState.NORMAL)
            by_mark = next((each for each in ends if each.value == mark.get("state")), None)
            if by_mark is None:
                raise self._undecided("the commit there doesn't say how this move ended")
            return by_mark, lines.commit_info
        after = redirect_commits.state_after(lines, self.version + 1, self.locked)
        entry = read_entry.read(after.protocol, after.metadata, self.place.uri)
        # A later move to the same place carries the source's own N+1 there, which has
        # the mark of this move too: it says NORMAL and, unlike a closing commit, has no entry.
        decided = RedirectState.READY if entry is None else RedirectState.NORMAL
        if mark.get("state") != decided.value:
            raise self._undecided("a later move copied the source's commit there")
        return decided, lines.commit_info

    def _commit_that_decides(self) -> tuple[bytes, Lines] | None:
        """Return the target's *N+1*, as bytes and parsed."""
        try:
            return redirect_commits.read_commit(self.target.store, self.version + 1)
        except TableNotFound:
            if self.managed is None:
                raise
            # The table was dropped. What was published of it may still be there.
            return redirect_commits.read_commit(self.place, self.version + 1)

    def ended(self) -> RedirectState | None:
        """Return how the move ended at the source, or ``None`` while it hasn't."""
        found = redirect_commits.read_commit(self.source.store, self.version + 1)
        mark = redirect_commits.mark_of(found[1].commit_info) if found else None
        ends = (RedirectState.READY, RedirectState.NORMAL)
        return next((state for state in ends if mark == self._mark(state)), None)

    def is_going(self) -> bool:
        """Return whether the source is still at *N*. If not, the target isn't this move's."""
        return redirect_commits.read_commit(self.source.store, self.version + 1) is None

    def check_going(self) -> None:
        """Refuse to go on if the source has a version after *N*."""
        if self.is_going():
            return
        uri, version = self.source.store.uri, self.version + 1
        if self.ended() is not None:
            # The caller checks how the move ended and reports that.
            raise CommitConflict(
                f"the move of {uri} was completed or cancelled by another process",
                version=version,
                reason="move_ended",
            )
        raise CommitConflict(
            f"{uri} was written to while it moved",
            cause=f"its version {version} was written by a writer that ignores the redirect",
            remedy=f"stop that writer; then 'lakeferry redirect cancel {shell_safe(uri)}' "
            "undoes the move",
            version=version,
            reason="written_over",
        )

    def check_undecided(self) -> None:
        """Refuse to go on if the move is decided; called before publishing and before opening.

        The order of the two checks matters: a cancel deletes its closing commit only after
        the source's *N+1* exists. If neither is found, no cancel had begun at the first
        check. A cancel that begins later finds everything that was put until then: it
        deletes the staged files, so that they can't be published, and then the published
        ones. An opening commit that is put after that stands alone and opens nothing.
        """
        if self.decision() is not None:
            raise self._undecided("another process has completed or cancelled this move")
        self.check_going()

    def is_replaced(self) -> bool:
        """Return whether another table is at the target: its *N* and *N+1* aren't this move's."""
        if self.is_locked():
            return False
        try:
            self.decision()
        except CommitConflict:
            return True
        return False

    def _foreign(self) -> CommitConflict:
        """Return the error for a commit without the mark of any move."""
        return self._in_the_way(self.version + 1) if self.is_locked() else self._replaced()

    def _replaced(self) -> CommitConflict:
        """Return the error for another table at the target."""
        version = self.version + 1
        return CommitConflict(
            f"version {version} of {self.place.uri} doesn't belong to this move",
            cause="another table was made there meanwhile",
            remedy=f"'lakeferry redirect cancel {shell_safe(self.source.store.uri)}' undoes the "
            "move; then choose another target",
            version=version,
        )

    def _in_the_way(self, version: int) -> CommitConflict:
        """Return the error for a foreign commit at a target that isn't open yet."""
        source, target = self.source.store.uri, self.place.uri
        return CommitConflict(
            f"version {version} of {target} doesn't belong to this move",
            cause="a writer that ignores table features wrote to the target before it was open",
            remedy=f"stop that writer and move {target}/{paths.commit(version)} elsewhere; then "
            f"'lakeferry redirect resume {shell_safe(source)}' continues the move, and "
            f"'lakeferry redirect cancel {shell_safe(source)}' undoes it",
            version=version,
        )

    def _undecided(self, why: str) -> CommitConflict:
        """Return the error for a commit with unexpected content."""
        source = self.source.store.uri
        return CommitConflict(
            f"version {self.version + 1} of {self.place.uri} isn't the commit that the move "
            "expects there",
            cause=why,
            remedy=f"'lakeferry redirect resume {shell_safe(source)}' continues the move, "
            f"'lakeferry redirect cancel {shell_safe(source)}' undoes it",
            version=self.version + 1,
        )

    def end(
        self, state: RedirectState, decided: CommitInfo, target: RedirectTarget | None = None
    ) -> int:
        """Commit the source's *N+1* to match the target's *N+1*; return that version.

        ``target`` is the new target for the entry, if it changes.
        """
        version = self.version + 1
        if state is RedirectState.READY:
            journal = replace(self.journal, ready_version=version)
            entry = self.redirect.in_state(RedirectState.READY, journal=journal)
            if target is not None:
                journal = replace(journal, catalog_name=target.name or journal.catalog_name)
                entry = replace(entry, target=target, journal=journal)
                received_entries.mark_set_here(self.source.store, entry)
            after = self.bare.carrying(entry)
        else:
            after = self.bare
        opening = self._opening_txns(state)
        wanted = redirect_commits.transition(
            self.begun, after, state, self.journal.move_id, decided.txn_id or "", txns=opening
        )
        moment = redirect_commits.commit_time(decided, version)
        result = self.source.commit_exactly(wanted, self.begun, moment)
        if isinstance(result, Conflict):
            self._check_same(result, state)
        else:
            self._told(self.source, version, state)
        return version

    def _told(self, log: DeltaLog, version: int, state: RedirectState) -> None:
        """Report the commit that takes one end of the move to a state."""
        self.setting.step(steps.commit_step(log.store.uri, version, state))

    def _check_same(self, conflict: Conflict, state: RedirectState) -> None:
        """Accept another process's commit of the same decision; refuse any other."""
        if redirect_commits.mark_of(conflict.winner) != self._mark(state):
            raise conflict.error()

    def _opening_txns(self, state: RedirectState) -> tuple[Txn, ...]:
        return (
            lineage.opening_txns(self.journal, self.version + 1)
            if state is RedirectState.READY
            else ()
        )

    def _mark(self, state: RedirectState) -> dict[str, object]:
        return {"state": state.value, "moveId": self.journal.move_id}
