"""Whatever a peer sends and whenever it goes: only our own errors, and only states of the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeferry.errors import InvalidInput, LakeferryError, StorageUnavailable
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.session import events as e
from lakeferry.transfer.session.machine import Machine
from lakeferry.transfer.session.pull_client import PULL_CLIENT_TABLE, PullClient
from lakeferry.transfer.session.pull_server import PULL_SERVER_TABLE, PullServer
from lakeferry.transfer.session.push_client import PUSH_CLIENT_TABLE, PushClient
from lakeferry.transfer.session.push_server import PUSH_SERVER_TABLE, PushServer
from lakeferry.transfer.wire import failure_messages as f
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.codec import (
    CLOSE_REASON_BYTES,
    close_reason,
    decode_message,
    encode_failure,
    encode_message,
    failure_in_close,
)
from lakeferry.transfer.wire.messages import MessageDialect
from tests.support.transfer_sessions import (
    DATASET_ID,
    Dialogue,
    End,
    Repository,
    name_of,
    object_of,
    pull,
    push,
)

DIALECTS = st.sampled_from(MessageDialect)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**63 - 1)
HASHES = st.binary(max_size=4).map(Multihash.sha3_256)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLANS = st.builds(m.TransferPlan, U32, U32, U64, U64, U64)
BATCHES = st.builds(m.BlocksBatch, U32, st.binary(max_size=300))
OBJECTS = st.builds(m.ObjectFile, st.sampled_from(m.WireObjectKind), HASHES, U64)
URLS = st.builds(
    m.TransferUrl,
    st.text("abc/?&=%", min_size=1).map(lambda path: f"https://{path}"),
    st.lists(st.tuples(st.text("ab-", min_size=1), st.text("xyz ", max_size=5)), max_size=3).map(
        tuple
    ),
    st.none() | st.integers(0, 10**13),
)


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


SHARED: list[st.SearchStrategy[Any]] = [
    st.builds(m.PullPlan, PLANS),
    st.just(m.PullMetadataRequest()),
    st.builds(m.PullMetadata, BATCHES),
    st.builds(m.PullObjectsRequest, tuples(OBJECTS)),
    st.builds(m.PullObjects, tuples(st.builds(m.ObjectDownload, OBJECTS, URLS))),
    st.just(m.PushAccepted()),
    st.builds(m.PushMetadata, BATCHES),
    st.just(m.PushMetadataAccepted()),
    st.builds(m.PushObjects, tuples(st.builds(m.ObjectUpload, OBJECTS, optional(URLS)))),
    st.just(m.PushComplete()),
    st.just(m.PushConfirmed()),
]


def requests(dataset_id: st.SearchStrategy[Any]) -> list[st.SearchStrategy[Any]]:
    heads, flags = optional(HASHES), st.booleans()
    visible = st.sampled_from(m.PushVisibility)
    return [
        st.builds(m.PullRequest, heads, heads, flags, dataset_id),
        st.builds(m.PushRequest, heads, PLANS, flags, visible, dataset_id),
    ]


IN_REFERENCE = st.one_of(
    *SHARED,
    *requests(st.none()),
    st.builds(m.PushObjectsRequest, tuples(OBJECTS), st.booleans()),
    st.just(m.ProgressRequest()),
    st.builds(m.UploadProgress, optional(st.integers(-(2**31), 2**31 - 1))),
)
IN_PUBLISHED = st.one_of(
    *SHARED,
    *requests(NAMES),
    st.builds(m.PushObjectsRequest, tuples(OBJECTS), st.just(True)),
)
SPOKEN = st.tuples(st.just(MessageDialect.REFERENCE), IN_REFERENCE) | st.tuples(
    st.just(MessageDialect.PUBLISHED), IN_PUBLISHED
)
FAILURES = st.one_of(
    st.builds(f.InvalidInterval, HASHES, HASHES),
    st.builds(f.InvalidHead, optional(HASHES), optional(HASHES)),
    st.just(f.SeedOverwrite()),
    st.builds(f.RefCollision, NAMES),
    st.builds(f.NameCollision, st.text(st.characters(exclude_categories=["Cs"]))),
    st.builds(f.NameCollision, NAMES, st.integers(0, 2**31), st.booleans()),
    st.builds(
        f.Internal,
        st.sampled_from(f.Phase),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        optional(NAMES),
    ),
)
KINDS = st.lists(st.sampled_from(m.Message.__args__), min_size=1, max_size=3).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Ok", "Err", "details", "object_files", "blocks", "payload", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Draw a text that was a message, or a refusal, before somebody had a hand in it."""
    dialect, message = draw(SPOKEN)
    text = draw(
        st.sampled_from([encode_message(dialect, message), encode_failure(dialect, draw(FAILURES))])
    )
    if draw(st.booleans()):
        document = json.loads(text)
        spots = list(places(document))
        if spots:
            holder, key = draw(st.sampled_from(spots))
            if isinstance(holder, dict) and draw(st.booleans()):
                del holder[key]
            else:
                holder[key] = draw(JSON)
        return json.dumps(document)
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, min(len(text), begin + 20)))
    return text[:begin] + draw(st.text(max_size=5)) + text[end:]


