"""What a server counts of what happens, as Prometheus gets to see it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakeferry.server.metrics import route_of
from tests.support.reference_client import Closed, ReferenceClient, fetch, objects_of, run_of
from tests.support.serving import until
from tests.unit.server.sessions.test_websocket_sessions import NAME, Served, dataset

FILES = dataset()
RUN = run_of(FILES)


@pytest.fixture
def server() -> Iterator[Served]:
    with Served() as served:
        yield served


def metrics(server: Served) -> dict[tuple[str, ...], float]:
    """Every number by its name and the values of its labels, in the order of their names."""
    status, body = fetch(f"{server.url}/metrics")
    assert status == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_sessions_commits_and_what_was_handed_out_are_counted(server: Served) -> None:
    server.client.push(FILES)
    server.client.pull()
    until(lambda: metrics(server).get(("lakeferry_sessions_ended_total", "pull", "done")) == 1)
    found = metrics(server)
    objects = objects_of(RUN)
    size_bytes = sum(one["size"] for one in objects)
    assert found["lakeferry_sessions_ended_total", "push", "done"] == 1
    assert found["lakeferry_blocks_total", "push"] == len(RUN)
    assert found["lakeferry_blocks_total", "pull"] == len(RUN)
    for op in ("push", "pull"):
        assert found["lakeferry_objects_granted_total", op] == len(objects)
        assert found["lakeferry_object_bytes_granted_total", op] == size_bytes
        assert found["lakeferry_session_seconds_count", op] == 1
        assert found["lakeferry_sessions", op] == 0
    assert found["lakeferry_commits_total", "done"] == 1
    assert found["lakeferry_commit_seconds_count",] == 1
    assert found["lakeferry_held_bytes",] == 0
    assert found["process_resident_memory_bytes",] > 0


def test_what_is_under_way_is_shown(server: Served) -> None:
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        found = metrics(server)
        assert found["lakeferry_sessions", "push"] == 1
        assert found["lakeferry_held_bytes",] > 0


def test_failures_are_counted_by_their_code(server: Served) -> None:
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        session.urls(objects_of(RUN))
        with pytest.raises(Closed):
            session.complete()
    until(lambda: ("lakeferry_sessions_ended_total", "push", "missing_file") in metrics(server))
    assert metrics(server)["lakeferry_commits_total", "missing_file"] == 1


def test_refused_handshakes_are_counted_by_their_status(server: Served) -> None:
    server.holds(FILES)
    for token, status in ((None, 401), ("nonsense", 401)):
        assert ReferenceClient(server.client.url, token).refusal("pull")[0] == status
    assert ReferenceClient(f"{server.url}/a/b/c/d", server.token).refusal("push")[0] == 404
    found = metrics(server)
    assert found["lakeferry_handshakes_refused_total", "pull", "401"] == 2
    assert found["lakeferry_handshakes_refused_total", "push", "404"] == 1


def test_requests_are_counted_by_what_they_are_for(server: Served) -> None:
    server.holds(FILES)
    block = RUN[0][0]
    asked = [
        ("refs/head", "refs", 200),
        (f"blocks/{block}", "blocks", 200),
        ("data/x", "data", 400),
    ]
    for path, _, status in asked:
        assert fetch(f"{server.client.url}/{path}", server.client.authorization)[0] == status
    assert fetch(f"{server.url}/healthz")[0] == 200
    assert fetch(f"{server.url}/what/ever")[0] == 404
    found = metrics(server)
    for _, route, status in (*asked, ("", "healthz", 200), ("", "other", 404)):
        assert found["lakeferry_http_requests_total", "GET", route, str(status)] == 1


def test_nothing_that_a_peer_names_is_shown(server: Served) -> None:
    server.client.push(FILES)
    ReferenceClient(f"{server.url}/secret/name", server.token).refusal("pull")
    fetch(f"{server.url}/secret/name/refs/head")
    _, body = fetch(f"{server.url}/metrics")
    for word in ("secret", NAME.text, "acc", server.token, "f1620"):
        assert word.encode() not in body


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/healthz", "healthz"),
        ("/.lakeferry/lakefs", "webhook"),
        ("/d/refs/head", "refs"),
        ("/acc/d/data/f1620", "data"),
        ("/acc/d/_delta_log/0.json", "_delta_log"),
        ("/acc/d/e/data/f1620", "other"),
        ("/data", "other"),
        ("/", "other"),
    ],
)
def test_a_path_has_one_of_a_few_routes(path: str, route: str) -> None:
    assert route_of(path) == route
