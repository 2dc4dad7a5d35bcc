"""The engine of a dry run: it copies nothing, and what it would have copied counts as there."""

from __future__ import annotations

from collections.abc import Callable

from lakeferry.engine import CheckPlan, CopyPlan, Engine, LogCopy, LogCopyPlan, ReplayPlan
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.rehearsed_engine import rehearsed
from lakeferry.log import paths
from lakeferry.log.rewrite import Absolute, Adopted, Unchanged
from lakeferry.log.segment import Segment
from lakeferry.storage import StoreConfig
from lakeferry.storage.overlay import Overlay
from lakeferry.table import DeltaLog
from tests.support.history import Append, History
from tests.support.places import opener
from tests.support.redirects import NEW, OLD, WORLD, append, world_with
from tests.support.stores import DictStore, FaultyStore

CHANGES = {"PUT", "PUT_IF_ABSENT", "SWAP", "COPY", "UTIME", "DELETE"}


class Rehearsal:
    """A dry run in a world: the places it has opened, and how often the real engine was asked."""

    def __init__(self) -> None:
        world = DictStore(
            world_with(History().then(Append(2), Append(1)), with_data=True), uri=WORLD
        )
        self.asked = FaultyStore(world)
        self.opened = opener(self.asked)
        self.places = {uri: Overlay(self.opened(uri)) for uri in (OLD, NEW)}
        self.wanted: list[tuple[int, int, bool]] = []
        self.choose: Callable[..., Engine] = rehearsed(self._real, self._place)

    def _real(self, objects: int, size_bytes: int, urgent: bool = False) -> Engine:
        self.wanted.append((objects, size_bytes, urgent))
        return LocalEngine(self.opened, parallel=1)

    def _place(self, config: StoreConfig) -> Overlay:
        return self.places[config.uri]

    @property
    def written(self) -> list[str]:
        return [call.verb for call in self.asked.history if call.verb in CHANGES]


def test_what_was_copied_is_there_and_nothing_is_read_or_written() -> None:
    world = Rehearsal()
    old, new = world.places[OLD], world.places[NEW]
    segment = DeltaLog(old).segment()
    engine = world.choose(3, 100)
    check = CheckPlan(old.config, segment, Adopted(OLD), new.config)
    assert engine.check(check).missing_count == 3
    assert world.wanted == [(3, 100, False)]
    before = len(world.asked.history)
    copied = engine.copy(CopyPlan(old.config, new.config, segment, Adopted(OLD)))
    assert (copied.objects, copied.bytes, copied.missing_count) == (0, 0, 0)
    assert world.choose(1, 1, True).check(check).missing_count == 0
    assert len(world.asked.history) == before
    assert world.written == []


def test_a_log_is_copied_by_name_and_rewritten_when_it_is_read() -> None:
    world = Rehearsal()
    old, new = world.places[OLD], world.places[NEW]
    listing = DeltaLog(old).listing()
    files = [listing.commits[version] for version in sorted(listing.commits)]
    before = len(world.asked.history)
    plan = LogCopyPlan(
        old.config,
        new.config,
        tuple(LogCopy(each.path, each.path, size_bytes=each.size_bytes) for each in files),
        Absolute(OLD),
    )
    sizes = world.choose(1, 1).copy_log(plan)
    assert sizes == tuple(each.size_bytes for each in files)
    assert len(world.asked.history) == before
    assert OLD.encode() in new.get(paths.commit(1))
    with world.choose(1, 1).replay(ReplayPlan(new.config, DeltaLog(new).segment())) as found:
        assert found.totals.num_files == 3
    assert (world.wanted, world.written) == ([], [])


def test_a_log_that_has_changed_in_memory_is_checked_with_what_came_there() -> None:
    world = Rehearsal()
    old, new = world.places[OLD], world.places[NEW]
    version = append(DeltaLog(old), "more.parquet")
    whole = CheckPlan(old.config, DeltaLog(old).segment(), Unchanged(), old.config)
    assert world.choose(1, 1).check(whole).missing_count == 0
    old.delete_many(["more.parquet"])
    assert world.choose(1, 1).check(whole).missing == ("more.parquet",)
    # The file comes back from another place, whose log names it too.
    commit = paths.commit(version)
    new.put(commit, old.get(commit))
    (file,) = (each for each in whole.segment.deltas if each.path == commit)
    back = Segment(version, None, (file,), None, None)
    world.choose(1, 1).copy(CopyPlan(new.config, old.config, back, Unchanged()))
    assert world.choose(1, 1).check(whole).missing_count == 0
    assert (world.wanted, world.written) == ([], [])
