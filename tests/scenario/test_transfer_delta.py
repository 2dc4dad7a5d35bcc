"""Delta tables pushed and pulled, by name: our client, our server, a real root.

The root is on local disk and on a real S3 server, where objects go by the store's own signed
URLs, and a table's files are put at their places by whoever pushes.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGKILL, Signals
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from lakeferry.errors import (
    CommitConflict,
    Diverged,
    Forbidden,
    HashMismatch,
    LakeferryError,
    NotATable,
    ObjectNotFound,
)
from lakeferry.log import paths
from lakeferry.storage import Store, open_store
from lakeferry.storage.folder import FolderStore
from lakeferry.table import DeltaLog
from lakeferry.transfer.datasets import checkpoint_notes
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.delta.named_files import decoded
from lakeferry.transfer.repository.access_tokens import Scope
from lakeferry.transfer.wire import handshake
from tests.support import history as h
from tests.support.history import Append, Delete, DeleteRows, History, Layout
from tests.support.hosting import NAME, ONCE, ROOTS, Hosted, Place, contents, hosted, wait_for
from tests.support.odf import Chain
from tests.support.reference_client import Closed, Dialogue, ReferenceClient, files_of, put
from tests.support.stores import DictStore, Fault, FaultyStore, StoreCall, on
from tests.support.transfers import plan_pull, plan_push, pull, push
from tests.unit.cli.program import PROGRAM, environment

VECTORS = Layout(deletion_vectors="u", partitioned=True)
PAST = History(VECTORS).then(Append(4), DeleteRows(2), Append(2), Delete(1))


@pytest.fixture(params=ROOTS)
def server(request: pytest.FixtureRequest) -> Iterator[Hosted]:
    with hosted(Place.of(request.param, request, "a root")) as running:
        yield running


def advance(store: Store, past: History) -> None:
    """Let a table's history go on as its own writers would."""
    for name, data in past.objects().items():
        if name.startswith("_delta_log/") and not name.endswith(".json"):
            continue
        store.put_if_absent(name, data)


def table_of(store: Store, lead: str = "") -> dict[str, bytes]:
    """Return what a reader of the table sees: commits and files, no checkpoint, nothing of ours."""
    return {
        name: data
        for name, data in contents(store, lead).items()
        if not name.startswith(("_delta_log/_", ".lakeferry")) and "checkpoint" not in name
    }


def test_a_new_table_is_pushed_and_pulled_byte_for_byte(server: Hosted) -> None:
    source, target = PAST.store(), DictStore()
    pushed = push(source, server.dataset(), server.terms())
    assert (pushed.blocks, pushed.changed, pushed.skipped) == (5, True, 0)
    assert table_of(server.place.store, f"{NAME}/") == table_of(source)
    pulled = pull(server.dataset(), target, server.terms())
    assert table_of(target) == table_of(source)
    assert (pulled.head, pulled.objects, pulled.bytes) == (
        pushed.head,
        pushed.objects,
        pushed.bytes,
    )
    for version in range(5):
        a, b = DeltaLog(source).snapshot(version), DeltaLog(target).snapshot(version)
        assert sorted(a.files["path"].to_pylist()) == sorted(b.files["path"].to_pylist())


def test_a_table_that_is_up_to_date_stays_as_it_is(server: Hosted) -> None:
    source, target = PAST.store(), DictStore()
    push(source, server.dataset(), server.terms())
    pull(server.dataset(), target, server.terms())
    before = server.place.everything
    for again in (
        push(source, server.dataset(), server.terms()),
        pull(server.dataset(), target, server.terms()),
    ):
        assert (again.changed, again.blocks, again.objects) == (False, 0, 0)
    tokens = {name for name in before if "token" in name}
    after = server.place.everything
    assert {n: d for n, d in after.items() if "token" not in n} == {
        n: d for n, d in before.items() if n not in tokens
    }


