"""Several processes that want the same names."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

from lakeferry.storage import StoreConfig, open_config


def claim(config: StoreConfig, names: Sequence[str], who: int) -> list[str]:
    """Try to write each name with ``who`` in it, and return those that were won."""
    store = open_config(config)
    data = f"{who}\n".encode() * 500
    return [name for name in names if store.put_if_absent(name, data)]


def race(config: StoreConfig, names: Sequence[str], racers: int) -> list[list[str]]:
    """Let ``racers`` claim the same names at once; return what each won.

    Each is a process of its own, except in memory, which no two processes share.
    They are spawned and not forked: the clouds' clients don't survive a fork.
    """
    pool: Executor
    if config.uri.startswith("memory:"):
        pool = ThreadPoolExecutor(racers)
    else:
        pool = ProcessPoolExecutor(racers, mp_context=multiprocessing.get_context("spawn"))
    with pool:
        return list(pool.map(partial(claim, config, names), range(racers)))
