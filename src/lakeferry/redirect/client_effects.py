"""Which clients a redirect blocks, which read a frozen copy, how each follows: data.

The facts are data, taken from the table in ``docs/redirect.md``. The clients that
``tests/compat/test_who_sees_what.py`` starts were asked; that test doesn't read this module.
What is said of Trino and other engines follows from the protocol alone: a client must refuse
a feature that it doesn't know.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

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


OPTION = "spark.databricks.delta.enableTableRedirectFeature=true"
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
    if stock:
        found.append(ClientEffect("Spark with the option", Effect.FOLLOWS, Effect.FOLLOWS, OPTION))
    name = "Spark without the option" if stock else "Spark, delta-spark"
    how = OPTION if stock else "lakeferry.spark.install(spark), or the new path"
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


_NOT_READ = {"delta-rs": frozenset({"deletionVectors"})}
_NOT_WRITTEN = dict.fromkeys(("delta-rs", "Polars"), frozenset({"inCommitTimestamp"}))
_OTHERS = "engines that don't know these features"
"""What Spark, Lakeferry, and the clients above don't support of what a managed table requires."""


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
    for client in dict.fromkeys((*_NOT_READ, *_NOT_WRITTEN)):
        reads = tuple(name for name in names if name in _NOT_READ.get(client, ()))
        writes = tuple(name for name in names if name in _NOT_WRITTEN.get(client, ()))
        if reads or writes:
            found.append(LostAccess(client, reads, tuple(sorted({*reads, *writes}))))
    return (*found, LostAccess(_OTHERS, tuple(asked), tuple(names)))
