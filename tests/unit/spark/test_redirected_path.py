"""What is said about an old path is said about the name of a managed table."""

from __future__ import annotations

import pytest

from lakeferry.errors import RedirectNotFollowed
from lakeferry.spark.redirected_path import (
    NewPlace,
    at_name,
    name_parts,
    needs_a_path,
    only_path,
    split_time_travel,
)

NAME = ("cat", "s", "t")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("unity:cat.s.t", NAME),
        ("unity:a-b.C@1.x_y@v3", ("a-b", "C@1", "x_y@v3")),
        # What isn't a whole name of Unity Catalog is none.
        ("unity:9f1c-id", None),
        ("unity:a.b.c.d", None),
        ("unity:a..c", None),
        ("sql:cat.s.t", None),
        ("cat.s.t", None),
        ("", None),
        (None, None),
    ],
)
def test_the_parts_of_a_name(name: str | None, parts: tuple[str, ...] | None) -> None:
    assert name_parts(name) == parts


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        (NAME, "`cat`.`s`.`t`"),
        (("a-b", "select", "t@v3"), "`a-b`.`select`.`t@v3`"),
        (("a`b", "s", "t"), "`a``b`.`s`.`t`"),
    ],
)
def test_every_part_of_a_name_is_quoted(name: tuple[str, ...], identifier: str) -> None:
    assert NewPlace("/new", name).identifier == identifier


def test_a_path_is_spelled_as_before() -> None:
    place = NewPlace("s3a://b/t")
    assert place.identifier == place.in_query == "delta.`s3a://b/t`"
    assert place.read_options == {}


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("/t@v3", ("/t", "@v3")),
        ("/t@V12", ("/t", "@V12")),
        ("/t@20240203040506007", ("/t", "@20240203040506007")),
        ("/t@3", ("/t@3", "")),
        ("/t@v3/", ("/t@v3/", "")),
        ("/t", ("/t", "")),
    ],
)
def test_a_version_behind_a_path(path: str, split: tuple[str, str]) -> None:
    assert split_time_travel(path) == split


def test_a_version_becomes_an_option_and_a_clause() -> None:
    place = at_name("/new", NAME, "@v3", "/old@v3")
    assert place.read_options == {"versionAsOf": "3"}
    assert place.in_query == "`cat`.`s`.`t` VERSION AS OF 3"
    assert place.identifier == "`cat`.`s`.`t`"


def test_a_time_becomes_an_option_and_a_clause() -> None:
    place = at_name("/new", NAME, "@20240203040506007", "/old@20240203040506007")
    assert place.read_options == {"timestampAsOf": "2024-02-03 04:05:06.007"}
    assert place.in_query == "`cat`.`s`.`t` TIMESTAMP AS OF '2024-02-03 04:05:06.007'"


@pytest.mark.parametrize("rest", ["/day=a", "/year=1/day=a", "/day=a@v3"])
def test_the_folder_of_a_partition_is_refused_with_the_condition(rest: str) -> None:
    with pytest.raises(RedirectNotFollowed, match="part of a table") as refused:
        at_name("/new", NAME, rest, f"/old{rest}")
    assert "`cat`.`s`.`t`" in str(refused.value.remedy)
    assert "day = 'a'" in str(refused.value.remedy)


def test_an_older_version_is_refused_where_a_call_means_the_newest() -> None:
    newest, older = at_name("/new", NAME, "", "/old"), at_name("/new", NAME, "@v3", "/old@v3")
    assert newest.newest("/old") == "`cat`.`s`.`t`"
    with pytest.raises(RedirectNotFollowed, match="older version") as refused:
        older.newest("/old@v3")
    assert "`cat`.`s`.`t`" in str(refused.value.remedy)


def test_a_call_that_needs_a_path_gets_one_or_is_refused() -> None:
    assert only_path(None, "/old", "location") == "/old"
    assert only_path(NewPlace("/new"), "/old", "location") == "/new"
    with pytest.raises(RedirectNotFollowed, match="location can't be given the name") as refused:
        only_path(NewPlace("/new", NAME), "/old", "location")
    assert refused.value.fields["target"] == "`cat`.`s`.`t`"
    assert str(needs_a_path("/old", NewPlace("/new", NAME), "location")) == str(refused.value)
