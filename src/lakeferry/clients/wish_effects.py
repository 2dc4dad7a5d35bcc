"""What a change of one table means for its clients: before, during and after. Pure.

A change is a move, a drop of a feature, the protection of checkpoints, or a push to others. What a
client can do follows from the protocols before and after, and from what it does with a redirect;
both are in :mod:`~lakeferry.clients.known_lines`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from lakeferry.clients.client_lines import ClientLine, RedirectSupport
from lakeferry.clients.known_lines import KNOWN_LINES, client_lines_of, line_of_writer
from lakeferry.clients.redirect_effects import Effect, effect_of
from lakeferry.clients.verdicts import Ability, FeatureAnswer
from lakeferry.log.actions import READER_FEATURES_VERSION, WRITER_FEATURES_VERSION, Protocol
from lakeferry.log.commit_writer import CommitWriter
from lakeferry.log.features import FEATURES, MANAGED, FeatureKind
from lakeferry.redirect.entry import Data, Dialect, Mode

INSTALL = "PySpark with lakeferry.spark.install"
_INSTALL_SOURCE = "docs/compatibility.md#which-spark-does-what"
_OPEN_MANAGED = "lakeferry.open(path) reads it"


@dataclass(frozen=True, slots=True)
class ProtocolRange:
    """Versions of a table with one protocol; ``None`` if it wasn't looked up."""

    first: int
    last: int
    protocol: Protocol | None


@dataclass(frozen=True, slots=True)
class ReadableVersions:
    """Whether a client reads a range of versions by their numbers, and what is in its way."""

    first: int
    last: int
    reads: Ability
    because: tuple[str, ...] = ()

    def as_document(self) -> dict[str, object]:
        """Return one element of ``versions``."""
        return {
            "from": self.first,
            "to": self.last,
            "reads": self.reads.value,
            "because": list(self.because),
        }


@dataclass(frozen=True, slots=True)
class ClientEffects:
    """What one client can do with a table before, during and after a change.

    ``commits`` says how many of the newest commits it wrote, ``None`` for a client that is known
    and wrote none. ``breaks``: it loses reading or writing by the table's present path, or reads
    rows that don't change any more; ``None`` if that isn't known. ``versions`` are those that are
    there before the change, as it reads them after it.
    """

    name: str
    version: str | None
    before: str
    during: str
    after: str
    source: str
    breaks: bool | None
    commits: int | None = None
    versions: tuple[ReadableVersions, ...] = ()

    def as_document(self) -> dict[str, object]:
        """Return one element of ``clients``."""
        return {
            "name": self.name,
            "version": self.version,
            "before": self.before,
            "during": self.during,
            "after": self.after,
            "source": self.source,
            "breaks": self.breaks,
            "commits": self.commits,
            "versions": [each.as_document() for each in self.versions],
        }


