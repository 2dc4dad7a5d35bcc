"""Movers, cancellers and writers around a table that becomes managed, in every order of seeds.

The catalog is an object of the world, so that each call of it may fail, lose its answer, come late
or end its caller. What has to hold: each ratified commit stays readable at its version, the source
and the catalog's first commit agree on how a move has ended, no acknowledged row is lost, and the
table is NORMAL or READY at the end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from lakeferry.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    CorruptLog,
    InvalidInput,
    LakeferryError,
    ObjectNotFound,
    RedirectIllegalTransition,
    RedirectInProgress,
    RedirectTargetMissing,
    RedirectTargetNotEmpty,
    StorageUnavailable,
    TableNotFound,
)
from lakeferry.log import paths
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.redirect import cancel, read_entry, resuming
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from lakeferry.table.managed import ManagedStore
from tests.support.history import Append, Checkpoint, Clean, DeleteRows, History, Layout
from tests.support.invariants import Broken
from tests.support.places import below
from tests.support.redirects import OLD, WORLD, added, append, content, folder_of, world_with
from tests.support.simulation import NO_FAULTS, Actor, Behaviour, Faults, Simulation
from tests.support.stored_tables import (
    MANAGED,
    NAME,
    OTHER_NAME,
    STATE,
    KeptTable,
    Tables,
    managed_request,
    managed_setting,
)
from tests.support.stores import DictStore

SEEDS = 400
ATTEMPTS = 3
PASTS = (
    History().then(Append(2), Append(1)),
    History(Layout(deletion_vectors="u")).then(Append(2), Checkpoint(), DeleteRows(1)),
    History(Layout(in_commit_timestamps=True)).then(Append(1), Checkpoint(), Append(1)),
    History().then(Append(2), Checkpoint(), Append(1), Clean()),
)
WEATHER = (NO_FAULTS, Faults(0.005, 0.005, 0.005, 0.001), Faults(0.01, 0.02, 0.02, 0.002))
TOLD: tuple[type[LakeferryError], ...] = (
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    RedirectIllegalTransition,
    RedirectInProgress,
    RedirectTargetNotEmpty,
    StorageUnavailable,
    TableNotFound,
)
"""What anybody may be told: the troubles, and that somebody else was there."""


@dataclass
class ManagedWitness:
    """Watches the source and the catalog."""

    source: dict[int, bytes]
    rows: dict[str, str] = field(default_factory=dict)
    """The files that a writer was told are in the table, and where it wrote them."""
    ratified: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def saw(self, objects: Mapping[str, bytes], changed: str, now_ms: int) -> None:
        """Check what a change of one object may have broken."""
        if changed.startswith("old/_delta_log/0"):
            self._check_source(objects)
        if changed == STATE or changed.startswith(f"{folder_of(MANAGED)}/"):
            self._check_catalog(objects)

    def ended(self, objects: Mapping[str, bytes], now_ms: int) -> None:
        """Check everything once more."""
        self._check_source(objects)
        self._check_catalog(objects)

    def _check_source(self, objects: Mapping[str, bytes]) -> None:
        now = commits_of(objects, "old")
        for version, body in self.source.items():
            if now.get(version) != body:
                raise Broken(f"commit {version} of the source is gone or was changed")
        self.source = now

    def _check_catalog(self, objects: Mapping[str, bytes]) -> None:
        tables = tables_of(objects)
        for table_id, table in tables.items():
            # Whoever drops a table that a cancel has closed deletes its files afterwards.
            is_there = table.name is not None
            place = folder_of(f"{MANAGED}/{table_id}")
            for commit in table.commits:
                staged = objects.get(f"{place}/{commit.staged_path}")
                published = objects.get(f"{place}/{paths.commit(commit.version)}")
                key = (table_id, commit.version)
                body = self.ratified.setdefault(key, staged or published or b"")
                there = published if published is not None else staged
                if there != body and is_there and not is_closing(body):
                    raise Broken(f"the ratified version {key} is gone or was changed")
                if is_there and published is None and commit.version <= table.published:
                    raise Broken(f"{key} was reported and isn't published")
            self._check_agreement(table_id, table)

    def _check_agreement(self, table_id: str, table: KeptTable) -> None:
        """Check that source and target say the same of a move that both have decided."""
        if not table.commits:
            return
        first = self.ratified[table_id, table.commits[0].version]
        mark = mark_of(first)
        ends = (mark_of(body) for body in self.source.values())
        for end in ends:
            decided = end.get("state") in ("READY", "NORMAL")
            if decided and end.get("moveId") == mark.get("moveId") and end != mark:
                raise Broken(f"the source says {end}, and the target {mark}")


def commits_of(objects: Mapping[str, bytes], folder: str) -> dict[int, bytes]:
    """Return the commits of a log."""
    found = {}
    for name, body in below(objects, folder).items():
        file = paths.parse(name)
        if file is not None and name == paths.commit(file.version):
            found[file.version] = body
    return found


def tables_of(objects: Mapping[str, bytes]) -> Tables:
    """Return what the catalog knows."""
    body = objects.get(STATE)
    return {} if body is None else msgspec.json.decode(body, type=Tables)


def mark_of(body: bytes) -> dict[str, object]:
    """Return what a commit of a redirect says of itself."""
    info = json.loads(body.split(b"\n")[0]).get("commitInfo", {}) if body else {}
    mark: dict[str, object] = info.get("lakeferryRedirect") or {}
    return mark


def is_closing(body: bytes) -> bool:
    """Tell whether a commit has closed its table for good."""
    return mark_of(body).get("state") == "NORMAL"


@dataclass(frozen=True)
class Stage:
    """What the actors of one simulation share."""

    witness: ManagedWitness

    def setting(self, actor: Actor) -> Setting:
        """Return what an actor's procedures are given."""
        return managed_setting(
            actor.store, clock=actor.clock, new_id=lambda: actor.unique("id"), user="ann"
        )

    def _try(self, actor: Actor, act: Callable[[Setting], object]) -> None:
        try:
            act(self.setting(actor))
        except TOLD as told:
            actor.note(f"is told {told.code}: {told.message}")
        except (InvalidInput, ObjectNotFound, CorruptLog) as told:
            # A table that was dropped meanwhile can't be created, and its log can't be read.
            if all(table.name is not None for table in tables_of(actor.objects).values()):
                raise
            actor.note(f"is told {told.code}: {told.message}")

    def mover(self, name: str) -> Behaviour:
        """Return who moves the table to a name."""

        def mover(actor: Actor) -> None:
            for _ in range(ATTEMPTS):
                self._try(actor, lambda each: enabling.enable(each, managed_request(name)))

        return mover

    def resumer(self, actor: Actor) -> None:
        """Go on with whatever is under way."""
        for _ in range(ATTEMPTS):
            actor.wait(actor.chance.choice((10, 50, 150)))
            self._try(actor, lambda setting: resuming.resume(setting, OLD))

    def canceller(self, actor: Actor) -> None:
        """Undo whatever is under way."""
        for _ in range(ATTEMPTS):
            actor.wait(actor.chance.choice((10, 50, 150)))
            self._try(actor, lambda setting: cancel.cancel(setting, OLD))

    def path_writer(self, actor: Actor) -> None:
        """Append by the old path, as long as there is no redirect."""
        log = self.setting(actor).log(OLD)
        for index in range(ATTEMPTS):
            actor.wait(actor.chance.choice((0, 20, 60)))
            name = f"{actor.name}-{index}.parquet".replace(" ", "-")

            def write(_: Setting, name: str = name) -> None:
                state = log.state()
                if read_entry.read(state.protocol, state.metadata, OLD) is not None:
                    return
                data = {name: b"rows"}
                log.store.put(name, data[name])
                adds = added([name], data, actor.clock())
                wanted = Transaction("WRITE", f"txn-{name}", adds=adds, new_names=True)
                if not isinstance(log.commit(wanted, state), Conflict):
                    self.witness.rows[name] = OLD

            self._try(actor, write)

    def catalog_writer(self, actor: Actor) -> None:
        """Append where the redirect leads, through the catalog."""
        for index in range(ATTEMPTS):
            actor.wait(actor.chance.choice((50, 100, 300)))
            name = f"{actor.name}-{index}.parquet".replace(" ", "-")

            def write(setting: Setting, name: str = name) -> None:
                resolver = Resolver(setting.open_store, setting.catalog, grant=setting.grant)
                found = resolver.resolve(OLD, write=True, allow_managed=True)
                if found.redirected:
                    append(setting.log(found.location), name)
                    self.witness.rows[name] = found.location

            try:
                self._try(actor, write)
            except RedirectTargetMissing as told:
                actor.note(f"is told {told.code}")

    def publisher(self, actor: Actor) -> None:
        """Publish what somebody else has committed, late."""
        for _ in range(ATTEMPTS):
            actor.wait(actor.chance.choice((50, 100, 300)))

            def publish(setting: Setting) -> None:
                unity = setting.catalog("unity")
                found = unity.find(NAME)
                if found is not None:
                    setting.grant(found.location, unity.access(found))
                    store = setting.open_store(found.location)
                    assert isinstance(store, ManagedStore)
                    store.publish()

            self._try(actor, publish)


