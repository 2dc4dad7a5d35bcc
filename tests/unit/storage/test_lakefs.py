"""lakeFS as a store: what is asked of it, where bytes come from, and what goes wrong."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    ObjectNotFound,
    StorageUnavailable,
    Unauthorized,
)
from lakeferry.storage import StoreConfig, open_config, open_store, rest_request
from lakeferry.storage.lakefs import LakeFSStore
from lakeferry.storage.lakefs_addresses import physical_uri
from lakeferry.storage.lakefs_api import LAKEFS_PAGE, LakeFSAccess
from tests.support.lakefs_server import KEY, SECRET, OurLakeFS


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "LAKECTL_SERVER_ENDPOINT_URL",
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID",
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY",
        "LAKEFS_ENDPOINT",
        "LAKEFS_ACCESS_KEY_ID",
        "LAKEFS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OurLakeFS]:
    (tmp_path / "blocks").mkdir()
    with OurLakeFS(tmp_path / "blocks") as running:
        yield running


def connect(server: OurLakeFS, place: str = "lakefs://repo/main/t", **more: float) -> LakeFSStore:
    """A store that doesn't wait before it asks again."""
    config = StoreConfig(place, server.options)
    return LakeFSStore(config, open_config, pause=lambda _: None, **more)  # type: ignore[arg-type]


def names(store: LakeFSStore, prefix: str = "", **bounds: str) -> list[str]:
    return [found.path for found in store.list(prefix, **bounds)]


# --- Listings ----------------------------------------------------------------------


def test_a_listing_goes_page_by_page_and_counts_them(server: OurLakeFS) -> None:
    wanted = [f"{number:02}" for number in range(25)]
    for name in [*(f"t/{name}" for name in wanted), "s", "t", "t2/x"]:
        server.put(name, b"12345")
    server.page_size = 10
    store = connect(server)
    found = list(store.list(""))
    assert [each.path for each in found] == wanted
    assert {each.size_bytes for each in found} == {5}
    assert {each.modified_ms for each in found} == {1_700_000_000_000}
    assert store.calls["LIST"] == len(server.asked) == 3
    assert [query.get("after", "") for query in server.queries] == ["", "t/09", "t/19"]
    assert {query["amount"] for query in server.queries} == {str(LAKEFS_PAGE)}


def test_pages_outside_of_the_bounds_are_not_asked_for(server: OurLakeFS) -> None:
    for number in range(30):
        server.put(f"t/{number:02}")
    server.page_size = 5
    assert names(connect(server), "", start_after="11", stop_before="14") == ["12", "13"]
    assert len(server.asked) == 1
    assert next(connect(server).list("")).path == "00"
    assert len(server.asked) == 2


def test_names_are_sorted_by_their_bytes_and_folder_marks_are_left_out(server: OurLakeFS) -> None:
    for name in ("t/", "t/a/", "t/a//b", "t/\U0001f600", "t/\uffee", "t/a b%20#+&?=x", "t/a/b"):
        server.put(name)
    assert names(connect(server)) == ["a b%20#+&?=x", "a/b", "\uffee", "\U0001f600"]


def test_the_root_of_a_ref_is_a_store_too(server: OurLakeFS) -> None:
    server.put("x/y", b"bytes")
    store = connect(server, "lakefs://repo/v1.0")
    assert names(store) == ["x/y"]
    assert store.get("x/y") == b"bytes"
    with pytest.raises(ObjectNotFound):
        store.head("")


@pytest.mark.parametrize(
    ("results", "says"),
    [(["t/b", "t/a"], "comes after"), ([], "none is shown")],
    ids=["out of order", "empty"],
)
def test_a_server_that_lists_wrongly_is_not_relied_on(
    server: OurLakeFS, results: list[str], says: str
) -> None:
    more = {"physical_address": "s3://b/k", "size_bytes": 1, "mtime": 1}
    page = [{"path": path, **more} for path in results]
    server.next_replies.append((200, {"pagination": {"has_more": True}, "results": page}))
    with pytest.raises(StorageUnavailable, match=says):
        names(connect(server))


# --- Where bytes come from ---------------------------------------------------------


def test_what_was_listed_is_read_without_asking_lakefs_again(server: OurLakeFS) -> None:
    for number in range(20):
        server.put(f"t/{number:02}", f"content {number}".encode())
    store = connect(server)
    paths = names(store)
    assert store.get_many(paths) == [f"content {number}".encode() for number in range(20)]
    assert store.get_range("07", 8, 5) == b"7"
    assert len(server.asked) == 1
    assert (store.calls["LIST"], store.calls["HEAD"]) == (1, 0)
    assert (store.calls["GET"], store.calls["RANGE"]) == (20, 1)


