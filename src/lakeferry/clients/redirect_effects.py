"""What a redirect does to clients: which it blocks, which read a frozen copy, how each follows.

Of a client that wrote a table, its version decides; what versions do is in
:mod:`~lakeferry.clients.known_lines`, with its proof. ``tests/compat/test_who_sees_what.py`` asks
the clients themselves, and doesn't read this module.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from lakeferry.clients.client_lines import OPTION, ClientLine, RedirectSupport
from lakeferry.clients.known_lines import KNOWN_LINES, line_of_writer
from lakeferry.clients.verdicts import Ability
from lakeferry.log.commit_writer import CommitWriter
from lakeferry.log.features import FEATURES, FeatureKind
from lakeferry.redirect.entry import Data, Dialect, Mode


class Effect(Enum):
    """What becomes of a client that uses the table by its old path."""

    FOLLOWS = "follows"
    FROZEN = "frozen copy"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class ClientEffect:
    """What a client's reads and writes by the old path do, and how it gets to the new place."""

    name: str
    reads: Effect
    writes: Effect
    follows: str

    def as_document(self) -> dict[str, str]:
        """Return the client as documents show it."""
        return {
            "name": self.name,
            "reads": self.reads.value,
            "writes": self.writes.value,
            "follows": self.follows,
        }


_KNOWING = (
    ("Lakeferry", "by itself; lakeferry.open(path) gives an Arrow dataset"),
    ("PySpark with Lakeferry", "lakeferry.spark.install(spark)"),
)
_UNKNOWING = (
    (
        "delta-rs, Polars, DuckDB",
        "lakeferry.resolve(path), with write=True before a write",
        "lakeferry.open(path): they can't read the target's absolute paths themselves",
    ),
    (
        "Trino and other engines",
        "give them the new path",
        "give them the new path, if they read absolute paths",
    ),
)
"""Names, and how each follows: to a copy, and to a target that refers to the source's files."""


_BY_NAME = "the table's name, in a session with Unity Catalog's connector"
_TO_MANAGED = (
    ("PySpark with Lakeferry", _BY_NAME),
    ("Spark, delta-spark", _BY_NAME),
    (
        "delta-rs, Polars, DuckDB",
        "lakeferry.open(path): they can't open a managed table themselves",
    ),
    ("Trino and other engines", "the table's name, if they know managed tables"),
)
"""The same for a managed target."""


def effects(
    mode: str,
    *,
    data: str = "copy",
    dialects: Collection[str] = (),
    to_name: bool = False,
    managed: bool = False,
) -> tuple[ClientEffect, ...]:
    """Return what a redirect does to every known client.

    ``to_name`` says that the target is a name in a catalog, ``managed`` that the catalog owns it.
    Without ``dialects``, a writer-only redirect to a path is one that stock Spark follows.
    """
    if managed:
        return _effects_of_managed(mode)
    chosen = Mode(mode)
    frozen = Effect.FROZEN if chosen is Mode.WRITER_ONLY else Effect.BLOCKED
    spoken = Dialect.DELTA_SPARK.value in dialects if dialects else not to_name
    stock = chosen is Mode.WRITER_ONLY and spoken
    found = [ClientEffect(name, Effect.FOLLOWS, Effect.FOLLOWS, how) for name, how in _KNOWING]
    name, how = "Spark, delta-spark", "lakeferry.spark.install(spark), or the new path"
    if stock:
        name, how = "Spark without the option", f"{OPTION}, from Delta Lake 4.0 on"
        found.append(ClientEffect("Spark with the option", Effect.FOLLOWS, Effect.FOLLOWS, how))
    found.append(ClientEffect(name, frozen, Effect.BLOCKED, how))
    for name, to_copy, to_reference in _UNKNOWING:
        how = to_reference if data == Data.REFERENCE.value else to_copy
        found.append(ClientEffect(name, frozen, Effect.BLOCKED, how))
    return tuple(found)


