"""What a scan finds, what it reads for that, and what it doesn't conclude."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lakeferry.catalogs.places import Places
from lakeferry.catalogs.sql import SqlCatalog
from lakeferry.errors import InvalidInput, StorageUnavailable, TableNotFound
from lakeferry.fleet.inventory import FoundTable, TableSurvey
from lakeferry.fleet.scan import FleetScan, KnownTable, Scanner, ScanTotals
from lakeferry.storage import Store, StoreConfig, normalise
from tests.support.history import Append, History
from tests.support.stores import DictStore, Fault, FaultyStore, StoreCall
from tests.unit.cli.program import make

TABLES = ("eu/orders", "eu/old/orders", "us", "with space/ä")


@dataclass
class Notes:
    """What a scan hands on."""

    recorded: dict[str, tuple[FoundTable, TableSurvey]] = field(default_factory=dict)
    confirmed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def record(self, found: Sequence[tuple[FoundTable, TableSurvey]]) -> None:
        self.recorded |= {each.uri: (each, survey) for each, survey in found}

    @property
    def known(self) -> dict[str, KnownTable]:
        return {
            uri: KnownTable(found.root, survey.mark, bool(survey.problems))
            for uri, (found, survey) in self.recorded.items()
        }


class OnePlace(Places):
    """Places that are all in one store."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def open(self, uri: str) -> Store:
        return self._store


def scan(
    roots: Sequence[str], known: Notes | None = None, places: Places | None = None
) -> tuple[Notes, ScanTotals]:
    notes = Notes()
    to = FleetScan(notes.record, notes.confirmed.extend, notes.lost.extend)
    before = {} if known is None else known.known
    scanner = Scanner(places or Places(), before, warn=notes.warnings.append)
    return notes, scanner.scan(roots, to)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in TABLES:
        make(History().then(Append(2)), tmp_path / "lake" / name)
    (tmp_path / "lake" / "empty" / "folder").mkdir(parents=True)
    (tmp_path / "lake" / "note.txt").write_text("x")
    return tmp_path / "lake"


def test_tables_are_found_below_a_folder_and_not_below_tables(lake: Path) -> None:
    make(History(), lake / "us" / "inside")
    make(History(), lake / "_temporary" / "t")
    make(History(), lake / ".hidden" / "t")
    notes, totals = scan([str(lake)])
    assert set(notes.recorded) == {normalise(str(lake / name)) for name in TABLES}
    assert set(totals.found) == set(notes.recorded)
    assert (totals.surveyed, totals.gone, notes.warnings) == (4, (), [])
    survey = notes.recorded[normalise(str(lake / "us"))][1]
    assert survey.mark is not None
    assert (survey.mark.version, survey.num_files) == (1, 2)


def test_a_prefix_may_be_a_table_itself(lake: Path) -> None:
    notes, _ = scan([str(lake / "us")])
    ((uri, (found, _)),) = notes.recorded.items()
    assert uri == found.root == normalise(str(lake / "us"))


def test_prefixes_that_overlap_find_a_table_once(lake: Path) -> None:
    notes, totals = scan([str(lake / "eu"), str(lake), str(lake / "eu" / "orders")])
    assert len(totals.found) == 4
    roots = {uri: found.root for uri, (found, _) in notes.recorded.items()}
    eu, whole = normalise(str(lake / "eu")), normalise(str(lake))
    assert roots == {uri: eu if "/eu/" in uri else whole for uri in roots}


def test_links_to_folders_are_not_entered(lake: Path) -> None:
    os.symlink(lake, lake / "loop")
    os.symlink(lake / "us", lake / "other")
    assert len(scan([str(lake)])[1].found) == 4


def test_where_a_store_lists_no_folders_they_are_found_by_their_names() -> None:
    store = DictStore(uri="memory://lake")
    for name in ("a", "a!", "a/", "a0", "b/c"):
        for path, data in History().then(Append(1)).objects().items():
            store.put(f"{name.rstrip('/')}/{path}", data)
    store.put("file", b"")
    notes, _ = scan(["memory://lake"], places=OnePlace(store))
    assert sorted(notes.recorded) == [f"memory://lake/{name}" for name in ("a", "a!", "a0", "b/c")]


def test_what_is_unchanged_costs_one_listing_and_no_reading(lake: Path) -> None:
    first, _ = scan([str(lake)])
    make(History().then(Append(2), Append(1)), lake / "eu" / "new")
    log = lake / "us" / "_delta_log"
    (log / f"{2:020d}.json").write_bytes((log / f"{1:020d}.json").read_bytes())
    places = CountedPlaces()
    second, totals = scan([str(lake)], first, places)
    changed = {normalise(str(lake / name)) for name in ("us", "eu/new")}
    assert set(second.recorded) == changed
    assert len(second.confirmed) == 3
    assert totals.gone == ()
    read = [path for verb, path in places.asked if verb.startswith("GET")]
    assert read
    assert all("us/" in path or "new/" in path for path in read)
    unchanged = [path for verb, path in places.asked if "eu/orders/" in path]
    assert len(unchanged) == 1


