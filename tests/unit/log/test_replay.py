"""Reconciliation: the newest reference to each logical file wins, wherever it is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log import checkpoint_read, file_actions, fingerprints
from lakeferry.log.checkpoint_read import Rows
from lakeferry.log.file_actions import RAW
from lakeferry.log.lines import Lines
from lakeferry.log.replay import Reconciliation, Snapshot, check_distinct

BEGIN = b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n'
BEGIN += b'{"metaData":{"id":"1","schemaString":"{}"}}\n'
ROOT = "s3://bucket/table"


def replayed(*commits: bytes, checkpoint: bytes = b"") -> Snapshot:
    lines = Lines()
    for data in commits:
        lines.read(data, "commit")
    replay = Reconciliation(len(commits), ROOT, lines)
    if checkpoint:
        rows = Rows()
        checkpoint_read.read_json(rows, checkpoint, "checkpoint")
        replay.take(rows)
    return replay.snapshot()


def add(path: str, vector: str = "", size: int = 1) -> bytes:
    return b'{"add":{"path":"%s","size":%d%s}}\n' % (path.encode(), size, described(vector))


def remove(path: str, vector: str = "") -> bytes:
    return b'{"remove":{"path":"%s","dataChange":true%s}}\n' % (path.encode(), described(vector))


def described(vector: str) -> bytes:
    value = b',"deletionVector":{"storageType":"u","pathOrInlineDv":"%s","offset":1,'
    value += b'"sizeInBytes":1,"cardinality":1}'
    return value % vector.encode() if vector else b""


def live(snapshot: Snapshot) -> list[str]:
    return sorted(snapshot.files["path"].to_pylist())


def gone(snapshot: Snapshot) -> list[str]:
    return sorted(snapshot.tombstones["path"].to_pylist())


def test_files_come_go_and_come_back() -> None:
    found = replayed(BEGIN + add("a") + add("b"), remove("a") + remove("b"), add("b", size=9))
    assert (live(found), gone(found)) == (["b"], ["a"])
    assert (found.num_files, found.size_bytes) == (1, 9)


def test_the_same_over_a_checkpoint() -> None:
    checkpoint = BEGIN + add("a") + add("b") + add("c") + remove("old") + remove("back")
    found = replayed(remove("a"), add("b", size=7), add("back"), checkpoint=checkpoint)
    assert live(found) == ["b", "back", "c"]
    assert gone(found) == ["a", "old"]
    assert found.size_bytes == 9


def test_a_vector_makes_another_logical_file() -> None:
    first = BEGIN + add("a")
    found = replayed(first, add("a", "v1") + remove("a"), add("a", "v2") + remove("a", "v1"))
    assert found.num_files == 1
    assert found.files["deletionVector"][0]["pathOrInlineDv"].as_py() == "v2"
    assert len(gone(found)) == 2
    over = replayed(add("a", "v1") + remove("a"), checkpoint=first)
    assert (over.num_files, len(gone(over))) == (1, 1)


def test_spellings_of_a_path_are_one_file() -> None:
    first = BEGIN + add("a/b") + add(f"{ROOT}/x")
    later = remove("./a/c/..//b") + remove(f"{ROOT}/./x".replace("s3:", "S3:"))
    for found in (replayed(first, later), replayed(later, checkpoint=first)):
        assert live(found) == []
        assert len(gone(found)) == 2


def test_what_other_engines_keep_apart_stays() -> None:
    first = BEGIN + add("%61") + add(f"{ROOT}/x") + add("p=%C3%BC/f")
    later = remove("a") + remove(f"{ROOT}/x".replace("s3:", "s3a:")) + remove("p=%c3%bc/f")
    for found in (replayed(first, later), replayed(later, checkpoint=first)):
        assert live(found) == ["%61", "p=%C3%BC/f", f"{ROOT}/x"]


def test_sizes_beyond_64_bits_are_added_up() -> None:
    huge = 2**63 - 1
    found = replayed(BEGIN + add("a", size=huge) + add("b", size=huge) + add("c", size=5))
    assert found.size_bytes == 2 * huge + 5


def test_files_of_a_checkpoint_that_contradict_each_other_are_named() -> None:
    replay = Reconciliation(0, ROOT, Lines())
    for number, value in enumerate((1, "x")):
        kind = pa.struct([("path", pa.string()), ("later", pa.array([value]).type)])
        column = pa.array([{"path": f"{number}", "later": value}], kind)
        rows = Rows(adds=[file_actions.conform(column, file_actions.ADD)], path=f"part {number}")
        replay.take(rows)
    begin = Rows()
    checkpoint_read.read_json(begin, BEGIN, "first")
    begin.path = None
    replay.take(begin)
    with pytest.raises(CorruptLog) as refused:
        replay.snapshot()
    assert refused.value.fields["path"] == "part 1"


def test_two_files_with_one_hash_are_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_equal(texts: pa.Array) -> pa.Array:
        return pa.repeat(pa.scalar(5, pa.int64()), len(texts))

    monkeypatch.setattr(fingerprints, "of_texts", all_equal)
    tables = [actions_of("a", "b"), actions_of("c")]
    check_distinct(lambda: tables, ROOT, "checkpoint")
    tables.append(actions_of("b"))
    with pytest.raises(CorruptLog) as refused:
        check_distinct(lambda: tables, ROOT, "checkpoint")
    assert refused.value.fields["path"] == "checkpoint"


def actions_of(*paths: str) -> pa.Table:
    rows = pa.array([{"path": path} for path in paths], pa.struct([("path", pa.string())]))
    return pa.Table.from_batches([file_actions.conform(rows, file_actions.ADD)])


def test_transactions_and_domains() -> None:
    first = BEGIN + b'{"txn":{"appId":"a","version":5}}\n{"txn":{"appId":"b","version":1}}\n'
    first += b'{"domainMetadata":{"domain":"d","configuration":"1","removed":false}}\n'
    first += b'{"domainMetadata":{"domain":"e","configuration":"2","removed":false}}\n'
    second = b'{"txn":{"appId":"a","version":3}}\n'
    second += b'{"domainMetadata":{"domain":"d","configuration":"1","removed":true}}\n'
    for found in (replayed(first, second), replayed(second, checkpoint=first)):
        assert {name: txn.version for name, txn in found.txns.items()} == {"a": 3, "b": 1}
        assert {name: d.configuration for name, d in found.domains.items()} == {"e": "2"}


def test_the_newest_protocol_and_metadata_win() -> None:
    later = b'{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"writerFeatures":["x"]}}\n'
    for found in (replayed(BEGIN, later), replayed(later, checkpoint=BEGIN)):
        assert found.protocol.min_writer_version == 7
        assert found.metadata.id == "1"


@pytest.mark.parametrize("line", BEGIN.splitlines())
def test_without_protocol_or_metadata_there_is_no_table(line: bytes) -> None:
    with pytest.raises(CorruptLog, match=r"no (protocol|metaData) action"):
        replayed(line)


def test_an_empty_table_has_tables_with_the_right_columns() -> None:
    found = replayed(BEGIN)
    assert found.files.schema.names == [*file_actions.ADD.names, RAW.name]
    assert found.tombstones.schema.names == [*file_actions.REMOVE.names, RAW.name]
    assert (found.num_files, found.size_bytes) == (0, 0)


def test_checkpoint_files_may_disagree_about_fields_that_nobody_knows() -> None:
    replay = Reconciliation(1, ROOT, Lines())
    first = Rows()
    checkpoint_read.read_json(first, BEGIN, "checkpoint")
    replay.take(first)
    for kind, value in ((pa.int32(), 1), (pa.int64(), 2**40), (pa.int32(), None)):
        struct = pa.struct([("path", pa.string()), ("size", pa.int64()), ("later", kind)])
        rows = pa.array([{"path": str(value), "size": 1, "later": value}], struct)
        replay.take(Rows(adds=[file_actions.conform(rows, file_actions.ADD)]))
    assert replay.snapshot().files["later"].to_pylist() == [1, 2**40, None]
