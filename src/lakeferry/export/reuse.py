"""Decides what a later export can take over from an earlier one.

For a table in lakeFS we ask what has changed since the earlier export's commit. If no data file
was deleted, replaced or restored, every log file that both commits have would be exported with
the same bytes again, so it is reused. New commits then name a few files, whose addresses are
requested one by one, as long as that takes no more requests than a listing.

Otherwise everything is exported again: a file that is gone now has another URI than when its
``add`` was exported, so a ``remove`` with the new URI would not cancel it. The same happens if
bytes were lost that the earlier export knew, or if its log names files of other tables, which
the comparison doesn't cover.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from lakeferry.errors import ObjectNotFound
from lakeferry.export import surveys
from lakeferry.export.manifest import Manifest
from lakeferry.export.surveys import Survey, as_spark_spells
from lakeferry.log import paths, references
from lakeferry.log.file_identity import canonical_path, is_absolute_path
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFile
from lakeferry.log.rewrite.listed_uris import LISTED_NAMES
from lakeferry.storage import Store
from lakeferry.storage.lakefs import LakeFSStore, ObjectChange
from lakeferry.storage.lakefs_api import LAKEFS_PAGE, LakeFSObject
from lakeferry.storage.uris import leads_outside

_ASKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ReuseSurvey:
    """A survey, and the names of the log files that can be reused."""

    survey: Survey
    reusable: frozenset[str] = frozenset()


def look_at_earlier(
    store: LakeFSStore, earlier: Manifest | None, open_store: Callable[[str], Store]
) -> ReuseSurvey:
    """List a commit with the help of an earlier export; lost objects are left out."""
    looked = _look(store, earlier)
    survey = surveys.without_lost(looked.survey, open_store)
    if earlier is None or not looked.reusable or _knew_of(earlier, survey.lost):
        return replace(looked, survey=survey)
    if not survey.whole:
        survey = surveys.without_lost(surveys.survey_lakefs(store), open_store)
    return ReuseSurvey(survey)


def _knew_of(earlier: Manifest, lost: Sequence[str]) -> bool:
    """Return True if all lost objects were already lost at the earlier export."""
    return set(lost) <= set(earlier.absent or ())


def _look(store: LakeFSStore, earlier: Manifest | None) -> ReuseSurvey:
    changes = _changes(store, earlier)
    if earlier is None or changes is None:
        return ReuseSurvey(surveys.survey_lakefs(store))
    known = _reusable(earlier, changes)
    if known is None:
        return ReuseSurvey(surveys.survey_lakefs(store))
    survey = _little(store, earlier, changes, known)
    if survey is None:
        survey = surveys.survey_lakefs(store)
        known = frozenset(name for name in known if name in survey.log or name in survey.sidecars)
    return ReuseSurvey(survey, known)


def _changes(store: LakeFSStore, earlier: Manifest | None) -> list[ObjectChange] | None:
    """Return the changes since an export; ``None`` if there are too many, or they are unknown."""
    if earlier is None or earlier.commit is None or earlier.absent is None:
        return None
    try:
        found = store.changes(earlier.commit, limit=LAKEFS_PAGE)
    except ObjectNotFound:
        return None
    return found if len(found) < LAKEFS_PAGE else None


def _reusable(earlier: Manifest, changes: Sequence[ObjectChange]) -> frozenset[str] | None:
    """Return the log files that would be exported unchanged; ``None`` if none can be reused."""
    absent = frozenset(earlier.absent or ())
    touched = set()
    for change in changes:
        if _is_log(change.path):
            if change.kind != "added":
                touched.add(change.path)
        elif change.kind != "added" or change.path in absent:
            return None
    return frozenset(earlier.log) - touched


def _is_log(name: str) -> bool:
    return name.startswith(f"{paths.LOG_DIR}/")


def _little(
    store: LakeFSStore, earlier: Manifest, changes: Sequence[ObjectChange], known: frozenset[str]
) -> Survey | None:
    """List only new commits and the files they name; ``None`` if all must be listed."""
    if any(change.kind == "changed" for change in changes):
        return None
    added = [change.path for change in changes if change.kind == "added"]
    files = {name: file for name in added if (file := paths.parse(name)) is not None}
    if any(
        file.kind is not paths.LogFileKind.COMMIT and not _is_helper(file)
        for file in files.values()
    ):
        # A new checkpoint names all files.
        return None
    commits = [name for name, file in files.items() if file.kind is paths.LogFileKind.COMMIT]
    pages = -(-earlier.objects // LAKEFS_PAGE)
    data = [name for name in added if not _is_log(name)]
    if len(commits) + len(data) > pages:
        return None
    log = {name: entry for name, entry in _entries(store, commits) if entry is not None}
    if len(log) < len(commits):
        return None
    for name, entry in log.items():
        store.learn(name, entry.address)
    names = _named(store, commits)
    if names is None or len(names) > pages:
        return None
    found = [(name, entry) for name, entry in _entries(store, names) if entry is not None]
    kept = {name: earlier.log[name] for name in known}
    removed = sum(change.kind == "removed" for change in changes)
    parsed = {name: paths.parse(name, each.size_bytes) for name, each in kept.items()}
    return Survey(
        names=pa.array([name for name, _ in found], LISTED_NAMES),
        addresses=pa.array([as_spark_spells(entry.address) for _, entry in found], LISTED_NAMES),
        log={name: file for name, file in parsed.items() if file is not None}
        | {name: _sized(name, entry) for name, entry in log.items()},
        log_addresses={name: each.address for name, each in kept.items() if each.address}
        | {name: entry.address for name, entry in log.items()},
        sidecars={name: each.size_bytes for name, each in kept.items() if parsed[name] is None},
        objects=earlier.objects + len(added) - removed,
        whole=False,
    )


def _is_helper(file: LogFile) -> bool:
    return file.kind in (paths.LogFileKind.CHECKSUM, paths.LogFileKind.STAGED)


def _sized(name: str, entry: LakeFSObject) -> LogFile:
    file = paths.parse(name, entry.size_bytes, entry.modified_ms)
    assert file is not None
    return file


def _named(store: LakeFSStore, commits: Sequence[str]) -> list[str] | None:
    """Return the sorted names of all files in commits, in actions of any kind.

    ``None`` if some are absolute, or lead out of the table's folder: those may be other names of
    the table's own files.
    """
    found: set[str] = set()
    for name, data in zip(commits, store.get_many(commits), strict=True):
        lines = Lines()
        lines.read(data, name)
        for table in (references.of_lines(data, name), references.of_adds(lines.removes)):
            found.update(table["path"].to_pylist())
    names = {canonical_path(path, store.uri) for path in found}
    if any(map(is_absolute_path, found)) or any(map(leads_outside, names)):
        return None
    return sorted(names)


def _entries(store: LakeFSStore, names: Sequence[str]) -> list[tuple[str, LakeFSObject | None]]:
    def ask(name: str) -> tuple[str, LakeFSObject | None]:
        try:
            return name, store.entry(name)
        except ObjectNotFound:
            return name, None

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return list(pool.map(ask, names))
