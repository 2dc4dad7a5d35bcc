"""Tokens: what each allows, what is kept of it, and how soon a running server knows."""

from __future__ import annotations

import json
import secrets

import pytest

from lakeferry.errors import InvalidInput, StorageUnavailable, Unauthorized
from lakeferry.transfer.repository import access_tokens
from lakeferry.transfer.repository.access_tokens import Scope, Tokens
from lakeferry.transfer.repository.dataset_names import DatasetName
from tests.support.clock import ManualClock
from tests.support.stores import DictStore, Fault, FaultyStore, on

NAME, OTHER = DatasetName.parse("acc/d"), DatasetName.parse("acc/e")
DAY_MS = 24 * 3600 * 1000


class Ticks:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_token_allows_what_it_was_made_for() -> None:
    known = Tokens(DictStore())
    everything = known.check(known.create())
    assert (everything.may_write, everything.covers(NAME), everything.covers(OTHER)) == (
        False,
        True,
        True,
    )
    one = known.check(known.create(Scope.WRITE, dataset=NAME))
    assert (one.may_write, one.covers(NAME), one.covers(OTHER)) == (True, True, False)
    assert not one.covers(DatasetName.parse("acc"))


def test_no_secret_is_kept() -> None:
    store = DictStore()
    token = Tokens(store).create()
    [(path, data)] = store.objects.items()
    id_, _, secret = token.removeprefix("lf_").partition("_")
    assert path == f".lakeferry/tokens/{id_}.json"
    assert secret.encode() not in data
    assert len(secret) == 43
    assert token != Tokens(store).create()


def test_a_token_that_is_not_exactly_one_of_ours_is_invalid() -> None:
    known = Tokens(DictStore())
    token, other = known.create(), known.create()
    id_, secret = token[3:19], token[20:]
    wrong = [
        *("", "x", token + "x", token[:-1], token.upper(), f" {token}", f"{token}\n"),
        f"lf_{id_}_{other[20:]}",
        f"lf_{'0' * 16}_{secret}",
        f"lf_../../../..{id_[:4]}_{secret}",
        f"lf_{id_}_{secret[:-1]}{'A' if secret[-1] != 'A' else 'B'}",
        token * 1000,
    ]
    for text in wrong:
        with pytest.raises(Unauthorized, match="Authentication token invalid") as raised:
            known.check(text)
        assert raised.value.fields["expired"] is False
    known.check(token)


def test_a_token_expires() -> None:
    clock = ManualClock(1000)
    known = Tokens(DictStore(), clock=clock)
    token = known.create(lasts_ms=DAY_MS)
    clock.advance(DAY_MS - 1)
    assert known.check(token).expires_ms == 1000 + DAY_MS
    clock.advance(1)
    with pytest.raises(Unauthorized, match="Authentication token expired"):
        known.check(token)
    with pytest.raises(InvalidInput):
        known.create(lasts_ms=0)


def test_what_another_process_does_is_known_within_a_second() -> None:
    store, ticks = DictStore(), Ticks()
    known = Tokens(store, ticks=ticks)
    maker = Tokens(store)
    token = maker.create()
    record = store.objects
    store.delete_many(list(record))
    with pytest.raises(Unauthorized):
        known.check(token)
    for path, data in record.items():
        store.put(path, data)
    ticks.now += access_tokens.KNOWN_FOR_S
    known.check(token)
    store.delete_many(list(record))
    known.check(token)
    ticks.now += access_tokens.KNOWN_FOR_S
    with pytest.raises(Unauthorized):
        known.check(token)
    assert access_tokens.KNOWN_FOR_S < 1


def test_one_token_in_use_is_read_now_and_then() -> None:
    store, ticks = DictStore(), Ticks()
    known = Tokens(store, ticks=ticks)
    token = known.create()
    for _ in range(100):
        known.check(token)
    assert store.calls["RANGE"] == 1


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_tokens, "_REMEMBERED", 3)
    store = DictStore()
    known = Tokens(store, ticks=Ticks())
    made = [known.create() for _ in range(4)]
    for token in [*made, made[-1], made[0]]:
        known.check(token)
    assert store.calls["RANGE"] == 5


def test_an_id_that_is_taken_is_never_given_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Tokens(DictStore())
    first = known.create()
    monkeypatch.setattr(secrets, "token_hex", lambda _: first.split("_")[1])
    with pytest.raises(InvalidInput, match="there is a token with this id"):
        known.create(Scope.WRITE)
    monkeypatch.undo()
    assert not known.check(first).may_write
    assert known.check(known.create(Scope.WRITE)).may_write


def test_a_file_that_makes_no_sense_lets_nobody_in() -> None:
    store = DictStore()
    token = Tokens(store).create()
    [path] = store.objects
    for data in (b"", b"{}", b'{"sha256": "x", "grant": {"scope": "admin"}}', b"\xff"):
        store.put(path, data)
        with pytest.raises(Unauthorized):
            Tokens(store).check(token)


def test_a_store_that_fails_is_not_taken_for_a_bad_token() -> None:
    inner = DictStore()
    token = Tokens(inner).create()
    known = Tokens(FaultyStore(inner, on("RANGE", Fault.FAIL)))
    with pytest.raises(StorageUnavailable):
        known.check(token)
    known.check(token)


def test_a_file_from_before_names_is_read() -> None:
    store = DictStore()
    tokens = Tokens(store)
    token = tokens.create(Scope.WRITE, name="nightly", note="x" * 500)
    path = next(iter(store.list(access_tokens.TOKENS_FOLDER))).path
    record = json.loads(store.get(path))
    assert (record.pop("name"), record.pop("note")) == ("nightly", "x" * 500)
    assert record.keys() == {"sha256", "grant"}
    store.put(path, json.dumps(record).encode())
    assert Tokens(store).check(token).may_write
    (listed,) = Tokens(store).all()
    assert (listed.name, listed.note) == (None, None)


def test_the_longest_name_and_note_fit_into_a_file() -> None:
    store = DictStore()
    widest = Tokens(store).create(
        dataset=NAME, name="\U00010348" * 100, note="\U00010348" * 500, lasts_ms=10**12
    )
    assert Tokens(store).check(widest).scope is Scope.READ
