"""What a client does between the messages: take blocks, move objects, commit, and count.

:class:`PullHost` and :class:`PushHost` answer their machines (``conversation.py``). Objects
are moved by as many workers as the user wants; a worker whose object's URL expires before
anything came hands it back, and one that has received a part of it waits for the next URL and
goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from lakeferry.engine import Observer, Volume
from lakeferry.errors import HashMismatch, Interrupted, InvalidInput, LakeferryError, LimitExceeded
from lakeferry.transfer import blocks, chain, tarball
from lakeferry.transfer import messages as m
from lakeferry.transfer.blocks import Block, ObjectRef
from lakeferry.transfer.downloads import (
    LARGEST_OBJECT_BYTES,
    Downloads,
    Renew,
    Source,
    Threads,
    UrlExpired,
    refused_url,
)
from lakeferry.transfer.ends import ObjectKey
from lakeferry.transfer.events import (
    Action,
    BlocksReady,
    BlocksTaken,
    CheckAndCommit,
    CheckHead,
    Command,
    Committed,
    Download,
    Event,
    Expired,
    HeadIs,
    LoadBlocks,
    Moved,
    NextObjects,
    ObjectsWanted,
    Refused,
    TakeBlocks,
    Upload,
)
from lakeferry.transfer.hashes import Multihash
from lakeferry.transfer.messages import BlocksBatch, ObjectFile, TransferPlan
from lakeferry.transfer.odf_dataset import Interval, OdfDataset
from lakeferry.transfer.remote import Remote, Terms
from lakeferry.transfer.uploads import Uploads

Run: TypeAlias = Sequence[tuple[Multihash, bytes]]
"""Blocks with their names, oldest first."""

Plan: TypeAlias = list[dict[str, Any]]
"""What would be done, as the commands print it."""

RUN_BYTES = 256 << 20
RUN_BLOCKS = 100_000
PART_BYTES = 4 << 20
"""In a message each byte takes 3.6, and the reference server reads 16 MiB in a frame."""

_LIMITS = tarball.Limits(unpacked_bytes=RUN_BYTES, entries=RUN_BLOCKS)
_REFUSED_URLS = 3


@dataclass(frozen=True, slots=True)
class Transferred:
    """How a push or a pull ended: where the head is, what was moved now, what was there."""

    head: str
    blocks: int
    objects: int
    bytes: int
    skipped: int
    changed: bool

    def as_document(self) -> dict[str, Any]:
        """Return the document that the commands print."""
        return {
            "head": self.head,
            "blocks": self.blocks,
            "objects": self.objects,
            "bytes": self.bytes,
            "skipped": self.skipped,
            "changed": self.changed,
        }


class Progress:
    """What a transfer has come to, over all of its sessions."""

    def __init__(self, observer: Observer, what: str) -> None:
        self._observer = observer
        self._what = what
        self._expected: dict[Multihash | None, tuple[int, int]] = {}
        self.objects = 0
        self.bytes = 0
        self.given_up: LakeferryError | None = None
        """What was tried often enough already."""

    def expect(self, refs: Iterable[ObjectRef], part: Multihash | None = None) -> None:
        """Say which objects a part of the transfer is about, those that are there included."""
        sizes = [ref.size_bytes for ref in refs]
        self._expected[part] = (len(sizes), sum(sizes))

    def moved(self, ref: ObjectRef) -> None:
        """Count an object that has arrived."""
        self.objects += 1
        self.bytes += ref.size_bytes
        total = Volume(sum(size for _, size in self._expected.values()), self._all)
        self._observer(self._what, Volume(self.bytes, self.objects), total)

    @property
    def _all(self) -> int:
        return sum(count for count, _ in self._expected.values())

    def result(self, head: Multihash, blocks: int, *, changed: bool) -> Transferred:
        """Return what the user is told."""
        skipped = max(0, self._all - self.objects)
        return Transferred(head.text, blocks, self.objects, self.bytes, skipped, changed)


def check_run(
    dataset: OdfDataset, head: Multihash | None, run: Iterable[tuple[Multihash, bytes]], force: bool
) -> tuple[Run, list[ObjectRef]]:
    """Return blocks of a peer's, and the objects that they name, if they may follow our head.

    With ``force`` they may also begin anew, if it is the same dataset. Nothing is stored.
    """
    taken: list[tuple[Multihash, bytes]] = []
    refs: dict[ObjectKey, ObjectRef] = {}

    def parsed() -> Iterator[tuple[Multihash, Block]]:
        for name, data in run:
            block = blocks.parse(data, name)
            taken.append((name, data))
            for ref in block.objects:
                _check_ref(ref, refs.setdefault(file_of(ref).key, ref))
            yield name, block

    each = parsed()
    first = next(each, None)
    if first is None:
        raise InvalidInput("the server announced blocks, and sent none")
    state: chain.State | None = None
    if head is not None:
        if force and first[1].prev_hash is None:
            dataset.check_seed(first[1])
        else:
            state = chain.state_at(block for _, block in dataset.walk(head))

    def all_of_them() -> Iterator[tuple[Multihash, Block]]:
        yield first
        yield from each

    chain.extend_all(state, all_of_them())
    return taken, list(refs.values())


def missing_of(dataset: OdfDataset, refs: Sequence[ObjectRef]) -> list[ObjectRef]:
    """Return the objects that aren't there with the size that they should have."""
    sizes = dataset.sizes(refs)
    return [ref for ref, size in zip(refs, sizes, strict=True) if size != ref.size_bytes]


