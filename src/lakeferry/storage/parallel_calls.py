"""Calls a store from several threads, or uploads what the caller makes meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar, cast

from lakeferry.storage.store import StreamChunk

_T = TypeVar("_T")

CONCURRENCY = 16
"""How many calls to a store are made at a time."""


def concurrently(act: Callable[[str], _T], items: Sequence[str]) -> list[_T]:
    """Do ``act`` for each item in a bounded number of threads; the first failure ends it.

    Each thread takes every n-th item: a queue of single items costs more in
    switching than the requests do.
    """
    width = min(CONCURRENCY, len(items))
    if width <= 1:
        return [act(item) for item in items]
    results: list[_T | None] = [None] * len(items)
    failed = threading.Event()

    def work(first: int) -> None:
        try:
            for index in range(first, len(items), width):
                if failed.is_set():
                    return
                results[index] = act(items[index])
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(width, thread_name_prefix="lakeferry-store") as pool:
        for ended in [pool.submit(work, first) for first in range(width)]:
            ended.result()
    return cast("list[_T]", results)


def relay_chunks(
    chunks: Iterator[StreamChunk], upload: Callable[[Iterator[StreamChunk]], None]
) -> None:
    """Run ``upload`` in a thread of its own, while this thread makes the chunks.

    obstore asks for chunks from inside its own runtime, where none of its other calls
    can be made, and chunks mostly come from such a call. If making a chunk fails, the upload is
    aborted, and the store deletes the parts.
    """
    handed: queue.Queue[StreamChunk | BaseException | None] = queue.Queue(maxsize=2)
    ended = threading.Event()

    def taken() -> Iterator[StreamChunk]:
        while (item := handed.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def work() -> None:
        try:
            upload(taken())
        finally:
            # From here on the queue has room for everything that may follow: a waiting chunk, and
            # the end.
            ended.set()
            with suppress(queue.Empty):
                while True:
                    handed.get_nowait()

    with ThreadPoolExecutor(1, thread_name_prefix="lakeferry-upload") as pool:
        uploading = pool.submit(work)
        try:
            for chunk in chunks:
                if ended.is_set():
                    break
                handed.put(chunk)
            handed.put(None)
        except BaseException as error:
            handed.put(error)
            uploading.exception()
            raise
        uploading.result()
