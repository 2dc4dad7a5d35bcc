"""Logs that lost a part, features and times that aren't there, and what Python users see."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from urllib.parse import unquote

import lakeferry
from lakeferry.catalogs import open_catalog
from lakeferry.engines.engine_choice import Engines
from tests.scenario.remedies.redirects import delta_log
from tests.scenario.remedies.tables import LONG, VECTORS, log_file
from tests.support.history import (
    Append,
    Checkpoint,
    Compact,
    Delete,
    DeleteRows,
    History,
    Layout,
    Lines,
    Upgrade,
)
from tests.support.lake import ORDERS
from tests.support.remedies import Witness, follows


def protocol_of(witness: Witness, version: int, *writers: str) -> None:
    """Commit a protocol with these writer features to the table ``t``, as another engine does."""
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": list(writers)}
    log_file(witness, version).write_text(json.dumps({"protocol": protocol}) + "\n")


# --- Damaged logs ---------------------------------------------------------------------------


@follows("checkpoint_read.py: restore that checkpoint, or the commits before it, from a copy")
def a_checkpoint_that_is_broken_is_restored(witness: Witness) -> None:
    table = witness.lake.make("t", LONG)
    first, checkpoint = log_file(witness, 0), log_file(witness, 3, "checkpoint.parquet")
    kept, copy = first.read_bytes(), checkpoint.read_bytes()
    first.unlink()
    checkpoint.write_bytes(b"no Parquet")
    witness.refused("inspect", table)
    first.write_bytes(kept)
    witness.done("inspect", table)
    first.unlink()
    checkpoint.write_bytes(copy)
    witness.done("inspect", table)


@follows("lines.py: restore the commits that it covers from a copy")
def a_compacted_log_that_is_not_reconciled_is_replaced_by_its_commits(witness: Witness) -> None:
    steps = (Append(1), Checkpoint(), Append(1), Append(1), Compact(2))
    table = witness.lake.make("t", History().then(*steps))
    log = witness.lake.folder / "t" / "_delta_log"
    (compacted,) = log.glob("*.compacted.json")
    add = next(line for line in compacted.read_text().splitlines() if '"add"' in line)
    with compacted.open("a") as file:
        file.write(add + "\n")
    first, last = map(int, compacted.name.split(".")[:2])
    covered = [log_file(witness, version) for version in range(first, last + 1)]
    copies = {path: path.read_bytes() for path in covered[:-1]}
    for path in copies:
        path.unlink()
    witness.refused("inspect", table)
    for path, content in copies.items():
        path.write_bytes(content)
    witness.done("inspect", table)


@follows(
    "following_errors.py: {}an older version can be read without following redirects: give "
    "--version N and --no-follow (version=N, follow=False in Python)"
)
def an_older_version_is_read_where_the_newest_is_broken(witness: Witness) -> None:
    table = witness.lake.make("t")
    log_file(witness, 3).write_bytes(b"{")
    assert "--no-follow" in witness.refused("history", table)["remedy"]
    witness.done("files", table, "--version", 1, "--no-follow")


@follows("cleaning.py: write it again: lakeferry checkpoint {} --version {}")
def a_checkpoint_that_cleanup_relies_on_is_written_anew(witness: Witness) -> None:
    table = witness.lake.make("t", LONG)
    log_file(witness, 3, "checkpoint.parquet").write_bytes(b"no Parquet")
    words = ("cleanup", table, "--before", 3)
    witness.refused(*words)
    witness.done(*shlex.split(witness.remedies[-1].partition("lakeferry ")[2]))
    witness.done(*words)


@follows("delta_log.py: use --version N instead of --timestamp (version=N in Python)")
def a_table_without_commits_is_asked_by_version(witness: Witness) -> None:
    table = witness.lake.make("t", ORDERS.then(Checkpoint()))
    for version in range(4):
        log_file(witness, version).unlink()
    witness.refused("files", table, "--timestamp", int(time.time() * 1000))
    witness.done("files", table, "--version", 3)


@follows("delta_log.py: write one of version {} or later")
def a_checkpoint_of_protected_history_is_written_later(witness: Witness) -> None:
    strange = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["strange"]}
    table = witness.lake.make("t", History().then(Lines((json.dumps({"protocol": strange}),))))
    protocol_of(witness, 2, "checkpointProtection")
    first = [json.loads(line) for line in log_file(witness, 0).read_text().splitlines()]
    metadata = next(line["metaData"] for line in first if "metaData" in line)
    name = "delta.requireCheckpointProtectionBeforeVersion"
    changed = {**metadata, "configuration": {**metadata.get("configuration", {}), name: "3"}}
    log_file(witness, 3).write_text(json.dumps({"metaData": changed}) + "\n")
    witness.refused("checkpoint", table, "--version", 1)
    witness.done("checkpoint", table, "--version", 3)


# --- Features --------------------------------------------------------------------------------


@follows(
    "features.py: use a version of Lakeferry that supports these features, or drop them from "
    "the table"
)
def a_feature_that_is_not_known_is_dropped(witness: Witness) -> None:
    table = witness.lake.make("t", ORDERS.then(Upgrade(writer=("strange",))))
    witness.refused("redirect", "freeze", table)
    protocol_of(witness, 5, "appendOnly")
    witness.done("redirect", "freeze", table)


@follows("dropping.py: first run: lakeferry feature drop {} {}")
def a_feature_that_another_needs_is_dropped_after_it(witness: Witness) -> None:
    upgrade = Upgrade(writer=("domainMetadata", "rowTracking"))
    table = witness.lake.make("t", ORDERS.then(upgrade))
    told = witness.refused("feature", "drop", table, "domainMetadata")["remedy"]
    assert told.endswith(" rowTracking")
    witness.done(*shlex.split(told.partition(": lakeferry ")[2]))
    witness.done("feature", "drop", table, "domainMetadata")


@follows("file_rewrite.py: restore it from a copy, or delete its rows from the table")
def a_data_file_that_a_rewrite_needs_is_restored(witness: Witness) -> None:
    table = witness.lake.make("t", VECTORS)
    aside = witness.lake.home / "aside"
    aside.mkdir()
    files = list((witness.lake.folder / "t").glob("*.parquet"))
    for path in files:
        path.rename(aside / path.name)
    witness.refused("feature", "drop", table, "deletionVectors")
    for path in files:
        (aside / path.name).rename(path)
    witness.done("feature", "drop", table, "deletionVectors")


@follows(
    "object_copy.py: write that file's rows into the table with an OPTIMIZE or a REORG TABLE "
    "of your engine, and run the same command again"
)
def a_file_outside_of_the_table_is_written_into_it(witness: Witness) -> None:
    table = witness.lake.make("t", VECTORS)
    log = delta_log(witness, "t")
    row = next(row for row in log.snapshot().files.to_pylist() if row["deletionVector"])
    name, version = row["path"], log.state().version
    shutil.copy(witness.lake.folder / "t" / unquote(name), witness.lake.folder / "beside.parquet")
    vector = {key: value for key, value in row["deletionVector"].items() if value is not None}
    file = {"partitionValues": {}, "modificationTime": 1, "dataChange": True}
    file |= {"size": row["size"], "deletionVector": vector}
    outside = {"add": {"path": "../beside.parquet", **file}}
    log_file(witness, version + 1).write_text(json.dumps(outside) + "\n")
    words = ("feature", "drop", table, "deletionVectors")
    witness.refused(*words)
    gone = {"path": "../beside.parquet", "dataChange": True, "deletionVector": vector}
    log_file(witness, version + 2).write_text(json.dumps({"remove": gone}) + "\n")
    witness.done(*words)


# --- Python ------------------------------------------------------------------------------------


@follows("arrow_files.py: read a newer version of the table; VACUUM may have deleted the file")
def a_version_whose_files_were_vacuumed_is_read_later(witness: Witness) -> None:
    steps = (Append(3), DeleteRows(1), Delete(3), Append(1))
    table = witness.lake.make("t", History(Layout(deletion_vectors="u")).then(*steps))
    for path in (witness.lake.folder / "t").rglob("*.bin"):
        path.unlink()
    witness.raises(lambda: lakeferry.open(table, version=2).to_table())
    witness.returns(lambda: lakeferry.open(table).to_table())


@follows(
    "scanning.py: read other columns, or read the table with Spark: lakeferry.spark.install(spark) "
    "lets Spark follow redirects"
)
def columns_that_can_be_read_are_read(witness: Witness) -> None:
    table = witness.lake.make("t")
    found = witness.done("inspect", table)["metadata"]
    schema = json.loads(found["schemaString"])
    known = [column["name"] for column in schema["fields"]]
    strange = {"name": "strange", "type": "geometry(OGC:CRS84)", "nullable": True, "metadata": {}}
    schema["fields"].append(strange)
    changed = {**found, "schemaString": json.dumps(schema)}
    log_file(witness, 4).write_text(json.dumps({"metaData": changed}) + "\n")
    dataset = lakeferry.open(table)
    witness.raises(dataset.to_table)
    witness.returns(lambda: dataset.to_table(columns=known))


@follows("catalogs/__init__.py: use sql or unity", "engine.py: use one of {}")
def a_catalog_and_an_engine_that_are_misspelt_are_corrected(witness: Witness) -> None:
    witness.lake.make("t")
    table = witness.lake.table("t")
    witness.raises(lambda: open_catalog("hive"))
    witness.returns(lambda: open_catalog("sql", {"LAKEFERRY_SQL_URL": "sqlite:////c.sqlite"}))
    witness.raises(lambda: table.redirect(witness.lake.uri("n"), engine="dask"))
    witness.returns(lambda: table.redirect(witness.lake.uri("n"), engine="local"))


@follows(
    "byte_rate.py: choose 1 or more",
    "engine_choice.py: leave out limit_rate, or give the name of an engine",
)
def a_limit_is_one_that_can_be_kept(witness: Witness) -> None:
    witness.lake.make("t")
    table, place = witness.lake.table("t"), witness.lake.uri("n")
    witness.raises(lambda: table.redirect(place, limit_rate=0))
    engines = Engines("local", print)
    witness.raises(lambda: table.export(place, engine=engines, limit_rate=1 << 30))
    engines.close()
    witness.returns(lambda: table.export(place, engine="local", limit_rate=1 << 30))


@follows("engine_choice.py: open new ones")
def engines_that_are_closed_are_opened_anew(witness: Witness) -> None:
    engines = Engines("local", print)
    engines.close()
    witness.raises(lambda: engines.choose(1, 1))
    another = Engines("local", print)
    witness.returns(lambda: another.choose(1, 1))
    another.close()


@follows(
    "serving.py: write a number and a unit, such as 15m or 1h",
    "serving.py: call start(), or use it in a with statement",
)
def a_server_in_python_is_given_a_duration_and_started(witness: Witness) -> None:
    witness.raises(lambda: lakeferry.Server(witness.lake.uri("s"), urls_last="long"))
    server = lakeferry.Server(witness.lake.uri("s"), urls_last="15m")
    witness.raises(lambda: server.url)
    with server:
        witness.returns(lambda: server.url)


@follows("resolve.py: use an application name for which there is no rule, or change the rule")
def an_operation_that_no_rule_allows_is_done_under_another_name(witness: Witness) -> None:
    source = witness.lake.make("t")
    rule = ("--rule", "nightly:VACUUM START")
    witness.done("redirect", "enable", source, witness.lake.uri("n"), *rule)
    table = witness.lake.table("t")
    witness.raises(lambda: table.resolve("nightly").check_operation("WRITE"))
    witness.returns(lambda: table.resolve("another").check_operation("WRITE"))


@follows("move_list_file.py: correct the file; its columns are source, target and any of {}")
def a_list_of_moves_is_corrected(witness: Witness) -> None:
    source = witness.lake.make("t")
    moves = witness.lake.home / "moves.csv"
    moves.write_text(f"from,to\n{source},{source}-new\n")
    witness.refused("redirect", "enable", "--from-file", "moves.csv")
    moves.write_text(f"source,target\n{source},{source}-new\n")
    witness.done("redirect", "enable", "--from-file", "moves.csv")
