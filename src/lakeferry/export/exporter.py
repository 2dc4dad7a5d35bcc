"""Exports one table from beginning to end.

An export has the last complete checkpoint, the commit at its version and every later commit, or
all commits if there is no checkpoint. Version numbers stay the same. Checksum files are left
out, since they may name files, and so are compacted logs, which repeat the commits.

All information is collected first (:mod:`lakeferry.export.export_plan`), then files are written
(:mod:`lakeferry.export.publishing`). A checkpoint that can't be read is left out, as readers
ignore it. If a file to reuse is missing, it is exported again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa

from lakeferry.errors import CommitConflict, CorruptLog, VersionNotAvailable
from lakeferry.export import manifest, origins, pruning, tidying
from lakeferry.export.export_context import ExportContext as ExportContext
from lakeferry.export.export_place import ExportPlace, Lost
from lakeferry.export.export_plan import Prepared, look_at_ends, prepare
from lakeferry.export.manifest import Manifest
from lakeferry.export.publishing import ExportPublication
from lakeferry.export.reuse import ReuseSurvey
from lakeferry.redirect import received_entries
from lakeferry.storage import Store
from lakeferry.storage.lakefs import LakeFSStore
from lakeferry.storage.uris import join, relative_name
from lakeferry.table.log_source import LogSource

_MOST_ATTEMPTS = 5
"""How often an export restarts because of other exports to the same place."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export. ``incremental_from`` is the version that it continued from, if any."""

    location: str
    version: int
    files_written: int
    actions_skipped: int
    incremental_from: int | None
    changed: bool
    commit: str | None = None
    bytes_copied: int = 0
    """Sizes at the source of the log files that were written."""
    by_store_bytes: int = 0
    """The part that was taken over from an earlier export: the store copied it."""
    files_compared: int | None = None
    """How many files were read and compared after they were written; ``None`` if none had to be."""

    def as_document(self) -> dict[str, Any]:
        """Return the document of the command ``export``."""
        return {
            "location": self.location,
            "version": self.version,
            "files_written": self.files_written,
            "bytes_copied": self.bytes_copied,
            "bytes_copied_by_store": self.by_store_bytes,
            "files_compared": self.files_compared,
            "actions_skipped": self.actions_skipped,
            "incremental_from": self.incremental_from,
            "commit": self.commit,
            "changed": self.changed,
        }


