"""Decides which jobs may begin: waves in their order, windows of time, and pauses. Pure.

A wave begins when all jobs of the waves before it are done. One that failed or was stopped blocks
the later waves, unless a run was asked for them by number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lakeferry.errors import InvalidInput
from lakeferry.fleet.fleet_states import FleetState

_WINDOW = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])-([01]?[0-9]|2[0-4]):([0-5][0-9])")
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class RunWindow:
    """The time of day in which moves may begin; it may go over midnight.

    Minutes since midnight; the end isn't in it. ``zone`` is ``None`` for this machine's zone.
    """

    begin_minute: int
    end_minute: int
    zone: tzinfo | None = None

    @classmethod
    def parse(cls, text: str, zone: str | None = None) -> RunWindow:
        """Return the window ``22:00-05:00``; ``zone`` is a name such as ``Europe/Berlin``."""
        found = _WINDOW.fullmatch(text.replace(" ", ""))
        numbers = [] if found is None else [int(each) for each in found.groups()]
        minutes = [
            hour * 60 + minute for hour, minute in zip(numbers[::2], numbers[1::2], strict=True)
        ]
        if len(minutes) != 2 or max(minutes) > _DAY_MINUTES or minutes[0] == minutes[1]:
            raise InvalidInput(
                f"{text!r} isn't a time of day in which moves may start",
                remedy="write it as 22:00-05:00",
            )
        return cls(minutes[0] % _DAY_MINUTES, minutes[1], _zone(zone))

    def is_open(self, now_ms: int) -> bool:
        """Return whether moves may begin now."""
        local = self._local(now_ms)
        minute = local.hour * 60 + local.minute
        if self.begin_minute < self.end_minute:
            return self.begin_minute <= minute < self.end_minute
        return minute >= self.begin_minute or minute < self.end_minute

    def opens_ms(self, now_ms: int) -> int:
        """Return when moves may begin next; that is now if they may already."""
        if self.is_open(now_ms):
            return now_ms
        local = self._local(now_ms)
        hour, minute = divmod(self.begin_minute, 60)
        opens = local.replace(hour=hour, minute=minute, second=0, microsecond=0)
        if opens <= local:
            opens += timedelta(days=1)
        return int(opens.timestamp() * 1000)

    def _local(self, now_ms: int) -> datetime:
        return datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(self.zone)


def _zone(name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as unknown:
        raise InvalidInput(
            f"there is no time zone {name!r}", remedy="write it as Europe/Berlin, or UTC"
        ) from unknown


@dataclass(frozen=True, slots=True)
class WaveProgress:
    """How many jobs of a wave are in each state."""

    wave: int
    counts: Mapping[FleetState, int]

    @property
    def is_open(self) -> bool:
        """Whether a job of it waits or runs."""
        return any(self.counts.get(state, 0) for state in FleetState if state.is_open)

    @property
    def has_failed(self) -> bool:
        """Whether a job of it ended without being done."""
        return bool(self.counts.get(FleetState.FAILED) or self.counts.get(FleetState.STOPPED))


@dataclass(frozen=True, slots=True)
class WaveChoice:
    """The wave whose jobs may begin now; ``blocked_by`` is an earlier one that failed."""

    wave: int | None
    blocked_by: int | None = None


def choose_wave(progress: Iterable[WaveProgress], wanted: int | None = None) -> WaveChoice:
    """Return the wave whose jobs may begin; with ``wanted`` only that one is considered."""
    failed: int | None = None
    for each in sorted(progress, key=lambda each: each.wave):
        if wanted is not None and each.wave != wanted:
            continue
        if each.is_open:
            return WaveChoice(None, failed) if failed is not None else WaveChoice(each.wave)
        if each.has_failed:
            failed = each.wave
    return WaveChoice(None)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """What decides a move's wave: its ends, and the size of the table."""

    uri: str
    target: str
    size_bytes: int


def assign_waves(moves: Sequence[PlannedMove], count: int) -> dict[str, int]:
    """Return each table's wave: the smallest tables first, about as many in each wave.

    A table to which another one is redirected first is in a later wave than that one. So there may
    be more waves than ``count``.
    """
    smallest_first = sorted(moves, key=lambda move: (move.size_bytes, move.uri))
    waves = {
        move.uri: index * count // len(smallest_first) + 1
        for index, move in enumerate(smallest_first)
    }
    leads_to = {move.uri: move.target for move in moves if move.target in waves}
    for uri in leads_to:
        seen = [uri]
        while (then := leads_to.get(seen[-1])) is not None:
            if then in seen:
                raise InvalidInput(
                    "tables can't be moved to each other's places",
                    cause=" → ".join([*seen, then]),
                    remedy="choose other targets, or move one of them to a third place first",
                )
            waves[then] = max(waves[then], waves[seen[-1]] + 1)
            seen.append(then)
    return waves
