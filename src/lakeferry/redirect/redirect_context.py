"""The context of every redirect procedure: stores, catalogs, an engine, a clock."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from lakeferry.catalogs import Catalog, GrantAccess, open_catalog, ungranted
from lakeferry.engine import CopyForecaster, Engine, NoForecasts, Observer, unobserved
from lakeferry.log.segment import Segment
from lakeferry.redirect import copy_size
from lakeferry.redirect.owned_file_removal import FileRemoval
from lakeferry.redirect.steps import RedirectStep
from lakeferry.storage import Store, open_store
from lakeferry.table import DeltaLog
from lakeferry.table.delta_log import wall_clock


def _new_id() -> str:
    return str(uuid.uuid4())


def _unheard(warning: str) -> None:
    """Ignore a warning."""


def _untold(step: RedirectStep) -> None:
    """Ignore a step."""


class ChooseEngine(Protocol):
    """Returns the engine for a job of that many objects and bytes; ``urgent`` if writers wait."""

    def __call__(self, objects: int, size_bytes: int, urgent: bool = False) -> Engine:
        """Return the engine."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The context of a procedure."""

    engine: ChooseEngine
    open_store: Callable[[str], Store] = open_store
    catalog: Callable[[str], Catalog] = open_catalog
    grant: GrantAccess = ungranted
    clock: Callable[[], int] = wall_clock
    new_id: Callable[[], str] = _new_id
    observer: Observer = unobserved
    warn: Callable[[str], None] = field(default=_unheard)
    step: Callable[[RedirectStep], None] = field(default=_untold)
    """Is called with each step when it is done; a dry run collects them."""
    measure: Callable[[Store, Segment], tuple[int, int]] = copy_size.size_referred_to
    """Returns how many objects a stretch of log refers to, and their bytes: for :attr:`engine`."""
    forecasts: CopyForecaster = field(default_factory=NoForecasts)
    """Foresees how files travel; only a dry run asks it."""
    removal: FileRemoval = field(default_factory=FileRemoval)
    open_log: type[DeltaLog] = DeltaLog
    """Makes the log of a store."""

    def log(self, uri: str) -> DeltaLog:
        """Return the log of the table at ``uri``."""
        return self.open_log(self.open_store(uri), clock=self.clock, warn=self.warn)
