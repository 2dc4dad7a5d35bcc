"""Redirecting to a managed table that is there already, in a world with a catalog in memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from lakeferry.engines.rehearsed_engine import rehearsed
from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    LakeferryError,
    NotEqual,
)
from lakeferry.redirect import cancel, rehearsal, resuming, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Data, RedirectTarget, TargetKind
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from tests.support import plans
from tests.support.history import Append, History, SetProperties
from tests.support.managed_worlds import FIRST, FIRST_PLACE, mark_deleted
from tests.support.places import below, inside
from tests.support.redirects import OLD, WORLD, append, content, redirect_at, world_with
from tests.support.shares import Share
from tests.support.stored_tables import (
    NAME,
    OTHER_NAME,
    STATE,
    StoredTables,
    managed_request,
    managed_setting,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at

COPY = f"{WORLD}/copy"
TABLE = world_with(History().then(Append(2), Append(1)))
BRINGS = WithdrawalOptions(bring_back=True)


def opened(setting: Setting, name: str = NAME) -> Setting:
    """Let the catalog open a table, as the API does that is given its name."""
    unity = setting.catalog("unity")
    table = unity.get(name)
    setting.grant(table.location, unity.access(table))
    return setting


def moved() -> DictStore:
    """Return a world in which a table was moved into the catalog, and a copy of it stayed."""
    store = DictStore(TABLE | inside("copy", below(TABLE, "old")), uri=WORLD)
    enabling.enable(managed_setting(store), managed_request())
    return store


def to_existing(*, verified: bool = True) -> Request:
    target = RedirectTarget(TargetKind.UNITY, name=NAME)
    return Request(COPY, target, FIRST_PLACE, data=Data.EXISTING, verified=verified)


def resolver(setting: Setting) -> Resolver:
    return Resolver(setting.open_store, setting.catalog, grant=setting.grant)


def test_a_copy_leads_to_the_managed_table_and_back() -> None:
    store, warnings = moved(), list[str]()
    setting = opened(managed_setting(store, warn=warnings.append))
    there = below(store.objects, f"managed/{FIRST}")
    assert enabling.enable(setting, to_existing()).state is RedirectState.READY
    assert any("can't open a managed table" in each for each in warnings)
    # Neither the table nor what the catalog says of it has changed.
    assert below(store.objects, f"managed/{FIRST}") == there

    StoredTables(store).rename(FIRST, NAME, OTHER_NAME)
    later = managed_setting(store)
    found = resolver(later).resolve(COPY, write=True, allow_managed=True)
    assert found.location == FIRST_PLACE
    append(later.log(FIRST_PLACE), "new.parquet")
    assert "new.parquet" in content(store.objects, FIRST_PLACE, with_bytes=False).names
    assert status.status(managed_setting(store), COPY).name == f"unity:{OTHER_NAME}"

    there = below(store.objects, f"managed/{FIRST}")
    assert disabling.disable(managed_setting(store), COPY).state is RedirectState.NORMAL
    assert redirect_at(managed_setting(store), COPY) is None
    assert "new.parquet" not in content(store.objects, COPY, with_bytes=False).names
    assert below(store.objects, f"managed/{FIRST}") == there


def written_by_name() -> DictStore:
    """Return a world in which a copy leads to the managed table, which has a row more by now."""
    store = moved()
    enabling.enable(opened(managed_setting(store)), to_existing())
    append(opened(managed_setting(store)).log(FIRST_PLACE), "new.parquet")
    return store


def test_what_was_written_by_name_comes_back_without_what_the_catalog_required() -> None:
    store = written_by_name()
    there = below(store.objects, f"managed/{FIRST}")
    plan = rehearsal.rehearse(
        managed_setting(store), rehearsed, lambda each: disabling.disable(each, COPY, BRINGS)
    )
    assert "copy_changes" in [step.op for step in plan]
    outcome = disabling.disable(managed_setting(store), COPY, BRINGS)
    assert (outcome.state, outcome.files_copied) == (RedirectState.NORMAL, 1)
    before = content(TABLE, OLD, with_bytes=False)
    found = content(store.objects, COPY, with_bytes=False)
    assert found.names == sorted([*before.names, "new.parquet"])
    assert (found.features, found.metadata) == (before.features, before.metadata)
    # The managed table stays as it was: open, and with all its versions.
    assert below(store.objects, f"managed/{FIRST}") == there


def test_a_deletion_vector_brings_its_feature_along_and_the_user_is_told() -> None:
    store = written_by_name()
    log = opened(managed_setting(store)).log(FIRST_PLACE)
    mark_deleted(log, "new.parquet")
    warnings: list[str] = []
    disabling.disable(managed_setting(store, warn=warnings.append), COPY, BRINGS)
    found = content(store.objects, COPY, with_bytes=False)
    plain = content(TABLE, OLD, with_bytes=False).features
    assert found.features == plain | {"deletionVectors"}
    assert any("delta-rs can't read or write it any more" in each for each in warnings)


def test_a_bring_back_that_was_broken_off_anywhere_is_ended_by_the_same_command(
    share: Share,
) -> None:
    def bring(store: DictStore, over: Store) -> None:
        disabling.disable(managed_setting(over, clock=store.clock), COPY, BRINGS)

    store = written_by_name()
    counting = FaultyStore(store, lambda _: None)
    bring(store, counting)
    whole = content(store.objects, COPY)
    for index in share.each(range(len(counting.history))):
        store = written_by_name()
        with suppress(Stopped):
            bring(store, FaultyStore(store, at(index, Fault.STOP_AFTER)))
        bring(store, store)
        assert content(store.objects, COPY).names == whole.names
        assert redirect_at(managed_setting(store), COPY) is None


HOME_LOG = f"{COPY.removeprefix(f'{WORLD}/')}/_delta_log/"


def late(store: DictStore, number: int) -> None:
    """Write to the managed table by its name."""
    append(opened(managed_setting(store)).log(FIRST_PLACE), f"late{number}.parquet")


def written_late(store: DictStore, write: Callable[[int], None]) -> tuple[FaultyStore, list[str]]:
    """Return a store in which somebody writes just before each commit at the copy."""
    done: list[str] = []

    def before(call: StoreCall) -> None:
        path = call.paths[0]
        if call.verb == "PUT_IF_ABSENT" and re.fullmatch(rf"{HOME_LOG}\d{{20}}\.json", path):
            done.append(path)
            write(len(done))

    return FaultyStore(store, before), done


def bring(store: DictStore, over: Store, options: WithdrawalOptions = BRINGS) -> list[str]:
    """End the redirect of the copy; return the warnings about what wasn't brought back."""
    warnings: list[str] = []
    setting = managed_setting(over, clock=store.clock, warn=warnings.append)
    disabling.disable(setting, COPY, options)
    return [each for each in warnings if "brought back" in each]


