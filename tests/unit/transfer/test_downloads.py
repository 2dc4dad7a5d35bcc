"""Large objects that arrive in several pulls, as when a process ended in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeferry.errors import HashMismatch, StorageUnavailable
from lakeferry.storage import Store, open_store
from lakeferry.transfer import downloads
from lakeferry.transfer.client import pull
from lakeferry.transfer.remote import Patience
from tests.support.transfer_server import TransferServer
from tests.unit.transfer.test_client import laid_out, terms, with_large_object

SIZE = (5 << 20) + 7
IMPATIENT = Patience(attempts=1, first_wait_s=0.001)


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "KEPT_BYTES", 4 << 20)


@pytest.fixture
def server() -> Iterator[TransferServer]:
    built, _ = with_large_object(SIZE)
    with TransferServer(laid_out(built)) as running:
        yield running


@pytest.fixture
def path(server: TransferServer) -> str:
    return next(path for path in server.files if path.startswith("data/"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "t"))


def objects(store: Store) -> dict[str, bytes]:
    return {found.path: store.get(found.path) for found in store.list("")}


def ranges(server: TransferServer, path: str) -> list[int]:
    """Return from which byte on the object was asked for, each time."""
    asked = [asked for _, asked_path, asked in server.asked if asked_path == path]
    return [int(one.removeprefix("bytes=").rstrip("-")) if one else 0 for one in asked]


def break_off(server: TransferServer, path: str, store: Store, after: int = 3 << 20) -> None:
    server.break_after[path] = after
    with pytest.raises(StorageUnavailable):
        pull(server.url, store, terms(patience=IMPATIENT))
    assert objects(store) == {}


def test_the_next_pull_goes_on_within_the_object(
    server: TransferServer, path: str, store: Store
) -> None:
    break_off(server, path, store)
    break_off(server, path, store, 1 << 20)
    done = pull(server.url, open_store(store.uri), terms())
    assert objects(store) == server.files
    first, second, third = ranges(server, path)
    assert 0 == first < second < third
    assert (done.objects, done.bytes) == (1, SIZE - third)
    assert list(store.entries("")) == sorted(server.files)


def test_what_broke_off_at_its_very_end_isnt_asked_for_again(
    server: TransferServer, path: str, store: Store
) -> None:
    partial = store.partial(path)
    assert partial is not None
    partial.append(server.files[path])
    partial.close()
    pull(server.url, store, terms())
    assert objects(store) == server.files
    assert ranges(server, path) == []


@pytest.mark.parametrize("left", [b"?" * (2 << 20), b"?" * (SIZE + 1), b"?" * SIZE])
def test_what_was_left_and_is_wrong_is_thrown_away(
    server: TransferServer, path: str, store: Store, left: bytes
) -> None:
    partial = store.partial(path)
    assert partial is not None
    partial.append(left)
    partial.close()
    pull(server.url, store, terms())
    assert objects(store) == server.files
    assert ranges(server, path)[-1] == 0


def test_a_server_that_has_something_else_now_is_found_out(
    server: TransferServer, path: str, store: Store
) -> None:
    break_off(server, path, store)
    server.corrupt.add(path)
    server.files[path] = server.files[path][:-1] + b"?"
    with pytest.raises(HashMismatch):
        pull(server.url, store, terms())
    assert objects(store) == {}


def test_two_at_once_both_get_it(server: TransferServer, path: str, store: Store) -> None:
    partial = store.partial(path)
    assert partial is not None
    partial.append(b"somebody else's")
    pull(server.url, store, terms())
    assert objects(store) == server.files
    assert b"".join(partial.read()) == b"somebody else's"
    partial.close()
