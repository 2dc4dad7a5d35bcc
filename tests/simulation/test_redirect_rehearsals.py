"""A dry run and its command, in every state that a broken off procedure leaves.

The dry run writes nothing, and its steps are those that the command then takes; or both are
refused in the same words. Procedures are broken off before and after every call that changes
something. A run tries its share of the commands in the states that are left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from lakeferry.catalogs import Catalog, CatalogTable, unless_elsewhere
from lakeferry.engines.rehearsed_engine import rehearsed
from lakeferry.errors import LakeferryError
from lakeferry.log.actions import Metadata
from lakeferry.redirect import cancel, freeze, rehearsal, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Data, Dialect, Mode, RedirectTarget, TargetKind
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.steps import RedirectStep
from lakeferry.storage import normalise
from tests.simulation.redirect_cases import ABSOLUTE, CLEANED, HOUR_MS, SIDECARS, VECTORS
from tests.support.clock import DEFAULT_START_MS, ManualClock
from tests.support.history import Append, History
from tests.support.places import below, inside
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    WORLD,
    append,
    numbered,
    request_for,
    setting_of,
    world_with,
)
from tests.support.shares import Share
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall

Command = Callable[[Setting], Outcome]
Names = Mapping[str, CatalogTable]
NAME = "main.sales.orders"
CHANGES = frozenset({"PUT", "PUT_IF_ABSENT", "SWAP", "COPY", "UTIME", "DELETE", "SIGN"})
COMMIT = re.compile(r"(old|new)/_delta_log/(\d{20})\.json")
CHECKPOINT = re.compile(r"old/_delta_log/\d{20}\.checkpoint\..*")
PAST = History().then(Append(2), Append(1))
RULES = (Rule("app", ("VACUUM START",)), Rule("writer", ("WRITE",)))


class NamesInMemory(Catalog):
    """A catalog in a dictionary; counts what changes it."""

    def __init__(self, kind: str, names: Names) -> None:
        """Have these names."""
        assert kind in ("sql", "unity")
        self.kind = "unity" if kind == "unity" else "sql"
        self.names = dict(names)
        self.changes = 0

    def find(self, name: str) -> CatalogTable | None:
        """Look it up."""
        return self.names.get(name)

    def find_id(
        self,
        table_id: str,
        metastore_id: str | None = None,
        once: str | None = None,
    ) -> CatalogTable | None:
        """Look through all of them."""
        same = (each for each in self.names.values() if each.is_same(table_id, metastore_id))
        return next(same, None)

    def try_registration(self, name: str, location: str, metadata: Metadata) -> None:
        """Count it."""
        self.changes += 1

    def register(self, name: str, location: str, metadata: Metadata | None = None) -> CatalogTable:
        """Add it."""
        self.changes += 1
        if (found := self.find(name)) is not None:
            return unless_elsewhere(self.kind, found, normalise(location))
        store = "store" if self.kind == "unity" else None
        self.names[name] = CatalogTable(name, normalise(location), f"id-of-{name}", store)
        return self.names[name]

    def move(self, name: str, location: str, was: str | None = None) -> CatalogTable:
        """Change it."""
        raise AssertionError("no redirect moves a name")

    def unregister(
        self, name: str, location: str | None = None, *, table_id: str | None = None
    ) -> bool:
        """Take it away."""
        self.changes += 1
        found = self.find(name)
        if found is None or (location is not None and found.location != normalise(location)):
            return False
        del self.names[name]
        return True


@dataclass(frozen=True)
class Scene:
    """What is there: objects and names."""

    objects: Mapping[str, bytes]
    names: Names = field(default_factory=dict)

    @property
    def key(self) -> object:
        """What tells it from other scenes."""
        return frozenset(self.objects.items()), frozenset(self.names.items())


@dataclass
class Run:
    """A command that ran in a scene: what it changed, and what came of it."""

    after: Scene
    calls: list[StoreCall]
    asked_to_change: int
    steps: list[RedirectStep]
    refused: str | None = None

    @property
    def result(self) -> object:
        """Its steps as a dry run prints them, or why it was refused."""
        return self.refused or [step.as_document() for step in self.steps]


def run(
    scene: Scene,
    command: Callable[[Setting], object],
    *,
    fault: Callable[[StoreCall], Fault | None] = lambda _: None,
    hours: int = 1,
) -> Run:
    """Run a command in a scene."""
    clock = ManualClock(DEFAULT_START_MS + hours * HOUR_MS)
    store = DictStore(scene.objects, uri=WORLD, clock=clock)
    faulty, catalogs = FaultyStore(store, fault), dict[str, NamesInMemory]()
    made = Run(scene, faulty.history, 0, [])

    def catalog(kind: str) -> Catalog:
        return catalogs.setdefault(kind, NamesInMemory(kind, scene.names))

    setting = setting_of(faulty, clock=clock, new_id=numbered(f"id-{hours}"))
    try:
        command(replace(setting, catalog=catalog, step=made.steps.append))
    except Stopped:
        made.refused = "stopped"
    except LakeferryError as refused:
        made.refused = f"{type(refused).__name__}: {refused} {refused.remedy}"
    names = next((each.names for each in catalogs.values()), scene.names)
    made.after = Scene(store.objects, names)
    made.asked_to_change = sum(each.changes for each in catalogs.values())
    return made


def rehearsing(command: Command) -> Callable[[Setting], object]:
    """Return the dry run of a command."""

    def rehearse(setting: Setting) -> None:
        for step in rehearsal.rehearse(setting, rehearsed, command):
            setting.step(step)

    return rehearse


def without_vectors(result: object) -> object:
    """Leave out the bytes of some copies: a log doesn't say how large vectors' files are."""
    if not isinstance(result, list):
        return result
    unknown = ("copy_changes", "copy_rest")
    return [{**step, "bytes": None} if step["op"] in unknown else step for step in result]


def agrees(scene: Scene, command: Command) -> object:
    """Check that a dry run changes nothing and says what the command does; return that."""
    planned = run(scene, rehearsing(command), hours=5)
    written = [call for call in planned.calls if call.verb in CHANGES]
    assert (written, planned.asked_to_change) == ([], 0)
    assert planned.after == scene
    # Printed now: what it counts is counted as the source is before the command.
    said = planned.result
    done = run(scene, command, hours=5)
    assert without_vectors(said) == without_vectors(done.result)
    if done.refused is None:
        tells_all(scene, done)
    return said


def tells_all(scene: Scene, done: Run) -> None:
    """Check that the steps of a command tell of all that it has done."""
    told = {step.op for step in done.steps}
    made, gone = done.after.objects.keys() - scene.objects.keys(), set[str]()
    commits: dict[str, set[int]] = {"old": set(), "new": set()}
    for call in done.calls:
        if call.verb == "PUT_IF_ABSENT" and (found := COMMIT.fullmatch(call.paths[0])):
            commits[found.group(1)] |= {int(found.group(2))} - versions_of(scene, found.group(1))
        elif call.verb == "DELETE":
            gone |= {path for path in call.paths if path in scene.objects}
    said = {"old": set(versions_told(done.steps, OLD)), "new": set(versions_told(done.steps, NEW))}
    assert commits["old"] == said["old"]
    # What is carried over is put under the same names.
    assert commits["new"] >= said["new"]
    assert ("checkpoint" in told) >= any(CHECKPOINT.fullmatch(path) for path in made)
    data = {(path.partition("/")[0], path in gone) for path in made | gone if is_data(path)}
    assert told & {"copy_data", "copy_rest"} or ("new", False) not in data
    assert told & {"copy_missing", "copy_changes"} or ("old", False) not in data
    assert told & {"clear", "delete", "delete_copies"} or ("new", True) not in data
    assert ("old", True) not in data
    assert "register" in told or not done.after.names.keys() - scene.names.keys()
    assert ("unregister" in told) == bool(scene.names.keys() - done.after.names.keys())


def versions_of(scene: Scene, place: str) -> set[int]:
    """Return the versions whose commits are at a place."""
    found = (COMMIT.fullmatch(path) for path in scene.objects)
    return {int(each.group(2)) for each in found if each and each.group(1) == place}


def versions_told(steps: list[RedirectStep], place: str) -> Iterator[int]:
    """Yield the versions that steps commit to a place."""
    for step in steps:
        values = step.values
        if step.op == "commit" and values["table"] == place:
            yield values["version"]
        if step.op == "copy_commits" and values["to"] == place:
            yield from range(values["from_version"], values["to_version"] + 1)


def is_data(path: str) -> bool:
    """Tell whether an object isn't one of a log."""
    return "/_delta_log/" not in path


