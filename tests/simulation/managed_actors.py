"""The actors around a table that is, or becomes, managed, and what watches them.

The catalog is an object of the world, so that each call of it may fail, lose its answer, come late
or end its caller. A :class:`ManagedStage` is what the actors of one simulation share.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
    RedirectTargetNotEmpty,
    StorageUnavailable,
    TableNotFound,
)
from lakeferry.log import paths
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import TableState
from lakeferry.redirect import resuming
from lakeferry.redirect.redirect_context import Setting
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, Clean, DeleteRows, History, Layout
from tests.support.invariants import Broken
from tests.support.places import below
from tests.support.redirects import OLD, WORLD, added, folder_of
from tests.support.simulation import NO_FAULTS, Actor, Behaviour, Faults, Simulation
from tests.support.stored_tables import MANAGED, STATE, KeptTable, Tables, managed_setting

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
class ManagedStage:
    """What the actors of one simulation share."""

    witness: ManagedWitness

    def setting(self, actor: Actor) -> Setting:
        """Return what an actor's procedures are given."""
        return managed_setting(
            actor.store, clock=actor.clock, new_id=lambda: actor.unique("id"), user="ann"
        )

    def attempt(self, actor: Actor, act: Callable[[Setting], object]) -> None:
        """Let an actor do something; it may be told of troubles, and that others were there."""
        try:
            act(self.setting(actor))
        except TOLD as told:
            actor.note(f"is told {told.code}: {told.message}")
        except (InvalidInput, ObjectNotFound, CorruptLog) as told:
            # A table that was dropped meanwhile can't be created, and its log can't be read.
            if all(table.name is not None for table in tables_of(actor.objects).values()):
                raise
            actor.note(f"is told {told.code}: {told.message}")

    def turns(self, actor: Actor, *pauses_ms: int) -> Iterator[str]:
        """Wait before each attempt; yield the name of the file that it may write."""
        for index in range(ATTEMPTS):
            actor.wait(actor.chance.choice(pauses_ms))
            yield f"{actor.name}-{index}.parquet".replace(" ", "-")

    def resumer(self, actor: Actor) -> None:
        """Go on with whatever is under way."""
        for _ in self.turns(actor, 10, 50, 150):
            self.attempt(actor, lambda setting: resuming.resume(setting, OLD))

    def append_rows(
        self, actor: Actor, log: DeltaLog, state: TableState, name: str, place: str
    ) -> None:
        """Commit a file; the witness has to find it later if the commit was acknowledged."""
        data = {name: b"rows"}
        log.store.put(name, data[name])
        adds = added([name], data, actor.clock())
        wanted = Transaction("WRITE", f"txn-{name}", adds=adds, new_names=True)
        if not isinstance(log.commit(wanted, state), Conflict):
            self.witness.rows[name] = place


def simulation_of(
    seed: int, objects: Mapping[str, bytes], chance: random.Random, witness: ManagedWitness
) -> Simulation:
    """Return a simulation without actors."""
    faults = chance.choice(WEATHER)
    return Simulation(seed, objects, faults=faults, max_steps=20_000, uri=WORLD, witness=witness)


def add_actors(
    simulation: Simulation, chance: random.Random, optional: Iterable[tuple[Behaviour, float]]
) -> None:
    """Add each actor with its own probability."""
    for index, (behave, odds) in enumerate(optional):
        if chance.random() < odds:
            simulation.add(behave, f"{behave.__name__} {index}")


@contextmanager
def told_with_seed(seed: int, simulation: Simulation) -> Iterator[None]:
    """Name the seed, and the last steps, where a check fails."""
    try:
        yield
    except Exception as broken:
        trace = "\n".join(simulation.trace[-60:])
        raise AssertionError(f"seed {seed}: {broken!r}\n{trace}") from broken
