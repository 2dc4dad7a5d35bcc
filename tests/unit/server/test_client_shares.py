"""Who gets a place, and who has to give one back."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from lakeferry.errors import StorageUnavailable
from lakeferry.server import client_shares
from lakeferry.server.client_shares import Seat, Seats, Slot, Slots, holder_of, network_of

A, B, C = "token a", "token b", "token c"


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_shares, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(client_shares, "_GRACE_S", 0.05)
    monkeypatch.setattr(client_shares, "_SLOW_AFTER_S", 0.2)
    monkeypatch.setattr(client_shares, "_LOOKS_PER_S", 100)


async def upload(slots: Slots, holder: str, log: list[str]) -> None:
    """Have a place until it is withdrawn."""
    async with slots.slot(holder) as slot:
        withdrawn = asyncio.Event()
        slot.interrupt = withdrawn.set
        log.append(f"{holder} begins")
        await withdrawn.wait()
        log.append(f"{holder} makes way")


@pytest.mark.usefixtures("_hurried")
def test_one_client_has_all_places_until_another_one_comes() -> None:
    async def story() -> list[str]:
        slots, log = Slots(4), list[str]()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(upload(slots, A, log)) for _ in range(6)]
            await asyncio.sleep(0.3)
            assert log == [f"{A} begins"] * 4
            log.clear()
            async with slots.slot(B), slots.slot(B):
                seen = list(log)
            for task in tasks:
                task.cancel()
        return seen

    assert asyncio.run(story()) == [f"{A} makes way"] * 2


@pytest.mark.usefixtures("_hurried")
def test_a_place_that_becomes_free_goes_to_who_has_the_fewest() -> None:
    async def story() -> list[str]:
        slots, log = Slots(3), list[str]()
        async with AsyncExitStack() as first, asyncio.TaskGroup() as group:
            for _ in range(3):
                await first.enter_async_context(slots.slot(A))
            tasks = [group.create_task(upload(slots, holder, log)) for holder in (A, A, B)]
            await asyncio.sleep(0)
            await first.aclose()
            await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
        return log

    assert asyncio.run(story())[0] == f"{B} begins"


@pytest.mark.usefixtures("_hurried")
def test_the_slowest_upload_makes_way_and_equal_shares_stay() -> None:
    async def story() -> None:
        slots = Slots(2)
        withdrawn: list[Slot] = []
        async with slots.slot(A) as quick, slots.slot(B) as slow:
            for slot in (quick, slow):
                slot.interrupt = lambda slot=slot: withdrawn.append(slot)
            quick.received_bytes = 1 << 30
            waiting = asyncio.create_task(upload(slots, C, []))
            await asyncio.sleep(0.1)
            # Nobody has more than anybody else would have, and slow is fine for a while.
            assert withdrawn == []
            await asyncio.sleep(0.3)
            assert withdrawn == [slow]
            waiting.cancel()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a socket", "a socket"),
        (None, ""),
    ],
)
def test_all_addresses_of_one_ipv6_network_are_one_client(
    address: str | None, network: str
) -> None:
    assert network_of(address) == network
    assert holder_of(None, address) == f"address {network}"


@pytest.mark.usefixtures("_hurried")
def test_clients_that_have_nothing_take_turns() -> None:
    async def story() -> list[str]:
        slots, log = Slots(1), list[str]()

        async def briefly(holder: str) -> None:
            async with slots.slot(holder):
                log.append(holder)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for holder in (A, A, A, A, B):
                group.create_task(briefly(holder))
        return log

    # Whoever asks often comes first once, and not with all it has asked for.
    assert asyncio.run(story()) == [A, B, A, A, A]


@pytest.mark.usefixtures("_hurried")
def test_room_is_counted_in_units_and_given_back_where_it_is_not_needed() -> None:
    async def story() -> None:
        slots = Slots(10)
        async with slots.slot(A, 6) as first:
            log: list[str] = []
            waiting = asyncio.create_task(upload(slots, B, log))
            async with slots.slot(C, 3):
                another = asyncio.create_task(upload(slots, C, log))
                await asyncio.sleep(0)
                assert log == [f"{B} begins"]
                slots.shrink(first, 5)
                await asyncio.sleep(0)
                assert log == [f"{B} begins", f"{C} begins"]
                for task in (waiting, another):
                    task.cancel()
        # What is larger than all there is gets it alone.
        async with asyncio.timeout(1), slots.slot(A, 99) as whole:
            assert whole.units == 10

    asyncio.run(story())


@pytest.mark.usefixtures("_hurried")
def test_who_leaves_an_answer_unread_makes_way_for_its_own_client_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_shares, "RATE_OVER_S", 0.05)

    async def story() -> None:
        slots, log = Slots(2), list[str]()
        async with slots.slot(A, 1) as read, slots.slot(A, 1) as unread:
            began_s = asyncio.get_running_loop().time()
            for slot in (read, unread):
                slot.interrupt = lambda slot=slot: log.append("read" if slot is read else "unread")
            # The system has taken much of both at once.
            read.moved_bytes = lambda: int(
                (asyncio.get_running_loop().time() - began_s)
                * client_shares._SLOWEST_BYTES_PER_S
                * 100
            )
            unread.moved_bytes = lambda: 4 << 20
            waiting = asyncio.create_task(upload(slots, A, []))
            await asyncio.sleep(0.5)
            assert log == ["unread"]
            waiting.cancel()

    asyncio.run(story())


def test_of_those_who_wait_some_of_who_has_the_most_make_way() -> None:
    async def story() -> list[bool]:
        slots = Slots(1, most_waiting=3)

        async def wait(holder: str) -> None:
            async with slots.slot(holder):
                pass

        async with asyncio.TaskGroup() as group, slots.slot(C):
            waiting = [asyncio.create_task(wait(A)) for _ in range(3)]
            await asyncio.sleep(0)
            # As many as may wait do, and all of them are the same client's.
            with pytest.raises(StorageUnavailable):
                await wait(A)
            others = [group.create_task(wait(B))]
            await asyncio.wait([waiting[-1]])
            seen = [task.done() for task in (*waiting, *others)]
            with pytest.raises(StorageUnavailable):
                await wait(B)
        with pytest.raises(StorageUnavailable):
            await waiting[-1]
        await asyncio.gather(*waiting[:-1])
        return seen

    assert asyncio.run(story()) == [False, False, True, False]


def test_who_goes_while_waiting_leaves_no_place_taken() -> None:
    async def story() -> None:
        slots = Slots(1)
        async with slots.slot(A):
            waiting = asyncio.create_task(upload(slots, B, []))
            await asyncio.sleep(0)
            waiting.cancel()
        async with asyncio.timeout(1), slots.slot(C):
            pass

    asyncio.run(story())


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
    now_s[0] = client_shares._PATIENCE_S - 0.1
    assert seats.take(A, "here") is None
    now_s[0] = client_shares._PATIENCE_S
    assert seats.take(A, "here") is not None
    assert seats.take(A, "here") is None
    now_s[0] = client_shares.SILENT_S
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


def test_who_a_client_is() -> None:
    assert holder_of("lf_abc_secret", "1.2.3.4") == "token abc"
    assert holder_of("nonsense", "1.2.3.4") == "token "
    assert holder_of(None, "1.2.3.4") == "address 1.2.3.4"
