"""Computes and caches the hashes of a table's files.

A path alone says where a file is, and not what it is. So it is read once for its hash, and that
is remembered for as long as the file stays as it is. URLs that the server signed itself aren't
asked about: their hash comes from a block, and whoever pulls compares it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from starlette.concurrency import run_in_threadpool

from lakeferry.errors import ObjectNotFound
from lakeferry.storage import Store
from lakeferry.storage.store import ObjectInfo
from lakeferry.transfer.chain.hashes import Multihash, hash_stream
from lakeferry.transfer.datasets.dataset import CHUNK_BYTES

REMEMBERED = 10_000
AT_ONCE = 2
"""How many files are read for their hashes at a time."""


class FileHashes:
    """Hashes of files of one store, those that were asked for lately."""

    def __init__(self, store: Store) -> None:
        """Begin with none."""
        self._store = store
        self._known: OrderedDict[str, tuple[ObjectInfo, Multihash]] = OrderedDict()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def check(self, path: str, name: Multihash) -> None:
        """Raise ``ObjectNotFound`` unless the file at a path has this hash."""
        info = await run_in_threadpool(self._store.head, path)
        actual = self._remembered(info)
        if actual is None:
            async with self._turns:
                # Whoever was first has read it for those who waited.
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
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _hash(self, path: str, size_bytes: int) -> Multihash:
        starts = range(0, size_bytes, CHUNK_BYTES)
        return hash_stream(self._store.get_range(path, start, CHUNK_BYTES) for start in starts)
