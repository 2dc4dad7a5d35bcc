"""A seeded simulation: actors share one store, and one number decides all that happens.

Actors are ordinary functions that use a store. Each runs in a thread of its
own, but only one runs at a time: at every storage call it asks the scheduler,
which picks who goes on, lets the clock move, and may let the call fail, lose its
answer, carry it out only later, or end the actor there. All of that comes from
one ``random.Random(seed)``, so a seed is an interleaving. The scheduler has no
thread of its own: whoever hands over finds out who is next, and goes on without
a change of threads where that is itself. ::

    simulation = Simulation(seed, history.objects())
    simulation.add(writer, name="first writer")
    simulation.add(reader)
    simulation.run()

An actor is a function of its :class:`Actor`, from which it has its store, its
log, its own randomness and the clock, and which it tells what it was told about
its commits. It may end with one of the errors in ``EXPECTED``; any other error,
and any invariant of :class:`~tests.support.invariants.Witness` that breaks, is
a :class:`SimulationFailed` that says how to replay it. A simulation of something
else than one log brings its own witness: anything that is :class:`Watching`.

(TigerBeetle's VOPR and FoundationDB's simulation are the models.)
"""

from __future__ import annotations

import builtins
import random
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar
from unittest import mock

from lakeferry.errors import CommitStateUnknown, LakeferryError, StorageUnavailable
from lakeferry.storage import ObjectInfo, Store
from lakeferry.storage.store import StreamChunk, exactly
from lakeferry.table import DeltaLog
from tests.support.clock import ManualClock
from tests.support.invariants import Broken, Witness
from tests.support.stores import DictStore, Stopped

T = TypeVar("T")
EXPECTED: tuple[type[LakeferryError], ...] = (StorageUnavailable, CommitStateUnknown)
"""What an actor may end with: the store was down, or nobody knows."""
_JOIN_S = 60
_SHOWN = 80
_TICKS_MS = (0, 0, 1, 7, 1_000, 60_000)
_DAY_MS = 24 * 60 * 60 * 1000


class Fate(Enum):
    """What becomes of one call."""

    DONE = "done"
    FAIL = "fails, and nothing was done"
    LOSE_ANSWER = "is done, and its answer is lost"
    LATE = "seems lost, and is done later"
    STOP_BEFORE = "ends the actor before it is done"
    STOP_AFTER = "ends the actor once it is done"


@dataclass(frozen=True, slots=True)
class Faults:
    """How often calls go wrong, as chances of one call.

    Troubles don't come alone: right after one, an actor's next call is
    ``burst`` times as likely to go wrong.
    """

    fail: float = 0.02
    lose_answer: float = 0.04
    late: float = 0.02
    stop: float = 0.005
    burst: float = 5

    def odds(self, changes: bool) -> tuple[tuple[Fate, float], ...]:
        """Return the chance of each fate for a call that changes something, or doesn't."""
        return (
            (Fate.FAIL, self.fail),
            (Fate.LOSE_ANSWER, self.lose_answer),
            (Fate.LATE, self.late if changes else 0.0),
            (Fate.STOP_BEFORE, self.stop / 2),
            (Fate.STOP_AFTER, self.stop / 2),
        )


NO_FAULTS = Faults(0, 0, 0, 0, 1)


def _baton() -> threading.Lock:
    """Return what one thread waits for and another hands on: a lock that is taken."""
    baton = threading.Lock()
    baton.acquire()
    return baton


class Watching(Protocol):
    """Is shown everything that happens on the store, and raises ``Broken`` at what can't be."""

    def saw(self, objects: Mapping[str, bytes], changed: str, now_ms: int) -> None:
        """Check what a change of one object may have broken."""

    def ended(self, objects: Mapping[str, bytes], now_ms: int) -> None:
        """Check everything once more, now that nobody writes."""


class SimulationFailed(AssertionError):
    """Something that must never happen did; the message has the seed and the last steps."""


