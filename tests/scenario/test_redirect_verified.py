"""``--verify full`` as a user runs it: on local disk, and on a real S3 server."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lakeferry.errors import HashMismatch
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.scenario.remedies.redirects import BEGUN, stopped
from tests.support import lake as lakes
from tests.support.corrupting import flipped, spoil_copies_on_disk
from tests.support.http_proxy import CountingProxy, SeenRequest
from tests.support.lake import Lake
from tests.support.redirects import append
from tests.support.servers import S3Bucket


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.versitygw)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "disk":
        return lakes.on_disk(tmp_path)
    return lakes.on_s3(tmp_path, request.getfixturevalue("s3_bucket"))


@pytest.fixture
def disk(tmp_path: Path) -> Lake:
    return lakes.on_disk(tmp_path)


def data_files(lake: Lake, table: str) -> dict[str, Path]:
    """Return the data files of a table by their names."""
    return {path.name: path for path in sorted((lake.folder / table).glob("*.parquet"))}


def test_there_and_back_every_file_is_read_at_both_ends(lake: Lake) -> None:
    source = lake.make("t")
    words = ("--verify", "full")
    plan = lake.done("redirect", "enable", source, lake.uri("n"), "--dry-run", *words)
    (step,) = (step for step in plan["plan"] if step["op"] == "copy_data")
    assert step["verify_bytes"] == 2 * step["bytes"]
    assert step["verify_duration_ms"] >= 0
    there = lake.done("redirect", "enable", source, lake.uri("n"), *words)
    files, size_bytes = there["files_copied"], there["bytes_copied"]
    assert files
    assert (there["files_compared"], there["bytes_compared"]) == (files, size_bytes)
    append(DeltaLog(open_store(lake.uri("n"), lake.variables)), "x.parquet")
    back = lake.done("redirect", "disable", source, *words)
    assert back["files_compared"] == back["files_copied"] == 1


def test_what_an_interrupted_move_has_copied_wrong_is_found_by_resume(disk: Lake) -> None:
    source = disk.make("t")
    with stopped("t", BEGUN, after=False):
        disk.table("t").redirect(disk.uri("n"))
    name, copy = next(iter(data_files(disk, "n").items()))
    right = copy.read_bytes()
    copy.write_bytes(flipped(right))
    resumed = disk.done("redirect", "resume", source, "--verify", "full")
    assert resumed["state"] == "READY"
    assert any(name in text for text in resumed["warnings"])
    assert copy.read_bytes() == right
    assert data_files(disk, "n").keys() == data_files(disk, "t").keys()


def test_a_list_of_moves_may_say_which_are_read(disk: Lake, tmp_path: Path) -> None:
    rows = ["source,target,verify"]
    for name, verify in (("a", "full"), ("b", ""), ("c", "store")):
        rows.append(f"{disk.make(name)},{disk.uri(f'new-{name}')},{verify}")
    moves = tmp_path / "moves.csv"
    moves.write_text("\n".join(rows))
    moved = disk.done("redirect", "enable", "--from-file", moves)["moves"]
    compared = [move["files_compared"] for move in moved]
    assert compared == [moved[0]["files_copied"], None, None]


def test_an_export_is_read_after_it_was_written(disk: Lake) -> None:
    source = disk.make("t")
    words = ("--to", disk.uri("e"), "--verify", "full")
    found = disk.done("export", source, *words)
    assert found["files_compared"] == found["files_written"]
    assert disk.done("export", source, *words)["files_compared"] == 0


def test_an_existing_target_is_compared_by_another_command(disk: Lake) -> None:
    source, target = disk.make("t"), disk.uri("n")
    ended = disk.run("redirect", "enable", source, target, "--to-existing", "--verify", "full")
    assert (ended.code, ended.error["code"]) == (2, "invalid_input")
    assert "--digest" in ended.error["remedy"]


def test_a_wrong_copy_never_becomes_ready(disk: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.make("t")
    spoil_copies_on_disk(monkeypatch, disk.uri("n"), ".parquet")
    table = disk.table("t")

    def begin() -> object:
        return table.redirect(disk.uri("n"), verify="full", engine="local")

    for run in (begin, partial(table.redirect_resume, engine="local")):
        with pytest.raises(HashMismatch) as refused:
            run()
        assert str(refused.value.fields["uri"]).startswith(disk.uri("n"))
    assert table.redirect_status().state.value == "NORMAL"


@pytest.mark.versitygw
def test_a_copy_that_the_store_made_wrong_is_made_again_by_its_checksum(
    s3_bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lakes.on_s3(tmp_path, s3_bucket)
    source = lake.make("t")
    direct = {**s3_bucket.storage_options}
    old, new = open_store(source, direct), open_store(lake.uri("n"), direct)
    # Files that were put by requests have checksums at this server, as at Amazon.
    names = [info.path for info in old.list("") if info.path.endswith(".parquet")]
    for name in names:
        old.put(name, old.get(name))
    with CountingProxy(s3_bucket.server.endpoint.removeprefix("http://")) as proxy:

        def spoil(seen: SeenRequest) -> None:
            path = seen.target.partition("?")[0]
            if seen.method == "HEAD" and path.endswith(f"/n/{names[0]}"):
                new.put(names[0], flipped(old.get(names[0])))

        proxy.rule = spoil
        options = {**direct, "AWS_ENDPOINT_URL": proxy.url}
        table = type(lake.table("t"))(source, options)
        done = table.redirect(lake.uri("n"), engine="local")
    assert done.state.value == "READY"
    assert 0 < done.by_store_bytes < done.bytes_copied
    assert all(new.get(name) == old.get(name) for name in names)