class CountedPlaces(Places):
    """Places whose calls are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def open(self, uri: str) -> Store:
        return FaultyStore(super().open(uri), self._notice)

    def _notice(self, call: StoreCall) -> None:
        self.asked += [(call.verb, path) for path in call.paths]


def test_a_table_that_was_replaced_under_the_same_version_is_read_again(lake: Path) -> None:
    first, _ = scan([str(lake)])
    log = lake / "us" / "_delta_log" / f"{1:020d}.json"
    os.utime(log, ns=(1, 1))
    second, _ = scan([str(lake)], first)
    assert list(second.recorded) == [normalise(str(lake / "us"))]


def test_a_table_with_problems_is_read_again(lake: Path) -> None:
    log = lake / "us" / "_delta_log" / f"{1:020d}.json"
    whole = log.read_bytes()
    log.write_bytes(b"{")
    first, _ = scan([str(lake)])
    uri = normalise(str(lake / "us"))
    assert [each.code for each in first.recorded[uri][1].problems] == ["corrupt_log"]
    log.write_bytes(whole)
    second, _ = scan([str(lake)], first)
    assert second.recorded[uri][1].problems == ()


def test_a_table_that_is_deleted_is_gone_and_others_below_it_are_found(lake: Path) -> None:
    first, _ = scan([str(lake), str(lake / "us")])
    for file in (lake / "us" / "_delta_log").iterdir():
        file.unlink()
    make(History(), lake / "us" / "inside")
    second, totals = scan([str(lake)], first)
    assert totals.gone == (normalise(str(lake / "us")),)
    assert second.lost == [normalise(str(lake / "us"))]
    assert list(second.recorded) == [normalise(str(lake / "us" / "inside"))]


def test_tables_of_other_prefixes_are_not_gone(lake: Path) -> None:
    first, _ = scan([str(lake / "eu")])
    _, totals = scan([str(lake / "us")], first)
    assert totals.gone == ()


def test_what_could_not_be_listed_is_not_gone() -> None:
    store = DictStore(uri="memory://lake")
    for name in ("a/t", "b/t"):
        for path, data in History().objects().items():
            store.put(f"{name}/{path}", data)
    first, _ = scan(["memory://lake"], places=OnePlace(store))
    assert len(first.recorded) == 2

    def fail(call: StoreCall) -> Fault | None:
        return Fault.FAIL if call.paths[0].startswith("b/_delta_log/") else None

    second, totals = scan(["memory://lake"], first, OnePlace(FaultyStore(store, fail)))
    assert totals.gone == ()
    assert (second.lost, second.confirmed) == ([], ["memory://lake/a/t"])
    assert "memory://lake/b can't be searched" in second.warnings[0]


def test_a_store_that_fails_at_once_is_a_warning_too() -> None:
    store = FaultyStore(DictStore({"a": b""}, uri="memory://lake"), lambda _: Fault.FAIL)
    with pytest.raises(StorageUnavailable):
        scan(["memory://lake"], places=OnePlace(store))


def test_nothing_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound) as refused:
        scan([str(tmp_path / "nowhere")])
    assert refused.value.remedy
    (tmp_path / "empty").mkdir()
    assert scan([str(tmp_path / "empty")])[1].found == ()


def test_the_tables_of_a_catalog_are_found_by_their_names(lake: Path, tmp_path: Path) -> None:
    catalog = SqlCatalog(f"sqlite:///{tmp_path}/catalog.sqlite")
    catalog.register("sales.eu.orders", str(lake / "eu" / "orders"))
    catalog.register("sales.eu.nowhere", str(lake / "nowhere"))
    catalog.register("sales_old.eu.us", str(lake / "us"))
    private = "sales.eu._lakeferry_probe_1"
    catalog.register(private, str(lake / "eu" / "old" / "orders"))
    notes = Notes()
    to = FleetScan(notes.record, notes.confirmed.extend, notes.lost.extend)

    def names(root: str) -> list[str]:
        notes.recorded.clear()
        Scanner(Places(), {}, catalog=lambda _: catalog).scan([root], to)
        return sorted(found.name or "" for found, _ in notes.recorded.values())

    assert (
        names("sql:sales") == names("sql:sales.") == ["sql:sales.eu.nowhere", "sql:sales.eu.orders"]
    )
    (problem,) = notes.recorded[normalise(str(lake / "nowhere"))][1].problems
    assert problem.code == "table_not_found"
    assert problem.remedy is not None or problem.message
    assert names("sql:sales.eu.orders") == ["sql:sales.eu.orders"]
    assert len(names("sql:")) == 3
    assert names(f"sql:{private}") == [f"sql:{private}"]
    with pytest.raises(InvalidInput, match="catalog"):
        names("sql:a/b")


def test_the_store_of_a_table_is_that_of_its_prefix_with_its_own_place(lake: Path) -> None:
    opened: list[str] = []

    class Noted(Places):
        def open(self, uri: str) -> Store:
            opened.append(uri)
            return super().open(uri)

    notes, _ = scan([str(lake)], places=Noted())
    assert opened == [normalise(str(lake))]
    assert StoreConfig(normalise(str(lake / "with space/ä"))).uri in notes.recorded
