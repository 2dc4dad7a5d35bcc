"""Connections that are cut, URLs that expire, stores that fail: it ends right, or it is said why.

Whatever happens on the way, what arrived isn't sent a second time, and the head never names
anything that isn't there. Our client and our server, over a local root and a real S3 server,
with proxies in between that do the damage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakeferry.errors import LakeferryError, StorageUnavailable
from lakeferry.storage import Store
from lakeferry.transfer.client.remote_dataset import Terms
from lakeferry.transfer.client.transfer_progress import Transferred
from tests.support.hosting import (
    NAME,
    ONCE,
    ROOTS,
    Files,
    Hosted,
    Place,
    contents,
    hold,
    hosted,
    objects_in,
)
from tests.support.http_proxy import CountingProxy, Rule, SeenRequest, Spoil
from tests.support.odf import Chain
from tests.support.reference_client import files_of
from tests.support.servers import S3Bucket
from tests.support.shares import Share
from tests.support.stores import DictStore, Fault, FaultyStore, StoreCall
from tests.support.transfers import pull, push
from tests.support.wire_proxy import WireProxy

MOST_MESSAGES = 40


def dataset(appends: int = 4) -> Files:
    built = Chain()
    for number in range(appends):
        built.append(checkpoint=f"checkpoint {number // 2}")
    return files_of(built)


FILES = dataset()
TOTAL = len(objects_in(FILES))
SIZE_BYTES = sum(len(FILES[path]) for path in objects_in(FILES))


class Push:
    """A dataset on its way to a server."""

    def begin(self, server: Hosted) -> None:
        """Have the dataset at one end, and nothing at the other."""
        store = server.place.store
        store.delete_many([found.path for found in store.list(f"{NAME}/")])

    def run(self, server: Hosted, terms: Terms, slow: bool = False) -> Transferred:
        here: Store = DictStore(FILES)
        return push(slowed(here, "RANGE") if slow else here, server.dataset(), terms)

    def arrived(self, server: Hosted) -> Files:
        return server.stored()


class Pull:
    """A dataset on its way from a server."""

    def begin(self, server: Hosted) -> None:
        self.here = DictStore()
        hold(server.place.store, FILES, f"{NAME}/")

    def run(self, server: Hosted, terms: Terms, slow: bool = False) -> Transferred:
        # Writing holds up nobody; what a slow line does is held by the turn.
        slowly = replace(terms, limit_rate=SIZE_BYTES // 3)
        return pull(server.dataset(), self.here, slowly if slow else terms)

    def arrived(self, server: Hosted) -> Files:
        return contents(self.here)


Way = Push | Pull
WAYS = pytest.mark.parametrize("way", [Push(), Pull()], ids=["push", "pull"])


def slowed(store: Store, verb: str) -> Store:
    """Return a store that takes its time for each object."""

    def rule(call: StoreCall) -> Fault | None:
        is_object = call.verb == verb and call.paths[0].startswith(("data/", "checkpoints/"))
        return Fault.DELAY if is_object else None

    return FaultyStore(store, rule, delay=lambda: time.sleep(0.35))


@pytest.fixture(params=ROOTS)
def place(request: pytest.FixtureRequest) -> Place:
    return Place.of(request.param, request, "a root")


@contextmanager
def behind(proxy: WireProxy, place: Place, **options: Any) -> Iterator[Hosted]:
    with proxy, hosted(place, before=proxy.stand_before, **options) as server:
        yield server


# --- Connections --------------------------------------------------------------------------


@WAYS
def test_a_connection_that_is_cut_at_any_message_is_followed_by_another(
    place: Place, way: Way, share: Share
) -> None:
    with behind(proxy := WireProxy(), place) as server:
        for number in share.each(range(1, MOST_MESSAGES)):
            way.begin(server)
            proxy.messages.clear()
            proxy.cut_at = number
            done = way.run(server, server.terms(page=2))
            assert way.arrived(server) == FILES
            assert done.changed
            assert done.objects <= TOTAL == done.objects + done.skipped
            if not proxy.was_cut:
                break
        else:
            raise AssertionError("it has no end")
    assert number > 8


@WAYS
def test_a_proxy_that_drops_every_tenth_connection_keeps_nobody_from_it(
    place: Place, way: Way
) -> None:
    with behind(proxy := WireProxy(), place) as server:
        proxy.drop = lambda number: number % 10 == 0
        while proxy.dropped < 3:
            way.begin(server)
            done = way.run(server, server.terms(parallel=8))
            assert way.arrived(server) == FILES
            assert done.objects <= TOTAL == done.objects + done.skipped
    assert proxy.connections >= 30


@WAYS
def test_a_server_that_cannot_be_reached_is_a_clear_error(place: Place, way: Way) -> None:
    with behind(proxy := WireProxy(), place) as server:
        way.begin(server)
        terms = server.terms()
        before = place.everything
        proxy.drop = lambda _: True
        with pytest.raises(StorageUnavailable, match="connection") as failed:
            way.run(server, terms)
        assert failed.value.remedy
        assert place.everything == before
        proxy.drop = lambda _: False
        assert way.run(server, terms).objects == TOTAL


# --- URLs ---------------------------------------------------------------------------------


@WAYS
def test_urls_that_expire_after_one_second_are_asked_for_again(place: Place, way: Way) -> None:
    with behind(proxy := WireProxy(), place, urls_last_s=1) as server:
        way.begin(server)
        way.run(server, server.terms())
        usual = len(proxy.messages)
        way.begin(server)
        proxy.messages.clear()
        # One at a time, each so slow that the last ones' first URLs are past their time.
        done = way.run(server, server.terms(parallel=1), slow=True)
        assert way.arrived(server) == FILES
        assert (done.objects, done.skipped) == (TOTAL, 0)
        assert len(proxy.messages) > usual


# --- Stores -------------------------------------------------------------------------------


@contextmanager
def with_faulty_store(bucket: S3Bucket, rule: Rule) -> Iterator[tuple[Hosted, CountingProxy]]:
    """Serve a bucket through a proxy, by which its objects are fetched and put as well.

    The rule begins with the first dataset; it can be changed.
    """
    host = bucket.server.endpoint.removeprefix("http://")
    with CountingProxy(host, delay_s=0.05) as proxy:
        place = Place(f"{bucket.uri}/root", bucket.storage_options)
        with hosted(place.through(proxy.url)) as server:
            proxy.rule = rule
            # What a test itself looks at isn't spoiled.
            yield Hosted(server.url, place, server.server), proxy


def of_objects(spoil: Spoil, every: int = 1) -> Rule:
    """Spoil every n-th request for an object of a dataset."""
    count = 0

    def rule(request: SeenRequest) -> Spoil | None:
        nonlocal count
        path = request.target.partition("?")[0]
        if "/data/" not in path and "/checkpoints/" not in path:
            return None
        count += 1
        return spoil if count % every == 0 else None

    return rule


def of_all(spoil: Spoil, every: int) -> Rule:
    """Spoil every n-th request, whoever makes it."""
    count = 0

    def rule(_: SeenRequest) -> Spoil | None:
        nonlocal count
        count += 1
        return spoil if count % every == 0 else None

    return rule


WEATHER: dict[str, Callable[[], Rule]] = {
    "every second answer for an object is 500": lambda: of_objects(Spoil.STATUS_500, 2),
    "every second answer for an object is 503": lambda: of_objects(Spoil.STATUS_503, 2),
    "every third answer at all is 503": lambda: of_all(Spoil.STATUS_503, 3),
    "every answer is slow": lambda: of_all(Spoil.DELAY, 1),
    "every tenth connection is dropped": lambda: of_all(Spoil.DROP, 10),
    "every fifth answer is lost": lambda: of_all(Spoil.LOSE_ANSWER, 5),
}


@WAYS
@pytest.mark.parametrize("weather", WEATHER)
def test_a_store_with_troubles_that_pass_gets_everything(
    s3_bucket: S3Bucket, way: Way, weather: str
) -> None:
    with with_faulty_store(s3_bucket, WEATHER[weather]()) as (server, proxy):
        way.begin(server)
        done = way.run(server, server.terms())
        assert way.arrived(server) == FILES
        assert (done.changed, done.objects + done.skipped) == (True, TOTAL)
        assert proxy.count() > TOTAL


@pytest.mark.parametrize("operation", ["push", "pull"])
@pytest.mark.parametrize("weather", WEATHER)
def test_a_clients_own_store_with_troubles_that_pass_gets_everything(
    s3_bucket: S3Bucket, tmp_path: Path, operation: str, weather: str
) -> None:
    own = Place(f"{s3_bucket.uri}/own", s3_bucket.storage_options)
    host = s3_bucket.server.endpoint.removeprefix("http://")
    with (
        CountingProxy(host, delay_s=0.05) as proxy,
        hosted(Place((tmp_path / "root").as_uri())) as server,
    ):
        if operation == "push":
            hold(own.store, FILES)
        else:
            hold(server.place.store, FILES, f"{NAME}/")
        store, terms = own.through(proxy.url).store, server.terms()
        proxy.rule = WEATHER[weather]()
        if operation == "push":
            done = push(store, server.dataset(), terms)
        else:
            done = pull(server.dataset(), store, terms)
        assert (done.objects, done.skipped) == (TOTAL, 0)
        assert server.stored() == own.everything == FILES
        assert proxy.count() > TOTAL


@WAYS
@pytest.mark.parametrize("spoil", [Spoil.STATUS_500, Spoil.STATUS_503, Spoil.DROP])
def test_a_store_that_always_fails_is_a_clear_error_and_the_retry_sends_what_is_missing(
    s3_bucket: S3Bucket, way: Way, spoil: Spoil
) -> None:
    passed = 0

    def all_but_two(request: SeenRequest) -> Spoil | None:
        nonlocal passed
        if request.method not in ("GET", "PUT") or fails(request) is None:
            return None
        passed += 1
        return None if passed <= 2 else spoil

    fails = of_objects(spoil)
    with with_faulty_store(s3_bucket, all_but_two) as (server, proxy):
        way.begin(server)
        with pytest.raises(StorageUnavailable) as failed:
            way.run(server, server.terms(patience=ONCE, parallel=1))
        assert failed.value.cause
        assert failed.value.remedy
        arrived = way.arrived(server)
        assert "refs/head" not in arrived
        proxy.reset()
        done = way.run(server, server.terms())
        assert way.arrived(server) == FILES
        assert done.skipped == len(objects_in(arrived)) == 2
        assert done.objects == TOTAL - 2


@WAYS
def test_a_store_that_changes_bytes_is_found_out(s3_bucket: S3Bucket, way: Way) -> None:
    with with_faulty_store(s3_bucket, lambda _: None) as (server, proxy):
        way.begin(server)

        def spoils_uploads(request: SeenRequest) -> Spoil | None:
            is_put = request.method == "PUT" and "/data/" in request.target
            return Spoil.CHANGE_BYTES if is_put else None

        proxy.rule = spoils_uploads
        if isinstance(way, Pull):
            # Of an answer nothing is changed on its way: it is wrong where it comes from.
            [path] = [path for path in FILES if path.startswith("data/")][:1]
            server.place.store.put(f"{NAME}/{path}", FILES[path][::-1])
        with pytest.raises(LakeferryError) as failed:
            way.run(server, server.terms())
        assert failed.value.code == "hash_mismatch"
        assert "refs/head" not in way.arrived(server)
