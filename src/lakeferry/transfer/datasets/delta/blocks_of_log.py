"""Makes blocks from a Delta table's log, one for each version.

Blocks are made from the log, in order, after the last existing block. A version's block costs
reading its commit and the objects that it adds, once, for their digests, by a data engine. A
version with a block isn't read again, and can still be transferred after log cleanup. The same
log, with the same files, gives the same bytes in every process.

What binds a managed table to its catalog is left out of its blocks: a receiver has a table of its
own, and no catalog. Whether the catalog's newest commits were published makes no difference.

A chain begins with version 0, or, if that was cleaned up, with the oldest version that can be
rebuilt, as a root; the checkpoint for rebuilding it is kept beside the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from lakeferry.engine import TO_HASH, Engine, HashPlan, Observer
from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log import features, paths, references, timestamps
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFile
from lakeferry.log.replay import Snapshot
from lakeferry.log.rewrite import remove_catalog, without_catalog
from lakeferry.log.segment import Checkpoint, Listing, Segment
from lakeferry.storage import Store
from lakeferry.storage.parallel_calls import concurrently
from lakeferry.table import DeltaLog, load
from lakeferry.table.log_source import KeptReads
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectKind, ObjectRef
from lakeferry.transfer.datasets.dataset import digest_of
from lakeferry.transfer.datasets.delta import named_files, version_blocks
from lakeferry.transfer.datasets.delta.named_files import Named
from lakeferry.transfer.datasets.delta.version_blocks import DeltaBlock, FoundObject, Root

_WINDOW_BYTES = 32 << 20
_WINDOW_COMMITS = 2_000
_CHUNK_BYTES = 4 << 20
_KEPT_BYTES = 8 << 20
"""How much of the commits is kept from the check of the protocol until blocks are made of them."""
_MS_NS = 1_000_000

Choose: TypeAlias = Callable[[int, int], Engine]
"""Returns the engine for a number of objects and bytes."""


Made: TypeAlias = tuple[DeltaBlock, bytes]
"""A block and its bytes."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The last block of a chain, with what the next one is compared with."""

    hash: Multihash
    version: int
    time_ms: int
    table_id: str

    @classmethod
    def of(cls, block: DeltaBlock) -> Tail:
        """Return the tail after a block."""
        return cls(block.hash, block.sequence_number, block.time_ns // _MS_NS, block.table_id)


class Maker:
    """Makes the blocks of one table's versions."""

    def __init__(
        self,
        table: Store,
        choose: Choose | None,
        observer: Observer,
        stage: Callable[[str, Multihash, bytes | None], None],
    ) -> None:
        """Read a table; ``stage`` keeps a file of its log beside the chain, by its hash.

        ``stage`` is given the bytes if they aren't those of the file itself.

        The engine that ``choose`` returns reads files for their digests; without ``choose`` this
        process does.
        """
        self._table = table
        self._reads = KeptReads(table, _KEPT_BYTES)
        self._choose = choose
        self._observer = observer
        self._stage = stage

    def blocks(self, tail: Tail | None, listing: Listing) -> Iterator[list[Made]]:
        """Yield the blocks after ``tail``, in batches, up to the listing's newest version.

        The listing must include the tail's version; without a tail, it must be complete.
        """
        # The protocol is often in commits that blocks are made of next.
        self._reads = KeptReads(self._table, _KEPT_BYTES)
        protocol = DeltaLog(self._table, source=self._reads).state().protocol
        managed = self._table.asks_catalog
        features.check_carriable(without_catalog(protocol) if managed else protocol)
        self._times = timestamps.file_times(listing.commits.values())
        if tail is None:
            earliest = listing.earliest_version()
            if earliest is None:
                # This raises an error that says why.
                listing.segment()
                raise CorruptLog(
                    "the table can't be pushed",
                    cause="its log has gaps, which only a compacted log fills",
                    remedy="restore the missing commits from a copy, or write a checkpoint of its "
                    "newest version first",
                    path=paths.LOG_DIR,
                )
            first = earliest
            if earliest > 0 or 0 not in listing.commits:
                root = _made(self.root(listing, earliest))
                yield [root]
                tail = Tail.of(root[0])
                first = earliest + 1
        else:
            first = tail.version + 1
        wanted = [listing.commits[version] for version in range(first, listing.newest_version + 1)]
        for window in _windows(wanted):
            made = list(self._window(tail, window, listing))
            tail = Tail.of(made[-1][0])
            yield made

    def _window(
        self, tail: Tail | None, window: Sequence[LogFile], listing: Listing
    ) -> Iterator[Made]:
        sent = (
            (file, self._sent(data, file.path)) for file, data in load.contents(self._reads, window)
        )
        read = [(file, data, named_files.commit_names(data, file.version)) for file, data in sent]
        new = [named.new for *_, named in read if named.origin is None]
        found = self._hashed({name: size for names in new for name, size in names.items()})
        for file, commit, named in read:
            if named.origin is not None:
                data = self.root(listing, file.version, named.origin)
            else:
                data = self._block(tail, file.version, commit, named, found)
            made = _made(data)
            tail = Tail.of(made[0])
            yield made

    def _block(
        self,
        tail: Tail | None,
        version: int,
        commit: bytes,
        named: Named,
        found: dict[str, FoundObject],
    ) -> bytes:
        table_id = named.table_id or (tail.table_id if tail is not None else None)
        if table_id is None:
            raise CorruptLog(
                f"version {version} has no metaData action",
                cause="the first commit in the log has no table id",
                path=paths.commit(version),
            )
        moment = self._moment(version, named)
        return version_blocks.make(
            version,
            tail.hash if tail is not None else None,
            max(moment, tail.time_ms) if tail is not None else moment,
            table_id,
            commit,
            [(name, found[name]) for name in named.new],
        )

    def _moment(self, version: int, named: Named | None) -> int:
        own = named.time_ms if named is not None else None
        moment = own if own is not None else self._times.get(version, 0)
        # A file's date may be before 1970, and a writer may state any time.
        return min(max(moment, 0), named_files.LATEST_MS)

    # --- Roots ----------------------------------------------------------------------

    def root(self, listing: Listing, version: int, origin: Multihash | None = None) -> bytes:
        """Return the block of a version that begins a chain; keep its checkpoint beside it."""
        checkpoint = _checkpoint_at(listing, version)
        if checkpoint is None:
            DeltaLog(self._table).checkpoint(version)
            checkpoint = _checkpoint_at(load.list_log(self._table, version, version + 1), version)
        assert checkpoint is not None
        alone = Segment.of_checkpoint(checkpoint)
        snapshot = load.snapshot(self._reads, alone)
        sidecars = load.small_rows(self._reads, alone, Lines(), ("sidecar",)).sidecars
        names = [load.sidecar_name(self._table.uri, sidecar) for sidecar in sidecars]
        names += [file.path for file in checkpoint.files]
        commit: bytes | None = None
        named: Named | None = None
        if version in listing.commits:
            path = paths.commit(version)
            commit = self._sent(self._table.get(path), path)
            named = named_files.commit_names(commit, version)
        live = live_names(snapshot)
        return version_blocks.make(
            version,
            None,
            self._moment(version, named),
            snapshot.metadata.id,
            commit,
            self._hashed(live.sizes).items(),
            Root(tuple(map(self._staged, names)), live.vectors, origin),
        )

    def _sent(self, data: bytes, path: str) -> bytes:
        """Return a log file as it is sent."""
        return remove_catalog(data, path) if self._table.asks_catalog else data

    def _staged(self, path: str) -> ObjectRef:
        """Keep a file of a root's checkpoint beside the chain, as it is sent."""
        short = path.removeprefix(f"{paths.LOG_DIR}/")
        if self._table.asks_catalog and not path.startswith(f"{paths.SIDECAR_DIR}/"):
            data = self._table.get(path)
            changed = remove_catalog(data, path)
            if changed != data:
                name = Multihash.sha3_256(changed)
                self._stage(path, name, changed)
                return ObjectRef(ObjectKind.CHECKPOINT, name, len(changed), short)
        digest = digest_of(self._table, path, _CHUNK_BYTES)
        name = digest.multihash()
        self._stage(path, name, None)
        return ObjectRef(ObjectKind.CHECKPOINT, name, digest.size_bytes, short)

    def _hashed(self, names: dict[str, int | None]) -> dict[str, FoundObject]:
        if not names:
            return {}
        size_bytes = sum(size or 0 for size in names.values())
        engine = self._choose(len(names), size_bytes) if self._choose is not None else None
        if engine is None or engine.name == "local":
            return dict(zip(names, concurrently(self._found, list(names)), strict=True))
        columns = [pa.array(list(names), pa.string()), pa.array(list(names.values()), pa.int64())]
        objects = pa.Table.from_arrays(columns, schema=TO_HASH)
        found: dict[str, FoundObject] = {}
        plan = HashPlan(self._table.config, objects)
        for batch in engine.hash(plan, self._observer):
            for row in batch.to_pylist():
                found[row["name"]] = FoundObject(row["size"] or 0, row["digest"])
        return found

    def _found(self, name: str) -> FoundObject:
        try:
            digest = digest_of(self._table, name, _CHUNK_BYTES)
        except ObjectNotFound:
            return FoundObject(0, None)
        return FoundObject(digest.size_bytes, digest.multihash().digest)


@dataclass(frozen=True, slots=True)
class LiveNames:
    """The objects of a version: names with sizes from the log, and data files with vectors."""

    sizes: dict[str, int | None]
    vectors: dict[str, str]


def live_names(snapshot: Snapshot) -> LiveNames:
    """Return the objects of a version's live files, by their names."""
    sizes: dict[str, int | None] = {}
    vectors: dict[str, str] = {}
    for batch in snapshot.files.select(["path", "size", "deletionVector"]).to_batches(16_384):
        for row in batch.to_pylist():
            name = named_files.decoded(row["path"])
            sizes[name] = row["size"]
            vector = row["deletionVector"]
            if vector is None:
                continue
            place = references.vector_path(vector["storageType"], vector["pathOrInlineDv"])
            if place is not None:
                vectors[name] = named_files.decoded(place)
                sizes.setdefault(vectors[name], None)
    return LiveNames(sizes, vectors)


def _made(data: bytes) -> Made:
    return version_blocks.parse_version_block(data), data


def _checkpoint_at(listing: Listing, version: int) -> Checkpoint | None:
    """Return the checkpoint that readers would use for a version."""
    whole = [one for one in listing.checkpoints if one.version == version and one.complete]
    return whole[-1] if whole else None


def _windows(files: Sequence[LogFile]) -> Iterator[list[LogFile]]:
    window: list[LogFile] = []
    size_bytes = 0
    for file in files:
        if window and (
            size_bytes + file.size_bytes > _WINDOW_BYTES or len(window) == _WINDOW_COMMITS
        ):
            yield window
            window, size_bytes = [], 0
        window.append(file)
        size_bytes += file.size_bytes
    if window:
        yield window
