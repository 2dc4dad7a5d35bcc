"""The action file on its way into a repository: what is written, and what is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

from lakeferry.errors import (
    CommitConflict,
    CommitStateUnknown,
    Forbidden,
    InvalidInput,
    ObjectNotFound,
    StorageUnavailable,
)
from lakeferry.server.lakefs.action_file import MESSAGE, PATH, action_file, install, named_action
from lakeferry.storage import rest_request
from tests.support.obedient_server import ObedientServer, Reply

URL = "https://ferry.example.com"


class Branch(ObedientServer):
    """A repository ``sales`` with the one branch ``trunk``, and what may happen meanwhile.

    The answer to the first request of a kind in ``lost`` is lost after it was done;
    one in ``refused`` gets that answer instead. ``on_upload`` happens after an upload.
    """

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[tuple[str, dict[str, bytes]]] = [("Repository created", {})]
        self.staged: dict[str, bytes] = {}
        self.lost: set[str] = set()
        self.refused: dict[str, Reply] = {}
        self.on_upload: Callable[[], None] = lambda: None

    @property
    def options(self) -> dict[str, str]:
        return {"lakefs_endpoint": self.url}

    def commit(self, message: str) -> str:
        self.commits.append((message, {**self.commits[-1][1], **self.staged}))
        self.staged.clear()
        return self.head

    @property
    def head(self) -> str:
        return f"c{len(self.commits) - 1}"

    def _reply(self, method: str, target: str, headers: Any, data: bytes) -> Reply | None:
        url = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        parts = [unquote(part) for part in url.path.removeprefix("/api/v1/").split("/")]
        with self._lock:
            what = f"{method} {parts[-1]}"
            self.asked.append(what)
            if what in self.refused:
                return self.refused[what]
            reply = self._answer(method, parts, query, data)
            if what in self.lost:
                self.lost.remove(what)
                return None
            return reply

    def _answer(self, method: str, parts: list[str], query: dict[str, str], data: bytes) -> Reply:
        match method, parts:
            case _, ["repositories", name, *_] if name != "sales":
                return 404, {"message": "repository not found"}
            case "GET", ["repositories", _]:
                return 200, {"id": "sales", "default_branch": "trunk"}
            case _, ["repositories", _, "branches", name, *_] if name != "trunk":
                return 404, {"message": "branch not found"}
            case "GET", ["repositories", _, "branches", _]:
                return 200, {"id": "trunk", "commit_id": self.head}
            case "GET", [*_, "diff"]:
                paths = sorted(self.staged)[: int(query["amount"])]
                return 200, {"pagination": {}, "results": [{"path": path} for path in paths]}
            case "POST", [*_, "objects"]:
                self.staged[query["path"]] = data
                self.on_upload()
                return 201, {"path": query["path"]}
            case "PUT", ["repositories", _, "branches", _]:
                self.staged.pop(json.loads(data)["path"], None)
                return 204, b""
            case "POST", [*_, "commits"]:
                if not self.staged:
                    return 400, {"message": "commit: no changes"}
                return 201, {"id": self.commit(json.loads(data)["message"])}
            case "GET", ["repositories", _, "refs", _, "commits"]:
                return 200, {"results": [{"id": self.head, "message": self.commits[-1][0]}]}
            case "GET", ["repositories", _, "refs", ref, "objects", *stat]:
                found = self.commits[int(ref.removeprefix("c"))][1].get(query["path"])
                if found is None:
                    return 404, {"message": "not found"}
                entry = {"path": query["path"], "size_bytes": len(found), "mtime": 0}
                return 200, {**entry, "physical_address": "mem://x"} if stat else found
        return 404, {"message": "invalid API endpoint"}


@pytest.fixture
def branch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Branch]:
    monkeypatch.setattr(rest_request, "PAUSES_S", (0.0,))
    for name in ("LAKECTL_SERVER_ENDPOINT_URL", "LAKEFS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with Branch() as running:
        yield running


def test_the_file_is_committed_to_the_default_branch_once(branch: Branch) -> None:
    made = install("sales", None, URL, branch.options)
    assert made.as_document() == {
        "repository": "sales",
        "branch": "trunk",
        "path": PATH,
        "commit": "c1",
        "changed": True,
    }
    assert branch.commits[-1] == (MESSAGE, {PATH: action_file(URL)})
    again = install("sales", "trunk", f"{URL}/", branch.options)
    assert (again.commit, again.changed) == ("c1", False)
    assert install("sales", None, "http://elsewhere:1", branch.options).commit == "c2"


def test_a_dry_run_writes_nothing(branch: Branch) -> None:
    assert install("sales", None, URL, branch.options, dry_run=True).changed
    assert not any(asked.startswith(("POST", "PUT")) for asked in branch.asked)
    branch.staged["x"] = b""
    with pytest.raises(CommitConflict):
        install("sales", None, URL, branch.options, dry_run=True)


def test_what_is_staged_on_the_branch_is_not_committed_along(branch: Branch) -> None:
    branch.staged["t/x"] = b"x"
    with pytest.raises(CommitConflict, match="t/x") as refused:
        install("sales", None, URL, branch.options)
    assert refused.value.code == "conflict"
    assert branch.staged == {"t/x": b"x"}
    assert branch.head == "c0"


def test_what_is_staged_in_the_meantime_is_not_committed_along_either(branch: Branch) -> None:
    branch.on_upload = lambda: branch.staged.update({"t/x": b"x"})
    with pytest.raises(CommitConflict, match="t/x"):
        install("sales", None, URL, branch.options)
    assert branch.staged == {"t/x": b"x"}
    assert branch.head == "c0"


@pytest.mark.parametrize("lost", ["POST commits", "POST objects", "GET diff", "GET trunk"])
def test_an_answer_that_is_lost_is_asked_for_again_and_makes_one_commit(
    branch: Branch, lost: str
) -> None:
    branch.lost.add(lost)
    made = install("sales", None, URL, branch.options)
    assert (made.commit, made.changed) == ("c1", True)
    assert len(branch.commits) == 2


def test_a_file_that_somebody_else_committed_meanwhile_is_told(branch: Branch) -> None:
    original = branch._answer

    def answer(method: str, parts: list[str], query: dict[str, str], data: bytes) -> Reply:
        reply = original(method, parts, query, data)
        if method == "GET" and parts[-1] == "diff" and branch.staged:
            # Right after we looked, somebody commits everything.
            branch.commit("somebody else's")
        return reply

    branch._answer = answer  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown):
        install("sales", None, URL, branch.options)
    assert install("sales", None, URL, branch.options).changed is False


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((403, {"message": "cannot write to protected branch"}), Forbidden),
        ((412, {"message": "pre-commit hook failed"}), StorageUnavailable),
        ((500, {"message": "oh"}), StorageUnavailable),
    ],
)
def test_a_commit_that_is_refused_leaves_nothing_staged(
    branch: Branch, answer: Reply, error: type[Exception]
) -> None:
    branch.refused["POST commits"] = answer
    with pytest.raises(error):
        install("sales", None, URL, branch.options)
    assert branch.staged == {}
    assert branch.head == "c0"


def test_what_is_not_there_is_said(branch: Branch) -> None:
    with pytest.raises(ObjectNotFound, match="no repository 'other'"):
        install("other", None, URL, branch.options)
    with pytest.raises(ObjectNotFound, match="no branch 'dev'"):
        install("sales", "dev", URL, branch.options)


# --- The file and the names ---------------------------------------------------------


def test_the_file_is_an_action_that_lakefs_understands() -> None:
    # In YAML's old way of reading, `on` is a yes.
    found = yaml.load(action_file('https://x/a"b'), Loader=yaml.BaseLoader)
    assert set(found["on"]) == {
        "post-commit",
        "post-merge",
        "post-revert",
        "post-cherry-pick",
        "post-create-tag",
    }
    (hook,) = found["hooks"]
    assert hook["type"] == "webhook"
    assert hook["properties"]["url"] == 'https://x/a"b/.lakeferry/lakefs'
    (value,) = hook["properties"]["headers"].values()
    assert value == "{{ ENV.LAKEFSACTION_LAKEFERRY_WEBHOOK_SECRET }}"


@pytest.mark.parametrize(
    "url",
    ["", "ferry", "ftp://x", "http://", "http://x:0", "http://x:y", "http://u:p@x", "http://x?a=b"],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        action_file(url)
    assert not url or url not in str(refused.value)


def test_a_repository_is_named_in_three_ways() -> None:
    assert named_action("sales", None) == ("sales", None)
    assert named_action("sales", "dev") == ("sales", "dev")
    assert named_action("lakefs://sales", None) == ("sales", None)
    assert named_action("lakefs://sales/dev/", "dev") == ("sales", "dev")
    for text, branch in (("lakefs://sales/dev", "main"), ("lakefs://sales/dev/t", None)):
        with pytest.raises(InvalidInput):
            named_action(text, branch)
    for text in ("s3://sales", "", "a b", "../x"):
        with pytest.raises(InvalidInput):
            named_action(text, None)
