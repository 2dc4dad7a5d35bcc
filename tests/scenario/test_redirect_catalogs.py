"""Moves into catalogs: they are asked every time, and one that is down is never the source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakeferry
from lakeferry.api.redirect_search import list_redirects
from lakeferry.api.redirects import Redirects
from lakeferry.catalogs import Catalog, name_changes, open_catalog
from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    Forbidden,
    InvalidInput,
    LakeferryError,
    NotEqual,
    RedirectIllegalTransition,
    RedirectTargetMissing,
    RedirectTargetNotEmpty,
    RedirectTargetReplaced,
    Unauthorized,
    UnsupportedFeature,
)
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.support import engines
from tests.support.lake import Lake, on_disk, on_s3
from tests.support.meanwhile import commits, meanwhile
from tests.support.servers import S3Bucket, free_port
from tests.support.stores import Fault, Stopped
from tests.support.unity_server import UnityServer


@dataclass(frozen=True)
class Subject:
    """A catalog that every part of the program finds by the environment, and how it goes down."""

    kind: str
    schema: str
    go_down: Callable[[], object]
    come_back: Callable[[], object] | None = None

    @property
    def name(self) -> str:
        """A name that nobody has."""
        return f"{self.schema}.orders"

    @property
    def table(self) -> str:
        """The same as the command line takes it."""
        return f"{self.kind}:{self.name}"

    @property
    def catalog(self) -> Catalog:
        return open_catalog(self.kind)

    def location(self) -> str | None:
        """Where the name leads."""
        found = self.catalog.find(self.name)
        return None if found is None else found.location


POSTGRESQL = pytest.param(
    "postgresql", marks=[pytest.mark.postgresql, pytest.mark.xdist_group("postgresql")]
)


@pytest.fixture(params=["sqlite", POSTGRESQL, "unity"])
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Subject:
    return subject_of(request.param, request, tmp_path, monkeypatch)


@pytest.fixture(params=["sqlite", POSTGRESQL])
def sql(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    return subject_of(request.param, request, tmp_path, monkeypatch)


def subject_of(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Subject:
    if kind == "unity":
        server: UnityServer = request.getfixturevalue("unity")
        server.name_in(monkeypatch)
        return Subject("unity", server.schema, lambda: server.ours.go_down())
    if kind == "sqlite":
        url, down = f"sqlite:///{tmp_path}/catalog.sqlite", f"sqlite:///{tmp_path}"
    else:
        url = request.getfixturevalue("postgresql_url")
        down = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    monkeypatch.setenv("LAKEFERRY_SQL_URL", url)
    return Subject(
        "sql",
        "cat.schema",
        lambda: monkeypatch.setenv("LAKEFERRY_SQL_URL", down),
        lambda: monkeypatch.setenv("LAKEFERRY_SQL_URL", url),
    )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return on_disk(tmp_path)


def create(lake: Lake, name: str = "old", rows: int = 4) -> str:
    for row in range(rows):
        append(lake, lake.uri(name), row)
    return lake.uri(name)


def append(lake: Lake, place: str, row: int) -> None:
    rows = pa.table({"id": pa.array([row], pa.int64())})
    write_deltalake(place, rows, mode="append", storage_options=dict(lake.variables) or None)


def ids(lake: Lake, place: str) -> list[int]:
    return sorted(row for (row,) in engines.by_delta_rs(place, options=lake.variables))


def moves_of(lake: Lake) -> Redirects:
    return Redirects(dict(lake.variables), engine="local")


def entry_of(lake: Lake, table: str) -> dict[str, object]:
    """Return the entry that a table carries, as it is written."""
    metadata = DeltaLog(open_store(table, lake.variables)).state().metadata
    entry: dict[str, object] = json.loads(metadata.configuration["delta.redirectReaderWriter"])
    return entry


# --- There and back ----------------------------------------------------------------


def test_a_table_moves_into_a_catalog_and_back(subject: Subject, lake: Lake) -> None:
    source, target = create(lake), lake.uri("new")
    moves = moves_of(lake)
    assert moves.enable(source, subject.table, location=target).state is RedirectState.READY
    found = subject.catalog.get(subject.name)
    assert found.location == target
    spec = entry_of(lake, source)["Spec"]
    if subject.kind == "unity":
        ids_of_it = {"MetastoreId": found.metastore_id, "TableId": found.table_id}
        assert spec == {"Table": ids_of_it, "Source": source}
        assert entry_of(lake, source)["Type"] == "Unity Catalog"
    else:
        assert spec == {"Table": subject.name, "Source": source}
        assert entry_of(lake, source)["Type"] == "SQL Catalog"

    assert lakeferry.resolve(source, write=True) == target
    assert lakeferry.resolve(subject.table) == target
    append(lake, lakeferry.resolve(source, write=True), 4)
    assert lakeferry.open(source).to_table().num_rows == 5
    assert lakeferry.Table(subject.table).snapshot().num_files == 5
    again = moves.enable(source, subject.table, location=target)
    assert (again.state, again.changed) == (RedirectState.READY, False)

    assert moves.status(source).name == subject.table
    assert lakeferry.Table(source).resolve().name == subject.table
    assert moves.disable(source).target == subject.table
    assert subject.location() is None
    assert ids(lake, source) == [0, 1, 2, 3, 4]
    assert lakeferry.resolve(source) == source


def test_a_table_in_a_bucket_moves_into_a_catalog_and_back(
    sql: Subject, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    lake = on_s3(tmp_path, s3_bucket)
    source, target = create(lake), lake.uri("new")
    options = dict(lake.variables)
    moves_of(lake).enable(source, sql.table, location=target)
    assert lakeferry.resolve(source, storage_options=options) == target
    append(lake, lakeferry.resolve(source, storage_options=options, write=True), 4)
    moves_of(lake).disable(source)
    assert sql.location() is None
    assert ids(lake, source) == [0, 1, 2, 3, 4]


def test_the_redirects_of_a_catalogs_tables_are_listed(subject: Subject, lake: Lake) -> None:
    table = create(lake)
    name_changes.register(subject.table, table)
    where = f"{subject.kind}:{subject.schema}."
    assert list_redirects(where).redirects == ()
    moves_of(lake).freeze(table)
    found = list_redirects(where, parallel=2)
    assert [(each.source, each.mode, each.frozen) for each in found.redirects] == [
        (table, "writer-only", True)
    ]
    assert (found.tables, found.unreadable) == (1, ())
    shutil.rmtree(lake.folder / "old")
    ((name, error),) = list_redirects(where).unreadable
    assert (name, error.code) == (table, "table_not_found")


def test_a_catalog_that_moves_the_table_on_is_followed(sql: Subject, lake: Lake) -> None:
    source, target, beyond = create(lake), lake.uri("new"), lake.uri("beyond")
    moves = moves_of(lake)
    moves.enable(source, sql.table, location=target)
    assert lakeferry.resolve(source) == target
    shutil.move(lake.folder / "new", lake.folder / "beyond")
    sql.catalog.move(sql.name, beyond)
    assert lakeferry.resolve(source, write=True) == beyond
    append(lake, lakeferry.resolve(source, write=True), 4)
    assert moves.status(source).target == beyond

    moves.disable(source)
    assert ids(lake, source) == [0, 1, 2, 3, 4]
    assert sql.location() is None


@pytest.mark.parametrize("later", [False, True])
def test_the_place_that_the_catalog_moved_the_table_to_is_the_one_that_is_removed(
    later: bool, sql: Subject, lake: Lake
) -> None:
    home, made, beyond = create(lake), lake.uri("new"), lake.uri("beyond")
    moves = moves_of(lake)
    moves.enable(home, sql.table, location=made)
    shutil.copytree(lake.folder / "new", lake.folder / "beyond")
    sql.catalog.move(sql.name, beyond)
    append(lake, beyond, 7)
    moves.disable(home, remove_target=not later)
    if later:
        assert moves.disable(home, remove_target=True).target == sql.table
    assert ids(lake, home) == [0, 1, 2, 3, 7]
    assert files_of(lake, "beyond") == []
    assert files_of(lake, "new") != []


def test_a_dropped_table_whose_name_cannot_be_asked_for_is_not_said_to_be_gone(
    uc: UnityServer, lake: Lake
) -> None:
    """Who is told that it is gone may give up what was written to it."""
    source = create(lake)
    moves_of(lake).enable(source, f"unity:{uc.schema}.t", location=lake.uri("new"))
    uc.ours.drop(f"{uc.schema}.t")
    # A server without managed tables answers the first request so.
    uc.ours.next_replies.extend([(500, {"error_code": "INTERNAL", "message": "no"})] * 2)
    with pytest.raises(CatalogUnavailable):
        lakeferry.resolve(source)
    with pytest.raises(RedirectTargetMissing):
        lakeferry.resolve(source)


def test_a_name_that_is_gone_leads_nowhere(subject: Subject, lake: Lake) -> None:
    source = create(lake)
    moves_of(lake).enable(source, subject.table, location=lake.uri("new"))
    subject.catalog.unregister(subject.name)
    for ask in (lakeferry.resolve, lakeferry.open, lambda table: lakeferry.Table(table).snapshot()):
        with pytest.raises(RedirectTargetMissing):
            ask(source)


def test_a_table_that_was_dropped_is_followed_again_when_it_is_registered_again(
    subject: Subject, lake: Lake
) -> None:
    """Unity Catalog gives it another id, and its history says that it is the table that moved."""
    source, target = create(lake), lake.uri("new")
    moves = moves_of(lake)
    moves.enable(source, subject.table, location=target)
    append(lake, target, 4)
    subject.catalog.unregister(subject.name)
    with pytest.raises(RedirectTargetMissing) as refused:
        lakeferry.resolve(source)
    assert f"lakeferry catalog register {subject.table}" in (refused.value.remedy or "")
    metadata = lakeferry.Table(target).snapshot().metadata

    other = create(lake, "other")
    subject.catalog.register(subject.name, other, metadata)
    for act in (lakeferry.resolve, lakeferry.open, moves.disable):
        with pytest.raises(RedirectTargetReplaced):
            act(source)
    subject.catalog.unregister(subject.name)

    subject.catalog.register(subject.name, target, metadata)
    assert lakeferry.resolve(source, write=True) == target
    assert lakeferry.open(source).count_rows() == 5
    status = moves.status(source)
    assert (status.target, status.name, status.warnings) == (target, subject.table, ())
    assert lakeferry.Table(source).inspect().warnings == ()
    moves.disable(source)
    assert subject.location() is None
    assert ids(lake, source) == [0, 1, 2, 3, 4]


# --- Refusals ----------------------------------------------------------------------


def test_a_catalog_that_is_down_is_never_the_source_by_mistake(
    subject: Subject, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakeferry.storage.rest_request.PAUSES_S", (0.01,))
    source, other = create(lake), create(lake, "other")
    moves = moves_of(lake)
    moves.enable(source, subject.table, location=lake.uri("new"))
    lakeferry.resolve(source)
    subject.go_down()
    before = lake.tree()
    for act in (
        lambda: lakeferry.resolve(source),
        lambda: lakeferry.resolve(source, write=True),
        lambda: lakeferry.open(source),
        lambda: lakeferry.Table(source).snapshot(),
        lambda: lakeferry.Table(source).files(),
        lambda: lakeferry.Table(source).history(),
        lambda: moves.enable(other, f"{subject.kind}:{subject.schema}.other", location="/x/y"),
        lambda: moves.disable(source),
    ):
        with pytest.raises(CatalogUnavailable):
            act()
    assert lake.tree() == before
    assert moves.status(source).warnings
    assert lakeferry.Table(source).snapshot(follow=False).num_files == 4


def test_a_catalog_that_goes_down_while_writers_wait_lets_the_move_go_on_or_back(
    sql: Subject, lake: Lake
) -> None:
    """Between its lock and its opening the target gets its name."""
    assert sql.come_back is not None
    for end in ("resume", "cancel"):
        source, target = create(lake, f"old-{end}"), lake.uri(f"new-{end}")
        with pytest.raises(CatalogUnavailable):
            meanwhile(commits(target), sql.go_down).enable(source, sql.table, location=target)
        moves = moves_of(lake)
        assert moves.status(source).state is RedirectState.ENABLING
        assert lakeferry.open(source).to_table().num_rows == 4
        sql.come_back()
        assert sql.location() is None
        if end == "resume":
            moves.resume(source)
            assert lakeferry.resolve(source) == sql.location() == target
            moves.disable(source)
        else:
            moves.cancel(source)
            assert lakeferry.resolve(source, write=True) == source
        assert sql.location() is None


def test_cancel_takes_the_name_away_and_a_move_can_begin_anew(subject: Subject, lake: Lake) -> None:
    source, target = create(lake), lake.uri("new")
    opened = commits(target, 5)
    with pytest.raises(Stopped):
        meanwhile(opened, lambda: None, fault=Fault.STOP_BEFORE).enable(
            source, subject.table, location=target
        )
    assert subject.location() == target
    moves = moves_of(lake)
    assert moves.status(source).state is RedirectState.ENABLING
    moves.cancel(source)
    assert subject.location() is None
    assert [path for path in (lake.folder / "new").rglob("*") if path.is_file()] == []
    assert ids(lake, source) == [0, 1, 2, 3]
    assert moves.enable(source, subject.table, location=target).state is RedirectState.READY
    assert lakeferry.resolve(source) == target


def test_a_name_that_is_taken_is_refused(subject: Subject, lake: Lake) -> None:
    source, taken = create(lake), create(lake, "taken")
    metadata = lakeferry.Table(taken).snapshot().metadata
    subject.catalog.register(subject.name, taken, metadata)
    before = lake.tree()
    with pytest.raises(RedirectTargetNotEmpty):
        moves_of(lake).enable(source, subject.table, location=lake.uri("new"))
    with pytest.raises(RedirectTargetNotEmpty):
        moves_of(lake).enable(source, subject.table)
    assert lake.tree() == before
    assert subject.location() == taken


def test_a_name_that_is_taken_meanwhile_stays_with_who_took_it(
    subject: Subject, lake: Lake
) -> None:
    source, taken, target = create(lake), create(lake, "taken"), lake.uri("new")
    metadata = lakeferry.Table(taken).snapshot().metadata

    def others_come() -> None:
        subject.catalog.register(subject.name, taken, metadata)

    with pytest.raises(LakeferryError, match="at another place"):
        meanwhile(commits(target), others_come).enable(source, subject.table, location=target)
    moves = moves_of(lake)
    # It has gone back by itself: to try again wouldn't help, and writers would wait.
    assert moves.status(source).state is RedirectState.NORMAL
    assert moves.cancel(source).changed is False
    assert subject.location() == taken
    assert lakeferry.resolve(source, write=True) == source
    assert [path for path in (lake.folder / "new").rglob("*") if path.is_file()] == []


def test_a_name_without_a_place_is_refused(subject: Subject, lake: Lake) -> None:
    source = create(lake)
    before = lake.tree()
    with pytest.raises(InvalidInput) as refusal:
        moves_of(lake).enable(source, subject.table)
    assert "--location" in (refusal.value.remedy or "")
    with pytest.raises(InvalidInput):
        moves_of(lake).enable(source, lake.uri("new"), location=lake.uri("newer"))
    assert lake.tree() == before


def test_a_table_that_has_a_name_already_is_redirected_to_and_keeps_it(
    subject: Subject, lake: Lake
) -> None:
    source = create(lake)
    shutil.copytree(lake.folder / "old", lake.folder / "copy")
    copy = lake.uri("copy")
    subject.catalog.register(subject.name, copy, lakeferry.Table(copy).snapshot().metadata)
    moves = moves_of(lake)
    append(lake, source, 4)
    with pytest.raises(NotEqual):
        moves.enable(source, subject.table, to_existing=True)
    assert moves.status(source).state is RedirectState.NORMAL
    append(lake, copy, 4)
    with pytest.raises(NotEqual):
        # The same rows in other files aren't known to be the same.
        moves.enable(source, subject.table, to_existing=True)
    moves.enable(source, subject.table, to_existing=True, unverified=True)
    assert lakeferry.resolve(source, write=True) == copy
    append(lake, copy, 5)
    moves.disable(source, bring_back=True)
    assert ids(lake, source) == [0, 1, 2, 3, 4, 5]
    assert subject.location() == copy
    append(lake, copy, 6)


def test_a_token_that_is_wrong_is_told_and_nothing_changes(
    unity: UnityServer, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    unity.name_in(monkeypatch)
    source, other = create(lake), create(lake, "other")
    table = f"unity:{unity.schema}.orders"
    moves_of(lake).enable(source, table, location=lake.uri("new"))
    # A real server may let everybody in.
    assert unity.ours.token
    monkeypatch.setenv("UC_TOKEN", "somebody-else")
    before = lake.tree()
    for act in (
        lambda: lakeferry.resolve(source),
        lambda: lakeferry.open(source),
        lambda: moves_of(lake).enable(other, f"{table}2", location=lake.uri("newer")),
        lambda: moves_of(lake).disable(source),
    ):
        with pytest.raises(Unauthorized):
            act()
    assert lake.tree() == before


def test_a_schema_that_is_not_there_is_refused(
    unity: UnityServer, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    unity.name_in(monkeypatch)
    source = create(lake)
    catalog = unity.schema.partition(".")[0]
    before = lake.tree()
    with pytest.raises(InvalidInput, match="has no schema"):
        moves_of(lake).enable(source, f"unity:{catalog}.nowhere.t", location=lake.uri("new"))
    assert lake.tree() == before


# --- Privileges in Unity Catalog ---------------------------------------------------


@pytest.fixture
def uc(unity_here: UnityServer) -> UnityServer:
    """Our Unity Catalog, which can be told how to behave."""
    _ = unity_here.ours
    return unity_here


def files_of(lake: Lake, name: str) -> list[Path]:
    return [path for path in (lake.folder / name).rglob("*") if path.is_file()]


@pytest.mark.parametrize("lost", ["USE CATALOG", "USE SCHEMA", "CREATE TABLE"])
def test_a_missing_privilege_is_found_before_anything_is_copied(
    uc: UnityServer, lake: Lake, lost: str
) -> None:
    source = create(lake)
    uc.ours.privileges.discard(lost)
    before = lake.tree()
    with pytest.raises(Forbidden) as refused:
        moves_of(lake).enable(source, f"unity:{uc.schema}.t", location=lake.uri("new"))
    assert lost in (refused.value.remedy or "")
    assert lake.tree() == before
    assert not (lake.folder / "new").exists()


@pytest.mark.parametrize("place", ["volume/new", "__unitystorage/new"])
def test_a_place_that_the_catalog_does_not_take_is_found_before_anything_is_copied(
    uc: UnityServer, lake: Lake, place: str
) -> None:
    source = create(lake)
    uc.ours.volumes.append(lake.uri("volume"))
    before = lake.tree()
    with pytest.raises((Forbidden, InvalidInput), match=place):
        moves_of(lake).enable(source, f"unity:{uc.schema}.t", location=lake.uri(place))
    assert lake.tree() == before


@pytest.mark.parametrize("lost", ["privilege", "token", "place"])
def test_a_refusal_while_writers_wait_takes_the_move_back(
    uc: UnityServer, lake: Lake, lost: str
) -> None:
    source, target = create(lake), lake.uri("new")
    table = f"unity:{uc.schema}.t"
    server, token = uc.ours, uc.ours.token

    def lose() -> None:
        if lost == "privilege":
            server.privileges.clear()
        elif lost == "token":
            server.token = "another"
        else:
            server.volumes.append(target)

    before = files_of(lake, "new")
    with pytest.raises((Forbidden, Unauthorized)) as refused:
        meanwhile(commits(target), lose).enable(source, table, location=target)
    assert "was undone" in str(refused.value)
    assert refused.value.remedy
    # Only commits are in the source's log: no record of a move that anybody could go on with.
    inside = {path.name for path in (lake.folder / "old" / "_delta_log").rglob("*")}
    assert {name for name in inside if not name.endswith((".json", ".crc", ".parquet"))} == set()
    assert files_of(lake, "new") == before == []
    append(lake, source, 4)
    assert moves_of(lake).status(source).state is RedirectState.NORMAL
    assert ids(lake, source) == [0, 1, 2, 3, 4]

    # What the remedy says is done, and the move succeeds.
    server.privileges |= {"USE CATALOG", "USE SCHEMA", "CREATE TABLE", "OWNER"}
    server.token, server.volumes = token, []
    assert moves_of(lake).enable(source, table, location=target).state is RedirectState.READY


@pytest.mark.parametrize("lost", ["UC_TOKEN", "UC_URL"])
def test_a_resume_that_cannot_ask_the_catalog_ends_nothing(
    uc: UnityServer, lake: Lake, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever resumes in a shell without the settings doesn't lose what was copied."""
    source, target = create(lake), lake.uri("new")
    with pytest.raises(Stopped):
        meanwhile(commits(target), lambda: None, fault=Fault.STOP_BEFORE).enable(
            source, f"unity:{uc.schema}.t", location=target
        )
    before = lake.tree()
    with monkeypatch.context() as without:
        without.delenv(lost)
        with pytest.raises((Unauthorized, InvalidInput)):
            moves_of(lake).resume(source)
    assert lake.tree() == before
    assert moves_of(lake).resume(source).state is RedirectState.READY
    assert lakeferry.resolve(source) == target


