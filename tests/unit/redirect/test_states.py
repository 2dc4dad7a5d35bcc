"""Every state with every event: what is in the table happens, and nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lakeferry.errors import RedirectIllegalTransition
from lakeferry.redirect.states import (
    TRANSITIONS,
    RedirectEvent,
    RedirectState,
    after,
    redirect_diagram,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "redirect.md"


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RedirectState, RedirectEvent)))
def test_only_what_is_in_the_table_happens(state: RedirectState, event: RedirectEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert after(state, event, "t") is TRANSITIONS[state, event]
        return
    with pytest.raises(RedirectIllegalTransition) as refused:
        after(state, event, "t")
    assert refused.value.fields["state"] == state.value
    assert refused.value.remedy


def test_a_redirect_goes_round_and_comes_back() -> None:
    state = RedirectState.NORMAL
    for event in (
        RedirectEvent.ENABLE,
        RedirectEvent.FINISH,
        RedirectEvent.CHANGE_RULES,
        RedirectEvent.DISABLE,
        RedirectEvent.REMOVE,
    ):
        state = after(state, event, "t")
    assert state is RedirectState.NORMAL


def test_a_move_can_be_taken_back_only_before_it_is_ready() -> None:
    assert [state for state in RedirectState if (state, RedirectEvent.CANCEL) in TRANSITIONS] == [
        RedirectState.ENABLING
    ]


def test_who_is_sent_on_and_who_waits() -> None:
    assert [state for state in RedirectState if state.sends_readers_on] == [
        RedirectState.READY,
        RedirectState.DROPPING,
    ]
    assert [state for state in RedirectState if state.refuses_writers] == [
        RedirectState.ENABLING,
        RedirectState.DROPPING,
    ]


def test_the_documentation_shows_the_table_itself() -> None:
    assert redirect_diagram() in DOCUMENT.read_text()
