"""What ``inspect`` asks of a store, and what it says of checkpoints."""

from __future__ import annotations

from lakeferry.api import inspection
from lakeferry.catalogs.managed_tables import DOCUMENTED_PROPERTIES
from tests.support.history import (
    Append,
    Checkpoint,
    History,
    Kind,
    Layout,
    SetProperties,
    Upgrade,
)
from tests.support.managed_history import BECOMES_MANAGED, managed_history

V2 = Layout(v2_checkpoints=True)
REQUIRED = (
    *BECOMES_MANAGED,
    Upgrade(reader=("v2Checkpoint", "deletionVectors")),
    SetProperties(tuple(DOCUMENTED_PROPERTIES.items())),
)
"""A table becomes one that has all that Unity Catalog requires."""


def with_checkpoints(count: int) -> History:
    steps = [step for _ in range(count) for step in (Append(4), Checkpoint(Kind.V2_PARQUET))]
    return History(V2).then(*steps)


def test_the_number_of_checkpoints_doesn_t_decide_the_number_of_requests() -> None:
    bound = inspection.EXAMINED_CHECKPOINTS
    asked = []
    for count in (bound, 3 * bound):
        store = with_checkpoints(count).store()
        store.calls.reset()
        found = inspection.inspect(store)
        asked.append(len(store.calls.log))
        states = [each.complete for each in found.checkpoints]
        assert states == [None] * (count - bound) + [True] * bound
        assert found.warnings == ()
    assert asked[0] == asked[1]
    assert asked[0] < bound + 15


def test_a_sidecar_that_is_missing_makes_a_checkpoint_incomplete() -> None:
    store = with_checkpoints(2).store()
    sidecars = sorted(name for name in store.objects if "_sidecars" in name)
    store.delete_many([sidecars[0]])
    states = {each.version: each.complete for each in inspection.inspect(store).checkpoints}
    assert set(states.values()) == {False, True}


def test_a_checkpoint_under_another_version_s_name_is_none() -> None:
    store = with_checkpoints(2).store()
    (name, data), *_ = [
        (name, data) for name, data in store.objects.items() if ".checkpoint." in name
    ]
    other = name.replace(f"{1:020d}", f"{0:020d}")
    store.delete_many([name])
    store.put(other, data)
    states = {each.version: each.complete for each in inspection.inspect(store).checkpoints}
    assert states == {0: False, 2: True}


def test_a_managed_table_is_complete_for_who_asks_its_catalog() -> None:
    timed = Layout(in_commit_timestamps=True)
    table = managed_history(History(timed).then(Append(1), *REQUIRED, Append(1)))
    whole = inspection.inspect(table.store())
    assert (whole.warnings, whole.num_files) == ((), 2)
    alone = inspection.inspect(table.objects)
    assert alone.version == whole.version - 1
    assert [each.code for each in alone.warnings] == ["unsupported_feature"]


def test_what_a_managed_table_lacks_is_told_with_the_command_that_sets_it() -> None:
    timed = Layout(in_commit_timestamps=True)
    lost = SetProperties((("delta.checkpointPolicy", "classic"),))
    table = managed_history(History(timed).then(*REQUIRED, lost, Append(1)))
    (found,) = inspection.inspect(table.store()).warnings
    assert found.code == "managed_requirements_missing"
    statement = "SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')"
    assert statement in found.message
    assert inspection.inspect(table.store(), 2).warnings == ()

    bare = managed_history(History(timed).then(*BECOMES_MANAGED, Append(1)))
    (found,) = inspection.inspect(bare.store()).warnings
    assert "the table features v2Checkpoint, deletionVectors and the properties" in found.message
    assert "'delta.feature.v2Checkpoint' = 'supported'" in found.message
