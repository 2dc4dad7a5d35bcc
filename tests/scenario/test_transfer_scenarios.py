"""What can become of a push and a pull, by name: our client, our server, a real root.

The root is on local disk and on a real S3 server, where objects go by the store's own signed
URLs. Where a golden dataset lies beside the repository it is used; without it, one that is
made here takes its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from lakeferry.errors import (
    CommitConflict,
    CommitStateUnknown,
    Diverged,
    Forbidden,
    IncompatibleVersion,
    LakeferryError,
    ObjectNotFound,
    StorageUnavailable,
    Unauthorized,
)
from lakeferry.storage import Store
from lakeferry.transfer.client.object_urls import _now_ms
from lakeferry.transfer.repository.access_tokens import Scope
from lakeferry.transfer.wire import handshake
from lakeferry.transfer.wire.messages import MessageDialect
from tests.scenario.test_transfer_rest import dataset_a
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
    wait_for,
)
from tests.support.odf import Chain, SetInfo
from tests.support.reference_client import files_of
from tests.support.stores import DictStore
from tests.support.transfers import pull, push
from tests.support.wire_proxy import WireProxy

OTHER_ID = b"\xed\x01" + bytes(32)
OTHER_NAME = "acc/other"


@pytest.fixture(params=ROOTS)
def place(request: pytest.FixtureRequest) -> Place:
    return Place.of(request.param, request, "a root")


@pytest.fixture
def server(place: Place) -> Iterator[Hosted]:
    with hosted(place) as running:
        yield running


def dataset(*steps: str, appends: int = 2) -> Files:
    """Return a dataset with rows and checkpoints, and what makes it different from others."""
    built = Chain()
    for number in range(appends):
        built.append(checkpoint=f"checkpoint {number // 2}")
    for step in steps:
        built.add(SetInfo(step)).append(checkpoint=step)
    return files_of(built)


def holding(files: Files) -> DictStore:
    return DictStore(files)


def unchanged(server: Hosted, act: Callable[[], object], error: type[LakeferryError]) -> Any:
    """See that something is refused so, and that nothing below the root changes by it."""
    before = server.place.everything
    with pytest.raises(error) as refused:
        act()
    assert server.place.everything == before
    return refused.value


# --- New, up to date, advanced ------------------------------------------------------------


def test_a_new_dataset_is_pushed_and_pulled_with_identical_bytes(server: Hosted) -> None:
    files = dataset_a()
    pushed = push(holding(files), server.dataset(), server.terms())
    assert server.stored() == files
    assert (pushed.changed, pushed.skipped) == (True, 0)
    there = holding({})
    pulled = pull(server.dataset(), there, server.terms())
    assert there.objects == files
    assert pulled == pushed
    assert pushed.objects == len(objects_in(files))


def test_a_new_empty_dataset_is_pushed_and_pulled(server: Hosted) -> None:
    files = files_of(Chain())
    pushed = push(holding(files), server.dataset(), server.terms())
    assert server.stored() == files
    assert (pushed.blocks, pushed.objects, pushed.changed) == (1, 0, True)
    there = holding({})
    assert pull(server.dataset(), there, server.terms()) == pushed
    assert there.objects == files


def test_what_is_up_to_date_is_left_alone_by_push_and_pull(server: Hosted) -> None:
    here = holding(dataset())
    push(here, server.dataset(), server.terms())
    terms = server.terms()
    before = server.place.everything
    for done in (push(here, server.dataset(), terms), pull(server.dataset(), here, terms)):
        assert (done.changed, done.blocks, done.objects, done.bytes) == (False, 0, 0, 0)
    assert server.place.everything == before
    assert here.objects == dataset()


def test_of_an_advanced_dataset_only_what_is_new_travels(server: Hosted) -> None:
    old, new = dataset(), dataset("more")
    push(holding(old), server.dataset(), server.terms())
    there = holding({})
    pull(server.dataset(), there, server.terms())
    pushed = push(holding(new), server.dataset(), server.terms())
    pulled = pull(server.dataset(), there, server.terms())
    assert (pushed.blocks, pushed.objects) == (2, len(objects_in(new) - objects_in(old)))
    assert pulled == pushed
    assert server.stored() == new
    assert there.objects == new


def test_an_empty_dataset_that_gets_rows_advances(server: Hosted) -> None:
    push(holding(files_of(Chain())), server.dataset(), server.terms())
    done = push(holding(dataset()), server.dataset(), server.terms())
    assert (done.blocks, server.stored()) == (2, dataset())


# --- Diverged, ahead, collisions ----------------------------------------------------------


def test_a_diverged_push_is_refused_and_made_with_force(server: Hosted) -> None:
    ours, theirs = dataset("ours"), dataset("theirs")
    push(holding(theirs), server.dataset(), server.terms())
    terms = server.terms()
    unchanged(server, lambda: push(holding(ours), server.dataset(), terms), Diverged)
    done = push(holding(ours), server.dataset(), server.terms(force=True))
    # What both have isn't sent again.
    assert done.objects == len(objects_in(ours) - objects_in(theirs))
    assert server.stored() == theirs | ours


def test_a_diverged_pull_is_refused_and_made_with_force(server: Hosted) -> None:
    ours, theirs = dataset("ours"), dataset("theirs")
    push(holding(theirs), server.dataset(), server.terms())
    here = holding(ours)
    with pytest.raises(Diverged):
        pull(server.dataset(), here, server.terms())
    assert here.objects == ours
    done = pull(server.dataset(), here, server.terms(force=True))
    assert done.objects == len(objects_in(theirs) - objects_in(ours))
    assert here.objects == ours | theirs


def test_a_client_that_is_ahead_pulls_nothing_and_loses_nothing(server: Hosted) -> None:
    push(holding(dataset()), server.dataset(), server.terms())
    here = holding(dataset("ahead"))
    with pytest.raises(Diverged):
        pull(server.dataset(), here, server.terms())
    assert here.objects == dataset("ahead")
    assert push(here, server.dataset(), server.terms()).changed


def test_a_server_that_is_ahead_is_pushed_nothing(server: Hosted) -> None:
    push(holding(dataset("ahead")), server.dataset(), server.terms())
    terms = server.terms()
    unchanged(server, lambda: push(holding(dataset()), server.dataset(), terms), Diverged)


def test_a_dataset_that_is_there_under_another_name_is_a_ref_collision(server: Hosted) -> None:
    push(holding(dataset()), server.dataset(), server.terms())
    here, terms = holding(dataset()), server.terms()
    refused = unchanged(
        server, lambda: push(here, server.dataset(OTHER_NAME), terms), CommitConflict
    )
    assert "under another name" in refused.message
    assert refused.fields["dataset_id"].startswith("did:odf:fed01")


def test_a_dataset_that_was_put_below_the_root_by_hand_is_a_ref_collision_too(place: Place) -> None:
    hold(place.store, dataset(), f"{OTHER_NAME}/")
    with hosted(place) as server:
        with pytest.raises(CommitConflict, match="under another name"):
            push(holding(dataset()), server.dataset(), server.terms())
        assert server.stored() == {}
        assert server.stored(OTHER_NAME) == dataset()


def test_an_object_that_lay_there_with_other_bytes_is_found_out_and_sent_again(
    server: Hosted,
) -> None:
    files = dataset()
    name = min(objects_in(files))
    hold(server.place.store, {name: bytes(len(files[name]))}, f"{NAME}/")
    with pytest.raises(LakeferryError):
        push(holding(files), server.dataset(), server.terms())
    assert f"{NAME}/refs/head" not in server.place.everything
    push(holding(files), server.dataset(), server.terms())
    assert server.stored() == files


def test_a_seed_is_overwritten_neither_by_push_nor_by_pull(server: Hosted) -> None:
    push(holding(dataset()), server.dataset(), server.terms())
    other = files_of(Chain(OTHER_ID).append())
    here, forced = holding(other), server.terms(force=True)
    refused = unchanged(server, lambda: push(here, server.dataset(), forced), Diverged)
    assert "a different dataset" in refused.message
    with pytest.raises(Diverged, match="a different dataset"):
        pull(server.dataset(), here, forced)
    assert here.objects == other


# --- Who is let in ------------------------------------------------------------------------


def both_ways(server: Hosted, name: str, token: str | None) -> Iterator[Callable[[], object]]:
    """Yield a push and a pull with a token; neither would be refused but for that."""
    terms = server.terms(token=token)
    yield lambda: push(holding(dataset("more")), server.dataset(name), terms)
    yield lambda: pull(server.dataset(name), holding({}), terms)


def test_the_unauthenticated_neither_push_nor_pull(
    server: Hosted, caplog: pytest.LogCaptureFixture
) -> None:
    push(holding(dataset()), server.dataset(), server.terms())
    for token in (None, "nonsense", "lf_0123456789abcdef_" + "A" * 43):
        for act in both_ways(server, NAME, token):
            unchanged(server, act, Unauthorized)
    # To refuse is no mistake of the server's.
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_dataset_outside_of_the_token_looks_as_if_it_were_not_there(server: Hosted) -> None:
    push(holding(dataset()), server.dataset(), server.terms())
    token = server.token(Scope.WRITE, dataset=OTHER_NAME)
    for act, other in zip(
        both_ways(server, NAME, token), both_ways(server, "acc/none", token), strict=True
    ):
        seen = unchanged(server, act, ObjectNotFound)
        absent = unchanged(server, other, ObjectNotFound)
        assert str(seen).replace(NAME, "") == str(absent).replace("acc/none", "")


def test_a_read_token_pulls_and_is_forbidden_to_push(server: Hosted) -> None:
    push(holding(dataset()), server.dataset(), server.terms())
    token = server.token(Scope.READ, dataset=NAME)
    pushes, pulls = both_ways(server, NAME, token)
    unchanged(server, pushes, Forbidden)
    pulls()


def test_an_expired_token_lets_nobody_in(server: Hosted) -> None:
    push(holding(dataset()), server.dataset(), server.terms())
    token = server.token(Scope.WRITE, lasts_ms=1)
    expired_ms = _now_ms() + 1
    wait_for(lambda: _now_ms() > expired_ms)
    for act in both_ways(server, NAME, token):
        assert "expired" in str(unchanged(server, act, Unauthorized))


def test_a_client_of_another_version_is_told_so(
    server: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(holding(dataset()), server.dataset(), server.terms())
    usual = handshake.client_headers

    def headers(dialect: MessageDialect, token: str | None) -> tuple[tuple[str, str], ...]:
        return tuple({**dict(usual(dialect, token)), handshake.VERSION_HEADER: "2"}.items())

    terms = server.terms()
    monkeypatch.setattr(handshake, "client_headers", headers)
    for act in (
        lambda: push(holding(dataset("more")), server.dataset(), terms),
        lambda: pull(server.dataset(), holding({}), terms),
    ):
        unchanged(server, act, IncompatibleVersion)


# --- Parallel pushes ----------------------------------------------------------------------


def base(appends: int) -> Chain:
    built = Chain()
    for _ in range(appends):
        built.append(checkpoint="shared")
    return built


def racer(number: int, appends: int) -> Files:
    """Return a dataset whose last block names one object that no other has."""
    return files_of(
        base(appends).add(SetInfo(f"racer {number}")).append(0, checkpoint=f"racer {number}")
    )


def race(server: Hosted, racers: list[Files], **changes: Any) -> list[LakeferryError | None]:
    """Push all at once, none of them committed before all have sent their objects."""
    sent = threading.Barrier(len(racers))
    terms = server.terms(**changes)

    def run(files: Files) -> LakeferryError | None:
        def wait(_: str, __: int, ___: int) -> None:
            sent.wait(30)

        try:
            push(holding(files), server.dataset(), terms, wait)
        except LakeferryError as lost:
            return lost
        return None

    with ThreadPoolExecutor(len(racers)) as pool:
        return list(pool.map(run, racers))


@pytest.mark.parametrize("is_new", [True, False], ids=["a new dataset", "one that is there"])
@pytest.mark.parametrize("force", [False, True], ids=["", "by force"])
def test_of_parallel_pushes_one_wins_and_the_losers_are_told(
    server: Hosted, is_new: bool, force: bool
) -> None:
    if not is_new:
        push(holding(files_of(base(2))), server.dataset(), server.terms())
    racers = [racer(number, 0 if is_new else 2) for number in range(3)]
    ends = race(server, racers, force=force)
    assert ends.count(None) == 1
    assert {type(end) for end in ends if end is not None} == {CommitConflict}
    winner = racers[ends.index(None)]
    stored = server.stored()
    assert {path: stored.get(path) for path in winner} == winner
    there = holding({})
    pull(server.dataset(), there, server.terms())
    assert there.objects == winner
    # A loser that goes on has to say that it means it.
    loser = racers[(ends.index(None) + 1) % len(racers)]
    with pytest.raises(Diverged):
        push(holding(loser), server.dataset(), server.terms())
    again = push(holding(loser), server.dataset(), server.terms(force=True))
    assert again.objects == 0
    assert server.stored()["refs/head"] == loser["refs/head"]


# --- Aborted and retried at every step ----------------------------------------------------

STEPS = 30


def aborted_and_retried(
    proxy: WireProxy,
    run: Callable[[Any], Any],
    server: Hosted,
    received: Store,
    lead: str,
    files: Files,
) -> None:
    """Cut at every message in turn, until there are no more; each time run it once again."""
    total = len(objects_in(files))
    for step in range(1, STEPS):
        received.delete_many([found.path for found in received.list(lead)])
        proxy.messages.clear()
        proxy.cut_at = step
        with suppress(StorageUnavailable, CommitStateUnknown):
            run(server.terms(patience=ONCE, page=2))
        if not proxy.was_cut:
            break
        proxy.cut_at = None
        there = contents(received, lead)
        # Whatever is there is what it should be, and a head has all that it names.
        assert all(files[path] == data for path, data in there.items() if path in files)
        assert "refs/head" not in there or files.keys() <= there.keys()
        again = run(server.terms(patience=ONCE))
        assert again.objects <= total - len(objects_in(there))
        if again.changed:
            assert again.objects + again.skipped == total
        assert files.items() <= contents(received, lead).items()
    else:
        raise AssertionError("it has no end")
    assert step > 8


def test_a_push_that_is_aborted_at_any_step_is_retried_with_what_is_missing(place: Place) -> None:
    files = dataset("more")
    with WireProxy() as proxy, hosted(place, before=proxy.stand_before) as server:
        aborted_and_retried(
            proxy,
            lambda terms: push(holding(files), server.dataset(), terms),
            server,
            place.store,
            f"{NAME}/",
            files,
        )


def test_a_pull_that_is_aborted_at_any_step_is_retried_with_what_is_missing(place: Place) -> None:
    files = dataset("more")
    with WireProxy() as proxy, hosted(place, before=proxy.stand_before) as server:
        hold(place.store, files, f"{NAME}/")
        here = holding({})
        aborted_and_retried(
            proxy, lambda terms: pull(server.dataset(), here, terms), server, here, "", files
        )
