"""What a target is called, and which targets are in each other's way."""

from __future__ import annotations

import pytest

from lakeferry.errors import InvalidInput
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.inventory import FleetTable, TableSurvey
from lakeferry.fleet.targets import (
    NESTED,
    TAKEN,
    TargetRule,
    outer_place,
    path_below_root,
    target_problems,
)


def table(uri: str, root: str, name: str | None = None) -> FleetTable:
    return FleetTable(1, uri, root, name, FleetState.FOUND, TableSurvey(), 0)


ORDERS = table("s3://old/lake/eu/orders", "s3://old/lake")
NAMED = table("s3://x/y", "unity:sales", "unity:sales.eu.orders")


@pytest.mark.parametrize(
    ("to", "of", "target"),
    [
        ("s3://new/lake", ORDERS, "s3://new/lake/eu/orders"),
        ("s3://new/lake/", ORDERS, "s3://new/lake/eu/orders"),
        ("s3://new/{name}", ORDERS, "s3://new/orders"),
        ("s3://new/{path}", ORDERS, "s3://new/eu_orders"),
        ("sql:sales.eu.{name}", ORDERS, "sql:sales.eu.orders"),
        ("sql:sales.eu.{path}", ORDERS, "sql:sales.eu.eu_orders"),
        ("s3://new", NAMED, "s3://new/eu/orders"),
        ("sql:sales.new.{name}", NAMED, "sql:sales.new.orders"),
        ("s3://new", table("s3://old/t", "s3://old/t"), "s3://new/t"),
        ("s3://new", table("s3://old/a%20b/%7Bname%7D", "s3://old"), "s3://new/a%20b/{name}"),
    ],
)
def test_a_target_keeps_the_path_below_what_was_scanned(
    to: str, of: FleetTable, target: str
) -> None:
    assert TargetRule(to).target(of) == target.replace("{name}", "%7Bname%7D")


def test_names_in_a_table_s_path_are_no_placeholders() -> None:
    odd = table("s3://old/%7Bpath%7D", "s3://old")
    assert TargetRule("sql:a.b.{name}").target(odd) == "sql:a.b.{path}"


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("file:///new/{name}", "..%252F..%252Fetc"),
        ("file:///new/{name}", "%252e%252e"),
        ("s3://new/lake/{name}", "%252e%252e"),
    ],
)
def test_a_table_s_name_is_no_path_in_a_target(to: str, name: str) -> None:
    odd = table(f"s3://old/lake/{name}", "s3://old/lake")
    assert TargetRule(to).target(odd) == to.replace("{name}", name)


@pytest.mark.parametrize(
    "to", ["file:///new/{name}/../..", "/new/{name}/../../x", "file:///new/%2{end}%2{end}/x"]
)
def test_a_target_is_below_the_place_that_the_rule_begins_with(to: str) -> None:
    of = table("s3://old/lake/e", "s3://old/lake")
    with pytest.raises(InvalidInput, match="leads out of"):
        TargetRule(to.replace("{end}", "{name}")).target(of)


@pytest.mark.parametrize(
    ("to", "place"),
    [
        ("s3://new/lake", "s3://new/lake"),
        ("s3://new/lake/{name}", "s3://new/lake/"),
        ("s3://new/lake{name}", "s3://new/"),
        ("file:///new/../{name}", "file:///new/../"),
        ("/{name}", "/"),
        ("{name}", "."),
        ("sql:main.sales.{name}", "sql:main.sales"),
        ("sql:main.sales{name}", "sql:main"),
        ("sql:{name}", "sql:"),
    ],
)
def test_the_place_of_all_targets_is_the_whole_folder_before_the_first_field(
    to: str, place: str
) -> None:
    assert outer_place(to) == place


def test_a_new_name_gets_a_place_below_a_prefix() -> None:
    rule = TargetRule("sql:sales.eu.{name}", "s3://new/lake")
    assert rule.place(ORDERS) == "s3://new/lake/eu/orders"
    assert TargetRule("s3://new").place(ORDERS) is None


@pytest.mark.parametrize("to", ["sql:sales.eu", "unity:a.b.c", "s3://new/{table}", "s3://{}/x"])
def test_a_rule_that_does_not_say_what_targets_are_called_is_refused(to: str) -> None:
    with pytest.raises(InvalidInput, match="a name of its own") as refused:
        TargetRule(to).target(ORDERS)
    assert refused.value.remedy


def test_the_path_of_a_named_table_is_its_name_below_the_prefix() -> None:
    assert path_below_root(NAMED) == "eu/orders"
    assert path_below_root(table("s3://x/y", "sql:", "sql:a.b.c")) == "a/b/c"
    assert path_below_root(table("s3://x/y", "sql:a.b.c", "sql:a.b.c")) == "a/b/c"


def codes(targets: dict[str, list[str]], *tables: str) -> dict[str, str]:
    return {uri: each.code for uri, each in target_problems(targets, tables).items()}


def test_targets_that_are_in_each_other_s_way_are_problems() -> None:
    assert codes({"s3://a/1": ["s3://b/1"], "s3://a/2": ["s3://b/2"]}) == {}
    twice = {"s3://a/1": ["s3://b/1"], "s3://a/2": ["s3://b/1"]}
    assert codes(twice) == {"s3://a/1": TAKEN, "s3://a/2": TAKEN}
    assert codes({"s3://a/1": ["s3://a/1"]}) == {"s3://a/1": TAKEN}
    assert codes({"s3://a/1": ["s3://a/1/new"]}, "s3://a/1") == {"s3://a/1": NESTED}
    nested = {"s3://a/1": ["s3://b/1"], "s3://a/2": ["s3://b/1/deeper/2"]}
    assert codes(nested) == {"s3://a/2": NESTED}
    # A name and a place may be the same text only by chance; places count, too.
    places = {"s3://a/1": ["sql:a.b.c", "s3://b/1"], "s3://a/2": ["sql:a.b.d", "s3://b/1"]}
    assert codes(places) == {"s3://a/1": TAKEN, "s3://a/2": TAKEN}
    assert codes({"s3://a/12": ["s3://b/12"], "s3://a/1": ["s3://b/1"]}) == {}
