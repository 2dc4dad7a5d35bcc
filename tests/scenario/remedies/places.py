"""Catalogs and exports: names and places that are taken, missing or misspelt."""

from __future__ import annotations

from lakeferry.export import manifest
from tests.support.remedies import Witness, follows
from tests.support.unity_server import unity_server


@follows("catalogs/catalog.py: choose another name, or {}")
def a_name_that_leads_elsewhere_is_moved(witness: Witness) -> None:
    first, second = witness.lake.make("t"), witness.lake.make("u")
    witness.done("catalog", "register", "sql:a.b.t", first)
    witness.refused("catalog", "register", "sql:a.b.t", second)
    witness.done("catalog", "move", "sql:a.b.t", second)


@follows("catalogs/catalog.py: choose another name")
def a_new_name_that_is_taken_is_replaced(witness: Witness) -> None:
    table = witness.lake.make("t")
    for name in ("sql:a.b.t", "sql:a.b.u"):
        witness.done("catalog", "register", name, table)
    witness.refused("catalog", "rename", "sql:a.b.t", "a.b.u")
    witness.done("catalog", "rename", "sql:a.b.t", "a.b.v")


@follows("name_changes.py: register the new name for its place: lakeferry catalog register {} {}")
def a_name_in_another_catalog_is_registered(witness: Witness) -> None:
    table = witness.lake.make("t")
    witness.done("catalog", "register", "sql:a.b.t", table)
    with unity_server() as unity:
        name = f"unity:{unity.schema}.t"
        words = ("catalog", "rename", "sql:a.b.t", name)
        remedy = witness.refused(*words, **unity.environment())["remedy"]
        assert f"lakeferry catalog register {name} " in remedy
        witness.done("catalog", "register", name, table, **unity.environment())


@follows("names.py: 'lakeferry catalog list {}:' shows the tables that you may see")
def an_id_that_is_gone_is_looked_for(witness: Witness) -> None:
    table = witness.lake.make("t")
    gone = witness.done("catalog", "register", "sql:a.b.t", table)["table_id"]
    witness.done("catalog", "remove", "sql:a.b.t")
    kept = witness.done("catalog", "register", "sql:a.b.u", table)["name"]
    witness.refused("catalog", "show", f"sql:{gone}")
    (found,) = witness.done("catalog", "list", "sql:")["tables"]
    assert found["name"] == kept
    witness.done("catalog", "show", f"sql:{found['table_id']}")


@follows("sql_database.py: write sqlite:////folder/file or postgresql://user@host/database")
def a_database_that_is_not_supported_is_replaced(witness: Witness) -> None:
    table = witness.lake.make("t")
    words = ("catalog", "register", "sql:a.b.t", table)
    for wrong in ("mysql://host/db", "sqlite://", "nonsense"):
        witness.refused(*words, LAKEFERRY_SQL_URL=wrong)
    witness.done(*words, LAKEFERRY_SQL_URL=f"sqlite:///{witness.lake.home}/catalog.sqlite")


@follows("sql_database.py: check {}, and that the database answers and accepts your credentials")
def a_database_whose_folder_is_a_file_is_corrected(witness: Witness) -> None:
    table = witness.lake.make("t")
    (witness.lake.home / "file").write_text("")
    words = ("catalog", "register", "sql:a.b.t", table)
    witness.refused(*words, LAKEFERRY_SQL_URL=f"sqlite:///{witness.lake.home}/file/c.sqlite")
    witness.done(*words, LAKEFERRY_SQL_URL=f"sqlite:///{witness.lake.home}/c.sqlite")


@follows("manifest.py: choose another place, or remove what is there")
def an_export_whose_manifest_is_broken_is_removed(witness: Witness) -> None:
    table = witness.lake.make("t")
    witness.done("export", table, "--to", witness.lake.uri("out"))
    (witness.lake.folder / "out" / manifest.NAME).write_bytes(b"{")
    witness.refused("export", table, "--to", witness.lake.uri("out"))
    witness.done("export", table, "--to", witness.lake.uri("other"))


@follows("export_place.py: choose another place, or remove what is there")
def an_export_to_a_place_that_is_taken_goes_elsewhere(witness: Witness) -> None:
    table = witness.lake.make("t")
    witness.lake.make("u")
    witness.refused("export", table, "--to", witness.lake.uri("u"))
    witness.done("export", table, "--to", witness.lake.uri("other"))


@follows(
    "export_place.py: choose another place, or remove what is there; if the table has moved from "
    "{}, export it by that path: lakeferry export {} --to {}"
)
def an_export_of_a_table_that_has_moved_goes_on_by_the_old_path(witness: Witness) -> None:
    table, new = witness.lake.make("t"), witness.lake.uri("new")
    out = ("--to", witness.lake.uri("out"))
    witness.done("export", table, *out)
    witness.done("redirect", "enable", table, new, "--engine", "local")
    witness.refused("export", new, *out)
    witness.done("export", table, *out)


@follows(
    "presence.py: restore it, or remove it from the table (deltalake's DeltaTable.repair(), or "
    "a DELETE), and export again; nothing was published"
)
def a_file_that_is_missing_is_restored_and_exported(witness: Witness) -> None:
    table = witness.lake.make("t")
    files = list((witness.lake.folder / "t").rglob("*.parquet"))
    copies = {path: path.read_bytes() for path in files}
    for path in files:
        path.unlink()
    witness.refused("export", table, "--to", witness.lake.uri("out"))
    for path, content in copies.items():
        path.write_bytes(content)
    witness.done("export", table, "--to", witness.lake.uri("out"))
