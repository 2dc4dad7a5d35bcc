from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.errors import InvalidInput
from lakeferry.storage import uris

NAMES = st.lists(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1).filter(
        lambda segment: segment not in (".", "..")
    ),
    min_size=1,
    max_size=4,
).map("/".join)


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("/data/t", "file:///data/t"),
        ("/data/t/", "file:///data/t"),
        ("t", "file:///here/t"),
        ("./a/../t", "file:///here/t"),
        ("../t", "file:///t"),
        (".", "file:///here"),
        ("/", "file:///"),
        ("~/t", "file:///here/~/t"),
        ("./a:b", "file:///here/a:b"),
        ("/a b/50%/ü#?", "file:///a%20b/50%25/%C3%BC%23%3F"),
        ("/a%20b", "file:///a%2520b"),
        ("/x=1/y", "file:///x=1/y"),
        ("file:/data/t", "file:///data/t"),
        ("file:///data/t/", "file:///data/t"),
        ("FILE://localhost/data/t", "file:///data/t"),
        ("file:///a%20b", "file:///a%20b"),
        ("file:///a b", "file:///a%20b"),
        ("file:///a%3db", "file:///a=b"),
        ("file:///50%", "file:///50%25"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3a://bucket/t/", "s3://bucket/t"),
        ("S3N://bucket//a///t", "s3://bucket/a/t"),
        ("s3://bucket/a#b?c", "s3://bucket/a%23b%3Fc"),
        ("gs://bucket/t", "gs://bucket/t"),
        ("gcs://bucket/t", "gs://bucket/t"),
        ("az://box/t", "az://box/t"),
        ("azure://box/t", "az://box/t"),
        ("abfs://box@acct.dfs.core.windows.net/t", "abfss://box@acct.dfs.core.windows.net/t"),
        ("wasbs://box@Acct.blob.core.windows.net/t", "abfss://box@acct.dfs.core.windows.net/t"),
        ("abfss://box@acct/t", "abfss://box@acct.dfs.core.windows.net/t"),
        ("memory://x/t", "memory://x/t"),
        ("lakefs://repo", "lakefs://repo"),
        ("LakeFS://repo/main/", "lakefs://repo/main"),
        ("lakefs://repo//main//a b/", "lakefs://repo/main/a%20b"),
        ("lakefs://repo/main~1/t", "lakefs://repo/main~1/t"),
        ("lakefs://repo/main^2/t", "lakefs://repo/main%5E2/t"),
        ("lakefs://repo/main@/t", "lakefs://repo/main@/t"),
    ],
)
def test_every_spelling_of_a_place_has_one_uri(text: str, uri: str) -> None:
    assert uris.normalise(text, working_folder="/here") == uri
    assert uris.normalise(uri) == uri


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a\0b", "NUL"),
        ("file:t", "absolute path"),
        ("file://host/t", "another host"),
        ("s3:/bucket/t", "two slashes"),
        ("s3:///t", "no bucket"),
        ("s3://", "no bucket"),
        ("s3://bucket/../t", "segment"),
        ("s3://bucket/%2e%2e/t", "segment"),
        ("s3://bucket/%00", "segment"),
        ("s3://bucket/%ff", "UTF-8"),
        ("lakefs:///main/t", "no repository"),
        ("lakefs://repo/a%20b/t", "no ref"),
        ("lakefs://repo/a%2Fb/t", "no ref"),
        ("lakefs://repo/../t", "no ref"),
        ("lakefs://repo/main/../t", "segment"),
        ("sql:cat.schema.t", "catalog"),
        ("unity:cat.schema.t", "catalog"),
        ("ftp://host/t", "unknown scheme"),
        ("untiy:cat.schema.t", "unknown scheme"),
    ],
)
def test_what_names_no_storage_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        uris.normalise(text)


