"""Pushes, told by what travels: both ends together, and each against a peer that misbehaves."""

from __future__ import annotations

import json

import pytest

from lakeferry.errors import (
    CommitConflict,
    CommitStateUnknown,
    Diverged,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    MissingFile,
    StorageUnavailable,
    TimedOut,
)
from lakeferry.transfer.client.remote_dataset import is_passing
from lakeferry.transfer.session import events as e
from lakeferry.transfer.session.machine import Pace
from lakeferry.transfer.session.push_client import PushClient, PushClientState
from lakeferry.transfer.session.push_server import PushServer, PushServerState
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.codec import (
    MessageLimits,
    encode_failure,
    encode_message,
    failure_in_close,
)
from lakeferry.transfer.wire.failure_messages import (
    Internal,
    InvalidHead,
    NameCollision,
    Phase,
    RefCollision,
    SeedOverwrite,
    TransferFailure,
)
from lakeferry.transfer.wire.messages import MessageDialect
from tests.support.transfer_sessions import (
    DATASET_ID,
    Dialogue,
    Repository,
    name_of,
    object_of,
    push,
)

REFERENCE, PUBLISHED = MessageDialect.REFERENCE, MessageDialect.PUBLISHED
REQUEST = m.PushRequest(None, m.TransferPlan(1), dataset_id=DATASET_ID)
BATCH = m.BlocksBatch(1, b"blocks")
URL = m.TransferUrl("https://store/x")
HEAD = name_of(1)
RUNNING = '{"details":{"Running":{"uploaded_objects_count":0}}}'
COMPLETE = '{"details":"Complete"}'
BINARY = e.FrameKind.BINARY


@pytest.fixture(params=list(MessageDialect), ids=lambda dialect: dialect.value)
def dialect(request: pytest.FixtureRequest) -> MessageDialect:
    found: MessageDialect = request.param
    return found


def states(dialogue: Dialogue) -> tuple[str, str]:
    return dialogue.client.machine.state.name, dialogue.server.machine.state.name


def said(message: m.Message, dialect: MessageDialect = REFERENCE) -> e.Received:
    return e.Received(encode_message(dialect, message))


def error_of(actions: tuple[e.MachineAction, ...]) -> LakeferryError | None:
    assert isinstance(actions[-1], e.Finished)
    return actions[-1].error


def close_of(actions: tuple[e.MachineAction, ...]) -> e.Close:
    [close] = [action for action in actions if isinstance(action, e.Close)]
    return close


def texts(actions: tuple[e.MachineAction, ...]) -> list[str]:
    return [action.text for action in actions if isinstance(action, e.Send)]


def client_with(
    objects: int,
    *,
    more: bool = False,
    dialect: MessageDialect = REFERENCE,
    last_page_bytes: int = 1000,
    pace: Pace | None = None,
) -> PushClient:
    """Return a client that uploads its first page."""
    client = PushClient(dialect, REQUEST, HEAD, 4, last_page_bytes, pace=pace)
    page = tuple(object_of(number) for number in range(objects))
    client.receive(e.Begin(), 0)
    client.receive(said(m.PushAccepted(), dialect), 0)
    client.receive(e.BlocksReady(BATCH), 0)
    client.receive(said(m.PushMetadataAccepted(), dialect), 0)
    client.receive(e.ObjectsWanted(page, more=more), 0)
    client.receive(urls_for(*page, dialect=dialect), 0)
    return client


def urls_for(*objects: m.ObjectFile, dialect: MessageDialect = REFERENCE) -> e.Received:
    return said(m.PushObjects(tuple(m.ObjectUpload(one, URL) for one in objects)), dialect)


def confirming(pace: Pace | None = None) -> PushClient:
    """Return a client that awaits the confirmation."""
    client = client_with(1, pace=pace)
    sent = texts(client.receive(e.ObjectsMoved((object_of(0),)), 0))
    assert sent == [COMPLETE, "{}"]
    assert client.state is PushClientState.CONFIRMING
    return client


