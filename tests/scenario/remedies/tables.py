"""Damaged logs, versions that are gone, features and cleanup: what the user does then."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.support.history import (
    Append,
    Checkpoint,
    DeleteRows,
    Domain,
    History,
    Layout,
    SetProperties,
    Upgrade,
)
from tests.support.lake import ORDERS
from tests.support.remedies import Witness, follows

LONG = History().then(Append(1), Append(1), Append(1), Checkpoint(), Append(1))
VECTORS = History(Layout(deletion_vectors="u")).then(Append(3), DeleteRows(1), Checkpoint())
WITH_DOMAINS = History(Layout(domains=True)).then(Append(1), Domain())


def log_file(witness: Witness, version: int, ending: str = "json") -> Path:
    """Return the path of a log file of the table ``t``."""
    return witness.lake.folder / "t" / "_delta_log" / f"{version:020d}.{ending}"


def set_property(witness: Witness, name: str, value: str | None) -> None:
    """Commit a metadata change to the table ``t``, as another engine does."""
    found = witness.done("inspect", witness.lake.uri("t"))
    metadata = dict(found["metadata"])
    configuration = dict(metadata["configuration"])
    configuration.pop(name, None)
    if value is not None:
        configuration[name] = value
    action = {
        "metaData": {
            "id": metadata["id"],
            "format": {"provider": "parquet", "options": {}},
            "schemaString": metadata["schemaString"],
            "partitionColumns": metadata["partitionColumns"],
            "configuration": configuration,
        }
    }
    log_file(witness, found["version"] + 1).write_text(json.dumps(action) + "\n")


@follows("lines.py: restore that file from a copy; nothing was changed")
def a_commit_that_does_not_parse_is_restored(witness: Witness) -> None:
    table = witness.lake.make("t")
    commit = log_file(witness, 2)
    copy = commit.read_bytes()
    commit.write_bytes(b"{")
    witness.refused("inspect", table)
    commit.write_bytes(copy)
    witness.done("inspect", table)


@follows("segment.py: restore the missing commit from a copy")
def a_commit_that_is_missing_is_restored(witness: Witness) -> None:
    table = witness.lake.make("t")
    commit = log_file(witness, 1)
    copy = commit.read_bytes()
    commit.unlink()
    witness.refused("inspect", table)
    commit.write_bytes(copy)
    witness.done("inspect", table)


@follows("segment.py: restore the missing log files from a copy")
def a_first_commit_that_is_missing_is_restored(witness: Witness) -> None:
    table = witness.lake.make("t")
    commit = log_file(witness, 0)
    copy = commit.read_bytes()
    commit.unlink()
    witness.refused("inspect", table)
    commit.write_bytes(copy)
    witness.done("inspect", table)


@follows("replay.py: restore the log from a copy")
def a_log_without_a_protocol_is_restored(witness: Witness) -> None:
    table = witness.lake.make("t")
    first = log_file(witness, 0)
    copy = first.read_bytes()
    lines = [line for line in copy.splitlines() if b'"protocol"' not in line]
    first.write_bytes(b"\n".join(lines) + b"\n")
    witness.refused("inspect", table)
    first.write_bytes(copy)
    witness.done("inspect", table)


@follows("segment.py: use --version {} or a newer one (version=N in Python)")
def a_version_before_the_cleaned_log_is_asked_for(witness: Witness) -> None:
    table = witness.lake.make("t", LONG)
    for version in range(3):
        log_file(witness, version).unlink()
    error = witness.refused("inspect", table, "--version", 1)
    witness.done("inspect", table, "--version", error["earliest_version"])


@follows("segment.py: use another --version; 'lakeferry history TABLE' lists the versions")
def a_version_whose_own_commit_is_missing_is_asked_for(witness: Witness) -> None:
    table = witness.lake.make("t")
    log_file(witness, 1).unlink()
    witness.refused("inspect", table, "--version", 1)
    witness.done("inspect", table, "--version", 0)


@follows("delta_log.py: use a later --timestamp, or --version {} or a newer one")
def a_time_before_the_table_is_asked_for(witness: Witness) -> None:
    table = witness.lake.make("t")
    witness.refused("files", table, "--timestamp", 5)
    witness.done("files", table, "--timestamp", int(time.time() * 1000))


@follows("delta_log.py: check the path: a table's folder is the one that holds its _delta_log")
def a_folder_beside_the_table_is_given(witness: Witness) -> None:
    table = witness.lake.make("t")
    other = witness.lake.folder / "other"
    other.mkdir()
    (other / "readme.txt").write_text("no table")
    witness.refused("inspect", witness.lake.uri("other"))
    witness.done("inspect", table)


@follows(
    "table/checkpoint.py: delete that checksum file if the log is right; else find out which log "
    "file was changed, and restore it from a copy"
)
def a_commit_that_contradicts_its_checksum_file_is_restored(witness: Witness) -> None:
    table = witness.lake.make("t")
    commit = log_file(witness, 2)
    copy = commit.read_bytes()
    found = witness.done("inspect", table)
    first = [json.loads(line) for line in log_file(witness, 0).read_bytes().splitlines()]
    actions = {key: value for line in first for key, value in line.items()}
    checksum = {
        "tableSizeBytes": found["size_bytes"] + 1,
        "numFiles": found["num_files"],
        "numMetadata": 1,
        "numProtocol": 1,
        "protocol": actions["protocol"],
        "metadata": actions["metaData"],
    }
    beside = log_file(witness, found["version"], "crc")
    beside.write_text(json.dumps(checksum))
    witness.refused("checkpoint", table)
    beside.write_text(json.dumps({**checksum, "tableSizeBytes": found["size_bytes"]}))
    commit.write_bytes(copy)
    witness.done("checkpoint", table)


@follows(
    "delta_log.py: delete the checksum file if the log is right; else find out which log "
    "file was changed, and restore it from a copy"
)
def a_checksum_file_that_contradicts_the_log_is_deleted(witness: Witness) -> None:
    table = witness.lake.make("t")
    found = witness.done("inspect", table)
    checksum = {
        "tableSizeBytes": found["size_bytes"],
        "numFiles": found["num_files"],
        "numMetadata": 1,
        "numProtocol": 1,
        "protocol": found["protocol"],
        "metadata": {**found["metadata"], "configuration": {"delta.appendOnly": "true"}},
    }
    beside = log_file(witness, found["version"], "crc")
    beside.write_text(json.dumps(checksum))
    witness.refused("redirect", "freeze", table)
    beside.unlink()
    witness.done("redirect", "freeze", table)


def leave_to_a_compacted_log(witness: Witness) -> str:
    """Make the table ``t``, with a commit that only a compacted log still has."""
    table = witness.lake.make("t")
    lines = [
        line
        for version in (2, 3)
        for line in log_file(witness, version).read_bytes().splitlines(keepends=True)
        if b'"commitInfo"' not in line
    ]
    log_file(witness, 2, f"{3:020d}.compacted.json").write_bytes(b"".join(lines))
    log_file(witness, 2).unlink()
    return table


@follows(
    "precopy.py: restore the missing log files from a copy; or, if 'lakeferry files {}' "
    "still reads the table, run 'lakeferry checkpoint {}' first"
)
def a_gap_that_a_compacted_log_fills_is_left_behind_by_a_checkpoint(witness: Witness) -> None:
    table = leave_to_a_compacted_log(witness)
    target = witness.lake.uri("new")
    witness.refused("redirect", "enable", table, target)
    witness.done("checkpoint", table)
    witness.done("redirect", "enable", table, target)


@follows("properties.py: set it to something like 'interval 7 days'")
def a_retention_that_is_no_interval_is_corrected(witness: Witness) -> None:
    bad = SetProperties((("delta.logRetentionDuration", "soon"),))
    table = witness.lake.make("t", ORDERS.then(bad))
    witness.refused("cleanup", table)
    set_property(witness, "delta.logRetentionDuration", "interval 7 days")
    witness.done("cleanup", table)


@follows("properties.py: set it to the version at which the last feature was dropped")
def a_boundary_that_is_no_version_is_corrected(witness: Witness) -> None:
    name = "delta.requireCheckpointProtectionBeforeVersion"
    steps = (Upgrade(writer=("checkpointProtection",)), SetProperties(((name, "x"),)))
    table = witness.lake.make("t", ORDERS.then(*steps))
    witness.refused("cleanup", table)
    set_property(witness, name, "2")
    witness.done("cleanup", table)


@follows("boundary.py: remove the property, or add the feature with the engine that set it")
def a_boundary_without_its_feature_is_removed(witness: Witness) -> None:
    name = "delta.requireCheckpointProtectionBeforeVersion"
    table = witness.lake.make("t", ORDERS.then(SetProperties(((name, "2"),))))
    witness.refused("cleanup", table)
    set_property(witness, name, None)
    witness.done("cleanup", table)


@follows(
    "boundary.py: end the redirect first: 'lakeferry redirect thaw' if the table is frozen, "
    "'redirect cancel' if its move is unfinished, else 'redirect disable'; or use its target"
)
def a_frozen_table_is_thawed_and_cleaned_up(witness: Witness) -> None:
    table = witness.lake.make("t")
    witness.done("redirect", "freeze", table)
    witness.refused("cleanup", table)
    witness.done("redirect", "thaw", table)
    witness.done("cleanup", table)


@follows("dropping.py: leave out --truncate-history")
def a_feature_that_leaves_no_traces_keeps_its_history(witness: Witness) -> None:
    table = witness.lake.make("t", ORDERS.then(Upgrade(writer=("appendOnly",))))
    witness.done("feature", "list", table)
    witness.refused("feature", "drop", table, "appendOnly", "--truncate-history")
    witness.done("feature", "drop", table, "appendOnly")


@follows("droppable_feature.py: drop or rename what uses it first")
def a_domain_that_is_in_use_is_removed_and_its_feature_dropped(witness: Witness) -> None:
    table = witness.lake.make("t", WITH_DOMAINS)
    witness.refused("feature", "drop", table, "domainMetadata")
    removed = {"domainMetadata": {"domain": "app.domain", "configuration": "{}", "removed": True}}
    log_file(witness, 3).write_text(json.dumps(removed) + "\n")
    witness.done("feature", "drop", table, "domainMetadata")
