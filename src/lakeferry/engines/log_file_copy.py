"""Copies one log file, rewritten if its plan says so; used by both engines.

As everything in :mod:`lakeferry.engines.object_copy`, it may be repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from lakeferry.engine import LogCopy, LogCopyPlan, LogExported, LogExportPlan
from lakeferry.engines import object_copy
from lakeferry.engines.file_passes import FilePasses
from lakeferry.engines.object_copy import Gone, Hands
from lakeferry.errors import CommitConflict, CorruptLog, HashMismatch, InvalidInput, MissingFile
from lakeferry.log.rewrite import (
    Listed,
    PassObserver,
    Relisted,
    Rewrite,
    Sidecars,
    relist_lines,
    relist_many,
    relist_parquet,
    remove_catalog,
    rewrite_lines,
    rewrite_parquet,
    unreported,
)
from lakeferry.storage import Store
from lakeferry.storage.uris import join

_PASSES = 3
"""A log file is read, rewritten and written."""


def copy_log_file(
    hands: Hands, source: Store, target: Store, plan: LogCopyPlan, file: LogCopy
) -> int:
    """Put one log file at the target, rewritten if the plan says so; return its size.

    The file is written even if it exists: comparing it first would take as many requests. Only
    an ``exclusive`` file never replaces other bytes.
    """
    try:
        if plan.rewrite is None and not file.exclusive:
            size = hands.copy(source, file.path, target, file.new_path, None).size_bytes
            written = size, b""
            if plan.compares:
                found = hands.digest_of(source, file.path, size, told=False)
                if found is None:
                    raise _log_file_gone(source, file)
                written = found
        else:
            written = _put_rewritten(hands, source, target, plan, file)
    except Gone as gone:
        raise _log_file_gone(source, file) from gone
    if plan.compares:
        _check_written(hands, target, file.new_path, *written)
    if file.modified_ms is not None:
        target.restore_time(file.new_path, file.modified_ms)
    return written[0]


def _put_rewritten(
    hands: Hands, source: Store, target: Store, plan: LogCopyPlan, file: LogCopy
) -> tuple[int, bytes]:
    """Put a log file that passes through this process; return its size and its SHA-256."""
    with hands.held(source, file.path, None, _PASSES) as (data, passes):
        new = data
        if plan.rewrite is not None:
            new = rewritten_log_file(
                data, file.path, plan.rewrite, plan.sidecars, partial(passes.at, 1)
            )
        if file.exclusive:
            _put_beside(target, file.new_path, new)
        else:
            _put(target, file.new_path, new, passes)
        passes.ended()
        return len(new), hashlib.sha256(new).digest() if plan.compares else b""


def _check_written(hands: Hands, target: Store, name: str, size: int, digest: bytes) -> None:
    """Read a log file at the target; refuse it if it has other bytes than those written.

    No file may be held in memory meanwhile, because few large ones are at a time.
    """
    found = hands.digest_of(target, name, size, told=False)
    if found == (size, digest):
        return
    uri = join(target.uri, name)
    raise HashMismatch(
        f"{uri} doesn't have the bytes that were written",
        cause="it was read again after it was written, and differs",
        remedy="run the same command again: it writes the file again and compares it",
        path=name,
        uri=uri,
        expected=digest.hex(),
        actual=None if found is None else found[1].hex(),
    )


EXPORTED_AT_ONCE = 256
"""How many small log files are in memory at a time while they are exported."""


class LogExporter:
    """Puts log files at the target with the listed URIs, and describes each.

    Small commits are looked up many at a time, because a lookup has a high fixed cost.
    """

    def __init__(
        self, hands: Hands, source: Store, target: Store, plan: LogExportPlan, listed: Listed
    ) -> None:
        """Use ``hands`` for the work."""
        self._hands = hands
        self._source = source
        self._target = target
        self._plan = plan
        self._listed = listed

    def each(self, files: Iterable[LogCopy]) -> Iterator[LogExported]:
        """Export files, and yield a description of each in order."""
        waiting = iter(files)
        while window := list(islice(waiting, EXPORTED_AT_ONCE)):
            yield from self._window(window)

    def _window(self, files: Sequence[LogCopy]) -> Iterator[LogExported]:
        fetched = list(self._hands.each(self._small, files))
        commits = [data for data in fetched if data is not None]
        try:
            relisted = iter(relist_many(commits, self._listed) if commits else ())
        except CorruptLog:
            # Process them one by one, so that the error names the file.
            relisted = None
        pairs = [
            (file, data, next(relisted) if relisted is not None and data is not None else None)
            for file, data in zip(files, fetched, strict=True)
        ]
        yield from self._hands.each(self._put, pairs)

    def _small(self, file: LogCopy) -> bytes | None:
        """Fetch a commit if it is small; other files are fetched when it is their turn."""
        if file.address is not None:
            self._source.learn(file.path, file.address)
        if not file.path.endswith(".json") or self._plan.sidecars:
            return None
        try:
            data = self._hands.fetch_small(self._source, file.path, None)
        except Gone as gone:
            raise _log_file_gone(self._source, file) from gone
        return None if data is None else self._released(data, file.path)

    def _released(self, data: bytes, path: str) -> bytes:
        return remove_catalog(data, path) if self._plan.managed else data

    def _put(self, each: tuple[LogCopy, bytes | None, Relisted | None]) -> LogExported:
        file, data, new = each
        if new is None and data is not None:
            new = _relisted(data, file.path, self._listed, self._plan.sidecars, unreported)
        if new is not None:
            self._target.put(file.new_path, new.data)
            done, digest = _told(new), self._digest_of(new)
        else:
            done, digest = self._put_large(file)
        if self._plan.compares:
            _check_written(self._hands, self._target, file.new_path, done.size_bytes, digest)
        if file.modified_ms is not None:
            self._target.restore_time(file.new_path, file.modified_ms)
        return done

    def _digest_of(self, new: Relisted) -> bytes:
        return hashlib.sha256(new.data).digest() if self._plan.compares else b""

    def _put_large(self, file: LogCopy) -> tuple[LogExported, bytes]:
        try:
            with self._hands.held(self._source, file.path, None, _PASSES) as (data, passes):
                whole = self._released(data, file.path)
                new = _relisted(
                    whole, file.path, self._listed, self._plan.sidecars, partial(passes.at, 1)
                )
                _put(self._target, file.new_path, new.data, passes)
                passes.ended()
                return _told(new), self._digest_of(new)
        except Gone as gone:
            raise _log_file_gone(self._source, file) from gone


def _told(new: Relisted) -> LogExported:
    return LogExported(
        len(new.data),
        new.actions,
        new.unlisted,
        new.elsewhere,
        new.skipped,
        new.gone,
        new.gone_count,
        new.kin,
        new.protocol,
        new.metadata,
    )


def _relisted(
    data: bytes, path: str, listed: Listed, sidecars: Sidecars | None, done: PassObserver
) -> Relisted:
    relist = relist_lines if path.endswith(".json") else relist_parquet
    try:
        return relist(data, listed, sidecars, done=done)
    except CorruptLog as broken:
        broken.fields.setdefault("path", path)
        raise


def _log_file_gone(source: Store, file: LogCopy) -> MissingFile:
    return MissingFile(
        f"log file {file.path} of {source.uri} is gone",
        cause="the log was cleaned up while it was copied",
        remedy="try again",
        path=file.path,
    )


def _put(target: Store, path: str, data: bytes, passes: FilePasses) -> None:
    """Write a log file, a large one in pieces that are reported."""
    if len(data) <= object_copy.SMALL_COPY_BYTES:
        target.put(path, data)
        return
    length = object_copy.CHUNK_BYTES
    chunks = (data[start : start + length] for start in range(0, len(data), length))
    target.put_stream(path, passes.over(2, chunks, len(data)), len(data))


def _put_beside(target: Store, path: str, data: bytes) -> None:
    """Put an object, unless its name has other bytes already.

    The move that the file belongs to decides what to do then.
    """
    if not target.put_if_absent(path, data) and target.get(path) != data:
        raise CommitConflict(
            f"{path} of {target.uri} belongs to somebody else",
            cause="another process wrote a different log file there meanwhile",
            path=path,
            reason="name_taken",
        )


def rewritten_log_file(
    data: bytes,
    path: str,
    rewrite: Rewrite,
    sidecars: Sidecars | None,
    done: PassObserver = unreported,
) -> bytes:
    """Return a log file with every path in it rewritten; ``sidecars`` is as in the plan."""
    try:
        if path.endswith(".json"):
            return rewrite_lines(data, rewrite, sidecars, done=done)
        if path.endswith(".parquet"):
            return rewrite_parquet(data, rewrite, sidecars, done=done)
    except CorruptLog as broken:
        broken.fields.setdefault("path", path)
        raise
    # A checksum file names files too, so its paths must not be left unchanged.
    raise InvalidInput(f"{path} isn't a log file whose paths can be rewritten", path=path)
