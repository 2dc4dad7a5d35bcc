"""The states of a table in the fleet and of its job, and the transitions between them.

An event leads to one state, whichever state it is allowed in: so a transition is one statement,
``UPDATE … SET state = after WHERE state IN before``, and of two processes one wins.
"""

from __future__ import annotations

from enum import Enum


class FleetState(Enum):
    """Where a table of the fleet stands."""

    FOUND = "FOUND"
    PLANNED = "PLANNED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    """The move was interrupted, and continues with the next run."""

    @property
    def is_open(self) -> bool:
        """Whether a run has still to do something."""
        return self in (FleetState.QUEUED, FleetState.RUNNING)


class FleetEvent(Enum):
    """What happens to a table or its job."""

    PLAN = "plan"
    QUEUE = "queue"
    TAKE = "take"
    RELEASE = "release"
    FINISH = "finish"
    FAIL = "fail"
    STOP = "stop"
    RETURN = "return"
    WITHDRAW = "withdraw"


FLEET_TRANSITIONS: dict[tuple[FleetState, FleetEvent], FleetState] = {
    (FleetState.FOUND, FleetEvent.PLAN): FleetState.PLANNED,
    (FleetState.PLANNED, FleetEvent.PLAN): FleetState.PLANNED,
    (FleetState.QUEUED, FleetEvent.PLAN): FleetState.PLANNED,
    (FleetState.FAILED, FleetEvent.PLAN): FleetState.PLANNED,
    (FleetState.STOPPED, FleetEvent.PLAN): FleetState.PLANNED,
    (FleetState.PLANNED, FleetEvent.QUEUE): FleetState.QUEUED,
    (FleetState.FAILED, FleetEvent.QUEUE): FleetState.QUEUED,
    (FleetState.STOPPED, FleetEvent.QUEUE): FleetState.QUEUED,
    (FleetState.QUEUED, FleetEvent.TAKE): FleetState.RUNNING,
    # The lease of the former holder has ended.
    (FleetState.RUNNING, FleetEvent.TAKE): FleetState.RUNNING,
    (FleetState.RUNNING, FleetEvent.RELEASE): FleetState.QUEUED,
    (FleetState.RUNNING, FleetEvent.FAIL): FleetState.FAILED,
    (FleetState.RUNNING, FleetEvent.STOP): FleetState.STOPPED,
    # READY is a fact: it counts whoever reached it, and whatever was recorded before.
    (FleetState.FOUND, FleetEvent.FINISH): FleetState.DONE,
    (FleetState.PLANNED, FleetEvent.FINISH): FleetState.DONE,
    (FleetState.QUEUED, FleetEvent.FINISH): FleetState.DONE,
    (FleetState.RUNNING, FleetEvent.FINISH): FleetState.DONE,
    (FleetState.FAILED, FleetEvent.FINISH): FleetState.DONE,
    (FleetState.STOPPED, FleetEvent.FINISH): FleetState.DONE,
    # The redirect was withdrawn: the table is at its old place again.
    (FleetState.DONE, FleetEvent.RETURN): FleetState.FOUND,
    # The table isn't to be moved any more, or is gone.
    (FleetState.PLANNED, FleetEvent.WITHDRAW): FleetState.FOUND,
    (FleetState.QUEUED, FleetEvent.WITHDRAW): FleetState.FOUND,
    (FleetState.FAILED, FleetEvent.WITHDRAW): FleetState.FOUND,
    (FleetState.STOPPED, FleetEvent.WITHDRAW): FleetState.FOUND,
}
"""Every transition that there is."""


def fleet_state_before(event: FleetEvent) -> frozenset[FleetState]:
    """Return the states in which an event is allowed."""
    return frozenset(state for state, each in FLEET_TRANSITIONS if each is event)


def fleet_state_after(event: FleetEvent) -> FleetState:
    """Return the one state to which an event leads."""
    (after,) = {end for (_, each), end in FLEET_TRANSITIONS.items() if each is event}
    return after


def fleet_diagram() -> str:
    """Return the table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> FOUND"]
    lines += [
        f"    {begin.name} --> {end.name}: {event.value}"
        for (begin, event), end in FLEET_TRANSITIONS.items()
    ]
    return "\n".join(lines)
