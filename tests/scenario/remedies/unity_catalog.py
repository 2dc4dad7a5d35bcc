"""Unity Catalog: privileges, names and places that it doesn't give."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from lakeferry.storage import open_store
from tests.scenario.remedies.targets import UNNAMED, given_up, register_again
from tests.support.lake import redirected
from tests.support.managed_tables import managed_table
from tests.support.remedies import NEEDS_A_PERSON, Witness, follows
from tests.support.unity_delta_rules import Refused
from tests.support.unity_server import OurServer, unity_server

NEEDS_A_PERSON.update(
    {
        "unity_listing.py: list one catalog or one schema of it": "it takes a server with more "
        "tables than a client lists: tests/unit/catalogs/test_unity.py::"
        "test_a_listing_that_is_too_long_is_not_taken_for_all",
        "target_registration.py: {}; then start the move again": "the catalog has to change its "
        "mind within a move; test_redirect_catalogs.py lets it, and begins again",
        "unity_registration.py: choose another name; or drop the table in the catalog yourself, "
        "if nobody needs its data": "only an export over a managed table's name gets there",
        "unity_registration.py: ask the owner of the table or of its schema to drop it": "it is a "
        "warning's, and another person has to act",
        "unity_registration.py: find the table with the id {} in Unity Catalog, and have it "
        "dropped": "it is a warning's, and another person has to act",
        "unity_registration.py: tell the owner of {}, who can register an external table again; "
        "then remove your own table: lakeferry catalog remove unity:{}": "another person "
        "has to act: tests/unit/catalogs/test_unity_registration.py::"
        "test_who_unregisters_another_table_by_its_name_is_told",
        "unity_delta.py: ask the owner of that table to rename it back: lakeferry catalog rename "
        "unity:{} {}; {}": "another person has to act: "
        "tests/unit/catalogs/test_unity_delta.py::test_a_table_that_cannot_get_its_name_back_is_named",
        "private_names.py: the table may be called {} now: 'lakeferry catalog remove unity:{} "
        "--yes' drops it, 'lakeferry catalog rename unity:{} {}' keeps it": "it is the end of "
        "another remedy, and that case follows it: tests/unit/catalogs/test_unity_delta.py::"
        "test_a_drop_that_the_server_leaves_half_done_is_named_and_found",
        "unity_delta.py: tell the owner of {}, who may be able to restore it; {}": "another person "
        "has to act: tests/unit/catalogs/test_unity_delta.py::"
        "test_who_may_not_rename_drops_by_name_and_is_told_what_was_hit",
    }
)


@contextmanager
def _unity() -> Iterator[tuple[OurServer, str, dict[str, str]]]:
    """Give a server, the beginning of names in its schema, and the variables that name it."""
    with unity_server() as server:
        yield server.ours, f"unity:{server.schema}", server.environment()


def _enable(witness: Witness, name: str, place: str) -> tuple[str, ...]:
    source, target = witness.lake.uri("t"), witness.lake.uri(place)
    return ("redirect", "enable", source, name, "--location", target, "--engine", "local")


@follows("unity_delta.py: 'lakeferry catalog show unity:{}' shows the present name of your table")
def a_table_whose_name_was_given_away_is_found_by_its_id(witness: Witness) -> None:
    with unity_server() as server:
        variables = server.environment()
        tables = [managed_table(server, history=1) for _ in range(2)]
        mine, theirs = (server.ours.tables_named(each.name)[0] for each in tables)

        def swap(_: str) -> None:
            server.ours.delta.before_change = lambda _: None
            mine["name"], theirs["name"] = "kept", mine["name"]

        server.ours.delta.before_change = swap
        words = ("catalog", "rename", f"unity:{tables[0].name}", f"{server.schema}.wanted")
        witness.refused(*words, **variables)
        table_id = tables[0].staging.table_id
        witness.done("catalog", "show", f"unity:{table_id}", **variables)


@follows("catalog_rest.py: set {} again: a token has only printable ASCII characters")
def a_token_that_can_t_be_sent_is_set_again(witness: Witness) -> None:
    witness.lake.make("t")
    with _unity() as (_, schema, variables):
        words = _enable(witness, f"{schema}.t", "new")
        witness.refused(*words, **variables | {"UC_TOKEN": "caf\u00e9"})
        witness.done(*words, **variables)


@follows(
    "unity_registration.py: ask the catalog's administrator to grant you USE CATALOG on {}, and "
    "USE SCHEMA and CREATE TABLE on {}.{}"
)
def a_schema_that_may_not_be_used_is_granted(witness: Witness) -> None:
    witness.lake.make("t")
    with _unity() as (server, schema, variables):
        server.privileges.discard("USE SCHEMA")
        words = _enable(witness, f"{schema}.t", "new")
        witness.refused(*words, **variables)
        server.privileges.add("USE SCHEMA")
        witness.done(*words, **variables)


@follows(
    "unity_registration.py: ask the catalog's administrator to grant you USE CATALOG on {}, USE "
    "SCHEMA and CREATE TABLE on {}.{}, and CREATE EXTERNAL TABLE on the external location; or "
    "choose a place that no volume and no other table contains, and that contains none"
)
def a_place_in_a_volume_is_exchanged_and_a_privilege_granted(witness: Witness) -> None:
    witness.lake.make("t")
    with _unity() as (server, schema, variables):
        server.volumes.append(witness.lake.uri("volume"))
        witness.refused(*_enable(witness, f"{schema}.t", "volume/new"), **variables)
        server.privileges.discard("CREATE TABLE")
        witness.refused(*_enable(witness, f"{schema}.t", "new"), **variables)
        server.privileges.add("CREATE TABLE")
        witness.done(*_enable(witness, f"{schema}.t", "new"), **variables)


@follows(
    "unity.py: ask the catalog's administrator to grant you USE CATALOG on {}, USE SCHEMA on "
    "{}.{}, and SELECT on {}"
)
def a_table_that_may_not_be_looked_at_is_granted(witness: Witness) -> None:
    with _unity() as (server, schema, variables):
        witness.done("catalog", "register", f"{schema}.t", witness.lake.make("t"), **variables)
        server.privileges.discard("OWNER")
        words = ("catalog", "show", f"{schema}.t")
        witness.refused(*words, **variables)
        server.privileges.add("SELECT")
        witness.done(*words, **variables)


@follows(UNNAMED)
def a_table_that_was_dropped_is_registered_again(witness: Witness) -> None:
    """With another id: its history says that it is the table that moved."""
    source = witness.lake.make("t")
    with _unity() as (server, schema, variables):
        witness.done(*_enable(witness, f"{schema}.t", "n"), **variables)
        server.drop(f"{schema.removeprefix('unity:')}.t")
        register_again(witness, "redirect", "resolve", source, **variables)
        there = witness.done("redirect", "resolve", source, **variables)
        assert there["location"] == witness.lake.uri("n")
        assert witness.done("redirect", "disable", source, **variables)["state"] == "NORMAL"


@follows(
    "lineage.py: if the target is lost, 'lakeferry redirect disable {} --abandon-target' makes the "
    "source an ordinary table again, without what was written to the target since READY"
)
def a_dropped_table_that_another_program_redirected_to_is_given_up(witness: Witness) -> None:
    """It recorded nothing by which a table that is registered again could be recognized."""
    with _unity() as (server, _, variables):
        spec = {"Table": {"MetastoreId": server.metastore_id, "TableId": str(uuid.uuid4())}}
        entry = {"Type": "Unity Catalog", "State": "READY", "Spec": spec}
        moved = redirected(("delta.redirectReaderWriter", json.dumps(entry)))
        witness.refused("redirect", "resolve", witness.lake.make("t", moved), **variables)
        given_up(witness, **variables)


@follows("unity_registration.py: choose another name or another place, as the cause says")
def a_name_or_a_place_that_is_not_taken_is_exchanged(witness: Witness) -> None:
    witness.lake.make("t")
    with _unity() as (_, schema, variables):
        witness.refused(*_enable(witness, f"{schema}.two words", "new"), **variables)
        witness.refused(*_enable(witness, f"{schema}.t", "__unitystorage/new"), **variables)
        witness.done(*_enable(witness, f"{schema}.t", "new"), **variables)


@follows(
    "unity_registration.py: remove that column from the table, or redirect to a path instead of a "
    "name"
)
def a_table_with_a_column_that_is_not_taken_moves_without_a_name(witness: Witness) -> None:
    field = {"name": "c", "type": "geometry(4326)", "nullable": True, "metadata": {}}
    metadata = {
        "id": "1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [field]}),
        "partitionColumns": [],
        "configuration": {},
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    log = witness.lake.folder / "t" / "_delta_log"
    log.mkdir(parents=True)
    lines = [json.dumps(action) for action in ({"protocol": protocol}, {"metaData": metadata})]
    (log / f"{0:020}.json").write_text("\n".join(lines))
    with _unity() as (_, schema, variables):
        witness.refused(*_enable(witness, f"{schema}.t", "new"), **variables)
        source, target = witness.lake.uri("t"), witness.lake.uri("new")
        witness.done("redirect", "enable", source, target, "--engine", "local")


@follows("catalogs/catalog.py: choose another name, or {}")
def a_name_that_is_taken_in_unity_catalog_is_dropped_by_its_owner(witness: Witness) -> None:
    first, second = witness.lake.make("t"), witness.lake.make("u")
    with _unity() as (server, schema, variables):
        witness.done("catalog", "register", f"{schema}.t", first, **variables)
        witness.refused("catalog", "register", f"{schema}.t", second, **variables)
        witness.done("catalog", "register", f"{schema}.u", second, **variables)
        server.drop(f"{schema.removeprefix('unity:')}.t")
        server.drop(f"{schema.removeprefix('unity:')}.u")
        witness.done("catalog", "register", f"{schema}.t", second, **variables)


@follows(
    "unity_registration.py: ask its administrator to create it ({}), then run the same command "
    "again"
)
def a_schema_that_is_missing_is_created(witness: Witness) -> None:
    table = witness.lake.make("t")
    with _unity() as (server, schema, variables):
        catalog = schema.removeprefix("unity:").partition(".")[0]
        words = ("catalog", "register", f"unity:{catalog}.other.t", table)
        witness.refused(*words, **variables)
        server.create_schema(catalog, "other")
        witness.done(*words, **variables)


@follows("unity.py: register the new place under a new name, and redirect to that name")
def a_table_that_cannot_be_moved_gets_a_new_name(witness: Witness) -> None:
    first, second = witness.lake.make("t"), witness.lake.make("u")
    with _unity() as (_, schema, variables):
        witness.done("catalog", "register", f"{schema}.t", first, **variables)
        witness.refused("catalog", "move", f"{schema}.t", second, **variables)
        witness.done("catalog", "register", f"{schema}.u", second, **variables)
        words = ("redirect", "enable", first, f"{schema}.u", "--to-existing", "--unverified")
        witness.done(*words, "--engine", "local", **variables)


@follows("unity.py: set {} to the server of that metastore")
def the_server_of_the_metastore_is_named(witness: Witness) -> None:
    source = witness.lake.make("t")
    with _unity() as (_, schema, right), _unity() as (_, _, wrong):
        witness.done(*_enable(witness, f"{schema}.t", "new"), **right)
        refused = witness.refused("redirect", "resolve", source, **wrong)
        # What to do about a catalog that is lost for good stands behind it.
        witness.told(refused | {"remedy": refused["remedy"].partition("; ")[0]})
        there = witness.done("redirect", "resolve", source, **right)
        assert there["location"] == witness.lake.uri("new")


@follows("unity_address.py: set {} to the server's address, and {}")
def a_server_that_is_not_named_is_named(witness: Witness) -> None:
    table = witness.lake.make("t")
    with _unity() as (_, schema, variables):
        witness.refused("catalog", "register", f"{schema}.t", table)
        witness.done("catalog", "register", f"{schema}.t", table, **variables)


@follows("unity.py: give it a name in the same schema")
def a_name_in_another_schema_is_exchanged(witness: Witness) -> None:
    table = witness.lake.make("t")
    with _unity() as (_, schema, variables):
        witness.done("catalog", "register", f"{schema}.t", table, **variables)
        words = ("catalog", "rename", f"{schema}.t")
        witness.refused(*words, f"{schema}_2.u", **variables)
        witness.done(*words, f"{schema}.u", **variables)


@follows("name_changes.py: if nobody needs them, run: lakeferry catalog remove {}:{} --yes")
def a_managed_table_is_removed_with_its_files(witness: Witness) -> None:
    with unity_server() as server:
        name, variables = f"unity:{managed_table(server).name}", server.environment()
        words = ("catalog", "remove", name)
        assert witness.refused(*words, **variables)["remedy"].endswith(f"{name} --yes")
        witness.done(*words, "--yes", **variables)


@follows(
    "table_removal.py: 'lakeferry redirect disable {} --remove-target' brings the rows back and "
    "then drops the table; to drop it with its rows: lakeferry catalog remove {} --yes --force"
)
def a_managed_table_is_removed_after_its_rows_came_back(witness: Witness) -> None:
    with _unity() as (_, schema, variables):
        for each, way in (("t", "back"), ("u", "lost")):
            table, name = witness.lake.make(each), f"{schema}.{each}"
            witness.done("redirect", "enable", table, name, "--managed", **variables)
            witness.refused("catalog", "remove", name, "--yes", **variables)
            if way == "back":
                witness.done("redirect", "disable", table, "--remove-target", **variables)
            else:
                witness.done("catalog", "remove", name, "--yes", "--force", **variables)
                witness.done("redirect", "disable", table, "--abandon-target", "--yes", **variables)


@follows(
    "table_removal.py: {}if nobody needs its rows, add --force: lakeferry catalog remove {} --yes "
    "--force"
)
def a_table_to_which_a_path_may_lead_is_removed_by_force(witness: Witness) -> None:
    with _unity() as (_, schema, variables):
        for each in ("t", "u"):
            table, name = witness.lake.make(each), f"{schema}.{each}"
            witness.done("redirect", "enable", table, name, "--managed", **variables)
            place = witness.done("catalog", "show", name, **variables)["location"]
            log = open_store(str(place))
            commits = [file.path for file in log.list("_delta_log/") if file.path.endswith("json")]
            if each == "t":
                # The lock with the old path's name has expired.
                witness.done("checkpoint", name, **variables)
                log.delete_many(sorted(commits)[:-1])
            else:
                log.put(max(commits), b"{")
            words = ("catalog", "remove", name, "--yes")
            witness.refused(*words, **variables)
            witness.done(*words, "--force", **variables)


@follows("unity_delta.py: {}; {}")
def a_drop_that_was_left_half_done_is_ended_or_undone(witness: Witness) -> None:
    refusal = (401, {"error": {"message": "words", "type": "NotAuthorizedException", "code": 401}})
    with unity_server() as server:
        variables, ours = server.environment(), server.ours
        for way in ("drop", "keep"):
            table = managed_table(server, history=1)

            def expire(call: str) -> None:
                if call == "delete":
                    ours.next_replies.extend([refusal] * 20)
                    raise Refused(401, "NotAuthorizedException", "words")

            ours.delta.before_change = expire
            words = ("catalog", "remove", f"unity:{table.name}", "--yes")
            remedy = witness.refused(*words, **variables)["remedy"]
            ours.next_replies.clear()
            ours.delta.before_change = lambda _: None
            if way == "drop":
                name = f"unity:{table.staging.table_id}"
                witness.done("catalog", "remove", name, "--yes", **variables)
            else:
                (command,) = re.findall(r"'lakeferry (catalog rename .+?)'", remedy)
                witness.done(*command.split(), **variables)
                witness.done("catalog", "show", f"unity:{table.name}", **variables)