@pytest.mark.parametrize("place", ["s3://key:hunter2@bucket/t", "lakefs://key:hunter2@repo/a b/t"])
def test_credentials_in_a_uri_are_refused_and_not_repeated(place: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        uris.normalise(place)
    assert "hunter2" not in str(refused.value.as_document())


@given(NAMES)
def test_names_survive_the_log(name: str) -> None:
    encoded = uris.encode_name(name)
    assert not uris.is_absolute_uri(encoded)
    assert encoded.isascii()
    assert uris.decode_name(encoded) == name


@given(
    NAMES,
    st.sampled_from(
        ["s3://bucket", "file:///", "file:///a%20b", "memory://m/x", "lakefs://r/main~1/x"]
    ),
)
def test_names_survive_a_uri(name: str, root: str) -> None:
    uri = uris.join(root, name)
    assert uris.normalise(uri) == uri
    assert uris.relative_name(root, uri) == name
    container, inside = uris.container_and_name(uri)
    assert uris.join(container, inside) == uri


@given(NAMES)
def test_local_paths_are_taken_literally(name: str) -> None:
    assert uris.local_path(uris.normalise(f"/{name}")) == f"/{name}"


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("x.parquet", False),
        ("ts=10:30/x.parquet", False),
        ("a:b.parquet", False),
        ("/x", True),
        ("file:/x", True),
        ("s3://bucket/x", True),
        ("abfss://box@acct/x", True),
    ],
)
def test_what_is_absolute(path: str, absolute: bool) -> None:
    assert uris.is_absolute_uri(path) is absolute


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("a%20b.parquet", "s3://bucket/t/a%20b.parquet"),
        ("p=a%2520b/x", "s3://bucket/t/p=a%2520b/x"),
        ("s3a://other/x%20y", "s3://other/x%20y"),
        ("/u/x", "s3://bucket/u/x"),
        ("file:/x", "file:///x"),
    ],
)
def test_paths_of_a_log_resolve_against_the_table(path: str, uri: str) -> None:
    assert uris.resolve_path("s3://bucket/t", path) == uri


@pytest.mark.parametrize(
    "path", ["", ".", "..", "../x", "a/../b", "a//b", "a/", "%2e%2e/x", "a%2f..%2fb", "a%00"]
)
def test_no_path_leads_out_of_the_table(path: str) -> None:
    with pytest.raises(InvalidInput):
        uris.decode_name(path)


def test_places_are_compared_by_meaning() -> None:
    assert uris.same_place("s3a://bucket/a%3Db/", "s3://bucket/a=b")
    assert uris.same_place("file:/tmp/ü", "file:///tmp/%C3%BC")
    assert not uris.same_place("s3://bucket/a", "s3://bucket/A")
    assert uris.relative_name("s3://bucket/t", "s3a://bucket/t/x%20y") == "x y"
    assert uris.relative_name("s3://bucket/t", "s3://bucket/tt/x") is None
    assert uris.relative_name("s3://bucket/t", "s3://bucket/t") is None


def test_a_ref_of_lakefs_is_the_root_of_a_store() -> None:
    uri = "lakefs://repo/main%5E2/a%20b/x"
    assert uris.container_and_name(uri) == ("lakefs://repo/main%5E2", "a b/x")
    assert uris.split(uri).repository_and_ref == ("repo", "main^2")
    assert uris.split("lakefs://repo").repository_and_ref == ("repo", "")
    assert uris.relative_name("lakefs://repo/main/t", "lakefs://repo/v1/t/x") is None
    # Whoever writes through the gateway takes the repository for a bucket.
    assert uris.resolve_path("lakefs://repo/v1/t", "/main/t/a%20b") == "lakefs://repo/main/t/a%20b"


@given(NAMES)
def test_a_uri_can_be_pasted_into_a_shell(name: str) -> None:
    for root in ("file:///data", "s3://bucket"):
        uri = uris.join(root, name)
        safe = uris.shell_safe(uri)
        assert not set(safe) & set("!$&'()*;<>|?[]{}`\"\\# \t\n")
        assert uris.normalise(safe) == uris.normalise(uri)


def test_a_name_in_a_catalog_is_quoted_for_a_shell() -> None:
    assert uris.shell_safe("sql:a.b.t") == "sql:a.b.t"
    assert shlex.split(uris.shell_safe("sql:a.b.it's")) == ["sql:a.b.it's"]
