"""Copies by the store, several at a time."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest
from obstore.exceptions import PermissionDeniedError

from lakeferry.storage import Store, open_store

WAIT_S = 20.0


class BlockingCopies:
    """obstore's copy: each object is copied when it is let go, or refused."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.asked: list[str] = []
        self.let_go: dict[str, threading.Event] = {}
        self.begun: dict[str, threading.Event] = {}
        self._copy = obstore.copy

    def __call__(self, client: object, key: str, new_key: str) -> None:
        name = key.rpartition("/")[2]
        self.asked.append(name)
        self.begun.setdefault(name, threading.Event()).set()
        if name in self.let_go:
            assert self.let_go[name].wait(WAIT_S)
        if name in self.refused:
            raise PermissionDeniedError("status 403 Forbidden")
        self._copy(client, key, new_key)  # type: ignore[arg-type]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> BlockingCopies:
    blocking = BlockingCopies()
    monkeypatch.setattr(obstore, "copy", blocking)
    monkeypatch.setattr("lakeferry.storage.cloud_copy.http_status", lambda _: 403)
    return blocking


@pytest.fixture
def stores() -> tuple[Store, Store]:
    name = uuid.uuid4().hex
    source, target = open_store(f"memory://{name}/a"), open_store(f"memory://{name}/b")
    for each in ("huge", "x", "y"):
        source.put(each, each.encode())
    return source, target


def copy(stores: tuple[Store, Store], name: str) -> int | None:
    source, target = stores
    return target.copy_from(source, name, name, lambda _: None)


def test_no_copy_waits_for_the_first_one(
    copies: BlockingCopies, stores: tuple[Store, Store]
) -> None:
    copies.let_go["huge"], copies.begun["huge"] = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(copy, stores, "huge")
        try:
            assert copies.begun["huge"].wait(WAIT_S)
            assert pool.submit(copy, stores, "x").result(WAIT_S) == 1
            assert not first.done()
        finally:
            copies.let_go["huge"].set()
        assert first.result(WAIT_S) == 4


def test_after_a_refusal_nothing_more_is_asked(
    copies: BlockingCopies, stores: tuple[Store, Store]
) -> None:
    copies.refused = {"x"}
    assert [copy(stores, name) for name in ("x", "y", "huge")] == [None, None, None]
    assert copies.asked == ["x"]


@pytest.mark.parametrize("refused_first", [True, False])
def test_a_success_beside_a_refusal_decides(
    copies: BlockingCopies, stores: tuple[Store, Store], refused_first: bool
) -> None:
    copies.refused = {"x"}
    copies.let_go["huge"], copies.begun["huge"] = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(copy, stores, "huge")
        assert copies.begun["huge"].wait(WAIT_S)
        if refused_first:
            assert copy(stores, "x") is None
        copies.let_go["huge"].set()
        assert first.result(WAIT_S) == 4
    if not refused_first:
        assert copy(stores, "x") is None
    assert copy(stores, "y") == 1


def shortened(copies: BlockingCopies) -> object:
    """Return obstore's copy, as a store that says success and has written less does it."""

    def copy(client: object, key: str, new_key: str) -> None:
        copies(client, key, new_key)
        if key.endswith("/huge"):
            obstore.put(client, new_key, b"h")  # type: ignore[arg-type]

    return copy


def lost(copies: BlockingCopies) -> object:
    """Return the same of a store that has written nothing."""

    def copy(client: object, key: str, new_key: str) -> None:
        if not key.endswith("/huge"):
            copies(client, key, new_key)

    return copy


@pytest.mark.parametrize("spoil", [shortened, lost])
def test_a_copy_that_went_wrong_is_about_one_object(
    copies: BlockingCopies,
    stores: tuple[Store, Store],
    spoil: Callable[[BlockingCopies], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(obstore, "copy", spoil(copies))
    assert [copy(stores, name) for name in ("huge", "x", "y")] == [None, 1, 1]
