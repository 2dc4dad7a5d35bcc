"""What benchmarks promise, in counts: requests, reads and bytes, which no machine makes slower.

Each benchmark has a small form here, by the functions that it measures.
"""

from __future__ import annotations

import importlib.util
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
COVERED = {
    "console",
    "copies",
    "export",
    "fleet",
    "listing",
    "managed",
    "protect",
    "redirect",
    "replay",
    "store_copies",
    "transfer",
}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give a benchmark's module by its name; what benchmarks keep is forgotten afterwards."""
    monkeypatch.setenv("LAKEFERRY_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(BENCH))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up.
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in [name for name in sys.modules if name.partition(".")[0] == "support"]:
        del sys.modules[name]


def requests(calls: Counter[str]) -> dict[str, int]:
    return {verb: count for verb, count in calls.items() if verb != "bytes"}


def test_every_benchmark_has_its_counts_here() -> None:
    assert {path.stem for path in BENCH.glob("*.py")} == COVERED


def test_planning_a_cleanup_reads_no_more_of_a_longer_log(bench: Any) -> None:
    protect = bench("protect")
    reads = [protect.planning_reads(commits)[0] for commits in (60, 300)]
    assert reads[0] == reads[1] <= protect.PLAN_READS


def test_a_plan_that_needs_a_checkpoint_far_back_does_not_replay_history(bench: Any) -> None:
    """Versions of one millisecond are told apart by later ones, so a fresh log is of the future."""
    protect = bench("protect")
    place = protect.logs.long(300)
    for number, commit in enumerate(sorted((place / "_delta_log").glob("*.json"))):
        moment = 1_700_000_000 if number < 100 else 4_000_000_000
        protect.os.utime(commit, (moment, moment))
    assert protect.planning_reads(300)[0] <= protect.PLAN_READS


def test_dropping_a_feature_asks_no_more_for_more_files(bench: Any, tmp_path: Path) -> None:
    protect = bench("protect")
    few, many = (protect.dropping_calls(files, tmp_path / f"{files}") for files in (5, 60))
    assert requests(few) == requests(many)
    assert sum(requests(many).values()) <= 90


def test_a_second_scan_lists_each_table_once_and_reads_nothing(bench: Any, tmp_path: Path) -> None:
    fleet = bench("fleet")
    first, second = fleet.scan_calls(20, tmp_path)
    # The prefix and ten folders below it are asked for a log, and for folders.
    assert requests(second) == {"LIST": 2 * 11 + 20, "HEAD": 1}
    assert first["LIST"] <= 2 * 11 + 3 * 20
    assert first["bytes"] > second["bytes"] == 0


def test_a_snapshot_reads_each_log_file_once(bench: Any) -> None:
    replay = bench("replay")
    for files in (600, 2_000):
        found = replay.counts(files, 10)
        for calls in found.values():
            # The hint, the checkpoint and ten commits.
            assert requests(calls) == {"GET": 12, "LIST": 1}


def test_protocol_and_metadata_are_a_small_part_of_a_large_checkpoint(bench: Any) -> None:
    found = bench("replay").counts(20_000, 1)
    assert found["state"]["bytes"] <= found["snapshot"]["bytes"] / 5
    assert sum(requests(found["state"]).values()) <= 6


def test_a_copy_reads_and_writes_each_file_once(bench: Any, tmp_path: Path) -> None:
    copies = bench("copies")
    for files in (3, 30):
        copied, calls = copies.counts(files, 64, tmp_path / f"{files}")
        assert copied == files * 64
        assert requests(calls) == {"GET": 2, "COPY": files, "LIST": 1}


@pytest.mark.parametrize("kind", ["disk", "one store"])
def test_no_byte_of_a_file_passes_through_where_a_store_copies(
    bench: Any, tmp_path: Path, kind: str
) -> None:
    root = f"memory://{uuid.uuid4().hex}" if kind == "one store" else str(tmp_path)
    found = {
        files: bench("store_copies").counts(f"{root}/{files}", f"{root}/to-{files}", files)
        for files in (3, 30)
    }
    for files, (told, calls) in found.items():
        assert told["objects"] == files
        assert told["by_store_bytes"] == told["bytes"] == files * 1024
        assert requests(calls) == {"GET": 2, "COPY": files, "LIST": 1}
    (_, few), (_, many) = found.values()
    # Besides, there is a longer commit to read.
    assert many["bytes"] - few["bytes"] < 27 * 600


@pytest.mark.parametrize("shape", ["partitions", "flat"])
def test_a_long_listing_takes_few_more_requests(bench: Any, shape: str) -> None:
    ours, alone = bench("listing").counts(f"memory://{uuid.uuid4().hex}", shape, 30_000)
    assert alone == 30
    assert ours <= 40


def test_a_short_listing_takes_no_more_requests(bench: Any) -> None:
    ours, alone = bench("listing").counts(f"memory://{uuid.uuid4().hex}", "flat", 4_500)
    assert ours == alone == 5


def test_an_export_after_one_more_commit_reads_log_files_alone(bench: Any, tmp_path: Path) -> None:
    export = bench("export")
    short, long = (export.again_counts(since, tmp_path) for since in (10, 40))
    # On local disk, where nothing vouches for a file, each commit since the checkpoint is
    # compared with the one that was exported.
    assert long["GET"] - short["GET"] <= 2 * 30
    assert {**requests(long), "GET": 0} == {**requests(short), "GET": 0}
    assert sum(requests(short).values()) <= 50


def test_a_move_asks_for_each_file_once(bench: Any, tmp_path: Path) -> None:
    redirect = bench("redirect")
    few, many = (redirect.move_calls(files, tmp_path / f"{files}") for files in (5, 60))
    assert many["COPY"] - few["COPY"] == 55
    assert {**requests(many), "COPY": 0} == {**requests(few), "COPY": 0}
    assert sum(requests(few).values()) <= 160


def test_a_move_to_a_managed_table_asks_the_catalog_no_more_for_more_files(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = bench("managed")
    # Counted on our own server: a real one may answer otherwise.
    monkeypatch.delenv(managed.REAL, raising=False)
    found = []
    for files in (5, 60):
        with managed.unity() as server:
            folder = tmp_path / f"{files}"
            name, *calls = managed.move_calls(files, folder, server.schema)
            opened = [managed.opening_calls(table) for table in (name, str(folder / "old"))]
            found.append(calls)
    few, many = found
    assert many[0]["COPY"] - few[0]["COPY"] == 55
    assert {**requests(many[0]), "COPY": 0} == {**requests(few[0]), "COPY": 0}
    assert sum(requests(few[0]).values()) <= 200
    assert many[1] == few[1]
    assert few[1].total() <= 90
    # The old path has a log of its own.
    assert [calls["LIST"] for calls, _ in opened] == [1, 2]
    # Local disk needs no credentials, which are a second call elsewhere.
    assert [asked.total() for _, asked in opened] == [1, 1]


def test_a_transfer_moves_each_object_once(bench: Any, tmp_path: Path) -> None:
    transfer = bench("transfer")
    few, many = 5, 40
    found = {files: transfer.counts(files, tmp_path / f"{files}") for files in (few, many)}
    for files, steps in found.items():
        assert [moved for moved, _ in steps.values()] == [files, 0, files]
        assert sum(requests(steps["push again"][1]).values()) <= 20
        assert steps["push again"][1]["bytes"] <= 1_000
        _, pulled = steps["pull"]
        assert pulled["RANGE"] <= files + 20
        assert pulled["PUT"] <= files + 10
        assert pulled["bytes"] <= (files + 2) * transfer.SMALL_BYTES + 20_000
        _, pushed = steps["push"]
        assert pushed["PUT_IF_ABSENT"] <= files + 10
        assert sum(requests(pushed).values()) <= 15 * files + 150


def test_a_first_visit_to_the_console_is_no_larger_for_more_tables(
    bench: Any, tmp_path: Path
) -> None:
    console = bench("console")
    found = []
    for tables in (60, 600):
        folder = tmp_path / str(tables)
        folder.mkdir()
        with console.console(folder, tables) as running:
            found.append(console.payload(running, "/fleet"))
    few, many = found
    assert few > 10_000
    # Links to more pages, and longer numbers.
    assert abs(many - few) < 3_000
    assert many < 1_000 * console.PAYLOAD_KB
