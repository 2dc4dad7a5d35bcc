"""What a server keeps of the pushes under way, and who may see what they create."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.transfer.repository.garbage_collection import GarbageCollected, collect
from lakeferry.transfer.repository.push_records import PUSHES_FOLDER
from lakeferry.transfer.repository.repository import Visibility
from tests.support.reference_client import Closed, Files, fetch, objects_of, path_of, run_of
from tests.support.serving import until
from tests.support.stores import Fault, StoreCall, on
from tests.unit.server.sessions.test_websocket_sessions import NAME, Served, dataset

FILES = dataset()
RUN = run_of(FILES)


@pytest.fixture
def server() -> Iterator[Served]:
    with Served() as served:
        yield served


def records(server: Served) -> dict[str, str]:
    """The states of the pushes that are on record."""
    return {
        path: json.loads(data)["state"]
        for path, data in server.disk.objects.items()
        if path.startswith(PUSHES_FOLDER) and path.endswith("push.json")
    }


def collected(server: Served) -> GarbageCollected:
    disk = server.disk
    done = collect(
        disk,
        lambda *_: LocalEngine(lambda _: disk, parallel=1),
        grace_ms=0,
        clock=lambda: disk.clock() + 1000,
    )
    assert isinstance(done, GarbageCollected)
    return done


def leave_behind(server: Served, files: Files) -> None:
    """Have everything of a dataset lie about, but for what would make it one."""
    for path, data in files.items():
        if path != "refs/head":
            server.disk.put(f"{NAME}/{path}", data)


def test_a_push_is_on_record_from_its_blocks_to_its_commit(server: Served) -> None:
    with server.client.open("push") as session:
        session.request_push(None)
        assert records(server) == {}
        session.send_blocks(RUN)
        strategies = session.urls(objects_of(RUN))
        assert list(records(server).values()) == ["open"]
        session.upload(FILES, strategies)
        session.complete()
    assert not any(path.startswith(PUSHES_FOLDER) for path in server.disk.objects)


def test_what_a_push_was_told_to_skip_or_has_sent_isn_t_taken_away(server: Served) -> None:
    leave_behind(server, FILES)
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        strategies = session.urls(objects_of(RUN))
        assert {each["push_strategy"] for each in strategies} == {"SkipUpload"}
        assert collected(server).deleted == ()
        session.complete()
    assert server.stored == FILES
    assert collected(server).deleted == ()


def test_without_a_push_the_same_goes(server: Served) -> None:
    leave_behind(server, FILES)
    assert len(collected(server).deleted) == len(FILES) - 1
    assert server.stored == {}


def test_an_aborted_push_is_left_and_what_it_sent_goes_by_its_record(server: Served) -> None:
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        session.upload(FILES, session.urls(objects_of(RUN)))
    until(lambda: list(records(server).values()) == ["left"])
    done = collected(server)
    assert done.pushes == 1
    objects = {f"{NAME}/{path_of(one)}" for one in objects_of(RUN)}
    (claim,) = set(done.deleted) - objects
    assert claim.startswith(".lakeferry/ids/")
    assert set(done.deleted) == {*objects, claim}
    assert len(done.deleted) == len(set(done.deleted))
    assert server.stored == {}
    assert records(server) == {}
    assert server.client.push(FILES) == len(objects_of(RUN))


def test_a_push_that_nothing_was_handed_out_for_leaves_no_record(server: Served) -> None:
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
    until(lambda: not any(path.startswith(PUSHES_FOLDER) for path in server.disk.objects))


def test_a_push_that_was_taken_for_dead_is_told_so(server: Served) -> None:
    with server.client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        session.upload(FILES, session.urls(objects_of(RUN)))
        now_ms = server.disk.clock() + 3_600_000
        opened = LocalEngine(lambda _: server.disk, parallel=1)
        collect(server.disk, lambda *_: opened, grace_ms=0, clock=lambda: now_ms)
        with pytest.raises(Closed) as closed:
            session.complete()
    # Its objects are gone, or it may not commit any more: whichever is found out first.
    assert closed.value.internal[1] in ("timeout", "missing_file")
    assert "refs/head" not in server.stored
    assert server.client.push(FILES) > 0
    assert server.stored == FILES


# --- Who may see a new dataset ------------------------------------------------------------


@pytest.mark.parametrize("visibility", ["Private", "Public"])
def test_who_may_see_a_new_dataset_survives_a_failure_right_after_its_head(
    server: Served, visibility: str
) -> None:
    server.store.rule = on("PUT", Fault.FAIL, containing="dataset.json", times=-1)
    with server.client.open("push") as session:
        session.request_push(None, visibility=visibility)
        session.send_blocks(RUN)
        session.upload(FILES, session.urls(objects_of(RUN)))
        session.complete()
    server.store.rule = lambda _: None
    assert server.client.head() == RUN[-1][0]
    wanted = Visibility[visibility.upper()]
    assert server.repository.visibility(NAME) is wanted
    # Whoever moves the head makes it last.
    longer = dataset("more")
    server.client.push(longer)
    assert server.stored == longer
    assert server.repository.visibility(NAME) is wanted
    expected = 200 if wanted is Visibility.PUBLIC else 401
    until(lambda: fetch(f"{server.client.url}/refs/head")[0] == expected)


def test_what_somebody_wanted_who_lost_the_race_doesn_t_count(server: Served) -> None:
    other = dataset("another")
    head = FILES["refs/head"].decode()
    for visibility in ("Public", "Private"):
        run = run_of(other)
        with server.client.open("push") as session:
            session.request_push(None, visibility=visibility)
            session.send_blocks(run)
            session.upload(other, session.urls(objects_of(run)))
            # A winner without a word to say who may see it.
            server.holds(FILES)
            with pytest.raises(Closed):
                session.complete()
        assert server.client.head() == head
        assert server.repository.visibility(NAME) is Visibility.PRIVATE
        server.disk.delete_many([f"{NAME}/refs/head"])


def test_an_old_word_doesn_t_make_a_new_dataset_public(server: Served) -> None:
    server.repository.set_visibility(NAME, Visibility.PUBLIC)
    seen = []

    def watch(call: StoreCall) -> None:
        if call.verb == "SWAP" and call.paths[0].endswith("refs/head"):
            seen.append(server.disk.objects[f"{NAME}/.lakeferry/dataset.json"])

    server.store.rule = watch
    server.client.push(FILES)
    assert b"private" in seen[0]
    assert server.repository.visibility(NAME) is Visibility.PRIVATE
