"""Table properties that the log engine obeys, with their defaults.

Implements the protocol's properties of checkpoints and retention. An invalid value raises
:class:`~lakeferry.errors.UnsupportedFeature` with the property: a guessed retention could delete
a file that is needed. The error isn't ``InvalidInput``, because the user did nothing wrong, and
not ``CorruptLog``, because writers wanted this value: the table requires something that we don't
support, as with an unknown feature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lakeferry.errors import UnsupportedFeature

PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"
BARRIERS = 3
"""How many versions before the boundary get checkpoints, as in delta-spark.

A reader that has lost one checkpoint can use another.
"""
DAY_MS = 24 * 60 * 60 * 1000
_UNITS_MS = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60 * 1000,
    "hour": 60 * 60 * 1000,
    "day": DAY_MS,
    "week": 7 * DAY_MS,
}
_SHORT = re.compile(r"([0-9]+)\s*([smhdw])")
_SHORT_UNITS = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week"}
_TERM = re.compile(r"([+-]?[0-9]+)\s+([a-z]+)")


def deleted_file_retention_ms(configuration: Mapping[str, str]) -> int:
    """Return how long a removed file's tombstone is kept."""
    return _interval(configuration, "delta.deletedFileRetentionDuration", 7 * DAY_MS)


def log_retention_ms(configuration: Mapping[str, str]) -> int:
    """Return how long the log's history is kept."""
    return _interval(configuration, "delta.logRetentionDuration", 30 * DAY_MS)


def protected_before(configuration: Mapping[str, str]) -> int | None:
    """Return the version before which checkpoints are protected, if the property is set.

    It applies only if the protocol has the feature, too.
    """
    value = configuration.get(PROTECTED_BEFORE)
    if value is None:
        return None
    if not value.strip().isdecimal():
        raise UnsupportedFeature(
            "the boundary of the table's protected history is invalid",
            cause=f"the property {PROTECTED_BEFORE} is {value!r}, which isn't a version",
            remedy="set it to the version at which the last feature was dropped",
            property=PROTECTED_BEFORE,
            value=value,
        )
    return int(value)


def wants_v2_checkpoints(configuration: Mapping[str, str]) -> bool:
    """Return True if the table wants V2 checkpoints, which requires their feature."""
    return configuration.get("delta.checkpointPolicy", "classic").lower() == "v2"


def writes_stats_as_json(configuration: Mapping[str, str]) -> bool:
    """Return True if checkpoints contain statistics as text."""
    return _flag(configuration, "delta.checkpoint.writeStatsAsJson", True)


def writes_stats_as_struct(configuration: Mapping[str, str]) -> bool:
    """Return True if checkpoints contain statistics and partition values as typed columns."""
    return _flag(configuration, "delta.checkpoint.writeStatsAsStruct", False)


def keeps_row_ids(configuration: Mapping[str, str]) -> bool:
    """Return True if rows keep their ids when they are moved to other files."""
    return _flag(configuration, "delta.enableRowTracking", False)


def suspends_row_ids(configuration: Mapping[str, str]) -> bool:
    """Return True if the table currently assigns no row ids."""
    return _flag(configuration, "delta.rowTrackingSuspended", False)


def _flag(configuration: Mapping[str, str], name: str, default: bool) -> bool:
    value = configuration.get(name)
    return default if value is None else value.strip().lower() == "true"


def _interval(configuration: Mapping[str, str], name: str, default_ms: int) -> int:
    value = configuration.get(name)
    if value is None:
        return default_ms
    found = interval_ms(value)
    if found is None or found < 0:
        raise UnsupportedFeature(
            f"the table's property {name} is invalid",
            cause=f"{value!r} isn't an interval",
            remedy="set it to something like 'interval 7 days'",
            property=name,
            value=value,
        )
    return found


def interval_ms(text: str) -> int | None:
    """Return Delta's ``interval 7 days 12 hours`` in milliseconds; ``None`` if it isn't one."""
    words = text.strip().lower()
    words = words.removeprefix("interval").strip()
    total, position = 0, 0
    while position < len(words):
        match = _TERM.match(words, position)
        if match is None:
            return None
        unit = match.group(2)
        if unit in ("microsecond", "microseconds"):
            total += int(match.group(1)) // 1000
        else:
            factor = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
            if factor is None:
                return None
            total += int(match.group(1)) * factor
        position = match.end()
        while position < len(words) and words[position].isspace():
            position += 1
    return total if words else None


def duration_ms(text: str) -> int | None:
    """Return ``90s``, ``15m``, ``12h``, ``7d``, ``2w`` or Delta's interval in milliseconds."""
    short = _SHORT.fullmatch(text.strip().lower())
    if short is not None:
        return int(short.group(1)) * _UNITS_MS[_SHORT_UNITS[short.group(2)]]
    found = interval_ms(text)
    return None if found is None or found < 0 else found


def interval_text(milliseconds: int) -> str:
    """Return a number of milliseconds in the largest exact unit, as text for users."""
    for unit in ("day", "hour", "minute", "second"):
        count, rest = divmod(milliseconds, _UNITS_MS[unit])
        if count and not rest:
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return f"{milliseconds} ms"
