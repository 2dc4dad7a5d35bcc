"""Pulls from plain files, without a session.

Only files with known names can be requested, so the chain is walked from the head back, a block
at a time, until our own head or the seed. It is checked on the way as in a session. The walk is
finite whatever the server sends: each block has the hash that the later one names, and the number
before it. Objects are downloaded in parallel; blocks are stored when all objects exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from lakeferry.errors import (
    LimitExceeded,
    MissingFile,
    ObjectNotFound,
    UnsupportedFeature,
)
from lakeferry.transfer.chain import odf_blocks, validation
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import Block, ObjectRef
from lakeferry.transfer.client.downloads import Downloads, refused_url
from lakeferry.transfer.client.object_urls import Source, UrlExpired
from lakeferry.transfer.client.remote_dataset import Remote
from lakeferry.transfer.client.session_work import (
    RUN_BLOCKS,
    RUN_BYTES,
    TransferSteps,
    check_run,
    step,
)
from lakeferry.transfer.client.shared_limits import StoreThreads
from lakeferry.transfer.client.transfer_progress import TransferProgress, Transferred
from lakeferry.transfer.datasets.dataset import DatasetFormat, Run
from lakeferry.transfer.datasets.local_dataset import Here, kind_of_block
from lakeferry.transfer.datasets.stored_chain import diverged

_T = TypeVar("_T")


class Files:
    """The dataset at a URL, read as files."""

    def __init__(
        self, remote: Remote, here: Here, threads: StoreThreads, downloads: Downloads
    ) -> None:
        self._remote = remote
        self._here = here
        self._threads = threads
        self._downloads = downloads

    async def pull(self, head: Multihash, progress: TransferProgress) -> Transferred:
        """Make our dataset equal to theirs, whose head is ``head``."""
        terms, run = self._remote.terms, self._threads.run
        ours, taken, missing = await self._look(head, progress)
        if not taken:
            left = self._here.finished
            blocks = 0 if left is None else left.blocks
            return progress.result(head, blocks, changed=blocks > 0)
        await in_parallel(terms.parallel, missing, partial(self._fetch, progress))
        await run(partial(self._here.dataset.commit, taken, ours, force=terms.force))
        return progress.result(head, len(taken), changed=True)

    async def plan(self, head: Multihash, progress: TransferProgress) -> TransferSteps:
        """Return what a pull would do."""
        _, taken, missing = await self._look(head, progress)
        return step("pull", head, len(taken), missing) if taken else []

    async def _look(
        self, head: Multihash, progress: TransferProgress
    ) -> tuple[Multihash | None, Run, list[ObjectRef]]:
        """Return our head, the new blocks, and the missing objects."""
        force, run = self._remote.terms.force, self._threads.run
        ours = await run(self._here.current)
        if ours == head:
            return ours, (), []
        found = await self._walk(head, ours)
        taken, judged = await run(lambda: check_run(self._here, ours, reversed(found), force))
        progress.expect(judged.required)
        return ours, taken, await run(lambda: self._here.dataset.missing(judged.required))

    async def _fetch(self, progress: TransferProgress, ref: ObjectRef) -> None:
        source = Source.now(self._remote.object_url(ref.kind, ref.hash))
        try:
            size_bytes = await self._downloads.fetch(ref, source)
        except UrlExpired:
            raise refused_url(ref) from None
        progress.moved(ref, size_bytes)

    async def _walk(self, head: Multihash, ours: Multihash | None) -> Run:
        """Return the blocks from ``head`` back to the one after ours, newest first."""
        first = await self._block(head, here_too=False)
        await self._threads.run(lambda: self._check_kind(first))
        floor = -1 if ours is None else await self._threads.run(lambda: self._number(ours))
        found: list[tuple[Multihash, bytes]] = []
        size_bytes = 0
        later: Block | None = None
        current: Multihash | None = head
        while current is not None and current != ours:
            # From the height of our head down, both ends may have the same blocks.
            shared = later is not None and later.sequence_number - 1 <= floor
            data = first if later is None else await self._block(current, here_too=shared)
            block = odf_blocks.parse_odf_block(data, current)
            if later is not None:
                validation.link(validation.ChainHead.of(block), later)
            elif block.sequence_number - floor > RUN_BLOCKS:
                raise LimitExceeded(
                    "the chain is too long", cause=f"{block.sequence_number - floor:,} blocks"
                )
            if block.sequence_number <= floor and not self._remote.terms.force:
                raise diverged(head, ours)
            size_bytes += len(data)
            if size_bytes > RUN_BYTES or len(found) == RUN_BLOCKS:
                raise LimitExceeded("the chain is too long", cause=f"{size_bytes:,} bytes")
            found.append((current, data))
            later, current = block, block.prev_hash
        return found

    async def _block(self, name: Multihash, *, here_too: bool) -> bytes:
        if here_too:
            try:
                return await self._threads.run(lambda: self._here.dataset.block(name))
            except ObjectNotFound:
                pass
        try:
            return await self._remote.block(name)
        except ObjectNotFound as error:
            raise MissingFile(
                f"the server doesn't have the block {name}",
                cause="a later block, or its head, names it",
                remedy="ask the owner of the dataset to repair it: it lacks a block",
                missing=[name.text],
            ) from error

    def _check_kind(self, data: bytes) -> None:
        """Refuse blocks that aren't ODF, there or here, before anything is parsed as ODF."""
        kind = kind_of_block(data)
        if kind is not DatasetFormat.ODF:
            raise UnsupportedFeature(
                "a Delta table can't be pulled as plain files",
                cause="only a server knows where the objects of its versions are",
                remedy="pull it from a server that runs 'lakeferry serve'; if this is one, a proxy "
                "before it stops WebSockets",
            )
        self._here.settle(kind)

    def _number(self, name: Multihash) -> int:
        return odf_blocks.parse_odf_block(self._here.dataset.block(name), name).sequence_number


async def in_parallel(
    count: int, items: Iterable[_T], act: Callable[[_T], Awaitable[None]]
) -> None:
    """Apply ``act`` to each item, ``count`` at a time; the first error stops the others."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await act(item)

    tasks = [asyncio.create_task(worker()) for _ in range(count)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
