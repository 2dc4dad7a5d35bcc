"""Which files of a log may go: every plan keeps the rules, however far it gets."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from lakeferry.errors import CorruptLog
from lakeferry.log import cleanup, paths
from lakeferry.log.actions import Protocol
from lakeferry.log.cleanup import CleanupPlan, Cut, Kept
from lakeferry.log.segment import Listing, arrange
from tests.support import cleanup_rules
from tests.support.cleanup_rules import DAY_MS, Log

NOW = 100 * DAY_MS
KNOWN = Protocol(1, 2)
UNKNOWN = Protocol(1, 7, None, ("somethingNew",))


def listing_of(names: Iterable[str]) -> Listing:
    return arrange(file for name in names if (file := paths.parse(name)) is not None)


@dataclass(frozen=True)
class Case:
    """A log, and what is asked of its cleaner."""

    log: Log
    cut: Cut
    boundary: int | None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    newest = draw(st.integers(0, 12))
    first = draw(st.integers(0, newest))
    versions = range(first, newest + 1)
    some = st.sets(st.sampled_from(list(range(newest + 1))), max_size=6)
    names = {paths.commit(version): 0 for version in versions}
    for lost in draw(st.sets(st.sampled_from(list(versions)), max_size=1)):
        del names[paths.commit(lost)]
    names |= {paths.checksum(version): 0 for version in draw(some)}
    for start in draw(some):
        if start < newest:
            names[paths.compacted(start, draw(st.integers(start + 1, newest)))] = 0
    pool = [paths.sidecar(f"{number}.parquet") for number in range(4)]
    ages = st.sampled_from([NOW - DAY_MS, NOW - DAY_MS - 1, 0, NOW])
    sidecars: dict[str, frozenset[str]] = {}
    for version in sorted(draw(some)):
        match draw(st.sampled_from(["classic", "parts", "broken", "v2", "two"])):
            case "classic":
                names[paths.classic_checkpoint(version)] = 0
            case "parts":
                names |= {paths.multi_part_checkpoint(version, part, 2): 0 for part in (1, 2)}
            case "broken":
                names[paths.multi_part_checkpoint(version, 2, 3)] = 0
            case kind:
                unique = str(uuid.UUID(int=version, version=4))
                name = paths.v2_checkpoint(version, unique)
                named = draw(st.sets(st.sampled_from(pool), min_size=1, max_size=3))
                names[name] = 0
                sidecars[name] = frozenset(named)
                names |= {each: draw(ages) for each in sorted(named) if each not in names}
                if kind == "two":
                    names[paths.classic_checkpoint(version)] = 0
    for orphan in draw(st.sets(st.sampled_from(pool), max_size=2)):
        names.setdefault(orphan, draw(ages))
    boundary = draw(st.none() | st.integers(0, newest + 1))
    below = [version for version in range(newest + 1) if boundary and version < boundary]
    unsupported = draw(st.sets(st.sampled_from(below), max_size=3)) if below else set()
    cut = Cut(draw(st.integers(0, newest)), "wanted", exact=draw(st.booleans()))
    return Case(Log(names, sidecars, frozenset(unsupported)), cut, boundary)


def planned(case: Case) -> CleanupPlan:
    """Plan with no more than what is asked for."""
    listing = listing_of(case.log.names)
    protocols = {
        version: UNKNOWN if version in case.log.unsupported else KNOWN
        for version in cleanup.asked(listing, case.cut, case.boundary)
    }
    return cleanup.plan_cleanup(listing, case.cut, case.boundary, protocols)


def waves_of(case: Case, plan: CleanupPlan) -> list[tuple[str, ...]]:
    going = {name for wave in plan.checkpoints for name in wave}
    named = {
        each for name, sidecars in case.log.sidecars.items() if name not in going
        for each in sidecars
    }  # fmt: skip
    listed = [(name, age) for name, age in case.log.names.items() if "/_sidecars/" in name]
    sidecars = cleanup.sidecar_waves(listed, frozenset(named), NOW)
    return [*plan.commits, *plan.checkpoints, *sidecars]


def left(names: Mapping[str, int], gone: Iterable[str]) -> dict[str, int]:
    lost = set(gone)
    return {name: age for name, age in names.items() if name not in lost}


@given(cases(), st.data())
def test_however_far_a_plan_gets_the_rules_hold(case: Case, data: st.DataObject) -> None:
    try:
        plan = planned(case)
    except CorruptLog:
        newest = listing_of(case.log.names).newest_version
        event("the newest version can't be rebuilt")
        assert newest not in cleanup_rules.rebuildable(case.log, case.log.names) or _bridged(case)
        return
    if plan.create is not None:
        event("a checkpoint is made first")
        assert not plan.commits
        assert not plan.checkpoints
        assert plan.create == case.cut.version
        if case.boundary is not None and plan.create < case.boundary:
            assert plan.create not in case.log.unsupported
        made = {**case.log.names, paths.classic_checkpoint(plan.create): NOW}
        case = replace(case, log=replace(case.log, names=made))
        plan = planned(case)
        assert plan.create is None
    waves = waves_of(case, plan)
    end = left(case.log.names, (name for wave in waves for name in wave))
    done = data.draw(st.integers(0, len(waves)), label="waves done")
    gone = {name for wave in waves[:done] for name in wave}
    if done < len(waves):
        gone |= data.draw(st.sets(st.sampled_from(waves[done])), label="part of the next")
    event(f"waves: {len(waves)}")
    for after in (left(case.log.names, gone), end):
        wrong = list(
            cleanup_rules.violations(case.log, after, end, case.cut.version, case.boundary, NOW)
        )
        assert wrong == []
    if plan.commits:
        assert list(cleanup_rules.leftovers(case.log, end)) == []
    if plan.base is not None and paths.commit(plan.base.version) in case.log.names:
        assert paths.commit(plan.base.version) in end


def _bridged(case: Case) -> bool:
    """Tell whether only a compacted log, or one of two checkpoints, holds a log together."""
    return any("compacted" in name for name in case.log.names) or bool(case.log.sidecars)


def log_of(versions: range, checkpoints: Iterable[int] = ()) -> Log:
    names = {paths.commit(version): 0 for version in versions}
    return Log(names | {paths.classic_checkpoint(version): 0 for version in checkpoints})


def test_what_a_version_is_rebuilt_from_stays() -> None:
    plan = planned(Case(log_of(range(10), [2, 6]), Cut(8, "young"), None))
    assert plan.base is not None
    assert plan.base.version == 6
    assert plan.commits == (tuple(paths.commit(version) for version in range(6)),)
    assert plan.checkpoints == ((paths.classic_checkpoint(2),),)
    assert plan.kept == (
        Kept(6, 7, "version 8 is rebuilt from the checkpoint at 6"),
        Kept(8, 9, "young"),
    )


@pytest.mark.parametrize(
    ("checkpoints", "exact", "create"),
    [([], False, 5), ([], True, 5), ([3], False, None), ([3], True, 5), ([5], True, None)],
)
def test_a_checkpoint_is_made_where_one_is_needed(
    checkpoints: list[int], exact: bool, create: int | None
) -> None:
    plan = planned(Case(log_of(range(8), checkpoints), Cut(5, "young", exact=exact), None))
    assert plan.create == create
    assert bool(plan.commits) == (create is None)


def test_nothing_older_means_nothing_to_do() -> None:
    assert planned(Case(log_of(range(3)), Cut(0, "young"), None)).is_empty
    assert planned(Case(log_of(range(4, 9), [4]), Cut(4, "young", exact=True), None)).is_empty


def test_protocols_are_asked_for_only_below_a_boundary_that_stays() -> None:
    listing = listing_of(log_of(range(12), [3, 8]).names)
    assert cleanup.asked(listing, Cut(9, ""), None) == range(0)
    assert cleanup.asked(listing, Cut(9, ""), 8) == range(0)
    assert cleanup.asked(listing, Cut(9, ""), 9) == range(8)
    assert cleanup.asked(listing, Cut(5, ""), 9) == range(3)
    assert cleanup.asked(listing, Cut(5, "", exact=True), 9) == range(6)


def test_a_plan_stops_short_of_what_it_doesn_t_support_and_says_so() -> None:
    log = replace(log_of(range(12), [2, 4, 8]), unsupported=frozenset({5}))
    plan = planned(Case(log, Cut(9, "young"), 11))
    assert plan.commits == (tuple(paths.commit(version) for version in range(4)),)
    assert plan.checkpoints == ()
    reasons = {each.reason: (each.first, each.last) for each in plan.kept}
    assert reasons["version 5 has somethingNew, which Lakeferry doesn't support"] == (4, 8)
    assert reasons["checkpoints before version 11 are protected"] == (2, 2)


def test_all_history_before_the_boundary_goes_in_one_run_whatever_it_is() -> None:
    log = replace(log_of(range(12), [2, 4, 8]), unsupported=frozenset({5}))
    plan = planned(Case(log, Cut(9, "young"), 8))
    assert plan.commits == (tuple(paths.commit(version) for version in range(8)),)
    assert plan.checkpoints == (tuple(paths.classic_checkpoint(version) for version in (2, 4)),)


def test_a_version_of_which_nobody_knows_the_protocol_stays() -> None:
    listing = listing_of(log_of(range(12), [8]).names)
    plan = cleanup.plan_cleanup(listing, Cut(9, "young"), 11, {0: KNOWN, 1: None})
    assert plan.is_empty
    assert "can't be known" in plan.kept[0].reason


def test_waves_are_bounded_and_oldest_first() -> None:
    count = cleanup.WAVE_FILES + 5
    plan = planned(Case(log_of(range(count + 2), [count]), Cut(count, "young"), None))
    assert [len(wave) for wave in plan.commits] == [cleanup.WAVE_FILES, 5]
    flat = [name for wave in plan.commits for name in wave]
    assert flat == sorted(flat)


def test_a_log_with_a_gap_is_left_alone() -> None:
    names = {paths.commit(version): 0 for version in (0, 1, 3)}
    with pytest.raises(CorruptLog, match="can't be rebuilt"):
        planned(Case(Log(names), Cut(1, "young"), None))
