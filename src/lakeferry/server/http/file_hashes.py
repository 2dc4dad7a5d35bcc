"""Computes and caches the hashes of a table's files.

A path doesn't prove a file's content. So the file is read once for its hash, which is cached as
long as the file doesn't change. URLs that the server signed itself aren't checked: their hash
comes from a block, and the client compares it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from starlette.concurrency import run_in_threadpool

from lakeferry.errors import ObjectNotFound
from lakeferry.storage import Store
from lakeferry.storage.store import ObjectInfo
from lakeferry.transfer.chain.hashes import Multihash, hash_stream
from lakeferry.transfer.datasets.dataset import DATASET_CHUNK_BYTES

_REMEMBERED = 10_000
_AT_ONCE = 2
"""How many files are read for their hashes at the same time."""


class FileHashes:
    """Hashes of files of one store, cached for the most recently requested ones."""

    def __init__(self, store: Store) -> None:
        """Start empty."""
        self._store = store
        self._known: OrderedDict[str, tuple[ObjectInfo, Multihash]] = OrderedDict()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def check(self, path: str, name: Multihash) -> None:
        """Raise ``ObjectNotFound`` unless the file at a path has this hash."""
        info = await run_in_threadpool(self._store.head, path)
        actual = self._remembered(info)
        if actual is None:
            async with self._turns:
                # Another request may have read it while this one waited.
                actual = self._remembered(info)
                if actual is None:
                    actual = await run_in_threadpool(self._hash, path, info.size_bytes)
                    self._remember(info, actual)
        if actual != name:
            raise ObjectNotFound("the file there has another hash")

    def _remembered(self, info: ObjectInfo) -> Multihash | None:
        found = self._known.get(info.path)
        return found[1] if found is not None and found[0] == info else None

    def _remember(self, info: ObjectInfo, name: Multihash) -> None:
        self._known[info.path] = info, name
        self._known.move_to_end(info.path)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _hash(self, path: str, size_bytes: int) -> Multihash:
        starts = range(0, size_bytes, DATASET_CHUNK_BYTES)
        return hash_stream(
            self._store.get_range(path, start, DATASET_CHUNK_BYTES) for start in starts
        )
