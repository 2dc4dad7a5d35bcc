"""Transfers from Python, plain and on an event loop, against a server in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.api.remotes import TOKEN_VARIABLE
from lakeferry.api.table import Plan
from lakeferry.engine import CarryPlan, HashPlan, Observer, unobserved
from lakeferry.engines import engine_choice
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.shared_engine import SharedEngine
from lakeferry.errors import InvalidInput, ObjectNotFound, StorageUnavailable, Unauthorized
from lakeferry.transfer.client import push_and_pull
from lakeferry.transfer.client.transfer_progress import Transferred
from lakeferry.transfer.repository.garbage_collection import GarbageCollected
from tests.support.history import Append, History
from tests.support.hosting import wait_for
from tests.unit.cli.program import make


@pytest.fixture(autouse=True)
def no_token_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[lakeferry.Server]:
    with lakeferry.Server(str(tmp_path / "root")) as running:
        yield running


@pytest.fixture
def url(server: lakeferry.Server) -> str:
    return f"{server.url}/acme/orders"


@pytest.fixture
def token(tmp_path: Path) -> str:
    made = lakeferry.create_token(str(tmp_path / "root"), scope="write")
    assert isinstance(made, str)
    return made


def table(place: Path) -> lakeferry.Table:
    return lakeferry.Table(str(make(History().then(Append(3)), place)))


class Recorded(LocalEngine):
    """What passes for Spark, and where it was asked."""

    name = "spark"  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.hashed: list[int] = []
        self.threads: set[str] = set()
        self.is_closed = False

    def hash(self, plan: HashPlan, observer: Observer = unobserved):  # type: ignore[no-untyped-def]
        self.hashed.append(len(plan.objects))
        self.threads.add(threading.current_thread().name)
        observer("hashing", 0, len(plan.objects))
        yield from super().hash(plan, observer)

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.is_closed = True


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    engine = Recorded()
    monkeypatch.setattr(engine_choice, "open_engine", lambda _: engine)
    return engine


def step_of(plan: Transferred | Plan) -> tuple[str, int]:
    assert isinstance(plan, list)
    [step] = plan
    return step["op"], step["objects"]


def test_a_table_goes_and_comes(tmp_path: Path, url: str, token: str) -> None:
    orders, copy = table(tmp_path / "orders"), lakeferry.Table(str(tmp_path / "copy"))
    assert step_of(orders.push(url, token=token, dry_run=True)) == ("push", 3)
    pushed = orders.push(url, token=token)
    assert step_of(copy.pull(url, token=token, dry_run=True)) == ("pull", 3)
    pulled = copy.pull(url, token=token)
    assert isinstance(pushed, Transferred)
    assert isinstance(pulled, Transferred)
    assert (pushed.objects, pulled.objects, pushed.head) == (3, 3, pulled.head)
    assert orders.verify(copy, digest=True).equal


def test_a_table_goes_and_comes_on_an_event_loop(tmp_path: Path, url: str, token: str) -> None:
    orders, copy = table(tmp_path / "orders"), lakeferry.Table(str(tmp_path / "copy"))

    async def both() -> None:
        assert step_of(await orders.async_push(url, token=token, dry_run=True)) == ("push", 3)
        assert not (tmp_path / "root" / "acme").exists()
        pushed = await orders.async_push(url, token=token)
        assert step_of(await copy.async_pull(url, token=token, dry_run=True)) == ("pull", 3)
        assert not (tmp_path / "copy").exists()
        pulled = await copy.async_pull(url, token=token, parallel=2)
        assert isinstance(pushed, Transferred)
        assert isinstance(pulled, Transferred)
        assert (pushed.objects, pulled.objects, pushed.head) == (3, 3, pulled.head)

    asyncio.run(both())
    assert orders.verify(copy, digest=True).equal


def test_nothing_that_blocks_is_done_on_the_event_loop(
    tmp_path: Path, url: str, token: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = table(tmp_path / "orders")
    meant: set[str] = set()
    find = lakeferry.Table._meant

    def found(self: lakeferry.Table, *, follow: bool) -> object:
        meant.add(threading.current_thread().name)
        return find(self, follow=follow)

    monkeypatch.setattr(lakeferry.Table, "_meant", found)
    asyncio.run(orders.async_push(url, token=token, engine="spark"))
    assert recorded.hashed
    assert recorded.is_closed
    # Also where the engine was chosen, worked and was closed.
    assert threading.main_thread().name not in meant | recorded.threads


def test_a_redirect_is_followed_unless_told_not_to(tmp_path: Path, url: str, token: str) -> None:
    old = table(tmp_path / "old")
    old.redirect(str(tmp_path / "new"))
    version = lakeferry.Table(str(tmp_path / "new")).snapshot().version
    pushed = asyncio.run(old.async_push(url, token=token))
    assert isinstance(pushed, Transferred)
    there = lakeferry.Table(str(tmp_path / "root" / "acme" / "orders"))
    assert there.snapshot(follow=False).version == version
    assert there.redirect_status().target is None


def test_a_token_is_found_in_the_environment(
    tmp_path: Path, url: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = table(tmp_path / "orders")
    with pytest.raises(Unauthorized):
        orders.push(url)
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    orders.push(url)
    # What is given counts, and that there is to be none.
    for given in ("lf_wrong", ""):
        with pytest.raises(Unauthorized):
            orders.push(url, token=given)
    # An environment of one's own stands for the process's.
    elsewhere = lakeferry.Table(str(tmp_path / "orders"), environment={})
    with pytest.raises(Unauthorized):
        elsewhere.push(url)
    monkeypatch.delenv(TOKEN_VARIABLE)
    same = lakeferry.Table(str(tmp_path / "orders"), environment={TOKEN_VARIABLE: token})
    assert not same.push(url).changed


def test_a_dry_run_has_its_digests_made_by_the_chosen_engine(
    tmp_path: Path, url: str, token: str, recorded: Recorded
) -> None:
    orders = table(tmp_path / "orders")
    told: list[str] = []

    def observer(what: str, done: int, total: int) -> None:
        told.append(what)

    plan = orders.push(url, token=token, engine="spark", dry_run=True, observer=observer)
    assert step_of(plan) == ("push", 3)
    assert sum(recorded.hashed) == 3
    assert "hashing" in told
    assert recorded.is_closed
    assert not (tmp_path / "orders" / "_delta_log" / "_lakeferry").exists()
    # A pull over a table has to know its blocks, too.
    orders.push(url, token=token, engine="local")
    recorded.hashed.clear()
    same = table(tmp_path / "same")
    assert same.pull(url, token=token, engine="spark", dry_run=True) == []
    assert sum(recorded.hashed) == 3


def test_how_many_travel_at_once_is_tuned_unless_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Noted(push_and_pull.Pull):
        async def run(self) -> Transferred:
            seen.append(self._terms.parallel)
            return Transferred("", 0, 0, 0, 0, changed=False)

    monkeypatch.setattr(push_and_pull, "Pull", Noted)
    copy = lakeferry.Table(str(tmp_path / "copy"))
    copy.pull("https://data.example.com/acme/orders")
    copy.pull("http://127.0.0.1:8470/acme/orders")
    copy.pull("http://127.0.0.1:8470/acme/orders", parallel=3)
    assert seen[0] > seen[1]
    assert seen[2] == 3


def test_what_makes_no_sense_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    copy = lakeferry.Table(str(tmp_path / "copy"))
    options: dict[str, Any]
    for options in ({"parallel": 0}, {"limit_rate": 0}, {"engine": "steam"}):
        with pytest.raises(InvalidInput):
            copy.pull("http://127.0.0.1:1/d", **options)
        with pytest.raises(InvalidInput):
            asyncio.run(copy.async_pull("http://127.0.0.1:1/d", **options))
    with pytest.raises(InvalidInput):
        copy.pull("gopher://h/d")
    with pytest.raises(TypeError):
        copy.pull("http://127.0.0.1:1/d", colour="red")  # type: ignore[call-overload]


def test_tokens_are_made_listed_and_taken_back(tmp_path: Path, url: str, token: str) -> None:
    root = str(tmp_path / "root")
    table(tmp_path / "orders").push(url, token=token)
    planned = lakeferry.create_token(root, dataset="acme/orders", dry_run=True)
    assert planned == [
        {
            "op": "create_token",
            "scope": "read",
            "dataset": "acme/orders",
            "lasts_ms": None,
            "name": None,
            "note": None,
        }
    ]
    reader = lakeferry.create_token(root, dataset="acme/orders", expires="30d")
    assert isinstance(reader, str)
    first, second = lakeferry.list_tokens(root)
    assert (first.grant.scope.value, first.grant.expires_ms) == ("write", None)
    assert second.as_document() == {
        "id": reader[3:19],
        "name": None,
        "note": None,
        "scope": "read",
        "dataset": "acme/orders",
        "created_ms": second.grant.created_ms,
        "expires_ms": second.grant.created_ms + 30 * 24 * 3600 * 1000,
    }
    lakeferry.Table(str(tmp_path / "copy")).pull(url, token=reader)

    assert lakeferry.revoke_token(root, reader, dry_run=True) == [
        {"op": "revoke_token", "id": reader[3:19]}
    ]
    assert lakeferry.revoke_token(root, reader) is True
    assert lakeferry.revoke_token(root, reader[3:19]) is False
    assert [each.id for each in lakeferry.list_tokens(root)] == [first.id]
    wait_for(lambda: is_refused(tmp_path / "late", url, reader))


def is_refused(place: Path, url: str, token: str) -> bool:
    try:
        lakeferry.Table(str(place)).pull(url, token=token, dry_run=True)
    except Unauthorized:
        return True
    return False


@pytest.mark.parametrize(
    "options", [{"scope": "admin"}, {"dataset": "../x"}, {"expires": "soon"}, {"expires": "0s"}]
)
def test_a_token_that_makes_no_sense_is_not_made(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        lakeferry.create_token(str(tmp_path), **options)  # type: ignore[call-overload]
    assert not list(tmp_path.iterdir())


def test_what_names_no_token_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        lakeferry.revoke_token(str(tmp_path), "../hunter2")
    assert "hunter2" not in str(refused.value)


def test_a_root_is_tidied_up_on_an_event_loop_too(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    root = str(tmp_path / "root")
    done = asyncio.run(lakeferry.async_gc(root, grace="0s"))
    assert isinstance(done, GarbageCollected)
    assert done == lakeferry.gc(root, grace="0s")
    assert asyncio.run(lakeferry.async_gc(root, dry_run=True, unfinished_only=True)) == []


@pytest.mark.parametrize("unfinished_only", [True, False])
def test_a_root_that_is_not_there_is_not_tidied_up(tmp_path: Path, unfinished_only: bool) -> None:
    (tmp_path / "file").write_text("no folder")
    for root in (str(tmp_path / "typo"), str(tmp_path / "file"), "memory://nowhere/typo"):
        with pytest.raises(ObjectNotFound, match="no server's root"):
            lakeferry.gc(root, unfinished_only=unfinished_only)
    assert not (tmp_path / "typo").exists()


def test_carrying_goes_through_a_shared_engine() -> None:
    class Carrier:
        def carry(
            self, numbers: Sequence[int], tasks: int, tell: Callable[[int, int], None]
        ) -> Iterator[tuple[int, str]]:
            return ((number, "0") for number in numbers)

    engine = SharedEngine(Recorded())
    plan = CarryPlan(Carrier(), lakeferry.Table("memory://x/y")._store.config, (1, 2), "moving")
    assert list(engine.carry(plan)) == [(0, "0"), (1, "0")]


def test_what_a_first_pull_has_left_is_no_table_that_could_be_redirected(tmp_path: Path) -> None:
    mark = tmp_path / "_delta_log" / "_lakeferry" / "transfer" / "claim"
    mark.parent.mkdir(parents=True)
    mark.touch()
    with pytest.raises(StorageUnavailable):
        lakeferry.Table(str(tmp_path)).pull("http://127.0.0.1:1/base")


def test_a_pull_that_left_something_to_the_next_command_warns_of_it(tmp_path: Path) -> None:
    said: list[str] = []
    store = History().then(Append(1)).store()
    lost = StorageUnavailable("can't write refs/head", cause="the disk is full")
    done = Transferred("head", 1, 1, 1, 0, changed=True, unfinished=lost)
    lakeferry.Table(str(tmp_path), warn=said.append)._warn_after(store, done)
    (text,) = said
    assert "the disk is full" in text
    assert "the next push or pull" in text
