"""URLs that a server signs itself: what each allows, and what it doesn't."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from lakeferry.errors import CorruptLog, Forbidden, InvalidInput
from lakeferry.storage import open_store
from lakeferry.transfer.repository import signed_urls
from lakeferry.transfer.repository.signed_urls import Permit, Signer
from tests.support.clock import ManualClock
from tests.support.stores import DictStore

KEY = "acc/d/data/f1620" + 64 * "0"
NOW_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def signer(clock: ManualClock) -> Signer:
    return Signer(bytes(32), clock=clock)


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, strict_parsing=True))


def test_a_url_allows_what_was_signed(signer: Signer) -> None:
    url, expires_ms = signer.sign("http://h:1/", "PUT", KEY, lasts_ms=1000, size_bytes=7)
    assert url.startswith(f"http://h:1/{KEY}?")
    assert expires_ms == NOW_MS + 1000
    assert signer.check("PUT", KEY, query_of(url)) == Permit("PUT", KEY, expires_ms, 7)
    url, _ = signer.sign("http://h:1", "GET", KEY, lasts_ms=1000)
    for method in ("GET", "HEAD"):
        assert signer.check(method, KEY, query_of(url)).size_bytes is None


def test_a_part_is_signed_with_its_number_its_length_and_the_whole(signer: Signer) -> None:
    url, queries = signer.sign_parts("http://h/", KEY, {1: 16, 3: 7}, 39, lasts_ms=1000)
    parts = [query_of(f"{url}&{query}") for query in queries]
    assert url.startswith(f"http://h/{KEY}?")
    for part, (number, size) in zip(parts, ((1, 16), (3, 7)), strict=True):
        permit = signer.check("PUT", KEY, part)
        assert permit == Permit("PUT", KEY, NOW_MS + 1000, size, number, 39)
    good = parts[1]
    for wrong in (
        good | {"part": "2"},
        good | {"size": "16"},
        good | {"whole": "40"},
        good | {"part": "x"},
        {name: value for name, value in good.items() if name != "part"},
        {name: value for name, value in good.items() if name not in ("part", "whole")},
    ):
        with pytest.raises(Forbidden):
            signer.check("PUT", KEY, wrong)
    plain = query_of(signer.sign("http://h", "PUT", KEY, lasts_ms=1000, size_bytes=7)[0])
    with pytest.raises(Forbidden):
        signer.check("PUT", KEY, plain | {"part": "1", "whole": "7"})


def test_a_url_that_was_used_after_its_time_is_refused(signer: Signer, clock: ManualClock) -> None:
    url, _ = signer.sign("http://h", "GET", KEY, lasts_ms=1000)
    clock.advance(999)
    signer.check("GET", KEY, query_of(url))
    clock.advance(1)
    with pytest.raises(Forbidden, match="expired") as raised:
        signer.check("GET", KEY, query_of(url))
    assert raised.value.fields["expired"] is True


def test_another_method_key_size_time_or_signature_is_refused(signer: Signer) -> None:
    url, expires_ms = signer.sign("http://h", "PUT", KEY, lasts_ms=1000, size_bytes=7)
    good = query_of(url)
    other = Signer(b"\1" * 32, clock=ManualClock(NOW_MS)).sign(
        "http://h", "PUT", KEY, lasts_ms=1000, size_bytes=7
    )
    changed: list[tuple[str, str, dict[str, str]]] = [
        ("GET", KEY, good),
        ("HEAD", KEY, good),
        ("DELETE", KEY, good),
        ("PUT", KEY[:-1] + "1", good),
        ("PUT", KEY.replace("/data/", "/checkpoints/"), good),
        ("PUT", KEY.replace("acc/d", "acc/e"), good),
        ("PUT", KEY + "\n", good),
        ("PUT", KEY, good | {"method": "GET"}),
        ("PUT", KEY, {name: good[name] for name in ("expires", "size", "signature")}),
        ("PUT", KEY, good | {"size": "8"}),
        ("PUT", KEY, good | {"size": "07"}),
        ("PUT", KEY, good | {"size": "-7"}),
        ("PUT", KEY, {name: good[name] for name in ("method", "expires", "signature")}),
        ("PUT", KEY, good | {"expires": str(expires_ms + 1)}),
        ("PUT", KEY, good | {"expires": f"0{expires_ms}"}),
        ("PUT", KEY, good | {"expires": f"{expires_ms}e1"}),
        ("PUT", KEY, good | {"expires": "9" * 30}),
        ("PUT", KEY, good | {"signature": "0" * 64}),
        ("PUT", KEY, good | {"signature": good["signature"].upper()}),
        ("PUT", KEY, good | {"signature": ""}),
        ("PUT", KEY, good | {"signature": "ä" * 64}),
        ("PUT", KEY, good | {"more": "1"}),
        ("PUT", KEY, {}),
        ("PUT", KEY, query_of(other[0])),
    ]
    for method, key, query in changed:
        with pytest.raises(Forbidden) as raised:
            signer.check(method, key, query)
        assert raised.value.fields["expired"] is False
    signer.check("PUT", KEY, good)


def test_no_two_permits_are_signed_alike() -> None:
    permits = [
        Permit("PUT", "a", 1, 23),
        Permit("PUT", "a", 12, 3),
        Permit("PUT", "a", 123),
        Permit("GET", "a", 123),
        Permit("PUT", "a1", 23),
    ]
    assert len({permit.signed_text() for permit in permits}) == len(permits)
    with pytest.raises(InvalidInput):
        Permit("GET", "a\n1", 2).signed_text()


def test_only_what_makes_sense_is_signed(signer: Signer) -> None:
    for method, size in (("GET", 1), ("PUT", None), ("DELETE", None), ("HEAD", None)):
        with pytest.raises(InvalidInput):
            signer.sign("http://h", method, KEY, lasts_ms=1, size_bytes=size)
    for lasts_ms in (0, -1, signed_urls.LONGEST_LIFE_MS + 1):
        with pytest.raises(InvalidInput):
            signer.sign("http://h", "GET", KEY, lasts_ms=lasts_ms)


def test_on_local_disk_the_key_is_for_the_server_alone(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put(".lakeferry/other", b"")
    Signer.of(store)
    store.put(".lakeferry/another", b"")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / ".lakeferry").iterdir()}
    assert modes["signing.key"] == 0o600
    assert modes["another"] == modes["other"]


def test_servers_of_one_root_share_a_key() -> None:
    store = DictStore()
    url, _ = Signer.of(store).sign("http://h", "GET", KEY, lasts_ms=100_000)
    Signer.of(store).check("GET", KEY, query_of(url))
    assert len(store.objects[signed_urls.KEY_PATH]) == signed_urls.KEY_BYTES
    with pytest.raises(Forbidden):
        Signer.of(DictStore()).check("GET", KEY, query_of(url))
    store.put(signed_urls.KEY_PATH, b"short")
    with pytest.raises(CorruptLog):
        Signer.of(store)
