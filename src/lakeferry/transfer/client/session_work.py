"""The client's work in a session: takes blocks, moves objects, commits.

:class:`PullHost` and :class:`PushHost` execute the actions of their machines
(``websocket_session.py``). Objects are moved by as many workers as the user wants, or by an
engine. An object whose URL failed is handed back, and a new URL is requested. A large one that
was partly received waits for the new URL and continues (``large_downloads.py``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain as chained
from typing import Any, TypeAlias

from lakeferry.engine import FEW_BYTES, FEW_OBJECTS
from lakeferry.errors import Interrupted, InvalidInput, LakeferryError, MissingFile
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.client.downloads import check_download_size, refused_url
from lakeferry.transfer.client.large_downloads import RequestUrl, UnderWay
from lakeferry.transfer.client.object_urls import Source, UrlExpired
from lakeferry.transfer.client.objects_by_engine import Carrying, Load, ObjectOutcome
from lakeferry.transfer.client.remote_dataset import Remote, Terms
from lakeferry.transfer.client.shared_limits import StoreThreads
from lakeferry.transfer.client.transfer_progress import TransferProgress
from lakeferry.transfer.client.uploads import MoreUrls, Uploads
from lakeferry.transfer.datasets import checkpoint_notes, message_parts
from lakeferry.transfer.datasets.checkpoint_notes import Beside
from lakeferry.transfer.datasets.dataset import Judged, ObjectPlaces, Run
from lakeferry.transfer.datasets.delta import version_blocks
from lakeferry.transfer.datasets.local_dataset import Here, kind_of_block
from lakeferry.transfer.datasets.message_parts import Part
from lakeferry.transfer.session.client_objects import ObjectKey
from lakeferry.transfer.session.events import (
    BlocksReady,
    BlocksTaken,
    CheckAndCommit,
    CheckHead,
    Download,
    Expired,
    HeadIs,
    HostEvent,
    LoadBlocks,
    MachineAction,
    MachineEvent,
    NextObjects,
    ObjectsMoved,
    ObjectsWanted,
    RunCommitted,
    TakeBlocks,
    Upload,
    WorkRefused,
)
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire import tarball
from lakeferry.transfer.wire.messages import BlocksBatch, ObjectFile

TransferSteps: TypeAlias = list[dict[str, Any]]
"""The steps of a dry run, as the commands print them."""

RUN_BYTES = 256 << 20
RUN_BLOCKS = 100_000

_LIMITS = tarball.ArchiveLimits(
    unpacked_bytes=RUN_BYTES,
    entries=RUN_BLOCKS,
    entry_bytes=version_blocks.LARGEST_VERSION_BLOCK_BYTES,
)
_REFUSED_URLS = 3
_WAITING = 4


def check_run(
    here: Here, head: Multihash | None, run: Iterable[tuple[Multihash, bytes]], force: bool
) -> tuple[Run, Judged]:
    """Return a peer's blocks, checked to follow our head, and the objects that they name.

    With ``force`` they may also begin a new chain of the same dataset. Nothing is stored.
    """
    taken: list[tuple[Multihash, bytes]] = []
    beside: list[Beside] = []

    def noted() -> Iterator[tuple[Multihash, bytes]]:
        for one in checkpoint_notes.split_archive(run, beside):
            if not taken:
                here.settle(kind_of_block(one[1]))
            taken.append(one)
            yield one

    each = noted()
    first = next(each, None)
    if first is None:
        raise InvalidInput("the server announced blocks, and sent none")
    judged = here.dataset.judge(chained([first], each), head, force=force)
    for ref in (*judged.required, *judged.optional):
        check_download_size(ref)
    return taken, replace(judged, beside=beside[0]) if beside else judged


def file_of(ref: ObjectRef) -> ObjectFile:
    """Return an object as the messages name it."""
    return ObjectFile(m.WireObjectKind(ref.kind.value), ref.hash, ref.size_bytes, ref.path)


def step(op: str, head: Multihash, count: int, refs: Sequence[ObjectRef]) -> TransferSteps:
    """Return a plan of one step, which moves these objects and this number of blocks."""
    size_bytes = sum(ref.size_bytes for ref in refs)
    amounts = {"blocks": count, "objects": len(refs), "bytes": size_bytes}
    return [{"op": op, "head": head.text, **amounts}]


ChooseCarrier: TypeAlias = Callable[[int, int], Awaitable[Carrying | None]]
"""Returns who moves that number of objects and bytes; ``None`` if it is this process."""


async def nobody_else(objects: int, size_bytes: int) -> None:
    """Return None: all objects are moved in this process."""


_Handed: TypeAlias = tuple[ObjectFile, Source]


class _Movers(ABC):
    """Requests URLs of objects in pages, and runs the workers that move them."""

    def __init__(
        self,
        parallel: int,
        progress: TransferProgress,
        places: ObjectPlaces,
        engines: ChooseCarrier,
    ) -> None:
        self._parallel = parallel
        self._progress = progress
        self._places = places
        self._engines = engines
        self._todo: list[ObjectRef] = []
        self._next = 0
        self._handed: dict[ObjectKey, ObjectRef] = {}
        self._needed = (0, 0)
        """Number and bytes of the objects that are known to need moving."""
        self._asked_for = (0, 0)
        """The value of ``_needed`` when an engine was last requested."""
        self._queue: asyncio.Queue[_Handed] = asyncio.Queue()
        self._here_queue: asyncio.Queue[_Handed] = asyncio.Queue()
        self._refused: dict[ObjectKey, int] = {}
        self._arrived: list[ObjectFile] = []

    def _page(self, limit: int) -> ObjectsWanted:
        page = self._todo[self._next : self._next + limit]
        self._next += len(page)
        files = tuple(map(file_of, page))
        self._handed |= {file.key: ref for file, ref in zip(files, page, strict=True)}
        return ObjectsWanted(files, more=self._next < len(self._todo))

    async def work(self, tell: asyncio.Queue[MachineEvent]) -> None:
        """Move objects as their URLs arrive, until cancelled."""
        carrying: Carrying | None = None
        async with asyncio.TaskGroup() as tasks:
            # More workers than transfers: some wait while their object is written.
            for _ in range(self._parallel * _WAITING):
                tasks.create_task(self._worker(tell))
            while True:
                handed = [await self._queue.get()]
                while not self._queue.empty():
                    handed.append(self._queue.get_nowait())
                new: list[_Handed] = []
                for file, source in handed:
                    if self._has_begun(self._handed[file.key]):
                        # Not in the queue: all workers may be waiting for what this one holds.
                        tasks.create_task(self._move_here(file, source, tell))
                    else:
                        new.append((file, source))
                try:
                    carrying = carrying or await self._engine()
                    if carrying is not None:
                        await self._have_carried(carrying, new, tell)
                        continue
                except LakeferryError as error:
                    self._give_up(error, tell)
                    continue
                for one in new:
                    self._here_queue.put_nowait(one)

    async def _engine(self) -> Carrying | None:
        """Return an engine for the objects that are known to need moving, if they became more."""
        objects, size_bytes = self._asked_for
        if self._needed == self._asked_for or objects >= FEW_OBJECTS or size_bytes >= FEW_BYTES:
            return None
        self._asked_for = self._needed
        return await self._engines(*self._needed)

    async def _worker(self, tell: asyncio.Queue[MachineEvent]) -> None:
        while True:
            await self._move_here(*await self._here_queue.get(), tell)

    async def _move_here(
        self, file: ObjectFile, source: Source, tell: asyncio.Queue[MachineEvent]
    ) -> None:
        ref = self._handed[file.key]
        became: ObjectOutcome
        try:
            became = await self._move(ref, source, lambda: tell.put_nowait(Expired((file,))))
        except (UrlExpired, LakeferryError) as error:
            became = error
        self._settle(file, source, became, tell)

    async def _have_carried(
        self, carrying: Carrying, handed: Sequence[_Handed], tell: asyncio.Queue[MachineEvent]
    ) -> None:
        """Let an engine move objects."""
        refs = [self._handed[file.key] for file, _ in handed]
        loads = [
            Load(ref, self._places.place(ref), source)
            for ref, (_, source) in zip(refs, handed, strict=True)
        ]
        became = await carrying.carry(loads, self._progress.ahead) if loads else []
        for (file, source), each in zip(handed, became, strict=True):
            self._settle(file, source, each, tell)

    def _has_begun(self, ref: ObjectRef) -> bool:  # noqa: ARG002
        """Return True if an earlier session has begun to move an object, which continues."""
        return False

    def _settle(
        self,
        file: ObjectFile,
        source: Source,
        became: ObjectOutcome,
        tell: asyncio.Queue[MachineEvent],
    ) -> None:
        """Report the result of an object to the machine."""
        ref = self._handed[file.key]
        if isinstance(became, UrlExpired):
            try:
                self._count_refusal(file, ref, source, became)
            except LakeferryError as error:
                self._give_up(error, tell)
            else:
                tell.put_nowait(Expired((file,)))
            return
        if isinstance(became, MissingFile) and self._may_be_gone(ref):
            self._progress.gone(ref)
        elif isinstance(became, LakeferryError):
            self._give_up(became, tell)
            return
        else:
            self._progress.moved(ref, became)
        del self._handed[file.key]
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._tell_arrived, tell)
        self._arrived.append(file)

    def _tell_arrived(self, tell: asyncio.Queue[MachineEvent]) -> None:
        """Report all objects that arrived at the same moment: small ones come many at a time."""
        files, self._arrived = tuple(self._arrived), []
        tell.put_nowait(ObjectsMoved(files))

    def _may_be_gone(self, ref: ObjectRef) -> bool:  # noqa: ARG002
        """Return True if nothing needs an object that doesn't exist."""
        return False

    def _give_up(self, error: LakeferryError, tell: asyncio.Queue[MachineEvent]) -> None:
        self._progress.given_up = error
        tell.put_nowait(WorkRefused(error))

    def _count_refusal(
        self, file: ObjectFile, ref: ObjectRef, source: Source, expired: UrlExpired
    ) -> None:
        """Count a URL that was refused before it expired; raise after too many for one object."""
        if source.is_stale or isinstance(expired, MoreUrls):
            return
        count = self._refused[file.key] = self._refused.get(file.key, 0) + 1
        if count > _REFUSED_URLS:
            raise refused_url(ref)

    @abstractmethod
    async def _move(self, ref: ObjectRef, source: Source, ask: RequestUrl) -> int:
        """Move one object, and return the number of bytes that were transferred."""


