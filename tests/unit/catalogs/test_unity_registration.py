"""Registration of external tables in Unity Catalog, trials of it, and names that are deleted."""

from __future__ import annotations

from typing import Any

import pytest

from lakeferry.catalogs.unity import UnityCatalog
from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    CommitConflict,
    Forbidden,
    InvalidInput,
)
from tests.support.unity_client import ONE_COLUMN, connect, registered
from tests.support.unity_server import UnityServer


@pytest.fixture
def catalog(unity: UnityServer) -> UnityCatalog:
    _ = unity.ours
    return connect(unity)


def tables(server: UnityServer) -> list[object]:
    parent = server.schema.replace(".", "&schema_name=")
    _, listed = server.call("GET", f"/tables?catalog_name={parent}")
    found: list[object] = listed["tables"]
    return found


def test_a_missing_catalog_or_schema_is_named(unity: UnityServer, catalog: UnityCatalog) -> None:
    with pytest.raises(InvalidInput, match="no catalog nowhere") as refused:
        catalog.register("nowhere.b.t", "/t", ONE_COLUMN)
    assert "CREATE CATALOG nowhere" in (refused.value.remedy or "")
    parent = unity.schema.partition(".")[0]
    with pytest.raises(InvalidInput, match=rf"no schema {parent}\.other") as refused:
        catalog.register(f"{parent}.other.t", "/t", ONE_COLUMN)
    assert f"CREATE SCHEMA {parent}.other" in (refused.value.remedy or "")


