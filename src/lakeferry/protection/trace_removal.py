"""Removes a feature's traces from a table's current state, before the feature is dropped.

One function for each feature that leaves any (:data:`PREPARATIONS`). Each commits
what it takes, while others go on writing, and returns a version whose state has no
trace of the feature. What came after that version :func:`shows_traces` judges, commit
by commit. Run again, each finds less to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import RewritePlan
from lakeferry.errors import FeatureNotDroppable
from lakeferry.log import files, properties, references, row_ids
from lakeferry.log.actions import DomainMetadata, Metadata, changed
from lakeferry.log.commit import Conflict, Reads, Transaction
from lakeferry.log.lines import Lines
from lakeferry.log.replay import Snapshot
from lakeferry.log.schema import MAPPING_MODE
from lakeferry.protection import schema_rewrite
from lakeferry.protection.drop_context import MAX_ATTEMPTS, DropContext, Replacements, gave_up

VECTORS_ENABLED = "delta.enableDeletionVectors"
WIDENING_ENABLED = "delta.enableTypeWidening"
CHECKPOINT_POLICY = "delta.checkpointPolicy"
ROW_TRACKING_OFF: Mapping[str, str | None] = {
    "delta.enableRowTracking": "false",
    "delta.rowTrackingSuspended": "true",
}
CLUSTERING_DOMAIN = "delta.clustering"
_UNTRACKED_AT_ONCE = 100_000
"""So many files are committed anew by one commit."""
_SET, _UNSET = "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"


def purge_vectors(work: DropContext) -> int:
    """Write files with deleted rows anew, and keep the vectors' files from an old VACUUM."""
    work.set_properties(
        _UNSET,
        {VECTORS_ENABLED: None},
        lambda state: VECTORS_ENABLED in state.metadata.configuration,
    )
    for _ in range(MAX_ATTEMPTS):
        snapshot = work.snapshot()
        marked = snapshot.files.filter(pc.is_valid(snapshot.files["deletionVector"]))
        if not marked.num_rows:
            return _bury_vectors(work, snapshot)
        plan = RewritePlan(
            work.log.store.config,
            marked,
            snapshot.metadata,
            snapshot.metadata,
            only_where_needed=False,
            tight_bounds=True,
        )
        _replace(work, work.rewritten(plan), snapshot.metadata)
    raise gave_up(work.location, "purging deletion vectors")


def _replace(work: DropContext, done: Replacements, made_by: Metadata) -> None:
    """Commit replacements, as many as are still valid; those that aren't are done again later.

    ``made_by`` is the metadata that the new files follow.
    """
    for _ in range(MAX_ATTEMPTS):
        snapshot = work.snapshot()
        # The files were live at an older version; whatever changed them since shows here.
        done = done.still_valid(snapshot.files, work.location)
        if not done.old.num_rows or not _alike(snapshot.metadata, made_by):
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


def _alike(a: Metadata, b: Metadata) -> bool:
    """Tell whether files that follow the one are what the other asks for, too."""
    return (
        a.schema_string == b.schema_string
        and a.partition_columns == b.partition_columns
        and a.configuration.get(MAPPING_MODE) == b.configuration.get(MAPPING_MODE)
        and properties.keeps_row_ids(a.configuration) == properties.keeps_row_ids(b.configuration)
    )


def _bury_vectors(work: DropContext, snapshot: Snapshot) -> int:
    """Commit a ``remove`` for each vector file that time travel may still need.

    A client that doesn't know vectors sees no use in their files; of what was removed
    within the retention even its VACUUM keeps its hands off.
    """
    now_ms = work.log.clock()
    retention_ms = properties.deleted_file_retention_ms(snapshot.metadata.configuration)
    buried = snapshot.tombstones
    recent = pc.greater(pc.fill_null(buried["deletionTimestamp"], 0), now_ms - retention_ms)
    vectors = buried.filter(recent)["deletionVector"].combine_chunks()
    found = references.vector_paths(vectors)
    missing = found.filter(pc.invert(pc.is_in(found, value_set=buried["path"].combine_chunks())))
    if not len(missing):
        return snapshot.version
    rows = [
        {"path": path, "deletionTimestamp": now_ms, "dataChange": False}
        for path in missing.to_pylist()
    ]
    removes = pa.Table.from_pylist(rows, schema=files.REMOVE)
    transaction = Transaction("Deletion Vector Tombstones", work.new_id(), removes=removes)
    for _ in range(MAX_ATTEMPTS):
        if not isinstance(work.log.commit(transaction, work.state()), Conflict):
            return snapshot.version
    raise gave_up(work.location, "keeping vectors")


