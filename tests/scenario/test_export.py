"""``lakeferry export`` of tables in a real lakeFS, on local disk and on S3, and of plain tables.

delta-rs is the writer, and the one who reads from an export's log which files it
names; rows are read by ``lakeferry.open``, as its users would.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

import lakeferry
from lakeferry.errors import CorruptLog, InvalidInput, LakeferryError, MissingFile
from lakeferry.export.exporter import Exported
from lakeferry.storage import open_store
from tests.support import components, servers
from tests.support import lake as lakes
from tests.support.forked import ForkedRun
from tests.support.history import Append, Checkpoint, Delete, DeleteRows, History, Kind, Layout
from tests.support.http_proxy import CountingProxy, SeenRequest, Spoil
from tests.support.lake import Lake
from tests.support.repositories import BLOCKSTORES, Repository, new_repository
from tests.support.servers import S3Server, free_port
from tests.unit.cli.program import PROGRAM, Ended, environment, make, run

# Where the blockstore makes no difference, or only one of them can be disturbed.
ONLY_ON_DISK = pytest.mark.parametrize("repository", [BLOCKSTORES[0]], indirect=True)
ONLY_ON_S3 = pytest.mark.parametrize("repository", [BLOCKSTORES[1]], indirect=True)


@pytest.fixture(params=BLOCKSTORES)
def repository(request: pytest.FixtureRequest) -> Repository:
    return new_repository(request.param, request.getfixturevalue)


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.versitygw)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "disk":
        return lakes.on_disk(tmp_path)
    return lakes.on_s3(tmp_path, request.getfixturevalue("s3_bucket"))


def export(
    repository: Repository, given: str = "main", path: str = "t", **options: Any
) -> Exported:
    """Export a table of a ref."""
    table = lakeferry.Table(repository.uri(given, path), storage_options=repository.options)
    done = table.export(**options)
    assert isinstance(done, Exported)
    return done


def ids(repository: Repository, location: str, version: int | None = None) -> list[int]:
    """Return the rows of an export, read without anything that leads to lakeFS."""
    found = lakeferry.open(location, version=version, storage_options=repository.blocks)
    return sorted(found.to_table()["id"].to_pylist())


def place(location: str) -> str:
    """Return an export's place below the folder of all of them."""
    below = location.partition("/_lakefs/exported/")[2]
    assert below, location
    return below


def tree(repository: Repository, location: str) -> dict[str, bytes]:
    """Return every file of an export."""
    lead = f"{place(location)}/"
    return {
        name.removeprefix(lead): data
        for name, data in repository.exported.items()
        if name.startswith(lead)
    }


def actions(files: dict[str, bytes], kind: str) -> list[dict[str, Any]]:
    """Return the actions of one kind in an export's commits, oldest first."""
    lines = [
        json.loads(line)
        for name in sorted(files)
        if re.fullmatch(r"_delta_log/\d{20}\.json", name)
        for line in files[name].splitlines()
    ]
    return [line[kind] for line in lines if line.get(kind)]


def new_objects(before: History, after: History) -> dict[str, bytes]:
    """Return what a history has made since."""
    known = before.objects(with_data=True)
    made = after.objects(with_data=True)
    return {name: data for name, data in made.items() if name not in known}


# --- Refs ---------------------------------------------------------------------------


def test_exports_of_refs_are_right_and_independent(repository: Repository) -> None:
    found: dict[str, tuple[str, list[int]]] = {}

    def check(ref: str, commit: str, expected: list[int]) -> None:
        done = export(repository, ref)
        assert place(done.location) == f"{ref}/{commit}/t"
        assert (done.commit, done.changed) == (commit, True)
        found[f"{ref} {commit}"] = done.location, expected
        for location, rows in found.values():
            assert ids(repository, location) == rows

    repository.append(1, 2)
    first = repository.commit()
    repository.tag("v1.0")
    repository.branch("dev")
    check("main", first, [1, 2])
    check("v1.0", first, [1, 2])
    repository.append(3, 4, branch="dev")
    check("dev", repository.commit("dev"), [1, 2, 3, 4])
    merged = repository.merge("dev")
    check("main", merged, [1, 2, 3, 4])
    repository.append(5, 6, branch="dev")
    check("dev", repository.commit("dev"), [1, 2, 3, 4, 5, 6])
    # The version that was taken back is made once more, with other rows.
    check("main", repository.revert(merged, parent=1), [1, 2])
    repository.append(7, 8)
    check("main", repository.commit(), [1, 2, 7, 8])
    assert len(found) == 7


