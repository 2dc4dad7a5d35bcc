"""Entries in every dialect: what we write is read back, what others write is understood."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from lakeferry.errors import RedirectSpecInvalid
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.redirect import dialects, entry, read_entry
from lakeferry.redirect.entry import (
    Data,
    Dialect,
    Journal,
    Mode,
    Redirect,
    RedirectTarget,
    TargetKind,
    feature_of,
)
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.redirect_commits import Bare
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
    return read_entry.read(both.protocol, both.metadata, SOURCE)


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
    found = read_entry.read(protocol, metadata, SOURCE)
    assert found is not None
    assert found.target == RedirectTarget(TargetKind.UNITY, name="a.b.c")
    assert found.state is RedirectState.READY
    assert found.journal is None


def test_the_rfc_writes_objects_as_text_within_text() -> None:
    ids = json.dumps({"MetastoreId": "m", "TableId": "t"})
    value = {"Type": "Unity Catalog", "State": "READY", "Spec": json.dumps({"Table": ids})}
    found = read_entry.read(*foreign(Dialect.RFC, Mode.WRITER_ONLY, value), SOURCE)
    assert found is not None
    assert found.target == RedirectTarget(TargetKind.UNITY, metastore_id="m", table_id="t")


def test_an_empty_spec_while_enabling_is_a_frozen_table() -> None:
    empty: list[Any] = [{}, "{}", ""]
    for spec in empty:
        value = {"Type": "Object Store", "State": "ENABLE-REDIRECT-IN-PROGRESS", "Spec": spec}
        found = read_entry.read(*foreign(Dialect.RFC, Mode.WRITER_ONLY, value), SOURCE)
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
        read_entry.read(*foreign(Dialect.RFC, Mode.READER_WRITER, value), SOURCE)
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
        read_entry.read(both.protocol, both.metadata, SOURCE)


def test_of_both_modes_the_reader_writer_one_is_read_and_said_to_be_doubled() -> None:
    one = Redirect(Mode.WRITER_ONLY, RedirectState.READY, target=PLACE, source=SOURCE)
    other = Redirect(
        Mode.READER_WRITER,
        RedirectState.READY,
        target=RedirectTarget(TargetKind.OBJECT_STORE, "s3://rw/t"),
    )
    both = Bare(Protocol(1, 2), table()).carrying(one).carrying(other)
    found = read_entry.read(both.protocol, both.metadata, SOURCE)
    assert found is not None
    assert found.doubled
    assert found.mode is Mode.READER_WRITER


def test_an_entry_without_its_feature_is_none_and_is_found_as_a_stray() -> None:
    value = {"Type": "Object Store", "State": "READY", "Spec": {"Location": "s3://b/t"}}
    protocol, metadata = foreign(Dialect.RFC, Mode.WRITER_ONLY, value, with_feature=False)
    assert read_entry.read(protocol, metadata, SOURCE) is None
    assert read_entry.stray(protocol, metadata) == ("delta.redirectWriterOnly",)


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
                with pytest.raises(RedirectSpecInvalid, match="was made for s3"):
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
    found = read_entry.read(both.protocol, metadata, SOURCE)
    assert found is not None
    assert found.source == "/t"
