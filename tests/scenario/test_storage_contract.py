"""What every store promises, on local disk, in memory, in a dictionary and on a real S3 server.

What it promises to readers, a real lakeFS promises too.
"""

from __future__ import annotations

import hashlib
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    ObjectNotFound,
    StorageUnavailable,
    Unauthorized,
)
from lakeferry.storage import Store, StoreConfig, open_config, open_store
from lakeferry.storage.lakefs import LakeFSStore
from lakeferry.storage.object_parts import SMALLEST_PART_BYTES
from lakeferry.storage.store import StreamChunk
from tests.support.http_proxy import CountingProxy, Spoil, first
from tests.support.races import race, race_to_count
from tests.support.servers import LakeFSServer, S3Bucket
from tests.support.stores import DictStore

KINDS = ("local", "memory", "dict", "s3")

# Names that have broken somebody's encoding before. A key can't be both an object
# and a folder on a disk, and versitygw keeps objects on one.
SPECIAL = [
    "a b",
    "a%20b",
    "a%b",
    "a%2Fb",
    "a#5",
    "a+b",
    "a?b&c",
    "a:b",
    "a\\b",
    "a*b",
    'a"b<c>',
    "{a}[b]|^`",
    "ünï/çödé",
    "e\u0301",
    "\U0001f600",
    "x=1/y=a b/z",
    " lead",
    "trail ",
    ".hidden",
    "..x",
    "n" * 200,
]
SEGMENTS = st.text(
    st.characters(
        exclude_characters="/\ufffe\uffff",
        exclude_categories=["Cs", "Cc"],
    ),
    min_size=1,
    max_size=6,
).filter(lambda segment: segment not in (".", ".."))
# The last segment is marked, so that no object's name is another one's folder.
NAMES = st.builds(
    lambda folders, name: "/".join([*folders, f"{name}.o"]),
    st.lists(SEGMENTS.map(lambda segment: f"{segment}.d"), max_size=2),
    SEGMENTS,
)


class GatewayWritten(LakeFSStore):
    """lakeFS, filled through its S3 gateway."""

    def __init__(self, server: LakeFSServer) -> None:
        repository = server.create_repository(f"repo-{uuid.uuid4().hex[:16]}")
        options = {
            "lakefs_endpoint": server.endpoint,
            "lakefs_access_key_id": server.access_key,
            "lakefs_secret_access_key": server.secret_key,
        }
        config = StoreConfig(f"lakefs://{repository.name}/main/a%20table", options)
        super().__init__(config, open_config)
        gateway = open_store(f"{repository.uri}/main/a table", repository.storage_options)
        self.put = gateway.put  # type: ignore[method-assign]
        self.put_if_absent = gateway.put_if_absent  # type: ignore[method-assign]
        self.delete_many = gateway.delete_many  # type: ignore[method-assign]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return opened(request, tmp_path)


def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Open a store of the kind that the fixture's parameter names."""
    if request.param == "lakefs":
        return GatewayWritten(request.getfixturevalue("lakefs"))
    if request.param == "local":
        return open_store(str(tmp_path / "a table"))
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4().hex}/a table")
    if request.param == "dict":
        return DictStore()
    bucket: S3Bucket = request.getfixturevalue("s3_bucket")
    return open_store(f"{bucket.uri}/a table", bucket.storage_options)


@pytest.fixture
def proxy(s3_bucket: S3Bucket) -> Iterator[CountingProxy]:
    with CountingProxy(s3_bucket.server.endpoint.removeprefix("http://")) as running:
        yield running


@pytest.fixture
def s3(s3_bucket: S3Bucket, proxy: CountingProxy) -> Store:
    """A store behind the proxy, which tries again soon."""
    options = {
        **s3_bucket.storage_options,
        "AWS_ENDPOINT_URL": proxy.url,
        "max_retries": "2",
        "backoff_config.init_backoff": "10ms",
    }
    return open_store(f"{s3_bucket.uri}/t", options)


@pytest.fixture
def impatient(s3: Store) -> Store:
    """The same store, to which half a second of silence is a failure."""
    options = {**s3.config.options, "max_retries": "0", "read_timeout": "500ms"}
    return open_store(s3.uri, options)


def names(store: Store, prefix: str = "", **bounds: str) -> list[str]:
    return [found.path for found in store.list(prefix, **bounds)]


def by_bytes(paths: list[str]) -> list[str]:
    return sorted(paths, key=str.encode)


