"""``lakeferry redirect`` as a user runs it, on local disk and on a real S3 server."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from lakeferry.errors import StorageUnavailable
from lakeferry.redirect.move import Move
from tests.support import lake as lakes
from tests.support.history import Append
from tests.support.lake import Lake, entry, redirected
from tests.support.servers import S3Bucket, free_port
from tests.unit.cli.program import PROGRAM, environment, run

READER_WRITER = "delta.redirectReaderWriter"
WRITER_ONLY = "delta.redirectWriterOnly"
ENABLING = "ENABLE-REDIRECT-IN-PROGRESS"


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.versitygw)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "disk":
        return lakes.on_disk(tmp_path)
    return lakes.on_s3(tmp_path, request.getfixturevalue("s3_bucket"))


@pytest.fixture
def disk(tmp_path: Path) -> Lake:
    return lakes.on_disk(tmp_path)


def broken_off(lake: Lake, source: str, target: str, **options: Any) -> str:
    """Begin a move in this process that ends where writers wait; return the source."""

    def fail(_: Move) -> None:
        raise StorageUnavailable("the line is dead")

    uri = lake.make(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Move, "put_lock", fail)
        with pytest.raises(StorageUnavailable):
            lake.table(source).redirect(lake.uri(target), **options)
    return uri


def paths(ended: Any) -> list[str]:
    return sorted(line["path"] for line in ended.lines)


# --- A move -------------------------------------------------------------------


def test_a_table_moves_its_old_path_follows_and_it_comes_back(lake: Lake) -> None:
    source, target = lake.make("old"), lake.uri("new")
    before = paths(lake.run("files", source))
    moved = lake.done("redirect", "enable", source, target)
    assert moved["blocked_ms"] >= 0
    assert moved["bytes_copied"] > 0
    assert {key: moved[key] for key in ("state", "source", "target", "version")} == {
        "state": "READY",
        "source": source,
        "target": target,
        "version": 5,
    }
    assert (moved["files_copied"], moved["changed"]) == (5, True)
    assert lake.done("redirect", "resolve", source)["location"] == target

    followed = paths(lake.run("files", source))
    assert followed == [path.replace("/old/", "/new/") for path in before]
    assert paths(lake.run("files", source, "--no-follow")) == before
    lake.table("new").freeze()
    commits = lake.done("history", source)["commits"]
    assert commits == lake.done("history", target)["commits"]
    assert commits[0]["version"] == 6
    assert lake.done("history", source, "--no-follow")["commits"][0]["version"] == 5
    lake.table("new").thaw()
    assert paths(lake.run("files", source, "--version", 1)) != followed

    back = lake.done("redirect", "disable", source)
    assert (back["state"], back["version"], back["changed"]) == ("NORMAL", 9, True)
    assert lake.done("redirect", "disable", source)["changed"] is False
    assert paths(lake.run("files", source)) == before
    assert lake.done("redirect", "resolve", source) == {
        "location": source,
        "redirected": False,
        "name": None,
        "chain": [source],
        "rule": None,
    }


@pytest.mark.parametrize("mode", ["reader-writer", "writer-only"])
def test_status_has_every_key_in_every_state(disk: Lake, mode: str) -> None:
    source, target = disk.make("old"), disk.uri("new")
    assert disk.done("redirect", "status", source) == {
        "state": "NORMAL",
        "frozen": False,
        "unfinished": None,
        "mode": None,
        "dialect": [],
        "type": None,
        "spec": {},
        "rules": [],
        "target": None,
        "name": None,
        "source_version": 3,
        "target_version": None,
        "data": None,
        "lacking": None,
        "warnings": [],
    }
    rule = ("--rule", "nightly:VACUUM,OPTIMIZE", "--rule", ":REFRESH UNIFORM")
    disk.done("redirect", "enable", source, target, "--mode", mode, *rule)
    spoken = ["rfc"] if mode == "reader-writer" else ["rfc", "delta-spark"]
    assert disk.done("redirect", "status", source) == {
        "state": "READY",
        "frozen": False,
        "unfinished": None,
        "mode": mode,
        "dialect": spoken,
        "type": "Object Store",
        "spec": {"Location": target},
        "rules": [
            {"app_name": "nightly", "operations": ["VACUUM START", "VACUUM END", "OPTIMIZE"]},
            {"app_name": None, "operations": ["REFRESH UNIFORM"]},
        ],
        "target": target,
        "name": None,
        "source_version": 5,
        "target_version": 5,
        "data": "copy",
        "lacking": None,
        "warnings": [],
    }
    # A rule for everybody keeps everybody.
    assert disk.done("redirect", "resolve", source)["location"] == source
    text = run("redirect", "status", source, home=disk.home).out
    assert f"target: {target}\n" in text
    assert "everybody\tREFRESH UNIFORM\n" in text


def test_a_rule_keeps_its_application_at_the_source(disk: Lake) -> None:
    source, target = disk.make("old"), disk.uri("new")
    disk.done("redirect", "enable", source, target, "--rule", "nightly:OPTIMIZE")
    kept = disk.done("redirect", "resolve", source, "--app-name", "Nightly")
    assert (kept["location"], kept["redirected"]) == (source, False)
    assert kept["rule"] == {"app_name": "nightly", "operations": ["OPTIMIZE"]}
    other = disk.done("redirect", "resolve", source, "--app-name", "hourly")
    assert (other["location"], other["redirected"], other["rule"]) == (target, True, None)
    again = ("redirect", "enable", source, target, "--rule", "hourly:OPTIMIZE")
    assert disk.done(*again)["changed"] is True
    assert disk.done(*again)["changed"] is False
    assert disk.done("redirect", "resolve", source, "--app-name", "hourly")["location"] == source


@pytest.mark.parametrize(
    ("words", "dialects"),
    [
        (("--dialect", "catalog"), ["catalog"]),
        (("--dialect", "delta-spark"), ["delta-spark"]),
        (("--dialect", "rfc,delta-spark"), ["rfc", "delta-spark"]),
    ],
)
def test_a_dialect_is_chosen(disk: Lake, words: tuple[str, ...], dialects: list[str]) -> None:
    source = disk.make("old")
    disk.done("redirect", "enable", source, disk.uri("new"), *words)
    status = disk.done("redirect", "status", source)
    assert (status["state"], sorted(status["dialect"])) == ("READY", sorted(dialects))


def test_dangers_are_told_before_on_standard_error_and_in_the_document(disk: Lake) -> None:
    source = disk.make("old")
    moved = disk.run("redirect", "enable", source, disk.uri("new"), "--data", "reference")
    assert moved.code == 0, moved.err
    warnings = moved.document["warnings"]
    assert any("VACUUM" in text for text in warnings)
    assert moved.err.splitlines() == [f"warning: {text}" for text in warnings]
    again = disk.run("redirect", "enable", source, disk.uri("new"), "--data", "reference")
    assert (again.err, again.document["warnings"]) == ("", [])


def test_who_wrote_lately_is_told_before_the_move_and_in_both_documents(disk: Lake) -> None:
    source, target = disk.make("old"), disk.uri("new")
    words = ("redirect", "enable", source, target, "--mode", "writer-only")
    shown = run(*words, "--dry-run", home=disk.home)
    assert shown.code == 0, shown.err
    told = shown.err.splitlines()
    first = told.index("Clients that wrote the newest commits:")
    assert told[first + 1].startswith("warning: history wrote on ")
    assert told[first + 1].endswith("unless it knows redirects, which wasn't tested")
    (foreseen,) = disk.done(*words, "--dry-run")["writers"]
    (writer,) = disk.done(*words)["writers"]
    assert writer == foreseen
    assert (writer["name"], writer["commits"], writer["reads"]) == ("history", 4, "frozen copy")
    assert disk.done(*words)["writers"] == []


def test_a_reference_target_names_the_source_s_files(lake: Lake) -> None:
    source = lake.make("old")
    before = paths(lake.run("files", source))
    moved = lake.done("redirect", "enable", source, lake.uri("new"), "--data", "reference")
    assert moved["files_copied"] == 0
    assert paths(lake.run("files", source)) == before
    assert not list((lake.folder / "new").glob("*.parquet"))


def test_a_table_that_is_there_is_compared_first(disk: Lake) -> None:
    source, target = disk.make("old"), disk.make("new")
    other = disk.make("other", lakes.ORDERS.then(Append(1)))
    words = ("redirect", "enable", source, "--to-existing")
    assert disk.refused(*words, other) == "not_equal"
    assert disk.refused(*words, disk.uri("nowhere")) == "redirect_target_missing"
    assert disk.done("redirect", "status", source)["state"] == "NORMAL"
    assert disk.done(*words, target)["files_copied"] == 0
    assert disk.done("redirect", "resolve", source)["location"] == target
    ended = disk.run("redirect", "disable", source, "--remove-target")
    assert (ended.code, ended.error["code"]) == (2, "invalid_input")
    disk.done("redirect", "disable", source)
    blind = disk.done(*words, other, "--unverified")
    assert any("wasn't compared" in text for text in blind["warnings"])


def test_disable_can_remove_the_target(disk: Lake) -> None:
    source, target = disk.make("old"), disk.uri("new")
    disk.done("redirect", "enable", source, target)
    disk.done("redirect", "disable", source, "--remove-target")
    assert disk.refused("inspect", target) == "table_not_found"
    assert len(paths(disk.run("files", source))) == 4


def test_places_take_their_options_from_where_they_are(tmp_path: Path, s3_bucket: S3Bucket) -> None:
    local = lakes.on_disk(tmp_path)
    source = local.make("old")
    options = "\n".join(
        f'{key.lower()} = "{value}"' for key, value in s3_bucket.server.environment().items()
    )
    place = f'[storage_options."{s3_bucket.uri}"]\n{options}\n'
    (local.home / "lakeferry.toml").write_text(place)
    target = f"{s3_bucket.uri}/new"
    assert local.done("redirect", "enable", source, target)["state"] == "READY"
    assert all(path.startswith(target) for path in paths(local.run("files", source)))
    assert local.done("inspect", source)["warnings"] == []
    assert local.done("redirect", "disable", source, "--remove-target")["state"] == "NORMAL"


# --- Catalogs -----------------------------------------------------------------


def test_a_name_in_a_catalog_is_a_target_and_is_asked_every_time(disk: Lake) -> None:
    source, place, name = disk.make("old"), disk.uri("new"), "sql:sales.eu.orders"
    ended = disk.run("redirect", "enable", source, name)
    assert (ended.code, ended.error["code"]) == (2, "invalid_input")
    moved = disk.done("redirect", "enable", source, name, "--location", place)
    assert (moved["state"], moved["target"]) == ("READY", name)
    status = disk.done("redirect", "status", source)
    assert (status["type"], status["spec"]) == ("SQL Catalog", {"Table": "sales.eu.orders"})
    assert status["target"] == place
    assert disk.done("catalog", "show", name)["location"] == place
    assert disk.done("redirect", "enable", source, name)["changed"] is False

    shutil.copytree(disk.folder / "new", disk.folder / "newer")
    disk.done("catalog", "move", name, disk.uri("newer"))
    assert disk.done("redirect", "resolve", source)["location"] == disk.uri("newer")
    assert disk.uri("newer") in paths(disk.run("files", source))[0]


@pytest.mark.parametrize("command", [["files"], ["history"], ["redirect", "resolve"]])
def test_a_catalog_that_is_down_is_never_the_source_by_mistake(
    disk: Lake, command: list[str]
) -> None:
    value = entry("", Type="Unity Catalog", Spec={"Table": "main.sales.orders"})
    source = disk.make("old", redirected((READER_WRITER, value)))
    dead = f"http://127.0.0.1:{free_port()}"
    assert disk.refused(*command, source, UC_URL=dead) == "catalog_unavailable"
    if command != ["redirect", "resolve"]:
        assert disk.run(*command, source, "--no-follow", UC_URL=dead).code == 0


# --- What is written, and where -----------------------------------------------


def test_dry_runs_write_nothing(lake: Lake) -> None:
    normal, ready, target = lake.make("normal"), lake.make("ready"), lake.uri("new")
    lake.done("redirect", "enable", ready, lake.uri("moved"))
    frozen = lake.make("frozen")
    lake.done("redirect", "freeze", frozen)
    begun = broken_off(lake, "begun", "half")
    table = ("--location", target)
    (lake.home / "moves.csv").write_text(f"source,target\n{normal},{target}\n{begun},{begun}x\n")
    commands: list[tuple[tuple[str, ...], int]] = [
        (("enable", normal, target), 12),
        (("enable", normal, target, "--data", "reference"), 11),
        (("enable", normal, "sql:sales.eu.orders", *table), 13),
        (("enable", normal, lake.uri("moved"), "--to-existing"), 3),
        (("enable", ready, lake.uri("moved")), 0),
        (("enable", ready, lake.uri("moved"), "--rule", "a:OPTIMIZE"), 1),
        (("freeze", normal), 1),
        (("freeze", frozen), 0),
        (("thaw", frozen), 1),
        (("thaw", normal), 0),
        (("resume", begun), 4),
        (("resume", ready), 0),
        (("cancel", begun), 3),
        (("cancel", normal), 0),
        (("disable", ready), 6),
        (("disable", ready, "--remove-target"), 7),
        (("disable", normal), 0),
    ]
    before = lake.tree()
    for words, steps in commands:
        planned = lake.done("redirect", *words, "--dry-run")
        assert planned["dry_run"] is True
        assert all(isinstance(step["op"], str) for step in planned["plan"])
        assert (len(planned["plan"]) > 0) == (steps > 0), words
    listed = lake.run("redirect", "enable", "--from-file", "moves.csv", "--dry-run")
    assert (listed.code, listed.error["code"]) == (1, "redirect_in_progress")
    plan = listed.document["plan"]
    assert [step["source"] for step in plan] == [normal, begun]
    assert plan[0]["steps"] == lake.done("redirect", "enable", normal, target, "--dry-run")["plan"]
    assert lake.tree() == before


def test_the_plan_is_what_is_done(disk: Lake) -> None:
    source, target = disk.make("old"), disk.uri("new")
    words = ("redirect", "enable", source, target)
    plan = disk.done(*words, "--dry-run")["plan"]
    commits = [(step["table"], step["version"]) for step in plan if step["op"] == "commit"]
    disk.done(*words)
    for table, version in commits:
        newest = disk.done("inspect", table, "--version", version)
        assert newest["version"] == version
    text = run(*words, "--dry-run", home=disk.home)
    assert text.out == "nothing would be changed\n"


# --- Refusals -----------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["bogus"],
        ["enable"],
        ["enable", "a"],
        ["enable", "a", "b", "c"],
        ["enable", "a", "b", "--mode", "reader"],
        ["enable", "a", "b", "--data", "existing"],
        ["enable", "a", "b", "--dialect", "rfc,latin"],
        ["enable", "a", "b", "--engine", "flink"],
        ["enable", "a", "b", "--rule", "OPTIMIZE"],
        ["enable", "a", "b", "--unverified"],
        ["enable", "a", "b", "--location", "c"],
        ["enable", "a", "b", "--parallel", "2"],
        ["enable", "a", "sql:orders"],
        ["enable", "a", "ftp://host/table"],
        ["enable", "a", "b", "--from-file", "moves.csv"],
        ["enable", "--from-file", "nowhere.csv"],
        ["enable", "--from-file", "moves.csv", "--parallel", "0"],
        ["status"],
        ["status", "a", "b"],
        ["status", "a", "--dry-run"],
        ["resume"],
        ["disable", "a", "--data", "existing"],
        ["freeze", "a", "--mode", "none"],
        ["resolve", "a", "--app-name"],
    ],
)
def test_wrong_usage_is_2(disk: Lake, words: list[str]) -> None:
    disk.make("a")
    for name in ("a", "moves.csv"):
        (disk.home / name).unlink(missing_ok=True)
    shutil.copytree(disk.folder / "a", disk.home / "a")
    (disk.home / "moves.csv").write_text("source,target\na,b\n")
    before = disk.tree()
    ended = disk.run("redirect", *words)
    assert (ended.code, ended.out) == (2, ""), ended
    assert ended.error["code"] == "invalid_input"
    assert ended.error["remedy"]
    assert disk.tree() == before


@pytest.mark.parametrize("position", range(5))
def test_json_may_stand_anywhere(disk: Lake, position: int) -> None:
    words = ["redirect", "resolve", disk.make("old"), "--app-name", "nightly"]
    words.insert(position, "--json")
    ended = run(*words, home=disk.home)
    assert ended.document["redirected"] is False
    assert ended.err == ""


def test_what_can_t_be_moved_is_refused_by_its_code(lake: Lake) -> None:
    source = lake.make("old")
    full, beside = lake.make("full"), lake.uri("beside")
    (lake.folder / "beside").mkdir()
    (lake.folder / "beside" / "notes.txt").write_text("mine")
    enable = ("redirect", "enable")
    before = lake.tree()
    assert lake.refused(*enable, lake.uri("nowhere"), lake.uri("new")) == "table_not_found"
    assert lake.refused(*enable, source, full) == "redirect_target_not_empty"
    assert lake.refused(*enable, source, beside) == "redirect_target_not_empty"
    assert lake.refused(*enable, source, f"{source}/") == "redirect_cycle"
    for verb in ("status", "resume", "cancel", "disable", "freeze", "thaw", "resolve"):
        assert lake.refused("redirect", verb, lake.uri("nowhere")) == "table_not_found"
    assert lake.refused("redirect", "resume", source) == "redirect_illegal_transition"
    for verb in ("cancel", "disable", "thaw"):
        assert lake.done("redirect", verb, source)["changed"] is False
    assert lake.tree() == before


def test_a_move_that_has_begun_is_gone_on_with_or_taken_back(lake: Lake) -> None:
    source, target = broken_off(lake, "old", "new"), lake.uri("new")
    enable = ("redirect", "enable", source)
    assert lake.refused(*enable, target) == "redirect_in_progress"
    assert lake.refused(*enable, lake.uri("elsewhere")) == "redirect_in_progress"
    for verb in ("disable", "thaw", "freeze"):
        assert lake.refused("redirect", verb, source) == "redirect_illegal_transition"
    status = lake.done("redirect", "status", source)
    assert (status["state"], status["target"]) == (ENABLING, target)
    assert lake.done("redirect", "resolve", source)["location"] == source
    assert lake.done("inspect", source)["redirect"]["state"] == ENABLING

    back = lake.done("redirect", "cancel", source)
    assert (back["state"], back["changed"]) == ("NORMAL", True)
    assert lake.done("redirect", "cancel", source)["changed"] is False
    assert lake.refused("inspect", target) == "table_not_found"

    again = broken_off(lake, "second", "second-new")
    on = lake.done("redirect", "resume", again)
    assert (on["state"], on["changed"]) == ("READY", True)
    assert lake.done("redirect", "resume", again)["changed"] is False
    assert lake.done("redirect", "resolve", again)["location"] == lake.uri("second-new")


def test_what_is_ready_stays_as_it_is(disk: Lake) -> None:
    source, target = disk.make("old"), disk.uri("new")
    enable = ("redirect", "enable", source)
    disk.done(*enable, target)
    again = disk.done(*enable, target)
    assert (again["state"], again["changed"], again["files_copied"]) == ("READY", False, 0)
    illegal = "redirect_illegal_transition"
    assert disk.refused(*enable, disk.uri("other")) == illegal
    assert disk.refused(*enable, target, "--mode", "writer-only") == illegal
    for verb in ("cancel", "thaw", "freeze"):
        assert disk.refused("redirect", verb, source) == illegal


def test_a_frozen_table_can_be_read_and_thawed(disk: Lake) -> None:
    table = disk.make("orders")
    first = disk.done("redirect", "freeze", table)
    assert (first["state"], first["target"], first["changed"]) == (ENABLING, None, True)
    assert disk.done("redirect", "freeze", table)["changed"] is False
    other = ("redirect", "freeze", table, "--mode", "reader-writer")
    assert disk.refused(*other) == "redirect_illegal_transition"
    assert disk.refused("redirect", "resume", table) == "redirect_illegal_transition"
    assert disk.refused("redirect", "enable", table, disk.uri("new")) == "redirect_in_progress"
    assert len(paths(disk.run("files", table))) == 4
    assert disk.done("redirect", "resolve", table)["redirected"] is False
    entry_shown = disk.done("inspect", table)["redirect"]
    assert (entry_shown["state"], entry_shown["target"]) == (ENABLING, None)
    last = disk.done("redirect", "thaw", table)
    assert (last["state"], last["changed"]) == ("NORMAL", True)
    assert disk.done("redirect", "thaw", table)["changed"] is False


# --- Entries of others --------------------------------------------------------


READERS = (["history"], ["files"], ["redirect", "resolve"])


def test_an_entry_that_makes_no_sense_stops_everybody_but_inspect(disk: Lake) -> None:
    source = disk.make("old", redirected((READER_WRITER, "nonsense")))
    before = disk.tree()
    verbs = ("status", "resume", "cancel", "disable", "freeze", "thaw")
    for words in (*READERS, *(["redirect", verb] for verb in verbs)):
        assert disk.refused(*words, source) == "redirect_spec_invalid", words
    assert disk.refused("redirect", "enable", source, disk.uri("new")) == "redirect_spec_invalid"
    shown = disk.done("inspect", source)
    assert [warning["code"] for warning in shown["warnings"]] == ["redirect_spec_invalid"]
    redirect = shown["redirect"]
    assert (redirect["feature"], redirect["value"]) == ("redirectReaderWriter", "nonsense")
    assert (redirect["state"], redirect["target"], redirect["rules"]) == (None, None, None)
    for command in ("history", "files"):
        assert disk.run(command, source, "--no-follow").code == 0
    assert disk.tree() == before


@pytest.mark.parametrize(
    "value",
    [
        "[]",
        '{"Type":"Object Store","State":"READY"}',
        entry("s3://new/t", State="LOST"),
        entry("s3://new/t", Type="Carrier Pigeon"),
        entry("ftp://new/t"),
        entry("s3://new/t", NoRedirectRules={"AppName": "x"}),
    ],
    ids=["shape", "spec", "state", "type", "place", "rules"],
)
def test_whatever_makes_no_sense_is_named(disk: Lake, value: str) -> None:
    source = disk.make("old", redirected((READER_WRITER, value)))
    ended = disk.run("files", source)
    assert (ended.code, ended.error["code"]) == (1, "redirect_spec_invalid")
    assert ended.error["location"] == source
    assert ended.error["value"]


def test_a_property_without_its_feature_blocks_nobody_and_is_not_followed(disk: Lake) -> None:
    target = disk.make("new")
    source = disk.make("old", redirected((READER_WRITER, entry(target)), features=()))
    for words in READERS:
        ended = disk.run(*words, source)
        assert ended.code == 0
        assert "without its table feature" in ended.err
    assert disk.done("redirect", "resolve", source)["location"] == source
    assert disk.refused("redirect", "status", source) == "redirect_spec_invalid"
    assert disk.refused("redirect", "enable", source, disk.uri("x")) == "redirect_spec_invalid"
    shown = disk.done("inspect", source)
    assert {warning["code"] for warning in shown["warnings"]} == {"property_without_feature"}


def test_of_both_modes_reads_follow_one_and_nothing_may_change(disk: Lake) -> None:
    target, other = disk.make("new"), disk.make("other")
    values = ((READER_WRITER, entry(target)), (WRITER_ONLY, entry(other)))
    source = disk.make("old", redirected(*values))
    found = disk.run("redirect", "resolve", source)
    assert found.document["location"] == target
    assert "both modes" in found.err
    assert disk.done("redirect", "status", source)["warnings"]
    assert disk.refused("redirect", "enable", source, target) == "redirect_spec_invalid"
    for verb in ("resume", "cancel", "disable", "freeze", "thaw"):
        for flags in ([], ["--dry-run"]):
            words = ("redirect", verb, source, *flags)
            assert disk.refused(*words) == "redirect_spec_invalid", words
    shown = disk.done("inspect", source)
    assert {warning["code"] for warning in shown["warnings"]} == {"redirect_of_both_modes"}
    assert shown["redirect"]["mode"] == "reader-writer"


def test_a_target_that_is_gone_is_missing_and_inspect_says_so(disk: Lake) -> None:
    source, target = disk.make("old"), disk.uri("new")
    disk.done("redirect", "enable", source, target)
    assert disk.done("inspect", source)["warnings"] == []
    shutil.rmtree(disk.folder / "new")
    for words in READERS:
        assert disk.refused(*words, source) == "redirect_target_missing"
    shown = disk.done("inspect", source)
    assert [warning["code"] for warning in shown["warnings"]] == ["redirect_leads_nowhere"]
    assert shown["redirect"]["target"] == target
    status = disk.done("redirect", "status", source)
    assert (status["state"], status["target_version"]) == ("READY", None)
    assert status["warnings"]


def test_an_entry_that_a_restore_brought_back_leads_nowhere(disk: Lake) -> None:
    source = disk.make("old")
    disk.done("redirect", "enable", source, disk.uri("new"))
    disk.done("redirect", "disable", source)
    assert disk.done("inspect", source)["warnings"] == []
    log = disk.folder / "old" / "_delta_log"
    ready = log / f"{5:020d}.json"
    begun = log / f"{4:020d}.json"
    lines = [line for line in ready.read_text().splitlines() if '"metaData"' in line]
    lines += [line for line in begun.read_text().splitlines() if '"protocol"' in line]
    restored = [json.dumps({"commitInfo": {"operation": "RESTORE"}}), *lines]
    (log / f"{8:020d}.json").write_text("\n".join(restored))
    shown = disk.done("inspect", source)
    assert [warning["code"] for warning in shown["warnings"]] == ["redirect_leads_nowhere"]
    assert disk.done("inspect", source, "--version", 7)["warnings"] == []


def test_chains_are_followed_to_their_end_and_cycles_refused(disk: Lake) -> None:
    last = disk.make("c")
    disk.make("b", redirected((WRITER_ONLY, entry(last))))
    first = disk.make("a", redirected((READER_WRITER, entry(disk.uri("b")))))
    found = disk.done("redirect", "resolve", first)
    assert found["chain"] == [first, disk.uri("b"), last]
    assert paths(disk.run("files", first)) == paths(disk.run("files", last))
    disk.make("x", redirected((READER_WRITER, entry(disk.uri("y")))))
    disk.make("y", redirected((READER_WRITER, entry(disk.uri("x")))))
    for words in READERS:
        assert disk.refused(*words, disk.uri("x")) == "redirect_cycle"
    back = ("redirect", "enable", last, first, "--to-existing", "--unverified")
    assert disk.refused(*back) == "redirect_cycle"


def test_a_dialect_s_own_spelling_is_followed(disk: Lake) -> None:
    target = disk.make("new")
    spec = json.dumps({"sourcePath": str(disk.folder / "old"), "destPath": target})
    value = {"type": "PathBasedRedirect", "state": "REDIRECT-READY", "spec": spec}
    text = json.dumps({**value, "noRedirectRules": []})
    source = disk.make("old", redirected((f"{WRITER_ONLY}-preview", text)))
    assert disk.done("redirect", "resolve", source)["location"] == target
    shown = disk.done("inspect", source)["redirect"]
    assert (shown["state"], shown["mode"]) == ("READY", "writer-only")
    assert (shown["dialects"], shown["type"]) == (["delta-spark"], "Object Store")
    assert (shown["target"], shown["rules"]) == (target, [])
    assert "READY, to " in run("inspect", source, home=disk.home).out


# --- Many tables --------------------------------------------------------------


def test_a_list_is_moved_but_for_what_fails_and_goes_on_when_run_again(lake: Lake) -> None:
    sources = [lake.make(f"old{number}") for number in range(3)]
    begun = broken_off(lake, "begun", "half", mode="writer-only")
    blocked = lake.make("blocked")
    (lake.folder / "full").mkdir()
    (lake.folder / "full" / "notes.txt").write_text("mine")
    rows = [
        "source,target,mode,rule",
        *(f"{uri},{uri.replace('old', 'new')},," for uri in sources),
        f"{lake.uri('nowhere')},{lake.uri('nothing')},,",
        f'{blocked},{lake.uri("full")},,"nightly:OPTIMIZE;:VACUUM"',
        f"{begun},{lake.uri('half')},writer-only,",
    ]
    (lake.home / "moves.csv").write_text("\r\n".join(rows) + "\r\n", encoding="utf-8-sig")
    words = ("redirect", "enable", "--from-file", "moves.csv", "--parallel", "2")

    first = lake.run(*words)
    assert first.code == 1, first.err
    moves = first.document["moves"]
    assert first.document["changed"] is True
    assert [move["source"] for move in moves] == [
        *sources,
        lake.uri("nowhere"),
        blocked,
        begun,
    ]
    codes = [move["error"] and move["error"]["code"] for move in moves]
    assert codes == [None] * 3 + ["table_not_found", "redirect_target_not_empty", None]
    assert [move["state"] for move in moves] == ["READY"] * 3 + [None, None, "READY"]
    assert [move["changed"] for move in moves] == [True] * 3 + [False, False, True]
    assert all(move["files_copied"] == 5 for move in moves[:3])
    error = first.error
    assert (error["code"], error["failed"], error["total"]) == ("table_not_found", 2, 6)
    assert lake.done("redirect", "status", blocked)["state"] == "NORMAL"

    shutil.rmtree(lake.folder / "full")
    lake.make("nowhere")
    second = lake.run(*words)
    assert second.code == 0, second.err
    moves = second.document["moves"]
    assert [move["changed"] for move in moves] == [False] * 3 + [True, True, False]
    assert {move["state"] for move in moves} == {"READY"}
    rules = lake.done("redirect", "status", blocked)["rules"]
    assert [rule["app_name"] for rule in rules] == ["nightly", None]
    third = lake.done(*words)
    assert third["changed"] is False
    text = run(*words, home=lake.home, variables=lake.variables)
    assert text.out.splitlines()[0] == "source\ttarget\tstate\twhat was done"


def test_a_list_that_makes_no_sense_is_refused_before_anything_starts(disk: Lake) -> None:
    a, b = disk.make("a"), disk.make("b")
    cases = {
        "": [1],
        "from,to\na,b\n": [1],
        "source\na\n": [1],
        "source,target,colour\na,b,red\n": [1],
        f"source,target\n{a},x\n{b},x\n": [3],
        f"source,target\n{a},x\n{a}/,y\n": [3],
        f"source,target,location\n{a},sql:a.b.c,x\n{b},sql:a.b.d,x\n": [3],
        f"source,target\n{a},\n,y\n{b},z,more\n": [2, 3, 4],
        f"source,target,mode,data,dialect,to_existing\n{a},x,fast,,,\n{b},y,,,latin,maybe\n": [
            2,
            3,
        ],
        f"source,target,rule,unverified\n{a},x,OPTIMIZE,\n{b},y,,true\n": [2, 3],
        f'source,target\n{a},"x\n': [2],
        f"source,target\n{a},x\n{b},ftp://host/y\n": [3],
    }
    before = disk.tree()
    for text, lines in cases.items():
        path = disk.home / "moves.csv"
        path.write_text(text)
        ended = disk.run("redirect", "enable", "--from-file", "moves.csv")
        assert (ended.code, ended.out) == (2, ""), (text, ended)
        error = ended.error
        assert (error["code"], error["lines"]) == ("invalid_input", lines), text
        assert all(f"line {line}:" in error["message"] for line in lines)
        path.unlink()
        assert disk.tree() == before


def test_a_list_without_rows_moves_nothing(disk: Lake) -> None:
    (disk.home / "moves.csv").write_text("source,target\n\n")
    done = disk.done("redirect", "enable", "--from-file", "moves.csv")
    assert done == {"moves": [], "changed": False}


def test_cells_beat_the_command_line_and_paths_are_relative_to_the_working_folder(
    disk: Lake,
) -> None:
    for name in ("a", "b"):
        disk.make(name)
        shutil.copytree(disk.folder / name, disk.home / name)
    (disk.home / "moves.csv").write_text("source,target,mode\na,new-a,reader-writer\nb,new-b,\n")
    words = ("redirect", "enable", "--from-file", "moves.csv", "--mode", "writer-only")
    moved = disk.done(*words)["moves"]
    home = disk.home.as_uri()
    assert [(move["source"], move["target"]) for move in moved] == [
        (f"{home}/a", f"{home}/new-a"),
        (f"{home}/b", f"{home}/new-b"),
    ]
    modes = [disk.done("redirect", "status", name)["mode"] for name in ("a", "b")]
    assert modes == ["reader-writer", "writer-only"]


# --- Limits and forecasts -----------------------------------------------------


def test_a_plan_says_how_the_files_travel_and_the_summary_how_they_did(lake: Lake) -> None:
    source, target = lake.make("old"), lake.uri("new")
    words = ("redirect", "enable", source, target)
    plan = lake.done(*words, "--dry-run")["plan"]
    (step,) = [step for step in plan if step["op"] == "copy_data"]
    on_s3 = source.startswith("s3:")
    assert [(way["way"], way["certain"]) for way in step["ways"]] == [("store", True)]
    assert sum(way["bytes"] for way in step["ways"]) == step["bytes"]
    kinds = {"COPY": step["files"], "HEAD": 2 * step["files"], "LIST": 1}
    assert step["requests"] == (kinds if on_s3 else {})
    # The server of the tests isn't Amazon's.
    assert step["request_cost_usd"] is None
    limited = lake.done(*words, "--dry-run", "--limit-rate", "1K")["plan"]
    (step,) = [step for step in limited if step["op"] == "copy_data"]
    assert [way["way"] for way in step["ways"]] == ["store" if on_s3 else "stream"]

    moved = lake.done(*words, "--limit-rate", "100K")
    by_store = moved["bytes_copied"] if on_s3 else 0
    assert (moved["state"], moved["bytes_copied_by_store"]) == ("READY", by_store)
    back = lake.done("redirect", "disable", source, "--limit-rate", "100K")
    assert (back["state"], back["bytes_copied_by_store"]) == ("NORMAL", 0)
    listed = lake.done("export", source, "--to", lake.uri("exported"), "--limit-rate", "1M")
    assert listed["bytes_copied"] > 0 == listed["bytes_copied_by_store"]


def test_a_limit_holds_and_an_interrupt_ends_it_at_once(disk: Lake) -> None:
    source, target = disk.make("old"), disk.uri("new")
    began = time.monotonic()
    moved = disk.done("redirect", "enable", source, target, "--limit-rate", "4K")
    lasted_s = moved["bytes_copied"] / 4096
    assert time.monotonic() - began > lasted_s - 0.25 > 0.4
    # Now the first byte would be there in an hour.
    disk.make("other")
    command = [str(PROGRAM), "redirect", "enable", disk.uri("other"), disk.uri("there")]
    with subprocess.Popen(
        [*command, "--limit-rate", "1", "--json"],
        cwd=disk.home,
        env=environment(disk.home, disk.variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while not (disk.folder / "there").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        interrupted_s = time.monotonic()
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - interrupted_s < 10
    assert (process.returncode, b"interrupted" in err) == (130, True)


@pytest.mark.parametrize("rate", ["0", "fast", "-1"])
def test_what_is_no_rate_is_wrong_usage(disk: Lake, rate: str) -> None:
    for words in (("redirect", "enable", "a", "b"), ("redirect", "disable", "a"), ("export", "a")):
        ended = disk.run(*words, "--limit-rate", rate)
        assert (ended.code, ended.error["code"]) == (2, "invalid_input")


# --- Interrupts ---------------------------------------------------------------


def interrupted(lake: Lake, place: str, *words: str) -> tuple[bytes, dict[str, Any]]:
    """Interrupt the program when it comes to a place; return what it printed, and the error."""
    script = (
        "import sys, time\n"
        "from lakeferry.cli import main\n"
        "from lakeferry.redirect.move import Move\n"
        "from lakeferry.redirect.enable.precopy import Crossing\n"
        "def busy(*_, **__): print('busy', file=sys.stderr, flush=True); time.sleep(60)\n"
        f"{place} = busy\n"
        "sys.exit(main.main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, "redirect", "enable", *words, "--json"],
        cwd=lake.home,
        env=environment(lake.home, lake.variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        while process.stderr.readline() != b"busy\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    error: dict[str, Any] = json.loads(err.splitlines()[-1])["error"]
    assert error["code"] == "interrupted"
    return out, error


def test_an_interrupted_move_says_how_to_go_on(disk: Lake) -> None:
    source, target = disk.make("old"), disk.uri("new")
    out, error = interrupted(disk, "Crossing.precopy", source, target)
    assert out == b""
    for verb in ("resume", "cancel"):
        assert f"'lakeferry redirect {verb} {source}'" in error["remedy"]
    found = disk.done("redirect", "status", source)
    assert (found["state"], found["unfinished"]["target"]) == ("NORMAL", target)
    assert disk.done("redirect", "cancel", source)["changed"] is True
    assert not (disk.folder / "new").exists()
    out, error = interrupted(disk, "Move.put_lock", source, target)
    assert out == b""
    assert f"'lakeferry redirect resume {source}'" in error["remedy"]
    assert disk.done("redirect", "status", source)["state"] == ENABLING
    assert disk.done("redirect", "resume", source)["state"] == "READY"


def test_an_interrupted_list_reports_what_is_done_and_goes_on(disk: Lake) -> None:
    done, begun, waiting = disk.make("done"), disk.make("begun"), disk.make("waiting")
    disk.done("redirect", "enable", done, disk.uri("done-new"))
    rows = [f"{uri},{uri}-new" for uri in (done, begun, waiting)]
    (disk.home / "moves.csv").write_text("\n".join(["source,target", *rows]))
    options = ("--from-file", "moves.csv", "--parallel", "1")
    out, error = interrupted(disk, "Move.put_lock", *options)
    moves = json.loads(out)["moves"]
    assert [move["state"] for move in moves] == ["READY", None, None]
    codes = [move["error"] and move["error"]["code"] for move in moves]
    assert codes == [None, "interrupted", "interrupted"]
    assert "1 of 3 tables" in error["message"]
    assert "run the same command again" in error["remedy"]
    assert disk.done("redirect", "status", waiting)["state"] == "NORMAL"
    again = disk.done("redirect", "enable", *options)["moves"]
    assert [(move["state"], move["changed"]) for move in again] == [
        ("READY", False),
        ("READY", True),
        ("READY", True),
    ]


def test_people_read_that_a_table_is_frozen(disk: Lake) -> None:
    table = disk.make("cold")
    for verb in ("freeze", "status"):
        ended = run("redirect", verb, table, home=disk.home, variables=disk.variables)
        assert (ended.code, "FROZEN" in ended.out) == (0, True)


def test_a_move_that_was_refused_while_it_copied_is_known_goes_on_and_back(disk: Lake) -> None:
    source, target = disk.make("old"), disk.uri("new")
    name = unquote(paths(disk.run("files", source))[0].rpartition("/")[2])
    gone = disk.folder / "old" / name
    gone.rename(disk.home / name)
    before = disk.tree()
    assert disk.refused("redirect", "enable", source, target) == "missing_file"
    found = disk.done("redirect", "status", source)
    assert found["state"] == "NORMAL"
    copied = [path for path in (disk.folder / "new").rglob("*.parquet") if path.is_file()]
    assert found["unfinished"] == {
        "target": target,
        "mode": "reader-writer",
        "data": "copy",
        "files_copied": len(copied),
        "bytes_copied": sum(path.stat().st_size for path in copied),
        "cancelled": False,
    }
    people = run("redirect", "status", source, home=disk.home, variables=disk.variables)
    assert f"a move to {target} was interrupted" in " ".join(people.out.split())
    other = ("redirect", "enable", source, disk.uri("elsewhere"))
    assert disk.refused(*other) == "redirect_in_progress"
    assert disk.done("redirect", "cancel", source)["changed"] is True
    assert disk.tree() == before
    assert disk.refused("redirect", "enable", source, target) == "missing_file"
    (disk.home / name).rename(gone)
    assert disk.done("redirect", "resume", source)["state"] == "READY"
    assert disk.done("redirect", "status", source)["unfinished"] is None