@dataclass(frozen=True, slots=True)
class TableClients:
    """What of a table its clients depend on, and who wrote it lately.

    ``ranges`` are the protocols of its versions, the oldest first. ``writers`` have the number of
    their commits.
    """

    protocol: Protocol
    ranges: tuple[ProtocolRange, ...] = ()
    writers: tuple[tuple[CommitWriter, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MoveWish:
    """A move, as far as clients notice it. ``pause`` says how long writers wait."""

    mode: Mode
    dialects: tuple[Dialect, ...]
    managed: bool = False
    data: Data = Data.COPY
    pause: str = "a moment"


@dataclass(frozen=True, slots=True)
class ProtocolWish:
    """A change of the protocol: a drop of a feature, or protection.

    ``keeps_history`` says that old versions stay, each with its own protocol.
    """

    after: Protocol
    keeps_history: bool = True


@dataclass(frozen=True, slots=True)
class ShareWish:
    """A push: the table stays as it is, and others get a copy."""


Wish = MoveWish | ProtocolWish | ShareWish


def protocol_of(features: Collection[str]) -> Protocol:
    """Return a protocol with these features in force, where only their names were recorded."""
    if not features:
        return Protocol(1, 1)
    names = tuple(sorted(features))
    readers = tuple(
        name
        for name in names
        # A name that nobody knows may be one for readers.
        if name not in FEATURES or FEATURES[name].kind is FeatureKind.READER_WRITER
    )
    return Protocol(
        READER_FEATURES_VERSION if readers else 1, WRITER_FEATURES_VERSION, readers or None, names
    )


def client_effects(
    table: TableClients, wish: Wish, *, known: bool = True
) -> tuple[ClientEffects, ...]:
    """Return what a change means for those who wrote the table, and for the known clients."""
    found = [
        _effects(line_of_writer(writer), table, wish, writer=writer, commits=commits)
        for writer, commits in table.writers
    ]
    if not known:
        return tuple(found)
    found += [_effects(line, table, wish) for line in KNOWN_LINES]
    if isinstance(wish, MoveWish):
        found.append(_with_install(table, wish))
    return tuple(found)


def _effects(
    line: ClientLine,
    table: TableClients,
    wish: Wish,
    *,
    writer: CommitWriter | None = None,
    commits: int | None = None,
) -> ClientEffects:
    before = Access.of(line, table.protocol)
    name, version = line.client, line.versions
    if writer is not None:
        name, version = writer.name or line.client, writer.version or ""
    steps = _STEPS[type(wish)](line, table, wish, before)
    return ClientEffects(
        name,
        version or None,
        str(before),
        steps.during,
        steps.after,
        steps.source,
        steps.breaks,
        commits,
        steps.versions,
    )


@dataclass(frozen=True, slots=True)
class Access:
    """Whether a client reads and writes a protocol."""

    reads: FeatureAnswer
    writes: FeatureAnswer

    @classmethod
    def of(cls, line: ClientLine, protocol: Protocol) -> Access:
        """Return what a line says about a protocol."""
        return cls(line.reads_protocol(protocol), line.writes_protocol(protocol))

    def __str__(self) -> str:
        """Say what it can do, and what is in its way."""
        reads, writes = self.reads, self.writes
        if (reads.ability, writes.ability) == (Ability.YES, Ability.YES):
            return "reads and writes"
        if (reads.ability, writes.ability) == (Ability.NO, Ability.NO):
            return f"neither reads nor writes ({_named(reads.because or writes.because)})"
        return f"{_said('reads', reads)}; {_said('writes', writes)}"

    def loses(self, after: Access) -> bool | None:
        """Return whether something is lost; ``None`` if that isn't known."""
        pairs = [(self.reads, after.reads), (self.writes, after.writes)]
        if any(
            now.ability in (Ability.YES, Ability.PARTLY) and then.ability is Ability.NO
            for now, then in pairs
        ):
            return True
        unknown = any(
            then.ability is Ability.UNKNOWN and now.ability is not Ability.UNKNOWN
            for now, then in pairs
        )
        return None if unknown else False


_NOT = {"reads": "doesn't read", "writes": "doesn't write"}


def _said(verb: str, answer: FeatureAnswer) -> str:
    match answer.ability:
        case Ability.YES:
            return verb
        case Ability.NO:
            return f"{_NOT[verb]} ({_named(answer.because)})"
        case Ability.PARTLY:
            return f"{verb} in part ({_named(answer.because)}: {answer.note})"
        case Ability.UNKNOWN:
            return f"unknown whether it {verb} ({_named(answer.because)})"


def _named(names: Iterable[str]) -> str:
    return ", ".join(names)


# --- What each change means ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Steps:
    """What follows after ``before``."""

    during: str
    after: str
    source: str
    breaks: bool | None
    versions: tuple[ReadableVersions, ...] = ()


def _move(line: ClientLine, table: TableClients, wish: Wish, before: Access) -> _Steps:
    assert isinstance(wish, MoveWish)
    effect = effect_of(line, wish.mode, wish.dialects)
    during = f"{before}; at the end writers wait for {wish.pause}"
    writes = before.writes.ability is not Ability.NO
    sources = (line.source, effect.proof)
    if wish.managed:
        return _to_managed(line, table, wish, before, during)
    if effect.reads is Effect.FOLLOWS:
        versions = versions_read(line, table.ranges)
        after = f"{before}: it follows the redirect"
        return _Steps(during, after, _joined(sources), False, versions)
    has_any = before.reads.ability is not Ability.NO or writes
    breaks = None if has_any and line.redirects is RedirectSupport.UNKNOWN else has_any
    if effect.reads is Effect.BLOCKED:
        versions = _blocked_versions(line, table.ranges)
        after = f"neither reads nor writes by the old path{_instead(line, wish, before)}"
        return _Steps(during, after, _joined(sources), breaks, versions)
    unless = "" if effect.unless is None else f", unless {effect.unless}"
    after = f"reads the frozen copy and doesn't write by the old path{unless}"
    if before.reads.ability is Ability.NO:
        after = f"neither reads nor writes by the old path ({_named(before.reads.because)})"
    after += _instead(line, wish, before)
    return _Steps(during, after, _joined(sources), breaks, versions_read(line, table.ranges))


_CAN_NOT_ABSOLUTE = ("delta-rs", "Polars", "DuckDB")


def _instead(line: ClientLine, wish: MoveWish, before: Access) -> str:
    """Say what a client can do at the new place."""
    if before.reads.ability is Ability.NO and before.writes.ability is Ability.NO:
        return ""
    if wish.data is Data.REFERENCE and line.client in _CAN_NOT_ABSOLUTE:
        return "; can't use the new path: its log names files by absolute paths"
    return f"; by the new path: {before}"


def _to_managed(
    line: ClientLine, table: TableClients, wish: MoveWish, before: Access, during: str
) -> _Steps:
    """A table that a catalog manages is opened by its name; its path is refused by all others."""
    source = _joined((line.source, line.redirects_source))
    if line.redirects is RedirectSupport.FULL:
        after = f"{before}: it follows the redirect"
        return _Steps(during, after, source, False, versions_read(line, table.ranges))
    named = line.reading(MANAGED)
    by_name = {
        Ability.PARTLY: f"; in the catalog: {named.note}",
        Ability.UNKNOWN: "; unknown whether it opens managed tables",
    }.get(named.ability, f"; it doesn't open managed tables: {_OPEN_MANAGED}")
    has_any = Ability.NO not in (before.reads.ability, before.writes.ability)
    if wish.mode is Mode.READER_WRITER:
        after = f"neither reads nor writes by the old path{by_name}"
        versions = _blocked_versions(line, table.ranges)
        return _Steps(during, after, source, has_any, versions)
    after = f"reads the frozen copy and doesn't write by the old path{by_name}"
    return _Steps(during, after, source, has_any, versions_read(line, table.ranges))


def _protocol(line: ClientLine, table: TableClients, wish: Wish, before: Access) -> _Steps:
    assert isinstance(wish, ProtocolWish)
    after = Access.of(line, wish.after)
    versions = versions_read(line, table.ranges) if wish.keeps_history else ()
    if wish.keeps_history and after.reads.ability is Ability.NO:
        versions = _blocked_versions(line, table.ranges)
    said = str(after)
    if hidden := [each for each in versions if each.reads is Ability.NO]:
        ranges = ", ".join(_range(each) for each in hidden)
        names = _named(dict.fromkeys(name for each in hidden for name in each.because))
        said += f"; can't read the old versions {ranges}{f' ({names})' if names else ''}"
    during = f"{before}; its commits are retried if they conflict with the change"
    return _Steps(during, said, line.source, before.loses(after), versions)


def _share(line: ClientLine, table: TableClients, wish: Wish, before: Access) -> _Steps:
    assert isinstance(wish, ShareWish)
    copy = _said("reads", before.reads)
    after = f"{before}; the copy: {copy}; after a write to the copy later pulls fail (diverged)"
    versions = versions_read(line, table.ranges)
    return _Steps(str(before), after, line.source, False, versions)


_STEPS: dict[type, Callable[[ClientLine, TableClients, Wish, Access], _Steps]] = {
    MoveWish: _move,
    ProtocolWish: _protocol,
    ShareWish: _share,
}


def _with_install(table: TableClients, wish: MoveWish) -> ClientEffects:
    """Return the row of PySpark sessions that follow; their commits don't show it."""
    line = client_lines_of("delta-spark")[-1]
    before = Access.of(line, table.protocol)
    after = f"{before}: it follows the redirect"
    breaks: bool | None = False
    if wish.managed:
        after = "neither reads nor writes by the old path; reads and writes by the table's name "
        after += "in a session with Unity Catalog's connector"
        breaks = True
    return ClientEffects(
        INSTALL,
        "3.3 to 4.4",
        str(before),
        f"{before}; at the end writers wait for {wish.pause}",
        after,
        _INSTALL_SOURCE,
        breaks,
        versions=versions_read(line, table.ranges),
    )


# --- Versions ----------------------------------------------------------------------


def versions_read(
    line: ClientLine, ranges: Sequence[ProtocolRange]
) -> tuple[ReadableVersions, ...]:
    """Return which versions a client reads, if it can open the newest one."""
    found = []
    for each in ranges:
        if each.protocol is None:
            answer = FeatureAnswer(Ability.UNKNOWN)
        else:
            answer = line.reads_protocol(each.protocol)
        found.append(ReadableVersions(each.first, each.last, answer.ability, answer.because))
    return _merged(found)


def _blocked_versions(
    line: ClientLine, ranges: Sequence[ProtocolRange]
) -> tuple[ReadableVersions, ...]:
    """Return which versions a client reads that the newest version blocks."""
    if line.opens_old_versions_alone:
        return versions_read(line, ranges)
    ability = Ability.UNKNOWN if line.opens_old_versions_alone is None else Ability.NO
    found = [
        each if each.reads is Ability.NO else ReadableVersions(each.first, each.last, ability)
        for each in versions_read(line, ranges)
    ]
    return _merged(found)


def _merged(found: Iterable[ReadableVersions]) -> tuple[ReadableVersions, ...]:
    """Join neighbours that say the same."""
    merged: list[ReadableVersions] = []
    for each in found:
        last = merged[-1] if merged else None
        if last is not None and (last.reads, last.because) == (each.reads, each.because):
            merged[-1] = ReadableVersions(last.first, each.last, each.reads, each.because)
        else:
            merged.append(each)
    return tuple(merged)


def _range(versions: ReadableVersions) -> str:
    if versions.first == versions.last:
        return str(versions.first)
    return f"{versions.first} to {versions.last}"


def _joined(sources: Iterable[str]) -> str:
    parts = (part for source in sources for part in source.split("; "))
    return "; ".join(dict.fromkeys(parts))
