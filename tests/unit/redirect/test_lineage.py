"""Whether the target is still the table that moved, on stores in memory.

The table has moved with three versions of its own: ENABLING is version 3, READY and the
commit that opened the target version 4.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import suppress

import pytest

from lakeferry.errors import LakeferryError, RedirectTargetMissing, RedirectTargetReplaced
from lakeferry.log import actions, paths
from lakeferry.log.commit import Transaction
from lakeferry.redirect import cancel, resuming, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data
from lakeferry.redirect.lineage import APP_ID
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from tests.support import plans
from tests.support.places import below, inside, opener
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    append,
    content,
    numbered,
    redirect_at,
    request_for,
    setting_of,
)
from tests.support.shares import Share
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, on
from tests.support.strangers import (
    READY,
    STRANGERS,
    Objects,
    clean,
    moved,
    older_copy,
    replace_target,
    source_copy,
    stranger,
    to_existing,
    world,
)


@pytest.fixture(params=STRANGERS.values(), ids=list(STRANGERS))
def make_stranger(request: pytest.FixtureRequest) -> Callable[[DictStore], Objects]:
    found: Callable[[DictStore], Objects] = request.param
    return found


def refuses(store: DictStore, act: Callable[[], object]) -> RedirectTargetReplaced:
    before = store.objects
    with pytest.raises(RedirectTargetReplaced) as refused:
        act()
    assert store.objects == before
    assert refused.value.fields == {"location": OLD, "target": NEW}
    assert f"lakeferry redirect disable {OLD} --abandon-target" in (refused.value.remedy or "")
    return refused.value


@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_nothing_is_done_to_a_stranger_or_by_it(
    data: Data, make_stranger: Callable[[DictStore], Objects]
) -> None:
    store, setting = moved(data)
    replace_target(store, make_stranger(store))
    for options in (WithdrawalOptions(), WithdrawalOptions(remove_target=True)):
        refuses(store, functools.partial(disabling.disable, setting, OLD, options))
        refuses(store, functools.partial(plans.undo, setting, OLD, options))
    refuses(store, lambda: resuming.resume(setting, OLD))
    refuses(store, lambda: plans.resume(setting, OLD))
    refuses(store, lambda: enabling.enable(setting, request_for(data=data)))
    for write in (False, True):
        refuses(store, functools.partial(Resolver(opener(store)).resolve, OLD, write=write))
    shown = status.status(setting, OLD)
    assert (shown.state, shown.target, shown.target_version) == (RedirectState.READY, NEW, None)
    assert "--abandon-target" in shown.warnings[0]


def test_a_stranger_is_noticed_by_a_resolver_that_remembers_the_target(
    make_stranger: Callable[[DictStore], Objects],
) -> None:
    store, _ = moved()
    resolver = Resolver(opener(store))
    assert resolver.resolve(OLD).location == NEW
    replace_target(store, make_stranger(store))
    refuses(store, lambda: resolver.resolve(OLD))
    replace_target(store, {})
    with pytest.raises(RedirectTargetMissing):
        resolver.resolve(OLD)


def test_a_chain_s_error_names_the_table_whose_target_was_replaced() -> None:
    store, setting = moved()
    enabling.enable(setting, request_for(OTHER, source=NEW))
    objects = stranger(3)
    store.delete_many([name for name in store.objects if name.startswith("other/")])
    for name, data in inside("other", objects).items():
        store.put(name, data)
    with pytest.raises(RedirectTargetReplaced) as refused:
        Resolver(opener(store)).resolve(OLD)
    assert refused.value.fields == {"location": NEW, "target": OTHER}


# --- What is legitimate ----------------------------------------------------------


def replace_table(setting: Setting) -> None:
    """Do what CREATE OR REPLACE TABLE does: another id and schema, in the same history."""
    log = setting.log(NEW)
    state = log.state()
    metadata = actions.changed(state.metadata, id="given-by-replace", configuration={})
    log.commit(Transaction("CREATE OR REPLACE TABLE", "replace", metadata=metadata), state)


def restore(setting: Setting) -> None:
    """Do what RESTORE does, to a version from before the move."""
    log = setting.log(NEW)
    before = log.state(2)
    log.commit(Transaction("RESTORE", "restore", metadata=before.metadata), log.state())


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
@pytest.mark.parametrize("change", [replace_table, restore])
def test_the_moved_table_may_change_its_id_and_lose_its_history(
    change: Callable[[Setting], None], data: Data, cleaned: bool
) -> None:
    store, setting = moved(data)
    change(setting)
    if cleaned:
        clean(store, setting)
        assert f"new/{paths.commit(READY)}" not in store.objects
    resolver = Resolver(opener(store))
    assert resolver.resolve(OLD).location == NEW
    assert status.status(setting, OLD).warnings == ()
    store.calls.reset()
    assert resolver.resolve(OLD, write=True).location == NEW
    assert [verb for verb, _ in store.calls.log] == ["LIST", "GET"]
    expected = content(store.objects, NEW) if data is Data.COPY and not cleaned else None
    assert disabling.disable(setting, OLD).state is RedirectState.NORMAL
    if expected is not None:
        assert content(store.objects, OLD) == expected


def test_a_table_that_comes_back_from_a_copy_of_itself_is_the_table() -> None:
    store, setting = moved()
    kept = below(store.objects, "new")
    replace_target(store, stranger(9))
    refuses(store, lambda: disabling.disable(setting, OLD))
    replace_target(store, kept)
    assert Resolver(opener(store)).resolve(OLD).location == NEW
    assert disabling.disable(setting, OLD).state is RedirectState.NORMAL


@pytest.mark.parametrize("kind", ["fresh", "older copy", "copy with the redirect"])
def test_a_stranger_with_a_cleaned_log_is_told_by_its_transactions(kind: str) -> None:
    store, setting = moved()
    if kind == "copy with the redirect":
        replace_target(store, source_copy(store))
    else:
        replace_target(store, older_copy() if kind == "older copy" else stranger(1))
        for number in range(10):
            append(setting.log(NEW), f"{number}.parquet")
    clean(store, setting)
    if kind != "copy with the redirect":
        assert f"new/{paths.commit(READY)}" not in store.objects
    refuses(store, lambda: Resolver(opener(store)).resolve(OLD))
    refuses(store, lambda: disabling.disable(setting, OLD))


def test_the_transaction_of_a_move_never_expires_and_is_at_both_ends() -> None:
    store, setting = moved()
    for place in (OLD, NEW):
        (app,) = [
            txn
            for name, txn in setting.log(place).small_snapshot().txns.items()
            if name.startswith(APP_ID)
        ]
        assert app.version == READY
        # delta-spark drops transactions of which it doesn't know when they were updated.
        assert app.last_updated is not None
        assert app.last_updated > setting.clock() + 1_000 * 365 * 86_400_000
    assert store.objects


# --- Redirects of an older Lakeferry, and to tables that were there before --------


def untraced(store: DictStore) -> None:
    """Make a redirect look as an older Lakeferry has made it."""
    for name, data in store.objects.items():
        if name.endswith(".crc") or "checkpoint" in name:
            store.delete_many([name])
        elif name.endswith(".json"):
            lines = [line for line in data.split(b"\n") if APP_ID.encode() not in line]
            store.put(name, b"\n".join(lines).replace(b',\\"traced\\":true', b""))


def test_a_redirect_of_an_older_lakeferry_goes_by_the_commit_and_then_by_the_id() -> None:
    store, setting = moved()
    untraced(store)
    found = redirect_at(setting)
    assert found is not None
    assert found.journal is not None
    assert not found.journal.traced
    resolver = Resolver(opener(store))
    assert resolver.resolve(OLD).location == NEW
    clean(store, setting)
    assert Resolver(opener(store)).resolve(OLD).location == NEW
    replace_target(store, stranger(1))
    for number in range(10):
        append(setting.log(NEW), f"{number}.parquet")
    clean(store, setting)
    refuses(store, lambda: Resolver(opener(store)).resolve(OLD))


@pytest.mark.parametrize("bring_back", [False, True])
def test_a_target_that_was_there_before_is_recognized_too(
    bring_back: bool, make_stranger: Callable[[DictStore], Objects]
) -> None:
    store, setting = to_existing()
    assert Resolver(opener(store)).resolve(OLD).location == NEW
    replace_target(store, make_stranger(store))
    refuses(store, lambda: Resolver(opener(store)).resolve(OLD))
    options = WithdrawalOptions(bring_back=bring_back)
    refuses(store, lambda: disabling.disable(setting, OLD, options))
    refuses(store, lambda: plans.undo(setting, OLD, options))


def test_a_target_that_was_there_before_may_change_and_lose_its_history() -> None:
    store, setting = to_existing()
    replace_table(setting)
    assert Resolver(opener(store)).resolve(OLD).location == NEW
    store, setting = to_existing()
    clean(store, setting)
    resolver = Resolver(opener(store))
    assert resolver.resolve(OLD).location == NEW
    store.calls.reset()
    assert resolver.resolve(OLD).location == NEW
    assert [verb for verb, _ in store.calls.log] == ["LIST", "GET"]
    assert disabling.disable(setting, OLD).state is RedirectState.NORMAL


def test_a_target_that_was_there_before_and_is_gone_isn_t_needed() -> None:
    store, setting = to_existing()
    replace_target(store, {})
    with pytest.raises(RedirectTargetMissing):
        Resolver(opener(store)).resolve(OLD)
    assert disabling.disable(setting, OLD).state is RedirectState.NORMAL


# --- A stranger that appears at any time -------------------------------------------


def stranger_at(
    index: int, act: Callable[[Setting], object], data: Data, objects: Objects
) -> tuple[DictStore, bool, LakeferryError | None]:
    """Replace the target right before a procedure's n-th call; return how it ended."""
    inner, _ = moved(data)
    happened = [False]

    def rule(call: StoreCall) -> None:
        if call.index == index:
            happened[0] = True
            replace_target(inner, objects)

    whole = FaultyStore(inner, rule)
    error: LakeferryError | None = None
    try:
        act(setting_of(whole, clock=inner.clock))
    except LakeferryError as refused:
        error = refused
    return inner, happened[0], error


