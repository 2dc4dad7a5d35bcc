from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import lakeferry
from lakeferry.api.table import Outcome
from lakeferry.engine import Volume
from lakeferry.errors import (
    InvalidInput,
    LakeferryError,
    RedirectInProgress,
    UnsupportedFeature,
)
from lakeferry.table import log_comparison
from tests.support.history import (
    Append,
    Delete,
    DeleteRows,
    History,
    Layout,
    SetProperties,
    Upgrade,
)
from tests.unit.cli.program import make


def table(place: Path, history: History) -> lakeferry.Table:
    return lakeferry.Table(str(make(history, place)))


def kinds(result: lakeferry.Verification) -> list[str]:
    return [difference.kind for difference in result.differences]


def test_public_names_are_loaded_when_they_are_used() -> None:
    for name in lakeferry.__all__:
        assert getattr(lakeferry, name)
    assert dir(lakeferry) == sorted(lakeferry.__all__)
    with pytest.raises(AttributeError):
        _ = lakeferry.nothing


def test_a_table_says_the_same_as_the_command_line(tmp_path: Path) -> None:
    orders = table(tmp_path / "a", History().then(Append(3), Delete(1)))
    assert orders.uri == f"{tmp_path.as_uri()}/a"
    assert orders.inspect().num_files == 2
    assert orders.inspect(1).num_files == 3
    assert [commit.version for commit in orders.history(2)] == [2, 1]
    assert orders.snapshot().num_files == 2
    assert orders.files().read_all().num_rows == 2
    secrets = {"access_key_id": "key", "secret_access_key": "hunter2"}
    assert orders.checkpoint(dry_run=True).created
    assert orders.checkpoint().created
    assert not orders.checkpoint().created
    assert "hunter2" not in repr(lakeferry.Table("s3://b/t", secrets))


def test_a_version_and_a_timestamp_exclude_each_other(tmp_path: Path) -> None:
    orders = table(tmp_path / "a", History())
    with pytest.raises(InvalidInput):
        orders.files(0, timestamp_ms=0)


def test_tables_that_are_not_understood_are_not_compared(tmp_path: Path) -> None:
    odd = table(tmp_path / "a", History().then(Upgrade(reader=("teleport",), writer=("teleport",))))
    with pytest.raises(UnsupportedFeature):
        odd.verify(odd)


def test_differences_are_named(tmp_path: Path) -> None:
    layout = Layout(partitioned=True, deletion_vectors="u")
    a = table(tmp_path / "a", History(layout).then(Append(3)))
    cases = {
        "only_in_a": History(layout).then(Append(2)),
        "only_in_b": History(layout).then(Append(4)),
        "deletion_vector": History(layout).then(Append(3), DeleteRows(1)),
        "configuration": History(layout).then(Append(3), SetProperties((("x", "y"),))),
    }
    for kind, history in cases.items():
        result = a.verify(table(tmp_path / kind, history))
        assert kinds(result) == [kind]
        assert (result.equal, result.difference_count) == (False, 1)
    unpartitioned = table(tmp_path / "flat", History().then(Append(3)))
    assert {"schema", "partition_columns"} <= set(kinds(a.verify(unpartitioned)))


def test_live_files_of_one_path_are_told_apart(tmp_path: Path) -> None:
    """A writer may leave a file live when it adds the same one with a deletion vector."""
    layout = Layout(deletion_vectors="i")
    a = table(tmp_path / "a", History(layout).then(Append(2), DeleteRows(2)))
    commit = tmp_path / "a" / "_delta_log" / f"{2:020d}.json"
    lines = commit.read_text().splitlines(keepends=True)
    commit.write_text("".join(line for line in lines if not line.startswith('{"remove"')))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    b = lakeferry.Table(str(tmp_path / "b"))
    assert a.inspect().num_files == 4
    assert kinds(a.verify(b, digest=True, rows=True, engine="local")) == []
    whole = [line for line in lines if not line.startswith('{"remove"')]
    (tmp_path / "b" / "_delta_log" / commit.name).write_text("".join(whole[:-1]))
    assert kinds(a.verify(b)) == ["only_in_a"]


def test_a_redirect_is_not_content(tmp_path: Path) -> None:
    a = table(tmp_path / "a", History().then(Append(2)))
    entry = SetProperties((("delta.redirectWriterOnly", "{}"), ("lakeferry.redirect", "{}")))
    b = table(tmp_path / "b", History().then(Append(2), entry))
    assert a.verify(b).equal


