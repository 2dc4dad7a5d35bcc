"""Pulls, told by what travels: both ends together, and each against a peer that misbehaves."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lakeferry.errors import (
    Diverged,
    HashMismatch,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    StorageUnavailable,
    TimedOut,
)
from lakeferry.transfer.session import events as e
from lakeferry.transfer.session.machine import Pace
from lakeferry.transfer.session.pull_client import PullClient, PullClientState
from lakeferry.transfer.session.pull_server import PullServer, PullServerState
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.codec import MessageLimits, encode_message, failure_in_close
from lakeferry.transfer.wire.failure_messages import Internal, Phase, SeedOverwrite
from lakeferry.transfer.wire.messages import MessageDialect
from tests.support.transfer_sessions import DATASET_ID, Dialogue, Repository, object_of, pull

REFERENCE = MessageDialect.REFERENCE
REQUEST = m.PullRequest(dataset_id=DATASET_ID)
BATCH = m.BlocksBatch(1, b"blocks")
URL = m.TransferUrl("https://store/x")


@pytest.fixture(params=list(MessageDialect), ids=lambda dialect: dialect.value)
def dialect(request: pytest.FixtureRequest) -> MessageDialect:
    found: MessageDialect = request.param
    return found


def states(dialogue: Dialogue) -> tuple[str, str]:
    return dialogue.client.machine.state.name, dialogue.server.machine.state.name


def error_of(actions: tuple[e.MachineAction, ...]) -> LakeferryError | None:
    assert isinstance(actions[-1], e.Finished)
    return actions[-1].error


def close_of(actions: tuple[e.MachineAction, ...]) -> e.Close:
    [close] = [action for action in actions if isinstance(action, e.Close)]
    return close


def client_with(objects: int, *, page: int = 2, limits: MessageLimits | None = None) -> PullClient:
    """Return a client that has just been given URLs for its first page."""
    client = PullClient(REFERENCE, REQUEST, page, limits or MessageLimits())
    client.receive(e.Begin(), 0)
    client.receive(said(m.PullPlan(m.TransferPlan(1))), 0)
    client.receive(said(m.PullMetadata(BATCH)), 0)
    client.receive(e.BlocksTaken(), 0)
    first = tuple(object_of(number) for number in range(min(page, objects)))
    client.receive(e.ObjectsWanted(first, more=objects > page), 0)
    client.receive(urls_for(*first), 0)
    return client


def said(message: m.Message, dialect: MessageDialect = REFERENCE) -> e.Received:
    return e.Received(encode_message(dialect, message))


def urls_for(*objects: m.ObjectFile) -> e.Received:
    return said(m.PullObjects(tuple(m.ObjectDownload(one, URL) for one in objects)))


def test_a_new_dataset_arrives_with_all_objects_a_page_at_a_time(dialect: MessageDialect) -> None:
    source, target = Repository(4, objects=8), Repository(0)
    dialogue = pull(dialect, source, target, page=3)
    dialogue.run()
    assert states(dialogue) == ("DONE", "DONE")
    assert target.head == source.head
    member = "object_files" if dialect is REFERENCE else "objectFiles"
    requests = [json.loads(text) for text in dialogue.client.sent]
    pages = [len(one[member]) for one in requests if member in one]
    assert pages == [3, 3, 2]


def test_an_empty_dataset_of_metadata_alone_needs_no_objects(dialect: MessageDialect) -> None:
    dialogue = pull(dialect, Repository(1), target := Repository(0))
    dialogue.run()
    assert states(dialogue) == ("DONE", "DONE")
    assert len(target.chain) == 1
    assert len(dialogue.client.sent) == 2


def test_up_to_date_is_one_question_and_a_close(dialect: MessageDialect) -> None:
    dialogue = pull(dialect, Repository(3), Repository(3))
    dialogue.run()
    assert states(dialogue) == ("DONE", "DONE")
    assert len(dialogue.client.sent) == 1
    assert isinstance(dialogue.client.machine, PullClient)
    assert dialogue.client.machine.plan == m.TransferPlan(0, 0)


def test_what_is_there_already_isn_t_fetched(dialect: MessageDialect) -> None:
    source, target = Repository(4, objects=5), Repository(2, objects=5)
    dialogue = pull(dialect, source, target)
    dialogue.run()
    assert states(dialogue) == ("DONE", "DONE")
    assert len(dialogue.client.sent) == 2


@pytest.mark.parametrize("ahead", [True, False], ids=["client ahead", "diverged"])
def test_other_histories_are_refused_without_force_and_replaced_with_it(
    dialect: MessageDialect, ahead: bool
) -> None:
    source, target = Repository(3), Repository(5)
    if not ahead:
        target.chain[2:] = [object_of(77).physical_hash]
    before = target.head
    refused = pull(dialect, source, target)
    refused.run()
    assert states(refused) == ("FAILED", "FAILED")
    for end in (refused.client, refused.server):
        assert isinstance(end.machine.error, Diverged)
    assert target.head == before
    forced = pull(dialect, source, target, force=True)
    forced.run()
    assert states(forced) == ("DONE", "DONE")
    assert target.head == source.head


def test_another_dataset_s_seed_is_refused_by_the_client() -> None:
    client = PullClient(REFERENCE, REQUEST)
    client.receive(e.Begin(), 0)
    client.receive(said(m.PullPlan(m.TransferPlan(1))), 0)
    client.receive(said(m.PullMetadata(BATCH)), 0)
    actions = client.receive(e.WorkRefused(SeedOverwrite()), 0)
    assert isinstance(error_of(actions), Diverged)
    assert close_of(actions).code == 1001


def test_expired_urls_are_asked_for_again_before_new_ones() -> None:
    client = client_with(5)
    first, second = object_of(0), object_of(1)
    client.receive(e.ObjectsWanted((object_of(2), object_of(3)), more=True), 0)
    client.receive(urls_for(object_of(2), object_of(3)), 0)
    [send] = client.receive(e.Expired((first,)), 0)
    assert isinstance(send, e.Send)
    assert send.text == encode_message(REFERENCE, m.PullObjectsRequest((first,)))
    # While the server is asked another one expires: it waits for its turn.
    assert client.receive(e.Expired((second,)), 0) == ()
    download, send = client.receive(urls_for(first), 0)
    assert isinstance(download, e.Download)
    assert isinstance(send, e.Send)
    assert send.text == encode_message(REFERENCE, m.PullObjectsRequest((second,)))


def test_never_more_than_two_pages_are_in_hand() -> None:
    client = client_with(9, page=2)
    client.receive(e.ObjectsWanted((object_of(2), object_of(3)), more=True), 0)
    [download] = client.receive(urls_for(object_of(2), object_of(3)), 0)
    assert isinstance(download, e.Download)
    assert client.receive(e.ObjectsMoved((object_of(0),)), 0) == ()
    assert client.receive(e.ObjectsMoved((object_of(2),)), 0) == (e.NextObjects(2),)


def test_a_url_that_is_never_any_good_ends_in_a_clear_error() -> None:
    client = client_with(1, limits=MessageLimits(renewals=3))
    for _ in range(3):
        client.receive(e.Expired((object_of(0),)), 0)
        client.receive(urls_for(object_of(0)), 0)
    client.receive(e.Expired((object_of(0),)), 0)
    assert isinstance(client.error, LimitExceeded)
    assert "clock" in (client.error.remedy or "")


def test_a_cut_doesn_t_matter_once_every_url_is_there() -> None:
    client = client_with(2)
    assert client.receive(e.PeerClosed(), 0) == ()
    assert client.state is PullClientState.ALONE
    assert client.receive(e.ObjectsMoved((object_of(0),)), 0) == ()
    assert client.receive(e.ObjectsMoved((object_of(1),)), 0) == (e.CheckAndCommit(),)
    assert client.receive(e.RunCommitted(), 0) == (e.Finished(),)


def test_a_cut_matters_when_another_page_or_a_new_url_is_needed() -> None:
    with_more = client_with(3)
    assert isinstance(error_of(with_more.receive(e.PeerClosed(), 0)), StorageUnavailable)
    alone = client_with(2)
    alone.receive(e.PeerClosed(), 0)
    assert isinstance(error_of(alone.receive(e.Expired((object_of(0),)), 0)), StorageUnavailable)


def test_the_client_may_leave_while_the_server_is_gone_and_commits_nonetheless() -> None:
    client = client_with(1)
    client.receive(e.ObjectsMoved((object_of(0),)), 0)
    assert client.receive(e.PeerClosed(1011, "bye"), 0) == ()
    assert client.receive(e.RunCommitted(), 0) == (e.Finished(),)


def wrong_answers() -> Iterator[m.PullObjects]:
    asked, other = object_of(0), object_of(9)
    checkpoint = m.ObjectFile(m.WireObjectKind.CHECKPOINT, asked.physical_hash, 10)
    for objects in [(), (other,), (asked, asked), (asked, other), (checkpoint,)]:
        yield m.PullObjects(tuple(m.ObjectDownload(one, URL) for one in objects))


@pytest.mark.parametrize("answer", list(wrong_answers()))
def test_urls_for_anything_but_what_was_asked_for_are_refused(answer: m.PullObjects) -> None:
    client = client_with(1)
    client.receive(e.Expired((object_of(0),)), 0)
    actions = client.receive(said(answer), 0)
    assert isinstance(error_of(actions), InvalidInput)
    assert close_of(actions).code == 1002


def test_what_the_server_says_of_an_object_s_size_isn_t_taken_over() -> None:
    client = client_with(1)
    client.receive(e.Expired((object_of(0),)), 0)
    [download] = client.receive(urls_for(object_of(0, size_bytes=10**12)), 0)
    assert isinstance(download, e.Download)
    assert download.downloads[0].object == object_of(0)


def test_a_server_s_failure_comes_in_its_close() -> None:
    client = PullClient(REFERENCE, REQUEST)
    client.receive(e.Begin(), 0)
    client.receive(said(m.PullPlan(m.TransferPlan(1))), 0)
    reason = (
        '{"Err":{"Internal":{"phase":{"Pull":"MetadataRequest"},"error_message":"Internal error"}}}'
    )
    [finished] = client.receive(e.PeerClosed(1011, reason), 0)
    assert isinstance(finished, e.Finished)
    assert isinstance(finished.error, StorageUnavailable)
    assert finished.error.cause == "Internal error"
    assert finished.error.fields["phase"] == "Pull.MetadataRequest"


def test_a_server_that_doesn_t_answer_is_left() -> None:
    client = PullClient(REFERENCE, REQUEST, pace=Pace(answer_ms=100))
    client.receive(e.Begin(), 0)
    assert client.wake_ms == 100
    assert isinstance(error_of(client.receive(e.Tick(), 100)), TimedOut)


def test_a_message_out_of_turn_ends_the_session_at_both_ends() -> None:
    client = client_with(2)
    assert isinstance(error_of(client.receive(e.Received("{}"), 0)), InvalidInput)
    server = PullServer(REFERENCE)
    actions = server.receive(e.Received("{}"), 0)
    assert isinstance(error_of(actions), InvalidInput)
    close = close_of(actions)
    assert close.code == 1011
    assert failure_in_close(close.reason) == Internal(
        Phase.PULL_REQUEST, "a message is invalid", "invalid_input"
    )


def test_a_server_still_at_work_isn_t_spoken_to() -> None:
    server = PullServer(REFERENCE)
    server.receive(said(REQUEST), 0)
    assert isinstance(error_of(server.receive(e.Received("{}"), 0)), InvalidInput)


def test_after_a_refusal_the_server_waits_for_the_close_and_goes_on_with_nothing() -> None:
    def refused() -> PullServer:
        server = PullServer(REFERENCE, pace=Pace(drain_ms=5000))
        server.receive(said(REQUEST), 0)
        [send] = server.receive(e.WorkRefused(StorageUnavailable("no")), 0)
        assert isinstance(send, e.Send)
        assert server.state is PullServerState.REFUSED
        return server

    [finished] = refused().receive(e.PeerClosed(1000), 10)
    assert isinstance(finished, e.Finished)
    assert isinstance(finished.error, StorageUnavailable)
    insisting = refused()
    for event in (e.Received("{}"), e.ReceivedFrame(e.FrameKind.BINARY)):
        assert insisting.receive(event, 10) == ()
    assert insisting.wake_ms == 5000
    flooding = refused()
    flooding.limits = MessageLimits(blocks_message_bytes=1000)
    assert close_of(flooding.receive(e.Received("x" * 1001), 10)).code == 1011
    assert isinstance(flooding.error, StorageUnavailable)
    silent = refused()
    assert silent.wake_ms == 5000
    assert close_of(silent.receive(e.Tick(), 5000)).code == 1011


def test_a_failure_while_loading_is_told_by_close_and_in_the_published_dialect_by_text() -> None:
    for dialect in MessageDialect:
        server = PullServer(dialect)
        server.receive(said(REQUEST, dialect), 0)
        server.receive(e.PlanReady(m.TransferPlan(1)), 0)
        server.receive(e.Received("{}"), 0)
        actions = server.receive(e.WorkRefused(HashMismatch("bad")), 0)
        assert close_of(actions).code == 1011
        assert isinstance(error_of(actions), HashMismatch)
        client = PullClient(dialect, REQUEST)
        client.receive(e.Begin(), 0)
        client.receive(said(m.PullPlan(m.TransferPlan(1)), dialect), 0)
        for action in actions:
            if isinstance(action, e.Send):
                client.receive(e.Received(action.text), 0)
            elif isinstance(action, e.Close):
                client.receive(e.PeerClosed(action.code, action.reason), 0)
        assert isinstance(client.error, HashMismatch)


def test_a_batch_that_no_message_can_hold_is_a_clear_error_at_both_ends() -> None:
    server = PullServer(REFERENCE, MessageLimits(blocks_message_bytes=1000))
    server.receive(said(REQUEST), 0)
    server.receive(e.PlanReady(m.TransferPlan(1)), 0)
    server.receive(e.Received("{}"), 0)
    actions = server.receive(e.BlocksReady(m.BlocksBatch(1, bytes(1000))), 0)
    assert isinstance(error_of(actions), LimitExceeded)
    failure = failure_in_close(close_of(actions).reason)
    assert failure == Internal(Phase.PULL_METADATA, "a limit was exceeded", "limit_exceeded")


def test_rounds_are_bounded() -> None:
    server = PullServer(REFERENCE, MessageLimits(rounds=1))
    server.receive(said(REQUEST), 0)
    server.receive(e.PlanReady(m.TransferPlan(1)), 0)
    server.receive(e.Received("{}"), 0)
    server.receive(e.BlocksReady(BATCH), 0)
    request = said(m.PullObjectsRequest((object_of(1), object_of(1))))
    server.receive(request, 0)
    [send] = server.receive(e.UrlsReady((URL, URL)), 0)
    assert isinstance(send, e.Send)
    assert isinstance(error_of(server.receive(request, 0)), LimitExceeded)


@pytest.mark.parametrize("urls", [(), (None,), (URL, URL)])
def test_an_object_without_a_url_is_a_failure(urls: tuple[m.TransferUrl | None, ...]) -> None:
    server = PullServer(REFERENCE)
    server.receive(said(REQUEST), 0)
    server.receive(e.PlanReady(m.TransferPlan(1)), 0)
    server.receive(e.Received("{}"), 0)
    server.receive(e.BlocksReady(BATCH), 0)
    server.receive(said(m.PullObjectsRequest((object_of(1),))), 0)
    assert isinstance(error_of(server.receive(e.UrlsReady(urls), 0)), StorageUnavailable)


def test_objects_that_aren_t_in_hand_can_be_neither_moved_nor_expired() -> None:
    client = client_with(2)
    for command in (
        e.ObjectsMoved((object_of(9),)),
        e.Expired((object_of(9),)),
        e.ObjectsMoved((object_of(0), object_of(0))),
    ):
        with pytest.raises(InvalidInput):
            client.receive(command, 0)
    assert client.state is PullClientState.FETCHING
