"""``feature`` and ``cleanup`` as people and programs use them: keys, codes, and what is left."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from tests.support.history import Append, Checkpoint, DeleteRows, History, Layout, Upgrade
from tests.unit.cli.program import run

VECTORS = History(Layout(deletion_vectors="u")).then(Append(3), DeleteRows(1), Checkpoint())


def put(past: History, place: Path) -> Path:
    """Write a table with real data files to disk."""
    for name, data in past.objects(place.as_uri(), with_data=True).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def tree(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def code_of(error: str) -> str:
    return str(json.loads(error.splitlines()[-1])["error"]["code"])


def test_a_feature_is_listed_and_dropped_and_old_readers_come_back(tmp_path: Path) -> None:
    table = put(VECTORS, tmp_path / "table")
    listed = run("feature", "list", str(table), "--json", home=tmp_path)
    rows = {row["name"]: row for row in listed.document["features"]}
    assert rows["deletionVectors"]["kind"] == "reader-writer"
    assert rows["deletionVectors"]["supported"] is rows["deletionVectors"]["droppable"] is True
    before = tree(table)
    plan = run(
        "feature", "drop", str(table), "deletionVectors", "--dry-run", "--json", home=tmp_path
    )
    assert plan.document["dry_run"] is True
    assert tree(table) == before
    done = run("feature", "drop", str(table), "deletionVectors", "--json", home=tmp_path).document
    assert done["boundary"] == done["version"]
    assert done["checkpoints"] == [done["version"] - 3 + number for number in range(3)]
    assert done["protocol"]["minReaderVersion"] == 1
    assert "checkpointProtection" in done["protocol"]["writerFeatures"]
    assert done["changed"] is True
    assert deltalake.DeltaTable(table).version() == done["version"]
    shown = run("inspect", str(table), "--json", home=tmp_path).document
    assert shown["protection"] == {"boundary": done["boundary"]}
    again = run("feature", "drop", str(table), "deletionVectors", "--json", home=tmp_path)
    assert (again.code, code_of(again.err)) == (1, "feature_not_present")
    early = run("feature", "drop", str(table), "checkpointProtection", "--json", home=tmp_path)
    assert (early.code, code_of(early.err)) == (1, "history_required")


@pytest.mark.parametrize(
    ("past", "words", "code"),
    [
        (VECTORS, ("feature", "drop", "invariants"), "feature_not_droppable"),
        (VECTORS, ("feature", "drop", "nonsense"), "feature_not_present"),
        (
            VECTORS.then(Upgrade(writer=("somethingNew",))),
            ("feature", "drop", "somethingNew"),
            "feature_not_droppable",
        ),
        (VECTORS, ("cleanup", "--retention", "1s"), "retention_too_short"),
        (VECTORS, ("cleanup", "--before", "99"), "version_not_available"),
        (VECTORS.then(Upgrade(writer=("somethingNew",))), ("cleanup",), "unsupported_feature"),
    ],
)
def test_what_is_refused_has_its_code_and_changes_nothing(
    past: History, words: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    table = put(past, tmp_path / "table")
    before = tree(table)
    head, rest = (words[:2], words[2:]) if words[0] == "feature" else (words[:1], words[1:])
    done = run(*head, str(table), *rest, "--json", home=tmp_path)
    assert (done.code, code_of(done.err), done.out) == (1, code, "")
    assert tree(table) == before


def test_wrong_usage_is_2(tmp_path: Path) -> None:
    for words in (
        ("cleanup", "t", "--retention", "soon"),
        ("cleanup", "t", "--before", "-1"),
        ("feature", "lose", "t"),
        ("feature", "drop", "t"),
    ):
        assert run(*words, "--json", home=tmp_path).code == 2


def test_a_log_is_cleaned_up_and_says_what_stays(tmp_path: Path) -> None:
    table = tmp_path / "table"
    for number in range(8):
        deltalake.write_deltalake(table, pa.table({"id": [number]}), mode="append")
    nothing = run("cleanup", str(table), "--json", home=tmp_path)
    assert (nothing.code, nothing.document["changed"]) == (0, False)
    old = time.time() - 40 * 86_400
    for version in range(6):
        os.utime(table / "_delta_log" / f"{version:020d}.json", (old + version, old + version))
    plan = run("cleanup", str(table), "--dry-run", "--json", home=tmp_path).document
    done = run("cleanup", str(table), "--json", home=tmp_path).document
    assert done["created"] == ["_delta_log/00000000000000000005.checkpoint.parquet"]
    assert done["deleted"] == [f"_delta_log/{version:020d}.json" for version in range(5)]
    assert [step["files"] for step in plan["plan"] if step["op"] == "delete"] == [done["deleted"]]
    assert done["kept_because"][-1]["from"] == 5
    for version in (5, 6, 7):
        assert len(deltalake.DeltaTable(table, version=version).file_uris()) == version + 1
    told = run("cleanup", str(table), home=tmp_path)
    assert "nothing had to be deleted" in told.out


def test_processes_clean_one_log_at_the_same_time(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    table = tmp_path / "table"
    for number in range(12):
        deltalake.write_deltalake(table, pa.table({"id": [number]}), mode="append")

    def clean(before: int) -> int:
        return run("cleanup", str(table), "--before", str(before), "--json", home=tmp_path).code

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(clean, (3, 6, 9, 9))) == [0, 0, 0, 0]
    assert run("cleanup", str(table), "--before", "9", "--json", home=tmp_path).code == 0
    for version in (9, 10, 11):
        assert len(deltalake.DeltaTable(table, version=version).file_uris()) == version + 1
