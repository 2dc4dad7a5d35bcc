"""The manifest that an export keeps beside its log.

A manifest states the source and commit of an export, and the log files that it was made of. It
is written first to claim the place, and at the end with ``complete``. A later export of the same
table uses it to decide what to reuse. Its content is the same if the export is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from lakeferry.errors import CommitConflict, LakeferryError, ObjectNotFound
from lakeferry.log import paths
from lakeferry.storage import Store

MANIFEST_FOLDER = paths.OWN_DIR
NAME = f"{MANIFEST_FOLDER}/export.json"
FORMAT = 1
MOST_ABSENT = 20_000
"""How many names of missing objects are stored; if there are more, nothing is reused."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A log file that was exported: its identity at the source, and what was left out of it.

    In lakeFS an address identifies the bytes; elsewhere, size and time show whether a file has
    changed.
    """

    address: str | None
    size_bytes: int
    modified_ms: int = 0
    skipped: int = 0

    def is_of(self, other: ExportedFile) -> bool:
        """Return True if both describe the same file at the source."""
        return replace(self, skipped=0) == replace(other, skipped=0)


@dataclass(frozen=True, slots=True)
class Leftover:
    """What an export that can be read couldn't do: stale files are still at its place.

    ``hint`` is the text to write to ``_last_checkpoint``, empty if that must be deleted; ``None``
    if it is right already.
    """

    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One export. ``source`` is the table without a ref, ``commit`` the commit in lakeFS.

    ``objects`` is the table's number of objects, log included. ``absent`` names objects that are
    referenced or listed but missing; it is ``None`` if there are too many, or if the log names
    files of other tables. ``highest`` is the highest version ever exported to the place.
    ``leftover`` is what the next export to the place has to do first. ``former`` are sources from
    which the table has moved since it was first exported to the place.
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
    leftover: Leftover | None = None
    former: tuple[str, ...] = ()

    def is_of(self, source: str, former: Collection[str]) -> bool:
        """Return whether it is of the table at ``source`` that was at ``former`` places before."""
        return self.source in (source, *former) or source in self.former


_MANIFEST_DECODER = msgspec.json.Decoder(Manifest)


def read_manifest(store: Store, folder: str = "") -> Manifest | None:
    """Return the manifest of the export at a place; ``None`` where there is none."""
    try:
        data = store.get(f"{folder}{NAME}")
    except ObjectNotFound:
        return None
    try:
        found = _MANIFEST_DECODER.decode(data)
    except msgspec.MsgspecError as broken:
        raise CommitConflict(
            f"Lakeferry can't tell what is at {store.uri}",
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


def write_manifest(store: Store, manifest: Manifest, folder: str = "") -> None:
    """Write the manifest of an export to its place."""
    store.put(f"{folder}{NAME}", _encoded(manifest))


def swap(store: Store, before: Manifest | None, after: Manifest) -> bool:
    """Replace the manifest ``before`` (or none); return True if ``after`` is there now."""
    expected = None if before is None else _encoded(before)
    return store.swap(NAME, expected, _encoded(after)) or read_manifest(store) == after


def is_there(store: Store, manifest: Manifest) -> bool:
    """Return True if a place is known to have this manifest."""
    with suppress(LakeferryError):
        return read_manifest(store) == manifest
    return False


def _encoded(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest; most lack some values, and don't say so."""
    plain = msgspec.to_builtins(manifest)
    for name in ("leftover", "former"):
        if not plain[name]:
            del plain[name]
    return msgspec.json.encode(plain)
