"""The rewrites themselves: functions from an array of paths to an array of paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import InvalidInput
from lakeferry.log import deletion_vectors, file_identity

Rewrite = Callable[[pa.Array], pa.Array]
"""Maps paths of a log, percent-encoded, to paths for the other log."""

Sidecars = Mapping[str, tuple[str, int]]
"""Maps a sidecar's old path to its new path and its new size in bytes."""

PassObserver = Callable[[float], None]
"""Receives the fraction of a file that is rewritten."""


def unreported(fraction: float) -> None:
    """Ignore how much of a file is rewritten."""


_ABSOLUTE = r"^(/|[A-Za-z][A-Za-z0-9+.\-]*:/)"
_ALIASES = (("s3", "s3a", "s3n"), ("abfs", "abfss"), ("wasb", "wasbs"))


@dataclass(frozen=True, slots=True)
class _Spellings:
    """The spellings of paths below a root, as patterns for Arrow."""

    prefix: str
    below: str
    plain: str
    marked: str
    letter: str
    code: str


@lru_cache(maxsize=64)
def _spellings(root: str) -> _Spellings:
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.\-]*):/(?:/([^/]*))?((?:/.*)?)", root)
    if match is None:
        match = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.\-]*):()(/.*)", root)
    if match is None:
        raise InvalidInput(f"{root!r} isn't an absolute URI")
    scheme, authority, path = match[1], match[2] or "", match[3].rstrip("/")
    schemes = next((names for names in _ALIASES if scheme in names), (scheme,))
    start = f"(?:{'|'.join(re.escape(name) for name in schemes)}):"
    prefix = f"{root.rstrip('/')}/"
    if scheme == "file" and authority in ("", "localhost"):
        # Also without a scheme: in a local table's log that is the same path.
        start = f"(?:{start}(?://(?:localhost)?)?)?"
        # Spelled as Spark does: when a DELETE sets deletion vectors, delta-spark compares a path
        # in the log, unchanged, with one that Hadoop has normalised.
        prefix = f"file:{path}/"
    else:
        start += f"//{re.escape(authority)}" if authority else "(?://)?"
    below = f"^{start}{re.escape(path)}/"
    # The last plain letter of the path, which can be percent-encoded without changing the place. A
    # root without one, such as a whole bucket, can't be marked: the pattern matches nothing.
    letters = [found for found in re.finditer(r"%..|([A-Za-z0-9])", path) if found[1]]
    if not letters:
        return _Spellings(prefix, below, below, r"^\z.", "", "")
    last = letters[-1]
    head, tail = re.escape(path[: last.start()]), re.escape(path[last.end() :])
    code = f"%{ord(last[1]):02X}"
    return _Spellings(
        prefix,
        below,
        f"^({start}{head}){last[1]}({tail}/)",
        f"^({start}{head}){code}({tail}/)",
        last[1],
        code,
    )


def root_prefix(root: str) -> str:
    """Return the prefix that makes a path relative to ``root`` absolute."""
    return _spellings(root).prefix


def root_spellings(root: str) -> str:
    """Return a pattern of how absolute paths below ``root`` may begin."""
    return _spellings(root).below


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Leaves every path as it is."""

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths."""
        return paths


@dataclass(frozen=True, slots=True)
class Absolute:
    """Makes relative paths absolute, below ``root``; absolute ones keep their place."""

    root: str

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths for another table's log."""
        known = _spellings(self.root)
        lead, between = pa.scalar(known.prefix, paths.type), pa.scalar("", paths.type)
        prefixed = pc.binary_join_element_wise(lead, paths, between)
        absolute = pc.match_substring_regex(paths, _ABSOLUTE)
        if not pc.any(absolute).as_py():
            return prefixed
        kept = paths
        below = pc.match_substring_regex(paths, known.below)
        marked = pc.match_substring_regex(paths, known.marked)
        if pc.any(marked).as_py() or (not known.code and pc.any(below).as_py()):
            odd = paths.filter(pc.if_else(marked, True, below))[0].as_py()
            raise InvalidInput(
                f"the path {odd!r} can't be rewritten in a way that can be reversed",
                cause=f"it is absolute and below {self.root}, and that root has no other spelling",
                path=odd,
            )
        if pc.any(below).as_py():
            kept = pc.replace_substring_regex(
                paths, known.plain, rf"\1{known.code}\2", max_replacements=1
            )
        return pc.if_else(absolute, kept, prefixed)


@dataclass(frozen=True, slots=True)
class Relative:
    """Makes paths below ``root`` relative: the exact inverse of :class:`Absolute`."""

    root: str

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths for the root's own log."""
        known = _spellings(self.root)
        below = pc.match_substring_regex(paths, known.below)
        if pc.any(below).as_py():
            cut = pc.replace_substring_regex(paths, known.below, "", max_replacements=1)
            relative = pc.if_else(below, cut, paths)
        else:
            relative = paths
        marked = pc.match_substring_regex(paths, known.marked)
        if not pc.any(marked).as_py():
            return relative
        restored = pc.replace_substring_regex(
            paths, known.marked, rf"\1{known.letter}\2", max_replacements=1
        )
        return pc.if_else(marked, restored, relative)


@dataclass(frozen=True, slots=True)
class PlacedPaths:
    """Makes relative paths absolute if they lead out of the folder ``root``; others stay."""

    root: str

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths for any table's log."""
        up = pc.fill_null(pc.match_substring(paths, "../"), False)
        if not pc.any(up).as_py():
            return paths
        return pc.replace_with_mask(
            paths, up, pa.array([self._placed(path) for path in paths.filter(up).to_pylist()])
        )

    def _placed(self, path: str) -> str:
        if not file_identity.identity(path, self.root).startswith("../"):
            return path
        return file_identity.identity(f"{root_prefix(self.root)}{path}", self.root)


@dataclass(frozen=True, slots=True)
class Fetched(Relative):
    """Maps paths of a table at ``away`` to those of a copy at ``root``, which has its own files."""

    away: str

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths for the root's own log."""
        return Relative.__call__(self, PlacedPaths(self.away)(paths))


@dataclass(frozen=True, slots=True)
class Homeward:
    """Makes paths below ``home`` relative, and relative ones absolute, below ``away``."""

    home: str
    away: str

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths for the log at home."""
        absolute = pc.match_substring_regex(paths, _ABSOLUTE)
        return pc.if_else(absolute, Relative(self.home)(paths), Absolute(self.away)(paths))


# Deletion vectors.


def rewrite_vectors(vectors: Sequence[tuple[str, str]], rewrite: Rewrite) -> list[tuple[str, str]]:
    """Return storage type and ``pathOrInlineDv`` of each vector after the rewrite."""
    # Many data files may share one vector file, which is decoded once.
    distinct = list(dict.fromkeys(vectors))
    old = [_vector_path(*vector) for vector in distinct]
    new = rewrite(pa.array(old, pa.string())).to_pylist()
    changed = {}
    for vector, before, after in zip(distinct, old, new, strict=True):
        changed[vector] = vector
        if before is None or after is None or after == before:
            continue
        if file_identity.is_absolute_path(after):
            changed[vector] = ("p", after)
        elif (descriptor := deletion_vectors.relative_descriptor(after)) is not None:
            changed[vector] = ("u", descriptor)
    return [changed[vector] for vector in vectors]


def _vector_path(storage_type: str, path_or_inline_dv: str) -> str | None:
    if storage_type == "u":
        return deletion_vectors.relative_path(path_or_inline_dv)
    return path_or_inline_dv if storage_type == "p" else None
