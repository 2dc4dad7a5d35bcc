"""ODF datasets in a store.

::

    blocks/<hash>        metadata blocks, as they were received
    data/<hash>          data slices
    checkpoints/<hash>   checkpoints
    refs/head            the hash of the last block

A commit checks the whole run of blocks and the objects that they name, then stores the blocks,
and last swaps ``refs/head``. It may be interrupted between any two calls: until the swap readers
see the old head with its whole chain, and the next attempt finds what was stored. Of concurrent
commits only one swaps the head. The others don't change what it stored: they store the same
names with the same bytes, or other names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from lakeferry.errors import CorruptLog, HashMismatch, InvalidInput, ObjectNotFound
from lakeferry.storage import Store
from lakeferry.storage.parallel_calls import concurrently
from lakeferry.transfer.chain import hashes, odf_blocks, validation
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import (
    LARGEST_BLOCK_BYTES,
    Block,
    ObjectKind,
    ObjectRef,
    Seed,
)
from lakeferry.transfer.chain.validation import ChainState
from lakeferry.transfer.datasets.block_ranges import BlockCache
from lakeferry.transfer.datasets.dataset import (
    Dataset,
    DatasetFormat,
    Judged,
    OtherDataset,
    Run,
    conflict,
)

FOLDERS = {ObjectKind.DATA_SLICE: "data", ObjectKind.CHECKPOINT: "checkpoints"}


class OdfDataset(Dataset[Block]):
    """The ODF dataset below a folder of a store, existing or not."""

    kind = DatasetFormat.ODF
    largest_block_bytes = LARGEST_BLOCK_BYTES
    places_prove_objects = True
    is_replaced_at_once = False

    def __init__(self, store: Store, folder: str, cache: BlockCache | None = None) -> None:
        """Set the folder; no request is sent before the first call."""
        super().__init__(store, folder, "", cache)

    def parse(self, data: bytes, expected: Multihash | None = None) -> Block:
        """Return the metadata block that these bytes encode."""
        return odf_blocks.parse_odf_block(data, expected)

    def place(self, ref: ObjectRef) -> str:
        """Return the path of an object in the store: its name is its hash."""
        return self.object_path(ref.kind, ref.hash)

    def address(self, ref: ObjectRef) -> str:
        """Return an object's path below the URL of a server whose root has this dataset."""
        return self.place(ref)

    def object_path(self, kind: ObjectKind, name: Multihash) -> str:
        """Return the path of an object in the store."""
        return f"{self._prefix}{FOLDERS[kind]}/{name.text}"

    def current(self) -> Multihash | None:
        """Return the head; nothing has to be added first."""
        return self.head()

    def seed(self) -> Seed | None:
        """Return the seed, by a walk to the first block; ``None`` if there is no dataset."""
        head = self.head()
        if head is None:
            return None
        for _, block in self.walk(head):
            if block.seed is not None:
                return block.seed
        raise CorruptLog(f"the chain of {self._name} has no seed", head=head.text)

    # --- Objects --------------------------------------------------------------------

    def check(
        self,
        judged: Judged,
        *,
        unproven: Collection[ObjectRef] = (),
        discard: Callable[[ObjectRef], None] = lambda _: None,  # noqa: ARG002
    ) -> None:
        """Refuse unless every object exists and every unproven one has the right bytes.

        An object with another hash than its name is deleted, so that it can be sent again.
        """
        self._check_there(judged.required)
        proving = [self.place(ref) for ref in judged.required if ref in unproven]
        concurrently(self._prove, proving)

    def make_room(self, wrong: Sequence[ObjectRef]) -> None:
        """Delete files in the places of objects, if their hash differs from their name.

        For objects whose stored size differs from the size in a block. An object whose bytes are
        right stays, because blocks of the dataset may name it, and the new block is wrong:
        ``HashMismatch``.
        """
        wanted = {self.place(ref): ref for ref in wrong}

        def look(path: str) -> None:
            with suppress(ObjectNotFound):
                expected, actual = self._compared(path)
                if actual == expected:
                    raise self._other_size(wanted[path], self._store.head(path).size_bytes)

        concurrently(look, list(wanted))

    def _prove(self, path: str) -> None:
        """Raise if an object's bytes don't have the hash in its name."""
        expected, actual = self._compared(path)
        hashes.check_hash(actual, expected)

    def _compared(self, path: str) -> tuple[Multihash, Multihash]:
        """Return an object's name and the hash of its bytes; delete it if they differ."""
        expected, actual = Multihash.parse(path.rpartition("/")[2]), self._hash(path)
        # A client may just be sending it again: wrong bytes give the same result then.
        if actual != expected and self._hash(path) == actual:
            self._store.delete_many([path])
        return expected, actual

    # --- Commit ---------------------------------------------------------------------

    def judge(
        self, run: Iterable[tuple[Multihash, bytes]], head: Multihash | None, *, force: bool
    ) -> Judged:
        """Check whether a run of a peer's blocks may follow ``head``."""
        refs: dict[tuple[ObjectKind, Multihash], ObjectRef] = {}
        count = 0

        def noted() -> Iterator[tuple[Multihash, Block]]:
            nonlocal count
            for name, data in run:
                block = odf_blocks.parse_odf_block(data, name)
                count += 1
                for ref in block.objects:
                    if (known := refs.setdefault((ref.kind, ref.hash), ref)) != ref:
                        raise HashMismatch(
                            f"two blocks give {ref.hash} different sizes",
                            cause=f"{ref.size_bytes:,} and {known.size_bytes:,} bytes",
                            hash=ref.hash.text,
                        )
                yield name, block

        each = noted()
        first = next(each, None)
        if first is None:
            return Judged(0, ())

        def all_of_them() -> Iterator[tuple[Multihash, Block]]:
            yield first
            yield from each

        validation.extend_all(self._state(first[1], head, force=force), all_of_them())
        return Judged(count, tuple(refs.values()), begins=first[1].prev_hash is None)

    def commit(
        self,
        run: Run,
        expected_head: Multihash | None,
        *,
        force: bool = False,
        unproven: Collection[ObjectRef] = (),
        judged: Judged | None = None,
    ) -> Multihash:
        """Add blocks; with ``force`` they may also begin a new chain with an equal seed."""
        if not run:
            raise InvalidInput("a commit without blocks")
        text = self._head_text()
        head, last = self.head_of(text), run[-1][0]
        if head == last:
            return last
        if head != expected_head:
            raise conflict(expected_head, head)
        judged = judged or self.judge(run, head, force=force)
        self.check(judged, unproven=unproven)
        self._store_blocks(run)
        self._swap_head(text, last.text.encode(), last, expected_head)
        return last

    def check_seed(self, first: Block) -> None:
        """Refuse to replace this dataset by another one, with ``OtherDataset``."""
        there = self.seed()
        if there is not None and first.seed != there:
            raise OtherDataset(
                "a different dataset is there",
                cause="its seed has another id or kind, and a dataset's seed is never replaced",
                remedy="choose another name for the dataset",
                dataset_id=there.did,
            )

    def _state(self, first: Block, head: Multihash | None, *, force: bool) -> ChainState | None:
        """Return the state that a run must continue."""
        if head is None:
            return None
        if force and first.prev_hash is None:
            self.check_seed(first)
            return None
        return validation.state_at(block for _, block in self.walk(head))
