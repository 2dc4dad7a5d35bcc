"""A Delta table as a dataset.

::

    _delta_log/_lakeferry/transfer/
        blocks/<hash>        one version each, as it was made or received
        checkpoints/<hash>   the files of a root's checkpoint
        refs/head            the last block's hash and version, and its commit's size
        refs/next            the intent to publish a run
        claim                the mark of a table that is about to be created

VACUUM and log cleanup don't touch these files. The chain follows the log: :meth:`current` makes
blocks for new versions (:mod:`lakeferry.transfer.datasets.delta.blocks_of_log`).

A received run becomes part of an ordinary table. First come the objects, at their places, where
nothing is ever replaced; then blocks; then the commits
(:mod:`lakeferry.transfer.datasets.delta.publishing_commits`). If another writer takes one of the
run's versions, the run ends before that version, and the sender is told.

Checkpoints and checksum files are written later than their version and aren't part of the
chain. Notes beside the chain tell which versions have them
(:mod:`lakeferry.transfer.datasets.checkpoint_notes`); the receiver writes its own there, because
it can't trust a peer's files.

Force replaces a table's content in one new version; no commit that somebody may have read
changes. That version is the root of a new chain, and names the chain that it came from.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lakeferry.engine import Observer, unobserved
from lakeferry.errors import (
    CommitConflict,
    CorruptLog,
    Diverged,
    HashMismatch,
    InvalidInput,
    MissingFile,
    ObjectNotFound,
    StorageError,
    TableNotFound,
)
from lakeferry.log.conflicts import Conflict
from lakeferry.log.rewrite import remove_catalog
from lakeferry.log.segment import Listing, arrange
from lakeferry.redirect import received_entries
from lakeferry.storage import Store
from lakeferry.storage.folder import FolderStore
from lakeferry.storage.parallel_calls import concurrently
from lakeferry.storage.process_identity import this_process
from lakeferry.table import DeltaLog, load
from lakeferry.table.delta_log import wall_clock
from lakeferry.transfer.chain import validation
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectKind, ObjectRef
from lakeferry.transfer.datasets import checkpoint_notes
from lakeferry.transfer.datasets.block_ranges import BlockCache
from lakeferry.transfer.datasets.checkpoint_notes import Beside
from lakeferry.transfer.datasets.dataset import (
    Dataset,
    DatasetFormat,
    Judged,
    OtherDataset,
    PartEnds,
    Run,
    conflict,
)
from lakeferry.transfer.datasets.delta import (
    forced_commit,
    publishing_commits,
    root_checkpoints,
    version_blocks,
)
from lakeferry.transfer.datasets.delta.blocks_of_log import Choose, Made, Maker, Tail
from lakeferry.transfer.datasets.delta.publishing_commits import Intent, RunPublication
from lakeferry.transfer.datasets.delta.required_objects import DeltaPartEnds, Judging
from lakeferry.transfer.datasets.delta.root_checkpoints import CHAIN_FOLDER
from lakeferry.transfer.datasets.delta.version_blocks import LARGEST_VERSION_BLOCK_BYTES, DeltaBlock
from lakeferry.transfer.datasets.odf import FOLDERS
from lakeferry.transfer.datasets.stored_chain import HEAD, diverged
from lakeferry.transfer.datasets.stored_sizes import stored_sizes

FIRST_PULL_CLAIM = f"{CHAIN_FOLDER}/claim"
"""The mark of a table that is about to be created and has no version yet."""
_TRIES = 5
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Head:
    """The content of ``refs/head``."""

    hash: Multihash
    version: int
    commit_bytes: int | None

    @classmethod
    def of(cls, text: bytes | None) -> _Head | None:
        name = DeltaDataset.head_of(text)
        if name is None or text is None:
            return None
        try:
            _, version, size = text.decode("ascii").split()
            return cls(name, int(version), None if size == "-" else int(size))
        except ValueError as error:
            raise CorruptLog(
                "a table's transfer head can't be read",
                cause=repr(text[:100]),
                remedy=f"delete {CHAIN_FOLDER}/{HEAD}: the chain is then made again",
            ) from error


def head_text(block: DeltaBlock) -> bytes:
    """Return the content of ``refs/head`` for a last block."""
    size = "-" if block.commit is None else str(len(block.commit))
    return f"{block.hash.text} {block.sequence_number} {size}".encode()


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that another process had left unfinished, and that is published now."""

    before: Multihash | None
    """The head before the run."""
    head: Multihash
    blocks: int
    refs: tuple[ObjectRef, ...]
    """The run's objects that exist."""


