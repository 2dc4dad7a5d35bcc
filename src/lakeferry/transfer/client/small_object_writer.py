"""Checks small objects and writes many of them in one call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from lakeferry.errors import HashMismatch
from lakeferry.storage import Store
from lakeferry.transfer.chain import hashes
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.client.shared_limits import StoreThreads


@dataclass(frozen=True, slots=True)
class _Received:
    """A small object; ``written`` completes when it is in the store."""

    path: str
    data: bytes
    name: Multihash
    written: asyncio.Future[None]


class SmallObjectWriter:
    """Writes small objects to the store, all waiting ones in one call.

    During a call others gather for the next one, so the size of a batch adapts to the speed of
    the store. Hashes are checked in the writing thread, so that they don't delay the receiving
    of other objects.
    """

    def __init__(self, store: Store, threads: StoreThreads) -> None:
        self._store = store
        self._threads = threads
        self._waiting: list[_Received] = []
        self._emptying: asyncio.Task[None] | None = None

    async def put(self, path: str, data: bytes, name: Multihash) -> None:
        """Return when an object is stored; ``HashMismatch`` if the bytes have another hash."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Received(path, data, name, written))
        if self._emptying is None:
            self._emptying = asyncio.create_task(self._empty())
        await written

    async def _empty(self) -> None:
        batch: list[_Received] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._write(batch)
        except BaseException:
            # No more writes follow, so nobody may wait for one.
            given_up, self._waiting = (*batch, *self._waiting), []
            for one in given_up:
                one.written.cancel()
            raise
        finally:
            self._emptying = None

    async def _write(self, batch: list[_Received]) -> None:
        errors: list[Exception | None]
        try:
            errors = await self._threads.run(lambda: self._put(batch))
        except Exception as failed:  # noqa: BLE001 - the waiting callers must get it
            if len(batch) > 1:
                # Some of the batch may have succeeded.
                for one in batch:
                    await self._write([one])
                return
            errors = [failed]
        for one, error in zip(batch, errors, strict=True):
            if one.written.done():
                # The waiting caller was cancelled.
                continue
            if error is None:
                one.written.set_result(None)
            else:
                one.written.set_exception(error)

    def _put(self, batch: list[_Received]) -> list[Exception | None]:
        """Put those with the right hash, and return the error of each of the others."""
        errors: list[Exception | None] = []
        good: dict[str, bytes] = {}
        for one in batch:
            try:
                hashes.check_hash(Multihash.sha3_256(one.data), one.name)
            except HashMismatch as error:
                errors.append(error)
            else:
                good[one.path] = one.data
                errors.append(None)
        self._store.put_many(good)
        return errors
