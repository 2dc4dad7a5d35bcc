"""Redirected tables that are pushed and pulled: followed, unless told not to be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lakeferry
from lakeferry.storage import open_store
from tests.scenario.test_transfer_rest import Root
from tests.support import lake as lakes
from tests.support.history import Append, History
from tests.support.lake import Lake
from tests.support.serving import Serving, serving


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lakes.on_disk(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(open_store(str(tmp_path / "root")), {}, tmp_path)


@pytest.fixture
def server(root: Root) -> Iterator[Serving]:
    with serving(root.home, {}, root=root.store) as running:
        yield running


def test_a_push_follows_and_so_does_a_pull(lake: Lake, root: Root, server: Serving) -> None:
    source, target = lake.make("old"), lake.uri("new")
    lake.done("redirect", "enable", source, target)
    words = ("--token", root.token("--scope", "write"))

    def versions(name: str) -> list[int]:
        return [
            one["version"] for one in lake.done("history", f"{root.store.uri}/{name}")["commits"]
        ]

    lake.done("push", source, f"{server.url}/followed", *words)
    lake.done("push", source, f"{server.url}/itself", "--no-follow", *words)
    assert versions("followed") == [
        one["version"] for one in lake.done("history", target)["commits"]
    ]
    itself = lake.done("redirect", "status", f"{root.store.uri}/itself")
    assert (itself["state"], itself["target"]) == ("READY", target)
    followed = lake.done("redirect", "status", f"{root.store.uri}/followed")
    assert followed["state"] == "NORMAL"

    pulled = lake.done("pull", f"{server.url}/followed", source, *words)
    assert pulled["changed"] is False


def test_what_was_pulled_leads_its_reader_nowhere(lake: Lake, root: Root, server: Serving) -> None:
    private = lake.make("private", History().then(Append(7)))
    value = lakes.entry(private, Spec={"Location": private, "Source": lake.uri("copy")})
    published = lake.make("published", lakes.redirected(("delta.redirectWriterOnly", value)))
    words = ("--token", root.token("--scope", "write"))
    lake.done("push", published, f"{server.url}/theirs", "--no-follow", *words)
    before = lake.tree()

    copy = lake.uri("copy")
    pulled = lake.run("pull", f"{server.url}/theirs", copy, *words)
    assert "delta.redirectWriterOnly" in pulled.err
    head = pulled.document["head"]
    assert lake.done("pull", f"{server.url}/theirs", copy, *words)["changed"] is False
    assert lake.done("redirect", "resolve", copy)["location"] == copy
    assert lakeferry.resolve(copy, write=True) == copy
    assert lakeferry.open(copy).count_rows() == lakeferry.open(published, follow=False).count_rows()
    assert lake.done("push", copy, f"{server.url}/mirror", *words)["head"] == head
    assert "redirect_arrived" in {one["code"] for one in lake.done("inspect", copy)["warnings"]}
    for refused in (
        ("redirect", "enable", copy, lake.uri("moved")),
        ("redirect", "resume", copy),
        ("redirect", "freeze", copy),
        ("redirect", "disable", copy, "--remove-target"),
    ):
        lake.refused(*refused)
    assert lake.done("redirect", "disable", copy, "--dry-run")["plan"]
    assert lake.done("redirect", "disable", copy)["state"] == "NORMAL"
    assert lake.done("redirect", "enable", copy, lake.uri("moved"))["state"] == "READY"
    assert lake.done("redirect", "resolve", copy)["location"] == lake.uri("moved")
    after = lake.tree()
    assert {path: after[path] for path in before} == before


def test_a_redirected_table_that_was_pushed_as_it_is_can_be_read_where_it_arrives(
    lake: Lake, root: Root, server: Serving
) -> None:
    source = lake.make("old")
    lake.done("redirect", "enable", source, lake.uri("new"))
    words = ("--token", root.token("--scope", "write"))
    lake.done("push", source, f"{server.url}/itself", "--no-follow", *words)
    copy = lake.uri("copy")
    lake.done("pull", f"{server.url}/itself", copy, *words)
    assert lake.done("redirect", "resolve", copy)["location"] == copy
    assert lakeferry.open(copy).count_rows() == lakeferry.open(lake.uri("new")).count_rows()
    assert lake.done("redirect", "cancel", copy)["changed"] is True
    assert lake.done("redirect", "resolve", source)["location"] == lake.uri("new")


def test_an_export_of_what_was_pulled_leads_its_reader_nowhere(
    lake: Lake, root: Root, server: Serving
) -> None:
    private = lake.make("private", History().then(Append(7)))
    entry = ("delta.redirectWriterOnly", lakes.entry(private))
    words = ("--token", root.token("--scope", "write"))
    published = lake.make("published", lakes.redirected(entry))
    lake.done("push", published, f"{server.url}/theirs", "--no-follow", *words)
    lake.done("pull", f"{server.url}/theirs", lake.uri("copy"), *words)
    exported = lake.done("export", lake.uri("copy"), "--to", lake.uri("exported"))["location"]
    assert lake.done("redirect", "resolve", exported)["location"] == exported
