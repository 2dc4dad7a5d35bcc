"""The Arrow dataset itself: scans that read only the columns they need and skip deleted rows.

:class:`TableDataset` is right to everybody: its fragments are those of files
without deleted rows, and whatever reads it through Arrow gets the same rows. A
file with a deletion vector has to be written anew before Arrow can say which of
its columns it wants, so all of them are. Scans that begin in Python say it
before: :meth:`TableDataset.scanner`, through which pyarrow's own methods, DuckDB
and Polars go, makes them from fragments that have those columns and no others.

Statistics of floats say nothing about NaN, and Arrow concludes too much from them. So the
fragments of a table with floats don't show them to Arrow, which takes a detour through
Python for local files. Scans that filter by no such column use fragments without it.

pyarrow starts a scan without the interpreter's lock, except in
``Scanner.to_reader``: there it waits for Arrow's threads with the lock held, and
they may be waiting for the lock, in our file system, for ever. DuckDB calls it. So
what DuckDB gets of a table is a scanner with another ``to_reader`` (:class:`_Scanner`).
Of a union, or of a scanner that is handed to it, it gets pyarrow's.

Where Arrow opens local files by itself, it says of one that is missing that it couldn't be
opened. The dataset's own methods say then which file of the table is missing. A scanner is
pyarrow's own, so that files are looked for before the first one is made.
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
from lakeferry.log.schema import has_floats, unreadable_type, unsupported
from lakeferry.storage.uris import join, local_path

_FORMAT = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
_BY_POSITION = "FieldPath("

Partitions = Mapping[str, pc.Expression | None]
"""What is known of the partition of each file, by its path in :class:`DataFiles`."""


class _Scanner:
    """A scanner of pyarrow's whose reader never keeps Arrow's threads from Python.

    It is no subclass: pyarrow makes scanners by itself, of its own class only.
    """

    def __init__(self, scanner: ds.Scanner) -> None:
        self._scanner = scanner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scanner, name)

    def to_reader(self) -> pa.RecordBatchReader:
        """Begin the scan, as every other method of pyarrow's does."""
        batches = self._scanner.to_batches()
        return pa.RecordBatchReader.from_batches(self._scanner.projected_schema, batches)


