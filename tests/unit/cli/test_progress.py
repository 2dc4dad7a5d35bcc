from __future__ import annotations

import pytest

from lakeferry.cli import progress
from lakeferry.cli.output import Output


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