def test_a_name_that_was_not_listed_costs_one_question(server: OurLakeFS) -> None:
    server.put("t/hint", b"old")
    store = connect(server)
    assert store.get("hint") == b"old"
    server.put("t/hint", b"new")
    # It is looked up again: whoever asks twice wants to know what it is now.
    assert store.get("hint") == b"new"
    assert store.calls["HEAD"] == len(server.asked) == 2
    assert store.get_range("hint", 0, 1) + store.get_range("hint", 1, 9) == b"new"
    assert store.calls["HEAD"] == 3


def test_only_so_many_addresses_are_remembered(server: OurLakeFS) -> None:
    for name in "abcd":
        server.put(f"t/{name}", name.encode())
    store = connect(server, remembered=2)
    assert store.get_many(names(store)) == [b"a", b"b", b"c", b"d"]
    assert {path for verb, path in store.calls.log if verb == "HEAD"} == {"a", "b"}


@pytest.mark.parametrize(
    "address", ["local:///on/another/machine", "mem://repo/x", "s3://bucket/a//b", "s3://b/../x"]
)
def test_bytes_that_we_cannot_get_at_come_from_lakefs(server: OurLakeFS, address: str) -> None:
    server.put("t/x", b"0123456789")
    server.address_of = lambda _: address
    store = connect(server)
    assert names(store) == ["x"]
    assert store.get("x") == b"0123456789"
    assert store.get_range("x", 3, 4) == b"3456"
    assert store.get_range("x", 8, 100) == b"89"
    assert store.get_range("x", 10, 1) == b""
    assert store.get_range("x", 2, 0) == b""
    assert server.ranges[-4:-1] == ["bytes=3-6", "bytes=8-107", "bytes=10-10"]


def test_an_object_that_is_replaced_by_a_shorter_one_while_it_is_read_is_told(
    server: OurLakeFS,
) -> None:
    before = server._stats("t/x", server.put("t/x", b"0123456789"))
    server.address_of = lambda _: "mem://elsewhere/x"
    store = connect(server)
    assert names(store) == ["x"]
    server.put("t/x", b"0123")
    server.next_replies.append((200, before))
    with pytest.raises(StorageUnavailable, match="lakeFS sent 4 bytes of 'x'") as told:
        store.get("x")
    assert told.value.remedy == "try again: the object may have been replaced meanwhile"
    assert connect(server).get("x") == b"0123"


