"""URLs that a server handed out, used otherwise than it meant, on local disk and on a real S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeferry.storage import open_store
from tests.scenario.test_transfer_rest import Root, laid_out
from tests.scenario.test_transfer_rest import root as root
from tests.support.odf import Chain
from tests.support.reference_client import ReferenceClient, objects_of, path_of, put, run_of
from tests.support.serving import Serving, serving
from tests.unit.cli.program import run


@pytest.fixture
def server(root: Root) -> Iterator[Serving]:
    with serving(root.home, root.variables, root=root.store) as running:
        yield running
        assert "Traceback" not in running.shown(), running.shown()


@pytest.fixture
def client(root: Root, server: Serving) -> ReferenceClient:
    return ReferenceClient(f"{server.url}/acc/a", root.token("--scope", "write"))


def chain() -> dict[str, bytes]:
    return laid_out(Chain().append(checkpoint="c").append().append(checkpoint="c"))


def test_a_url_that_is_used_again_after_the_commit_replaces_nothing(
    root: Root, client: ReferenceClient
) -> None:
    files = chain()
    run = run_of(files)
    with client.open("push") as session:
        session.request_push(None)
        session.send_blocks(run)
        given = session.urls(objects_of(run))
        session.upload(files, given)
        assert session.complete() == {}
    urls = [each for each in given if each["upload_to"] is not None]
    assert urls
    for each in urls:
        path = path_of(each["object_file"])
        assert put(each["upload_to"], files[path][::-1]) in (200, 400, 412)
        assert put(each["upload_to"], files[path] + b"x") in (400, 403)
        assert put({**each["upload_to"], "headers": []}, files[path][::-1]) in (200, 400, 403)
    assert client.pull() == files


def test_what_lies_in_an_objects_place_with_another_size_is_replaced(
    root: Root, client: ReferenceClient
) -> None:
    files = chain()
    path = next(path for path in files if path.startswith("data/"))
    root.store.put(f"acc/a/{path}", b"half of it")
    client.push(files)
    assert client.pull() == files


def test_an_object_that_two_sessions_want_to_send_is_asked_for_once(
    root: Root, client: ReferenceClient
) -> None:
    files = chain()
    run = run_of(files)
    with client.open("push") as first, client.open("push") as second:
        for session in (first, second):
            session.request_push(None)
            session.send_blocks(run)
        given = first.urls(objects_of(run))
        also = second.urls(objects_of(run))
        first.upload(files, given)
        # On local disk whoever comes later finds the same bytes there.
        second.upload(files, also)
        assert second.complete() == {}
    assert client.pull() == files


def test_urls_that_last_a_second_are_renewed_for_as_long_as_it_takes(
    root: Root, tmp_path: Path
) -> None:
    built = Chain()
    for number in range(12):
        built.append(checkpoint=f"{number} " + "c" * 1000)
    files = laid_out(built)
    here = open_store(str(tmp_path / "here"))
    for path, data in files.items():
        here.put(path, data)
    with serving(root.home, root.variables, "--urls-last", "1s", root=root.store) as server:
        token, url = root.token("--scope", "write"), f"{server.url}/acc/a"
        # Some three seconds for the objects, one after the other.
        words = ("--token", token, "--parallel", "1", "--limit-rate", "4K", "--json")
        pushed = run("push", here.uri, url, *words, home=root.home)
        assert pushed.code == 0, pushed.err
        pulled = run("pull", url, tmp_path / "there", *words, home=root.home)
        assert pulled.code == 0, pulled.err
        assert pulled.document == pushed.document
    there = open_store(str(tmp_path / "there"))
    assert {found.path: there.get(found.path) for found in there.list("")} == files


def test_urls_cant_last_for_ever(root: Root) -> None:
    for lasts in ("0s", "8d"):
        words = ("serve", "--root", root.store.uri, "--port", "0", "--urls-last", lasts, "--json")
        refused = run(*words, home=root.home, variables=root.variables)
        assert (refused.code, refused.error["code"]) == (2, "invalid_input")
