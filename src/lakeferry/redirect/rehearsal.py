"""Runs a procedure in memory, for ``--dry-run``: the same code, in a setting of its own.

What is there is read; what would be written stays in memory, at each place and in each
catalog, so that the procedure finds what it has done. Nothing is sent, copied or deleted, no
probe is made and no place is claimed. What is returned are the steps that the procedure tells.

So a dry run refuses whatever the procedure itself would refuse, except for what only shows
when data is copied. Its numbers are those of the moment, and writers may move them on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lakeferry.catalogs import Catalog
from lakeferry.catalogs.overlay_catalog import OverlayCatalog
from lakeferry.engine import Engine
from lakeferry.log import paths
from lakeferry.log.segment import Segment
from lakeferry.redirect.enable import log_staging
from lakeferry.redirect.file_removal import FileRemoval
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.steps import RedirectStep
from lakeferry.storage import Store, StoreConfig
from lakeferry.storage.overlay import Overlay, OverlayChanges
from lakeferry.storage.read_once import ReadOnceStore, RememberedReads
from lakeferry.table import DeltaLog, load
from lakeferry.table.checkpoint import Written

RehearseEngine = Callable[
    [Callable[..., Engine], Callable[[StoreConfig], Overlay]], Callable[..., Engine]
]
"""Returns what chooses the engines of one dry run, which copy nothing.

Given what chooses the real ones, and what opens the places of the dry run.
"""


def rehearse(
    setting: Setting, engine: RehearseEngine, procedure: Callable[[Setting], object]
) -> list[RedirectStep]:
    """Return the steps of a procedure; nothing is done, and what it refuses is raised."""
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
    """Return nothing: what isn't copied need not be measured."""
    return 0, 0


class _World:
    """The places and the catalogs of one dry run."""

    def __init__(self, real: Setting) -> None:
        """Begin with what there is."""
        self._real = real
        self._changes: dict[str, OverlayChanges] = {}
        self._reads: dict[str, RememberedReads] = {}
        self._places: dict[str, Overlay] = {}
        self._catalogs: dict[str, OverlayCatalog] = {}

    def open_store(self, uri: str) -> Overlay:
        """Open a place, anew each time: a catalog may have handed out credentials since."""
        below = self._real.open_store(uri)
        changes = self._changes.setdefault(below.uri, OverlayChanges())
        reads = self._reads.setdefault(below.uri, RememberedReads())
        opened = self._places[below.uri] = Overlay(ReadOnceStore(below, reads), changes)
        return opened

    def place_of(self, config: StoreConfig) -> Overlay:
        """Return a place that a plan for an engine names: it was opened before."""
        return self._places[config.uri]

    def catalog(self, kind: str) -> Catalog:
        """Return the catalog of a kind."""
        if kind not in self._catalogs:
            self._catalogs[kind] = OverlayCatalog(self._real.catalog(kind))
        return self._catalogs[kind]


class _RemovalInMemory(FileRemoval):
    """Deletes what is at a place at once, without listing it.

    What isn't the table's would stay. Who else has something there isn't looked for.
    """

    def remove_copies(
        self,
        source: DeltaLog,  # noqa: ARG002
        target: DeltaLog,
        still: Callable[[], bool],  # noqa: ARG002
        published: Callable[[], bool],  # noqa: ARG002
        keep: frozenset[str] = frozenset(),
    ) -> tuple[str, ...]:
        """Delete all but what is to be kept, and what moves keep beside a log."""
        self._leave(target.store, keep)
        return ()

    def remove_table(
        self,
        target: DeltaLog,
        source: DeltaLog,  # noqa: ARG002
        move_id: str | None,  # noqa: ARG002
        still: Callable[[], bool],  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Delete all that is there."""
        self._leave(target.store, frozenset())
        return ()

    def sweep(self, store: Store) -> None:
        """Look for nothing: files without a name are nobody's."""

    def _leave(self, store: Store, names: frozenset[str]) -> None:
        assert isinstance(store, Overlay)
        store.leave_only([f"{log_staging.FOLDER}/", *names])


class _RehearsedLog(DeltaLog):
    """The log of a table in a dry run, which makes no checkpoints."""

    def checkpoint(
        self,
        version: int | None = None,
        *,
        dry_run: bool = False,  # noqa: ARG002
        checksum: bool = False,  # noqa: ARG002
    ) -> Written:
        """Tell whether there would be a new one."""
        assert isinstance(self.store, Overlay)
        if version is not None and self.store.is_changed(paths.commit(version)):
            # Nobody has looked at this version, so nobody has made one of it.
            return Written(version, "classic", (), True)
        segment = self.segment(version)
        there = segment.checkpoint
        has_one = there is not None and there.version == segment.version
        is_new = there is None or not has_one or not load.is_usable(self.store, there)
        return Written(segment.version, "classic", (), is_new)