def test_an_empty_table_is_pushed_and_pulled(server: Hosted) -> None:
    source, target = History().store(), DictStore()
    pushed = push(source, server.dataset(), server.terms())
    assert (pushed.blocks, pushed.objects) == (1, 0)
    assert pull(server.dataset(), target, server.terms()).head == pushed.head
    assert DeltaLog(target).snapshot().version == 0


def test_a_table_that_advances_at_either_end_sends_only_what_is_new(server: Hosted) -> None:
    source, target = PAST.store(), DictStore()
    push(source, server.dataset(), server.terms())
    pull(server.dataset(), target, server.terms())
    more = PAST.then(Append(3), DeleteRows(1))
    advance(source, more)
    pushed = push(source, server.dataset(), server.terms())
    assert (pushed.blocks, pushed.objects) == (2, 4)
    pulled = pull(server.dataset(), target, server.terms())
    assert (pulled.blocks, pulled.objects, pulled.head) == (2, 4, pushed.head)
    # The server's own table is written to by its owner.
    further = more.then(Append(2))
    for name, data in further.objects().items():
        server.place.store.put_if_absent(f"{NAME}/{name}", data)
    pulled = pull(server.dataset(), source, server.terms())
    assert (pulled.blocks, pulled.objects) == (1, 2)
    assert DeltaLog(source).snapshot().version == 7


def test_a_cleanup_at_one_end_is_no_divergence(server: Hosted) -> None:
    long = History(VECTORS).then(*(Append(1) for _ in range(12)), h.Checkpoint(), Append(1))
    source, target = long.store(), DictStore()
    push(source, server.dataset(), server.terms())
    pull(server.dataset(), target, server.terms())
    served = server.place.store
    served.put(f"{NAME}/{paths.classic_checkpoint(12)}", source.get(paths.classic_checkpoint(12)))
    served.delete_many([f"{NAME}/{paths.commit(version)}" for version in range(12)])
    assert not pull(server.dataset(), target, server.terms()).changed
    advance(source, long.then(Append(1)))
    assert push(source, server.dataset(), server.terms()).blocks == 1
    assert pull(server.dataset(), target, server.terms()).blocks == 1
    assert not pull(server.dataset(), source, server.terms()).changed


@pytest.mark.parametrize("kind", [h.Kind.CLASSIC, h.Kind.MULTI_PART, h.Kind.V2_JSON])
def test_a_table_whose_log_has_lost_its_beginning_travels(server: Hosted, kind: h.Kind) -> None:
    layout = Layout(deletion_vectors="u", v2_checkpoints=kind.is_v2)
    past = History(layout).then(Append(3), DeleteRows(1), h.Checkpoint(kind), Append(1))
    source, target = past.store(), DictStore()
    source.delete_many([paths.commit(0), paths.commit(1)])
    push(source, server.dataset(), server.terms())
    pull(server.dataset(), target, server.terms())
    for version in (2, 3):
        assert DeltaLog(target).snapshot(version).num_files == 3 + version - 2
    advance(source, past.then(Append(1)))
    assert push(source, server.dataset(), server.terms()).objects == 1
    assert pull(server.dataset(), target, server.terms()).objects == 1


def test_files_that_were_vacuumed_are_missed_by_nobody(server: Hosted) -> None:
    past = History().then(Append(2), Append(1), Delete(2))
    source, target = past.store(), DictStore()
    gone = [decoded(path) for path in DeltaLog(source).snapshot(1).files["path"].to_pylist()]
    DeltaDataset(source, "").current()
    source.delete_many(gone)
    pushed = push(source, server.dataset(), server.terms())
    pulled = pull(server.dataset(), target, server.terms())
    assert pushed.objects == pulled.objects == 1
    live = [decoded(path) for path in DeltaLog(target).snapshot().files["path"].to_pylist()]
    assert [name for name in table_of(target) if name in live] == live


