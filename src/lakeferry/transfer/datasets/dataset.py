"""``Dataset``: what every dataset can do.

A dataset is a chain of blocks (:mod:`.stored_chain`) and the objects that the blocks name.

Each kind of dataset defines the format of blocks, the paths of objects and what a commit does:
:mod:`lakeferry.transfer.datasets.odf`, :mod:`lakeferry.transfer.datasets.delta.delta_dataset`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, Protocol, TypeAlias

from lakeferry.errors import (
    CommitConflict,
    CommitStateUnknown,
    Diverged,
    HashMismatch,
    MissingFile,
    StorageError,
    StorageUnavailable,
)
from lakeferry.storage import Store
from lakeferry.transfer.chain.hashes import Digest, Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.datasets.checkpoint_notes import NOTHING, Beside
from lakeferry.transfer.datasets.stored_chain import HEAD, B, StoredChain
from lakeferry.transfer.datasets.stored_sizes import stored_sizes

DATASET_CHUNK_BYTES = 1 << 20


_WRITTEN_AT_ONCE = 1_000
_SHOWN = 10

Run: TypeAlias = Sequence[tuple[Multihash, bytes]]
"""Blocks with the names under which they were received, oldest first."""


class DatasetFormat(Enum):
    """The kind of a dataset."""

    DELTA = "delta"
    ODF = "odf"


class ObjectPlaces(Protocol):
    """Knows the path of an object in a store."""

    def place(self, ref: ObjectRef) -> str:
        """Return the path of an object."""


class OtherDataset(Diverged):
    """The blocks of another dataset would replace this one's."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A run of blocks that may follow a head, and the objects that it names.

    ``optional`` objects aren't needed by any version that is left when the run ends, and may be
    missing for ever. ``begins`` is set if the run is a chain of its own.
    """

    count: int
    required: tuple[ObjectRef, ...]
    optional: tuple[ObjectRef, ...] = ()
    begins: bool = False
    assumed: tuple[str, ...] = ()
    """Paths in the dataset of objects that must exist already."""
    beside: Beside = NOTHING
    """What the sender has beside the run and no block names."""


class PartEnds:
    """Follows a run while it is sent, and says where a part may end: here, after any block."""

    @property
    def may_end(self) -> bool:
        """Return True if the part may end after the last block that was taken."""
        return True

    @property
    def absent(self) -> set[ObjectRef]:
        """Return objects that don't exist any more and aren't needed at the part's end."""
        return set()

    def take(self, block: Any) -> None:
        """Continue with the next block."""


