"""Replaces paths with the URIs that a listing gives.

:class:`Listed` has the name of every object of a table, and the URI of its bytes. It looks paths
up and reports which of them weren't listed. :func:`relist_lines` and :func:`relist_parquet`
write those URIs into a log file's actions, and count what the publisher must know
(:class:`Relisted`).

The same file gets the same URI in every action, whether it still exists or not, so a ``remove``
still cancels its ``add``. Only the action of a missing change file is left out: nothing cancels
it, and readers of changes would fail there.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeferry.errors import CorruptLog
from lakeferry.log import arrow_versions, file_identity
from lakeferry.log.decoding import decode_odd
from lakeferry.log.rewrite.line_rewrite import change_path, rewrite_lines
from lakeferry.log.rewrite.path_rewrite import (
    PassObserver,
    Sidecars,
    root_prefix,
    root_spellings,
    unreported,
)
from lakeferry.log.rewrite.row_rewrite import rewrite_parquet

FindAddresses = Callable[[Sequence[str]], Sequence[str | None]]
"""Maps absolute paths to the URIs of their objects, ``None`` if there is none."""

LISTED_NAMES = pa.large_string()
LISTED_GONE = 1_000
"""How many unlisted names are reported; all are counted."""
_UP = "../"
_OUTSIDE = re.compile(r"/\.\.(?:/|$)")
_CONTAINER = re.compile(r"lakefs://[^/]+/[^/]+/|file:/|[^:]+://[^/]*/")
"""The beginning of a URI that no path leads out of: a bucket, a ref of lakeFS, local disk."""
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")
_NOWHERE = pa.scalar(None, pa.int64())
_HASHED = 4
"""If at least a fourth of all names is searched for, hashing them all is faster."""


class Resolved(NamedTuple):
    """Paths that were looked up: their URIs, and which of them are unknown."""

    uris: pa.Array
    unlisted: pa.Array
    """Whether a path should have been listed, but wasn't."""
    elsewhere: pa.Array
    """Whether a path leads to a place that wasn't listed."""
    names: pa.Array
    """The name under which each path should be listed."""
    kin: int = 0
    """How many paths were passed to ``ask``."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A table's objects. ``names`` are plain, without percent-encoding, and sorted.

    ``addresses`` has the URI of each, percent-encoded; without it, objects are below ``root``.
    An object that isn't listed gets a URI below ``fallback``, always the same. ``own`` is a
    pattern for the beginning of absolute paths below the table; ``home`` is the store for paths
    without a scheme. Absolute paths that match ``kin`` are resolved by ``ask``; others stay.
    """

    root: str
    names: pa.Array
    addresses: pa.Array | None
    fallback: str
    own: str
    home: str
    kin: str | None = None
    ask: FindAddresses | None = None

    @classmethod
    def below(cls, root: str, names: pa.Array) -> Listed:
        """Return the objects of a table whose files are where its log says."""
        home = re.match(r"[^:]+:(?://[^/]*)?", root)
        lead = "file:" if root.startswith("file:") else home[0] if home else root
        return cls(root, names, None, root, root_spellings(root), lead)

    def opened(self) -> Listed:
        """Return itself: everything is in memory."""
        return self

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the URI of each path's object."""
        return self.resolve(paths).uris

    def resolve(self, paths: pa.Array) -> Resolved:
        """Look paths up."""
        paths = self._unbound(paths.cast(pa.string()))
        absolute = pc.match_substring_regex(paths, file_identity.ABSOLUTE_PATTERN)
        if not pc.any(absolute).as_py():
            return self._look_up(paths, paths, absolute)
        whole = pc.replace_substring_regex(paths, "^/+", f"{self.home}/", max_replacements=1)
        whole = pc.if_else(absolute, whole, paths)
        own = pc.match_substring_regex(whole, self.own)
        cut = pc.replace_substring_regex(whole, self.own, "", max_replacements=1)
        return self._look_up(whole, pc.if_else(own, cut, whole), pc.and_not(absolute, own))

    def _unbound(self, paths: pa.Array) -> pa.Array:
        """Return the paths; those that lead out of the table's folder become absolute."""
        up = pc.match_substring(paths, _UP)
        if not pc.any(up).as_py():
            return paths
        spelled = [
            self._beside(path) if path.startswith(_UP) else path
            for path in file_identity.identities(paths.filter(up), self.root).to_pylist()
        ]
        return pc.replace_with_mask(paths, up, pa.array(spelled, pa.string()))

    def _beside(self, path: str) -> str:
        """Return the URI of a file outside of the table's folder, in the same container."""
        whole = file_identity.identity(f"{self.root}/{path}", self.root)
        container = _CONTAINER.match(f"{self.root}/")
        # What leads out of a ref of lakeFS would otherwise be taken for a file of another ref.
        if container is None or not whole.startswith(container[0]) or _OUTSIDE.search(whole):
            raise CorruptLog(
                "the log has a path that can't be the path of a file",
                cause=f"{path!r} leads out of {container[0] if container else self.root}",
                path=path,
            )
        return whole

    def _look_up(self, whole: pa.Array, relative: pa.Array, elsewhere: pa.Array) -> Resolved:
        names = file_identity.canonical_paths(relative, self.root)
        found = self._find(names)
        unlisted = pc.and_(pc.is_null(found), pc.invert(elsewhere))
        lead = pa.scalar(root_prefix(self.fallback), pa.string())
        uris = pc.binary_join_element_wise(lead, relative, "")
        if self.addresses is None:
            # An absolute path below the table stays: its identity differs from that of the relative
            # one.
            stays = pc.match_substring_regex(whole, file_identity.ABSOLUTE_PATTERN)
            return Resolved(pc.if_else(stays, whole, uris), unlisted, elsewhere, names)
        uris = pc.if_else(elsewhere, whole, uris)
        uris = pc.coalesce(self.addresses.take(found).cast(pa.string()), uris)
        if self.kin is None or self.ask is None or not pc.any(elsewhere).as_py():
            return Resolved(uris, unlisted, elsewhere, names)
        kin = pc.and_(elsewhere, pc.match_substring_regex(whole, self.kin))
        if not pc.any(kin).as_py():
            return Resolved(uris, unlisted, elsewhere, names)
        told = pa.array(self.ask(whole.filter(kin).to_pylist()), pa.string())
        uris = pc.replace_with_mask(uris, kin, pc.coalesce(told, whole.filter(kin)))
        unlisted = pc.replace_with_mask(unlisted, kin, pc.is_null(told))
        return Resolved(uris, unlisted, pc.and_not(elsewhere, kin), names, len(told))

    def _find(self, wanted: pa.Array) -> pa.Array:
        """Return the index of each name in ``names``; null if it isn't there."""
        wanted = wanted.cast(LISTED_NAMES)
        if not len(self.names):
            return pa.nulls(len(wanted), pa.int64())
        if len(wanted) * _HASHED >= len(self.names):
            return pc.index_in(wanted, value_set=self.names).cast(pa.int64())
        # With explicit types: to infer a type, Arrow tries to import packages that may be missing.
        at = arrow_versions.first_not_below(self.names, wanted)
        at = pc.if_else(pc.less(at, pa.scalar(len(self.names), pa.int64())), at, _NOWHERE)
        return pc.if_else(pc.equal(self.names.take(at), wanted), at, _NOWHERE)


