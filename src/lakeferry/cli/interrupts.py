"""Handles Ctrl-C, also while native code waits for a store.

Python notices a signal between two of its own instructions. The cloud clients wait in native
code that ignores signals, up to their own time limits. So the signal itself wakes a thread; if
the main thread hasn't ended a moment later, the thread reports the interruption and ends the
process.

Ending a process like this is the same as a crash, and every procedure of Lakeferry can be
resumed after a crash.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_GRACE_S = 1.0


@contextmanager
def ended_promptly(report: Callable[[], None], exit_code: int) -> Iterator[None]:
    """End the process soon after an interrupt, whatever the work inside is waiting for."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    done = threading.Event()

    def watch() -> None:
        while number := os.read(wake, 1):
            if number[0] == signal.SIGINT and not done.wait(_GRACE_S):
                report()
                os._exit(exit_code)

    previous = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="interrupts", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(previous)
        os.close(woken)
