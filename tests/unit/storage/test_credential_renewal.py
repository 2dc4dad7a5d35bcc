"""Credentials that a catalog issues are renewed in time, by one request at a time."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from lakeferry.errors import CatalogUnavailable, LakeferryError
from lakeferry.storage import StoreConfig
from lakeferry.storage.credential_renewal import RenewedCredentials, VendedCredentials, renewed

HOUR_MS = 3_600_000


class Issuer:
    """Issues numbered credentials that are valid for ``life_ms``, as long as nothing is wrong."""

    def __init__(self, life_ms: int | None) -> None:
        self.now_ms = 1_000_000
        self.life_ms = life_ms
        self.asked = 0
        self.wrong: LakeferryError | None = None
        self.renewed = RenewedCredentials(self, lambda: self.now_ms)

    def __call__(self) -> VendedCredentials:
        self.asked += 1
        if self.wrong is not None:
            raise self.wrong
        expires_ms = None if self.life_ms is None else self.now_ms + self.life_ms
        return VendedCredentials({"aws_access_key_id": str(self.asked)}, expires_ms)

    def key(self) -> str:
        return self.renewed.current().options["aws_access_key_id"]


def test_credentials_without_an_end_are_permanent() -> None:
    issuer = Issuer(None)
    assert issuer.key() == "1"
    issuer.now_ms += 1_000 * HOUR_MS
    assert issuer.key() == "1"


@pytest.mark.parametrize(
    ("life_ms", "margin_ms"), [(12 * HOUR_MS, 300_000), (HOUR_MS, 300_000), (120_000, 12_000)]
)
def test_they_are_renewed_before_they_expire(life_ms: int, margin_ms: int) -> None:
    issuer = Issuer(life_ms)
    assert issuer.key() == "1"
    issuer.now_ms += life_ms - margin_ms - 1
    assert issuer.key() == "1"
    issuer.now_ms += 1
    assert (issuer.key(), issuer.key()) == ("2", "2")


def test_expired_ones_are_not_asked_for_without_a_pause() -> None:
    issuer = Issuer(-5)
    assert (issuer.key(), issuer.key()) == ("1", "1")
    issuer.now_ms += 1_000
    assert issuer.key() == "2"


def test_they_are_used_until_they_expire_if_there_are_no_new_ones() -> None:
    issuer = Issuer(HOUR_MS)
    assert issuer.key() == "1"
    issuer.wrong = CatalogUnavailable("down", place="there")
    issuer.now_ms += HOUR_MS - 10_000
    assert (issuer.key(), issuer.key(), issuer.asked) == ("1", "1", 2)
    issuer.now_ms += 1_000
    assert (issuer.key(), issuer.asked) == ("1", 3)
    issuer.now_ms += 9_000
    with pytest.raises(CatalogUnavailable):
        issuer.key()
    failure = issuer.renewed.failure
    assert isinstance(failure, CatalogUnavailable)
    assert failure is not issuer.wrong
    assert failure.as_document() == issuer.wrong.as_document()
    asked = issuer.asked
    with pytest.raises(CatalogUnavailable):
        issuer.key()
    assert issuer.asked == asked
    issuer.wrong = None
    issuer.now_ms += 1_000
    assert issuer.key() == str(asked + 1)
    assert issuer.renewed.failure is None


def test_one_request_is_sent_at_a_time() -> None:
    entered, leave = threading.Event(), threading.Event()
    asked: list[int] = []

    def ask() -> VendedCredentials:
        asked.append(1)
        entered.set()
        assert leave.wait(10)
        return VendedCredentials({"k": "v"}, None)

    shared = RenewedCredentials(ask)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(shared.current) for _ in range(4)]
        assert entered.wait(10)
        leave.set()
        assert {id(answer.result(10)) for answer in answers} == {id(shared.current())}
    assert len(asked) == 1


@dataclass(frozen=True)
class Source:
    """A source as it travels."""

    url: str

    def __call__(self) -> VendedCredentials:
        return VendedCredentials({"aws_access_key_id": self.url}, None)


def test_stores_with_the_same_source_share_what_it_issued() -> None:
    config = StoreConfig("s3://bucket/t", renewal=Source("https://uc/shared"))
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert "renewal" not in repr(config)
    assert again.renewal is not None
    assert renewed(again.renewal) is renewed(Source("https://uc/shared"))


def test_a_value_does_not_show_its_options() -> None:
    shown: Callable[[], str] = VendedCredentials({"aws_secret_access_key": "s3cret"}, 5).__repr__
    assert "s3cret" not in shown()
