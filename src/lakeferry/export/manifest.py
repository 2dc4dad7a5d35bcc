"""The manifest that an export keeps beside its log.

A manifest says of which source and which commit an export is, and of which log
files it was made. It is written first, as a claim of the place, and last, as
``complete``: a later export of the same table learns from it what it may take
over. It says nothing that a repeated export would say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from lakeferry.errors import CommitConflict, ObjectNotFound
from lakeferry.log import paths
from lakeferry.storage import Store

FOLDER = paths.OWN_DIR
NAME = f"{FOLDER}/export.json"
FORMAT = 1
MOST_ABSENT = 20_000
"""So many names of what isn't there are kept; with more of them nothing is taken over."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A log file that was exported: what it was at the source, and what was left out of it.

    lakeFS knows bytes by their address; elsewhere size and time tell that a file is
    the one that it was.
    """

    address: str | None
    size_bytes: int
    modified_ms: int = 0
    skipped: int = 0

    def is_of(self, other: ExportedFile) -> bool:
        """Tell whether both are of the same file at the source."""
        return replace(self, skipped=0) == replace(other, skipped=0)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One export. ``source`` is the table without a ref, ``commit`` the one of lakeFS.

    ``objects`` is how many the table had, the log included; ``absent`` what it hasn't
    although it is named or listed, ``None`` where there is too much of that, or where
    the log names other tables' files. ``highest`` is the highest version that was ever
    exported to the place.
    """

    source: str
    commit: str | None
    version: int
    complete: bool
    table_id: str | None = None
    objects: int = 0
    log: Mapping[str, ExportedFile] = field(default_factory=dict)
    absent: tuple[str, ...] | None = ()
    highest: int = 0
    format: int = FORMAT


def read(store: Store, folder: str = "") -> Manifest | None:
    """Return the manifest of the export at a place; ``None`` where there is none."""
    try:
        data = store.get(f"{folder}{NAME}")
    except ObjectNotFound:
        return None
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as broken:
        raise CommitConflict(
            f"it can't be told what is at {store.uri}",
            cause=f"{folder}{NAME} can't be read: {broken}",
            remedy="choose another place, or remove what is there",
            location=store.uri,
        ) from broken
    if found.format != FORMAT:
        raise CommitConflict(
            f"{store.uri} was exported by another version of Lakeferry",
            cause=f"{folder}{NAME} has format {found.format}",
            remedy="choose another place, or use that version",
            location=store.uri,
        )
    return found


def write(store: Store, manifest: Manifest, folder: str = "") -> None:
    """Put a manifest at the place of its export."""
    store.put(f"{folder}{NAME}", msgspec.json.encode(manifest))


def swap(store: Store, before: Manifest | None, after: Manifest) -> bool:
    """Put a manifest where that other one is, or none; tell whether it is there now."""
    expected = None if before is None else msgspec.json.encode(before)
    return store.swap(NAME, expected, msgspec.json.encode(after)) or read(store) == after
