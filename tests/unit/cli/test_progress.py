from __future__ import annotations

import time

import pytest

from lakeferry.cli import progress
from lakeferry.cli.output import Output
from lakeferry.engine import Volume
from lakeferry.readable import ProgressWords


def test_programs_see_no_progress(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.watching(Output(json=True)) as observer:
        observer("work", 1, 2)
    with progress.waiting(Output(json=True), "work"):
        pass
    assert capfd.readouterr() == ("", "")


def test_a_pipe_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = progress._Lines(lambda: now)
    for second in range(12):
        now = float(second)
        lines.observe("work", second, 12)
    assert capsys.readouterr().err == "work: 5 of 12\nwork: 10 of 12\n"


def test_a_copy_tells_bytes_files_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = progress._Lines(lambda: now)
    total = Volume(1200 * 1024**2, 100)
    for second in range(11):
        now = float(second)
        lines.observe("copying data", Volume(second * 10 * 1024**2, second), total)
    assert capsys.readouterr().err == (
        "copying data: 50.0 MiB of 1.2 GiB, 5 of 100 files, 10.0 MiB/s, 1:55 left\n"
        "copying data: 100.0 MiB of 1.2 GiB, 10 of 100 files, 10.0 MiB/s, 1:50 left\n"
    )


def test_the_rate_counts_from_when_bytes_begin_to_move() -> None:
    now = 0.0
    amounts = ProgressWords(lambda: now)
    for second, moved in ((0, 0), (60, 0), (61, 1024)):
        now = float(second)
        told = amounts.told("copying data", Volume(moved, 0), Volume(2048, 1))
    assert told == ("1.0 KiB of 2.0 KiB", "0 of 1 file", "1.0 KiB/s", "0:01 left")


def test_what_has_not_begun_to_move_has_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = progress._Lines(lambda: now)
    for second in (0, 6):
        now = float(second)
        lines.observe("copying data", Volume(0, 0), Volume(10, 1))
    assert capsys.readouterr().err == "copying data: 0 bytes of 10 bytes, 0 of 1 file\n"


def test_a_terminal_gets_a_bar_with_the_same_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with progress.watching(Output(json=False)) as observer:
        observer("reading", 1, 2)
        observer("copying data", Volume(1024, 1), Volume(2048, 2))
    shown = capsys.readouterr().err
    assert "1 of 2" in shown
    assert "1.0 KiB of 2.0 KiB, 1 of 2 files" in shown


def test_work_within_shown_work_shows_nothing_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = Output(json=False)
    with progress.waiting(output, "the outer"), progress.waiting(output, "the inner"):
        pass
    with progress.waiting(output, "the next"):
        pass
    shown = capsys.readouterr().err
    assert "the outer" in shown
    assert "the inner" not in shown
    assert "the next" in shown


def test_a_terminal_shows_life_before_the_first_and_after_the_last_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.watching(Output(json=False), "connecting to h", "the check") as observer:
        time.sleep(0.25)
        before = capsys.readouterr().err
        observer("pushing", 1, 2)
        time.sleep(0.25)
        capsys.readouterr()
        observer("pushing", 2, 2)
        time.sleep(0.25)
        after = capsys.readouterr().err
    assert "connecting to h" in before
    assert "the check" in after
    assert "connecting to h" not in after
