"""Ways back from a managed table, with several who disable and writers by name, in every order.

As :mod:`tests.simulation.test_managed_moves`. What has to hold: each ratified commit stays readable
until its table is dropped, which happens after the source is NORMAL; at the end the source is
NORMAL and has each acknowledged row, once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from lakeferry.errors import RedirectTargetMissing, RedirectTargetReplaced
from lakeferry.log import actions
from lakeferry.log.commit import Transaction
from lakeferry.redirect import read_entry, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.table.managed import ManagedStore
from tests.simulation.managed_actors import (
    PASTS,
    ManagedStage,
    ManagedWitness,
    add_actors,
    commits_of,
    mark_of,
    simulation_of,
    tables_of,
    told_with_seed,
)
from tests.simulation.managed_cases import move, run, state_of
from tests.support.invariants import Broken
from tests.support.managed_worlds import FIRST, FIRST_PLACE
from tests.support.redirects import (
    OLD,
    REDIRECT_FEATURES,
    content,
    protocol_features,
    world_with,
)
from tests.support.simulation import Actor, Behaviour, Simulation
from tests.support.stored_tables import (
    MANAGED,
    NAME,
    OTHER_NAME,
    KeptTable,
    StoredTables,
    managed_setting,
)

SEEDS = 280
GONE = (RedirectTargetMissing, RedirectTargetReplaced)


@cache
def moved(past: int) -> Mapping[str, bytes]:
    """Return a world in which the table has moved."""
    return run(world_with(PASTS[past]), move, "moved")[1]


@dataclass
class ReturnWitness(ManagedWitness):
    """Watches the source and the catalog while a table comes back."""

    def _check_agreement(self, table_id: str, table: KeptTable) -> None:
        """Check that a table is dropped only after its source is NORMAL."""
        ended = any(mark_of(body).get("state") == "NORMAL" for body in self.source.values())
        if table.name is None and not ended:
            raise Broken(f"{table_id} is dropped, and the source isn't NORMAL")


@dataclass(frozen=True)
class ReturnStage(ManagedStage):
    """What the actors of one simulation share."""

    def _try_until_dropped(self, actor: Actor, act: Callable[[Setting], object]) -> None:
        try:
            self.attempt(actor, act)
        except GONE as told:
            # That a table was dropped is for the witness to judge.
            if tables_of(actor.objects)[FIRST].name is not None:
                raise
            actor.note(f"is told {told.code}")

    def disabler(self, *, drops: bool) -> Behaviour:
        """Return who ends the redirect, and perhaps drops the table."""
        options = WithdrawalOptions(remove_target=drops)

        def disabler(actor: Actor) -> None:
            for _ in self.turns(actor, 0, 20, 100):
                self._try_until_dropped(actor, lambda each: disabling.disable(each, OLD, options))

        return disabler

    def resumer(self, actor: Actor) -> None:
        """Go on with whatever is under way."""
        for _ in self.turns(actor, 10, 50, 150):
            self._try_until_dropped(actor, lambda setting: resuming.resume(setting, OLD))

    def writer(self, actor: Actor) -> None:
        """Append or set a property by the table's name, as long as the table isn't locked."""
        for index, name in enumerate(self.turns(actor, 0, 20, 60)):

            def write(setting: Setting, name: str = name, index: int = index) -> None:
                unity = setting.catalog("unity")
                found = unity.find_id(FIRST)
                if found is None:
                    return
                setting.grant(found.location, unity.access(found))
                log = setting.log(found.location)
                state = log.state()
                if read_entry.read(state.protocol, state.metadata, found.location) is not None:
                    return
                if index % 2:
                    configuration = {**state.metadata.configuration, f"by {actor.name}": name}
                    metadata = actions.changed(state.metadata, configuration=configuration)
                    log.commit(Transaction("SET", f"txn-{name}", metadata=metadata), state)
                    return
                self.append_rows(actor, log, state, name, MANAGED)

            self._try_until_dropped(actor, write)

    def renamer(self, actor: Actor) -> None:
        """Rename the table."""
        actor.wait(actor.chance.choice((0, 30, 100)))
        tables = StoredTables(actor.store)
        self.attempt(actor, lambda _: tables.rename(FIRST, NAME, OTHER_NAME))

    def publisher(self, actor: Actor) -> None:
        """Publish what somebody else has committed, late."""
        for _ in self.turns(actor, 50, 100, 300):

            def publish(setting: Setting) -> None:
                commits = StoredTables(actor.store).commits(FIRST, NAME)
                ManagedStore(setting.open_store(FIRST_PLACE), commits).publish()

            self.attempt(actor, publish)


def play(seed: int) -> tuple[Simulation, ReturnStage]:
    """Return the simulation with this number."""
    chance = random.Random(f"{seed}/managed withdrawal")
    objects = moved(seed % len(PASTS))
    stage = ReturnStage(ReturnWitness(commits_of(objects, "old")))
    simulation = simulation_of(seed, objects, chance, stage.witness)
    drops = chance.random() < 0.4
    optional = [
        (stage.disabler(drops=drops), 1.0),
        (stage.disabler(drops=drops and chance.random() < 0.5), 0.7),
        (stage.resumer, 0.4),
        (stage.writer, 0.9),
        (stage.writer, 0.5),
        (stage.renamer, 0.3),
        (stage.publisher, 0.4),
    ]
    add_actors(simulation, chance, optional)
    return simulation, stage


def check_end(simulation: Simulation, stage: ReturnStage) -> None:
    """Let somebody end the redirect without any trouble; check that all rows are back."""
    setting = managed_setting(simulation.disk, user="ann")
    disabling.disable(setting, OLD)
    objects = simulation.disk.objects
    stage.witness.ended(objects, 0)
    assert state_of(objects) is RedirectState.NORMAL
    found = content(objects, OLD)
    assert len(found.names) == len(set(found.names))
    assert stage.witness.rows.keys() <= set(found.names)
    assert "catalogManaged" not in found.features
    assert not protocol_features(objects, OLD) & REDIRECT_FEATURES
    for row in found.files.values():
        assert row["bytes"] is not None or not row["size"]


def test_a_managed_table_that_comes_back_keeps_every_row(seeds: range) -> None:
    for seed in seeds:
        simulation, stage = play(seed)
        simulation.run()
        with told_with_seed(seed, simulation):
            check_end(simulation, stage)
