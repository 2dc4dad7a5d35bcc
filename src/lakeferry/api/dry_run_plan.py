"""``Plan``: the steps that a dry run returns, a list that notebooks show as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_SHOWN_STEPS = 50


class Plan(list[dict[str, Any]]):
    """The steps that a command would take; each has ``op`` and values that depend on it."""

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a sentence for each step, as the command prints them."""
        from lakeferry.html_tables import html, joined, notebook_view
        from lakeferry.readable import counted

        if not self:
            return notebook_view("Dry run", "nothing would be changed")
        shown = joined(
            html(
                "<li>{}{}</li>",
                lines[0],
                joined(html("<br>{}", line) for line in lines[1:]),
            )
            for lines in map(_lines, self[:_SHOWN_STEPS])
        )
        steps = html('<ol style="text-align:left">{}</ol>', shown)
        more = [f"and {counted(len(self) - _SHOWN_STEPS, 'more step')}"]
        return notebook_view("Dry run", steps, *(more if len(self) > _SHOWN_STEPS else ()))


def _lines(step: Mapping[str, Any]) -> list[str]:
    from lakeferry.html_tables import shortened

    return [shortened(line) for line in _told(step)][:_SHOWN_STEPS]


def _told(step: Mapping[str, Any]) -> Iterator[str]:
    from lakeferry.api.plan_sentences import sentence, travel

    yield sentence(step)
    # A log is small beside its data.
    yield from travel(step) if step["op"] != "copy_log" else ()
    for inner in step.get("steps") or ():
        yield from _told(inner)