def places(document: Any) -> list[tuple[Any, Any]]:
    """Return every place in a document that something else can be put into."""
    keys = document if isinstance(document, dict) else range(len(document))
    found = [(document, key) for key in keys]
    for key in keys:
        if isinstance(document[key], dict | list):
            found += places(document[key])
    return found


TEXTS = st.one_of(mutated(), st.text(max_size=50), JSON.map(json.dumps), st.just("{}"))


@given(SPOKEN)
def test_what_is_written_is_read_again(spoken: tuple[MessageDialect, m.Message]) -> None:
    dialect, message = spoken
    assert decode_message(dialect, (type(message),), encode_message(dialect, message)) == message


@given(DIALECTS, FAILURES, st.sampled_from(f.Phase))
def test_every_refusal_is_read_again_and_fits_into_a_close(
    dialect: MessageDialect, failure: f.TransferFailure, phase: f.Phase
) -> None:
    assert decode_message(dialect, (m.PushConfirmed,), encode_failure(dialect, failure)) == failure
    reason = close_reason(MessageDialect.REFERENCE, failure, phase)
    assert len(reason.encode()) <= CLOSE_REASON_BYTES
    assert failure_in_close(reason) is not None


@settings(max_examples=300)
@given(DIALECTS, KINDS, TEXTS)
def test_no_text_raises_anything_but_our_errors(
    dialect: MessageDialect, kinds: tuple[type, ...], text: str
) -> None:
    failure_in_close(text)
    try:
        found = decode_message(dialect, kinds, text)
    except LakeferryError:
        return
    assert isinstance(found, f.TransferFailure) or type(found) in kinds


OBJECTS_IN_PLAY = st.lists(st.integers(0, 5), max_size=3).map(
    lambda numbers: tuple(object_of(number) for number in numbers)
)
COMMANDS: st.SearchStrategy[e.MachineEvent] = st.one_of(
    st.just(e.Begin()),
    st.builds(e.PlanReady, st.builds(m.TransferPlan, st.integers(0, 2))),
    st.just(e.PushConsidered()),
    st.builds(e.BlocksReady, st.builds(m.BlocksBatch, st.integers(0, 2), st.just(b"x"))),
    st.just(e.BlocksTaken()),
    st.just(e.DatasetReady()),
    st.builds(e.UrlsReady, tuples(optional(URLS))),
    st.builds(e.ObjectsWanted, OBJECTS_IN_PLAY, st.booleans()),
    st.builds(e.ObjectsMoved, OBJECTS_IN_PLAY),
    st.builds(e.Expired, OBJECTS_IN_PLAY),
    st.just(e.RunCommitted()),
    st.builds(e.HeadIs, st.sampled_from([None, name_of(1), name_of(2)])),
    st.builds(e.WorkRefused, FAILURES | st.just(StorageUnavailable("no"))),
)
# What machines expect comes more often than by chance, or they would end at their first text.
LIKELY = st.sampled_from(
    [
        encode_message(dialect, message)
        for dialect in MessageDialect
        for message in (
            m.PullRequest(dataset_id=DATASET_ID),
            m.PullPlan(m.TransferPlan(1)),
            m.PullMetadata(m.BlocksBatch(1, b"x")),
            m.PullObjectsRequest((object_of(0),)),
            m.PullObjects((m.ObjectDownload(object_of(0), m.TransferUrl("http://x/y")),)),
            m.PushRequest(None, m.TransferPlan(1), dataset_id=DATASET_ID),
            m.PushAccepted(),
            m.PushMetadata(m.BlocksBatch(1, b"x")),
            m.PushObjectsRequest((object_of(0),), True),
            m.PushObjects((m.ObjectUpload(object_of(0), m.TransferUrl("http://x/y")),)),
        )
    ]
    + ['{"details":"Complete"}', '{"details":{"Running":{"uploaded_objects_count":1}}}']
)
EVENTS: st.SearchStrategy[e.MachineEvent] = st.one_of(
    st.builds(e.Received, LIKELY),
    st.builds(e.Received, TEXTS),
    COMMANDS,
    COMMANDS,
    st.builds(e.ReceivedFrame, st.sampled_from(e.FrameKind)),
    st.builds(e.PeerClosed, st.sampled_from([1000, 1005, 1006, 1011]), st.text(max_size=20)),
    st.just(e.Tick()),
)