def late_names(store: DictStore) -> list[str]:
    names = content(store.objects, COPY, with_bytes=False).names
    return [name for name in names if name.startswith("late")]


@pytest.mark.parametrize("commit", [1, 2])
def test_what_was_written_while_changes_come_back_comes_back_too(commit: int) -> None:
    store = written_by_name()
    over, commits = written_late(store, lambda at: late(store, at) if at == commit else None)
    assert bring(store, over) == []
    assert late_names(store) == [f"late{commit}.parquet"]
    # The changes, DROPPING, the rest, NORMAL.
    assert len(commits) == 4


def test_what_comes_too_late_is_told() -> None:
    store = written_by_name()
    over, _ = written_late(store, lambda at: late(store, at))
    (told,) = bring(store, over)
    assert f"unity:{NAME} has versions that weren't brought back: 8 to 9" in told
    assert late_names(store) == ["late1.parquet", "late2.parquet"]
    assert redirect_at(managed_setting(store), COPY) is None


def test_a_rest_that_cant_be_brought_ends_the_redirect_and_is_told() -> None:
    store = written_by_name()

    def write(number: int) -> None:
        if number == 2:
            late(store, number)
            store.delete_many([f"managed/{FIRST}/late2.parquet"])

    (told,) = bring(store, written_late(store, write)[0])
    assert "weren't brought back: 6 (" in told
    assert late_names(store) == []
    assert "new.parquet" in content(store.objects, COPY, with_bytes=False).names
    assert redirect_at(managed_setting(store), COPY) is None


def dropping(*options: WithdrawalOptions) -> DictStore:
    """Return a world in which a process died just after DROPPING, and a row came later."""
    for index in range(200):
        store = written_by_name()
        with suppress(Stopped):
            bring(store, FaultyStore(store, at(index, Fault.STOP_AFTER)), *options)
        redirect = redirect_at(managed_setting(store), COPY)
        if redirect is not None and redirect.state is RedirectState.DROPPING:
            late(store, 1)
            return store
    raise AssertionError


def test_the_rest_is_brought_by_whoever_ends_the_redirect() -> None:
    store = dropping(BRINGS)
    assert bring(store, store) == []
    assert late_names(store) == ["late1.parquet"]
    store, warnings = dropping(BRINGS), list[str]()
    resuming.resume(managed_setting(store, warn=warnings.append), COPY)
    assert [each for each in warnings if "brought back" in each] == []
    assert late_names(store) == ["late1.parquet"]
    # Asked for in the last moment.
    store = dropping(WithdrawalOptions())
    assert bring(store, store) == []
    names = content(store.objects, COPY, with_bytes=False).names
    assert {"new.parquet", "late1.parquet"} <= set(names)