def test_files_that_are_vacuumed_at_the_server_are_missed_by_nobody(server: Hosted) -> None:
    source = History().then(Append(2), Append(1), Delete(2)).store()
    assert push(source, server.dataset(), server.terms()).objects == 3
    gone = [decoded(path) for path in DeltaLog(source).snapshot(1).files["path"].to_pylist()]
    server.place.store.delete_many([f"{NAME}/{name}" for name in gone])
    target = DictStore()
    pulled = pull(server.dataset(), target, server.terms())
    assert (pulled.objects, pulled.skipped) == (1, 0)
    assert DeltaLog(target).snapshot().num_files == 1


# --- Beside the chain -----------------------------------------------------------------


def every_kind() -> History:
    steps: list[h.Step] = []
    for kind in h.Kind:
        steps += [Append(2), DeleteRows(1), h.Checkpoint(kind), h.Checksum(full=True), Delete(1)]
    layout = Layout(deletion_vectors="u", v2_checkpoints=True, partitioned=True)
    return History(layout).then(*steps)


def beside_of(store: Store) -> checkpoint_notes.Beside:
    return checkpoint_notes.of_listing(DeltaLog(store).listing())


def test_checkpoints_and_checksum_files_are_where_the_sender_has_them(server: Hosted) -> None:
    past = every_kind()
    source, target = past.store(), DictStore()
    files = {name for name in source.objects if not name.startswith(paths.LOG_DIR)}
    pushed = push(source, server.dataset(), server.terms())
    pulled = pull(server.dataset(), target, server.terms())
    assert pushed.objects == pulled.objects == len(files)
    assert pushed.bytes == pulled.bytes == sum(len(source.get(name)) for name in files)
    served = FolderStore(server.place.store, NAME)
    assert beside_of(source) == beside_of(served) == beside_of(target)
    for version in range(past.newest_version + 1):
        a, b = DeltaLog(source).snapshot(version), DeltaLog(target).snapshot(version)
        assert sorted(a.files["path"].to_pylist()) == sorted(b.files["path"].to_pylist())
    # The same after more of it, at either end.
    more = past.then(Append(1), h.Checkpoint(), Append(1))
    for name, data in more.objects().items():
        source.put_if_absent(name, data)
    assert push(source, server.dataset(), server.terms()).objects == 2
    assert pull(server.dataset(), target, server.terms()).objects == 2
    assert beside_of(source).checkpoints == beside_of(served).checkpoints
    assert beside_of(source).checkpoints == beside_of(target).checkpoints


def test_a_senders_checkpoint_that_lies_misleads_nobody_else(server: Hosted) -> None:
    past = History().then(Append(3), h.Checkpoint(), h.Checksum())
    other = History().then(Append(2), h.Checkpoint(), h.Checksum()).objects()
    source, target = past.store(), DictStore()
    # Its commits say what they said; its own readers are fooled.
    lies = (paths.classic_checkpoint(1), paths.checksum(1))
    for name in lies:
        source.put(name, other[name])
    push(source, server.dataset(), server.terms())
    pull(server.dataset(), target, server.terms())
    for name in lies:
        assert target.get(name) != other[name]
    assert DeltaLog(target).snapshot().num_files == 3


def diverged(server: Hosted) -> tuple[DictStore, History]:
    source = PAST.store()
    push(source, server.dataset(), server.terms())
    theirs = PAST.then(DeleteRows(1), Append(1))
    for name, data in theirs.objects().items():
        server.place.store.put_if_absent(f"{NAME}/{name}", data)
    advance(source, PAST.then(Append(2), Append(1), Append(1)))
    return source, theirs


def test_diverged_tables_are_refused_and_nothing_changes(server: Hosted) -> None:
    source, _ = diverged(server)
    DeltaDataset(source, "").current()
    before, here = table_of(server.place.store, f"{NAME}/"), source.objects
    with pytest.raises(Diverged):
        push(source, server.dataset(), server.terms())
    with pytest.raises(Diverged):
        pull(server.dataset(), source, server.terms())
    assert table_of(server.place.store, f"{NAME}/") == before
    assert source.objects == here


