"""What the commands of ``redirect`` take and show, and what an interrupt is answered with."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

import lakeferry
from lakeferry.api.move_list import MovedTable, Report
from lakeferry.cli import redirect_list, redirect_pages
from lakeferry.cli.output import Output
from lakeferry.cli.redirect import redirect
from lakeferry.cli.redirect_enable import DialectsType, _going_on
from lakeferry.clients.redirect_effects import effect_on
from lakeferry.errors import Interrupted
from lakeferry.log.commit_writer import CommitWriter
from lakeferry.redirect.enable.unfinished_move import Unfinished
from lakeferry.redirect.entry import Mode
from lakeferry.redirect.managed_commits import MissingRequirements
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.recent_writers import RecentWriter
from lakeferry.redirect.states import RedirectState
from lakeferry.redirect.status import Status
from tests.support.history import Append, History
from tests.unit.cli.program import make

DONE = Outcome(RedirectState.READY, "file:///a", "file:///b", 5, True, 3, 2048, 12)


def test_the_group_has_the_contract_s_commands() -> None:
    assert set(redirect.commands) == {
        *("enable", "resume", "cancel", "disable"),
        *("status", "resolve", "list", "freeze", "thaw"),
    }


def test_dialects_are_separated_by_commas() -> None:
    kind = DialectsType()
    assert kind.convert("rfc", None, None) == ("rfc",)
    assert kind.convert("rfc, delta-spark", None, None) == ("rfc", "delta-spark")
    for text in ("", "rfc,", "latin", "rfc,latin"):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)


def test_an_outcome_says_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    redirect_pages.show_outcome(Output(json=False), DONE, ["unheard"])
    assert capsys.readouterr().out.splitlines() == [
        "source: file:///a",
        "state: READY",
        "target: file:///b",
        "version: 5",
        "copied: 3 files, 2.0 KiB",
        "writers waited: 12 ms",
    ]
    same = Outcome(RedirectState.NORMAL, "file:///a", None, 5, False)
    redirect_pages.show_outcome(Output(json=False), same, [])
    assert capsys.readouterr().out.endswith("version: 5\nnothing had to be changed\n")


def test_a_plan_is_a_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    plan: list[dict[str, object]] = [
        {"op": "claim", "table": "file:///b"},
        {"op": "copy_data", "from": "file:///a", "to": "file:///b", "files": 3, "bytes": 1024},
        {"op": "turn_around", "how_far": "2 steps", "at_once": True, "why": None},
    ]
    redirect_pages.show_plan(Output(json=False), plan, [])
    assert capsys.readouterr().out.splitlines() == [
        "would reserve file:///b for this move",
        "would copy 3 data files of 1.0 KiB from file:///a to file:///b",
        "would turn around: how far 2 steps, at once yes",
    ]


def test_clients_that_will_read_old_rows_are_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    def writer(name: str, mode: Mode) -> RecentWriter:
        found = CommitWriter(name)
        effect = effect_on(found, mode, ())
        return RecentWriter(found, 1, 0, 1, effect, f"{name} wrote yesterday")

    redirect_pages.show_writers([writer("a", Mode.WRITER_ONLY), writer("b", Mode.READER_WRITER)])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "Clients that wrote the newest commits:",
        "warning: a wrote yesterday",
        "b wrote yesterday",
    ]
    redirect_pages.show_writers([])
    assert capsys.readouterr().err == ""


def test_a_status_shows_its_rules(capsys: pytest.CaptureFixture[str]) -> None:
    rules = (Rule(None, ("OPTIMIZE", "MERGE")), Rule("nightly"))
    status = Status(
        RedirectState.READY,
        "writer-only",
        ("rfc", "delta-spark"),
        "Object Store",
        {"Location": "file:///b"},
        rules,
        target="file:///b",
        source_version=5,
        target_version=None,
        warnings=("it is gone",),
    )
    redirect_pages.show_status(Output(json=False), status)
    assert capsys.readouterr().out.splitlines() == [
        "state: READY",
        "mode: writer-only",
        "dialect: rfc, delta-spark",
        "type: Object Store",
        "target: file:///b",
        "version of the source: 5",
        "application\tmay commit at the source",
        "everybody\tOPTIMIZE, MERGE",
        "nightly\t",
        "warning: it is gone",
    ]


def test_a_status_shows_what_a_move_adds_for_the_catalog(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lacking = MissingRequirements(("catalogManaged",), {"delta.checkpointPolicy": "v2"})
    status = Status(
        RedirectState.NORMAL,
        *(None, (), None, {}, (), None, 5, None),
        unfinished=Unfinished("unity:c.s.t", "writer-only", "copy", 1, 1024, False),
        lacking=lacking,
    )
    redirect_pages.show_status(Output(json=False), status)
    assert (
        "copied so far: 1 file, 1.0 KiB\n"
        "the move adds: the table features catalogManaged and the properties "
        "delta.checkpointPolicy = v2\n"
    ) in capsys.readouterr().out


def test_a_report_is_a_line_for_each_move(capsys: pytest.CaptureFixture[str]) -> None:
    moves = (
        MovedTable("file:///a", "file:///b", DONE),
        MovedTable("file:///c", "file:///d", Outcome(RedirectState.READY, "c", "d", 5, False)),
        MovedTable("file:///e", "file:///f", None, {"code": "not_a_table", "message": "no\ntable"}),
    )
    redirect_pages.show_report(Output(json=False), Report(moves))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "file:///a\tfile:///b\tREADY\t3 files copied, 2.0 KiB",
        "file:///c\tfile:///d\tREADY\tnothing had to be changed",
        "file:///e\tfile:///f\t-\tnot_a_table: no table",
    ]
    stopped = redirect_list._interrupted(
        Report(moves, interrupted=True), "run the same command again"
    )
    assert isinstance(stopped, Interrupted)
    assert "2 of 3 tables" in str(stopped)


def test_an_interrupt_is_answered_by_how_far_the_move_is(tmp_path: Path) -> None:
    table = lakeferry.Table(str(make(History().then(Append(1)), tmp_path / "a table")))
    output = Output(json=True)

    def interrupted(place: lakeferry.Table) -> str:
        with pytest.raises(KeyboardInterrupt), _going_on(output, place, "./a table"):
            raise KeyboardInterrupt
        return output.after_interrupt

    assert interrupted(table) == "nothing was started; run the same command again"
    table.freeze()
    resume = "'lakeferry redirect resume './a table'' continues the move"
    begun = interrupted(table)
    assert begun.startswith(resume)
    assert "'lakeferry redirect cancel './a table'' undoes it" in begun
    # Where the table can't be asked, both are said as well.
    assert interrupted(lakeferry.Table(str(tmp_path / "nowhere"))) == begun