@pytest.mark.parametrize("writes", [False, True])
def test_two_processes_that_bring_changes_back_both_succeed(share: Share, writes: bool) -> None:
    """The second one begins and ends at some call of the first, perhaps just after a late row."""
    counting = FaultyStore(store := written_by_name(), lambda _: None)
    past = store.objects
    assert bring(store, counting) == []
    calls = counting.history
    asks = next(each.index for each in calls if STATE in each.paths)
    for index in {asks, *share.each(range(len(calls)))}:
        store = DictStore(past, uri=WORLD)

        def other(call: StoreCall, index: int = index, store: DictStore = store) -> None:
            if call.index == index and redirect_at(managed_setting(store), COPY) is not None:
                if writes:
                    late(store, 1)
                bring(store, store)

        assert bring(store, FaultyStore(store, other)) == []
        assert redirect_at(managed_setting(store), COPY) is None
        assert "new.parquet" in content(store.objects, COPY, with_bytes=False).names


def test_a_bring_back_can_be_given_up_in_the_middle() -> None:
    store = dropping(BRINGS)
    (told,) = bring(store, store, WithdrawalOptions())
    assert "weren't brought back: 6;" in told
    assert late_names(store) == []
    # Who has never asked for the changes isn't told of them.
    store = dropping(WithdrawalOptions())
    assert bring(store, store, WithdrawalOptions()) == []


def test_a_plan_says_the_same() -> None:
    store = moved()
    before = store.objects
    plans.enable(opened(managed_setting(store)), to_existing())
    assert store.objects == before


def test_what_the_catalog_requires_is_no_difference_and_all_else_is() -> None:
    store = moved()
    own = History().then(Append(2), Append(1), SetProperties((("owner", "ann"),)))
    other = world_with(own, COPY)
    for name in below(store.objects, "copy"):
        store.delete_many([f"copy/{name}"])
    for name, body in other.items():
        store.put(name, body)
    with pytest.raises(NotEqual, match="differs") as refused:
        enabling.enable(opened(managed_setting(store)), to_existing())
    assert "owner" in (refused.value.cause or "")
    assert redirect_at(managed_setting(store), COPY) is None
    done = enabling.enable(opened(managed_setting(store)), to_existing(verified=False))
    assert done.state is RedirectState.READY


def test_its_path_alone_is_refused() -> None:
    store = moved()
    target = RedirectTarget(TargetKind.OBJECT_STORE, FIRST_PLACE)
    request = Request(COPY, target, FIRST_PLACE, data=Data.EXISTING)
    with pytest.raises(CatalogManaged):
        enabling.enable(managed_setting(store), request)
    assert redirect_at(managed_setting(store), COPY) is None


def run(store: DictStore, faulty: FaultyStore) -> None:
    enabling.enable(opened(managed_setting(faulty, clock=store.clock)), to_existing())


@pytest.mark.parametrize("resumes", [True, False])
def test_a_redirect_that_was_broken_off_anywhere_goes_on_from_the_source_alone(
    resumes: bool, share: Share
) -> None:
    store = moved()
    counting = FaultyStore(store, lambda _: None)
    run(store, counting)
    states = set()
    for index in share.each(range(len(counting.history))):
        store = moved()
        # A listing that is read only in part never comes to its end, and so isn't stopped.
        with suppress(Stopped):
            run(store, FaultyStore(store, at(index, Fault.STOP_AFTER)))
        found = redirect_at(managed_setting(store), COPY)
        if found is None:
            continue
        states.add(found.state)
        if resumes:
            assert resuming.resume(managed_setting(store), COPY).state is RedirectState.READY
        elif found.state is RedirectState.ENABLING:
            assert cancel.cancel(managed_setting(store), COPY).state is RedirectState.NORMAL
    assert states or not share.is_whole


def test_without_its_catalog_it_is_cancelled_all_the_same() -> None:
    store = moved()
    begins = "copy/_delta_log/00000000000000000003.json"

    def rule(call: StoreCall) -> Fault | None:
        put = call.verb == "PUT_IF_ABSENT" and begins in call.paths
        return Fault.STOP_AFTER if put else None

    faulty = FaultyStore(store, rule)
    with pytest.raises(Stopped):
        enabling.enable(opened(managed_setting(faulty, clock=store.clock)), to_existing())

    def silent(kind: str) -> object:
        raise CatalogUnavailable(f"{kind} doesn't answer")

    warnings: list[str] = []
    setting = replace(managed_setting(store, warn=warnings.append), catalog=silent)  # type: ignore[arg-type]
    with pytest.raises(LakeferryError):
        resuming.resume(setting, COPY)
    assert cancel.cancel(setting, COPY).state is RedirectState.NORMAL
    assert any("without its catalog" in each for each in warnings)
    assert redirect_at(managed_setting(store), OLD) is not None