def test_force_makes_one_more_version_of_it_and_replaces_no_commit(server: Hosted) -> None:
    source, theirs = diverged(server)
    before = table_of(server.place.store, f"{NAME}/")
    pushed = push(source, server.dataset(), server.terms(force=True))
    assert pushed.changed
    after = table_of(server.place.store, f"{NAME}/")
    assert before.items() <= after.items()
    target = DictStore()
    assert pull(server.dataset(), target, server.terms()).head == pushed.head
    found = DeltaLog(target).snapshot()
    assert found.version == theirs.newest_version + 1
    wanted = DeltaLog(source).snapshot()
    assert sorted(found.files["path"].to_pylist()) == sorted(wanted.files["path"].to_pylist())
    again = push(source, server.dataset(), server.terms(force=True))
    assert (again.changed, again.head) == (False, pushed.head)
    # Without force, too: what the server has was made of what is here.
    assert not push(source, server.dataset(), server.terms()).changed


def test_a_forced_pull_keeps_the_receivers_history_readable(server: Hosted) -> None:
    source, theirs = diverged(server)
    mine = DeltaLog(source).snapshot()
    pulled = pull(server.dataset(), source, server.terms(force=True))
    assert pulled.changed
    now = DeltaLog(source).snapshot()
    wanted = sorted(DeltaLog(theirs.store()).snapshot().files["path"].to_pylist())
    assert sorted(now.files["path"].to_pylist()) == wanted
    assert DeltaLog(source).snapshot(mine.version).num_files == mine.num_files
    assert not pull(server.dataset(), source, server.terms()).changed


def test_a_table_and_an_odf_dataset_dont_take_each_others_place(server: Hosted) -> None:
    push(PAST.store(), server.dataset(), server.terms())
    odf = DictStore(files_of(Chain()))
    with pytest.raises(LakeferryError):
        push(odf, server.dataset(), server.terms(force=True))
    with pytest.raises(LakeferryError):
        pull(server.dataset(), odf, server.terms(force=True))
    with pytest.raises(NotATable):
        pull(server.dataset(), DictStore({"photos/x": b""}), server.terms())


def test_nothing_is_written_by_a_dry_run(server: Hosted) -> None:
    source, target = PAST.store(), DictStore()
    before = source.objects
    (step,) = plan_push(source, server.dataset(), server.terms())
    assert (step["op"], step["blocks"]) == ("push", 5)
    assert source.objects == before
    push(source, server.dataset(), server.terms())
    (step,) = plan_pull(server.dataset(), target, server.terms())
    assert (step["op"], step["blocks"]) == ("pull", 5)
    assert target.objects == {}


def test_a_push_onto_a_table_that_somebody_writes_to_is_told(server: Hosted) -> None:
    source = PAST.store()
    push(source, server.dataset(), server.terms())
    advance(source, PAST.then(Append(1), Append(1)))
    theirs = PAST.then(h.SetProperties((("a", "b"),))).objects()[paths.commit(5)]
    taken = f"{NAME}/{paths.commit(5)}"

    def meanwhile(what: str, done: int, total: int) -> None:
        server.place.store.put_if_absent(taken, theirs)

    with pytest.raises((CommitConflict, Diverged)):
        push(source, server.dataset(), server.terms(), meanwhile)
    assert server.place.store.get(taken) == theirs


def test_a_reader_sees_a_table_and_doesnt_write_to_it(server: Hosted) -> None:
    source = PAST.store()
    push(source, server.dataset(), server.terms())
    reader = server.token(Scope.READ, NAME)
    assert pull(server.dataset(), DictStore(), server.terms(token=reader)).blocks == 5
    advance(source, PAST.then(Append(1)))
    with pytest.raises(Forbidden):
        push(source, server.dataset(), server.terms(token=reader))
    other = server.token(Scope.READ, "acc/other")
    with pytest.raises(ObjectNotFound):
        pull(server.dataset(), DictStore(), server.terms(token=other))


