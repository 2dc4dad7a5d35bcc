"""Finds and deletes old exports of a table.

An export is recognized by its manifest; files that others have put beside it stay. To delete an
export, its manifest is changed to incomplete, then the table is closed, then its files are
deleted, and the manifest last. So an interrupted deletion is found again, and can't be mistaken
for a good export. An incomplete export doesn't count, and is deleted after a day.
"""

from __future__ import annotations

from dataclasses import replace

from lakeferry.errors import InvalidInput
from lakeferry.export import exported_log, manifest
from lakeferry.export.origins import ExportTarget
from lakeferry.export.tidying import ABANDONED_MS as ABANDONED_MS
from lakeferry.log import paths
from lakeferry.storage import Store
from lakeferry.storage.uris import join


def check_pruning(keep: int, to: str | None) -> None:
    """Raise an error if ``keep`` can't be applied."""
    if keep < 1:
        raise InvalidInput(f"can't keep {keep} exports", remedy="keep at least 1")
    if to is not None:
        raise InvalidInput(
            f"there are no older exports beside {to}",
            cause="a place given with --to has one export, which the next one replaces",
            remedy="leave out --keep",
        )


def old(target: ExportTarget, source: str, keep: int, now_ms: int) -> list[str]:
    """Return the places of the exports to delete so that ``keep`` remain, oldest first."""
    shelf = target.shelf
    assert shelf is not None
    return [
        join(shelf.uri, folder.rstrip("/")) for folder in _old(shelf, target, source, keep, now_ms)
    ]


def prune(target: ExportTarget, source: str, keep: int, now_ms: int) -> list[str]:
    """Delete all but the newest exports of the target's table and ref; return their places."""
    shelf = target.shelf
    assert shelf is not None
    gone = []
    for folder in _old(shelf, target, source, keep, now_ms):
        if (found := manifest.read_manifest(shelf, folder)) is not None:
            manifest.write_manifest(shelf, replace(found, complete=False), folder)
        names = [entry.path for entry in shelf.list(folder)]
        inside = {name: name.removeprefix(folder) for name in names}
        hint = f"{folder}{paths.LAST_CHECKPOINT}"
        shelf.delete_many([hint])
        shelf.delete_many([name for name in names if exported_log.opens(inside[name])])
        last = f"{folder}{manifest.NAME}"
        shelf.delete_many([name for name in names if name != last])
        shelf.delete_many([last])
        shelf.prune(folder.rstrip("/"))
        gone.append(join(shelf.uri, folder.rstrip("/")))
    return gone


def _old(shelf: Store, target: ExportTarget, source: str, keep: int, now_ms: int) -> list[str]:
    ref, _, rest = target.folder.partition("/")
    table = rest.rstrip("/").partition("/")[2]
    ends = f"/{table}/{manifest.NAME}"
    complete, broken_off = [], []
    for entry in shelf.list(f"{ref}/"):
        folder = entry.path.removesuffix(manifest.NAME)
        if not entry.path.endswith(ends) or entry.path.count("/") != target.folder.count("/") + 2:
            continue
        found = manifest.read_manifest(shelf, folder)
        if folder == target.folder or found is None or found.source != source:
            continue
        if found.complete:
            complete.append((entry.modified_ms, folder))
        elif entry.modified_ms < now_ms - ABANDONED_MS:
            # A younger one may still be running.
            broken_off.append((entry.modified_ms, folder))
    surplus = sorted(complete)[: max(0, len(complete) - (keep - 1))]
    return [folder for _, folder in sorted(surplus + broken_off)]