def play(seed: int) -> tuple[Simulation, Stage, bool]:
    """Return the simulation with this number, and whether the table moves at the end."""
    chance = random.Random(f"{seed}/managed")
    objects = world_with(PASTS[seed % len(PASTS)])
    stage = Stage(ManagedWitness(commits_of(objects, "old")))
    simulation = Simulation(
        seed,
        objects,
        faults=chance.choice(WEATHER),
        max_steps=20_000,
        uri=WORLD,
        witness=stage.witness,
    )
    optional = [
        (stage.mover(NAME), 1.0),
        (stage.mover(chance.choice((NAME, OTHER_NAME))), 0.5),
        (stage.resumer, 0.5),
        (stage.canceller, 0.6),
        (stage.canceller, 0.2),
        (stage.path_writer, 0.8),
        (stage.catalog_writer, 0.6),
        (stage.publisher, 0.3),
    ]
    for index, (behave, odds) in enumerate(optional):
        if chance.random() < odds:
            simulation.add(behave, f"{behave.__name__} {index}")
    return simulation, stage, chance.random() < 0.5


def finish(simulation: Simulation, stage: Stage, *, moves: bool) -> DictStore:
    """Let somebody go on or back without any trouble; return the world."""
    store = simulation.disk
    setting = managed_setting(store, user="ann")
    try:
        if moves:
            enabling.enable(setting, managed_request())
        else:
            cancel.cancel(setting, OLD)
    except (RedirectInProgress, RedirectIllegalTransition):
        try:
            resuming.resume(managed_setting(store, user="ann"), OLD)
        except RedirectTargetNotEmpty as told:
            # A cancel has dropped the table, and a mover that hadn't seen it yet ended right after
            # it had committed ENABLING. The remedy is the way out, and it needs no other option.
            if "redirect cancel" not in (told.remedy or ""):
                raise
            cancel.cancel(managed_setting(store, user="ann"), OLD)
    return store