def server_in(
    state: PushServerState, dialect: MessageDialect = REFERENCE, *, truncated: bool = False
) -> PushServer:
    """Return a server that has come as far as that."""
    server = PushServer(dialect)
    page = m.PushObjectsRequest((object_of(0),), truncated)
    events: list[e.MachineEvent] = [
        said(REQUEST, dialect),
        e.PushConsidered(),
        said(m.PushMetadata(BATCH), dialect),
        e.BlocksTaken(),
        e.DatasetReady(),
        said(page, dialect),
        e.UrlsReady((URL,)),
        e.Received(COMPLETE),
        e.Received("{}"),
        e.RunCommitted(),
    ]
    for event in events:
        if server.state is state:
            return server
        server.receive(event, 0)
    assert server.state is state
    return server


def test_a_new_dataset_is_pushed_with_all_objects_a_page_at_a_time(dialect: MessageDialect) -> None:
    source, target = Repository(4, objects=8), Repository(0)
    dialogue = push(dialect, source, target, page=3)
    dialogue.run()
    assert states(dialogue) == ("DONE", "DONE")
    assert target.head == source.head
    assert target.stored == source.stored
    sent = [json.loads(text) for text in dialogue.client.sent]
    if dialect is REFERENCE:
        pages = [(len(x["object_files"]), x["is_truncated"]) for x in sent if "object_files" in x]
        assert pages == [(3, True), (3, True), (2, False)]
        assert [one for one in sent if "details" in one] == [{"details": "Complete"}] * 3
    else:
        assert [len(one["objectFiles"]) for one in sent if "objectFiles" in one] == [3, 3, 2]


def test_metadata_alone_is_pushed_with_an_empty_page_or_none(dialect: MessageDialect) -> None:
    dialogue = push(dialect, Repository(1), Repository(0))
    dialogue.run()
    assert states(dialogue) == ("DONE", "DONE")
    sent = dialogue.client.sent[2:]
    empty = ['{"object_files":[],"is_truncated":false}', COMPLETE, "{}"]
    assert sent == (empty if dialect is REFERENCE else ["{}"])


def test_what_is_there_already_isn_t_uploaded(dialect: MessageDialect) -> None:
    source, target = Repository(4, objects=5), Repository(2, objects=5)
    dialogue = push(dialect, source, target)
    dialogue.client.move = None  # type: ignore[method-assign, assignment]
    dialogue.run()
    assert states(dialogue) == ("DONE", "DONE")


def test_a_head_that_moved_refuses_the_push_at_once(dialect: MessageDialect) -> None:
    source, target = Repository(4), Repository(3)
    dialogue = push(dialect, source, target, believed_head=source.chain[0])
    dialogue.run()
    assert states(dialogue) == ("FAILED", "FAILED")
    error = dialogue.client.machine.error
    assert isinstance(error, CommitConflict)
    assert error.fields["claimed_head"] == source.chain[0].text
    assert error.fields["actual_head"] == target.chain[2].text
    assert len(target.chain) == 3


@pytest.mark.parametrize(
    ("at", "failure", "kind"),
    [
        (PushServerState.TAKING, SeedOverwrite(), Diverged),
        (PushServerState.ENSURING, RefCollision(DATASET_ID), CommitConflict),
        (PushServerState.ENSURING, NameCollision("acc/name"), CommitConflict),
        (PushServerState.ENSURING, Internal(Phase.PUSH_ENSURING), StorageUnavailable),
        (PushServerState.COMMITTING, Internal(Phase.PUSH_COMPLETE), CommitConflict),
    ],
)
def test_later_refusals_come_with_the_close_in_their_exact_variant(
    at: PushServerState, failure: TransferFailure, kind: type[LakeferryError]
) -> None:
    actions = server_in(at).receive(e.WorkRefused(failure), 0)
    close = close_of(actions)
    assert (close.code, close.reason) == (1011, encode_failure(REFERENCE, failure))
    assert texts(actions) == []
    client = client_with(1)
    if at is PushServerState.COMMITTING:
        client = confirming()
    [finished] = client.receive(e.PeerClosed(close.code, close.reason), 0)
    assert isinstance(finished, e.Finished)
    assert type(finished.error) is kind


