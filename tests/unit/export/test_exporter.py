"""An export on stores in memory: what it writes, in which order, and where it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest

from lakeferry.engines.copy_forecast import CopyForecasts
from lakeferry.errors import (
    CommitConflict,
    CorruptLog,
    HashMismatch,
    InvalidInput,
    LakeferryError,
    MissingFile,
    NotATable,
    TableNotFound,
    UnsupportedFeature,
)
from lakeferry.export import manifest
from lakeferry.export.exporter import Export, ExportContext, Exported
from lakeferry.table import DeltaLog
from tests.support.clock import DEFAULT_START_MS
from tests.support.corrupting import CorruptingStore
from tests.support.history import (
    Append,
    Change,
    Checkpoint,
    Checksum,
    Compact,
    Delete,
    History,
    Kind,
    Layout,
    SetProperties,
    Upgrade,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, on
from tests.unit.export.memory_world import (
    HINT,
    LONG,
    PLAIN,
    SOURCE,
    TARGET,
    World,
    checkpoint,
    commit,
    live,
    names,
    paths_of,
    world,
)

# --- What is in it ----------------------------------------------------------------


def test_without_a_checkpoint_every_commit_is_exported() -> None:
    there = world(PLAIN)
    sizes = [info.size_bytes for info in there.source.list("_delta_log/")]
    assert there.run() == Exported(TARGET, 3, 4, 0, None, True, bytes_copied=sum(sizes))
    assert names(there) == {commit(version) for version in range(4)}
    wanted = [f"{SOURCE}/{path}" for path in live(there.source)]
    assert live(there.target) == wanted
    assert all(path.startswith(f"{SOURCE}/") for path in paths_of(there.log()[commit(3)]))


def test_with_a_checkpoint_it_its_commit_and_all_since_are_exported() -> None:
    there = world(LONG)
    done = there.run()
    assert (done.version, done.files_written) == (5, 4)
    assert names(there) == {checkpoint(3), commit(3), commit(4), commit(5), HINT}
    hint = json.loads(there.log()[HINT])
    assert hint["version"] == 3
    assert hint["sizeInBytes"] == len(there.log()[checkpoint(3)])
    for version in (3, 4, 5):
        wanted = [f"{SOURCE}/{path}" for path in live(there.source, version)]
        assert live(there.target, version) == wanted


@pytest.mark.parametrize("kind", [Kind.V2_JSON, Kind.V2_PARQUET, Kind.V2_CLASSIC])
def test_sidecars_come_along_with_the_sizes_that_they_have_now(kind: Kind) -> None:
    layout = Layout(v2_checkpoints=True, partitioned=True)
    there = world(History(layout).then(Append(3), Checkpoint(kind, sidecars=2), Append(1)))
    there.run()
    sidecars = {name for name in names(there) if "_sidecars" in name}
    assert len(sidecars) == 2
    assert live(there.target) == [f"{SOURCE}/{path}" for path in live(there.source)]
    assert there.run().changed is False


def test_checksums_and_compacted_logs_stay_behind() -> None:
    there = world(PLAIN.then(Checksum(), Compact(3)))
    there.run()
    assert names(there) == {commit(version) for version in range(4)}


def test_a_change_file_that_is_gone_is_left_out_and_counted() -> None:
    there = world(History(Layout(change_data=True)).then(Append(1), Change()))
    gone = [name for name in there.source.objects if name.startswith("_change_data/")]
    there.source.delete_many(gone)
    done = there.run()
    assert (len(gone), done.actions_skipped) == (1, 1)
    assert b'"cdc"' not in there.log()[commit(2)]
    assert there.run().actions_skipped == 1


def test_a_removed_file_that_is_gone_stays_one_file() -> None:
    there = world(PLAIN)
    kept = live(there.source)
    wanted = set(map(unquote, kept))
    data = [name for name in there.source.objects if not name.startswith("_delta_log/")]
    there.source.delete_many([name for name in data if name not in wanted])
    assert len(wanted) < len(data)
    there.run()
    assert live(there.target) == [f"{SOURCE}/{path}" for path in kept]


# --- Again ------------------------------------------------------------------------


def test_the_same_again_changes_nothing() -> None:
    there = world(LONG)
    first = there.run()
    before = there.target.objects
    puts = there.target.calls["PUT"]
    assert there.run() == Exported(TARGET, first.version, 0, 0, None, False)
    assert there.target.objects == before
    assert there.target.calls["PUT"] == puts


def test_a_later_version_writes_what_is_new() -> None:
    there = world(LONG)
    there.run()
    there.replace(LONG.then(Append(1)))
    done = there.run()
    assert (done.version, done.files_written, done.incremental_from) == (6, 1, 5)
    alone = world(LONG.then(Append(1)))
    alone.run()
    assert there.log() == alone.log()


def test_a_new_checkpoint_takes_the_place_of_what_it_stands_for() -> None:
    later = LONG.then(Append(1), Checkpoint(), Delete(1))
    there = world(LONG)
    there.run()
    there.replace(later)
    there.run()
    assert names(there) == {checkpoint(6), commit(6), commit(7), HINT}


def test_a_table_that_went_back_is_exported_as_it_is_now() -> None:
    there = world(LONG)
    there.run()
    there.replace(PLAIN)
    assert there.run().version == 3
    assert names(there) == {commit(version) for version in range(4)}


def test_where_a_commit_has_become_another_one_the_place_is_written_anew() -> None:
    there = world(LONG.then(Append(1)))
    there.run()
    there.replace(LONG.then(SetProperties((("a", "b"),)), Append(1)))
    there.run()
    alone = world(LONG.then(SetProperties((("a", "b"),)), Append(1)))
    alone.run()
    assert there.log() == alone.log()


def test_a_dry_run_says_that_the_log_passes_through_this_machine() -> None:
    there = world(LONG)
    work = replace(there.work(), forecasts=CopyForecasts())
    (step,) = Export(work, there.source, to=TARGET).foresee()
    assert step["op"] == "export_log"
    (way,) = step["ways"]
    assert (way["way"], way["files"]) == ("stream", len(step["files"]))
    assert way["bytes"] == step["bytes"] == there.run().bytes_copied


@pytest.mark.parametrize("name", ["00000000000000000004", "00000000000000000003.checkpoint"])
def test_a_file_that_came_out_wrong_stops_the_export_before_anybody_can_open_it(name: str) -> None:
    there = world(LONG)
    there.compares = True
    there.target = CorruptingStore(uri=TARGET, wrong={name: 1})
    with pytest.raises(HashMismatch) as refused:
        there.run()
    assert name in str(refused.value.fields["uri"])
    with pytest.raises(LakeferryError):
        DeltaLog(there.target).state()
    done = there.run()
    assert done.files_compared == done.files_written
    alone = world(LONG)
    alone.run()
    assert there.log() == alone.log()


def test_an_export_with_readers_never_shows_a_file_that_came_out_wrong() -> None:
    there = world(LONG)
    there.target = CorruptingStore(uri=TARGET)
    there.run()
    before, there.compares = there.log(), True
    there.replace(LONG.then(Append(1)))
    there.target.wrong = {"00000000000000000006": 1}
    with pytest.raises(HashMismatch):
        there.run()
    assert there.log() == before
    there.run()
    assert DeltaLog(there.target).state().version == 6


def test_a_dry_run_tells_what_is_read_to_compare() -> None:
    there = world(LONG)
    there.compares = True
    work = replace(there.work(), forecasts=CopyForecasts())
    (step,) = Export(work, there.source, to=TARGET).foresee()
    assert (step["verify"], step["verify_bytes"]) == ("full", step["bytes"])


def test_a_dry_run_says_what_comes_and_writes_nothing() -> None:
    there = world(LONG)
    steps = Export(there.work(), there.source, to=TARGET).foresee()
    assert there.target.objects == {}
    written = {name for step in steps if step["op"] == "export_log" for name in step["files"]}
    there.run()
    assert written == names(there) - {HINT}
    assert Export(there.work(), there.source, to=TARGET).foresee() == []


# --- Refusals ---------------------------------------------------------------------


def refused(there: World, kind: type[LakeferryError]) -> LakeferryError:
    before = there.log()
    with pytest.raises(kind) as raised:
        there.run()
    if before:
        assert live(there.target)
    else:
        with pytest.raises(LakeferryError):
            live(there.target)
    return raised.value


def test_a_live_file_that_is_missing_is_named_and_nothing_can_be_opened() -> None:
    there = world(LONG)
    lost = live(there.source)[0]
    there.source.delete_many([unquote(lost)])
    assert refused(there, MissingFile).fields["path"] == lost


def test_a_live_file_that_got_lost_since_stops_the_next_export_and_leaves_the_last_one() -> None:
    there = world(LONG)
    there.run()
    before = there.target.objects
    there.source.delete_many([unquote(live(there.source)[0])])
    refused(there, MissingFile)
    assert there.target.objects == before


def test_a_place_that_is_taken_is_refused() -> None:
    there = world(PLAIN)
    there.target.put("x", b"")
    with pytest.raises(CommitConflict):
        there.run()
    assert there.target.objects == {"x": b""}
    table = world(PLAIN)
    LONG.write(table.target)
    before = table.target.objects
    with pytest.raises(CommitConflict):
        table.run()
    assert table.target.objects == before


def test_a_place_with_an_export_of_another_table_is_refused() -> None:
    there = world(PLAIN)
    there.run()
    before = there.target.objects
    data = there.target.get(manifest.NAME)
    there.target.put(manifest.NAME, data.replace(b"lake/t", b"lake/u"))
    with pytest.raises(CommitConflict, match="lake/u"):
        there.run()
    there.target.put(manifest.NAME, data)
    assert there.target.objects == before


def test_a_place_that_somebody_wrote_to_is_refused() -> None:
    there = world(PLAIN)
    there.run()
    there.target.put(commit(4), b"{}")
    with pytest.raises(CommitConflict, match="wrote"):
        there.run()


def test_a_table_that_was_replaced_does_not_replace_its_export() -> None:
    there = world(PLAIN)
    there.run()
    before = there.log()
    data = {
        name: body.replace(b'"id":"', b'"id":"x') if name == commit(0) else body
        for name, body in PLAIN.then(Append(1)).objects(SOURCE).items()
    }
    there.source = DictStore(data, uri=SOURCE)
    with pytest.raises(CommitConflict):
        there.run()
    assert live(there.target) == [f"{SOURCE}/{path}" for path in live(PLAIN.store(SOURCE))]
    assert set(before) == names(there)


def test_what_is_no_table_is_refused() -> None:
    empty = World(DictStore(uri=SOURCE))
    refused(empty, TableNotFound)
    refused(World(DictStore({"x": b""}, uri=SOURCE)), NotATable)
    assert empty.target.objects == {}


def test_a_feature_that_we_do_not_know_is_refused() -> None:
    there = world(PLAIN.then(Upgrade(reader=("ofTheFuture",), writer=("ofTheFuture",))))
    refused(there, UnsupportedFeature)


def test_a_place_inside_of_the_table_is_refused() -> None:
    there = world(PLAIN)
    with pytest.raises(InvalidInput, match="inside"):
        Export(
            ExportContext(there.work().engine, lambda uri: DictStore(uri=uri)),
            there.source,
            to=f"{SOURCE}/exported",
        )


@pytest.mark.parametrize("options", [{"keep": 0}, {"keep": 2}])
def test_there_is_nothing_to_keep_at_a_place_that_was_chosen(options: dict[str, int]) -> None:
    there = world(PLAIN)
    with pytest.raises(InvalidInput):
        there.run(**options)
    assert there.target.objects == {}


def test_a_broken_checkpoint_is_left_out() -> None:
    there = world(LONG)
    data = bytearray(there.source.get(checkpoint(3)))
    data[100:400] = b"\0" * 300
    there.source.put(checkpoint(3), bytes(data))
    there.run()
    assert names(there) == {commit(version) for version in range(6)}
    assert len(there.warned) == 1


def test_a_broken_commit_stops_it() -> None:
    there = world(LONG)
    there.source.put(commit(4), b"{")
    refused(there, CorruptLog)


# --- Broken off -------------------------------------------------------------------


def test_what_waits_of_exports_that_were_broken_off_goes_after_a_day() -> None:
    there = world(LONG)
    there.faulty = FaultyStore(there.target, on("COPY", Fault.STOP_BEFORE))
    with pytest.raises(Stopped):
        there.run()
    there.faulty = None
    there.run_id = "another"
    there.run()
    assert [name for name in there.target.objects if "-run/" in name]
    there.replace(LONG.then(Append(1)))
    there.now_ms += 2 * 24 * 60 * 60 * 1000
    there.run()
    assert [name for name in there.target.objects if "/_lakeferry/" in name] == [manifest.NAME]


def test_a_refused_export_leaves_what_the_place_says_of_itself() -> None:
    there = world(LONG)
    there.run()
    before = there.target.objects
    later = LONG.then(Append(1))
    there.replace(later)
    lost = unquote(sorted(set(live(there.source)) - set(live(LONG.store(SOURCE))))[0])
    there.source.delete_many([lost])
    refused(there, MissingFile)
    kept = {name: data for name, data in there.target.objects.items() if "-run/" not in name}
    assert kept == before
    there.replace(later)
    assert (there.run().files_written, commit(6) in names(there)) == (1, True)


def test_a_table_that_was_written_anew_is_not_taken_for_the_old_one() -> None:
    there = world(PLAIN)
    there.run()
    own = DeltaLog(there.source).state().metadata.id.encode()
    other = {name: data.replace(own, own[::-1]) for name, data in PLAIN.objects(SOURCE).items()}
    there.source = DictStore(other, uri=SOURCE)
    there.source.set_modified(commit(0), DEFAULT_START_MS + 1)
    before = there.log()
    with pytest.raises(CommitConflict, match="replaced"):
        there.run()
    assert there.log() == before


@pytest.mark.parametrize("lost", ["0004.json", "checkpoint", "_sidecars"])
@pytest.mark.parametrize("kind", [Kind.CLASSIC, Kind.V2_JSON, Kind.V2_PARQUET])
def test_a_damaged_export_is_mended(kind: Kind, lost: str) -> None:
    start = History(Layout(v2_checkpoints=True)).then(Append(3), Append(1), Delete(1))
    there = world(start.then(Checkpoint(kind, sidecars=2), Append(1), Append(1)))
    there.run()
    before = there.log()
    gone = [name for name in before if lost in name and name != HINT]
    there.target.delete_many(gone[:1])
    assert there.run().changed is bool(gone)
    assert there.log() == before
    assert live(there.target) == [f"{SOURCE}/{path}" for path in live(there.source)]


def test_of_two_exports_the_slower_older_one_changes_nothing() -> None:
    """An export is overtaken at any of its calls by one of a later version."""
    later = LONG.then(Append(1), Checkpoint(), Append(1))
    clean = world(later)
    clean.run()
    for steps in range(60):
        there = world(LONG)
        happened: list[int] = []

        def overtake(there: World = there, happened: list[int] = happened) -> None:
            happened.append(1)
            World(later.store(SOURCE), there.target, run_id="other").run()

        there.faulty = FaultyStore(there.target, _interlude(steps, overtake))
        there.run()
        again = World(later.store(SOURCE), there.target, run_id="again")
        again.run()
        assert live(there.target) == live(clean.target)
        assert again.log() == clean.log()
        if not happened:
            break
    assert steps > 10


def test_two_at_once_do_no_harm() -> None:
    """One export stops anywhere, another one runs to its end, and the first one goes on."""
    clean = world(LONG)
    clean.run()
    pause: Callable[[], None]
    for steps in range(40):
        there = world(LONG)
        happened: list[int] = []

        def pause(there: World = there, happened: list[int] = happened) -> None:
            happened.append(1)
            other = World(there.source, there.target, run_id="other")
            other.run()

        there.faulty = FaultyStore(there.target, _interlude(steps, pause))
        there.run()
        assert there.log() == clean.log()
        if not happened:
            break
    assert steps > 5


def _interlude(index: int, act: Callable[[], None]) -> Callable[[Any], Fault | None]:
    seen = 0

    def rule(_: Any) -> Fault | None:
        nonlocal seen
        seen += 1
        if seen == index + 1:
            act()
        return None

    return rule
