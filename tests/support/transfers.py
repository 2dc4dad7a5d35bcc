"""Pushes and pulls as plain functions, for tests that have no event loop, or have one."""

from __future__ import annotations

from typing import Any

from lakeferry.transfer.client import event_loop
from lakeferry.transfer.client.push_and_pull import Pull, Push
from lakeferry.transfer.client.session_work import TransferSteps
from lakeferry.transfer.client.transfer_progress import Transferred


async def async_pull(*arguments: Any, **options: Any) -> Transferred:
    """Pull, with the arguments of :class:`Pull`."""
    return await Pull(*arguments, **options).run()


async def async_push(*arguments: Any, **options: Any) -> Transferred:
    """Push, with the arguments of :class:`Push`."""
    return await Push(*arguments, **options).run()


def pull(*arguments: Any, **options: Any) -> Transferred:
    """Pull, with the arguments of :class:`Pull`."""
    return event_loop.run_in_loop(Pull(*arguments, **options).run())


def push(*arguments: Any, **options: Any) -> Transferred:
    """Push, with the arguments of :class:`Push`."""
    return event_loop.run_in_loop(Push(*arguments, **options).run())


def plan_pull(*arguments: Any, **options: Any) -> TransferSteps:
    """Return what a pull would do."""
    return event_loop.run_in_loop(Pull(*arguments, **options).plan())


def plan_push(*arguments: Any, **options: Any) -> TransferSteps:
    """Return what a push would do."""
    return event_loop.run_in_loop(Push(*arguments, **options).plan())
