"""``Console``: what all pages of one process share: the fleet, its records, work, and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from lakeferry.config import Config
from lakeferry.engine import Observer, unobserved
from lakeferry.export.job_queue import Queue
from lakeferry.fleet.fleet import Fleet
from lakeferry.fleet.fleet_database import FleetDatabase
from lakeferry.fleet.inventory import FleetHistoryEntry
from lakeferry.fleet.job_records import JobRecords
from lakeferry.fleet.records import FleetRecords
from lakeferry.transfer.repository.access_tokens import Tokens
from lakeferry.transfer.repository.dataset_changes import DatasetChanges
from lakeferry.transfer.repository.repository import Repository
from lakeferry.web.background_work import BackgroundWork
from lakeferry.web.live_feed import FeedMark, LiveFeed
from lakeferry.web.page_filters import shown_place

if TYPE_CHECKING:
    from lakeferry.web.page_routes import ConsolePage

_NEW_ENTRIES = 50
_TOLD_KINDS = {
    "finish": "{} has moved",
    "fail": "the move of {} failed",
    "stop": "the move of {} was stopped",
    "paused": "the fleet is paused",
    "run_began": "a run has started",
}


@dataclass(frozen=True, slots=True)
class DatasetRoot:
    """What a server serves: datasets, the tokens for them, and exports; ``ui`` has none."""

    uri: str
    repository: Repository
    tokens: Tokens
    changes: DatasetChanges
    exports: Queue
    url: str
    """The server's address, as clients use it."""


@dataclass(eq=False)
class Console:
    """The state of one console. Safe to use from several threads."""

    settings: Config
    base: str = ""
    """What the path of every page begins with, as browsers see it."""
    datasets: DatasetRoot | None = None
    pages: Sequence[ConsolePage] = ()
    poll_s: float = 1.0
    work: BackgroundWork = field(default_factory=BackgroundWork)

    @cached_property
    def database(self) -> FleetDatabase:
        """The fleet's database, with connections that stay open."""
        return self.fleet().database()

    @cached_property
    def records(self) -> FleetRecords:
        """What is recorded of the fleet."""
        return FleetRecords(self.database)

    @cached_property
    def jobs(self) -> JobRecords:
        """What is recorded of the fleet's jobs."""
        return JobRecords(self.database)

    @cached_property
    def feed(self) -> LiveFeed:
        """What tells connected pages that something has changed."""
        return LiveFeed(self._mark, poll_s=self.poll_s)

    @property
    def is_local(self) -> bool:
        """Whether this is ``ui``, one user's own console."""
        return self.datasets is None

    def fleet(
        self, observer: Observer = unobserved, warn: Callable[[str], None] = lambda _: None
    ) -> Fleet:
        """Return the fleet with the settings of this process, as its commands use it."""
        return Fleet(
            storage_options=self.settings.storage_options,
            engine=self.settings.engine,
            environment=self.settings.catalog_environment(),
            warn=warn,
            observer=observer,
        )

    def _mark(self, last_id: int) -> FeedMark:
        newest, running = self.jobs.pulse()
        entries: tuple[tuple[int, str], ...] = ()
        if last_id and newest > last_id:
            found = self.records.history(max(last_id, newest - _NEW_ENTRIES))
            entries = tuple((each.id, said) for each in found if (said := entry_in_words(each)))
        return FeedMark(newest, (running, self.work.mark()), entries)

    def ask_to_end(self) -> None:
        """End the connections of pages, and ask work to end."""
        self.feed.stop()
        self.work.ask_to_end()

    def wait(self, within_s: float) -> bool:
        """Wait until work has ended; return whether all has."""
        have_ended = self.work.wait(within_s)
        if have_ended and "database" in self.__dict__:
            self.database.close()
        return have_ended


def entry_in_words(entry: FleetHistoryEntry) -> str | None:
    """Return an important entry of the history as a sentence, or ``None`` for others."""
    said = _TOLD_KINDS.get(entry.kind)
    if said is None:
        return None
    return said.format(shown_place(entry.uri).rstrip("/").rpartition("/")[2])
