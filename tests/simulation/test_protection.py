"""Cleaners, droppers, writers and old readers around one table, in every order that seeds give."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.engine import Engine
from lakeferry.errors import (
    CommitConflict,
    CorruptLog,
    FeatureNotDroppable,
    FeatureNotPresent,
    HistoryRequired,
    VersionNotAvailable,
)
from lakeferry.log import file_actions, protocols
from lakeferry.log.commit import Transaction
from lakeferry.protection import cleaning, dropping
from lakeferry.protection.drop_context import DropContext
from lakeferry.table import DeltaLog
from tests.support import cleanup_rules, naive
from tests.support.history import Append, Checkpoint, Delete, History, Kind, Layout
from tests.support.invariants import Broken, whichever_base
from tests.support.naive import Reading
from tests.support.simulation import (
    NO_FAULTS,
    Actor,
    Behaviour,
    Faults,
    SimulatedStore,
    Simulation,
)

SEEDS = 200
ATTEMPTS = 3
DAY_MS = 86_400_000
CLASSIC = (("delta.checkpointPolicy", "classic"),)
PASTS = (
    History(Layout(v2_checkpoints=True, properties=CLASSIC)).then(Append(2), Delete(1)),
    History(Layout(v2_checkpoints=True)).then(
        Append(2), Checkpoint(Kind.V2_PARQUET), Append(1), Checkpoint(Kind.V2_JSON), Append(1)
    ),
    History(Layout(in_commit_timestamps=True)).then(Append(1), Checkpoint(), Append(1)),
    History(Layout(domains=True)).then(Append(1), Append(1), Checkpoint(Kind.MULTI_PART)),
)
WEATHER = (Faults(), Faults(0.05, 0.05, 0.05, 0.02), NO_FAULTS)
READERS = ("vacuumProtocolCheck", "v2Checkpoint")
WRITERS = ("inCommitTimestamp", "domainMetadata", "appendOnly")
_COMMIT = re.compile(r"_delta_log/([0-9]{20})\.json")
_BUSY = (CommitConflict, CorruptLog, VersionNotAvailable, FeatureNotPresent, FeatureNotDroppable)
"""What somebody may be told because others are faster: the log is cleaned up under their eyes."""


class Promises:
    """Knows which versions have to stay, and what each says; barriers have to stay, too."""

    def __init__(self, objects: Mapping[str, bytes], root: str) -> None:
        """Begin with what is there."""
        self._root = root
        self.floor = 0
        self.truth: dict[int, Reading] = {}
        self.barriers: list[tuple[int, tuple[int, ...]]] = []
        for version in range(naive.newest_version(objects) + 1):
            self._learn(objects, version)

    def _learn(self, objects: Mapping[str, bytes], version: int) -> None:
        if version not in self.truth:
            self.truth[version] = whichever_base(naive.replay(objects, version, root=self._root))

    def promise(self, floor: int) -> None:
        """Note that somebody may delete what is older than a version."""
        self.floor = max(self.floor, floor)

    def dropped(self, boundary: int, barriers: tuple[int, ...]) -> None:
        """Note that a feature was dropped behind checkpoints of these versions."""
        self.barriers.append((boundary, barriers))

    def saw(self, objects: Mapping[str, bytes], changed: str, now_ms: int) -> None:
        """Learn a new version, or see what a deletion has taken."""
        del now_ms
        match = _COMMIT.fullmatch(changed)
        if match and changed in objects:
            version = int(match.group(1))
            # A put that arrives after its version was cleaned up makes no version any more.
            if version > max(self.truth):
                self._learn(objects, version)
        elif changed not in objects:
            self.check(objects)

    def ended(self, objects: Mapping[str, bytes], now_ms: int) -> None:
        """Check everything once more."""
        del now_ms
        self.check(objects)

    def check(self, objects: Mapping[str, bytes]) -> None:
        """Raise unless every version that was promised is there and says what it said."""
        newest = max(self.truth)
        for version in range(min(self.floor, newest), newest + 1):
            try:
                found = whichever_base(naive.replay(objects, version, root=self._root))
            except naive.Unreadable as lost:
                raise Broken(
                    f"version {version} has to stay, from {self.floor} on: {lost}"
                ) from lost
            if found.files != self.truth[version].files:
                raise Broken(f"version {version} changed")
        there = cleanup_rules.checkpoint_versions(dict.fromkeys(objects, 0))
        commits = cleanup_rules.commits(dict.fromkeys(objects, 0))
        for boundary, barriers in self.barriers:
            lost_barriers = set(barriers) - there
            if lost_barriers and any(barriers[0] <= version < boundary for version in commits):
                raise Broken(f"the barriers {sorted(lost_barriers)} of {boundary} are gone")


def promises(actor: Actor) -> Promises:
    """Return the actor's witness."""
    witness = actor._simulation.witness
    assert isinstance(witness, Promises)
    return witness


