"""Movers, cancellers and writers around one table, in every order that seeds give."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from lakeferry.errors import LakeferryError, RedirectIllegalTransition
from lakeferry.log.commit import Transaction
from lakeferry.redirect import cancel, freeze, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.entry import Data, Mode
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.table import DeltaLog
from tests.simulation.redirect_actors import LAST_LOOKS, RULE, Stage
from tests.support.history import Append, Checkpoint, Clean, DeleteRows, History, Kind, Layout
from tests.support.invariants import Broken
from tests.support.places import opener
from tests.support.redirect_witness import RedirectWitness
from tests.support.redirects import NEW, OLD, OTHER, WORLD, world_with
from tests.support.simulation import (
    NO_FAULTS,
    Actor,
    Behaviour,
    Faults,
    Simulation,
    SimulationFailed,
)
from tests.support.stranger_witness import StrangerWitness

SEEDS = 2_000
STRANGER_EVERY = 7
"""In one of so many plays somebody replaces the target."""
PASTS = (
    History().then(Append(2), Append(1)),
    History(Layout(deletion_vectors="u")).then(Append(2), Checkpoint(), DeleteRows(1)),
    History(Layout(in_commit_timestamps=True)).then(Append(1), Checkpoint(), Append(1)),
    History(Layout(v2_checkpoints=True)).then(Append(2), Checkpoint(Kind.V2_PARQUET, sidecars=1)),
    History(Layout(absolute_paths=True)).then(Append(1), Append(1)),
    History().then(Append(2), Checkpoint(), Append(1), Clean()),
)
WEATHER = (NO_FAULTS, Faults(0.005, 0.005, 0.005, 0.001), Faults(0.01, 0.02, 0.02, 0.002))


@dataclass(frozen=True)
class Play:
    """One simulation of a table that moves, and how it ends once everybody has gone."""

    simulation: Simulation
    stage: Stage
    goes_on: bool

    def run(self) -> None:
        """Run it, and then let somebody tidy up, without any trouble."""
        self.simulation.run()
        before = self.simulation
        after = Simulation(
            before.seed,
            before.disk.objects,
            faults=NO_FAULTS,
            uri=WORLD,
            witness=self.stage.witness,
        )
        after.trace += before.trace
        after.clock.now_ms = before.clock()
        after.add(self._tidy_up)
        after.run()

    def _tidy_up(self, actor: Actor) -> None:
        """Go on or back, and then bring the table home."""
        witness, setting = self.stage.witness, self.stage.setting(actor)
        if witness.is_frozen:
            freeze.thaw(setting, OLD)
        elif witness.state is RedirectState.ENABLING:
            outcome = (self._go_on if self.goes_on else self._go_back)(setting, OLD)
            if outcome.state is not witness.state:
                raise Broken(f"the table is {witness.state}, and somebody was told {outcome.state}")
            witness.check_promises(actor.objects)
        self._bring_home(setting)
        if witness.state is not RedirectState.NORMAL:
            raise Broken(f"the table is {witness.state} after all")

    def _bring_home(self, setting: Setting) -> None:
        try:
            disabling.disable(setting, OLD)
        except LAST_LOOKS:
            if not isinstance(self.stage.witness, StrangerWitness):
                raise
            disabling.disable(setting, OLD, disabling.WithdrawalOptions(abandon_target=True))

    def _go_on(self, setting: Setting, table: str) -> Outcome:
        try:
            return resuming.resume(setting, table)
        except LakeferryError as told:
            if not isinstance(told, self.stage.told):
                raise
            # Its target was opened, and then lost.
            return cancel.cancel(setting, table)

    def _go_back(self, setting: Setting, table: str) -> Outcome:
        try:
            return cancel.cancel(setting, table)
        except RedirectIllegalTransition:
            return resuming.resume(setting, table)


def play(seed: int, faults: Faults | None = None) -> Play:
    """Return the play with this number: a table, how it moves, and who is there."""
    chance = random.Random(f"{seed}/cast")
    objects = world_with(PASTS[seed % len(PASTS)])
    with_rule = chance.random() < 0.15
    with_stranger = seed % STRANGER_EVERY == 0
    witness = (StrangerWitness if with_stranger else RedirectWitness)(objects, rules=with_rule)
    stage = Stage(
        witness,
        chance.choice((Mode.READER_WRITER, Mode.WRITER_ONLY)),
        chance.choice((Data.COPY, Data.COPY, Data.REFERENCE)),
        (RULE,) if with_rule else (),
    )
    simulation = Simulation(
        seed,
        objects,
        # Who dies with its lock on a stranger can't take it away again.
        faults=NO_FAULTS if with_stranger else faults or chance.choice(WEATHER),
        max_steps=20_000,
        uri=WORLD,
        witness=witness,
    )
    for index, behave in enumerate(cast(chance, stage)):
        simulation.add(behave, f"{behave.__name__} {index}")
    if with_stranger:
        simulation.add(stage.stranger, "stranger")
    return Play(simulation, stage, chance.random() < 0.5)


def cast(chance: random.Random, stage: Stage) -> list[Behaviour]:
    """Return who is there.

    Who moves a table twice goes to another place the second time: a place that a
    cancel has just cleaned isn't to be used again while a second cancel of the same
    move may still be at work there.
    """
    chosen: list[Behaviour] = []
    plot = chance.choice(("one", "one", "two places", "one place twice"))
    if plot == "one":
        chosen.append(stage.mover(NEW, f"{NEW}-2"))
    elif plot == "two places":
        chosen += [stage.mover(NEW, f"{NEW}-2"), stage.mover(OTHER)]
    else:
        chosen += [stage.mover(NEW), stage.mover(NEW)]
    optional = [
        (stage.resumer, 0.5),
        (stage.canceller, 0.0 if plot == "one place twice" else 0.6),
        (stage.canceller, 0.0 if plot == "one place twice" else 0.2),
        (stage.disabler, 0.5),
        (stage.disabler, 0.2),
        (stage.freezer, 0.05),
        (stage.modern_writer, 0.8),
        (stage.legacy_writer(), 0.5),
        (stage.legacy_writer(NEW), 0.5),
        (stage.housekeeper, 1.0 if stage.rules else 0.0),
        (stage.reader, 0.5),
        (stage.checkpointer, 0.3),
    ]
    chosen += [behave for behave, odds in optional if chance.random() < odds]
    return chosen


def test_a_table_that_moves_keeps_every_row(seeds: range) -> None:
    for seed in seeds:
        play(seed).run()


def test_without_faults_nobody_gives_up() -> None:
    for seed in range(10):
        made = play(seed, NO_FAULTS)
        made.run()
        assert not [line for line in made.simulation.trace if "gives up" in line]


def test_a_seed_is_an_interleaving() -> None:
    first, second = play(11), play(11)
    for made in (first, second):
        made.run()
    assert first.simulation.trace == second.simulation.trace
    assert first.simulation.disk.objects == second.simulation.disk.objects


def forgetful(stage: Stage, actor: Actor) -> None:
    """A writer that says it committed and didn't."""
    stage.witness.was_acknowledged("never-written.parquet", b"")