def check_end(store: DictStore, stage: Stage) -> None:
    """Check where the table is, and that it has all rows that were acknowledged."""
    objects = store.objects
    stage.witness.ended(objects, 0)
    disk = DictStore(objects, uri=WORLD)
    setting = managed_setting(disk, user="ann")
    state = setting.log(OLD).state()
    redirect = read_entry.read(state.protocol, state.metadata, OLD)
    live = {table_id for table_id, kept in tables_of(objects).items() if kept.name is not None}
    if redirect is None:
        assert not live, "a cancelled move has left a table"
        place = OLD
    else:
        assert redirect.state is RedirectState.READY
        assert redirect.target is not None
        assert live == {redirect.target.table_id}
        place = f"{MANAGED}/{redirect.target.table_id}"
        unity = setting.catalog("unity")
        known = unity.find_id(redirect.target.table_id or "")
        assert known is not None
        managed = unity.access(known).over(setting.open_store(place))
        assert isinstance(managed, ManagedStore)
        managed.publish()
        objects = disk.objects
    found = set(content(objects, place, with_bytes=False).names)
    assert stage.witness.rows.keys() <= found


def test_a_table_that_becomes_managed_keeps_every_row(seeds: range) -> None:
    for seed in seeds:
        simulation, stage, moves = play(seed)
        simulation.run()
        try:
            check_end(finish(simulation, stage, moves=moves), stage)
        except Exception as broken:
            trace = "\n".join(simulation.trace[-60:])
            raise AssertionError(f"seed {seed}: {broken!r}\n{trace}") from broken
