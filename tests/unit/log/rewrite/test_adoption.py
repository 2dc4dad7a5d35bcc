"""Other tables' files as files of one's own: which names they get, and what comes back."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from lakeferry.log import file_identity
from lakeferry.log.rewrite import Adopted, Returned, rewrite_lines, rewrite_vectors

LOCAL = "file:///lake/clone"
BUCKET = "s3://lake/clone"
VECTOR_FILE = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
ENCODED = "^-aqEH.-t@S}K{vb[*k^"


def adopted(*paths: str, root: str = LOCAL) -> list[str]:
    names: list[str] = Adopted(root)(pa.array(paths, pa.string())).to_pylist()
    return names


def returned(*names: str) -> list[str]:
    paths: list[str] = Returned("s3://away/table")(pa.array(names, pa.string())).to_pylist()
    return paths


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("s3://lake/t/p=a%20b/x.parquet", "_adopted/s3/lake/t/p=a%20b/x.parquet"),
        ("abfss://c@a.example/t/x", "_adopted/abfss/c@a.example/t/x"),
        ("file:/lake/t/x", "_adopted/file/~/lake/t/x"),
        ("dbfs:/lake/.hidden/x", "_adopted/dbfs/~/lake/.hidden/x"),
        ("file://localhost/x", "_adopted/file/localhost/x"),
        ("/lake/x", "_adopted/~/~/lake/x"),
        ("//host/x", "_adopted/~/host/x"),
        ("../t/p=a%20b/x", "_adopted/~1/t/p=a%20b/x"),
        ("../../t/x", "_adopted/~2/t/x"),
        ("../../2/x", "_adopted/~2/2/x"),
        ("_adopted/~1/t/x", "_adopted/_adopted/~1/t/x"),
        ("_adopted/s3/lake/t/x", "_adopted/_adopted/s3/lake/t/x"),
        ("_adopted/_adopted/x", "_adopted/_adopted/_adopted/x"),
    ],
)
def test_a_name_tells_where_its_file_came_from(path: str, name: str) -> None:
    assert adopted(path, root=BUCKET) == [name]
    assert returned(name) == [path]


@pytest.mark.parametrize(
    "path", ["x", "p=10:30/x", "a/../x", "%5Fadopted/x", "a/_adopted/x", "_adopted", "adopted/x"]
)
def test_files_of_the_table_s_own_keep_their_names(path: str) -> None:
    assert adopted(path) == returned(path) == [path]


@pytest.mark.parametrize(
    "spellings",
    [
        ["file:/B/x", "file:///B/x", "/B/x", "FILE:/B/x", "file:/B//x", "/B/./x", "///B/c/../x"],
        ["s3://b/t/x", "S3://b/t/x", "s3://b//t/x", "s3://b/t/../t/x"],
        ["x", "_adopted/../x", "_adopted/s3/../../x"],
        ["../x", "./../x", "a/../../x", "..//x", "_adopted/../../x"],
        ["_adopted/s3/b/x", "./_adopted/s3/b/x", "_adopted//s3/b/x", "a/../_adopted/s3/b/x"],
    ],
)
def test_spellings_of_one_path_get_one_name_and_come_home_as_that_path(
    spellings: list[str],
) -> None:
    names = adopted(*spellings)
    assert len(set(names)) == 1
    home = file_identity.identity(returned(names[0])[0], LOCAL)
    assert {file_identity.identity(path, LOCAL) for path in spellings} == {home}


@pytest.mark.parametrize(
    "paths",
    [
        # One object, and two files to every engine.
        ["s3://b/a", "s3://b/%61", "s3a://b/a"],
        ["file:/x", "file://localhost/x", "//x", "//x/x"],
        ["s3://b/k/x", "s3:/b/k/x", "s3:/../b/k/x", "s3://../b/k/x", "s3://~/b/k/x", "s3://b"],
        ["file:/a", "file:/a/", "file:/..", "file:/../", "file:/../a"],
    ],
)
def test_two_paths_stay_two(paths: list[str]) -> None:
    names = adopted(*paths)
    assert len({file_identity.identity(name, BUCKET) for name in names}) == len(paths)
    assert [file_identity.identity(path, LOCAL) for path in returned(*names)] == [
        file_identity.identity(path, LOCAL) for path in paths
    ]


def test_what_a_slash_means_is_for_the_table_s_store_to_say() -> None:
    assert len(set(adopted("/x", "file:/x", root=LOCAL))) == 1
    assert len(set(adopted("/x", "file:/x", root=BUCKET))) == 2


def test_a_remove_cancels_its_add_under_the_new_name_however_it_is_spelled() -> None:
    lines = b'{"add":{"path":"file:///B/x","size":1}}\n{"remove":{"path":"\\/B\\/x"}}\n'
    first, second = rewrite_lines(lines, Adopted(LOCAL)).splitlines()
    assert json.loads(first)["add"]["path"] == json.loads(second)["remove"]["path"]


@pytest.mark.parametrize(
    "folder",
    [
        "file:///lake/v=1/a@b,c+d",
        "file:/lake/v=1",
        "/lake",
        "///lake",
        "s3://lake/a%20b",
        "s3://lake/10:30",
        # What a descriptor has no plain way to say.
        "s3://lake/%61%c3",
        "file:/lake/ü",
        "S3://lake",
        "s3://lake//t",
        "s3://lake/a/../../../b",
        "file:/" + "long/ü" * 100,
    ],
)
def test_a_vector_comes_along_and_home_by_the_letter(folder: str) -> None:
    vector = ("p", f"{folder}/{VECTOR_FILE}")
    ((kind, where),) = rewrite_vectors([vector], Adopted(LOCAL))
    assert kind == "u"
    assert where.startswith("_adopted/")
    assert where.endswith(ENCODED)
    assert "%" not in where.removesuffix(ENCODED)
    assert rewrite_vectors([(kind, where)], Returned("s3://away/table")) == [vector]


@pytest.mark.parametrize("folder", ["..", "../t", "a/../../t", "../ü"])
def test_a_vector_beside_the_table_comes_along_and_home_by_the_letter(folder: str) -> None:
    vector = ("u", f"{folder}{ENCODED}")
    ((kind, where),) = rewrite_vectors([vector], Adopted(LOCAL))
    assert (kind, where.startswith("_adopted/")) == ("u", True)
    assert where.endswith(ENCODED)
    assert rewrite_vectors([(kind, where)], Returned("s3://away/table")) == [vector]


def test_vectors_with_two_spellings_stay_two() -> None:
    spellings = ["file:/B", "file:///B", "/B", "FILE:/B", "file:/B/.", "file:/%42"]
    vectors = [("p", f"{folder}/{VECTOR_FILE}") for folder in spellings]
    assert len(set(rewrite_vectors(vectors, Adopted(LOCAL)))) == len(vectors)


def test_an_adopted_vector_of_a_table_that_moves_again_is_its_own() -> None:
    vector = ("u", f"_adopted/s3/lake{ENCODED}")
    there = rewrite_vectors([vector], Adopted(LOCAL))
    assert there == [("u", f"_adopted/_adopted/s3/lake{ENCODED}")]
    assert rewrite_vectors(there, Returned("s3://away/table")) == [vector]


def test_names_that_only_look_like_ours_stay() -> None:
    names = ["_adopted/=/no digits", "_adopted/=/ff", "_adopted/x", "_adopted/~a/x", "_adopted/~1"]
    assert returned(*names) == names


def test_arrays_may_have_nulls_and_begin_anywhere() -> None:
    paths = pa.array(["skipped", None, "file:///x", "y", None, "s3://b/z"]).slice(1)
    names = Adopted(LOCAL)(paths)
    expected = [None, "_adopted/file/~/x", "y", None, "_adopted/s3/b/z"]
    assert names.to_pylist() == expected
    assert Returned("s3://away/table")(names).to_pylist() == [
        None,
        "file:/x",
        "y",
        None,
        "s3://b/z",
    ]