def test_a_ref_may_be_spelled_in_any_way(repository: Repository) -> None:
    repository.append(1, 2)
    first = repository.commit()
    repository.append(3, 4)
    second = repository.commit()
    repository.tag("v2")
    repository.append(5, 6)
    refs = {
        "main@": ("main", second),
        "main~1": ("main~1", first),
        "v2": ("v2", second),
        second: (second, second),
        first[:16]: (first[:16], first),
    }
    rows = {first: [1, 2], second: [1, 2, 3, 4]}
    for ref, (shown, commit) in refs.items():
        done = export(repository, ref)
        assert place(done.location) == f"{shown}/{commit}/t", ref
        assert ids(repository, done.location) == rows[commit], ref
        assert done.commit == commit, ref
    # What was exported of a commit may be published under a branch's name.
    done = export(repository, first, ref="main")
    assert place(done.location) == f"main/{first}/t"
    assert ids(repository, done.location) == [1, 2]


def test_a_table_may_have_another_name_and_another_place(
    repository: Repository, tmp_path: Path
) -> None:
    repository.append(1, 2, path="a b/ü")
    commit = repository.commit()
    done = export(repository, path="a b/ü")
    assert done.location.endswith(f"/_lakefs/exported/main/{commit}/%C3%BC")
    named = export(repository, path="a b/ü", table="orders")
    assert named.location.endswith(f"/_lakefs/exported/main/{commit}/orders")
    elsewhere = export(repository, path="a b/ü", to=str(tmp_path / "out"))
    assert elsewhere.location == (tmp_path / "out").as_uri()
    for each in (done, named, elsewhere):
        assert ids(repository, each.location) == [1, 2]


@ONLY_ON_DISK
def test_a_table_at_the_root_of_a_ref_needs_a_name(repository: Repository) -> None:
    repository.append(1, 2, path="")
    commit = repository.commit()
    with pytest.raises(InvalidInput, match="name") as refused:
        export(repository, path="")
    assert "--table" in (refused.value.remedy or "")
    done = export(repository, path="", table="orders")
    assert place(done.location) == f"main/{commit}/orders"
    assert ids(repository, done.location) == [1, 2]


# --- What an export names -----------------------------------------------------------


def test_every_object_that_a_live_add_names_exists(repository: Repository) -> None:
    history = History(Layout(partitioned=True, deletion_vectors="u")).then(
        Append(6), DeleteRows(2), Checkpoint(), DeleteRows(3), Delete(1), Append(2)
    )
    repository.upload(history.objects(with_data=True))
    repository.append(1, 2, path="other")
    repository.commit()
    for path in ("t", "other"):
        done = export(repository, path=path)
        table = DeltaTable(done.location, storage_options=repository.blocks or None)
        live = pa.table(table.get_add_actions()).to_pylist()
        assert live
        for add in live:
            assert re.match("s3://" if repository.blocks else "file:/[^/]", add["path"])
            assert repository.file(add["path"]).stat().st_size == add["size_bytes"]
    vectors = [
        add["deletionVector"]
        for add in actions(tree(repository, export(repository).location), "add")
        if add.get("deletionVector")
    ]
    # Those of the commit at the checkpoint's version, and those since.
    assert len(vectors) == 5
    for vector in vectors:
        assert vector["storageType"] == "p"
        assert repository.file(vector["pathOrInlineDv"]).exists()


@ONLY_ON_S3
def test_objects_that_were_imported_are_named_where_they_are(
    repository: Repository, versitygw: S3Server
) -> None:
    """Their addresses have the names that they had, with everything that needs escaping."""
    raw = versitygw.create_bucket(f"raw-{uuid.uuid4().hex[:16]}")
    history = History(Layout(partitioned=True, deletion_vectors="u")).then(
        Append(6), DeleteRows(2), Checkpoint(), DeleteRows(3), Append(2)
    )
    source = f"{raw.uri}/da%20ta"
    history.write(open_store(source, raw.storage_options), with_data=True)
    commit = repository.import_from(f"{raw.uri}/da ta/")
    done = export(repository)
    assert done.commit == commit
    assert ids(repository, done.location) == ids(repository, source)
    table = DeltaTable(done.location, storage_options=repository.blocks)
    for add in pa.table(table.get_add_actions()).to_pylist():
        assert add["path"].startswith(f"{source}/part=")
        assert repository.file(unquote(add["path"])).exists()


def test_files_beside_the_table_are_named_where_they_are(repository: Repository) -> None:
    repository.append(1)
    repository.append(2, 3, path="folder/beside")
    beside = repository.delta_rs(path="folder/beside")
    adds = pa.table(beside.get_add_actions(flatten=True)).to_pydict()
    lines = [
        {
            "add": {
                "path": f"../folder/beside/{path}",
                "size": size,
                "partitionValues": {"day": day},
                "modificationTime": 0,
                "dataChange": True,
            }
        }
        for path, size, day in zip(
            adds["path"], adds["size_bytes"], adds["partition.day"], strict=True
        )
    ]
    commit = "\n".join(map(json.dumps, lines)).encode()
    repository.upload({"_delta_log/00000000000000000001.json": commit})
    repository.commit()
    assert ids(repository, export(repository).location) == [1, 2, 3]
    out = json.dumps({"add": {**lines[0]["add"], "path": "../../dev/t/x.parquet"}}).encode()
    repository.upload({"_delta_log/00000000000000000002.json": out})
    repository.commit()
    with pytest.raises(CorruptLog, match="leads out of"):
        export(repository)