@pytest.mark.parametrize(
    ("count", "data", "remove"),
    [
        (1, Data.COPY, False),
        (READY + 3, Data.REFERENCE, False),
        (READY + 6, Data.COPY, False),
        (12, Data.COPY, True),
    ],
)
def test_a_stranger_that_appears_in_the_middle_of_a_disable_stays_as_it_is(
    count: int, data: Data, remove: bool, share: Share
) -> None:
    objects = stranger(count)
    foreign = {b"another-"}
    replaced, harmed = 0, 0
    for index in share.onwards(1):
        store, happened, error = stranger_at(
            index,
            lambda setting: disabling.disable(
                setting, OLD, WithdrawalOptions(remove_target=remove)
            ),
            data,
            objects,
        )
        if not happened:
            assert error is None
            break
        left = below(store.objects, "new")
        harmed += any(left.get(name) != body for name, body in objects.items())
        if not remove:
            assert set(left) <= set(objects), index
        home = below(store.objects, "old")
        assert not any(mark in body for body in home.values() for mark in foreign), index
        if error is None:
            assert redirect_at(setting_of(store)) is None
        else:
            replaced += isinstance(error, RedirectTargetReplaced | RedirectTargetMissing)
    # Between the last look and the deletion itself nobody can be told from the old target.
    assert harmed <= (3 if remove else 0)
    assert index > 20
    assert replaced > 5 or not share.is_whole


