"""Moves to a managed table of a catalog in memory: what is refused, and how each one ends."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from lakeferry.engines.rehearsed_engine import rehearsed
from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    Forbidden,
    InvalidInput,
    LakeferryError,
    RedirectIllegalTransition,
    RedirectInProgress,
    RedirectTargetNotEmpty,
)
from lakeferry.log import paths
from lakeferry.log.actions import changed
from lakeferry.log.catalog_changes import CatalogChanges
from lakeferry.log.commit import Transaction
from lakeferry.redirect import cancel, rehearsal, resuming, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling, managed_move, managed_probe, move_record
from lakeferry.redirect.entry import RedirectTarget, TargetKind
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store, open_store
from lakeferry.table.managed import Proposal, RatifiedCommit, Verdict
from tests.support.history import Append, History, SetProperties
from tests.support.managed_worlds import FIRST, live_tables, only_table, world_of
from tests.support.places import opener
from tests.support.redirects import OLD, WORLD, redirect_at
from tests.support.shares import Share
from tests.support.stored_tables import (
    MANAGED,
    NAME,
    OTHER_NAME,
    KeptTable,
    StoredTableCommits,
    StoredTables,
    StoredUnity,
    managed_request,
    managed_setting,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at

PAST = History().then(Append(1), Append(1))
N = 3
PLACE = f"managed/{FIRST}"


def world(past: History = PAST) -> DictStore:
    return world_of(past)


def begun(store: DictStore, *, stops_after: str, user: str | None = None) -> None:
    """Begin a move that ends with the put of an object."""

    def rule(call: StoreCall) -> Fault | None:
        put = call.verb == "PUT_IF_ABSENT" and stops_after in call.paths
        return Fault.STOP_AFTER if put else None

    faulty = FaultyStore(store, rule)
    with pytest.raises(Stopped):
        enabling.enable(managed_setting(faulty, clock=store.clock, user=user), managed_request())


def stranger(store: DictStore, version: int) -> None:
    """Commit to the table by its private name, as somebody does who has found it."""
    setting = managed_setting(store)
    tables = setting.catalog("unity").managed_tables()
    assert tables is not None
    commits = tables.commits(FIRST, only_table(store).name or "")
    body = b'{"commitInfo":{"timestamp":1,"inCommitTimestamp":1,"operation":"WRITE"}}\n'
    commit = RatifiedCommit(version, f"{version:020d}.{FIRST}.json", len(body), 1, 1)
    opener(store)(f"{MANAGED}/{FIRST}").put(commit.staged_path, body)
    assert commits.propose(Proposal(commit, CatalogChanges())) is Verdict.RATIFIED


AT_SOURCE = f"old/{paths.commit(N)}"
AT_CLAIM = f"{PLACE}/_delta_log/_lakeferry/claim.json"
AT_LOCK = f"{PLACE}/{paths.commit(N)}"


@pytest.mark.parametrize("stops_after", [AT_CLAIM, AT_SOURCE])
def test_another_user_is_refused_by_name(stops_after: str) -> None:
    store = world()
    begun(store, stops_after=stops_after, user="ann")
    for procedure in (resuming.resume, cancel.cancel):
        with pytest.raises(Forbidden, match="started by ann"):
            procedure(managed_setting(store, user="bob"), OLD)
    assert resuming.resume(managed_setting(store, user="ann"), OLD).state is RedirectState.READY


def test_another_user_can_forget_a_move_that_has_not_begun() -> None:
    store = world()
    begun(store, stops_after=AT_CLAIM, user="ann")
    outcome = cancel.cancel(managed_setting(store, user="bob"), OLD, leave_copies=True)
    assert (outcome.state, outcome.changed) == (RedirectState.NORMAL, True)


def test_status_tells_of_a_move_from_the_source_alone() -> None:
    store = world()
    begun(store, stops_after=AT_CLAIM)
    found = status.status(managed_setting(store), OLD)
    assert found.unfinished is not None
    assert found.unfinished.target == f"unity:{NAME}"
    assert found.lacking is not None
    assert "catalogManaged" in found.lacking.features
    assert found.lacking.properties["io.unitycatalog.tableId"] == FIRST
    store = world()
    begun(store, stops_after=AT_LOCK)
    found = status.status(managed_setting(store), OLD)
    assert (found.state, found.name) == (RedirectState.ENABLING, f"unity:{NAME}")
    assert found.target == f"{MANAGED}/{FIRST}"
    assert found.lacking is not None
    assert "catalogManaged" in found.lacking.features
    assert found.warnings == ()


def test_a_second_move_is_refused_and_allocates_nothing() -> None:
    store = world()
    begun(store, stops_after=AT_CLAIM)
    with pytest.raises(RedirectInProgress, match="isn't finished"):
        enabling.enable(managed_setting(store), managed_request(OTHER_NAME))
    assert len(StoredTables(store).kept()) == 1


def test_a_taken_name_is_refused_before_anything_is_allocated() -> None:
    store = world()
    other = StoredTables(store)
    table_id = other.stage(NAME).table_id
    other.change(lambda _: ({table_id: KeptTable(None, NAME)}, None))
    with pytest.raises(RedirectTargetNotEmpty, match="is taken"):
        enabling.enable(managed_setting(store), managed_request())
    assert len(other.kept()) == 1


def test_a_property_that_is_too_long_is_refused_before_anything_is_allocated() -> None:
    store = world(History().then(SetProperties((("note", "x" * 256),))))
    with pytest.raises(InvalidInput, match="property note") as refused:
        enabling.enable(managed_setting(store), managed_request())
    assert "leave out --managed" in (refused.value.remedy or "")
    assert StoredTables(store).kept() == {}


@pytest.mark.parametrize("when", ["STAGE", "CREATE"])
def test_a_property_that_gets_too_long_during_the_copy_begins_no_move(when: str) -> None:
    store = world()
    log = managed_setting(store).log(OLD)

    def rule(call: StoreCall) -> Fault | None:
        """Change the source before the table is created, or between that and ENABLING."""
        tables = StoredTables(store).kept()
        created = any(kept.was_created for kept in tables.values())
        if tables and created == (when == "CREATE") and log.state().version == N - 1:
            past = {"note": "x" * 256}
            metadata = log.state().metadata
            log.commit(
                Transaction("SET", "t", metadata=changed(metadata, configuration=past)),
                log.state(),
            )
        return None

    faulty = FaultyStore(store, rule)
    with pytest.raises(InvalidInput, match="property note") as refused:
        enabling.enable(managed_setting(faulty, clock=store.clock), managed_request())
    assert "redirect cancel" in (refused.value.remedy or "")
    assert redirect_at(managed_setting(store)) is None
    assert cancel.cancel(managed_setting(store), OLD).state is RedirectState.NORMAL
    assert live_tables(store) == {}


@pytest.mark.parametrize("version", [1, N + 1])
def test_who_commits_by_the_private_name_ends_the_move(version: int) -> None:
    store, warnings = world(), list[str]()
    begun(store, stops_after=AT_LOCK)
    stranger(store, version)
    with pytest.raises(LakeferryError) as refused:
        resuming.resume(managed_setting(store), OLD)
    assert "redirect cancel" in (refused.value.remedy or "")
    outcome = cancel.cancel(managed_setting(store, warn=warnings.append), OLD)
    assert outcome.state is RedirectState.NORMAL
    assert redirect_at(managed_setting(store)) is None
    # The table isn't ours any more, and has its files.
    assert only_table(store).latest == version
    assert any("stays there" in each for each in warnings)


def test_a_table_that_was_dropped_before_it_was_open_is_given_up() -> None:
    store = world()
    begun(store, stops_after=AT_LOCK)
    StoredTables(store).drop(FIRST, NAME)
    with pytest.raises(RedirectTargetNotEmpty, match="can't continue"):
        resuming.resume(managed_setting(store), OLD)
    assert cancel.cancel(managed_setting(store), OLD).state is RedirectState.NORMAL
    assert not [name for name in store.objects if name.startswith(PLACE)]


def test_a_table_that_may_be_open_is_not_given_up_unless_somebody_says_so() -> None:
    store = world()
    begun(store, stops_after=f"{PLACE}/{paths.commit(N + 1)}")
    StoredTables(store).drop(FIRST, NAME)
    with pytest.raises(RedirectIllegalTransition, match="can't be cancelled"):
        cancel.cancel(managed_setting(store), OLD)
    outcome = cancel.cancel(managed_setting(store), OLD, leave_copies=True)
    assert outcome.state is RedirectState.NORMAL
    assert [name for name in store.objects if name.startswith(PLACE)]


def written_over(store: DictStore) -> None:
    """Commit to the source as a writer does that ignores redirects."""
    version = managed_setting(store).log(OLD).state().version + 1
    store.put(f"old/{paths.commit(version)}", b'{"commitInfo":{"operation":"WRITE"}}\n')


@pytest.mark.parametrize("is_open", [False, True])
def test_a_move_that_was_written_over_ends_without_its_dropped_table(is_open: bool) -> None:
    store = world()
    begun(store, stops_after=f"{PLACE}/{paths.commit(N + 1)}" if is_open else AT_LOCK)
    written_over(store)
    if is_open:
        with pytest.raises(RedirectIllegalTransition, match="open already") as refused:
            cancel.cancel(managed_setting(store), OLD)
        remedy = refused.value.remedy or ""
        assert f"catalog remove unity:{FIRST} --yes" in remedy
        assert f"redirect cancel {OLD} --leave-copies" in remedy
    StoredTables(store).drop(FIRST, only_table(store).name or "")
    if is_open:
        with pytest.raises(RedirectIllegalTransition, match="may be open"):
            cancel.cancel(managed_setting(store), OLD)
    outcome = cancel.cancel(managed_setting(store), OLD, leave_copies=is_open)
    assert outcome.state is RedirectState.NORMAL
    assert redirect_at(managed_setting(store)) is None


@pytest.mark.parametrize("silent_at", ["principal", "read"])
def test_a_move_whose_catalog_is_gone_ends_at_its_source(
    silent_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world()
    begun(store, stops_after=AT_LOCK, user="ann")

    def silent(_: StoredTables) -> None:
        raise CatalogUnavailable("the catalog doesn't answer")

    monkeypatch.setattr(StoredTables, silent_at, silent)
    with pytest.raises(CatalogUnavailable) as refused:
        cancel.cancel(managed_setting(store, user="ann"), OLD)
    assert f"redirect cancel {OLD} --leave-copies" in (refused.value.remedy or "")
    warnings: list[str] = []
    setting = managed_setting(store, user="ann", warn=warnings.append)
    assert cancel.cancel(setting, OLD, leave_copies=True).state is RedirectState.NORMAL
    assert redirect_at(setting) is None
    assert f"catalog remove unity:{FIRST} --yes" in warnings[-1]


def test_a_refused_creation_leaves_the_source_as_it_is() -> None:
    store = world()

    def rule(call: StoreCall) -> Fault | None:
        created = call.verb == "SWAP" and f"{PLACE}/part" in "".join(store.objects)
        return Fault.FAIL if created else None

    faulty = FaultyStore(store, rule)
    with pytest.raises(CatalogUnavailable) as refused:
        enabling.enable(managed_setting(faulty, clock=store.clock), managed_request())
    assert "redirect resume" in (refused.value.remedy or "")
    assert redirect_at(managed_setting(store)) is None
    assert resuming.resume(managed_setting(store), OLD).state is RedirectState.READY


def test_a_move_goes_on_under_another_name() -> None:
    store = world()
    begun(store, stops_after=AT_LOCK)
    tables = StoredTables(store)
    other = tables.stage(NAME).table_id
    tables.change(lambda all_: ({**all_, other: KeptTable(None, NAME)}, None))
    with pytest.raises(RedirectTargetNotEmpty, match="is taken"):
        resuming.resume(managed_setting(store), OLD)
    with pytest.raises(InvalidInput, match="can't be called"):
        resuming.resume(managed_setting(store), OLD, "main.other.orders")
    resuming.resume(managed_setting(store), OLD, OTHER_NAME)
    found = redirect_at(managed_setting(store))
    assert found is not None
    assert found.target is not None
    assert (found.target.name, found.target.table_id) == (OTHER_NAME, FIRST)
    with pytest.raises(InvalidInput, match="another name"):
        resuming.resume(managed_setting(store), OLD, NAME)


def test_a_rehearsal_allocates_nothing_and_tells_each_step() -> None:
    store = world()
    before = store.objects
    setting = managed_setting(store)

    def move(inside: Setting) -> None:
        enabling.enable(inside, managed_request())

    setting = _with_memory(setting)
    plan = {step.op: step for step in rehearsal.rehearse(setting, rehearsed, move)}
    assert next(iter(plan)) == "stage"
    assert {"create", "rename", "publish"} <= plan.keys()
    assert "catalogManaged" in plan["create"].values["features"]
    assert plan["create"].values["properties"]["delta.checkpointPolicy"] == "v2"
    assert store.objects == before


def _with_memory(setting: Setting) -> Setting:
    """Return a setting that opens places that are made up, too."""

    def opened(uri: str) -> Store:
        return setting.open_store(uri) if uri.startswith(WORLD) else open_store(uri)

    return replace(setting, open_store=opened)


def test_a_dropped_target_is_abandoned() -> None:
    store = world()
    enabling.enable(managed_setting(store), managed_request())
    StoredTables(store).drop(FIRST, NAME)
    options = WithdrawalOptions(abandon_target=True)
    outcome = disabling.disable(managed_setting(store), OLD, options)
    assert outcome.state is RedirectState.NORMAL
    assert redirect_at(managed_setting(store)) is None


def test_a_server_is_tried_once_with_two_tables() -> None:
    store = world()
    setting = managed_setting(store)
    tables = StoredTables(store)
    tables.has_to_be_tried = True
    target = RedirectTarget(TargetKind.UNITY, name=NAME)
    state = setting.log(OLD).state()
    for _ in range(2):
        managed_probe.try_server(setting, tables, target, state)
    assert len(tables.kept()) == 2
    configured = changed(state.metadata, configuration={"delta.appendOnly": "true"})
    managed_probe.try_server(setting, tables, target, replace(state, metadata=configured))
    assert len(tables.kept()) == 4
    assert live_tables(store) == {}
    assert not [name for name in store.objects if name.startswith("managed/")]


class StrictCommits(StoredTableCommits):
    """A table whose first commit has to be version 1, as the specification has it."""

    def propose(self, proposal: Proposal) -> Verdict:
        """Refuse any other first version."""
        first = not self.head().latest_version
        if first and proposal.commit.version != 1:
            raise InvalidInput("Commit version must be 1")
        return super().propose(proposal)


class StrictTables(StoredTables):
    """A server that takes no table with a history."""

    has_to_be_tried = True

    def commits(self, table_id: str, name: str) -> StoredTableCommits:
        """Return one table."""
        return StrictCommits(self, table_id, name)


def test_a_server_that_refuses_a_history_is_refused() -> None:
    store = world()
    setting = managed_setting(store)
    state = setting.log(OLD).state()
    target = RedirectTarget(TargetKind.UNITY, name=NAME)
    with pytest.raises(CatalogManaged, match="can't take a table with its history"):
        managed_probe.try_server(setting, StrictTables(store), target, state)
    assert live_tables(store) == {}
    assert not [name for name in store.objects if name.startswith("managed/")]


class LateTables(StrictTables):
    """A server that took the throwaway tables, and refuses the first commit of this one."""

    has_to_be_tried = False


def with_tables(setting: Setting, tables: StoredTables) -> Setting:
    return replace(setting, catalog=lambda _: StoredUnity(tables))


@pytest.mark.parametrize("resumes", [False, True])
def test_a_refused_first_commit_takes_the_move_back(resumes: bool) -> None:
    store, steps = world(), list[str]()
    strict = with_tables(managed_setting(store), LateTables(store))
    heard = replace(strict, step=lambda step: steps.append(step.op))
    if resumes:
        begun(store, stops_after=AT_LOCK)
    with pytest.raises(InvalidInput, match="must be 1") as refused:
        resuming.resume(heard, OLD) if resumes else enabling.enable(heard, managed_request())
    assert "the move was undone" in (refused.value.cause or "")
    assert "drop" in steps
    assert redirect_at(managed_setting(store)) is None
    assert live_tables(store) == {}
    assert not [name for name in store.objects if name.startswith("managed/")]
    assert cancel.cancel(managed_setting(store), OLD).state is RedirectState.NORMAL


def test_wherever_it_is_broken_off_when_the_catalog_refuses_there_is_a_way_back(
    share: Share,
) -> None:
    def run(store: DictStore, faulty: Store) -> None:
        setting = managed_setting(faulty, clock=store.clock)
        with suppress(InvalidInput, Stopped):
            enabling.enable(with_tables(setting, LateTables(faulty)), managed_request())

    store = world()
    counting = FaultyStore(store, lambda _: None)
    run(store, counting)
    for index in share.each(range(len(counting.history))):
        store = world()
        run(store, FaultyStore(store, at(index, Fault.STOP_AFTER)))
        setting = with_tables(managed_setting(store), LateTables(store))
        try:
            outcome = cancel.cancel(setting, OLD)
        except RedirectIllegalTransition:
            # Dropped by us, and the source doesn't say so yet: this is the remedy.
            outcome = cancel.cancel(setting, OLD, leave_copies=True)
        assert outcome.state is RedirectState.NORMAL
        assert live_tables(store) == {}
        assert redirect_at(managed_setting(store)) is None


def test_a_move_whose_closing_commit_is_refused_is_cancelled() -> None:
    store = world()
    begun(store, stops_after=AT_LOCK)
    strict = with_tables(managed_setting(store), LateTables(store))
    assert cancel.cancel(strict, OLD).state is RedirectState.NORMAL
    assert live_tables(store) == {}
    assert not [name for name in store.objects if name.startswith("managed/")]


def test_a_table_that_was_renamed_meanwhile_is_not_dropped() -> None:
    """Whoever opens it gives it its name first, and it stays then."""
    store = world()
    begun(store, stops_after=AT_LOCK)
    strict = LateTables(store)
    strict.rename(FIRST, "", NAME)
    with pytest.raises(InvalidInput, match="must be 1"):
        cancel.cancel(with_tables(managed_setting(store), strict), OLD)
    assert only_table(store).name == NAME


def test_who_finds_the_move_begun_by_another_process_creates_no_table() -> None:
    store = world()
    begun(store, stops_after=AT_LOCK)
    setting = managed_setting(store)
    source = setting.log(OLD)
    record = move_record.read_record(source.store)
    assert record is not None
    before = store.objects
    managed_move.create_table(setting, source, record.request, source.state())
    assert store.objects == before
