"""Histories that are too long for one message are pulled in parts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import unquote

import pytest

from lakeferry.errors import Diverged, InvalidInput, LimitExceeded
from lakeferry.server.sessions import pull_work
from lakeferry.server.sessions.pull_work import Pulling
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.client.remote_dataset import Terms
from lakeferry.transfer.client.session_work import file_of
from lakeferry.transfer.datasets import message_parts
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.message_parts import PartBounds
from lakeferry.transfer.repository.signed_urls import Links, Signer
from lakeferry.transfer.session.events import LoadBlocks, MakePlan, SignUrls, UrlsReady
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.codec import MessageLimits
from lakeferry.transfer.wire.messages import PullRequest
from tests.support.history import Append, Delete, History
from tests.support.odf import Chain, SetInfo
from tests.support.reference_client import fetch, files_of
from tests.support.stores import DictStore
from tests.support.transfers import plan_pull, pull, push
from tests.unit.server.sessions.test_websocket_sessions import NAME, Served

PAST = History().then(*[Append(2)] * 40)


@pytest.fixture(autouse=True)
def small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_parts, "PULLED", PartBounds(5_000, blocks=15))
    monkeypatch.setattr(message_parts, "PUSHED", PartBounds(5_000, blocks=15))
    monkeypatch.setattr(pull_work, "LIMITS", MessageLimits(blocks_message_bytes=12_000))


@pytest.fixture
def server() -> Iterator[Served]:
    with Served() as served:
        yield served


def long_chain(lead: str = "") -> Chain:
    built = Chain().append(checkpoint="c").append()
    drawn = random.Random(lead)
    for _ in range(40):
        built.add(SetInfo(f"{lead}{drawn.randbytes(300).hex()}"))
    return built.append()


def terms(server: Served, **changes: bool) -> Terms:
    return Terms(token=server.token, **changes)  # type: ignore[arg-type]


def url(server: Served) -> str:
    return f"{server.url}/{NAME}"


def commits_of(store: Store, lead: str = "") -> dict[str, bytes]:
    """Return the commits and the data files of a table."""
    names = [found.path.removeprefix(lead) for found in store.list(lead)]
    wanted = [name for name in names if not name.startswith((".", "_delta_log/_"))]
    return {name: store.get(lead + name) for name in wanted if "checkpoint" not in name}


def holds_table(server: Served, past: History) -> None:
    for name, data in past.objects().items():
        server.disk.put(f"{NAME}/{name}", data)


def test_an_odf_dataset_comes_in_parts_that_are_counted_together(server: Served) -> None:
    built = long_chain()
    files = files_of(built)
    server.holds(files)
    assert len(server.client.pull()) < len(files)
    there = DictStore()
    [foreseen] = plan_pull(url(server), there, terms(server))
    assert there.objects == {}
    done = pull(url(server), there, terms(server))
    assert there.objects == files
    assert (done.head, done.blocks, done.changed) == (built.head.text, 44, True)
    assert done.objects == len(built.objects)
    assert (foreseen["head"], foreseen["blocks"]) == (done.head, done.blocks)
    assert (foreseen["objects"], foreseen["bytes"]) == (done.objects, done.bytes)
    again = pull(url(server), there, terms(server))
    assert (again.head, again.blocks, again.changed) == (done.head, 0, False)


def test_a_client_that_asks_once_gets_an_older_head_and_goes_on_from_it(server: Served) -> None:
    files = files_of(long_chain())
    server.holds(files)
    got = server.client.pull()
    rounds = 1
    while got["refs/head"] != files["refs/head"]:
        got |= server.client.pull(got["refs/head"].decode())
        rounds += 1
    assert got == files
    assert rounds > 2


def test_with_force_another_history_of_an_odf_dataset_comes_in_parts(server: Served) -> None:
    files = files_of(long_chain("theirs"))
    server.holds(files)
    there = DictStore()
    for path, data in files_of(long_chain("ours")).items():
        there.put(path, data)
    done = pull(url(server), there, terms(server, force=True))
    assert there.objects.items() >= files.items()
    assert done.blocks == 44


def test_a_table_that_was_pushed_in_parts_is_pulled_in_parts(server: Served) -> None:
    source, there = PAST.store(), DictStore()
    pushed = push(source, url(server), terms(server))
    [foreseen] = plan_pull(url(server), there, terms(server))
    pulled = pull(url(server), there, terms(server))
    assert commits_of(there) == commits_of(source)
    assert (pulled.head, pulled.blocks, pulled.objects, pulled.bytes) == (
        pushed.head,
        pushed.blocks,
        pushed.objects,
        pushed.bytes,
    )
    assert (foreseen["head"], foreseen["blocks"]) == (pulled.head, pulled.blocks)


@pytest.mark.parametrize("when", ["before the chain was made", "since"])
def test_a_part_doesnt_end_where_a_version_needs_a_file_that_was_vacuumed(
    server: Served, when: str
) -> None:
    past = History().then(*[Append(2)] * 20, Delete(1), *[Append(2)] * 17)
    holds_table(server, past)
    if when == "since":
        assert server.repository.delta(NAME).current() is not None
    live = set(map(unquote, DeltaLog(past.store()).snapshot().files["path"].to_pylist()))
    gone = [name for name in past.objects() if name.endswith(".parquet") and name not in live]
    server.disk.delete_many([f"{NAME}/{name}" for name in gone])
    there = DictStore()
    pulled = pull(url(server), there, terms(server))
    assert gone
    assert pulled.blocks == 39
    assert commits_of(there) == commits_of(server.disk, f"{NAME}/")


def test_what_replaces_a_table_comes_at_once_or_the_user_is_told_where_it_would(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds_table(server, PAST)
    there = History().then(Append(1)).store()
    with pytest.raises(LimitExceeded) as refused:
        pull(url(server), there, terms(server, force=True))
    assert "empty place" in str(refused.value.remedy)
    assert pull(url(server), DictStore(), terms(server, force=True)).blocks == 41

    monkeypatch.setattr(pull_work, "LIMITS", MessageLimits())
    before = DeltaLog(there).snapshot().version
    done = pull(url(server), there, terms(server, force=True))
    assert (done.blocks, DeltaLog(there).snapshot().version) == (41, before + 1)


def test_a_forced_push_that_only_goes_on_is_divided(server: Served) -> None:
    source = PAST.store()
    holds_table(server, History().then(Append(2)))
    assert PAST.objects().items() >= commits_of(server.disk, f"{NAME}/").items()
    done = push(source, url(server), terms(server, force=True))
    assert done.blocks == 39
    ended = 'lakeferry_sessions_ended_total{op="push",outcome="done"}'
    [line] = [each for each in shown(server) if each.startswith(ended)]
    assert float(line.rpartition(" ")[2]) > 1


def shown(server: Served) -> list[str]:
    return fetch(f"{server.url}/metrics")[1].decode().splitlines()


def test_of_another_table_nobody_is_told_to_try_force(server: Served) -> None:
    past = History().then(Append(1))
    ours = past.store()
    id_ = DeltaLog(ours).snapshot().metadata.id.encode()
    for name, data in past.objects().items():
        server.disk.put(f"{NAME}/{name}", data.replace(id_, id_[::-1]))
    for is_push in (False, True):
        for force in (False, True):
            asked = terms(server, force=force)
            with pytest.raises(Diverged) as refused:
                push(ours, url(server), asked) if is_push else pull(url(server), ours, asked)
            said = f"{refused.value} {refused.value.remedy}"
            assert "--force" not in said
            assert "seed" not in said
            assert "choose another" in said


def test_of_another_history_force_is_named(server: Served) -> None:
    holds_table(server, History().then(Append(1), Append(2)))
    ours = History().then(Append(3)).store()
    with pytest.raises(Diverged) as refused:
        pull(url(server), ours, terms(server))
    assert "--force" in str(refused.value.remedy)


@pytest.mark.parametrize("messages", ["small", "large"])
def test_only_objects_that_the_blocks_name_get_urls(
    messages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if messages == "large":
        monkeypatch.setattr(message_parts, "PULLED", PartBounds(1 << 20))
        monkeypatch.setattr(pull_work, "LIMITS", MessageLimits())
    store = PAST.store()
    store.put("nested/private.parquet", b"of somebody else")
    dataset = DeltaDataset(store, "")
    links = Links(store, Signer(bytes(32)), "http://server.invalid")
    work = Pulling(dataset, links, urls_last_s=60, check=lambda: None)
    work.answer(MakePlan(PullRequest()))
    work.answer(LoadBlocks())
    head = dataset.head()
    assert head is not None
    oldest = [*dataset.walk(head, None)][-2][1]
    named = file_of(oldest.objects[0])
    signed = work.answer(SignUrls((named,)))
    assert isinstance(signed, UrlsReady)
    assert [str(named.path) in url.url for url in signed.urls if url is not None] == [True]
    wrong = Multihash.sha3_256(b"made up")
    for other in (
        replace(named, physical_hash=wrong),
        replace(named, path="nested/private.parquet"),
        replace(named, path="nested/private.parquet", physical_hash=wrong),
        replace(named, path="../x"),
        replace(named, path=None),
        replace(named, kind=m.WireObjectKind.CHECKPOINT),
    ):
        with pytest.raises(InvalidInput):
            work.answer(SignUrls((named, other)))
