"""Datasets of a real server over plain HTTP, its root on local disk and on a real S3 server.

The golden dataset lies beside the repository, where there is one; without it, one that is
made here is served in its place.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lakeferry.errors import CommitConflict
from lakeferry.storage import Store, open_config, open_store
from lakeferry.transfer.chain import odf_blocks
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets.odf import OdfDataset
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.repository import Repository, Visibility
from lakeferry.transfer.repository.signed_urls import Links, Signer
from tests.support import servers
from tests.support.odf import GOLDEN_ODF, Chain, SetInfo
from tests.support.servers import S3Bucket
from tests.support.serving import Serving, serving, until
from tests.unit.cli.program import run

ROOTS = ["local", "s3"]
LARGE = bytes(range(251)) * 200_000


def dataset_a() -> dict[str, bytes]:
    """Return the golden dataset's files by their names below it, or those of one like it."""
    folder = GOLDEN_ODF / "dataset-a"
    if folder.is_dir():
        files = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return laid_out(Chain().add(SetInfo("made here")).append(checkpoint="c").append())


def laid_out(built: Chain) -> dict[str, bytes]:
    files = {f"blocks/{name}": data for name, data in built.blocks}
    for name, data in built.objects.items():
        files[f"{'data' if data.startswith(b'rows') else 'checkpoints'}/{name}"] = data
    return {**files, "refs/head": built.head.text.encode()}


