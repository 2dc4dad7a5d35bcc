"""Whether a table has the data files of its newest version.

A user who moves a table to free its old place may delete the files there. So before the target
of a move is closed or deleted the source is checked: one listing, and its newest version. Files
that the table names outside of its folder are looked for too, before a target is deleted that
has copies of them (:mod:`~lakeferry.redirect.missing_outside_files`).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakeferry.engine import LISTED_FINDINGS, CheckPlan, CheckTotals
from lakeferry.errors import MissingFile
from lakeferry.log.rewrite import Rewrite, Unchanged
from lakeferry.log.segment import Segment
from lakeferry.redirect import lineage, missing_outside_files
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store, StoreConfig
from lakeferry.table import DeltaLog


@dataclass(frozen=True, slots=True)
class Lack:
    """How many files of a version aren't there, or not whole, and a few of their paths."""

    count: int
    examples: tuple[str, ...]


def check_complete(setting: Setting, log: DeltaLog) -> None:
    """Refuse a table that lacks files of its newest version in its own folder."""
    found = _look(setting, log)
    if found.missing_count:
        raise MissingFile(
            f"{found.missing_count} data files of {log.store.uri} are missing",
            cause=f"the log names them, but they aren't there: {', '.join(found.missing)}",
            path=found.missing[0],
            count=found.missing_count,
        )


def refuse_lost(
    setting: Setting, target: Store, segment: Segment, rewrite: Rewrite, source: Store
) -> None:
    """Refuse if a live file or vector of a version isn't at the source after a copy.

    Files of older versions may have been cleaned up; those of this version are required.
    """
    engine = setting.engine(segment.size_bytes // 1_000, 0, True)
    plan = CheckPlan(target.config, segment, rewrite, source.config)
    found = engine.check(plan, setting.observer)
    if found.missing_count:
        raise MissingFile(
            f"{found.missing_count} data files of {target.uri} are missing",
            cause=f"the log names them, but they aren't there: {', '.join(found.missing)}",
            remedy=f"restore them from a copy; {lineage.way_out(source.uri)}",
            path=found.missing[0],
            count=found.missing_count,
        )


def lacking_files(setting: Setting, log: DeltaLog) -> int:
    """Return how many files of a table's newest version aren't in its folder, or not whole."""
    found = _look(setting, log)
    return found.missing_count + found.unequal_count


def lack(setting: Setting, log: DeltaLog, named: pa.Array) -> Lack:
    """Return what a table lacks of its newest version, wherever it names the files.

    ``named`` are the paths of the files that any version of its log refers to.
    """
    inside = _lack(_look(setting, log))
    return both(inside, lack_outside(setting, log, named, Unchanged(), log.store.uri))


def lack_outside(
    setting: Setting, log: DeltaLog, named: pa.Array, rename: Rewrite, home: str
) -> Lack:
    """Return what isn't there of the files that a newest version names outside of ``home``.

    ``rename`` turns a path of the log into the one that the table at ``home`` has for the file.
    ``named`` are paths of the log; where none leads elsewhere nothing is looked for.
    """
    if not missing_outside_files.any_lead_outside(rename(named)):
        return Lack(0, ())

    def look(segment: Segment) -> Lack:
        gone = missing_outside_files.gone(setting, log, segment, rename, home)
        return Lack(len(gone), tuple(gone.slice(0, LISTED_FINDINGS).to_pylist()))

    return log.working_around(log.segment(), look)


def lack_inside(setting: Setting, log: DeltaLog, rename: Rewrite, place: StoreConfig) -> Lack:
    """Return what isn't at a place of the files that ``rename`` gives a relative path."""
    return _lack(_look(setting, log, rename, place))


def both(one: Lack, other: Lack) -> Lack:
    """Return what is lacking altogether."""
    return Lack(one.count + other.count, (*one.examples, *other.examples)[:LISTED_FINDINGS])


def _lack(found: CheckTotals) -> Lack:
    return Lack(
        found.missing_count + found.unequal_count,
        (*found.missing, *found.unequal)[:LISTED_FINDINGS],
    )


def _look(
    setting: Setting,
    log: DeltaLog,
    rename: Rewrite = Unchanged(),  # noqa: B008
    place: StoreConfig | None = None,
) -> CheckTotals:
    def look(segment: Segment) -> CheckTotals:
        engine = setting.engine(segment.size_bytes // 1_000, 0)
        plan = CheckPlan(log.store.config, segment, rename, place or log.store.config)
        return engine.check(plan, setting.observer)

    return log.working_around(log.segment(), look)
