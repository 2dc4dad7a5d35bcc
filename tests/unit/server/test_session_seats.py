"""Who gets a seat, and whose session makes way."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from lakeferry.server.session_seats import SILENT_S, Seat, Seats
from lakeferry.server.upload_slots import PATIENCE_S

A, B, C = "token a", "token b", "token c"


@dataclass
class Sitting:
    """A session, as seats see it."""

    name: str
    silent_since_s: float | None
    has_spoken: bool
    log: list[str] = field(default_factory=list)

    def make_way(self) -> None:
        self.log.append(self.name)


def test_a_silent_session_of_who_has_the_most_makes_way() -> None:
    seats, log = Seats(4, clock=lambda: 3.5), list[str]()
    told = [("spoke", 1.0, True), ("mute", 3.0, False), ("older mute", 2.0, False)]
    for name, since_s, has_spoken in told:
        seat = seats.take(A, "here")
        assert seat is not None
        seat.sitting = Sitting(name, since_s, has_spoken, log)
    at_work = seats.take(A, "here")
    assert at_work is not None
    at_work.sitting = Sitting("at work", None, False, log)
    # Who has the most gets no more.
    assert seats.take(A, "here") is None
    for newcomer in (B, C):
        assert seats.take(newcomer, "here") is not None
    assert log == ["older mute", "mute"]
    # Two and one and one are as even as it gets.
    assert seats.take(B, "here") is None
    assert len(seats) == 4


def test_an_address_with_many_tokens_makes_way_for_another_address() -> None:
    seats, log = Seats(4, clock=lambda: 5.0), list[str]()
    for number in range(4):
        seat = seats.take(f"token {number}", "here")
        assert seat is not None
        seat.sitting = Sitting(str(number), float(number), True, log)
    assert seats.take("token 9", "here") is None
    assert seats.take("token 9", "there") is not None
    assert log == ["0"]


def test_a_session_that_is_silent_for_long_makes_way_for_its_own_client() -> None:
    now_s, log = [0.0], list[str]()
    seats = Seats(2, clock=lambda: now_s[0])
    for name in ("mute", "spoke"):
        seat = seats.take(A, "here")
        assert seat is not None
        seat.sitting = Sitting(name, 0.0, name == "spoke", log)
    now_s[0] = PATIENCE_S - 0.1
    assert seats.take(A, "here") is None
    now_s[0] = PATIENCE_S
    assert seats.take(A, "here") is not None
    assert seats.take(A, "here") is None
    now_s[0] = SILENT_S
    assert seats.take(A, "here") is not None
    assert log == ["mute", "spoke"]


def test_seats_of_several_units_make_way_together_or_not_at_all() -> None:
    seats, log = Seats(10), list[str]()

    def take(holder: str, units: int, name: str, silent_since_s: float | None = 0.0) -> Seat | None:
        seat = seats.take(holder, holder, units)
        if seat is not None:
            seat.sitting = Sitting(name, silent_since_s, True, log)
        return seat

    now_s = time.monotonic()
    first = take(A, 4, "large", now_s - 1)
    second = take(A, 2, "small", now_s - 2)
    assert first is not None
    assert second is not None
    assert take(A, 4, "at work", None) is not None
    assert take(B, 7, "too much") is None
    assert log == []
    mine = take(B, 3, "mine", now_s)
    assert mine is not None
    assert log == ["small", "large"]
    # Who has made way has nothing that could grow.
    assert not seats.resize(second, 1)
    assert seats.resize(mine, 6)
    assert not seats.resize(mine, 7)
    assert seats.resize(mine, 5)
    assert take(C, 1, "another") is not None