def test_who_may_not_drop_the_table_gets_a_warning(uc: UnityServer, lake: Lake) -> None:
    source, target = create(lake), lake.uri("new")
    moves_of(lake).enable(source, f"unity:{uc.schema}.t", location=target)
    uc.ours.privileges ^= {"OWNER", "SELECT"}
    warnings: list[str] = []
    moves = Redirects(dict(lake.variables), engine="local", warn=warnings.append)
    assert moves.disable(source, remove_target=True).state is RedirectState.NORMAL
    assert any(f"let you drop {uc.schema}.t" in each for each in warnings)
    assert files_of(lake, "new") == []
    append(lake, source, 4)


def test_a_catalog_that_is_down_does_not_keep_a_move_from_going_back(
    uc: UnityServer, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakeferry.storage.rest_request.PAUSES_S", (0.01,))
    source, target = create(lake), lake.uri("new")
    with pytest.raises(CatalogUnavailable):
        meanwhile(commits(target), uc.ours.go_down).enable(
            source, f"unity:{uc.schema}.t", location=target
        )
    assert moves_of(lake).status(source).state is RedirectState.ENABLING
    assert moves_of(lake).cancel(source).state is RedirectState.NORMAL
    append(lake, source, 4)


def test_a_table_that_was_renamed_is_followed_and_unregistered(
    unity_here: UnityServer, lake: Lake
) -> None:
    source, target = create(lake), lake.uri("new")
    moves_of(lake).enable(source, f"unity:{unity_here.schema}.t", location=target)
    unity_here.rename(f"{unity_here.schema}.t", "renamed")
    assert lakeferry.resolve(source, write=True) == target
    append(lake, target, 4)
    moves_of(lake).disable(source)
    assert ids(lake, source) == [0, 1, 2, 3, 4]
    assert open_catalog("unity").find(f"{unity_here.schema}.renamed") is None


# --- Tables that a catalog manages -------------------------------------------------


def manage(lake: Lake, name: str) -> None:
    """Commit a protocol that leaves the next commits of a table to its catalog."""
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["catalogManaged"],
        "writerFeatures": ["catalogManaged", "inCommitTimestamp"],
    }
    commit = lake.folder / name / "_delta_log" / f"{4:020}.json"
    commit.write_text(json.dumps({"protocol": protocol}) + "\n")


