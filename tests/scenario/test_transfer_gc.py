"""``gc`` beside a running server, and what that server shows of itself meanwhile.

Its root is on local disk and on a real S3 server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from signal import SIGTERM
from typing import Any

import pytest

from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.repository.push_records import PUSHES_FOLDER
from tests.scenario.test_transfer_rest import Root
from tests.scenario.test_transfer_rest import root as root
from tests.scenario.test_transfer_server import chain, stored
from tests.support.odf import Chain, SetInfo
from tests.support.reference_client import (
    Closed,
    Files,
    ReferenceClient,
    fetch,
    files_of,
    objects_of,
    path_of,
    run_of,
)
from tests.support.serving import Serving, serving, until
from tests.unit.cli.program import Ended, run

LONG = 1_500


@pytest.fixture
def server(root: Root) -> Iterator[Serving]:
    with serving(root.home, root.variables, root=root.store) as running:
        yield running
        assert "Traceback" not in running.shown(), running.shown()


@pytest.fixture
def client(root: Root, server: Serving) -> ReferenceClient:
    return ReferenceClient(f"{server.url}/acc/a", root.token("--scope", "write"))


def gc(root: Root, *words: str) -> Ended:
    return run("gc", root.store.uri, *words, home=root.home, variables=root.variables)


def collected(root: Root, *words: str) -> dict[str, Any]:
    done = gc(root, "--json", *words)
    assert done.code == 0, done.err
    document: dict[str, Any] = done.document
    return document


def records(root: Root) -> list[str]:
    return [info.path for info in root.store.list(PUSHES_FOLDER)]


def abandon(client: ReferenceClient, files: Files) -> int:
    """Send all objects of a push, leave before it is complete, and say how many there were."""
    run = run_of(files)
    with client.open("push") as session:
        session.request_push(None)
        session.send_blocks(run)
        session.upload(files, session.urls(objects_of(run)))
    return len({path_of(one) for one in objects_of(run)})


def lines(server: Serving) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def test_what_an_aborted_push_has_left_goes_and_the_rest_stays(
    root: Root, client: ReferenceClient
) -> None:
    whole = ReferenceClient(client.url.replace("acc/a", "acc/b"), client.token)
    files = files_of(Chain(b"\xed\x01" + bytes(32)).append(checkpoint="other"))
    whole.push(files)
    sent = abandon(client, chain())
    assert sent
    until(lambda: any('"left"' in root.store.get(path).decode() for path in records(root)))
    orphan = f"acc/b/data/{Multihash.sha3_256(b'never named')}"
    root.store.put(orphan, b"never named")

    # It is all too young.
    assert collected(root)["deleted"] == []
    foreseen = collected(root, "--grace", "0s", "--dry-run")
    assert foreseen["dry_run"]
    # Beside the objects and the orphan, the id that the push had reserved for its dataset.
    assert len(foreseen["plan"]) == sent + 2
    quick = collected(root, "--grace", "0s", "--unfinished-only")
    assert (len(quick["deleted"]), quick["changed"]) == (sent, True)
    rest = collected(root, "--grace", "0s")
    assert (orphan in rest["deleted"], len(rest["deleted"]), rest["changed"]) == (True, 2, True)
    again = collected(root, "--grace", "0s")
    assert (again["deleted"], again["bytes"], again["changed"]) == ([], 0, False)
    assert records(root) == []
    assert stored(root, "acc/b") == files
    assert whole.pull() == files
    assert client.push(chain()) >= sent


def test_a_push_in_progress_loses_nothing(root: Root, client: ReferenceClient) -> None:
    files, run = chain("a"), run_of(chain("a"))
    root.hold("acc/a", {path: data for path, data in files.items() if path != "refs/head"})
    with client.open("push") as session:
        session.request_push(None)
        session.send_blocks(run)
        strategies = session.urls(objects_of(run))
        assert {each["push_strategy"] for each in strategies} == {"SkipUpload"}
        assert collected(root, "--grace", "0s")["deleted"] == []
        session.complete()
    assert collected(root, "--grace", "0s")["deleted"] == []
    assert stored(root) == files


def test_without_json_it_says_what_it_did(root: Root, server: Serving) -> None:
    root.store.put(f"d/data/{Multihash.sha3_256(b'x')}", b"x")
    assert "would delete 1 object" in gc(root, "--grace", "0s", "--dry-run").out
    assert "deleted 1 object" in gc(root, "--grace", "0s").out


@pytest.mark.parametrize("words", [("--grace", "soon"), ("--engine", "abacus"), ("more",)])
def test_wrong_usage_is_said(root: Root, words: tuple[str, ...]) -> None:
    done = gc(root, "--json", *words)
    assert done.code == 2
    assert done.error["code"] == "invalid_input"


def test_its_log_and_its_metrics_tell_of_sessions_and_of_refusals(
    server: Serving, client: ReferenceClient
) -> None:
    client.push(chain())
    stranger = ReferenceClient(client.url, "lf_0123456789abcdef_" + "x" * 43)
    assert stranger.refusal("pull")[0] == 401
    with pytest.raises(Closed):
        client.push(chain("b"), current_head=None)
    until(lambda: any(line["event"] == "session failed" for line in lines(server)), server.shown)
    said = lines(server)
    [refused] = [line for line in said if line["event"] == "handshake refused"]
    assert {"op": "pull", "dataset": "acc/a", "status": 401}.items() <= refused.items()
    done = next(line for line in said if line["event"] == "session done")
    assert {"op": "push", "dataset": "acc/a", "blocks": 3, "level": "info"}.items() <= done.items()
    assert not [line for line in said if line["level"] in ("error", "critical")]
    assert all({"time", "level", "event"} <= line.keys() for line in said)
    status, body = fetch(f"{server.url}/metrics")
    assert status == 200
    numbers = body.decode().splitlines()
    assert 'lakeferry_sessions_ended_total{op="push",outcome="done"} 1.0' in numbers
    assert 'lakeferry_handshakes_refused_total{op="pull",status="401"} 1.0' in numbers
    for secret in (client.token, stranger.token, "signature=", "acc/a"):
        assert secret is not None
        assert secret not in body.decode()


def test_a_server_that_is_told_to_end_while_it_commits(
    root: Root, server: Serving, client: ReferenceClient
) -> None:
    built = Chain().append(checkpoint="c")
    for number in range(LONG):
        built.add(SetInfo(f"step {number}"))
    files = files_of(built)
    run = run_of(files)
    with client.open("push") as session:
        session.request_push(None)
        session.send_blocks(run)
        session.upload(files, session.urls(objects_of(run)))
        session.say({"details": "Complete"})
        session.say({})
        # The commit is under way.
        until(lambda: next(root.store.list("acc/a/blocks/"), None) is not None, server.shown)
        assert server.end(SIGTERM) == 0, server.shown()
        # It says that all is well and that it goes, or just the latter.
        heard = []
        with suppress(Closed):
            while True:
                heard.append(session.hear())
    assert heard in ([], [{}])
    # It was brought to its end, or hasn't begun to be seen.
    assert "refs/head" not in stored(root) or stored(root) == files
    with serving(root.home, root.variables, root=root.store) as second:
        again = ReferenceClient(f"{second.url}/acc/a", client.token)
        again.push(files)
        assert again.head() == files["refs/head"].decode()
    assert stored(root) == files
    assert collected(root, "--grace", "0s", "--engine", "local")["deleted"] == []
