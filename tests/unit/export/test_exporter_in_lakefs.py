"""Exports of a table in lakeFS: files beside the table's folder, and places that are damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import CorruptLog, HashMismatch, LakeferryError, MissingFile
from lakeferry.export import manifest
from lakeferry.export.exporter import Export, ExportContext, Exported
from lakeferry.log.rewrite import Listed
from lakeferry.storage import Store, StoreConfig, open_config, open_store
from lakeferry.storage.lakefs import LakeFSStore
from lakeferry.storage.local_store import LocalStore
from lakeferry.table import DeltaLog
from tests.support.corrupting import flipped
from tests.support.history import Append, Checkpoint, History, Lines
from tests.support.lakefs_server import OurLakeFS
from tests.support.stores import DictStore, Fault, FaultyStore, Rule, StoreCall, on
from tests.unit.export.memory_world import LONG, PLAIN, checkpoint, commit, live

FOLDER = "a b/t"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OurLakeFS]:
    folder = tmp_path / "repo" / "data" / "blocks"
    folder.mkdir(parents=True)
    with OurLakeFS(folder) as running:
        yield running


class LakeWorld:
    """Commits of a small lakeFS, and exports of them to its own place."""

    def __init__(self, server: OurLakeFS) -> None:
        self.server = server
        self.warned: list[str] = []
        self.rule: Rule = lambda _: None
        self.history: list[StoreCall] = []

    def commit(self, name: str, history: History, others: dict[str, bytes] | None = None) -> str:
        objects = history.objects(with_data=True)
        below = {f"{FOLDER}/{path}": data for path, data in objects.items()}
        return self.server.commit(name, below | (others or {}))

    def open(self, config: StoreConfig) -> Store:
        if config.uri.startswith("lakefs:"):
            return open_config(config)
        found = FaultyStore(open_config(config), lambda call: self.rule(call))
        found.history = self.history
        return found

    def export(self, name: str, to: str | None = None, *, compares: bool = False) -> Exported:
        def open_uri(uri: str) -> Store:
            return self.open(StoreConfig(uri, self.server.options if "lakefs:" in uri else {}))

        engine = LocalEngine(self.open, parallel=1)
        work = ExportContext(
            lambda *_: engine, open_uri, warn=self.warned.append, compares=compares
        )
        store = open_uri(f"lakefs://repo/{name}/a%20b/t")
        assert isinstance(store, LakeFSStore)
        return Export(work, store, to=to, ref="main").export()

    def place(self, name: str) -> Path:
        return self.server.folder.parent.parent / "_lakefs/exported/main" / name / "t"

    def address(self, name: str, path: str) -> str:
        return f"file:{self.server.commits[name][path]}"


@pytest.fixture
def lake(server: OurLakeFS) -> LakeWorld:
    return LakeWorld(server)


def add(*names: str, kind: str = "add") -> Lines:
    fields = {"partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    if kind == "remove":
        fields = {"deletionTimestamp": 0, "dataChange": True}
    return Lines(tuple(json.dumps({kind: {"path": name, **fields}}) for name in names))


# --- Files beside the table's folder ------------------------------------------------

SPELLINGS = ["../s%20t/x.parquet", "./../s%20t/x.parquet", "p/../../s%20t/x.parquet"]
SPELLINGS += ["../../a%20b/s%20t/x.parquet", "../../../c1/a%20b/s%20t/x.parquet"]


@pytest.mark.parametrize("path", SPELLINGS)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_file_beside_the_table_has_its_own_address(
    lake: LakeWorld, path: str, checkpointed: bool
) -> None:
    made = DictStore(PLAIN.then(add(path)).objects())
    if checkpointed:
        DeltaLog(made).checkpoint()
    log = {f"{FOLDER}/{name}": data for name, data in made.objects.items()}
    lake.commit("c1", PLAIN, {**log, "a b/s t/x.parquet": b"x"})
    there = open_store(lake.export("c1").location)
    assert lake.address("c1", "a b/s t/x.parquet") in live(there)
    assert there.exists(checkpoint(4)) is checkpointed


def test_a_file_beside_the_table_that_is_added_later_is_found(lake: LakeWorld) -> None:
    lake.commit("c1", PLAIN, {"a b/s/x.parquet": b"x"})
    lake.export("c1")
    history = PLAIN.then(add("../s/x.parquet"))
    lake.commit("c2", history, {"a b/s/x.parquet": b"x"})
    there = open_store(lake.export("c2").location)
    wanted = lake.address("c2", "a b/s/x.parquet")
    assert wanted in live(there)
    lake.commit("c3", history.then(add("../s/x.parquet", kind="remove")))
    there = open_store(lake.export("c3").location)
    assert len(live(there)) == len(live(open_store(lake.export("c1").location)))


def test_a_file_of_the_table_may_be_spelled_as_one_beside_it(lake: LakeWorld) -> None:
    lake.commit("c1", PLAIN.then(add("../t/x.parquet")), {f"{FOLDER}/x.parquet": b"x"})
    assert lake.address("c1", f"{FOLDER}/x.parquet") in live(open_store(lake.export("c1").location))


def test_a_file_beside_the_table_that_is_gone_stops_the_export(lake: LakeWorld) -> None:
    lake.commit("c1", PLAIN.then(add("../s/gone.parquet")))
    with pytest.raises(MissingFile, match=r"\.\./s/gone|/s/gone"):
        lake.export("c1")


@pytest.mark.parametrize("up", ["../../../", "../../../main/", "../../../../repo/c1/"])
def test_a_path_that_leads_out_of_the_commit_is_refused(lake: LakeWorld, up: str) -> None:
    history = PLAIN.then(add(f"{up}{FOLDER.replace(' ', '%20')}/x.parquet"))
    lake.commit("c1", history, {f"{FOLDER}/x.parquet": b"x"})
    with pytest.raises(CorruptLog, match="leads out of lakefs://repo/c1/"):
        lake.export("c1")
    with pytest.raises(LakeferryError):
        live(open_store(str(lake.place("c1"))))


def test_a_path_that_leads_out_of_a_table_at_the_root_is_refused() -> None:
    for root in ("lakefs://repo/c1", "s3://bucket"):
        listed = Listed.below(root, pa.array([], pa.large_string()))
        with pytest.raises(CorruptLog, match="leads out of"):
            listed.resolve(pa.array(["../main/t/x"]))


# --- The place of its exports -------------------------------------------------------

LATER = PLAIN.then(Checkpoint(), Append(1))
HINT = "_delta_log/_last_checkpoint"
LATE = {
    "the hint": [("PUT", HINT)],
    "tidying": [("LIST", "_delta_log/_lakeferry/"), ("DELETE", "_lakeferry/")],
    "the pointer": [("PUT", "main/.lakeferry/t.json")],
}


@pytest.mark.parametrize("what", LATE)
def test_what_fails_after_an_export_can_be_read_is_done_by_the_next_one(
    lake: LakeWorld, what: str
) -> None:
    lake.commit("c1", LATER)
    lake.commit("c2", LATER.then(Append(1)))
    for verb, name in LATE[what]:
        lake.rule = on(verb, Fault.FAIL, containing=name)
        assert lake.export("c1").changed
        assert len(lake.warned) == 1
        found = manifest.read_manifest(open_store(str(lake.place("c1"))))
        assert found is not None
        assert found.complete
        lake.rule = lambda _: None
        lake.export("c1")
        there = open_store(str(lake.place("c1")))
        assert there.exists(HINT)
        found = manifest.read_manifest(there)
        assert found is not None
        assert found.leftover is None
        done = lake.export("c2")
        assert done.incremental_from == 4
        assert open_store(done.location).get(HINT) == there.get(HINT)
        assert len(lake.warned) == 1
        lake.warned.clear()
        shutil.rmtree(lake.place("c1").parent.parent)


def test_an_export_goes_on_from_one_whose_hint_is_missing(lake: LakeWorld) -> None:
    lake.commit("c1", LATER)
    lake.commit("c2", LATER.then(Append(1)))
    lake.rule = on("PUT", Fault.FAIL, containing=HINT)
    lake.export("c1")
    assert not open_store(str(lake.place("c1"))).exists(HINT)
    done = lake.export("c2")
    assert (done.incremental_from, open_store(done.location).exists(HINT)) == (4, True)


@pytest.mark.parametrize("spoilt", [True, False])
def test_what_is_taken_over_is_compared_with_the_earlier_export(
    lake: LakeWorld, spoilt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.commit("c1", LONG)
    lake.export("c1")
    lake.commit("c2", LONG.then(Append(1)))
    put = LocalStore.put

    def wrong(store: LocalStore, path: str, data: bytes) -> None:
        taken = f"{store.uri}/{path}".endswith(f"/c2/t/{commit(5)}")
        put(store, path, flipped(data) if taken else data)

    with monkeypatch.context() as patch:
        if spoilt:
            patch.setattr(LocalStore, "put", wrong)
            with pytest.raises(HashMismatch) as refused:
                lake.export("c2", compares=True)
            assert str(refused.value.fields["uri"]).endswith(f"/c2/t/{commit(5)}")
            assert "run the same command again" in (refused.value.remedy or "")
    done = lake.export("c2", compares=True)
    assert done.files_compared is not None
    assert done.files_compared > done.files_written
    again = lake.export("c2", f"file://{lake.place('elsewhere')}")
    for found in open_store(again.location).list("_delta_log/0"):
        body = open_store(again.location).get(found.path)
        assert open_store(done.location).get(found.path) == body


def test_an_export_without_its_last_manifest_is_written_anew(lake: LakeWorld) -> None:
    lake.commit("c1", LATER)
    whole = LakeWorld(lake.server)

    def last_swap(call: StoreCall) -> Fault | None:
        swaps = sum(each.verb == "SWAP" for each in lake.history)
        return Fault.FAIL if call.verb == "SWAP" and swaps == 2 else None

    lake.rule = last_swap
    done = lake.export("c1")
    assert done.changed
    assert "isn't complete" in lake.warned[0]
    wanted = live(open_store(done.location))
    again = whole.export("c1")
    assert (again.changed, again.files_written) == (True, done.files_written)
    assert live(open_store(again.location)) == wanted
    assert whole.export("c1").changed is False


@pytest.mark.parametrize("lost", [checkpoint(3), commit(3), commit(4)])
@pytest.mark.parametrize("then", ["c1", "c2"])
@pytest.mark.parametrize("chosen", [False, True])
def test_a_damaged_export_is_mended(lake: LakeWorld, chosen: bool, then: str, lost: str) -> None:
    lake.commit("c1", LATER)
    lake.commit("c2", LATER.then(Append(1)))
    wanted = live(open_store(lake.export(then).location))
    shutil.rmtree(lake.place(then).parent.parent)
    to = (lake.server.folder.parent.parent / "chosen").as_uri() if chosen else None
    place = Path(lake.export("c1", to).location.removeprefix("file://"))
    (place / lost).unlink()
    lake.history.clear()
    done = lake.export(then, to)
    assert (done.changed, live(open_store(done.location))) == (True, wanted)
    copies = [call.paths for call in lake.history if call.verb == "COPY"]
    assert not [each for each in copies if each[0] == each[1]]
