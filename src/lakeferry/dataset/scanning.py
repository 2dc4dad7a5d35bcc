"""The Arrow dataset itself: scans that read only the columns they need and skip deleted rows.

Every reader of a :class:`TableDataset` gets the right rows: its fragments are files without
deleted rows. A file with a deletion vector must be rewritten before Arrow says which of its
columns it needs, so all columns are rewritten. Scans that begin in Python name their columns
earlier: pyarrow's own methods, DuckDB and Polars call :meth:`TableDataset.scanner`, which uses
fragments with only those columns.

Statistics of floats say nothing about NaN, and Arrow draws wrong conclusions from them. So
fragments of a table with floats hide them from Arrow; local files are then read through Python,
which is slower. Scans that don't filter by floats use fragments that show the statistics.

pyarrow starts a scan without the interpreter's lock, except in ``Scanner.to_reader``. There it
holds the lock while it waits for Arrow's threads, which may wait for the lock in our file
system: a deadlock. DuckDB calls ``to_reader``, so DuckDB gets a scanner with another
``to_reader`` for a table (:class:`_Scanner`). For a union, or a scanner that a user passes to
it, DuckDB gets pyarrow's.

If a local file that Arrow opens itself is missing, Arrow says only that it couldn't be opened.
The dataset's own methods then raise an error that names the table's missing file. A scanner is
pyarrow's own class, so files are checked before the first scanner is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from lakeferry.dataset.arrow_files import (
    DataFiles,
    TableFiles,
    is_arrows_own,
    missing_file,
    missing_here,
    source_of,
)
from lakeferry.log.arrow_versions import CASTS_STRUCTS_OF_ANY_ORDER, too_old_error
from lakeferry.log.schema import has_floats, unreadable_error, unreadable_type
from lakeferry.storage.uris import join, local_path

_FORMAT = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
_BY_POSITION = "FieldPath("

Partitions = Mapping[str, pc.Expression | None]
"""What is known about each file's partition, by its path in :class:`DataFiles`."""


