"""Pushes and pulls by a client of the reference dialect, from and to a real server.

Its root is on local disk and on a real S3 server. The golden dataset lies beside the
repository, where there is one; without it, one that is made here takes its place.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from signal import SIGTERM

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from lakeferry.transfer.repository.dataset_names import OWN_FOLDER
from tests.scenario.test_transfer_rest import Root, dataset_a
from tests.scenario.test_transfer_rest import root as root
from tests.support.odf import DATASET_ID, Chain, SetInfo
from tests.support.reference_client import (
    Closed,
    Files,
    ReferenceClient,
    Refused,
    fetch,
    files_of,
    objects_of,
    path_of,
    put,
    run_of,
)
from tests.support.serving import Serving, serving

OTHER_ID = b"\xed\x01" + bytes(32)


@pytest.fixture
def server(root: Root) -> Iterator[Serving]:
    with serving(root.home, root.variables, root=root.store) as running:
        yield running
        assert "Traceback" not in running.shown(), running.shown()


@pytest.fixture
def client(root: Root, server: Serving) -> ReferenceClient:
    return ReferenceClient(f"{server.url}/acc/a", root.token("--scope", "write"))


def named(client: ReferenceClient, name: str) -> ReferenceClient:
    return ReferenceClient(client.url.replace("acc/a", name), client.token)


def stored(root: Root, name: str = "acc/a") -> Files:
    """What is in a dataset's folder besides the server's own."""
    found = root.below(name).items()
    return {path: data for path, data in found if not path.startswith(OWN_FOLDER)}


def chain(*steps: str) -> Files:
    """A dataset with rows, a checkpoint, and what makes it different from others."""
    built = Chain().append(checkpoint="c").append()
    for step in steps:
        built.add(SetInfo(step))
    return files_of(built.append(checkpoint=f"after {steps}") if steps else built)


def test_a_pull_brings_identical_bytes(root: Root, client: ReferenceClient) -> None:
    root.hold("acc/a", dataset_a())
    assert client.pull() == dataset_a()


def test_a_push_makes_the_dataset_with_identical_bytes(root: Root, client: ReferenceClient) -> None:
    files = dataset_a()
    assert client.head() is None
    assert client.push(files) > 0
    assert stored(root) == files
    assert client.pull() == files


def test_a_dataset_without_objects_is_pushed_and_pulled(
    root: Root, client: ReferenceClient
) -> None:
    files = files_of(Chain())
    assert client.push(files) == 0
    assert stored(root) == client.pull() == files


def test_what_is_up_to_date_is_left_alone(root: Root, client: ReferenceClient) -> None:
    files = chain()
    client.push(files)
    before = root.below("acc/a")
    assert client.push(files) == 0
    assert client.pull(client.head()) == {}
    assert root.below("acc/a") == before


def test_what_is_new_travels_alone(root: Root, client: ReferenceClient) -> None:
    short, long = chain(), chain("more")
    client.push(short)
    assert client.push(long) == 2
    assert stored(root) == long
    new = client.pull(short["refs/head"].decode())
    assert set(new) - {"refs/head"} == set(long) - set(short)


def test_what_has_diverged_needs_force(root: Root, client: ReferenceClient) -> None:
    ours, theirs = chain("ours"), chain("theirs")
    client.push(theirs)
    before = stored(root)
    with pytest.raises(Closed) as refused:
        client.push(ours)
    assert refused.value.internal == ("MetadataRequest", "diverged")
    assert stored(root) == before
    with client.open("pull") as session:
        request = {"begin_after": ours["refs/head"].decode(), "force_update_if_diverged": False}
        answer = session.ask(request)
        head = theirs["refs/head"].decode()
        expected = {"head": head, "tail": request["begin_after"]}
        assert answer == {"Err": {"InvalidInterval": expected}}
    assert client.pull(ours["refs/head"].decode(), force=True) == theirs
    client.push(ours, force=True)
    assert client.pull() == ours
    assert before.items() - {("refs/head", before["refs/head"])} <= stored(root).items()


def test_a_head_that_has_moved_is_said_even_with_force(root: Root, client: ReferenceClient) -> None:
    client.push(chain())
    with pytest.raises(Closed) as refused:
        client.push(chain("more"), current_head=None, force=True)
    head = chain()["refs/head"].decode()
    expected = {"actual_head": None, "expected_head": head}
    assert refused.value.document == {"Err": {"InvalidHead": expected}}


def test_one_dataset_has_one_name(root: Root, client: ReferenceClient) -> None:
    client.push(chain())
    before = root.below("acc")
    with pytest.raises(Closed) as refused:
        named(client, "acc/b").push(chain())
    did = f"did:odf:f{DATASET_ID.hex()}"
    assert refused.value.document == {"Err": {"RefCollision": {"dataset_id": did}}}
    assert root.below("acc") == before


def test_a_name_inside_of_another_dataset_is_taken(root: Root, client: ReferenceClient) -> None:
    named(client, "acc").push(chain())
    with pytest.raises(Closed) as refused:
        client.push(files_of(Chain(OTHER_ID)))
    assert refused.value.document == {"Err": {"NameCollision": {"dataset_alias": "acc/a"}}}
    assert root.below("acc/a") == {}


def test_a_seed_is_never_overwritten(root: Root, client: ReferenceClient) -> None:
    client.push(chain())
    before = root.below("acc/a")
    with pytest.raises(Closed) as refused:
        client.push(files_of(Chain(OTHER_ID).append()), force=True)
    assert refused.value.document == {"Err": {"SeedBlockOverwriteRestricted": {}}}
    assert root.below("acc/a") == before


def test_who_is_let_in(root: Root, server: Serving, client: ReferenceClient) -> None:
    client.push(chain())
    anonymous = ReferenceClient(client.url)
    assert anonymous.refusal("pull") == (401, "Anonymous account is restricted")
    assert anonymous.refusal("push")[0] == 401
    assert ReferenceClient(client.url, "nonsense").refusal("pull") == (
        401,
        "Authentication token invalid",
    )
    elsewhere = ReferenceClient(client.url, root.token("--scope", "write", "--dataset", "acc/z"))
    assert elsewhere.refusal("pull") == elsewhere.refusal("push") == (404, "")
    assert named(elsewhere, "acc/none").refusal("pull") == (404, "")
    reader = ReferenceClient(client.url, root.token("--dataset", "acc/a"))
    assert reader.refusal("push") == (403, "")
    assert reader.pull() == chain()
    brief = ReferenceClient(client.url, root.token("--expires", "1s"))
    deadline = time.monotonic() + 30
    answer = None
    while answer is None and time.monotonic() < deadline:
        try:
            brief.pull()
        except Refused as refused:
            answer = refused.status, refused.body
        except Closed:
            # It may end within a session, too.
            continue
    assert answer == (401, "Authentication token expired")
    for version, body in (("2", '{"message":"Incompatible client version"}'), ("one", None)):
        client.headers = {"x-odf-smtp-version": version}
        for operation in ("pull", "push"):
            status, said = client.refusal(operation)
            assert (status, body or said) == (400, said)
    assert fetch(f"{client.url}/pull", client.authorization)[0] == 426


def test_a_public_dataset_is_pulled_by_everybody(root: Root, client: ReferenceClient) -> None:
    client.push(chain(), visibility="Public")
    assert ReferenceClient(client.url).pull() == chain()
    assert ReferenceClient(client.url).refusal("push")[0] == 401


def test_a_client_that_commits_without_uploading_is_refused(
    root: Root, client: ReferenceClient
) -> None:
    files = chain()
    run = run_of(files)
    with client.open("push") as session:
        session.request_push(None)
        session.send_blocks(run)
        session.urls(objects_of(run))
        with pytest.raises(Closed) as refused:
            session.complete()
    assert refused.value.internal == ("CompleteRequest", "missing_file")
    assert client.head() is None
    assert stored(root) == {}


def test_a_client_that_uploads_something_else_is_refused(
    root: Root, client: ReferenceClient
) -> None:
    files = chain()
    run = run_of(files)
    wrong = {path: data[::-1] for path, data in files.items()}

    def push_wrong() -> None:
        with client.open("push") as session:
            session.request_push(None)
            session.send_blocks(run)
            for each in session.urls(objects_of(run)):
                if each["upload_to"] is not None:
                    put(each["upload_to"], wrong[path_of(each["object_file"])])
            session.complete()

    with pytest.raises(Closed) as refused:
        push_wrong()
    assert refused.value.internal[0] == "CompleteRequest"
    assert client.head() is None
    # What is found to be wrong is taken away, one at least each time.
    for _ in objects_of(run):
        with suppress(Closed):
            client.push(files)
    assert client.pull() == files


def test_an_aborted_push_is_resumed_by_the_next(root: Root, client: ReferenceClient) -> None:
    files = chain("more")
    run = run_of(files)
    with client.open("push") as session:
        session.request_push(None)
        session.send_blocks(run)
        strategies = session.urls(objects_of(run))
        sent = session.upload(files, strategies[:1])
    assert client.head() is None
    with client.open("push") as session:
        session.request_push(None)
        session.send_blocks(run)
        again = session.urls(objects_of(run))
        assert again[0]["push_strategy"] == "SkipUpload"
    total = len({path for path in files if path.startswith(("data/", "checkpoints/"))})
    assert client.push(files) >= total - sent > 0
    assert stored(root) == files


def test_of_parallel_pushes_one_wins(root: Root, client: ReferenceClient) -> None:
    client.push(chain())
    base = client.head()
    racers = [chain(f"racer {number}") for number in range(4)]
    ready = threading.Barrier(len(racers))

    def push(files: Mapping[str, bytes]) -> Closed | None:
        run = run_of(files, base)
        try:
            with client.open("push") as session:
                assert session.request_push(base) == {"Ok": {}}
                session.send_blocks(run)
                session.upload(files, session.urls(objects_of(run)))
                session.say({"details": "Complete"})
                ready.wait(60)
                assert session.ask({}) == {}
        except Closed as closed:
            return closed
        return None

    with ThreadPoolExecutor(len(racers)) as pool:
        ends = list(pool.map(push, racers))
    losers = [end for end in ends if end is not None]
    assert {loser.internal for loser in losers} == {("CompleteRequest", "conflict")}
    assert len(losers) == len(racers) - 1
    assert client.pull() == racers[ends.index(None)]


def test_of_parallel_first_pushes_one_wins(root: Root, client: ReferenceClient) -> None:
    racers = [chain(f"racer {number}") for number in range(3)]
    ready = threading.Barrier(len(racers))

    def push(files: Mapping[str, bytes]) -> Closed | None:
        run = run_of(files)
        try:
            with client.open("push") as session:
                session.request_push(None)
                session.send_blocks(run)
                session.upload(files, session.urls(objects_of(run)))
                session.say({"details": "Complete"})
                ready.wait(60)
                assert session.ask({}) == {}
        except Closed as closed:
            return closed
        return None

    with ThreadPoolExecutor(len(racers)) as pool:
        ends = list(pool.map(push, racers))
    assert ends.count(None) == 1
    assert client.pull() == racers[ends.index(None)]


def test_a_server_that_ends_tells_its_clients(client: ReferenceClient, server: Serving) -> None:
    client.push(chain())
    with client.open("pull") as session:
        session.ask({"begin_after": None, "force_update_if_diverged": False})
        assert server.end(SIGTERM) == 0
        with pytest.raises(Closed) as closed:
            session.hear()
    assert closed.value.code == 1012


def test_a_log_tells_of_sessions_and_no_secrets(
    root: Root, server: Serving, client: ReferenceClient
) -> None:
    client.push(chain())
    client.pull()
    log = server.log.read_text()
    ended = [line for line in map(json.loads, log.splitlines()) if line["event"] == "session done"]
    assert [(line["op"], line["dataset"], line["blocks"]) for line in ended[:1]] == [
        ("push", "acc/a", 3)
    ]
    assert all(line["client"] == "127.0.0.1" and line["seconds"] >= 0 for line in ended)
    assert client.token is not None
    for secret in (client.token, "signature=", "X-Amz-Signature"):
        assert secret not in log


def test_no_other_address_takes_a_websocket(server: Serving, client: ReferenceClient) -> None:
    for path in ("healthz", "acc/a/b/pull", "..%2Facc/pull", ".lakeferry/pull", "acc/a/data"):
        with pytest.raises(InvalidStatus) as refused:
            connect(f"{server.url}/{path}".replace("http", "ws", 1), proxy=None)
        assert refused.value.response.status_code == 404
