"""The names of files in ``_delta_log`` as typed values.

Implements the naming rules of the protocol's "File Types" and "Checkpoint Naming Scheme". A name
that follows none of them is not a log file: engines put temporary files, checksum siblings and
their own folders there, and ``parse`` returns ``None`` for them.

This module only looks at names; other modules read the files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

LOG_DIR = "_delta_log"
LAST_CHECKPOINT = f"{LOG_DIR}/_last_checkpoint"
SIDECAR_DIR = f"{LOG_DIR}/_sidecars"
OWN_DIR = f"{LOG_DIR}/_lakeferry"
"""Lakeferry's own files beside a log; no engine looks there."""
MOVE_CLAIM = f"{OWN_DIR}/claim.json"
"""Marks a place to which a table is moving: :mod:`lakeferry.redirect.enable.target_claim`."""
STAGED_DIR = f"{LOG_DIR}/_staged_commits"

MAX_VERSION = 2**63 - 1
"""Versions are longs. Twenty digits could hold more, but such a name is no log file."""


class LogFileKind(Enum):
    """The kind of a log file."""

    COMMIT = "commit"
    CLASSIC = "classic"
    MULTI_PART = "multi-part"
    V2 = "v2"
    COMPACTED = "compacted"
    CHECKSUM = "checksum"
    STAGED = "staged"

    @property
    def is_checkpoint(self) -> bool:
        """Whether a file of this kind is a checkpoint or a part of one."""
        return self in _CHECKPOINTS


_CHECKPOINTS = frozenset({LogFileKind.CLASSIC, LogFileKind.MULTI_PART, LogFileKind.V2})


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log, from its name and its listing.

    ``first_version`` differs from ``version`` only for a compacted log, which covers both and
    all versions between. ``part`` and ``parts`` are those of a multi-part checkpoint, else 1.
    ``unique`` is the UUID of a V2 checkpoint or of a staged commit.
    """

    kind: LogFileKind
    version: int
    path: str
    first_version: int
    part: int = 1
    parts: int = 1
    unique: str = ""
    size_bytes: int = 0
    modified_ms: int = 0

    @property
    def opens(self) -> bool:
        """Whether a log can begin with this file."""
        begins = (
            self.kind in (LogFileKind.COMMIT, LogFileKind.COMPACTED) and self.first_version == 0
        )
        return begins or self.kind.is_checkpoint


_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_NAME = re.compile(
    rf"""_delta_log/
    (?: (?P<version>[0-9]{{20}})\.
        (?: (?P<commit>json)
          | (?P<checksum>crc)
          | (?P<end>[0-9]{{20}})\.compacted\.json
          | checkpoint\.
            (?: (?P<classic>parquet)
              | (?P<part>[0-9]{{10}})\.(?P<parts>[0-9]{{10}})\.parquet
              | (?P<v2>{_UUID})\.(?:json|parquet)
            )
        )
      | (?:_staged_commits|_commits)/(?P<proposed>[0-9]{{20}})\.(?P<staged>{_UUID})\.json
    )""",
    re.VERBOSE,
)


def parse(path: str, size_bytes: int = 0, modified_ms: int = 0) -> LogFile | None:
    """Parse the name ``path`` (relative to the table); return ``None`` if it is no log file."""
    match = _NAME.fullmatch(path)
    if match is None:
        return None
    found = match.groupdict()
    version = int(found["version"] or found["proposed"])
    if version > MAX_VERSION:
        return None
    first, part, parts, unique = version, 1, 1, ""
    if found["commit"]:
        kind = LogFileKind.COMMIT
    elif found["checksum"]:
        kind = LogFileKind.CHECKSUM
    elif found["classic"]:
        kind = LogFileKind.CLASSIC
    elif found["v2"]:
        kind, unique = LogFileKind.V2, found["v2"]
    elif found["part"]:
        kind, part, parts = LogFileKind.MULTI_PART, int(found["part"]), int(found["parts"])
        if not 1 <= part <= parts:
            return None
    elif found["end"]:
        kind, version = LogFileKind.COMPACTED, int(found["end"])
        if not first < version <= MAX_VERSION:
            return None
    else:
        kind, unique = LogFileKind.STAGED, found["staged"]
    return LogFile(kind, version, path, first, part, parts, unique, size_bytes, modified_ms)


def commit(version: int) -> str:
    """Return the name of the commit ``version``."""
    return f"{LOG_DIR}/{version:020d}.json"


def checksum(version: int) -> str:
    """Return the name of the checksum file of ``version``."""
    return f"{LOG_DIR}/{version:020d}.crc"


def classic_checkpoint(version: int) -> str:
    """Return the name of the classic checkpoint of ``version``."""
    return f"{LOG_DIR}/{version:020d}.checkpoint.parquet"


def multi_part_checkpoint(version: int, part: int, parts: int) -> str:
    """Return the name of one part of a multi-part checkpoint."""
    return f"{LOG_DIR}/{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet"


def v2_checkpoint(version: int, unique: str, suffix: str = "parquet") -> str:
    """Return the name of the UUID-named checkpoint ``unique`` of ``version``."""
    return f"{LOG_DIR}/{version:020d}.checkpoint.{unique}.{suffix}"


def compacted(first_version: int, last_version: int) -> str:
    """Return the name of the compacted log that covers both versions and all between."""
    return f"{LOG_DIR}/{first_version:020d}.{last_version:020d}.compacted.json"


def sidecar(name: str) -> str:
    """Return where the sidecar file ``name`` is."""
    return f"{SIDECAR_DIR}/{name}"


def before_version(version: int) -> str:
    """Return a name that sorts after all log files below ``version`` and before all others.

    A listing from ``version`` on starts after this name: ``-`` is smaller than any character of
    a version, and no log file has it there.
    """
    return f"{LOG_DIR}/{version:020d}-"


END_OF_VERSIONS = f"{LOG_DIR}/_"
"""Log files that begin with a version sort before this; folders and the hint sort after it."""
