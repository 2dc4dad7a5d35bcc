"""Reads a segment's files in few requests.

A commit is fetched whole; a checkpoint whole if its file actions are needed, and
by ranges if only its protocol and metadata are. All decisions are made by
:mod:`lakeferry.log`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from urllib.parse import unquote

from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log import checkpoint_read, parquet, paths
from lakeferry.log.actions import CommitInfo, Sidecar
from lakeferry.log.checkpoint_read import PROTOCOL_AND_METADATA, SMALL_ACTIONS, Rows
from lakeferry.log.checksum import Checksum, decode_checksum, decode_counts
from lakeferry.log.file_identity import is_absolute_path
from lakeferry.log.lines import Lines
from lakeferry.log.parquet import FileBounds
from lakeferry.log.paths import LogFile
from lakeferry.log.replay import FileTable, Reconciliation, Snapshot
from lakeferry.log.segment import Checkpoint, Listing, Segment, arrange
from lakeferry.table.log_source import LogSource

_WINDOW_BYTES = 64 * 1024 * 1024
"""How many bytes of log text are in memory at one time."""
_WHOLE_BELOW_BYTES = 256 * 1024
"""A Parquet file up to this size is fetched whole, which costs only one request."""


def read_deltas(
    store: LogSource,
    segment: Segment,
    *,
    keeps_files: bool = True,
    commit_infos: MutableMapping[int, CommitInfo | None] | None = None,
) -> Lines:
    """Read the segment's commits and compacted logs, oldest first.

    Unless ``keeps_files``, file actions are decoded and not kept, except those of compacted
    logs, which are checked for duplicates. ``commit_infos`` receives that of each commit.
    """
    compacted = any(file.kind is paths.LogFileKind.COMPACTED for file in segment.deltas)
    lines = Lines(keeps_files=keeps_files or compacted)
    for file, data in contents(store, segment.deltas):
        read_delta(lines, file, data)
        if commit_infos is not None and file.kind is paths.LogFileKind.COMMIT:
            commit_infos[file.version] = lines.commit_info
    lines.check_compacted(store.uri)
    last = segment.deltas[-1] if segment.deltas else None
    if last is None or last.kind is not paths.LogFileKind.COMMIT:
        lines.commit_info = None
    return lines


def read_delta(lines: Lines, file: LogFile, data: bytes) -> None:
    """Read one commit or compacted log into ``lines``."""
    if file.kind is paths.LogFileKind.COMPACTED:
        lines.read_compacted(data, file.path, file.first_version)
    else:
        lines.read(data, file.path)


def reconcile(
    store: LogSource,
    segment: Segment,
    lines: Lines,
    decoded: Callable[[float], None] = lambda _: None,
) -> Reconciliation:
    """Replay the whole segment, its commits already read into ``lines``.

    ``decoded`` is called with each share of a checkpoint file's rows.
    """
    replay = Reconciliation(segment.version, store.uri, lines)
    if segment.checkpoint is not None:
        wanted = (*SMALL_ACTIONS, "add", "remove")
        for rows in checkpoint_rows(store, segment.checkpoint.files, wanted):
            replay.take(rows)
            decoded(rows.share)
    return replay


def file_tables(store: LogSource, segment: Segment, lines: Lines) -> Iterator[FileTable]:
    """Yield a version's live files and tombstones, its commits already read into ``lines``.

    Tables of the checkpoint are read one by one and not kept.
    """
    replay = Reconciliation(segment.version, store.uri, lines)
    yield from replay.of_commits
    if segment.checkpoint is not None:
        wanted = (*SMALL_ACTIONS, "add", "remove")
        for rows in checkpoint_rows(store, segment.checkpoint.files, wanted):
            yield from replay.pass_on(rows)


def snapshot(
    store: LogSource, segment: Segment, decoded: Callable[[float], None] = lambda _: None
) -> Snapshot:
    """Return the version that the segment makes up, with all of its files."""
    return reconcile(store, segment, read_deltas(store, segment), decoded).snapshot()


def small_rows(store: LogSource, segment: Segment, lines: Lines, wanted: Sequence[str]) -> Rows:
    """Read the actions named in ``wanted``, none about files, from the segment's checkpoint.

    Protocol and metadata are only read if the commits don't have them.
    """
    rows = Rows()
    for file in segment.checkpoint.files if segment.checkpoint else ():
        _small_rows(store, file, rows, (*wanted, "checkpointMetadata"))
        _check_version(rows, file)
        complete = (rows.protocol or lines.protocol) and (rows.metadata or lines.metadata)
        if complete and set(wanted) <= set(PROTOCOL_AND_METADATA):
            break
    return rows


def read_checksum(store: LogSource, file: LogFile) -> Checksum | None:
    """Return the content of a checksum file; ``None`` if it is missing or unreadable.

    It is redundant: without it the log is read.
    """
    try:
        return decode_checksum(store.get(file.path))
    except (ObjectNotFound, CorruptLog):
        return None


def read_counts(store: LogSource, file: LogFile) -> tuple[int, int] | None:
    """Return the number of files and their bytes from a checksum file that has only counts."""
    try:
        return decode_counts(store.get(file.path))
    except ObjectNotFound:
        return None


def list_log(store: LogSource, since: int = 0, before: int | None = None) -> Listing:
    """List a log's files from the version ``since`` on, up to the version ``before`` if given."""
    entries = store.list(
        f"{paths.LOG_DIR}/",
        start_after=paths.before_version(since) if since else None,
        stop_before=paths.END_OF_VERSIONS if before is None else paths.before_version(before),
    )
    found = (paths.parse(entry.path, entry.size_bytes, entry.modified_ms) for entry in entries)
    return arrange((file for file in found if file is not None), since)