def _effects_of_managed(mode: str) -> tuple[ClientEffect, ...]:
    """Return what a redirect to a managed table does; its path alone is refused by all."""
    unaware = Effect.FROZEN if Mode(mode) is Mode.WRITER_ONLY else Effect.BLOCKED
    first = ClientEffect(_KNOWING[0][0], Effect.FOLLOWS, Effect.FOLLOWS, _KNOWING[0][1])
    found = [first]
    for name, how in _TO_MANAGED:
        # Our client for PySpark knows where the table is, and refuses to read its path.
        reads = Effect.BLOCKED if name == _KNOWING[1][0] else unaware
        found.append(ClientEffect(name, reads, Effect.BLOCKED, how))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class LostAccess:
    """The features that keep a client from reading a table, and those that keep it from writing."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def as_document(self) -> dict[str, object]:
        """Return the client as documents show it."""
        return {"name": self.name, "reads": list(self.reads), "writes": list(self.writes)}

    def __str__(self) -> str:
        """Say what the client can't do any more."""
        return f"{self.name} can't {'read or write' if self.reads else 'write'} it any more"


_ASKED = ("delta-rs", "Polars", "DuckDB")
"""Clients that are told apart here, in the release that the tests run."""
_OTHERS = "engines that don't know these features"


def lost_access(added: Collection[str]) -> tuple[LostAccess, ...]:
    """Return the clients for which a table is lost that gets more features."""
    if not added:
        return ()
    names = sorted(added)
    asked = [
        name
        for name in names
        if name not in FEATURES or FEATURES[name].kind is FeatureKind.READER_WRITER
    ]
    found = []
    for line in KNOWN_LINES:
        if line.client not in _ASKED or line.tried is None:
            continue
        reads = tuple(name for name in asked if line.reading(name).ability is not Ability.YES)
        writes = {name for name in names if line.writing(name).ability is not Ability.YES}
        if reads or writes:
            found.append(LostAccess(line.client, reads, tuple(sorted({*reads, *writes}))))
    return (*found, LostAccess(_OTHERS, tuple(asked), tuple(names)))


_FROZEN = "in writer-only mode it will read the frozen copy"
_SENTENCES = {
    RedirectSupport.OPTION: f"{_FROZEN} unless {OPTION} is set",
    RedirectSupport.IGNORED_OPTION: f"{_FROZEN} and its option doesn't follow",
    RedirectSupport.NONE: _FROZEN,
    RedirectSupport.UNKNOWN: f"{_FROZEN} unless it knows redirects, which wasn't tested",
}
_BLOCKED = "in reader-writer mode it can't use the old path any more"
_FOLLOWS = "it follows the redirect"


@dataclass(frozen=True, slots=True)
class WriterEffect:
    """What a client's reads and writes by the old path will do.

    ``unless`` is the condition under which they follow instead.
    """

    reads: Effect
    writes: Effect
    sentence: str
    proof: str
    unless: str | None = None

    @property
    def rank(self) -> int:
        """How urgent it is to say it; 0 is the most urgent."""
        if self.reads is Effect.FROZEN:
            return 0 if self.unless is None else 1
        return 2 if self.reads is Effect.BLOCKED else 3


def effect_on(writer: CommitWriter, mode: Mode, dialects: Collection[Dialect]) -> WriterEffect:
    """Return what a redirect in that mode, written in these dialects, does to a client."""
    return effect_of(line_of_writer(writer), mode, dialects)


def effect_of(line: ClientLine, mode: Mode, dialects: Collection[Dialect]) -> WriterEffect:
    """Return what a redirect in that mode, written in these dialects, does to releases."""
    support, proof = line.redirects, line.redirects_source
    if support is RedirectSupport.FULL:
        return WriterEffect(Effect.FOLLOWS, Effect.FOLLOWS, _FOLLOWS, proof)
    if mode is Mode.READER_WRITER:
        # No option is about reader-writer redirects: a client refuses a feature of readers first.
        return WriterEffect(Effect.BLOCKED, Effect.BLOCKED, _BLOCKED, proof)
    if support is RedirectSupport.OPTION and Dialect.DELTA_SPARK not in dialects:
        support = RedirectSupport.IGNORED_OPTION
    unless = None
    if support is RedirectSupport.OPTION:
        unless = OPTION
    elif support is RedirectSupport.UNKNOWN:
        unless = "it knows redirects"
    return WriterEffect(Effect.FROZEN, Effect.BLOCKED, _SENTENCES[support], proof, unless)
