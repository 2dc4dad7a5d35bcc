"""Pages of objects that an engine moves, in this process: the same outcomes as the workers'."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeferry.engine import CarryPlan, Engine, Observer, unobserved
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import Forbidden, HashMismatch, InvalidInput, MissingFile
from lakeferry.storage import Store, open_store
from lakeferry.transfer.client import session_work
from lakeferry.transfer.client.objects_by_engine import Carriage
from tests.support.transfer_server import Files, TransferServer
from tests.support.transfers import pull, push
from tests.unit.transfer.client.test_push_and_pull import chain, laid_out, terms, with_large_object


class Elsewhere(LocalEngine):
    """An engine that has its plans sent, and works on what arrives; counts what it is asked."""

    name = "spark"  # type: ignore[assignment]

    def __init__(self) -> None:
        self.plans: list[CarryPlan] = []

    def carry(self, plan: CarryPlan, observer: Observer = unobserved) -> Iterator[tuple[int, str]]:
        self.plans.append(pickle.loads(pickle.dumps(plan)))
        return super().carry(self.plans[-1], observer)


@pytest.fixture
def engine() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
def server() -> Iterator[TransferServer]:
    with TransferServer(laid_out(chain())) as running:
        yield running


def store_of(folder: Path, files: Files | None = None) -> Store:
    store = open_store(str(folder))
    for path, data in (files or {}).items():
        store.put(path, data)
    return store


def files_of(store: Store) -> Files:
    return {found.path: store.get(found.path) for found in store.list("")}


def test_a_pull_and_a_push_move_the_same_bytes(
    server: TransferServer, engine: Elsewhere, tmp_path: Path
) -> None:
    built, _ = with_large_object((5 << 20) + 7)
    server.files = laid_out(built)
    server.token = "secret"
    store = store_of(tmp_path / "t")
    asked = terms(token="secret")
    done = pull(server.url, store, asked, choose=lambda _, __: engine)
    assert files_of(store) == server.files
    assert (done.objects, done.bytes) == (1, (5 << 20) + 7)
    with TransferServer() as other:
        assert push(store, other.url, asked, choose=lambda _, __: engine).objects == 1
        assert other.files == server.files
    assert [plan.sizes for plan in engine.plans] == [((5 << 20) + 7,)] * 2
    carriages = [plan.carrier for plan in engine.plans]
    assert all(isinstance(one, Carriage) and one.terms.token is None for one in carriages)


@pytest.mark.parametrize("is_push", [True, False])
def test_an_engine_tells_how_far_it_is_within_a_large_object(
    server: TransferServer, engine: Elsewhere, tmp_path: Path, is_push: bool
) -> None:
    size = (5 << 20) + 7
    built, _ = with_large_object(size)
    told: list[int] = []
    options = {
        "observer": lambda what, done, _total: told.append(done) if what[0] == "p" else None,
        "choose": lambda _objects, _bytes: engine,
    }
    if is_push:
        with TransferServer() as other:
            push(store_of(tmp_path / "t", laid_out(built)), other.url, terms(), **options)
    else:
        server.files = laid_out(built)
        pull(server.url, store_of(tmp_path / "t"), terms(), **options)
    assert len(engine.plans) == 1
    # It never goes back either, when what the engine has moved is counted as complete.
    assert told == sorted(told)
    assert told[-1] == size
    assert any(0 < done < size for done in told)


def test_the_engine_is_chosen_by_how_much_there_is(server: TransferServer, tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    def choose(objects: int, size_bytes: int) -> Engine:
        asked.append((objects, size_bytes))
        return LocalEngine()

    done = pull(server.url, store_of(tmp_path / "t"), terms(page=2), choose=choose)
    assert asked == [(5, done.bytes)]


def test_urls_that_expired_are_asked_for_again(
    server: TransferServer, engine: Elsewhere, tmp_path: Path
) -> None:
    path = next(path for path in server.files if path.startswith("data/"))
    server.refusals[path] = 1
    store = store_of(tmp_path / "t")
    pull(server.url, store, terms(), choose=lambda _, __: engine)
    assert files_of(store) == server.files
    assert [len(plan.sizes) for plan in engine.plans] == [5, 1]


def test_an_object_with_another_hash_and_one_that_isnt_there_are_errors(
    server: TransferServer, engine: Elsewhere, tmp_path: Path
) -> None:
    store = store_of(tmp_path / "t")
    path = next(path for path in server.files if path.startswith("data/"))
    server.corrupt.add(path)
    with pytest.raises(HashMismatch) as wrong:
        pull(server.url, store, terms(), choose=lambda _, __: engine)
    assert wrong.value.fields["expected"] == path.removeprefix("data/")
    server.corrupt.clear()
    del server.files[path]
    with pytest.raises(MissingFile):
        pull(server.url, store, terms(), choose=lambda _, __: engine)
    assert "refs/head" not in files_of(store)


def test_no_executor_is_sent_to_another_host(
    server: TransferServer, engine: Elsewhere, tmp_path: Path
) -> None:
    server.redirect_to = "http://192.0.2.1/x"
    with pytest.raises(Forbidden, match="another host"):
        pull(server.url, store_of(tmp_path / "t"), terms(), choose=lambda _, __: engine)


def test_an_engine_that_cant_be_had_is_an_error(server: TransferServer, tmp_path: Path) -> None:
    def choose(objects: int, size_bytes: int) -> Engine:
        raise InvalidInput("there is no Spark")

    with pytest.raises(InvalidInput, match="no Spark"):
        pull(server.url, store_of(tmp_path / "t"), terms(), choose=choose)


def test_the_engine_of_a_push_is_chosen_by_what_the_server_lacks(tmp_path: Path) -> None:
    files = laid_out(chain())
    store = store_of(tmp_path / "t", files)
    asked: list[tuple[int, int]] = []

    def choose(objects: int, size_bytes: int) -> Engine:
        asked.append((objects, size_bytes))
        return LocalEngine()

    path = next(path for path in files if path.startswith("data/"))
    there = {name: data for name, data in files.items() if name.startswith(("data/", "checkp"))}
    with TransferServer({name: data for name, data in there.items() if name != path}) as server:
        done = push(store, server.url, terms(), choose=choose)
        assert (done.objects, done.skipped) == (1, 4)
    assert asked == [(1, len(files[path]))]


def test_a_push_changes_to_the_engine_that_suits_what_it_turns_out_to_be(
    engine: Elsewhere, tmp_path: Path
) -> None:
    asked: list[int] = []

    def choose(objects: int, _: int) -> Engine:
        asked.append(objects)
        return engine if objects >= 4 else LocalEngine()

    files = laid_out(chain())
    with TransferServer() as server:
        push(store_of(tmp_path / "t", files), server.url, terms(page=2), choose=choose)
        assert server.files == files
    assert asked == [2, 4]
    assert [len(plan.sizes) for plan in engine.plans] == [2, 1]


def test_what_has_to_be_pushed_again_is_counted_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def choose(objects: int, _: int) -> Engine:
        asked.append(objects)
        return LocalEngine()

    files = laid_out(chain())
    with TransferServer() as server:
        server.refusals = Counter(path for path in files if path.startswith("data/"))
        push(store_of(tmp_path / "t", files), server.url, terms(page=4), choose=choose)
        assert server.files == files
    assert asked == sorted(set(asked))
    assert asked[-1] == 5


def test_what_is_much_already_isnt_weighed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_work, "FEW_OBJECTS", 2)
    asked: list[int] = []

    def choose(objects: int, _: int) -> Engine:
        asked.append(objects)
        return LocalEngine()

    with TransferServer() as server:
        store = store_of(tmp_path / "t", laid_out(chain()))
        push(store, server.url, terms(page=2), choose=choose)
    assert asked == [2]
