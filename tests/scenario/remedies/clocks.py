"""Times that have to pass or aren't known, and what a table lacks for a commit."""

from __future__ import annotations

import json
import os
import time

from tests.scenario.remedies.redirects import quoted
from tests.scenario.remedies.tables import VECTORS, log_file
from tests.support.history import Append, Checkpoint, DeleteRows, History, Kind, Layout
from tests.support.remedies import NEEDS_A_PERSON, Witness, follows

DAY_S = 86_400
V2 = History(Layout(v2_checkpoints=True, deletion_vectors="u")).then(
    Append(3), Checkpoint(Kind.V2_PARQUET), DeleteRows(1)
)

NEEDS_A_PERSON["type_changes.py: read it with the engine that changed the type"] = (
    "no engine here makes a change that isn't in the protocol: "
    "tests/unit/dataset/test_scanning_values.py "
    "(test_type_changes_that_are_not_supported_fail_the_read) writes such a schema"
)


def days_pass(witness: Witness, days: float) -> None:
    """Make every log file of the table ``t`` older by that."""
    for path in (witness.lake.folder / "t" / "_delta_log").rglob("*"):
        then = path.stat().st_mtime - days * DAY_S
        os.utime(path, (then, then))


@follows("dropping.py: try again when the retention has passed")
def a_feature_is_dropped_when_its_history_is_old_enough(witness: Witness) -> None:
    table = witness.lake.make("t", VECTORS)
    words = ("feature", "drop", table, "deletionVectors", "--truncate-history")
    assert witness.refused(*words)["free_at_ms"] > time.time() * 1000
    days_pass(witness, 0.5)
    witness.refused(*words)
    days_pass(witness, 0.6)
    assert witness.done(*words)["boundary"] is None


@follows(
    "dropping.py: try again when the retention has passed",
    "dropping.py: try again when the retention has passed; with --truncate-history it is only "
    "one day",
)
def protection_is_dropped_after_a_month_or_after_a_day(witness: Witness) -> None:
    for days, flags in ((31, ()), (1.1, ("--truncate-history",))):
        table = witness.lake.make("t", VECTORS)
        witness.done("feature", "drop", table, "deletionVectors")
        words = ("feature", "drop", table, "checkpointProtection")
        witness.refused(*words, *flags)
        witness.refused(*words)
        days_pass(witness, days)
        witness.done(*words, *flags)
        (witness.lake.folder / "t").rename(witness.lake.folder / f"after-{days}")


@follows(
    "dropping.py: run 'lakeferry feature drop {} {} --truncate-history' first, or leave "
    "out --truncate-history"
)
def protected_history_goes_first_or_stays(witness: Witness) -> None:
    for goes_first in (True, False):
        table = witness.lake.make("t", V2)
        witness.done("feature", "drop", table, "deletionVectors")
        days_pass(witness, 2)
        drop = ("feature", "drop", table)
        witness.refused(*drop, "v2Checkpoint", "--truncate-history")
        if goes_first:
            witness.done(*quoted(witness))
            witness.done(*drop, "v2Checkpoint", "--truncate-history")
        else:
            witness.done(*drop, "v2Checkpoint")
        (witness.lake.folder / "t").rename(witness.lake.folder / f"first-{goes_first}")


@follows(
    "put_commit.py: restore {} from a copy, or commit once more with an engine that has the "
    "table open"
)
def a_time_that_is_not_known_is_restored_or_told_anew(witness: Witness) -> None:
    history = History(Layout(in_commit_timestamps=True)).then(Append(1), Checkpoint())
    table = witness.lake.make("t", history)
    newest = log_file(witness, history.newest_version)
    copy = newest.read_bytes()
    for version in range(history.newest_version + 1):
        log_file(witness, version).unlink()
    words = ("redirect", "freeze", table)
    witness.refused(*words)
    newest.write_bytes(copy)
    witness.done(*words)
    witness.done("redirect", "thaw", table)
    checkpointed = witness.done("checkpoint", table)["version"]
    for path in (witness.lake.folder / "t" / "_delta_log").glob("*.*"):
        if path.suffix in (".json", ".crc"):
            path.unlink()
    witness.refused(*words)
    info = {"inCommitTimestamp": int(time.time() * 1000), "operation": "WRITE"}
    log_file(witness, checkpointed + 1).write_text(json.dumps({"commitInfo": info}) + "\n")
    witness.done(*words)


@follows(
    "commit.py: add what is missing with your engine: ALTER TABLE ... SET TBLPROPERTIES ({}); or "
    "unset those properties"
)
def a_feature_that_properties_need_is_added(witness: Witness) -> None:
    table = witness.lake.make("t", History().then(Append(1)))
    metadata = next(
        line["metaData"]
        for line in map(json.loads, log_file(witness, 0).read_text().splitlines())
        if "metaData" in line
    )
    metadata["configuration"]["delta.enableChangeDataFeed"] = "true"
    log_file(witness, 2).write_text(json.dumps({"metaData": metadata}) + "\n")
    witness.refused("redirect", "enable", table, witness.lake.uri("new"))
    names = ["appendOnly", "invariants", "changeDataFeed"]
    line = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": names}}
    log_file(witness, 3).write_text(json.dumps(line) + "\n")
    witness.done("redirect", "enable", table, witness.lake.uri("new"))


@follows(
    "commit.py: add the feature with your engine: ALTER TABLE ... SET TBLPROPERTIES "
    "('delta.feature.domainMetadata' = 'supported')"
)
def a_feature_that_a_domain_needs_is_added(witness: Witness) -> None:
    table = witness.lake.make("t", History(Layout(row_tracking=True)).then(Append(1)))
    found = witness.done("inspect", table)
    protocol = {key: value for key, value in found["protocol"].items() if value}
    features = [name for name in protocol["writerFeatures"] if name != "domainMetadata"]
    version = found["version"]
    for number, writers in enumerate((features, protocol["writerFeatures"]), 1):
        line = {"protocol": {**protocol, "writerFeatures": writers}}
        log_file(witness, version + number).write_text(json.dumps(line) + "\n")
        if number == 1:
            witness.refused("feature", "drop", table, "rowTracking")
    witness.done("feature", "drop", table, "rowTracking")
