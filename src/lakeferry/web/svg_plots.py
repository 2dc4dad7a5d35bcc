"""Plots as SVG, made on the server. No inline style: the policy forbids it, so classes colour them.

Each plot has a title and a description for those who don't see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.job_records import WriterPause
from lakeferry.readable import counted
from lakeferry.web.page_filters import shown_duration, shown_place

STATE_ORDER = (
    FleetState.DONE,
    FleetState.RUNNING,
    FleetState.QUEUED,
    FleetState.PLANNED,
    FleetState.FOUND,
    FleetState.STOPPED,
    FleetState.FAILED,
)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 180, 64, 24, 10
_TICKS_MS = tuple(10**power for power in range(10))


def state_bar(counts: Mapping[FleetState, int], total: int) -> Markup:
    """Return one bar that shows how many tables are in each state."""
    if not total:
        return Markup()
    parts, at = [], 0.0
    for state in STATE_ORDER:
        share = 100 * counts.get(state, 0) / total
        if share:
            parts.append(
                Markup('<rect class="fill-{}" x="{}" y="0" width="{}" height="10"/>').format(
                    state.value.lower(), f"{at:.3f}", f"{share:.3f}"
                )
            )
            at += share
    said = ", ".join(
        f"{counts[state]:,} {state.value.lower()}" for state in STATE_ORDER if counts.get(state)
    )
    return Markup(
        '<svg class="state-bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
    ).format(f"Tables by state: {said}", Markup().join(parts))


def pause_plot(pauses: Sequence[WriterPause], link: Callable[..., str]) -> Markup:
    """Return a bar for each finished move: how long its writers waited, on a logarithmic scale."""
    longest = max((each.blocked_ms for each in pauses), default=1)
    ticks = [tick for tick in _TICKS_MS if tick <= max(longest, 10) * 10][-5:]
    low, high = _decades(ticks[0]), _decades(ticks[-1])

    def height(blocked_ms: int) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - (_decades(blocked_ms) - low) / (high - low))

    lines = Markup().join(
        Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>'
            '<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>'
        ).format(_LEFT, _WIDTH, y, y, _LEFT - 8, y + 4, shown_duration(tick))
        for tick in ticks
        for y in (round(height(tick), 1),)
    )
    step = (_WIDTH - _LEFT) / max(len(pauses), 12)
    floor = _HEIGHT - _BOTTOM
    bars = Markup().join(
        Markup(
            '<a href="{}" aria-label="{}"><title>{}</title>'
            '<rect class="bar" x="{}" y="{}" width="{}" height="{}" rx="1.5"/></a>'
        ).format(
            link(f"/jobs/{each.job_id}"),
            said,
            said,
            round(_LEFT + number * step + step * 0.15, 2),
            round(top, 2),
            round(step * 0.7, 2),
            round(max(floor - top, 2), 2),
        )
        for number, each in enumerate(pauses)
        for top in (min(height(max(each.blocked_ms, ticks[0])), floor - 2),)
        for said in (f"{_name(each.uri)}: writers waited {shown_duration(each.blocked_ms)}",)
    )
    label = (
        f"For how long writers waited in {counted(len(pauses), 'finished move')}, "
        f"{shown_duration(longest)} at most"
    )
    return Markup(
        '<svg class="plot" viewBox="0 0 {} {}" role="group" aria-label="{}">{}{}</svg>'
    ).format(_WIDTH, _HEIGHT, label, lines, bars)


def _decades(duration_ms: int) -> float:
    from math import log10

    return log10(max(duration_ms, 1))


def _name(uri: str) -> str:
    return shown_place(uri).rstrip("/").rpartition("/")[2]
