"""Counters in a file, with which tasks on the driver's machine report progress.

Spark reports a task when it ends, and a task may copy one object of many gigabytes. So each task
writes two numbers, bytes and objects, to its own slot, and the driver adds them up. Executors on
other machines can't access the file: then there is none, and only finished tasks are reported.

If the file can't be written, only progress is lost.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_SLOT = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Counters:
    """A file with a slot for each task of a job; a frozen value that can be sent to executors."""

    path: str

    @contextmanager
    def slot(self, number: int) -> Iterator[Callable[[int, int], None]]:
        """Yield a function that stores a task's bytes and objects; a repeated task starts at 0."""
        try:
            file = os.open(self.path, os.O_WRONLY)
        except OSError:
            yield lambda _bytes, _objects: None
            return

        def keep(size_bytes: int, objects: int) -> None:
            with suppress(OSError):
                os.pwrite(file, _SLOT.pack(size_bytes, objects), number * _SLOT.size)

        try:
            yield keep
        finally:
            os.close(file)

    def totals(self) -> tuple[int, int]:
        """Return the bytes and objects of all tasks."""
        try:
            data = Path(self.path).read_bytes()
        except OSError:
            return 0, 0
        whole = data[: len(data) // _SLOT.size * _SLOT.size]
        numbers = memoryview(whole).cast("Q").tolist()
        return sum(numbers[::2]), sum(numbers[1::2])


@contextmanager
def slot(counters: Counters | None, number: int) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that stores a task's bytes and objects; without counters it does nothing."""
    if counters is None:
        yield lambda _bytes, _objects: None
        return
    with counters.slot(number) as keep:
        yield keep


@contextmanager
def kept() -> Iterator[Counters | None]:
    """Yield counters for one job, or ``None`` if no file can be made."""
    try:
        handle, path = tempfile.mkstemp(prefix="lakeferry-progress-")
    except OSError:
        yield None
        return
    os.close(handle)
    try:
        yield Counters(path)
    finally:
        with suppress(OSError):
            os.unlink(path)