class Dataset(StoredChain[B]):
    """A dataset below a folder of a store, existing or not; ``""`` is the store's root."""

    kind: DatasetFormat
    places_prove_objects: bool
    """True if an object's path contains its hash, so that a stored object has the right bytes."""
    is_replaced_at_once: bool
    """True if force replaces the content in one version, so that the run can't be divided."""
    unfinished: Exception | None = None
    """Why the last commit, which succeeded, left something for the next command to finish."""

    # --- What each kind defines ------------------------------------------------------

    @abstractmethod
    def place(self, ref: ObjectRef) -> str:
        """Return the path of an object in the store."""

    @abstractmethod
    def address(self, ref: ObjectRef) -> str:
        """Return an object's path below the URL of a server whose root has this dataset."""

    @abstractmethod
    def current(self) -> Multihash | None:
        """Return the head, after adding blocks for everything the chain doesn't cover yet."""

    @abstractmethod
    def judge(
        self, run: Iterable[tuple[Multihash, bytes]], head: Multihash | None, *, force: bool
    ) -> Judged:
        """Check whether a run of a peer's blocks may follow ``head``; store nothing.

        ``Diverged`` if it doesn't follow. With ``force`` it may also begin a new chain of the same
        dataset; another dataset is ``OtherDataset``. The run is read once, a block at a time.
        """

    @abstractmethod
    def check(
        self,
        judged: Judged,
        *,
        unproven: Collection[ObjectRef] = (),
        discard: Callable[[ObjectRef], None] = lambda _: None,
    ) -> None:
        """Refuse unless every required object exists and every unproven one has the right bytes.

        A missing object is ``MissingFile``, another size ``HashMismatch``. The bytes of
        ``unproven`` objects are read. ``discard`` gets the wrong ones, where their paths don't
        contain their hashes.
        """

    def claim(self) -> None:
        """Mark the place for a dataset that is about to be created, if nothing else shows it."""

    def unclaim(self) -> None:
        """Delete the mark."""

    @abstractmethod
    def make_room(self, wrong: Sequence[ObjectRef]) -> None:
        """Delete the files in the places of these objects, or refuse.

        They can't be the objects: their sizes differ from those in the blocks.
        """

    def identity(self, data: bytes) -> str | None:  # noqa: ARG002
        """Return the id of the table that a block belongs to; ``None`` if blocks don't say it."""
        return None

    def is_made_of(self, data: bytes, name: Multihash, head: Multihash) -> bool:  # noqa: ARG002
        """Return True if a block is the root that ``force`` made from the chain with that head."""
        return False

    def is_replaced_by(self, head: Multihash, other: Multihash) -> bool:
        """Return True if ``head`` already contains everything that ``other`` refers to."""
        return head == other

    def origin(self, head: Multihash) -> Multihash | None:  # noqa: ARG002
        """Return the head of the chain whose content replaced the dataset's, or ``None``."""
        return None

    def part_ends(self) -> PartEnds:
        """Return the object that says where a run may be divided into parts."""
        return PartEnds()

    def beside(self, first: B, last: B) -> Beside:  # noqa: ARG002
        """Return what lies beside some blocks and travels with them."""
        return NOTHING

    @abstractmethod
    def commit(
        self,
        run: Run,
        expected_head: Multihash | None,
        *,
        force: bool = False,
        unproven: Collection[ObjectRef] = (),
        judged: Judged | None = None,
    ) -> Multihash:
        """Add blocks, oldest first, each with the name it was received under; return the new head.

        The blocks follow ``expected_head``, the current head (``None``: there is no dataset, and
        they begin one). Everything is checked before anything is stored. The bytes of
        ``unproven`` objects are read first. ``judged`` is the result of :meth:`judge` for the same
        run and head, if it was called.

        ``CommitConflict`` if the head is another one or changes meanwhile, ``Diverged`` if the
        blocks don't follow it, ``CommitStateUnknown`` if the store's answer is lost. Repeating a
        commit that was made succeeds. Once a reader can see the last block's content, nothing
        raises any more: what couldn't be finished is in :attr:`unfinished`.
        """

    # --- Objects --------------------------------------------------------------------

    def sizes(self, refs: Sequence[ObjectRef]) -> list[int | None]:
        """Return the stored size of each object in bytes, ``None`` if it doesn't exist."""
        paths = [self.place(ref) for ref in refs]
        found = stored_sizes(self._store, paths)
        return [found.get(path) for path in paths]

    def missing(self, refs: Sequence[ObjectRef]) -> list[ObjectRef]:
        """Return the objects that don't exist with their declared size."""
        sizes = self.sizes(refs)
        return [ref for ref, size in zip(refs, sizes, strict=True) if size != ref.size_bytes]

    def _check_there(self, wanted: Sequence[ObjectRef]) -> None:
        """Refuse unless every object exists and has its declared size.

        A missing object is ``MissingFile``, another size ``HashMismatch``.
        """
        stored = self.sizes(wanted)
        missing = [_shown(ref) for ref, size in zip(wanted, stored, strict=True) if size is None]
        if missing:
            raise MissingFile(
                f"{len(missing):,} of the objects that the blocks name are missing",
                cause=", ".join(missing[:_SHOWN]),
                remedy="send them, then commit again",
                missing=missing[:_SHOWN],
                missing_count=len(missing),
            )
        for ref, size in zip(wanted, stored, strict=True):
            if size is not None and size != ref.size_bytes:
                raise self._other_size(ref, size)

    def _other_size(self, ref: ObjectRef, size_bytes: int) -> HashMismatch:
        return HashMismatch(
            f"the object {_shown(ref)} doesn't have the size that its block says",
            cause=f"{size_bytes:,} bytes, and not {ref.size_bytes:,}",
            hash=ref.hash.text,
        )

    def _hash(self, path: str) -> Multihash:
        return digest_of(self._store, path).multihash()

    # --- Commit ---------------------------------------------------------------------

    def _store_blocks(self, run: Run) -> None:
        wanted = {self.block_path(name): data for name, data in run}
        there = stored_sizes(self._store, list(wanted))
        new = iter([path for path, data in wanted.items() if there.get(path) != len(data)])
        while some := list(islice(new, _WRITTEN_AT_ONCE)):
            self._store.put_many({path: wanted[path] for path in some})

    def _swap_head(
        self, text: bytes | None, new: bytes, last: Multihash, expected: Multihash | None
    ) -> None:
        """Move the head to ``last`` if its text is still ``text``, with the hash ``expected``."""
        lost: StorageUnavailable | None = None
        try:
            if self._store.swap(f"{self._chain}{HEAD}", text, new):
                return
        except StorageUnavailable as error:
            if not error.fields.get("outcome_unknown"):
                raise
            lost = error
        # The same client may have retried after a lost answer, or our own answer was lost.
        try:
            head = self.head()
            if head == last or (head is not None and self._leads_to(head, last)):
                return
        except StorageError as error:
            raise self._unknown(last, error) from error
        if lost is not None and head == expected:
            # The write may still take effect.
            raise self._unknown(last, lost) from lost
        raise conflict(expected, head)

    def _leads_to(self, head: Multihash, name: Multihash) -> bool:
        """Return True if a block is in the chain that ends with ``head``."""
        try:
            for _ in self.walk(head, name):
                pass
        except Diverged:
            return False
        return True

    def _unknown(self, last: Multihash, error: StorageError) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"Lakeferry doesn't know whether {last} became the head of {self._name}",
            cause=str(error),
            remedy="push again: a push that already succeeded changes nothing",
            head=last.text,
        )


def _shown(ref: ObjectRef) -> str:
    return ref.hash.text if ref.path is None else ref.path


def digest_of(store: Store, path: str, chunk_bytes: int = DATASET_CHUNK_BYTES) -> Digest:
    """Return an object's digest; its bytes are read in chunks."""
    digest = Digest()
    while True:
        chunk = store.get_range(path, digest.size_bytes, chunk_bytes)
        digest.update(chunk)
        # A chunk shorter than requested is the last one.
        if len(chunk) < chunk_bytes:
            return digest


def conflict(claimed: Multihash | None, actual: Multihash | None) -> CommitConflict:
    """Return the error for a head that differs from the one the commit expected."""
    return CommitConflict(
        "somebody else pushed in the meantime",
        cause=f"the head is {actual or 'none'}, not {claimed or 'none'}",
        remedy="pull first, then push again",
        claimed_head=claimed and claimed.text,
        actual_head=actual and actual.text,
    )
