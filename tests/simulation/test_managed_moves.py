"""Movers, cancellers and writers around a table that becomes managed, in every order of seeds.

What has to hold: each ratified commit stays readable at its version, the source
and the catalog's first commit agree on how a move has ended, no acknowledged row is lost, and the
table is NORMAL or READY at the end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from lakeferry.errors import (
    RedirectIllegalTransition,
    RedirectInProgress,
    RedirectTargetMissing,
    RedirectTargetNotEmpty,
)
from lakeferry.redirect import cancel, read_entry, resuming
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from lakeferry.table.managed import ManagedStore
from tests.simulation.managed_actors import (
    ATTEMPTS,
    PASTS,
    ManagedStage,
    ManagedWitness,
    add_actors,
    commits_of,
    simulation_of,
    tables_of,
    told_with_seed,
)
from tests.support.redirects import OLD, WORLD, append, content, world_with
from tests.support.simulation import Actor, Behaviour, Simulation
from tests.support.stored_tables import (
    MANAGED,
    NAME,
    OTHER_NAME,
    managed_request,
    managed_setting,
)
from tests.support.stores import DictStore

SEEDS = 400


@dataclass(frozen=True)
class Stage(ManagedStage):
    """What the actors around a move share."""

    def mover(self, name: str) -> Behaviour:
        """Return who moves the table to a name."""

        def mover(actor: Actor) -> None:
            for _ in range(ATTEMPTS):
                self.attempt(actor, lambda each: enabling.enable(each, managed_request(name)))

        return mover

    def canceller(self, actor: Actor) -> None:
        """Undo whatever is under way."""
        for _ in self.turns(actor, 10, 50, 150):
            self.attempt(actor, lambda setting: cancel.cancel(setting, OLD))

    def path_writer(self, actor: Actor) -> None:
        """Append by the old path, as long as there is no redirect."""
        log = self.setting(actor).log(OLD)
        for name in self.turns(actor, 0, 20, 60):

            def write(_: Setting, name: str = name) -> None:
                state = log.state()
                if read_entry.read(state.protocol, state.metadata, OLD) is not None:
                    return
                self.append_rows(actor, log, state, name, OLD)

            self.attempt(actor, write)

    def catalog_writer(self, actor: Actor) -> None:
        """Append where the redirect leads, through the catalog."""
        for name in self.turns(actor, 50, 100, 300):

            def write(setting: Setting, name: str = name) -> None:
                resolver = Resolver(setting.open_store, setting.catalog, grant=setting.grant)
                found = resolver.resolve(OLD, write=True, allow_managed=True)
                if found.redirected:
                    append(setting.log(found.location), name)
                    self.witness.rows[name] = found.location

            try:
                self.attempt(actor, write)
            except RedirectTargetMissing as told:
                actor.note(f"is told {told.code}")

    def publisher(self, actor: Actor) -> None:
        """Publish what somebody else has committed, late."""
        for _ in self.turns(actor, 50, 100, 300):

            def publish(setting: Setting) -> None:
                unity = setting.catalog("unity")
                found = unity.find(NAME)
                if found is not None:
                    setting.grant(found.location, unity.access(found))
                    store = setting.open_store(found.location)
                    assert isinstance(store, ManagedStore)
                    store.publish()

            self.attempt(actor, publish)


def play(seed: int) -> tuple[Simulation, Stage, bool]:
    """Return the simulation with this number, and whether the table moves at the end."""
    chance = random.Random(f"{seed}/managed")
    objects = world_with(PASTS[seed % len(PASTS)])
    stage = Stage(ManagedWitness(commits_of(objects, "old")))
    simulation = simulation_of(seed, objects, chance, stage.witness)
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
    add_actors(simulation, chance, optional)
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
        with told_with_seed(seed, simulation):
            check_end(finish(simulation, stage, moves=moves), stage)
