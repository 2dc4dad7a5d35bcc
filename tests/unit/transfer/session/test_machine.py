"""The tables of all four machines, and what they do alike: time, frames, the end, misuse."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lakeferry.errors import InvalidInput, LimitExceeded, StorageUnavailable, TimedOut
from lakeferry.transfer.session import events as e
from lakeferry.transfer.session import pull_client, pull_server, push_client, push_server
from lakeferry.transfer.session.machine import Machine, Pace, SessionStep, machine_diagram
from lakeferry.transfer.session.pull_client import PULL_CLIENT_TABLE, PullClient, PullClientState
from lakeferry.transfer.session.pull_server import PULL_SERVER_TABLE, PullServer, PullServerState
from lakeferry.transfer.session.push_client import PUSH_CLIENT_TABLE, PushClient, PushClientState
from lakeferry.transfer.session.push_server import PUSH_SERVER_TABLE, PushServer, PushServerState
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.codec import MessageLimits, encode_message, failure_in_close
from lakeferry.transfer.wire.failure_messages import Internal, Phase
from lakeferry.transfer.wire.messages import MessageDialect
from tests.support.transfer_sessions import name_of

Table = Mapping[tuple[Any, SessionStep], Any]
TABLES: list[tuple[Table, Enum]] = [
    (PULL_SERVER_TABLE, PullServerState.REQUEST),
    (PULL_CLIENT_TABLE, PullClientState.START),
    (PUSH_SERVER_TABLE, PushServerState.REQUEST),
    (PUSH_CLIENT_TABLE, PushClientState.START),
]
FINAL = {"DONE", "FAILED"}
DOCUMENT = Path(__file__).parents[4] / "docs" / "transfer.md"
REFERENCE = MessageDialect.REFERENCE
REQUEST = m.PushRequest(None, m.TransferPlan(1))


def machines(limits: MessageLimits | None = None, pace: Pace | None = None) -> list[Machine[Any]]:
    limits = limits or MessageLimits()
    return [
        PullServer(REFERENCE, limits, pace),
        PullClient(REFERENCE, m.PullRequest(), 10, limits, pace),
        PushServer(REFERENCE, limits, pace),
        PushClient(REFERENCE, REQUEST, name_of(1), 10, limits=limits, pace=pace),
    ]


@pytest.mark.parametrize(("table", "start"), TABLES, ids=["pull-s", "pull-c", "push-s", "push-c"])
def test_every_state_can_be_reached_and_every_unfinished_one_can_fail_and_be_done(
    table: Table, start: Enum
) -> None:
    states = set(type(start))
    reached, ahead = {start}, [start]
    while ahead:
        state = ahead.pop()
        new = {end for (begin, _), end in table.items() if begin is state} - reached
        reached |= new
        ahead += new
    assert reached == states
    for state in states:
        leads_to = {end.name for (begin, _), end in table.items() if begin is state}
        assert ("FAILED" in leads_to) == (state.name not in FINAL)
        assert not (leads_to and state.name in FINAL)


@pytest.mark.parametrize(("table", "start"), TABLES, ids=["pull-s", "pull-c", "push-s", "push-c"])
def test_the_diagram_has_every_step_but_failures(table: Table, start: Enum) -> None:
    drawn = machine_diagram(table, start)
    arrows = [line for line in drawn.splitlines() if "-->" in line]
    assert len(arrows) == 1 + sum(step is not SessionStep.FAIL for _, step in table)
    assert all(state.name in drawn for state in type(start) if state.name != "FAILED")


@pytest.mark.parametrize(("table", "start"), TABLES, ids=["pull-s", "pull-c", "push-s", "push-c"])
def test_the_documentation_shows_the_table_itself(table: Table, start: Enum) -> None:
    assert machine_diagram(table, start) in DOCUMENT.read_text()


@pytest.mark.parametrize(
    ("module", "table"),
    [
        (pull_server, PULL_SERVER_TABLE),
        (pull_client, PULL_CLIENT_TABLE),
        (push_server, PUSH_SERVER_TABLE),
        (push_client, PUSH_CLIENT_TABLE),
    ],
    ids=["pull-s", "pull-c", "push-s", "push-c"],
)
def test_a_module_s_docstring_draws_what_is_in_its_table(module: ModuleType, table: Table) -> None:
    drawn = set()
    for line in (module.__doc__ or "").splitlines():
        begins, _, _ = line.partition("──")
        for step, end in re.findall(r"── ([^─▶]+?) ─*▶ (\w+)", line):
            name = step.partition(" (")[0]
            drawn |= {(begin, name, end) for begin in begins.replace(",", " ").split()}
    assert drawn == {
        (begin.name, step.value, end.name)
        for (begin, step), end in table.items()
        if step is not SessionStep.FAIL and begin is not end
    }


@pytest.mark.parametrize("number", range(4))
def test_a_binary_frame_ends_a_session_and_a_ping_means_nothing(number: int) -> None:
    machine = machines()[number]
    for kind in (e.FrameKind.PING, e.FrameKind.PONG):
        before = machine.state
        assert machine.receive(e.ReceivedFrame(kind), 0) == ()
        assert machine.state is before
    *_, close, finished = machine.receive(e.ReceivedFrame(e.FrameKind.BINARY), 0)
    assert isinstance(close, e.Close)
    assert close.code != 1000
    assert isinstance(finished, e.Finished)
    assert isinstance(finished.error, InvalidInput)
    assert machine.error is finished.error


@pytest.mark.parametrize("number", range(4))
def test_after_the_end_everything_is_ignored(number: int) -> None:
    machine = machines()[number]
    machine.receive(e.WorkRefused(StorageUnavailable("no")), 0)
    assert machine.is_over
    assert machine.wake_ms is None
    late: list[e.MachineEvent] = [
        e.Received("{}"),
        e.PeerClosed(),
        e.Tick(),
        e.RunCommitted(),
        e.WorkRefused(StorageUnavailable("again")),
        e.ReceivedFrame(e.FrameKind.BINARY),
    ]
    for event in late:
        assert machine.receive(event, 10**12) == ()


@pytest.mark.parametrize("number", range(4))
def test_a_command_that_has_no_place_raises_and_changes_nothing(number: int) -> None:
    machine = machines()[number]
    state = machine.state
    for command in (
        e.RunCommitted(),
        e.UrlsReady(()),
        e.BlocksTaken(),
        e.HeadIs(None),
        e.ObjectsMoved(()),
    ):
        with pytest.raises(InvalidInput):
            machine.receive(command, 0)
        assert machine.state is state


@pytest.mark.parametrize("number", range(4))
def test_a_session_doesn_t_last_for_ever(number: int) -> None:
    machine = machines(pace=Pace(session_ms=1000))[number]
    machine.receive(e.Tick(), 5)
    assert machine.receive(e.Tick(), 1004) == ()
    assert machine.wake_ms == 1005
    *_, finished = machine.receive(e.Tick(), 1005)
    assert isinstance(finished, e.Finished)
    assert isinstance(finished.error, TimedOut)


def test_a_silent_client_is_let_go_with_the_reason_in_the_close() -> None:
    server = PullServer(REFERENCE, pace=Pace(first_ms=50))
    server.receive(e.Tick(), 0)
    assert server.wake_ms == 50
    close, finished = server.receive(e.Tick(), 50)
    assert isinstance(close, e.Close)
    assert close.code == 1011
    assert failure_in_close(close.reason) == Internal(Phase.PULL_REQUEST, "too slow", "timeout")
    assert isinstance(finished, e.Finished)


class Remembered(bytearray):
    """A text that tells whether it is still there."""


@pytest.mark.parametrize("text", [b"[" * 10_000, b"{}", b'{"new_blocks": 1}', b"nonsense"])
@pytest.mark.parametrize("number", [0, 2], ids=["pull", "push"])
def test_a_server_keeps_nothing_of_a_text_that_it_refused(number: int, text: bytes) -> None:
    machine = machines()[number]
    machine.receive(e.Tick(), 0)
    said = Remembered(text)
    alive = weakref.ref(said)
    # What only a collection of circles finds is there for too long.
    gc.disable()
    try:
        machine.receive(e.Received(said), 0)
        del said
        assert machine.error is not None
        assert alive() is None
    finally:
        gc.enable()


def test_a_clock_that_goes_back_makes_nothing_happen() -> None:
    server = PullServer(REFERENCE, pace=Pace(first_ms=50))
    server.receive(e.Tick(), 1000)
    assert server.receive(e.Tick(), 0) == ()
    assert server.wake_ms == 1050


def test_the_number_of_texts_is_bounded() -> None:
    server = PullServer(REFERENCE, MessageLimits(texts=1))
    text = encode_message(REFERENCE, m.PullRequest())
    server.receive(e.Received(text), 0)
    server.receive(e.PlanReady(m.TransferPlan(1)), 0)
    server.receive(e.Received("{}"), 0)
    assert isinstance(server.error, LimitExceeded)


@pytest.mark.parametrize("page", [0, 11])
def test_a_page_that_no_message_can_hold_is_refused(page: int) -> None:
    with pytest.raises(InvalidInput):
        PullClient(REFERENCE, m.PullRequest(), page, MessageLimits(objects=10))
