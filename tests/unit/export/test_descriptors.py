"""Table descriptors: what they say, and how a bad one is refused by name."""

from __future__ import annotations

import time

import pytest

from lakeferry.errors import InvalidInput
from lakeferry.export.descriptors import (
    LARGEST_DESCRIPTOR_BYTES,
    MOST_DESCRIPTORS,
    Descriptor,
    Skipped,
    gather,
    is_descriptor,
    parse_descriptor,
)

FILE = "_lakefs_tables/orders.yaml"
ORDERS = b"name: orders\ntype: delta\npath: tables/orders\n"


def test_a_descriptor_says_name_path_and_what_becomes_of_the_export() -> None:
    assert parse_descriptor(FILE, ORDERS) == Descriptor(FILE, "orders", "tables/orders")
    more = ORDERS + b"register: sql:sales.eu.orders\nkeep: 5\ncatalog: {other: [1]}\n"
    assert parse_descriptor(FILE, more) == Descriptor(
        FILE, "orders", "tables/orders", register="sql:sales.eu.orders", keep=5
    )


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("007", "007"),
        ("no", "no"),
        ("2026-13-45", "2026-13-45"),
        ("'null'", "null"),
        ('"a b é"', "a b é"),
        ("!!python/object:os.system x", "x"),
    ],
)
def test_every_value_is_the_text_that_stands_there(written: str, name: str) -> None:
    found = parse_descriptor(FILE, f"name: {written}\ntype: delta\npath: t/\n".encode())
    assert found == Descriptor(FILE, name, "t")


@pytest.mark.parametrize("empty", ["", "~", "null", '""'])
def test_what_is_left_empty_is_not_said(empty: str) -> None:
    found = parse_descriptor(FILE, ORDERS + f"register: {empty}\nkeep: {empty}\n".encode())
    assert found == Descriptor(FILE, "orders", "tables/orders")


def test_another_type_is_skipped_whatever_else_it_says() -> None:
    assert parse_descriptor(FILE, b"type: iceberg\n") == Skipped(FILE, "iceberg")
    hive = b"name: h\ntype: hive\npath: /x/../y\npartition_columns: [a]\n"
    assert parse_descriptor(FILE, hive) == Skipped(FILE, "hive")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "must say"),
        (b"- name", "must say"),
        (b"name: [", "as YAML"),
        (b"\xff\xfe", "UTF-8"),
        (b"a: 1\n---\nb: 2\n", "as YAML"),
        pytest.param(b"[" * 5_000, "YAML", id="deep"),
        *(
            pytest.param(
                (text * LARGEST_DESCRIPTOR_BYTES)[:LARGEST_DESCRIPTOR_BYTES],
                "YAML",
                id=f"deep {text!r}",
            )
            for text in (b"[", b"{", b"- ", b"? ", b"[a,", b"{a: ", b"[[],")
        ),
        pytest.param(
            b"\n".join(b" " * depth + b"a:" for depth in range(300)), "nested", id="deep block"
        ),
        pytest.param(b"[" + b"?," * 30_000, "words", id="many words"),
        pytest.param(b"#" * (LARGEST_DESCRIPTOR_BYTES + 1), "bytes", id="large"),
        (b"name: a\npath: b\n", "lacks 'type'"),
        (b"type: delta\npath: b\n", "lacks 'name'"),
        (b"name: a\ntype: delta\n", "lacks 'path'"),
        (b"name: a\nname: b\ntype: delta\npath: c\n", "twice"),
        (b"name: [a]\ntype: delta\npath: c\n", "single value"),
        (b"name: &x a\ntype: delta\npath: {a: *x}\n", "single value"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_name_of_the_file(
    content: bytes, cause: str
) -> None:
    began_s = time.process_time()
    with pytest.raises(InvalidInput, match=cause) as refused:
        parse_descriptor(FILE, content)
    # A thousand of them are one commit's.
    assert time.process_time() - began_s < 0.5
    assert FILE in str(refused.value)
    assert refused.value.fields == {"file": FILE}


@pytest.mark.parametrize(
    "path", ["../t", "a/../../t", "a//t", "/t", ".", "a/./t", "s3://b/t", "lakefs://r/main/t", "/"]
)
def test_a_path_stays_below_the_ref(path: str) -> None:
    with pytest.raises(InvalidInput, match="path"):
        parse_descriptor(FILE, f"name: a\ntype: delta\npath: {path}\n".encode())


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".hidden", '"a\\nb"', '"a\\0b"', pytest.param("x" * 256, id="long")]
)
def test_a_name_is_that_of_one_folder(name: str) -> None:
    with pytest.raises(InvalidInput, match="folder"):
        parse_descriptor(FILE, f"name: {name}\ntype: delta\npath: t\n".encode())


@pytest.mark.parametrize("name", ["orders", "sql:orders", "unity:a.b", "file:///x", "s3://a.b.c"])
def test_a_registered_name_is_one_of_a_catalog(name: str) -> None:
    with pytest.raises(InvalidInput, match="register"):
        parse_descriptor(FILE, ORDERS + f"register: {name}\n".encode())


@pytest.mark.parametrize("keep", ["0", "-1", "1.5", "many", "true", "9" * 40, "\u0663", "[1]"])
def test_what_is_kept_is_a_whole_number_from_one_on(keep: str) -> None:
    with pytest.raises(InvalidInput, match="keep"):
        parse_descriptor(FILE, ORDERS + f"keep: {keep}\n".encode())


def test_one_bad_file_does_not_hide_the_others() -> None:
    found = gather(
        {
            "_lakefs_tables/z.yaml": ORDERS,
            "_lakefs_tables/b.yaml": b"name: [",
            "_lakefs_tables/a.yaml": b"name: a\ntype: delta\npath: a\n",
            "_lakefs_tables/i.yaml": b"name: i\ntype: iceberg\npath: i\n",
        }
    )
    assert [table.name for table in found.tables] == ["a", "orders"]
    assert found.skipped == (Skipped("_lakefs_tables/i.yaml", "iceberg"),)
    assert [file for file, _ in found.wrong] == ["_lakefs_tables/b.yaml"]


def test_of_two_tables_with_one_name_neither_is_taken() -> None:
    same = b"name: a\ntype: delta\npath: elsewhere\n"
    found = gather({"_lakefs_tables/a.yaml": same, "_lakefs_tables/b.yaml": same, FILE: ORDERS})
    assert [table.name for table in found.tables] == ["orders"]
    assert [file for file, _ in found.wrong] == ["_lakefs_tables/a.yaml", "_lakefs_tables/b.yaml"]
    for _, error in found.wrong:
        assert "_lakefs_tables/a.yaml and _lakefs_tables/b.yaml" in str(error)


def test_there_are_only_so_many() -> None:
    files = {f"_lakefs_tables/{number}.yaml": b"type: x" for number in range(MOST_DESCRIPTORS + 1)}
    with pytest.raises(InvalidInput, match="more than 1,000"):
        gather(files)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("_lakefs_tables/a.yaml", True),
        ("_lakefs_tables/team/a.yaml", True),
        ("_lakefs_tables/a.yml", False),
        ("_lakefs_tables/.a.yaml", False),
        ("_lakefs_tables/_drafts/a.yaml", False),
        ("other/a.yaml", False),
    ],
)
def test_descriptors_are_the_files_that_lakefs_takes_for_one(path: str, is_one: bool) -> None:
    assert is_descriptor(path) is is_one
