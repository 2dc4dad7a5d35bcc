"""An ODF dataset in a store: its head, its blocks, its objects, and the commit that adds to it.

::

    blocks/<hash>        metadata blocks, as they were received
    data/<hash>          data slices
    checkpoints/<hash>   checkpoints
    refs/head            the hash of the last block

Everything but ``refs/head`` is named by the hash of its bytes and never changes. So a
commit checks the whole run of blocks and the objects that they name, then stores blocks,
and at last swaps ``refs/head``. It may end between any two of its calls: until the swap
readers see the old head with its whole chain, and what was stored is found by the next
attempt. Of commits at the same time one swaps; nothing that it has stored is touched by
the others, which store the same names with the same bytes or other names.

Walks go from a block back to the one before it, a block at a time, with their hashes and
links checked on the way: what is in the store is believed no more than a peer. A way that
turns out to be long is shortened by fetching blocks at once, a bounded number of bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from lakeferry.errors import (
    CommitConflict,
    CommitStateUnknown,
    CorruptLog,
    Diverged,
    HashMismatch,
    InvalidInput,
    LimitExceeded,
    MissingFile,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from lakeferry.storage import Store
from lakeferry.storage.objects import concurrently
from lakeferry.transfer import blocks, chain, hashes
from lakeferry.transfer.blocks import LARGEST_BLOCK_BYTES, Block, ObjectKind, ObjectRef, Seed
from lakeferry.transfer.chain import LONGEST_RUN, State
from lakeferry.transfer.hashes import DIGEST_BYTES, LONGEST_TEXT, Algorithm, Digest, Multihash
from lakeferry.transfer.messages import TransferPlan

HEAD = "refs/head"
FOLDERS = {ObjectKind.DATA_SLICE: "data", ObjectKind.CHECKPOINT: "checkpoints"}
CHUNK_BYTES = 1 << 20

_BLOCKS = "blocks"
_FEW = 32  # names for which a listing isn't tried
_LISTED_PER_NAME = 60  # a page of a listing takes as long as a round of concurrent questions
_BATCH = 64
_LONG_WALK = 32  # steps after which blocks are fetched before they are asked for
_AHEAD_BYTES = 64 << 20
_AHEAD_FACTOR = 4  # of blocks that are in the folder to blocks that are needed
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """Blocks that follow each other, by their names, and how much they amount to.

    Iterates oldest first. A block takes the bytes of its digest and no more.
    """

    digests: bytes
    """One behind the other, newest first."""
    plan: TransferPlan

    def __len__(self) -> int:
        return len(self.digests) // DIGEST_BYTES

    def __iter__(self) -> Iterator[Multihash]:
        for end in range(len(self.digests), 0, -DIGEST_BYTES):
            yield Multihash(Algorithm.SHA3_256, self.digests[end - DIGEST_BYTES : end])


class OdfDataset:
    """The dataset below a folder of a store, whether it is there or not; ``""`` is its root."""

    def __init__(self, store: Store, folder: str) -> None:
        """Name the folder; nothing is asked before the first call."""
        self._store = store
        self._folder = folder
        self._prefix = f"{folder}/" if folder else ""
        self._name = folder or store.uri

    def __repr__(self) -> str:
        return f"OdfDataset({self._store.uri!r}, {self._folder!r})"

    # --- What is there --------------------------------------------------------------

    def head(self) -> Multihash | None:
        """Return the name of the last block; ``None`` where there is no dataset."""
        return _head_of(self._head_text())

    def block(self, name: Multihash) -> bytes:
        """Return a block as it is stored, or raise ``ObjectNotFound``; its hash isn't checked."""
        data = self._store.get_range(self.block_path(name), 0, LARGEST_BLOCK_BYTES + 1)
        if len(data) > LARGEST_BLOCK_BYTES:
            raise LimitExceeded("a block is too large", limit=LARGEST_BLOCK_BYTES, hash=name.text)
        return data

    def walk(
        self, upper: Multihash, lower: Multihash | None = None, *, limit: int = LONGEST_RUN
    ) -> Iterator[tuple[bytes, Block]]:
        """Yield the blocks from ``upper`` back to the one behind ``lower``, or to the seed.

        A way that ends without meeting ``lower`` is ``Diverged``; one that is longer than
        ``limit`` ``LimitExceeded``. A block that is missing or damaged is an error of its own.
        """
        # Where the other end's block is known here, its number says when to give up.
        floor = -1 if lower is None else self._number(lower)
        if floor is None:
            raise _diverged(upper, lower)
        current: Multihash | None = upper
        later: Block | None = None
        count = 0
        ahead: dict[str, bytes] = {}
        while current is not None and current != lower:
            if count == limit:
                raise LimitExceeded("a chain is too long", cause=f"more than {limit:,} blocks")
            if count == _LONG_WALK and later is not None:
                ahead = self._ahead(min(later.sequence_number - floor, limit))
            data = ahead.pop(self.block_path(current), None) or self._present_block(current)
            block = blocks.parse(data, current)
            if later is not None:
                chain.link(chain.Head.of(block), later)
            if block.sequence_number <= floor:
                raise _diverged(upper, lower)
            yield data, block
            count, later, current = count + 1, block, block.prev_hash
        if current != lower:
            raise _diverged(upper, lower)

    def interval(
        self,
        upper: Multihash,
        lower: Multihash | None = None,
        *,
        ignore_missing_tail: bool = False,
        limit: int = LONGEST_RUN,
    ) -> Interval:
        """Return the blocks behind ``lower`` up to ``upper``; without a ``lower``, the chain.

        Where the way back doesn't meet ``lower``: ``Diverged``, or the whole chain if asked.
        """
        digests = bytearray()
        objects = records = block_bytes = object_bytes = 0
        try:
            for _, block in self.walk(upper, lower, limit=limit):
                digests += block.hash.digest
                objects += len(block.objects)
                records += block.records
                block_bytes += block.size_bytes
                object_bytes += sum(ref.size_bytes for ref in block.objects)
        except Diverged:
            if not ignore_missing_tail:
                raise
            return self.interval(upper, limit=limit)
        count = len(digests) // DIGEST_BYTES
        plan = TransferPlan(count, objects, records, block_bytes, object_bytes)
        return Interval(bytes(digests), plan)

    def read(self, names: Iterable[Multihash]) -> Iterator[tuple[Multihash, bytes]]:
        """Yield blocks in the order asked for, some at a time, each with its hash checked."""
        left = iter(names)
        while batch := list(islice(left, _BATCH)):
            found = self._store.get_many([self.block_path(name) for name in batch])
            for name, data in zip(batch, found, strict=True):
                hashes.check(Multihash.sha3_256(data), name)
                yield name, data

    def seed(self) -> Seed | None:
        """Return what the dataset is, by a walk to its first block; ``None`` if it isn't there."""
        head = self.head()
        if head is None:
            return None
        for _, block in self.walk(head):
            if block.seed is not None:
                return block.seed
        raise CorruptLog(f"the chain of {self._name} has no seed", head=head.text)

    # --- Objects --------------------------------------------------------------------

    def block_path(self, name: Multihash) -> str:
        """Return where a block is in the store."""
        return f"{self._prefix}{_BLOCKS}/{name.text}"

    def object_path(self, kind: ObjectKind, name: Multihash) -> str:
        """Return where an object is in the store."""
        return f"{self._prefix}{FOLDERS[kind]}/{name.text}"

    def sizes(self, refs: Sequence[ObjectRef]) -> list[int | None]:
        """Return for each object how many bytes are stored under its name, ``None`` for none.

        Few are asked for one by one, concurrently; for many the folder is listed, and given
        up where it holds so much more that questions are cheaper.
        """
        paths = [self.object_path(ref.kind, ref.hash) for ref in refs]
        found = self._sizes(paths)
        return [found.get(path) for path in paths]

    def check(self, refs: Iterable[ObjectRef], *, unproven: Collection[Multihash] = ()) -> None:
        """Refuse unless every object is there and has its declared size.

        What isn't there is ``MissingFile``, another size ``HashMismatch``. The bytes of those
        that are ``unproven`` are read; what turns out not to be what its name says is taken
        away, so that it can be sent again.
        """
        wanted = list(refs)
        stored = self.sizes(wanted)
        missing = [ref.hash.text for ref, size in zip(wanted, stored, strict=True) if size is None]
        if missing:
            raise MissingFile(
                f"{len(missing):,} of the objects that the blocks name aren't there",
                cause=", ".join(missing[:_SHOWN]),
                remedy="send them, then commit again",
                missing=missing[:_SHOWN],
                missing_count=len(missing),
            )
        for ref, size in zip(wanted, stored, strict=True):
            if size != ref.size_bytes:
                raise HashMismatch(
                    f"the object {ref.hash} has another size than its block says",
                    cause=f"{size:,} bytes, and not {ref.size_bytes:,}",
                    hash=ref.hash.text,
                )
        concurrently(
            self._prove,
            [self.object_path(ref.kind, ref.hash) for ref in wanted if ref.hash in unproven],
        )

    def _prove(self, path: str) -> None:
        """Compare an object's bytes with its name."""
        expected, actual = Multihash.parse(path.rpartition("/")[2]), self._hash(path)
        # Somebody may be sending it again just now: what is wrong stays wrong in the same way.
        if actual != expected and self._hash(path) == actual:
            self._store.delete_many([path])
        hashes.check(actual, expected)

    def _hash(self, path: str) -> Multihash:
        digest = Digest()
        while chunk := self._store.get_range(path, digest.size_bytes, CHUNK_BYTES):
            digest.update(chunk)
        return digest.multihash()

    # --- Commit ---------------------------------------------------------------------

    def commit(
        self,
        run: Sequence[tuple[Multihash, bytes]],
        expected_head: Multihash | None,
        *,
        force: bool = False,
        unproven: Collection[Multihash] = (),
    ) -> Multihash:
        """Add blocks, oldest first, each with the name that it came under; return the new head.

        The blocks follow ``expected_head``, which is the head now (``None``: there is no
        dataset, and they begin with a seed). With ``force`` they may also begin a chain anew,
        by a seed with the same id and kind. Nothing is stored unless all is as it should be.

        ``CommitConflict`` where the head is another or becomes another meanwhile, ``Diverged``
        where the blocks don't follow it, ``CommitStateUnknown`` where the store doesn't say.
        A commit that was made already is made.
        """
        if not run:
            raise InvalidInput("a commit without blocks")
        text = self._head_text()
        head, last = _head_of(text), run[-1][0]
        if head == last:
            return last
        if head != expected_head:
            raise _conflict(expected_head, head)
        parsed = [(name, blocks.parse(data, name)) for name, data in run]
        chain.extend_all(self._state(parsed[0][1], head, force=force), parsed)
        # Two blocks that give one object two sizes are found out, too.
        refs = dict.fromkeys(ref for _, block in parsed for ref in block.objects)
        self.check(refs, unproven=unproven)
        self._store_blocks(run)
        self._swap_head(text, last, expected_head)
        return last

    def check_seed(self, first: Block) -> None:
        """Refuse, with ``Diverged``, a chain that would put another dataset in this one's place."""
        there = self.seed()
        if there is not None and first.seed != there:
            raise Diverged(
                "what is there is another dataset",
                cause="its seed has another id or kind, and force doesn't replace a seed",
                remedy="choose another name for the dataset",
                dataset_id=there.did,
            )

    def _state(self, first: Block, head: Multihash | None, *, force: bool) -> State | None:
        """Return the state that a run has to continue."""
        if head is None:
            return None
        if force and first.prev_hash is None:
            self.check_seed(first)
            return None
        return chain.state_at(block for _, block in self.walk(head))

    def _store_blocks(self, run: Sequence[tuple[Multihash, bytes]]) -> None:
        wanted = {self.block_path(name): data for name, data in run}
        there = self._sizes(list(wanted))
        new = [path for path, data in wanted.items() if there.get(path) != len(data)]
        concurrently(lambda path: self._store.put(path, wanted[path]), new)

    def _swap_head(self, text: bytes | None, last: Multihash, expected: Multihash | None) -> None:
        lost: StorageUnavailable | None = None
        try:
            if self._store.swap(f"{self._prefix}{HEAD}", text, last.text.encode()):
                return
        except StorageUnavailable as error:
            if not error.fields.get("outcome_unknown"):
                raise
            lost = error
        # Its own client may have tried again after an answer was lost, or ours was lost.
        try:
            head = self.head()
            if head == last or (head is not None and self._leads_to(head, last)):
                return
        except StorageError as error:
            raise self._unknown(last, error) from error
        if lost is not None and head == expected:
            # It may still arrive.
            raise self._unknown(last, lost) from lost
        raise _conflict(expected, head)

    def _leads_to(self, head: Multihash, name: Multihash) -> bool:
        """Tell whether a block is in the chain that ends with ``head``."""
        try:
            for _ in self.walk(head, name):
                pass
        except Diverged:
            return False
        return True

    def _unknown(self, last: Multihash, error: StorageError) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"it isn't known whether {last} became the head of {self._name}",
            cause=str(error),
            remedy="look at the head, and push again",
            head=last.text,
        )

    # --- The store ------------------------------------------------------------------

    def _head_text(self) -> bytes | None:
        try:
            return self._store.get_range(f"{self._prefix}{HEAD}", 0, LONGEST_TEXT + 2)
        except ObjectNotFound:
            return None

    def _present_block(self, name: Multihash) -> bytes:
        try:
            return self.block(name)
        except ObjectNotFound as error:
            raise MissingFile(
                f"a block of {self._name} isn't there",
                cause=name.text,
                remedy="push the dataset again with --force from a copy that is whole",
                hash=name.text,
            ) from error

    def _ahead(self, wanted: int) -> dict[str, bytes]:
        """Fetch all blocks by their paths, if they are few and most of them are wanted."""
        paths: list[str] = []
        size_bytes = 0
        for info in self._store.list(f"{self._prefix}{_BLOCKS}/"):
            paths.append(info.path)
            size_bytes += info.size_bytes
            if len(paths) > wanted * _AHEAD_FACTOR or size_bytes > _AHEAD_BYTES:
                return {}
        try:
            return dict(zip(paths, self._store.get_many(paths), strict=True))
        except ObjectNotFound:
            # Somebody tidies up; what the walk needs, it asks for.
            return {}

    def _number(self, name: Multihash) -> int | None:
        try:
            return blocks.parse(self.block(name), name).sequence_number
        except ObjectNotFound:
            return None

    def _sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the sizes of those objects that are there."""
        found: dict[str, int] = {}
        left: list[str] = []
        for folder, group in groupby(sorted(set(paths)), lambda path: path.rpartition("/")[0]):
            wanted = list(group)
            left += wanted if len(wanted) <= _FEW else self._list(f"{folder}/", wanted, found)
        asked = zip(left, concurrently(self._size, left), strict=True)
        return found | {path: size for path, size in asked if size is not None}

    def _list(self, folder: str, wanted: list[str], found: dict[str, int]) -> list[str]:
        """Find sizes in a listing, and return the names that it didn't come to."""
        names, most = set(wanted), len(wanted) * _LISTED_PER_NAME
        listing = self._store.list(folder, stop_before=f"{wanted[-1]}0")
        for count, info in enumerate(listing):
            if count == most:
                return [path for path in wanted if path >= info.path]
            if info.path in names:
                found[info.path] = info.size_bytes
        return []

    def _size(self, path: str) -> int | None:
        try:
            return self._store.head(path).size_bytes
        except ObjectNotFound:
            return None


def _head_of(text: bytes | None) -> Multihash | None:
    if text is None:
        return None
    try:
        return Multihash.parse(text.decode("ascii").strip())
    except (InvalidInput, UnicodeDecodeError) as error:
        raise CorruptLog("a dataset's head isn't a hash", cause=repr(text[:_SHOWN])) from error


def _diverged(upper: Multihash, lower: Multihash | None) -> Diverged:
    return Diverged(
        "the two ends have different histories",
        cause=f"{lower} isn't among the blocks that lead to {upper}",
        remedy="--force replaces the receiver's history by the sender's",
        head=upper.text,
        tail=lower and lower.text,
    )


def _conflict(claimed: Multihash | None, actual: Multihash | None) -> CommitConflict:
    return CommitConflict(
        "somebody else pushed in the meantime",
        cause=f"the head is {actual or 'none'}, not {claimed or 'none'}",
        remedy="pull first, then push again",
        claimed_head=claimed and claimed.text,
        actual_head=actual and actual.text,
    )