def left_by(scene: Scene, command: Command) -> Iterator[Scene]:
    """Yield the scene, and each that a command leaves which is broken off, and its end; once."""
    seen = {scene.key}
    yield scene
    clean = run(scene, command)
    assert clean.refused is None
    for call in clean.calls:
        if call.verb not in CHANGES:
            continue
        for fault in (Fault.STOP_BEFORE, Fault.STOP_AFTER):
            left = run(scene, command, fault=partial(_at, call.index, fault)).after
            if left.key not in seen:
                seen.add(left.key)
                yield left
    if clean.after.key not in seen:
        yield clean.after


def _at(index: int, fault: Fault, call: StoreCall) -> Fault | None:
    return fault if call.index == index else None


# ------------------------------------------------------------------------------- what moves


@dataclass(frozen=True)
class Way:
    """A table, and how it is to move."""

    request: Request
    past: History = PAST
    copied: bool = False

    @property
    def scene(self) -> Scene:
        """What is there before."""
        table = world_with(self.past)
        there = inside("new", below(table, "old")) if self.copied else {}
        return Scene(table | there)

    def enable(self, setting: Setting) -> Outcome:
        """Move the table."""
        return enabling.enable(setting, self.request)


def in_catalog(kind: TargetKind, data: Data = Data.COPY) -> Request:
    """Return the request to move a table to a name."""
    target = RedirectTarget(kind, name=NAME)
    return Request(OLD, target, NEW, Mode.READER_WRITER, data, dialects=(Dialect.RFC,))


