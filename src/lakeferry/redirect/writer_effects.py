"""What a redirect does to a client that wrote a table, by its version: facts as data.

Each fact says which versions of a client follow a redirect, and names its proof: a test of this
project, a trial by hand (``docs/compatibility.md`` has the versions), or the protocol alone, by
which a client must refuse a feature that it doesn't know.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from lakeferry.log.commit_writer import CommitWriter, KnownWriter
from lakeferry.redirect.client_effects import OPTION, Effect
from lakeferry.redirect.entry import Dialect, Mode

PROTOCOL = "the protocol: a client must refuse a feature that it doesn't know"
_WHO_SEES_WHAT = "tests/compat/test_who_sees_what.py"
_STOCK = "tests/compat/test_stock_spark_follows.py"
_TRIALS = "docs/compatibility.md#callers-in-the-jvm"

Release = tuple[int, int, int]


class RedirectSupport(Enum):
    """How far a client follows redirects by itself."""

    FULL = "full"
    OPTION = "option"
    """A writer-only redirect in the dialect delta-spark, if its option is on."""
    BROKEN_OPTION = "broken option"
    """It has the option, but can't parse the entry."""
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ClientFact:
    """Whether versions of a client from ``since`` on, and before ``until``, follow redirects."""

    kind: KnownWriter
    support: RedirectSupport
    proof: str
    since: Release | None = None
    until: Release | None = None

    def is_about(self, writer: CommitWriter) -> bool:
        """Whether this is a fact about that client in that version."""
        if writer.kind is not self.kind:
            return False
        if self.since is None and self.until is None:
            return True
        release = writer.release
        if release is None:
            return False
        return (self.since is None or self.since <= release) and (
            self.until is None or release < self.until
        )


FACTS = (
    ClientFact(KnownWriter.LAKEFERRY, RedirectSupport.FULL, _WHO_SEES_WHAT),
    ClientFact(KnownWriter.DELTA_SPARK, RedirectSupport.NONE, PROTOCOL, until=(3, 3, 0)),
    ClientFact(
        KnownWriter.DELTA_SPARK, RedirectSupport.BROKEN_OPTION, _TRIALS, (3, 3, 0), (4, 0, 0)
    ),
    ClientFact(KnownWriter.DELTA_SPARK, RedirectSupport.OPTION, _TRIALS, (4, 0, 0), (4, 4, 0)),
    ClientFact(KnownWriter.DELTA_SPARK, RedirectSupport.OPTION, _STOCK, (4, 4, 0), (4, 5, 0)),
    ClientFact(KnownWriter.DELTA_RS, RedirectSupport.NONE, _WHO_SEES_WHAT),
    ClientFact(KnownWriter.DUCKDB, RedirectSupport.NONE, _WHO_SEES_WHAT),
    ClientFact(KnownWriter.FLINK, RedirectSupport.NONE, PROTOCOL),
    ClientFact(KnownWriter.KERNEL, RedirectSupport.NONE, PROTOCOL),
    ClientFact(KnownWriter.STANDALONE, RedirectSupport.NONE, PROTOCOL),
    ClientFact(KnownWriter.TRINO, RedirectSupport.NONE, PROTOCOL),
)
"""The first fact about a client counts. A client without one may know redirects, or may not."""

_FROZEN = "in writer-only mode it will read the frozen copy"
_SENTENCES = {
    RedirectSupport.OPTION: f"{_FROZEN} unless {OPTION} is set",
    RedirectSupport.BROKEN_OPTION: f"{_FROZEN} and its option doesn't follow",
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
    fact = next((fact for fact in FACTS if fact.is_about(writer)), None)
    support = RedirectSupport.UNKNOWN if fact is None else fact.support
    proof = PROTOCOL if fact is None else fact.proof
    if support is RedirectSupport.FULL:
        return WriterEffect(Effect.FOLLOWS, Effect.FOLLOWS, _FOLLOWS, proof)
    if mode is Mode.READER_WRITER:
        # No option is about reader-writer redirects: a client refuses a feature of readers first.
        return WriterEffect(Effect.BLOCKED, Effect.BLOCKED, _BLOCKED, proof)
    if support is RedirectSupport.OPTION and Dialect.DELTA_SPARK not in dialects:
        support = RedirectSupport.BROKEN_OPTION
    unless = None
    if support is RedirectSupport.OPTION:
        unless = OPTION
    elif support is RedirectSupport.UNKNOWN:
        unless = "it knows redirects"
    return WriterEffect(Effect.FROZEN, Effect.BLOCKED, _SENTENCES[support], proof, unless)
