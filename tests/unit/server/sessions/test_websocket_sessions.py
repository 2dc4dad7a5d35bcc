"""Sessions with a client that speaks the reference dialect by hand: what it gets, what it leaves.

The server is real and in this process; its store is in memory.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import uvicorn

from lakeferry.errors import InvalidInput, LimitExceeded
from lakeferry.export.job_queue import Queue
from lakeferry.server.http import connection_timeouts, websockets
from lakeferry.server.http.access import DatasetAccess
from lakeferry.server.http.connection_timeouts import PatientProtocol
from lakeferry.server.http.dataset_routes import Datasets
from lakeferry.server.http.http_app import create_app
from lakeferry.server.http.websockets import SessionSocket
from lakeferry.server.metrics import Metrics
from lakeferry.server.sessions import websocket_sessions
from lakeferry.server.sessions.byte_budget import HELD_BYTES, Budget
from lakeferry.server.sessions.push_work import Pushing
from lakeferry.server.sessions.websocket_sessions import Sessions
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.repository.access_tokens import TOKENS_FOLDER, Scope, Tokens
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.repository import Repository, Visibility
from lakeferry.transfer.repository.signed_urls import Links, Signer
from lakeferry.transfer.session import events as e
from lakeferry.transfer.session.machine import Pace
from lakeferry.transfer.session.push_server import PushServer
from lakeferry.transfer.wire import codec, tarball
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.failure_messages import RefCollision, TransferFailure
from lakeferry.transfer.wire.handshake import SUBPROTOCOL
from lakeferry.transfer.wire.messages import MessageDialect
from tests.support.history import Append, History
from tests.support.odf import DATASET_ID, Chain, SetInfo
from tests.support.reference_client import (
    Closed,
    Files,
    ReferenceClient,
    batch_of,
    fetch,
    files_of,
    name_of,
    objects_of,
    packed,
    run_of,
)
from tests.support.serving import until
from tests.support.stores import DictStore, Fault, FaultyStore, on

NAME = DatasetName.parse("acc/d")
PULL = {"begin_after": None, "stop_at": None, "force_update_if_diverged": False}


def dataset(*steps: str) -> Files:
    built = Chain().append(checkpoint="c").append()
    for step in steps:
        built.add(SetInfo(step))
    return files_of(built)


@dataclass
class Served:
    """A server on a port of its own; what isn't said is as in a real one."""

    pace: Pace = field(default_factory=Pace)
    most: int = 10
    held_bytes: int = HELD_BYTES
    puts_prove: bool = True
    as_reached: bool = False
    hold: threading.Event = field(default_factory=threading.Event)
    """What a call with a delay waits for."""

    def __enter__(self) -> Served:
        self.disk = DictStore()
        self.store = FaultyStore(self.disk, delay=lambda: assert_(self.hold.wait(30)))
        self.repository = Repository(self.store)
        self.tokens = Tokens(self.store)
        access, signer = DatasetAccess(self.repository, self.tokens), Signer(bytes(32))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        links = Links(self.store, signer, self.url)
        self.sessions = Sessions(
            self.repository,
            access,
            links,
            puts_prove=self.puts_prove,
            as_reached=self.as_reached,
            pace=self.pace,
            most=self.most,
            held_bytes=self.held_bytes,
            metrics=(metrics := Metrics()),
        )
        routes = [*self.sessions.routes(), *Datasets(self.repository, access, signer).routes()]
        app = create_app(
            Queue(self.store),
            None,
            wake=lambda: None,
            is_healthy=lambda: True,
            datasets=routes,
            metrics=metrics,
        )
        self.uvicorn = uvicorn.Server(
            uvicorn.Config(
                app,
                http=PatientProtocol,
                ws=SessionSocket,
                ws_ping_interval=None,
                ws_per_message_deflate=False,
                ws_max_size=codec.LIMITS.message_bytes,
                lifespan="off",
                log_config=None,
                timeout_graceful_shutdown=1,
            )
        )
        self.thread = threading.Thread(
            target=lambda: self.uvicorn.run(sockets=[self.listener]), daemon=True
        )
        self.thread.start()
        self.token = self.tokens.create(Scope.WRITE)
        self.client = ReferenceClient(f"{self.url}/{NAME}", self.token)
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.set()
        self.uvicorn.should_exit = True
        self.thread.join(10)
        self.listener.close()
        assert self.sessions.stop(10)

    def holds(self, files: Files) -> None:
        for path, data in files.items():
            self.disk.put(f"{NAME}/{path}", data)

    @property
    def stored(self) -> Files:
        found = self.disk.objects.items()
        own = f"{NAME}/.lakeferry"
        return {
            path.removeprefix(f"{NAME}/"): data
            for path, data in found
            if path.startswith(f"{NAME}/") and not path.startswith(own)
        }


