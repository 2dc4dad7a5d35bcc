"""What lies beside a table's chain: what is told of it, and what a receiver makes of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakeferry.errors import InvalidInput, UnsupportedFeature
from lakeferry.log import paths
from lakeferry.log.segment import arrange
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets import checkpoint_notes
from lakeferry.transfer.datasets.checkpoint_notes import Beside
from lakeferry.transfer.datasets.dataset import Judged
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.delta.root_checkpoints import CHAIN_FOLDER
from tests.support import history as h
from tests.support.history import Append, Checksum, Delete, DeleteRows, History, Layout
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at

Run = list[tuple[Multihash, bytes]]
LAYOUT = Layout(deletion_vectors="u", v2_checkpoints=True, domains=True)


def every_kind() -> History:
    steps: list[h.Step] = []
    for kind in h.Kind:
        steps += [Append(2), DeleteRows(1), Delete(1), h.Checkpoint(kind), Checksum(full=True)]
    return History(LAYOUT).then(*steps, Append(1), Checksum())


PAST = every_kind()


def beside_of(store: Store) -> Beside:
    return checkpoint_notes.of_listing(DeltaLog(store).listing())


def run_of(dataset: DeltaDataset, lower: Multihash | None = None) -> Run:
    head = dataset.current()
    assert head is not None
    return list(dataset.read(dataset.interval(head, lower)))


def prepare(
    source: Store, target: Store, lie: Beside | None = None
) -> tuple[Run, Multihash | None, Judged]:
    """Do what a transfer does before its commit, and have the sender say what is beside."""
    theirs, mine = DeltaDataset(source, ""), DeltaDataset(target, "")
    lower = mine.current()
    run = run_of(theirs, lower)
    judged = mine.judge(run, lower, force=False)
    for ref in (*judged.required, *judged.optional):
        target.put(mine.place(ref), source.get(theirs.place(ref)))
    told = lie or theirs.beside(theirs.parse(run[0][1]), theirs.parse(run[-1][1]))
    return run, lower, replace(judged, beside=told)


def transfer(source: Store, target: Store, lie: Beside | None = None) -> Multihash:
    run, lower, judged = prepare(source, target, lie)
    return DeltaDataset(target, "").commit(run, lower, judged=judged)


def advance(store: DictStore, past: History) -> None:
    for name, data in past.objects().items():
        if not name.endswith("_last_checkpoint"):
            store.put_if_absent(name, data)


def assert_same_versions(source: Store, target: Store, newest: int) -> None:
    for version in range(newest + 1):
        a, b = DeltaLog(source).snapshot(version), DeltaLog(target).snapshot(version)
        assert sorted(a.files["path"].to_pylist()) == sorted(b.files["path"].to_pylist())


# --- The document -----------------------------------------------------------------------


def test_the_document_says_what_it_was_made_of() -> None:
    beside = Beside((3, 10), (1, 2, 3))
    document = checkpoint_notes.encode_note(beside)
    assert checkpoint_notes.is_beside(document)
    assert checkpoint_notes.parse_note(document) == beside


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"checkpoints":[1]}',
        b'{"checkpoints":["1"],"checksums":[]}',
        b'{"checkpoints":[-1],"checksums":[]}',
        b'{"checkpoints":[],"checksums":[%d]}' % 2**63,
        b'{"checkpoints":[%s0],"checksums":[]}' % (b"0," * checkpoint_notes.MOST_VERSIONS),
    ],
)
def test_what_isnt_a_document_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput):
        checkpoint_notes.parse_note(checkpoint_notes._MAGIC + text)


def test_of_very_many_versions_the_newest_are_told_of() -> None:
    names = [paths.checksum(version) for version in range(checkpoint_notes.MOST_VERSIONS + 5)]
    listing = arrange(file for name in names if (file := paths.parse(name)) is not None)
    told = checkpoint_notes.of_listing(listing)
    assert told.checksums[0] == 5
    assert checkpoint_notes.parse_note(checkpoint_notes.encode_note(told)) == told


def test_an_archive_has_one_document_under_its_own_hash() -> None:
    document = checkpoint_notes.encode_note(Beside((3,)))
    name = Multihash.sha3_256(document)
    found: list[Beside] = []
    block = (Multihash.sha3_256(b"block"), b"block")
    assert list(checkpoint_notes.split_archive([block, (name, document)], found)) == [block]
    assert found == [Beside((3,))]
    for entries in ([(name, document)] * 2, [(block[0], document)]):
        with pytest.raises(InvalidInput):
            list(checkpoint_notes.split_archive(entries, []))


# --- What is told -----------------------------------------------------------------------


def test_telling_costs_one_listing_of_what_the_run_is_about() -> None:
    source, target = PAST.store(), DictStore()
    old = transfer(source, target)
    advance(source, PAST.then(Append(1), h.Checkpoint()))
    faulty = FaultyStore(source)
    theirs = DeltaDataset(faulty, "")
    run = run_of(theirs, old)
    first, last = theirs.parse(run[0][1]), theirs.parse(run[-1][1])
    asked = len(faulty.history)
    told = theirs.beside(first, last)
    # That of the last version before them may have been late.
    assert told == Beside((last.sequence_number,), (first.sequence_number - 1,))
    assert [call.verb for call in faulty.history[asked:]] == ["LIST"]


# --- What is made of it -----------------------------------------------------------------


def test_a_receiver_has_checkpoints_and_checksum_files_where_the_sender_has() -> None:
    source, target = PAST.store(), DictStore()
    head = transfer(source, target)
    assert head == DeltaDataset(source, "").head()
    assert beside_of(target) == beside_of(source)
    hint = DeltaLog(target).hint()
    assert hint is not None
    assert hint.version == max(beside_of(target).checkpoints)
    assert_same_versions(source, target, PAST.newest_version)
    # They say what the commits say, and so does the state that is read of them.
    for version in beside_of(target).checksums:
        state, there = DeltaLog(target).state(version), DeltaLog(source).state(version)
        assert (state.protocol.unordered, state.metadata) == (
            there.protocol.unordered,
            there.metadata,
        )


def test_a_table_that_wants_v2_checkpoints_gets_them() -> None:
    wants = replace(LAYOUT, properties=(("delta.checkpointPolicy", "v2"),))
    past = History(wants).then(Append(2), h.Checkpoint(h.Kind.V2_JSON), Append(1))
    source, target = past.store(), DictStore()
    transfer(source, target)
    [one] = DeltaLog(target).listing().checkpoints
    assert (one.version, one.kind) == (1, paths.LogFileKind.V2)
    assert_same_versions(source, target, 2)


def test_what_is_later_than_its_version_comes_with_the_next_one() -> None:
    past = History(LAYOUT).then(*(Append(1) for _ in range(11)))
    source, target = past.store(), DictStore()
    transfer(source, target)
    past = past.then(Append(1))
    advance(source, past)
    transfer(source, target)
    assert 12 not in beside_of(target).checkpoints
    advance(source, past.then(h.Checkpoint(), Append(1)))
    transfer(source, target)
    assert 12 in beside_of(target).checkpoints


def test_a_root_has_what_lies_beside_the_versions_behind_it() -> None:
    source, target = PAST.store(), DictStore()
    source.delete_many([paths.commit(version) for version in range(4)])
    transfer(source, target)
    assert beside_of(target) == beside_of(source)


def test_what_was_here_before_is_read_for_a_checkpoint_alone() -> None:
    source, target = PAST.store(), DictStore()
    transfer(source, target)
    advance(source, PAST.then(Append(1), Checksum()))
    faulty = FaultyStore(target)
    transfer(source, faulty)
    read = [path for call in faulty.history if "GET" in call.verb for path in call.paths]
    assert not [path for path in read if "checkpoint" in path]
    assert PAST.newest_version + 1 not in beside_of(target).checksums


def test_a_large_table_gets_the_newest_of_its_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[h.Step] = []
    for _ in range(6):
        steps += [Append(2), h.Checkpoint(), Checksum()]
    source = History(LAYOUT).then(*steps).store()
    monkeypatch.setattr("lakeferry.transfer.datasets.delta.receiver_checkpoints.MOST_ROWS", 0)
    target = DictStore()
    transfer(source, target)
    assert beside_of(target) == Beside((6,), (6,))
    monkeypatch.setattr(
        "lakeferry.transfer.datasets.delta.receiver_checkpoints.MOST_ROWS", 3 * (12 + 1)
    )
    target = DictStore()
    transfer(source, target)
    assert beside_of(target) == Beside((4, 5, 6), (4, 5, 6))


def test_what_a_peer_says_of_other_versions_is_of_no_account() -> None:
    past = History().then(Append(1), Append(1))
    source, target = past.store(), DictStore()
    everything = tuple(range(0, 3_000, 3))
    transfer(source, target, Beside(everything, everything))
    assert beside_of(target) == Beside((0,), (0,))
    assert_same_versions(source, target, 2)


def test_what_is_there_stays() -> None:
    past = History(LAYOUT).then(*(Append(1) for _ in range(12)))
    source, target = past.store(), DictStore()
    transfer(source, target)
    advance(source, past.then(h.Checkpoint(), Append(1), h.Checkpoint()))
    name = paths.classic_checkpoint(12)
    own = target.get(name)
    transfer(source, target)
    assert own == target.get(name) != source.get(name)
    assert beside_of(target).checkpoints == (12, 13)


def test_of_a_table_that_may_not_be_written_to_nothing_is_made() -> None:
    past = History().then(h.Upgrade(writer=("ofTheFuture",)), Append(1), h.Checkpoint())
    source, target = past.store(), DictStore()
    with pytest.raises(UnsupportedFeature):
        DeltaLog(source).checkpoint(1)
    transfer(source, target)
    assert beside_of(target).checkpoints == ()


def test_a_store_that_refuses_it_loses_nothing_else() -> None:
    source, target = PAST.store(), DictStore()
    run, lower, judged = prepare(source, target)

    def rule(call: StoreCall) -> Fault | None:
        is_one = any("checkpoint" in path or path.endswith(".crc") for path in call.paths)
        return Fault.FAIL if is_one and "PUT" in call.verb else None

    DeltaDataset(FaultyStore(target, rule), "").commit(run, lower, judged=judged)
    assert_same_versions(source, target, PAST.newest_version)


@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER])
def test_a_commit_that_stops_at_any_call_leaves_none_of_it_out(fault: Fault) -> None:
    past = History(LAYOUT).then(
        Append(2), h.Checkpoint(h.Kind.V2_PARQUET), Checksum(), Append(1), h.Checkpoint()
    )
    source = past.store()
    index = stops = 0
    while True:
        target = DictStore()
        run, lower, judged = prepare(source, target)
        faulty = FaultyStore(target, at(index, fault))
        try:
            DeltaDataset(faulty, "").commit(run, lower, judged=judged)
        except Stopped:
            stops += 1
            if DeltaDataset(target, "").current() is None:
                DeltaDataset(target, "").commit(run, lower, judged=judged)
        assert beside_of(target) == beside_of(source)
        assert not [
            info.path for info in target.list(f"{CHAIN_FOLDER}/refs/") if "next" in info.path
        ]
        if len(faulty.history) <= index:
            break
        index += 1
    assert stops > 10


def test_an_intent_that_says_nothing_of_it_is_completed() -> None:
    source, target = PAST.store(), DictStore()
    run, lower, judged = prepare(source, target)

    def rule(call: StoreCall) -> Fault | None:
        is_intent = any(path.endswith("refs/next") for path in call.paths)
        return Fault.STOP_AFTER if is_intent and call.verb == "PUT" else None

    faulty = FaultyStore(target, rule)
    with pytest.raises(Stopped):
        DeltaDataset(faulty, "").commit(run, lower, judged=judged)
    target.put(f"{CHAIN_FOLDER}/refs/next", run[-1][0].text.encode())
    assert DeltaDataset(target, "").current() == run[-1][0]
    assert_same_versions(source, target, PAST.newest_version)
