"""Lists the datasets of a root, a page at a time.

A page costs a few requests for each dataset on it, whatever is in the dataset: heads are read, and
sizes are read where somebody has kept them. What would have to be computed is ``None``: the head of
a table that was written since its last transfer, and the size of a dataset that didn't come by a
push.

Datasets are in the order of their names, where an account's datasets come after the names that
begin with the account's name and a character before ``/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from heapq import merge
from itertools import islice
from typing import Any

import msgspec

from lakeferry.errors import LakeferryError, ObjectNotFound
from lakeferry.log import paths
from lakeferry.log.checksum import decode_size
from lakeferry.storage.folder import FolderStore
from lakeferry.storage.parallel_calls import concurrently
from lakeferry.table import load
from lakeferry.transfer.datasets.dataset import DatasetFormat
from lakeferry.transfer.datasets.delta import publishing_commits
from lakeferry.transfer.repository.dataset_folders import FolderTable
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.dataset_sizes import kept_size
from lakeferry.transfer.repository.repository import (
    Repository,
    Visibility,
    is_name,
    subfolders,
)

PAGE_DATASETS = 100
MOST_LOOKED_AT = 1_000
"""Most names of a page that are looked at, for a client that may see few of them."""
_PROBED_AT_ONCE = 16
_LARGEST_CHECKSUM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ListedDataset:
    """A dataset as ``lakeferry ls`` shows it; what isn't known is ``None``."""

    name: str
    kind: str
    head: str | None
    blocks: int | None
    """The number of the last block, plus one: versions before a table's oldest one count, too."""
    bytes: int | None
    """Of an ODF dataset, all objects; of a Delta table, the files of the newest version."""
    visibility: str

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``datasets`` in the JSON document."""
        return asdict(self)


# For those who convert a server's answer to one: see tests/unit/test_decoders.py.
_PREPARED = msgspec.json.Decoder(ListedDataset)


@dataclass(frozen=True, slots=True)
class DatasetPage:
    """Some datasets in a row; the next page begins after the name ``next``."""

    datasets: tuple[ListedDataset, ...]
    next: str | None


def list_datasets(
    repository: Repository,
    *,
    after: str | None = None,
    limit: int = PAGE_DATASETS,
    sees: Callable[[DatasetName, Visibility], bool] | None = None,
) -> DatasetPage:
    """Return a page of datasets; with ``sees``, only those for which it returns True.

    If a client doesn't see all datasets, ``next`` is the name of one that it sees, so a page may
    end early: after :data:`MOST_LOOKED_AT` names none of which it sees, the list is over.
    """
    names = _Names(repository, repository.folders.read())
    shown: dict[str, Visibility] = {}
    looked_at, is_cut = 0, False
    each = names.after(after)
    while not is_cut and (group := list(islice(each, _PROBED_AT_ONCE))):
        seen = concurrently(lambda text: repository.visibility(names.folder(text)), group)
        for name, visibility in zip(group, seen, strict=True):
            is_cut = len(shown) == limit or (sees is not None and looked_at == MOST_LOOKED_AT)
            if is_cut:
                break
            looked_at += 1
            if sees is None or sees(DatasetName(name), visibility):
                shown[name] = visibility

    def described(name: str) -> ListedDataset:
        return _described(repository, name, names.folder(name), shown[name])

    found = tuple(concurrently(described, list(shown)))
    return DatasetPage(found, found[-1].name if is_cut and found else None)


def one_dataset(repository: Repository, name: DatasetName) -> ListedDataset | None:
    """Return the dataset with a name, or ``None`` if there is none."""
    folder = repository.folders.folder(name)
    if folder is None or repository.kind(folder) is None:
        return None
    return _described(repository, name.text, folder, repository.visibility(folder))


def _described(
    repository: Repository, name: str, folder: DatasetName, visibility: Visibility
) -> ListedDataset:
    """Return what is known of a dataset without much work."""
    kind = repository.kind(folder) or DatasetFormat.DELTA
    state: _DatasetState = (None, None, None)
    # A damaged dataset is in the list, too.
    with suppress(LakeferryError):
        is_odf = kind is DatasetFormat.ODF
        state = (_odf_state if is_odf else _delta_state)(repository, folder)
    return ListedDataset(name, kind.value, *state, visibility.value)


_DatasetState = tuple[str | None, int | None, int | None]


def _odf_state(repository: Repository, folder: DatasetName) -> _DatasetState:
    dataset = repository.odf(folder)
    head = dataset.head()
    if head is None:
        return None, None, None
    blocks = dataset.parse(dataset.block(head), head).sequence_number + 1
    return head.text, blocks, kept_size(repository, folder, head)


def _delta_state(repository: Repository, folder: DatasetName) -> _DatasetState:
    """Return the state of a table whose chain is complete."""
    dataset = repository.delta(folder)
    table = FolderStore(repository.store, folder.text)
    head = dataset.head()
    if head is None or publishing_commits.is_declared(table):
        return None, None, None
    version = dataset.parse(dataset.block(head), head).sequence_number
    if load.list_log(table, version).newest_version != version:
        return None, None, None
    return head.text, version + 1, _size_in_checksum(table, version)


def _size_in_checksum(table: FolderStore, version: int) -> int | None:
    try:
        data = table.get_range(paths.checksum(version), 0, _LARGEST_CHECKSUM_BYTES + 1)
    except ObjectNotFound:
        return None
    return decode_size(data) if len(data) <= _LARGEST_CHECKSUM_BYTES else None


class _Names:
    """The names of a root's datasets, looked at in groups."""

    def __init__(self, repository: Repository, table: FolderTable) -> None:
        self._repository = repository
        self.table = table

    def folder(self, name: str) -> DatasetName:
        """Return the folder of a dataset that was found."""
        folder = self.table.folder(DatasetName(name))
        assert folder is not None
        return folder

    def after(self, after: str | None) -> Iterator[str]:
        """Yield the names of existing datasets behind a name, in order."""
        begin = "" if after is None else f"{after}/"
        names = sorted(self.table.named, key=_order)
        renamed = (name for name in names if _order(name) > begin.encode())
        return merge(self._unrenamed(begin), self._existing(renamed), key=_order)

    def _existing(self, names: Iterator[str]) -> Iterator[str]:
        """Yield those of the names that datasets have."""
        while group := list(islice(names, _PROBED_AT_ONCE)):
            there = concurrently(self._is_dataset, group)
            yield from (name for name, is_one in zip(group, there, strict=True) if is_one)

    def _is_dataset(self, name: str) -> bool:
        folder = self.table.folder(DatasetName(name))
        return folder is not None and self._repository.kind(folder) is not None

    def _unrenamed(self, begin: str) -> Iterator[str]:
        """Yield the names of datasets whose folders have their names."""
        store = self._repository.store
        firsts = (
            first
            for first in sorted(filter(is_name, subfolders(store, "")), key=_order)
            if not self.table.is_occupied(first)
            and (_order(first) > begin.encode() or begin.startswith(f"{first}/"))
        )
        while group := list(islice(firsts, _PROBED_AT_ONCE)):
            there = concurrently(self._is_unrenamed, group)
            for first, is_one in zip(group, there, strict=True):
                if is_one:
                    yield from (each for each in (first,) if _order(each) > begin.encode())
                else:
                    yield from self._inside(first, begin)

    def _inside(self, account: str, begin: str) -> Iterator[str]:
        folders = subfolders(self._repository.store, f"{account}/")
        names = sorted(filter(is_name, (f"{account}/{each}" for each in folders)), key=_order)
        later = (each for each in names if _order(each) > begin.encode())
        while group := list(islice(later, _PROBED_AT_ONCE)):
            there = concurrently(self._is_unrenamed, group)
            yield from (name for name, is_one in zip(group, there, strict=True) if is_one)

    def _is_unrenamed(self, name: str) -> bool:
        return name not in self.table.named and self._is_dataset(name)


def _order(name: str) -> bytes:
    return f"{name}/".encode()
