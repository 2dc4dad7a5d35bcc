"""Moving a table, on stores in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from lakeferry.api.redirects import Redirects
from lakeferry.errors import (
    InvalidInput,
    RedirectCycle,
    RedirectIllegalTransition,
    RedirectInProgress,
    RedirectTargetNotEmpty,
)
from lakeferry.log import actions
from lakeferry.log.commit import Transaction
from lakeferry.log.replay import TableState
from lakeferry.redirect import cancel
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data, Mode
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.states import RedirectState
from lakeferry.table import DeltaLog
from tests.support.history import Append, Change, Checkpoint, DeleteRows, History, Kind, Layout
from tests.support.lake import entry, redirected
from tests.support.places import below
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    REDIRECT_FEATURES,
    WORLD,
    append,
    content,
    numbered,
    protocol_features,
    redirect_at,
    request_for,
    setting_of,
    versions,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, on

PAST = History(Layout(deletion_vectors="u", change_data=True)).then(
    Append(2), Checkpoint(), DeleteRows(1), Change()
)


def world(past: History = PAST) -> DictStore:
    """Return a world with one table in it."""
    return DictStore(world_with(past), uri=WORLD)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_a_table_moves_with_every_version(mode: Mode, data: Data) -> None:
    store = world()
    before = {version: content(store.objects, OLD, version) for version in range(4)}
    outcome = enabling.enable(setting_of(store), request_for(mode=mode, data=data))
    assert (outcome.state, outcome.version, outcome.changed) == (RedirectState.READY, 5, True)
    assert outcome.files_copied == (5 if data is Data.COPY else 0)
    for version in versions(store.objects, NEW):
        expected = before.get(version, before[3])
        assert content(store.objects, NEW, version) == expected
        assert content(store.objects, OLD, version) == expected
    assert not protocol_features(store.objects, NEW) & REDIRECT_FEATURES


@pytest.mark.parametrize("kind", [Kind.V2_JSON, Kind.V2_PARQUET, Kind.V2_CLASSIC])
@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_checkpoints_with_sidecars_come_along(kind: Kind, data: Data) -> None:
    store = world(History(Layout(v2_checkpoints=True)).then(Append(3), Checkpoint(kind)))
    enabling.enable(setting_of(store), request_for(data=data))
    first = f"new/_delta_log/{0:020d}.json"
    expected = content(store.objects, OLD, 1)
    store.delete_many([first])
    assert content(store.objects, NEW, 1) == expected


def test_files_named_by_absolute_uri_come_along_under_relative_names() -> None:
    store = world(History(Layout(absolute_paths=True)).then(Append(2)))
    enabling.enable(setting_of(store), request_for())
    adopted = [name for name in below(store.objects, "new") if not name.startswith("_delta_log/")]
    assert all(name.startswith("_adopted/memory/world/old/part-") for name in adopted)
    assert content(store.objects, NEW) == content(store.objects, OLD)


def test_by_reference_nothing_but_the_log_is_at_the_target() -> None:
    store = world()
    enabling.enable(setting_of(store), request_for(data=Data.REFERENCE))
    assert all(name.startswith("_delta_log/") for name in below(store.objects, "new"))


def test_the_same_request_twice_is_once() -> None:
    store = world()
    setting = setting_of(store)
    enabling.enable(setting, request_for())
    before = store.objects
    outcome = enabling.enable(setting, request_for())
    assert (outcome.state, outcome.changed) == (RedirectState.READY, False)
    assert store.objects == before


def test_only_rules_may_change_while_ready() -> None:
    store = world()
    setting = setting_of(store)
    enabling.enable(setting, request_for())
    rule = Rule("app", ("VACUUM START",))
    outcome = enabling.enable(setting, request_for(rules=(rule,)))
    assert (outcome.version, outcome.changed) == (6, True)
    found = redirect_at(setting)
    assert found is not None
    assert found.rules == (rule,)
    with pytest.raises(RedirectIllegalTransition):
        enabling.enable(setting, request_for(OTHER))
    with pytest.raises(RedirectIllegalTransition):
        enabling.enable(setting, request_for(mode=Mode.WRITER_ONLY))


@pytest.mark.parametrize("name", ["redirectWriterOnly", "delta.redirectWriterOnly"])
def test_another_program_s_redirect_gets_rules_once_in_any_dialect(name: str) -> None:
    store = world(redirected((name, entry(NEW))))
    for path, data in below(store.objects, "old").items():
        store.put(f"new/{path}", data)
    setting = setting_of(store)
    request = request_for(mode=Mode.WRITER_ONLY, rules=(Rule("app", ("WRITE",)),))
    assert enabling.enable(setting, request).changed
    found = redirect_at(setting)
    assert found is not None
    assert found.rules == request.rules
    assert not enabling.enable(setting, request).changed


def test_rows_that_are_written_while_data_is_copied_come_along() -> None:
    store = world()
    names = iter(f"row-{number}.parquet" for number in range(5))

    def write(call: StoreCall) -> None:
        copies = call.verb == "PUT" and call.paths[0].startswith("new/part-")
        if copies and (name := next(names, None)):
            append(setting_of(store).log(OLD), name)

    faulty = FaultyStore(store, write)
    enabling.enable(setting_of(faulty, clock=store.clock), request_for())
    assert {f"row-{number}.parquet" for number in range(3)} <= set(
        content(store.objects, NEW).names
    )
    assert content(store.objects, NEW) == content(store.objects, OLD)


@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_a_checkpoint_that_comes_after_its_version_was_brought_stops_nothing(data: Data) -> None:
    store = world()
    source = setting_of(store).log(OLD)

    def checkpoint(call: StoreCall) -> None:
        if call.verb == "PUT_IF_ABSENT" and call.paths[0] == f"old/_delta_log/{4:020d}.json":
            source.checkpoint()

    faulty = FaultyStore(store, checkpoint)
    outcome = enabling.enable(setting_of(faulty, clock=store.clock), request_for(data=data))
    assert outcome.state is RedirectState.READY
    assert content(store.objects, NEW) == content(store.objects, OLD)
    assert f"old/_delta_log/{3:020d}.checkpoint.parquet" in store.objects


def test_of_two_moves_to_two_places_the_second_gives_way_and_leaves_nothing() -> None:
    store = world()
    first = on("PUT_IF_ABSENT", Fault.DELAY, containing=f"old/_delta_log/{4:020d}.json")

    def move_elsewhere() -> None:
        with pytest.raises(RedirectInProgress, match="isn't finished"):
            enabling.enable(setting_of(store), request_for(OTHER))
        store.delete_many(["old/_delta_log/_lakeferry/move.json"])
        enabling.enable(setting_of(store), request_for(OTHER))

    faulty = FaultyStore(store, first, delay=move_elsewhere)
    with pytest.raises(RedirectInProgress):
        enabling.enable(
            setting_of(faulty, clock=store.clock, new_id=numbered("second")), request_for()
        )
    assert below(store.objects, "new") == {}
    assert content(store.objects, OTHER) == content(store.objects, OLD)


def test_a_move_that_has_begun_is_in_progress_to_whoever_asks_for_another() -> None:
    store = world()
    _break_off(store, on("COPY", Fault.STOP_BEFORE))
    for target in (NEW, OTHER):
        with pytest.raises(RedirectInProgress):
            enabling.enable(setting_of(store), request_for(target))


def _break_off(store: DictStore, rule: Callable[[StoreCall], Fault | None]) -> None:
    faulty = FaultyStore(store, rule)
    with pytest.raises(Stopped):
        enabling.enable(setting_of(faulty, clock=store.clock), request_for())


@pytest.mark.parametrize("name", ["notes.txt", "_delta_log/00000000000000000000.json"])
def test_a_place_where_something_is_is_refused_and_stays_as_it_is(name: str) -> None:
    store = world()
    store.put(f"new/{name}", b"{}")
    before = store.objects
    with pytest.raises(RedirectTargetNotEmpty):
        enabling.enable(setting_of(store), request_for())
    assert store.objects == before


def test_a_place_that_another_table_moves_to_is_refused() -> None:
    store = world()
    claim = {"move_id": "m", "source": OTHER, "table_id": "t", "data": "copy"}
    store.put("new/_delta_log/_lakeferry/claim.json", json.dumps(claim).encode())
    with pytest.raises(RedirectTargetNotEmpty, match="isn't free"):
        enabling.enable(setting_of(store), request_for())


def test_a_place_that_the_table_moves_to_in_another_way_is_refused() -> None:
    store = world()
    _break_off(store, on("PUT", Fault.STOP_AFTER, containing="new/part-"))
    with pytest.raises(RedirectTargetNotEmpty) as refused:
        enabling.enable(setting_of(store), request_for(data=Data.REFERENCE))
    assert "--data copy" in (refused.value.cause or "")
    outcome = enabling.enable(setting_of(store, new_id=numbered("again")), request_for())
    assert outcome.state is RedirectState.READY
    assert content(store.objects, NEW) == content(store.objects, OLD)


def test_a_place_that_was_cancelled_may_be_used_in_another_way() -> None:
    store = world()
    _break_off(store, on("COPY", Fault.STOP_BEFORE))
    cancel.cancel(setting_of(store, new_id=numbered("cancel")), OLD)
    assert below(store.objects, "new") == {}
    again = setting_of(store, new_id=numbered("again"))
    enabling.enable(again, request_for(data=Data.REFERENCE))
    assert content(store.objects, NEW) == content(store.objects, OLD)


def test_a_table_can_t_move_to_itself_or_into_itself() -> None:
    with pytest.raises(RedirectCycle):
        enabling.enable(setting_of(world()), request_for(OLD))
    with pytest.raises(InvalidInput):
        enabling.enable(setting_of(world()), request_for(f"{OLD}/inside"))


def test_what_happens_while_writers_wait_depends_on_the_tail_alone() -> None:
    few, many = (_blocked_calls(files) for files in (10, 500))
    assert few == many
    assert len(few) < 60


def _blocked_calls(files: int) -> list[tuple[str, int]]:
    """Return what is asked of the store from ENABLING to READY: verbs, and of how many names."""
    store = world(History().then(Append(files), Append(1)))
    late = iter(["late.parquet"])

    def write(call: StoreCall) -> None:
        claims = call.paths[0].startswith("new/_delta_log/_lakeferry/claim")
        if claims and (name := next(late, None)):
            append(setting_of(store).log(OLD), name)

    faulty = FaultyStore(store, write)
    enabling.enable(setting_of(faulty, clock=store.clock), request_for())
    calls = [(call.verb, call.paths) for call in faulty.history]
    begin = calls.index(("PUT_IF_ABSENT", (f"old/_delta_log/{4:020d}.json",)))
    end = calls.index(("PUT_IF_ABSENT", (f"old/_delta_log/{5:020d}.json",)))
    return [(verb, len(paths)) for verb, paths in calls[begin : end + 1]]


def test_a_store_that_lets_two_writers_win_is_refused_before_anything_is_brought() -> None:
    store = world()

    class Careless(DictStore):
        def put_if_absent(self, path: str, data: bytes) -> bool:
            self.put(path, data)
            return True

    careless = Careless(store.objects, uri=WORLD)
    with pytest.raises(Exception, match="overwriting"):
        enabling.enable(setting_of(careless), request_for())
    assert careless.objects == store.objects


def test_a_writer_only_redirect_is_spelled_for_stock_spark_too() -> None:
    request = request_for(mode=Mode.WRITER_ONLY)
    assert [dialect.value for dialect in request.spoken] == ["rfc", "delta-spark"]
    assert [dialect.value for dialect in replace(request, mode=Mode.READER_WRITER).spoken] == [
        "rfc"
    ]


# ------------------------------------------------------------- what is read before writers wait


def begins_at(version: int) -> str:
    """Return the name of the commit at which a move begins."""
    return f"old/_delta_log/{version:020d}.json"


@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_the_source_s_state_is_loaded_once_before_writers_wait(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world()
    faulty = FaultyStore(store)
    loaded: list[int] = []
    load = DeltaLog.state

    def state(log: DeltaLog, version: int | None = None) -> TableState:
        if log.store.uri == OLD:
            loaded.append(len(faulty.history))
        return load(log, version)

    monkeypatch.setattr(DeltaLog, "state", state)
    with Redirects() as redirects:
        redirects._enable(setting_of(faulty, clock=store.clock), request_for(data=data))
    began = next(call.index for call in faulty.history if call.paths == (begins_at(4),))
    assert [at for at in loaded if at < began] == [0]
    before = [(call.verb, call.paths[0]) for call in faulty.history[:began]]
    # Once for the state, and once to hold it against the checksum file.
    assert before.count(("GET", "old/_delta_log/_last_checkpoint")) == 2
    # Those two, two rounds, the sidecars, and what came until the commit.
    listed = [path for verb, path in before if verb == "LIST" and path.startswith("old/")]
    assert len(listed) == 6


def test_a_state_that_is_too_old_by_then_is_loaded_anew() -> None:
    store = world()
    others: list[int] = []

    def changed_meanwhile(call: StoreCall) -> Fault | None:
        if call.verb == "PUT_IF_ABSENT" and begins_at(4) in call.paths and not others:
            log = setting_of(store).log(OLD)
            now = log.state()
            configuration = dict(now.metadata.configuration) | {"owner": "somebody"}
            changed = actions.changed(now.metadata, configuration=configuration)
            done = log.commit(Transaction("SET TBLPROPERTIES", "other", metadata=changed), now)
            others.append(done.version)
        return None

    faulty = FaultyStore(store, changed_meanwhile)
    outcome = enabling.enable(setting_of(faulty, clock=store.clock), request_for())
    assert (others, outcome.state, outcome.version) == ([4], RedirectState.READY, 6)
    for place in (OLD, NEW):
        assert setting_of(store).log(place).state().metadata.configuration["owner"] == "somebody"