def file_of(ref: ObjectRef) -> ObjectFile:
    """Return an object as the messages name it."""
    return ObjectFile(m.ObjectKind(ref.kind.value), ref.hash, ref.size_bytes)


def step(op: str, head: Multihash, count: int, refs: Sequence[ObjectRef]) -> Plan:
    """Return a plan of one step, which moves these objects and so many blocks."""
    size_bytes = sum(ref.size_bytes for ref in refs)
    amounts = {"blocks": count, "objects": len(refs), "bytes": size_bytes}
    return [{"op": op, "head": head.text, **amounts}]


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks that are pushed in one session, oldest first, and the objects that they name."""

    head: Multihash
    batch: BlocksBatch
    plan: TransferPlan
    refs: tuple[ObjectRef, ...]


def load_part(dataset: OdfDataset, interval: Interval) -> Part:
    """Pack as many blocks of an interval, from its beginning, as one message has room for."""
    packed = bytearray()
    parsed: list[Block] = []

    def chosen() -> Iterator[tuple[Multihash, bytes]]:
        for name, data in dataset.read(interval):
            if parsed and len(packed) > PART_BYTES:
                return
            parsed.append(blocks.parse(data, name))
            yield name, data

    for piece in tarball.pack(chosen()):
        packed += piece
    refs = [ref for block in parsed for ref in block.objects]
    plan = TransferPlan(
        num_blocks=len(parsed),
        num_objects=len(refs),
        num_records=sum(block.records for block in parsed),
        bytes_in_raw_blocks=sum(block.size_bytes for block in parsed),
        bytes_in_raw_objects=sum(ref.size_bytes for ref in refs),
    )
    batch = BlocksBatch(len(parsed), bytes(packed))
    return Part(parsed[-1].hash, batch, plan, tuple(dict.fromkeys(refs)))


class _Movers:
    """Objects in pages, and the workers that move them."""

    def __init__(self, parallel: int, progress: Progress) -> None:
        self._parallel = parallel
        self._progress = progress
        self._todo: list[ObjectRef] = []
        self._next = 0
        self._handed: dict[ObjectKey, ObjectRef] = {}
        self._queue: asyncio.Queue[tuple[ObjectFile, Source]] = asyncio.Queue()
        self._waiting: dict[ObjectKey, asyncio.Future[Source]] = {}
        self._refused: dict[ObjectKey, int] = {}

    def _page(self, limit: int) -> ObjectsWanted:
        page = self._todo[self._next : self._next + limit]
        self._next += len(page)
        files = tuple(map(file_of, page))
        self._handed |= {file.key: ref for file, ref in zip(files, page, strict=True)}
        return ObjectsWanted(files, more=self._next < len(self._todo))

    def _hand_out(self, file: ObjectFile, url: m.TransferUrl) -> None:
        source = Source.now(url)
        waiting = self._waiting.pop(file.key, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(source)
        else:
            self._queue.put_nowait((file, source))

    async def work(self, tell: asyncio.Queue[Event]) -> None:
        """Move what is handed out, until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._parallel):
                workers.create_task(self._worker(tell))

    async def _worker(self, tell: asyncio.Queue[Event]) -> None:
        while True:
            file, source = await self._queue.get()
            ref = self._handed[file.key]
            try:
                await self._move(ref, source, partial(self._renewed, file, tell))
            except UrlExpired:
                try:
                    self._count_refusal(file, ref, source)
                except LakeferryError as error:
                    self._give_up(error, tell)
                else:
                    tell.put_nowait(Expired((file,)))
            except LakeferryError as error:
                self._give_up(error, tell)
            else:
                del self._handed[file.key]
                self._progress.moved(ref)
                tell.put_nowait(Moved((file,)))

    def _give_up(self, error: LakeferryError, tell: asyncio.Queue[Event]) -> None:
        self._progress.given_up = error
        tell.put_nowait(Refused(error))

    def _count_refusal(self, file: ObjectFile, ref: ObjectRef, source: Source) -> None:
        """Tell a URL that is past its time from one that the store never liked."""
        if source.is_stale:
            return
        count = self._refused[file.key] = self._refused.get(file.key, 0) + 1
        if count > _REFUSED_URLS:
            raise refused_url(ref)

    async def _renewed(self, file: ObjectFile, tell: asyncio.Queue[Event]) -> Source:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[file.key] = waiting
        tell.put_nowait(Expired((file,)))
        source: Source = await waiting
        return source

    async def _move(self, ref: ObjectRef, source: Source, renew: Renew) -> None:
        raise NotImplementedError