class _Scanner:
    """A scanner of pyarrow's whose reader doesn't block Arrow's threads from running Python.

    It is no subclass: pyarrow makes scanners itself, and only of its own class.
    """

    def __init__(self, scanner: ds.Scanner) -> None:
        self._scanner = scanner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scanner, name)

    def to_reader(self) -> pa.RecordBatchReader:
        """Begin the scan without the interpreter's lock, as pyarrow's other methods do."""
        batches = self._explained(self._scanner.to_batches())
        return pa.RecordBatchReader.from_batches(self._scanner.projected_schema, batches)

    @staticmethod
    def _explained(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Replace Arrow's error for types that it is too old for."""
        try:
            yield from batches
        except pa.ArrowException as failed:
            if (too_old := too_old_error(failed)) is not None:
                raise too_old from failed
            raise


class _ScannerMethod:
    """The method that makes scanners; the result depends on the caller.

    Only DuckDB looks the method up on the class, and calls ``to_reader`` of the result. Others
    look it up on the dataset, and may pass the scanner to pyarrow, which accepts only its own
    class.
    """

    def __get__(
        self, dataset: TableDataset | None, owner: type[TableDataset]
    ) -> Callable[..., Any]:
        return TableDataset._scanner_for_duckdb if dataset is None else dataset._checked_scanner


def _fragments_of(
    files: DataFiles, partitions: Partitions, system: pyarrow.fs.FileSystem
) -> list[ds.Fragment]:
    return [
        _FORMAT.make_fragment(*source_of(path, files, system), expression)
        for path, expression in partitions.items()
    ]


@dataclass(frozen=True, slots=True)
class _Quick:
    """Fragments that show statistics of floats, for scans that don't filter by floats."""

    files: DataFiles
    fragments: Sequence[ds.Fragment]

    @staticmethod
    def of(files: DataFiles, partitions: Partitions) -> _Quick:
        shown = replace(files, hides_floats=False)
        system = pyarrow.fs.PyFileSystem(TableFiles(shown))
        return _Quick(shown, _fragments_of(shown, partitions, system))


class TableDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """One version of a table. Its content never changes."""

    # pyarrow's ``filter`` makes a copy without calling ``__init__``: it has no files, and scans as
    # any dataset does.
    _files: DataFiles | None = None
    _partitions: Partitions
    _fragments: Sequence[ds.Fragment]
    _quick: _Quick | None = None
    _is_checked = False

    def __init__(
        self,
        schema: pa.Schema,
        files: DataFiles,
        partitions: Partitions,
        fragments: Sequence[ds.Fragment] | None = None,
    ) -> None:
        """Make a fragment for each file, unless fragments are given; nothing is opened."""
        system = pyarrow.fs.PyFileSystem(TableFiles(files))
        if fragments is None:
            fragments = _fragments_of(files, partitions, system)
        super().__init__(fragments, schema, _FORMAT, system)
        self._files = files
        self._partitions = partitions
        self._fragments = fragments

    def __reduce__(self) -> Any:
        """Pickle the constructor's arguments, so that the copy is a ``TableDataset`` too."""
        if self._files is None:
            return super().__reduce__()
        return (TableDataset, (self.schema, self._files, self._partitions))

    def replace_schema(self, schema: pa.Schema) -> ds.Dataset:
        """Return the same rows with another schema, if they fit it."""
        replaced = super().replace_schema(schema)
        if self._files is None:
            return replaced
        # Fragments cache the footers of their files.
        return TableDataset(schema, self._files, self._partitions, self._fragments)

    scanner = _ScannerMethod()

    def _checked_scanner(
        self, columns: Any = None, filter: pc.Expression | None = None, **options: Any
    ) -> ds.Scanner:
        """Return a scanner, as pyarrow's datasets do, unless a file that it opens is missing."""
        self._check_there(filter)
        return self._make_scanner(columns, filter, **options)

    def _check_there(self, filter: pc.Expression | None) -> None:
        """Raise an error if the scan would open a missing local file; check all files once."""
        if self._is_checked or self._files is None:
            return
        gone = {*self._missing_here()}
        self._is_checked = not gone
        for fragment in self.get_fragments(filter=filter) if gone else ():
            if (uri := _uri_of(fragment)) in gone:
                raise missing_file(uri)

    def _missing_here(self) -> Iterator[str]:
        if self._files is not None:
            shown = replace(self._files, hides_floats=False)
            yield from missing_here(self._partitions, shown)

    def filter(self, expression: pc.Expression | None) -> ds.Dataset:
        """Return the rows that an expression lets through, as pyarrow's datasets do."""
        self._check_there(expression)
        return super().filter(expression)

    def sort_by(self, sorting: Any, **options: Any) -> ds.Dataset:
        """Read all rows and sort them, as pyarrow's datasets do."""
        with self._explained():
            return super().sort_by(sorting, **options)

    def join(self, *args: Any, **options: Any) -> ds.Dataset:
        """Read all rows and join them with others, as pyarrow's datasets do."""
        with self._explained():
            return super().join(*args, **options)

    def to_table(self, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:
        """Read all rows, as pyarrow's datasets do."""
        with self._explained():
            return self._make_scanner(columns, filter, **options).to_table()

    def to_batches(
        self, columns: Any = None, filter: Any = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Read all rows, batch by batch, as pyarrow's datasets do."""
        return self._batches(self._make_scanner(columns, filter, **options))

    def _batches(self, scanner: ds.Scanner) -> Iterator[pa.RecordBatch]:
        with self._explained():
            yield from scanner.to_batches()

    def head(
        self, num_rows: int, columns: Any = None, filter: Any = None, **options: Any
    ) -> pa.Table:
        """Read the first rows, as pyarrow's datasets do."""
        with self._explained():
            return self._make_scanner(columns, filter, **options).head(num_rows)

    def take(
        self, indices: Any, columns: Any = None, filter: Any = None, **options: Any
    ) -> pa.Table:
        """Read some rows by their position, as pyarrow's datasets do."""
        with self._explained():
            return self._make_scanner(columns, filter, **options).take(indices)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Replace Arrow's errors for a missing file, and for types that it is too old for."""
        try:
            yield
        except pa.ArrowException as failed:
            if (too_old := too_old_error(failed)) is not None:
                raise too_old from failed
            raise
        except FileNotFoundError as failed:
            gone = [*self._missing_here()]
            named = [uri for uri in gone if local_path(uri) in str(failed)]
            for uri in [*named, *gone][:1]:
                raise missing_file(uri) from failed
            raise

    def _make_scanner(
        self, columns: Any = None, filter: pc.Expression | None = None, **options: Any
    ) -> ds.Scanner:
        """Return a scanner, as pyarrow's datasets do."""
        return self._scanner_and_files(columns, filter, **options)[0]

    def _scanner_and_files(
        self, columns: Any = None, filter: pc.Expression | None = None, **options: Any
    ) -> tuple[ds.Scanner, DataFiles | None]:
        """Return a scanner and the settings with which its files are served."""
        files, fragments = self._files, getattr(self, "_fragments", ())
        if files is None:
            return super().scanner(columns=columns, filter=filter, **options), None
        self._check_readable(files, columns, filter)
        if files.hides_floats and not self._asks_about_floats(files, columns, filter):
            # The scan needs no statistics of floats, so files are opened in the fastest way.
            self._quick = self._quick or _Quick.of(files, self._partitions)
            files, fragments = self._quick.files, self._quick.fragments
        elif not files.vectors or columns is None:
            return super().scanner(columns=columns, filter=filter, **options), files
        system = pyarrow.fs.PyFileSystem(TableFiles(files))
        if files.vectors and columns is not None:
            wanted = frozenset(columns_asked_for(self.schema, columns, filter))
            system = pyarrow.fs.PyFileSystem(TableFiles(replace(files, wanted=wanted)))
            # Keep the other fragments, which have cached footers.
            fragments = [
                _FORMAT.make_fragment(fragment.path, system, fragment.partition_expression)
                if fragment.path in files.vectors
                else fragment
                for fragment in fragments
            ]
        narrow = ds.FileSystemDataset(fragments, self.schema, _FORMAT, system)
        return narrow.scanner(columns=columns, filter=filter, **options), files

    def _check_readable(self, files: DataFiles, columns: Any, filter: pc.Expression | None) -> None:
        """Raise an error if a scan asks for a column whose type can't be read."""
        found = {each.name: unreadable_type(each.type) for each in files.table.columns}
        unreadable = {name: kind for name, kind in found.items() if kind is not None}
        if not unreadable:
            return
        # A scan without columns counts rows.
        asked = (
            self.schema.names
            if columns is None
            else columns_asked_for(self.schema, columns, filter)
        )
        for name in asked:
            if name in unreadable:
                raise unreadable_error(
                    f"column {name!r}",
                    unreadable[name],
                    remedy="read other columns, or read the table with Spark: "
                    "lakeferry.spark.install(spark) lets Spark follow redirects",
                )

    def _asks_about_floats(
        self, files: DataFiles, columns: Any, filter: pc.Expression | None
    ) -> bool:
        """Return True if an expression of a scan refers to a column that has floats."""
        computed = list(columns.values()) if isinstance(columns, Mapping) else []
        if filter is None and not computed:
            return False
        projection: Any = columns if isinstance(columns, Mapping) else []
        asked = frozenset(columns_asked_for(self.schema, projection, filter))
        return any(each.name in asked and has_floats(each.type) for each in files.table.columns)

    def _scanner_for_duckdb(self, *args: Any, **options: Any) -> ds.Scanner | _Scanner:
        """Return a scanner for DuckDB, which may call its ``to_reader``."""
        self._check_there(options.get("filter"))
        scanner, files = self._scanner_and_files(*args, **options)
        if files is None or not all(is_arrows_own(path, files) for path in self._partitions):
            return _Scanner(scanner)
        if not CASTS_STRUCTS_OF_ANY_ORDER and any(map(pa.types.is_nested, self.schema.types)):
            return _Scanner(scanner)
        return scanner

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Return the number of rows that pass a filter."""
        with self._explained():
            return int(self._make_scanner([], filter, **options).count_rows())


def _uri_of(fragment: ds.Fragment) -> str:
    """Return the URI of a fragment's file, whether Arrow opens it itself or not."""
    path: str = fragment.path
    return path if ":" in path.partition("/")[0] else join("file:///", path.lstrip("/"))


def columns_asked_for(
    schema: pa.Schema, columns: Sequence[str] | Mapping[str, pc.Expression], filter: Any
) -> list[str]:
    """Return the columns of ``schema`` that a scan needs.

    Arrow doesn't say which fields an expression refers to, only whether a given set of fields is
    enough. So we find them by bisection.
    """
    named = columns.values() if isinstance(columns, Mapping) else ()
    if any(_BY_POSITION in str(expression) for expression in [*named, filter]):
        return list(schema.names)
    sure = [] if isinstance(columns, Mapping) else [n for n in schema.names if n in set(columns)]
    if filter is None and not isinstance(columns, Mapping):
        return sure

    def suffice(names: Sequence[str]) -> bool:
        empty = pa.schema([schema.field(name) for name in names]).empty_table()
        try:
            ds.Scanner.from_dataset(ds.InMemoryDataset(empty), columns=columns, filter=filter)
        except (pa.ArrowException, ValueError, KeyError):
            return False
        return True

    def needed(among: Sequence[str], given: Sequence[str]) -> list[str]:
        if not among or suffice(given):
            return []
        if len(among) == 1:
            return list(among)
        half = len(among) // 2
        first = needed(among[:half], [*given, *among[half:]])
        return first + needed(among[half:], [*given, *first])

    rest = [name for name in schema.names if name not in set(sure)]
    return sure + needed(rest, sure)
