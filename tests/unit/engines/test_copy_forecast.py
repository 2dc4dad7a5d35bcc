"""Forecasts of copies: the ways that a copy takes, the requests that it makes, and their price."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.engines import copy_forecast
from lakeferry.engines.copy_forecast import CopyForecasts
from lakeferry.engines.object_copy import SMALL_COPY_BYTES
from lakeferry.storage import Store, open_store
from lakeferry.storage.overlay import Overlay
from lakeferry.storage.s3_copy import LARGE_BYTES
from tests.support.stores import DictStore

MIB = 1 << 20
KEY = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}
GATEWAY = {**KEY, "aws_endpoint": "http://127.0.0.1:1"}


def files(**sizes: int | None) -> pa.Table:
    """Return files with these sizes."""
    return of_paths(sizes)


def of_paths(sizes: dict[str, int | None]) -> pa.Table:
    paths, numbers = [*sizes], [*sizes.values()]
    return pa.table({"path": pa.array(paths, pa.string()), "size": pa.array(numbers, pa.int64())})


def foresee(
    source: Store, target: Store, table: pa.Table, limit_rate: int | None = None
) -> dict[str, Any]:
    return CopyForecasts(limit_rate).of_files(source, target, table)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def test_one_bucket_copies_by_itself() -> None:
    old, new = open_store("s3://lake/old", KEY), open_store("s3://lake/new", KEY)
    table = files(a=MIB, b=2 * MIB, c=LARGE_BYTES + 1)
    told = foresee(old, new, table)
    total = 3 * MIB + LARGE_BYTES + 1
    assert told["ways"] == [
        {"way": "store", "from": "s3://lake/old", "certain": True, "files": 3, "bytes": total}
    ]
    # Each object is looked at before and after. The large one has five parts of 64 MiB.
    assert told["requests"] == {"COPY": 7, "HEAD": 7, "LIST": 2, "POST": 2}
    assert told["request_cost_usd"] == pytest.approx((7 + 2 + 2) * 5e-6 + 7 * 4e-7, abs=1e-6)
    assert copy_forecast.PRICE_REGION in told["price_basis"]
    assert copy_forecast.PRICE_DATE in told["price_basis"]
    assert told["duration_ms"] > 1000 * total / copy_forecast.COPIED_BYTES_PER_S
    assert "assuming" in told["duration_basis"]


def test_another_bucket_may_refuse() -> None:
    old, new = open_store("s3://old/t", KEY), open_store("s3://new/t", KEY)
    (way,) = foresee(old, new, files(a=1))["ways"]
    assert (way["way"], way["certain"]) == ("store", False)


def test_without_a_secret_large_objects_are_streamed() -> None:
    options = {"aws_region": "us-east-1", "aws_skip_signature": "true"}
    old, new = open_store("s3://lake/old", options), open_store("s3://lake/new", options)
    told = foresee(old, new, files(small=1, large=LARGE_BYTES + 1))
    assert {(way["way"], way["files"]) for way in told["ways"]} == {("store", 1), ("stream", 1)}


def test_two_services_stream() -> None:
    old, new = open_store("s3://lake/old", GATEWAY), open_store("gs://lake/new", {})
    told = foresee(old, new, files(a=1, b=SMALL_COPY_BYTES + 1, c=100 * MIB))
    (way,) = told["ways"]
    assert (way["way"], way["certain"], way["files"]) == ("stream", True, 3)
    # 8 MiB are read at a time; more than 32 MiB are uploaded in parts of 16 MiB.
    read = {"GET": 1 + 2 + 13, "HEAD": 2}
    assert told["requests"] == {**read, "LIST": 1, "POST": 2, "PUT": 2 + 7}
    # Neither of the two has a known price.
    assert (told["request_cost_usd"], told["price_basis"]) == (None, None)
    assert "through this machine" in told["duration_basis"]


def test_only_requests_to_amazon_have_a_price(tmp_path: Path) -> None:
    disk, new = open_store(str(tmp_path)), open_store("s3://lake/new", KEY)
    told = foresee(disk, new, files(a=1, b=2))
    assert told["requests"] == {"LIST": 1, "PUT": 2}
    assert told["request_cost_usd"] == pytest.approx(3 * 5e-6, abs=1e-6)


def test_local_files_are_copied_by_the_system_unless_there_is_a_limit(tmp_path: Path) -> None:
    old, new = open_store(str(tmp_path / "old")), open_store(str(tmp_path / "new"))
    table = files(a=10 * MIB)
    told = foresee(old, new, table)
    assert [way["way"] for way in told["ways"]] == ["store"]
    assert (told["requests"], told["request_cost_usd"]) == ({}, None)
    limited = foresee(old, new, table, limit_rate=MIB)
    assert [way["way"] for way in limited["ways"]] == ["stream"]
    assert limited["duration_ms"] == pytest.approx(10_000, abs=1)
    assert "the limit" in limited["duration_basis"]


def test_a_limit_is_not_for_what_the_store_copies() -> None:
    old, new = open_store("s3://lake/old", KEY), open_store("s3://lake/new", KEY)
    table = files(a=100 * MIB)
    assert foresee(old, new, table, limit_rate=1) == foresee(old, new, table)


def test_files_elsewhere_have_their_own_way() -> None:
    old, new = open_store("s3://lake/old", KEY), open_store("s3://lake/new", KEY)
    table = of_paths(
        {
            "part=a:b/c": 5,
            "s3://lake/old/inside": 7,
            "s3a://lake/beside": 9,
            "s3://other/x": 11,
            "s3://other/y": 13,
            "gs://third/z": 17,
            "/what/is/this": 19,
        }
    )
    told = foresee(old, new, table)
    ways = {(each["way"], each["from"]): each for each in told["ways"]}
    assert {name: (each["files"], each["bytes"]) for name, each in ways.items()} == {
        ("store", "s3://lake/old"): (3, 21),
        ("store", "s3://other"): (2, 24),
        ("stream", "gs://third"): (1, 17),
        ("stream", "file:///"): (1, 19),
    }
    assert not ways["store", "s3://other"]["certain"]


def test_rewritten_files_pass_through() -> None:
    old, new = open_store("s3://lake/old", KEY), open_store("s3://lake/new", KEY)
    table = files(a=1, b=2).append_column("rewritten", pa.array([True, False]))
    ways = foresee(old, new, table)["ways"]
    assert {(way["way"], way["bytes"]) for way in ways} == {("stream", 1), ("store", 2)}


def test_nothing_to_copy_takes_no_time() -> None:
    told = foresee(DictStore(), DictStore(), files())
    assert told == {
        "ways": [],
        "requests": {},
        "request_cost_usd": None,
        "price_basis": None,
        "duration_ms": 0,
        "duration_basis": None,
    }


def test_a_million_files_are_summed_up_by_arrow() -> None:
    old, new = open_store("s3://lake/old", KEY), open_store("s3://new/t", KEY)
    count = 1_000_000
    columns = {"path": pa.repeat("part.parquet", count), "size": pa.repeat(MIB, count)}
    table = pa.table(columns)
    told = foresee(old, new, table)
    assert told["ways"][0]["files"] == count
    assert told["requests"] == {"COPY": count, "HEAD": 2 * count, "LIST": count // 1000}


@pytest.mark.parametrize("size", [0, 10, SMALL_COPY_BYTES + 1])
def test_the_forecast_is_what_the_store_then_does(size: int, tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    pairs = [
        (open_store(f"memory://{name}/old"), open_store(f"memory://{name}/new")),
        (open_store(f"memory://{name}/old"), open_store(f"memory://other-{name}/new")),
        (open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))),
        (open_store(str(tmp_path / "a")), open_store(f"memory://{name}/new")),
        (DictStore(), open_store(f"memory://{name}/new")),
    ]
    for source, target in pairs:
        source.put("x", bytes(size))
        (way,) = foresee(source, target, files(x=size))["ways"]
        # A dry run sees the stores through overlays, and what was deleted there doesn't count.
        over, under = Overlay(source), Overlay(target)
        over.leave_only([])
        assert foresee(over, under, files(x=size))["ways"] == [way]
        copied = target.copy_from(source, "x", "y", lambda _: None)
        assert (way["way"] == "store") == (copied is not None)


@pytest.mark.parametrize(("limit", "rates"), [(None, (500, 100)), (1_000_000, (1, 1))])
def test_comparing_reads_each_place_within_the_limit(
    tmp_path: Path, limit: int | None, rates: tuple[int, int]
) -> None:
    disk, cloud = open_store(str(tmp_path)), open_store("s3://bucket/t", KEY)
    size_bytes = 10**10
    told = CopyForecasts(limit).of_comparison((disk, cloud), 32, size_bytes)
    assert (told["verify"], told["verify_bytes"]) == ("full", 2 * size_bytes)
    requests_ms = 32 * copy_forecast.REQUEST_MS / 16
    moved_ms = sum(size_bytes / (rate * 1_000) for rate in rates)
    assert told["verify_duration_ms"] == round(requests_ms + moved_ms)
    assert ("the limit" in told["verify_duration_basis"]) is (limit is not None)
