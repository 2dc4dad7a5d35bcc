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
    """A small object; ``written`` ends when it is in the store."""

    path: str
    data: bytes
    name: Multihash
    written: asyncio.Future[None]


class SmallObjectWriter:
    """Small objects on their way into the store, all that wait at a time in one call.

    While a call is under way others gather for the next one: how many go together finds
    itself by how fast the store is. Hashes are checked on the way, not to hold up the bytes
    of others.
    """

    def __init__(self, store: Store, threads: StoreThreads) -> None:
        self._store = store
        self._threads = threads
        self._waiting: list[_Received] = []
        self._emptying: asyncio.Task[None] | None = None

    async def put(self, path: str, data: bytes, name: Multihash) -> None:
        """Return when an object is there; ``HashMismatch`` where these aren't its bytes."""
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
            # Nothing is written any more, and nobody may wait for it.
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
        except Exception as failed:  # noqa: BLE001 - those who wait are to hear of it
            if len(batch) > 1:
                # Not all of them need to have failed.
                for one in batch:
                    await self._write([one])
                return
            errors = [failed]
        for one, error in zip(batch, errors, strict=True):
            if one.written.done():
                # Whoever waited was cancelled.
                continue
            if error is None:
                one.written.set_result(None)
            else:
                one.written.set_exception(error)

    def _put(self, batch: list[_Received]) -> list[Exception | None]:
        """Put what has its hash, and return what is wrong with each of the others."""
        errors: list[Exception | None] = []
        good: dict[str, bytes] = {}
        for one in batch:
            try:
                hashes.check(Multihash.sha3_256(one.data), one.name)
            except HashMismatch as error:
                errors.append(error)
            else:
                good[one.path] = one.data
                errors.append(None)
        self._store.put_many(good)
        return errors
