"""Writers, appenders, checkpointers and readers on one table, in every order that seeds give."""

from __future__ import annotations

import json
import random

import pytest

from tests.simulation.actors import checkpointer, foreign_appender, reader, writer
from tests.support.history import (
    RUST,
    Append,
    Checkpoint,
    Checksum,
    Compact,
    Delete,
    History,
    Kind,
    Layout,
)
from tests.support.simulation import (
    NO_FAULTS,
    Actor,
    Behaviour,
    Faults,
    Simulation,
    SimulationFailed,
)

PASTS = (
    History(Layout(domains=True)).then(Append(2), Delete(1)),
    History(Layout(domains=True)).then(Append(2), Checksum(full=True)),
    History(Layout(domains=True), dialect=RUST).then(Append(3), Checkpoint(), Append(1)),
    History(Layout(domains=True, in_commit_timestamps=True)).then(Append(1), Checksum()),
    History(Layout(domains=True, v2_checkpoints=True)).then(
        Append(2), Checkpoint(Kind.V2_JSON), Delete(1)
    ),
    History(Layout(deletion_vectors="i", row_tracking=True)).then(Append(2), Append(1), Compact(2)),
)


WEATHER = (Faults(), Faults(), Faults(0.08, 0.08, 0.1, 0.01), NO_FAULTS)


def simulation(seed: int, faults: Faults | None = None) -> Simulation:
    """Return the simulation with this number: a table and who uses it, all by the seed."""
    chance = random.Random(seed)
    past = PASTS[seed % len(PASTS)]
    log = {name: data for name, data in past.objects().items() if name.startswith("_delta_log/")}
    made = Simulation(seed, log, faults=faults or chance.choice(WEATHER))
    for index, behave in enumerate((writer, writer, foreign_appender, checkpointer, reader)):
        if index < 2 or chance.random() < 0.8:
            made.add(behave)
    return made


def test_every_interleaving_leaves_a_valid_log(seeds: range) -> None:
    for seed in seeds:
        simulation(seed).run()


def test_without_faults_everybody_gets_to_the_end() -> None:
    for seed in range(6):
        made = simulation(seed, NO_FAULTS)
        made.run()
        assert not [line for line in made.trace if "gives up" in line or "stopped" in line]


def test_a_seed_is_an_interleaving() -> None:
    first, second, other = simulation(11), simulation(11), simulation(17)
    for made in (first, second, other):
        made.run()
    assert first.trace == second.trace
    assert first.disk.objects == second.disk.objects
    assert first.trace != other.trace


def careless(actor: Actor) -> None:
    """A writer that forgets to put only if absent."""
    for _ in range(4):
        newest = max(actor.store.list("_delta_log/0"), key=lambda info: info.path).path
        version = int(newest.split("/")[1][:20]) + 1
        body = json.dumps({"txn": {"appId": actor.name, "version": 1}})
        actor.store.put(f"_delta_log/{version:020d}.json", body.encode())


def forgetful(actor: Actor) -> None:
    """A writer that says it committed and didn't."""
    actor.witness.acknowledged("never written", 1)


def hasty(actor: Actor) -> None:
    """A checkpointer that writes an older version under the name of the newest."""
    older = History().then(Append(2), Checkpoint()).objects()
    name = "_delta_log/00000000000000000002.checkpoint.parquet"
    actor.store.put(name, older["_delta_log/00000000000000000001.checkpoint.parquet"])


@pytest.mark.parametrize(
    ("behave", "reason"),
    [(careless, "was changed"), (forgetful, "was acknowledged"), (hasty, "version 2")],
)
def test_the_simulation_finds_actors_that_break_the_rules(behave: Behaviour, reason: str) -> None:
    found = []
    for seed in range(40):
        made = Simulation(seed, PASTS[0].objects(), faults=NO_FAULTS)
        made.add(behave, "first")
        made.add(behave, "second")
        try:
            made.run()
        except SimulationFailed as failed:
            found.append(str(failed))
    assert found
    assert reason in found[0]
    assert "--simulation-seed" in found[0]
