"""Decides whether an export may use a place, or whether it belongs to somebody else.

A place may be used if it is empty, or if it has an export of the same source to which nobody else
has written. A table that has moved is the same source: its redirect leads from where the export was
made to where the table is now.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakeferry.errors import CommitConflict, ObjectNotFound
from lakeferry.export import manifest, surveys
from lakeferry.export.manifest import MANIFEST_FOLDER, Manifest
from lakeferry.export.origins import ExportTarget, Origin
from lakeferry.log import paths
from lakeferry.storage import Store
from lakeferry.storage.uris import shell_safe

Earlier = tuple[Manifest, str]
"""An export that a later one can reuse, and its folder."""


class Lost(Exception):
    """The target, or an export to reuse, has changed since it was inspected."""


@dataclass(frozen=True, slots=True)
class ExportPlace:
    """The target of an export of ``origin``, and its manifest if there is one."""

    target: ExportTarget
    origin: Origin
    there: Manifest | None

    @classmethod
    def claimed(cls, target: ExportTarget, origin: Origin) -> ExportPlace:
        """Inspect a target; raise an error if it belongs to somebody else."""
        source = origin.source
        found = manifest.read_manifest(target.place)
        if found is None and _has_something(target.place):
            # Another export of the same source may have begun since.
            found = manifest.read_manifest(target.place)
            if found is None:
                strange = "there are files that Lakeferry hasn't exported"
                raise _taken(target, source, strange)
        if found is not None and not found.is_of(source, origin.former):
            raise _of_another(target, source, found.source)
        return cls(target, origin, found)

    @property
    def has_moved(self) -> bool:
        """Whether the table was elsewhere when it was exported: its files have other URIs now."""
        return self.there is not None and self.there.source != self.origin.source

    @property
    def former(self) -> tuple[str, ...]:
        """The places where the table was before, as far as the exports to this place know."""
        known = {*self.origin.former}
        if self.there is not None:
            known |= {*self.there.former, self.there.source}
        return tuple(sorted(known - {self.origin.source}))

    def taken(self, cause: str) -> CommitConflict:
        """Return the error for a target that can't be used."""
        return _taken(self.target, self.origin.source, cause)

    def earlier(self) -> Earlier | None:
        """Return the last export that this one can reuse."""
        found = self.target.last()
        return found if found is not None and found[0].source == self.origin.source else None

    def present(self) -> frozenset[str]:
        """Return the log files at the target; raise an error if somebody else has written there."""
        if self.there is None:
            return frozenset()
        listed = self.target.place.list(f"{paths.LOG_DIR}/")
        names = [entry.path for entry in listed if not entry.path.startswith(f"{MANIFEST_FOLDER}/")]
        parsed = {name: paths.parse(name) for name in names}
        for name, file in parsed.items():
            # Older versions may be left over from exports that ran at the same time.
            if file is not None and file.version > self.there.highest:
                if manifest.read_manifest(self.target.place) != self.there:
                    raise Lost
                raise self.taken(f"somebody wrote {name} into it")
        return frozenset(
            name
            for name, file in parsed.items()
            if file is not None or name.startswith(f"{paths.SIDECAR_DIR}/")
        )


def _has_something(place: Store) -> bool:
    """Return True if any file is at a place; folders without files don't count."""
    try:
        if next(place.list(""), None) is not None:
            return True
    except ObjectNotFound as missing:
        # There is no such bucket.
        raise surveys.unreachable(place.uri, missing) from missing
    try:
        place.head("")
    except ObjectNotFound:
        return False
    return True


def _taken(target: ExportTarget, source: str, cause: str) -> CommitConflict:
    return CommitConflict(
        f"{target.location} isn't free for an export of {source}",
        cause=cause,
        remedy="choose another place, or remove what is there",
        location=target.location,
    )


def _of_another(target: ExportTarget, source: str, other: str) -> CommitConflict:
    """Return the error for a target with an export of another table, or of this one elsewhere."""
    return CommitConflict(
        f"{target.location} isn't free for an export of {source}",
        cause=f"it holds an export of {other}",
        remedy="choose another place, or remove what is there; if the table has moved from "
        f"{other}, export it by that path: lakeferry export {shell_safe(other)} --to "
        f"{shell_safe(target.location)}",
        location=target.location,
    )