class Actor:
    """One actor as its own function sees it."""

    def __init__(self, simulation: Simulation, name: str, behave: Behaviour) -> None:
        """Belong to a simulation; :meth:`Simulation.add` makes these."""
        self.name = name
        self.chance = random.Random(f"{simulation.seed}/{name}")
        self.store: Store = SimulatedStore(simulation, self)
        self.clock = simulation.clock
        self._simulation = simulation
        self._behave = behave
        self._turn = _baton()
        self._rests_until = 0
        self._awaits: Callable[[], bool] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._numbers = 0
        self.trouble = False
        self.stopped = False
        self.ended = False

    @property
    def witness(self) -> Witness:
        """Who is to be told what this actor was told, where the simulation is of one log."""
        assert isinstance(self._simulation.witness, Witness)
        return self._simulation.witness

    @property
    def log(self) -> DeltaLog:
        """The table's log, opened anew."""
        return DeltaLog(self.store, clock=self.clock)

    @property
    def objects(self) -> dict[str, bytes]:
        """What is on the store now, without asking it: for checks, not for decisions."""
        return self._simulation.disk.objects

    def replace_folder(self, folder: str, objects: Mapping[str, bytes]) -> None:
        """Put other objects in the place of all that a folder has, at one stroke."""
        disk = self._simulation.disk
        disk.delete_many([name for name in disk.objects if name.startswith(f"{folder}/")])
        for name, data in objects.items():
            disk.put(f"{folder}/{name}", data)
        self.note(f"replaces all of {folder}")

    def unique(self, what: str) -> str:
        """Return a name that nobody else has."""
        self._numbers += 1
        return f"{what}-{self.name.replace(' ', '-')}-{self._numbers}"

    def note(self, what: str) -> None:
        """Add a line to the simulation's trace."""
        self._simulation.note(self.name, what)

    def wait(self, steps: int, until: Callable[[], bool] | None = None) -> None:
        """Let others go on for so many steps, or until something is so."""
        self._rests_until = self._simulation.step + steps
        self._awaits = until
        self._simulation.hand_over(self)

    def is_resting(self, step: int) -> bool:
        """Tell whether the actor has asked to be left alone."""
        return step < self._rests_until and not (self._awaits is not None and self._awaits())

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._simulation.is_over:
                self._behave(self)
            self._simulation.note(self.name, "ends")
        except Stopped:
            self._simulation.note(self.name, "was stopped")
        except EXPECTED as down:
            self._simulation.note(self.name, f"gives up: {down.code}")
        except Broken as broken:
            self._simulation.fail(str(broken))
        except BaseException:  # noqa: BLE001 - whatever it is, the seed belongs to it
            self._simulation.fail(f"{self.name} failed:\n{traceback.format_exc()}")
        finally:
            self.ended = True
            self._simulation.pass_on(self)


Behaviour = Callable[[Actor], None]


