"""Our client and our server, as programs: a root on local disk and on a real S3 server.

On S3 the objects go by pre-signed URLs to another port of the same host.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeferry.storage import open_store
from lakeferry.transfer.repository.dataset_names import OWN_FOLDER
from tests.scenario.test_transfer_rest import Root, dataset_a, laid_out
from tests.scenario.test_transfer_rest import root as root
from tests.support.odf import Chain, SetInfo
from tests.support.serving import Serving, serving
from tests.unit.cli.program import Ended, run


@pytest.fixture
def server(root: Root) -> Iterator[Serving]:
    with serving(root.home, root.variables, root=root.store) as running:
        yield running
        assert "Traceback" not in running.shown(), running.shown()


def hold(folder: Path, files: dict[str, bytes]) -> Path:
    store = open_store(str(folder))
    for path, data in files.items():
        store.put(path, data)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def stored(root: Root, name: str) -> dict[str, bytes]:
    return {k: v for k, v in root.below(name).items() if not k.startswith(OWN_FOLDER)}


def test_a_dataset_goes_to_a_server_and_comes_back_with_identical_bytes(
    root: Root, server: Serving, tmp_path: Path
) -> None:
    token, url = root.token("--scope", "write"), f"{server.url}/acc/a"
    here = hold(tmp_path / "here", dataset_a())

    def call(*words: object) -> Ended:
        ended = run(*words, "--token", token, "--json", home=root.home)
        assert ended.code == 0, ended.err + server.shown()
        return ended

    pushed = call("push", here, url).document
    assert stored(root, "acc/a") == dataset_a()
    assert (pushed["changed"], pushed["skipped"]) == (True, 0)
    assert call("push", here, url).document["changed"] is False
    pulled = call("pull", f"odf+{url}", tmp_path / "there").document
    assert files_of(tmp_path / "there") == dataset_a()
    assert pulled == pushed
    assert call("pull", url, tmp_path / "there").document["changed"] is False


def test_histories_that_diverged_are_refused_and_forced(
    root: Root, server: Serving, tmp_path: Path
) -> None:
    token, url = root.token("--scope", "write"), f"{server.url}/d"
    words = ("--token", token, "--json")
    theirs = laid_out(Chain().append(checkpoint="c").append())
    ours = laid_out(Chain().append(checkpoint="c").add(SetInfo("ours")))
    here, there = hold(tmp_path / "here", ours), hold(tmp_path / "there", theirs)
    assert run("push", there, url, *words, home=root.home).code == 0
    for refused in (("push", here, url), ("pull", url, here)):
        ended = run(*refused, *words, home=root.home)
        assert (ended.code, ended.error["code"]) == (1, "diverged")
    assert run("push", here, url, "--force", *words, home=root.home).code == 0
    assert stored(root, "d")["refs/head"] == ours["refs/head"]
    assert run("pull", url, there, "--force", *words, home=root.home).code == 0
    assert files_of(there)["refs/head"] == ours["refs/head"]


def test_a_server_lets_in_whom_it_may(root: Root, server: Serving, tmp_path: Path) -> None:
    here = hold(tmp_path / "here", dataset_a())
    write = root.token("--scope", "write", "--dataset", "acc/a")
    read = root.token("--dataset", "acc/a")

    def code_of(*words: object) -> tuple[int, str]:
        ended = run(*words, "--json", home=root.home)
        return ended.code, ended.error["code"]

    assert code_of("push", here, f"{server.url}/acc/a") == (1, "unauthorized")
    assert run("push", here, f"{server.url}/acc/a", "--token", write, home=root.home).code == 0
    more = hold(tmp_path / "more", laid_out(Chain()))
    assert code_of("push", more, f"{server.url}/acc/b", "--token", write) == (1, "not_found")
    assert code_of("pull", f"{server.url}/acc/b", "x", "--token", read) == (1, "not_found")
    forced = ("push", more, f"{server.url}/acc/a", "--force", "--token", read)
    assert code_of(*forced) == (1, "forbidden")
