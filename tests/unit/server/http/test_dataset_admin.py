"""Datasets are listed and changed over HTTP: who gets which answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakeferry.errors import RedirectIllegalTransition
from lakeferry.server.http import dataset_admin
from lakeferry.server.http.access import DatasetAccess
from lakeferry.transfer.repository.access_tokens import Scope
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.push_records import PushRecord
from lakeferry.transfer.repository.repository import Visibility
from tests.support.history import Append, History
from tests.support.stores import Fault, on
from tests.unit.server.http.test_dataset_routes import Answer, Server

JSON = [("Accept", "application/json")]


@pytest.fixture
def server() -> Server:
    return Server()


def document(answer: Answer) -> Any:
    assert answer.headers["content-type"] == "application/json"
    return json.loads(answer.body)


def error(answer: Answer) -> tuple[int, str]:
    return answer.status, document(answer)["error"]["code"]


def listed(answer: Answer) -> list[str]:
    assert answer.status == 200, answer
    return [each["name"] for each in document(answer)["datasets"]]


def patch(
    server: Server, path: str, token: str | None, query: str = "", **wanted: object
) -> Answer:
    body = json.dumps(wanted).encode()
    return server.ask(path, token, method="PATCH", data=body, query=query)


class TestList:
    def test_a_token_shows_what_it_covers(self, server: Server) -> None:
        everything = server.tokens.create()
        assert listed(server.ask("/", everything, JSON)) == ["acc/d", "open"]
        assert listed(server.ask("/", server.reader, JSON)) == ["acc/d"]
        assert listed(server.ask("/", server.tokens.create(dataset=DatasetName("no")), JSON)) == []
        (one,) = document(server.ask("/", server.reader, JSON))["datasets"]
        assert one == {
            "name": "acc/d",
            "kind": "odf",
            "head": server.chain.head.text,
            "blocks": len(server.chain.blocks),
            "bytes": None,
            "visibility": "private",
        }

    def test_without_a_token_there_are_public_datasets(self, server: Server) -> None:
        assert listed(server.ask("/", None, JSON)) == ["open"]
        server.repository.set_visibility(DatasetName("open"), Visibility.PRIVATE)
        assert error(server.ask("/", None, JSON)) == (401, "unauthorized")
        assert error(server.ask("/", "lf_nonsense", JSON)) == (401, "unauthorized")
        assert listed(Server(anonymous_read=True).ask("/", None, JSON)) == ["acc/d", "open"]

    def test_it_is_for_who_wants_json(self, server: Server) -> None:
        token = server.tokens.create()
        for accept in ([], [("Accept", "text/html")], [("Accept", "*/*")]):
            assert server.ask("/", token, accept).status == 404

    def test_pages_follow_each_other(self, server: Server) -> None:
        token = server.tokens.create()
        first = document(server.ask("/", token, JSON, query="limit=1"))
        assert ([each["name"] for each in first["datasets"]], first["next"]) == (["acc/d"], "acc/d")
        second = document(server.ask("/", token, JSON, query="limit=1&after=acc/d"))
        assert ([each["name"] for each in second["datasets"]], second["next"]) == (["open"], None)
        for query in ("limit=0", "limit=101", "limit=x", "limit=%C2%B2", "after=.."):
            assert error(server.ask("/", token, JSON, query=query)) == (400, "invalid_input")

    def test_a_store_that_fails_is_not_described(self, server: Server) -> None:
        server.store.rule = on("LIST", Fault.FAIL)
        failed = server.ask("/", server.tokens.create(), JSON)
        assert (failed.status, failed.body) == (503, b"")


class TestChanges:
    def test_a_dataset_is_renamed_and_found_under_its_new_name(self, server: Server) -> None:
        token = server.tokens.create(Scope.WRITE)
        url = server.signer.sign("", "GET", "acc/d/refs/head", lasts_ms=60_000)[0]
        planned = patch(server, "/acc/d", token, "dry_run=true", name="sales")
        assert document(planned)["changed"] is True
        for changed in (True, False):
            done = patch(server, "/acc/d", token, name="sales")
            assert (done.status, document(done)["changed"]) == (200, changed)
        assert server.ask("/sales/refs/head", token).status == 200
        assert server.ask("/acc/d/refs/head", token).status == 404
        assert server.put(f"/acc/d/data/{server.chain.head}", b"x", token).status == 404
        # A URL that was signed before goes on to be good.
        path, _, query = url.partition("?")
        assert server.ask(path, query=query).status == 200

    @pytest.mark.parametrize("query", ["dry_run=1", "dry_run=True", "dry_run", "force=yes"])
    def test_a_flag_that_is_not_understood_changes_nothing(
        self, server: Server, query: str
    ) -> None:
        token = server.tokens.create(Scope.WRITE)
        refused = server.ask("/acc/d", token, method="DELETE", query=query)
        assert error(refused) == (400, "invalid_input")
        assert listed(server.ask("/", token, JSON)) == ["acc/d", "open"]

    @pytest.mark.parametrize("method", ["PATCH", "DELETE"])
    def test_changes_need_a_token_to_write(self, server: Server, method: str) -> None:
        body = b'{"visibility": "public"}'

        def ask(path: str, token: str | None) -> tuple[int, str]:
            return error(server.ask(path, token, method=method, data=body))

        assert ask("/acc/d", None) == (401, "unauthorized")
        assert ask("/acc/d", "lf_nonsense") == (401, "unauthorized")
        assert ask("/acc/d", server.reader) == (403, "forbidden")
        assert ask("/acc/e", server.writer) == (404, "not_found")
        assert ask("/metrics", server.tokens.create(Scope.WRITE)) == (400, "invalid_input")
        assert ask("/acc/d/refs", server.tokens.create(Scope.WRITE)) == (400, "invalid_input")
        # A public dataset of others may be seen, and not be changed.
        assert ask("/open", server.writer) == (403, "forbidden")

    def test_a_rename_needs_a_token_for_both_names(self, server: Server) -> None:
        refused = patch(server, "/acc/d", server.writer, name="sales")
        assert error(refused) == (403, "forbidden")
        # It isn't told whether there is such a dataset.
        again = patch(server, "/acc/d", server.writer, name="open")
        assert (
            document(again)["error"]["message"].replace("open", "sales")
            == (document(refused)["error"]["message"])
        )
        assert patch(server, "/acc/d", server.tokens.create(Scope.WRITE), name="x").status == 200

    def test_visibility_is_set(self, server: Server) -> None:
        assert server.ask("/acc/d/refs/head").status == 401
        done = patch(server, "/acc/d", server.writer, visibility="public")
        assert document(done) == {
            "name": "acc/d",
            "was": None,
            "visibility": "public",
            "changed": True,
        }
        again = patch(server, "/acc/d", server.writer, visibility="public")
        assert document(again)["changed"] is False
        assert listed(server.ask("/", None, JSON)) == ["acc/d", "open"]

    def test_a_dataset_is_deleted(self, server: Server) -> None:
        for changed in (True, False):
            done = server.ask("/acc/d", server.writer, method="DELETE")
            assert (done.status, document(done)["changed"]) == (200, changed)
        assert server.ask("/acc/d/refs/head", server.reader).status == 404
        assert listed(server.ask("/", server.tokens.create(), JSON)) == ["open"]

    def test_a_table_that_a_redirect_leads_to_needs_force(self) -> None:
        def refuse(_: str) -> None:
            raise RedirectIllegalTransition("the old path leads here", remedy="add --force")

        server = Server(check_unused=refuse)
        for path, data in History().then(Append(1)).objects().items():
            server.disk.put(f"acc/t/{path}", data)
        token = server.tokens.create(Scope.WRITE)
        refused = server.ask("/acc/t", token, method="DELETE")
        assert error(refused) == (409, "redirect_illegal_transition")
        assert document(refused)["error"]["remedy"] == "add --force"
        assert server.ask("/acc/t", token, method="DELETE", query="force=true").status == 200

    def test_a_push_under_way_is_a_conflict(self, server: Server) -> None:
        record = PushRecord(server.disk, DatasetName("acc/d"), None, clock=server.clock)
        server.disk.clock = server.clock
        record.begin(["acc/d/data/x"])
        refused = server.ask("/acc/d", server.writer, method="DELETE")
        assert error(refused) == (409, "conflict")

    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"{", b"[]", b"{}", b'{"other": 1}', b'{"name": 7}'),
            *(b'{"name": "x", "visibility": "public"}', b'{"visibility": "x"}'),
            *(b'{"name": ".."}', b'{"name": "acc/d/e"}'),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, server: Server, body: bytes) -> None:
        token = server.tokens.create(Scope.WRITE)
        refused = server.ask("/acc/d", token, method="PATCH", data=body)
        assert error(refused) == (400, "invalid_input")

    def test_a_body_is_bounded(self, server: Server) -> None:
        refused = patch(server, "/acc/d", server.writer, name="x" * 5_000)
        assert error(refused) == (413, "limit_exceeded")

    def test_a_body_that_does_not_come_ends(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dataset_admin, "_BODY_READ_WITHIN_S", 0.01)
        late = server.ask("/acc/d", server.writer, method="PATCH", data=b"{", ends="never")
        assert late.status == 503
        left = server.ask("/acc/d", server.writer, method="PATCH", data=b"{", ends="abruptly")
        assert left.status == 400

    def test_what_the_store_says_is_for_the_log(self, server: Server) -> None:
        server.store.rule = on("SWAP", Fault.FAIL, times=-1)
        failed = server.ask("/acc/d", server.writer, method="DELETE")
        assert (failed.status, failed.body) == (503, b"")
        server.store.rule = on("SWAP", Fault.FAIL, times=0)
        server.disk.put(".lakeferry/names.json", b"{")
        failed = server.ask("/acc/d", server.writer, method="DELETE")
        assert error(failed) == (500, "corrupt_log")
        assert b"names.json" not in failed.body


def test_a_session_that_has_begun_may_go_on_after_a_rename(server: Server) -> None:
    access = DatasetAccess(server.repository, server.tokens)
    name = folder = DatasetName("open")
    assert access.refusal([], name, write=False, folder=folder) is None
    assert patch(server, "/open", server.tokens.create(Scope.WRITE), name="sales").status == 200
    assert access.refusal([], name, write=False, folder=folder) is None
    assert access.refusal([], name, write=False) is not None
    assert access.refusal([], DatasetName("sales"), write=False) is None
