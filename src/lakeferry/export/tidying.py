"""Does what follows the publication of an export: the hint, stale files, waiting files.

Readers already see the export's version, so an error here is only a warning. What couldn't be done
is kept in the manifest (:class:`~lakeferry.export.manifest.Leftover`); the next export to the place
does it before anything else. The hint comes first: while it still names an older checkpoint, that
checkpoint stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from lakeferry.errors import LakeferryError, StorageError
from lakeferry.export import exported_log, manifest
from lakeferry.export.export_context import ExportContext
from lakeferry.export.export_place import ExportPlace, Lost
from lakeferry.export.manifest import MANIFEST_FOLDER, Leftover
from lakeferry.export.origins import ExportTarget
from lakeferry.log import paths
from lakeferry.storage import Store

ABANDONED_MS = 24 * 60 * 60 * 1000
"""An export that is incomplete for so long will not be completed."""
NO_HINT = ""
"""Stands for the hint of an export without a checkpoint."""


def write_hint(place: Store, hint: str | None) -> None:
    """Write the hint, or delete it (:data:`NO_HINT`); ``None`` if it is right already."""
    if hint == NO_HINT:
        place.delete_many([paths.LAST_CHECKPOINT])
    elif hint is not None:
        place.put(paths.LAST_CHECKPOINT, hint.encode())


def delete_stale(place: Store, names: Iterable[str]) -> None:
    """Delete files in the order of their names, one by one."""
    for name in names:
        place.delete_many([name])


def tidy(
    work: ExportContext, place: Store, hint: str | None, stale: Iterable[str], staged: str
) -> Leftover | None:
    """Write the hint, delete stale and waiting files; return what couldn't be done."""
    left = Leftover(hint)
    try:
        write_hint(place, hint)
        left = Leftover()
        delete_stale(place, stale)
        discard(work, place, staged)
    except Exception as failed:  # noqa: BLE001 - success isn't to become an error
        work.warn(
            f"{place.uri} can be read, but its _last_checkpoint is old, or files that nobody needs "
            f"are still there: {failed}; the next export to it corrects this"
        )
        return left
    return None


def discard(work: ExportContext, place: Store, staged: str) -> None:
    """Delete the files that wait in the folder ``staged``, or have waited for a day."""
    before = work.clock() - ABANDONED_MS
    waiting = [entry.path for entry in place.list(f"{MANIFEST_FOLDER}/")]
    place.delete_many(
        [name for name in waiting if name.startswith(staged) or _begun_ms(name, before) < before]
    )
    place.prune(staged.rstrip("/"))


def stale_files(place: ExportPlace) -> list[str]:
    """Return the files that the last complete export has left at its place, in order."""
    there = place.there
    if there is None or there.leftover is None:
        return []
    names = place.present() - there.log.keys()
    return exported_log.in_order_of_deletion(names, there.version)


def finish(work: ExportContext, place: ExportPlace) -> ExportPlace:
    """Do what the last complete export has left; return the place as it is then.

    Stale files that can't be deleted are only a warning: the next export may be published beside
    them, as this one was. Raises :class:`Lost` if another export has begun meanwhile: its files
    aren't stale.
    """
    there, store = place.there, place.target.place
    if there is None or not there.complete or there.leftover is None:
        return place
    stale = stale_files(place)
    if manifest.read_manifest(store) != there:
        raise Lost
    write_hint(store, there.leftover.hint)
    left = None
    try:
        delete_stale(store, stale)
    except StorageError as failed:
        _warn_unfinished(work, place, failed)
        left = Leftover()
    finished = replace(there, leftover=left)
    if finished != there and not manifest.swap(store, there, finished):
        raise Lost
    return replace(place, there=finished)


def settle(work: ExportContext, place: ExportPlace) -> None:
    """Do what the last complete export has left; an error is only a warning."""
    try:
        finish(work, place)
    except LakeferryError as failed:
        _warn_unfinished(work, place, failed)


def _warn_unfinished(work: ExportContext, place: ExportPlace, failed: LakeferryError) -> None:
    work.warn(
        f"the last export to {place.target.location} isn't cleaned up yet: {failed}; the next "
        "export does that"
    )


def point(work: ExportContext, target: ExportTarget, *, unless_pointed: bool = False) -> None:
    """Set the pointer to an export that can be read; an error is only a warning."""
    try:
        target.point(unless_pointed=unless_pointed)
    except Exception as failed:  # noqa: BLE001 - success isn't to become an error
        work.warn(f"the next export will not continue from {target.location}: {failed}")


def _begun_ms(name: str, otherwise: int) -> int:
    """Return when the export of a waiting file was started."""
    match = re.match(rf"{MANIFEST_FOLDER}/(\d+)-", name)
    return int(match[1]) if match else otherwise
