"""A real lakeFS calls a real ``lakeferry serve``, and exports appear."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.export import webhook
from tests.support.repositories import BLOCKSTORES, Repository, new_repository
from tests.support.servers import WEBHOOK_SECRET
from tests.support.serving import Serving, serving, until
from tests.unit.cli.program import run

LOCAL = BLOCKSTORES[:1]
ACTION = "_lakefs_actions/lakeferry.yaml"


@pytest.fixture(params=BLOCKSTORES)
def repository(request: pytest.FixtureRequest) -> Repository:
    return new_repository(request.param, request.getfixturevalue)


@pytest.fixture
def server(repository: Repository, tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path, repository.variables) as running:
        yield running


def init(repository: Repository, home: Path, *words: str) -> Any:
    ended = run(
        "lakefs",
        "init",
        repository.name,
        *words,
        "--json",
        home=home,
        variables=repository.variables,
    )
    assert ended.code == 0, ended.err
    return ended.document


def describe(repository: Repository, branch: str = "main", **tables: str) -> None:
    """Describe tables by their names; each has the path of its name, and more if given."""
    files = {
        f"{name}.yaml": f"name: {name}\ntype: delta\npath: {name}\n{more}".encode()
        for name, more in tables.items()
    }
    repository.upload(files, branch, "_lakefs_tables")


def exported(repository: Repository) -> set[tuple[str, str, str]]:
    """Every export there is: ref, commit and table."""
    found = set()
    for name in repository.exported:
        place, log, _ = name.partition("/_delta_log/")
        if log:
            ref, commit, table = place.rsplit("/", 2)
            found.add((ref, commit, table))
    return found


def ids(repository: Repository, ref: str, commit: str, table: str) -> list[int]:
    """Read an export."""
    namespace = repository.store(path="").storage_namespace()
    place = f"{namespace}/_lakefs/exported/{ref}/{commit}/{table}"
    rows = lakeferry.open(place, storage_options=repository.blocks)
    found: list[int] = rows.to_table()["id"].to_pylist()
    return sorted(found)


def test_commit_merge_tag_and_revert_each_export_what_they_changed(
    repository: Repository, server: Serving, tmp_path: Path
) -> None:
    made = init(repository, tmp_path, "--url", server.url)
    # The commit that brings the action is the first to call.
    server.has_done(1)
    assert made == {
        "repository": repository.name,
        "branch": "main",
        "path": ACTION,
        "commit": repository.head(),
        "changed": True,
    }
    repository.append(1, 2, path="a")
    repository.append(7, 8, path="b")
    describe(repository, a="", b="")
    both = repository.commit()
    server.has_done(2)
    assert exported(repository) == {("main", both, "a"), ("main", both, "b")}

    for number in range(3, 14):
        repository.append(number, path="a")
    repository.delta_rs(path="a").create_checkpoint()
    repository.append(14, path="a")
    one = repository.commit()
    server.has_done(3)
    new = {("main", one, "a")}
    assert exported(repository) == {("main", both, "a"), ("main", both, "b")} | new
    assert ids(repository, "main", one, "a") == list(range(1, 15))
    assert ids(repository, "main", both, "a") == [1, 2]
    log = f"main/{one}/a/_delta_log"
    names = {name.rpartition("/")[2] for name in repository.exported if name.startswith(log)}
    assert {f"{11:020}.checkpoint.parquet", f"{12:020}.json", "_last_checkpoint"} <= names
    assert f"{0:020}.json" not in names

    repository.branch("dev")
    repository.append(9, branch="dev", path="b")
    on_dev = repository.commit("dev")
    server.has_done(4)
    merged = repository.merge("dev")
    server.has_done(5)
    assert ids(repository, "dev", on_dev, "b") == ids(repository, "main", merged, "b") == [7, 8, 9]
    assert ("main", merged, "a") not in exported(repository)

    repository.tag("v1.0")
    server.has_done(6)
    assert ids(repository, "v1.0", merged, "a") == list(range(1, 15))
    assert ids(repository, "v1.0", merged, "b") == [7, 8, 9]

    repository.append(15, path="a")
    wrong = repository.commit()
    server.has_done(7)
    back = repository.revert(wrong)
    server.has_done(8)
    assert ids(repository, "main", wrong, "a") == list(range(1, 16))
    assert ids(repository, "main", back, "a") == list(range(1, 15))
    assert server.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("repository", LOCAL, indirect=True)
def test_a_name_follows_the_default_branch_and_old_exports_go(
    repository: Repository, tmp_path: Path
) -> None:
    variables = {**repository.variables, "LAKEFERRY_SQL_URL": f"sqlite:///{tmp_path}/names.db"}
    with serving(tmp_path, variables) as server:
        init(repository, tmp_path, "--url", server.url)
        repository.append(1, path="a")
        describe(repository, a="register: sql:sales.eu.a\nkeep: 2\n")
        first = repository.commit()
        server.has_done(2)
        commits = [first]
        for number in (2, 3):
            repository.append(number, path="a")
            commits.append(repository.commit())
            server.has_done(len(commits) + 1)
        repository.branch("dev")
        repository.append(4, branch="dev", path="a")
        on_dev = repository.commit("dev")
        server.has_done(5)
    shown = run("catalog", "show", "sql:sales.eu.a", "--json", home=tmp_path, variables=variables)
    assert shown.document["location"].endswith(f"/_lakefs/exported/main/{commits[2]}/a")
    assert exported(repository) == {
        ("main", commits[1], "a"),
        ("main", commits[2], "a"),
        ("dev", on_dev, "a"),
    }


# --- Who is let in ------------------------------------------------------------------


def event(repository: Repository, **changes: str) -> bytes:
    said = {
        "event_type": "post-commit",
        "event_time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "action_name": "Lakeferry export",
        "hook_id": "lakeferry_export",
        "repository_id": repository.name,
        "branch_id": "main",
        "commit_id": repository.head(),
        **changes,
    }
    return json.dumps(said).encode()


@pytest.mark.parametrize("repository", LOCAL, indirect=True)
def test_only_who_knows_the_secret_is_let_in_and_only_once(
    repository: Repository, server: Serving
) -> None:
    known = {webhook.SECRET_HEADER: WEBHOOK_SECRET}
    sent = event(repository)
    for headers in ({}, {webhook.SECRET_HEADER: "wrong"}, {webhook.SECRET_HEADER: ""}):
        status, answer = server.post(sent, headers)
        assert (status, answer["error"]["code"]) == (401, "unauthorized")
    status, answer = server.post(b"{}", known)
    assert (status, answer["error"]["code"]) == (400, "invalid_input")
    old = event(repository, event_time="2020-01-01T00:00:00Z")
    assert server.post(old, known)[0] == 409
    status, answer = server.post(b" " * (2 << 20), known)
    assert (status, answer["error"]["code"]) == (413, "limit_exceeded")
    assert server.events == 0

    status, answer = server.post(sent, known)
    assert status == 202
    assert answer["job"]
    server.has_done(1)
    status, answer = server.post(sent, known)
    assert (status, answer["error"]["code"]) == (409, "conflict")
    now_s = int(datetime.now(UTC).timestamp())
    signed = event(repository, hook_id="another")
    headers = {
        webhook.TIMESTAMP_HEADER: str(now_s),
        webhook.SIGNATURE_HEADER: webhook.sign(WEBHOOK_SECRET, now_s, signed),
    }
    assert server.post(signed + b" ", headers)[0] == 401
    assert server.post(signed, headers)[0] == 202
    server.has_done(2)


@pytest.mark.parametrize("repository", LOCAL, indirect=True)
@pytest.mark.parametrize("secret", ["another secret", None])
def test_lakefs_is_told_when_its_secret_is_not_ours(
    repository: Repository, tmp_path: Path, secret: str | None
) -> None:
    with serving(tmp_path, repository.variables, secret=secret) as server:
        init(repository, tmp_path, "--url", server.url)

        def runs() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = repository.call("GET", "/actions/runs")["results"]
            return found

        until(lambda: bool(runs()))
        assert [each["status"] for each in runs()] == ["failed"]
        assert server.events == 0
        assert "refused" in server.shown()
        assert WEBHOOK_SECRET not in server.shown()


# --- Servers end --------------------------------------------------------------------


@pytest.fixture
def silence() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("repository", LOCAL, indirect=True)
@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGTERM, 0)]
)
def test_a_server_that_ends_in_the_middle_of_a_job_leaves_it_to_the_next(
    repository: Repository, tmp_path: Path, silence: str, how: int, code: int
) -> None:
    repository.append(1, path="a")
    describe(repository, a="")
    commit = repository.commit()
    deaf = {**repository.variables, "LAKECTL_SERVER_ENDPOINT_URL": silence}
    with serving(tmp_path, deaf) as server:
        status, _ = server.post(event(repository), {webhook.SECRET_HEADER: WEBHOOK_SECRET})
        assert status == 202
        until(lambda: server.is_at_work, server.shown)
        assert server.end(how) == code
        assert len(server.queue.pending()) == 1
    with serving(tmp_path, repository.variables) as server:
        server.has_done(1)
        assert server.end(signal.SIGTERM) == 0
    assert ids(repository, "main", commit, "a") == [1]


@pytest.mark.parametrize("repository", LOCAL, indirect=True)
def test_two_servers_on_one_root_share_the_work(repository: Repository, tmp_path: Path) -> None:
    repository.append(1, path="a")
    describe(repository, a="")
    commit = repository.commit()
    known = {webhook.SECRET_HEADER: WEBHOOK_SECRET}
    with (
        serving(tmp_path, repository.variables) as one,
        serving(tmp_path, repository.variables) as two,
    ):
        for number in range(6):
            sent = event(repository, hook_id=f"hook-{number}")
            assert (one, two)[number % 2].post(sent, known)[0] == 202
            assert (two, one)[number % 2].post(sent, known)[0] == 409
        one.has_done(6)
    assert ids(repository, "main", commit, "a") == [1]


# --- What fails ---------------------------------------------------------------------


@pytest.mark.parametrize("repository", LOCAL, indirect=True)
def test_what_cannot_be_exported_is_kept_with_its_error_and_stops_nothing_else(
    repository: Repository, server: Serving
) -> None:
    repository.append(1, path="a")
    describe(repository, a="", gone="", ice="type: iceberg\n")
    repository.upload({"bad.yaml": b"name: ["}, path="_lakefs_tables")
    commit = repository.commit()
    server.post(event(repository), {webhook.SECRET_HEADER: WEBHOOK_SECRET})
    until(lambda: bool(server.queue.failures()), server.shown)
    (failure,) = server.queue.failures()
    told = {each["table"]: each["code"] for each in failure["errors"]}
    assert told == {
        "_lakefs_tables/bad.yaml": "invalid_input",
        "_lakefs_tables/ice.yaml": "invalid_input",
        "gone": "table_not_found",
    }
    assert ids(repository, "main", commit, "a") == [1]
    assert server.queue.pending() == []


# --- lakefs init --------------------------------------------------------------------


@pytest.mark.parametrize("repository", LOCAL, indirect=True)
def test_init_writes_the_action_once_and_commits_nothing_else(
    repository: Repository, tmp_path: Path
) -> None:
    before = repository.head()
    foreseen = init(repository, tmp_path, "--dry-run")
    assert foreseen["dry_run"] is True
    assert [step["op"] for step in foreseen["plan"]] == ["commit_action_file"]
    assert repository.head() == before
    made = init(repository, tmp_path)
    assert made["changed"] is True
    again = init(repository, tmp_path)
    assert again == {**made, "changed": False}
    assert init(repository, tmp_path, "--dry-run") == {"dry_run": True, "plan": []}
    found = repository.store(path="_lakefs_actions").get("lakeferry.yaml")
    assert b"http://127.0.0.1:8470/.lakeferry/lakefs" in found
    assert WEBHOOK_SECRET.encode() not in found
    moved = init(repository, tmp_path, "--url", "https://ferry.example.com/")
    assert (moved["changed"], moved["commit"]) == (True, repository.head())

    repository.branch("dev")
    repository.upload({"x": b"x"}, "main", "t")
    on_dev = init(repository, tmp_path, "--branch", "dev", "--url", "http://ferry:1")
    assert (on_dev["branch"], on_dev["changed"]) == ("dev", True)
    head = repository.head()
    refused = run(
        "lakefs",
        "init",
        f"lakefs://{repository.name}/main",
        "--url",
        "http://ferry:1",
        "--json",
        home=tmp_path,
        variables=repository.variables,
    )
    assert (refused.code, refused.error["code"]) == (1, "conflict")
    assert repository.head() == head
    assert repository.names("main", "t") == ["x"]
    # What is there already needs no commit.
    assert init(repository, tmp_path, "--url", "https://ferry.example.com")["changed"] is False


@pytest.mark.parametrize("repository", LOCAL, indirect=True)
@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["no-such-repository"], 1, "not_found"),
        (["{name}", "--branch", "nosuch"], 1, "not_found"),
        (["lakefs://{name}/main/path"], 2, "invalid_input"),
        (["lakefs://{name}/main", "--branch", "dev"], 2, "invalid_input"),
        (["s3://{name}"], 2, "invalid_input"),
        (["{name}", "--url", "ferry"], 2, "invalid_input"),
        (["{name}", "--url", "http://user:secret@ferry"], 2, "invalid_input"),
    ],
)
def test_init_refuses_what_makes_no_sense(
    repository: Repository, tmp_path: Path, words: list[str], code: int, error: str
) -> None:
    given = [word.format(name=repository.name) for word in words]
    ended = run("lakefs", "init", *given, "--json", home=tmp_path, variables=repository.variables)
    assert (ended.code, ended.error["code"]) == (code, error), ended.err
    assert "secret" not in ended.err
