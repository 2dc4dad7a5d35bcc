"""Checkpoints that we write: what they keep, what they leave out, and how they are split."""

from __future__ import annotations

import io
import itertools
import json

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeferry.errors import CorruptLog, UnsupportedFeature
from lakeferry.log import (
    actions,
    arrow_versions,
    checkpoint_read,
    checkpoint_rows,
    checkpoint_write,
    paths,
    replay,
)
from lakeferry.log.file_actions import RAW
from lakeferry.log.properties import DAY_MS
from lakeferry.log.replay import Snapshot
from lakeferry.table import DeltaLog, checkpoint
from tests.support import naive
from tests.support.clock import ManualClock
from tests.support.history import (
    Append,
    Checksum,
    Delete,
    DeleteRows,
    Domain,
    History,
    Layout,
    Lines,
    Stream,
    Upgrade,
)
from tests.support.stores import DictStore

NAMES = (f"00000000-0000-4000-8000-{number:012d}" for number in itertools.count())


def without_commits(store: DictStore, version: int) -> DictStore:
    """Drop every commit up to ``version``, so that only the checkpoint can tell."""
    store.delete_many([paths.commit(old) for old in range(version + 1)])
    return store


def same(first: Snapshot, second: Snapshot) -> bool:
    def rows(table: pa.Table) -> list[str]:
        plain = table.drop_columns([c for c in (RAW.name, "dataChange") if c in table.column_names])
        return sorted(
            json.dumps({k: v for k, v in row.items() if v is not None}, sort_keys=True)
            for row in arrow_versions.to_rows(plain)
        )

    return (
        rows(first.files) == rows(second.files)
        and first.protocol == second.protocol
        and first.metadata == second.metadata
        and dict(first.txns) == dict(second.txns)
        and dict(first.domains) == dict(second.domains)
    )


LAYOUTS = {
    "plain": Layout(),
    "partitioned": Layout(partitioned=True),
    "vectors": Layout(deletion_vectors="u"),
    "v2": Layout(v2_checkpoints=True, domains=True, properties=(("delta.checkpointPolicy", "v2"),)),
    "row tracking": Layout(row_tracking=True),
    "stats as struct": Layout(
        partitioned=True,
        properties=(
            ("delta.checkpoint.writeStatsAsStruct", "true"),
            ("delta.checkpoint.writeStatsAsJson", "false"),
        ),
    ),
}


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "stats as struct"])
def test_a_version_read_from_its_checkpoint_alone_is_the_same(name: str) -> None:
    history = History(LAYOUTS[name]).then(
        Append(3), Stream(), DeleteRows(1), Domain(), Delete(1), Append(1)
    )
    store = history.store()
    log = DeltaLog(store, clock=ManualClock())
    before = log.snapshot()

    written = log.checkpoint()

    assert written.created
    assert written.kind == ("v2" if name == "v2" else "classic")
    without_commits(store, before.version)
    assert same(DeltaLog(store).snapshot(), before)
    assert naive.replay(store.objects, before.version).version == before.version
    hint = log.hint()
    assert hint is not None
    assert hint.version == before.version
    assert hint.num_of_add_files == before.num_files


def test_statistics_take_the_form_that_the_table_asks_for_and_come_back() -> None:
    store = History(LAYOUTS["stats as struct"]).then(Append(3)).store()
    log = DeltaLog(store)
    before = log.snapshot()
    name = log.checkpoint().files[0]
    kind = pq.read_schema(io.BytesIO(store.get(name))).field("add").type
    fields = {field.name for field in kind}
    assert {"stats_parsed", "partitionValues_parsed"} <= fields
    assert "stats" not in fields

    kept = DeltaLog(store).snapshot()
    metadata = kept.metadata
    text = checkpoint_rows.with_statistics(
        kept.files,
        Snapshot(
            kept.version,
            kept.protocol,
            type(metadata)(metadata.id, metadata.schema_string, metadata.partition_columns),
            None,
            {},
            {},
            kept.files,
            kept.tombstones,
        ),
    )
    expected = {row["path"]: json.loads(row["stats"]) for row in before.files.to_pylist()}
    assert {row["path"]: json.loads(row["stats"]) for row in text.to_pylist()} == expected


def test_fields_that_we_do_not_know_are_kept() -> None:
    line = {
        "add": {
            "path": "x.parquet",
            "partitionValues": {},
            "size": 1,
            "modificationTime": 1,
            "dataChange": True,
            "futureField": {"a": 1, "b": ["c"]},
        }
    }
    extra = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2, "futureNumber": 5}}
    texts = tuple(json.dumps(value) for value in (line, extra))
    store = History().then(Append(1), Lines(texts), Append(1)).store()
    log = DeltaLog(store)

    log.checkpoint(2)
    log.checkpoint(3)

    for version in (2, 3):
        table = pq.read_table(io.BytesIO(store.get(paths.classic_checkpoint(version))))
        adds = [row for row in table["add"].to_pylist() if row]
        kept = next(row for row in adds if row["path"] == "x.parquet")
        assert kept["futureField"] == {"a": 1, "b": ["c"]}
        (protocol,) = [row for row in table["protocol"].to_pylist() if row]
        assert protocol["futureNumber"] == 5
    assert log.snapshot(3).protocol.unknown == {"futureNumber": 5}


