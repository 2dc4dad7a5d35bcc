"""Drops columnMapping: all files are rewritten with the column names that users see."""

from __future__ import annotations

import msgspec
import pyarrow.compute as pc

from lakeferry.engine import RewritePlan
from lakeferry.log import file_identity
from lakeferry.log.actions import DomainMetadata, Metadata
from lakeferry.log.commit import Reads, Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.lines import Lines
from lakeferry.log.replay import Snapshot
from lakeferry.log.schema import MAPPING_MODE
from lakeferry.protection import schema_traces
from lakeferry.protection.drop_context import MAX_ATTEMPTS, DropContext, Replacements, gave_up
from lakeferry.protection.features.clustering import DropClustering
from lakeferry.protection.features.droppable_feature import DroppableFeature
from lakeferry.protection.features.file_replacement import follow_alike


class DropColumnMapping(DroppableFeature):
    """Columns have one name each."""

    names = ("columnMapping",)

    def uses(self, snapshot: Snapshot) -> list[str]:
        """Return the columns whose names are only possible with column mapping."""
        illegal = schema_traces.illegal_names(snapshot.metadata)
        return [f"the column name {name!r}" for name in illegal]

    def prepare(self, work: DropContext) -> int:
        """Rewrite all files, in one commit with the new schema; return its version."""
        done: Replacements | None = None
        made_by: Metadata | None = None
        for _ in range(MAX_ATTEMPTS):
            snapshot = work.snapshot()
            before = snapshot.metadata
            if before.configuration.get(MAPPING_MODE, "none") == "none":
                return snapshot.version
            self.check_unused(snapshot, work.location)
            after = schema_traces.without_mapping(before)
            live = snapshot.files
            if made_by is None or not follow_alike(before, made_by):
                # Columns may have been renamed meanwhile, and the new files have the old names.
                done, made_by = None, before
            if done is not None:
                done = done.still_valid(live, work.location)
                known = file_identity.table_keys(done.old, work.location)
                live = live.filter(
                    pc.invert(
                        pc.is_in(file_identity.table_keys(live, work.location), value_set=known)
                    )
                )
            plan = RewritePlan(work.log.store.config, live, before, after, only_where_needed=False)
            more = work.rewritten(plan)
            done = more if done is None else done.and_those(more)
            transaction = Transaction(
                "REMOVE COLUMN MAPPING",
                work.new_id(),
                metadata=after,
                domains=_clustering_by_name(snapshot, before),
                adds=done.adds,
                removes=done.removes(work.log.clock()),
                reads=Reads.FILES,
                new_names=True,
                keeps_row_ids=True,
            )
            result = work.log.commit(transaction, snapshot.state)
            if not isinstance(result, Conflict):
                return result.version
        raise gave_up(work.location, "removing column mapping")

    def shows_traces(self, metadata: Metadata, since: Lines) -> bool:  # noqa: ARG002
        """Return whether columns are mapped again."""
        return metadata.configuration.get(MAPPING_MODE, "none") != "none"


def _clustering_by_name(snapshot: Snapshot, before: Metadata) -> tuple[DomainMetadata, ...]:
    """Return the clustering domain with the names that users see."""
    domain = snapshot.domains.get(DropClustering.domain)
    if domain is None:
        return ()
    value = msgspec.json.decode(domain.configuration)
    logical = schema_traces.logical_paths(before)
    value["clusteringColumns"] = [
        logical.get(tuple(path), path) for path in value.get("clusteringColumns", [])
    ]
    return (DomainMetadata(DropClustering.domain, msgspec.json.encode(value).decode()),)
