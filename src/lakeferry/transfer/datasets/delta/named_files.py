"""Reads which files a version's commit names, and refuses those outside of the table.

Pure: no store, no clock. Paths are decoded, so that they name objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from lakeferry.errors import CorruptLog, InvalidInput, UnsupportedFeature
from lakeferry.log import decoding, features, paths
from lakeferry.log.actions import CommitInfo
from lakeferry.log.file_identity import identity, is_absolute_path
from lakeferry.log.lines import Lines, each_line
from lakeferry.log.references import NamedFile
from lakeferry.storage.uris import decode_name, leads_outside
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.wire.messages import LONGEST_PATH

LATEST_MS = 1 << 60
"""The latest time that a block may have; the earliest is 1970."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
_RESERVED = frozenset({"", ".", "..", paths.LOG_DIR})
_OWN = ".lakeferry"
_LONGEST_SEGMENT = 255
# Characters that a reader may take for an absolute path; each reader has its own rules.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NOWHERE = "file:///-"


def check_path(path: str) -> None:
    """Refuse a path outside of the table, or in a folder that has other files."""
    segments = path.split("/")
    if (
        not 0 < len(path) <= LONGEST_PATH
        or _FORBIDDEN.search(path)
        or not all(map(_is_segment, segments))
        # A reader that decodes a name before testing for an absolute path would go elsewhere.
        or _SCHEME.fullmatch(segments[0])
        # In a repository, an ODF dataset has its files there.
        or segments[-2:] == ["refs", "head"]
    ):
        raise InvalidInput(
            "the table has a file whose path can't be transferred",
            cause=repr(path[:200]),
            remedy="1. rewrite that file under another name, with OPTIMIZE for example; 2. make "
            "one more commit; 3. delete the history before the version of that commit: lakeferry "
            "cleanup TABLE --before VERSION --force",
        )


def _is_segment(name: str) -> bool:
    if name in _RESERVED or name.startswith(_OWN):
        return False
    # No character has more than four bytes.
    return len(name) * 4 <= _LONGEST_SEGMENT or len(name.encode()) <= _LONGEST_SEGMENT


@dataclass(frozen=True, slots=True)
class Named:
    """The files and settings that a commit names, by decoded paths."""

    adds: dict[str, str | None]
    """Data files, each with the file of its deletion vector."""
    sizes: dict[str, int | None]
    """Sizes of all added files, as the log states them."""
    removed_paths: frozenset[str]
    changes: frozenset[str]
    """Change files; they belong to no version's state."""
    table_id: str | None
    time_ms: int | None
    """The time of the commit, by its writer."""
    origin: Multihash | None
    has_protocol: bool = True
    configuration: Mapping[str, str] | None = None
    """The table's properties, if the commit sets them."""

    @property
    def added(self) -> set[str]:
        """Data files and files of vectors."""
        return set(self.adds) | {vector for vector in self.adds.values() if vector is not None}

    @property
    def new(self) -> dict[str, int | None]:
        """Objects that a block lists, with their sizes.

        All added files, except those that the commit only gives another vector.
        """
        kept = self.removed_paths
        return {name: size for name, size in self.sizes.items() if name not in kept}


class _Line(msgspec.Struct, gc=False):
    add: NamedFile | None = None
    remove: NamedFile | None = None
    cdc: NamedFile | None = None


_LINE = msgspec.json.Decoder(_Line)
ORIGIN = "lakeferryOrigin"
"""Key in the provenance of a forced commit: the head of the chain that replaced the content."""


def commit_names(commit: bytes, version: int) -> Named:
    """Return what a commit names; refuse files outside of the table, and unsupported features."""
    name = paths.commit(version)
    adds: dict[str, str | None] = {}
    sizes: dict[str, int | None] = {}
    removed: set[str] = set()
    changes: set[str] = set()

    def take(line: bytes) -> None:
        try:
            found = decoding.decode_files(line, _LINE)
        except msgspec.ValidationError as error:
            raise CorruptLog("a file action can't be read", cause=str(error)) from error
        if found.add is not None:
            path, place = decoded(found.add.path), found.add.vector_path()
            vector = None if place is None else decoded(place)
            adds[path] = vector
            sizes[path] = found.add.size
            if vector is not None:
                sizes.setdefault(vector, None)
        if found.remove is not None and not is_absolute_path(found.remove.path):
            removed.add(decoded(found.remove.path))
        if found.cdc is not None:
            path = decoded(found.cdc.path)
            changes.add(path)
            sizes[path] = found.cdc.size

    lines = Lines()
    lines.read(commit, name)
    each_line(commit, name, take)
    if lines.protocol is not None:
        features.check_carriable(lines.protocol)
    info = lines.commit_info
    said = info.values.get(ORIGIN) if info is not None else None
    return Named(
        adds,
        sizes,
        frozenset(removed),
        frozenset(changes),
        lines.metadata.id if lines.metadata is not None else None,
        _time_of(info),
        _origin_of(said),
        lines.protocol is not None,
        lines.metadata.configuration if lines.metadata is not None else None,
    )


def _origin_of(said: object) -> Multihash | None:
    try:
        return Multihash.parse(said) if isinstance(said, str) else None
    except InvalidInput:
        # Another writer's value, which means nothing here.
        return None


def _time_of(info: CommitInfo | None) -> int | None:
    """Return the time written inside a commit; unlike the file's time, a copy keeps it."""
    if info is None:
        return None
    plain = info.values.get("timestamp")
    fits = isinstance(plain, int) and 0 <= plain <= LATEST_MS
    own = info.in_commit_timestamp
    return own if own is not None and own >= 0 else plain if fits else None


def decoded(path: str) -> str:
    """Return the object that a path in the log refers to; refuse one outside of the table."""
    spelled = identity(path, _NOWHERE)
    is_elsewhere = leads_outside(spelled) or is_absolute_path(path) or _SCHEME.match(path)
    if is_elsewhere or path != path.strip():
        raise UnsupportedFeature(
            "the table's log names files outside of its folder",
            cause=path[:200],
            remedy="copy the table to a place of its own with 'lakeferry redirect enable', "
            "and transfer the copy",
            path=path[:200],
        )
    # An unusual spelling refers to the same file for all readers of the log.
    try:
        name = decode_name(spelled)
    except InvalidInput as bad:
        raise CorruptLog(
            "the log has a path that can't be the path of a file", cause=repr(path[:200])
        ) from bad
    check_path(name)
    return name
