"""The dataset at a local path or URI: opens what is there, or creates it.

An ODF dataset, a Delta table, or nothing yet. The first block that is received decides the kind
of a new dataset.
"""

from __future__ import annotations

from lakeferry.engine import Observer, unobserved
from lakeferry.errors import Diverged, LakeferryError, NotATable, RedirectSpecInvalid, TableNotFound
from lakeferry.log import paths
from lakeferry.redirect import dialects, read_entry, received_entries
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.table.misnamed import is_file, table_above
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.datasets.dataset import DatasetFormat
from lakeferry.transfer.datasets.delta import version_blocks
from lakeferry.transfer.datasets.delta.blocks_of_log import Choose
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset, FinishedRun
from lakeferry.transfer.datasets.odf import FOLDERS, OdfDataset

_ODF_FOLDERS = {"blocks", "refs", "info", *FOLDERS.values()}


def kind_of_block(data: bytes) -> DatasetFormat:
    """Return the kind of dataset of a block; unknown bytes are ODF's, whose reader refuses them."""
    return DatasetFormat.DELTA if version_blocks.is_version_block(data) else DatasetFormat.ODF


def arrived_entry(store: Store) -> str | None:
    """Return the property of a redirect entry that a table received, or ``None``."""
    try:
        state = DeltaLog(store).state()
        names = [name for name in dialects.PROPERTIES if name in state.metadata.configuration]
        # An entry that was set here needs no warning.
        redirect = read_entry.read(state.protocol, state.metadata, store.uri) if names else None
        if redirect is not None and received_entries.counts(store, redirect):
            return None
    except RedirectSpecInvalid:
        return names[0]
    except LakeferryError:
        # Another kind of dataset, or a store that fails now: the pull succeeded all the same.
        return None
    return names[0] if names else None


class Here:
    """The dataset at a store's root, of either kind."""

    def __init__(
        self, store: Store, choose: Choose | None = None, observer: Observer = unobserved
    ) -> None:
        """Set the store; ``choose`` returns the engine that reads a table's files for digests."""
        self.store = store
        self._choose = choose
        self._observer = observer
        self._dataset: OdfDataset | DeltaDataset | None = None

    def look(self, *, must_exist: bool) -> None:
        """Find out the kind; refuse a place with other files, or an empty one if it must exist.

        Leftovers of an unfinished pull are allowed: objects of an ODF dataset, or the mark of a
        table that was to be created.
        """
        store = self.store
        if next(store.list(f"{paths.LOG_DIR}/"), None) is not None:
            self.settle(DatasetFormat.DELTA)
            return
        if OdfDataset(store, "").head() is not None:
            self.settle(DatasetFormat.ODF)
            return
        first = next(store.list(""), None)
        if first is None and not must_exist:
            return
        if first is None and not store.is_occupied():
            raise TableNotFound(f"nothing is at {store.uri}", remedy="check the path")
        if must_exist:
            above = table_above(store)
            raise NotATable(
                f"{store.uri} is neither a Delta table nor an ODF dataset",
                cause="it is a file" if is_file(store) else "it has no _delta_log and no refs/head",
                remedy="give the folder that holds _delta_log, or blocks/, data/ and refs/"
                if above is None
                else f"give the table's folder instead: {above}",
            )
        if first is None or first.path.partition("/")[0] not in _ODF_FOLDERS:
            file = is_file(store)
            raise NotATable(
                f"can't pull into {store.uri}",
                cause="it is a file"
                if file
                else "it has files in it that belong to no Delta table and no ODF dataset",
                remedy="pull into a folder that is empty or doesn't exist yet",
            )

    def settle(self, kind: DatasetFormat) -> None:
        """Set the dataset's kind; ``Diverged`` if there is a dataset of the other kind."""
        if self._dataset is None:
            if kind is DatasetFormat.DELTA:
                self._dataset = DeltaDataset(self.store, "", self._choose, observer=self._observer)
            else:
                self._dataset = OdfDataset(self.store, "")
        elif self._dataset.kind is not kind:
            raise Diverged(
                f"{self.store.uri} is another kind of dataset",
                cause=f"it is a {self._dataset.kind.value} dataset, and the other end has "
                f"a {kind.value} one",
                remedy="choose another place",
            )

    @property
    def dataset(self) -> OdfDataset | DeltaDataset:
        """The dataset, once its kind is known."""
        assert self._dataset is not None
        return self._dataset

    @property
    def finished(self) -> FinishedRun | None:
        """The unfinished run of an earlier transfer, after :meth:`current` has finished it."""
        return self._dataset.finished if isinstance(self._dataset, DeltaDataset) else None

    def place(self, ref: ObjectRef) -> str:
        """Return the path of an object in the store."""
        return self.dataset.place(ref)

    def current(self) -> Multihash | None:
        """Return the head, up to date; ``None`` if there is no dataset."""
        return self._dataset.current() if self._dataset is not None else None
