from __future__ import annotations

from xml.etree import ElementTree

from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.job_records import WriterPause
from lakeferry.web.svg_plots import pause_plot, state_bar


def test_shares_of_states_add_up() -> None:
    counts = {FleetState.DONE: 3, FleetState.FAILED: 1}
    bar = ElementTree.fromstring(str(state_bar(counts, 4)))
    assert [each.get("width") for each in bar] == ["75.000", "25.000"]
    assert bar.get("aria-label") == "Tables by state: 3 done, 1 failed"
    assert str(state_bar({}, 0)) == ""


def test_longer_pauses_are_higher_and_names_are_text() -> None:
    pauses = [
        WriterPause(number, f"file:///lake/%3Cb%3E{number}", 0, blocked_ms)
        for number, blocked_ms in enumerate((0, 1, 36, 40_000, 9_000_000))
    ]
    text = str(pause_plot(pauses, lambda path: f"/-{path}"))
    plot = ElementTree.fromstring(text)
    heights = [float(bar.get("height", 0)) for bar in plot.iter("rect")]
    assert heights == sorted(heights)
    assert min(heights) > 0
    assert max(heights) <= 180
    assert [link.get("href") for link in plot.iter("a")] == [f"/-/jobs/{n}" for n in range(5)]
    assert " style=" not in text


def test_a_single_pause_is_drawn() -> None:
    assert "36 ms" in str(pause_plot([WriterPause(1, "file:///a", 0, 36)], lambda path: path))
