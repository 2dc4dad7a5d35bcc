"""Something that happens in the middle of a procedure, at a moment that a test chooses.

A procedure of redirects does everything through stores, so a moment is a call of one
of them: :func:`meanwhile` gives a mover to whom something happens right before the
first call that a test describes. What the engines copy isn't seen here; an observer
hears of that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lakeferry.api.redirects import Redirects
from lakeferry.storage import Store, open_store
from tests.support.stores import Fault, FaultyStore, StoreCall

Moment = Callable[[str, StoreCall], bool]
"""Tells the call that is waited for, by the place where it is made."""


def commits(place: str, version: int | None = None) -> Moment:
    """Return the moment before a version, or the first of all, is committed at a place."""
    name = "" if version is None else f"{version:020d}"

    def is_it(uri: str, call: StoreCall) -> bool:
        path = call.paths[0]
        folder, _, file = path.rpartition("/")
        return (
            (uri, call.verb, folder) == (place, "PUT_IF_ABSENT", "_delta_log")
            and file.endswith(".json")
            and file.startswith(name)
        )

    return is_it


def meanwhile(
    moment: Moment,
    act: Callable[[], object],
    storage_options: Mapping[str, str] | None = None,
    fault: Fault | None = None,
    **options: Any,
) -> Redirects:
    """Return a mover to whom ``act`` happens right before the moment; then its call may fail."""
    options_of_all, happened, lock = dict(storage_options or {}), [False], threading.Lock()
    moves = Redirects(options_of_all, engine="local", **options)

    def opened(uri: str) -> Store:
        def rule(call: StoreCall) -> Fault | None:
            with lock:
                if happened[0] or not moment(uri, call):
                    return None
                happened[0] = True
            act()
            return fault

        return FaultyStore(open_store(uri, options_of_all), rule)

    moves.setting = replace(moves.setting, open_store=opened)
    return moves
