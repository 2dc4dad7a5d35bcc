"""Tables in a real lakeFS, on local disk and on S3: read by any ref, in pages and not by file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable

import lakeferry
from lakeferry.errors import Forbidden, InvalidInput, ObjectNotFound, TableNotFound, Unauthorized
from lakeferry.storage import open_store
from tests.support.http_proxy import CountingProxy
from tests.support.repositories import BLOCKSTORES, GROUP, Repository, new_repository
from tests.unit.cli.program import run


@pytest.fixture(params=BLOCKSTORES)
def repository(request: pytest.FixtureRequest) -> Repository:
    return new_repository(request.param, request.getfixturevalue)


@pytest.fixture
def table(repository: Repository) -> tuple[Repository, str, str]:
    """A repository with a table at ``t``, and the ids of its two commits.

    Each commit has a version of the table, and a third one is staged.
    """
    repository.append(1, 2)
    first = repository.commit()
    repository.append(3, 4)
    second = repository.commit()
    repository.tag("v1.0")
    repository.append(5, 6)
    return repository, first, second


@pytest.fixture
def proxy(repository: Repository) -> Iterator[CountingProxy]:
    with CountingProxy(repository.server.endpoint.removeprefix("http://")) as running:
        yield running


def test_a_table_is_read_by_branch_tag_commit_and_expression(
    table: tuple[Repository, str, str],
) -> None:
    repository, first, second = table
    versions = {"main": 2, "main@": 1, "v1.0": 1, second: 1, first: 0, "main~1": 0, first[:12]: 0}
    for ref, version in versions.items():
        found = lakeferry.Table(repository.uri(ref), storage_options=repository.options)
        described = found.inspect()
        assert (described.version, described.num_files) == (version, 2 * (version + 1))
        assert described.location == repository.uri(ref)
        rows = lakeferry.open(repository.uri(ref), storage_options=repository.options)
        ids = sorted(rows.to_table()["id"].to_pylist())
        assert ids == list(range(1, 2 * version + 3))


def test_a_ref_is_known_by_its_commit_and_what_is_staged(
    table: tuple[Repository, str, str],
) -> None:
    repository, first, second = table
    commits = {"main": second, "main@": second, "v1.0": second, "main~1": first, first[:12]: first}
    for ref, commit in commits.items():
        store = repository.store(ref)
        assert store.commit_id() == commit
        assert store.has_uncommitted() is (ref == "main")
    assert repository.store().has_uncommitted("_delta_log/")
    assert not repository.store(path="other").has_uncommitted()
    repository.commit()
    assert not repository.store().has_uncommitted()


def test_addresses_lead_to_the_bytes_and_stay_in_the_storage_namespace(
    table: tuple[Repository, str, str],
) -> None:
    repository, *_ = table
    store = repository.store()
    namespace = store.storage_namespace()
    listed = {found.path: found.size_bytes for found in store.list("")}
    found = {name: (entry.address, entry.size_bytes) for name, entry in store.page().entries}
    assert {name: size for name, (_, size) in found.items()} == listed
    assert len(found) == 9
    for name, (uri, size) in found.items():
        assert uri.startswith(f"{namespace}/data/")
        assert namespace.startswith("s3://" if repository.blocks else "file:///")
        where, _, key = uri.rpartition("/")
        data = open_store(where, repository.blocks).get(unquote(key))
        assert len(data) == size
        assert data == store.get(name)


def test_lakefs_is_asked_for_pages_and_not_for_files(
    table: tuple[Repository, str, str], proxy: CountingProxy
) -> None:
    repository, *_ = table
    gateway = open_store(f"s3://{repository.name}/main/many", repository.gateway_options)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: gateway.put(f"{n:04}", str(n).encode()), range(1001)))
    before = proxy.count("GET")
    store = repository.store(path="many", lakefs_endpoint=proxy.url)
    names = [found.path for found in store.list("")]
    assert store.get_many(names) == [str(number).encode() for number in range(1001)]
    assert proxy.count("GET") - before == store.calls["LIST"] == 2
    assert store.calls["HEAD"] == 0
    # However many commits a table has, they cost no requests of their own. One of the seven
    # looks for a move that was interrupted.
    options = {**repository.options, "lakefs_endpoint": proxy.url}
    asked = []
    for ref, version in (("main~1", 0), ("main", 2)):
        before = proxy.count("GET")
        found = lakeferry.Table(repository.uri(ref), storage_options=options)
        assert found.inspect().version == version
        asked.append(proxy.count("GET") - before)
    assert asked[0] == asked[1] <= 7


@pytest.mark.parametrize("repository", [pytest.param("lakefs_on_s3", marks=GROUP)], indirect=True)
def test_what_the_blockstore_does_not_give_comes_from_lakefs(
    table: tuple[Repository, str, str], proxy: CountingProxy
) -> None:
    repository, *_ = table
    wanted = repository.store().get("_delta_log/00000000000000000001.json")
    gateway = repository.server.gateway.environment()
    for wrong in (
        {"aws_secret_access_key": "wrong", "aws_access_key_id": "wrong"},
        {name.lower(): value for name, value in gateway.items()},
    ):
        options = {name.lower(): value for name, value in repository.blocks.items()} | wrong
        bare = Repository(repository.server, repository.name, options)
        store = bare.store(lakefs_endpoint=proxy.url)
        assert len(list(store.list("_delta_log/"))) == 3
        asked = proxy.count("GET")
        assert store.get("_delta_log/00000000000000000001.json") == wanted
        assert store.get_range("_delta_log/00000000000000000001.json", 5, 20) == wanted[5:25]
        assert store.get_range("_delta_log/00000000000000000001.json", len(wanted), 1) == b""
        assert proxy.count("GET") > asked
        found = lakeferry.Table(bare.uri("v1.0"), storage_options=bare.options)
        assert found.inspect().num_files == 4


def test_what_is_missing_is_said(table: tuple[Repository, str, str]) -> None:
    repository, *_ = table
    for uri, missing in (
        ("lakefs://no-such-repository/main/t", "repository"),
        (repository.uri("nosuch"), "ref"),
        (repository.uri("main~9"), "ref"),
        (repository.uri(), "path"),
    ):
        with pytest.raises(ObjectNotFound) as refused:
            open_store(uri, repository.options).get("x")
        assert refused.value.fields["missing"] == missing
    with pytest.raises(TableNotFound, match="no ref 'nosuch'"):
        lakeferry.Table(repository.uri("nosuch"), storage_options=repository.options).inspect()
    with pytest.raises(InvalidInput, match="understand"):
        list(repository.store("main%5E7").list(""))
    wrong = {**repository.options, "lakefs_secret_access_key": "wrong"}
    with pytest.raises(Unauthorized, match="isn't accepted"):
        list(open_store(repository.uri(), wrong).list(""))


def test_commands_read_it_and_those_that_write_are_refused(
    table: tuple[Repository, str, str], tmp_path: Path
) -> None:
    repository, *_ = table
    variables = repository.variables

    def said(*words: str) -> Any:
        ended = run(*words, "--json", home=tmp_path, variables=variables)
        assert ended.code == 0, ended.err
        return ended.lines

    assert said("inspect", repository.uri("v1.0"))[0]["version"] == 1
    assert len(said("history", repository.uri())[0]["commits"]) == 3
    files = said("files", repository.uri("main~1"))
    assert {file["path"].startswith(f"{repository.uri('main~1')}/") for file in files} == {True}
    same = said("verify", repository.uri("v1.0"), repository.uri("main@"), "--digest", "--rows")
    assert same[0]["equal"] is True
    for words in (
        ["checkpoint", repository.uri()],
        ["redirect", "enable", repository.uri(), str(tmp_path / "new")],
        ["redirect", "freeze", repository.uri()],
    ):
        refused = run(*words, "--json", home=tmp_path, variables=variables)
        assert (refused.code, refused.error["code"]) == (1, "forbidden"), refused.err
        assert "gateway" in refused.error["message"]
    assert not (tmp_path / "new").exists()


def test_another_process_opens_it_with_its_own_environment(
    table: tuple[Repository, str, str],
) -> None:
    repository, *_ = table
    program = (
        "import sys; from lakeferry.storage import StoreConfig, open_config;"
        "print(sum(1 for _ in open_config(StoreConfig(sys.argv[1])).list('')))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, repository.uri("v1.0")],
        env={**os.environ, **repository.variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == "6"


def test_writers_see_a_clear_refusal(table: tuple[Repository, str, str]) -> None:
    repository, *_ = table
    with pytest.raises(Forbidden, match="only be read"):
        repository.store().put("x", b"")
    gateway = f"s3://{repository.name}/main/t"
    assert DeltaTable(gateway, storage_options=repository.gateway_options).version() == 2


def test_a_table_that_can_only_be_read_is_pushed_and_its_digests_are_kept(
    table: tuple[Repository, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, _, _ = table
    monkeypatch.setenv("LAKEFERRY_CACHE", str(tmp_path / "cache"))
    root = str(tmp_path / "root")
    here = lakeferry.Table(repository.uri("main"), storage_options=repository.options)
    with lakeferry.Server(root) as server:
        url, token = f"{server.url}/acme/t", lakeferry.create_token(root, scope="write")
        assert here.push(url, token=token, dry_run=True)
        assert not (tmp_path / "cache" / "transfer").exists()
        pushed = here.push(url, token=token)
        assert pushed.objects == 6
        kept = list((tmp_path / "cache" / "transfer").rglob("blocks/*"))
        assert len(kept) == pushed.blocks == 3
        repository.append(7, 8)
        again = here.push(url, token=token)
        assert (again.objects, again.blocks) == (2, 1)
    pulled = DeltaTable(str(Path(root) / "acme" / "t")).to_pyarrow_table()
    assert sorted(pulled["id"].to_pylist()) == list(range(1, 9))
    assert not [info.path for info in repository.store().list("_delta_log/_lakeferry/")]
