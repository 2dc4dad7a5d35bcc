"""How pages show values: sizes, times, durations, places, states. Pure functions for templates."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import unquote

from markupsafe import Markup, escape

from lakeferry.readable import counted, size

UNKNOWN_VALUE = "–"
_AGES = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def shown_size(size_bytes: float | None) -> str:
    """Return a number of bytes as people read it."""
    return UNKNOWN_VALUE if size_bytes is None else size(round(size_bytes))


def shown_number(number: float | None, digits: int = 0) -> str:
    """Return a number with separators."""
    return UNKNOWN_VALUE if number is None else f"{number:,.{digits}f}"


def shown_moment(timestamp_ms: int | None) -> Markup | str:
    """Return a time as an element that programs can read, too."""
    if timestamp_ms is None:
        return UNKNOWN_VALUE
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        f"{moment:%Y-%m-%dT%H:%M:%SZ}", f"{moment:%Y-%m-%d %H:%M:%S}"
    )


def shown_age(timestamp_ms: int | None, now_ms: int | None = None) -> Markup | str:
    """Return how long ago something was, with the time itself as its title."""
    if timestamp_ms is None:
        return UNKNOWN_VALUE
    now = now_ms if now_ms is not None else time.time_ns() // 1_000_000
    age_s = max(0, now - timestamp_ms) // 1000
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    said = "just now"
    for length, noun in _AGES:
        if age_s >= length and (length > 1 or age_s >= 5):
            said = f"{counted(age_s // length, noun)} ago"
            break
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        f"{moment:%Y-%m-%dT%H:%M:%SZ}", f"{moment:%Y-%m-%d %H:%M:%S}", said
    )


def shown_duration(duration_ms: float | None) -> str:
    """Return a length of time: ``36 ms``, ``4.2 s``, ``3:05 min``, ``2:00 h``."""
    if duration_ms is None:
        return UNKNOWN_VALUE
    if duration_ms < 1_000:
        return f"{round(duration_ms)} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.1f} s"
    seconds = round(duration_ms / 1000)
    if seconds < 3_600:
        return f"{seconds // 60}:{seconds % 60:02} min"
    return f"{seconds // 3600:,}:{seconds // 60 % 60:02} h"


def shown_place(uri: str | None) -> str:
    """Return a URI as people read it: local paths plain, without percent signs."""
    if uri is None:
        return UNKNOWN_VALUE
    if uri.startswith("file:///"):
        text = unquote(uri.removeprefix("file://"), errors="replace")
        return text if text.isprintable() else uri
    return uri


def breakable(text: str) -> Markup:
    """Return a path with places where a line may break: after slashes, underscores and dots."""
    escaped = str(escape(text))
    for mark in "/_.":
        escaped = escaped.replace(mark, f"{mark}<wbr>")
    return Markup(escaped)


def command_line(words: Iterable[object]) -> str:
    """Return a command as it can be pasted into a shell."""
    return shlex.join(str(word) for word in words)