def machines(dialect: MessageDialect) -> list[tuple[Machine[Any], set[Any]]]:
    pulling = m.PullRequest(dataset_id=DATASET_ID)
    pushing = m.PushRequest(None, m.TransferPlan(1), dataset_id=DATASET_ID)
    tables: list[tuple[Machine[Any], Any]] = [
        (PullServer(dialect), PULL_SERVER_TABLE),
        (PullClient(dialect, pulling, page=3), PULL_CLIENT_TABLE),
        (PushServer(dialect), PUSH_SERVER_TABLE),
        (PushClient(dialect, pushing, name_of(1), page=3), PUSH_CLIENT_TABLE),
    ]
    return [
        (machine, {state for state, _ in table} | set(table.values())) for machine, table in tables
    ]


def check(machine: Machine[Any], states: set[Any], before: Any, actions: tuple[Any, ...]) -> None:
    assert machine.state in states
    finished = [action for action in actions if isinstance(action, e.Finished)]
    assert len(finished) == (machine.is_over and before is not machine.state)
    if finished:
        assert actions[-1] is finished[0]
        assert (finished[0].error is not None) == (machine.state.name == "FAILED")
    for action in actions:
        if isinstance(action, e.Close):
            assert len(action.reason.encode()) <= CLOSE_REASON_BYTES


@settings(max_examples=200)
@given(
    DIALECTS,
    st.integers(0, 3),
    st.lists(st.tuples(EVENTS, st.integers(0, 20_000)), max_size=25),
)
def test_no_sequence_of_events_leaves_the_table(
    dialect: MessageDialect, number: int, events: list[tuple[e.MachineEvent, int]]
) -> None:
    machine, states = machines(dialect)[number]
    now_ms = 0
    for event, passed_ms in events:
        now_ms += passed_ms
        before = machine.state
        try:
            actions = machine.receive(event, now_ms)
        except InvalidInput:
            # Only the host is told so, and nothing has happened.
            assert not isinstance(event, e.Received | e.ReceivedFrame | e.PeerClosed | e.Tick)
            assert machine.state is before
        else:
            check(machine, states, before, actions)


def transfer(
    way: str, dialect: MessageDialect, objects: int, page: int, *, present: int, large: bool
) -> Dialogue:
    source, target = Repository(4, objects), Repository(2)
    target.stored = set(source.objects[:present])
    if way == "pull":
        return pull(dialect, source, target, page=page)
    return push(dialect, source, target, page=page, last_page_bytes=5 if large else 1000)


def outcome(dialogue: Dialogue, way: str) -> tuple[bool, bool]:
    """Return whether client and server are done, having checked what must hold in any case."""
    ends = (dialogue.client, dialogue.server)
    for end in ends:
        assert end.machine.is_over
        assert len(end.finished) == 1
        error = end.finished[0].error
        assert (error is None) == (end.machine.state.name == "DONE")
        assert error is None or (str(error) and error.code != "error")
    client, server = (end.machine.state.name == "DONE" for end in ends)
    receiver = dialogue.client if way == "pull" else dialogue.server
    sender = dialogue.other(receiver).repository
    arrived = receiver.repository.head == sender.head
    # The client is right when it says that it succeeded, at the moment when it does.
    mine_then, theirs_then = dialogue.client.heads_then
    assert not client or mine_then == theirs_then
    if way == "pull":
        assert arrived == client
    else:
        assert arrived or not server
    assert not arrived or set(sender.objects) <= receiver.repository.stored
    return client, server