class PullHost(_Movers):
    """Does a pull's work. ``head`` is set after the commit; ``blocks`` is how many came."""

    def __init__(
        self,
        remote: Remote,
        here: Here,
        head: Multihash | None,
        threads: StoreThreads,
        under_way: UnderWay,
        progress: TransferProgress,
        *,
        dry_run: bool = False,
        engines: ChooseCarrier = nobody_else,
    ) -> None:
        super().__init__(remote.terms.parallel, progress, here, engines)
        self._dry_run = dry_run
        self._remote = remote
        self._terms: Terms = remote.terms
        self._here = here
        self._old_head = head
        self._threads = threads
        self._under_way = under_way
        self._run: Run = ()
        self._judged: Judged | None = None
        self._optional: set[ObjectRef] = set()
        self._unproven: set[ObjectRef] = set()
        self.head: Multihash | None = None
        self.blocks = 0
        self.foreseen: tuple[Multihash, int, list[ObjectRef]] | None = None
        """In a dry run: the head, the number of blocks and the objects that a pull would bring."""

    async def answer(self, action: MachineAction) -> HostEvent | None:
        """Execute an action of the machine."""
        match action:
            case TakeBlocks(batch):
                refs = await self._threads.run(lambda: self._take(batch))
                begun = await self._under_way.keep(refs)
                await self._threads.run(lambda: self._choose(refs, begun))
                if self._dry_run:
                    await self._threads.run(self._foresee)
                    raise Interrupted("there is nothing to do")
                return BlocksTaken()
            case NextObjects(limit):
                return self._page(limit)
            case Download(downloads):
                for one in downloads:
                    self._remote.admit(one.url.url)
                for one in downloads:
                    source = Source.now(one.url)
                    if not self._under_way.renew(self._handed[one.object.key], source):
                        self._queue.put_nowait((one.object, source))
                return None
            case CheckAndCommit():
                commit = partial(
                    self._here.dataset.commit,
                    self._run,
                    self._old_head,
                    force=self._terms.force,
                    unproven=self._unproven,
                    judged=self._judged,
                )
                self.head = await self._threads.run(commit)
                self.blocks = len(self._run)
                return RunCommitted()
        raise AssertionError(action)

    def _take(self, batch: BlocksBatch) -> list[ObjectRef]:
        """Check blocks, and return the objects that they name."""
        run = tarball.unpack(batch.payload, limits=_LIMITS, gzip=batch.media_type == m.TAR_GZIP)
        self._run, judged = check_run(self._here, self._old_head, run, self._terms.force)
        self._judged = judged
        refs = [*judged.required, *judged.optional]
        self._optional = set(judged.optional)
        self._progress.expect(refs, self._old_head)
        return refs

    def _choose(self, refs: Sequence[ObjectRef], begun: Sequence[ObjectRef]) -> None:
        """Find the missing objects; those that are arriving come first."""
        arriving = set(begun)
        others = [ref for ref in refs if ref not in arriving]
        self._todo = [*begun, *self._here.dataset.missing(others)]
        self._needed = len(self._todo), sum(ref.size_bytes for ref in self._todo)
        dataset = self._here.dataset
        if not dataset.places_prove_objects:
            self._unproven = set(refs) - set(self._todo)
        if self._old_head is None:
            # A table's files have any names: with the mark, a later pull knows them as its own.
            dataset.claim()

    @property
    def may_be_a_part(self) -> bool:
        """Return True if so many blocks came that more may follow; the plan doesn't matter."""
        size_bytes = sum(len(data) for _, data in self._run)
        came = m.TransferPlan(len(self._run), bytes_in_raw_blocks=size_bytes)
        return not message_parts.PULLED.surely_hold(came)

    def _foresee(self) -> None:
        # The store of a dry run keeps changes in memory; the next part follows these blocks.
        for name, data in self._run:
            self._here.store.put(self._here.dataset.block_path(name), data)
        self.foreseen = self._run[-1][0], len(self._run), self._todo

    async def _move(self, ref: ObjectRef, source: Source, ask: RequestUrl) -> int:
        return await self._under_way.fetch(ref, source, ask)

    def _has_begun(self, ref: ObjectRef) -> bool:
        return ref in self._under_way

    def _may_be_gone(self, ref: ObjectRef) -> bool:
        return ref in self._optional


