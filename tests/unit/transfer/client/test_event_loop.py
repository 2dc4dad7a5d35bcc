"""The event loop in a thread: results, errors, Ctrl-C, and the signals that stay whose they are."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from lakeferry.transfer.client import event_loop


@pytest.fixture(autouse=True)
def interrupts_as_ever() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def interrupting() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)


def test_what_is_returned_and_raised_comes_out() -> None:
    async def fine() -> int:
        return 5

    async def fails() -> None:
        raise ValueError("no")

    assert event_loop.run_in_loop(fine()) == 5
    with pytest.raises(ValueError, match="no"):
        event_loop.run_in_loop(fails())


def test_an_interrupt_cancels_and_is_raised_at_the_end() -> None:
    said = []

    async def work() -> None:
        try:
            await interrupting()
        finally:
            await asyncio.sleep(0.01)
            said.append("tidied up")

    with pytest.raises(KeyboardInterrupt):
        event_loop.run_in_loop(work())
    assert said == ["tidied up"]


def test_what_ends_well_all_the_same_is_no_interrupt() -> None:
    async def work() -> str:
        try:
            await interrupting()
        except asyncio.CancelledError:
            return "committed"
        return ""

    assert event_loop.run_in_loop(work()) == "committed"


def test_whoever_is_told_of_signals_still_is() -> None:
    """A file descriptor of the process's stays, so that the command line ends promptly."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    before = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    try:
        with pytest.raises(KeyboardInterrupt):
            event_loop.run_in_loop(interrupting())
        assert os.read(wake, 1)[0] == signal.SIGINT
    finally:
        signal.set_wakeup_fd(before)
        os.close(wake)
        os.close(woken)


def test_outside_of_the_main_thread_it_is_the_same() -> None:
    found = []

    async def fine() -> int:
        return 5

    thread = threading.Thread(target=lambda: found.append(event_loop.run_in_loop(fine())))
    thread.start()
    thread.join()
    assert found == [5]