# One number is one interleaving. Hypothesis's own choices would be made with shrinking in
# mind, and are too simple for two ends to get into each other's way.
SEEDS = st.integers(0, 2**32 - 1)
WAYS = pytest.mark.parametrize("way", ["pull", "push"])


def interleaved(dialogue: Dialogue, random: Random) -> None:
    """Run it with a choice by chance at every step, and with time passing now and then."""

    def let_time_pass() -> None:
        # So that the client may be asked for progress at any moment.
        if random.random() < 0.3:
            dialogue.pass_time(random.randrange(12_000))

    dialogue.run(random.randrange, let_time_pass)


@WAYS
@settings(max_examples=200)
@given(dialect=DIALECTS, present=st.integers(0, 8), large=st.booleans(), seed=SEEDS)
def test_any_interleaving_of_two_correct_ends_is_done_at_both(
    way: str, dialect: MessageDialect, present: int, large: bool, seed: int
) -> None:
    random = Random(seed)
    objects, page = random.randrange(9), random.randrange(1, 5)
    dialogue = transfer(way, dialect, objects, page, present=present, large=large)
    interleaved(dialogue, random)
    assert outcome(dialogue, way) == (True, True)


def test_among_the_interleavings_are_those_where_progress_looks_like_the_confirmation() -> None:
    fooled = 0
    for seed in range(100):
        dialogue = transfer("push", MessageDialect.REFERENCE, 3, 2, present=0, large=False)
        looks: list[bool] = []
        end = dialogue.client
        check_head = end.answer

        def answer(action: e.MachineAction, other: End) -> None:
            if isinstance(action, e.CheckHead):
                looks.append(other.repository.head == end.repository.head)  # noqa: B023
            check_head(action, other)  # noqa: B023

        end.answer = answer  # type: ignore[method-assign]
        interleaved(dialogue, Random(seed))
        assert outcome(dialogue, "push") == (True, True)
        fooled += not looks[0]
    assert fooled > 0


@WAYS
@settings(max_examples=200)
@given(
    dialect=DIALECTS,
    objects=st.integers(0, 6),
    expiring=st.integers(0, 6),
    cut_after=st.integers(0, 60),
    keep=st.integers(0, 2),
    seed=SEEDS,
)
def test_a_cut_at_any_moment_ends_in_done_or_a_clear_error_at_both_ends(
    way: str,
    dialect: MessageDialect,
    objects: int,
    expiring: int,
    cut_after: int,
    keep: int,
    seed: int,
) -> None:
    random = Random(seed)
    dialogue = transfer(way, dialect, objects, 2, present=0, large=True)
    dialogue.client.expiring = expiring
    for _ in range(cut_after):
        choices = dialogue.choices()
        if not choices:
            break
        choices[random.randrange(len(choices))]()
    ends = (dialogue.client, dialogue.server)
    if not any(end.machine.is_over for end in ends):
        dialogue.cut(keep)
    interleaved(dialogue, random)
    outcome(dialogue, way)


@WAYS
@pytest.mark.parametrize("dialect", list(MessageDialect))
def test_a_cut_at_each_message_and_a_second_try_brings_everything(
    way: str, dialect: MessageDialect
) -> None:
    whole = transfer(way, dialect, 5, 2, present=0, large=True)
    whole.run()
    messages = len(whole.client.sent) + len(whole.server.sent)
    for count in range(messages + 1):
        for keep in (0, 1):
            first = transfer(way, dialect, 5, 2, present=0, large=True)
            while len(first.client.sent) + len(first.server.sent) < count:
                first.choices()[0]()
            if not (first.client.machine.is_over or first.server.machine.is_over):
                first.cut(keep)
            first.run()
            done, _ = outcome(first, way)
            again(way, dialect, first, done=done)


def again(way: str, dialect: MessageDialect, first: Dialogue, *, done: bool) -> None:
    """Run what was cut a second time, with what has arrived."""
    source = first.server.repository if way == "pull" else first.client.repository
    target = first.client.repository if way == "pull" else first.server.repository
    if way == "push" and source.head == target.head:
        return
    begin: Callable[..., Dialogue] = pull if way == "pull" else push
    second = begin(dialect, source, target, page=2)
    fetched = len(second.client.wanted) if way == "pull" else None
    assert fetched is None or fetched == len(set(source.objects) - target.stored)
    second.run()
    assert outcome(second, way) == (True, True)
    assert not done or way == "pull"
