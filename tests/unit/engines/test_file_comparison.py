"""What looking at pairs of files shows, without Spark."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.engine import LOOKED, PAIR, Look, LookPlan
from lakeferry.engines import file_comparison, object_copy
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from tests.support.history import Append, DeleteRows, History, Layout
from tests.support.stores import DictStore


def look(a: Store, b: Store, what: Look, *pairs: dict[str, Any]) -> list[dict[str, Any]]:
    plan = LookPlan(a.config, b.config, pa.Table.from_pylist(list(pairs), PAIR), what)
    stores = {store.uri: store for store in (a, b)}
    engine = LocalEngine(lambda config: stores[config.uri], parallel=4)
    batches = list(engine.look(plan))
    assert all(batch.schema == LOOKED[what] for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def pair(path: str, size: int = 3, **more: Any) -> dict[str, Any]:
    return {"path_a": path, "size_a": size, "path_b": path, "size_b": size} | more


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("small", [True, False])
def test_digests_are_of_what_is_there(small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not small:
        monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", 2)
        monkeypatch.setattr(object_copy, "CHUNK_BYTES", 2)
    a = DictStore({"x y": b"abcde", "only": b"1"}, uri="memory://a")
    b = DictStore({"x y": b"other"}, uri="memory://b")
    found = look(a, b, "digest", pair("x%20y", 5), pair("only", 1), pair("neither"))
    none = {"vector_digest_a": None, "vector_digest_b": None}
    assert found == [
        {"digest_a": sha(b"abcde"), "digest_b": sha(b"other"), **none},
        {"digest_a": sha(b"1"), "digest_b": None, **none},
        {"digest_a": None, "digest_b": None, **none},
    ]


def test_one_object_is_read_once() -> None:
    a = DictStore({"x": b"abc"}, uri="memory://a")
    b = DictStore(uri="memory://b")
    (found,) = look(a, b, "digest", pair("x", path_b="memory://a/x"))
    assert found["digest_a"] == found["digest_b"] == sha(b"abc")
    assert a.calls["RANGE"] == 1


@pytest.mark.parametrize("kind", ["u", "p", "i"])
def test_vectors_are_compared_by_their_own_bytes(kind: str) -> None:
    layout = Layout(deletion_vectors=kind)
    stores = [History(layout).then(Append(2), DeleteRows(2)).store(f"memory://{n}") for n in "ab"]
    described = []
    for side, store in zip("ab", stores, strict=True):
        files = DeltaLog(store).snapshot().files.sort_by("path").to_pylist()
        described.append(
            [
                {
                    f"path_{side}": file["path"],
                    f"size_{side}": file["size"],
                    f"vector_kind_{side}": file["deletionVector"]["storageType"],
                    f"vector_{side}": file["deletionVector"]["pathOrInlineDv"],
                    f"vector_offset_{side}": file["deletionVector"]["offset"],
                    f"vector_size_{side}": file["deletionVector"]["sizeInBytes"],
                }
                for file in files
            ]
        )
    pairs = [first | second for first, second in zip(*described, strict=True)]
    found = look(stores[0], stores[1], "digest", *pairs)
    assert all(row["vector_digest_a"] == row["vector_digest_b"] for row in found)
    assert all(row["vector_digest_a"] for row in found)
    if kind != "i":
        stores[1].delete_many([info.path for info in stores[1].list("") if ".bin" in info.path])
        assert [row["vector_digest_b"] for row in look(stores[0], stores[1], "digest", *pairs)] == [
            None,
            None,
        ]


def test_rows_are_what_footers_count() -> None:
    history = History().then(Append(2))
    a = DictStore(history.objects("memory://a", with_data=True), uri="memory://a")
    b = DictStore(a.objects, uri="memory://b")
    files = DeltaLog(a).snapshot().files.sort_by("path").to_pylist()
    whole, broken = (pair(file["path"], file["size"]) for file in files)
    names = sorted(info.path for info in b.list("part-"))
    b.put(names[1], b"no parquet" * 100)
    alone = whole | {"path_b": None, "size_b": None}
    gone = pair("gone", 100)
    assert look(a, b, "rows", whole, broken, alone, gone) == [
        {"rows_a": 3, "rows_b": 3},
        {"rows_a": 3, "rows_b": None},
        {"rows_a": 3, "rows_b": 0},
        {"rows_a": None, "rows_b": None},
    ]


def test_many_pairs_come_in_their_order_in_bounded_batches() -> None:
    count = file_comparison.BATCH_PAIRS * 2 + 1
    store = DictStore({f"{number}": b"%d" % number for number in range(count)})
    pairs = [pair(f"{number}") for number in range(count)]
    plan = LookPlan(store.config, store.config, pa.Table.from_pylist(pairs, PAIR), "digest")
    told: list[tuple[str, int, int]] = []
    engine = LocalEngine(lambda _: store, parallel=4)
    batches = list(engine.look(plan, lambda *event: told.append(event)))
    assert [len(batch) for batch in batches] == [file_comparison.BATCH_PAIRS] * 2 + [1]
    digests = [row for batch in batches for row in batch["digest_a"].to_pylist()]
    assert digests == [sha(b"%d" % number) for number in range(count)]
    size_bytes = 2 * 3 * count
    assert told[0] == ("comparing digests", 0, size_bytes)
    assert {each[2] for each in told} == {size_bytes}
    assert told == sorted(told)


def test_no_pairs_show_nothing() -> None:
    assert look(DictStore(), DictStore(), "digest") == []