class Simulation:
    """A store, a clock, actors, and the one who decides whose turn it is."""

    def __init__(
        self,
        seed: int,
        objects: Mapping[str, bytes],
        *,
        faults: Faults | None = None,
        max_steps: int = 5_000,
        uri: str = "memory://dict",
        witness: Watching | None = None,
    ) -> None:
        """Begin with ``objects``; ``max_steps`` bounds how long actors may go on."""
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.disk = DictStore(objects, uri=uri, clock=self.clock)
        self.witness: Watching = witness or Witness(objects, uri)
        self.faults = faults or Faults()
        self._odds = {changes: self.faults.odds(changes) for changes in (False, True)}
        self.control = _baton()
        self.step = 0
        self.trace: list[str] = []
        self.is_over = False
        self._steps = 0
        self._running = "nobody"
        self._max_steps = max_steps
        self._actors: list[Actor] = []
        self._late: list[tuple[str, str, Callable[[], object]]] = []
        self._problem: str | None = None

    def add(self, behave: Behaviour, name: str | None = None) -> Actor:
        """Add an actor; names tell actors of one kind apart and seed their randomness."""
        actor = Actor(self, name or f"{behave.__name__} {len(self._actors)}", behave)
        self._actors.append(actor)
        return actor

    def run(self) -> None:
        """Run until every actor has ended; raise :class:`SimulationFailed` if anything breaks."""
        names = random.Random(f"{self.seed}/uuid")

        def seeded_uuid() -> uuid.UUID:
            return uuid.UUID(int=names.getrandbits(128), version=4)

        with mock.patch("uuid.uuid4", seeded_uuid):
            for actor in self._actors:
                actor._thread.start()
            try:
                self._schedule()
            finally:
                self._end()
        if self._problem is None:
            self._check(lambda: self.witness.ended(self.disk.objects, self.clock()))
        if self._problem is not None:
            raise SimulationFailed(self._report())

    def _schedule(self) -> None:
        """Let actors take turns among themselves until all is over."""
        self.pass_on(None)
        while True:
            step = self.step
            if self.control.acquire(timeout=_JOIN_S):
                return
            if self.step == step:
                self.fail(f"{self._running} made no call and didn't end within {_JOIN_S} s")
                return

    def _end(self) -> None:
        """Let every thread run out, and everything that is under way arrive."""
        self.is_over = True
        for actor in self._actors:
            while not actor.ended:
                actor._turn.release()
                if not self.control.acquire(timeout=_JOIN_S):
                    break
            actor._thread.join(_JOIN_S)
        while self._late and self._problem is None:
            self._deliver(0)

    # What follows is called by the one thread whose turn it is.

    def call(self, actor: Actor, verb: str, paths: tuple[str, ...], act: Callable[[], T]) -> T:
        """Make one storage call of an actor, when its turn comes, as fate has it."""
        self.hand_over(actor)
        fate = self._fate(verb, actor.trouble)
        actor.trouble = fate is not Fate.DONE
        shown = f"{verb} {' '.join(paths[:3])}" + (" ..." if len(paths) > 3 else "")
        unknown = verb in _CHANGES
        if fate is Fate.STOP_BEFORE:
            self.note(actor.name, f"{shown}: {fate.value}")
            actor.stopped = True
            raise Stopped
        if fate in (Fate.FAIL, Fate.LATE):
            self.note(actor.name, f"{shown}: {fate.value}")
            if fate is Fate.LATE:
                self._late.append((verb, paths[0], act))
            raise StorageUnavailable(
                f"{verb} failed", cause="the simulation", outcome_unknown=fate is Fate.LATE
            )
        try:
            result = act()
        except LakeferryError as refused:
            self.note(actor.name, f"{shown}: {refused.code}")
            raise
        answer = f" -> {result}" if isinstance(result, bool) else ""
        self.note(actor.name, f"{shown}{answer}" + ("" if fate is Fate.DONE else f": {fate.value}"))
        if unknown:
            self._saw(paths)
        if fate is Fate.STOP_AFTER:
            actor.stopped = True
            raise Stopped
        if fate is Fate.LOSE_ANSWER:
            raise StorageUnavailable(
                f"{verb} failed", cause="the simulation", outcome_unknown=unknown
            )
        return result

    def hand_over(self, actor: Actor) -> None:
        """Let others go on, until it is this actor's turn again or all is over."""
        if self.pass_on(actor):
            actor._turn.acquire()
        if self.is_over or actor.stopped:
            actor.stopped = True
            raise Stopped

    def pass_on(self, actor: Actor | None) -> bool:
        """Give the next turn to whoever's it is; tell whether that is anybody but ``actor``."""
        following = None if self.is_over else self._next()
        if following is None:
            self.control.release()
        elif following is not actor:
            self._running = following.name
            following._turn.release()
        return following is not actor

    def _next(self) -> Actor | None:
        """Return who goes on, or ``None`` where all is over; time goes by meanwhile."""
        if self._steps == self._max_steps:
            self.fail(f"no end within {self._max_steps} steps")
            return None
        self.step = self._steps
        self._steps += 1
        waiting = [actor for actor in self._actors if not actor.ended]
        if not waiting or self._problem:
            return None
        waiting = [actor for actor in waiting if not actor.is_resting(self.step)] or waiting
        jump = _DAY_MS if self.chance.random() < 0.01 else 0
        self.clock.advance(self.chance.choice(_TICKS_MS) + jump)
        if self._late and self.chance.random() < 0.2:
            self._deliver(self.chance.randrange(len(self._late)))
        return self.chance.choice(waiting)

    def _fate(self, verb: str, trouble: bool) -> Fate:
        dice = self.chance.random() / (self.faults.burst if trouble else 1)
        for fate, odds in self._odds[verb in _CHANGES]:
            if dice < odds:
                return fate
            dice -= odds
        return Fate.DONE

    def _deliver(self, index: int) -> None:
        verb, path, act = self._late.pop(index)
        try:
            answer = act()
        except LakeferryError as refused:
            answer = refused.code
        self.note("the network", f"{verb} {path} arrives -> {answer}")
        self._check(lambda: self.witness.saw(self.disk.objects, path, self.clock()))

    def _saw(self, paths: tuple[str, ...]) -> None:
        objects, now_ms = self.disk.objects, self.clock()
        for path in paths:
            self.witness.saw(objects, path, now_ms)

    def _check(self, check: Callable[[], None]) -> None:
        try:
            check()
        except Broken as broken:
            self.fail(str(broken))
        except Exception:  # noqa: BLE001 - an oracle that fails is a failure too
            self.fail(traceback.format_exc())

    def note(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{len(self.trace):4} {self.clock()} {who}: {what}")

    def fail(self, problem: str) -> None:
        """Note what broke; the first problem is the one that counts."""
        self._problem = self._problem or problem

    def _report(self) -> str:
        last = "\n".join(self.trace[-_SHOWN:])
        return (
            f"{self._problem}\n\nThe last of {len(self.trace)} steps:\n{last}\n\n"
            f"Seed {self.seed}. To replay it:\n  {replay_command(self.seed)}"
        )


def replay_command(seed: int) -> str:
    """Return what to type to see one interleaving again."""
    return f"pytest tests/simulation --simulation-seed {seed}"


_CHANGES = frozenset({"PUT", "PUT_IF_ABSENT", "SWAP", "COPY", "UTIME", "DELETE"})


class SimulatedStore(Store):
    """The shared store as one actor sees it: every call is a turn.

    Listings come in pages, as from a cloud: what happens between two pages shows.
    """

    def __init__(self, simulation: Simulation, actor: Actor) -> None:
        """Be one actor's view of a simulation's disk."""
        self._simulation = simulation
        self._actor = actor
        self._disk = simulation.disk
        self.config = self._disk.config
        self.calls = self._disk.calls

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """Yield page by page."""
        size = self._actor.chance.choice((2, 5, 1000))

        def page(begin: str | None) -> builtins.list[ObjectInfo]:
            found = self._disk.list(prefix, start_after=begin, stop_before=stop_before)
            return [info for _, info in zip(range(size + 1), found, strict=False)]

        while True:
            found = self._call("LIST", (prefix,), partial(page, start_after))
            yield from found[:size]
            if len(found) <= size:
                return
            start_after = found[size - 1].path

    def head(self, path: str) -> ObjectInfo:
        """Ask, when it is this actor's turn."""
        return self._call("HEAD", (path,), lambda: self._disk.head(path))

    def get(self, path: str) -> bytes:
        """Get, when it is this actor's turn."""
        return self._call("GET", (path,), lambda: self._disk.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Get a part, when it is this actor's turn."""
        return self._call("RANGE", (path,), lambda: self._disk.get_range(path, start, length))

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Get many, one turn each: concurrent requests see the store at different times."""
        return [self.get(path) for path in paths]

    def put(self, path: str, data: bytes) -> None:
        """Put, when it is this actor's turn."""
        self._call("PUT", (path,), lambda: self._disk.put(path, data))

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Take in what comes, with turns of its own, and then put it when it is this one's."""
        data = b"".join(exactly(chunks, size_bytes, path))
        self._call("PUT", (path,), lambda: self._disk.put(path, data))

    def put_stream_if_absent(
        self, path: str, chunks: Iterator[StreamChunk], size_bytes: int
    ) -> bool:
        """Take in what comes, and then put it if absent when it is this actor's turn."""
        data = b"".join(exactly(chunks, size_bytes, path))
        return self.put_if_absent(path, data)

    def copy_within(self, path: str, new_path: str) -> None:
        """Copy, when it is this actor's turn."""
        self._call("COPY", (new_path, path), lambda: self._disk.copy_within(path, new_path))

    def restore_time(self, path: str, modified_ms: int) -> None:
        """Set the time, when it is this actor's turn."""
        self._call("UTIME", (path,), lambda: self._disk.restore_time(path, modified_ms))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put if absent, when it is this actor's turn."""
        return self._call("PUT_IF_ABSENT", (path,), lambda: self._disk.put_if_absent(path, data))

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Swap, when it is this actor's turn."""
        return self._call("SWAP", (path,), lambda: self._disk.swap(path, expected, data))

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete, one turn each and in any order: a wave may stop anywhere."""
        shuffled = list(paths)
        self._actor.chance.shuffle(shuffled)
        for path in shuffled:
            self._call("DELETE", (path,), partial(self._disk.delete_many, [path]))

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Sign, when it is this actor's turn."""
        return self._call("SIGN", (path,), lambda: self._disk.sign(method, path, expires_s))

    def _call(self, verb: str, paths: tuple[str, ...], act: Callable[[], T]) -> T:
        return self._simulation.call(self._actor, verb, paths, act)