@dataclass(frozen=True, slots=True)
class Root:
    """Where a server's datasets are, and the environment that leads there."""

    store: Store
    variables: Mapping[str, str]
    home: Path

    def hold(self, name: str, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            self.store.put(f"{name}/{path}", data)

    def token(self, *words: str) -> str:
        made = run(
            *("token", "create", "--root", self.store.uri, "--json", *words),
            home=self.home,
            variables=self.variables,
        )
        assert made.code == 0, made.err
        return str(made.document["token"])

    def below(self, name: str) -> dict[str, bytes]:
        lead = f"{name}/"
        paths = [found.path for found in self.store.list(lead)]
        found = zip(paths, self.store.get_many(paths), strict=True)
        return {path.removeprefix(lead): data for path, data in found}


@pytest.fixture(params=ROOTS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    if request.param == "local":
        return Root(open_store(str(tmp_path / "a root")), {}, tmp_path)
    bucket: S3Bucket = request.getfixturevalue("s3_bucket")
    store = open_store(f"{bucket.uri}/a root", bucket.storage_options)
    return Root(store, bucket.server.environment(), tmp_path)


@pytest.fixture
def server(root: Root) -> Iterator[Serving]:
    root.hold("acc/a", dataset_a())
    with serving(root.home, root.variables, root=root.store) as running:
        yield running
        assert "Traceback" not in running.shown()


def ask(
    server: Serving,
    path: str,
    token: str | None = None,
    *,
    method: str = "GET",
    data: bytes | None = None,
    **headers: str,
) -> tuple[int, bytes]:
    """Ask as a plain client does, and return status and body."""
    request = urllib.request.Request(f"{server.url}/{path}", data, headers, method=method)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_a_plain_client_pulls_identical_bytes(root: Root, server: Serving) -> None:
    token, expected = root.token("--dataset", "acc/a"), dataset_a()
    status, head = ask(server, "acc/a/refs/head", token)
    assert status == 200
    pulled = {"refs/head": head}
    current: Multihash | None = Multihash.parse(head.decode())
    while current is not None:
        path = f"blocks/{current}"
        pulled[path] = ask(server, f"acc/a/{path}", token)[1]
        block = odf_blocks.parse_odf_block(pulled[path], current)
        for ref in block.objects:
            path = f"{'data' if ref.kind.value == 'DataSlice' else 'checkpoints'}/{ref.hash}"
            pulled[path] = ask(server, f"acc/a/{path}", token)[1]
        current = block.prev_hash
    assert pulled == expected


def test_a_plain_client_puts_objects_and_a_commit_makes_them_a_dataset(
    root: Root, server: Serving
) -> None:
    built = Chain().add(SetInfo("begun")).append(checkpoint="c").append()
    there = OdfDataset(root.store, "acc/new")
    there.commit(built.blocks[:1], None)
    token = root.token("--scope", "write", "--dataset", "acc/new")
    files = laid_out(built)
    for _ in range(2):
        for path, data in files.items():
            if path.startswith(("data/", "checkpoints/")):
                assert ask(server, f"acc/new/{path}", token, method="PUT", data=data) == (200, b"")
    there.commit(built.blocks[1:], built.blocks[0][0])
    assert root.below("acc/new") == files


def test_a_large_object_goes_in_and_out_in_parts(root: Root, server: Serving) -> None:
    token = root.token("--scope", "write")
    path = f"acc/a/data/{Multihash.sha3_256(LARGE)}"
    assert ask(server, path, token, method="PUT", data=LARGE[:-1])[0] == 400
    assert ask(server, path, token, method="HEAD")[0] == 404
    assert ask(server, path, token, method="PUT", data=LARGE) == (200, b"")
    assert ask(server, path, token) == (200, LARGE)
    middle = len(LARGE) // 2
    first = ask(server, path, token, Range=f"bytes=0-{middle - 1}")
    second = ask(server, path, token, Range=f"bytes={middle}-")
    assert (first[0], second[0], first[1] + second[1] == LARGE) == (206, 206, True)


def test_an_upload_that_breaks_off_leaves_nothing_and_can_be_repeated(
    root: Root, server: Serving
) -> None:
    token = root.token("--scope", "write")
    path, before = f"acc/a/data/{Multihash.sha3_256(LARGE)}", root.below("acc/a")
    client = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    client.putrequest("PUT", f"/{path}")
    client.putheader("Authorization", f"Bearer {token}")
    client.putheader("Content-Length", str(len(LARGE)))
    client.endheaders(LARGE[: len(LARGE) // 2])
    client.close()
    assert ask(server, "acc/a/refs/head", token)[0] == 200
    assert root.below("acc/a") == before
    assert ask(server, path, token, method="PUT", data=LARGE)[0] == 200
    assert ask(server, path, token)[1] == LARGE


def test_who_may_do_what(root: Root, server: Serving) -> None:
    new = f"acc/a/data/{Multihash.sha3_256(b'x')}"
    head = "acc/a/refs/head"
    assert ask(server, head) == (401, b"Anonymous account is restricted")
    assert ask(server, head, "nonsense") == (401, b"Authentication token invalid")
    elsewhere = root.token("--scope", "write", "--dataset", "acc/b")
    assert ask(server, head, elsewhere) == (404, b"")
    reader = root.token("--dataset", "acc/a")
    assert ask(server, head, reader)[0] == 200
    assert ask(server, new, reader, method="PUT", data=b"x") == (403, b"")
    brief = root.token("--expires", "1s")
    deadline = time.monotonic() + 30
    while (answer := ask(server, head, brief))[0] == 200 and time.monotonic() < deadline:
        pass
    assert answer == (401, b"Authentication token expired")
    for trick in (
        "acc/../acc/a/refs/head",
        "acc%2F..%2Facc%2Fa/refs/head",
        ".lakeferry/tokens/data/x",
        "acc/a/data/..%2F..%2F..%2F.lakeferry%2Fsigning.key",
        "acc/a/refs/..%2Fblocks",
    ):
        assert ask(server, trick, reader)[0] in (400, 404)
    assert ask(server, "healthz")[0] == 200


def test_a_running_server_learns_of_tokens_and_visibility(root: Root, server: Serving) -> None:
    name, head = DatasetName.parse("acc/a"), "acc/a/refs/head"
    assert ask(server, head)[0] == 401
    Repository(root.store).set_visibility(name, Visibility.PUBLIC)
    until(lambda: ask(server, head)[0] == 200)
    Repository(root.store).set_visibility(name, Visibility.PRIVATE)
    until(lambda: ask(server, head)[0] == 401)
    token = root.token()
    assert ask(server, head, token)[0] == 200
    root.store.delete_many([found.path for found in root.store.list(".lakeferry/tokens/")])
    until(lambda: ask(server, head, token)[0] == 401)


def test_everybody_reads_where_the_server_says_so(root: Root) -> None:
    root.hold("a", dataset_a())
    with serving(root.home, root.variables, "--anonymous-read", root=root.store) as server:
        assert ask(server, "a/refs/head") == (200, dataset_a()["refs/head"])
        new = f"a/data/{Multihash.sha3_256(b'x')}"
        assert ask(server, new, method="PUT", data=b"x")[0] == 401
        assert ask(server, "b/refs/head") == (404, b"")


def test_signed_urls_lead_to_the_bytes(root: Root, server: Serving) -> None:
    is_local = root.store.uri.startswith("file:")
    links = Links(root.store, Signer.of(root.store) if is_local else None, server.url)
    path = f"acc/a/data/{Multihash.sha3_256(LARGE)}"
    given = links.put(path, len(LARGE), lasts_s=60)
    put = urllib.request.Request(given.url, LARGE, dict(given.headers), method="PUT")
    with urllib.request.urlopen(put, timeout=60) as response:
        assert response.status == 200
    with urllib.request.urlopen(links.get(path, lasts_s=60).url, timeout=60) as response:
        assert response.read() == LARGE
    brief = links.get(path, lasts_s=1).url
    time.sleep(2.1)
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        urllib.request.urlopen(brief, timeout=60)
    refused.value.close()


def test_of_parallel_commits_one_wins(root: Root) -> None:
    base = Chain().append(checkpoint="c")
    root.hold("acc/a", laid_out(base))
    racers = [Chain().append(checkpoint="c").add(SetInfo(f"racer {n}")) for n in range(6)]

    def commit(racer: Chain) -> Multihash | None:
        there = OdfDataset(open_config(root.store.config), "acc/a")
        try:
            return there.commit(racer.blocks[-1:], base.head)
        except CommitConflict:
            return None

    with ThreadPoolExecutor(len(racers)) as pool:
        won = [name for name in pool.map(commit, racers) if name is not None]
    assert len(won) == 1
    there = OdfDataset(root.store, "acc/a")
    assert there.head() == won[0]
    [winner] = [racer for racer in racers if racer.head == won[0]]
    assert list(there.read(there.interval(won[0]))) == winner.blocks


def test_a_store_that_lets_two_writers_win_is_no_root(tmp_path: Path) -> None:
    with servers.rclone_s3(tmp_path / "rclone") as careless:
        bucket = careless.create_bucket("careless")
        refused = run(
            *("serve", "--root", f"{bucket.uri}/root", "--port", "0", "--json"),
            home=tmp_path,
            variables=careless.environment(),
        )
        assert (refused.code, refused.error["code"]) == (1, "storage_unavailable")
        assert "overwriting" in refused.error["message"]
        left = open_store(bucket.uri, bucket.storage_options).list("")
        assert [found.path for found in left] == []


def test_what_makes_no_sense_is_refused_before_a_token_is_made(tmp_path: Path) -> None:
    # Tokens are for a root that there is.
    (tmp_path / "r").mkdir()
    for words, code in (
        (["--dataset", "../x"], 2),
        (["--dataset", ".lakeferry"], 2),
        (["--scope", "admin"], 2),
        (["--expires", "soon"], 2),
        (["--expires", "0s"], 2),
    ):
        refused = run(
            *("token", "create", "--root", tmp_path / "r", "--json", *words), home=tmp_path
        )
        assert (refused.code, refused.error["code"]) == (code, "invalid_input")
    planned = run(
        *("token", "create", "--root", tmp_path / "r", "--json", "--dry-run"), home=tmp_path
    )
    assert planned.document["plan"][0]["op"] == "create_token"
    assert list((tmp_path / "r").iterdir()) == []
    plain = run("token", "create", "--root", tmp_path / "r", home=tmp_path)
    assert plain.out.startswith("lf_")
    [kept] = (tmp_path / "r").rglob("*.json")
    assert plain.out.strip().split("_", 2)[2] not in kept.read_text()
    assert json.loads(kept.read_text())["grant"]["scope"] == "read"