def test_plain_http_reads_a_table_and_nothing_beside_it(server: Hosted) -> None:
    source = PAST.store()
    push(source, server.dataset(), server.terms())
    token = server.token(Scope.READ, NAME)

    def get(path: str) -> tuple[int, bytes]:
        request = Request(
            f"{server.dataset()}/{path}", headers={"authorization": f"Bearer {token}"}
        )
        try:
            with urlopen(request) as response:
                return response.status, response.read()
        except HTTPError as refused:
            with refused:
                return refused.code, b""

    status, head = get("refs/head")
    assert status == 200
    dataset = DeltaDataset(source, "")
    assert dataset.head_of(head) == dataset.head()
    status, data = get(f"blocks/{head.decode()}")
    block = dataset.parse(data)
    assert status == 200
    assert block.commit is not None
    assert json.loads(block.commit.splitlines()[0])
    some = next(ref for _, one in dataset.walk(block.hash) for ref in one.objects)
    assert get(f"data/{some.hash.text}/{some.path}") == (200, source.get(str(some.path)))
    for path in (
        f"data/{some.hash.text}/_delta_log/{0:020d}.json",
        f"data/{some.hash.text}/.lakeferry/dataset.json",
        f"data/{some.hash.text}/..%2f..%2f.lakeferry%2fsigning.key",
        f"data/{some.hash.text}",
        f"checkpoints/{some.hash.text}/x",
    ):
        assert get(path)[0] == 404


def test_objects_that_arent_what_their_blocks_say_stop_a_push(server: Hosted) -> None:
    source = PAST.store()
    dataset = DeltaDataset(source, "")
    head = dataset.current()
    assert head is not None
    ref = next(ref for _, block in dataset.walk(head) for ref in block.objects)
    assert ref.path is not None
    source.put(ref.path, b"x" * ref.size_bytes)
    with pytest.raises(HashMismatch):
        push(source, server.dataset(), server.terms())
    assert not any("_delta_log/0" in name for name in server.stored())


def test_a_push_takes_nothing_away_that_another_one_has_sent(server: Hosted) -> None:
    past = History(Layout())
    base = push(past.store(), server.dataset(), server.terms()).head
    assert base is not None
    mine, theirs = (past.then(Append(1)).store() for _ in range(2))
    [added] = {name for name in mine.objects if "/" not in name} - set(past.store().objects)
    # The same name, and other bytes of the same size.
    data = b"x" * len(mine.get(added))
    theirs.put(added, data)
    client = ReferenceClient(server.dataset(), server.token())
    client.headers[handshake.EXTENDED_HEADER] = "1"
    with client.open("push") as loser, client.open("push") as winner:
        [_], [strategy] = [begun(loser, base, mine), begun(winner, base, theirs)]
        assert put(strategy["upload_to"], data) == 200
        with pytest.raises(Closed) as closed:
            loser.complete()
        assert closed.value.internal[1] == "hash_mismatch"
        assert winner.complete() == {}
    assert server.stored()[added] == data


def begun(session: Dialogue, base: str, source: Store) -> list[dict[str, Any]]:
    """Have a session ready to upload what a table's last block names, and return where to."""
    dataset = DeltaDataset(source, "")
    head = dataset.current()
    assert head is not None
    found, block = next(iter(dataset.walk(head)))
    names = [
        {
            "object_type": ref.kind.value,
            "physical_hash": ref.hash.text,
            "size": ref.size_bytes,
            "path": ref.path,
        }
        for ref in block.objects
    ]
    assert session.request_push(base) == {"Ok": {}}
    assert session.send_blocks([(block.hash.text, found)]) == {"Ok": {}}
    return session.urls(names)