def assert_(condition: bool) -> None:
    assert condition


@pytest.fixture
def server() -> Iterator[Served]:
    with Served() as served:
        yield served


# --- Before the session -------------------------------------------------------------------


def test_refusals_come_in_the_order_of_the_reference(server: Served) -> None:
    server.holds(dataset())
    url, token = server.client.url, server.token

    def refusal(operation: str, headers: dict[str, str], *, path: str = url) -> tuple[int, str]:
        return ReferenceClient(path, None, headers).refusal(operation)

    version, wrong = {"x-odf-smtp-version": "1"}, {"x-odf-smtp-version": "2"}
    good = {"Authorization": f"Bearer {token}"}
    malformed = {"Authorization": "Basic x"}
    absent = f"{server.url}/acc/none"
    for operation in ("pull", "push"):
        assert refusal(operation, malformed | wrong) == (400, "Invalid Bearer token header")
        assert refusal(operation, wrong)[0] == 401
        for never_ours in ("lf_x", "a:b"):
            assert refusal(operation, wrong | {"Authorization": f"Bearer {never_ours}"}) == (
                401,
                "Authentication token invalid",
            )
        assert refusal(operation, good)[0] == 400
        assert refusal(operation, good | wrong) == (
            400,
            '{"message":"Incompatible client version"}',
        )
    assert refusal("pull", good | wrong, path=absent) == (404, "")
    assert refusal("pull", good | version, path=absent) == (404, "")
    assert fetch(f"{url}/pull", good)[0] == 426


def test_a_bad_token_doesnt_tell_what_is_there(server: Served) -> None:
    server.holds(dataset())
    for path in (server.client.url, f"{server.url}/acc/none"):
        assert ReferenceClient(path, "lf_x").refusal("pull")[0] == 401
        assert ReferenceClient(path).refusal("pull")[0] == 401


def test_a_delta_table_isnt_an_odf_dataset(server: Served) -> None:
    for name, data in History().then(Append(1)).objects().items():
        server.disk.put(f"{NAME}/{name}", data)
    head = Repository(server.disk).delta(NAME).current()
    assert head is not None
    with pytest.raises(Closed) as refused:
        server.client.push(dataset(), current_head=head.text, force=True)
    # The reference knows no other refusal of blocks.
    assert refused.value.document == {"Err": {"SeedBlockOverwriteRestricted": {}}}


def test_a_table_whose_chain_is_long_in_the_making_keeps_only_its_own_waiting() -> None:
    readers, pullers = 60, 24
    other = DatasetName.parse("acc/other")
    with ThreadPoolExecutor(readers + pullers) as pool, Served(most=100) as server:
        for name, data in History().then(Append(1)).objects().items():
            server.disk.put(f"{NAME}/{name}", data)
        for name, data in dataset().items():
            server.disk.put(f"{other}/{name}", data)
        server.store.rule = lambda call: (
            Fault.DELAY if any(".parquet" in path for path in call.paths) else None
        )
        headers = {"Authorization": f"Bearer {server.token}"}

        def plan() -> Any:
            with server.client.open("pull") as session:
                return session.ask(PULL)["Ok"]["transfer_plan"]["num_blocks"]

        def asked() -> int:
            return sum(call.paths == (f"{NAME}/refs/head",) for call in list(server.store.history))

        heads = [
            pool.submit(fetch, f"{server.url}/{NAME}/refs/head", headers) for _ in range(readers)
        ]
        until(lambda: asked() >= readers)
        plans = [pool.submit(plan) for _ in range(pullers)]
        until(lambda: asked() >= readers + pullers)
        quick = ReferenceClient(f"{server.url}/{other}", server.token)
        assert quick.pull() == dataset()
        assert not any(each.done() for each in (*heads, *plans))
        server.hold.set()
        [found] = {each.result() for each in heads}
        assert found[0] == 200
        assert {each.result() for each in plans} == {2}
        assert server.repository.delta(NAME).head() == Multihash.parse(found[1].decode())


