"""Several processes that want the same names."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from lakeferry.storage import StoreConfig, open_config
from tests.support import processes


def claim(config: StoreConfig, names: Sequence[str], who: int) -> list[str]:
    """Try to write each name with ``who`` in it, and return those that were won."""
    store = open_config(config)
    data = f"{who}\n".encode() * 500
    return [name for name in names if store.put_if_absent(name, data)]


def count_up(config: StoreConfig, name: str, times: int, who: int) -> list[int]:
    """Add one to the number in an object, so often, and return the numbers that this one wrote."""
    store = open_config(config)
    written: list[int] = []
    while len(written) < times:
        there = store.get(name)
        number = int(there.split()[0]) + 1
        if store.swap(name, there, f"{number} {who}".encode()):
            written.append(number)
    return written


def race_to_count(config: StoreConfig, name: str, times: int, racers: int) -> list[list[int]]:
    """Let ``racers`` count up the same object at once; return what each has written."""
    with _pool(config, racers) as pool:
        return list(pool.map(partial(count_up, config, name, times), range(racers)))


def race(config: StoreConfig, names: Sequence[str], racers: int) -> list[list[str]]:
    """Let ``racers`` claim the same names at once; return what each won.

    Each is a process of its own, except in memory, which no two processes share.
    """
    with _pool(config, racers) as pool:
        return list(pool.map(partial(claim, config, names), range(racers)))


def _pool(config: StoreConfig, racers: int) -> Executor:
    if config.uri.startswith("memory:"):
        return ThreadPoolExecutor(racers)
    return processes.pool(racers)
