"""``/tables``: one table: its versions over time, who can read them, its files and properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from lakeferry.api.live_file_counts import LiveFileCountsCache, SizeClass
from lakeferry.api.log_summary import LogSummary
from lakeferry.api.log_summary_cache import LogSummaryCache
from lakeferry.api.table import Table
from lakeferry.api.version_readers import version_readers
from lakeferry.errors import InvalidInput
from lakeferry.fleet.records import TableQuery
from lakeferry.web import table_plots
from lakeferry.web.page_filters import command_line, shown_size
from lakeferry.web.page_routes import ConsolePage, page_at
from lakeferry.web.visit import Visit

_SHOWN_TABLES = 50
_SHOWN_PROPERTIES = 100
_LONGEST_VALUE = 300
_LONGEST_PLACE = 2_000
_STATISTICS = LiveFileCountsCache()
_LOGS = LogSummaryCache()


def tables(visit: Visit) -> Response:
    """Ask which table to show, or show its timeline."""
    if not visit.asked("at"):
        return _choice(visit)
    place, table = _asked_table(visit)
    before = visit.asked_number("before", 0, 0)
    timeline = table.timeline(before or None)
    configuration = {} if timeline.newest is None else timeline.newest.metadata.configuration
    shown = timeline.versions
    readers, reader_words = version_readers(timeline)

    span = (shown[-1].version, shown[0].version) if shown else None
    return visit.page(
        "table_timeline.html",
        title=place,
        place=place,
        timeline=timeline,
        before=before,
        is_newest_page=bool(shown) and shown[0].version == timeline.newest_version,
        page_before=_page_before(visit, place),
        **_log_values(visit, place, timeline.summary, timeline.boundary, span),
        log_link=visit.link(
            "/tables/log",
            at=place,
            boundary=timeline.boundary,
            oldest=None if span is None else span[0],
            newest=None if span is None else span[1],
        ),
        properties=[
            (name[:_LONGEST_VALUE], _shortened(value))
            for name, value in sorted(configuration.items())[:_SHOWN_PROPERTIES]
        ],
        property_count=len(configuration),
        readers=readers,
        reader_words=reader_words,
        commands=[
            command_line(("lakeferry", *words))
            for words in (("history", place, "--no-follow"), ("inspect", place))
        ],
    )


def table_log(visit: Visit) -> Response:
    """Show a table's whole log over time; the page of versions loads it after itself."""
    place, table = _asked_table(visit)
    newest = visit.asked_number("newest", -1)
    boundary = visit.asked_number("boundary", -1)
    return visit.page(
        "table_log.html",
        title=f"Log of {place}",
        place=place,
        **_log_values(
            visit,
            place,
            table.log_summary(_LOGS),
            None if boundary < 0 else boundary,
            None if newest < 0 else (visit.asked_number("oldest", 0), newest),
        ),
    )


def _log_values(
    visit: Visit,
    place: str,
    summary: LogSummary | None,
    boundary: int | None,
    shown: tuple[int, int] | None,
) -> dict[str, Any]:
    """Return what the plot of a log needs; ``shown`` are the versions of the page."""
    link = _page_before(visit, place)
    plot = None if summary is None else table_plots.commit_plot(summary, boundary, shown, link)
    return {"log": summary, "boundary": boundary, "plot": plot}


def _page_before(visit: Visit, place: str) -> Callable[[int], str]:
    return lambda version: visit.link("/tables", at=place, before=version)


def table_files(visit: Visit) -> Response:
    """Show a table's files by size and by partition."""
    place, table = _asked_table(visit)
    found = table.live_file_counts(_STATISTICS)
    return visit.page(
        "table_files.html",
        title=f"Files of {place}",
        place=place,
        found=found,
        bar=table_plots.share_bar,
        class_name=class_name,
        classes=used_classes(found.classes),
        most_files=max(each.files for each in found.classes),
        most_bytes=max((each.size_bytes for each in found.partitions), default=0),
        command=command_line(("lakeferry", "files", place, "--no-follow")),
    )


def used_classes(classes: Sequence[SizeClass]) -> Sequence[SizeClass]:
    """Return the classes of sizes from the first one that has files to the last."""
    used = [number for number, each in enumerate(classes) if each.files]
    return classes[used[0] : used[-1] + 1] if used else ()


def class_name(size_class: SizeClass) -> str:
    """Return a class of sizes in words."""
    low, high = size_class.from_bytes, size_class.to_bytes
    if high is None:
        return f"{shown_size(low)} and more"
    return f"up to {shown_size(high)}" if not low else f"{shown_size(low)} to {shown_size(high)}"


def _choice(visit: Visit) -> Response:
    page = visit.console.records.tables(TableQuery(limit=_SHOWN_TABLES))
    return visit.page("tables.html", title="Tables", page=page)


def _asked_table(visit: Visit) -> tuple[str, Table]:
    place = visit.asked("at")
    if not place or len(place) > _LONGEST_PLACE:
        raise InvalidInput("the page needs the place of a table", remedy="choose one at Tables")
    visit.check_may_name(place)
    settings = visit.console.settings
    table = Table(place, settings.storage_options, environment=settings.catalog_environment())
    return place, table


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


TABLES_PAGE = ConsolePage(
    "Tables",
    "/tables",
    (
        page_at("/tables", tables),
        page_at("/tables/log", table_log),
        page_at("/tables/files", table_files),
    ),
)