def test_a_table_that_refers_to_another_tables_files_is_equal_to_it(tmp_path: Path) -> None:
    source = table(tmp_path / "source", History(Layout(partitioned=True)).then(Append(5)))
    shutil.copytree(tmp_path / "source" / "_delta_log", tmp_path / "clone" / "_delta_log")
    commit = tmp_path / "clone" / "_delta_log" / f"{1:020d}.json"
    root = f"{tmp_path.as_uri()}/source/"
    commit.write_text(commit.read_text().replace('"path":"', f'"path":"{root}'))
    clone = lakeferry.Table(str(tmp_path / "clone"))
    assert all(path.startswith(root) for path in clone.files().read_all()["path"].to_pylist())
    for a, b in ((source, clone), (clone, source)):
        result = a.verify(b, digest=True, rows=True)
        assert result.equal, result.differences


def respelled(place: Path, lead: str) -> lakeferry.Table:
    """Write something in front of each path in a table's log."""
    for commit in (place / "_delta_log").glob("*.json"):
        commit.write_text(commit.read_text().replace('"path":"', f'"path":"{lead}'))
    return lakeferry.Table(str(place))


@pytest.mark.parametrize("lead", ["../files/", "../source/", "x/../../files/"])
def test_a_path_may_lead_out_of_a_table_that_is_compared(tmp_path: Path, lead: str) -> None:
    table(tmp_path / "files", History().then(Append(3)))
    shutil.copytree(tmp_path / "files", tmp_path / "source")
    source = respelled(tmp_path / "source", lead)
    # As a move by reference writes it: absolute, and not normalised.
    shutil.copytree(tmp_path / "files" / "_delta_log", tmp_path / "moved" / "_delta_log")
    moved = respelled(tmp_path / "moved", f"file:{tmp_path}/source/{lead}")
    # A copy of both folders is another table with files of its own, and equal.
    shutil.copytree(tmp_path, tmp_path / "again")
    again = lakeferry.Table(str(tmp_path / "again" / "source"))
    for a, b in itertools.permutations((source, moved, again), 2):
        if {a, b} != {moved, again}:
            result = a.verify(b, digest=True, rows=True)
            assert result.equal, result.differences


NOWHERE = ["", "a/..", "%ff", "%00", "foo://x/y", "file:///x/%ff", "../../../.."]


@pytest.mark.parametrize("path", NOWHERE)
def test_a_path_that_leads_nowhere_is_the_log_s_fault_and_not_the_user_s(
    tmp_path: Path, path: str
) -> None:
    source = table(tmp_path / "source", History().then(Append(1)))
    bad = {"path": path, "size": 1, "partitionValues": {}, "modificationTime": 1}
    line = json.dumps({"add": bad | {"dataChange": True}})
    (tmp_path / "source" / "_delta_log" / f"{2:020d}.json").write_text(line)
    attempts: list[Callable[[], object]] = [
        lambda: source.files().read_all(),
        lambda: lakeferry.open(source.uri),
        lambda: source.verify(source, digest=True),
        lambda: source.export(str(tmp_path / "export")),
        lambda: source.push("http://127.0.0.1:1/t", dry_run=True),
        lambda: source.redirect(str(tmp_path / "new")),
    ]
    for attempt in attempts:
        with pytest.raises(LakeferryError) as refused:
            attempt()
        assert not isinstance(refused.value, InvalidInput), str(refused.value)
        assert refused.value.code != "storage_unavailable"


@pytest.mark.parametrize("path", NOWHERE)
def test_a_closed_target_isn_t_replaced_where_a_path_leads_nowhere(
    tmp_path: Path, path: str
) -> None:
    source = table(tmp_path / "source", History().then(Append(1)))
    new = str(tmp_path / "new")
    source.redirect(new)
    source.redirect_disable()
    newest = source.inspect().version
    line = json.dumps({"add": {"path": path, "size": 1, "partitionValues": {}}})
    (tmp_path / "source" / "_delta_log" / f"{newest + 1:020d}.json").write_text(line)
    with pytest.raises(LakeferryError) as refused:
        source.redirect(new, replace_closed_target=True)
    assert not isinstance(refused.value, InvalidInput), str(refused.value)
    assert (tmp_path / "new" / "_delta_log").is_dir()


