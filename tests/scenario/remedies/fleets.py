"""Many tables: what a scan, a plan and a run refuse, and what to do then."""

from __future__ import annotations

import shutil

import lakeferry
from lakeferry.fleet.fleet_database import FleetDatabase
from lakeferry.fleet.job_changes import JobChanges
from tests.support.remedies import NEEDS_A_PERSON, Witness, follows, provoked
from tests.support.unity_server import unity_server
from tests.unit.cli.program import environment

NEEDS_A_PERSON.update(
    {
        "cli/fleet.py: <session.output.after_interrupt>": provoked(
            "it takes a signal to a running process",
            "scenario/test_fleet.py::test_an_interrupted_run_says_how_to_go_on_and_goes_on",
        ),
        "running.py: run it again: lakeferry fleet run": provoked(
            "it takes a signal to a running process",
            "unit/fleet/test_running.py::"
            "test_an_interrupt_lets_nothing_begin_and_tells_what_is_done",
        ),
        "fleet_database.py: install the newest version: pip install --upgrade lakeferry": provoked(
            "a newer Lakeferry has to be installed",
            "scenario/test_fleet_records.py::"
            "test_a_database_of_a_newer_version_is_refused_and_not_changed",
        ),
    }
)


def _scanned(witness: Witness, *names: str) -> None:
    for name in names:
        witness.lake.make(f"old/{name}")
    witness.done("fleet", "scan", witness.lake.uri("old"))


@follows("fleet/fleet.py: give a prefix or a catalog: lakeferry fleet scan PREFIX")
def a_first_scan_names_a_prefix(witness: Witness) -> None:
    witness.lake.make("old/t")
    witness.refused("fleet", "scan")
    witness.done("fleet", "scan", witness.lake.uri("old"))


@follows("targets.py: don't write '..' after {name} or {path}")
def a_template_that_leads_out_of_its_folder(witness: Witness) -> None:
    _scanned(witness, "t")
    witness.refused("fleet", "plan", "--to", witness.lake.uri("new") + "/{name}/../../x/{name}")
    witness.done("fleet", "plan", "--to", witness.lake.uri("new") + "/x/{name}")


@follows("scan.py: check the path, and give a folder or bucket with tables below it")
def a_prefix_that_is_misspelt_is_corrected(witness: Witness) -> None:
    witness.lake.make("old/t")
    witness.refused("fleet", "scan", witness.lake.uri("odl"))
    witness.done("fleet", "scan", witness.lake.uri("old"))


@follows("scan.py: write sql:, unity:catalog or unity:catalog.schema")
def a_catalog_that_is_misspelt_is_corrected(witness: Witness) -> None:
    witness.done("catalog", "register", "sql:sales.eu.t", witness.lake.make("t"))
    witness.refused("fleet", "scan", "sql:sales/eu")
    assert witness.done("fleet", "scan", "sql:sales.eu")["tables"]


@follows("planning.py: scan the folders or catalogs that they are in: lakeferry fleet scan PREFIX")
def a_list_with_tables_that_were_not_scanned_waits_for_the_scan(witness: Witness) -> None:
    moves = witness.lake.home / "moves.csv"
    source, target = witness.lake.make("old/t"), witness.lake.uri("new")
    moves.write_text(f"source,target\n{source},{target}\n")
    witness.refused("fleet", "plan", "--from-file", moves)
    witness.done("fleet", "scan", witness.lake.uri("old"))
    (table,) = witness.done("fleet", "plan", "--from-file", moves)["tables"]
    assert table["state"] == "PLANNED"


@follows("targets.py: choose another target: lakeferry fleet plan --to, or a list with --from-file")
def targets_that_are_the_same_are_told_apart(witness: Witness) -> None:
    _scanned(witness, "a/t", "b/t")
    planned = witness.done("fleet", "plan", "--to", f"{witness.lake.uri('new')}/{{name}}")
    witness.told(planned["tables"][0]["problems"][0])
    planned = witness.done("fleet", "plan", "--to", witness.lake.uri("new"))
    assert {table["state"] for table in planned["tables"]} == {"PLANNED"}


