"""Moves to a managed table: what can't be managed, and how a move that was refused goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

import lakeferry
from tests.support.history import Append, DeleteRows, History, Layout, SetProperties
from tests.support.remedies import NEEDS_A_PERSON, Witness, follows
from tests.support.unity_server import OurServer, unity_server

_UNIT = "tests/unit/redirect/enable/test_managed_move.py"
_SCENARIO = "tests/scenario/test_managed_move.py"
_REFUSALS = "tests/scenario/test_managed_refusals.py"
_CRASHES = "tests/simulation/test_managed_move_crashes.py"

NEEDS_A_PERSON.update(
    {
        "managed_refusals.py: switch that off first: ALTER TABLE ... UNSET TBLPROPERTIES ('{}'), "
        "and drop the feature; or leave out --managed": (
            "another engine has to act: tests/unit/redirect/enable/test_managed_refusals.py::"
            "test_a_table_in_two_formats_is_refused"
        ),
        "source_divergence.py: Lakeferry can't merge them: keep the redirect; or copy what has "
        "changed at the target, drop it ('lakeferry catalog remove {} --yes --force'), run "
        "'lakeferry redirect disable {} --abandon-target', and write to the source what you have "
        "copied": (
            "a person decides which rows count: "
            "tests/unit/redirect/disable/test_managed_return.py::"
            "test_a_source_that_was_written_to_is_told_how_to_drop_the_managed_table"
        ),
        "managed_loss.py: ask the catalog's administrator whether the table {} was dropped; if so, "
        "'lakeferry redirect cancel {} --leave-copies' makes the source an ordinary table again": (
            "only the administrator knows whether the table was dropped: "
            f"{_UNIT}::test_a_table_that_may_be_open_is_not_given_up_unless_somebody_says_so"
        ),
        "managed_move.py: 'lakeferry redirect resume {} --name unity:{}.OTHER' continues with "
        "another name, or run 'resume' without --name once the name is free": (
            "the name has to be taken within a move: "
            f"{_SCENARIO}::test_a_name_that_is_taken_meanwhile_is_replaced_by_another_one"
        ),
        "managed_move.py: 'lakeferry redirect resume {}' continues then, and 'lakeferry redirect "
        "cancel {}' undoes the move": (
            f"the catalog has to refuse and to change its mind: "
            f"{_UNIT}::test_a_refused_creation_leaves_the_source_as_it_is"
        ),
        "managed_probe.py: remove from the table what the catalog doesn't take; or leave out "
        "--managed": (
            f"the catalog decides: {_REFUSALS}::"
            "test_what_the_catalog_forbids_is_refused_before_anything_is_copied"
        ),
        "unity_managed_tables.py: ask the catalog's administrator to grant you {}": (
            f"the administrator has to act: {_REFUSALS}::"
            "test_the_privilege_that_is_missing_is_named"
        ),
        "unity_limits.py: make it shorter, or remove it": (
            "no command of ours sets such a text; a move adds to this remedy, and has its case"
        ),
        "managed_move.py: {}; {}": "the two parts have their own cases",
        "managed_move.py: 'lakeferry redirect resume {}' checks again": (
            "it takes a catalog that forgets what it has accepted"
        ),
        "managed_move.py: choose another name in the same schema": (
            f"a move has to wait for a name: {_UNIT}::test_a_move_goes_on_under_another_name"
        ),
        "managed_move.py: if it was dropped, 'lakeferry redirect cancel {} --leave-copies' makes "
        "the source an ordinary table again": (
            "somebody has to drop the table within a move: "
            f"{_UNIT}::test_a_table_that_may_be_open_is_not_given_up_unless_somebody_says_so"
        ),
        "managed_place.py: give a name unity:catalog.schema.table, or leave out --managed": (
            "the API refuses such a name before it gets there"
        ),
        "cancel.py: {}; if nobody can do that any more, 'lakeferry redirect cancel {} "
        "--leave-copies' takes back the source alone": (
            f"it takes another user of the catalog: {_REFUSALS}::"
            "test_the_source_of_a_move_whose_user_is_gone_is_taken_back_by_another_one"
        ),
        "managed_place.py: run the same command with the token of {}": (
            f"another user has to act: {_UNIT}::test_another_user_is_refused_by_name"
        ),
        "target_lock.py: continue to use the table, by its old path or by its name, and ask the "
        "catalog's administrator whether it accepts the table feature redirectWriterOnly": (
            "another server is needed: tests/unit/redirect/disable/test_managed_return.py::"
            "test_a_catalog_that_refuses_the_lock_leaves_all_as_it_is"
        ),
        "target_in_catalog.py: if it was renamed, ask for USE SCHEMA on its schema, and run the "
        "command again; {}": (
            "the administrator has to act, or the table was dropped: "
            "tests/scenario/test_managed_withdrawal.py::test_a_table_that_was_dropped_is_refused"
        ),
        "managed_probe.py: leave out --managed: the table is registered as an external one then": (
            f"another server is needed: {_UNIT}::test_a_server_that_refuses_a_history_is_refused"
        ),
    }
)


@contextmanager
def _unity() -> Iterator[tuple[OurServer, str, dict[str, str]]]:
    with unity_server() as server:
        yield server.ours, f"unity:{server.schema}", server.environment()


def _enable(witness: Witness, name: str, *more: str) -> tuple[str, ...]:
    return ("redirect", "enable", witness.lake.uri("t"), name, "--managed", *more)


@follows(
    "api/redirects.py: give a name unity:catalog.schema.table, or leave out --managed",
    "api/redirects.py: leave out {}, or --managed",
    "unity_managed_tables.py: choose another name",
)
def what_cannot_be_managed_gets_a_name_and_nothing_else(witness: Witness) -> None:
    witness.lake.make("t")
    with _unity() as (_, schema, variables):
        witness.refused(*_enable(witness, witness.lake.uri("new")), **variables)
        witness.refused(*_enable(witness, f"{schema}.t ü"), **variables)
        words = _enable(witness, f"{schema}.t", "--data", "reference")
        witness.refused(*words, **variables)
        witness.done(*_enable(witness, f"{schema}.t"), **variables)


@follows("managed_move.py: {}; or leave out --managed")
def a_long_property_is_made_shorter(witness: Witness) -> None:
    long = History().then(Append(1), SetProperties((("note", "x" * 256),)))
    witness.lake.make("t", long)
    with _unity() as (_, schema, variables):
        witness.refused(*_enable(witness, f"{schema}.t"), **variables)
        witness.lake.make("short")
        words = ("redirect", "enable", witness.lake.uri("short"), f"{schema}.t", "--managed")
        witness.done(*words, **variables)


@follows(
    "existing_target.py: redirect to its name: lakeferry redirect enable {} unity:{} --to-existing"
)
def a_copy_is_redirected_to_the_name_that_an_old_path_leads_to(witness: Witness) -> None:
    table, copy = witness.lake.make("t"), witness.lake.make("copy")
    with _unity() as (_, schema, variables):
        witness.done(*_enable(witness, f"{schema}.t"), **variables)
        words = ("redirect", "enable", copy)
        witness.refused(*words, table, "--to-existing", **variables)
        witness.done(*words, f"{schema}.t", "--to-existing", **variables)


@follows(
    "preflight.py: if it was moved there, 'lakeferry redirect disable' with its old path brings it "
    "back; or copy it with 'lakeferry export' or 'lakeferry push' and its name"
)
def a_managed_table_is_copied_or_comes_back(witness: Witness) -> None:
    table, new = witness.lake.make("t"), witness.lake.uri("new")
    with _unity() as (_, schema, variables):
        name = f"{schema}.t"
        witness.done(*_enable(witness, name), **variables)
        witness.refused("redirect", "enable", name, new, **variables)
        witness.done("export", name, "--to", witness.lake.uri("out"), **variables)
        witness.done("redirect", "disable", table, **variables)


@follows(
    "resuming.py: leave out --name",
    "api/redirects.py: write unity:catalog.schema.table",
)
def a_name_that_nobody_needs_is_left_out(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.uri("new")
    witness.done("redirect", "enable", source, target, "--engine", "local")
    witness.refused("redirect", "resume", source, "--name", "orders")
    witness.refused("redirect", "resume", source, "--name", "unity:a.b.c")
    witness.done("redirect", "resume", source)


@follows(
    "abandon.py: leave out --abandon-target: 'lakeferry redirect disable {}' ends the redirect",
)
def a_managed_table_that_is_there_comes_back(witness: Witness) -> None:
    source = witness.lake.make("t")
    with unity_server() as server:
        name, variables = f"unity:{server.schema}.t", server.environment()
        witness.done(*_enable(witness, name), **variables)
        words = ("redirect", "disable", source)
        witness.refused(*words, "--abandon-target", "--yes", **variables)
        witness.done(*words, **variables)


@follows(
    "following_errors.py: open it by its name{} with a client that asks the catalog: "
    "lakeferry.open('unity:{}'), or Spark with Unity Catalog's connector"
)
def a_managed_table_has_no_path_but_a_name(witness: Witness) -> None:
    source = witness.lake.make("t")
    with unity_server() as server, pytest.MonkeyPatch.context() as environment:
        variables = server.environment()
        witness.done(*_enable(witness, f"unity:{server.schema}.t"), **variables)
        for name, value in variables.items():
            environment.setenv(name, value)
        for call in (lakeferry.resolve, lambda place: lakeferry.resolve(place, write=True)):
            refused = witness.raises(partial(call, source))
            assert refused.fields["name"] == f"{server.schema}.t"
        named = re.search(r"lakeferry\.open\('(.+?)'\)", str(refused.remedy))
        assert named is not None
        witness.returns(lambda: lakeferry.open(named[1]).to_table())


@follows(
    "dropping.py: if the table was moved there, 'lakeferry redirect disable' with its old path "
    "takes it out of the catalog"
)
def a_table_leaves_its_catalog_by_its_old_path(witness: Witness) -> None:
    source = witness.lake.make("t")
    with unity_server() as server:
        name, variables = f"unity:{server.schema}.t", server.environment()
        witness.done(*_enable(witness, name), **variables)
        witness.refused("feature", "drop", name, "catalogManaged", **variables)
        witness.done("redirect", "disable", source, **variables)


@follows(
    "dropping.py: keep the feature; or, if the table was moved there, drop it at the old path "
    "after 'lakeferry redirect disable'"
)
def a_feature_that_the_catalog_may_require_is_dropped_at_the_old_path(witness: Witness) -> None:
    history = History(Layout(deletion_vectors="u")).then(Append(2), DeleteRows(1))
    source = witness.lake.make("t", history)
    drop = ("feature", "drop", "deletionVectors", "--engine", "local")
    with unity_server() as server:
        name, variables = f"unity:{server.schema}.t", server.environment()
        witness.done(*_enable(witness, name), **variables)
        witness.refused(*drop[:2], name, *drop[2:], **variables)
        witness.done("redirect", "disable", source, **variables)
        witness.done(*drop[:2], source, *drop[2:], **variables)
