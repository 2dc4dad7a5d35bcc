"""What every step of an export is given: the engine and the observer."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from lakeferry.engine import CopyForecaster, Engine, NoForecasts, Observer, unobserved
from lakeferry.export.origins import OpenUri
from lakeferry.table.delta_log import wall_clock


def _unheard(warning: str) -> None:
    """Ignore a warning."""


def _new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class ExportContext:
    """One export. ``engine`` returns the engine for a number of objects and bytes."""

    engine: Callable[[int, int], Engine]
    open_store: OpenUri
    observer: Observer = unobserved
    warn: Callable[[str], None] = _unheard
    follows: bool = True
    """Whether to follow a redirected table; a redirected table in lakeFS is refused."""
    forecasts: CopyForecaster = field(default_factory=NoForecasts)
    """Foresees how files travel; only a dry run asks it."""
    compares: bool = False
    """Whether to read each file after it was written, and to compare it."""
    clock: Callable[[], int] = wall_clock
    new_id: Callable[[], str] = _new_id