def test_a_blockstore_that_does_not_let_us_in_is_tried_once(
    server: OurLakeFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    class Closed:
        def get(self, path: str) -> bytes:
            tried.append(path)
            raise Forbidden("no")

    for name in "abc":
        server.put(f"t/{name}", name.encode())
    server.address_of = lambda file: f"s3://bucket/{file.name}"
    store = connect(server)
    monkeypatch.setitem(store._blockstores, "s3://bucket", Closed())
    assert [store.get(name) for name in names(store)] == [b"a", b"b", b"c"]
    assert len(tried) == 1


def test_an_object_replaced_since_it_was_listed_is_still_found(server: OurLakeFS) -> None:
    first = server.put("t/x", b"first")
    store = connect(server)
    assert names(store) == ["x"]
    server.put("t/x", b"second")
    assert store.get("x") == b"first"
    first.unlink()
    assert store.get("x") == b"second"


def test_pages_have_the_addresses_as_uris_of_ours(server: OurLakeFS) -> None:
    files = {name: server.put(f"t/{name}", b"x" * size) for size, name in enumerate("abc")}
    server.page_size = 2
    store = connect(server)
    first = store.page()
    second = store.page(first.last)
    assert [
        (name, entry.address, entry.size_bytes)
        for page in (first, second)
        for name, entry in page.entries
    ] == [(name, f"file://{files[name]}", size) for size, name in enumerate("abc")]
    assert (first.last, first.more, second.more) == ("b", True, False)
    assert len(server.asked) == store.calls["LIST"] == 2


@pytest.mark.parametrize(
    ("address", "uri"),
    [
        ("local:///data/repo/a b%20c#d", "file:///data/repo/a%20b%2520c%23d"),
        ("s3://bucket/repo/data/x/y", "s3://bucket/repo/data/x/y"),
        ("s3://bucket/imported/a b?c", "s3://bucket/imported/a%20b%3Fc"),
        ("gs://bucket/x", "gs://bucket/x"),
        (
            "https://account.blob.core.windows.net/box/repo/data/x",
            "abfss://box@account.dfs.core.windows.net/repo/data/x",
        ),
        ("mem://repo/x", "mem://repo/x"),
    ],
)
def test_an_address_of_lakefs_has_a_uri_of_ours(address: str, uri: str) -> None:
    assert physical_uri(address) == uri


# --- Refs --------------------------------------------------------------------------


def test_only_a_branch_has_uncommitted_changes(server: OurLakeFS) -> None:
    server.put("t/x")
    assert connect(server).has_uncommitted()
    assert connect(server).has_uncommitted("x")
    assert not connect(server).has_uncommitted("y")
    asked = len(server.asked)
    assert not connect(server, "lakefs://repo/v1.0/t").has_uncommitted()
    assert not connect(server, "lakefs://repo/main~1/t").has_uncommitted()
    assert not connect(server, "lakefs://repo/main@/t").has_uncommitted()
    assert len(server.asked) == asked
    assert not connect(server, "lakefs://repo/c0ffee/t").has_uncommitted()
    with pytest.raises(ObjectNotFound):
        connect(server, "lakefs://repo/nosuch/t").has_uncommitted()


def test_a_commit_and_the_storage_namespace_are_told(server: OurLakeFS, tmp_path: Path) -> None:
    store = connect(server)
    assert store.commit_id() == "c0ffee"
    with pytest.raises(ObjectNotFound, match="can't find the local folder"):
        store.storage_namespace()
    server.put("elsewhere")
    server.address_of = lambda _: f"local://{tmp_path}/repo/data/x/y"
    assert store.storage_namespace() == f"file://{tmp_path}/repo"
    server.next_replies.append((200, {"storage_namespace": "s3://bucket/some where/"}))
    assert store.storage_namespace() == "s3://bucket/some%20where"


def test_a_repository_alone_is_no_store(server: OurLakeFS) -> None:
    with pytest.raises(InvalidInput, match="no ref"):
        open_store("lakefs://repo", server.options)


# --- What isn't there --------------------------------------------------------------


@pytest.mark.parametrize("act", ["list", "get", "head", "commit_id"])
@pytest.mark.parametrize(
    ("place", "missing"),
    [("lakefs://nosuch/main/t", "repository"), ("lakefs://repo/nosuch/t", "ref")],
)
def test_what_is_missing_is_named(server: OurLakeFS, place: str, missing: str, act: str) -> None:
    store = connect(server, place)
    acts = {
        "list": lambda: names(store),
        "get": lambda: store.get("x"),
        "head": lambda: store.head("x"),
        "commit_id": store.commit_id,
    }
    with pytest.raises(ObjectNotFound, match=f"{missing} 'nosuch'") as refused:
        acts[act]()
    fields = refused.value.fields
    assert (fields["missing"], fields["bucket_missing"]) == (missing, True)
    assert (fields["repository"], fields["ref"]) == tuple(place.split("/")[2:4])


def test_a_missing_path_is_told_from_a_missing_ref_with_one_more_question(
    server: OurLakeFS,
) -> None:
    store = connect(server)
    for asked in (2, 3):
        with pytest.raises(ObjectNotFound, match="'t/x' in lakefs://repo/main") as refused:
            store.get("x")
        assert refused.value.fields["missing"] == "path"
        assert (refused.value.fields["path"], refused.value.fields["uri"]) == ("x", store.uri)
        assert len(server.asked) == asked


def test_an_object_that_was_collected_is_not_there(server: OurLakeFS) -> None:
    server.next_replies.append((410, {"message": "gone"}))
    with pytest.raises(ObjectNotFound, match="deleted"):
        connect(server).get("x")


# --- What goes wrong ---------------------------------------------------------------


def test_a_busy_server_is_asked_again_a_few_times(server: OurLakeFS) -> None:
    pauses: list[float] = []
    store = LakeFSStore(
        StoreConfig("lakefs://repo/main/t", server.options), open_config, pause=pauses.append
    )
    server.put("t/x")
    server.next_replies.extend([(503, {"message": "busy"}), (429, {}), None])
    assert names(store) == ["x"]
    assert pauses == list(rest_request.PAUSES_S)
    server.next_replies.extend([(503, {"message": "busy"})] * (len(rest_request.PAUSES_S) + 1))
    with pytest.raises(StorageUnavailable, match="503"):
        names(store)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ((401, {"message": "no"}), Unauthorized),
        ((403, {"message": "no"}), Forbidden),
        ((400, {"message": "ref: invalid value"}), InvalidInput),
        ((500, {"message": "out of order"}), StorageUnavailable),
        ((302, {}), StorageUnavailable),
        ((200, b"<html>"), StorageUnavailable),
        ((200, {}), StorageUnavailable),
        ((200, {"results": [{"path": "t/x"}], "pagination": {}}), StorageUnavailable),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_its_kind(
    server: OurLakeFS, reply: tuple[int, object], error: type[Exception]
) -> None:
    server.next_replies.append(reply)
    with pytest.raises(error):
        names(connect(server))


def test_a_server_that_is_down_or_silent_is_given_up(server: OurLakeFS) -> None:
    server.fall_silent()
    with pytest.raises(StorageUnavailable, match=r"within 0\.2 seconds"):
        names(connect(server, timeout_s=0.2))
    server._heard.set()
    server.go_down()
    with pytest.raises(StorageUnavailable, match="refused") as refused:
        names(connect(server))
    assert "LAKECTL_SERVER_ENDPOINT_URL" in (refused.value.remedy or "")


def test_nothing_is_written(server: OurLakeFS) -> None:
    store = connect(server)
    store.delete_many([])
    for act in (
        lambda: store.put("x", b""),
        lambda: store.put_if_absent("x", b""),
        lambda: store.swap("x", None, b""),
        lambda: store.put_stream("x", iter([b""]), 0),
        lambda: store.put_stream_if_absent("x", iter([b""]), 0),
        lambda: store.copy_within("x", "y"),
        lambda: store.delete_many(["x"]),
        lambda: store.sign("PUT", "x", 60),
    ):
        with pytest.raises(Forbidden, match="only be read") as refused:
            act()
        assert "s3://repo/" in (refused.value.remedy or "")
    assert server.asked == []


# --- Settings ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "lead",
    [("LAKECTL_SERVER_ENDPOINT_URL", "LAKECTL_CREDENTIALS_"), ("LAKEFS_ENDPOINT", "LAKEFS_")],
)
@pytest.mark.parametrize("suffix", ["", "/", "/api/v1"])
def test_the_environment_says_where_and_who(
    server: OurLakeFS, monkeypatch: pytest.MonkeyPatch, lead: tuple[str, str], suffix: str
) -> None:
    monkeypatch.setenv(lead[0], f"{server.endpoint}{suffix}")
    monkeypatch.setenv(f"{lead[1]}ACCESS_KEY_ID", KEY)
    monkeypatch.setenv(f"{lead[1]}SECRET_ACCESS_KEY", SECRET)
    server.put("t/x")
    # As it travels to an executor: without anything that was found here.
    config = pickle.loads(pickle.dumps(StoreConfig("lakefs://repo/main/t")))
    assert [found.path for found in open_config(config).list("")] == ["x"]


