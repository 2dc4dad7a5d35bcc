"""A managed table comes back to the source: what its commits become, and what may be in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lakeferry.engines.rehearsed_engine import rehearsed
from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    CommitConflict,
    Diverged,
    Forbidden,
    InvalidInput,
    RedirectIllegalTransition,
    RedirectTargetMissing,
    RedirectTargetReplaced,
)
from lakeferry.log import actions, paths, protocols
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.redirect import freeze, rehearsal, resuming, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.states import RedirectState
from lakeferry.table import DeltaLog
from lakeferry.table.managed import Proposal, Verdict
from tests.support.history import Append, History, Layout, SetProperties
from tests.support.managed_worlds import (
    FIRST,
    FIRST_PLACE,
    live_tables,
    log_by_id,
    mark_deleted,
    moved_world,
    only_table,
)
from tests.support.redirects import OLD, append, content, redirect_at
from tests.support.shares import Share
from tests.support.stored_tables import (
    NAME,
    OTHER_NAME,
    STATE,
    KeptTable,
    StoredTableCommits,
    StoredTables,
    StoredUnity,
    managed_request,
    managed_setting,
)
from tests.support.stores import DictStore, FaultyStore, StoreCall

PAST = History().then(Append(1), Append(1))
READY = 4
DROPS = WithdrawalOptions(remove_target=True)


def moved(past: History = PAST) -> DictStore:
    return moved_world(past)


def by_name(store: DictStore) -> DeltaLog:
    return log_by_id(managed_setting(store))


def set_properties(log: DeltaLog, **properties: str) -> None:
    state = log.state()
    configuration = {**state.metadata.configuration, **properties}
    metadata = actions.changed(state.metadata, configuration=configuration)
    assert not isinstance(log.commit(Transaction("SET", "txn", metadata=metadata), state), Conflict)


def disable(
    store: DictStore,
    options: WithdrawalOptions = WithdrawalOptions(),  # noqa: B008
    warn: Callable[[str], None] = lambda _: None,
) -> Outcome:
    return disabling.disable(managed_setting(store, warn=warn), OLD, options)


def test_a_table_that_nobody_has_changed_comes_back_as_it_was() -> None:
    store = moved()
    before = DeltaLog(managed_setting(store).open_store(OLD)).state(READY - 2)
    assert disable(store).version == READY + 2
    now = managed_setting(store).log(OLD).state()
    assert (now.protocol, now.metadata) == (before.protocol, before.metadata)
    assert not disable(store).changed


def test_what_the_catalog_required_stays_away_unless_a_commit_needs_it() -> None:
    store = moved()
    log, warnings = by_name(store), list[str]()
    append(log, "x.parquet")
    append(log, "y.parquet")
    mark_deleted(log, "x.parquet")
    assert disable(store, warn=warnings.append).version == READY + 5
    assert "deletionVectors, inCommitTimestamp" in warnings[0]
    assert "delta-rs can't read or write it any more; Polars can't write it any more" in warnings[0]
    source = managed_setting(store).log(OLD)
    features = [source.state(version).protocol.features for version in range(READY, READY + 6)]
    assert ["deletionVectors" in each for each in features] == [False] * 3 + [True] * 3
    assert ["inCommitTimestamp" in each for each in features] == [False] + [True] * 5
    kept = {"deletionVectors", "inCommitTimestamp", "appendOnly", "invariants"}
    assert features[-1] == kept
    first = source.commit_info(READY + 1)
    assert first is not None
    assert dict(source.state().metadata.configuration) == {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": str(READY + 1),
        "delta.inCommitTimestampEnablementTimestamp": str(first.in_commit_timestamp),
    }


def test_properties_that_were_set_by_name_come_back_and_the_catalogs_own_do_not() -> None:
    own = (("delta.checkpointPolicy", "classic"), ("delta.enableDeletionVectors", "false"))
    store = moved(PAST.then(SetProperties(own)))
    log = by_name(store)
    set_properties(log, owner="ann", **{"delta.checkpoint.writeStatsAsJson": "false"})
    disable(store)
    found = dict(managed_setting(store).log(OLD).state().metadata.configuration)
    timed = {name for name in found if "InCommitTimestamp" in name or "inCommitTimestamp" in name}
    assert {name: found[name] for name in found.keys() - timed} == {
        **dict(own),
        "owner": "ann",
        "delta.checkpoint.writeStatsAsJson": "false",
    }


def test_features_that_were_added_by_name_come_back() -> None:
    store = moved(History(Layout(in_commit_timestamps=True)).then(Append(1), Append(1)))
    log = by_name(store)
    state = log.state()
    wanted = Transaction(
        "UPGRADE", "txn-up", protocol=protocols.adding(state.protocol, ["changeDataFeed"])
    )
    assert not isinstance(log.commit(wanted, state), Conflict)
    append(log, "x.parquet")
    before = managed_setting(store).log(OLD).state(READY - 2)
    disable(store)
    now = managed_setting(store).log(OLD).state()
    assert now.protocol.features == before.protocol.features | {"changeDataFeed"}
    # The source had in-commit timestamps of its own, so nothing is added to the properties.
    assert now.metadata == before.metadata


def test_the_net_change_comes_back_without_what_the_catalog_required() -> None:
    store = moved()
    request = replace(managed_request(), rules=(Rule("nightly", ("VACUUM END",)),))
    enabling.enable(managed_setting(store), request)
    append(by_name(store), "x.parquet")
    outcome = disable(store, DROPS)
    objects = store.objects
    found = content(objects, OLD, with_bytes=False)
    assert "x.parquet" in found.names
    assert found.features == {"appendOnly", "invariants"}
    assert found.metadata["configuration"] == {}
    assert outcome.version == READY + 4
    assert live_tables(store) == {}


def test_the_entry_of_the_lock_is_in_the_log_alone() -> None:
    store = moved()
    properties = only_table(store).properties
    disable(store)
    assert only_table(store).properties == properties
    locked = by_name(store).state()
    assert "redirectWriterOnly" in locked.protocol.features
    assert "catalogManaged" in locked.protocol.features
    assert len(locked.metadata.configuration["lakeferry.redirect"]) > 0


def test_a_catalog_that_refuses_the_lock_leaves_all_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = moved()
    append(by_name(store), "x.parquet")
    before = store.objects

    def refuse(_: StoredTableCommits, proposal: Proposal) -> Verdict:
        raise InvalidInput("Unity Catalog doesn't accept the request")

    monkeypatch.setattr(StoredTableCommits, "propose", refuse)
    with pytest.raises(CatalogManaged, match="can't be disabled"):
        disable(store)
    added = store.objects.keys() - before.keys()
    assert all(paths.STAGED_DIR in name for name in added)
    assert {name: store.objects[name] for name in before} == before


def restored(store: DictStore) -> DeltaLog:
    """Give the table by its name the metadata of a version before its move, as RESTORE does."""
    log = by_name(store)
    state, first = log.state(), managed_setting(store).log(OLD).state(READY - 2)
    # The protocol stays, and in-commit timestamps stay enabled.
    timed = {key: v for key, v in state.metadata.configuration.items() if "nCommitTime" in key}
    metadata = actions.changed(first.metadata, configuration=timed)
    wanted = Transaction("RESTORE", "txn-restore", metadata=metadata)
    assert not isinstance(log.commit(wanted, state), Conflict)
    assert "io.unitycatalog.tableId" not in only_table(store).properties
    return log


def test_a_table_that_was_restored_to_a_version_before_its_move_comes_back() -> None:
    store = moved()
    append(restored(store), "x.parquet")
    assert disable(store, DROPS).state is RedirectState.NORMAL
    assert "x.parquet" in content(store.objects, OLD, with_bytes=False).names
    assert live_tables(store) == {}


def test_a_table_that_was_restored_gets_the_properties_that_its_catalog_requires() -> None:
    store = moved()
    before, version = only_table(store).properties, restored(store).state().version
    there = store.objects
    plan = rehearsal.rehearse(
        managed_setting(store), rehearsed, lambda each: resuming.resume(each, OLD)
    )
    assert [step.op for step in plan] == ["set_properties"]
    assert store.objects == there
    assert resuming.resume(managed_setting(store), OLD).changed
    assert only_table(store).properties == before
    assert by_name(store).state().version == version + 1
    assert not resuming.resume(managed_setting(store), OLD).changed
    assert by_name(store).state().version == version + 1


def busy(store: DictStore, work: Callable[[int], None], times: int) -> FaultyStore:
    """Return a store in which others ``work`` just before the catalog takes a commit of ours."""
    done: list[int] = []

    def before(call: StoreCall) -> None:
        if call.verb == "SWAP" and STATE in call.paths and len(done) < times:
            done.append(len(done))
            work(done[-1])

    return FaultyStore(store, before)


def test_a_busy_writer_doesnt_keep_the_requirements_from_being_set() -> None:
    store = moved()
    before = only_table(store).properties
    version = restored(store).state().version

    def alter(number: int) -> None:
        set_properties(by_name(store), owner=f"ann {number}")

    setting = managed_setting(busy(store, alter, 3), clock=store.clock)
    assert resuming.resume(setting, OLD).changed
    assert only_table(store).properties == {**before, "owner": "ann 2"}
    assert by_name(store).state().version == version + 4


def test_a_writer_that_never_rests_ends_the_attempts_with_a_conflict() -> None:
    store = moved()
    restored(store)

    def alter(number: int) -> None:
        set_properties(by_name(store), owner=f"ann {number}")

    with pytest.raises(CommitConflict) as refused:
        resuming.resume(managed_setting(busy(store, alter, 1000), clock=store.clock), OLD)
    assert refused.value.fields["reason"] == "metadata_changed"


def test_nothing_follows_the_lock_of_a_way_back_that_another_process_began() -> None:
    store = moved()
    version = restored(store).state().version

    def bring_back(_: int) -> None:
        assert disable(store).state is RedirectState.NORMAL

    resuming.resume(managed_setting(busy(store, bring_back, 1), clock=store.clock), OLD)
    assert by_name(store).state().version == version + 1
    assert disable(store, DROPS).changed
    assert live_tables(store) == {}


def test_two_processes_that_bring_a_table_back_and_drop_it_both_succeed(share: Share) -> None:
    store = moved()
    append(by_name(store), "x.parquet")
    counting = FaultyStore(DictStore(store.objects, uri=store.uri), lambda _: None)
    disabling.disable(managed_setting(counting, clock=store.clock), OLD, DROPS)
    calls = counting.history
    asks = next(each.index for each in calls if STATE in each.paths)
    for index in {asks, *share.each(range(len(calls)))}:
        both = DictStore(store.objects, uri=store.uri)

        def other(call: StoreCall, index: int = index, both: DictStore = both) -> None:
            if call.index == index:
                disable(both, DROPS)

        setting = managed_setting(FaultyStore(both, other), clock=both.clock)
        assert disabling.disable(setting, OLD, DROPS).state is RedirectState.NORMAL
        assert live_tables(both) == {}
        assert "x.parquet" in content(both.objects, OLD, with_bytes=False).names


@pytest.mark.parametrize("later", [False, True])
def test_a_table_that_was_written_to_in_spite_of_its_lock_isnt_dropped(later: bool) -> None:
    store, warnings = moved(), list[str]()
    append(by_name(store), "x.parquet")

    def write(_: StoreCall) -> None:
        state = store.objects.get(f"old/_delta_log/{READY + 3:020}.json")
        if state is not None and not done:
            done.append(append(by_name(store), "late.parquet"))

    done: list[int] = []
    if later:
        disable(store)
        done.append(append(by_name(store), "late.parquet"))
    setting = managed_setting(FaultyStore(store, write), clock=store.clock, warn=warnings.append)
    disabling.disable(setting, OLD, DROPS)
    assert done
    assert any(
        f"isn't dropped: a writer added version {done[0]} after" in each for each in warnings
    ), warnings
    assert "late.parquet" in content(store.objects, FIRST_PLACE, with_bytes=False).names


@pytest.mark.parametrize(
    ("name", "value"),
    [("delta.checkpointPolicy", "classic"), ("delta.enableDeletionVectors", "false")],
)
def test_a_requirement_that_was_changed_by_name_is_told_and_set_again(
    name: str, value: str
) -> None:
    store = moved()
    assert status.status(managed_setting(store), OLD).lacking is None
    required = only_table(store).properties[name]
    set_properties(by_name(store), **{name: value})
    found = status.status(managed_setting(store), OLD)
    assert found.as_document()["lacking"] == {"features": [], "properties": {name: required}}
    (warning,) = found.warnings
    assert f"lacks the properties {name} = {required}" in warning
    assert f"'lakeferry redirect resume {OLD}' sets them" in warning
    assert resuming.resume(managed_setting(store), OLD).changed
    assert only_table(store).properties[name] == required
    assert status.status(managed_setting(store), OLD).lacking is None


def test_a_requirement_that_a_restore_took_away_is_told() -> None:
    store = moved()
    restored(store)
    found = status.status(managed_setting(store), OLD)
    assert "delta-spark can't open the table" in found.warnings[0]
    assert found.lacking is not None
    assert "io.unitycatalog.tableId" in found.lacking.properties


def test_a_renamed_table_comes_back_though_another_one_has_its_name() -> None:
    store = moved()
    append(by_name(store), "x.parquet")
    catalog = StoredTables(store)
    catalog.rename(FIRST, NAME, OTHER_NAME)
    stranger(catalog)
    assert disable(store, DROPS).state is RedirectState.NORMAL
    assert "x.parquet" in content(store.objects, OLD, with_bytes=False).names
    assert only_table(store).name == NAME


def stranger(catalog: StoredTables) -> None:
    """Create another table under the name of the one that moved."""

    def create(tables: dict[str, KeptTable]) -> tuple[dict[str, KeptTable], None]:
        return {**tables, "other": KeptTable(None, NAME, was_created=True)}, None

    catalog.change(create)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_table_that_was_dropped_is_refused_and_can_be_abandoned(replaced: bool) -> None:
    store = moved()
    catalog = StoredTables(store)
    catalog.drop(FIRST, NAME)
    if replaced:
        stranger(catalog)
    before = store.objects
    with pytest.raises((RedirectTargetMissing, RedirectTargetReplaced)) as refused:
        disable(store)
    assert "--abandon-target" in (refused.value.remedy or "")
    assert "catalog register" not in (refused.value.remedy or "")
    assert store.objects == before
    outcome = disable(store, WithdrawalOptions(abandon_target=True))
    assert (outcome.state, outcome.abandoned) == (RedirectState.NORMAL, True)
    assert redirect_at(managed_setting(store)) is None


def test_a_table_that_the_catalog_hides_may_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    store = moved()

    def hide(_: StoredUnity, *what: object) -> None:
        raise Forbidden("access denied", remedy="ask its owner")

    monkeypatch.setattr(StoredUnity, "find", hide)
    monkeypatch.setattr(StoredUnity, "find_id", hide)
    with pytest.raises(Forbidden) as refused:
        disable(store)
    assert "ask its owner" in (refused.value.remedy or "")
    assert "--abandon-target" in (refused.value.remedy or "")


def test_a_table_that_the_catalog_hides_is_not_said_to_be_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = moved()
    disable(store)

    def hide(_: StoredUnity, *what: object) -> None:
        raise Forbidden("access denied", remedy="ask its owner")

    monkeypatch.setattr(StoredUnity, "find", hide)
    monkeypatch.setattr(StoredUnity, "find_id", hide)
    warnings: list[str] = []
    assert not disable(store, DROPS, warnings.append).changed
    assert "isn't dropped" in warnings[-1]
    assert "access denied" in warnings[-1]
    assert live_tables(store)


def test_a_source_that_was_written_to_is_told_how_to_drop_the_managed_table() -> None:
    store = moved()
    append(by_name(store), "x.parquet")
    action = b'{"add":{"path":"y","partitionValues":{},"size":1,"dataChange":true}}\n'
    store.put(f"old/{paths.commit(READY + 1)}", b'{"commitInfo":{"operation":"WRITE"}}\n' + action)
    before = store.objects
    with pytest.raises(Diverged) as refused:
        disable(store)
    assert store.objects == before
    assert f"lakeferry catalog remove unity:{FIRST} --yes" in (refused.value.remedy or "")
    StoredTables(store).drop(FIRST, NAME)
    outcome = disable(store, WithdrawalOptions(abandon_target=True))
    assert outcome.state is RedirectState.NORMAL
    assert "y" in content(store.objects, OLD, with_bytes=False).names


def test_a_frozen_table_is_thawed_by_its_name_before_it_comes_back() -> None:
    store = moved()
    setting = managed_setting(store)
    unity = setting.catalog("unity")
    found = unity.get(NAME)
    setting.grant(found.location, unity.access(found))
    freeze.freeze(setting, found.location)
    with pytest.raises(RedirectIllegalTransition) as refused:
        disable(store)
    assert f"lakeferry redirect thaw unity:{NAME};" in (refused.value.remedy or "")
    freeze.thaw(setting, found.location)
    assert disable(store, DROPS).state is RedirectState.NORMAL
    assert live_tables(store) == {}


def test_a_target_that_is_there_is_not_abandoned() -> None:
    with pytest.raises(RedirectIllegalTransition, match="isn't lost"):
        disable(moved(), WithdrawalOptions(abandon_target=True))


def test_the_target_is_dropped_later_if_asked_for() -> None:
    store = moved()
    append(by_name(store), "x.parquet")
    disable(store)
    append(managed_setting(store).log(OLD), "later.parquet")
    assert live_tables(store)
    assert disable(store, DROPS).changed
    assert live_tables(store) == {}
    assert not disable(store, DROPS).changed


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body.replace(b'"txnId":"txn-x.parquet"', b'"txnId":"another"'),
        lambda body: body.replace(b'"path":"x.parquet"', b'"path":"z.parquet"'),
    ],
    ids=["another commit", "another file"],
)
def test_a_target_of_which_the_source_lacks_a_version_is_not_dropped(
    damage: Callable[[bytes], bytes],
) -> None:
    store = moved()
    append(by_name(store), "x.parquet")
    disable(store)
    name = f"old/{paths.commit(READY + 1)}"
    store.put("old/z.parquet", store.objects["old/x.parquet"])
    store.put(name, damage(store.objects[name]))
    store.delete_many([each for each in store.objects if "old" in each and "checkpoint" in each])
    store.delete_many(
        [each for each in store.objects if each.startswith("old/") and ".crc" in each]
    )
    warnings: list[str] = []
    disable(store, DROPS, warnings.append)
    assert "isn't dropped" in warnings[-1]
    assert live_tables(store)


def test_a_table_that_is_back_needs_no_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    store = moved()
    disable(store)

    def silent(_: StoredUnity, *what: object) -> None:
        raise CatalogUnavailable("the catalog doesn't answer")

    monkeypatch.setattr(StoredUnity, "find", silent)
    monkeypatch.setattr(StoredUnity, "find_id", silent)
    warnings: list[str] = []
    assert not disable(store, warn=warnings.append).changed
    assert "doesn't answer" in warnings[-1]
    with pytest.raises(CatalogUnavailable):
        disable(store, DROPS)


def test_a_dry_run_says_who_loses_access_and_changes_nothing() -> None:
    store = moved()
    append(by_name(store), "x.parquet")
    before = store.objects

    def rehearse(options: WithdrawalOptions) -> list[dict[str, object]]:
        setting = managed_setting(store)
        steps = rehearsal.rehearse(
            setting, rehearsed, lambda each: disabling.disable(each, OLD, options)
        )
        return [step.as_document() for step in steps]

    plan = rehearse(DROPS)
    assert [step["op"] for step in plan] == [
        *("commit", "copy_changes", "copy_commits", "add_features", "commit", "commit"),
        *("checkpoint", "drop"),
    ]
    (added,) = (step for step in plan if step["op"] == "add_features")
    assert added["features"] == ["inCommitTimestamp"]
    clients = added["clients"]
    assert isinstance(clients, list)
    assert {"name": "delta-rs", "reads": [], "writes": ["inCommitTimestamp"]} in clients
    assert [step["op"] for step in rehearse(WithdrawalOptions())] == [
        step["op"] for step in plan if step["op"] != "drop"
    ]
    assert store.objects == before
    disable(store, DROPS)
    assert rehearse(DROPS) == []