@pytest.mark.parametrize("gone", ["in lakeFS", "in the blockstore"])
@pytest.mark.parametrize("what", ["data", "vector"])
def test_a_live_file_that_is_gone_stops_the_export(
    repository: Repository, gone: str, what: str, tmp_path: Path
) -> None:
    layout = Layout(partitioned=True, deletion_vectors="u")
    before = History(layout).then(Append(3))
    repository.upload(before.objects(with_data=True))
    first = repository.commit()
    earlier = export(repository)
    rows = ids(repository, earlier.location)
    new = new_objects(before, before.then(Append(2), DeleteRows(1)))
    repository.upload(new)
    names = [name for name in new if not name.startswith("_delta_log/")]
    victim = next(name for name in names if name.endswith(".bin") == (what == "vector"))
    if gone == "in lakeFS":
        repository.delete(victim)
    commit = repository.commit()
    if gone == "in the blockstore":
        bytes_of_it = repository.file(repository.address(victim))
        bytes_of_it.unlink()

    published = repository.exported
    with pytest.raises(MissingFile) as refused:
        export(repository)
    assert re.search(r"part-0000[34]|deletion_vector", str(refused.value.as_document()))
    assert refused.value.remedy
    ended = program(repository, tmp_path, "export", repository.uri())
    assert (ended.code, ended.error["code"]) == (1, "missing_file")
    assert not is_table(repository, earlier.location.replace(first, commit))
    now = repository.exported
    assert {name: data for name, data in now.items() if f"/{commit}/" not in name} == published
    assert ids(repository, earlier.location) == rows
    # Once it is back, what was left half-done is no obstacle.
    if gone == "in lakeFS":
        repository.upload({victim: new[victim]})
        repository.commit()
    else:
        bytes_of_it.write_bytes(new[victim])
    later = export(repository)
    assert len(ids(repository, later.location)) == len(rows) + 5


def test_a_file_that_was_removed_and_vacuumed_is_no_reason_to_stop(
    repository: Repository,
) -> None:
    repository.append(1, 2, 3, 4)
    repository.append(5, 6)
    repository.delta_rs().delete("id = 1")
    vacuumed = repository.delta_rs().vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(vacuumed) == 1
    repository.commit()
    done = export(repository)
    assert ids(repository, done.location) == [2, 3, 4, 5, 6]
    assert done.actions_skipped == 0
    files = tree(repository, done.location)
    (removed,) = (remove["path"] for remove in actions(files, "remove"))
    added = [add["path"] for add in actions(files, "add")]
    assert added.count(removed) == 1
    assert not repository.file(removed).exists()
    with pytest.raises((MissingFile, FileNotFoundError)):
        ids(repository, done.location, version=1)
    # Nor is it one for the next export, which takes over what this one holds.
    repository.append(7, 8)
    repository.commit()
    later = export(repository)
    assert later.incremental_from == done.version
    assert ids(repository, later.location) == [2, 3, 4, 5, 6, 7, 8]


def test_a_vacuumed_change_file_is_left_out_and_counted(repository: Repository) -> None:
    rows = pa.table({"id": pa.array(range(6), pa.int64())})
    write_deltalake(
        repository.gateway_uri(),
        rows,
        configuration={"delta.enableChangeDataFeed": "true"},
        storage_options=repository.gateway_options,
    )
    for number in (1, 2):
        repository.delta_rs().update({"id": "id + 100"}, predicate=f"id = {number}")
    names = [name for name in repository.names() if name.startswith("_change_data/")]
    assert len(names) == 2
    repository.commit()
    whole = export(repository)
    assert whole.actions_skipped == 0
    addresses = {repository.file(repository.address(name)) for name in names}
    changes = actions(tree(repository, whole.location), "cdc")
    assert {repository.file(change["path"]) for change in changes} == addresses

    repository.delete(names[0])
    repository.commit()
    done = export(repository)
    assert done.actions_skipped == 1
    (left,) = actions(tree(repository, done.location), "cdc")
    assert repository.file(left["path"]) == repository.file(repository.address(names[1]))
    assert ids(repository, done.location) == [0, 3, 4, 5, 101, 102]
    # What is taken over from an earlier export lacks it as before.
    write_deltalake(
        repository.gateway_uri(), rows, mode="append", storage_options=repository.gateway_options
    )
    repository.commit()
    later = export(repository)
    assert (later.incremental_from, later.actions_skipped) == (done.version, 1)


# --- What it costs ------------------------------------------------------------------


