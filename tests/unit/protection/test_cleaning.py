"""Cleaning up a log, on stores in memory: what is read, what goes, and what a crash leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from lakeferry.errors import (
    CheckpointProtected,
    CorruptLog,
    FeatureRequired,
    RedirectInProgress,
    RetentionTooShort,
    UnsupportedFeature,
    VersionNotAvailable,
)
from lakeferry.log import paths
from lakeferry.protection import cleaning
from lakeferry.table import DeltaLog
from tests.support import naive
from tests.support.history import (
    Append,
    Checkpoint,
    Checksum,
    Clean,
    Compact,
    Delete,
    Hint,
    HintState,
    History,
    Kind,
    Layout,
    Lines,
    SetProperties,
    Upgrade,
    dated,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, at

DAY_MS = 86_400_000
BOUNDARY = "delta.requireCheckpointProtectionBeforeVersion"
LONG = History().then(*(Append(1) for _ in range(9)), Checkpoint(), Append(1), Delete(1))


def aged(past: History, days: float = 365) -> DictStore:
    """Return a store with the table on it, so long after its last commit."""
    store = dated(past.objects())
    store.clock.advance(int(days * DAY_MS))  # type: ignore[attr-defined]
    return store


def log_of(store: DictStore) -> DeltaLog:
    return DeltaLog(store, clock=store.clock)


def protected(boundary: int, *steps: object) -> History:
    """Return a table whose history before a version is protected."""
    past = History().then(*(Append(1) for _ in range(4)), Checkpoint(), *steps)  # type: ignore[arg-type]
    return past.then(
        Upgrade(writer=("checkpointProtection",)),
        SetProperties(((BOUNDARY, str(boundary)),)),
        *(Append(1) for _ in range(4)),
        Checkpoint(),
        Append(1),
    )


def readable(store: DictStore) -> set[int]:
    found = set()
    for version in range(naive.newest_version(store.objects) + 1):
        try:
            naive.replay(store.objects, version)
        except naive.Unreadable:
            continue
        found.add(version)
    return found


def test_old_history_goes_and_what_is_in_force_stays() -> None:
    store = aged(LONG)
    rows = naive.replay(store.objects)
    done = cleaning.clean(log_of(store), retention_ms=None)
    # All is older than the retention: the newest version alone has been in force since.
    assert done.created == ()
    assert done.deleted == tuple(paths.commit(version) for version in range(9))
    assert [each.as_document() for each in done.kept] == [
        {"from": 9, "to": 10, "reason": "version 11 is rebuilt from the checkpoint at 9"},
        {"from": 11, "to": 11, "reason": "in force within the retention of 30 days"},
    ]
    assert naive.replay(store.objects) == rows
    assert not cleaning.clean(log_of(store)).changed


def test_the_version_in_force_when_the_retention_began_stays() -> None:
    past = History().then(*(Append(1) for _ in range(4)))
    store = dated(past.objects())
    store.clock.advance(29 * DAY_MS)  # type: ignore[attr-defined]
    for version in (3, 4):
        store.set_modified(paths.commit(version), store.clock())
    store.clock.advance(2 * DAY_MS)  # type: ignore[attr-defined]
    done = cleaning.clean(log_of(store))
    # Version 2 was the newest for most of the last thirty days.
    assert done.deleted == (paths.commit(0), paths.commit(1))
    assert done.created == (paths.classic_checkpoint(2),)
    assert readable(store) == {2, 3, 4}


def test_file_times_that_run_backwards_are_made_to_grow() -> None:
    store = dated(History().then(*(Append(1) for _ in range(4)), Checkpoint()).objects())
    now = store.clock() + 31 * DAY_MS
    store.clock.advance(31 * DAY_MS)  # type: ignore[attr-defined]
    store.set_modified(paths.commit(1), now - DAY_MS)
    assert not cleaning.clean(log_of(store)).deleted or 1 in readable(store)


def test_nothing_goes_where_the_clock_is_behind_the_files() -> None:
    store = aged(LONG, -300)
    assert not cleaning.clean(log_of(store)).changed


def test_commits_tell_their_own_time_where_they_have_one() -> None:
    past = History(Layout(in_commit_timestamps=True)).then(*(Append(1) for _ in range(6)))
    store = aged(past)
    for version in range(7):
        # A copy of the table: the files are young, their commits aren't.
        store.set_modified(paths.commit(version), store.clock())
    done = cleaning.clean(log_of(store))
    assert done.created == (paths.classic_checkpoint(6),)
    assert readable(store) == {6}


def test_before_a_version_the_log_begins_there() -> None:
    store = aged(LONG, 0)
    done = cleaning.clean(log_of(store), before=4)
    assert done.created == (paths.classic_checkpoint(4),)
    assert readable(store) == set(range(4, 12))
    assert log_of(store).listing().earliest_version() == 4
    again = cleaning.clean(log_of(store), before=4)
    assert not again.changed


def test_of_two_cuts_the_smaller_one_is_made() -> None:
    store = aged(LONG)
    cleaning.clean(log_of(store), retention_ms=60 * DAY_MS, before=4)
    assert readable(store) == set(range(4, 12))
    store = aged(LONG, 1)
    assert not cleaning.clean(log_of(store), retention_ms=60 * DAY_MS, before=4).changed


def test_checksums_and_compacted_logs_go_with_their_commits() -> None:
    past = History().then(Append(1), Checksum(), Append(1), Compact(2), Append(1), Checkpoint())
    store = aged(past.then(Append(1), Checksum()))
    cleaning.clean(log_of(store))
    left = sorted(name.removeprefix("_delta_log/") for name in store.objects if "_delta" in name)
    assert left == [
        "00000000000000000003.checkpoint.parquet",
        "00000000000000000003.json",
        "00000000000000000004.crc",
        "00000000000000000004.json",
        "_last_checkpoint",
    ]


def test_a_dry_run_says_what_would_be_done_and_does_nothing() -> None:
    store = aged(LONG, 0)
    before = store.objects
    foreseen = cleaning.foresee_cleaning(log_of(store), before=4)
    assert store.objects == before
    done = cleaning.clean(log_of(store), before=4)
    assert foreseen.create == 4
    assert [name for wave in foreseen.waves for name in wave] == list(done.deleted)
    assert foreseen.kept == done.kept


# --- What is read -------------------------------------------------------------


def reads(store: DictStore) -> list[str]:
    """Return what was fetched, and forget it."""
    return [path for verb, path in store.calls.log if verb in ("GET", "RANGE")]


def test_planning_without_protection_reads_the_listing_alone() -> None:
    store = aged(LONG.then(Checksum()))
    cleaning.foresee_cleaning(log_of(store))
    commits = [path for path in reads(store) if path.endswith(".json")]
    assert commits == []


@pytest.mark.parametrize("with_checksums", [True, False])
def test_below_a_boundary_one_small_file_is_read_for_each_version(with_checksums: bool) -> None:
    past = protected(100)
    if with_checksums:
        steps = [step for each in past.steps for step in (each, Checksum())]
        past = History(past.layout, tuple(steps))
    store = aged(past)
    cleaning.foresee_cleaning(log_of(store))
    base = 10
    suffix = ".crc" if with_checksums else ".json"
    wanted = [f"_delta_log/{version:020d}{suffix}" for version in range(base)]
    found = [path for path in reads(store) if path in set(wanted)]
    assert sorted(set(found)) == wanted
    others = [path for path in reads(store) if path.endswith((".json", ".crc"))]
    assert len(found) == base
    # Besides those the newest version's own state, once.
    assert len(set(others) - set(wanted)) <= 2


def test_history_that_goes_as_a_whole_isn_t_read() -> None:
    store = aged(protected(6).then(Checksum()))
    cleaning.foresee_cleaning(log_of(store))
    assert [path for path in reads(store) if path.endswith(".json")] == []


# --- Protection ---------------------------------------------------------------


def test_checkpoints_before_the_boundary_stay_until_all_before_it_goes() -> None:
    store = aged(protected(100))
    done = cleaning.clean(log_of(store))
    assert done.deleted == tuple(paths.commit(version) for version in range(10))
    assert paths.classic_checkpoint(4) in store.objects
    store = aged(protected(10))
    cleaning.clean(log_of(store))
    assert paths.classic_checkpoint(4) not in store.objects
    assert readable(store) == {10, 11}


def test_a_feature_that_nobody_knows_stops_a_cleanup_that_doesn_t_pass_the_boundary() -> None:
    unknown = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["somethingNew"]}
    plain = {"minReaderVersion": 1, "minWriterVersion": 2}
    there_and_gone = (Lines((json.dumps({"protocol": each}),)) for each in (unknown, plain))
    store = aged(protected(100, *there_and_gone))
    done = cleaning.clean(log_of(store))
    assert done.deleted == tuple(paths.commit(version) for version in range(4))
    assert "somethingNew" in str([each.reason for each in done.kept])


@pytest.mark.parametrize("value", ["soon", "-1", "1.5", ""])
def test_a_boundary_that_is_no_version_is_refused(value: str) -> None:
    past = History().then(
        Upgrade(writer=("checkpointProtection",)), SetProperties(((BOUNDARY, value),))
    )
    store = aged(past)
    before = store.objects
    with pytest.raises(UnsupportedFeature, match="is invalid"):
        cleaning.clean(log_of(store))
    assert store.objects == before


def refused(past: History, error: type[Exception], **options: object) -> None:
    store = aged(past)
    before = store.objects
    with pytest.raises(error):
        cleaning.clean(log_of(store), **options)  # type: ignore[arg-type]
    assert store.objects == before


def test_what_makes_no_sense_is_refused_and_nothing_goes() -> None:
    refused(LONG, RetentionTooShort, retention_ms=DAY_MS)
    refused(LONG, VersionNotAvailable, before=12)
    refused(LONG.then(SetProperties(((BOUNDARY, "3"),))), FeatureRequired)
    refused(LONG.then(Upgrade(writer=("somethingNew",))), UnsupportedFeature)
    entry = '{"Type":"Object Store","State":"READY","Spec":{"Location":"memory://other/t"}}'
    redirected = LONG.then(
        Upgrade(writer=("redirectWriterOnly",)),
        SetProperties((("delta.redirectWriterOnly", entry),)),
    )
    refused(redirected, RedirectInProgress)


def test_a_shorter_retention_can_be_forced() -> None:
    store = aged(LONG, 2)
    cleaning.clean(log_of(store), retention_ms=DAY_MS, force=True)
    assert readable(store) == {9, 10, 11}


def test_a_checkpoint_that_can_t_be_read_is_worth_nothing() -> None:
    store = aged(LONG)
    store.put(paths.classic_checkpoint(9), b"PAR1 not at all")
    before = store.objects
    with pytest.raises(CorruptLog, match="can't be read"):
        cleaning.clean(log_of(store))
    assert store.objects == before


def test_a_hint_to_what_goes_goes_first() -> None:
    past = History().then(Append(1), Checkpoint(), Append(1), Checkpoint(), Append(1))
    store = aged(past)
    store.put(paths.LAST_CHECKPOINT, b'{"version":1,"size":4}')
    cleaning.clean(log_of(store))
    assert paths.classic_checkpoint(1) not in store.objects
    assert paths.LAST_CHECKPOINT not in store.objects
    assert log_of(store).snapshot().num_files == 3


@pytest.mark.parametrize("state", list(HintState))
def test_a_hint_is_a_hint(state: HintState) -> None:
    store = aged(LONG.then(Hint(state)))
    rows = naive.replay(store.objects)
    cleaning.clean(log_of(store))
    assert naive.replay(store.objects) == rows


# --- Sidecars -----------------------------------------------------------------

V2 = History(Layout(v2_checkpoints=True)).then(
    *(Append(3) for _ in range(3)),
    Checkpoint(Kind.V2_PARQUET, sidecars=2),
    Append(1),
    Checkpoint(Kind.V2_JSON, sidecars=2),
    Append(1),
)


def sidecars(store: DictStore) -> set[str]:
    return {name for name in store.objects if "/_sidecars/" in name}


def test_sidecars_go_with_the_last_checkpoint_that_names_them() -> None:
    store = aged(V2)
    before = sidecars(store)
    assert len(before) == 4
    rows = naive.replay(store.objects)
    done = cleaning.clean(log_of(store))
    assert naive.replay(store.objects) == rows
    assert len(sidecars(store)) == 2
    assert set(done.deleted) >= before - sidecars(store)


def test_young_sidecars_stay() -> None:
    store = aged(V2)
    for name in sidecars(store):
        store.set_modified(name, store.clock() - DAY_MS + 1)
    cleaning.clean(log_of(store))
    assert len(sidecars(store)) == 4


def test_a_sidecar_that_two_checkpoints_share_stays() -> None:
    store = aged(V2)
    # The newer checkpoint names the older ones' sidecars, as incremental ones do.
    lines: list[dict[str, object]] = [{"checkpointMetadata": {"version": 5}}]
    for name in sidecars(store):
        size = len(store.get(name))
        named = {"path": name.rpartition("/")[2], "sizeInBytes": size, "modificationTime": 0}
        lines.append({"sidecar": named})
    first = [json.loads(line) for line in store.get(paths.commit(0)).splitlines()]
    lines += [row for row in first if "protocol" in row or "metaData" in row]
    newest = paths.v2_checkpoint(5, "11111111-1111-4111-8111-111111111111", "json")
    store.put(newest, "\n".join(json.dumps(line) for line in lines).encode())
    done = cleaning.clean(log_of(store), before=4, force=True)
    assert done.deleted
    assert len(sidecars(store)) == 4


def test_no_sidecar_goes_while_a_checkpoint_that_stays_can_t_be_read() -> None:
    store = aged(V2.then(Append(1)))
    store.put(paths.classic_checkpoint(6), b"PAR1 broken")
    warned: list[str] = []
    cleaning.clean(DeltaLog(store, clock=store.clock, warn=warned.append), before=5, force=True)
    assert len(sidecars(store)) == 4
    assert any("all sidecars are kept" in text for text in warned)


# --- Crashes and others -------------------------------------------------------


@pytest.mark.parametrize("past", [LONG, V2, protected(100), protected(10)])
def test_wherever_it_is_broken_off_all_that_stays_is_readable(past: History) -> None:
    whole = aged(past)
    expected = {v: naive.replay(whole.objects, v) for v in readable(whole)}
    done = cleaning.clean(log_of(whole))
    stays = min(each.first for each in done.kept if "in force" in each.reason)
    for index in range(200):
        for fault in (Fault.STOP_BEFORE, Fault.STOP_HALFWAY, Fault.STOP_AFTER):
            store = aged(past)
            faulty = FaultyStore(store, at(index, fault))
            try:
                cleaning.clean(DeltaLog(faulty, clock=store.clock))
            except Stopped:
                pass
            else:
                return
            for version in range(stays, max(expected) + 1):
                assert naive.replay(store.objects, version) == expected[version]
            cleaning.clean(log_of(store))
            assert store.objects.keys() == whole.objects.keys()
    raise AssertionError("it never ended")


def test_a_log_that_begins_with_a_checkpoint_is_cleaned_further() -> None:
    store = aged(LONG.then(Clean(), Append(1), Append(1), Checkpoint(), Append(1)))
    cleaning.clean(log_of(store))
    assert readable(store) == {13, 14}


def test_no_checkpoint_is_made_of_a_protected_version_that_we_don_t_support() -> None:
    unknown = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["somethingNew"]}
    plain = {"minReaderVersion": 1, "minWriterVersion": 2}
    there_and_gone = (Lines((json.dumps({"protocol": each}),)) for each in (unknown, plain))
    store = aged(protected(100, *there_and_gone))
    before = store.objects
    with pytest.raises(CheckpointProtected, match="somethingNew"):
        log_of(store).checkpoint(5)
    assert store.objects == before
    assert log_of(store).checkpoint(3).created
    # A cleanup that would need it makes do with an older one.
    done = cleaning.clean(log_of(store), before=5)
    assert done.created == ()
    assert 5 in readable(store)


@pytest.mark.parametrize("at_call", range(12))
def test_a_log_that_somebody_else_cleans_further_meanwhile_is_cleaned_enough(at_call: int) -> None:
    store = History().then(*(Append(1) for _ in range(11))).store()

    class Meanwhile(FaultyStore):
        def get_many(self, paths: Sequence[str]) -> list[bytes]:
            # What was to be read for a checkpoint goes, for there is a later one.
            if len(self.history) >= at_call and store.objects.get(first) is not None:
                cleaning.clean(log_of(store), before=9, force=True)
            return super().get_many(paths)

    first = paths.commit(0)
    cleaning.clean(DeltaLog(Meanwhile(store), clock=store.clock), before=6, force=True)
    assert {9, 10, 11} <= readable(store)
    assert 5 not in readable(store)
