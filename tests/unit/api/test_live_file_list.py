from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest

import lakeferry
from lakeferry.api.live_file_list import LiveFiles
from lakeferry.errors import PackageMissing
from lakeferry.table.live_files import FILES
from tests.support.history import Append, DeleteRows, History, Layout
from tests.unit.cli.program import make

EVIL = "<script>alert(1)</script>"


def files_of(place: Path) -> LiveFiles:
    layout = Layout(partitioned=True, deletion_vectors="u")
    past = History(layout).then(Append(30), DeleteRows(2))
    return lakeferry.Table(str(make(past, place))).files()


def rows(count: int, name: str = "f") -> pa.RecordBatch:
    files = [
        {"path": f"s3://b/t/{name}{n}", "size": 1, "partition_values": [("p", name)]}
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(files, FILES)


class Batches:
    """Batches that are made when they are asked for; counts them."""

    def __init__(self, count: int, size: int) -> None:
        self.made = 0
        self._count, self._size = count, size

    def __call__(self) -> Iterator[pa.RecordBatch]:
        for _ in range(self._count):
            self.made += 1
            yield rows(self._size)


def test_it_behaves_as_the_reader_of_its_batches(tmp_path: Path) -> None:
    files = files_of(tmp_path / "t")
    assert files.schema == FILES
    assert files.read_next_batch().num_rows == 30
    assert files.read_all().num_rows == 0
    assert [batch.num_rows for batch in files_of(tmp_path / "u")] == [30]
    assert next(files_of(tmp_path / "v")).num_rows == 30
    with files_of(tmp_path / "w") as reader:
        assert reader.read_all().num_rows == 30
    with pytest.raises(AttributeError):
        _ = files._nothing


def test_other_libraries_read_its_stream(tmp_path: Path) -> None:
    assert pa.table(files_of(tmp_path / "a")).num_rows == 30
    found = files_of(tmp_path / "b")  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("select count(*) from found").fetchone() == (30,)
    frame = polars.from_arrow(files_of(tmp_path / "c"))
    assert len(frame) == 30


def test_looking_at_it_takes_nothing_from_the_stream(tmp_path: Path) -> None:
    files = files_of(tmp_path / "t")
    before = files._repr_html_()
    assert repr(files).startswith(f"Live files of version 2 of {tmp_path.as_uri()}/t: 30 files, ")
    assert files.read_all().num_rows == 30
    assert files._repr_html_() == before
    assert before.count("<tr>") == 11
    assert "the first 10 of 30 files" in before


def test_looking_at_a_million_files_makes_one_batch() -> None:
    read = Batches(1_000, 1_000)
    files = LiveFiles("s3://b/t", 7, 1_000_000, 1_000_000, read)
    shown = files._repr_html_()
    assert read.made == 1
    assert "1,000,000 files" in shown
    assert len(shown) < 5_000
    assert len(repr(files)) < 2_000
    assert (read.made, next(files).num_rows, read.made) == (1, 1_000, 1)
    assert next(files).num_rows == 1_000


def test_all_files_are_converted_whatever_was_read_before(tmp_path: Path) -> None:
    files = files_of(tmp_path / "t")
    files.read_next_batch()
    assert files.to_arrow().num_rows == 30
    frame = files.to_polars()
    assert frame.columns == FILES.names
    assert len(frame) == len(files.to_polars()) == 30


def test_a_package_that_is_missing_is_named_with_its_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    files = files_of(tmp_path / "t")
    for name, convert in (("pandas", files.to_pandas), ("polars", files.to_polars)):
        with pytest.raises(PackageMissing) as refused:
            convert()
        assert refused.value.code == "package_missing"
        assert refused.value.remedy == f"pip install '{name}'"


def test_names_and_values_of_files_are_escaped() -> None:
    files = LiveFiles(f"s3://b/{EVIL}", 1, 1, 1, lambda: iter([rows(1, EVIL)]))
    shown = files._repr_html_()
    assert "<script" not in shown
    assert "p=&lt;script&gt;" in shown


def test_no_files_are_shown_as_none() -> None:
    files = LiveFiles("s3://b/t", 1, 0, 0, lambda: iter([]))
    assert "0 files" in files._repr_html_()
    assert repr(files) == "Live files of version 1 of s3://b/t: 0 files, 0 bytes"
    assert files.read_all().num_rows == 0


def test_what_is_read_for_it_is_released_with_it() -> None:
    """An engine that reads the files is closed when nobody holds them any more."""
    closed = []

    def read() -> Iterator[pa.RecordBatch]:
        try:
            yield rows(1)
            yield rows(1)
        finally:
            closed.append(True)

    files = LiveFiles("s3://b/t", 1, 2, 2, read)
    gone = weakref.ref(files)
    gc.disable()
    try:
        next(files)
        del files
        assert gone() is None
        assert closed == [True]
    finally:
        gc.enable()
