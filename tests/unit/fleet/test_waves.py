"""Which jobs may begin: waves, windows and pauses, without a clock of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from lakeferry.errors import InvalidInput
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.waves import (
    PlannedMove,
    RunWindow,
    WaveChoice,
    WaveProgress,
    assign_waves,
    choose_wave,
)

DONE, FAILED, QUEUED, RUNNING, PLANNED, STOPPED = (
    FleetState[name] for name in ("DONE", "FAILED", "QUEUED", "RUNNING", "PLANNED", "STOPPED")
)


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


@pytest.mark.parametrize(
    ("window", "time", "is_open"),
    [
        ("22:00-05:00", "21:59", False),
        ("22:00-05:00", "22:00", True),
        ("22:00-05:00", "00:00", True),
        ("22:00-05:00", "04:59", True),
        ("22:00-05:00", "05:00", False),
        ("09:30-17:00", "09:29", False),
        ("9:30-17:00", "09:30", True),
        ("09:30-17:00", "17:00", False),
        ("00:00-24:00", "23:59", True),
        ("20:00-24:00", "23:59", True),
        ("20:00-24:00", "00:00", False),
        ("24:00-01:00", "00:30", True),
    ],
)
def test_a_window_is_open_from_its_begin_to_before_its_end(
    window: str, time: str, is_open: bool
) -> None:
    now = at(f"2026-03-01T{time}")
    found = RunWindow.parse(window, "UTC")
    assert found.is_open(now) is is_open
    assert (found.opens_ms(now) == now) is is_open


def test_a_closed_window_says_when_it_opens() -> None:
    window = RunWindow.parse("22:00-05:00", "Europe/Berlin")
    assert window.opens_ms(at("2026-03-01T12:00")) == at("2026-03-01T22:00", "Europe/Berlin")
    morning = RunWindow.parse("01:00-05:00", "UTC")
    assert morning.opens_ms(at("2026-03-01T05:00")) == at("2026-03-02T01:00")


def test_a_window_is_of_its_own_time_zone() -> None:
    berlin = RunWindow.parse("22:00-05:00", "Europe/Berlin")
    assert berlin.is_open(at("2026-03-01T21:30"))
    assert not RunWindow.parse("22:00-05:00", "UTC").is_open(at("2026-03-01T21:30"))
    # In summer the zone is two hours ahead.
    assert berlin.is_open(at("2026-07-01T20:00"))
    assert RunWindow.parse("22:00-05:00").zone is None


def test_a_window_opens_by_the_wall_clock_when_clocks_are_changed() -> None:
    # The night of 29 March 2026: 02:00 to 03:00 doesn't exist in Berlin.
    window = RunWindow.parse("22:00-02:30", "Europe/Berlin")
    assert window.is_open(at("2026-03-29T00:59"))
    assert not window.is_open(at("2026-03-29T01:00"))
    opens = window.opens_ms(at("2026-03-29T01:00"))
    local = datetime.fromtimestamp(opens / 1000, UTC).astimezone(ZoneInfo("Europe/Berlin"))
    assert (local.hour, local.minute, local.day) == (22, 0, 29)


@pytest.mark.parametrize(
    "text", ["", "22:00", "22-05", "22:00-22:00", "25:00-05:00", "22:60-05:00", "24:30-05:00"]
)
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        RunWindow.parse(text)
    assert refused.value.remedy


def test_an_unknown_time_zone_is_refused() -> None:
    for zone in ("Mars/Olympus", "../etc/passwd", ""):
        with pytest.raises(InvalidInput, match="time zone"):
            RunWindow.parse("22:00-05:00", zone)


def progress(*waves: dict[FleetState, int]) -> list[WaveProgress]:
    return [WaveProgress(number, counts) for number, counts in enumerate(waves, 1)]


@pytest.mark.parametrize(
    ("waves", "wanted", "choice"),
    [
        ([], None, WaveChoice(None)),
        ([{DONE: 3}], None, WaveChoice(None)),
        ([{QUEUED: 1}, {QUEUED: 1}], None, WaveChoice(1)),
        ([{RUNNING: 1}, {QUEUED: 1}], None, WaveChoice(1)),
        ([{DONE: 1}, {QUEUED: 1}], None, WaveChoice(2)),
        ([{PLANNED: 1}, {QUEUED: 1}], None, WaveChoice(2)),
        ([{FAILED: 1, DONE: 5}, {QUEUED: 1}], None, WaveChoice(None, 1)),
        ([{STOPPED: 1}, {QUEUED: 1}], None, WaveChoice(None, 1)),
        ([{FAILED: 1, QUEUED: 1}, {QUEUED: 1}], None, WaveChoice(1)),
        ([{FAILED: 1}, {DONE: 1}], None, WaveChoice(None)),
        ([{FAILED: 1}, {QUEUED: 1}], 2, WaveChoice(2)),
        ([{QUEUED: 1}, {QUEUED: 1}], 2, WaveChoice(2)),
        ([{QUEUED: 1}], 2, WaveChoice(None)),
    ],
)
def test_waves_begin_in_their_order_and_a_failure_blocks_later_ones(
    waves: list[dict[FleetState, int]], wanted: int | None, choice: WaveChoice
) -> None:
    assert choose_wave(reversed(progress(*waves)), wanted) == choice


def move(name: str, size: int, target: str = "") -> PlannedMove:
    return PlannedMove(name, target or f"new/{name}", size)


def test_the_smallest_tables_come_first_and_waves_are_alike() -> None:
    moves = [move(f"t{size}", size) for size in (60, 10, 50, 20, 40, 30)]
    assert assign_waves(moves, 3) == {"t10": 1, "t20": 1, "t30": 2, "t40": 2, "t50": 3, "t60": 3}
    assert assign_waves(moves[:2], 5) == {"t10": 1, "t60": 3}
    assert assign_waves([], 3) == {}


def test_a_table_to_which_another_leads_is_moved_later() -> None:
    moves = [move("a", 30, "b"), move("b", 20, "c"), move("c", 10, "d"), move("x", 5)]
    waves = assign_waves(moves, 1)
    assert waves["a"] < waves["b"] < waves["c"]
    assert waves["x"] == 1


def test_tables_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(InvalidInput, match="a → b → a") as refused:
        assign_waves([move("a", 1, "b"), move("b", 2, "a")], 2)
    assert refused.value.remedy
