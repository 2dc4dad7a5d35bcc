"""The states of a redirect and the transitions between them, in one table.

A transition is one commit. The procedures know which commit decides, and when a
transition may begin. This module ensures that no other transitions happen.
"""

from __future__ import annotations

from enum import Enum

from lakeferry.errors import RedirectIllegalTransition
from lakeferry.storage.uris import shell_safe


class RedirectState(Enum):
    """Where a redirect stands. The values are what the RFC and our command line call them."""

    NORMAL = "NORMAL"
    ENABLING = "ENABLE-REDIRECT-IN-PROGRESS"
    READY = "READY"
    DROPPING = "DROP-REDIRECT-IN-PROGRESS"

    @property
    def sends_readers_on(self) -> bool:
        """Whether modern clients read the target."""
        return self in (RedirectState.READY, RedirectState.DROPPING)

    @property
    def refuses_writers(self) -> bool:
        """Whether modern clients may write neither here nor there."""
        return self in (RedirectState.ENABLING, RedirectState.DROPPING)


class RedirectEvent(Enum):
    """What is done to a redirect."""

    ENABLE = "enable"
    FREEZE = "freeze"
    FINISH = "resume"
    CANCEL = "cancel"
    THAW = "thaw"
    CHANGE_RULES = "change the rules"
    DISABLE = "disable"
    REMOVE = "remove"


TRANSITIONS: dict[tuple[RedirectState, RedirectEvent], RedirectState] = {
    (RedirectState.NORMAL, RedirectEvent.ENABLE): RedirectState.ENABLING,
    (RedirectState.NORMAL, RedirectEvent.FREEZE): RedirectState.ENABLING,
    (RedirectState.ENABLING, RedirectEvent.FINISH): RedirectState.READY,
    (RedirectState.ENABLING, RedirectEvent.CANCEL): RedirectState.NORMAL,
    (RedirectState.ENABLING, RedirectEvent.THAW): RedirectState.NORMAL,
    (RedirectState.READY, RedirectEvent.CHANGE_RULES): RedirectState.READY,
    (RedirectState.READY, RedirectEvent.DISABLE): RedirectState.DROPPING,
    (RedirectState.DROPPING, RedirectEvent.REMOVE): RedirectState.NORMAL,
}
"""Every transition that there is."""


def after(state: RedirectState, event: RedirectEvent, table: str) -> RedirectState:
    """Return the state after ``event``, or refuse what isn't in the table."""
    found = TRANSITIONS.get((state, event))
    if found is None:
        of = " of" if event is RedirectEvent.CHANGE_RULES else ""
        raise RedirectIllegalTransition(
            f"can't {event.value}{of} the redirect of {table}",
            cause=f"its state is {state.value}",
            remedy=_remedy(state, table),
            location=table,
            state=state.value,
        )
    return found


def _remedy(state: RedirectState, table: str) -> str:
    """Return the commands that lead out of a state."""
    run, table = "lakeferry redirect", shell_safe(table)
    match state:
        case RedirectState.NORMAL:
            return f"the table has no redirect; '{run} enable {table} TARGET' starts one"
        case RedirectState.ENABLING:
            return (
                f"'{run} resume {table}' continues the move, '{run} cancel {table}' undoes "
                f"it ('{run} thaw {table}' for a frozen table)"
            )
        case RedirectState.READY:
            return f"'{run} disable {table}' ends the redirect first"
        case RedirectState.DROPPING:
            return f"first run '{run} resume {table}': it completes the return of the table"


def redirect_diagram() -> str:
    """Return the table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> NORMAL"]
    lines += [
        f"    {begin.name} --> {end.name}: {event.value}"
        for (begin, event), end in TRANSITIONS.items()
    ]
    return "\n".join(lines)
