"""Exports one table from beginning to end.

What is exported is the last complete checkpoint, the commit at its version and
every commit since, or all commits where there is no checkpoint; their versions
keep their numbers. Checksum files stay behind, since they may name files, and
compacted logs, which say nothing that the commits don't.

First everything is found out (:mod:`lakeferry.export.export_plan`), then it is done
(:mod:`lakeferry.export.publishing`). A checkpoint that can't be read is left out, as
readers leave it out; what was to be taken over and is gone is exported anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from lakeferry.errors import CommitConflict, CorruptLog, VersionNotAvailable
from lakeferry.export import manifest, origins, pruning
from lakeferry.export.export_context import ExportContext as ExportContext
from lakeferry.export.export_plan import ExportPlace, Lost, Prepared, look, prepare
from lakeferry.export.manifest import Manifest
from lakeferry.export.publishing import ExportPublication
from lakeferry.export.reuse import ReuseSurvey
from lakeferry.redirect import received_entries
from lakeferry.storage import Store
from lakeferry.storage.lakefs import LakeFSStore
from lakeferry.storage.uris import join, relative_name

MOST_ATTEMPTS = 5
"""How often an export begins again because others were at its place."""


@dataclass(frozen=True, slots=True)
class Exported:
    """An export that is there. ``incremental_from`` is the version it went on from, if any."""

    location: str
    version: int
    files_written: int
    actions_skipped: int
    incremental_from: int | None
    changed: bool
    commit: str | None = None

    def as_document(self) -> dict[str, Any]:
        """Return the document of the command ``export``."""
        return {
            "location": self.location,
            "version": self.version,
            "files_written": self.files_written,
            "actions_skipped": self.actions_skipped,
            "incremental_from": self.incremental_from,
            "commit": self.commit,
            "changed": self.changed,
        }


class Export:
    """One export of the table at a store's root, to a place of its own or to ``to``.

    ``table`` and ``ref`` are what it is called in lakeFS's place for exports, ``keep``
    how many exports of both stay there, this one included. What makes no sense, and a
    place that somebody else has, is refused at once; nothing is written yet.
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
    ) -> None:
        """Find out what is exported, and where to."""
        self.work = work = replace(work, open_store=cache(work.open_store))
        if keep is not None:
            pruning.check(keep, to)
        self.keep = keep
        if isinstance(store, LakeFSStore):
            self.origin = origins.of_lakefs(store, ref, work.open_store)
        else:
            self.origin = origins.of_table(store)
        self.target = origins.target_of(self.origin, to, table, work.open_store)
        self.place = ExportPlace.claimed(self.target, self.origin.source)
        self._looked: ReuseSurvey | None = None

    def foresee(self) -> list[dict[str, Any]]:
        """Return the steps that the export takes."""
        steps: list[dict[str, Any]] = []
        if self._same() is None:
            ready = self._prepare(reuses=True)
            location = self.target.location
            done = (("export_log", ready.plan.write), ("take_over", ready.plan.take))
            version = ready.content.version
            for op, names in done:
                if names:
                    steps.append({"op": op, "to": location, "version": version, "files": [*names]})
            if ready.plan.stale:
                steps.append({"op": "delete", "from": location, "files": [*ready.plan.stale]})
        if self.keep is not None:
            old = pruning.old(self.target, self.origin.source, self.keep, self.work.clock())
            steps += [{"op": "prune", "location": location} for location in old]
        return steps

    def prune(self) -> None:
        """Delete older exports of the same table and ref, if that was asked for.

        The export is published, so whatever goes wrong here is a warning: the next one prunes.
        """
        if self.keep is None:
            return
        try:
            pruning.prune(self.target, self.origin.source, self.keep, self.work.clock())
        except Exception as failed:  # noqa: BLE001 - success isn't to become an error
            self.work.warn(f"older exports are still there: {failed}; the next export prunes them")

    def is_earlier(self, location: str) -> bool:
        """Tell whether a place is, or was, one of an earlier export of the same table."""
        found = manifest.read(self.work.open_store(location))
        if found is not None:
            return found.source == self.origin.source
        shelf, ref = self.target.shelf, self.origin.ref
        if shelf is None or ref is None:
            return False
        # One that was pruned has nothing to say any more.
        name = relative_name(join(shelf.uri, ref), location)
        return name is not None and name.endswith(f"/{self.target.folder.split('/')[2]}")

    def export(self) -> Exported:
        """Export, unless the very same is there already."""
        reuses, without = True, frozenset[str]()
        attempts = 0
        while attempts < MOST_ATTEMPTS:
            try:
                if (there := self._same()) is not None:
                    # Whoever completed it may have ended before they said so.
                    self.target.point(unless_pointed=True)
                    return self._done(there)
                return self._export(self._prepare(reuses=reuses, without=without))
            except Lost:
                attempts += 1
                reuses, self._looked = False, None
                self.place = ExportPlace.claimed(self.target, self.origin.source)
            except CorruptLog as broken:
                without |= self._workable(broken, without)
        raise CommitConflict(
            f"{self.target.location} can't be written to",
            cause="others export to it, or delete from it, all the time",
            remedy="try again when they are done",
            location=self.target.location,
        )

    def _workable(self, broken: CorruptLog, without: frozenset[str]) -> frozenset[str]:
        """Return which log files to leave out after such an error, or raise it.

        They are a checkpoint's, or a compacted log: the commits say the same.
        """
        path = broken.fields.get("path")
        survey = None if self._looked is None else self._looked.survey
        if survey is None or not isinstance(path, str):
            raise broken
        try:
            segment = survey.listing.segment(without=without)
            found = segment.dispensable(path)
            # Where the commits are gone, too, what can't be read is why.
            survey.listing.segment(without=without | found)
        except (CorruptLog, VersionNotAvailable):
            raise broken from None
        if not found - without:
            raise broken
        self.work.warn(f"{', '.join(sorted(found))} is left out: {broken}")
        return found

    def _same(self) -> Manifest | None:
        """Return what the place says of itself, if that is an export of the same commit."""
        there = self.place.there
        if there is None or not there.complete or self.origin.commit is None:
            return None
        if there.commit != self.origin.commit:
            return None
        # What somebody has damaged is exported again.
        return there if there.log.keys() <= self.place.present() else None

    def _prepare(self, *, reuses: bool, without: frozenset[str] = frozenset()) -> Prepared:
        earlier = self.place.earlier() if reuses else None
        if self._looked is None or not reuses:
            self._looked = look(self.work, self.origin, self.place, earlier and earlier[0])
        ready = prepare(self.origin, self.place, self._looked, earlier, without)
        # A place that is closed is written anew, and nothing of it taken over.
        again = ready.plan.closes and earlier is not None
        return self._prepare(reuses=False, without=without) if again else ready

    def _export(self, ready: Prepared) -> Exported:
        # Before anything can be read there: a redirect that arrived isn't followed from it either.
        received_entries.inherit(self.origin.store, self.target.place)
        publication = ExportPublication(self.work, self.origin, self.place, ready)
        there = self.place.there
        if there is not None and there.complete and not ready.plan.changes:
            publication.check_live()
            return self._done(there)
        return self._done(publication.run(), ready)

    def _done(self, written: Manifest, ready: Prepared | None = None) -> Exported:
        """Tell of an export, and of what was done for it if anything was."""
        went_on = None
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
        )
