"""How sessions share the memory for what they hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lakeferry.errors import LimitExceeded
from lakeferry.server.session_seats import Seat
from lakeferry.server.sessions.byte_budget import Budget


def test_what_pushes_hold_is_bounded_and_given_back() -> None:
    budget = Budget(1000)
    first = budget.take(600)
    with pytest.raises(LimitExceeded):
        budget.take(600)
    budget.resize(first, 400)
    second = budget.take(600)
    with pytest.raises(LimitExceeded):
        budget.resize(second, 601)
    assert budget.held == 1000
    budget.give_back(first)
    budget.give_back(second)
    budget.take(1000)
    assert budget.held == 1000


@dataclass
class Holding:
    """Who holds bytes, as a budget sees it."""

    silent_since_s: float | None
    let_go: Callable[[], None]
    has_spoken: bool = True

    def make_way(self) -> None:
        self.let_go()


def test_what_one_client_holds_makes_way_for_another_who_waits_until_it_is_free() -> None:
    budget, log = Budget(1000), list[str]()
    held: dict[str, Seat] = {}
    threads: list[threading.Thread] = []
    now_s = time.monotonic()

    def hold(name: str, size_bytes: int, silent_since_s: float | None) -> None:
        def free() -> None:
            log.append(f"{name} is free, {budget.held} held")
            budget.give_back(held[name])

        def let_go() -> None:
            log.append(f"{name} makes way")
            threads.append(threading.Thread(target=free))
            threads[-1].start()

        sitting = Holding(silent_since_s, let_go)
        held[name] = budget.take(size_bytes, "token a", "here", sitting)

    hold("silent", 300, now_s - 1)
    hold("silent for longer", 300, now_s - 2)
    hold("committing", 400, None)
    # Its own client's don't make way, and no more of another's than is of use.
    with pytest.raises(LimitExceeded):
        budget.take(10, "token a", "here")
    with pytest.raises(LimitExceeded):
        budget.take(700, "token b", "here")
    assert log == []
    other = budget.take(100, "token b", "here")
    assert log == ["silent for longer makes way", "silent for longer is free, 1000 held"]
    assert budget.held == 800
    log.clear()
    budget.resize(other, 400)
    assert log == ["silent makes way", "silent is free, 800 held"]
    assert budget.held == 800
    # Now both have the same.
    with pytest.raises(LimitExceeded):
        budget.resize(other, 601)
    for each in threads:
        each.join()