def test_the_loser_of_two_pushes_learns_that_the_head_has_moved() -> None:
    server = server_in(PushServerState.COMMITTING)
    close = close_of(server.receive(e.WorkRefused(CommitConflict("moved", head="s3://x")), 0))
    assert failure_in_close(close.reason) == Internal(
        Phase.PUSH_COMPLETE, "the head has moved", "conflict"
    )
    client = confirming()
    client.receive(e.PeerClosed(close.code, close.reason), 0)
    assert isinstance(client.error, CommitConflict)


def test_a_missing_object_is_told_to_the_client_that_didn_t_upload_it() -> None:
    server = server_in(PushServerState.COMMITTING)
    close = close_of(server.receive(e.WorkRefused(MissingFile("s3://x/y")), 0))
    client = confirming()
    client.receive(e.PeerClosed(close.code, close.reason), 0)
    assert isinstance(client.error, MissingFile)
    assert "s3" not in close.reason


def test_the_published_dialect_refuses_by_text_before_it_closes() -> None:
    server = server_in(PushServerState.TAKING, PUBLISHED)
    actions = server.receive(e.WorkRefused(SeedOverwrite()), 0)
    assert [type(action) for action in actions] == [e.Send, e.Close, e.Finished]
    client = PushClient(PUBLISHED, REQUEST, HEAD)
    client.receive(e.Begin(), 0)
    client.receive(said(m.PushAccepted(), PUBLISHED), 0)
    client.receive(e.BlocksReady(BATCH), 0)
    client.receive(e.Received(texts(actions)[0]), 0)
    assert isinstance(client.error, Diverged)


def test_after_invalid_head_the_server_goes_on_with_nothing() -> None:
    server = PushServer(REFERENCE)
    server.receive(said(REQUEST), 0)
    [send] = server.receive(e.WorkRefused(InvalidHead(None, HEAD)), 0)
    assert send == e.Send(encode_failure(REFERENCE, InvalidHead(None, HEAD)))
    assert server.state is PushServerState.REFUSED
    # What was under way is read and discarded, and gives nobody more time.
    for event in (said(m.PushMetadata(BATCH)), e.Received("?"), e.ReceivedFrame(BINARY)):
        assert server.receive(event, 4_999) == ()
    actions = server.receive(e.Tick(), 5_000)
    assert close_of(actions).code == 1011
    assert isinstance(error_of(actions), CommitConflict)


def test_progress_is_asked_for_every_ten_seconds_and_only_while_uploading() -> None:
    server = server_in(PushServerState.SIGNING)
    server.receive(e.UrlsReady((URL,)), 1000)
    assert server.wake_ms == 11_000
    assert server.receive(e.Tick(), 10_999) == ()
    assert server.receive(e.Tick(), 11_000) == (e.Send("{}"),)
    assert server.receive(e.Tick(), 11_001) == ()
    server.receive(e.Received(RUNNING), 12_000)
    # A host that slept doesn't make up for it with a burst.
    assert server.receive(e.Tick(), 55_000) == (e.Send("{}"),)
    assert server.wake_ms == 65_000
    server.receive(e.Received(COMPLETE), 64_999)
    assert server.receive(e.Tick(), 65_000) == ()
    for state in ("METADATA", "TAKING", "ENSURING", "OBJECTS", "SIGNING", "COMPLETE", "COMMITTING"):
        assert texts(server_in(PushServerState[state]).receive(e.Tick(), 10_000)) == []