def contents(store: LogSource, files: Iterable[LogFile]) -> Iterator[tuple[LogFile, bytes]]:
    """Yield files with their bytes, fetched together as far as they fit into memory."""
    for window in _windows(files):
        yield from zip(window, _get_many(store, [file.path for file in window]), strict=True)


def is_usable(store: LogSource, checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has its files, sidecars, and readable protocol and metadata.

    Its file actions aren't read: this check decides whether to write another checkpoint.
    """
    alone = Segment.of_checkpoint(checkpoint)
    try:
        rows = small_rows(store, alone, Lines(), ("protocol", "metaData", "sidecar"))
        for sidecar in rows.sidecars:
            store.head(sidecar_name(store.uri, sidecar))
    except (CorruptLog, ObjectNotFound):
        return False
    return rows.protocol is not None and rows.metadata is not None


def _get_many(store: LogSource, names: Sequence[str]) -> list[bytes]:
    try:
        return store.get_many(names)
    except ObjectNotFound as gone:
        raise vanished(str(gone.fields.get("path", "?"))) from gone


class Vanished(CorruptLog):
    """A log file that was listed, or that a checkpoint names, doesn't exist."""


def vanished(path: str) -> Vanished:
    """Return the error for a log file that doesn't exist any more."""
    return Vanished(
        f"log file {path} is gone",
        cause="it was deleted while the table was read, or a checkpoint has a wrong name for it",
        remedy="try again; if it keeps failing, restore the file from a copy",
        path=path,
    )


def _windows(files: Iterable[LogFile]) -> Iterator[list[LogFile]]:
    window: list[LogFile] = []
    total = 0
    for file in files:
        if window and total + file.size_bytes > _WINDOW_BYTES:
            yield window
            window, total = [], 0
        window.append(file)
        total += file.size_bytes
    if window:
        yield window


def checkpoint_rows(
    store: LogSource,
    files: Sequence[LogFile],
    wanted: Sequence[str],
    *,
    bounds: FileBounds | None = None,
) -> Iterator[Rows]:
    """Yield the rows of a checkpoint's files, then of its sidecars, one file at a time.

    ``bounds`` limit each file of a checkpoint that a peer sent.
    """

    def in_parquet(data: bytes, name: str, wanted: Sequence[str]) -> Iterator[Rows]:
        try:
            batch_rows = checkpoint_read.BATCH_ROWS if bounds is None else bounds.check(data)
        except CorruptLog as broken:
            raise checkpoint_read.corrupt(name, str(broken)) from broken
        unfolded_bytes = 0
        for rows in checkpoint_read.parquet_rows(data, name, wanted=wanted, batch_rows=batch_rows):
            unfolded_bytes += rows.unfolded_bytes
            if bounds is not None and unfolded_bytes > bounds.unfolded_bytes:
                raise checkpoint_read.corrupt(name, f"its rows have {unfolded_bytes:,} bytes")
            yield rows

    sidecars: list[Sidecar] = []
    for file in files:
        data = _get(store, file.path)
        if file.path.endswith(".json"):
            if bounds is not None and len(data) > bounds.unfolded_bytes:
                raise checkpoint_read.corrupt(file.path, f"it has {len(data):,} bytes")
            rows = Rows()
            checkpoint_read.read_json(rows, data, file.path)
            _check_version(rows, file)
            sidecars += rows.sidecars
            yield rows
            continue
        for rows in in_parquet(data, file.path, wanted):
            _check_version(rows, file)
            sidecars += rows.sidecars
            yield rows
        del data
    about_files = [name for name in wanted if name in ("add", "remove")]
    for sidecar in sidecars:
        name = sidecar_name(store.uri, sidecar)
        yield from in_parquet(_get(store, name), name, about_files)


def _check_version(rows: Rows, file: LogFile) -> None:
    """Refuse a checkpoint whose content states another version than its name."""
    said = rows.checkpoint_metadata
    if said is not None and said.version != file.version:
        raise checkpoint_read.corrupt(file.path, f"it says that it is of version {said.version}")


def sidecar_name(root: str, sidecar: Sidecar) -> str:
    """Return the name of a sidecar, relative to the table; refuse one outside the log."""
    path = unquote(sidecar.path)
    if is_absolute_path(path) or "/" in path:
        _, found, name = path.rpartition(f"{paths.SIDECAR_DIR.rpartition('/')[2]}/")
        if not found or "/" in name:
            raise CorruptLog(
                "a checkpoint names a sidecar outside of the log",
                cause=f"{sidecar.path} in {root}",
                path=sidecar.path,
            )
        path = name
    return paths.sidecar(path)


def _get(store: LogSource, name: str) -> bytes:
    try:
        return store.get(name)
    except ObjectNotFound as gone:
        raise vanished(name) from gone


def _small_rows(store: LogSource, file: LogFile, rows: Rows, wanted: Sequence[str]) -> None:
    if file.path.endswith(".json"):
        checkpoint_read.read_json(rows, _get(store, file.path), file.path)
        rows.adds, rows.removes = [], []
        return
    if file.size_bytes <= _WHOLE_BELOW_BYTES:
        data = _get(store, file.path)
        checkpoint_read.read_parquet(rows, data, file.path, wanted=wanted)
        return
    try:
        pieces, groups = _fetch_columns(store, file, wanted)
    except ObjectNotFound as gone:
        raise vanished(file.path) from gone
    except CorruptLog as broken:
        raise checkpoint_read.corrupt(file.path, str(broken)) from broken
    sparse = parquet.SparseFile(file.size_bytes, pieces)
    checkpoint_read.read_parquet(rows, sparse, file.path, wanted=wanted, row_groups=groups)


def _fetch_columns(
    store: LogSource, file: LogFile, wanted: Sequence[str]
) -> tuple[list[tuple[int, bytes]], list[int]]:
    """Fetch a Parquet file's footer and the wanted columns; return them and their row groups."""
    size = file.size_bytes
    start, tail = fetch_footer(store, file.path, size)
    known = parquet.read_footer(tail, size)
    groups = parquet.row_groups_with(known, wanted)
    pieces = [(start, tail)]
    for span in parquet.ranges(known, wanted, groups):
        if span.start >= start:
            continue
        length = min(span.end, start) - span.start
        pieces.append((span.start, store.get_range(file.path, span.start, length)))
    return pieces, groups


def fetch_footer(store: LogSource, path: str, size_bytes: int) -> tuple[int, bytes]:
    """Fetch a Parquet file's end with its whole footer; return its start position and bytes."""
    start = max(0, size_bytes - parquet.FOOTER_GUESS_BYTES)
    tail = store.get_range(path, start, size_bytes - start)
    footer = parquet.footer_range(tail, size_bytes)
    if footer.start < start:
        return footer.start, store.get_range(path, footer.start, start - footer.start) + tail
    return start, tail