def careless(stage: Stage, actor: Actor) -> None:
    """A writer that looks at no features."""
    actor.wait(1_000, lambda: stage.witness.state is RedirectState.ENABLING)
    log = DeltaLog(opener(actor.store)(OLD), clock=actor.clock)
    log.commit(Transaction("WRITE", "careless"), log.state())


def hasty(stage: Stage, actor: Actor) -> None:
    """Somebody who makes the target a table before it is locked."""
    first = f"_delta_log/{0:020d}.json"
    actor.store.put(f"new/{first}", actor.store.get(f"old/{first}"))


def forger(stage: Stage, actor: Actor) -> None:
    """Somebody who takes back what was decided."""
    actor.wait(2_000, lambda: stage.witness.state is RedirectState.READY)
    last = max(info.path for info in actor.store.list("new/_delta_log/0"))
    actor.store.delete_many([last.partition(".")[0] + ".json"])


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        (forgetful, "was acknowledged"),
        (careless, "was written while"),
        (hasty, "isn't locked"),
        (forger, "is gone or was changed"),
    ],
)
def test_the_simulation_finds_those_who_break_the_rules(
    breaks: Callable[[Stage, Actor], None], reason: str
) -> None:
    found = []
    for seed in range(5):
        objects = world_with(PASTS[0])
        witness = RedirectWitness(objects)
        stage = Stage(witness, Mode.READER_WRITER, Data.COPY)
        made = Simulation(seed, objects, faults=NO_FAULTS, uri=WORLD, witness=witness)
        made.add(stage.mover(NEW), "mover")
        made.add(partial(breaks, stage), "the other")
        try:
            made.run()
        except SimulationFailed as failed:
            found.append(str(failed))
    assert any(reason in each for each in found)
    assert all("--simulation-seed" in each for each in found)