def test_the_published_dialect_is_chosen_by_its_subprotocol(server: Served) -> None:
    files = dataset()
    server.holds(files)

    async def pull() -> tuple[str | None, list[m.Message | TransferFailure]]:
        headers = server.client.headers | server.client.authorization
        url = f"{server.client.url}/pull"
        data = m.ObjectFile(m.WireObjectKind.DATA_SLICE, Multihash.sha3_256(b"rows 0 to 9"))
        dialogue: list[tuple[m.Message, type]] = [
            (m.PullRequest(dataset_id=f"did:odf:f{DATASET_ID.hex()}"), m.PullPlan),
            (m.PullMetadataRequest(), m.PullMetadata),
            (m.PullObjectsRequest((data,)), m.PullObjects),
        ]
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(url, headers=headers, protocols=(SUBPROTOCOL,)) as session,
        ):
            answers = []
            for question, expected in dialogue:
                await session.send_str(codec.encode_message(MessageDialect.PUBLISHED, question))
                text = await session.receive_str()
                answers.append(codec.decode_message(MessageDialect.PUBLISHED, (expected,), text))
            return session.protocol, answers

    protocol, answers = asyncio.run(pull())
    assert protocol == SUBPROTOCOL
    match answers:
        case [m.PullPlan(plan), m.PullMetadata(batch), m.PullObjects((download,))]:
            run = [(name.text, data) for name, data in tarball.unpack(batch.payload)]
            assert run == run_of(files)
            assert plan.num_blocks == len(run)
            assert fetch(download.url.url) == (200, b"rows 0 to 9")
        case _:
            raise AssertionError(answers)


def test_there_are_so_many_sessions_and_no_more() -> None:
    with Served(most=2) as server, ExitStack() as opened:
        server.holds(dataset())
        for _ in range(2):
            opened.enter_context(server.client.open("pull")).ask(PULL)
        assert server.client.refusal("pull")[0] == 503
        opened.close()
        until(lambda: lets_in(server.client))


def lets_in(client: ReferenceClient) -> bool:
    try:
        client.pull()
    except Exception:  # noqa: BLE001 - any refusal is one
        return False
    return True


# --- Time ---------------------------------------------------------------------------------


def test_a_session_may_be_silent_for_longer_than_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_timeouts, "_HEAD_WITHIN_S", 0.2)
    with Served() as server:
        server.holds(dataset())
        with server.client.open("pull") as session:
            with pytest.raises(TimeoutError):
                session.socket.recv(0.6)
            assert session.ask(PULL)["Ok"]["transfer_plan"]["num_blocks"] == 3


def test_a_client_that_says_nothing_is_told_to_go() -> None:
    with Served(Pace(first_ms=150)) as server:
        server.holds(dataset())
        for operation in ("pull", "push"):
            with server.client.open(operation) as session:
                with pytest.raises(Closed) as closed:
                    session.hear()
                assert closed.value.code == 1011
                assert closed.value.internal == ("InitialRequest", "timeout")