def chunks_of(size: int) -> Iterator[bytes]:
    """Yield that many bytes, each chunk unlike the others and of no round size."""
    for number, start in enumerate(range(0, size, 7_654_321)):
        yield bytes([number]) * min(7_654_321, size - start)


def digest(chunks: Iterator[StreamChunk]) -> bytes:
    total = hashlib.sha256()
    for chunk in chunks:
        total.update(chunk)
    return total.digest()


class TestReading:
    @pytest.fixture(
        params=[
            *KINDS,
            pytest.param("lakefs", marks=(pytest.mark.lakefs, pytest.mark.xdist_group("lakefs"))),
        ]
    )
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
        return opened(request, tmp_path)

    def test_what_was_put_is_there(self, store: Store) -> None:
        before_ms = int(time.time() * 1000) - 2000
        store.put("a/x", b"123")
        assert store.get("a/x") == b"123"
        info = store.head("a/x")
        assert (info.path, info.size_bytes) == ("a/x", 3)
        if not isinstance(store, DictStore):
            assert info.modified_ms >= before_ms
        [listed] = store.list("")
        assert (listed.path, listed.size_bytes) == ("a/x", 3)

    def test_special_names_round_trip(self, store: Store) -> None:
        for name in SPECIAL:
            assert store.put_if_absent(name, name.encode()) is True
        assert names(store) == by_bytes(SPECIAL)
        assert store.get_many(SPECIAL) == [name.encode() for name in SPECIAL]
        for name in SPECIAL:
            assert store.head(name).path == name
            assert names(store, name)[0] == name
            assert names(store, start_after=name) == [
                other for other in by_bytes(SPECIAL) if other.encode() > name.encode()
            ]
        store.delete_many(SPECIAL)
        assert names(store) == []

    def test_a_listing_goes_by_whole_names(self, store: Store) -> None:
        put = ["a/b", "a.b", "a-", "a0", "A/z", "a/b.c", "\uff5e", "\U0001f600", "a/c/d", "a/c.d"]
        for name in put:
            store.put(name, b"")
        assert names(store) == by_bytes(put)
        assert names(store, "a") == [name for name in by_bytes(put) if name.startswith("a")]
        assert names(store, "a/") == ["a/b", "a/b.c", "a/c.d", "a/c/d"]
        assert names(store, "a/c") == ["a/c.d", "a/c/d"]
        assert names(store, "a/b") == ["a/b", "a/b.c"]
        assert names(store, "nothing/here") == []

    def test_folders_are_those_directly_below_a_folder(self, store: Store) -> None:
        for name in ("a=1/x", "a=2/b=3/x", "a=2/b=4/x", "a=2/y", "z", "ä b/x"):
            store.put(name, b"")
        below = {"": ["a=1/", "a=2/", "ä b/"], "a=2/": ["a=2/b=3/", "a=2/b=4/"], "a=1/": []}
        for folder, wanted in below.items():
            found = store.folders(folder)
            assert sorted(found) == wanted if found is not None else not store.lists_ranges

    def test_a_folder_may_be_a_bound(self, store: Store) -> None:
        for name in ("a=1/x", "a=1/y", "a=2/x", "a=3/x"):
            store.put(name, b"")
        assert names(store, start_after="a=1/") == ["a=1/x", "a=1/y", "a=2/x", "a=3/x"]
        assert names(store, start_after="a=2/", stop_before="a=3/\0") == ["a=2/x"]
        assert names(store, start_after="a=1/x", stop_before="a=2/\0") == ["a=1/y"]

    def test_bounds_need_not_exist(self, store: Store) -> None:
        for number in range(6):
            store.put(f"log/{number}", b"")
        assert names(store, "log/", start_after="log/1", stop_before="log/4") == ["log/2", "log/3"]
        assert names(store, "log/", start_after="log/1x") == [f"log/{n}" for n in range(2, 6)]
        assert names(store, "log/", stop_before="log/1/") == ["log/0", "log/1"]
        assert names(store, "log/", start_after="a") == [f"log/{n}" for n in range(6)]
        assert names(store, "log/", start_after="z") == []
        assert names(store, "log/", stop_before="a") == []
        assert names(store, start_after="log/", stop_before="log/1") == ["log/0"]
        assert names(store, start_after="/\x01//") == [f"log/{n}" for n in range(6)]

    @pytest.mark.parametrize(
        ("start", "length", "data"),
        [
            (0, 10, b"0123456789"),
            (0, 1, b"0"),
            (9, 1, b"9"),
            (8, 100, b"89"),
            (10, 1, b""),
            (11, 5, b""),
            (3, 0, b""),
        ],
    )
    def test_ranges_at_the_edges(self, store: Store, start: int, length: int, data: bytes) -> None:
        store.put("x", b"0123456789")
        assert store.get_range("x", start, length) == data

    def test_ranges_of_nothing(self, store: Store) -> None:
        store.put("empty", b"")
        assert store.get("empty") == b""
        assert store.get_range("empty", 0, 1) == b""
        for length in (0, 1):
            with pytest.raises(ObjectNotFound):
                store.get_range("missing", 0, length)
        with pytest.raises(InvalidInput):
            store.get_range("empty", -1, 1)

    def test_what_is_missing(self, store: Store) -> None:
        store.put("there", b"")
        for act in (store.get, store.head, lambda path: store.get_many(["there", path])):
            with pytest.raises(ObjectNotFound):
                act("missing")
        with pytest.raises(ObjectNotFound):
            store.head("")
        assert store.get_many([]) == []

    def test_many_come_in_the_order_asked_for(self, store: Store) -> None:
        wanted = [f"{number:03}" for number in range(100)]
        for name in wanted:
            store.put(name, name.encode() * 10)
        wanted.reverse()
        assert store.get_many(wanted) == [name.encode() * 10 for name in wanted]
        assert store.calls["GET"] == 100
        assert store.calls.bytes_read == 3000


