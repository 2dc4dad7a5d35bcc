"""Tables are found below a prefix, and none of them is entered."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.errors import LakeferryError, LimitExceeded, StorageUnavailable
from lakeferry.storage import Store, open_store
from lakeferry.table import table_search
from lakeferry.table.table_search import find_and_read
from tests.support.stores import DictStore, Fault, FaultyStore, on

LOG = "_delta_log/00000000000000000000.json"
TABLES = ("a", "b/c", "b/d/e")
OBJECTS = {
    **{f"{table}/{LOG}": b"" for table in TABLES},
    **{f"a/day={day}/part-{day}": b"" for day in range(30)},
    f"a/inner/{LOG}": b"",
    f"_trash/x/{LOG}": b"",
    f".lakeferry/x/{LOG}": b"",
    "b/readme": b"",
    "z": b"",
}


def found(store: Store, at_once: int = 4) -> list[str]:
    def refuse(error: LakeferryError) -> None:
        raise error

    return sorted(folder for folder, _ in find_and_read(store, lambda _: None, refuse, at_once))


def test_each_table_is_found_once() -> None:
    for at_once in (1, 4):
        assert found(DictStore(OBJECTS), at_once) == list(TABLES)
    assert found(DictStore({LOG: b"", f"below/{LOG}": b""})) == [""]
    assert found(DictStore()) == []


def test_no_table_is_entered() -> None:
    store = FaultyStore(DictStore(OBJECTS))
    found(store)
    listed = {path for call in store.history if call.verb == "LIST" for path in call.paths}
    assert not [path for path in listed if path.startswith("a/") and path != "a/_delta_log/"]
    more = {f"a/day={day}/part-{day}": b"" for day in range(300)}
    larger = FaultyStore(DictStore({**OBJECTS, **more}))
    found(larger)
    assert len(larger.history) == len(store.history)


def test_what_is_read_is_returned_and_what_fails_is_raised() -> None:
    store = DictStore(OBJECTS)
    read = dict(find_and_read(store, str.upper, str, 4))
    assert read == {"a": "A", "b/c": "B/C", "b/d/e": "B/D/E"}
    faulty = FaultyStore(store, on("LIST", Fault.FAIL, containing="b/d/e"))
    told = dict(find_and_read(faulty, lambda _: "", lambda error: error.code, 4))
    assert told == {"a": "", "b/c": "", "b/d/e": "storage_unavailable"}
    with pytest.raises(StorageUnavailable):
        found(FaultyStore(store, on("LIST", Fault.FAIL)))


def test_folders_have_a_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_search, "DEEPEST_TABLE", 2)
    with pytest.raises(LimitExceeded):
        found(DictStore({"a/b/c/d": b""}))
    assert found(DictStore({f"a/b/{LOG}": b""})) == ["a/b"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put(f"lake/orders/{LOG}", b"{}")
    (tmp_path / "lake" / "again").symlink_to(tmp_path / "lake")
    assert found(store) == ["lake/orders"]