@follows("targets.py: put {name} or {path} into it, as in 'sql:sales.new.{name}'")
def a_rule_for_names_says_what_they_are(witness: Witness) -> None:
    _scanned(witness, "t")
    place = ("--location", witness.lake.uri("new"))
    witness.refused("fleet", "plan", "--to", "sql:sales.new.t", *place)
    planned = witness.done("fleet", "plan", "--to", "sql:sales.new.{name}", *place)
    assert planned["tables"][0]["target"] == "sql:sales.new.t"


@follows("waves.py: choose other targets, or move one of them to a third place first")
def tables_that_are_to_change_places_go_elsewhere(witness: Witness) -> None:
    _scanned(witness, "a", "b")
    a, b = witness.lake.uri("old/a"), witness.lake.uri("old/b")
    moves = witness.lake.home / "moves.csv"
    moves.write_text(f"source,target,to_existing\n{a},{b},yes\n{b},{a},yes\n")
    witness.refused("fleet", "plan", "--from-file", moves, "--waves", 2)
    moves.write_text(f"source,target\n{a},{witness.lake.uri('c')}\n")
    witness.done("fleet", "plan", "--from-file", moves, "--waves", 2)


@follows("waves.py: write it as 22:00-05:00", "waves.py: write it as Europe/Berlin, or UTC")
def a_window_is_written_with_two_times_and_a_zone(witness: Witness) -> None:
    _scanned(witness, "t")
    witness.done("fleet", "plan", "--to", witness.lake.uri("new"))
    witness.refused("fleet", "run", "--window", "at night")
    window = ("--window", "00:00-24:00")
    witness.refused("fleet", "run", *window, "--time-zone", "Berlin")
    assert witness.done("fleet", "run", *window, "--time-zone", "Europe/Berlin")["moved"] == 1


@follows(
    "running.py: scan the catalog again, and plan the move of what is there now: lakeferry fleet "
    "scan {}"
)
def a_name_that_was_given_to_another_table_is_scanned_again(witness: Witness) -> None:
    lake = witness.lake
    with unity_server() as unity:
        variables, name = unity.environment(), f"unity:{unity.schema}.t"
        witness.done("catalog", "register", name, lake.make("t"), **variables)
        witness.done("fleet", "scan", name, **variables)
        words = ("fleet", "plan", "--to", lake.uri("new"))
        witness.done(*words, **variables)
        witness.done("catalog", "remove", name, **variables)
        witness.done("catalog", "register", name, lake.make("u"), **variables)
        witness.told(lake.run("fleet", "run", **variables).error)
        witness.done("fleet", "scan", name, **variables)
        witness.done(*words, **variables)
        assert witness.done("fleet", "run", **variables)["moved"] == 1


@follows("fleet/fleet.py: give the one or the other")
def one_wave_or_several(witness: Witness) -> None:
    fleet = lakeferry.Fleet(environment=environment(witness.lake.home))
    witness.raises(lambda: fleet.plan(wave=1, waves=2))
    witness.returns(lambda: fleet.plan(waves=2))


@follows("records.py: use one of {}")
def tables_are_sorted_by_what_is_recorded(witness: Witness) -> None:
    from lakeferry.fleet.records import TableQuery

    fleet = lakeferry.Fleet(environment=environment(witness.lake.home))
    witness.raises(lambda: fleet.status(TableQuery(sort="holder")))
    witness.returns(lambda: fleet.status(TableQuery(sort="size_bytes")))


@follows("fleet_database.py: restore it from a copy, or scan again: lakeferry fleet scan PREFIX")
def a_database_that_is_gone_in_the_middle_is_made_by_a_scan(witness: Witness) -> None:
    _scanned(witness, "t")
    data = witness.lake.home / ".local" / "share" / "lakeferry"
    with FleetDatabase(f"sqlite:///{data}/catalog.sqlite") as database:
        changes = JobChanges(database)
        changes.begin_run("me", None, {})
        shutil.rmtree(data)
        witness.raises(lambda: changes.take("me", 1, 1, 1))
    assert witness.done("fleet", "scan", witness.lake.uri("old"))["tables"]