@dataclass(frozen=True, slots=True)
class Relisted:
    """A log file with new paths, and what was found meanwhile.

    ``unlisted`` counts the files and vectors of ``add`` actions that weren't listed,
    ``elsewhere`` those at places that weren't listed, ``skipped`` the ``cdc`` actions that were
    left out. ``gone`` names some unlisted files of any action, ``gone_count`` counts them,
    ``kin`` counts the paths passed to ``ask``. ``protocol`` and ``metadata`` are the lines of a
    JSON file with the last of each.
    """

    data: bytes
    actions: int
    unlisted: int
    elsewhere: int
    skipped: int = 0
    gone: tuple[str, ...] = ()
    gone_count: int = 0
    kin: int = 0
    protocol: bytes | None = None
    metadata: bytes | None = None


class _Watch:
    """Looks paths up, and remembers those that weren't listed. Threads may share one."""

    def __init__(self, listed: Listed) -> None:
        self.listed = listed
        self.unlisted = 0
        self.elsewhere = 0
        self.kin = 0
        self.gone: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, paths: pa.Array) -> pa.Array:
        return self.resolve(paths).uris

    def resolve(self, paths: pa.Array) -> Resolved:
        found = self.listed.resolve(paths)
        unlisted = pc.sum(found.unlisted).as_py() or 0
        elsewhere = pc.sum(found.elsewhere).as_py() or 0
        with self._lock:
            if unlisted:
                self.unlisted += unlisted
                names = found.names.filter(found.unlisted)
                self.gone += names.slice(0, LISTED_GONE - len(self.gone)).to_pylist()
            self.elsewhere += elsewhere
            self.kin += found.kin
        return found


