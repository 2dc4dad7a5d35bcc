"""Redirected tables that are pushed and pulled: followed, unless told not to be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeferry.storage import open_store
from tests.scenario.test_transfer_rest import Root
from tests.support import lake as lakes
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
