"""Decides what a later export can take over from an earlier one.

Of a table in lakeFS it is asked what has changed since the earlier export's commit.
Where nothing of the table's data was taken away, replaced or brought back, every log
file that both commits have would come out with the same bytes again: it is taken
over. Then a few new commits name a few files, whose addresses are asked for one by
one, as long as that takes no more requests than a listing.

Otherwise all is done anew: a file that is gone now has another URI than it had when
its ``add`` was exported, and a ``remove`` with the new one would not cancel it. So it is
where bytes have got lost that the earlier export knew of, or where its log names files of
other tables, of which the comparison says nothing.
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
from lakeferry.log.files import canonical_path, is_absolute
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFile
from lakeferry.log.rewrite.listed import NAMES
from lakeferry.storage import Store
from lakeferry.storage.lakefs import LakeFSStore, ObjectChange
from lakeferry.storage.lakefs_api import PAGE, LakeFSObject

_ASKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ReuseSurvey:
    """A survey, and the names of the log files that needn't be exported again."""

    survey: Survey
    reusable: frozenset[str] = frozenset()


def look(
    store: LakeFSStore, earlier: Manifest | None, open_store: Callable[[str], Store]
) -> ReuseSurvey:
    """Survey a commit, with the help of an earlier export; what has got lost isn't in it."""
    looked = _look(store, earlier)
    survey = surveys.without_lost(looked.survey, open_store)
    if earlier is None or not looked.reusable or _knew_of(earlier, survey.lost):
        return replace(looked, survey=survey)
    if not survey.whole:
        survey = surveys.without_lost(surveys.of_lakefs(store, halves=False), open_store)
    return ReuseSurvey(survey)


def _knew_of(earlier: Manifest, lost: Sequence[str]) -> bool:
    """Tell whether all that is lost was lost when the earlier export was made."""
    return set(lost) <= set(earlier.absent or ())


def _look(store: LakeFSStore, earlier: Manifest | None) -> ReuseSurvey:
    changes = _changes(store, earlier)
    if earlier is None or changes is None:
        return ReuseSurvey(surveys.of_lakefs(store, halves=earlier is None))
    known = _reusable(earlier, changes)
    if known is None:
        return ReuseSurvey(surveys.of_lakefs(store, halves=False))
    survey = _little(store, earlier, changes, known)
    if survey is None:
        survey = surveys.of_lakefs(store, halves=False)
        known = frozenset(name for name in known if name in survey.log or name in survey.sidecars)
    return ReuseSurvey(survey, known)


def _changes(store: LakeFSStore, earlier: Manifest | None) -> list[ObjectChange] | None:
    """Return what has changed since an export; ``None`` where it's too much, or unknown."""
    if earlier is None or earlier.commit is None or earlier.absent is None:
        return None
    try:
        found = store.changes(earlier.commit, limit=PAGE)
    except ObjectNotFound:
        return None
    return found if len(found) < PAGE else None


def _reusable(earlier: Manifest, changes: Sequence[ObjectChange]) -> frozenset[str] | None:
    """Return the log files that would come out the same again; ``None`` where none might."""
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
    """Survey new commits and what they name alone; ``None`` where all has to be listed."""
    if any(change.kind == "changed" for change in changes):
        return None
    added = [change.path for change in changes if change.kind == "added"]
    files = {name: file for name in added if (file := paths.parse(name)) is not None}
    if any(
        file.kind is not paths.LogFileKind.COMMIT and not _is_helper(file)
        for file in files.values()
    ):
        # A new checkpoint names all files there are.
        return None
    commits = [name for name, file in files.items() if file.kind is paths.LogFileKind.COMMIT]
    pages = -(-earlier.objects // PAGE)
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
        names=pa.array([name for name, _ in found], NAMES),
        addresses=pa.array([as_spark_spells(entry.address) for _, entry in found], NAMES),
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
    """Return the names of all files in commits, whatever they say of them, sorted.

    ``None`` where some are absolute: those may be other names of the table's own.
    """
    found: set[str] = set()
    for name, data in zip(commits, store.get_many(commits), strict=True):
        lines = Lines()
        lines.read(data, name)
        for table in (references.of_lines(data, name), references.of_adds(lines.removes)):
            found.update(table["path"].to_pylist())
    if any(map(is_absolute, found)):
        return None
    return sorted({canonical_path(path, store.uri) for path in found})


def _entries(store: LakeFSStore, names: Sequence[str]) -> list[tuple[str, LakeFSObject | None]]:
    def ask(name: str) -> tuple[str, LakeFSObject | None]:
        try:
            return name, store.entry(name)
        except ObjectNotFound:
            return name, None

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return list(pool.map(ask, names))
