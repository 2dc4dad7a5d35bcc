"""The context of every step of a drop: the table, the engine, how commits are made."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import REWRITTEN, Engine, Observer, RewritePlan, unobserved
from lakeferry.errors import CommitConflict
from lakeferry.log import file_actions, file_identity
from lakeferry.log.actions import Metadata, changed
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import Snapshot, TableState
from lakeferry.protection.boundary import check_no_redirect
from lakeferry.table import DeltaLog

MAX_ATTEMPTS = 50
"""How often a step is retried because another writer committed first."""


def _new_id() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class DropContext:
    """One drop. ``engine`` returns the engine for a number of objects and bytes."""

    log: DeltaLog
    engine: Callable[[int, int], Engine]
    observer: Observer = unobserved
    new_id: Callable[[], str] = _new_id

    @property
    def location(self) -> str:
        """The URI of the table."""
        return self.log.store.uri

    def state(self) -> TableState:
        """Return the newest state; refuse a table that is moving or frozen."""
        return self.checked(self.log.state())

    def snapshot(self) -> Snapshot:
        """Return the newest version with its files; refuse a table that is moving or frozen."""
        snapshot = self.log.snapshot()
        self.checked(snapshot.state)
        return snapshot

    def checked(self, state: TableState) -> TableState:
        """Return the state; refuse a table that is moving or frozen by now."""
        check_no_redirect(state, self.location, "changed")
        return state

    def set_properties(
        self,
        operation: str,
        changes: Mapping[str, str | None],
        wanted: Callable[[TableState], bool],
    ) -> None:
        """Commit changed properties, ``None`` to delete one, if ``wanted`` returns True.

        Retries after conflicts with other writers.
        """
        # The same form as delta-spark's history: values for SET, only names for UNSET.
        named = dict(changes) if None not in changes.values() else list(changes)
        for _ in range(MAX_ATTEMPTS):
            state = self.state()
            if not wanted(state):
                return
            transaction = Transaction(
                operation,
                self.new_id(),
                {"properties": msgspec.json.encode(named).decode()},
                metadata=with_properties(state.metadata, changes),
            )
            if not isinstance(self.log.commit(transaction, state), Conflict):
                return
        raise gave_up(self.location, "setting properties")

    def rewritten(self, plan: RewritePlan) -> Replacements:
        """Rewrite files, and return which new file replaces which old one."""
        if not plan.files.num_rows:
            nothing = plan.files.select(file_actions.ADD.names)
            return Replacements(nothing, nothing)
        engine = self.engine(plan.files.num_rows, pc.sum(plan.files["size"]).as_py() or 0)
        told = pa.Table.from_batches(engine.rewrite(plan, self.observer), schema=REWRITTEN)
        done = told.filter(pc.not_equal(told["outcome"], "kept"))
        old = plan.files.take(done["row"].combine_chunks())
        return Replacements(old, done.select(file_actions.ADD.names))


@dataclass(frozen=True, slots=True)
class Replacements:
    """Live files and, row by row, their replacements; a null path if there is none."""

    old: pa.Table
    new: pa.Table

    def still_valid(self, live: pa.Table, root: str) -> Replacements:
        """Return those whose old file is still live, with the same vector and row ids."""
        mask = pc.is_in(_exactly(self.old, root), value_set=_exactly(live, root))
        return Replacements(self.old.filter(mask), self.new.filter(mask))

    def and_those(self, more: Replacements) -> Replacements:
        """Return these replacements and ``more``."""
        columns = file_actions.ADD.names
        return Replacements(
            pa.concat_tables([self.old.select(columns), more.old.select(columns)]),
            pa.concat_tables([self.new, more.new]),
        )

    @property
    def adds(self) -> pa.Table | None:
        """The files to add."""
        there = self.new.filter(pc.is_valid(self.new["path"]))
        return there if there.num_rows else None

    def removes(self, now_ms: int) -> pa.Table | None:
        """Return the actions that remove the old files."""
        if not self.old.num_rows:
            return None
        return file_actions.as_removes(self.old, now_ms, data_change=False)


def _exactly(table: pa.Table, root: str) -> pa.Array:
    """Return a key for each logical file, which also differs if its row ids differ."""
    ids = [
        pc.fill_null(table[name].combine_chunks().cast(pa.string()), "")
        for name in ("baseRowId", "defaultRowCommitVersion")
    ]
    return pc.binary_join_element_wise(file_identity.table_keys(table, root), *ids, "\n")


def with_properties(metadata: Metadata, changes: Mapping[str, str | None]) -> Metadata:
    """Return metadata with changed properties; ``None`` deletes one."""
    configuration = dict(metadata.configuration)
    for name, value in changes.items():
        if value is None:
            configuration.pop(name, None)
        else:
            configuration[name] = value
    return changed(metadata, configuration=configuration)


def gave_up(location: str, what: str) -> CommitConflict:
    """Return the error for a step that failed because of too many conflicts."""
    return CommitConflict(
        f"{what} of {location} didn't succeed",
        cause=f"other writers committed first, {MAX_ATTEMPTS} times in a row",
        remedy="try again when fewer processes write to the table; what was done so far stays "
        "valid",
        location=location,
        reason="busy",
    )