def test_nobody_is_asked_for_progress_in_the_published_dialect() -> None:
    server = server_in(PushServerState.SIGNING, PUBLISHED)
    server.receive(e.UrlsReady((URL,)), 0)
    assert server.state is PushServerState.PAGES
    assert server.receive(e.Tick(), 10_000) == ()


def test_a_client_that_doesn_t_answer_while_it_uploads_is_let_go() -> None:
    server = server_in(PushServerState.UPLOADING)
    for second in range(10, 300, 10):
        assert texts(server.receive(e.Tick(), second * 1000)) == ["{}"]
    assert isinstance(error_of(server.receive(e.Tick(), 300_000)), TimedOut)


def test_an_answer_that_was_under_way_when_the_page_was_complete_is_let_pass() -> None:
    server = server_in(PushServerState.UPLOADING)
    server.receive(e.Tick(), 10_000)
    server.receive(e.Received(COMPLETE), 10_001)
    assert server.receive(e.Received(RUNNING), 10_002) == ()
    assert server.state is PushServerState.COMPLETE
    assert isinstance(error_of(server.receive(e.Received(RUNNING), 10_003)), InvalidInput)


def test_the_request_for_the_next_page_may_come_right_after_the_end_of_this_one() -> None:
    server = server_in(PushServerState.UPLOADING, truncated=True)
    assert server.most_bytes == server.limits.objects_message_bytes
    last = server_in(PushServerState.UPLOADING)
    assert last.most_bytes == last.limits.message_bytes


def test_such_an_answer_may_come_while_the_next_page_is_signed() -> None:
    server = server_in(PushServerState.UPLOADING, truncated=True)
    server.receive(e.Tick(), 10_000)
    server.receive(e.Received(COMPLETE), 10_001)
    server.receive(said(m.PushObjectsRequest((object_of(1),), False)), 10_002)
    assert server.receive(e.Received(RUNNING), 10_003) == ()
    assert server.state is PushServerState.SIGNING
    assert isinstance(error_of(server.receive(e.Received(RUNNING), 10_004)), InvalidInput)


def test_such_an_answer_may_come_after_the_commit_was_confirmed() -> None:
    server = server_in(PushServerState.UPLOADING)
    server.receive(e.Tick(), 10_000)
    server.receive(e.Received(COMPLETE), 10_001)
    server.receive(e.Received("{}"), 10_002)
    assert texts(server.receive(e.RunCommitted(), 10_003)) == ["{}"]
    for event in (e.Received(RUNNING), e.Received("?"), e.ReceivedFrame(BINARY)):
        assert server.receive(event, 10_004) == ()
    assert server.receive(e.PeerClosed(1000), 10_005) == (e.Finished(),)
    assert server.state is PushServerState.DONE


def test_what_is_discarded_is_bounded_in_time_and_in_bytes() -> None:
    staying = server_in(PushServerState.CONFIRMED)
    assert staying.receive(e.Received(RUNNING), 4_999) == ()
    assert staying.wake_ms == 5_000
    assert staying.receive(e.Tick(), 5_000) == (e.Close(1000), e.Finished())
    flooding = server_in(PushServerState.CONFIRMED)
    flooding.limits = MessageLimits(blocks_message_bytes=1000)
    assert flooding.receive(e.Received("x" * 1000), 0) == ()
    assert flooding.receive(e.Received("x"), 0) == (e.Close(1000), e.Finished())


def test_progress_isn_t_taken_for_the_end() -> None:
    for text in (RUNNING, COMPLETE, '{"object_files":[],"is_truncated":false}'):
        server = server_in(PushServerState.COMPLETE)
        actions = server.receive(e.Received(text), 0)
        assert isinstance(error_of(actions), InvalidInput)
        assert e.CheckAndCommit() not in actions


