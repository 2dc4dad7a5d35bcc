"""Surveys source and target of an export and makes the plan, without writing.

The source is listed, the target (:mod:`~lakeferry.export.export_place`) is inspected, and both are
combined in a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakeferry.errors import Forbidden, Unauthorized
from lakeferry.export import exported_log, reuse, surveys
from lakeferry.export.export_context import ExportContext
from lakeferry.export.export_place import Earlier, ExportPlace
from lakeferry.export.exported_log import Content
from lakeferry.export.manifest import ExportedFile, Manifest
from lakeferry.export.origins import Origin
from lakeferry.export.reuse import ReuseSurvey
from lakeferry.export.surveys import Survey
from lakeferry.log import paths
from lakeferry.log.checkpoint_read import Rows
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFileKind
from lakeferry.log.segment import Segment
from lakeferry.storage import Store
from lakeferry.table import DeltaLog, load

_SMALL = ("protocol", "metaData", "sidecar")


@dataclass(frozen=True, slots=True)
class Prepared:
    """All information that is collected before anything is written."""

    survey: Survey
    content: Content
    rows: Rows
    entries: Mapping[str, ExportedFile]
    plan: exported_log.ExportPlan
    earlier: Earlier | None

    @property
    def base_is_new(self) -> bool:
        """Whether this export writes the checkpoint."""
        base = self.content.segment.checkpoint
        return base is not None and base.files[0].path in self.plan.write


def look_at_ends(
    work: ExportContext, origin: Origin, place: ExportPlace, earlier: Manifest | None
) -> ReuseSurvey:
    """List the source, without objects whose bytes are lost."""
    work.observer("listing", 0, 1)
    if (lakefs := origin.lakefs) is None:
        survey = surveys.of_store(origin.store, origin.reads)
        looked = ReuseSurvey(survey, _unchanged(survey, earlier, origin.store))
    else:
        try:
            looked = reuse.look_at_earlier(lakefs, earlier, work.open_store)
        except (Forbidden, Unauthorized) as closed:
            if place.target.shelf is not None:
                raise
            work.warn(f"Lakeferry didn't check that all files are there: {closed}")
            looked = ReuseSurvey(surveys.survey_lakefs(lakefs))
    work.observer("listing", 1, 1)
    return looked


def prepare(
    origin: Origin,
    place: ExportPlace,
    looked: ReuseSurvey,
    earlier: Earlier | None,
    without: frozenset[str] = frozenset(),
) -> Prepared:
    """Plan an export of a survey; ``without`` names checkpoints that can't be read."""
    survey, store = looked.survey, origin.store
    listing = survey.listing
    if listing.is_empty:
        # Raises the error that fits: nothing is there, or something other than a table.
        DeltaLog(store).listing()
    content = exported_log.content_of(listing, without)
    for name in (*(file.path for file in content.files), *survey.sidecars):
        if name in survey.log_addresses:
            store.learn(name, survey.log_addresses[name])
    present = place.present()
    # A damaged export may be the last one of its table.
    in_place = place.target.shelf is None or (
        earlier is not None and earlier[1] == place.target.folder
    )
    reusable = looked.reusable if earlier else frozenset[str]()
    base = content.segment.checkpoint
    rows, sidecars = Rows(), []
    if base is not None:
        # A checkpoint states the sizes of its sidecars, so they are reused together or not at all.
        own = {file.path for file in base.files}
        known = [name for name in (earlier[0].log if earlier else ()) if not paths.parse(name)]
        if own.union(known) <= (reusable & present if in_place else reusable):
            sidecars = known
        else:
            rows = load.small_rows(origin.reads, Segment.of_checkpoint(base), Lines(), _SMALL)
            sidecars = [load.sidecar_name(store.uri, each) for each in rows.sidecars]
            reusable -= own.union(sidecars)
    for name in sidecars:
        if name not in survey.sidecars:
            raise load.vanished(name)
    entries = {name: _entry(survey, name, store) for name in sorted(set(sidecars))}
    entries |= {file.path: _entry(survey, file.path, store) for file in content.files}
    plan = exported_log.plan_exported_log(
        content,
        entries,
        reusable=reusable,
        in_place=in_place,
        stable=survey.addresses is None,
        there={} if place.there is None or place.has_moved else place.there.log,
        present=present,
    )
    return Prepared(survey, content, rows, entries, plan, earlier)


def _unchanged(survey: Survey, earlier: Manifest | None, store: Store) -> frozenset[str]:
    """Return the log files that haven't changed since they were exported."""
    if earlier is None:
        return frozenset()
    there = {*survey.log, *survey.sidecars}
    return frozenset(
        name
        for name, entry in earlier.log.items()
        if name in there and entry.is_of(_entry(survey, name, store))
    )


def _entry(survey: Survey, name: str, store: Store) -> ExportedFile:
    """Return the properties that identify a log file."""
    address = survey.log_addresses.get(name)
    if name in survey.sidecars:
        # No time is needed: the checkpoint that names it shows whether it is another sidecar.
        return ExportedFile(address, survey.sidecars[name])
    file = survey.log[name]
    # A catalog accepts one commit for a version. Its time changes when it is published.
    is_settled = file.kind is LogFileKind.COMMIT and store.asks_catalog
    timeless = address is not None or is_settled
    return ExportedFile(address, file.size_bytes, 0 if timeless else file.modified_ms)
