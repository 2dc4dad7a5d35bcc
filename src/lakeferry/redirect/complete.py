"""Whether a table has the data files of its newest version.

Who moves a table to free its old place may delete the files there. So before the target of a
move is closed or deleted the source is looked at: one listing, and its newest version.
"""

from __future__ import annotations

from lakeferry.engine import CheckPlan, CheckTotals
from lakeferry.errors import MissingFile
from lakeferry.log.rewrite import Unchanged
from lakeferry.log.segment import Segment
from lakeferry.redirect.redirect_context import Setting
from lakeferry.table import DeltaLog


def check(setting: Setting, log: DeltaLog) -> None:
    """Refuse a table that lacks files of its newest version."""
    found = _look(setting, log)
    if found.missing_count:
        raise MissingFile(
            f"{found.missing_count} data files of {log.store.uri} are missing",
            cause=f"the log names them, and they aren't there: {', '.join(found.missing)}",
            path=found.missing[0],
            count=found.missing_count,
        )


def lacking(setting: Setting, log: DeltaLog) -> int:
    """Return how many files of a table's newest version aren't there, or not whole."""
    found = _look(setting, log)
    return found.missing_count + found.unequal_count


def _look(setting: Setting, log: DeltaLog) -> CheckTotals:
    def look(segment: Segment) -> CheckTotals:
        engine = setting.engine(segment.size_bytes // 1_000, 0)
        plan = CheckPlan(log.store.config, segment, Unchanged(), log.store.config)
        return engine.check(plan, setting.observer)

    return log.working_around(log.segment(), look)