def test_options_beat_the_environment_and_keys_are_never_joined() -> None:
    environment = {
        "LAKECTL_SERVER_ENDPOINT_URL": "http://environment",
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": "key",
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": "secret",
        "LAKEFS_ACCESS_KEY_ID": "other",
        "LAKEFS_SECRET_ACCESS_KEY": "other secret",
    }
    assert LakeFSAccess.find({}, environment) == LakeFSAccess("http://environment", "key", "secret")
    mine = {"LAKEFS_ENDPOINT": "http://mine", "lakefs_access_key_id": "a"}
    with pytest.raises(InvalidInput, match="a key for lakeFS is incomplete"):
        LakeFSAccess.find(mine, environment)
    found = LakeFSAccess.find({**mine, "lakefs_secret_access_key": "b"}, environment)
    assert found == LakeFSAccess("http://mine", "a", "b")
    with pytest.raises(InvalidInput, match="the address of lakeFS") as refused:
        LakeFSAccess.find({}, {})
    assert "LAKECTL_SERVER_ENDPOINT_URL" in (refused.value.remedy or "")


def test_without_a_key_the_error_says_so(server: OurLakeFS) -> None:
    store = open_store("lakefs://repo/main/t", {"lakefs_endpoint": server.endpoint})
    with pytest.raises(Unauthorized, match="there is no key"):
        list(store.list(""))


def test_no_secret_is_shown_anywhere(server: OurLakeFS) -> None:
    store = connect(server)
    server.next_replies.extend([(401, {"message": "no"}), (500, {"message": "no"})])
    shown = [
        repr(store),
        repr(store.config),
        repr(LakeFSAccess.find(server.options)),
        repr(store._api),
    ]
    for error in (Unauthorized, StorageUnavailable):
        with pytest.raises(error) as refused:
            names(store)
        shown += [repr(refused.value), str(refused.value.as_document()), str(refused.value.remedy)]
    assert not any(SECRET in text for text in shown)
    with pytest.raises(InvalidInput) as bad:
        open_store("lakefs://repo/main/t", {"lakefs_endpoint": f"http://me:{SECRET}@host"})
    assert SECRET not in str(bad.value.as_document())
