"""Whether another place has a version's files: as objects, and as what a log there names."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest

from lakeferry.engine import LISTED_FINDINGS, CheckPlan, CheckTotals
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.log.rewrite import Absolute, Adopted
from lakeferry.storage import Store, StoreConfig
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, Delete, DeleteRows, History, Layout
from tests.support.stores import DictStore

FIRST = "_delta_log/00000000000000000000.json"
RICH = Layout(partitioned=True, deletion_vectors="u")
PAST = History(RICH).then(Append(6), DeleteRows(3), Checkpoint(), Delete(2), Append(1))


def table(uri: str = "memory://here/t", past: History = PAST) -> DictStore:
    return DictStore(past.objects(uri), uri=uri)


def check(source: Store, target: Store, *, logs: bool = False) -> CheckTotals:
    def opened(config: StoreConfig) -> Store:
        return {source.uri: source, target.uri: target}[config.uri]

    segment = DeltaLog(source).segment()
    rename = Absolute(source.uri) if logs else Adopted(source.uri)
    there = DeltaLog(target).segment() if logs else None
    plan = CheckPlan(source.config, segment, rename, target.config, there)
    return LocalEngine(opened, parallel=1).check(plan)


def data_of(store: DictStore) -> list[str]:
    return [name for name in store.objects if not name.startswith("_delta_log/")]


def test_a_copy_has_every_live_file_and_vector() -> None:
    source = table()
    live = DeltaLog(source).snapshot()
    vectors = sum(each is not None for each in live.files["deletionVector"].to_pylist())
    target = DictStore(
        {name: source.objects[name] for name in data_of(source)}, uri="memory://there/t"
    )
    assert vectors > 0
    assert check(source, target) == CheckTotals(live.num_files + vectors, 0, (), 0, (), 0)


@pytest.mark.parametrize("suffix", [".parquet", ".bin"])
def test_what_is_missing_is_named_as_the_log_names_it(suffix: str) -> None:
    source = table()
    live = {unquote(path) for path in DeltaLog(source).snapshot().files["path"].to_pylist()}
    names = data_of(source)
    gone = {name for name in names if name.endswith(suffix) and (suffix == ".bin" or name in live)}
    kept = {name: source.objects[name] for name in names if name not in gone}
    found = check(source, DictStore(kept, uri="memory://there/t"))
    assert found.missing_count >= len(gone) > 0
    assert {unquote(path) for path in found.missing} == gone


def test_a_file_of_another_size_isn_t_the_one() -> None:
    source = table()
    live = DeltaLog(source).snapshot().files["path"][0].as_py()
    objects = {name: source.objects[name] for name in data_of(source)}
    objects[unquote(live)] += b"more"
    found = check(source, DictStore(objects, uri="memory://there/t"))
    assert (found.missing_count, found.unequal_count, found.unequal) == (0, 1, (live,))


def test_an_empty_place_has_nothing_and_few_are_named() -> None:
    source = table(past=History().then(Append(3 * LISTED_FINDINGS)))
    found = check(source, DictStore({}, uri="memory://there/t"))
    assert found.wanted == found.missing_count == 3 * LISTED_FINDINGS
    assert len(found.missing) == LISTED_FINDINGS


def referring(source: DictStore) -> list[bytes]:
    """Return the one commit of a table that names the source's live files where they are."""
    log = DeltaLog(source)
    first = source.objects[FIRST].splitlines()
    lines = [line for line in first if b'"add"' not in line]
    for row in log.snapshot().files.to_pylist():
        add = {
            "path": f"{source.uri}/{row['path']}",
            "size": row["size"],
            "partitionValues": dict(row["partitionValues"]),
            "modificationTime": 1,
            "dataChange": True,
            "stats": row["stats"],
        }
        lines.append(json.dumps({"add": add}).encode())
    return lines


def of_lines(lines: list[bytes]) -> DictStore:
    return DictStore({FIRST: b"\n".join(lines)}, uri="memory://there/t")


def test_a_log_that_names_the_same_files_agrees() -> None:
    source = table()
    found = check(source, of_lines(referring(source)), logs=True)
    assert found == CheckTotals(DeltaLog(source).snapshot().num_files, 0, (), 0, (), 0)


def test_a_log_that_names_others_is_counted_on_both_sides() -> None:
    source = table()
    *others, last = referring(source)
    larger = json.loads(last)
    larger["add"]["size"] += 1
    found = check(source, of_lines([*others, json.dumps(larger).encode()]), logs=True)
    assert (found.missing_count, found.extra_count, len(found.missing)) == (1, 1, 1)
    second = json.loads(last)
    second["add"]["path"] += "-another"
    found = check(source, of_lines([*others, last, json.dumps(second).encode()]), logs=True)
    assert (found.missing_count, found.extra_count) == (0, 1)


@pytest.mark.parametrize("rows", ["99999999999999999999", "-1", "1.5", "null", '"3"', "1e400"])
def test_a_number_of_rows_that_is_none_is_in_nobody_s_way(rows: str) -> None:
    source = table(past=History().then(Append(1)))
    name = max(name for name in source.objects if name.endswith(".json"))
    lines = [json.loads(line) for line in source.objects[name].splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["stats"] = f'{{"numRecords":{rows}}}'
    source.put(name, b"\n".join(json.dumps(line).encode() for line in lines))
    found = check(source, of_lines(referring(source)), logs=True)
    assert found == CheckTotals(1, 0, (), 0, (), 0)
