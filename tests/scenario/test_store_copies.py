"""Copies from one store to another without reading: local disk, memory, and a real S3 server."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import obstore
import pytest

from lakeferry.errors import ObjectNotFound, StorageUnavailable
from lakeferry.storage import Store, multipart, objects, open_store, s3_copy
from lakeferry.storage.aliases import AliasStore
from lakeferry.storage.copy_way import STREAMED, CopyWay
from lakeferry.storage.folder import FolderStore
from lakeferry.storage.local_store import LocalStore
from lakeferry.storage.objects import ObjectStore
from tests.support.http_proxy import CountingProxy, SeenRequest, Spoil
from tests.support.servers import S3Bucket, S3Server
from tests.support.shares import Share
from tests.support.stores import DictStore

MIB = 1 << 20
NAMES = ["part=1/a b+c%20d.parquet", "ünï/çödé=x&y?z#.o", "empty"]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def proxy(s3_bucket: S3Bucket) -> Iterator[CountingProxy]:
    with CountingProxy(s3_bucket.server.endpoint.removeprefix("http://")) as running:
        yield running


def place(bucket: S3Bucket, proxy: CountingProxy, folder: str, **options: str) -> Store:
    return open_store(
        f"{bucket.uri}/{folder}",
        {
            **bucket.storage_options,
            "AWS_ENDPOINT_URL": proxy.url,
            "max_retries": "0",
            **options,
        },
    )


@pytest.fixture
def source(s3_bucket: S3Bucket, proxy: CountingProxy) -> Store:
    return place(s3_bucket, proxy, "from here")


@pytest.fixture(params=["same bucket", "another bucket"])
def target(
    request: pytest.FixtureRequest, s3_bucket: S3Bucket, versitygw: S3Server, proxy: CountingProxy
) -> Store:
    bucket = s3_bucket
    if request.param == "another bucket":
        bucket = versitygw.create_bucket(f"bucket-{uuid.uuid4().hex[:16]}")
    return place(bucket, proxy, "to there")


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy objects of more than 5 MiB in parts of that size."""
    for name in ("lakeferry.storage.s3_copy", "lakeferry.storage.cloud_copy"):
        monkeypatch.setattr(f"{name}.LARGE_BYTES", 5 * MIB)
    monkeypatch.setattr(s3_copy, "_PART_BYTES", 5 * MIB)
    monkeypatch.setattr(multipart, "_PAUSES_S", (0.01,) * 5)


def part_of(seen: SeenRequest) -> str:
    """Return the number of the part that a request is about; empty for others."""
    return parse_qs(urlsplit(seen.target).query).get("partNumber", [""])[0]


def joins_parts(seen: SeenRequest) -> bool:
    return seen.method == "POST" and "uploadId=" in seen.target


def uploads_below(store: Store) -> int:
    """Count the unfinished uploads at a place."""
    return store.drop_parts(lambda *_: True)