WAYS = {
    "copy": Way(request_for(rules=RULES)),
    "reference": Way(request_for(data=Data.REFERENCE, mode=Mode.WRITER_ONLY)),
    "existing": Way(request_for(data=Data.EXISTING), copied=True),
    "sql": Way(in_catalog(TargetKind.SQL)),
    "unity": Way(in_catalog(TargetKind.UNITY, Data.REFERENCE)),
    "vectors": Way(VECTORS.request, VECTORS.past),
    "sidecars": Way(SIDECARS.request, SIDECARS.past),
    "absolute": Way(ABSOLUTE.request, ABSOLUTE.past),
    "cleaned": Way(CLEANED.request, CLEANED.past),
}


def resume(setting: Setting) -> Outcome:
    return resuming.resume(setting, OLD)


def take_back(setting: Setting) -> Outcome:
    return cancel.cancel(setting, OLD)


def leave_copies(setting: Setting) -> Outcome:
    return cancel.cancel(setting, OLD, leave_copies=True)


def withdraw(setting: Setting, **options: bool | Data) -> Outcome:
    return disabling.disable(setting, OLD, WithdrawalOptions(**options))  # type: ignore[arg-type]


REMOVES = partial(withdraw, remove_target=True)
BRINGS = partial(withdraw, bring_back=True)
BY_REFERENCE = partial(withdraw, data=Data.REFERENCE)
ABANDONS = partial(withdraw, abandon_target=True)


def commands(way: Way) -> dict[str, Command]:
    """Return all that a person might run next."""
    elsewhere = replace(
        way.request, target=RedirectTarget(TargetKind.OBJECT_STORE, OTHER), location=OTHER
    )
    replacing = replace(way.request, replace_closed=True)
    return {
        "enable": way.enable,
        "enable elsewhere": lambda setting: enabling.enable(setting, elsewhere),
        "enable again": lambda setting: enabling.enable(setting, replacing),
        "resume": resume,
        "cancel": take_back,
        "cancel --leave-copies": leave_copies,
        "disable": withdraw,
        "disable --remove-target": REMOVES,
        "disable --bring-back": BRINGS,
        "disable --data reference": BY_REFERENCE,
        "disable --abandon-target": ABANDONS,
        "freeze": lambda setting: freeze.freeze(setting, OLD),
        "thaw": lambda setting: freeze.thaw(setting, OLD),
    }


def moved(way: Way, rows: int = 2) -> Scene:
    """Return what is there after a move, with rows that were written at the target since."""
    after = run(way.scene, way.enable).after

    def write(setting: Setting) -> None:
        for number in range(rows):
            append(setting.log(NEW), f"row-{number}.parquet")

    return run(after, write, hours=2).after


def check_all(scenes: Iterator[Scene], way: Way, share: Share, told: set[str]) -> None:
    """Check this run's share of all commands in all scenes.

    Where that is all of them, steps by these names were told.
    """
    found: set[str] = set()
    cases = ((scene, *named) for scene in scenes for named in commands(way).items())
    for scene, name, command in share.each(cases):
        said = agrees(scene, command)
        if isinstance(said, list):
            found |= {f"{name}: {step['op']}" for step in said}
    assert told <= found or not share.is_whole


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_dry_run_of_what_may_follow_a_move_says_what_is_done(way: Way, share: Share) -> None:
    told = {"enable: commit", "resume: commit", "cancel: commit", "disable: commit"}
    check_all(left_by(way.scene, way.enable), way, share, told)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_dry_run_of_what_may_follow_a_withdrawal_says_what_is_done(
    way: Way, share: Share
) -> None:
    scenes = left_by(moved(way), BRINGS if way.copied else REMOVES)
    check_all(scenes, way, share, {"disable: commit"})


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_dry_run_of_what_may_follow_a_cancel_says_what_is_done(way: Way, share: Share) -> None:
    # The last scene of a move that can still be taken back.
    begun = next(
        scene
        for scene in reversed([*left_by(way.scene, way.enable)])
        if isinstance(agrees(scene, take_back), list)
    )
    check_all(left_by(begun, take_back), way, share, {"enable: commit"})