def test_the_client_s_next_message_is_held_while_the_dataset_is_made() -> None:
    page = said(m.PushObjectsRequest((object_of(0),), False))
    server = server_in(PushServerState.ENSURING)
    assert server.receive(page, 0) == ()
    assert server.receive(e.DatasetReady(), 0) == (e.SignUrls((object_of(0),)),)
    greedy = server_in(PushServerState.ENSURING)
    greedy.receive(page, 0)
    assert isinstance(error_of(greedy.receive(page, 0)), InvalidInput)
    nonsense = server_in(PushServerState.ENSURING)
    nonsense.receive(e.Received("nonsense"), 0)
    assert isinstance(error_of(nonsense.receive(e.DatasetReady(), 0)), InvalidInput)


def test_a_push_without_blocks_expects_the_end_at_once() -> None:
    server = PushServer(REFERENCE)
    server.receive(said(REQUEST), 0)
    server.receive(e.PushConsidered(), 0)
    server.receive(said(m.PushMetadata(m.BlocksBatch(0, b""))), 0)
    server.receive(e.BlocksTaken(), 0)
    server.receive(e.DatasetReady(), 0)
    assert server.receive(e.Received("{}"), 0) == (e.CheckAndCommit(),)
    client = PushClient(REFERENCE, REQUEST, HEAD)
    client.receive(e.Begin(), 0)
    client.receive(said(m.PushAccepted()), 0)
    client.receive(e.BlocksReady(m.BlocksBatch(0, b"")), 0)
    assert client.receive(said(m.PushMetadataAccepted()), 0) == (e.Send("{}"),)
    assert client.state is PushClientState.CONFIRMING


def test_a_commit_that_has_begun_is_finished_without_the_client() -> None:
    server = server_in(PushServerState.COMMITTING)
    assert server.receive(e.PeerClosed(), 0) == ()
    assert server.receive(e.RunCommitted(), 0) == (e.Finished(),)
    assert server.state is PushServerState.DONE
    failing = server_in(PushServerState.COMMITTING)
    failing.receive(e.PeerClosed(), 0)
    [finished] = failing.receive(e.WorkRefused(CommitConflict("moved")), 0)
    assert isinstance(finished, e.Finished)


def test_a_confirmed_client_that_stays_is_closed_after_a_while() -> None:
    server = server_in(PushServerState.CONFIRMED)
    assert server.wake_ms == 5000
    assert server.receive(e.Tick(), 5000) == (e.Close(1000), e.Finished())


@pytest.mark.parametrize("state", ["METADATA", "OBJECTS", "UPLOADING", "COMPLETE"])
def test_a_client_that_leaves_before_the_end_has_pushed_nothing(state: str) -> None:
    server = server_in(PushServerState[state], truncated=state == "OBJECTS")
    [finished] = server.receive(e.PeerClosed(1000), 0)
    assert isinstance(finished, e.Finished)
    assert isinstance(finished.error, StorageUnavailable)


def test_the_client_tells_its_progress_when_asked() -> None:
    client = client_with(3)
    client.receive(e.ObjectsMoved((object_of(0), object_of(2))), 0)
    [send] = client.receive(e.Received("{}"), 0)
    assert send == e.Send('{"details":{"Running":{"uploaded_objects_count":2}}}')


def test_expired_uploads_go_into_the_next_page() -> None:
    client = client_with(4, more=True)
    client.receive(e.ObjectsMoved((object_of(0), object_of(1), object_of(2))), 0)
    actions = client.receive(e.Expired((object_of(3),)), 0)
    assert actions == (e.Send(COMPLETE), e.NextObjects(3))
    [send] = client.receive(e.ObjectsWanted((object_of(4),), more=False), 0)
    # Those whose URLs weren't used in time may fail again: another page has to be possible.
    again = m.PushObjectsRequest((object_of(3), object_of(4)), True)
    assert send == e.Send(encode_message(REFERENCE, again))
    client.receive(urls_for(object_of(3), object_of(4)), 0)
    sent = texts(client.receive(e.ObjectsMoved((object_of(3), object_of(4))), 0))
    assert sent == [COMPLETE, '{"object_files":[],"is_truncated":false}']


