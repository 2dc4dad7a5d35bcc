"""The HTTP application: who gets which answer, and what is in the queue then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from lakeferry.export import job_queue as queues
from lakeferry.export import webhook
from lakeferry.export.job_queue import Queue
from lakeferry.server.http import http_app as apps
from lakeferry.server.http.http_app import create_app
from tests.support.clock import ManualClock
from tests.support.stores import DictStore, Fault, FaultyStore, on
from tests.unit.export.test_webhook import COMMIT, NOW_MS, SECRET, body

HOOK = "/.lakeferry/lakefs"
KNOWN = {webhook.SECRET_HEADER: SECRET}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    document: Any


@dataclass
class Server:
    """The application with a store in memory, asked as a server would ask it."""

    secret: str | None = SECRET
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    is_healthy: bool = True
    woken: int = 0

    def __post_init__(self) -> None:
        self.store = FaultyStore(DictStore(clock=self.clock))
        self.queue = Queue(self.store, clock=self.clock)
        self.app = create_app(
            self.queue,
            self.secret,
            wake=self._wake,
            is_healthy=lambda: self.is_healthy,
            clock=self.clock,
        )

    def _wake(self) -> None:
        self.woken += 1

    def ask(
        self,
        data: bytes = b"",
        headers: Mapping[str, str] = KNOWN,
        *,
        method: str = "POST",
        path: str = HOOK,
        chunk_bytes: int = 1 << 16,
        ends: bool = True,
    ) -> Answer:
        chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)] or [b""]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not chunks:
                await asyncio.Event().wait()
            chunk = chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(chunks) or not ends}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 80),
        }
        asyncio.run(self.app(scope, receive, send))
        content = b"".join(each.get("body", b"") for each in sent[1:])
        found = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        is_json = found.get("content-type") == "application/json"
        return Answer(sent[0]["status"], found, json.loads(content) if is_json else content)


@pytest.fixture
def server() -> Server:
    return Server()


def test_an_event_is_answered_with_its_job_which_is_in_the_queue_by_then(server: Server) -> None:
    answer = server.ask(body())
    assert answer.status == 202
    (job,) = server.queue.pending()
    assert answer.document == {"job": job.id}
    assert (job.repository, job.ref, job.commit) == ("sales", "main", COMMIT)
    assert server.woken == 1


def test_a_signed_event_is_as_good(server: Server) -> None:
    now_s = NOW_MS // 1000
    headers = {
        webhook.TIMESTAMP_HEADER: str(now_s),
        webhook.SIGNATURE_HEADER: webhook.sign(SECRET, now_s, body()),
    }
    assert server.ask(body(commit_message="other"), headers).status == 401
    assert server.ask(body(), headers).status == 202


@pytest.mark.parametrize("headers", [{}, {webhook.SECRET_HEADER: "wrong"}])
@pytest.mark.parametrize("data", [b"", b"nonsense", pytest.param(body(), id="event")])
def test_whoever_does_not_know_the_secret_learns_nothing_more(
    server: Server, headers: dict[str, str], data: bytes
) -> None:
    answer = server.ask(data, headers)
    assert (answer.status, answer.document["error"]["code"]) == (401, "unauthorized")
    assert "www-authenticate" in answer.headers
    assert SECRET not in str(answer)
    assert server.store.history == []


@pytest.mark.parametrize(
    ("secret", "headers"), [(None, KNOWN), (SECRET, {}), (SECRET, {webhook.SECRET_HEADER: "x"})]
)
def test_nobody_is_let_in_who_has_a_body_without_an_end(
    secret: str | None, headers: dict[str, str]
) -> None:
    assert Server(secret).ask(b"x", headers, ends=False).status == 401


def test_a_server_without_a_secret_is_closed() -> None:
    server = Server(secret=None)
    answer = server.ask(body(), {webhook.SECRET_HEADER: ""})
    assert answer.status == 401
    assert "isn't configured" in answer.document["error"]["message"]


def test_a_replayed_event_is_refused_also_after_it_was_done(server: Server) -> None:
    assert server.ask(body()).status == 202
    answer = server.ask(body())
    assert (answer.status, answer.document["error"]["code"]) == (409, "conflict")
    server.queue.finish(server.queue.pending()[0])
    assert server.ask(body()).status == 409
    assert server.woken == 1
    assert server.queue.pending() == []


@pytest.mark.parametrize("off_ms", [webhook.WINDOW_MS + 1, -webhook.WINDOW_MS - 1])
def test_an_event_that_is_not_of_now_is_refused(server: Server, off_ms: int) -> None:
    server.clock.advance(off_ms)
    assert server.ask(body()).status == 409
    assert server.queue.pending() == []


def test_what_was_recorded_can_never_be_replayed(server: Server) -> None:
    assert server.ask(body()).status == 202
    for _ in range(100):
        server.clock.advance(webhook.WINDOW_MS // 3)
        server.queue.prune()
        assert server.ask(body()).status == 409


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", pytest.param(body(event_type="pre-commit"), id="other")]
)
def test_what_is_no_event_is_refused(server: Server, data: bytes) -> None:
    answer = server.ask(data)
    assert (answer.status, answer.document["error"]["code"]) == (400, "invalid_input")
    assert answer.document["error"]["remedy"]


def test_a_body_is_bounded_in_size(server: Server) -> None:
    most = webhook.LARGEST_BODY_BYTES
    assert server.ask(body() + b" " * (most - len(body()))).status == 202
    answer = server.ask(b" " * (most + 1), ends=False)
    assert (answer.status, answer.document["error"]["code"]) == (413, "limit_exceeded")


def test_a_body_is_bounded_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "BODY_WITHIN_S", 0.01)
    assert server.ask(body(), ends=False).status == 408


def test_a_store_that_fails_is_said_and_the_event_may_come_again(server: Server) -> None:
    server.store.rule = on("PUT_IF_ABSENT", Fault.FAIL)
    answer = server.ask(body())
    assert (answer.status, answer.document["error"]["code"]) == (503, "storage_unavailable")
    assert "retry-after" in answer.headers
    assert server.ask(body()).status == 202


def test_a_full_queue_is_said(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MOST_JOBS", 1)
    assert server.ask(body()).status == 202
    assert server.ask(body(commit_id="d" * 64)).status == 503


def test_health_is_the_workers(server: Server) -> None:
    answer = server.ask(method="GET", path="/healthz", headers={})
    assert (answer.status, answer.document) == (200, {"status": "ok"})
    server.is_healthy = False
    assert server.ask(method="GET", path="/healthz", headers={}).status == 503


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", HOOK, 405), ("POST", "/healthz", 405), ("GET", "/", 404), ("POST", f"{HOOK}/x", 404)],
)
def test_nothing_else_is_answered(server: Server, method: str, path: str, status: int) -> None:
    assert server.ask(body(), method=method, path=path).status == status