def test_differences_are_counted_exactly_and_listed_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_comparison, "LISTED_DIFFERENCES", 10)
    a = table(tmp_path / "a", History().then(Append(25)))
    b = table(tmp_path / "b", History())
    result = a.verify(b)
    assert (len(result.differences), result.difference_count) == (10, 25)


def test_rows_are_counted_without_the_deleted_ones(tmp_path: Path) -> None:
    layout = Layout(deletion_vectors="u")
    a = table(tmp_path / "a", History(layout).then(Append(2)))
    b = table(tmp_path / "b", History(layout).then(Append(2), DeleteRows(1)))
    result = a.verify(b, rows=True)
    assert result.rows is not None
    before, after = result.rows["a"], result.rows["b"]
    assert before is not None
    assert after is not None
    assert after < before
    assert kinds(result) == ["deletion_vector", "row_count", "row_count"]


def test_a_table_moves_and_comes_back(tmp_path: Path) -> None:
    orders = table(tmp_path / "old", History().then(Append(3)))
    target = f"{tmp_path.as_uri()}/new"
    plan = orders.redirect(str(tmp_path / "new"), mode="writer-only", dry_run=True)
    assert isinstance(plan, list)
    assert not (tmp_path / "new").exists()
    seen: list[tuple[str, int, int]] = []
    moved = orders.redirect(
        str(tmp_path / "new"),
        mode="writer-only",
        rules=["nightly:OPTIMIZE"],
        observer=lambda *event: seen.append(event),
    )
    assert isinstance(moved, Outcome)
    assert (moved.state.value, moved.target, moved.files_copied) == ("READY", target, 3)
    assert seen
    assert orders.redirect_status().target == target
    assert orders.resolve(write=True).location == target
    assert orders.resolve("nightly").location == orders.uri
    assert lakeferry.resolve(orders.uri) == target
    assert lakeferry.resolve(str(tmp_path / "old"), app_name="nightly") == orders.uri

    here = orders.snapshot(follow=False)
    assert (orders.snapshot().version, here.version) == (3, 3)
    assert "redirectWriterOnly" in here.protocol.features
    assert "redirectWriterOnly" not in orders.snapshot().protocol.features
    followed = orders.files().read_all()["path"].to_pylist()
    assert all(path.startswith(f"{target}/") for path in followed)
    # What compares tables compares the ones that were named.
    assert orders.verify(lakeferry.Table(target)).equal
    assert orders.redirect_resume().as_document()["changed"] is False

    back = orders.redirect_disable(remove_target=True)
    assert isinstance(back, Outcome)
    assert (back.state.value, back.changed) == ("NORMAL", True)
    assert orders.redirect_cancel().as_document()["changed"] is False
    assert lakeferry.resolve(orders.uri) == orders.uri


def test_a_frozen_table_can_be_read_and_not_be_written_to(tmp_path: Path) -> None:
    orders = table(tmp_path / "a", History().then(Append(3)))
    assert isinstance(orders.freeze(dry_run=True), list)
    orders.freeze()
    assert orders.files().read_all().num_rows == 3
    assert lakeferry.resolve(orders.uri) == orders.uri
    with pytest.raises(RedirectInProgress):
        lakeferry.resolve(orders.uri, write=True)
    orders.thaw()
    assert lakeferry.resolve(orders.uri, write=True) == orders.uri


def test_storage_options_may_differ_from_place_to_place(tmp_path: Path) -> None:
    make(History().then(Append(1)), tmp_path / "a")
    asked: list[str] = []

    def options(uri: str) -> dict[str, str]:
        asked.append(uri)
        return {}

    orders = lakeferry.Table(str(tmp_path / "a"), options)
    orders.redirect(str(tmp_path / "b"))
    assert set(asked) == {f"{tmp_path.as_uri()}/a", f"{tmp_path.as_uri()}/b"}


def test_progress_is_observed(tmp_path: Path) -> None:
    a = table(tmp_path / "a", History().then(Append(3)))
    seen: list[tuple[str, int, int]] = []
    a.verify(a, digest=True, observer=lambda *event: seen.append(event))
    size_bytes = a.inspect().size_bytes
    assert size_bytes is not None
    # Both sides are read.
    assert seen[0] == ("comparing digests", 0, 2 * size_bytes)
    assert seen[-1] == ("comparing digests", 2 * size_bytes, 2 * size_bytes)
    assert isinstance(seen[-1][2], Volume)
    assert seen[-1][2].objects == 6