def _gone(*watches: _Watch) -> tuple[tuple[str, ...], int, int]:
    named = dict.fromkeys(name for watch in watches for name in watch.gone)
    unlisted = sum(watch.unlisted for watch in watches)
    return tuple(sorted(named)), unlisted, sum(watch.kin for watch in watches)


def relist_lines(
    data: bytes,
    listed: Listed,
    sidecars: Sidecars | None = None,
    *,
    done: PassObserver = unreported,
) -> Relisted:
    """Return a commit, a compacted log or a JSON checkpoint with the listed URIs."""
    changes, adds, others = _Watch(listed), _Watch(listed), _Watch(listed)
    data = _without_gone_changes(data, changes)
    rewritten = rewrite_lines(data, others, sidecars, adds=adds, done=done)
    lines = [line for line in rewritten.split(b"\n") if line.strip()]
    _check_lines(lines)
    return Relisted(
        rewritten,
        len(lines),
        adds.unlisted,
        adds.elsewhere,
        changes.unlisted,
        *_gone(changes, adds, others),
        _last(lines, "protocol"),
        _last(lines, "metaData"),
    )


def _check_lines(lines: Sequence[bytes]) -> None:
    """Raise an error for lines that readers couldn't read, before they are published."""
    for line in lines:
        try:
            _OBJECT.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
            if decode_odd(line) is None:
                raise CorruptLog("a line of the log can't be read", cause=str(broken)) from broken


def relist_many(files: Sequence[bytes], listed: Listed) -> list[Relisted]:
    """Relist many small commits at once, unless something is odd about them."""
    together = relist_lines(b"\n".join(files), listed)
    odd = (together.unlisted, together.elsewhere, together.gone_count, together.kin)
    if len(files) == 1 or any(odd):
        return [relist_lines(data, listed) for data in files]
    lines, begin, found = together.data.split(b"\n"), 0, []
    for data in files:
        own = lines[begin : begin + data.count(b"\n") + 1]
        begin += len(own)
        actions = [line for line in own if line.strip()]
        last = _last(actions, "protocol"), _last(actions, "metaData")
        found.append(Relisted(b"\n".join(own), len(actions), 0, 0, 0, (), 0, 0, *last))
    return found


def _last(lines: Sequence[bytes], action: str) -> bytes | None:
    mark = f'"{action}"'.encode()
    for line in reversed(lines):
        if mark not in line and b"\\u" not in line:
            continue
        try:
            found = _OBJECT.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # An unreadable line that :func:`_check_lines` accepts has no known action.
            continue
        # Some writers list all actions on each line, with null for the unused ones.
        if bytes(found.get(action, _NULL)) != b"null":
            return line
    return None


def relist_parquet(
    source: bytes | io.RawIOBase | io.BufferedIOBase,
    listed: Listed,
    sidecars: Sidecars | None = None,
    *,
    done: PassObserver = unreported,
) -> Relisted:
    """Return a checkpoint's or a sidecar's Parquet file with the listed URIs."""
    adds, others = _Watch(listed), _Watch(listed)
    rewritten = rewrite_parquet(source, others, sidecars, adds=adds, done=done)
    rows = pq.ParquetFile(io.BytesIO(rewritten)).metadata.num_rows
    return Relisted(rewritten, rows, adds.unlisted, adds.elsewhere, 0, *_gone(adds, others))


def _without_gone_changes(data: bytes, watch: _Watch) -> bytes:
    if b'"cdc"' not in data and b"\\u" not in data:
        return data
    lines = data.split(b"\n")
    named = [(number, path) for number, line in enumerate(lines) if (path := change_path(line))]
    if not named:
        return data
    paths = pa.array([path for _, path in named], pa.string())
    unlisted = watch.resolve(paths).unlisted.to_pylist()
    gone = {number for (number, _), lost in zip(named, unlisted, strict=True) if lost}
    return b"\n".join(line for number, line in enumerate(lines) if number not in gone)
