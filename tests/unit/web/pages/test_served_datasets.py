"""The page of datasets: who sees what, and what can be changed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.repository.access_tokens import Scope, token_id
from lakeferry.transfer.repository.dataset_list import list_datasets
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.last_push import LastPush, record_push
from lakeferry.transfer.repository.repository import Repository, Visibility
from tests.support.clock import DEFAULT_START_MS
from tests.support.stores import DictStore
from tests.unit.transfer.repository.test_garbage_collection import chain, root
from tests.unit.web.console_for_tests import ConsoleServer, Visitor


@pytest.fixture
def server(tmp_path: Path) -> ConsoleServer:
    """A server with three datasets."""
    store = root(orders=chain("a"), sales=chain("b"), acc__d=chain("c"))
    return ConsoleServer(tmp_path, store)


def names(store: DictStore) -> list[str]:
    return [each.name for each in list_datasets(Repository(store)).datasets]


def confirmed(visitor: Visitor, name: str, action: str, **fields: Any) -> tuple[int, str]:
    """Post a form of a dataset's page, and confirm it."""
    visitor.get(f"/datasets/{name}")
    status, text = visitor.post(f"/datasets/{name}/{action}", **fields)
    if status == 200:
        status, text = visitor.post(f"/datasets/{name}/{action}", confirmed="yes", **fields)
    return status, text


class TestWhoSeesWhat:
    def test_a_token_for_all_datasets_sees_all(self, server: ConsoleServer) -> None:
        page = server.signed_in().page("/datasets")
        for name in ("orders", "sales", "acc/d"):
            assert f'href="/-/datasets/{name}"' in page
        assert "Access tokens" not in page

    def test_a_token_for_one_dataset_sees_that_one(self, server: ConsoleServer) -> None:
        server.tokens.create(name="the auditor")
        visitor = server.signed_in(Scope.WRITE, "orders")
        page = visitor.page("/datasets")
        assert 'href="/-/datasets/orders"' in page
        assert "sales" not in page
        assert "auditor" not in page
        assert "/-/fleet" not in page
        assert visitor.get("/datasets/sales")[0] == 404
        assert visitor.get("/datasets/acc/d")[0] == 404
        assert visitor.page("/datasets/orders")
        for action in ("rename", "delete", "visibility"):
            assert visitor.post(f"/datasets/sales/{action}", confirmed="yes")[0] in (403, 404)
        assert names(server.store) == ["acc/d", "orders", "sales"]

    def test_tokens_are_listed_by_name_for_those_who_may_write_all(
        self, server: ConsoleServer
    ) -> None:
        secret = server.tokens.create(dataset=DatasetName("orders"), name="acme", note="till May")
        server.tokens.create(dataset=DatasetName("sales"), name="globex")
        expired = server.tokens.create(lasts_ms=1, name="old")
        visitor = server.signed_in(Scope.WRITE)
        page = visitor.page("/datasets")
        for text in ("acme", "till May", "globex", str(token_id(secret)), "expired"):
            assert text in page
        for whole in (secret, expired):
            assert whole.split("_", 2)[2] not in page
        covering = visitor.page("/datasets/orders")
        assert "acme" in covering
        assert "globex" not in covering

    def test_there_are_no_datasets_in_a_console_without_a_server(self, tmp_path: Path) -> None:
        from tests.unit.web.console_for_tests import local_visitor

        visitor = local_visitor(tmp_path)
        assert visitor.get("/datasets")[0] == 404
        assert visitor.get("/exports")[0] == 404
        assert "/-/datasets" not in visitor.page("/fleet")

    @pytest.mark.parametrize("name", ["none", "_delta_log", "a/b/c", "%2E%2E", "%3Cscript%3E"])
    def test_what_is_no_dataset_is_not_found(self, server: ConsoleServer, name: str) -> None:
        status, text = server.signed_in(Scope.WRITE).get(f"/datasets/{name}")
        assert status == 404
        assert "<script>" not in text

    def test_names_and_notes_of_tokens_are_text(self, server: ConsoleServer) -> None:
        server.tokens.create(name="<script>alert(1)</script>", note='"><img src=x>')
        page = server.signed_in(Scope.WRITE).page("/datasets")
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)" in page
        assert "<img src=x" not in page

    def test_an_empty_server_says_what_comes_next(self, tmp_path: Path) -> None:
        page = ConsoleServer(tmp_path).signed_in(Scope.WRITE).page("/datasets")
        assert "lakeferry token create" in page
        assert "lakeferry push" in page

    def test_a_long_list_has_pages(self, tmp_path: Path) -> None:
        store = root(**{f"d{number:03}": chain() for number in range(60)})
        visitor = ConsoleServer(tmp_path, store).signed_in()
        first = visitor.page("/datasets")
        assert "d049" in first
        assert "d050" not in first
        assert 'href="/-/datasets?after=d049"' in first
        second = visitor.page("/datasets?after=d049")
        assert "d050" in second
        assert "d049</" not in second
        assert visitor.get("/datasets?after=..")[0] == 400


