"""Lists the datasets of a server or a root, renames and deletes them, sets who may read them.

``place`` is the URL of a server, the name of a remote, or a server's root. At a root, the server
may be running. Names are those of the command line::

    for dataset in lakeferry.ls("https://data.example.com", token=token):
        print(dataset.name, dataset.head)
    lakeferry.rename_dataset("s3://lake/server", "orders", "sales")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import msgspec

from lakeferry.api import remotes
from lakeferry.api.located_table import Plan
from lakeferry.api.remotes import FoundRemote
from lakeferry.catalogs.places import Places
from lakeferry.errors import InvalidInput, StorageUnavailable

if TYPE_CHECKING:
    from lakeferry.transfer.client.remote_root import RemoteRoot
    from lakeferry.transfer.repository.dataset_changes import DatasetChanged as DatasetChanged
    from lakeferry.transfer.repository.dataset_changes import DatasetChanges
    from lakeferry.transfer.repository.dataset_list import ListedDataset
    from lakeferry.transfer.repository.repository import Repository

_SCHEMES = ("http://", "https://", "odf+http://", "odf+https://")
_T = TypeVar("_T")


class DatasetPlace(TypedDict, total=False):
    """How to reach a server, or open a root."""

    token: str | None
    """Default: ``LAKEFERRY_TOKEN``, or the variable of a remote; an empty one means none."""
    storage_options: Mapping[str, str] | None
    """For a root."""
    places: Places
    """Opens the tables elsewhere whose redirects may lead into a root; a command's own."""
    environment: Mapping[str, str] | None
    """Default: the process's own."""


def ls(place: str, **reached: Unpack[DatasetPlace]) -> list[ListedDataset]:
    """Return the datasets of a server that the token may see, or of a root, sorted by name."""
    from lakeferry.transfer.repository.dataset_list import ListedDataset, list_datasets

    server = _server(place, reached)
    if server is not None:
        return [_converted(each, ListedDataset) for each in server.datasets()]
    repository = _repository(place, reached)
    found: list[ListedDataset] = []
    after: str | None = None
    while True:
        page = list_datasets(repository, after=after)
        found += page.datasets
        after = page.next
        if after is None:
            return found


def rename_dataset(
    place: str, name: str, new: str, *, dry_run: bool = False, **reached: Unpack[DatasetPlace]
) -> DatasetChanged | Plan:
    """Give a dataset another name; no object is moved. Needs a token for both names."""
    from lakeferry.transfer.repository.dataset_names import DatasetName

    old_name, new_name = DatasetName.parse(name), DatasetName.parse(new)
    done = _changed(
        place,
        reached,
        lambda server: server.rename(name, new, dry_run=dry_run),
        lambda changes: changes.rename(old_name, new_name, dry_run=dry_run),
    )
    return _told(done, {"op": "rename_dataset", "name": name, "to": new}, dry_run)


def delete_dataset(
    place: str,
    name: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    **reached: Unpack[DatasetPlace],
) -> DatasetChanged | Plan:
    """Delete a dataset: its name is free at once, its objects are deleted by :func:`gc`.

    A table that a redirect leads to is deleted only with ``force``.
    """
    from lakeferry.transfer.repository.dataset_names import DatasetName

    found = DatasetName.parse(name)
    done = _changed(
        place,
        reached,
        lambda server: server.delete(name, force=force, dry_run=dry_run),
        lambda changes: changes.delete(found, force=force, dry_run=dry_run),
    )
    return _told(done, {"op": "delete_dataset", "name": name}, dry_run)


def set_dataset_visibility(
    place: str,
    name: str,
    visibility: str,
    *,
    dry_run: bool = False,
    **reached: Unpack[DatasetPlace],
) -> DatasetChanged | Plan:
    """Set who may read a dataset: ``public`` is everybody, ``private`` whom a token allows it."""
    from lakeferry.transfer.repository.dataset_names import DatasetName
    from lakeferry.transfer.repository.repository import Visibility

    found = DatasetName.parse(name)
    if visibility not in {each.value for each in Visibility}:
        raise InvalidInput(f"{visibility!r} isn't a visibility", remedy="write private or public")
    done = _changed(
        place,
        reached,
        lambda server: server.set_visibility(name, visibility, dry_run=dry_run),
        lambda changes: changes.set_visibility(found, Visibility(visibility), dry_run=dry_run),
    )
    step = {"op": "set_visibility", "name": name, "visibility": visibility}
    return _told(done, step, dry_run)


def _changed(
    place: str,
    reached: DatasetPlace,
    at_server: Callable[[RemoteRoot], object],
    at_root: Callable[[DatasetChanges], DatasetChanged],
) -> DatasetChanged:
    from lakeferry.api.deletion_guard import check_no_path_leads
    from lakeferry.transfer.repository.dataset_changes import DatasetChanged, DatasetChanges
    from lakeferry.transfer.repository.push_records import now_ms

    server = _server(place, reached)
    if server is not None:
        return _converted(at_server(server), DatasetChanged)
    repository = _repository(place, reached)
    places = reached.get("places") or Places(
        reached.get("storage_options"), environment=reached.get("environment")
    )
    guard = partial(check_no_path_leads, places)
    return at_root(DatasetChanges(repository, guard, clock=now_ms))


def _told(done: DatasetChanged, step: dict[str, Any], dry_run: bool) -> DatasetChanged | Plan:
    if not dry_run:
        return done
    return Plan([step] if done.changed else [])


def _server(place: str, reached: DatasetPlace) -> RemoteRoot | None:
    """Return the server at a place; ``None`` if the place is a root."""
    environment = reached.get("environment")
    found = FoundRemote(place)
    if not place.lower().startswith(_SCHEMES):
        if not _is_remote(place, environment):
            return None
        found = remotes.find_remote(place, environment, token=reached.get("token"))
    from lakeferry.transfer.client.remote_root import RemoteRoot

    return RemoteRoot(found.url, remotes.token_for(found, reached.get("token"), environment))


def _is_remote(place: str, environment: Mapping[str, str] | None) -> bool:
    """Return True if a place is the name of a remote; refuse a name that a folder has, too."""
    if "/" in place or not remotes.is_remote(place, environment):
        return False
    if Path(place).exists():
        raise InvalidInput(
            f"{place} is the name of a remote and of a folder here",
            remedy=f"write ./{place} for the folder, or the URL that 'lakeferry remote list' shows",
        )
    return True


def _repository(place: str, reached: DatasetPlace) -> Repository:
    from lakeferry.transfer.repository.repository import Repository, check_root, open_root

    store = open_root(place, reached.get("storage_options") or {})
    check_root(store)
    return Repository(store)


def _converted(document: object, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as wrong:
        raise StorageUnavailable(
            "the server's answer can't be read",
            cause=str(wrong),
            remedy="compare the versions of Lakeferry at both ends",
        ) from wrong
