"""Writes the tables of clients in ``docs/compatibility.md`` from the data.

``python -m tests.matrix.clients_page`` replaces the block between two comments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lakeferry.clients.client_lines import ClientLine, RedirectSupport
from lakeferry.clients.known_lines import KNOWN_LINES, client_lines_of
from lakeferry.clients.verdicts import Ability, FeatureAnswer
from lakeferry.log.actions import WRITER_FEATURES_VERSION
from lakeferry.log.features import FEATURES, FeatureKind
from tests.matrix.page import PAGE

CLIENTS_BEGIN = "<!-- clients: begin -->"
CLIENTS_END = "<!-- clients: end -->"
_SHOWN = (
    ("delta-spark", "3.3"),
    ("delta-spark", "4.0.1"),
    ("delta-spark", "4.1"),
    ("delta-spark", "4.4"),
    ("delta-rs", "1.6.6"),
    ("Polars", "2.1"),
    ("DuckDB", "1.5.5"),
    ("delta-kernel-rs", "0.27"),
    ("Delta Kernel for Java", "4.2 to 4.4"),
    ("Trino", "454 to 483"),
)
_LETTERS = {Ability.YES: "{}", Ability.PARTLY: "({})", Ability.NO: "", Ability.UNKNOWN: "?"}
_REDIRECTS = {
    RedirectSupport.FULL: "follows",
    RedirectSupport.OPTION: "with its option, writer-only redirects in the dialect `delta-spark`",
    RedirectSupport.IGNORED_OPTION: "none; its option changes nothing",
    RedirectSupport.NONE: "none",
    RedirectSupport.UNKNOWN: "unknown",
}


def clients_block() -> str:
    """Return both tables."""
    return f"{_features()}\n\n{_lines()}"


def replaced_clients(page: str) -> str:
    """Return the page with the tables of today's data."""
    before, begin, rest = page.partition(CLIENTS_BEGIN)
    _, end, after = rest.partition(CLIENTS_END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no {CLIENTS_BEGIN} … {CLIENTS_END}")
    return f"{before}{CLIENTS_BEGIN}\n{clients_block()}\n{CLIENTS_END}{after}"


def _features() -> str:
    """Return the table of features, with the newest releases of each client."""
    lines = [_line(*each) for each in _SHOWN]
    heads = " | ".join(f"{line.client} {line.versions}" for line in lines)
    rows = [f"| feature | for | {heads} |", f"|{'---|' * (2 + len(lines))}"]
    for name, row in FEATURES.items():
        cells = " | ".join(_cell(line, name) for line in lines)
        rows.append(f"| `{name}` | {row.kind.value} | {cells} |")
    return "\n".join(rows)


def _line(client: str, versions: str) -> ClientLine:
    (found,) = (line for line in client_lines_of(client) if line.versions == versions)
    return found


def _cell(line: ClientLine, name: str) -> str:
    letters = ""
    if FEATURES[name].kind is FeatureKind.READER_WRITER:
        letters += _LETTERS[line.reading(name).ability].format("r")
    letters += _LETTERS[line.writing(name).ability].format("w")
    return letters or "–"


def _lines() -> str:
    """Return the table of all lines: what each lacks of the client's newest, and its source."""
    heads = ("client", "releases", "doesn't read", "doesn't write", "redirects", "source")
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for line in KNOWN_LINES:
        newest = client_lines_of(line.client)[-1]
        if not line.complete:
            lacks = "unknown", "unknown, but for the oldest two features"
        elif line.max_writer_version < WRITER_FEATURES_VERSION:
            lacks = "all features", "all features but the oldest two"
        else:
            lacks = _lacking(line, newest, _reading), _lacking(line, newest, _writing)
        source = "; ".join(dict.fromkeys((*line.source.split("; "), line.redirects_source)))
        cells = (line.client, line.versions, *lacks, _REDIRECTS[line.redirects], source)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _lacking(
    line: ClientLine, newest: ClientLine, answer: Callable[[ClientLine, str], FeatureAnswer]
) -> str:
    names: Iterable[str] = (
        name
        for name in FEATURES
        if answer(newest, name).ability is not Ability.NO
        and answer(line, name).ability is Ability.NO
    )
    return ", ".join(f"`{name}`" for name in names) or "–"


def _reading(line: ClientLine, name: str) -> FeatureAnswer:
    is_for_readers = FEATURES[name].kind is FeatureKind.READER_WRITER
    return line.reading(name) if is_for_readers else FeatureAnswer(Ability.NO)


def _writing(line: ClientLine, name: str) -> FeatureAnswer:
    return line.writing(name)


if __name__ == "__main__":
    PAGE.write_text(replaced_clients(PAGE.read_text()))