@pytest.fixture(autouse=True)
def _cuts_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell the witness what each cleanup decides to keep, when it decides it."""
    begin = cleaning._Work.begin

    def told(log: DeltaLog, *arguments: Any, **options: Any) -> cleaning._Work:
        work = begin(log, *arguments, **options)
        assert isinstance(log.store, SimulatedStore)
        witness = log.store._simulation.witness
        assert isinstance(witness, Promises)
        witness.promise(work.cut.version)
        return work

    monkeypatch.setattr(cleaning._Work, "begin", told)


def appender(actor: Actor) -> None:
    """Add files, and sometimes write a checkpoint as writers do."""
    for _ in range(2 * ATTEMPTS):
        name = actor.unique("file")
        row = {"path": name, "partitionValues": {}, "size": 1, "modificationTime": 1}
        adds = pa.Table.from_pylist(
            [{**row, "dataChange": True, "stats": '{"numRecords":1}'}], schema=file_actions.ADD
        )
        with suppress(*_BUSY):
            log = actor.log
            log.commit(Transaction("WRITE", actor.unique("txn"), adds=adds), log.state())
            if actor.chance.random() < 0.3:
                log.checkpoint()


def upgrader(actor: Actor) -> None:
    """Add a feature, as somebody may who misses it."""
    for _ in range(ATTEMPTS):
        with suppress(*_BUSY):
            log = actor.log
            state = log.state()
            wanted = protocols.adding(state.protocol, [actor.chance.choice(READERS)])
            if wanted != state.protocol:
                log.commit(
                    Transaction("UPGRADE PROTOCOL", actor.unique("txn"), protocol=wanted), state
                )


def dropper(actor: Actor) -> None:
    """Drop features that need no data to be rewritten."""

    def none(objects: int, size_bytes: int) -> Engine:
        raise AssertionError("no data has to be rewritten")

    for _ in range(ATTEMPTS):
        name = actor.chance.choice((*READERS, *READERS, *WRITERS))
        work = DropContext(actor.log, none)
        with suppress(*_BUSY):
            done = dropping.drop(work, name)
            if done.boundary is not None:
                actor.note(f"dropped {name} at {done.version} behind {done.checkpoints}")
                promises(actor).dropped(done.version, done.checkpoints)


def unprotector(actor: Actor) -> None:
    """Drop checkpoint protection, when history allows it."""

    def none(objects: int, size_bytes: int) -> Engine:
        raise AssertionError("no data has to be rewritten")

    for _ in range(ATTEMPTS):
        with suppress(*_BUSY, HistoryRequired):
            dropping.drop(DropContext(actor.log, none), "checkpointProtection")


def cleaner(actor: Actor) -> None:
    """Clean up, by age or by version."""
    for _ in range(ATTEMPTS):
        with suppress(*_BUSY):
            if actor.chance.random() < 0.5:
                newest = actor.log.state().version
                cleaning.clean(actor.log, before=actor.chance.randint(0, newest))
            else:
                retention_ms = actor.chance.choice((0, 60_000, DAY_MS))
                cleaning.clean(actor.log, retention_ms=retention_ms, force=True)


def old_reader(actor: Actor) -> None:
    """Read as a client that knows no table feature, and compare with what everybody else reads."""
    for _ in range(2 * ATTEMPTS):
        actor.wait(3)
        objects = actor.objects
        watch = promises(actor)
        newest = max(watch.truth)
        for version in (newest, actor.chance.randint(min(watch.floor, newest), newest)):
            said = watch.truth[version]
            if said.protocol.get("readerFeatures"):
                continue
            found = whichever_base(naive.replay(objects, version, root=actor.store.uri))
            if found.files != said.files:
                raise Broken(f"an old reader finds other files in version {version}")
            begins = _base_of(objects, version)
            for boundary, barriers in watch.barriers:
                if version >= boundary and begins < barriers[0]:
                    raise Broken(f"an old reader of {version} begins at {begins}, before a barrier")


def _base_of(objects: Mapping[str, bytes], version: int) -> int:
    complete = cleanup_rules.complete_checkpoints(cleanup_rules.Log({}), dict.fromkeys(objects, 0))
    return max((each for each in complete if each <= version), default=-1)


CAST: tuple[Behaviour, ...] = (
    *(appender, dropper, cleaner, cleaner, dropper),
    *(upgrader, old_reader, unprotector, appender),
)


def play(seed: int, faults: Faults | None = None) -> Simulation:
    """Return the simulation with this number."""
    chance = random.Random(f"{seed}/cast")
    past = PASTS[seed % len(PASTS)]
    log = {name: data for name, data in past.objects().items() if name.startswith("_delta_log/")}
    made = Simulation(
        seed,
        log,
        faults=faults or chance.choice(WEATHER),
        max_steps=20_000,
        witness=Promises(log, "memory://dict"),
    )
    for index, behave in enumerate(CAST):
        if index < 3 or chance.random() < 0.7:
            made.add(behave)
    return made


def test_features_and_history_come_and_go_and_what_was_promised_stays(seeds: range) -> None:
    for seed in seeds:
        play(seed).run()


def test_without_faults_features_do_leave() -> None:
    left = 0
    for seed in range(12):
        made = play(seed, NO_FAULTS)
        made.run()
        left += sum("dropped" in line for line in made.trace)
    assert left > 5