def managed(uc: UnityServer, lake: Lake, name: str) -> str:
    """Make a table whose commits the catalog decides about, and return its place."""
    place = create(lake, name)
    manage(lake, name)
    catalog, schema = uc.schema.split(".")
    uc.ours.add(
        {
            "name": name,
            "catalog_name": catalog,
            "schema_name": schema,
            "table_type": "MANAGED",
            "data_source_format": "DELTA",
            "columns": [],
            "storage_location": place,
        }
    )
    return place


def test_a_table_that_its_catalog_manages_is_no_target(uc: UnityServer, lake: Lake) -> None:
    source, place = create(lake), managed(uc, lake, "managed")
    before = lake.tree()
    for target in (f"unity:{uc.schema}.managed", place):
        for unverified in (False, True):
            with pytest.raises(CatalogManaged) as refused:
                moves_of(lake).enable(source, target, to_existing=True, unverified=unverified)
            assert refused.value.code == "catalog_managed"
            expected = f"{uc.schema}.managed" if target != place else None
            assert refused.value.fields["name"] == expected
    with pytest.raises(CatalogManaged):
        moves_of(lake).plan_enable(
            source, f"unity:{uc.schema}.managed", to_existing=True, unverified=True
        )
    assert lake.tree() == before


def test_by_its_path_a_managed_table_is_refused(uc: UnityServer, lake: Lake) -> None:
    place, table = managed(uc, lake, "managed"), f"unity:{uc.schema}.managed"
    for act in (
        lambda: lakeferry.resolve(table),
        lambda: lakeferry.resolve(table, write=True),
        lambda: lakeferry.Table(table).resolve(),
    ):
        with pytest.raises(CatalogManaged) as refused:
            act()
        assert refused.value.fields["name"] == f"{uc.schema}.managed"
        assert refused.value.remedy
    with pytest.raises(UnsupportedFeature):
        lakeferry.Table(place).files()
    warnings: list[str] = []
    assert len(lakeferry.Table(place, warn=warnings.append).history()) == 5
    assert any("aren't published" in each for each in warnings)