class PushHost(_Movers):
    """Does the work of pushing one part."""

    def __init__(
        self,
        remote: Remote,
        part: Part,
        uploads: Uploads,
        progress: TransferProgress,
        replaced: Callable[[Multihash], Awaitable[bool]],
        places: ObjectPlaces,
        engines: ChooseCarrier = nobody_else,
    ) -> None:
        """Push a part; ``replaced`` tells if force made the server's head from ours."""
        super().__init__(remote.terms.parallel, progress, places, engines)
        self._remote = remote
        self._part = part
        self._uploads = uploads
        self._todo = list(part.refs)
        self._lacking: set[ObjectKey] = set()
        self._replaced = replaced
        self.head = part.head
        """The server's head in the end: ours, or the one that force made from it."""
        progress.expect(part.refs, part.head)

    async def _their_head(self) -> Multihash | None:
        head = await self._remote.head()
        if head is None or head == self._part.head or not await self._replaced(head):
            return head
        self.head = head
        return self._part.head

    async def answer(self, action: MachineAction) -> HostEvent | None:
        """Execute an action of the machine."""
        match action:
            case LoadBlocks():
                return BlocksReady(self._part.batch)
            case NextObjects(limit):
                return self._page(limit)
            case Upload(uploads):
                for one in uploads:
                    if one.url is not None:
                        self._remote.admit(one.url.url)
                        self._need(one.object)
                        self._queue.put_nowait((one.object, Source.now(one.url)))
                return None
            case CheckHead():
                return HeadIs(await self._their_head())
        raise AssertionError(action)

    def _need(self, file: ObjectFile) -> None:
        """Count an object that the server doesn't have; the others may still be missing."""
        if file.key not in self._lacking:
            self._lacking.add(file.key)
            objects, size_bytes = self._needed
            self._needed = objects + 1, size_bytes + self._handed[file.key].size_bytes

    async def _move(self, ref: ObjectRef, source: Source, ask: RequestUrl) -> int:  # noqa: ARG002
        return await self._uploads.put(ref, source)