class TestLastPush:
    def test_it_is_told_by_the_name_of_the_token(self, server: ConsoleServer) -> None:
        secret = server.tokens.create(name="acme")
        head = Multihash.sha3_256(b"head").text
        push = LastPush(DEFAULT_START_MS, token_id(secret), head, 3, 1_234)
        record_push(server.store, DatasetName("acc/d"), push)
        writer = server.signed_in(Scope.WRITE)
        assert "by acme" in writer.page("/datasets")
        assert "by acme, 1,234 objects" in writer.page("/datasets/acc/d")
        # Names of tokens are for those who see the tokens, and ids for those who see all datasets.
        reader = server.signed_in().page("/datasets")
        assert f"by token {token_id(secret)}" in reader
        alone = server.signed_in(Scope.WRITE, "acc/d").page("/datasets")
        assert str(token_id(secret)) not in alone
        assert "by acme" not in alone

    def test_a_renamed_dataset_keeps_it_and_a_damaged_record_is_none(
        self, server: ConsoleServer
    ) -> None:
        secret = server.tokens.create(name="acme")
        push = LastPush(DEFAULT_START_MS, token_id(secret), "h", 1, 1)
        record_push(server.store, DatasetName("orders"), push)
        visitor = server.signed_in(Scope.WRITE)
        assert confirmed(visitor, "orders", "rename", new="acc/new")[0] == 303
        assert "by acme" in visitor.page("/datasets/acc/new")
        (path,) = [each for each in server.store.objects if "pushes-done" in each]
        server.store.put(path, b"{")
        assert "by acme" not in visitor.page("/datasets/acc/new")


class TestChanges:
    def test_each_asks_first_and_names_the_command(self, server: ConsoleServer) -> None:
        visitor = server.signed_in(Scope.WRITE)
        visitor.get("/datasets/orders")
        before = server.store.objects
        forms: list[tuple[str, dict[str, Any], str]] = [
            ("rename", {"new": "acc/e"}, "lakeferry dataset rename"),
            ("delete", {}, "lakeferry dataset delete"),
            ("visibility", {"visibility": "public"}, "lakeferry dataset visibility"),
        ]
        for action, fields, said in forms:
            status, text = visitor.post(f"/datasets/orders/{action}", **fields)
            assert (status, said in text) == (200, True)
        assert server.store.objects == before

    def test_a_dataset_is_renamed_made_public_and_deleted(self, server: ConsoleServer) -> None:
        visitor = server.signed_in(Scope.WRITE)
        assert confirmed(visitor, "orders", "rename", new=" acc/e ") == (
            303,
            "/-/datasets/acc/e",
        )
        assert names(server.store) == ["acc/d", "acc/e", "sales"]
        assert confirmed(visitor, "acc/e", "visibility", visibility="public")[0] == 303
        folder = Repository(server.store).folders.folder(DatasetName("acc/e"))
        assert folder is not None
        assert Repository(server.store).visibility(folder) is Visibility.PUBLIC
        assert confirmed(visitor, "acc/e", "delete") == (303, "/-/datasets")
        assert names(server.store) == ["acc/d", "sales"]
        assert "acc/e is deleted." in visitor.page("/datasets")

    def test_a_token_to_read_changes_nothing(self, server: ConsoleServer) -> None:
        visitor = server.signed_in()
        page = visitor.page("/datasets/orders")
        assert "Delete…" not in page
        before = server.store.objects
        for action in ("rename", "delete", "visibility"):
            status, _ = visitor.post(
                f"/datasets/orders/{action}", confirmed="yes", new="x", visibility="public"
            )
            assert status == 403
        assert server.store.objects == before

    def test_a_token_for_one_dataset_changes_that_and_gives_no_names(
        self, server: ConsoleServer
    ) -> None:
        visitor = server.signed_in(Scope.WRITE, "orders")
        assert "Rename…" not in visitor.page("/datasets/orders")
        assert confirmed(visitor, "orders", "rename", new="sales2")[0] in (403, 404)
        assert confirmed(visitor, "orders", "visibility", visibility="public")[0] == 303
        assert confirmed(visitor, "orders", "delete")[0] == 303
        assert names(server.store) == ["acc/d", "sales"]
        assert "Your dataset isn’t there yet" in visitor.page("/datasets")

    @pytest.mark.parametrize(
        ("action", "fields", "status"),
        [
            ("rename", {"new": "sales"}, 409),
            ("rename", {"new": "../x"}, 400),
            ("rename", {}, 400),
            ("visibility", {"visibility": "all"}, 400),
            ("visibility", {}, 400),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, server: ConsoleServer, action: str, fields: dict[str, str], status: int
    ) -> None:
        visitor = server.signed_in(Scope.WRITE)
        assert confirmed(visitor, "orders", action, **fields)[0] == status
        assert names(server.store) == ["acc/d", "orders", "sales"]

    def test_a_form_without_its_csrf_token_changes_nothing(self, server: ConsoleServer) -> None:
        visitor = server.signed_in(Scope.WRITE)
        visitor.get("/datasets/orders")
        visitor.csrf = "another"
        assert visitor.post("/datasets/orders/delete", confirmed="yes")[0] == 403
        assert "orders" in names(server.store)
