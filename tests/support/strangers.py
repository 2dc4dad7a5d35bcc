"""Tables that take the place of a redirect's target, in a world in memory.

The table has moved with three versions of its own: ENABLING is version 3, READY and the
commit that opened the target version 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from lakeferry.log import paths
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data, Mode
from lakeferry.redirect.redirect_context import Setting
from tests.support.history import Append, Checkpoint, DeleteRows, History, Layout
from tests.support.places import below, inside
from tests.support.redirects import NEW, WORLD, append, request_for, setting_of, world_with
from tests.support.stores import DictStore

PAST = History(Layout(deletion_vectors="u")).then(Append(2), Checkpoint(), DeleteRows(1))
READY = 4
Objects = dict[str, bytes]


def world() -> DictStore:
    """Return a world in which the table hasn't moved yet."""
    return DictStore(world_with(PAST, with_data=True), uri=WORLD)


def moved(data: Data = Data.COPY, mode: Mode = Mode.READER_WRITER) -> tuple[DictStore, Setting]:
    """Return a world in which a table has moved, and two rows were written since."""
    store = world()
    setting = setting_of(store)
    enabling.enable(setting, request_for(data=data, mode=mode))
    append(setting.log(NEW), "x.parquet")
    append(setting.log(NEW), "y.parquet")
    return store, setting


def replace_target(store: DictStore, objects: Objects) -> None:
    """Delete the target, and put another table in its place."""
    replace_table(store, "new", objects)


def replace_table(store: DictStore, folder: str, objects: Objects) -> None:
    """Delete the table in a folder, and put another one in its place."""
    store.delete_many([name for name in store.objects if name.startswith(f"{folder}/")])
    for name, data in inside(folder, objects).items():
        store.put(name, data)


def stranger(commits: int) -> Objects:
    """Return another table, with another id, that has so many versions."""
    past = History().then(*(Append(1) for _ in range(commits - 1)))
    own = past.objects(NEW, with_data=True)
    return {name: data.replace(b'"id":"', b'"id":"another-') for name, data in own.items()}


@lru_cache
def another_table(commits: int) -> Objects:
    """Return a small table with another id and other files that has so many versions."""
    past = History().then(*(Append(1) for _ in range(commits - 1)))
    found = past.objects(NEW)
    return {
        name.replace("part-", "their-"): data.replace(b'"id":"', b'"id":"another-').replace(
            b'"path":"part-', b'"path":"their-'
        )
        for name, data in found.items()
    }


def older_copy() -> Objects:
    """Return the source as it was before it moved: it has the same id."""
    return below(world_with(PAST, with_data=True), "old")


def source_copy(store: DictStore) -> Objects:
    """Return a copy of the source with its redirect."""
    return below(store.objects, "old")


STRANGERS: dict[str, Callable[[DictStore], Objects]] = {
    "one version": lambda _: stranger(1),
    "as many versions as at READY": lambda _: stranger(READY + 1),
    "as many versions as the target": lambda _: stranger(READY + 3),
    "more versions": lambda _: stranger(20),
    "an older copy of the source": lambda _: older_copy(),
    "a copy of the source": source_copy,
}


def to_existing() -> tuple[DictStore, Setting]:
    """Return a world whose table leads to one that was there before."""
    past = History().then(Append(1), Append(1), Append(1))
    objects = world_with(PAST) | world_with(past, NEW)
    store = DictStore(
        {
            name: data.replace(b'"id":"', b'"id":"own-') if name.startswith("new/") else data
            for name, data in objects.items()
        },
        uri=WORLD,
    )
    setting = setting_of(store)
    enabling.enable(setting, replace(request_for(data=Data.EXISTING), verified=False))
    append(setting.log(NEW), "x.parquet")
    return store, setting


def clean(store: DictStore, setting: Setting) -> None:
    """Leave of the target's log what a cleanup leaves: the newest checkpoint and commit."""
    written = setting.log(NEW).checkpoint()
    keep = {*written.files, paths.commit(written.version), paths.LAST_CHECKPOINT}
    log = [name for name in below(store.objects, "new") if name.startswith("_delta_log/")]
    store.delete_many([f"new/{name}" for name in log if name not in keep])
