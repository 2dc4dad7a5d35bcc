"""What a dry run of a move says about the way of its files, and what a limit is for."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from lakeferry.api.redirects import Redirects
from lakeferry.clients.client_lines import OPTION
from lakeferry.errors import InvalidInput
from lakeferry.log import paths
from lakeferry.redirect.outcome import Outcome
from lakeferry.storage import Store, open_store
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, History
from tests.support.redirects import append

PAST = History().then(Append(3), Append(2), Checkpoint(), Append(1))
FORECAST = {
    *("ways", "requests", "request_cost_usd"),
    *("price_basis", "duration_ms", "duration_basis"),
}


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}"


def make(place: str) -> Store:
    return PAST.write(open_store(place), with_data=True)


def step_of(plan: Any, op: str) -> dict[str, Any]:
    (step,) = [step for step in plan if step["op"] == op]
    return dict(step)


@pytest.mark.parametrize("another", [False, True])
def test_a_plan_says_how_the_files_travel_as_the_move_then_does(root: str, another: bool) -> None:
    source = make(f"{root}/old")
    new = f"memory://{uuid.uuid4().hex}/new" if another else f"{root}/new"
    files = DeltaLog(source).snapshot()
    with Redirects(engine="local") as redirects:
        before = open_store(new)
        plan = redirects.plan_enable(source.uri, new)
        assert not before.is_occupied()
        done = redirects.enable(source.uri, new)
    step = step_of(plan, "copy_data")
    assert step["files"] == files.num_files
    assert step["bytes"] == files.size_bytes
    way = "stream" if another else "store"
    assert step["ways"] == [
        {
            "way": way,
            "from": source.uri,
            "certain": True,
            "files": files.num_files,
            "bytes": files.size_bytes,
        }
    ]
    assert (done.bytes_copied, done.by_store_bytes) == (
        files.size_bytes,
        0 if another else files.size_bytes,
    )
    # Commits are rewritten, the checkpoint isn't.
    log = step_of(plan, "copy_log")
    assert log["bytes"] == sum(way["bytes"] for way in log["ways"])
    assert {way["way"] for way in log["ways"]} == {"stream", way}
    assert step.keys() >= FORECAST <= log.keys()


@pytest.mark.parametrize("remove_target", [False, True])
def test_a_plan_says_how_changes_come_back(root: str, remove_target: bool) -> None:
    source = make(f"{root}/old")
    new = f"memory://{uuid.uuid4().hex}/new"
    with Redirects(engine="local") as redirects:
        redirects.enable(source.uri, new)
        target = open_store(new)
        for name in ("a.parquet", "b.parquet"):
            append(DeltaLog(target), name)
        for info in DeltaLog(target).snapshot().files.to_pylist():
            if not target.exists(info["path"]):
                target.put(info["path"], bytes(info["size"]))
        plan = redirects.disable(source.uri, dry_run=True, remove_target=remove_target)
        done = redirects.disable(source.uri, remove_target=remove_target)
    assert isinstance(done, Outcome)
    step = step_of(plan, "copy_changes")
    assert (step["files"], step["bytes"]) == (done.files_copied, done.bytes_copied)
    assert done.files_copied == 2
    (way,) = step["ways"]
    assert (way["way"], way["from"], way["files"]) == ("stream", new, 2)
    assert step.keys() >= FORECAST


def test_the_limit_is_for_what_is_streamed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def reserve(_: ByteRate, size_bytes: int) -> float:
        taken.append(size_bytes)
        return 0.0

    monkeypatch.setattr(ByteRate, "reserve", reserve)
    source = make(f"{root}/old")
    log_bytes = sum(info.size_bytes for info in source.list("_delta_log/"))
    with Redirects(engine="local", limit_rate=1 << 30) as redirects:
        redirects.enable(source.uri, f"{root}/new")
        # The store copies data files and checkpoints.
        assert 0 < sum(taken) < log_bytes + 10_000
        copied = sum(taken)
        data = DeltaLog(make(f"{root}/other")).snapshot().size_bytes
        redirects.enable(f"{root}/other", f"memory://{uuid.uuid4().hex}/new")
        assert sum(taken) - copied > data


def test_a_rate_has_to_be_a_number_of_bytes() -> None:
    with pytest.raises(InvalidInput, match="0 bytes per second"):
        Redirects(limit_rate=0)


def test_who_wrote_lately_is_told_until_the_table_has_moved(root: str) -> None:
    source = make(f"{root}/old")
    with Redirects(engine="local") as redirects:
        (found,) = redirects.recent_writers(source.uri, f"{root}/new", mode="writer-only") or ()
        assert (found.writer.name, found.commits, found.reads_old_rows) == ("history", 4, True)
        (blocked,) = redirects.recent_writers(source.uri, f"{root}/new") or ()
        assert not blocked.reads_old_rows
        redirects.enable(source.uri, f"{root}/new", mode="writer-only")
        assert redirects.recent_writers(source.uri, f"{root}/new") is None


@pytest.mark.parametrize(
    ("target", "dialects", "follows_if"),
    [
        ("new", (), OPTION),
        ("new", ("delta-spark",), OPTION),
        ("new", ("rfc",), None),
        ("sql:c.s.t", (), None),
    ],
)
def test_the_option_of_spark_counts_where_the_entry_is_written_for_it(
    root: str, target: str, dialects: tuple[str, ...], follows_if: str | None
) -> None:
    source = make(f"{root}/old")
    spark = b'"Apache-Spark/4.2.0 Delta-Lake/4.4.0"'
    for version in range(4):
        name = paths.commit(version)
        source.put(name, source.get(name).replace(b'"history"', spark))
    with Redirects() as redirects:
        (found,) = (
            redirects.recent_writers(source.uri, target, mode="writer-only", dialects=dialects)
            or ()
        )
    assert found.as_document()["follows_if"] == follows_if


def test_a_dialect_that_is_unknown_is_refused(root: str) -> None:
    source = make(f"{root}/old")
    with Redirects() as redirects, pytest.raises(InvalidInput, match="--dialect"):
        redirects.recent_writers(source.uri, f"{root}/new", dialects=["latin"])
