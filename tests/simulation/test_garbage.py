"""Pushes to one dataset while somebody tidies up behind them, in every order that seeds give.

Nobody waits for a grace period, so that all that keeps an object is who needs it. Requests
that are carried out long after their time are left out: how long a store may take for one
is what a sweep relies on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import CommitConflict, ObjectNotFound, TimedOut
from lakeferry.transfer.chain import odf_blocks
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets import odf, stored_sizes
from lakeferry.transfer.datasets.odf import OdfDataset
from lakeferry.transfer.repository import garbage_collection, push_liveness, push_records
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.garbage_collection import Collector
from lakeferry.transfer.repository.push_records import PUSHES_FOLDER, PushRecord
from tests.support.invariants import Broken
from tests.support.odf import Chain, SetInfo
from tests.support.reference_client import Files, files_of, run_of
from tests.support.simulation import NO_FAULTS, Actor, Behaviour, Faults, Simulation
from tests.support.stores import DictStore

SEEDS = 400
NAME = DatasetName("acc/d")
WEATHER = (NO_FAULTS, Faults(late=0), Faults(0.08, 0.08, 0, 0.03))


def history(*steps: str) -> Files:
    built = Chain().append(checkpoint="c")
    for step in steps:
        # Checkpoints of the same name in several histories are the same object.
        built.add(SetInfo(step)).append(checkpoint=f"after {step[:1]}")
    return files_of(built)


class Whole:
    """Sees that the dataset has all that its chain needs, after every change."""

    def saw(self, objects: Mapping[str, bytes], changed: str, now_ms: int) -> None:
        head = objects.get(f"{NAME}/refs/head")
        current = None if head is None else Multihash.parse(head.decode())
        while current is not None:
            data = objects.get(f"{NAME}/blocks/{current}")
            if data is None:
                raise Broken(f"block {current} is gone after {changed} changed")
            block = odf_blocks.parse_odf_block(data, current)
            for ref in block.objects:
                if PLACES.place(ref) not in objects:
                    raise Broken(f"object {ref.hash} is gone after {changed} changed")
            current = block.prev_hash

    def ended(self, objects: Mapping[str, bytes], now_ms: int) -> None:
        self.saw(objects, "all", now_ms)


PLACES = OdfDataset(DictStore(), NAME.text)


def pusher(steps: str) -> Behaviour:
    """Push a history as the server does, again after whatever is worth trying again."""

    def behave(actor: Actor) -> None:
        files = history(*steps)
        for _ in range(4):
            actor.wait(actor.chance.randrange(120))
            try:
                push(actor, files)
            except (CommitConflict, TimedOut) as refused:
                actor.note(f"refused: {refused.code}")
            else:
                return

    return behave


def push(actor: Actor, files: Files) -> None:
    store = actor.store
    place = OdfDataset(store, NAME.text)
    head = place.head()
    known = head is not None and f"blocks/{head}" in files
    run = run_of(files, head.text if known and head is not None else None)
    if not run:
        return
    record = PushRecord(
        store,
        NAME,
        head,
        force=not known,
        clock=actor.clock,
        ticks=lambda: actor.clock() / 1000,
        pause=lambda _: actor.wait(1),
    )
    refs = [ref for _, data in run for ref in odf_blocks.parse_odf_block(data).objects]
    named = [(Multihash.parse(name), data) for name, data in run]
    block_paths = [place.block_path(name) for name, _ in named]
    try:
        record.begin([*block_paths, *map(place.place, refs)])
        sizes = place.sizes(refs)
        missing = [place.place(ref) for ref, size in zip(refs, sizes, strict=True) if size is None]
        record.grant([*block_paths, *missing])
        actor.wait(actor.chance.randrange(60))
        for path in missing:
            store.put(path, files[path.removeprefix(f"{NAME}/")])
        record.commit()
        # MissingFile would be a lost object, and fails the simulation.
        place.commit(named, head, force=not known)
        record.end()
    except (CommitConflict, TimedOut):
        record.leave()
        raise


def collector(actor: Actor) -> None:
    """Tidy up a few times."""
    for _ in range(3):
        tidying = Collector(actor.store, grace_ms=0, clock=actor.clock, ticks=lambda: 0.0)
        try:
            tidying.unfinished()
            tidying.unreached(lambda *_: LocalEngine(lambda _: actor.store, parallel=1))
        except ObjectNotFound:
            # Somebody else tidied up.
            actor.note("found less than there was")
        actor.wait(actor.chance.randrange(20))


def simulation(seed: int, faults: Faults | None = None) -> Simulation:
    """Return the simulation with this number."""
    chance = random.Random(seed)
    garbage = history("abc")
    objects = {
        f"{NAME}/{path}": data
        for files in (garbage, history("b", "c"))
        for path, data in files.items()
        if path != "refs/head" or seed % 3
    }
    if seed % 3:
        objects |= {f"{NAME}/{path}": data for path, data in history("a").items()}
    made = Simulation(seed, objects, faults=faults or chance.choice(WEATHER), witness=Whole())
    made.add(pusher("ab" if seed % 2 else "abc"), "first")
    if seed % 5:
        made.add(pusher("bc"), "second")
    made.add(collector, "collector")
    if seed % 7 == 0:
        made.add(collector, "other collector")
    return made


@pytest.fixture(autouse=True)
def _sweeps_count_for_as_long_as_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock of a simulation jumps by days, and nobody's pause is that long.
    monkeypatch.setattr(push_records, "SWEEP_COUNTS_MS", 10**12)
    monkeypatch.setattr(push_liveness, "COMMIT_LASTS_MS", 10**12)
    monkeypatch.setattr(garbage_collection, "WAVE", 2)
    # An actor is one thread.
    for module in (garbage_collection, odf, stored_sizes):
        monkeypatch.setattr(module, "concurrently", one_by_one)


def one_by_one(act: Callable[[str], object], items: Sequence[str]) -> list[object]:
    return [act(item) for item in items]


def test_no_push_loses_an_object_and_every_head_is_whole(seeds: range) -> None:
    for seed in seeds:
        simulation(seed).run()


def test_without_faults_pushes_end_and_leave_no_record() -> None:
    for seed in range(12):
        made = simulation(seed, NO_FAULTS)
        made.run()
        left = [path for path in made.disk.objects if path.startswith(PUSHES_FOLDER)]
        open_ones = [path for path in left if b'"open"' in made.disk.objects[path]]
        assert not open_ones