class TestOnS3:
    @pytest.mark.parametrize("name", NAMES)
    def test_the_store_copies_whole_objects(
        self, source: Store, target: Store, proxy: CountingProxy, name: str
    ) -> None:
        data = b"" if name == "empty" else random.randbytes(70_000)
        source.put(name, data)
        proxy.reset()
        assert target.copy_from(source, name, f"{name}.new", lambda _: None) == len(data)
        assert proxy.count("GET") == 0
        assert target.get(f"{name}.new") == data
        assert source.get(name) == data

    def test_it_replaces_an_older_object(self, source: Store, target: Store) -> None:
        source.put("x", b"new")
        target.put("x", b"older")
        assert target.copy_from(source, "x", "x", lambda _: None) == 3
        assert target.get("x") == b"new"

    def test_a_large_object_is_copied_in_parts(
        self, source: Store, target: Store, proxy: CountingProxy, in_parts: None
    ) -> None:
        data = random.randbytes(12 * MIB + 1)
        source.put("large", data)
        proxy.reset()
        moved: list[int] = []
        assert target.copy_from(source, "large", "large", moved.append) == len(data)
        assert sorted(moved) == [2 * MIB + 1, 5 * MIB, 5 * MIB]
        read = [seen.target for seen in proxy.requests if seen.method == "GET"]
        assert all("uploads=" in each for each in read)
        assert target.get("large") == data
        assert uploads_below(target) == 0

    def test_a_missing_object_is_left_to_the_caller(self, source: Store, target: Store) -> None:
        assert target.copy_from(source, "none", "x", lambda _: None) is None
        assert not target.exists("x")
        # It says nothing about other objects.
        source.put("x", b"1")
        assert target.copy_from(source, "x", "x", lambda _: None) == 1

    @pytest.mark.parametrize("status", [Spoil.STATUS_403, Spoil.STATUS_501, Spoil.STATUS_400])
    def test_a_store_that_refuses_is_asked_once(
        self, source: Store, target: Store, proxy: CountingProxy, status: Spoil
    ) -> None:
        for name in "abc":
            source.put(name, b"1")
        proxy.reset()
        proxy.rule = lambda seen: status if seen.method == "PUT" else None
        for name in "abc":
            assert target.copy_from(source, name, name, lambda _: None) is None
        assert proxy.count("PUT") == 1

    def test_a_later_refusal_is_about_one_object(
        self, source: Store, target: Store, proxy: CountingProxy
    ) -> None:
        for name in "abc":
            source.put(name, b"1")

        def refuse_b(seen: SeenRequest) -> Spoil | None:
            is_b = urlsplit(seen.target).path.endswith("/b")
            return Spoil.STATUS_403 if seen.method == "PUT" and is_b else None

        proxy.rule = refuse_b
        copied = [target.copy_from(source, name, name, lambda _: None) for name in "abc"]
        assert copied == [1, None, 1]

    def test_a_source_that_is_replaced_is_never_mixed(
        self, source: Store, target: Store, proxy: CountingProxy, in_parts: None
    ) -> None:
        source.put("large", random.randbytes(12 * MIB))
        direct = open_store(
            source.uri, {**source.config.options, "AWS_ENDPOINT_URL": f"http://{proxy.upstream}"}
        )
        replaced: list[bool] = []

        def replace(seen: SeenRequest) -> Spoil | None:
            if part_of(seen) == "2" and not replaced:
                replaced.append(True)
                direct.put("large", random.randbytes(12 * MIB))
            return None

        proxy.rule = replace
        assert target.copy_from(source, "large", "large", lambda _: None) is None
        assert replaced
        assert not target.exists("large")
        assert uploads_below(target) == 0

    @pytest.mark.parametrize("part", ["1", "3"])
    def test_a_part_that_fails_leaves_no_upload(
        self, source: Store, target: Store, proxy: CountingProxy, in_parts: None, part: str
    ) -> None:
        source.put("large", random.randbytes(12 * MIB))

        def refuse(seen: SeenRequest) -> Spoil | None:
            return Spoil.STATUS_500 if part_of(seen) == part else None

        proxy.rule = refuse
        with pytest.raises(StorageUnavailable):
            target.copy_from(source, "large", "large", lambda _: None)
        proxy.reset()
        assert not target.exists("large")
        assert uploads_below(target) == 0

    @pytest.mark.parametrize("verb", ["part", "complete"])
    def test_a_lost_answer_is_asked_for_again(
        self, source: Store, target: Store, proxy: CountingProxy, in_parts: None, verb: str
    ) -> None:
        data = random.randbytes(12 * MIB)
        source.put("large", data)
        lost: list[str] = []

        def lose(seen: SeenRequest) -> Spoil | None:
            is_meant = part_of(seen) == "2" if verb == "part" else joins_parts(seen)
            if is_meant and not lost:
                lost.append(seen.target)
                return Spoil.LOSE_ANSWER
            return None

        proxy.rule = lose
        assert target.copy_from(source, "large", "large", lambda _: None) == len(data)
        assert lost
        assert target.get("large") == data

    @pytest.mark.parametrize("what", ["copy", "beginning", "last part", "joining"])
    def test_success_without_effect_is_noticed(
        self, source: Store, target: Store, proxy: CountingProxy, in_parts: None, what: str
    ) -> None:
        source.put("probe", b"1")
        assert target.copy_from(source, "probe", "probe", lambda _: None) == 1
        source.put("x", random.randbytes(1000 if what == "copy" else 12 * MIB))

        def lie(seen: SeenRequest) -> Spoil | None:
            meant = {
                "copy": seen.method == "PUT",
                "beginning": seen.method == "POST" and "uploads=" in seen.target,
                "last part": part_of(seen) == "3",
                "joining": joins_parts(seen),
            }
            return Spoil.STATUS_200 if meant[what] else None

        proxy.rule = lie
        assert target.copy_from(source, "x", "x", lambda _: None) is None
        assert not [seen for seen in proxy.requests if "uploadId=&" in seen.target]
        proxy.reset()
        assert not target.exists("x")

    @pytest.mark.parametrize("algorithm", ["SHA256", None])
    def test_a_copy_with_other_bytes_is_noticed_by_what_the_store_says(
        self, source: Store, target: Store, proxy: CountingProxy, algorithm: str | None
    ) -> None:
        options = {**source.config.options, "AWS_ENDPOINT_URL": f"http://{proxy.upstream}"}
        if algorithm is not None:
            options["aws_checksum_algorithm"] = algorithm
        before, behind = open_store(source.uri, options), open_store(target.uri, options)
        for name in ("wrong", "right"):
            before.put(name, name.encode() * 1000)
        told = source._copies._marks(source._clients, source._key("wrong"))  # type: ignore[attr-defined]
        # Without one that the writer chose, the server has its own, as Amazon does.
        assert [*told.checksums] == ["crc64nvme" if algorithm is None else "sha256"]
        assert told.md5 is not None

        def spoil(seen: SeenRequest) -> None:
            if seen.method == "HEAD" and urlsplit(seen.target).path.endswith("there/wrong"):
                behind.put("wrong", b"x" + before.get("wrong")[1:])

        proxy.rule = spoil
        copied = [
            target.copy_from(source, name, name, lambda _: None) for name in ("wrong", "right")
        ]
        assert copied == [None, 5000]
        assert proxy.count("GET") == 0

    def test_a_copy_in_parts_with_other_bytes_is_noticed_by_its_checksum(
        self, source: Store, target: Store, proxy: CountingProxy, in_parts: None
    ) -> None:
        options = {**source.config.options, "AWS_ENDPOINT_URL": f"http://{proxy.upstream}"}
        behind = open_store(target.uri, options)
        data = random.randbytes(6 * MIB)
        source.put("large", data)
        assert target.copy_from(source, "large", "right", lambda _: None) == len(data)
        asked = [each for each in proxy.requests if each.method == "HEAD"]
        # The ETag of parts says nothing, so both are asked for checksums.
        assert len([each for each in asked if "X-Amz-Signature" in each.target]) == 2

        def spoil(seen: SeenRequest) -> None:
            if seen.method == "HEAD" and urlsplit(seen.target).path.endswith("there/large"):
                behind.put("large", b"x" + data[1:])

        proxy.rule = spoil
        assert target.copy_from(source, "large", "large", lambda _: None) is None

    def test_who_may_not_list_uploads_may_copy_in_parts(
        self, source: Store, target: Store, proxy: CountingProxy, in_parts: None
    ) -> None:
        source.put("large", random.randbytes(12 * MIB))
        proxy.rule = lambda seen: (
            Spoil.STATUS_403 if seen.method == "GET" and "uploads=" in seen.target else None
        )
        assert target.copy_from(source, "large", "large", lambda _: None) == 12 * MIB

    def test_uploads_of_other_writers_stay(
        self, s3_bucket: S3Bucket, source: Store, proxy: CountingProxy, in_parts: None
    ) -> None:
        target = place(s3_bucket, proxy, "to")
        source.put("large", bytes(12 * MIB))
        assert isinstance(target, ObjectStore)
        uploads = target._uploads_of("large")
        assert uploads is not None
        older = uploads.begin()
        direct = open_store(
            target.uri, {**target.config.options, "AWS_ENDPOINT_URL": f"http://{proxy.upstream}"}
        )
        assert isinstance(direct, ObjectStore)
        others = direct._uploads_of("large")
        assert others is not None
        younger: list[str] = []

        def begin_another(seen: SeenRequest) -> None:
            if "partNumber=2" in seen.target and not younger:
                younger.append(others.begin())

        proxy.rule = begin_another
        assert target.copy_from(source, "large", "large", lambda _: None) == 12 * MIB
        assert sorted(others.find()) == sorted([older, *younger])

    @pytest.mark.parametrize("size", [1000, 5 * MIB + 1000])
    @pytest.mark.parametrize("longer", [0, 1])
    def test_a_source_that_is_replaced_is_copied_as_one_of_the_two(
        self,
        source: Store,
        target: Store,
        proxy: CountingProxy,
        in_parts: None,
        size: int,
        longer: int,
        share: Share,
    ) -> None:
        """Before each request of a copy, the source is replaced, also by one of the same size."""
        data = random.randbytes(size), random.randbytes(size + longer)
        direct = open_store(
            source.uri, {**source.config.options, "AWS_ENDPOINT_URL": f"http://{proxy.upstream}"}
        )
        source.put("x", data[0])
        proxy.reset()
        assert target.copy_from(source, "x", "x", lambda _: None) == size
        numbers = range(proxy.count())
        outcomes = set()
        for number in numbers if size == 1000 else share.each(numbers):
            direct.put("x", data[0])
            target.delete_many(["x"])
            proxy.reset()

            def replace(seen: SeenRequest, number: int = number) -> None:
                if seen.index == number:
                    direct.put("x", data[1])

            proxy.rule = replace
            copied = target.copy_from(source, "x", "x", lambda _: None)
            proxy.reset()
            if copied is None:
                outcomes.add("refused")
            else:
                found = target.get("x")
                assert found in data
                assert copied == len(found)
                outcomes.add("old" if found == data[0] else "new")
            assert uploads_below(target) == 0
        # One request inside one bucket isn't pinned to the old object, and copies all of the new.
        if size == 1000 or share.is_whole:
            assert outcomes >= {"old", "new"}

    def test_a_gateway_that_ignores_conditions_joins_no_mixture(
        self,
        source: Store,
        target: Store,
        proxy: CountingProxy,
        in_parts: None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        source.put("large", random.randbytes(6 * MIB))
        pinned: Any = vars(s3_copy.S3Source)["headers"]

        def without_condition(found: s3_copy.S3Source) -> dict[str, str]:
            headers: dict[str, str] = pinned.fget(found)
            return {name: value for name, value in headers.items() if "if-match" not in name}

        monkeypatch.setattr(s3_copy.S3Source, "headers", property(without_condition))
        direct = open_store(
            source.uri, {**source.config.options, "AWS_ENDPOINT_URL": f"http://{proxy.upstream}"}
        )

        def replace(seen: SeenRequest) -> None:
            if "partNumber=2" in seen.target:
                direct.put("large", random.randbytes(6 * MIB))

        proxy.rule = replace
        assert target.copy_from(source, "large", "large", lambda _: None) is None
        # Not even for a moment: a process that is killed then would leave it.
        ids = [parse_qs(urlsplit(seen.target).query).get("uploadId") for seen in proxy.requests]
        posts = [seen.method for seen, id_ in zip(proxy.requests, ids, strict=True) if id_]
        assert "POST" not in posts
        assert uploads_below(target) == 0

    def test_a_key_without_its_secret_copies_small_objects_after_a_large_one(
        self, s3_bucket: S3Bucket, source: Store, proxy: CountingProxy, in_parts: None
    ) -> None:
        target = place(s3_bucket, proxy, "to")
        source.put("large", bytes(6 * MIB))
        source.put("small", b"1")
        assert isinstance(target, ObjectStore)
        target._clients._known.clear()
        assert target.copy_from(source, "large", "large", lambda _: None) is None
        assert target.copy_from(source, "small", "small", lambda _: None) == 1

    def test_a_store_that_is_busy_for_some_seconds_is_asked_again(
        self, source: Store, target: Store, proxy: CountingProxy, in_parts: None
    ) -> None:
        source.put("large", bytes(12 * MIB))
        part = {"2": 5}

        def busy(seen: SeenRequest) -> Spoil | None:
            number = part_of(seen)
            part[number] = part.get(number, 0) - 1
            return Spoil.STATUS_503 if part[number] >= 0 else None

        proxy.rule = busy
        assert target.copy_from(source, "large", "large", lambda _: None) == 12 * MIB

    def test_a_silent_store_is_not_waited_for_as_long_as_one_that_copies(
        self,
        source: Store,
        target: Store,
        proxy: CountingProxy,
        in_parts: None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        source.put("large", bytes(12 * MIB))
        monkeypatch.setattr(multipart, "_WAIT_S", 0.2)
        proxy.rule = lambda seen: (
            Spoil.HANG if seen.method == "GET" and "uploads=" in seen.target else None
        )
        assert target.copy_from(source, "large", "large", lambda _: None) == 12 * MIB

    def test_the_key_may_be_renewed_during_a_copy(
        self,
        s3_bucket: S3Bucket,
        source: Store,
        target: Store,
        in_parts: None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        data = random.randbytes(12 * MIB)
        source.put("large", data)
        assert isinstance(target, ObjectStore)
        key = s3_bucket.storage_options["AWS_ACCESS_KEY_ID"]
        secret = s3_bucket.storage_options["AWS_SECRET_ACCESS_KEY"]
        old = "AKIAOLDOLDOLDOLD"
        sign, signed = obstore.sign, []

        def renewed(*args: Any) -> str:
            signed.append(args)
            url: str = sign(*args)
            # The first question is for the key alone.
            return url.replace(key, old) if len(signed) == 1 else url

        monkeypatch.setattr(obstore, "sign", renewed)
        monkeypatch.setattr(target._clients, "_known", {old: "of the old key", key: secret})
        assert target.copy_from(source, "large", "large", lambda _: None) == len(data)

    def test_a_large_object_that_needs_a_signature_says_nothing_about_small_ones(
        self,
        s3_bucket: S3Bucket,
        source: Store,
        proxy: CountingProxy,
        in_parts: None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        target = place(s3_bucket, proxy, "to there")
        assert isinstance(target, ObjectStore)
        # As with an instance's role: obstore has the secret, and this process doesn't.
        monkeypatch.setattr(target._clients, "_known", {})
        source.put("large", bytes(5 * MIB + 1))
        source.put("small", b"1")
        route = target.copy_route(source)
        assert (route.small, route.large) == (CopyWay.ASKED, CopyWay.STREAM)
        assert target.copy_from(source, "large", "large", lambda _: None) is None
        assert target.copy_from(source, "small", "small", lambda _: None) == 1

    def test_the_encryption_that_options_ask_for_is_not_left_out(
        self, versitygw: S3Server, s3_bucket: S3Bucket, source: Store, proxy: CountingProxy
    ) -> None:
        other = versitygw.create_bucket(f"bucket-{uuid.uuid4().hex[:16]}")
        target = place(other, proxy, "to", aws_server_side_encryption="AES256")
        source.put("x", b"1")
        proxy.reset()
        assert target.copy_route(source) == replace(STREAMED, large_bytes=256 * MIB)
        assert target.copy_from(source, "x", "x", lambda _: None) is None
        assert proxy.count("PUT") == proxy.count("HEAD") == 0

    def test_a_bucket_of_another_account_may_have_the_same_name(
        self, s3_bucket: S3Bucket, source: Store, proxy: CountingProxy
    ) -> None:
        target = place(s3_bucket, proxy, "to", aws_region="us-east-1", aws_request_payer="true")
        source.put("x", b"1")
        proxy.reset()
        assert target.copy_from(source, "x", "x", lambda _: None) == 1
        # With our signature, so by its ETag.
        assert ["X-Amz-Signature" in each.target for each in proxy.requests] == [
            False,
            True,
            False,
        ]

    def test_what_only_obstore_can_reach_is_streamed(
        self,
        source: Store,
        target: Store,
        proxy: CountingProxy,
        in_parts: None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        source.put("large", bytes(6 * MIB))
        monkeypatch.setattr("urllib.request.getproxies", lambda: {"http": "http://127.0.0.1:9"})
        monkeypatch.setattr("urllib.request.proxy_bypass", lambda _: False)
        assert target.copy_from(source, "large", "large", lambda _: None) is None

    def test_another_service_with_a_bucket_of_that_name_is_left_alone(
        self, s3_bucket: S3Bucket, source: Store, proxy: CountingProxy
    ) -> None:
        with CountingProxy(proxy.upstream) as other:
            target = place(s3_bucket, other, "to there")
            source.put("x", b"1")
            assert target.copy_from(source, "x", "x", lambda _: None) is None
            assert not target.exists("x")

    def test_it_goes_through_the_stores_around_it(
        self, s3_bucket: S3Bucket, proxy: CountingProxy, source: Store, target: Store
    ) -> None:
        source.put("log/really", b"1")
        named = AliasStore(source, {"log/0": "log/really"})
        assert FolderStore(target, "in").copy_from(
            FolderStore(named, "log"), "0", "0", lambda _: None
        )
        assert target.get("in/0") == b"1"


class TestStreaming:
    def test_a_slow_store_gets_a_stream_in_bounded_memory(
        self, s3_bucket: S3Bucket, proxy: CountingProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While no part is answered, a few parts are in memory, whatever the object's size."""
        for name in ("WHOLE_UPLOAD_BYTES", "UPLOADED_PART_BYTES"):
            monkeypatch.setattr(objects, name, 5 * MIB)
        target = place(s3_bucket, proxy, "to there", read_timeout="60s")
        bound = (objects._UPLOADS_AT_ONCE + 2) * 5 * MIB + 4 * MIB
        taken, pulled = 0, threading.Condition()

        def chunks() -> Iterator[bytes]:
            nonlocal taken
            for _ in range(200):
                with pulled:
                    taken += MIB
                    pulled.notify_all()
                yield bytes(MIB)

        def put() -> None:
            with suppress(StorageUnavailable):
                target.put_stream("large", chunks(), 200 * MIB)

        proxy.rule = lambda seen: Spoil.HANG if "partNumber=" in seen.target else None
        with ThreadPoolExecutor(1) as pool:
            putting = pool.submit(put)
            with pulled:
                assert pulled.wait_for(lambda: taken >= objects._UPLOADS_AT_ONCE * 5 * MIB, 30)
                assert not pulled.wait_for(lambda: taken > bound, 0.5)
            proxy.closing.set()
            putting.result()


class TestElsewhere:
    def test_files_on_local_disk(self, tmp_path: Path) -> None:
        source, target = open_store(str(tmp_path / "a b")), open_store(str(tmp_path / "c"))
        data = random.randbytes(3 * MIB)
        source.put("x/y", data)
        target.put("new/y", b"older")
        moved: list[int] = []
        assert target.copy_from(source, "x/y", "new/y", moved.append) == len(data)
        assert sum(moved) == len(data)
        assert target.get("new/y") == data
        assert not [name for name in os.listdir(tmp_path / "c/new") if name.endswith(".tmp")]

    def test_files_that_the_system_does_not_copy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> int:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "copy_file_range", refuse)
        self.test_files_on_local_disk(tmp_path)

    def test_a_file_that_is_missing_or_a_folder(self, tmp_path: Path) -> None:
        source, target = open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))
        source.put("folder/x", b"1")
        for name in ("folder", "none"):
            assert target.copy_from(source, name, "x", lambda _: None) is None
        assert [*target.list("")] == []

    def test_a_full_disk_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> int:
            raise OSError(28, "No space left on device")

        source, target = open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))
        source.put("x", b"1")
        monkeypatch.setattr(os, "copy_file_range", refuse)
        with pytest.raises(StorageUnavailable, match="can't write 'x'"):
            target.copy_from(source, "x", "x", lambda _: None)
        assert os.listdir(tmp_path / "b") == []

    def test_memory(self) -> None:
        name = uuid.uuid4().hex
        source, target = open_store(f"memory://{name}/a"), open_store(f"memory://{name}/b")
        source.put("x", b"12")
        assert target.copy_from(source, "x", "y", lambda _: None) == 2
        assert target.get("y") == b"12"
        other = open_store(f"memory://{uuid.uuid4().hex}/b")
        assert other.copy_from(source, "x", "y", lambda _: None) is None

    def test_stores_of_two_kinds_do_not(self, tmp_path: Path) -> None:
        source = DictStore({"x": b"1"})
        assert open_store(str(tmp_path)).copy_from(source, "x", "x", lambda _: None) is None
        assert source.copy_from(open_store(str(tmp_path)), "x", "x", lambda _: None) is None


class TestReadingInPieces:
    @pytest.fixture(params=["local", "memory", "dict", "s3"])
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
        if request.param == "s3":
            bucket: S3Bucket = request.getfixturevalue("s3_bucket")
            return open_store(f"{bucket.uri}/t", bucket.storage_options)
        places = {"local": str(tmp_path), "memory": f"memory://{uuid.uuid4().hex}"}
        return (
            open_store(places[request.param])
            if request.param in places
            else DictStore(clock=now_ms)
        )

    def test_all_pieces_are_of_one_object(self, store: Store) -> None:
        store.put("x", b"0123456789")
        with store.open("x") as opened:
            assert opened.size_bytes == 10
            assert bytes(opened.read(0, 4)) + opened.read(4, 6) == b"0123456789"
            assert opened.read(8, 10) == b"89"
            opened.check()

    @pytest.mark.parametrize("data", [b"abcdefghij", b"ab", b"abcdefghijklm"])
    def test_a_replaced_object_is_not_mixed(self, store: Store, data: bytes) -> None:
        store.put("x", b"0123456789")
        with store.open("x") as opened:
            found = bytes(opened.read(0, 4))
            time.sleep(0.01)
            store.put("x", data)
            # Either the pieces are of the first object, or reading fails.
            with suppress(StorageUnavailable):
                found += opened.read(4, 6)
                opened.check()
                assert found == b"0123456789"
                assert isinstance(store, LocalStore)

    def test_a_gateway_that_ignores_conditions_shows_no_mixture(
        self, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = open_store(f"{s3_bucket.uri}/t", s3_bucket.storage_options)
        get = obstore.get

        def without_condition(client: Any, key: str, *, options: Any) -> Any:
            return get(client, key, options={"range": options["range"]})

        store.put("x", b"0123456789")
        monkeypatch.setattr(obstore, "get", without_condition)
        with store.open("x") as opened:
            assert opened.read(0, 4) == b"0123"
            store.put("x", b"abcdefghij")
            with pytest.raises(StorageUnavailable, match="took its name"):
                opened.read(4, 6)

    def test_a_file_that_is_changed_in_place_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"0123456789")
        with open_store(str(tmp_path)).open("x") as opened:
            opened.read(0, 4)
            time.sleep(0.01)
            (tmp_path / "x").write_bytes(b"ab")
            with pytest.raises(StorageUnavailable, match="took its name"):
                opened.read(4, 6)
            with pytest.raises(StorageUnavailable, match="took its name"):
                opened.check()

    def test_a_missing_object(self, store: Store) -> None:
        with pytest.raises(ObjectNotFound):
            store.open("none")