class Export:
    """One export of the table at a store's root, to its default place or to ``to``.

    ``former`` are the places from which redirects have led to the table.
    ``table`` and ``ref`` name the export in lakeFS's place for exports; ``keep`` is how many
    exports of both to keep there, this one included. Invalid arguments, and a place that belongs
    to somebody else, are refused at once, before anything is written.
    """

    def __init__(
        self,
        work: ExportContext,
        store: Store,
        *,
        to: str | None = None,
        table: str | None = None,
        ref: str | None = None,
        keep: int | None = None,
        former: Sequence[str] = (),
        reads: LogSource | None = None,
    ) -> None:
        """Determine what to export, and the target; ``reads`` has what was read of the log."""
        self.work = work = replace(work, open_store=cache(work.open_store))
        if keep is not None:
            pruning.check_pruning(keep, to)
        self.keep = keep
        if isinstance(store, LakeFSStore):
            self.origin = origins.origin_in_lakefs(store, ref, work.open_store)
        else:
            self.origin = origins.of_table(store, former, reads)
        self.target = origins.target_of(self.origin, to, table, work.open_store)
        self.place = ExportPlace.claimed(self.target, self.origin)
        self._looked: ReuseSurvey | None = None

    def foresee(self) -> list[dict[str, Any]]:
        """Return the steps of the export, for a dry run."""
        steps: list[dict[str, Any]] = []
        if self._same() is None:
            ready = self._prepare(reuses=True)
            location = self.target.location
            done = (("export_log", ready.plan.write), ("take_over", ready.plan.take))
            version = ready.content.version
            for op, names in done:
                if names:
                    step = {"op": op, "to": location, "version": version, "files": [*names]}
                    foreseen = self._foreseen(ready, names, rewritten=op == "export_log")
                    steps.append({**step, **foreseen})
            if ready.plan.stale:
                steps.append({"op": "delete", "from": location, "files": [*ready.plan.stale]})
        elif stale := tidying.stale_files(self.place):
            steps.append({"op": "delete", "from": self.target.location, "files": stale})
        if self.keep is not None:
            old = pruning.old(self.target, self.origin.source, self.keep, self.work.clock())
            steps += [{"op": "prune", "location": location} for location in old]
        return steps

    def _foreseen(
        self, ready: Prepared, names: Sequence[str], *, rewritten: bool
    ) -> dict[str, Any]:
        """Return the bytes of log files, and how they travel."""
        sizes = [ready.entries[name].size_bytes for name in names]
        columns = {
            "path": pa.array(names, pa.string()),
            "size": pa.array(sizes, pa.int64()),
            "rewritten": pa.array([rewritten] * len(names), pa.bool_()),
        }
        place = self.target.place
        source = self.origin.store if rewritten else place
        forecasts = self.work.forecasts
        told = dict(forecasts.of_files(source, place, pa.table(columns)))
        if self.work.compares:
            # A file that is rewritten is read at its source in any case.
            places = (place,) if rewritten else (source, place)
            told |= forecasts.of_comparison(places, len(sizes), sum(sizes))
        return {"bytes": sum(sizes), **told}

    def prune(self) -> None:
        """Delete older exports of the same table and ref, if requested.

        The export is already published, so an error here is only a warning: the next export
        prunes.
        """
        if self.keep is None:
            return
        try:
            pruning.prune(self.target, self.origin.source, self.keep, self.work.clock())
        except Exception as failed:  # noqa: BLE001 - success isn't to become an error
            self.work.warn(f"older exports are still there: {failed}; the next export deletes them")

    def is_earlier(self, location: str) -> bool:
        """Return True if a place is, or was, that of an earlier export of the same table."""
        found = manifest.read_manifest(self.work.open_store(location))
        if found is not None:
            return found.is_of(self.origin.source, self.origin.former)
        shelf, ref = self.target.shelf, self.origin.ref
        if shelf is None or ref is None:
            return False
        # A pruned export has no manifest any more.
        name = relative_name(join(shelf.uri, ref), location)
        return name is not None and name.endswith(f"/{self.target.folder.split('/')[2]}")

    def export(self) -> Exported:
        """Run the export, unless the same export is already there."""
        reuses, without = True, frozenset[str]()
        attempts = 0
        while attempts < _MOST_ATTEMPTS:
            try:
                if (there := self._same()) is not None:
                    tidying.settle(self.work, self.place)
                    # The process that completed it may have crashed before it wrote the pointer.
                    tidying.point(self.work, self.target, unless_pointed=True)
                    return self._done(there)
                self.place = tidying.finish(self.work, self.place)
                return self._export(self._prepare(reuses=reuses, without=without))
            except Lost:
                attempts += 1
                reuses, self._looked = False, None
                self.place = ExportPlace.claimed(self.target, self.origin)
            except CorruptLog as broken:
                without |= self._workable(broken, without)
        raise CommitConflict(
            f"{self.target.location} can't be written to",
            cause="other processes keep exporting to it or deleting from it",
            remedy="try again when they have finished",
            location=self.target.location,
        )

    def _workable(self, broken: CorruptLog, without: frozenset[str]) -> frozenset[str]:
        """Return the log files to leave out after such an error, or raise the error.

        They belong to a checkpoint or are a compacted log: the commits contain the same.
        """
        path = broken.fields.get("path")
        survey = None if self._looked is None else self._looked.survey
        if survey is None or not isinstance(path, str):
            raise broken
        try:
            segment = survey.listing.segment(without=without)
            found = segment.dispensable(path)
            # If the commits are gone too, the unreadable file is the cause to report.
            survey.listing.segment(without=without | found)
        except (CorruptLog, VersionNotAvailable):
            raise broken from None
        if not found - without:
            raise broken
        self.work.warn(f"{broken}; the export leaves out {', '.join(sorted(found))}")
        return found

    def _same(self) -> Manifest | None:
        """Return the place's manifest if it is for an export of the same commit."""
        there = self.place.there
        if there is None or not there.complete or self.origin.commit is None:
            return None
        if there.commit != self.origin.commit:
            return None
        # A damaged export is repeated.
        return there if there.log.keys() <= self.place.present() else None

    def _prepare(self, *, reuses: bool, without: frozenset[str] = frozenset()) -> Prepared:
        earlier = self.place.earlier() if reuses else None
        if self._looked is None or not reuses:
            self._looked = look_at_ends(self.work, self.origin, self.place, earlier and earlier[0])
        ready = prepare(self.origin, self.place, self._looked, earlier, without)
        # A closed place is written again without reusing its files. And for a file to reuse that is
        # missing, a survey of the changes alone doesn't have the addresses.
        looked = self._looked
        lacks = not looked.survey.whole and not looked.reusable.isdisjoint(ready.plan.write)
        again = (ready.plan.closes or lacks) and earlier is not None
        return self._prepare(reuses=False, without=without) if again else ready

    def _export(self, ready: Prepared) -> Exported:
        # Before anything can be read there, so that a received redirect isn't followed there
        # either.
        received_entries.inherit(self.origin.store, self.target.place)
        publication = ExportPublication(self.work, self.origin, self.place, ready)
        there = self.place.there
        if there is not None and self.place.has_moved:
            self.work.warn(
                f"{self.target.location} has an export of {there.source}, from where the table has "
                f"moved to {self.origin.source}: its whole log is written again, with the new URIs"
            )
        if there is not None and there.complete and not ready.plan.changes:
            publication.check_live()
            return self._done(there)
        return self._done(publication.run(), ready)

    def _done(self, written: Manifest, ready: Prepared | None = None) -> Exported:
        """Return the result of an export, with the work that was done for it."""
        went_on, read, taken = None, 0, 0
        if ready is not None:
            read = sum(ready.entries[name].size_bytes for name in ready.plan.write)
            taken = sum(ready.entries[name].size_bytes for name in ready.plan.take)
        if ready is not None and ready.earlier and len(ready.plan.write) < len(ready.plan.names):
            went_on = ready.earlier[0].version
        return Exported(
            location=self.target.location,
            version=written.version,
            files_written=0 if ready is None else len(ready.plan.write),
            actions_skipped=sum(entry.skipped for entry in written.log.values()),
            incremental_from=went_on,
            changed=ready is not None,
            commit=self.origin.commit,
            bytes_copied=read + taken,
            by_store_bytes=taken,
            files_compared=self._files_compared(ready),
        )

    def _files_compared(self, ready: Prepared | None) -> int | None:
        if not self.work.compares:
            return None
        return 0 if ready is None else len(ready.plan.write) + len(ready.plan.take)
