"""Redirects whose process sleeps through what somebody else does.

A procedure is stopped before each of its calls in turn, or this run's share of them;
while it sleeps, somebody else carries out another one, or several, from beginning to
end; then it goes on, not knowing. Whatever it does or says then, no version has lost a
row, nobody finds a table that isn't the table, and the redirect can still be brought
to an end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from unittest import mock

import pytest

from lakeferry.errors import LakeferryError, RedirectInProgress
from lakeferry.redirect import read_entry
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from tests.simulation.redirect_cases import (
    Case,
    Objects,
    Past,
    past_of,
    resume,
    run,
    seeded,
    stages,
    state_of,
    take_back,
    withdraw,
)
from tests.support.history import Append, History
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    REDIRECT_FEATURES,
    WORLD,
    append,
    content,
    is_openable,
    numbered,
    protocol_features,
    redirect_at,
    request_for,
    setting_of,
    versions,
)
from tests.support.shares import Share
from tests.support.stores import DictStore, FaultyStore, StoreCall

Act = Callable[[Setting], object]
SMALL = Case(History().then(Append(1)))


def move(setting: Setting) -> object:
    """Move the table."""
    return enabling.enable(setting, request_for(NEW))


def move_by_reference(setting: Setting) -> object:
    """Move the table to the same place in another way."""
    return enabling.enable(setting, request_for(NEW, data=Data.REFERENCE))


def move_elsewhere(setting: Setting) -> object:
    """Move the table to another place."""
    return enabling.enable(setting, request_for(OTHER))


def write_at(place: str) -> Act:
    """Return who appends at a place, unless a redirect keeps writers away."""

    def write(setting: Setting) -> None:
        log = setting.log(place)
        state = log.state()
        if read_entry.read(state.protocol, state.metadata, place) is not None:
            raise RedirectInProgress("not now")
        append(log, f"written-{place[-3:]}.parquet")

    return write


BEGUN, LOCKED, UNDECIDED = "just begun", "locked", "about to be decided"
WORLDS: dict[str, Callable[[], Objects]] = {
    "normal": lambda: SMALL.world,
    BEGUN: lambda: stages(SMALL)[0],
    LOCKED: lambda: stages(SMALL)[1],
    UNDECIDED: lambda: stages(SMALL)[2],
    "ready": lambda: run(SMALL.world, SMALL.enable, "moved")[1],
}
RACES: dict[str, tuple[str, Act, tuple[Act, ...]]] = {
    "enable, cancel": ("normal", move, (take_back,)),
    "enable, resume": ("normal", move, (resume,)),
    "enable, resume and disable": ("normal", move, (resume, withdraw)),
    "enable, the same enable": ("normal", move, (move,)),
    "enable, the same enable and a write": ("normal", move, (move, write_at(NEW))),
    "enable, the same enable and cancel": ("normal", move, (move, take_back)),
    "enable, enable in another way": ("normal", move, (move_by_reference,)),
    "enable, enable to elsewhere": ("normal", move, (move_elsewhere,)),
    "enable, enable to elsewhere and back": ("normal", move, (move_elsewhere, withdraw)),
    "enable, cancel and enable anew": ("normal", move, (take_back, move)),
    "enable, a write": ("normal", move, (write_at(OLD),)),
    "resume, cancel": (BEGUN, resume, (take_back,)),
    "resume when locked, cancel": (LOCKED, resume, (take_back,)),
    "resume when undecided, cancel": (UNDECIDED, resume, (take_back,)),
    "resume, cancel and enable anew": (BEGUN, resume, (take_back, move)),
    "resume, cancel and enable in another way": (BEGUN, resume, (take_back, move_by_reference)),
    "resume, resume": (UNDECIDED, resume, (resume,)),
    "resume, resume and disable": (BEGUN, resume, (resume, withdraw)),
    "cancel, resume": (UNDECIDED, take_back, (resume,)),
    "cancel, cancel": (UNDECIDED, take_back, (take_back,)),
    "cancel, resume and a write": (BEGUN, take_back, (resume, write_at(NEW))),
    "disable, disable": ("ready", withdraw, (withdraw,)),
    "disable, resume": ("ready", withdraw, (resume,)),
    "disable, disable and a write": ("ready", withdraw, (withdraw, write_at(OLD))),
    "disable, a write": ("ready", withdraw, (write_at(NEW),)),
    "disable, disable and enable to elsewhere": ("ready", withdraw, (withdraw, move_elsewhere)),
    "disable, disable, enable to elsewhere and a write": (
        *("ready", withdraw),
        (withdraw, move_elsewhere, write_at(OTHER)),
    ),
}


@pytest.mark.parametrize(("begins", "act", "others"), RACES.values(), ids=RACES)
def test_nothing_is_lost_by_who_sleeps_through(
    begins: str, act: Act, others: tuple[Act, ...], share: Share
) -> None:
    objects, before = WORLDS[begins](), past_of(SMALL.world)
    seen = set()
    for call in share.each(_calls(objects, act)):
        after, _ = _run(objects, act, others, call.index)
        if (world := frozenset(after.items())) not in seen:
            seen.add(world)
            _check(after, before)
            _check(_brought_to_an_end(after), before, ended=True)
    assert len(seen) > 1 or not share.is_whole


def test_a_cancel_that_sleeps_spares_a_new_move_to_the_same_place() -> None:
    """Before each wave it asks; only in the middle of one is it too late."""
    objects, before = WORLDS[UNDECIDED](), past_of(SMALL.world)
    calls = _calls(objects, take_back)
    for call in calls:
        if call.verb != "DELETE":
            after, _ = _run(objects, take_back, (take_back, move), call.index)
            _check(after, before)
            _check(_brought_to_an_end(after), before, ended=True)
    assert len([call for call in calls if call.verb == "DELETE"]) < len(calls) / 3


def _run(
    objects: Objects, act: Act, others: tuple[Act, ...], index: int | None
) -> tuple[dict[str, bytes], list[StoreCall]]:
    """Run a procedure that sleeps before one of its calls; return the world, and its calls."""
    store = DictStore(objects, uri=WORLD)

    def sleep(call: StoreCall) -> None:
        if call.index == index:
            for number, other in enumerate(others):
                _attempt(other, setting_of(store, new_id=numbered(f"other-{number}")))

    faulty = FaultyStore(store, sleep)
    with mock.patch("uuid.uuid4", seeded("first")):
        _attempt(act, setting_of(faulty, clock=store.clock, new_id=numbered("sleeper")))
    return store.objects, faulty.history


def _calls(objects: Objects, act: Act) -> list[StoreCall]:
    return _run(objects, act, (), None)[1]


def _attempt(act: Act, setting: Setting) -> None:
    with suppress(LakeferryError):
        act(setting)


def _brought_to_an_end(objects: Objects) -> Objects:
    """Go on or bring home whatever is under way."""
    if state_of(objects) is RedirectState.ENABLING:
        _, objects = run(objects, resume, "end")
    if state_of(objects) in (RedirectState.READY, RedirectState.DROPPING):
        _, objects = run(objects, withdraw, "home")
    return objects


def _check(objects: Objects, before: Past, *, ended: bool = False) -> None:
    state = state_of(objects)
    assert not ended or state is RedirectState.NORMAL
    assert {version: content(objects, OLD, version) for version in before} == before
    entry = redirect_at(setting_of(DictStore(objects, uri=WORLD)))
    leads = entry.target.location if entry is not None and entry.target is not None else None
    for place in (NEW, OTHER):
        if place == leads and state in (RedirectState.READY, RedirectState.DROPPING):
            now = past_of(objects, place)
            assert {version: now.get(version) for version in before} == before
            assert max(now) == max(versions(objects, place))
        elif is_openable(objects, place) and not protocol_features(objects, place) & (
            REDIRECT_FEATURES
        ):
            # An open target is one that was decided, and that the source is about to lead to.
            assert place == leads
            assert state is RedirectState.ENABLING
    _check_written(
        objects, leads if state in (RedirectState.READY, RedirectState.DROPPING) else OLD
    )


def _check_written(objects: Objects, place: str | None) -> None:
    """Check that every row that was acknowledged anywhere is where the redirect leads."""
    assert place is not None
    live = content(objects, place)
    names = {name.rpartition("/")[2] for name in objects if "/written-" in name}
    acknowledged = {name for name in names if _is_committed(objects, name)}
    assert acknowledged <= set(live.names)
    assert all(row["bytes"] is not None for row in live.files.values())


def _is_committed(objects: Objects, name: str) -> bool:
    text = f'"path":"{name}"'.encode()
    return any(
        text in data for path, data in objects.items() if "_delta_log/0" in path and ".json" in path
    )
