"""What cancels what in a log stays so when another table's files become the table's own."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.log import file_identity
from lakeferry.log.rewrite import Adopted, Returned, rewrite_vectors

ROOTS = st.sampled_from(["s3://bucket/table", "file:///data/table"])
PREFIXES = st.sampled_from(
    (
        *("", "/", "//", "///", "s3://b/", "s3a://b/", "S3://b/", "s3:/"),
        *("file:/", "file:///", "file://localhost/"),
        *("../", "../../", "a/../../", "_adopted/~1/"),
        *("_adopted/", "./_adopted/", "_adopted/s3/b/", "_adopted/~/~/", "_adopted/="),
    )
)
SEGMENTS = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "..",
        "",
        "~",
        "-",
        "=",
        "%61",
        "a:b",
        ".b",
        "c?d",
        "ü",
        "s3",
        "file",
        "_adopted",
    ]
)
PATHS = st.builds(
    lambda prefix, segments: prefix + "/".join(segments),
    PREFIXES,
    st.lists(SEGMENTS, min_size=1, max_size=5),
).filter(lambda path: file_identity.identity(path, "") != "")
VECTOR = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


@given(st.lists(PATHS, min_size=2, max_size=8), ROOTS, ROOTS)
def test_files_are_one_there_exactly_where_they_are_one_here(
    paths: list[str], source: str, target: str
) -> None:
    names = Adopted(source)(pa.array(paths, pa.string()))
    here = [file_identity.identity(path, source) for path in paths]
    there = [file_identity.identity(name, target) for name in names.to_pylist()]
    for i in range(len(paths)):
        assert not file_identity.is_absolute_path(names[i].as_py())
        assert not there[i].startswith("../")
        for j in range(i):
            assert (here[i] == here[j]) == (there[i] == there[j]), (paths[i], paths[j])
    home = [
        file_identity.identity(path, source)
        for path in Returned("s3://away/table")(names).to_pylist()
    ]
    assert home == here


@given(st.lists(PATHS, min_size=1, max_size=8), ROOTS)
def test_a_column_is_named_like_single_paths(paths: list[str], root: str) -> None:
    whole = Adopted(root)(pa.array(paths, pa.string())).to_pylist()
    assert whole == [Adopted(root)(pa.array([path]))[0].as_py() for path in paths]


@given(
    st.lists(PATHS.filter(file_identity.is_absolute_path), min_size=1, max_size=8, unique=True),
    ROOTS,
)
def test_vectors_are_one_there_exactly_where_they_are_one_here(
    folders: list[str], root: str
) -> None:
    vectors = [("p", f"{folder}/{VECTOR}") for folder in folders]
    there = rewrite_vectors(vectors, Adopted(root))
    assert {kind for kind, _ in there} == {"u"}
    assert len(set(there)) == len(vectors)
    assert rewrite_vectors(there, Returned("s3://away/table")) == vectors