def test_a_large_page_isn_t_announced_as_the_last() -> None:
    client = client_with(2, last_page_bytes=19)
    sent = texts(client.receive(e.ObjectsMoved((object_of(0), object_of(1))), 0))
    assert sent == [COMPLETE, '{"object_files":[],"is_truncated":false}']
    sent = texts(client.receive(said(m.PushObjects(())), 0))
    assert sent == [COMPLETE, "{}"]
    assert client.state is PushClientState.CONFIRMING


def test_urls_of_the_last_page_that_expire_end_the_session_and_not_silently() -> None:
    client = client_with(2)
    actions = client.receive(e.Expired((object_of(0),)), 0)
    assert isinstance(error_of(actions), StorageUnavailable)
    assert texts(actions) == []


def test_a_late_request_for_progress_between_pages_isn_t_answered() -> None:
    client = client_with(1, more=True)
    client.receive(e.ObjectsMoved((object_of(0),)), 0)
    for state in ("CHOOSING", "ASKED"):
        assert client.state.name == state
        assert client.receive(e.Received("{}"), 0) == ()
        if state == "CHOOSING":
            client.receive(e.ObjectsWanted((object_of(1),), more=False), 0)
    [upload] = client.receive(urls_for(object_of(1)), 0)
    assert isinstance(upload, e.Upload)


def test_a_request_for_progress_before_there_is_any_is_out_of_turn() -> None:
    client = PushClient(REFERENCE, REQUEST, HEAD)
    client.receive(e.Begin(), 0)
    client.receive(said(m.PushAccepted()), 0)
    client.receive(e.BlocksReady(BATCH), 0)
    client.receive(said(m.PushMetadataAccepted()), 0)
    assert isinstance(error_of(client.receive(e.Received("{}"), 0)), InvalidInput)


def test_success_is_a_confirmation_and_the_head() -> None:
    client = confirming()
    assert client.receive(e.Received("{}"), 0) == (e.CheckHead(),)
    close, finished = client.receive(e.HeadIs(HEAD), 0)
    assert close == e.Close(1000, "Client push flow succeeded")
    assert finished == e.Finished()


def test_a_request_for_progress_that_looks_like_the_confirmation_fools_nobody() -> None:
    client = confirming(Pace(settle_ms=100))
    client.receive(e.Received("{}"), 0)
    assert client.receive(e.HeadIs(None), 0) == ()
    assert client.state is PushClientState.CONFIRMING
    assert client.wake_ms == 100
    # Nothing comes: the head is looked at again.
    assert client.receive(e.Tick(), 100) == (e.CheckHead(),)
    # The confirmation proper comes while it is looked at.
    assert client.receive(e.Received("{}"), 101) == ()
    assert client.receive(e.HeadIs(None), 102) == (e.CheckHead(),)
    assert client.receive(e.HeadIs(HEAD), 103)[-1] == e.Finished()


def test_a_server_that_confirms_without_committing_isn_t_believed() -> None:
    client = confirming(Pace(commit_ms=1000, settle_ms=100))
    client.receive(e.Received("{}"), 0)
    client.receive(e.HeadIs(name_of(2)), 0)
    now_ms = 0
    while not client.is_over:
        now_ms += 100
        client.receive(e.Tick(), now_ms)
        if client.state is PushClientState.CHECKING:
            client.receive(e.HeadIs(name_of(2)), now_ms)
    assert now_ms == 1000
    assert isinstance(client.error, CommitStateUnknown)
    gone = confirming()
    gone.receive(e.Received("{}"), 0)
    gone.receive(e.PeerClosed(1000), 0)
    assert isinstance(error_of(gone.receive(e.HeadIs(name_of(2)), 0)), CommitStateUnknown)


