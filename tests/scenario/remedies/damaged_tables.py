"""Tables whose log says what can't be: they are mended as their owner or an engine mends them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa

import lakeferry
from tests.scenario.remedies.tables import log_file, set_property
from tests.support.history import Append, DeleteRows, History, Layout
from tests.support.remedies import Witness, follows


def _changed(file: Path, name: str, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Change the actions of that name in a commit, and return the file as it was."""
    copy = file.read_bytes()
    lines = [json.loads(line) for line in copy.splitlines()]
    for line in lines:
        if name in line:
            change(line[name])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return copy


@contextmanager
def _damaged(file: Path, name: str, change: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Damage a commit, and restore it from a copy afterwards."""
    copy = _changed(file, name, change)
    yield
    file.write_bytes(copy)


def _update(new: dict[str, Any], it: dict[str, Any]) -> None:
    """Give what a line holds other values."""
    it.update(new)


def _rows(table: str, version: int | None = None) -> int:
    """Read all rows of a table."""
    return int(lakeferry.open(table, version=version).to_table().num_rows)


@follows(
    "dataset/__init__.py: restore the commit or checkpoint with the table's metaData from a copy",
    "schema_text.py: restore the commit or checkpoint with the table's metaData from a copy",
    "schema.py: write to it with an engine that sets the schema, or restore its metaData",
)
def a_schema_that_makes_no_sense_is_restored(witness: Witness) -> None:
    table = witness.lake.make("t")
    for damage in (
        {"partitionColumns": ["nowhere"]},
        {"schemaString": '{"type":"struct"}'},
        {"schemaString": ""},
    ):
        with _damaged(log_file(witness, 0), "metaData", partial(_update, damage)):
            witness.raises(partial(lakeferry.open, table))
        witness.returns(partial(lakeferry.open, table))
    first = log_file(witness, 0)
    metadata = next(line for line in first.read_text().splitlines() if '"metaData"' in line)
    _changed(first, "metaData", lambda it: it.update(schemaString=""))
    witness.raises(partial(lakeferry.open, table))
    # Another engine commits the schema.
    version = witness.done("inspect", table)["version"]
    log_file(witness, version + 1).write_text(f"{metadata}\n")
    witness.returns(partial(lakeferry.open, table))


@follows(
    "log/deletion_vectors.py: restore the commit or checkpoint that has it from a copy",
    "data_files.py: restore the commit or checkpoint that has it from a copy",
    "data_files.py: read an older version, or restore the vector or the commit from a copy",
)
def a_deletion_vector_that_makes_no_sense_is_restored(witness: Witness) -> None:
    history = History(Layout(deletion_vectors="u")).then(Append(3), DeleteRows(1))
    table = witness.lake.make("t", history)
    newest = history.newest_version

    def wrong(key: str, value: object, action: dict[str, Any]) -> None:
        if "deletionVector" in action:
            action["deletionVector"][key] = value

    for key, value in (("pathOrInlineDv", "ab"), ("storageType", "x"), ("cardinality", 77)):
        with _damaged(log_file(witness, newest), "add", partial(wrong, key, value)):
            witness.raises(partial(_rows, table))
            witness.returns(partial(_rows, table, newest - 1))
        witness.returns(partial(_rows, table))


@follows(
    "log/deletion_vectors.py: read an older version, or have the engine that wrote the vector "
    "rewrite the data file"
)
def a_table_with_a_vector_that_can_not_be_read_is_read_as_it_was(witness: Witness) -> None:
    history = History(Layout(deletion_vectors="i")).then(Append(3), DeleteRows(1))
    table, newest = witness.lake.make("t", history), history.newest_version

    def wrong(action: dict[str, Any]) -> None:
        if "deletionVector" in action:
            vector = action["deletionVector"]
            vector["pathOrInlineDv"] = "\\" + vector["pathOrInlineDv"][1:]

    _changed(log_file(witness, newest), "add", wrong)
    witness.raises(partial(_rows, table))
    witness.returns(partial(_rows, table, newest - 1))


@follows(
    "dataset/__init__.py: write the file's rows again with the right value, and remove the file"
)
def a_partition_value_of_another_type_is_written_anew(witness: Witness) -> None:
    folder = witness.lake.folder / "t"
    write = partial(deltalake.write_deltalake, folder, mode="append", partition_by=["day"])
    for day in (1, 2):
        write(pa.table({"id": [day], "day": pa.array([day], pa.int32())}))
    added: list[dict[str, Any]] = []

    def wrong(action: dict[str, Any]) -> None:
        action["partitionValues"]["day"] = "two"
        added.append(action)

    _changed(log_file(witness, 1), "add", wrong)
    table = witness.lake.uri("t")
    witness.raises(partial(_rows, table))
    (file,) = added
    (folder / "day=2" / "anew.parquet").write_bytes((folder / unquote(file["path"])).read_bytes())
    new = {**file, "path": "day=2/anew.parquet", "partitionValues": {"day": "2"}}
    gone = {"path": file["path"], "dataChange": True, "deletionTimestamp": 1}
    lines = ({"add": new}, {"remove": gone})
    log_file(witness, 2).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    witness.returns(partial(_rows, table))
    assert _rows(table) == 2


@follows(
    "put_commit.py: set the property delta.enableInCommitTimestamps to false with the engine "
    "that wrote that commit"
)
def a_table_whose_writer_forgets_the_time_keeps_none(witness: Witness) -> None:
    history = History(Layout(in_commit_timestamps=True)).then(Append(1))
    table = witness.lake.make("t", history)
    careless = log_file(witness, history.newest_version + 1)
    careless.write_text('{"commitInfo":{"operation":"WRITE"}}\n')
    witness.refused("redirect", "freeze", table)
    set_property(witness, "delta.enableInCommitTimestamps", "false")
    witness.done("redirect", "freeze", table)


@follows(
    "named_files.py: 1. rewrite that file under another name, with OPTIMIZE for example; 2. make "
    "one more commit; 3. delete the history before the version of that commit: lakeferry cleanup "
    "TABLE --before VERSION --force"
)
def a_file_with_a_name_that_can_not_travel_is_rewritten(witness: Witness) -> None:
    folder, url = witness.lake.folder / "t", f"{witness.server.url}/odd-name"
    words = ("--token", witness.token("--scope", "write"))
    for number in range(2):
        deltalake.write_deltalake(folder, pa.table({"id": [number]}), mode="append")
    odd = folder / "refs" / "head"
    odd.parent.mkdir()

    def renamed(action: dict[str, Any]) -> None:
        (folder / action["path"]).rename(odd)
        action["path"] = "refs/head"

    _changed(log_file(witness, 1), "add", renamed)
    witness.refused("push", witness.lake.uri("t"), url, *words)
    table = witness.lake.uri("t")
    deltalake.DeltaTable(folder).optimize.compact()
    witness.refused("push", table, url, *words)
    deltalake.write_deltalake(folder, pa.table({"id": [2]}), mode="append")
    command = witness.remedies[-1].rpartition("lakeferry ")[2]
    version = witness.done("inspect", table)["version"]
    line = command.replace("TABLE", shlex.quote(table)).replace("VERSION", str(version))
    witness.done(*shlex.split(line))
    witness.done("push", table, url, *words)
