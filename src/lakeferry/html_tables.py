"""Writes facts and tables as HTML, for notebooks and for the fleet's report.

Every value is escaped by MarkupSafe, unless it is ``Markup`` already. What a notebook shows has
no colours and no scripts, so it looks right on a light and on a dark page. It is
bounded: long tables show their first rows, and long texts are shortened.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from lakeferry.readable import Facts, counted, one_line

HtmlCell = str | int | float | None

SHOWN_ROWS = 10
"""How many rows of a table a notebook shows at first."""
_LONGEST_TEXT = 300
_LONGEST_VALUE = 4_000
_SHORT_TEXT = 24
_LEFT, _RIGHT = ' style="text-align:left;vertical-align:top"', ' style="text-align:right"'


def html(template: str, *values: object) -> Markup:
    """Return a template with its values escaped; the template itself is ours and isn't."""
    return Markup(template).format(*map(_showable, values))


def joined(parts: Iterable[Markup], separator: str = "") -> Markup:
    """Return parts, one after the other."""
    return Markup(separator).join(parts)


def cell_text(value: HtmlCell) -> str:
    """Return what a cell shows, before it is escaped."""
    if isinstance(value, str):
        # More than this is never shown; a property may have megabytes.
        return one_line(value[:_LONGEST_VALUE])
    return "–" if value is None else str(value)


def notebook_view(title: str, *parts: Markup | str) -> str:
    """Return what a notebook shows of a result: its title, and its parts below."""
    shown = (
        part if isinstance(part, Markup) else html("<p>{}</p>", shortened(part)) for part in parts
    )
    # Without these classes a notebook takes what is between two dollar signs for a formula.
    view = '<div class="tex2jax_ignore mathjax_ignore">{}{}</div>'
    heading = html("<p><strong>{}</strong></p>", shortened(title)) if title else Markup("")
    return str(html(view, heading, joined(shown)))


def facts_table(facts: Facts) -> Markup:
    """Return names with their values."""
    left = Markup(_LEFT)
    rows = (
        html("<tr><th{}>{}</th><td{}>{}</td></tr>", left, shortened(name), left, shortened(value))
        for name, value in facts
    )
    return html("<table><tbody>{}</tbody></table>", joined(rows))


def first_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[HtmlCell]],
    total: int | None,
    noun: str,
    *,
    title: str = "",
    shown: int = SHOWN_ROWS,
) -> Markup:
    """Return the first rows of a table, and how many there are; nothing of one without rows.

    No more of ``rows`` is read than what is shown.
    """
    content = list(itertools.islice(rows, shown))
    if not content:
        return Markup("")
    numbers = [
        all(isinstance(row[index], int | float | None) for row in content)
        and any(row[index] is not None for row in content)
        for index in range(len(columns))
    ]
    styles = [Markup(_RIGHT if each else _LEFT) for each in numbers]
    head = joined(
        html("<th{}>{}</th>", style, shortened(name))
        for style, name in zip(styles, columns, strict=True)
    )
    body = joined(
        html(
            "<tr>{}</tr>",
            joined(
                html("<td{}>{}</td>", style, _unbroken(shortened(cell)))
                for style, cell in zip(styles, row, strict=True)
            ),
        )
        for row in content
    )
    table = html("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>", head, body)
    heading = html("<p><strong>{}</strong></p>", shortened(title)) if title else Markup("")
    more = Markup("")
    if total is None or total > len(content):
        more = html("<p>the first {} of {}</p>", f"{len(content):,}", counted(total, noun))
    return joined((heading, table, more))


def warning_list(warnings: Iterable[str]) -> Markup:
    """Return warnings, each as a paragraph; the first of very many."""
    texts = list(warnings)
    shown = [
        html("<p><strong>warning:</strong> {}</p>", shortened(each)) for each in texts[:SHOWN_ROWS]
    ]
    if len(texts) > len(shown):
        shown.append(html("<p>{} in all</p>", counted(len(texts), "warning")))
    return joined(shown)


def shortened(value: HtmlCell) -> str:
    """Return what a cell shows, with an ellipsis for the end of a long text."""
    text = cell_text(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _unbroken(text: str) -> str:
    """Return a short text, such as a size or a time, so that it stays on one line."""
    return text if len(text) > _SHORT_TEXT else text.replace(" ", "\N{NO-BREAK SPACE}")


def _showable(value: object) -> object:
    """Return a text that can be written as UTF-8: a file's name may have other bytes."""
    if isinstance(value, str) and not isinstance(value, Markup) and not value.isascii():
        return value.encode(errors="backslashreplace").decode()
    return value