def remove_mapping(work: DropContext) -> int:
    """Write all files anew under the names that users see, in one commit with the new schema."""
    done: Replacements | None = None
    made_by: Metadata | None = None
    for _ in range(MAX_ATTEMPTS):
        snapshot = work.snapshot()
        before = snapshot.metadata
        if before.configuration.get(MAPPING_MODE, "none") == "none":
            return snapshot.version
        check_unused("columnMapping", snapshot, work.location)
        after = schema_rewrite.without_mapping(before)
        live = snapshot.files
        if made_by is None or not _alike(before, made_by):
            # Columns may have other names by now, and what was written has the old ones.
            done, made_by = None, before
        if done is not None:
            done = done.still_valid(live, work.location)
            known = files.table_keys(done.old, work.location)
            live = live.filter(
                pc.invert(pc.is_in(files.table_keys(live, work.location), value_set=known))
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


def _clustering_by_name(snapshot: Snapshot, before: Metadata) -> tuple[DomainMetadata, ...]:
    """Return the clustering domain with the names that users see."""
    domain = snapshot.domains.get(CLUSTERING_DOMAIN)
    if domain is None:
        return ()
    value = msgspec.json.decode(domain.configuration)
    logical = schema_rewrite.logical_paths(before)
    value["clusteringColumns"] = [
        logical.get(tuple(path), path) for path in value.get("clusteringColumns", [])
    ]
    return (DomainMetadata(CLUSTERING_DOMAIN, msgspec.json.encode(value).decode()),)


def undo_widening(work: DropContext) -> int:
    """Write files of narrower types anew, and take the changes of types out of the schema."""
    work.set_properties(
        _UNSET,
        {WIDENING_ENABLED: None},
        lambda state: WIDENING_ENABLED in state.metadata.configuration,
    )
    checked: pa.Array | None = None
    checked_by: Metadata | None = None
    for _ in range(MAX_ATTEMPTS):
        snapshot = work.snapshot()
        if not schema_rewrite.has_type_changes(snapshot.metadata):
            return snapshot.version
        if checked_by is None or not _alike(snapshot.metadata, checked_by):
            checked, checked_by = None, snapshot.metadata
        own = files.table_keys(snapshot.files, work.location)
        unsure = snapshot.files
        if checked is not None:
            unsure = unsure.filter(pc.invert(pc.is_in(own, value_set=checked)))
        plan = RewritePlan(work.log.store.config, unsure, snapshot.metadata, snapshot.metadata)
        narrow = work.rewritten(plan)
        if narrow.old.num_rows:
            _replace(work, narrow, snapshot.metadata)
            continue
        checked = own
        transaction = Transaction(
            "DROP FEATURE",
            work.new_id(),
            metadata=schema_rewrite.without_type_changes(snapshot.metadata),
            reads=Reads.FILES,
        )
        result = work.log.commit(transaction, snapshot.state)
        if not isinstance(result, Conflict):
            return result.version
    raise gave_up(work.location, "rewriting widened columns")


def forget_row_ids(work: DropContext) -> int:
    """Commit live files anew without the ids of their rows."""
    work.set_properties(
        _SET,
        ROW_TRACKING_OFF,
        lambda state: any(
            state.metadata.configuration.get(name) != value
            for name, value in ROW_TRACKING_OFF.items()
        ),
    )
    conflicts = 0
    while conflicts < MAX_ATTEMPTS:
        snapshot = work.snapshot()
        live = snapshot.files
        tracked = live.filter(
            pc.or_(pc.is_valid(live["baseRowId"]), pc.is_valid(live["defaultRowCommitVersion"]))
        )
        if not tracked.num_rows:
            return snapshot.version
        some = row_ids.without(tracked.slice(0, _UNTRACKED_AT_ONCE), data_change=False)
        transaction = Transaction("ROW TRACKING UNBACKFILL", work.new_id(), adds=some)
        conflicts += isinstance(work.log.commit(transaction, snapshot.state), Conflict)
    raise gave_up(work.location, "forgetting row ids")


def leave_v2_checkpoints(work: DropContext) -> int:
    """Let checkpoints be classic ones from here on."""
    work.set_properties(
        _SET,
        {CHECKPOINT_POLICY: "classic"},
        lambda state: properties.wants_v2_checkpoints(state.metadata.configuration),
    )
    return work.log.state().version


def prepare(work: DropContext, feature: str) -> int:
    """Take a feature's traces away, if it leaves any; return a version without them."""
    preparation = PREPARATIONS.get(feature)
    return work.log.state().version if preparation is None else preparation(work)


PREPARATIONS: Mapping[str, Callable[[DropContext], int]] = {
    "deletionVectors": purge_vectors,
    "columnMapping": remove_mapping,
    "typeWidening": undo_widening,
    "typeWidening-preview": undo_widening,
    "rowTracking": forget_row_ids,
    "v2Checkpoint": leave_v2_checkpoints,
}


def shows_traces(feature: str, metadata: Metadata, since: Lines) -> bool:
    """Tell whether commits since a state without traces have brought some.

    ``metadata`` is that of the newest version, ``since`` what the commits said.
    """
    configuration = metadata.configuration
    match feature:
        case "deletionVectors":
            # Whoever removes a file with a vector removes it from a state that has one.
            touched = (since.adds["deletionVector"], since.removes["deletionVector"])
            return VECTORS_ENABLED in configuration or any(
                vectors.null_count < len(vectors) for vectors in touched
            )
        case "columnMapping":
            return configuration.get(MAPPING_MODE, "none") != "none"
        case "typeWidening" | "typeWidening-preview":
            return WIDENING_ENABLED in configuration or schema_rewrite.has_type_changes(metadata)
        case "v2Checkpoint":
            return properties.wants_v2_checkpoints(configuration)
        case "geospatial" | "geospatial-dev":
            return bool(schema_rewrite.geospatial_columns(metadata))
    return False


def removed_properties(feature: str) -> Mapping[str, str | None]:
    """Return the properties that go together with a feature."""
    return dict.fromkeys(_PROPERTIES.get(feature, ()))


_PROPERTIES: Mapping[str, tuple[str, ...]] = {
    "appendOnly": ("delta.appendOnly",),
    "changeDataFeed": ("delta.enableChangeDataFeed",),
    "inCommitTimestamp": (
        "delta.enableInCommitTimestamps",
        "delta.inCommitTimestampEnablementVersion",
        "delta.inCommitTimestampEnablementTimestamp",
    ),
    "materializePartitionColumns": ("delta.enableMaterializePartitionColumnsFeature",),
    "rowTracking": (
        "delta.enableRowTracking",
        "delta.rowTrackingSuspended",
        "delta.rowTracking.materializedRowIdColumnName",
        "delta.rowTracking.materializedRowCommitVersionColumnName",
    ),
    "v2Checkpoint": (CHECKPOINT_POLICY,),
    "checkpointProtection": (properties.PROTECTED_BEFORE,),
}
_DOMAINS = {"rowTracking": "delta.rowTracking", "clustering": CLUSTERING_DOMAIN}


def removed_domains(
    feature: str, domains: Mapping[str, DomainMetadata]
) -> tuple[DomainMetadata, ...]:
    """Return the tombstones of the metadata domains that go together with a feature."""
    domain = domains.get(_DOMAINS.get(feature, ""))
    return (changed(domain, removed=True),) if domain is not None else ()


def check_unused(feature: str, snapshot: Snapshot, location: str) -> None:
    """Refuse to drop a feature while something that it is for would be lost."""
    configuration = snapshot.metadata.configuration
    used: list[str] = []
    match feature:
        case "checkConstraints":
            lead = "delta.constraints."
            named = [key.removeprefix(lead) for key in configuration if key.startswith(lead)]
            used = [f"the constraint {name}" for name in named]
        case "domainMetadata":
            used = [f"the metadata domain {name}" for name in sorted(snapshot.domains)]
        case "geospatial" | "geospatial-dev":
            used = [
                f"the column {name}"
                for name in schema_rewrite.geospatial_columns(snapshot.metadata)
            ]
        case "columnMapping":
            illegal = schema_rewrite.illegal_names(snapshot.metadata)
            used = [f"the column name {name!r}" for name in illegal]
    if used:
        raise FeatureNotDroppable(
            f"the feature {feature} of {location} can't be dropped",
            cause=f"it is in use: {', '.join(used)}",
            remedy="drop or rename what uses it first",
            location=location,
            feature=feature,
            used_by=used,
        )