def test_a_client_that_uploads_is_asked_for_progress_until_it_is_complete() -> None:
    with Served(Pace(keep_alive_ms=30)) as server, server.client.open("push") as session:
        files = dataset()
        run = run_of(files)
        session.request_push(None)
        session.send_blocks(run)
        strategies = session.urls(objects_of(run))
        for count in range(3):
            assert session.hear() == {}
            session.say({"details": {"Running": {"uploaded_objects_count": count}}})
        session.upload(files, strategies)
        session.say({"details": "Complete"})
        session.say({})
        # Requests for progress that were under way come first; the confirmation is the last.
        until(lambda: server.stored == files)
        assert session.hear() == {}


# --- What comes from a hostile client -----------------------------------------------------


def bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    chunk = bytes(1 << 20)
    return b"".join([*(packer.compress(chunk) for _ in range(300)), packer.flush()])


def out_of_order(run: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return [run[0], *run[:0:-1]]


RUN = run_of(dataset())
HOSTILE: dict[str, tuple[list[tuple[str, bytes]], Callable[[], bytes] | None, str]] = {
    "a wrong hash": ([(name_of(b"x"), RUN[0][1]), *RUN[1:]], None, "hash_mismatch"),
    "out of order": (out_of_order(RUN), None, "invalid_input"),
    "no seed": (RUN[1:], None, "diverged"),
    "a block twice": ([*RUN, RUN[-1]], None, "invalid_input"),
    "another folder": ([("../" + RUN[0][0], RUN[0][1])], None, "invalid_input"),
    "an absolute name": ([("/" + RUN[0][0], RUN[0][1])], None, "invalid_input"),
    "no block": ([(name_of(b"nonsense"), b"nonsense")], None, "invalid_input"),
    "no archive": (RUN, lambda: b"nonsense", "invalid_input"),
    "another count": (RUN, lambda: packed(RUN[:2]), "invalid_input"),
    "nothing at all": ([], None, "invalid_input"),
    "zeros without end": (RUN, bomb, "limit_exceeded"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_blocks_that_make_no_chain_are_refused_and_nothing_is_stored(
    case: str, server: Served
) -> None:
    run, payload, code = HOSTILE[case]
    with server.client.open("push") as session:
        session.request_push(None)
        with pytest.raises(Closed) as closed:
            session.send_blocks(run, payload and payload())
    assert closed.value.code == 1011
    assert closed.value.internal == ("MetadataRequest", code)
    assert server.stored == {}


SPEECHES: dict[str, Callable[[], str | bytes]] = {
    "a binary frame": lambda: b"{}",
    "no JSON": lambda: "nonsense",
    "deep JSON": lambda: "[" * 50_000,
    "another message": lambda: json.dumps({"new_blocks": batch_of(RUN)}),
    "too much": lambda: json.dumps({**PULL, "padding": "x" * (1 << 20)}),
}


# A pull's request has no member that must be there: to it another message is one.
@pytest.mark.parametrize(
    ("operation", "case"),
    [("push", case) for case in SPEECHES]
    + [("pull", case) for case in SPEECHES if case != "another message"],
)
def test_a_message_that_makes_no_sense_ends_the_session_and_not_the_server(
    case: str, operation: str, server: Served
) -> None:
    server.holds(dataset())
    with server.client.open(operation) as session:
        session.socket.send(SPEECHES[case]())
        with pytest.raises(Closed) as closed:
            session.hear()
    assert closed.value.code == 1011
    assert server.client.pull() == server.stored == dataset()


@pytest.mark.parametrize("as_reached", [True, False])
def test_urls_lead_to_where_a_client_came_unless_the_server_says_where_it_is(
    as_reached: bool,
) -> None:
    files = dataset()
    with Served(as_reached=as_reached) as server:
        server.holds(files)
        came = server.client.url.replace("127.0.0.1", "localhost")
        client = ReferenceClient(came, server.token)
        with client.open("pull") as session:
            session.ask(PULL)
            session.ask({})
            answer = session.ask({"object_files": objects_of(run_of(files))})
        urls = [each["download_from"]["url"] for each in answer["object_transfer_strategies"]]
        address = came if as_reached else server.client.url
        assert urls
        assert all(url.startswith(f"{address}/") for url in urls)
        assert client.pull() == files


def test_urls_are_only_for_what_the_blocks_name(server: Served) -> None:
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        other = {"object_type": "DataSlice", "physical_hash": name_of(b"other"), "size": 5}
        with pytest.raises(Closed) as closed:
            session.urls([other])
    assert closed.value.internal == ("ObjectsRequest", "invalid_input")


def test_a_token_that_was_withdrawn_commits_nothing(server: Served) -> None:
    files = dataset()
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        session.upload(files, session.urls(objects_of(RUN)))
        server.disk.delete_many([found.path for found in server.disk.list(TOKENS_FOLDER)])
        until(
            lambda: fetch(f"{server.client.url}/refs/head", server.client.authorization)[0] == 401
        )
        with pytest.raises(Closed) as closed:
            session.complete()
    assert closed.value.internal == ("CompleteRequest", "unauthorized")
    assert "refs/head" not in server.stored


# --- Objects and commits ------------------------------------------------------------------


def test_objects_come_in_pages(server: Served) -> None:
    files = dataset()
    objects = objects_of(RUN)
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        for number, one in enumerate(objects, 1):
            is_last = number == len(objects)
            session.upload(files, session.urls([one], is_truncated=not is_last))
            if not is_last:
                session.say({"details": "Complete"})
        assert session.complete() == {}
    assert server.stored == files


def test_a_long_request_may_come_in_one_packet_with_the_end_of_the_page_before(
    server: Served,
) -> None:
    files = dataset()
    objects = objects_of(RUN)
    asked = (objects * codec.LIMITS.objects)[:1_000]
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        session.upload(files, session.urls(objects, is_truncated=True))
        protocol = session.socket.protocol
        for message in (
            {"details": "Complete"},
            {"object_files": asked, "is_truncated": False},
        ):
            protocol.send_text(json.dumps(message).encode())
        packets = b"".join(protocol.data_to_send())
        assert len(packets) > codec.LIMITS.message_bytes
        session.socket.socket.sendall(packets)
        assert len(session.hear()["Ok"]["object_transfer_strategies"]) == len(asked)


def test_where_the_store_takes_anything_objects_are_read_before_a_commit() -> None:
    with Served(puts_prove=False) as server:
        files = dataset()
        [data] = [path for path in files if path.startswith("data/")][:1]
        server.holds({data: files[data][::-1]})
        with pytest.raises(Closed) as closed:
            server.client.push(files)
        assert closed.value.internal == ("CompleteRequest", "hash_mismatch")
        assert "refs/head" not in server.stored
        assert data not in server.stored
        assert server.client.push(files) == 1
        assert server.stored == files


def test_a_new_dataset_is_as_visible_as_it_was_pushed(server: Served) -> None:
    server.client.push(dataset(), visibility="Public")
    assert server.repository.visibility(NAME) is Visibility.PUBLIC
    server.client.push(dataset("more"), visibility="Private")
    assert server.repository.visibility(NAME) is Visibility.PUBLIC


@pytest.mark.parametrize("after", range(5))
def test_a_push_that_is_cut_off_after_any_message_leaves_nothing_in_the_way(
    after: int, server: Served
) -> None:
    files = dataset()
    with server.client.open("push") as session:
        strategies: list[dict[str, Any]] = []
        steps: list[Callable[[], object]] = [
            lambda: session.request_push(None),
            lambda: session.send_blocks(RUN),
            lambda: strategies.extend(session.urls(objects_of(RUN))),
            lambda: session.upload(files, strategies),
            lambda: session.say({"details": "Complete"}),
        ]
        for step in steps[: after + 1]:
            step()
        session.socket.socket.shutdown(socket.SHUT_RDWR)
    assert server.client.head() is None
    assert server.client.push(files) == (len(objects_of(RUN)) if after < 3 else 0)
    assert server.stored == files


def test_a_client_that_leaves_while_it_is_committed_finds_the_commit_made(server: Served) -> None:
    files = dataset()
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        session.upload(files, session.urls(objects_of(RUN)))
        server.store.rule = on("SWAP", Fault.DELAY, containing="refs/head")
        session.say({"details": "Complete"})
        session.say({})
        until(lambda: any(call.verb == "SWAP" for call in server.store.history))
    assert "refs/head" not in server.stored
    server.hold.set()
    until(lambda: server.stored == files)


def test_a_server_that_ends_lets_a_commit_come_to_its_end(server: Served) -> None:
    files = dataset()
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        session.upload(files, session.urls(objects_of(RUN)))
        server.store.rule = on("SWAP", Fault.DELAY, containing="refs/head")
        session.say({"details": "Complete"})
        session.say({})
        until(lambda: any(call.verb == "SWAP" for call in server.store.history))
        assert not server.sessions.stop(0)
        server.hold.set()
        assert server.sessions.stop(30)
        assert server.stored == files
        assert session.hear() == {}


def test_a_store_that_fails_is_told_without_its_inside(server: Served) -> None:
    server.holds(dataset())
    server.store.rule = on("RANGE", Fault.FAIL, containing="blocks/", times=-1)
    with server.client.open("pull") as session:
        answer = session.ask(PULL)
    internal = {"phase": {"Pull": "InitialRequest"}, "error_message": "Internal error"}
    assert answer == {"Err": {"Internal": internal}}
    server.store.rule = lambda _: None
    assert server.client.pull() == dataset()


def test_long_messages_go_in_frames_that_every_peer_reads(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websockets, "LARGEST_FRAME_BYTES", 1000)
    server.holds(dataset())
    with server.client.open("pull") as session:
        session.ask(PULL)
        session.say({})
        frames = list(session.socket.recv_streaming())
    assert len(frames) > 1
    assert max(map(len, frames[:-1])) == 1000
    assert json.loads("".join(map(str, frames)))["blocks"]["num_blocks"] == 3
    assert server.client.pull() == dataset()


def test_all_objects_of_a_large_dataset_may_be_asked_for_at_once(server: Served) -> None:
    files = dataset()
    server.holds(files)
    asked = (objects_of(run_of(files)) * codec.LIMITS.objects)[: codec.LIMITS.objects]
    with server.client.open("pull") as session:
        session.ask(PULL)
        session.ask({})
        session.say({"object_files": asked})
        frames = [len(frame) for frame in session.socket.recv_streaming()]
    assert sum(frames) > 16 << 20
    assert max(frames) < 16 << 20


def test_blocks_of_unfinished_pushes_make_way_for_another_client() -> None:
    def some(number: int) -> Files:
        return files_of(Chain(DATASET_ID[:-1] + bytes([number])).append())

    size = len(packed(run_of(some(0))))
    with Served(held_bytes=10 * size) as server, ExitStack() as opened:
        unfinished = []
        for number in range(20):
            client = ReferenceClient(f"{server.url}/acc/n{number}", server.token)
            session = opened.enter_context(client.open("push"))
            session.request_push(None)
            try:
                session.send_blocks(run_of(some(number)))
            except Closed as closed:
                # A client doesn't take from itself.
                full = closed.internal
                break
            unfinished.append(session)
        assert full == ("MetadataRequest", "limit_exceeded")
        assert 3 <= len(unfinished) < 10
        other = server.tokens.create(Scope.WRITE)
        for number in range(20, 25):
            files = some(number)
            client = ReferenceClient(f"{server.url}/acc/n{number}", other)
            assert client.push(files) == 1
            assert client.pull() == files
        # The first ones have been silent for longest.
        with pytest.raises(Closed, match="1013 other clients are waiting"):
            unfinished[0].hear()
        strategies = unfinished[-1].urls(objects_of(run_of(some(len(unfinished) - 1))))
        assert len(strategies) == 1


def test_a_session_keeps_nothing_of_what_it_refuses(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[BaseException | None] = []

    class Watched(PushServer):
        def receive(self, event: e.MachineEvent, now_ms: int) -> tuple[e.MachineAction, ...]:
            if isinstance(event, e.WorkRefused):
                assert isinstance(event.problem, BaseException)
                refused.extend((event.problem, event.problem.__context__))
            return super().receive(event, now_ms)

    monkeypatch.setattr(websocket_sessions, "PushServer", Watched)
    with server.client.open("push") as session:
        session.request_push(None)
        with pytest.raises(Closed, match="invalid_input"):
            session.send_blocks(run_of(dataset()), b"no archive")
    # A traceback would have the blocks.
    assert len(refused) == 2
    assert all(each is None or each.__traceback__ is None for each in refused)


# --- Without a socket ---------------------------------------------------------------------


def test_blocks_are_counted_before_they_are_unpacked_and_given_back_if_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of(dataset())
    payload = packed(run)
    held: list[int] = []
    budget = Budget(len(payload) * 3 // 2)
    unpack = tarball.unpack

    def watched(*args: Any, **more: Any) -> Iterator[tuple[Multihash, bytes]]:
        held.append(budget.held)
        assert [budget.unpacking.acquire(blocking=False) for _ in range(2)] == [True, False]
        budget.unpacking.release()
        yield from unpack(*args, **more)

    monkeypatch.setattr(tarball, "unpack", watched)

    def taken(batch: m.BlocksBatch) -> Pushing:
        store = DictStore()
        links = Links(store, Signer(bytes(32)), "http://x")
        made = Pushing(
            Repository(store),
            NAME,
            links,
            budget,
            puts_prove=True,
            urls_last_s=60,
            check=lambda: None,
        )
        made.answer(e.ConsiderPush(m.PushRequest(None, m.TransferPlan(len(run)))))
        made.answer(e.TakeBlocks(batch))
        return made

    with pytest.raises(LimitExceeded):
        taken(m.BlocksBatch(len(run), payload))
    assert (held, budget.held) == ([], 0)
    budget = Budget()
    with pytest.raises(InvalidInput):
        taken(m.BlocksBatch(len(run) + 1, payload))
    assert (held, budget.held) == ([2 * len(payload)], 0)
    made = taken(m.BlocksBatch(len(run), payload))
    assert len(payload) < budget.held
    made.close()
    assert budget.held == 0


def test_of_two_names_for_one_dataset_the_later_is_withdrawn() -> None:
    built = Chain().add(SetInfo("only blocks"))
    run = [(name.text, data) for name, data in built.blocks]
    disk = DictStore()
    began: list[e.HostEvent] = []

    def pushing(name: str, store: Any) -> Pushing:
        repository = Repository(store)
        made = Pushing(
            repository,
            DatasetName.parse(name),
            Links(store, Signer(bytes(32)), "http://x"),
            Budget(),
            puts_prove=True,
            urls_last_s=60,
            check=lambda: None,
        )
        request = m.PushRequest(None, m.TransferPlan(len(run)))
        assert made.answer(e.ConsiderPush(request)) == e.PushConsidered()
        batch = m.BlocksBatch(len(run), packed(run))
        assert made.answer(e.TakeBlocks(batch)) == e.BlocksTaken()
        assert made.answer(e.EnsureDataset()) == e.DatasetReady()
        return made

    second = pushing("acc/b", disk)
    slow = FaultyStore(
        disk,
        on("SWAP", Fault.DELAY, containing="acc/a/refs/head"),
        delay=lambda: began.append(second.answer(e.CheckAndCommit())),
    )
    first = pushing("acc/a", slow)
    refused = first.answer(e.CheckAndCommit())
    assert began == [e.RunCommitted()]
    assert refused == e.WorkRefused(RefCollision(f"did:odf:f{DATASET_ID.hex()}"))
    assert "acc/a/refs/head" not in disk.objects
    assert disk.objects["acc/b/refs/head"] == built.head.text.encode()


def test_a_client_that_leaves_is_told_from_a_store_that_fails(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        with server.client.open("push") as session:
            session.request_push(None)
            session.send_blocks(run_of(dataset()))
        until(lambda: any("client left" in line for line in caplog.messages), lambda: caplog.text)
    assert "storage_unavailable" not in str([vars(record) for record in caplog.records])
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