def test_a_place_that_has_a_name_gets_no_second_one(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    registered(unity)
    for place in ("s3://bucket/t", "s3://bucket/t/below", "s3://bucket"):
        with pytest.raises(Forbidden, match="register s3://bucket") as refused:
            catalog.register(f"{unity.schema}.second", place, ONE_COLUMN)
        assert "CREATE TABLE" in (refused.value.remedy or "")


def test_a_name_that_several_got_in_a_race_is_nobodys(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    """As the real server does: it takes one name several times and then finds none."""
    made = registered(unity)
    unity.ours.racing = True
    unity.ours.next_replies.append((404, {"error_code": "TABLE_NOT_FOUND", "message": "none"}))
    for act in (
        lambda: catalog.register(made.name, "s3://bucket/other", ONE_COLUMN),
        lambda: catalog.find(made.name),
        lambda: catalog.unregister(made.name),
    ):
        with pytest.raises(CatalogUnavailable, match="unique result"):
            act()


def test_a_deletion_counts_when_the_table_is_gone(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    """A proxy's page has a status of 200 too."""
    made = registered(unity)
    assert catalog.find(made.name) == made
    _, info = unity.call("GET", f"/tables/{made.name}")
    unity.ours.next_replies.extend([(200, info), (200, b"<html>log in</html>")])
    with pytest.raises(CatalogUnavailable, match="still has"):
        catalog.unregister(made.name)
    assert catalog.find(made.name) == made


def test_a_managed_table_is_never_dropped(unity: UnityServer, catalog: UnityCatalog) -> None:
    """Its files would go with its name."""
    made = registered(unity)
    _, info = unity.call("GET", f"/tables/{made.name}")
    unity.ours.drop(made.name)
    unity.ours.add({**info, "table_type": "MANAGED"})
    unity.ours.asked.clear()
    for location in (None, made.location):
        with pytest.raises(CatalogManaged, match="delete its files"):
            catalog.unregister(made.name, location)
    assert not any(asked.startswith("DELETE") for asked in unity.ours.asked)


def test_who_unregisters_another_table_by_its_name_is_told(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    made, other = registered(unity), registered(unity, "s3://bucket/other", "other")
    mine, theirs = (unity.ours.tables_named(each.name)[0] for each in (made, other))

    def swap(_: str) -> None:
        unity.ours.delta.before_change = lambda _: None
        mine["name"], theirs["name"] = "kept", mine["name"]

    unity.ours.delta.before_change = swap
    with pytest.raises(
        CommitConflict, match=f"wrong table was removed from Unity Catalog: {made.name}"
    ) as why:
        catalog.unregister(made.name, made.location, table_id=made.table_id)
    assert f"catalog remove unity:{unity.schema}.kept" in (why.value.remedy or "")
    assert mine in unity.ours.tables_named(f"{unity.schema}.kept")


def test_a_renamed_table_is_unregistered_by_its_id(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    made = registered(unity)
    unity.ours.rename(made.name, "renamed")
    other = registered(unity, "s3://bucket/other")
    assert other.name == made.name
    assert catalog.unregister(made.name, made.location, table_id=made.table_id) is True
    assert catalog.find_id(made.table_id) is None
    assert catalog.find(other.name) == other
    # Without the id the old name leads elsewhere.
    assert catalog.unregister(made.name, made.location, table_id=made.table_id) is False


def test_the_owner_of_a_schema_finds_a_renamed_table_though_no_listing_shows_the_schema(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    """Unity Catalog lists the schemas that somebody has USE SCHEMA on, and no others."""
    made = registered(unity)
    unity.ours.rename(made.name, "renamed")
    unity.ours.privileges = {"USE CATALOG", "SCHEMA OWNER"}
    assert catalog.unregister(made.name, made.location, table_id=made.table_id) is True
    assert tables(unity) == []


def test_a_renamed_table_whose_name_is_not_shown_is_no_table_that_is_gone(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    """Whoever would unregister it has to be told that it is still there."""
    made = registered(unity)
    unity.ours.rename(made.name, "renamed")
    for options in ({"listing_requests": 0}, {}):
        if not options:
            unity.ours.privileges = {"USE CATALOG", "USE SCHEMA"}
        with pytest.raises((CatalogUnavailable, Forbidden), match=r"renamed|PERMISSION_DENIED"):
            connect(unity, **options).unregister(made.name, made.location, table_id=made.table_id)
    unity.ours.drop(f"{unity.schema}.renamed")
    assert catalog.unregister(made.name, made.location, table_id=made.table_id) is False


def test_what_would_be_refused_is_refused_by_a_trial_that_leaves_nothing(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    server, name = unity.ours, f"{unity.schema}.t"
    server.volumes.append("s3://bucket/volume")
    catalog.try_registration(name, "s3://bucket/t", ONE_COLUMN)
    for place, refusal in (
        ("s3://bucket/volume/t", Forbidden),
        ("s3://bucket/__unitystorage/t", InvalidInput),
    ):
        with pytest.raises(refusal):
            catalog.try_registration(name, place, ONE_COLUMN)
    with pytest.raises(InvalidInput, match="cannot contain"):
        catalog.try_registration(f"{unity.schema}.a name", "s3://bucket/t", ONE_COLUMN)
    for privilege in ("USE SCHEMA", "CREATE TABLE"):
        server.privileges.discard(privilege)
        with pytest.raises(Forbidden):
            catalog.try_registration(name, "s3://bucket/t", ONE_COLUMN)
        server.privileges.add(privilege)
    assert tables(unity) == []


def test_a_trial_takes_away_what_a_broken_one_left(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    server, name = unity.ours, f"{unity.schema}.t"

    def break_off() -> None:
        server.privileges.discard("OWNER")
        with pytest.raises(Forbidden):
            catalog.try_registration(name, "s3://bucket/t", ONE_COLUMN)
        server.privileges.add("OWNER")

    break_off()
    catalog.try_registration(name, "s3://bucket/t", ONE_COLUMN)
    assert tables(unity) == []
    break_off()
    assert catalog.register(name, "s3://bucket/t", ONE_COLUMN).name == name
    assert len(tables(unity)) == 1


def test_a_trial_that_takes_long_is_waited_for_and_leaves_nothing(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    """Asked twice at once, the server would have two tables of one name, for good."""
    server, name = unity.ours, f"{unity.schema}.t"
    server.slow = True
    with pytest.raises(CatalogUnavailable, match="504"):
        catalog.try_registration(name, "s3://bucket/t", ONE_COLUMN)
    assert server.asked.count("POST /tables") == 1
    assert tables(unity) == []
    server.slow = False
    catalog.try_registration(name, "s3://bucket/t", ONE_COLUMN)
    assert tables(unity) == []


def test_two_trials_never_have_the_same_name(unity: UnityServer, catalog: UnityCatalog) -> None:
    server, name = unity.ours, f"{unity.schema}.t"
    for _ in range(2):
        catalog.try_registration(name, "s3://bucket/t", ONE_COLUMN)
    deleted = [asked for asked in server.asked if asked.startswith("DELETE")]
    assert len(set(deleted)) == 2


def test_a_table_is_not_registered_without_its_columns(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    with pytest.raises(InvalidInput, match="metadata"):
        catalog.register(f"{unity.schema}.t", "/t")


@pytest.mark.parametrize("lost", [(502, b""), (504, b""), None])
def test_a_registration_whose_answer_was_lost_is_settled_by_looking(
    unity: UnityServer, catalog: UnityCatalog, lost: Any
) -> None:
    made = registered(unity)
    server = unity.ours
    # Not there when we look, then no answer after all was done.
    server.next_replies.append((404, {"error_code": "TABLE_NOT_FOUND", "message": "none"}))
    server.next_replies.append(lost)
    assert catalog.register(made.name, made.location, ONE_COLUMN) == made
    assert server.asked.count("POST /tables") == 2


def test_a_registration_that_takes_long_is_asked_for_once(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    server, name = unity.ours, f"{unity.schema}.t"
    server.slow = True
    assert catalog.register(name, "s3://bucket/t", ONE_COLUMN).name == name
    assert server.asked.count("POST /tables") == 1
    assert catalog.unregister(name) is True


@pytest.mark.parametrize("status", [429, 503])
def test_a_registration_that_was_not_begun_is_asked_for_again(
    unity: UnityServer, catalog: UnityCatalog, status: int
) -> None:
    server, name = unity.ours, f"{unity.schema}.t"
    server.next_replies.append((404, {"error_code": "TABLE_NOT_FOUND", "message": "none"}))
    server.next_replies.append((status, b""))
    assert catalog.register(name, "s3://bucket/t", ONE_COLUMN).name == name
    assert server.asked.count("POST /tables") == 2


def test_a_table_deleted_by_somebody_else_meanwhile_was_there(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    made = registered(unity)
    _, info = unity.call("GET", f"/tables/{made.name}")
    assert catalog.unregister(made.name) is True
    unity.ours.next_replies.append((200, info))
    assert catalog.unregister(made.name) is True
    assert catalog.unregister(made.name) is False
