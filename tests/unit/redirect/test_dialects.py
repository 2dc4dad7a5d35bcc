"""Entries in every dialect: what we write is read back, what others write is understood."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from lakeferry.errors import InvalidInput, RedirectSpecInvalid
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.redirect import dialects, entry
from lakeferry.redirect.entry import (
    Data,
    Dialect,
    Journal,
    Mode,
    Redirect,
    RedirectTarget,
    Rule,
    TargetKind,
    feature_of,
)
from lakeferry.redirect.redirect_commits import Bare, bare
from lakeferry.redirect.states import RedirectState

SOURCE = "s3://old/t"
PLACE = RedirectTarget(TargetKind.OBJECT_STORE, "s3://new/t")
TARGETS = [
    PLACE,
    RedirectTarget(TargetKind.SQL, name="a.b.c"),
    RedirectTarget(TargetKind.UNITY, name="a.b.c"),
    RedirectTarget(TargetKind.UNITY, metastore_id="m", table_id="t"),
]
RULES = (Rule("maintenance", ("VACUUM START", "VACUUM END")), Rule(None, ("REFRESH UNIFORM",)))


def table(**configuration: str) -> Metadata:
    return Metadata("id", "{}", configuration={"mine": "kept", **configuration})


def read_back(redirect: Redirect) -> Redirect | None:
    both = Bare(Protocol(1, 2), table()).carrying(redirect)
    return dialects.read(both.protocol, both.metadata, SOURCE)


def foreign(
    dialect: Dialect, mode: Mode, value: dict[str, Any] | str, *, with_feature: bool = True
) -> tuple[Protocol, Metadata]:
    """Return a table whose entry another program wrote."""
    feature = feature_of(dialect, mode)
    readers = (feature,) if mode is Mode.READER_WRITER else ()
    protocol = Protocol(3, 7, readers, (feature,)) if with_feature else Protocol(1, 2)
    text = value if isinstance(value, str) else json.dumps(value)
    return protocol, Metadata("id", "{}", configuration={dialects.property_of(dialect, mode): text})


@pytest.mark.parametrize(
    ("dialect", "mode", "state", "target"),
    list(
        itertools.product(
            Dialect,
            Mode,
            (RedirectState.ENABLING, RedirectState.READY, RedirectState.DROPPING),
            TARGETS,
        )
    ),
)
def test_what_we_write_is_read_back(
    dialect: Dialect, mode: Mode, state: RedirectState, target: RedirectTarget
) -> None:
    if dialect is Dialect.DELTA_SPARK and target is not PLACE:
        return
    journal = Journal(Data.REFERENCE, (1, 2), ready_version=7, move_id="m")
    redirect = Redirect(
        mode, RedirectState.ENABLING, target.kind, target, (dialect,), SOURCE, RULES, journal
    ).in_state(state)
    found = read_back(redirect)
    assert found is not None
    assert (found.mode, found.state, found.target, found.rules, found.dialects) == (
        mode,
        state,
        target,
        RULES,
        (dialect,),
    )
    assert found.journal is not None
    assert found.journal.ready_version == 7


def test_two_dialects_say_the_same_in_one_commit() -> None:
    both = (Dialect.RFC, Dialect.DELTA_SPARK)
    redirect = Redirect(
        Mode.WRITER_ONLY, RedirectState.READY, target=PLACE, dialects=both, source=SOURCE
    )
    assert set(dialects.properties(redirect)) == {
        "delta.redirectWriterOnly",
        "delta.redirectWriterOnly-preview",
    }
    found = read_back(redirect)
    assert found is not None
    assert found.dialects == both
    assert found.source == SOURCE


def test_delta_spark_gets_what_its_parser_knows_and_nothing_else() -> None:
    redirect = Redirect(
        Mode.WRITER_ONLY,
        RedirectState.READY,
        target=RedirectTarget(TargetKind.OBJECT_STORE, "s3://new/a%20b"),
        dialects=(Dialect.DELTA_SPARK,),
        source="s3://old/c%20d",
        rules=(Rule(None, ("WRITE",)),),
    )
    value = json.loads(dialects.properties(redirect)["delta.redirectWriterOnly-preview"])
    assert value == {
        "type": "PathBasedRedirect",
        "state": "REDIRECT-READY",
        "spec": '{"sourcePath":"/c d","destPath":"s3a://new/a b"}',
        "noRedirectRules": [{"appName": None, "allowedOperations": ["WRITE"]}],
    }


def test_a_table_comes_back_to_the_protocol_it_had() -> None:
    for before in (Protocol(1, 2), Protocol(2, 5), Protocol(1, 7, None, ("appendOnly",))):
        for mode in Mode:
            journal = Journal(
                protocol=(before.min_reader_version, before.min_writer_version), move_id="m"
            )
            redirect = Redirect(
                mode, RedirectState.READY, target=PLACE, source=SOURCE, journal=journal
            )
            carrying = Bare(before, table()).carrying(redirect)
            assert set(redirect.features) <= carrying.protocol.features
            assert (carrying.protocol.min_reader_version == 3) == (mode is Mode.READER_WRITER)
            again = bare(carrying.protocol, carrying.metadata, journal)
            assert again.protocol.unordered == before.unordered
            assert dict(again.metadata.configuration) == {"mine": "kept"}


@pytest.mark.parametrize(
    "value",
    [
        {"Type": "UNITY CATALOG", "State": "ready", "Spec": {"Table": "a.b.c"}},
        {"type": "unity catalog", "STATE": "READY", "spec": '{"table": "a.b.c"}'},
        {"Type": "Unity Catalog", "State": "READY", "Spec": '{"Table": "a.b.c", "More": 1}'},
    ],
)
def test_spelling_is_forgiven(value: dict[str, Any]) -> None:
    protocol, metadata = foreign(Dialect.RFC, Mode.READER_WRITER, value)
    found = dialects.read(protocol, metadata, SOURCE)
    assert found is not None
    assert found.target == RedirectTarget(TargetKind.UNITY, name="a.b.c")
    assert found.state is RedirectState.READY
    assert found.journal is None


def test_the_rfc_writes_objects_as_text_within_text() -> None:
    ids = json.dumps({"MetastoreId": "m", "TableId": "t"})
    value = {"Type": "Unity Catalog", "State": "READY", "Spec": json.dumps({"Table": ids})}
    found = dialects.read(*foreign(Dialect.RFC, Mode.WRITER_ONLY, value), SOURCE)
    assert found is not None
    assert found.target == RedirectTarget(TargetKind.UNITY, metastore_id="m", table_id="t")


def test_an_empty_spec_while_enabling_is_a_frozen_table() -> None:
    empty: list[Any] = [{}, "{}", ""]
    for spec in empty:
        value = {"Type": "Object Store", "State": "ENABLE-REDIRECT-IN-PROGRESS", "Spec": spec}
        found = dialects.read(*foreign(Dialect.RFC, Mode.WRITER_ONLY, value), SOURCE)
        assert found is not None
        assert found.is_frozen


NONSENSE: list[Any] = [
    "not json",
    "[]",
    "3",
    {"State": "READY", "Spec": {"Location": "s3://b/t"}},
    {"Type": "Elsewhere", "State": "READY", "Spec": {"Location": "s3://b/t"}},
    {"Type": "Object Store", "State": "ALMOST", "Spec": {"Location": "s3://b/t"}},
    {"Type": "Object Store", "State": "READY", "Spec": {}},
    {"Type": "Object Store", "State": "DROP-REDIRECT-IN-PROGRESS", "Spec": ""},
    {"Type": "Object Store", "State": "READY", "Spec": {"Location": 7}},
    {"Type": "Object Store", "State": "READY", "Spec": {"Location": "no scheme at all"}},
    {"Type": "Object Store", "State": "READY", "Spec": [1]},
    {"Type": "SQL Catalog", "State": "READY", "Spec": {"Table": "one.two"}},
    {"Type": "Unity Catalog", "State": "READY", "Spec": {"Table": {"MetastoreId": "m"}}},
    {"Type": "Object Store", "State": "READY", "Spec": {"Location": "s3://b/t"}}
    | {"NoRedirectRules": {"AppName": "x"}},
    {"Type": "Object Store", "State": "READY", "Spec": {"Location": "s3://b/t"}}
    | {"NoRedirectRules": [{"AppName": 1}]},
]


@pytest.mark.parametrize("value", NONSENSE, ids=str)
def test_nonsense_is_refused_by_name(value: Any) -> None:
    with pytest.raises(RedirectSpecInvalid) as refused:
        dialects.read(*foreign(Dialect.RFC, Mode.READER_WRITER, value), SOURCE)
    assert SOURCE in refused.value.message
    assert "value" in refused.value.fields


def test_entries_that_contradict_each_other_are_refused() -> None:
    one = Redirect(Mode.WRITER_ONLY, RedirectState.READY, target=PLACE, source=SOURCE)
    other = Redirect(
        Mode.WRITER_ONLY,
        RedirectState.READY,
        target=RedirectTarget(TargetKind.OBJECT_STORE, "s3://elsewhere/t"),
        dialects=(Dialect.DELTA_SPARK,),
        source=SOURCE,
    )
    both = Bare(Protocol(1, 2), table()).carrying(one).carrying(other)
    with pytest.raises(RedirectSpecInvalid, match="contradict"):
        dialects.read(both.protocol, both.metadata, SOURCE)


def test_of_both_modes_the_reader_writer_one_is_read_and_said_to_be_doubled() -> None:
    one = Redirect(Mode.WRITER_ONLY, RedirectState.READY, target=PLACE, source=SOURCE)
    other = Redirect(
        Mode.READER_WRITER,
        RedirectState.READY,
        target=RedirectTarget(TargetKind.OBJECT_STORE, "s3://rw/t"),
    )
    both = Bare(Protocol(1, 2), table()).carrying(one).carrying(other)
    found = dialects.read(both.protocol, both.metadata, SOURCE)
    assert found is not None
    assert found.doubled
    assert found.mode is Mode.READER_WRITER


def test_an_entry_without_its_feature_is_none_and_is_found_as_a_stray() -> None:
    value = {"Type": "Object Store", "State": "READY", "Spec": {"Location": "s3://b/t"}}
    protocol, metadata = foreign(Dialect.RFC, Mode.WRITER_ONLY, value, with_feature=False)
    assert dialects.read(protocol, metadata, SOURCE) is None
    assert dialects.stray(protocol, metadata) == ("delta.redirectWriterOnly",)


def test_a_rule_for_an_app_comes_before_one_for_everybody() -> None:
    redirect = Redirect(Mode.WRITER_ONLY, RedirectState.READY, target=PLACE, rules=RULES[::-1])
    assert redirect.rule_for("MAINTENANCE") == RULES[0]
    assert redirect.rule_for("other") == RULES[1]
    assert redirect.rule_for(None) == RULES[1]
    assert RULES[0].allows("vacuum start")
    assert not RULES[0].allows("VACUUM")
    assert not RULES[0].allows("WRITE")


def test_rules_are_written_as_the_command_line_takes_them() -> None:
    assert entry.parse_rules(["maintenance:VACUUM", ":WRITE, DELETE", "reader:"]) == (
        Rule("maintenance", ("VACUUM START", "VACUUM END")),
        Rule(None, ("WRITE", "DELETE")),
        Rule("reader", ()),
    )
    with pytest.raises(InvalidInput):
        entry.parse_rules(["no colon"])


def test_the_target_is_not_a_cycle_of_itself() -> None:
    redirect = Redirect(Mode.WRITER_ONLY, RedirectState.ENABLING, target=PLACE)
    assert redirect.is_target("s3a://new/t/")
    assert not redirect.is_target(SOURCE)


@pytest.mark.parametrize("location", ["file:///a%20b/c", "s3://b/a%2520b", "file:///plain"])
def test_a_place_that_needs_encoding_comes_back_from_hadoops_spelling(location: str) -> None:
    redirect = Redirect(
        Mode.WRITER_ONLY,
        RedirectState.READY,
        target=RedirectTarget(TargetKind.OBJECT_STORE, location),
        dialects=(Dialect.DELTA_SPARK,),
        source="file:///x",
    )
    found = read_back(redirect)
    assert found is not None
    assert found.target == RedirectTarget(TargetKind.OBJECT_STORE, location)


def test_a_copy_in_another_bucket_isn_t_its_own_source_in_any_dialect() -> None:
    for dialect in Dialect:
        redirect = Redirect(
            Mode.WRITER_ONLY,
            RedirectState.READY,
            target=PLACE,
            dialects=(dialect,),
            source=SOURCE,
            journal=Journal(move_id="m"),
        )
        # What is carried on from state to state is what was read.
        found = read_back(redirect)
        assert found is not None
        again = read_back(found.in_state(RedirectState.DROPPING))
        assert again is not None
        for read in (found, again):
            entry.check_own_redirect(read, "s3a://old/t")
            for elsewhere in ("s3://copied/t", "gs://old/t", "file:///t"):
                with pytest.raises(RedirectSpecInvalid, match="belongs to another table"):
                    entry.check_own_redirect(read, elsewhere)


def test_a_journal_that_is_about_another_path_than_the_entry_isn_t_believed() -> None:
    redirect = Redirect(
        Mode.WRITER_ONLY,
        RedirectState.READY,
        target=PLACE,
        dialects=(Dialect.DELTA_SPARK,),
        source="s3://old/elsewhere",
        journal=Journal(move_id="m"),
    )
    stale = dialects.properties(redirect)["lakeferry.redirect"]
    properties = dialects.properties(replace(redirect, source=SOURCE, journal=None))
    both = Bare(Protocol(1, 2), table()).carrying(replace(redirect, source=SOURCE, journal=None))
    metadata = table(**{"lakeferry.redirect": stale}, **properties)
    found = dialects.read(both.protocol, metadata, SOURCE)
    assert found is not None
    assert found.source == "/t"
