"""``lakeferry serve`` from the outside: how it begins, how it ends, and what it refuses."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest

from lakeferry.export import webhook
from lakeferry.storage import open_store
from tests.support.history import Append, History
from tests.support.servers import WEBHOOK_SECRET, S3Bucket
from tests.support.serving import serving, until
from tests.unit.cli.program import make, run

KNOWN = {webhook.SECRET_HEADER: WEBHOOK_SECRET}


def event() -> bytes:
    said = {
        "event_type": "post-commit",
        "event_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "repository_id": "sales",
        "branch_id": "main",
        "commit_id": "c0ffee" * 10,
    }
    return json.dumps(said).encode()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_says_where_it_is_answers_and_ends_in_good_order(
    tmp_path: Path, how: int, code: int
) -> None:
    with serving(tmp_path, {}, forked=False) as server:
        assert server.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{server.url}/healthz", timeout=30) as response:
            assert (response.status, json.load(response)) == (200, {"status": "ok"})
        assert server.end(how) == code
        assert server.output.read() == b""
    assert "Traceback" not in server.shown()
    if code == 130:
        assert json.loads(server.shown().splitlines()[-1])["error"]["code"] == "interrupted"


def test_its_public_url_is_what_it_shows(tmp_path: Path) -> None:
    with serving(tmp_path, {}, "--public-url", "https://ferry.example.com/") as server:
        assert server.url == "https://ferry.example.com"


@pytest.mark.parametrize("listens", ["0.0.0.0", "127.0.0.1"])
def test_whoever_reaches_it_is_sent_to_where_they_came(tmp_path: Path, listens: str) -> None:
    """On a local root it hands out URLs of its own, and has more than one address."""
    table = make(History().then(Append(1)), tmp_path / "t")
    with serving(tmp_path, {}, "--host", listens) as server:
        port = server.url.rpartition(":")[2]
        # What it shows can be used as it is.
        assert "0.0.0.0" not in server.url
        with urllib.request.urlopen(f"{server.url}/healthz", timeout=30) as answer:
            assert answer.status == 200
        made = run(
            *("token", "create", "--root", server.store.uri, "--scope", "write", "--json"),
            home=tmp_path,
        )
        token = made.document["token"]
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{port}/acc/{host}"
            sent = run("push", table, url, "--token", token, "--json", home=tmp_path)
            assert sent.code == 0, sent.err
            assert sent.document["objects"] > 0
            got = run("pull", url, tmp_path / host, "--token", token, "--json", home=tmp_path)
            assert got.code == 0, got.err
            assert got.document["head"] == sent.document["head"]


def test_without_a_secret_it_runs_and_lets_nobody_in(tmp_path: Path) -> None:
    with serving(tmp_path, {}, secret=None) as server:
        for headers in ({}, {webhook.SECRET_HEADER: ""}, KNOWN):
            status, answer = server.post(event(), headers)
            assert (status, answer["error"]["code"]) == (401, "unauthorized")
        assert "LAKEFERRY_WEBHOOK_SECRET isn't set" in server.shown()


def test_its_queue_may_be_in_an_object_store(tmp_path: Path, s3_bucket: S3Bucket) -> None:
    root = open_store(f"{s3_bucket.uri}/server", s3_bucket.storage_options)
    with serving(tmp_path, s3_bucket.server.environment(), root=root) as server:
        sent = event()
        status, answer = server.post(sent, KNOWN)
        assert status == 202
        assert server.post(sent, KNOWN)[0] == 409
        # Nobody has said where lakeFS is.
        until(lambda: bool(server.queue.failures()), server.shown)
        (failure,) = server.queue.failures()
        assert failure["job"]["id"] == answer["job"]
        assert failure["errors"][0]["code"] == "invalid_input"
        assert server.end(signal.SIGTERM) == 0


def test_what_makes_no_sense_is_refused_before_it_serves(tmp_path: Path) -> None:
    def error(*words: object) -> tuple[int, str]:
        ended = run("serve", *words, "--json", home=tmp_path)
        assert ended.out == ""
        return ended.code, ended.error["code"]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert error("--root", tmp_path / "s", "--port", port) == (2, "invalid_input")
    assert error() == (2, "invalid_input")
    assert error("--root", tmp_path, "--port", 70_000) == (2, "invalid_input")
    assert error("--root", "lakefs://sales/main", "--port", 0) == (2, "invalid_input")
    assert error("--root", "sql:a.b.c", "--port", 0) == (2, "invalid_input")
    assert error("--root", tmp_path, "--port", 0, "--public-url", "ferry") == (2, "invalid_input")
    assert error("--root", tmp_path, "--port", 0, "--host", "256.0.0.1") == (2, "invalid_input")
    assert not (tmp_path / "s").exists()
