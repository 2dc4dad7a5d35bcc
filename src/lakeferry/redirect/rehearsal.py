"""Runs a procedure in memory, for ``--dry-run``: the same code, with its own setting.

Reads go to the real places and catalogs; writes stay in memory, where the procedure finds
them again. Nothing is sent, copied or deleted, no probe is written and no place is claimed.
The result is the list of steps that the procedure reports.

So a dry run refuses whatever the procedure itself would refuse, except for errors that
only appear while data is copied. Its version numbers may be outdated when writers go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from lakeferry.catalogs import Catalog
from lakeferry.catalogs.overlay_catalog import OverlayCatalog
from lakeferry.engine import Engine
from lakeferry.log import paths
from lakeferry.log.segment import Segment
from lakeferry.redirect.enable import log_staging
from lakeferry.redirect.owned_file_removal import FileRemoval
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.steps import RedirectStep
from lakeferry.storage import Store, StoreConfig
from lakeferry.storage.overlay import Overlay, OverlayChanges
from lakeferry.storage.read_once import ReadOnceStore, RememberedReads
from lakeferry.table import DeltaLog, load
from lakeferry.table.checkpoint import LogFileWriter, Written
from lakeferry.table.managed import ManagedStore

RehearseEngine = Callable[
    [Callable[..., Engine], Callable[[StoreConfig], Overlay]], Callable[..., Engine]
]
"""Returns the engine chooser of one dry run, whose engines copy nothing.

Its arguments are the real engine chooser, and the function that opens places of the dry run.
"""


def rehearse(
    setting: Setting, engine: RehearseEngine, procedure: Callable[[Setting], object]
) -> list[RedirectStep]:
    """Return the steps of a procedure without executing them; raise what it would raise."""
    steps: list[RedirectStep] = []
    world = _World(setting)
    procedure(
        replace(
            setting,
            engine=engine(setting.engine, world.place_of),
            open_store=world.open_store,
            catalog=world.catalog,
            step=steps.append,
            measure=_unmeasured,
            removal=_RemovalInMemory(),
            open_log=_RehearsedLog,
        )
    )
    return steps


def _unmeasured(store: Store, segment: Segment) -> tuple[int, int]:  # noqa: ARG001
    """Return zeros: a dry run copies nothing, so it need not measure."""
    return 0, 0


class _World:
    """The places and the catalogs of one dry run."""

    def __init__(self, real: Setting) -> None:
        """Start with the real places and catalogs, unchanged."""
        self._real = real
        self._changes: dict[str, OverlayChanges] = {}
        self._reads: dict[str, RememberedReads] = {}
        self._places: dict[str, Overlay] = {}
        self._catalogs: dict[str, OverlayCatalog] = {}

    def open_store(self, uri: str) -> Overlay:
        """Return a place; reopened each time, as a catalog may have issued credentials since."""
        below = self._real.open_store(uri)
        changes = self._changes.setdefault(below.uri, OverlayChanges())
        reads = self._reads.setdefault(below.uri, RememberedReads())
        opened = self._places[below.uri] = Overlay(ReadOnceStore(below, reads), changes)
        return opened

    def place_of(self, config: StoreConfig) -> Overlay:
        """Return a place that an engine's plan names, and that was opened before."""
        return self._places[config.uri]

    def catalog(self, kind: str) -> Catalog:
        """Return the catalog of a kind."""
        if kind not in self._catalogs:
            self._catalogs[kind] = OverlayCatalog(self._real.catalog(kind))
        return self._catalogs[kind]


class _RemovalInMemory(FileRemoval):
    """Deletes everything at a place at once, without listing it.

    A real removal keeps files that aren't the table's; a dry run doesn't look for them.
    """

    def remove_copies(
        self,
        source: DeltaLog,  # noqa: ARG002
        target: DeltaLog,
        still: Callable[[], bool],  # noqa: ARG002
        published: Callable[[], bool],  # noqa: ARG002
        keep: frozenset[str] = frozenset(),
    ) -> tuple[str, ...]:
        """Delete all except ``keep``, and the files that moves keep beside a log."""
        self._leave(target.store, keep)
        return ()

    def remove_table(
        self,
        target: DeltaLog,
        source: DeltaLog,  # noqa: ARG002
        move_id: str | None,  # noqa: ARG002
        still: Callable[[], bool],  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Delete everything at the target."""
        self._leave(target.store, frozenset())
        return ()

    def sweep(self, store: Store) -> None:
        """Do nothing: temporary files don't matter in a dry run."""

    def drop_uploads(self, source: DeltaLog, store: Store, opening: str | None) -> None:
        """Do nothing: a dry run has begun no uploads."""

    def drop_returned_uploads(
        self, source: Store, names: Callable[[], pa.Array], first: int, last: int
    ) -> None:
        """Do nothing: a dry run has begun no uploads."""

    def _leave(self, store: Store, names: frozenset[str]) -> None:
        assert isinstance(store, Overlay)
        store.leave_only([f"{log_staging.STAGING_FOLDER}/", *names])


class _RehearsedLog(DeltaLog):
    """The log of a table in a dry run, which writes no checkpoints."""

    def checkpoint(
        self,
        version: int | None = None,
        *,
        dry_run: bool = False,  # noqa: ARG002
        checksum: bool = False,  # noqa: ARG002
        writer: LogFileWriter | None = None,  # noqa: ARG002
    ) -> Written:
        """Return whether a new checkpoint would be written."""
        place = self.store.below if isinstance(self.store, ManagedStore) else self.store
        assert isinstance(place, Overlay)
        if version is not None and place.is_changed(paths.commit(version)):
            # This version exists only in the dry run, so it has no checkpoint yet.
            return Written(version, "classic", (), True)
        segment = self.segment(version)
        there = segment.checkpoint
        has_one = there is not None and there.version == segment.version
        is_new = there is None or not has_one or not load.is_usable(self.store, there)
        return Written(segment.version, "classic", (), is_new)
