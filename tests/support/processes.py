"""Processes that tests let work at once: each a fork of one that has imported what they need.

That one is started by the first who asks. It has opened nothing, so what forks badly, such as the
clouds' clients, isn't there yet; and it takes no time to import the same modules for each of them.
They get the environment that the test has then, and are given plain values.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

_IMPORTED = (
    "deltalake",
    "lakeferry.api.redirects",
    "tests.support.concurrent_writers",
    "tests.support.races",
    "tests.support.redirect_writers",
)


@cache
def context() -> ForkServerContext:
    """Return how these processes are started, for what they share with the test."""
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload([*_IMPORTED])
    return chosen


def pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of so many processes."""
    given = (dict(os.environ),)
    return ProcessPoolExecutor(
        workers, mp_context=context(), initializer=_take_environment, initargs=given
    )


def process(target: Callable[..., object], *args: object) -> ForkServerProcess:
    """Return a process that calls a function, and that the caller starts."""
    return context().Process(target=_called, args=(dict(os.environ), target, args))


def _called(environment: Mapping[str, str], target: Callable[..., object], args: Any) -> None:
    _take_environment(environment)
    target(*args)


def _take_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