def test_a_target_that_became_managed_is_not_followed(unity_here: UnityServer, lake: Lake) -> None:
    source = create(lake)
    shutil.copytree(lake.folder / "old", lake.folder / "copy")
    catalog = open_catalog("unity")
    metadata = lakeferry.Table(source).snapshot().metadata
    catalog.register(f"{unity_here.schema}.t", lake.uri("copy"), metadata)
    moves_of(lake).enable(source, f"unity:{unity_here.schema}.t", to_existing=True)
    manage(lake, "copy")
    unity_here.rename(f"{unity_here.schema}.t", "renamed")
    for act in (lakeferry.resolve, lakeferry.open, lambda t: lakeferry.Table(t).files()):
        with pytest.raises(CatalogManaged) as refused:
            act(source)
        assert refused.value.fields["name"] == f"{unity_here.schema}.renamed"


def test_a_redirect_to_an_existing_table_holds_when_that_is_renamed(
    unity_here: UnityServer, lake: Lake
) -> None:
    source = create(lake)
    shutil.copytree(lake.folder / "old", lake.folder / "copy")
    catalog = open_catalog("unity")
    metadata = lakeferry.Table(source).snapshot().metadata
    made = catalog.register(f"{unity_here.schema}.t", lake.uri("copy"), metadata)
    moves = moves_of(lake)
    moves.enable(source, f"unity:{unity_here.schema}.t", to_existing=True)
    assert moves.status(source).name == f"unity:{unity_here.schema}.t"
    assert entry_of(lake, source)["Spec"] == {
        "Table": {"MetastoreId": made.metastore_id, "TableId": made.table_id},
        "Source": source,
    }
    assert moves.enable(source, f"unity:{unity_here.schema}.t", to_existing=True).changed is False
    unity_here.rename(f"{unity_here.schema}.t", "renamed")
    assert lakeferry.resolve(source, write=True) == lake.uri("copy")
    assert (
        moves.enable(source, f"unity:{unity_here.schema}.renamed", to_existing=True).changed
        is False
    )
    # Nobody has the old name now, and then another table: that isn't the target.
    assert moves.status(source).name == f"unity:{unity_here.schema}.renamed"
    catalog.register(f"{unity_here.schema}.t", create(lake, "other"), metadata)
    assert moves.status(source).name == f"unity:{unity_here.schema}.renamed"
    assert moves.resolve(source).name == f"unity:{unity_here.schema}.renamed"
    assert lakeferry.resolve(source) == lake.uri("copy")
    with pytest.raises(RedirectIllegalTransition):
        moves.enable(source, f"unity:{unity_here.schema}.t", to_existing=True)
    append(lake, lake.uri("copy"), 4)
    moves.disable(source, bring_back=True)
    assert ids(lake, source) == [0, 1, 2, 3, 4]
    assert catalog.find(f"{unity_here.schema}.renamed") is not None


