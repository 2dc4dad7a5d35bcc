"""What may happen to a table of the fleet, and what may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.fleet.fleet_states import (
    FLEET_TRANSITIONS,
    FleetEvent,
    FleetState,
    fleet_diagram,
    fleet_state_after,
    fleet_state_before,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "fleet.md"


@pytest.mark.parametrize("event", FleetEvent)
def test_an_event_leads_to_one_state(event: FleetEvent) -> None:
    after = fleet_state_after(event)
    assert {FLEET_TRANSITIONS[state, event] for state in fleet_state_before(event)} == {after}


def test_every_state_can_be_reached_and_left() -> None:
    reached = {FleetState.FOUND, *FLEET_TRANSITIONS.values()}
    left = {state for state, _ in FLEET_TRANSITIONS}
    assert reached == left == set(FleetState)


def test_success_counts_in_every_state_but_is_recorded_once() -> None:
    assert fleet_state_before(FleetEvent.FINISH) == set(FleetState) - {FleetState.DONE}


def test_what_is_done_or_runs_is_not_planned_again() -> None:
    planned = fleet_state_before(FleetEvent.PLAN)
    assert planned == set(FleetState) - {FleetState.DONE, FleetState.RUNNING}


def test_the_diagram_in_the_documentation_is_the_table() -> None:
    assert fleet_diagram() in DOCUMENT.read_text()
    assert fleet_diagram().count("-->") == len(FLEET_TRANSITIONS) + 1
