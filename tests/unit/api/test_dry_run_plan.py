from __future__ import annotations

import msgspec

from lakeferry.api.dry_run_plan import Plan

STEP = {"op": "claim", "table": "file:///<script>"}


def test_a_plan_is_the_list_of_its_steps() -> None:
    plan = Plan([STEP])
    assert plan == [STEP]
    assert msgspec.json.encode({"plan": plan}) == msgspec.json.encode({"plan": [STEP]})


def test_a_notebook_shows_a_sentence_for_each_step() -> None:
    copy = {"op": "copy_data", "from": "file:///a", "to": "file:///b", "files": 3, "bytes": 1024}
    copy |= {
        "ways": [{"way": "store", "certain": True, "from": "file:///a", "files": 3, "bytes": 9}],
        "duration_basis": None,
    }
    shown = Plan(
        [{"op": "move", "source": "a", "target": "b", "steps": [STEP]}, copy]
    )._repr_html_()
    assert "would move a to b<br>would reserve file:///&lt;script&gt; for this move" in shown
    assert "<br>3 files, 9 bytes: copied by the store</li>" in shown
    assert shown.count("<li>") == 2
    assert "nothing would be changed" in Plan()._repr_html_()


def test_a_plan_of_very_many_steps_is_bounded() -> None:
    many = Plan([{"op": "move", "source": "a", "target": "b", "steps": [STEP] * 1_000}] * 10_000)
    shown = many._repr_html_()
    assert "and 9,950 more steps" in shown
    assert len(shown) < 400_000