@pytest.mark.parametrize("earlier", [False, True], ids=["in commits", "in a checkpoint too"])
def test_fields_that_we_do_not_know_are_kept_of_tombstones(earlier: bool) -> None:
    removed = {"path": "y", "deletionTimestamp": 1 << 45, "dataChange": True, "futureField": "new"}
    known = {name: value for name, value in removed.items() if name != "futureField"} | {
        "path": "x"
    }
    first, second = (json.dumps({"remove": each}) for each in (known, removed))
    store = History().then(Append(1), Lines((first,)), Lines((second,)), Append(1)).store()
    log = DeltaLog(store)
    for version in (2, 3, 4) if earlier else (4,):
        log.checkpoint(version)
    table = pq.read_table(io.BytesIO(store.get(paths.classic_checkpoint(4))))
    kept = {row["path"]: row["futureField"] for row in table["remove"].to_pylist() if row}
    assert kept == {"x": None, "y": "new"}


def test_expired_tombstones_are_left_out() -> None:
    store = History().then(Append(2), Delete(1)).store()
    clock = ManualClock()
    assert DeltaLog(store).snapshot().tombstones.num_rows == 1
    clock.advance(7 * DAY_MS + 10 * 60_000)
    DeltaLog(store, clock=clock).checkpoint()
    assert DeltaLog(store).snapshot().tombstones.num_rows == 0


def test_large_checkpoints_are_split_into_sidecars() -> None:
    store = History(LAYOUTS["v2"]).then(Append(7), Delete(2)).store()
    log = DeltaLog(store, clock=ManualClock())
    before = log.snapshot()

    written = checkpoint.write(store, checkpoint.plan_of(before, store.uri, 0, sidecar_rows=2))

    sidecars = [name for name in written.files if "_sidecars/" in name]
    assert len(sidecars) == 4
    assert written.files[-1].startswith("_delta_log/0000")
    without_commits(store, before.version)
    after = DeltaLog(store).snapshot()
    assert same(after, before)
    assert after.tombstones.num_rows == 2


def test_a_checkpoint_is_made_of_another_one_a_few_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_read, "BATCH_ROWS", 250)
    monkeypatch.setattr(checkpoint_rows, "ROW_GROUP_ROWS", 500)
    names = [f"{number}.parquet" for number in range(10_000)]
    add = {"partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    texts = (
        json.dumps({"add": {**add, "path": name, "stats": json.dumps({"a": name * 100})}})
        for name in names
    )
    store = History().then(Lines(tuple(texts)), Append(1)).store()
    log = DeltaLog(store)
    log.checkpoint(1)
    without_commits(store, 1)
    whole_bytes = DeltaLog(store).snapshot(1).files.nbytes
    held: list[int] = []
    real = replay.DistinctFiles.add

    def noting(self: replay.DistinctFiles, table: pa.Table) -> None:
        held.append(pa.total_allocated_bytes())
        real(self, table)

    monkeypatch.setattr(replay.DistinctFiles, "add", noting)
    begun = pa.total_allocated_bytes()
    log.checkpoint(2)
    assert len(held) > 20
    assert max(held) - begun < whole_bytes / 2
    assert DeltaLog(without_commits(store, 2)).snapshot().num_files == len(names) + 1


def test_the_protocol_is_in_a_row_group_of_its_own() -> None:
    snapshot = DeltaLog(History().then(Append(5)).store()).snapshot()
    plan = checkpoint_write.plan_checkpoint(snapshot, [("add", snapshot.files)], 0, NAMES)
    metadata = pq.read_metadata(io.BytesIO(plan.files[0].body))
    assert metadata.row_group(0).num_rows == 2
    assert metadata.row_group(1).num_rows == 5


def test_writing_twice_changes_nothing() -> None:
    store = History().then(Append(1)).store()
    log = DeltaLog(store)
    first = log.checkpoint()
    objects = dict(store.objects)
    second = log.checkpoint()
    assert first.created
    assert not second.created
    assert second.files == first.files
    assert store.objects == objects


def test_an_older_checkpoint_does_not_move_the_hint_back() -> None:
    store = History().then(Append(1), Append(1)).store()
    log = DeltaLog(store)
    log.checkpoint(2)
    log.checkpoint(1)
    hint = log.hint()
    assert hint is not None
    assert hint.version == 2


def test_nothing_that_a_checksum_contradicts_goes_into_a_checkpoint() -> None:
    store = History().then(Append(2), Checksum(files_off=1)).store()
    before = dict(store.objects)
    with pytest.raises(CorruptLog):
        DeltaLog(store).checkpoint()
    assert store.objects == before