class TestEveryStore:
    def test_many_are_put_in_one_call(self, store: Store) -> None:
        store.put("a/0", b"old")
        objects = {f"{folder}/{number}": b"%d" % number for folder in "ab" for number in range(40)}
        store.put_many(objects)
        assert store.get_many(list(objects)) == list(objects.values())
        store.put_many({})
        assert [info.path for info in store.list("")] == sorted(objects, key=str.encode)

    def test_deleting_twice_is_deleting_once(self, store: Store) -> None:
        store.put("a/x", b"")
        store.put("a/y", b"")
        store.delete_many(["a/x", "never", "not/there"])
        store.delete_many(["a/x"])
        store.delete_many([])
        assert names(store) == ["a/y"]
        assert store.calls["DELETE"] == 4

    def test_a_name_that_was_taken_stays_as_it_was(self, store: Store) -> None:
        assert store.put_if_absent("x", b"first") is True
        assert store.put_if_absent("x", b"second") is False
        assert store.get("x") == b"first"
        store.delete_many(["x"])
        assert store.put_if_absent("x", b"third") is True
        assert store.calls["PUT_IF_ABSENT"] == 3

    def test_a_swap_replaces_what_it_expects_and_nothing_else(self, store: Store) -> None:
        assert store.swap("a/x", b"", b"0") is False, "nothing is there, not even nothing"
        assert names(store) == []
        assert store.swap("a/x", None, b"1") is True
        assert store.swap("a/x", None, b"2") is False
        for other in (b"", b"0", b"11", b"2"):
            assert store.swap("a/x", other, b"2") is False
        assert store.get("a/x") == b"1"
        assert store.swap("a/x", b"1", b"22") is True
        assert store.swap("a/x", b"1", b"3") is False
        assert store.swap("a/x", b"22", b"") is True
        assert store.swap("a/x", b"", b"4") is True
        assert store.get("a/x") == b"4"
        store.delete_many(["a/x"])
        assert store.swap("a/x", b"4", b"5") is False
        assert names(store) == []
        assert store.swap("a/x", None, b"6") is True
        assert (store.get("a/x"), names(store)) == (b"6", ["a/x"])
        assert store.calls["SWAP"] == 13

    @pytest.mark.parametrize("size", [0, 10, 70 * 1024 * 1024])
    def test_what_was_streamed_is_there(self, store: Store, size: int) -> None:
        store.put("x", b"before")
        store.put_stream("x", chunks_of(size), size)
        assert hashlib.sha256(store.get("x")).digest() == digest(chunks_of(size))
        store.put_stream("x", iter([b"a", b"", b"bc"]), 3)
        assert store.get("x") == b"abc"
        assert names(store) == ["x"]
        assert store.calls["PUT"] == 3

    @pytest.mark.parametrize("promised", [70 * 1024 * 1024, 20])
    @pytest.mark.parametrize("wrong", ["early", "late", "failing"])
    def test_a_stream_that_goes_wrong_leaves_the_name_as_it_was(
        self, store: Store, promised: int, wrong: str
    ) -> None:
        def failing() -> Iterator[bytes]:
            yield from chunks_of(promised // 2)
            raise ObjectNotFound("the source is gone")

        make = {
            "early": lambda: chunks_of(promised - 1),
            "late": lambda: chunks_of(promised + 1),
            "failing": failing,
        }
        kind = ObjectNotFound if wrong == "failing" else StorageUnavailable
        store.put("x", b"before")
        for name in ("x", "y"):
            with pytest.raises(kind) as raised:
                store.put_stream(name, make[wrong](), promised)
            assert not raised.value.fields.get("outcome_unknown")
        assert names(store) == ["x"]
        assert store.get("x") == b"before"

    def test_a_stream_takes_a_name_that_is_free_when_it_ends(self, store: Store) -> None:
        def overtaken() -> Iterator[bytes]:
            yield b"sec"
            store.put("a/x", b"first")
            yield b"ond"

        assert store.put_stream_if_absent("a/x", overtaken(), 6) is False
        assert store.get("a/x") == b"first"
        assert store.put_stream_if_absent("a/x", iter([b"third"]), 5) is False
        for wrong in (4, 6):
            with pytest.raises(StorageUnavailable):
                store.put_stream_if_absent("b", iter([b"third"]), wrong)
        assert (store.get("a/x"), names(store)) == (b"first", ["a/x"])
        for size in (0, 5, 70 * 1024 * 1024):
            assert store.put_stream_if_absent(f"c/{size}", chunks_of(size), size) is True
            found = hashlib.sha256(store.get(f"c/{size}")).digest()
            assert found == digest(chunks_of(size))
            assert store.put_stream_if_absent(f"c/{size}", iter([b"x"]), 1) is False
            assert store.head(f"c/{size}").size_bytes == size

    def test_a_second_name_has_the_bytes_of_the_first(self, store: Store) -> None:
        store.put("a/x", b"first")
        store.put("b", b"before")
        for name in ("b", "new/folder/ü %20#", "b"):
            store.copy_within("a/x", name)
            assert store.get(name) == b"first"
        store.put("a/x", b"second")
        assert store.get("b") == b"first"
        assert names(store) == ["a/x", "b", "new/folder/ü %20#"]
        assert store.calls["COPY"] == 3

    def test_what_is_gone_gets_no_second_name(self, store: Store) -> None:
        store.put("a/x", b"")
        store.put("b", b"before")
        for gone in ("missing", "a", "no/such/folder"):
            for name in ("b", "c"):
                with pytest.raises(ObjectNotFound):
                    store.copy_within(gone, name)
        assert names(store) == ["a/x", "b"]
        assert store.get("b") == b"before"

    def test_a_time_is_restored_where_it_can_be(self, store: Store) -> None:
        store.put("x", b"1")
        before_ms = store.head("x").modified_ms
        store.restore_time("x", 1_700_000_000_123)
        keeps_its_own = store.uri.startswith(("s3:", "memory://")) and not isinstance(
            store, DictStore
        )
        expected = before_ms if keeps_its_own else 1_700_000_000_123
        assert store.head("x").modified_ms == expected
        assert store.get("x") == b"1"

    def test_readers_see_one_or_the_other(self, store: Store) -> None:
        size = 200_000
        store.put("x", b"0" * size)
        done = threading.Event()

        def write() -> None:
            for number in range(1, 30):
                store.put("x", str(number % 10).encode() * size)
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        while not done.is_set():
            data = store.get("x")
            assert (len(data), len(set(data))) == (size, 1)
        writer.join()

    @pytest.mark.parametrize("path", ["", "/x", "x/", "a//b", "../x", "a/./b", "a\0b"])
    def test_names_that_no_store_has_are_refused(self, store: Store, path: str) -> None:
        with pytest.raises(InvalidInput):
            store.put(path, b"")
        with pytest.raises(InvalidInput):
            store.get(path)
        with pytest.raises(InvalidInput):
            store.put_stream(path, iter([b""]), 0)
        with pytest.raises(InvalidInput):
            store.put_stream_if_absent(path, iter([b""]), 0)
        with pytest.raises(InvalidInput):
            store.swap(path, None, b"")
        store.put("there", b"")
        for pair in (("there", path), (path, "there")):
            with pytest.raises(InvalidInput):
                store.copy_within(*pair)


def contested(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    """Return a store that several processes, or threads, write to at once."""
    options: dict[str, str] = {}
    if kind == "s3":
        bucket: S3Bucket = request.getfixturevalue("s3_bucket")
        root, options = f"{bucket.uri}/t", bucket.storage_options
    else:
        root = str(tmp_path) if kind == "local" else f"memory://{uuid.uuid4().hex}"
    return open_store(root, options)


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_every_name_has_one_winner(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = contested(kind, tmp_path, request)
    wanted = [f"_delta_log/{number:020}.json" for number in range(50)]
    won = race(store.config, wanted, 8)
    assert Counter(name for names in won for name in names) == Counter(wanted)
    for who, mine in enumerate(won):
        assert set(store.get_many(mine)) <= {f"{who}\n".encode() * 500}
    assert names(store) == wanted


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_every_swap_has_one_winner(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = contested(kind, tmp_path, request)
    store.put("refs/head", b"0")
    won = race_to_count(store.config, "refs/head", 20, 4)
    assert sorted(number for numbers in won for number in numbers) == list(range(1, 81))
    assert store.get("refs/head").startswith(b"80 ")
    assert names(store) == ["refs/head"]


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    put=st.sets(NAMES, min_size=1, max_size=12),
    prefix=st.one_of(st.just(""), SEGMENTS.map(lambda segment: segment[:2])),
    start_after=st.one_of(st.none(), NAMES),
    stop_before=st.one_of(st.none(), NAMES),
)
@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_any_listing_is_what_sorting_says(
    kind: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    put: set[str],
    prefix: str,
    start_after: str | None,
    stop_before: str | None,
) -> None:
    folder = uuid.uuid4().hex
    if kind == "s3":
        bucket: S3Bucket = request.getfixturevalue("s3_bucket")
        store = open_store(f"{bucket.uri}/{folder}", bucket.storage_options)
    else:
        store = open_store(str(tmp_path / folder) if kind == "local" else f"memory://{folder}")
    for name in put:
        store.put(name, b"")
    expected = [
        name
        for name in by_bytes(list(put))
        if name.startswith(prefix)
        and (start_after is None or name.encode() > start_after.encode())
        and (stop_before is None or name.encode() < stop_before.encode())
    ]
    found = store.list(prefix, start_after=start_after, stop_before=stop_before)
    assert [info.path for info in found] == expected


class TestS3:
    def test_requests_are_what_the_calls_say(self, s3: Store, proxy: CountingProxy) -> None:
        s3.put("a", b"1")
        s3.put_if_absent("a", b"2")
        s3.put_if_absent("b", b"2")
        s3.get("a")
        s3.get_many(["a", "b"])
        s3.get_range("a", 0, 1)
        s3.head("a")
        names(s3)
        s3.sign("GET", "a", 60)
        s3.delete_many(["a", "b", "c"])
        asked = {verb: s3.calls[verb] for verb in ("GET", "RANGE", "HEAD", "LIST")}
        assert asked == {"GET": 3, "RANGE": 1, "HEAD": 1, "LIST": 1}
        assert proxy.count("PUT") == s3.calls["PUT"] + s3.calls["PUT_IF_ABSENT"] == 3
        assert proxy.count("GET") == asked["GET"] + asked["RANGE"] + asked["LIST"]
        assert proxy.count("HEAD") == asked["HEAD"]
        assert proxy.count("POST") == 1, "three deletions in one request"
        assert proxy.count() == 3 + 5 + 1 + 1

    def test_a_swap_is_a_get_and_a_conditional_put(self, s3: Store, proxy: CountingProxy) -> None:
        assert s3.swap("x", None, b"1") is True
        assert s3.swap("x", b"1", b"2") is True
        assert s3.swap("x", b"1", b"3") is False
        assert [request.method for request in proxy.requests] == ["PUT", "GET", "PUT", "GET"]
        nowhere = open_store("s3://no-such-bucket-here", s3.config.options)
        for expected in (None, b"1"):
            with pytest.raises(ObjectNotFound):
                nowhere.swap("x", expected, b"")
        proxy.rule = first(-1, "PUT", Spoil.DROP)
        with pytest.raises(StorageUnavailable) as raised:
            s3.swap("x", b"2", b"3")
        assert raised.value.fields["outcome_unknown"] is True

    def test_pages_are_asked_for_as_they_are_needed(
        self, s3_bucket: S3Bucket, s3: Store, proxy: CountingProxy
    ) -> None:
        assert s3_bucket.server.folder is not None
        folder = s3_bucket.server.folder / s3_bucket.name / "t" / "_delta_log"
        folder.mkdir(parents=True)
        for number in range(2500):
            (folder / f"{number:020}.json").touch()

        def cost(taken: int | None = None, **bounds: str) -> int:
            proxy.reset()
            s3.calls.reset()
            listing = s3.list("_delta_log/", **bounds)
            for _ in listing if taken is None else range(taken):
                next(listing, None)
            assert proxy.count() == s3.calls["LIST"]
            return proxy.count()

        def log(number: int) -> str:
            return f"_delta_log/{number:020}.json"

        assert cost() == 3
        assert cost(taken=10) == 1
        assert cost(stop_before=log(500)) == 1
        assert cost(start_after=log(2400)) == 1
        assert cost(start_after=log(499), stop_before=log(510)) == 1
        assert cost(start_after=log(1499)) == 1, "exactly one page"
        s3.calls.reset()
        assert len(names(s3, f"_delta_log/{23:018}")) == 100
        assert s3.calls["LIST"] == 1, "half a name doesn't read the folder from its beginning"

    @pytest.mark.parametrize("path", ["tab\t", "del\x7f", "\uffff", "\udc80"])
    def test_names_that_would_not_come_back_are_refused(self, s3: Store, path: str) -> None:
        with pytest.raises(InvalidInput):
            s3.put(path, b"")

    def test_a_missing_bucket_is_told_apart(self, s3_bucket: S3Bucket) -> None:
        store = open_store("s3://no-such-bucket-here/t", s3_bucket.storage_options)
        for act in (
            lambda: names(store),
            lambda: store.get("x"),
            lambda: store.put("x", b""),
            lambda: store.put_if_absent("x", b""),
            lambda: store.delete_many(["x"]),
        ):
            with pytest.raises(ObjectNotFound) as raised:
                act()
            assert raised.value.fields["bucket_missing"] is True

    @pytest.mark.parametrize(
        ("change", "kind"),
        [
            ({"AWS_SECRET_ACCESS_KEY": "wrong"}, Unauthorized),
            ({"AWS_ACCESS_KEY_ID": "nobody"}, Unauthorized),
            ({"aws_skip_signature": "true"}, Forbidden),
        ],
    )
    def test_wrong_credentials(
        self, s3_bucket: S3Bucket, change: dict[str, str], kind: type[Exception]
    ) -> None:
        options = {**s3_bucket.storage_options, **change}
        if "aws_skip_signature" in change:
            del options["AWS_ACCESS_KEY_ID"], options["AWS_SECRET_ACCESS_KEY"]
        store = open_store(f"{s3_bucket.uri}/t", options)
        for act in (lambda: names(store), lambda: store.get("x"), lambda: store.put("x", b"")):
            with pytest.raises(kind):
                act()

    def test_a_store_that_is_down_is_known_to_be_soon(self, s3_bucket: S3Bucket) -> None:
        options = {**s3_bucket.storage_options, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
        store = open_store(s3_bucket.uri, options)
        began = time.monotonic()
        with pytest.raises(StorageUnavailable):
            store.get("x")
        assert time.monotonic() - began < 15

    @pytest.mark.parametrize("spoil", [Spoil.DROP, Spoil.STATUS_500, Spoil.STATUS_503])
    def test_passing_trouble_passes(self, s3: Store, proxy: CountingProxy, spoil: Spoil) -> None:
        proxy.rule = first(1, "PUT", spoil)
        assert s3.put_if_absent("x", b"1") is True
        proxy.rule = first(1, "GET", spoil)
        assert s3.get("x") == b"1"
        proxy.rule = first(1, "GET", spoil)
        assert names(s3) == ["x"]
        proxy.rule = first(1, "POST", spoil)
        s3.delete_many(["x"])

    @pytest.mark.parametrize("spoil", [Spoil.DROP, Spoil.STATUS_503, Spoil.HANG])
    def test_lasting_trouble_is_reported(
        self, impatient: Store, proxy: CountingProxy, spoil: Spoil
    ) -> None:
        s3 = impatient
        proxy.rule = lambda _: spoil
        for read in (lambda: s3.get("x"), lambda: names(s3), lambda: s3.head("x")):
            with pytest.raises(StorageUnavailable) as raised:
                read()
            assert raised.value.fields["outcome_unknown"] is False
        for change in (
            lambda: s3.put("x", b""),
            lambda: s3.put_if_absent("x", b""),
            lambda: s3.put_stream("x", iter([b""]), 0),
            lambda: s3.copy_within("x", "y"),
            lambda: s3.delete_many(["x"]),
        ):
            with pytest.raises(StorageUnavailable) as raised:
                change()
            assert raised.value.fields["outcome_unknown"] is True

    def test_a_lost_answer_may_make_us_lose_to_ourselves(
        self, s3: Store, proxy: CountingProxy
    ) -> None:
        proxy.rule = first(1, "PUT", Spoil.LOSE_ANSWER)
        assert s3.put_if_absent("x", b"mine") is False
        assert s3.get("x") == b"mine"

    def test_an_answer_lost_for_good_leaves_the_outcome_unknown(
        self, s3: Store, proxy: CountingProxy
    ) -> None:
        proxy.rule = first(-1, "PUT", Spoil.LOSE_ANSWER)
        with pytest.raises(StorageUnavailable) as raised:
            s3.put_if_absent("x", b"mine")
        assert raised.value.fields["outcome_unknown"] is True
        assert s3.get("x") == b"mine"

    def test_a_large_upload_may_be_slow(
        self, s3: Store, impatient: Store, proxy: CountingProxy
    ) -> None:
        proxy.delay_s = 1.0
        proxy.rule = first(2, "PUT", Spoil.DELAY)
        large = bytes(5 * 1024 * 1024)
        assert impatient.put_if_absent("large", large) is True
        impatient.put("large", large)
        assert proxy.count("PUT") == 2
        assert s3.get("large") == large

    def test_parts_become_one_object(self, s3: Store, proxy: CountingProxy) -> None:
        large = bytes(range(256)) * (65 * 4096)
        s3.put("large", large)
        assert proxy.count("POST") == 2, "in parts"
        assert s3.get("large") == large

    def test_a_stream_is_sent_in_parts_that_nobody_sees_before_the_last(
        self, s3: Store, proxy: CountingProxy
    ) -> None:
        size = 40 * 1024 * 1024
        seen: list[list[str]] = []

        def watched() -> Iterator[bytes]:
            for chunk in chunks_of(size):
                yield chunk
                seen.append(names(s3))

        s3.put_stream("large", watched(), size)
        assert proxy.count("PUT") == 3
        assert not any(seen)
        assert names(s3) == ["large"]
        proxy.reset()
        with pytest.raises(StorageUnavailable):
            s3.put_stream("other", chunks_of(size), size + 1)
        assert proxy.count("DELETE") == 1, "the parts are given up"

    def test_a_stream_whose_upload_fails_ends(self, impatient: Store, proxy: CountingProxy) -> None:
        proxy.rule = lambda request: Spoil.DROP if "partNumber" in request.target else None
        size = 200 * 1024 * 1024
        with pytest.raises(StorageUnavailable) as raised:
            impatient.put_stream("x", chunks_of(size), size)
        assert raised.value.fields["outcome_unknown"] is True
        assert names(impatient) == []

    @pytest.mark.parametrize("size", [10, 40 * 1024 * 1024])
    def test_bytes_that_change_on_the_way_are_refused(
        self, s3: Store, proxy: CountingProxy, size: int
    ) -> None:
        proxy.rule = first(-1, "PUT", Spoil.CHANGE_BYTES)
        with pytest.raises(StorageUnavailable) as raised:
            s3.put_stream("x", chunks_of(size), size)
        assert raised.value.fields["outcome_unknown"] is False
        assert names(s3) == []

    def test_a_copy_inside_the_store_moves_no_bytes(self, s3: Store, proxy: CountingProxy) -> None:
        s3.put("x", b"1" * 1000)
        proxy.reset()
        s3.copy_within("x", "y z")
        assert [request.method for request in proxy.requests] == ["PUT"]
        assert s3.calls.bytes_read == 0

    def test_signed_urls_open_one_object_for_a_while(self, s3_bucket: S3Bucket) -> None:
        store = open_store(f"{s3_bucket.uri}/t", s3_bucket.storage_options)
        put = urllib.request.Request(store.sign("PUT", "a b/ü#x", 60), method="PUT", data=b"signed")
        with urllib.request.urlopen(put) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(store.sign("GET", "a b/ü#x", 60)) as answer:
            assert answer.read() == b"signed"
        brief = store.sign("GET", "a b/ü#x", 1)
        time.sleep(2.1)
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(brief)
        refused.value.close()
        with pytest.raises(InvalidInput):
            store.sign("DELETE", "x", 60)

    def test_a_signed_put_is_for_its_size_and_never_replaces(self, s3_bucket: S3Bucket) -> None:
        store = open_store(f"{s3_bucket.uri}/t", s3_bucket.storage_options)

        def put(url: str, data: bytes, headers: Mapping[str, str]) -> int:
            request = urllib.request.Request(url, data, dict(headers), method="PUT")
            try:
                with urllib.request.urlopen(request) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as refused:
                with refused:
                    return refused.code

        given = store.sign_put("a b/ü#x", 6, 60)
        headers = dict(given.headers)
        assert put(given.url, b"signed!", headers) == 403
        assert put(given.url, b"signe", headers) == 403
        assert put(given.url, b"signed", {}) == 403
        assert put(given.url, b"signed", {"if-none-match": '"x"'}) == 403
        assert put(given.url.replace("/t/a", "/t/b"), b"signed", headers) == 403
        assert names(store) == []
        assert put(given.url, b"signed", headers) == 200
        assert put(given.url, b"SIGNED", headers) == 412
        assert put(store.sign_put("a b/ü#x", 3, 60).url, b"new", headers) == 412
        assert store.get("a b/ü#x") == b"signed"
        brief = store.sign_put("y", 1, 1)
        time.sleep(2.1)
        assert put(brief.url, b"y", headers) == 403
        assert names(store) == ["a b/ü#x"]

    def test_an_object_is_put_in_parts_over_several_goes(self, s3_bucket: S3Bucket) -> None:
        store = open_store(f"{s3_bucket.uri}/t x", s3_bucket.storage_options)
        size = 2 * SMALLEST_PART_BYTES + 5
        data = bytes(range(256)) * (size // 256) + b"12345"

        def put(number: int, most: int = size) -> int:
            upload = store.parts_upload("d/ü y", size, begin=True)
            assert upload is not None
            url, (query,) = upload.sign([number], 60)
            begin = (number - 1) * upload.part_bytes
            part = data[begin : begin + min(upload.part_bytes, most)]
            request = urllib.request.Request(f"{url}&{query}", part, method="PUT")
            try:
                with urllib.request.urlopen(request) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as refused:
                with refused:
                    return refused.code

        assert store.parts_upload("d/ü y", size, begin=False) is None
        assert put(2) == 200
        assert put(1, 1000) == 403
        assert put(1) == 200
        upload = store.parts_upload("d/ü y", size, begin=False)
        assert upload is not None
        assert upload.missing() == [3]
        assert put(3) == 200
        assert upload.missing() == []
        assert names(store) == []
        upload.join(iter)
        assert store.get("d/ü y") == data
        assert store.parts_upload("d/ü y", size, begin=False) is None
        upload.join(iter)

    def test_parts_never_replace_an_object(self, s3_bucket: S3Bucket) -> None:
        store = open_store(f"{s3_bucket.uri}/t", s3_bucket.storage_options)
        upload = store.parts_upload("x", 3, begin=True)
        assert upload is not None
        url, (query,) = upload.sign([1], 60)
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}&{query}", b"new", method="PUT")
        ) as answer:
            assert answer.status == 200
        store.put("x", b"old")
        assert upload.missing() == []
        upload.join(iter)
        assert store.get("x") == b"old"
        assert store.parts_upload("x", 3, begin=False) is None

    def test_uploads_that_nobody_will_complete_are_dropped(self, s3_bucket: S3Bucket) -> None:
        store = open_store(f"{s3_bucket.uri}/t", s3_bucket.storage_options)
        elsewhere = open_store(f"{s3_bucket.uri}/u", s3_bucket.storage_options)
        for where, path in ((store, "a/x"), (store, "b"), (elsewhere, "x")):
            where.parts_upload(path, 3, begin=True)
        now_ms = time.time_ns() // 1_000_000
        assert store.drop_parts(lambda _, begun_ms: begun_ms < now_ms - 60_000) == 0
        assert store.drop_parts(lambda name, begun_ms: name == "a/x" and begun_ms > 0) == 1
        assert store.parts_upload("b", 3, begin=False) is not None
        assert store.drop_parts(lambda _, begun_ms: begun_ms < now_ms + 60_000) == 1
        assert store.parts_upload("b", 3, begin=False) is None
        assert elsewhere.parts_upload("x", 3, begin=False) is not None

    def test_the_environment_is_enough(
        self, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in s3_bucket.server.environment().items():
            if name != "AWS_ALLOW_HTTP":
                monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
        store = open_store(f"{s3_bucket.uri}/t")
        store.put("x", b"1")
        assert store.config.options == {}
        elsewhere = replace(store.config, uri=f"{s3_bucket.uri}")
        assert names(open_config(elsewhere)) == ["t/x"]


def test_memory_of_one_name_is_shared() -> None:
    name = uuid.uuid4().hex
    open_store(f"memory://{name}/t").put("x", b"1")
    assert names(open_store(f"memory://{name}")) == ["t/x"]
    assert names(open_store(f"memory://{name}x")) == []
    with pytest.raises(InvalidInput):
        open_store(f"memory://{name}").sign("GET", "x", 60)
