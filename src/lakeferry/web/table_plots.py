"""Plots about one table as SVG: its commits over time, and shares as bars in the rows of a list."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from markupsafe import Markup

from lakeferry.api.log_summary import LogStretch, LogSummary
from lakeferry.readable import counted

_WIDTH, _HEIGHT, _TOP, _BOTTOM = 720, 120, 8, 34
_NARROWEST = 1.5


def commit_plot(
    summary: LogSummary,
    boundary: int | None,
    shown: tuple[int, int] | None,
    link: Callable[[int], str],
) -> Markup:
    """Return the commits of a table over time; each bar leads to the versions that it stands for.

    ``boundary`` is the first version whose checkpoints aren't protected, ``shown`` the oldest and
    the newest version of the page.
    """
    stretches = summary.stretches
    if not stretches:
        return Markup()
    most = max(each.commits for each in stretches)
    step = _WIDTH / len(stretches)
    parts = [_protected(stretches, boundary, step)]
    for number, each in enumerate(stretches):
        if each.last_version is None or each.first_version is None:
            continue
        height = max((_HEIGHT - _TOP - _BOTTOM) * each.commits / most, 2)
        said = _said(each)
        is_shown = shown is not None and (
            each.first_version <= shown[1] and shown[0] <= each.last_version
        )
        parts.append(
            Markup(
                '<a href="{}" aria-label="{}"><title>{}</title>'
                '<rect class="hit" x="{}" y="0" width="{}" height="{}"/>'
                '<rect class="bar{}" x="{}" y="{}" width="{}" height="{}" rx="1"/></a>'
            ).format(
                link(each.last_version + 1),
                said,
                said,
                *(round(number * step, 2), round(step, 2), _HEIGHT - _BOTTOM),
                " here" if is_shown else "",
                *(round(number * step + step * 0.1, 2), round(_HEIGHT - _BOTTOM - height, 2)),
                *(round(max(step * 0.8, _NARROWEST), 2), round(height, 2)),
            )
        )
        if each.checkpoints:
            parts.append(
                Markup('<circle class="checkpoint" cx="{}" cy="{}" r="3"/>').format(
                    round((number + 0.5) * step, 2), _HEIGHT - _BOTTOM + 7
                )
            )
    ends = Markup(
        '<text class="tick" x="0" y="{}">{}</text>'
        '<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>'
    ).format(_HEIGHT - 4, _day(stretches[0].from_ms), _WIDTH, _HEIGHT - 4, _day(summary.last_ms))
    label = (
        f"{counted(summary.commits, 'commit')} over time, from version {summary.oldest} to "
        f"{summary.newest}, with {counted(summary.checkpoints, 'checkpoint')}"
    )
    return Markup(
        '<svg class="plot commits" viewBox="0 0 {} {}" role="group" aria-label="{}">{}{}</svg>'
    ).format(_WIDTH, _HEIGHT, label, Markup().join(parts), ends)


def share_bar(part: float, whole: float, said: str) -> Markup:
    """Return a bar for a row of a list, whose numbers are beside it."""
    share = 100 * part / whole if whole else 0
    return Markup(
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><rect class="bar" width="{}" height="8"/></svg>'
    ).format(said, round(max(share, 0.6 if part else 0), 2))


def _protected(stretches: tuple[LogStretch, ...], boundary: int | None, step: float) -> Markup:
    """Return a background behind the stretches whose checkpoints are protected."""
    if boundary is None:
        return Markup()
    end = 0
    for number, each in enumerate(stretches):
        if each.first_version is not None and each.first_version < boundary:
            end = number + 1
    if not end:
        return Markup()
    said = f"Checkpoints before version {boundary} are protected"
    return Markup(
        '<g role="img" aria-label="{}"><title>{}</title>'
        '<rect class="protected" x="0" y="0" width="{}" height="{}"/></g>'
    ).format(said, said, round(end * step, 2), _HEIGHT - _BOTTOM)


def _said(each: LogStretch) -> str:
    versions = (
        f"version {each.first_version}"
        if each.first_version == each.last_version
        else f"versions {each.first_version} to {each.last_version}"
    )
    checkpoints = f", {counted(each.checkpoints, 'checkpoint')}" if each.checkpoints else ""
    return (
        f"From {_minute(each.from_ms)}: {counted(each.commits, 'commit')}, {versions}{checkpoints}"
    )


def _day(timestamp_ms: int | None) -> str:
    return "" if timestamp_ms is None else f"{_moment(timestamp_ms):%Y-%m-%d}"


def _minute(timestamp_ms: int) -> str:
    return f"{_moment(timestamp_ms):%Y-%m-%d %H:%M} UTC"


def _moment(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
