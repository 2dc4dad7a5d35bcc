"""Lists the objects that a dataset needs.

An ODF dataset needs the objects that the chain from its head names. A Delta table needs those
that its log names. Of a table only files that a push may have put are checked: another writer may
have put files there that it hasn't committed yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import pyarrow as pa

from lakeferry.errors import Diverged
from lakeferry.storage import Store
from lakeferry.storage.folder import FolderStore
from lakeferry.table import load
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets.delta import publishing_commits
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.odf import OdfDataset

_BATCH_ROWS = 16_384


class Untold(Exception):
    """It is unknown at present what a dataset needs."""


class Reaching(Protocol):
    """A dataset, as garbage collection sees it."""

    def finish(self) -> None:
        """Finish a commit whose process has ended in the middle, or drop it if it can't be."""

    def head(self) -> Multihash | None:
        """Return the hash of the last block."""

    def reached(self, paths: Collection[str], since: Multihash | None) -> set[str]:
        """Return those of the paths that the dataset needs now, or raise :class:`Untold`.

        The chain up to ``since`` isn't read: the objects at these paths didn't exist when that
        was the head.
        """


@dataclass(frozen=True, slots=True)
class OdfReach:
    """Everything that the chain of an ODF dataset reaches; see :class:`~lakeferry.engine.Reach`."""

    folder: str
    head: Multihash | None

    def paths(self, store: Store) -> Iterator[pa.RecordBatch]:
        """Yield the paths of the chain's blocks and of their objects."""
        if self.head is None:
            return
        names = _needed(OdfDataset(store, self.folder), self.head, None)
        while batch := list(islice(names, _BATCH_ROWS)):
            yield pa.RecordBatch.from_arrays([pa.array(batch, pa.string())], ["path"])


class OdfReaching:
    """An ODF dataset as :class:`Reaching`."""

    def __init__(self, store: Store, folder: str) -> None:
        """Set the folder."""
        self._dataset = OdfDataset(store, folder)

    def finish(self) -> None:
        """Do nothing: a commit is one call."""

    def head(self) -> Multihash | None:
        """Return the hash of the last block."""
        return self._dataset.head()

    def reached(self, paths: Collection[str], since: Multihash | None) -> set[str]:
        """Return what blocks after ``since`` need; or what all need if it isn't in the chain."""
        head = self._dataset.head()
        if head is None or head == since:
            return set()
        wanted = set(paths)
        try:
            return {name for name in _needed(self._dataset, head, since) if name in wanted}
        except Diverged:
            return {name for name in _needed(self._dataset, head, None) if name in wanted}


class DeltaReaching:
    """A Delta table as :class:`Reaching`.

    While its chain is behind its log, or a run is being published, the answer is unknown. The
    next push or pull updates the chain.
    """

    def __init__(self, store: Store, folder: str) -> None:
        """Set the folder."""
        self._dataset = DeltaDataset(store, folder)
        self._table = FolderStore(store, folder)

    def finish(self) -> None:
        """Publish a run that was left unfinished: its objects were checked, and nobody may come."""
        self._dataset.finish()

    def head(self) -> Multihash | None:
        """Return the hash of the last block."""
        return self._dataset.head()

    def reached(self, paths: Collection[str], since: Multihash | None) -> set[str]:
        """Return what versions after ``since`` name; if it isn't in the chain, what all name."""
        if publishing_commits.is_declared(self._table):
            raise Untold
        head = self._dataset.head()
        version = 0 if head is None else self._version(head)
        log = load.list_log(self._table, version)
        is_told = log.is_empty if head is None else log.newest_version == version
        if not is_told:
            raise Untold
        if head is None or head == since:
            return set()
        wanted = set(paths)
        try:
            return {name for name in _needed(self._dataset, head, since) if name in wanted}
        except Diverged:
            # The log may still have versions that aren't in the chain any more.
            return wanted

    def _version(self, head: Multihash) -> int:
        return self._dataset.parse(self._dataset.block(head), head).sequence_number


def _needed(
    dataset: OdfDataset | DeltaDataset, head: Multihash, since: Multihash | None
) -> Iterator[str]:
    for _, block in dataset.walk(head, since):
        yield dataset.block_path(block.hash)
        for ref in block.objects:
            yield dataset.place(ref)