def test_a_version_with_an_unknown_feature_gets_no_checkpoint_of_ours() -> None:
    store = History(Layout(domains=True)).then(Upgrade(writer=("futureFeature",))).store()
    before = dict(store.objects)
    for version in (None, 0):
        # Who may write is for the newest version to say, whichever version is written.
        with pytest.raises(UnsupportedFeature):
            DeltaLog(store).checkpoint(version)
    assert store.objects == before


PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
VECTOR = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}


def added(path: str, **fields: object) -> dict[str, object]:
    return {"add": {"path": path, "size": 1, "partitionValues": {}, **fields}}


def logged(*commits: tuple[object, ...], **metadata: object) -> DictStore:
    """Return a table whose commits hold these actions."""
    first = (PROTOCOL, {"metaData": {"id": "1", "schemaString": "{}", **metadata}})
    store = DictStore()
    for version, found in enumerate([first, *commits]):
        store.put(paths.commit(version), lines_of(*found))
    return store


def lines_of(*found: object) -> bytes:
    return b"\n".join(map(msgspec.json.encode, found))


def checkpointed(store: DictStore) -> Snapshot:
    """Write a checkpoint of the newest version and read it back from that alone."""
    written = DeltaLog(store).checkpoint()
    return DeltaLog(without_commits(store, written.version)).snapshot()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({}, "{}"),
        ({"a": {}}, '{"a":{}}'),
        ([{}], "[{}]"),
        (2**63, str(2**63)),
        (None, None),
        ([], []),
    ],
)
def test_what_parquet_can_t_hold_is_kept_as_text(value: object, kept: object) -> None:
    txn = {"txn": {"appId": "a", "version": 1, "later": value}}
    found = checkpointed(logged((added("a", later=value), txn), later=value))
    assert found.files["later"].to_pylist() == [kept]
    texts = (found.txns["a"].unknown.get("later"), found.metadata.unknown.get("later"))
    assert texts == (kept, kept)


def test_a_field_of_several_types_never_stops_a_checkpoint() -> None:
    store = logged((added("a", later=1), added("b", deep={"x": 1})))
    DeltaLog(store).checkpoint()
    new = (added("c", later="007"), added("d", deep={"y": "z"}), added("e", later={"k": 2}))
    store.put(paths.commit(2), lines_of(*new))
    rows = {row["path"]: row for row in checkpointed(store).files.to_pylist()}
    later = {path: row["later"] for path, row in rows.items()}
    assert later == {"a": "1", "b": None, "c": '"007"', "d": None, "e": '{"k":2}'}
    assert rows["b"]["deep"] == {"x": 1, "y": None}
    assert rows["d"]["deep"] == {"x": None, "y": "z"}


def test_a_field_that_became_text_goes_on_as_text() -> None:
    store = logged((added("a", later=1), added("b", later="x")))
    DeltaLog(store).checkpoint()
    store.put(paths.commit(2), lines_of(added("c", later=[3])))
    rows = checkpointed(store).files.to_pylist()
    assert {row["path"]: row["later"] for row in rows} == {"a": "1", "b": '"x"', "c": "[3]"}


def test_odd_json_in_an_unknown_field_is_kept_as_text() -> None:
    store = logged(())
    line = b'{"add":{"path":"a","size":1,"partitionValues":{},"later":1e400}}'
    store.put(paths.commit(1), line)
    assert checkpointed(store).files["later"].to_pylist() == ["1e400"]


def test_unknown_fields_of_vectors_and_of_the_format_stay() -> None:
    form = {"provider": "parquet", "options": {"o": None}, "later": {"a": 1}}
    store = logged(
        (added("a", deletionVector={**VECTOR, "later": 5}), added("b")),
        format=form,
        configuration={"p": None, "q": "1"},
    )
    first = checkpointed(store)
    assert first.files["deletionVector"].to_pylist()[0]["later"] == 5
    assert first.metadata.unknown["format"] == {"later": {"a": 1}, "options": {"o": None}}
    # And once more, from a checkpoint and a commit into the next checkpoint.
    another = added("c", deletionVector={**VECTOR, "later": 6, "even": "x"})
    store.put(paths.commit(2), lines_of(another))
    second = checkpointed(store)
    vectors = {
        row["path"]: row["deletionVector"] and {**row["deletionVector"]}
        for row in second.files.to_pylist()
    }
    assert vectors["b"] is None
    assert (vectors["a"]["later"], vectors["a"]["even"]) == (5, None)
    assert (vectors["c"]["later"], vectors["c"]["even"]) == (6, "x")
    assert dict(second.metadata.configuration) == {"q": "1"}
    assert actions.as_json(second.metadata)["configuration"] == {"p": None, "q": "1"}
    assert actions.as_json(second.metadata)["format"] == form
