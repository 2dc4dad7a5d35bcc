"""Says which clients can read the versions of a timeline, for each protocol once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakeferry.api.table_timeline import TableTimeline
from lakeferry.clients.readability import ReadableRow, readable_by
from lakeferry.clients.verdicts import Ability


@dataclass(frozen=True, slots=True)
class VersionReaders:
    """What each known client can do with some versions that have one protocol."""

    first_version: int
    last_version: int
    rows: tuple[ReadableRow, ...]

    @property
    def title(self) -> str:
        """The versions, for people."""
        if self.first_version == self.last_version:
            return f"version {self.first_version}"
        return f"versions {self.first_version} to {self.last_version}"

    @property
    def refused(self) -> str:
        """Who can't read them, in a few words; empty if everybody who is known can."""
        return refused_clients(self.rows)


def version_readers(timeline: TableTimeline) -> tuple[tuple[VersionReaders, ...], tuple[str, ...]]:
    """Return who reads the versions of a page, the newest first, and a few words for each era."""
    groups: list[VersionReaders] = []
    words = [""] * len(timeline.eras)
    for each in timeline.versions:
        if each.era is None:
            continue
        rows = readable_by(timeline.eras[each.era].protocol) if not words[each.era] else None
        if rows is None:
            last = groups[-1]
            groups[-1] = VersionReaders(each.version, last.last_version, last.rows)
            continue
        words[each.era] = refused_clients(rows) or "nobody that is known"
        if groups and groups[-1].rows == rows:
            groups[-1] = VersionReaders(each.version, groups[-1].last_version, rows)
        else:
            groups.append(VersionReaders(each.version, each.version, rows))
    return tuple(groups), tuple(words)


def refused_clients(rows: Sequence[ReadableRow]) -> str:
    """Return the clients that can't read, and those of which some releases can't."""
    all_of, some_of = [], []
    for client in dict.fromkeys(row.client for row in rows):
        refused = [row.reads is Ability.NO for row in rows if row.client == client]
        if all(refused):
            all_of.append(client)
        elif any(refused):
            some_of.append(client)
    parts = [_listed("", all_of), _listed("some releases of ", some_of)]
    return "; ".join(part for part in parts if part)


def _listed(lead: str, names: Iterable[str]) -> str:
    told = ", ".join(names)
    return f"{lead}{told}" if told else ""
