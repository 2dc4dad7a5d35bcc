"""When two file actions mean the same file, and which place a path leads to."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakeferry.log import file_actions, file_identity

S3 = "s3://bucket/table"


@pytest.mark.parametrize(
    ("first", "second", "root"),
    [
        ("a%20b", "a b", S3),
        ("p=%C3%BC/f", "p=%c3%bc/f", S3),
        ("%61", "a", S3),
        ("./a//b", "a/b", S3),
        ("s3://bucket//f", "s3://bucket/x/../f", S3),
        ("a%2Fb", "a/b", S3),
        ("file:/x/y", "file:///x/y", "file:///x"),
        ("file:///x/y", "/x/y", "file:///x"),
        ("file://localhost/x/y", "file:/x/y", "file:///x"),
        ("s3a://bucket/f", "s3://bucket/f", S3),
        ("S3N://bucket/f", "s3a://bucket/f", S3),
        ("/other/f", "s3://bucket/other/f", S3),
        ("abfss://c@a/f", "abfs://c@a/f", S3),
    ],
)
def test_one_place(first: str, second: str, root: str) -> None:
    assert file_identity.canonical_path(first, root) == file_identity.canonical_path(second, root)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a", "A"),
        ("a%2520b", "a%20b"),
        ("s3://bucket/f", "s3://other/f"),
        ("s3://bucket/table/f", "f"),
        ("gs://bucket/f", "s3://bucket/f"),
        ("a%FF", "a%FE"),
        ("a%0Ab", "a%0Bb"),
    ],
)
def test_two_places(first: str, second: str) -> None:
    assert file_identity.canonical_path(first, S3) != file_identity.canonical_path(second, S3)


# What Hadoop's Path and java.net.URI made of these, in delta-spark's order.
@pytest.mark.parametrize(
    ("path", "spelled"),
    [
        ("a/b", "a/b"),
        ("./p", "p"),
        ("q//r", "q/r"),
        ("a/../b", "b"),
        ("../a", "../a"),
        ("a/../../b", "../b"),
        ("a/.", "a/"),
        ("a/..", ""),
        ("a/b/..", "a/"),
        ("a//", "a/"),
        ("a/...//b", "a/.../b"),
        ("a?b/../c", "a?b/../c"),
        ("%2e/a", "%2e/a"),
        ("a/%2E%2E/b", "a/%2E%2E/b"),
        ("s3://b//k", "s3://b/k"),
        ("s3://b/../x", "s3://b/../x"),
        ("s3:///x/./y", "s3:/x/y"),
        ("file:///x//y", "file:/x/y"),
        ("file:/x/y", "file:/x/y"),
        ("file://localhost/x", "file://localhost/x"),
        ("//x/y", "//x/y"),
    ],
)
def test_identities_are_those_of_delta_spark(path: str, spelled: str) -> None:
    assert file_identity.identity(path, S3) == spelled
    assert file_identity.identities(pa.array([path, "f"]), S3).to_pylist() == [spelled, "f"]


@pytest.mark.parametrize("path", ["/x/y", "///x/y", "file:/x/y", "file:///x/y", "FILE:/x/./y"])
def test_a_local_table_s_absolute_paths(path: str) -> None:
    assert file_identity.identity(path, "file:///table") == "file:/x/y"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("%61", "a"),
        ("a%20b", "a b"),
        ("p=%C3%BC/f", "p=%c3%bc/f"),
        ("p=%C3%BC/f", "p=ü/f"),
        ("a%2Fb", "a/b"),
        ("s3a://bucket/f", "s3://bucket/f"),
        ("/other/f", "s3://bucket/other/f"),
        ("s3://bucket/table/f", "f"),
    ],
)
def test_what_engines_keep_apart_is_apart(first: str, second: str) -> None:
    assert file_identity.identity(first, S3) != file_identity.identity(second, S3)


@pytest.mark.parametrize(
    ("path", "absolute"),
    [("a", False), ("/a", True), ("s3://b/a", True), ("file:/a", True), ("a:b", False)],
)
def test_absolute_paths(path: str, absolute: bool) -> None:
    assert file_identity.is_absolute_path(path) is absolute


def test_the_identity_of_a_file_is_its_path_and_its_vector() -> None:
    def vector(kind: str, where: str, offset: int | None) -> dict[str, object]:
        return {"storageType": kind, "pathOrInlineDv": where, "offset": offset}

    vectors = [None, vector("u", "x", None), vector("u", "x", 0), vector("i", "x", None), None]
    column = pa.array(["a", "a", "a", "a", "./a"], pa.string())
    keys = file_identity.keys(
        column, pa.array(vectors, file_actions.DELETION_VECTOR), S3
    ).to_pylist()
    assert keys[0] == keys[4]
    assert len(set(keys)) == 4
    ids = file_identity.vector_ids(pa.array(vectors, file_actions.DELETION_VECTOR)).to_pylist()
    assert ids == [None, "ux", "ux@0", "ix", None]
