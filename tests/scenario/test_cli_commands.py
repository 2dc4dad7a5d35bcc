"""What each command answers, on tables made for the purpose."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest

from lakeferry.log import arrow_versions
from tests.support.history import (
    Append,
    Checkpoint,
    Checksum,
    Delete,
    DeleteRows,
    Hint,
    HintState,
    History,
    Kind,
    Layout,
    Lines,
    SetProperties,
    Upgrade,
)
from tests.unit.cli.program import make, run


def inspected(tmp_path: Path, history: History) -> dict[str, Any]:
    place = make(history, tmp_path / "table")
    document: dict[str, Any] = run("inspect", place, "--json", home=tmp_path).document
    return document


def codes(document: dict[str, Any]) -> set[str]:
    return {warning["code"] for warning in document["warnings"]}


def test_inspect_says_all_that_the_contract_asks_for(tmp_path: Path) -> None:
    history = History(Layout(partitioned=True)).then(Append(3), Checkpoint(), Delete(1))
    document = inspected(tmp_path, history)
    assert document["location"] == f"{tmp_path.as_uri()}/table"
    assert document["version"] == 2
    assert document["protocol"] == {
        "minReaderVersion": 1,
        "minWriterVersion": 2,
        "readerFeatures": [],
        "writerFeatures": [],
    }
    metadata = document["metadata"]
    assert metadata["partitionColumns"] == ["part"]
    assert metadata["configuration"] == {}
    assert metadata["name"] is None
    assert document["num_files"] == 2
    assert document["size_bytes"] > 0
    assert document["earliest_version"] == 0
    assert document["checkpoints"] == [{"version": 1, "kind": "classic", "complete": True}]
    assert document["redirect"] is None
    assert document["protection"] == {"boundary": None}
    assert document["warnings"] == []


def test_inspect_shows_an_older_version(tmp_path: Path) -> None:
    place = make(History().then(Append(3), Append(4)), tmp_path / "table")
    document = run("inspect", place, "--version", 1, "--json", home=tmp_path).document
    assert (document["version"], document["num_files"]) == (1, 3)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [(Kind.CLASSIC, "classic"), (Kind.MULTI_PART, "multi-part"), (Kind.V2_PARQUET, "v2")],
)
def test_inspect_names_the_kind_of_a_checkpoint(tmp_path: Path, kind: Kind, shown: str) -> None:
    layout = Layout(v2_checkpoints=kind.is_v2)
    document = inspected(tmp_path, History(layout).then(Append(4), Checkpoint(kind)))
    assert document["checkpoints"] == [{"version": 1, "kind": shown, "complete": True}]


def test_a_checkpoint_with_a_missing_file_is_incomplete(tmp_path: Path) -> None:
    lost = Checkpoint(Kind.MULTI_PART, lost_part=1)
    document = inspected(tmp_path, History().then(Append(4), lost))
    assert document["checkpoints"][0]["complete"] is False
    assert document["num_files"] == 4
    assert "checkpoint_incomplete" in codes(document)


def test_a_v2_checkpoint_without_its_sidecar_is_incomplete(tmp_path: Path) -> None:
    history = History(Layout(v2_checkpoints=True)).then(Append(4), Checkpoint(Kind.V2_JSON))
    place = make(history, tmp_path / "table")
    shutil.rmtree(place / "_delta_log" / "_sidecars")
    document = run("inspect", place, "--json", home=tmp_path).document
    assert document["checkpoints"][0]["complete"] is False
    assert document["num_files"] == 4
    assert {"checkpoint_incomplete", "checkpoint_unreadable"} <= codes(document)


def test_the_log_wins_over_its_checksum_file(tmp_path: Path) -> None:
    document = inspected(tmp_path, History().then(Append(3), Checksum(files_off=1)))
    assert document["num_files"] == 3
    assert codes(document) == {"checksum_mismatch"}


def test_a_checksum_file_that_agrees_is_no_warning(tmp_path: Path) -> None:
    assert inspected(tmp_path, History().then(Append(3), Checksum(full=True)))["warnings"] == []


def test_a_broken_hint_is_a_warning(tmp_path: Path) -> None:
    history = History().then(Append(), Checkpoint(), Hint(HintState.CORRUPT))
    assert codes(inspected(tmp_path, history)) == {"last_checkpoint_unreadable"}


@pytest.mark.parametrize("name", ["delta.redirectReaderWriter", "redirectReaderWriter"])
def test_a_redirect_without_its_feature_is_a_warning(tmp_path: Path, name: str) -> None:
    document = inspected(tmp_path, History().then(SetProperties(((name, "{}"),))))
    redirect = document["redirect"]
    assert [redirect.pop(key) for key in ("feature", "property", "value")] == [None, name, "{}"]
    # It blocks nobody, so it means nothing.
    assert set(redirect.values()) == {None}
    assert codes(document) == {"property_without_feature"}


def test_readers_follow_a_redirect_unless_they_are_asked_not_to(tmp_path: Path) -> None:
    target = make(History().then(Append(5)), tmp_path / "target")
    spec = {"Location": target.as_uri()}
    value = json.dumps({"Type": "Object Store", "State": "READY", "Spec": spec})
    entry = SetProperties((("delta.redirectWriterOnly", value),))
    steps = (Append(), Upgrade(writer=("redirectWriterOnly",)), entry)
    place = make(History().then(*steps), tmp_path / "table")
    document = run("inspect", place, "--json", home=tmp_path).document
    assert document["version"] == 3
    assert document["redirect"]["feature"] == "redirectWriterOnly"
    assert document["redirect"]["target"] == target.as_uri()
    for words, here, there in (
        (["files"], 1, 5),
        (["files", "--version", "1"], 1, 5),
        (["history"], 4, 2),
    ):
        found = []
        for flags in (["--no-follow"], []):
            ended = run(*words, place, *flags, "--json", home=tmp_path)
            assert ended.code == 0
            lines = ended.lines
            found.append(len(lines[0]["commits"] if words == ["history"] else lines))
        assert found == [here, there], words


def test_the_protected_boundary_is_shown(tmp_path: Path) -> None:
    setting = ("delta.requireCheckpointProtectionBeforeVersion", "8")
    steps = (Upgrade(writer=("checkpointProtection",)), SetProperties((setting,)))
    document = inspected(tmp_path, History().then(*steps))
    assert document["protection"] == {"boundary": 8}


def test_history_is_newest_first_and_leaves_nothing_out(tmp_path: Path) -> None:
    place = make(History().then(Append(), Delete()), tmp_path / "table")
    commits = run("history", place, "--json", home=tmp_path).document["commits"]
    assert [commit["version"] for commit in commits] == [2, 1, 0]
    assert commits[2]["operation"] == "CREATE TABLE"
    assert all(isinstance(commit["timestamp"], int) for commit in commits)
    for key in (
        "operation_parameters",
        "operation_metrics",
        "user_name",
        "engine_info",
        "is_blind_append",
        "read_version",
        "txn_id",
    ):
        assert key in commits[0]
    limited = run("history", place, "--limit", 1, "--json", home=tmp_path).document["commits"]
    assert limited == commits[:1]


def test_files_have_absolute_uris_encoded_once(tmp_path: Path) -> None:
    place = tmp_path / "a b%20c"
    make(History(Layout(partitioned=True)).then(Append(6)), place)
    files = run("files", place, "--json", home=tmp_path).lines
    assert len(files) == 6
    root = f"{tmp_path.as_uri()}/a%20b%2520c/"
    for file in files:
        assert file["path"].startswith(root)
        assert Path(unquote(urlsplit(file["path"]).path)).stat().st_size == file["size"]
        assert list(file["partition_values"]) == ["part"]
        assert file["deletion_vector"] is None


@pytest.mark.parametrize("kind", ["u", "p", "i"])
def test_deletion_vectors_say_where_they_are(tmp_path: Path, kind: str) -> None:
    history = History(Layout(deletion_vectors=kind)).then(Append(2), DeleteRows(1))
    place = make(history, tmp_path / "table")
    vectors = [
        file["deletion_vector"] for file in run("files", place, "--json", home=tmp_path).lines
    ]
    (vector,) = [vector for vector in vectors if vector is not None]
    assert vector["storage_type"] == kind
    assert vector["cardinality"] > 0
    if kind == "i":
        assert vector["uri"] is None
        assert vector["offset"] is None
    else:
        assert Path(unquote(urlsplit(vector["uri"]).path)).is_file()


def test_files_go_to_a_parquet_file_whole(tmp_path: Path) -> None:
    history = History(Layout(deletion_vectors="u", partitioned=True)).then(Append(3), DeleteRows(1))
    place = make(history, tmp_path / "table")
    ended = run("files", place, "--output", "out.parquet", "--json", home=tmp_path)
    assert ended.document == {"output": "out.parquet", "num_files": 3}
    rows = arrow_versions.to_rows(pq.read_table(tmp_path / "out.parquet"))
    lines = run("files", place, "--json", home=tmp_path).lines
    assert rows == lines
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.parquet"]


def test_a_file_that_the_log_puts_above_the_root_is_corrupt(tmp_path: Path) -> None:
    above = "../" * 40 + "etc/passwd"
    add = {"path": above, "partitionValues": {}, "size": 1, "modificationTime": 0}
    line = json.dumps({"add": {**add, "dataChange": True}})
    place = make(History().then(Lines((line,))), tmp_path / "table")
    for words in ([], ["--output", "out.parquet"]):
        ended = run("files", place, *words, "--json", home=tmp_path)
        assert (ended.code, ended.error["code"]) == (1, "corrupt_log")
    assert not (tmp_path / "out.parquet").exists()


def test_checkpoint_is_written_once_and_planned_before(tmp_path: Path) -> None:
    place = make(History().then(Append(2)), tmp_path / "table")
    name = f"_delta_log/{1:020d}.checkpoint.parquet"
    before = sorted(place.rglob("*"))
    planned = run("checkpoint", place, "--dry-run", "--json", home=tmp_path).document
    assert planned["dry_run"] is True
    assert [step["op"] for step in planned["plan"]] == ["write_checkpoint"]
    assert sorted(place.rglob("*")) == before
    first = run("checkpoint", place, "--json", home=tmp_path).document
    assert first == {"version": 1, "kind": "classic", "files": [name], "changed": True}
    again = run("checkpoint", place, "--json", home=tmp_path).document
    assert again == {**first, "changed": False}
    planned = run("checkpoint", place, "--dry-run", "--json", home=tmp_path).document
    assert planned == {"dry_run": True, "plan": []}
    older = run("checkpoint", place, "--version", 0, "--json", home=tmp_path).document
    assert (older["version"], older["changed"]) == (0, True)


def test_a_copy_is_equal_and_a_changed_copy_is_not(tmp_path: Path) -> None:
    layout = Layout(partitioned=True, deletion_vectors="u")
    a = make(History(layout).then(Append(3), DeleteRows(1)), tmp_path / "a")
    b = tmp_path / "b"
    shutil.copytree(a, b)
    same = run("verify", "a", "b", "--digest", "--rows", "--json", home=tmp_path)
    assert same.code == 0
    assert same.document["equal"] is True
    assert (same.document["differences"], same.document["difference_count"]) == ([], 0)
    data = sorted(b.rglob("*.parquet"))[-1]
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    assert run("verify", "a", "b", "--json", home=tmp_path).code == 0
    changed = run("verify", "a", "b", "--digest", "--json", home=tmp_path)
    assert (changed.code, changed.error["code"]) == (1, "not_equal")
    assert changed.document["equal"] is False
    (difference,) = changed.document["differences"]
    assert difference["kind"] == "digest"
    assert set(difference) == {"kind", "path", "a", "b"}
    data.unlink()
    missing = run("verify", "a", "b", "--digest", "--json", home=tmp_path).document
    assert [each["kind"] for each in missing["differences"]] == ["missing_file"]
    assert missing["differences"][0]["b"] is None


def test_doctor_says_what_is_right_and_what_is_not(tmp_path: Path) -> None:
    ended = run(
        "doctor",
        "--json",
        home=tmp_path,
        variables={"AWS_ACCESS_KEY_ID": "half", "JAVA_HOME": "", "PATH": "/nowhere"},
    )
    assert ended.code == 0
    checks = {check["name"]: check for check in ended.document["checks"]}
    assert all(set(check) == {"name", "ok", "detail", "remedy"} for check in checks.values())
    assert checks["python"]["ok"] is True
    for name in ("java", "aws", "spark-jars"):
        assert checks[name]["ok"] is False
        assert checks[name]["remedy"]
    assert "half" not in checks["aws"]["remedy"]
