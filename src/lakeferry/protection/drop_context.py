"""What every step of a drop is given: the table, the engine, how commits are made."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import REWRITTEN, Engine, Observer, RewritePlan, unobserved
from lakeferry.errors import CommitConflict
from lakeferry.log import files
from lakeferry.log.actions import Metadata, changed
from lakeferry.log.commit import Conflict, Transaction
from lakeferry.log.replay import Snapshot, TableState
from lakeferry.protection.boundary import check_no_redirect
from lakeferry.table import DeltaLog

MAX_ATTEMPTS = 50
"""How often a step begins again because somebody else committed first."""


def _new_id() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class DropContext:
    """One drop. ``engine`` returns the engine for so many objects and bytes."""

    log: DeltaLog
    engine: Callable[[int, int], Engine]
    observer: Observer = unobserved
    new_id: Callable[[], str] = _new_id

    @property
    def location(self) -> str:
        """Where the table is."""
        return self.log.store.uri

    def state(self) -> TableState:
        """Return the newest state, of a table that may still be changed."""
        return self.checked(self.log.state())

    def snapshot(self) -> Snapshot:
        """Return the newest version with its files, of a table that may still be changed."""
        snapshot = self.log.snapshot()
        self.checked(snapshot.state)
        return snapshot

    def checked(self, state: TableState) -> TableState:
        """Refuse a state in which somebody has begun to move the table, or frozen it."""
        check_no_redirect(state, self.location, "changed")
        return state

    def set_properties(
        self,
        operation: str,
        changes: Mapping[str, str | None],
        wanted: Callable[[TableState], bool],
    ) -> None:
        """Commit other properties, ``None`` for one that goes, where ``wanted`` says so.

        Begins again as long as others are faster.
        """
        # As delta-spark has it in its history: values where there are any, else names.
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
        """Write files anew, and return what takes whose place."""
        if not plan.files.num_rows:
            nothing = plan.files.select(files.ADD.names)
            return Replacements(nothing, nothing)
        engine = self.engine(plan.files.num_rows, pc.sum(plan.files["size"]).as_py() or 0)
        told = pa.Table.from_batches(engine.rewrite(plan, self.observer), schema=REWRITTEN)
        done = told.filter(pc.not_equal(told["outcome"], "kept"))
        old = plan.files.take(done["row"].combine_chunks())
        return Replacements(old, done.select(files.ADD.names))


@dataclass(frozen=True, slots=True)
class Replacements:
    """Live files and, row for row, what takes their place; a null path where nothing does."""

    old: pa.Table
    new: pa.Table

    def still_valid(self, live: pa.Table, root: str) -> Replacements:
        """Return those whose old file is still live, with the very vector and ids that it had."""
        mask = pc.is_in(_exactly(self.old, root), value_set=_exactly(live, root))
        return Replacements(self.old.filter(mask), self.new.filter(mask))

    def and_those(self, more: Replacements) -> Replacements:
        """Return both together."""
        columns = files.ADD.names
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
        return files.as_removes(self.old, now_ms, data_change=False)


def _exactly(table: pa.Table, root: str) -> pa.Array:
    """Return what tells logical files apart, and one from itself with other row ids."""
    ids = [
        pc.fill_null(table[name].combine_chunks().cast(pa.string()), "")
        for name in ("baseRowId", "defaultRowCommitVersion")
    ]
    return pc.binary_join_element_wise(files.table_keys(table, root), *ids, "\n")


def with_properties(metadata: Metadata, changes: Mapping[str, str | None]) -> Metadata:
    """Return metadata with other properties; ``None`` takes one away."""
    configuration = dict(metadata.configuration)
    for name, value in changes.items():
        if value is None:
            configuration.pop(name, None)
        else:
            configuration[name] = value
    return changed(metadata, configuration=configuration)


def gave_up(location: str, what: str) -> CommitConflict:
    """Return the error for a step that others never let through."""
    return CommitConflict(
        f"{what} of {location} didn't succeed",
        cause=f"others committed first, {MAX_ATTEMPTS} times in a row",
        remedy="try again when fewer write to the table; what was done so far stays valid",
        location=location,
        reason="busy",
    )
