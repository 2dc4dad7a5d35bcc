"""Who gets a place, and who has to give one back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from lakeferry.errors import StorageUnavailable
from lakeferry.server import upload_slots
from lakeferry.server.upload_slots import Slot, Slots

A, B, C = "token a", "token b", "token c"


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_slots, "PATIENCE_S", 0.05)
    monkeypatch.setattr(upload_slots, "_GRACE_S", 0.05)
    monkeypatch.setattr(upload_slots, "_SLOW_AFTER_S", 0.2)
    monkeypatch.setattr(upload_slots, "_LOOKS_PER_S", 100)


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
    monkeypatch.setattr(upload_slots, "RATE_OVER_S", 0.05)

    async def story() -> None:
        slots, log = Slots(2), list[str]()
        async with slots.slot(A, 1) as read, slots.slot(A, 1) as unread:
            began_s = asyncio.get_running_loop().time()
            for slot in (read, unread):
                slot.interrupt = lambda slot=slot: log.append("read" if slot is read else "unread")
            # The system has taken much of both at once.
            read.moved_bytes = lambda: int(
                (asyncio.get_running_loop().time() - began_s)
                * upload_slots._SLOWEST_BYTES_PER_S
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
