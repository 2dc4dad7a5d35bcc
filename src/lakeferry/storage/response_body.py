"""Collects the body of an object store's answer.

obstore's synchronous calls wake the waiting thread for every few kilobytes that arrive, which
costs more time than the transfer itself. A body that isn't small is therefore collected by
obstore's own threads, and the waiting thread is woken once, through an event loop that each
process runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import obstore
    from obstore import Bytes

SMALL_BODY_BYTES = 128 * 1024
"""Up to this size, waking the thread for each piece is cheaper than asking another one."""


def body_of(found: obstore.GetResult) -> Bytes:
    """Return the body of an answer, which the caller doesn't copy."""
    start, end = found.range
    if end - start <= SMALL_BODY_BYTES:
        return found.bytes()
    collecting = asyncio.run_coroutine_threadsafe(_collected(found), _loop_of(os.getpid()))
    return _result_of(collecting)


def _result_of(collecting: Future[Bytes]) -> Bytes:
    try:
        return collecting.result()
    except BaseException:
        # After Ctrl-C nobody waits for it any more.
        collecting.cancel()
        raise


async def _collected(found: obstore.GetResult) -> Bytes:
    return await found.bytes_async()


@lru_cache(maxsize=1)
def _loop_of(process: int) -> asyncio.AbstractEventLoop:  # noqa: ARG001
    """Return the event loop of a process; after a fork, the threads of the parent aren't there."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="lakeferry-bodies", daemon=True).start()
    return loop