class DeltaDataset(Dataset[DeltaBlock]):
    """The Delta table below a folder of a store, existing or not."""

    kind = DatasetFormat.DELTA
    largest_block_bytes = LARGEST_VERSION_BLOCK_BYTES
    places_prove_objects = False
    is_replaced_at_once = True

    def __init__(
        self,
        store: Store,
        folder: str,
        choose: Choose | None = None,
        *,
        observer: Observer = unobserved,
        clock: Callable[[], int] = wall_clock,
        cache: BlockCache | None = None,
    ) -> None:
        """Set the folder, and who computes the digests of files; no request is sent yet.

        By default this process does, which is right for few files.
        """
        super().__init__(store, folder, f"{CHAIN_FOLDER}/", cache)
        self._table = FolderStore(store, folder) if folder else store
        self._log = DeltaLog(self._table, clock=clock)
        self._maker = Maker(self._table, choose, observer, self._keep)
        self._lock = threading.Lock()
        self.finished: FinishedRun | None = None
        """The run that :meth:`current` has finished, if there was one."""

    def parse(self, data: bytes, expected: Multihash | None = None) -> DeltaBlock:
        """Return the block that these bytes encode."""
        return version_blocks.parse_version_block(data, expected)

    def place(self, ref: ObjectRef) -> str:
        """Return an object's path: its own path in the table, or a root checkpoint's by hash."""
        if ref.kind is ObjectKind.CHECKPOINT:
            return f"{self._chain}checkpoints/{ref.hash.text}"
        if ref.path is None:
            raise InvalidInput("an object of a Delta table without a path", hash=ref.hash.text)
        return f"{self._prefix}{ref.path}"

    def beside(self, first: DeltaBlock, last: DeltaBlock) -> Beside:
        """Return notes beside some versions and the one before, whose note may have come late."""
        since = first.sequence_number - (first.prev_hash is not None)
        listing = load.list_log(self._table, since, last.sequence_number + 1)
        return checkpoint_notes.of_listing(listing)

    def address(self, ref: ObjectRef) -> str:
        """Return an object's path below the URL of a server whose root has this dataset."""
        return f"{self._prefix}{FOLDERS[ref.kind]}/{ref.hash.text}/{ref.path}"

    # --- The chain follows the log --------------------------------------------------

    def current(self) -> Multihash | None:
        """Return the head after making blocks for all versions; ``None`` without a table."""
        # Two threads would read the same objects twice; of two processes one wins.
        with self._lock:
            for _ in range(_TRIES):
                self._finish()
                try:
                    return self._caught_up()
                except CommitConflict:
                    continue
            return self._caught_up()

    def _caught_up(self) -> Multihash | None:
        text = self._head_text()
        head = _Head.of(text)
        listing = self._listing(0 if head is None else head.version)
        if head is not None:
            if self._follows(listing, head):
                if listing.newest_version == head.version:
                    return head.hash
            else:
                # Another table has replaced this one, or log cleanup deleted later versions.
                listing, head = self._listing(0), None
        if listing.is_empty:
            if text is not None:
                raise TableNotFound(
                    f"there is no table at {self._name} any more",
                    cause="its log is empty, but files of an earlier transfer are there",
                    remedy=f"restore the log, or delete {CHAIN_FOLDER}",
                )
            return None
        tail = None
        if head is not None:
            tail = Tail.of(self.parse(self._present_block(head.hash), head.hash))
        last: Multihash | None = None
        for made in self._maker.blocks(tail, listing):
            last, text = self._add(made, text)
        return last

    def _listing(self, since: int) -> Listing:
        try:
            return load.list_log(self._table, since)
        except ObjectNotFound:
            # A bucket that doesn't exist has no table either.
            return arrange(())

    def _add(self, made: Sequence[Made], text: bytes | None) -> tuple[Multihash, bytes]:
        self._store_blocks([(block.hash, data) for block, data in made])
        last = made[-1][0]
        new = head_text(last)
        self._swap_head(text, new, last.hash, self.head_of(text))
        return last.hash, new

    def _keep(self, path: str, name: Multihash, data: bytes | None) -> None:
        staged = root_checkpoints.staged_checkpoints(name)
        try:
            self._table.head(staged)
        except ObjectNotFound:
            if data is None:
                self._table.copy_within(path, staged)
            else:
                self._table.put(staged, data)

    def _follows(self, listing: Listing, head: _Head) -> bool:
        """Return whether a log continues the chain of a head, without a gap after it."""
        newest = listing.newest_version
        if newest < head.version:
            return False
        own, size = listing.commits.get(head.version), head.commit_bytes
        if own is not None and size is not None and own.size_bytes != size:
            # A managed table's commit may be shorter in its block.
            if not self._table.asks_catalog:
                return False
            if len(remove_catalog(self._table.get(own.path), own.path)) != size:
                return False
        return all(version in listing.commits for version in range(head.version + 1, newest + 1))

    # --- Checking received blocks ---------------------------------------------------

    def judge(
        self, run: Iterable[tuple[Multihash, bytes]], head: Multihash | None, *, force: bool
    ) -> Judged:
        """Check whether a run of a peer's blocks may follow ``head``."""
        judging: Judging | None = None
        for name, data in run:
            block = self.parse(data, name)
            if judging is None:
                judging = Judging(self._before(block, head, force=force))
            judging.take(block)
        judging = judging or Judging(None)
        received_entries.check_harmless(judging.configuration, self._table.uri)
        return judging.judged(is_first=head is None)

    def missing(self, refs: Sequence[ObjectRef]) -> list[ObjectRef]:
        """Return the objects that don't exist; refuse other files in their places."""
        absent: list[ObjectRef] = []
        for ref, size in zip(refs, self.sizes(refs), strict=True):
            if size is None:
                absent.append(ref)
            elif size != ref.size_bytes:
                raise Diverged(
                    "a file of the table can't be written, because another file has its name",
                    cause=str(ref.path),
                    remedy="if no version of the table here needs it, delete it, and try again",
                    path=ref.path,
                )
        return absent

    def make_room(self, wrong: Sequence[ObjectRef]) -> None:
        """Refuse: the file may be the table's own, or another client may just have put it."""
        raise Diverged(
            "a file of the table can't be written, because another file has its name",
            cause=str(wrong[0].path),
            path=wrong[0].path,
        )

    def identity(self, data: bytes) -> str | None:
        """Return the id of the table that a block belongs to; ``None`` for an ODF block."""
        return (
            version_blocks.parse_version_block(data).table_id
            if version_blocks.is_version_block(data)
            else None
        )

    def is_made_of(self, data: bytes, name: Multihash, head: Multihash) -> bool:
        """Return True if a block is the root that ``force`` made from the chain with that head."""
        block = (
            version_blocks.parse_version_block(data, name)
            if version_blocks.is_version_block(data)
            else None
        )
        return block is not None and block.root is not None and block.root.origin == head

    def part_ends(self) -> PartEnds:
        """Return the object that says where a run may be divided."""
        return DeltaPartEnds(self.sizes)

    def _before(
        self, first: DeltaBlock, head: Multihash | None, *, force: bool
    ) -> validation.ChainHead | None:
        """Return what the first block of a run follows."""
        if head is None:
            if first.prev_hash is not None:
                raise diverged(first.hash, None)
            return None
        there = self.parse(self._present_block(head), head)
        if first.prev_hash == head:
            return validation.ChainHead.of(there)
        if not force or first.prev_hash is not None:
            raise diverged(first.hash, head)
        if first.table_id != there.table_id:
            raise OtherDataset(
                "a different table is there",
                cause=f"its id is {there.table_id}, and a table is never replaced by a "
                "different one",
                remedy="choose another name for the dataset",
                dataset_id=there.table_id,
            )
        return None

    def check(
        self,
        judged: Judged,
        *,
        unproven: Collection[ObjectRef] = (),
        discard: Callable[[ObjectRef], None] = lambda _: None,
    ) -> None:
        """Refuse unless every required object exists and every unproven one has the right bytes.

        ``discard`` gets the wrong ones. It may delete a file that the same push has put, so that
        it can be sent again; any other file may be the table's own.
        """
        self._check_there(judged.required)
        self._check_assumed(judged.assumed)
        doubtful = [ref for ref in judged.optional if ref in unproven]
        sizes = self.sizes(doubtful)
        proving = [ref for ref, size in zip(doubtful, sizes, strict=True) if size is not None]
        proving += [ref for ref in judged.required if ref in unproven]
        refs = {self.place(ref): ref for ref in proving}
        concurrently(lambda path: self._prove(path, refs[path], discard), list(refs))

    def _check_assumed(self, names: Sequence[str]) -> None:
        paths_there = [f"{self._prefix}{name}" for name in names]
        found = stored_sizes(self._store, paths_there)
        missing = [name for name, path in zip(names, paths_there, strict=True) if path not in found]
        if missing:
            raise MissingFile(
                f"{len(missing):,} files that the blocks keep are missing",
                cause=", ".join(missing[:_SHOWN]),
                remedy="ask the owner of the sender's dataset: its chain is damaged, or the local "
                "table is damaged",
                missing=missing[:_SHOWN],
                missing_count=len(missing),
            )

    def _prove(self, path: str, ref: ObjectRef, discard: Callable[[ObjectRef], None]) -> None:
        actual = self._hash(path)
        if actual == ref.hash:
            return
        discard(ref)
        raise HashMismatch(
            f"{ref.path} isn't what its block says",
            cause=f"its hash is {actual} instead of {ref.hash}",
            remedy="if no version of the table here needs the file, delete it, and try again",
            expected=ref.hash.text,
            actual=actual.text,
            path=ref.path,
        )

    # --- Commit ---------------------------------------------------------------------

    def commit(
        self,
        run: Run,
        expected_head: Multihash | None,
        *,
        force: bool = False,
        unproven: Collection[ObjectRef] = (),
        judged: Judged | None = None,
    ) -> Multihash:
        """Publish a run's versions; with ``force``, publish a new chain as one more version."""
        if not run:
            raise InvalidInput("a commit without blocks")
        last = run[-1][0]
        self.unfinished = None
        head = self.current()
        if head is not None and self.is_replaced_by(head, last):
            return head
        if head != expected_head:
            raise conflict(expected_head, head)
        judged = judged or self.judge(run, head, force=force)
        self.check(judged, unproven=unproven)
        first = self.parse(run[0][1])
        if first.root is not None:
            properties = root_checkpoints.check_root_checkpoint(
                self._table, first
            ).metadata.configuration
            received_entries.check_harmless(properties, self._table.uri)
        if judged.begins and head is not None:
            return self._replace(run, last)
        self._store_blocks(run)
        Intent(last, judged.beside).declare(self._table)
        text = self._head_text()
        publication = self._publish([self.parse(data) for _, data in run], judged.beside)
        if not publication.is_complete:
            self._conclude(publication, last, text, expected_head)
            raise conflict(expected_head, self.head())
        try:
            self._conclude(publication, last, text, expected_head)
        except Exception as error:  # noqa: BLE001 - success isn't to become an error
            # All versions are there. The intent is, too, so the next command concludes the run.
            self.unfinished = error
        return last

    def claim(self) -> None:
        """Write the mark of a table that is about to be created, or renew its time."""
        self._store.put(f"{self._prefix}{FIRST_PULL_CLAIM}", this_process().encode())

    def unclaim(self) -> None:
        """Delete the mark."""
        self._store.delete_many([f"{self._prefix}{FIRST_PULL_CLAIM}"])

    def is_replaced_by(self, head: Multihash, other: Multihash) -> bool:
        """Return True if ``head`` is ``other``, or the root that force made from it."""
        return other in (head, self.origin(head))

    def origin(self, head: Multihash) -> Multihash | None:
        """Return the head of the chain whose content replaced the table's, or ``None``."""
        block = self.parse(self._present_block(head), head)
        return block.root.origin if block.root is not None else None

    def finish(self) -> None:
        """Publish a run that was left unfinished, or drop it if its objects are gone."""
        with self._lock:
            self._finish()

    def _finish(self) -> None:
        intent = Intent.declared(self._table)
        if intent is None:
            return
        head = self.head()
        run: list[DeltaBlock] = []
        # These errors mean that the chain went another way, or the run never was complete.
        with suppress(Diverged, MissingFile):
            walked = [*self.walk(intent.head, head)][::-1]
            # VACUUM may have deleted objects of the run as unused.
            judged = self.judge(((block.hash, data) for data, block in walked), head, force=False)
            run = [block for _, block in walked]
            self._check_there(judged.required)
            if run:
                text = self._head_text()
                publication = self._publish(run, intent.beside)
                self._conclude(publication, intent.head, text, head)
                if publication.is_complete:
                    there = self._those_there(judged)
                    self.finished = FinishedRun(head, intent.head, len(run), there)
                return
        # A block whose version exists counts, no matter who published it.
        self._move_head(
            self._head_text(), head, publishing_commits.last_published(self._table, run)
        )
        publishing_commits.withdraw_published(self._table, intent.head)

    def _those_there(self, judged: Judged) -> tuple[ObjectRef, ...]:
        """Return the required objects of a run, and those optional ones that exist."""
        sizes = self.sizes(judged.optional)
        optional = zip(judged.optional, sizes, strict=True)
        return (*judged.required, *(ref for ref, size in optional if size is not None))

    def _publish(self, run: Sequence[DeltaBlock], beside: Beside) -> RunPublication:
        """Publish blocks as versions. If this raises, not all of them are."""
        # Mark them before anybody can read a peer's entries: its redirects mustn't be followed.
        received_entries.mark(self._table)
        publication = RunPublication(self._log, run, beside)
        publication.publish()
        return publication

    def _conclude(
        self,
        publication: RunPublication,
        wanted: Multihash,
        text: bytes | None,
        expected: Multihash | None,
    ) -> None:
        """Make the last published block the head, and delete the intent for ``wanted``."""
        publication.settle()
        self._move_head(text, expected, publication.last)
        # If the intent can't be deleted now, a later process does it.
        with suppress(StorageError):
            publishing_commits.withdraw_published(self._table, wanted)
        publication.write_checkpoint()

    def _move_head(
        self, text: bytes | None, expected: Multihash | None, last: DeltaBlock | None
    ) -> None:
        """Make a block the head, unless the head has changed."""
        if last is not None and self.head_of(text) == expected:
            self._swap_head(text, head_text(last), last.hash, expected)

    # --- Replacing ------------------------------------------------------------------

    def _replace(self, run: Run, origin: Multihash) -> Multihash:
        theirs = root_checkpoints.state_of(self._table, (self.parse(data) for _, data in run))
        mine = self._log.snapshot()
        head = self.head()
        if head is None or self.parse(self._present_block(head)).sequence_number != mine.version:
            raise conflict(head, None)
        transaction = forced_commit.transaction(
            mine, theirs, self._table.uri, origin.text, str(uuid.uuid4()), self._log.clock()
        )
        result = self._log.commit_exactly(transaction, mine.state, self._log.clock())
        if isinstance(result, Conflict):
            raise result.error()
        try:
            return self.current() or origin
        except Exception as error:  # noqa: BLE001 - success isn't to become an error
            # The version is there, and the next command makes its block.
            self.unfinished = error
            return origin
