"""Commits rewritten data files, for features that are stored in data files."""

from __future__ import annotations

from lakeferry.log import properties
from lakeferry.log.actions import Metadata
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.schema import MAPPING_MODE
from lakeferry.protection.drop_context import MAX_ATTEMPTS, DropContext, Replacements, gave_up


def replace_files(work: DropContext, done: Replacements, made_by: Metadata) -> None:
    """Commit the replacements that are still valid; the others are repeated later.

    ``made_by`` is the metadata with which the new files were written.
    """
    for _ in range(MAX_ATTEMPTS):
        snapshot = work.snapshot()
        # The files were live at an older version, and may have been changed since.
        done = done.still_valid(snapshot.files, work.location)
        if not done.old.num_rows or not follow_alike(snapshot.metadata, made_by):
            return
        transaction = Transaction(
            "REORG",
            work.new_id(),
            {"predicate": "[]", "applyPurge": "true"},
            adds=done.adds,
            removes=done.removes(work.log.clock()),
            new_names=True,
            keeps_row_ids=True,
        )
        if not isinstance(work.log.commit(transaction, snapshot.state), Conflict):
            return
    raise gave_up(work.location, "replacing data files")


def follow_alike(a: Metadata, b: Metadata) -> bool:
    """Return whether files written with one metadata are valid for the other, too."""
    return (
        a.schema_string == b.schema_string
        and a.partition_columns == b.partition_columns
        and a.configuration.get(MAPPING_MODE) == b.configuration.get(MAPPING_MODE)
        and properties.keeps_row_ids(a.configuration) == properties.keeps_row_ids(b.configuration)
    )
