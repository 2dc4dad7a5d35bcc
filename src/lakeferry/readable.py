"""Writes sizes, times, counts and progress so that people can read them.

Command line, notebooks and reports use the same words.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

FactValue = str | int | None
Facts = list[tuple[str, FactValue]]
"""Names with their values, as a command prints them and a notebook shows them."""

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def size(size_bytes: int | None) -> str:
    """Return a size with its unit, for people."""
    if size_bytes is None:
        return "unknown"
    if size_bytes < 1024:
        return counted(size_bytes, "byte")
    power = min((size_bytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{size_bytes / 1024**power:.1f} {_UNITS[power - 1]}"


def moment(timestamp_ms: int) -> str:
    """Return a time for people; a time outside of the calendar is returned as its number."""
    try:
        when = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")


def counted(number: int | None, noun: str) -> str:
    """Return a number with its noun, as in ``1 file`` and ``2 files``."""
    several = f"{noun[:-1]}ies" if noun.endswith("ty") else f"{noun}s"
    if number is None:
        return f"an unknown number of {several}"
    return f"{number:,} {noun if number == 1 else several}"


def elapsed(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds."""
    return str(timedelta(seconds=int(seconds))).rpartition(" ")[2]


def one_line(text: str) -> str:
    """Return a text without line breaks and without characters that control how text is shown."""
    return "".join(
        character if character.isprintable() else _escaped(character)
        for character in " ".join(text.split())
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


class ProgressWords:
    """Describes progress; for work that is measured in bytes, also its speed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Measure speed by ``clock``, which returns seconds."""
        self._clock = clock
        self._began: dict[str, tuple[float, int]] = {}

    def told(self, what: str, done: int, total: int) -> tuple[str, ...]:
        """Return phrases to print with commas in between, the most important one first."""
        # Recognise a Volume by its attributes: importing the engines here would slow down each
        # command.
        objects, of_objects = getattr(done, "objects", None), getattr(total, "objects", None)
        if objects is None or of_objects is None:
            return (f"{done:,} of {total:,}",)
        now = self._clock()
        began, first = self._began.setdefault(what, (now, done))
        if done == first:
            # The time that Spark's workers need to start doesn't count as copying.
            self._began[what] = began, first = now, done
        words = [
            f"{size(int(done))} of {size(int(total))}",
            f"{objects} of {counted(of_objects, 'file')}",
        ]
        if now > began and done > first:
            rate = (done - first) / (now - began)
            words.append(f"{size(int(rate))}/s")
            if total > done:
                left_s = round((total - done) / rate)
                words.append(f"{left_s // 60}:{left_s % 60:02} left")
        return tuple(words)
