"""Datasets are listed, renamed and deleted at a running server, on local disk and on S3."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from lakeferry.transfer.repository.dataset_folders import NAMES_FILE
from tests.scenario.test_transfer_gc import abandon
from tests.scenario.test_transfer_rest import Root
from tests.scenario.test_transfer_rest import root as root
from tests.support.history import Append, History
from tests.support.odf import Chain
from tests.support.reference_client import ReferenceClient, files_of, objects_of, run_of
from tests.support.serving import Serving, serving
from tests.unit.cli.program import Ended, make, run


@pytest.fixture
def server(root: Root) -> Iterator[Serving]:
    with serving(root.home, root.variables, root=root.store) as running:
        yield running
        assert "Traceback" not in running.shown(), running.shown()


def program(root: Root, *words: object, **variables: str) -> Ended:
    return run(*words, "--json", home=root.home, variables={**root.variables, **variables})


def done(root: Root, *words: object, **variables: str) -> Any:
    ended = program(root, *words, **variables)
    assert ended.code == 0, ended.err
    return ended.document


def refused(root: Root, *words: object, **variables: str) -> str:
    ended = program(root, *words, **variables)
    assert (ended.code, ended.out) == (1, ""), ended
    return str(ended.error["code"])


def listed(root: Root, place: str, **variables: str) -> dict[str, Any]:
    found = done(root, "ls", place, **variables)["datasets"]
    return {each["name"]: each for each in found}


def test_a_table_is_renamed_pulled_deleted_and_freed(root: Root, server: Serving) -> None:
    token = {"ACME": root.token("--scope", "write")}
    table = make(History().then(Append(3), Append(1)), root.home / "orders")
    done(root, "remote", "add", "acme", server.url, "--token-from-env", "ACME")
    head = done(root, "push", table, "acme/eu/orders", **token)["head"]
    before = root.below("eu/orders")
    assert listed(root, "acme", **token)["eu/orders"]["head"] == head

    assert done(root, "dataset", "rename", "acme", "eu/orders", "sales", **token)["changed"]
    assert not done(root, "dataset", "rename", "acme", "eu/orders", "sales", **token)["changed"]
    assert list(listed(root, "acme", **token)) == ["sales"]
    # Nothing was moved, and the old name leads nowhere.
    assert root.below("eu/orders") == before
    assert refused(root, "pull", "acme/eu/orders", root.home / "none", **token) == "not_found"
    assert done(root, "pull", "acme/sales", root.home / "got", **token)["head"] == head
    make(History().then(Append(3), Append(1), Append(2)), table)
    more = done(root, "push", table, "acme/sales", **token)
    assert (more["changed"], more["blocks"]) == (True, 1)
    assert done(root, "pull", "acme/sales", root.home / "got", **token)["blocks"] == 1

    # A new dataset may have the old name, and is another one.
    done(root, "push", table, "acme/eu/orders", **token)
    assert list(listed(root, "acme", **token)) == ["eu/orders", "sales"]
    assert done(root, "dataset", "delete", "acme", "sales", **token)["changed"]
    assert not done(root, "dataset", "delete", "acme", "sales", **token)["changed"]
    assert list(listed(root, "acme", **token)) == ["eu/orders"]
    freed = done(root, "gc", root.store.uri, "--grace", "0s")
    assert freed["bytes"] > 0
    assert root.below("eu/orders") == {}
    assert done(root, "pull", "acme/eu/orders", root.home / "new", **token)["head"] == more["head"]
    names = json.loads(root.store.get(NAMES_FILE))
    assert list(names) == ["named"]


def test_the_size_of_a_pushed_dataset_is_known(root: Root, server: Serving) -> None:
    token = root.token("--scope", "write")
    client = ReferenceClient(f"{server.url}/odf", token)
    for built in (
        Chain().append(checkpoint="c"),
        Chain().append(checkpoint="c").append(checkpoint="c").append(checkpoint="d"),
    ):
        client.push(files_of(built))
        found = listed(root, server.url, LAKEFERRY_TOKEN=token)["odf"]
        size = sum(len(data) for data in built.objects.values())
        expected = (built.head.text, len(built.blocks), size)
        assert (found["head"], found["blocks"], found["bytes"]) == expected


def test_a_push_and_a_change_exclude_each_other(root: Root, server: Serving) -> None:
    token = root.token("--scope", "write")
    client = ReferenceClient(f"{server.url}/orders", token)
    files = files_of(Chain().append(checkpoint="c").append())
    with client.open("push") as session:
        session.request_push(None)
        session.send_blocks(run_of(files))
        session.urls(objects_of(run_of(files)))
        # The push is on record now.
        root.hold("other", files_of(Chain(b"\xed\x01" + bytes(32)).append()))
        words = ("dataset", "rename", root.store.uri, "other", "orders")
        assert refused(root, *words) == "conflict"
    # It has ended without a commit; its client may come back, and so may others.
    abandon(client, files)
    assert refused(root, "dataset", "rename", root.store.uri, "none", "orders") == "not_found"


def test_a_url_that_was_given_out_outlives_a_rename(root: Root, server: Serving) -> None:
    token = root.token("--scope", "write")
    built = Chain().append(checkpoint="c").append()
    root.hold("orders", files_of(built))
    client = ReferenceClient(f"{server.url}/orders", token)
    wanted = objects_of(run_of(files_of(built)))
    with client.open("pull") as session:
        session.ask({"begin_after": None, "stop_at": None, "force_update_if_diverged": False})
        session.ask({})
        before = session.ask({"object_files": wanted})
        done(root, "dataset", "rename", server.url, "orders", "sales", LAKEFERRY_TOKEN=token)
        after = session.ask({"object_files": wanted})
    for answer in (before, after):
        for each in answer["object_transfer_strategies"]:
            place = each["download_from"]
            sent = {row["name"]: row["value"] for row in place["headers"]}
            request = urllib.request.Request(place["url"], headers=sent)
            with urllib.request.urlopen(request, timeout=60) as response:
                assert response.read() in built.objects.values()


def test_who_may_list_and_change_what(root: Root, server: Serving) -> None:
    root.hold("a", files_of(Chain().append()))
    root.hold("b", files_of(Chain(b"\xed\x01" + bytes(32)).append()))
    everything, one = root.token("--scope", "write"), root.token("--dataset", "a")
    assert refused(root, "ls", server.url) == "unauthorized"
    assert list(listed(root, server.url, LAKEFERRY_TOKEN=one)) == ["a"]
    assert list(listed(root, server.url, LAKEFERRY_TOKEN=everything)) == ["a", "b"]
    assert list(listed(root, root.store.uri)) == ["a", "b"]
    change = ("dataset", "visibility", server.url, "b", "public")
    assert refused(root, *change) == "unauthorized"
    assert refused(root, *change, "--token", one) == "not_found"
    reader = root.token()
    assert refused(root, *change, "--token", reader) == "forbidden"
    assert done(root, *change, "--dry-run", "--token", everything)["plan"]
    assert done(root, *change, "--token", everything)["changed"]
    assert list(listed(root, server.url)) == ["b"]
    owner = root.token("--scope", "write", "--dataset", "b")
    assert refused(root, "dataset", "rename", server.url, "b", "c", "--token", owner) == "forbidden"
    assert done(root, "dataset", "rename", server.url, "b", "c", "--token", everything)["changed"]
    # Tokens are for names.
    assert listed(root, server.url, LAKEFERRY_TOKEN=owner) == {}


def test_a_table_that_a_redirect_leads_to_is_not_deleted(root: Root, server: Serving) -> None:
    token = root.token("--scope", "write")
    old = make(History().then(Append(2)), root.home / "old")
    done(root, "redirect", "enable", old, f"{root.store.uri}/orders", "--engine", "local")
    words = ("dataset", "delete", server.url, "orders", "--token", token)
    assert refused(root, *words) == "redirect_illegal_transition"
    assert refused(root, *words, "--dry-run") == "redirect_illegal_transition"
    found = done(root, "redirect", "list", root.home)["redirects"]
    assert [each["target"] for each in found] == [f"{root.store.uri}/orders"]
    below = done(root, "redirect", "list", root.store.uri)
    assert (below["redirects"], below["unreadable"], below["tables"]) == ([], [], 1)
    done(root, "redirect", "freeze", f"{root.store.uri}/orders")
    (frozen,) = done(root, "redirect", "list", root.store.uri)["redirects"]
    assert (frozen["source"], frozen["frozen"]) == (f"{root.store.uri}/orders", True)
    done(root, "redirect", "thaw", f"{root.store.uri}/orders")
    done(root, "redirect", "disable", old, "--engine", "local")
    assert done(root, *words)["changed"]
    assert done(root, "inspect", old)["num_files"] == 2