def test_a_server_that_leaves_after_its_confirmation_is_fine() -> None:
    client = confirming()
    client.receive(e.Received("{}"), 0)
    assert client.receive(e.PeerClosed(), 0) == ()
    assert client.receive(e.HeadIs(HEAD), 0) == (e.Finished(),)


@pytest.mark.parametrize(
    "event",
    [
        e.PeerClosed(1000),
        e.PeerClosed(1006),
        e.PeerClosed(1011, "oops"),
        e.Received('{"Ok":{}}'),
        e.Received("[]"),
        e.ReceivedFrame(e.FrameKind.BINARY),
        e.WorkRefused(StorageUnavailable("the head couldn't be read")),
    ],
    ids=range(7),
)
def test_without_a_clean_confirmation_it_isn_t_known_whether_it_was_taken(
    event: e.MachineEvent,
) -> None:
    client = confirming()
    error = error_of(client.receive(event, 0))
    assert isinstance(error, CommitStateUnknown)
    assert error.fields["head"] == HEAD.text


@pytest.mark.parametrize("checking", [False, True])
def test_a_refusal_in_the_confirmation_s_place_is_a_failure(checking: bool) -> None:
    refusal = encode_failure(REFERENCE, Internal(Phase.PUSH_COMPLETE))
    for event in (e.PeerClosed(1011, refusal), e.Received(refusal)):
        client = confirming()
        if checking:
            client.receive(e.Received("{}"), 0)
        assert isinstance(error_of(client.receive(event, 0)), CommitConflict)


def test_a_history_that_the_reference_server_rejects_isn_t_pushed_again() -> None:
    rejected = Internal(Phase.PUSH_COMPLETE)
    error = error_of(
        confirming().receive(e.PeerClosed(1011, encode_failure(REFERENCE, rejected)), 0)
    )
    assert error is not None
    assert not is_passing(error)
    assert "run the same command again" not in (error.remedy or "")
    assert "log" in (error.remedy or "")


def test_a_store_of_ours_that_failed_at_the_commit_is_told_from_a_history_that_was_rejected() -> (
    None
):
    close = close_of(
        server_in(PushServerState.COMMITTING).receive(e.WorkRefused(StorageUnavailable("down")), 0)
    )
    error = error_of(confirming().receive(e.PeerClosed(close.code, close.reason), 0))
    assert type(error) is StorageUnavailable
    assert is_passing(error)


def test_urls_for_other_objects_are_refused() -> None:
    client = client_with(2, more=True)
    client.receive(e.ObjectsMoved((object_of(0), object_of(1))), 0)
    client.receive(e.ObjectsWanted((object_of(2),), more=False), 0)
    assert isinstance(error_of(client.receive(urls_for(object_of(3)), 0)), InvalidInput)


def test_rounds_are_bounded_at_the_server() -> None:
    server = PushServer(PUBLISHED, MessageLimits(rounds=2))
    server.receive(said(REQUEST, PUBLISHED), 0)
    server.receive(e.PushConsidered(), 0)
    server.receive(said(m.PushMetadata(BATCH), PUBLISHED), 0)
    server.receive(e.BlocksTaken(), 0)
    server.receive(e.DatasetReady(), 0)
    page = said(m.PushObjectsRequest((), True), PUBLISHED)
    for _ in range(2):
        server.receive(page, 0)
        server.receive(e.UrlsReady(()), 0)
    assert isinstance(error_of(server.receive(page, 0)), LimitExceeded)


def test_objects_are_wanted_within_the_page_and_at_least_one_if_there_are_more() -> None:
    client = client_with(4, more=True)
    client.receive(e.ObjectsMoved(tuple(object_of(number) for number in range(4))), 0)
    for wanted in (tuple(map(object_of, range(10, 15))), ()):
        with pytest.raises(InvalidInput):
            client.receive(e.ObjectsWanted(wanted, more=True), 0)
    assert client.state is PushClientState.CHOOSING
