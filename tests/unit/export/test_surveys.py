"""What listings show: all names in order, in few requests, without what has got lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lakeferry.errors import ObjectNotFound, StorageUnavailable
from lakeferry.export import reuse, surveys
from lakeferry.export.manifest import ExportedFile, Manifest
from lakeferry.export.surveys import Survey
from lakeferry.storage import open_store, parallel_listing
from lakeferry.storage.lakefs import LakeFSStore
from tests.support.lakefs_server import OurLakeFS
from tests.support.stores import DictStore

COMMIT = "_delta_log/00000000000000000000.json"
SECOND = "_delta_log/00000000000000000001.json"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OurLakeFS]:
    folder = tmp_path / "repo" / "data" / "blocks"
    folder.mkdir(parents=True)
    with OurLakeFS(folder) as running:
        yield running


def store_of(server: OurLakeFS, commit: str) -> LakeFSStore:
    found = open_store(f"lakefs://repo/{commit}/t", server.options)
    assert isinstance(found, LakeFSStore)
    return found


def adds(*names: str) -> bytes:
    lines = [{"add": {"path": name, "size": 1, "partitionValues": {}}} for name in names]
    return b"\n".join(json.dumps(line).encode() for line in lines)


def commit(server: OurLakeFS, name: str, objects: dict[str, bytes]) -> LakeFSStore:
    server.commit(name, {f"t/{path}": data for path, data in objects.items()})
    return store_of(server, name)


def names(survey: Survey) -> list[str]:
    found: list[str] = survey.names.to_pylist()
    return found


def test_a_long_table_is_listed_in_stretches(
    server: OurLakeFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"_PAGE": 10, "_AHEAD_PAGES": 2, "_STRETCH": 20, "_ALONE": 20, "_SEEN_FIRST": 10}
    for name, size in sizes.items():
        monkeypatch.setattr(parallel_listing, name, size)
    server.page_size = 10
    data = {f"A={number % 7}/part-{number:03d}": b"x" for number in range(150)}
    store = commit(server, "c0", {**data, COMMIT: b""})
    survey = surveys.survey_lakefs(store)
    assert names(survey) == sorted(data)
    assert survey.addresses is not None
    assert len(survey.addresses) == 150
    assert (list(survey.log), survey.objects) == ([COMMIT], 151)
    assert [query["prefix"] for query in server.queries if "delimiter" in query] == ["t/"]
    assert len(server.asked) <= 16 + 8


def test_objects_whose_bytes_are_gone_are_left_out(server: OurLakeFS) -> None:
    data = {f"part-{number:02d}": b"x" for number in range(60)}
    store = commit(server, "c0", {**data, COMMIT: b""})
    survey = surveys.survey_lakefs(store)
    assert surveys.without_lost(survey, open_store) is survey
    server.commits["c0"]["t/part-07"].unlink()
    left = surveys.without_lost(survey, open_store)
    assert names(left) == [name for name in sorted(data) if name != "part-07"]
    assert left.addresses is not None
    assert len(left.addresses) == 59


def test_few_objects_are_looked_for_one_by_one(server: OurLakeFS) -> None:
    store = commit(server, "c0", {"a b": b"x", "c": b"x", COMMIT: b""})
    server.commits["c0"]["t/c"].unlink()
    survey = surveys.survey_lakefs(store)
    assert names(surveys.without_lost(survey, open_store)) == ["a b"]


def test_a_bucket_that_is_not_there_is_no_lost_object(server: OurLakeFS) -> None:
    class Elsewhere(DictStore):
        def list(self, *_: object, **__: object) -> Iterator[object]:  # type: ignore[override]
            raise ObjectNotFound("no such bucket", bucket_missing=True)

    data = {f"part-{number:02d}": b"x" for number in range(60)}
    survey = surveys.survey_lakefs(commit(server, "c0", data))
    with pytest.raises(StorageUnavailable, match="nothing can be read"):
        surveys.without_lost(survey, lambda _: Elsewhere())


def test_a_plain_table_is_listed_log_first() -> None:
    store = DictStore({"A=1/x": b"x", COMMIT: b"{}", "z": b"z"}, uri="memory://t")
    seen: list[str] = []

    class Written(DictStore):
        def list(self, prefix: str, **options: str | None):  # type: ignore[no-untyped-def]
            seen.append(prefix)
            return store.list(prefix, **options)

    survey = surveys.of_store(Written())
    assert seen == ["_delta_log/", ""]
    assert names(survey) == ["A=1/x", "z"]
    assert (list(survey.log), survey.objects) == ([COMMIT], 3)


# --- What has changed since -------------------------------------------------------

DATA = {f"part-{number:04d}": b"x" for number in range(2500)}
BEFORE = {**DATA, COMMIT: adds(*DATA)}


def earlier(**changes: object) -> Manifest:
    entries = {COMMIT: ExportedFile("file:///x", 5)}
    manifest = Manifest("s", "c0", 0, True, "id", len(BEFORE), entries)
    return replace(manifest, **changes)  # type: ignore[arg-type]


def test_one_more_commit_costs_one_comparison_and_what_it_names(server: OurLakeFS) -> None:
    commit(server, "c0", BEFORE)
    store = commit(server, "c1", {**BEFORE, "new": b"n", SECOND: adds("new")})
    server.asked.clear()
    looked = reuse.look_at_earlier(store, earlier(), open_store)
    assert looked.reusable == {COMMIT}
    assert names(looked.survey) == ["new"]
    assert set(looked.survey.log) == {COMMIT, SECOND}
    assert (looked.survey.objects, looked.survey.whole) == (len(BEFORE) + 2, False)
    assert len(server.asked) == 3


CHECKPOINT = "_delta_log/00000000000000000001.checkpoint.parquet"


@pytest.mark.parametrize(
    ("changed", "reusable"),
    [
        ({"new": b"n", SECOND: adds("new"), "part-0007": None}, False),
        ({"new": b"n", SECOND: adds("new"), "part-0007": b"other"}, False),
        ({"gone": b"back again", SECOND: adds("gone")}, False),
        ({COMMIT: adds("part-0001"), SECOND: adds("part-0002")}, False),
        ({f"many-{number}": b"" for number in range(1000)}, False),
        ({SECOND: adds("part-0001"), CHECKPOINT: b"PAR1"}, True),
        ({SECOND: adds("s3://repo/main/t/part-0001")}, True),
        ({SECOND: adds(*[f"part-{number:04d}" for number in range(9)])}, True),
    ],
)
def test_where_that_may_not_be_enough_all_is_listed(
    server: OurLakeFS, changed: dict[str, bytes | None], reusable: bool
) -> None:
    commit(server, "c0", BEFORE)
    merged: dict[str, bytes | None] = {**BEFORE, **changed}
    after = {name: data for name, data in merged.items() if data is not None}
    looked = reuse.look_at_earlier(
        commit(server, "c1", after), earlier(absent=("gone",)), open_store
    )
    assert looked.survey.whole
    assert len(names(looked.survey)) == len([n for n in after if not n.startswith("_delta_log")])
    assert bool(looked.reusable) is reusable


def test_with_too_much_that_is_absent_nothing_is_taken_over(server: OurLakeFS) -> None:
    commit(server, "c0", BEFORE)
    store = commit(server, "c1", {**BEFORE, "new": b"n", SECOND: adds("new")})
    server.asked.clear()
    looked = reuse.look_at_earlier(store, earlier(absent=None), open_store)
    assert (looked.reusable, looked.survey.whole) == (frozenset(), True)
    assert len(server.asked) == 3