@pytest.mark.parametrize(
    ("act", "count"),
    [("enable", 1), ("enable", READY + 3), ("cancel", 1), ("cancel", READY + 3), ("resume", 1)],
)
def test_a_stranger_that_appears_in_the_middle_of_a_move_stays_as_it_is(
    act: str, count: int, share: Share
) -> None:
    """From the opening on for a move; before it, for who ends one that was broken off."""
    objects = stranger(count)
    for index in share.onwards(1):
        store, struck = _struck_at(index, act, objects)
        if struck is None:
            break
        # Between the last look and the call itself nobody can be told from the old target.
        if struck.verb in ("DELETE", "COPY"):
            continue
        left = below(store.objects, "new")
        assert {name: left.get(name) for name in objects} == objects, struck
        for name in left.keys() - objects.keys():
            of_log = re.fullmatch(r"_delta_log/[0-9]{20}\..*", name) is not None
            theirs = name.endswith(".crc") and b"another-" in left[name]
            assert not of_log or theirs, (name, struck)
    assert index > 15


def _struck_at(index: int, act: str, objects: Objects) -> tuple[DictStore, StoreCall | None]:
    """Replace the target right before a procedure's n-th call, of a move the n-th once opened."""
    store = world() if act == "enable" else _undecided()
    opening = f"new/_delta_log/{READY:020d}.json"
    seen: list[StoreCall] = []

    def rule(call: StoreCall) -> None:
        if seen or act != "enable" or opening in store.objects:
            seen.append(call)
            if len(seen) == index:
                replace_target(store, objects)

    setting = setting_of(FaultyStore(store, rule), clock=store.clock, new_id=numbered("other"))
    with suppress(LakeferryError):
        _acts(act, setting)
    return store, seen[index - 1] if len(seen) >= index else None


def _acts(act: str, setting: Setting) -> None:
    if act == "enable":
        enabling.enable(setting, request_for())
    elif act == "cancel":
        cancel.cancel(setting, OLD)
    else:
        resuming.resume(setting, OLD)


def _undecided() -> DictStore:
    """Return a world with a move that was broken off right before its target opened."""
    store = world()
    rule = on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=f"new/_delta_log/{READY:020d}")
    with pytest.raises(Stopped):
        enabling.enable(setting_of(FaultyStore(store, rule), clock=store.clock), request_for())
    return store