def test_what_the_catalog_hands_out_opens_the_target(
    uc: UnityServer, tmp_path: Path, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old path is on disk, and only the catalog has keys for the bucket."""
    lake = on_disk(tmp_path)
    source, target = create(lake), f"{s3_bucket.uri}/new"
    own = dict(s3_bucket.storage_options)
    keys = {
        "access_key_id": own.pop("AWS_ACCESS_KEY_ID"),
        "secret_access_key": own.pop("AWS_SECRET_ACCESS_KEY"),
        "session_token": None,
    }
    uc.ours.credentials = (200, {"aws_temp_credentials": keys})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    moves = Redirects(s3_bucket.storage_options, engine="local")
    moves.enable(source, f"unity:{uc.schema}.t", location=target)
    found = lakeferry.open(source, storage_options=own)
    assert sorted(found.to_table()["id"].to_pylist()) == [0, 1, 2, 3]
    assert lakeferry.open(f"unity:{uc.schema}.t", storage_options=own).count_rows() == 4
    assert lakeferry.resolve(source, storage_options=own) == target
    assert lakeferry.Table(source, own).snapshot().num_files == 4
    document = lakeferry.Table(source, own).inspect()
    assert document.warnings == ()


def test_what_the_catalog_hands_out_opens_a_target_that_was_there(
    uc: UnityServer, tmp_path: Path, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = on_disk(tmp_path)
    source, target, table = create(lake), f"{s3_bucket.uri}/new", f"unity:{uc.schema}.t"
    assert s3_bucket.server.folder is not None
    shutil.copytree(lake.folder / "old", s3_bucket.server.folder / s3_bucket.name / "new")
    metadata = lakeferry.Table(source).snapshot().metadata
    open_catalog("unity").register(f"{uc.schema}.t", target, metadata)
    own = dict(s3_bucket.storage_options)
    keys = {
        "access_key_id": own.pop("AWS_ACCESS_KEY_ID"),
        "secret_access_key": own.pop("AWS_SECRET_ACCESS_KEY"),
    }
    uc.ours.credentials = (200, {"aws_temp_credentials": keys})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    moves = Redirects(own, engine="local")
    assert moves.plan_enable(source, table, to_existing=True)
    assert moves.enable(source, table, to_existing=True).state is RedirectState.READY
    assert lakeferry.open(source, storage_options=own).count_rows() == 4
    assert Redirects(own, engine="local").disable(source, bring_back=True).changed


@pytest.mark.parametrize("prefix", ["AWS_", "aws_", ""])
def test_keys_that_the_user_gives_are_not_mixed_with_those_of_the_catalog(
    prefix: str,
    uc: UnityServer,
    tmp_path: Path,
    s3_bucket: S3Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session token belongs to one key: beside another, no store accepts it."""
    lake = on_disk(tmp_path)
    source, target, table = create(lake), f"{s3_bucket.uri}/new", f"unity:{uc.schema}.t"
    given = dict(s3_bucket.storage_options)
    keys = {name: given.pop(f"AWS_{name}") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")}
    given |= {f"{prefix}{name if prefix.isupper() else name.lower()}": keys[name] for name in keys}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    Redirects(given, engine="local").enable(source, table, location=target)
    session = {"access_key_id": "ASIA", "secret_access_key": "secret", "session_token": "session"}
    uc.ours.credentials = (200, {"aws_temp_credentials": session})
    for name in (source, table):
        assert lakeferry.open(name, storage_options=given).count_rows() == 4
        assert lakeferry.resolve(name, storage_options=given) == target
        assert lakeferry.Table(name, given).snapshot().num_files == 4