class _ScannerMethod:
    """The method that makes scanners, which depends on who asks.

    DuckDB, and nobody else, asks the class for it, and calls ``to_reader`` of what it
    gets. Others ask the dataset, and may hand a scanner to pyarrow, which takes no
    other class than its own.
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
    """Fragments that show statistics of floats, for scans that ask nothing about floats."""

    files: DataFiles
    fragments: Sequence[ds.Fragment]

    @staticmethod
    def of(files: DataFiles, partitions: Partitions) -> _Quick:
        shown = replace(files, hides_floats=False)
        system = pyarrow.fs.PyFileSystem(TableFiles(shown))
        return _Quick(shown, _fragments_of(shown, partitions, system))


class TableDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """One version of a table. What it holds never changes."""

    # What pyarrow filters is a copy that was never initialised: it has no files, and scans
    # as any dataset does.
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
        """Make a fragment of each file, unless they are there; nothing is opened."""
        system = pyarrow.fs.PyFileSystem(TableFiles(files))
        if fragments is None:
            fragments = _fragments_of(files, partitions, system)
        super().__init__(fragments, schema, _FORMAT, system)
        self._files = files
        self._partitions = partitions
        self._fragments = fragments

    def __reduce__(self) -> Any:
        """Travel as what it was made of, to be such a dataset there, too."""
        if self._files is None:
            return super().__reduce__()
        return (TableDataset, (self.schema, self._files, self._partitions))

    def replace_schema(self, schema: pa.Schema) -> ds.Dataset:
        """Return the same rows with another schema, if they can have that."""
        replaced = super().replace_schema(schema)
        if self._files is None:
            return replaced
        # Fragments remember the footers of their files.
        return TableDataset(schema, self._files, self._partitions, self._fragments)

    scanner = _ScannerMethod()

    def _checked_scanner(
        self, columns: Any = None, filter: pc.Expression | None = None, **options: Any
    ) -> ds.Scanner:
        """Return a scanner, as pyarrow's datasets do, unless a file that it opens is missing."""
        self._check_there(filter)
        return self._make_scanner(columns, filter, **options)

    def _check_there(self, filter: pc.Expression | None) -> None:
        """Refuse a scan that would open a local file which is missing; all are there once."""
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
        with self._missing_is_said():
            return super().sort_by(sorting, **options)

    def join(self, *args: Any, **options: Any) -> ds.Dataset:
        """Read all rows and join them with others, as pyarrow's datasets do."""
        with self._missing_is_said():
            return super().join(*args, **options)

    def to_table(self, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:
        """Read all rows, as pyarrow's datasets do."""
        with self._missing_is_said():
            return self._make_scanner(columns, filter, **options).to_table()

    def to_batches(
        self, columns: Any = None, filter: Any = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Read all rows, batch by batch, as pyarrow's datasets do."""
        return self._batches(self._make_scanner(columns, filter, **options))

    def _batches(self, scanner: ds.Scanner) -> Iterator[pa.RecordBatch]:
        with self._missing_is_said():
            yield from scanner.to_batches()

    def head(
        self, num_rows: int, columns: Any = None, filter: Any = None, **options: Any
    ) -> pa.Table:
        """Read the first rows, as pyarrow's datasets do."""
        with self._missing_is_said():
            return self._make_scanner(columns, filter, **options).head(num_rows)

    def take(
        self, indices: Any, columns: Any = None, filter: Any = None, **options: Any
    ) -> pa.Table:
        """Read some rows by their position, as pyarrow's datasets do."""
        with self._missing_is_said():
            return self._make_scanner(columns, filter, **options).take(indices)

    @contextmanager
    def _missing_is_said(self) -> Iterator[None]:
        """Where Arrow couldn't open a file of the table that isn't there, say which."""
        try:
            yield
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
        """Return a scanner, and how the files that it opens are served."""
        files, fragments = self._files, getattr(self, "_fragments", ())
        if files is None:
            return super().scanner(columns=columns, filter=filter, **options), None
        self._check_readable(files, columns, filter)
        if files.hides_floats and not self._asks_about_floats(files, columns, filter):
            # No statistics of floats are asked for: files are opened in the quickest way.
            self._quick = self._quick or _Quick.of(files, self._partitions)
            files, fragments = self._quick.files, self._quick.fragments
        elif not files.vectors or columns is None:
            return super().scanner(columns=columns, filter=filter, **options), files
        system = pyarrow.fs.PyFileSystem(TableFiles(files))
        if files.vectors and columns is not None:
            wanted = frozenset(columns_asked_for(self.schema, columns, filter))
            system = pyarrow.fs.PyFileSystem(TableFiles(replace(files, wanted=wanted)))
            # Other fragments stay, with the footers that they remember.
            fragments = [
                _FORMAT.make_fragment(fragment.path, system, fragment.partition_expression)
                if fragment.path in files.vectors
                else fragment
                for fragment in fragments
            ]
        narrow = ds.FileSystemDataset(fragments, self.schema, _FORMAT, system)
        return narrow.scanner(columns=columns, filter=filter, **options), files

    def _check_readable(self, files: DataFiles, columns: Any, filter: pc.Expression | None) -> None:
        """Refuse a scan that asks for a column whose type can't be read."""
        found = {each.name: unreadable_type(each.type) for each in files.table.columns}
        unreadable = {name: kind for name, kind in found.items() if kind is not None}
        if not unreadable:
            return
        # Scans of no columns at all count rows.
        asked = (
            self.schema.names
            if columns is None
            else columns_asked_for(self.schema, columns, filter)
        )
        for name in asked:
            if name in unreadable:
                raise unsupported(
                    f"column {name!r}",
                    unreadable[name],
                    remedy="read other columns, or read it with Spark: lakeferry.spark follows "
                    "redirects there",
                )

    def _asks_about_floats(
        self, files: DataFiles, columns: Any, filter: pc.Expression | None
    ) -> bool:
        """Tell whether an expression of a scan is about a column that has floats."""
        computed = list(columns.values()) if isinstance(columns, Mapping) else []
        if filter is None and not computed:
            return False
        projection: Any = columns if isinstance(columns, Mapping) else []
        asked = frozenset(columns_asked_for(self.schema, projection, filter))
        return any(each.name in asked and has_floats(each.type) for each in files.table.columns)

    def _scanner_for_duckdb(self, *args: Any, **options: Any) -> ds.Scanner | _Scanner:
        """Return a scanner whose ``to_reader`` can be called."""
        self._check_there(options.get("filter"))
        scanner, files = self._scanner_and_files(*args, **options)
        if files is not None and all(is_arrows_own(path, files) for path in self._partitions):
            return scanner
        return _Scanner(scanner)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Count the rows that a filter lets through."""
        with self._missing_is_said():
            return int(self._make_scanner([], filter, **options).count_rows())


def _uri_of(fragment: ds.Fragment) -> str:
    """Return the URI of a fragment's file, whoever opens it."""
    path: str = fragment.path
    return path if ":" in path.partition("/")[0] else join("file:///", path.lstrip("/"))


def columns_asked_for(
    schema: pa.Schema, columns: Sequence[str] | Mapping[str, pc.Expression], filter: Any
) -> list[str]:
    """Return the columns of ``schema`` without which a scan can't be made.

    Arrow doesn't say which fields an expression is about, but it says whether it
    can do with some of them: so they are searched for by halves.
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
