"""Several places in one store: what several tables, and a table that moves, need.

A :class:`Place` is a store below a folder of another store. Places of one store
share its clock, its counters and its faults, so a test can let the n-th call of a
procedure go wrong wherever it is made, and a simulation can interleave calls to
all of them::

    world = FaultyStore(DictStore(uri="memory://world"), at(7, Fault.STOP_AFTER))
    opened = opener(world)
    opened("memory://world/old"), opened("memory://world/new")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakeferry.storage import Store, StoreConfig
from lakeferry.storage.folder import FolderStore
from lakeferry.storage.uris import relative_name, same_place

Place = FolderStore
"""The objects of another store whose names begin with a folder."""


def opener(whole: Store) -> Callable[[str | StoreConfig], Store]:
    """Return what opens any place in ``whole``, by its URI or by its configuration."""

    def opened(place: str | StoreConfig) -> Store:
        uri = place if isinstance(place, str) else place.uri
        folder = relative_name(whole.uri, uri)
        if folder is None and not same_place(uri, whole.uri):
            raise AssertionError(f"{uri} isn't in {whole.uri}")
        return whole if folder is None else Place(whole, folder)

    return opened


def below(objects: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    """Return those of the objects that are in a folder, by their names below it."""
    lead = f"{folder}/"
    return {name[len(lead) :]: data for name, data in objects.items() if name.startswith(lead)}


def inside(folder: str, objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return objects by the names that they have above their folder."""
    return {f"{folder}/{name}": data for name, data in objects.items()}
