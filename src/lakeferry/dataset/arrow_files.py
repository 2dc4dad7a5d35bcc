"""The file system from which Arrow reads a version's data files.

A file's path here is its URI. So one file system serves the table's own folder, other buckets
and other clouds. Arrow reads local files itself. From other files our
:class:`~lakeferry.storage.Store` fetches only the ranges that Arrow asks for, and finds
credentials in the usual way.

Three kinds of files are changed before Arrow sees them:

* with column mapping, a file gets a new footer with the names that users see
  (:mod:`lakeferry.log.column_mapping`);
* with ``hides_floats``, a file gets a new footer without statistics of floats: Arrow takes them
  for bounds of all values, but they don't include NaN;
* a file with a deletion vector, whose path here ends in ``#`` and the vector's id, is rewritten
  without the deleted rows when it is opened: in memory if it is small, else in a temporary file
  that is deleted when the file is closed.

Unchanged local files don't use this file system: Arrow opens them itself (:func:`source_of`).

Arrow calls these methods from its own threads and waits for the result. So each method does its
reads in the calling thread: waiting for another thread of Arrow could cause a deadlock. When the
interpreter ends, abandoned scans may still make calls; Python would never return from such a
call, and Arrow would wait for it. So we wait for the last call first (:class:`_Guests`).
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from lakeferry.errors import MissingFile, ObjectNotFound
from lakeferry.log import roaring
from lakeferry.log.column_mapping import served_footer
from lakeferry.log.deletion_vectors import DeletionVector
from lakeferry.log.schema import Struct
from lakeferry.storage import Store, StoreConfig, open_config
from lakeferry.storage.uris import container_and_name, local_path, relative_name
from lakeferry.table.data_files import RangedFile, check_own_vector, deleted_rows
from lakeferry.table.live_files import uri_of
from lakeferry.table.load import fetch_footer

VECTOR_MARK = "#"
"""Separates a file's URI from the id of its vector; our URIs never contain it."""
_IN_MEMORY_BYTES = 16 * 1024 * 1024
"""Files with deleted rows are rewritten in memory up to this size."""
_BATCH_ROWS = 128 * 1024
_QUIET_S = 0.1
_LONGEST_CALL_S = 30.0
_LOCAL = pyarrow.fs.LocalFileSystem()


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The files of a version, and the changes to make before Arrow sees them.

    ``sizes`` are by URI, ``vectors`` by the path of the file in this file system. ``table`` and
    ``mode`` describe column mapping, if the table has it. If ``wanted`` is given, files with
    vectors contain only those columns. With ``hides_floats``, statistics of floats are hidden
    from Arrow.
    """

    config: StoreConfig
    sizes: Mapping[str, int]
    vectors: Mapping[str, DeletionVector]
    table: Struct
    mode: str | None = None
    wanted: frozenset[str] | None = None
    hides_floats: bool = False

    @property
    def has_stored_footers(self) -> bool:
        """Whether files without vectors keep their stored footers."""
        return self.mode is None and not self.hides_floats


class _Guests:
    """Counts Arrow's threads in our code, so that the interpreter can wait for them at exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._last_seen = -_QUIET_S
        self._is_closed = False

    def __enter__(self) -> None:
        with self._lock:
            self._last_seen = time.monotonic()
            if self._is_closed:
                raise OSError("the interpreter is ending")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._last_seen = time.monotonic()
            self._inside -= 1

    def close(self) -> None:
        """Reject new calls, and wait until there have been none for a moment."""
        with self._lock:
            self._is_closed = True
        deadline = time.monotonic() + _LONGEST_CALL_S
        while time.monotonic() < deadline:
            with self._lock:
                if not self._inside and time.monotonic() - self._last_seen >= _QUIET_S:
                    return
            time.sleep(_QUIET_S / 10)


_guests = _Guests()
atexit.register(_guests.close)


class _GuestFile(RangedFile):
    """A file that Arrow's threads read."""

    def read(self, size: int = -1) -> bytes:
        """Read bytes; those that aren't in memory are fetched in one request."""
        with _guests:
            return super().read(size)


def is_arrows_own(path: str, files: DataFiles) -> bool:
    """Return True if Arrow opens the file itself: it is local and needs no changes."""
    return files.has_stored_footers and path.startswith("file:") and path not in files.vectors


def source_of(
    path: str, files: DataFiles, system: pyarrow.fs.FileSystem
) -> tuple[str, pyarrow.fs.FileSystem]:
    """Return the path and the file system with which Arrow opens a path of ``files``."""
    if is_arrows_own(path, files):
        # Few of a million names need decoding.
        return local_path(path) if "%" in path else path.removeprefix("file://"), _LOCAL
    return path, system