class PullHost(_Movers):
    """Does a pull's work. ``head`` is the new one once it is ours; ``blocks`` how many came."""

    def __init__(
        self,
        remote: Remote,
        dataset: OdfDataset,
        head: Multihash | None,
        threads: Threads,
        downloads: Downloads,
        progress: Progress,
        *,
        dry_run: bool = False,
    ) -> None:
        super().__init__(remote.terms.parallel, progress)
        self._dry_run = dry_run
        self._remote = remote
        self._terms: Terms = remote.terms
        self._dataset = dataset
        self._old_head = head
        self._threads = threads
        self._downloads = downloads
        self._run: Run = ()
        self.head: Multihash | None = None
        self.blocks = 0
        self.foreseen: Plan | None = None
        """What would be done, if nothing is to be."""

    async def answer(self, action: Action) -> Command | None:
        """Do what the machine asks for."""
        match action:
            case TakeBlocks(batch):
                await self._threads.run(lambda: self._take(batch))
                if self._dry_run:
                    self.foreseen = step("pull", self._run[-1][0], len(self._run), self._todo)
                    raise Interrupted("nothing is to be done")
                return BlocksTaken()
            case NextObjects(limit):
                return self._page(limit)
            case Download(downloads):
                for one in downloads:
                    self._remote.admit(one.url.url)
                for one in downloads:
                    self._hand_out(one.object, one.url)
                return None
            case CheckAndCommit():
                commit = partial(
                    self._dataset.commit, self._run, self._old_head, force=self._terms.force
                )
                self.head = await self._threads.run(commit)
                self.blocks = len(self._run)
                return Committed()
        raise AssertionError(action)

    def _take(self, batch: BlocksBatch) -> None:
        run = tarball.unpack(batch.payload, limits=_LIMITS, gzip=batch.media_type == m.TAR_GZIP)
        self._run, refs = check_run(self._dataset, self._old_head, run, self._terms.force)
        self._progress.expect(refs)
        self._todo = missing_of(self._dataset, refs)

    async def _move(self, ref: ObjectRef, source: Source, renew: Renew) -> None:
        await self._downloads.fetch(ref, source, renew)


class PushHost(_Movers):
    """Does the work of pushing one part."""

    def __init__(
        self,
        remote: Remote,
        part: Part,
        uploads: Uploads,
        progress: Progress,
    ) -> None:
        super().__init__(remote.terms.parallel, progress)
        self._remote = remote
        self._part = part
        self._uploads = uploads
        self._todo = list(part.refs)
        progress.expect(part.refs, part.head)

    async def answer(self, action: Action) -> Command | None:
        """Do what the machine asks for."""
        match action:
            case LoadBlocks():
                return BlocksReady(self._part.batch)
            case NextObjects(limit):
                return self._page(limit)
            case Upload(uploads):
                for one in uploads:
                    if one.url is not None:
                        self._remote.admit(one.url.url)
                        self._hand_out(one.object, one.url)
                return None
            case CheckHead():
                return HeadIs(await self._remote.head())
        raise AssertionError(action)

    async def _move(self, ref: ObjectRef, source: Source, renew: Renew) -> None:  # noqa: ARG002
        await self._uploads.put(ref, source)


def _check_ref(ref: ObjectRef, known: ObjectRef) -> None:
    if ref != known:
        raise HashMismatch(
            f"two blocks give {ref.hash} different sizes",
            cause=f"{ref.size_bytes:,} and {known.size_bytes:,} bytes",
            hash=ref.hash.text,
        )
    if ref.size_bytes > LARGEST_OBJECT_BYTES:
        raise LimitExceeded(
            f"the object {ref.hash} is too large",
            cause=f"its block says {ref.size_bytes:,} bytes",
            limit=LARGEST_OBJECT_BYTES,
        )
