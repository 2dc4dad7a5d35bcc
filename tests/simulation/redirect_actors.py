"""The actors around a table that moves: those who move it, and those who use it meanwhile.

A :class:`Stage` is what they share: the simulation, its witness and how the table
is to move. Each method that is an actor does what a program or a person would,
and ends, as they would, with the error that it was told; what isn't in
:data:`TOLD` nobody should ever be told here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from lakeferry.errors import (
    CommitConflict,
    CommitStateUnknown,
    CorruptLog,
    Diverged,
    LakeferryError,
    NotATable,
    RedirectIllegalTransition,
    RedirectInProgress,
    RedirectTargetMissing,
    RedirectTargetNotEmpty,
    RedirectTargetReplaced,
    StorageUnavailable,
    TableNotFound,
)
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.features import REDIRECT_FEATURES
from lakeferry.redirect import cancel, freeze, read_entry, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data, Mode
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from lakeferry.table import DeltaLog
from tests.support.invariants import Broken
from tests.support.places import opener
from tests.support.redirect_witness import RedirectWitness
from tests.support.redirects import OLD, added, folder_of, home_name, request_for, setting_of
from tests.support.simulation import EXPECTED, Actor, Behaviour
from tests.support.stranger_witness import StrangerWitness, at_home
from tests.support.strangers import another_table

ATTEMPTS = 3
WAIT_STEPS = 1_000
APP = "housekeeping"
RULE = Rule(APP, ("VACUUM START",))
TOLD: tuple[type[LakeferryError], ...] = (
    RedirectInProgress,
    RedirectIllegalTransition,
    RedirectTargetNotEmpty,
    CommitConflict,
    Diverged,
)
"""What those who move a table may be told beside the troubles of the store."""
LOST: tuple[type[LakeferryError], ...] = (RedirectTargetReplaced, RedirectTargetMissing)
"""What anybody may be told where a stranger is about."""
LAST_LOOKS: tuple[type[LakeferryError], ...] = (*LOST, CorruptLog)


@dataclass(frozen=True)
class Stage:
    """How the table of one simulation moves, and who watches."""

    witness: RedirectWitness
    mode: Mode
    data: Data
    rules: tuple[Rule, ...] = ()

    def setting(self, actor: Actor) -> Setting:
        """Return what an actor's procedures are given."""
        return setting_of(actor.store, clock=actor.clock, new_id=lambda: actor.unique("id"))

    @property
    def told(self) -> tuple[type[LakeferryError], ...]:
        """What those who move the table may be told: anything once a target is lost."""
        is_lost = isinstance(self.witness, StrangerWitness) and self.witness.strangers
        return (LakeferryError,) if is_lost else TOLD

    def _try(self, actor: Actor, act: Callable[[Setting], object]) -> None:
        try:
            act(self.setting(actor))
        except LakeferryError as told:
            if not isinstance(told, self.told):
                raise
            actor.note(f"is told {told.code}: {told.message}")

    def _wait_for(self, actor: Actor, *states: RedirectState) -> None:
        """Wait until the table is in one of these states, most of the time; not for ever."""
        if actor.chance.random() < 0.2:
            return
        actor.wait(WAIT_STEPS, lambda: self.witness.state in states)
        actor.wait(actor.chance.choice((0, 0, 10, 30, 100)))

    # Those who move the table.

    def mover(self, *places: str) -> Behaviour:
        """Return who moves the table, to the next place each time, or goes on with a move."""

        def mover(actor: Actor) -> None:
            for place in places:
                request = request_for(place, mode=self.mode, data=self.data, rules=self.rules)
                request = replace(request, compares=actor.chance.random() < 0.3)
                begin = partial(enabling.enable, request=request)
                for _ in range(ATTEMPTS):
                    if not self._is_in_trouble(actor, begin) or self.witness.has_begun(place):
                        break
                if actor.chance.random() < 0.3:
                    self._try(actor, lambda setting: resuming.resume(setting, OLD))

        return mover

    def _is_in_trouble(self, actor: Actor, act: Callable[[Setting], object]) -> bool:
        """Do what :meth:`_try` does; tell whether it was the store's fault that it failed."""
        try:
            self._try(actor, act)
        except EXPECTED as down:
            actor.note(f"fails: {down.code}")
            return True
        return False

    def resumer(self, actor: Actor) -> None:
        """Go on with whatever is under way."""
        for _ in range(ATTEMPTS):
            self._wait_for(actor, RedirectState.ENABLING, RedirectState.DROPPING)
            self._try(actor, lambda setting: resuming.resume(setting, OLD))

    def canceller(self, actor: Actor) -> None:
        """Take back whatever is under way."""
        for _ in range(ATTEMPTS):
            self._wait_for(actor, RedirectState.ENABLING)
            self._try(actor, lambda setting: cancel.cancel(setting, OLD))

    def disabler(self, actor: Actor) -> None:
        """Bring the table back."""
        for _ in range(ATTEMPTS):
            self._wait_for(actor, RedirectState.READY)
            self._try(actor, lambda setting: disabling.disable(setting, OLD))

    def freezer(self, actor: Actor) -> None:
        """Make the table read-only and let it go again."""
        for _ in range(ATTEMPTS - 1):
            self._try(actor, lambda setting: freeze.freeze(setting, OLD))
            self._try(actor, lambda setting: freeze.thaw(setting, OLD))

    # Those who use it.

    def modern_writer(self, actor: Actor) -> None:
        """Append wherever the redirect leads; wait where it says so."""
        resolver = self._resolver(actor)
        for _ in range(2 * ATTEMPTS):
            self._idle(actor)
            try:
                place = self._led_to(resolver, write=True)
            except RedirectInProgress:
                continue
            if place is None:
                continue
            try:
                self._append(actor, place)
            except LakeferryError:
                if not self._is_taken(place):
                    raise

    def _led_to(self, resolver: Resolver, *, write: bool = False) -> str | None:
        """Return where the redirect leads, ``None`` where its target is lost."""
        if not isinstance(self.witness, StrangerWitness):
            return resolver.resolve(OLD, write=write).location
        taken = set(self.witness.strangers)
        try:
            place = resolver.resolve(OLD, write=write).location
        except LAST_LOOKS:
            # A writer who began before may break the stranger's log, by a version too high.
            if not self.witness.strangers:
                raise
            return None
        if place in taken:
            raise Broken(f"somebody was led to the stranger at {place}")
        # One that came while we asked can't be told from the target.
        return None if place in self.witness.strangers else place

    def stranger(self, actor: Actor) -> None:
        """Delete a target that was opened, and create another table in its place."""
        witness = self.witness
        assert isinstance(witness, StrangerWitness)
        actor.wait(WAIT_STEPS, lambda: bool(witness.open_places()))
        actor.wait(actor.chance.choice((0, 0, 5, 10, 20, 30, 50, 100, 200)))
        places = witness.open_places()
        if not places:
            return
        place = actor.chance.choice(places)
        table = another_table(actor.chance.choice((1, 4, 5, 6, 9)))
        witness.took_over(actor.objects, place, table, at_home(actor.objects))
        actor.replace_folder(folder_of(place), table)

    def legacy_writer(self, place: str = OLD) -> Behaviour:
        """Return who appends at a place and knows no redirects: a feature keeps it away."""

        def legacy_writer(actor: Actor) -> None:
            for _ in range(2 * ATTEMPTS):
                self._idle(actor)
                try:
                    self._append(actor, place)
                except (TableNotFound, NotATable, CorruptLog):
                    # Where a table is on its way there is none yet, and bits of one.
                    if place == OLD:
                        raise
                except LakeferryError:
                    if not self._is_taken(place):
                        raise

        return legacy_writer

    def _idle(self, actor: Actor) -> None:
        actor.wait(actor.chance.choice((0, 10, 50, 200)))

    def _append(self, actor: Actor, place: str) -> None:
        log = DeltaLog(opener(actor.store)(place), clock=actor.clock)
        read = log.state()
        if read.protocol.features & REDIRECT_FEATURES:
            return
        name = f"{actor.unique('row')}.parquet"
        data = name.encode()
        log.store.put(name, data)
        adds = added([name], {name: data}, actor.clock())
        try:
            result = log.commit(Transaction("WRITE", name, adds=adds, new_names=True), read)
        except CommitStateUnknown:
            raise
        except StorageUnavailable:
            # Anything but a commit in doubt promises that there is none.
            self.witness.was_refused(name)
            raise
        if isinstance(result, Conflict):
            self.witness.was_refused(name)
        else:
            self.witness.was_acknowledged(name, data, place)

    def housekeeper(self, actor: Actor) -> None:
        """Commit at the source what a rule allows."""
        resolver = self._resolver(actor)
        for _ in range(ATTEMPTS):
            self._wait_for(actor, RedirectState.READY)
            try:
                found = resolver.resolve(OLD, app_name=APP, write=True)
            except RedirectInProgress:
                continue
            if found.rule is None:
                continue
            found.check_operation("VACUUM START")
            log = DeltaLog(opener(actor.store)(found.location), clock=actor.clock)
            read = log.state()
            entry = read_entry.read(read.protocol, read.metadata, found.location)
            if entry is not None and entry.rule_for(APP) is not None:
                log.commit(Transaction("VACUUM START", actor.unique("vacuum")), read)

    def reader(self, actor: Actor) -> None:
        """Read the table wherever the redirect leads: what was acknowledged before is there."""
        resolver = self._resolver(actor)
        for _ in range(ATTEMPTS):
            self._idle(actor)
            known = self.witness.visible
            place = self._led_to(resolver)
            if place is None:
                continue
            try:
                snapshot = DeltaLog(opener(actor.store)(place), clock=actor.clock).snapshot()
            except (TableNotFound, NotATable, CorruptLog):
                if self._is_taken(place):
                    continue
                raise
            if self._is_taken(place):
                continue
            paths = snapshot.files["path"].to_pylist()
            missing = known - {home_name(path) for path in paths}
            if missing:
                raise Broken(f"{missing} were acknowledged, and a reader at {place} hasn't them")

    def _is_taken(self, place: str) -> bool:
        return isinstance(self.witness, StrangerWitness) and place in self.witness.strangers

    def checkpointer(self, actor: Actor) -> None:
        """Write checkpoints at the source, whatever its state."""
        for _ in range(ATTEMPTS):
            self._idle(actor)
            DeltaLog(opener(actor.store)(OLD), clock=actor.clock).checkpoint()

    def _resolver(self, actor: Actor) -> Resolver:
        """Return a resolver with or without a memory."""
        seconds = actor.chance.choice((0.0, 60.0))
        return Resolver(
            opener(actor.store), monotonic=lambda: actor.clock() / 1000, cache_seconds=seconds
        )