def test_lakefs_is_asked_for_pages_and_not_for_files(repository: Repository) -> None:
    history = History().then(Append(1200), *[Append(1)] * 20)
    repository.upload(history.objects(with_data=True))
    repository.commit()
    pages = -(-(1220 + 22) // 1000)
    # One of the six asks whether the table arrived by transfer.
    most = pages + 6
    with CountingProxy(repository.server.endpoint.removeprefix("http://")) as proxy:
        options = {**repository.options, "lakefs_endpoint": proxy.url}

        def asked() -> tuple[Exported, int]:
            proxy.reset()
            table = lakeferry.Table(repository.uri(), storage_options=options)
            done = table.export()
            assert isinstance(done, Exported)
            return done, proxy.count()

        done, calls = asked()
        assert done.version == 21
        assert calls <= most, [each.target for each in proxy.requests]
        repository.upload(new_objects(history, history.then(Append(3))))
        repository.commit()
        done, calls = asked()
        assert (done.version, done.incremental_from) == (22, 21)
        assert calls <= most, [each.target for each in proxy.requests]
        done, calls = asked()
        assert not done.changed
        assert calls <= pages + 5, [each.target for each in proxy.requests]


# --- Again, later, at once, and broken off ------------------------------------------


def grow(repository: Repository) -> Iterator[tuple[str, list[int]]]:
    """Let a table live in every way, and yield its commits and its rows."""
    repository.append(1, 2)
    yield repository.commit(), [1, 2]
    repository.append(3, 4)
    repository.append(5, 6)
    yield repository.commit(), [1, 2, 3, 4, 5, 6]
    # Nothing of the table changes.
    repository.append(9, path="other")
    yield repository.commit(), [1, 2, 3, 4, 5, 6]
    repository.delta_rs().delete("id = 4")
    yield repository.commit(), [1, 2, 3, 5, 6]
    repository.delta_rs().create_checkpoint()
    yield repository.commit(), [1, 2, 3, 5, 6]
    repository.append(7)
    repository.delta_rs().vacuum(0, dry_run=False, enforce_retention_duration=False)
    yield repository.commit(), [1, 2, 3, 5, 6, 7]
    repository.delta_rs().update({"id": "id + 100"}, predicate="id = 2")
    repository.delta_rs().create_checkpoint()
    repository.append(8)
    yield repository.commit(), [1, 3, 5, 6, 7, 8, 102]


def test_an_incremental_export_is_byte_for_byte_a_whole_one(repository: Repository) -> None:
    made: dict[str, tuple[Exported, dict[str, bytes]]] = {}
    for commit, expected in grow(repository):
        done = export(repository)
        assert (done.commit, done.changed) == (commit, True)
        assert ids(repository, done.location) == expected
        made[commit] = done, tree(repository, done.location)
    froms = [done.incremental_from for done, _ in made.values()]
    assert froms[:4] == [None, 0, 2, 2]
    for commit, (done, files) in made.items():
        # Again, with nothing there that could be taken over.
        forget_exports(repository)
        again = export(repository, commit, ref="main")
        assert (again.location, again.incremental_from) == (done.location, None)
        assert again.version == done.version
        assert tree(repository, again.location) == files, commit


def forget_exports(repository: Repository) -> None:
    """Delete whatever was exported, behind everybody's back."""
    shutil.rmtree(repository.folder / "_lakefs" / "exported")


@pytest.mark.parametrize("lost", ["all of it", "a commit", "the manifest"])
def test_an_earlier_export_that_is_spoilt_is_not_needed(repository: Repository, lost: str) -> None:
    for number in range(3):
        repository.append(number)
    repository.commit()
    folder = repository.folder / "_lakefs" / "exported" / place(export(repository).location)
    if lost == "all of it":
        shutil.rmtree(folder)
    elif lost == "a commit":
        (folder / "_delta_log" / f"{1:020d}.json").unlink()
    else:
        (folder / "_delta_log" / "_lakeferry" / "export.json").unlink()
    repository.append(3)
    repository.commit()
    done = export(repository)
    assert done.incremental_from is None
    assert ids(repository, done.location) == [0, 1, 2, 3]
    files = tree(repository, done.location)
    forget_exports(repository)
    assert tree(repository, export(repository).location) == files


def test_the_same_ref_again_changes_nothing(repository: Repository) -> None:
    for _ in grow(repository):
        done = export(repository)
        before = repository.exported
        again = export(repository)
        assert not again.changed
        assert again.files_written == 0
        assert (again.location, again.version) == (done.location, done.version)
        assert again.actions_skipped == done.actions_skipped
        assert repository.exported == before


def test_exports_at_once_do_no_harm(repository: Repository, tmp_path: Path) -> None:
    for commit, expected in grow(repository):
        with ThreadPoolExecutor(6) as pool:
            done = list(pool.map(lambda _: export(repository), range(6)))
        assert {each.commit for each in done} == {commit}
        (location,) = {each.location for each in done}
        assert any(each.changed for each in done)
        assert ids(repository, location) == expected
        files = tree(repository, location)
        assert not export(repository).changed
        forget_exports(repository)
        export(repository)
        assert tree(repository, location) == files


def test_two_programs_at_once_do_no_harm(repository: Repository, tmp_path: Path) -> None:
    repository.append(1, 2)
    repository.commit()
    with ExitStack() as stack:
        running = [
            stack.enter_context(started(repository, tmp_path, "export", repository.uri()))
            for _ in range(3)
        ]
        ended = [process.wait(60) for process in running]
    assert [process.returncode for process in ended] == [0, 0, 0], ended
    documents = [json.loads(process.stdout) for process in ended]
    (location,) = {document["location"] for document in documents}
    assert any(document["changed"] for document in documents)
    assert ids(repository, location) == [1, 2]


@ONLY_ON_DISK
def test_an_export_that_ended_before_it_had_written_anything_is_no_obstacle(
    repository: Repository,
) -> None:
    """On local disk there are folders before there are files in them."""
    repository.append(1, 2)
    commit = repository.commit()
    log = repository.folder / "_lakefs" / "exported" / "main" / commit / "t" / "_delta_log"
    (log / "_lakeferry").mkdir(parents=True)
    assert ids(repository, export(repository).location) == [1, 2]


@ONLY_ON_S3
@pytest.mark.parametrize("checkpointed", [False, True])
def test_an_export_that_is_killed_publishes_nothing_and_the_next_one_finishes(
    repository: Repository, checkpointed: bool, tmp_path: Path
) -> None:
    """Killed before each of its writes."""
    for number in range(3):
        repository.append(number, number + 100)
        if checkpointed and number == 1:
            repository.delta_rs().create_checkpoint()
    repository.commit()
    rows = [0, 1, 2, 100, 101, 102]
    whole = export(repository)
    everything = repository.exported
    with CountingProxy(repository.blocks["AWS_ENDPOINT_URL"].removeprefix("http://")) as proxy:
        blocks = {**repository.blocks, "AWS_ENDPOINT_URL": proxy.url}
        beside = replace(repository, blocks=blocks)
        forget_exports(repository)
        assert program(beside, tmp_path, "export", beside.uri()).code == 0
        writes = sum(each.method in WRITES for each in proxy.requests)
        assert writes > 3
        unpublished = 0
        for at in range(writes):
            forget_exports(repository)
            kill_at_write(proxy, at, beside, tmp_path)
            if is_table(repository, whole.location):
                assert ids(repository, whole.location) == rows, at
            else:
                unpublished += 1
            assert export(repository).location == whole.location
            assert ids(repository, whole.location) == rows, at
            assert without_staged(repository.exported) == everything, at
        # Only the last few writes come after it has become a table.
        assert unpublished >= writes / 2


WRITES = ("PUT", "POST", "DELETE")


def without_staged(exported: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out what waits for its own name, where no reader looks; a killed run leaves it."""
    waiting = re.compile(r"/_delta_log/_lakeferry/[^/]+/")
    return {name: data for name, data in exported.items() if not waiting.search(name)}


def kill_at_write(proxy: CountingProxy, at: int, repository: Repository, home: Path) -> None:
    """Run the program until a write of its is on its way to the store, and kill it there."""
    proxy.reset()
    reached, seen = threading.Event(), Counter[str]()

    def rule(request: SeenRequest) -> Spoil | None:
        if request.method not in WRITES:
            return None
        seen["write"] += 1
        if seen["write"] <= at:
            return None
        reached.set()
        return Spoil.HANG

    proxy.rule = rule
    with started(repository, home, "export", repository.uri()) as process:
        assert reached.wait(60), process.wait(60)
        process.kill()
        process.wait(60)


def is_table(repository: Repository, location: str) -> bool:
    """Tell whether somebody finds a table at a place: we ourselves, or delta-rs."""
    theirs = DeltaTable.is_deltatable(location, storage_options=repository.blocks or None)
    try:
        lakeferry.Table(location, storage_options=repository.blocks).inspect()
    except LakeferryError:
        if theirs:
            with pytest.raises(DeltaError):
                DeltaTable(location, storage_options=repository.blocks or None)
        return False
    return True


# --- What may be asked for ----------------------------------------------------------


def started(repository: Repository, home: Path, *words: str) -> ForkedRun:
    """Start the program."""
    home.mkdir(exist_ok=True)
    env = environment(home, repository.variables)
    return ForkedRun([str(PROGRAM), *words, "--json"], cwd=home, env=env)


def program(repository: Repository, home: Path, *words: str, **variables: str) -> Ended:
    """Run the program."""
    return run(*words, "--json", home=home, variables={**repository.variables, **variables})


def test_the_program_says_what_it_has_exported(repository: Repository, tmp_path: Path) -> None:
    repository.append(1, 2)
    first = repository.commit()
    said = program(repository, tmp_path, "export", repository.uri())
    assert said.code == 0, said.err
    location = said.document["location"]
    assert location.endswith(f"/{repository.name}/_lakefs/exported/main/{first}/t")
    unknown = {"location": None, "files_written": None, "bytes_copied": None}
    assert said.document | unknown == {
        **unknown,
        "version": 0,
        "bytes_copied_by_store": 0,
        "files_compared": None,
        "actions_skipped": 0,
        "incremental_from": None,
        "commit": first,
        "changed": True,
    }
    assert min(said.document[name] for name in ("files_written", "bytes_copied")) > 0
    again = program(repository, tmp_path, "export", repository.uri()).document
    assert (again["changed"], again["files_written"]) == (False, 0)
    repository.append(3, 4)
    second = repository.commit()
    options = [
        word
        for name, value in repository.options.items()
        for word in ("--storage-option", f"{name}={value}")
    ]
    words = ("export", repository.uri(), "--table", "orders", *options)
    named = run(*words, "--json", home=tmp_path)
    assert named.code == 0, named.err
    assert place(named.document["location"]) == f"main/{second}/orders"
    plain = run("export", repository.uri(), home=tmp_path, variables=repository.variables)
    assert plain.code == 0
    assert f"_lakefs/exported/main/{second}/t" in plain.out


def test_old_exports_go_on_request(repository: Repository, tmp_path: Path) -> None:
    repository.append(1, 2)
    repository.append(1, 2, path="other")
    first = repository.commit()
    repository.tag("v1")
    for ref, path in (("main", "t"), ("main", "other"), ("v1", "t")):
        export(repository, ref, path)
    commits = [first]
    for number in (3, 4, 5):
        repository.append(number)
        commits.append(repository.commit())
        export(repository)
    for hours, commit in enumerate(reversed(commits)):
        age(repository, f"main/{commit}/t", hours)

    def places() -> set[str]:
        return {
            name.partition("/_delta_log/")[0]
            for name in repository.exported
            if "/_delta_log/" in name
        }

    others = {f"main/{first}/other", f"v1/{first}/t"}
    assert places() == others | {f"main/{commit}/t" for commit in commits}
    done = program(repository, tmp_path, "export", repository.uri(), "--keep", "3")
    assert done.code == 0, done.err
    assert places() == others | {f"main/{commit}/t" for commit in commits[-3:]}
    repository.append(6)
    commits.append(repository.commit())
    last = export(repository, keep=1)
    assert places() == others | {f"main/{commits[-1]}/t"}
    assert ids(repository, last.location) == [1, 2, 3, 4, 5, 6]
    refused = program(repository, tmp_path, "export", repository.uri(), "--keep", "0")
    assert (refused.code, refused.error["code"]) == (2, "invalid_input")
    assert places() == others | {f"main/{commits[-1]}/t"}


def age(repository: Repository, export: str, hours: int) -> None:
    """Let it have been made before: the S3 server tells no two times of one second apart."""
    for file in (repository.folder / "_lakefs" / "exported" / export).rglob("*"):
        then = file.stat().st_mtime - 3600 * hours
        os.utime(file, (then, then))


def test_an_export_that_failed_is_not_kept_instead_of_one_that_can_be_read(
    repository: Repository,
) -> None:
    repository.append(1)
    repository.commit()
    first = export(repository)
    repository.append(2)
    names = [name for name in repository.names() if not name.startswith("_delta_log/")]
    new = next(name for name in names if "=a%20b%2F0/" in name)
    content = repository.file(repository.address(new)).read_bytes()
    repository.delete(new)
    failed = repository.commit()
    with pytest.raises(MissingFile):
        export(repository)
    age(repository, place(first.location), 2)
    age(repository, f"main/{failed}/t", 1)
    repository.upload({new: content})
    repository.commit()
    last = export(repository, keep=2)
    assert ids(repository, last.location) == [1, 2]
    assert ids(repository, first.location) == [1]


@ONLY_ON_S3
def test_a_name_in_a_catalog_follows_the_exports(repository: Repository, tmp_path: Path) -> None:
    name = "sql:lake.sales.orders"
    for rows in ((1, 2), (3, 4)):
        repository.append(*rows)
        repository.commit()
        done = program(repository, tmp_path, "export", repository.uri(), "--register", name)
        assert done.code == 0, done.err
        shown = program(repository, tmp_path, "catalog", "show", name).document
        assert shown["location"] == done.document["location"]
        inspected = program(repository, tmp_path, "inspect", name).document
        assert inspected["version"] == done.document["version"]
    # A name of somebody else's is left to them.
    make(lakes.ORDERS, tmp_path / "mine")
    taken = ("sql:lake.sales.mine", (tmp_path / "mine").as_uri())
    assert program(repository, tmp_path, "catalog", "register", *taken).code == 0
    repository.append(5, 6)
    repository.commit()
    before = repository.exported
    refused = program(repository, tmp_path, "export", repository.uri(), "--register", taken[0])
    assert (refused.code, refused.error["code"]) == (2, "invalid_input"), refused
    assert repository.exported == before
    shown = program(repository, tmp_path, "catalog", "show", taken[0]).document
    assert shown["location"] == taken[1]


def test_a_dry_run_writes_nothing(repository: Repository, tmp_path: Path) -> None:
    repository.append(1, 2)
    commit = repository.commit()
    before = repository.exported
    said = program(
        repository, tmp_path, "export", repository.uri(), "--dry-run", "--register", "sql:a.b.c"
    )
    assert said.code == 0, said.err
    assert said.document["dry_run"] is True
    assert f"_lakefs/exported/main/{commit}/t" in json.dumps(said.document["plan"])
    assert repository.exported == before == {}
    assert program(repository, tmp_path, "catalog", "show", "sql:a.b.c").code == 1
    export(repository)
    repository.append(3, 4)
    repository.commit()
    before = repository.exported
    said = program(repository, tmp_path, "export", repository.uri(), "--dry-run", "--keep", "1")
    assert said.code == 0, said.err
    assert f"main/{commit}/t" in json.dumps(said.document["plan"])
    assert repository.exported == before


# --- What is refused ----------------------------------------------------------------


@ONLY_ON_DISK
def test_what_makes_no_sense_is_refused_and_nothing_is_published(
    repository: Repository, tmp_path: Path
) -> None:
    repository.append(1, 2)
    commit = repository.commit()
    repository.upload({"readme.txt": b"no table"}, path="docs")
    repository.commit()
    repository.append(3, 4)
    main = repository.uri()
    wrong = {"LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": "wrong"}
    nowhere = {"LAKECTL_SERVER_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    cases: list[tuple[str, int, str, str, dict[str, str]]] = [
        ("lakefs://no-such-repository/main/t", 1, "table_not_found", "no-such-repository", {}),
        (repository.uri("nosuch"), 1, "table_not_found", "no ref 'nosuch'", {}),
        (repository.uri("main~9"), 1, "table_not_found", "main~9", {}),
        (repository.uri(path="nothing"), 1, "table_not_found", "nothing", {}),
        (repository.uri(path="docs"), 1, "not_a_table", "docs", {}),
        (main, 2, "invalid_input", "aren't committed", {}),
        (repository.uri("main$"), 2, "invalid_input", "uncommitted", {}),
        (repository.uri(commit), 1, "unauthorized", "isn't accepted", wrong),
        (repository.uri(commit), 1, "storage_unavailable", "lakeFS", nowhere),
    ]
    for uri, code, error, text, variables in cases:
        ended = program(repository, tmp_path, "export", uri, **variables)
        assert (ended.code, ended.error["code"]) == (code, error), (uri, ended.err)
        assert text in ended.error["message"], uri
        assert ended.error["remedy"], uri
        assert ended.out == ""
        assert repository.exported == {}, uri


@ONLY_ON_S3
def test_a_blockstore_that_cannot_be_used_is_said(
    repository: Repository, versitygw: S3Server, tmp_path: Path
) -> None:
    repository.append(1, 2)
    repository.commit()
    nowhere = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    ended = program(repository, tmp_path, "export", repository.uri(), **nowhere)
    assert (ended.code, ended.error["code"]) == (1, "storage_unavailable"), ended.err
    assert ended.error["remedy"]
    stranger = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    ended = program(repository, tmp_path, "export", repository.uri(), **stranger)
    assert ended.code == 1
    assert ended.error["code"] in ("unauthorized", "forbidden"), ended.err
    # Whoever may read and not write.
    binary = components.require("versitygw")
    (tmp_path / "gateway").mkdir()
    with servers.versitygw(binary, tmp_path / "gateway", read_only_of=versitygw) as read_only:
        ended = program(repository, tmp_path, "export", repository.uri(), **read_only.environment())
    assert (ended.code, ended.error["code"]) == (1, "forbidden"), ended.err
    assert "_lakefs/exported" in ended.error["message"]
    # lakeFS's own gateway isn't the blockstore.
    gateway = repository.server.gateway.environment()
    ended = program(repository, tmp_path, "export", repository.uri(), **gateway)
    assert ended.code == 1, ended.out
    assert ended.error["remedy"]
    assert repository.exported == {}


def test_a_place_that_holds_something_else_is_left_alone(
    repository: Repository, tmp_path: Path
) -> None:
    repository.append(1, 2)
    repository.append(8, 9, path="other")
    repository.commit()
    another = make(lakes.ORDERS, tmp_path / "another")
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "note.txt").write_text("not yours")
    exported = tmp_path / "exported"
    export(repository, path="other", to=str(exported))
    for target in (another, tmp_path / "papers", exported):
        before = folder_tree(target)
        ended = program(repository, tmp_path, "export", repository.uri(), "--to", str(target))
        assert (ended.code, ended.error["code"]) == (1, "conflict"), (target, ended.err)
        assert ended.error["remedy"]
        assert folder_tree(target) == before
    # Nor is another table exported over this one where both have one name.
    export(repository)
    before = repository.exported
    ended = program(repository, tmp_path, "export", repository.uri(path="other"), "--table", "t")
    assert (ended.code, ended.error["code"]) == (1, "conflict"), ended.err
    assert repository.exported == before


def folder_tree(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


# --- Plain tables -------------------------------------------------------------------

GROWING = History(Layout(partitioned=True, deletion_vectors="u")).then(Append(3), DeleteRows(1))


def exported_ids(lake: Lake, name: str, version: int | None = None) -> list[int]:
    options = dict(lake.variables)
    found = lakeferry.open(lake.uri(name), version=version, storage_options=options)
    return sorted(found.to_table()["id"].to_pylist())


def test_a_plain_table_is_exported_where_it_is_told_and_kept_up(lake: Lake) -> None:
    history, source, target = GROWING, lake.make("a b/t", GROWING), lake.uri("out/ü")
    for step in (None, Append(2), Delete(1), Checkpoint(), DeleteRows(2)):
        if step is not None:
            history = history.then(step)
            lake.make("a b/t", history)
        done = lake.done("export", source, "--to", target)
        assert done["location"] == target.replace("ü", "%C3%BC")
        assert (done["version"], done["changed"]) == (history.newest_version, True)
        assert done["commit"] is None
        assert exported_ids(lake, "out/ü") == exported_ids(lake, "a b/t")
        before = folder_tree(lake.folder / "out")
        again = lake.table("a b/t").export(target)
        assert isinstance(again, Exported)
        assert (again.changed, again.files_written) == (False, 0)
        assert folder_tree(lake.folder / "out") == before
        # What grew here is what would be written elsewhere at once.
        lake.table("a b/t").export(lake.uri("fresh"))
        log = "out/ü/_delta_log"
        assert readers_files(lake.folder / log) == readers_files(lake.folder / "fresh/_delta_log")
        shutil.rmtree(lake.folder / "fresh")


def readers_files(log: Path) -> dict[str, bytes]:
    """Return what readers look at in a log."""
    found = folder_tree(log)
    return {name: data for name, data in found.items() if not name.startswith("_lakeferry/")}


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_checkpoint_is_exported_as_what_it_is(kind: Kind, lake: Lake) -> None:
    layout = Layout(partitioned=True, deletion_vectors="u", v2_checkpoints=kind.is_v2)
    history = History(layout).then(
        Append(4), DeleteRows(2), Checkpoint(kind), Append(1), DeleteRows(1), Delete(1)
    )
    lake.make("t", history)
    done = lake.done("export", lake.uri("t"), "--to", lake.uri("out"))
    assert done["version"] == 5
    described = lake.table("out").inspect()
    assert [each.version for each in described.checkpoints] == [2]
    assert described.earliest_version == 2
    assert not described.warnings
    for version in range(2, 6):
        assert exported_ids(lake, "out", version) == exported_ids(lake, "t", version)


def test_a_plain_table_needs_a_place_and_not_somebody_elses(lake: Lake) -> None:
    source, another = lake.make("t"), lake.make("another", GROWING)
    before = lake.tree()
    ended = lake.run("export", source)
    assert (ended.code, ended.error["code"]) == (2, "invalid_input")
    assert "--to" in ended.error["remedy"]
    assert lake.refused("export", source, "--to", another) == "conflict"
    assert lake.run("export", source, "--to", source).code != 0
    assert lake.refused("export", lake.uri("nothing"), "--to", lake.uri("out")) == "table_not_found"
    assert lake.tree() == before


def test_a_plain_tables_live_file_that_is_gone_stops_the_export(lake: Lake) -> None:
    source, target = lake.make("t"), lake.uri("out")
    lake.done("export", source, "--to", target)
    log = lake.folder / "out" / "_delta_log"
    before, rows = readers_files(log), exported_ids(lake, "out")
    history = lakes.ORDERS.then(Append(1))
    lake.make("t", history)
    names = new_objects(lakes.ORDERS, history)
    (new,) = (name for name in names if not name.startswith("_delta_log/"))
    (lake.folder / "t" / new).unlink()
    assert lake.refused("export", source, "--to", target) == "missing_file"
    assert readers_files(log) == before
    assert exported_ids(lake, "out") == rows
    lake.make("t", history)
    assert lake.done("export", source, "--to", target)["version"] == history.newest_version
    assert len(exported_ids(lake, "out")) == len(rows) + 3


def test_an_export_follows_a_redirect_unless_it_is_told_not_to(lake: Lake) -> None:
    old, new = lake.make("old"), lake.uri("new")
    lake.done("redirect", "enable", old, new)
    done = lake.done("export", old, "--to", lake.uri("out"))
    assert exported_ids(lake, "out") == exported_ids(lake, "new")
    table = DeltaTable(done["location"], storage_options=dict(lake.variables) or None)
    paths = pa.table(table.get_add_actions())["path"].to_pylist()
    assert paths
    assert all("/new/" in path for path in paths)


def test_an_export_has_a_name_in_the_catalog(lake: Lake) -> None:
    lake.make("t")
    done = lake.done("export", lake.uri("t"), "--to", lake.uri("out"), "--register", "sql:a.b.t")
    assert lake.done("catalog", "show", "sql:a.b.t")["location"] == done["location"]
    # A name may be what is exported, too.
    lake.done("export", "sql:a.b.t", "--to", lake.uri("further"))
    assert exported_ids(lake, "further") == exported_ids(lake, "t")
