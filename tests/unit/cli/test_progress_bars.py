from __future__ import annotations

import io

import pytest
from rich.console import Console

from lakeferry.cli.progress_bars import ProgressBars, _columns, fitting
from lakeferry.cli.screen import cells

WORDS = ("812.3 MiB of 1.2 GiB", "1 of 3 files", "77.4 MiB/s", "0:12 left")
NAMES = ("reading the checkpoint", "copying data")


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def drawn(bars: ProgressBars, screen: int, encoding: str = "utf-8") -> list[str]:
    """Return the lines that a terminal of this width shows."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=screen, force_terminal=True, no_color=True)
    with console.capture() as captured:
        console.print(bars)
    return captured.get().splitlines()


def at_work(clock: Clock) -> ProgressBars:
    bars = ProgressBars("connecting", clock)
    bars.wait_for(None)
    bars.tell(NAMES[0], ("1 of 1",), 1.0)
    bars.tell(NAMES[1], WORDS, 0.66)
    return bars


@pytest.mark.parametrize("screen", [20, 30, 50, 80, 100, 120, 200])
def test_what_goes_on_moves_on_a_screen_of_any_width(screen: int) -> None:
    clock = Clock()
    bars = at_work(clock)
    frames = set()
    for tenth in range(10):
        clock.now = tenth / 10
        frames.add("\n".join(drawn(bars, screen)))
    assert len(frames) > 5
    bars.wait_for("waiting for the server's check")
    waiting = set()
    for tenth in range(10):
        clock.now = 1 + tenth / 10
        waiting.add(drawn(bars, screen)[0])
    assert len(waiting) > 5


@pytest.mark.parametrize("screen", [20, 30, 50, 80, 100, 120, 200])
def test_lines_fit_the_screen_and_say_how_much_is_done(screen: int) -> None:
    lines = drawn(at_work(Clock()), screen)
    assert len(lines) == 2
    assert all(cells(line) <= screen for line in lines)
    if screen >= 50:
        assert "copying data" in lines[1]
        assert WORDS[0] in lines[1]
        assert screen < 60 or "0:00:00" in lines[1]


@pytest.mark.parametrize("screen", [80, 100, 120, 200])
def test_a_screen_of_80_columns_has_room_for_a_bar_and_the_time_left(screen: int) -> None:
    line = drawn(at_work(Clock()), screen)[1]
    assert line.count("━") >= 6
    assert "0:12 left" in line


def test_words_that_say_less_are_left_out_first() -> None:
    assert fitting(WORDS, 100) == ", ".join(WORDS)
    assert fitting(WORDS, 50) == "812.3 MiB of 1.2 GiB, 77.4 MiB/s, 0:12 left"
    assert fitting(WORDS, 40) == "812.3 MiB of 1.2 GiB, 0:12 left"
    assert fitting(WORDS, 20) == "812.3 MiB of 1.2 GiB"
    assert cells(fitting(WORDS, 8)) == 8


@pytest.mark.parametrize("screen", range(10, 200))
def test_columns_never_take_more_than_the_screen_has(screen: int) -> None:
    wide = _columns(screen, NAMES, [("1 of 1",), WORDS])
    taken = 2 + wide.what + (wide.bar and wide.bar + 1) + wide.told + 1 + wide.time
    assert taken <= screen
    assert min(wide.what, wide.told) > 0


def test_what_has_ended_stands_still() -> None:
    clock = Clock()
    bars = at_work(clock)
    before = drawn(bars, 80)[0]
    clock.now = 7.3
    assert drawn(bars, 80)[0] == before
    assert drawn(bars, 80)[1].endswith("0:00:07")


def test_a_terminal_without_unicode_gets_plain_characters() -> None:
    bars = at_work(Clock())
    bars.wait_for("waiting")
    assert "\n".join(drawn(bars, 80, "ascii")).isascii()