def test_a_first_pull_that_ended_anywhere_goes_on_where_it_ended(tmp_path: Path) -> None:
    source = PAST.store()
    with hosted(Place((tmp_path / "root").as_uri())) as server:
        count = push(source, server.dataset(), server.terms()).objects
        terms = server.terms(patience=ONCE, parallel=1)
        for call in itertools.count():
            target = DictStore()
            # From here on nothing of it reaches the store, as if it had been killed.
            dying = FaultyStore(target, partial(_fails_from, call))
            with suppress(LakeferryError):
                pull(server.dataset(), dying, terms)
            if len(dying.history) <= call:
                break
            there = len(table_of(target)) - len(log_names(target))
            is_whole = table_of(target) == table_of(source)
            foreseen = plan_pull(server.dataset(), target, terms)
            again = pull(server.dataset(), target, terms)
            assert table_of(target) == table_of(source), call
            if not is_whole:
                assert again.changed, call
                assert (again.objects, again.skipped) == (count - there, there), call
                assert [step["objects"] for step in foreseen] == [count - there], call
            assert not pull(server.dataset(), target, terms).changed
    assert call > count


@pytest.mark.parametrize("ends", [SIGKILL, SIGINT])
def test_a_first_pull_whose_process_is_ended_goes_on_where_it_ended(
    tmp_path: Path, ends: Signals
) -> None:
    source = History().then(Append(12)).store()
    folder = tmp_path / "copy"
    with hosted(Place((tmp_path / "root").as_uri())) as server:
        count = push(source, server.dataset(), server.terms()).objects
        words = [str(PROGRAM), "pull", server.dataset(), str(folder), "--limit-rate", "2000"]
        variables = {"LAKEFERRY_TOKEN": server.token()}
        with subprocess.Popen(
            [*words, "--parallel", "1"],
            env=environment(tmp_path, variables),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            wait_for(lambda: any(folder.glob("*.parquet")))
            process.send_signal(ends)
        assert process.returncode != 0
        there = len([*folder.glob("*.parquet")])
        assert there > 0
        again = pull(server.dataset(), open_store(str(folder)), server.terms())
    assert (again.objects, again.skipped) == (count - there, there)
    assert DeltaLog(open_store(str(folder))).snapshot().num_files == count


def test_a_pull_whose_store_fails_while_it_publishes_counts_each_object_once(
    tmp_path: Path,
) -> None:
    source = PAST.store()
    with hosted(Place((tmp_path / "root").as_uri())) as server:
        count = push(source, server.dataset(), server.terms()).objects
        target = DictStore()
        fails_once = on("PUT_IF_ABSENT", Fault.FAIL, containing=paths.commit(2))
        pulled = pull(server.dataset(), FaultyStore(target, fails_once), server.terms())
    assert (pulled.objects, pulled.skipped, pulled.blocks) == (count, 0, 5)
    assert pulled.changed
    assert table_of(target) == table_of(source)


def test_a_pull_succeeds_though_it_can_t_tidy_up(tmp_path: Path) -> None:
    source = PAST.store()
    with hosted(Place((tmp_path / "root").as_uri())) as server:
        push(source, server.dataset(), server.terms())
        target = DictStore()
        fails = on("DELETE", Fault.FAIL, containing="refs/next", times=-1)
        terms = server.terms(patience=ONCE)
        assert pull(server.dataset(), FaultyStore(target, fails), terms).changed
        assert table_of(target) == table_of(source)
        assert not pull(server.dataset(), target, server.terms()).changed
    assert not any("refs/next" in name for name in target.objects)


def _fails_from(first: int, call: StoreCall) -> Fault | None:
    return Fault.FAIL if call.index >= first else None


def log_names(store: Store) -> list[str]:
    return [name for name in contents(store) if name.startswith("_delta_log/0")]


def test_a_pull_into_a_folder_with_other_files_is_refused(server: Hosted) -> None:
    push(PAST.store(), server.dataset(), server.terms())
    target = DictStore({"notes.txt": b"mine"})
    with pytest.raises(NotATable) as refused:
        pull(server.dataset(), target, server.terms())
    assert "empty" in (refused.value.remedy or "")
    assert target.objects == {"notes.txt": b"mine"}
