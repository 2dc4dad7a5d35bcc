"""Moves that can't be made, or not any more: refused by name, and nothing is left changed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from lakeferry.api.redirects import Redirects
from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    LakeferryError,
    MissingFile,
    RedirectCycle,
    RedirectInProgress,
    RedirectSpecInvalid,
    RedirectTargetNotEmpty,
    StorageUnavailable,
    TableError,
    Unauthorized,
    UnsupportedFeature,
)
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import open_store
from tests.support import components, engines, servers
from tests.support.history import Append, Checkpoint, Delete, History, Layout, Upgrade
from tests.support.lake import Lake, on_disk, on_s3
from tests.support.meanwhile import commits, meanwhile
from tests.support.servers import S3Bucket, S3Server
from tests.support.stores import StoreCall

ORDERS = History(Layout(partitioned=True)).then(
    Append(3), Delete(1), Checkpoint(), Append(2), Append(1)
)
THEIRS = History(Layout(properties=(("of", "others"),)))
NEXT = ORDERS.newest_version + 1
"""The version at which a move of it begins."""


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.versitygw)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "disk":
        return on_disk(tmp_path)
    return on_s3(tmp_path, request.getfixturevalue("s3_bucket"))


@pytest.fixture
def disk(tmp_path: Path) -> Lake:
    return on_disk(tmp_path)


def moves_of(lake: Lake, **options: Any) -> Redirects:
    return Redirects(dict(lake.variables), engine="local", **options)


def names_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names_in(folder)}


def put_all(lake: Lake, place: str, objects: Mapping[str, bytes]) -> None:
    """Put objects as somebody who asks nobody."""
    store = open_store(place, lake.variables)
    for name, content in objects.items():
        store.put(name, content)


def refused(kind: type[LakeferryError], lake: Lake, *words: str, **options: Any) -> LakeferryError:
    """Ask for a move that has to be refused without anything being changed anywhere."""
    before = lake.tree()
    with pytest.raises(kind) as refusal:
        moves_of(lake).enable(*words, **options)
    assert refusal.type is kind
    assert refusal.value.remedy
    assert lake.tree() == before
    return refusal.value


# --- Others at the same time -----------------------------------------------------


def test_of_two_moves_at_once_one_wins_and_the_other_leaves_nothing(lake: Lake) -> None:
    source = lake.make("old", ORDERS)
    wanted = engines.by_delta_rs(source, options=lake.variables)
    refused = threading.Event()

    def move(name: str) -> str:
        moves = meanwhile(commits(source, NEXT), lambda: refused.wait(60), lake.variables)
        try:
            return moves.enable(source, lake.uri(name)).state.value
        except RedirectInProgress as refusal:
            refused.set()
            return refusal.code

    with ThreadPoolExecutor(2) as pool:
        ended = dict(zip(("one", "other"), pool.map(move, ("one", "other")), strict=True))
    assert sorted(ended.values()) == ["READY", "redirect_in_progress"]
    (winner,) = (name for name, end in ended.items() if end == "READY")
    (loser,) = (name for name in ended if name != winner)
    assert moves_of(lake).resolve(source).location == lake.uri(winner)
    assert engines.by_delta_rs(lake.uri(winner), options=lake.variables) == wanted
    assert names_in(lake.folder / loser) == []


@pytest.mark.parametrize("data", ["copy", "reference"])
@pytest.mark.parametrize("commits_of_theirs", [1, 3])
def test_a_table_that_appears_at_the_target_meanwhile_is_left_alone(
    lake: Lake, data: str, commits_of_theirs: int
) -> None:
    """Before ours got there they may have any number of commits, and after that only the first."""
    source, target = lake.make("old", ORDERS), lake.uri("new")
    before = bytes_in(lake.folder / "old")
    theirs: dict[str, bytes] = {}

    def others_come(what: str, done: int, total: int) -> None:
        ours_are_there = what == "copying the log" and done == total
        if theirs or (commits_of_theirs == 1 and not ours_are_there):
            return
        history = THEIRS.then(*(Append(1) for _ in range(commits_of_theirs - 1)))
        theirs.update(history.objects(target, with_data=True))
        put_all(lake, target, theirs)

    with pytest.raises(RedirectTargetNotEmpty):
        moves_of(lake, observer=others_come).enable(source, target, data=data)
    assert moves_of(lake).status(source).state is RedirectState.NORMAL
    assert bytes_in(lake.folder / "old") == before
    after = bytes_in(lake.folder / "new")
    assert {name: after.get(name) for name in theirs} == theirs
    assert [name for name in after if name.startswith("_delta_log") and name not in theirs] == []
    there = lake.table("new").snapshot()
    assert (there.version, there.num_files) == (commits_of_theirs - 1, commits_of_theirs - 1)


def test_a_table_that_appears_while_writers_wait_is_left_alone(lake: Lake) -> None:
    source, target = lake.make("old", ORDERS), lake.uri("new")
    theirs = THEIRS.objects(target)

    others_come = partial(put_all, lake, target, theirs)
    moves = meanwhile(commits(source, NEXT), others_come, lake.variables)
    with pytest.raises(RedirectTargetNotEmpty):
        moves.enable(source, target)
    moves_of(lake).cancel(source)
    assert moves_of(lake).status(source).state is RedirectState.NORMAL
    after = bytes_in(lake.folder / "new")
    assert {name: after.get(name) for name in theirs} == theirs
    assert [name for name in after if name.startswith("_delta_log") and name not in theirs] == []


@pytest.mark.parametrize("moment", ["before the lock", "after the lock"])
def test_a_move_whose_beginning_a_careless_writer_replaced_begins_again(
    lake: Lake, moment: str
) -> None:
    """Stock Spark looks whether a version is free, and then writes it."""
    source, target = lake.make("old", ORDERS), lake.uri("new")
    now, later = (
        history.objects(source, with_data=True) for history in (ORDERS, ORDERS.then(Append(1)))
    )
    careless = partial(put_all, lake, source, {n: later[n] for n in later.keys() - now.keys()})

    def is_published(uri: str, call: StoreCall) -> bool:
        return (uri, call.verb) == (target, "COPY")

    when = commits(target, NEXT) if moment == "before the lock" else is_published
    moved = meanwhile(when, careless, lake.variables).enable(source, target)
    assert (moved.state, moved.version) == (RedirectState.READY, NEXT + 2)
    assert engines.by_delta_rs(target, options=lake.variables) == engines.by_delta_rs(
        source, version=NEXT, options=lake.variables
    )
    there = [name for name in names_in(lake.folder / "new") if "_lakeferry" in name]
    assert there == []


# --- What the table is -------------------------------------------------------------


def test_a_live_file_that_is_missing_stops_a_move_before_anything_changes(lake: Lake) -> None:
    source, target = lake.make("old", ORDERS), lake.uri("new")
    live = lake.table("old").snapshot().files["path"][0].as_py()
    lost = lake.folder / "old" / unquote(live)
    kept = lost.rename(lake.folder / "kept")
    before = bytes_in(lake.folder / "old")
    with pytest.raises(MissingFile) as refusal:
        moves_of(lake).enable(source, target)
    assert refusal.value.fields["path"] == live
    moves_of(lake).cancel(source)
    assert bytes_in(lake.folder / "old") == before
    assert names_in(lake.folder / "new") == []
    assert moves_of(lake).status(source).state is RedirectState.NORMAL
    with pytest.raises(TableError):
        lake.table("new").snapshot()
    kept.rename(lost)
    assert moves_of(lake).enable(source, target).state is RedirectState.READY


@pytest.mark.parametrize(
    ("reader", "writer", "named"),
    [
        (("catalogManaged",), (), "catalogManaged"),
        (("catalogOwned-preview",), (), "catalogOwned-preview"),
        ((), ("coordinatedCommits-preview",), "coordinatedCommits-preview"),
        ((), ("managedCommit",), "managedCommit"),
        ((), ("ofTheFuture",), "ofTheFuture"),
        (("ofTheFuture",), (), "ofTheFuture"),
    ],
)
def test_a_feature_that_can_t_be_carried_is_refused_by_name(
    disk: Lake, reader: tuple[str, ...], writer: tuple[str, ...], named: str
) -> None:
    source = disk.make("old", ORDERS.then(Upgrade(reader, writer)))
    refusal = refused(UnsupportedFeature, disk, source, disk.uri("new"))
    assert named in str(refusal)


# --- What the places are -----------------------------------------------------------


@pytest.mark.parametrize("careless", ["source", "target"])
def test_a_store_that_lets_two_writers_win_is_refused(
    tmp_path: Path, disk: Lake, careless: str
) -> None:
    with servers.rclone_s3(tmp_path / "rclone") as server:
        store = on_s3(tmp_path, server.create_bucket("careless"))
        source = (store if careless == "source" else disk).make("old", ORDERS)
        target = (store if careless == "target" else disk).uri("new")
        before = (store.tree(), disk.tree())
        moves = Redirects(dict(store.variables), engine="local")
        with pytest.raises(StorageUnavailable, match="overwriting") as refusal:
            moves.enable(source, target)
        assert careless == "source" or refusal.value.fields["uri"] == target
        assert (store.tree(), disk.tree()) == before


@pytest.fixture
def read_only(versitygw: S3Server, tmp_path: Path) -> Iterator[S3Server]:
    """The same buckets as those of the S3 server, for those who may read only."""
    binary = components.require("versitygw")
    folder = tmp_path / "gateway"
    folder.mkdir()
    with servers.versitygw(binary, folder, read_only_of=versitygw) as server:
        yield server


@pytest.mark.parametrize("place", ["source", "target"])
def test_a_place_that_may_not_be_written_to_is_refused(
    tmp_path: Path, s3_bucket: S3Bucket, read_only: S3Server, disk: Lake, place: str
) -> None:
    bucket = on_s3(tmp_path, s3_bucket)
    source = (bucket if place == "source" else disk).make("old", ORDERS)
    target = (bucket if place == "target" else disk).uri("new")
    before = (bucket.tree(), disk.tree())
    moves = Redirects(read_only.environment(), engine="local")
    with pytest.raises(Forbidden):
        moves.enable(source, target)
    assert (bucket.tree(), disk.tree()) == before
    nobody = {**read_only.environment(), "AWS_SECRET_ACCESS_KEY": "guessed"}
    with pytest.raises(Unauthorized):
        Redirects(nobody, engine="local").enable(source, target)
    assert (bucket.tree(), disk.tree()) == before


def test_a_table_can_t_move_into_itself_around_itself_or_nowhere(lake: Lake) -> None:
    source = lake.make("some/old", ORDERS)
    refused(InvalidInput, lake, source, f"{source}/inside")
    refused(InvalidInput, lake, source, lake.uri("some"))
    refused(RedirectCycle, lake, source, f"{source}/")
    refused(RedirectCycle, lake, source, source.replace("s3://", "s3a://"))


def test_a_place_where_something_is_is_refused(lake: Lake) -> None:
    source = lake.make("old", ORDERS)
    lake.make("taken", History().then(Append(1)))
    (lake.folder / "notes").mkdir()
    (lake.folder / "notes" / "read.me").write_text("not a table")
    refused(RedirectTargetNotEmpty, lake, source, lake.uri("taken"))
    refused(RedirectTargetNotEmpty, lake, source, lake.uri("notes"))


@pytest.mark.parametrize("mode", ["reader-writer", "writer-only"])
def test_a_copy_of_a_redirected_table_is_read_and_never_changed(disk: Lake, mode: str) -> None:
    source, target = disk.make("old", ORDERS), disk.uri("new")
    moves = moves_of(disk)
    moves.enable(source, target, mode=mode)
    shutil.copytree(disk.folder / "old", disk.folder / "copy")
    copy = disk.uri("copy")
    assert moves.resolve(copy).location == target
    before = disk.tree()
    changes: list[Callable[[], object]] = [
        lambda: moves.enable(copy, target, mode=mode),
        lambda: moves.enable(copy, target, mode=mode, rules=["app:VACUUM"]),
        lambda: moves.enable(copy, disk.uri("other"), mode=mode),
        lambda: moves.resume(copy),
        lambda: moves.cancel(copy),
        lambda: moves.disable(copy),
        lambda: moves.disable(copy, remove_target=True),
    ]
    for change in changes:
        with pytest.raises(RedirectSpecInvalid, match="was made for"):
            change()
    assert disk.tree() == before
