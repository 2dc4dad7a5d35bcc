"""Clients that push one dataset and pull it, in every order that seeds give, with faults.

After every change of a head its chain is whole, and a push that was acknowledged is in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from lakeferry.errors import CommitConflict, Diverged, ObjectNotFound
from lakeferry.transfer.client.remote_dataset import Patience, Terms
from lakeferry.transfer.client.transfer_progress import Transferred
from tests.simulation.transfer_cases import chain_of
from tests.support.hosting import QUICK, Files
from tests.support.invariants import Broken
from tests.support.odf import Chain, SetInfo
from tests.support.places import Place, below, inside
from tests.support.reference_client import files_of
from tests.support.simulation import NO_FAULTS, Actor, Faults, Simulation, SimulationFailed
from tests.support.stores import Fault, FaultyStore
from tests.support.transfer_world import DATASET, NAME, World, running, without_network
from tests.support.transfers import async_pull, async_push

SEEDS = 400
SERVER = f"server/{NAME}"
HEAD = "refs/head"
WEATHER = (Faults(), Faults(0.04, 0.05, 0.05, 0.01), NO_FAULTS)
BEGUN = Chain().append(checkpoint="begun")
PATIENCE = Patience(attempts=4, first_wait_s=0.0001, longest_wait_s=0.001)


class Heads:
    """Watches the heads of the server and of those who pull."""

    def __init__(self, *, forced: bool) -> None:
        """With ``forced`` a push may replace what was acknowledged."""
        self._forced = forced
        self._acknowledged: set[str] = set()

    def acknowledged(self, done: Transferred) -> None:
        """Note that a client was told that its head is the server's."""
        self._acknowledged.add(done.head)

    def saw(self, objects: Mapping[str, bytes], changed: str, now_ms: int) -> None:
        """Look at the dataset whose head has changed."""
        folder, slash, _ = changed.rpartition(f"/{HEAD}")
        if slash:
            self._check(folder, objects)

    def ended(self, objects: Mapping[str, bytes], now_ms: int) -> None:
        """Look at all of them."""
        for path in objects:
            self.saw(objects, path, now_ms)

    def _check(self, folder: str, objects: Mapping[str, bytes]) -> None:
        try:
            names = {block.hash.text for block in chain_of(below(objects, folder))}
        except (KeyError, AssertionError) as broken:
            raise Broken(f"the chain of {folder} isn't whole: {broken!r}") from broken
        lost = self._acknowledged - names
        if folder == SERVER and lost and not self._forced:
            raise Broken(f"pushes that were acknowledged are lost: {sorted(lost)}")


def client(actor: Actor) -> tuple[Place, World]:
    """Return an actor's own place, and the server as it reaches it."""
    # Who has been stopped makes no more calls, not even to tidy up.
    store = FaultyStore(actor.store, lambda _: Fault.STOP_BEFORE if actor.stopped else None)
    return Place(store, actor.name), World(Place(store, "server"))


def terms(*, force: bool = False) -> Terms:
    return Terms(force=force, parallel=2, page=2, patience=PATIENCE, pace=QUICK)


def pusher(heads: Heads, *, force: bool) -> Callable[[Actor], None]:
    """Return who pushes what is at its place, and once more if that failed."""

    def behave(actor: Actor) -> None:
        here, world = client(actor)
        for _ in range(2):
            try:
                done = running(world, lambda: async_push(here, DATASET, terms(force=force)))
            except (CommitConflict, Diverged) as lost:
                actor.note(f"lost: {lost.code}")
                return
            heads.acknowledged(done)

    return behave


def puller(actor: Actor) -> None:
    """Pull what is there, twice."""
    here, world = client(actor)
    for _ in range(2):
        try:
            running(world, lambda: async_pull(DATASET, here, terms(force=True)))
        except ObjectNotFound:
            actor.note("nothing is there")


def simulation(seed: int, faults: Faults | None = None, *, may_force: bool = True) -> Simulation:
    """Return the simulation with this number: a dataset and who pushes and pulls it."""
    chance = random.Random(seed)
    is_new, forced = chance.random() < 0.4, may_force and chance.random() < 0.2
    objects: Files = {} if is_new else inside(SERVER, files_of(BEGUN))
    pushers = ["first", "second", "third"][: chance.randint(2, 3)]
    for name in pushers:
        own = Chain().append(checkpoint="begun").add(SetInfo(name)).append(checkpoint=name)
        objects |= inside(name, files_of(own))
    heads = Heads(forced=forced)
    made = Simulation(seed, objects, faults=faults or chance.choice(WEATHER), witness=heads)
    for name in pushers:
        made.add(pusher(heads, force=forced), name)
    made.add(puller, "puller")
    return made


def run(seed: int, faults: Faults | None = None, *, may_force: bool = True) -> Simulation:
    made = simulation(seed, faults, may_force=may_force)
    with without_network():
        made.run()
    return made


def test_every_interleaving_leaves_whole_chains_and_loses_no_push(seeds: range) -> None:
    for seed in seeds:
        run(seed)


def test_without_faults_exactly_one_of_those_who_push_at_once_wins() -> None:
    for seed in range(12):
        made = run(seed, NO_FAULTS, may_force=False)
        lost = sum("lost: " in line for line in made.trace)
        pushers = sum(line.endswith(": ends") for line in made.trace) - 1
        assert not [line for line in made.trace if "gives up" in line or "was stopped" in line]
        assert lost == pushers - 1


def test_a_seed_is_an_interleaving() -> None:
    for seed in (3, 4, 5):
        first, second = run(seed), run(seed)
        assert first.trace == second.trace
        # Records of pushes also say when they began, by another clock.
        assert below(first.disk.objects, SERVER) == below(second.disk.objects, SERVER)


def test_the_simulation_finds_a_server_that_moves_its_head_too_early() -> None:
    def hasty(actor: Actor) -> None:
        built = Chain().append(checkpoint="begun").append()
        actor.store.put(f"{SERVER}/{HEAD}", built.head.text.encode())

    made = Simulation(
        0, inside(SERVER, files_of(BEGUN)), faults=NO_FAULTS, witness=Heads(forced=False)
    )
    made.add(hasty)
    with pytest.raises(SimulationFailed, match="isn't whole"):
        made.run()