class TableFiles(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    """Serves :class:`DataFiles` to Arrow, read-only."""

    def __init__(self, files: DataFiles) -> None:
        """Store the files; nothing is opened yet."""
        self.files = files
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the constructor's arguments; stores are reopened in the other process."""
        return (TableFiles, (self.files,))

    def __eq__(self, other: object) -> bool:
        """Return True if both serve the same files."""
        return isinstance(other, TableFiles) and self.files == other.files

    __hash__ = object.__hash__

    def get_type_name(self) -> str:
        """Return the name of this kind of file system."""
        return "lakeferry"

    def normalize_path(self, path: str) -> str:
        """Return URIs unchanged."""
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[pyarrow.fs.FileInfo]:
        """Return whether files exist; a file's final size is known only when it is open."""
        kinds = pyarrow.fs.FileType
        return [
            pyarrow.fs.FileInfo(
                path, kinds.File if self._uri(path) in self.files.sizes else kinds.NotFound
            )
            for path in paths
        ]

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open a data file, without its deleted rows if it has any."""
        with _guests:
            vector = self.files.vectors.get(path)
            uri = self._uri(path)
            return self._open(uri) if vector is None else self._without_deleted_rows(uri, vector)

    open_input_stream = open_input_file

    def _read_only(self, *_: object, **__: object) -> NoReturn:
        raise OSError("the files of a table are read here and nothing else")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _read_only
    delete_root_dir_contents = delete_file = move = copy_file = _read_only
    open_output_stream = open_append_stream = _read_only

    @staticmethod
    def _uri(path: str) -> str:
        return path.partition(VECTOR_MARK)[0]

    def _find(self, uri: str) -> tuple[Store, str]:
        """Return the store of a URI, and the object's name there."""
        own = self.files.config
        config, name = own, relative_name(own.uri, uri)
        if name is None:
            # What the table's catalog issues is only for the table's own place.
            root, name = container_and_name(uri)
            config = StoreConfig(root, own.options)
        with self._lock:
            if config.uri not in self._stores:
                self._stores[config.uri] = open_config(config)
            return self._stores[config.uri], name

    def _open(self, uri: str) -> pa.NativeFile:
        with _missing_is_said(uri):
            if self.files.has_stored_footers and uri.startswith("file:"):
                return pa.OSFile(local_path(uri))
        store, name = self._find(uri)
        size = self.files.sizes[uri]

        def fetch(start: int, length: int) -> bytes:
            with _missing_is_said(uri):
                return store.get_range(name, start, length)

        if self.files.has_stored_footers:
            return pa.PythonFile(_GuestFile(fetch, size), mode="r")
        with _missing_is_said(uri):
            _, tail = fetch_footer(store, name, size)
        start, footer = served_footer(
            tail,
            size,
            self.files.table,
            self.files.mode,
            without_float_statistics=self.files.hides_floats,
        )
        return pa.PythonFile(_GuestFile(fetch, start, footer), mode="r")

    def _without_deleted_rows(self, uri: str, vector: DeletionVector) -> pa.NativeFile:
        deleted = deleted_rows(vector, self._fetch)
        if self.files.sizes[uri] <= _IN_MEMORY_BYTES:
            sink = pa.BufferOutputStream()
            self._copy_rows(uri, deleted, sink)
            return pa.BufferReader(sink.getvalue())
        with tempfile.NamedTemporaryFile(prefix="lakeferry-", suffix=".parquet") as file:
            self._copy_rows(uri, deleted, file)
            file.flush()
            # A mapped file stays readable after its name is deleted.
            return pa.memory_map(file.name)

    def _copy_rows(self, uri: str, deleted: roaring.RowIndexes, sink: Any) -> None:
        with (
            self._open(uri) as source,
            pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit="us") as file,
        ):
            wanted = self.files.wanted
            names = [name for name in file.schema_arrow.names if wanted is None or name in wanted]
            # A file needs a column to have rows.
            names = names or file.schema_arrow.names[:1]
            schema = pa.schema([file.schema_arrow.field(name) for name in names])
            at = 0
            # Statistics would save nothing, as the rows are in memory; for floats they mislead.
            with pq.ParquetWriter(sink, schema, write_statistics=False) as writer:
                for batch in file.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
                    kept = pc.invert(deleted.flags(at, batch.num_rows))
                    writer.write_batch(batch.select(names).filter(kept))
                    at += batch.num_rows
        check_own_vector(deleted, at, uri)

    def _fetch(self, path: str, start: int, length: int) -> bytes:
        """Return a range of the object at a path of the log."""
        uri = uri_of(self.files.config.uri, path)
        store, name = self._find(uri)
        with _missing_is_said(uri):
            return store.get_range(name, start, length)


@contextmanager
def _missing_is_said(uri: str) -> Iterator[None]:
    """Replace the error for a missing file of the table with one that names it."""
    try:
        yield
    except (FileNotFoundError, ObjectNotFound) as missing:
        raise missing_file(uri) from missing


def missing_file(uri: str) -> MissingFile:
    """Return the error for a missing file of the table."""
    return MissingFile(
        f"{uri} isn't there",
        cause="the log names it, but there is no such object",
        remedy="read a newer version of the table; VACUUM may have deleted the file",
        uri=uri,
    )


def missing_here(paths: Iterable[str], files: DataFiles) -> Iterator[str]:
    """Yield the files that Arrow would open itself and that are missing."""
    for path in paths:
        if is_arrows_own(path, files) and not os.path.exists(source_of(path, files, _LOCAL)[0]):
            yield path
