"""Reading parts of Parquet files, and footers that may be broken."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log import parquet, thrift
from lakeferry.log.parquet import Range, SparseFile


def written(table: pa.Table, row_group_size: int | None = None) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_size, compression="snappy")
    return sink.getvalue()


RANDOM = random.Random(1)
COLUMN = [RANDOM.randbytes(40).hex() for _ in range(5_000)]
TABLE = pa.table(
    {
        "small": pa.array([{"x": 1}, *[None] * 4_999], pa.struct([("x", pa.int64())])),
        "large": COLUMN,
        "last": pa.array(
            [None] * 4_999 + [{"y": ["a"]}], pa.struct([("y", pa.list_(pa.string()))])
        ),
    }
)
DATA = written(TABLE, 1_000)


def test_the_footer_says_where_columns_are() -> None:
    footer = parquet.read_footer(DATA, len(DATA))
    assert footer.num_rows == 5_000
    assert [len(chunks) for chunks in footer.row_groups] == [3] * 5
    theirs = pq.ParquetFile(io.BytesIO(DATA)).metadata
    for index, chunks in enumerate(footer.row_groups):
        for at, chunk in enumerate(chunks):
            column = theirs.row_group(index).column(at)
            assert ".".join(chunk.path) == column.path_in_schema
            assert chunk.span.length == column.total_compressed_size
            assert (chunk.num_values, chunk.codec) == (column.num_values, column.compression)
            assert chunk.null_count == column.statistics.null_count


def test_only_row_groups_with_a_value_are_read() -> None:
    footer = parquet.footer_of(io.BytesIO(DATA))
    assert parquet.row_groups_with(footer, ["small"]) == [0]
    assert parquet.row_groups_with(footer, ["last"]) == [4]
    assert parquet.row_groups_with(footer, ["small", "last"]) == [0, 4]
    assert parquet.row_groups_with(footer, ["large"]) == [0, 1, 2, 3, 4]
    assert parquet.row_groups_with(footer, ["other"]) == []


def test_a_column_is_read_from_its_ranges_alone() -> None:
    footer = parquet.read_footer(DATA, len(DATA))
    (span,) = parquet.ranges(footer, ["small"], [0])
    # Arrow looks at the end of a file in one piece, whatever its footer's size is.
    end = Range(len(DATA) - parquet.FOOTER_GUESS_BYTES, parquet.FOOTER_GUESS_BYTES)
    pieces = [(part.start, DATA[part.start : part.end]) for part in (span, end)]
    assert sum(len(data) for _, data in pieces) < len(DATA) / 3
    sparse = SparseFile(len(DATA), pieces)
    found = pq.ParquetFile(sparse).read_row_groups([0], columns=["small"])
    assert found["small"][0].as_py() == {"x": 1}


def test_near_ranges_are_fetched_as_one() -> None:
    footer = parquet.read_footer(DATA, len(DATA))
    (span,) = parquet.ranges(footer, ["small", "last"], [0, 4])
    assert span.length < len(DATA)
    assert Range(3, 4).end == 7


def test_bytes_that_were_not_fetched_are_an_error() -> None:
    sparse = SparseFile(100, [(0, b"a" * 10), (10, b"b" * 10), (90, b"c" * 10)])
    assert sparse.read(15) == b"a" * 10 + b"b" * 5
    assert sparse.tell() == 15
    assert sparse.seek(-5, io.SEEK_END) == 95
    assert sparse.read() == b"c" * 5
    assert sparse.read() == b""
    sparse.seek(15)
    with pytest.raises(OSError, match="not fetched"):
        sparse.read(10)


@pytest.mark.parametrize("rows", [0, 1])
def test_files_with_hardly_any_rows(rows: int) -> None:
    data = written(TABLE.slice(0, rows))
    footer = parquet.read_footer(data, len(data))
    assert footer.num_rows == rows
    assert all(span.end <= len(data) for span in parquet.ranges(footer, ["small"], [0]))


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"x" * 100, DATA[:-1], DATA[:-8] + b"\xff\xff\xff\x7fPAR1"]
)
def test_files_that_don_t_end_as_parquet(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        parquet.read_footer(data, len(data))


def test_a_footer_that_isn_t_all_there() -> None:
    with pytest.raises(CorruptLog, match="is incomplete"):
        parquet.read_footer(DATA[-20:], len(DATA))


def test_any_damage_to_a_footer_is_found_or_harmless() -> None:
    where = parquet.footer_range(DATA, len(DATA))
    for seed in range(3_000):
        chance = random.Random(seed)
        data = bytearray(DATA)
        for _ in range(chance.choice((1, 1, 5))):
            data[chance.randrange(where.start, len(data))] = chance.randrange(256)
        try:
            footer = parquet.read_footer(bytes(data), len(data))
            groups = parquet.row_groups_with(footer, ["small"])
            spans = parquet.ranges(footer, ["small"], groups)
        except CorruptLog:
            continue
        assert all(0 <= span.start <= span.end <= len(data) for span in spans)


# --- What a peer's file may unfold to ---------------------------------------------------


def test_bounds_let_pass_what_is_within_them() -> None:
    weight = sum(
        column.total_uncompressed_size
        for group in (pq.ParquetFile(io.BytesIO(DATA)).metadata.row_group(n) for n in range(5))
        for column in (group.column(at) for at in range(group.num_columns))
    )
    assert parquet.FileBounds(5_000, weight).check(DATA) > 0
    with pytest.raises(CorruptLog, match="5,000 rows"):
        parquet.FileBounds(4_999, weight).check(DATA)
    with pytest.raises(CorruptLog, match="bytes"):
        parquet.FileBounds(5_000, weight // 2).check(DATA)


def packed(table: pa.Table, *, dictionary: bool) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=dictionary,
        dictionary_pagesize_limit=64 << 20,
        data_page_size=64 << 20,
    )
    return sink.getvalue()


def test_a_page_that_unfolds_to_much_is_refused_unread() -> None:
    data = packed(pa.table({"x": ["0" * (32 << 20)]}), dictionary=False)
    assert len(data) < 64 << 10
    with pytest.raises(CorruptLog, match="bytes"):
        parquet.FileBounds(10, 16 << 20).check(data)


def test_a_large_value_in_every_row_is_read_by_few_rows() -> None:
    everywhere = pa.array([0] * 1_000, pa.int32())
    large = pa.DictionaryArray.from_arrays(everywhere, pa.array(["0" * (8 << 20)]))
    data = packed(pa.table({"x": large}), dictionary=True)
    assert len(data) < 64 << 10
    assert parquet.FileBounds(1_000, 16 << 20).check(data) <= 8


def test_many_values_in_one_row_are_refused() -> None:
    data = packed(pa.table({"x": [[None] * 100_000]}), dictionary=True)
    assert len(data) < 64 << 10
    with pytest.raises(CorruptLog, match="100,000 values"):
        parquet.FileBounds(10, 16 << 20).check(data)


def test_pages_that_are_broken_are_refused_and_nothing_else_happens() -> None:
    start = parquet.read_footer(DATA, len(DATA)).row_groups[0][0].span.start
    for byte in (0x00, 0x15, 0x7F, 0xFF):
        broken = bytearray(DATA)
        broken[start : start + 12] = bytes([byte] * 12)
        with pytest.raises(CorruptLog):
            parquet.FileBounds(5_000, 1 << 30).check(bytes(broken))


def test_a_field_that_is_there_twice_is_refused() -> None:
    # Field 2 as 400 million, and then as 10: of two readers each may take another.
    once, again = b"\x25\x80\x84\xaf\xfd\x02", b"\x06\x04\x14"
    assert thrift.decode_struct(once + b"\x00") == {2: 399_892_736}
    with pytest.raises(CorruptLog, match="twice"):
        thrift.decode_struct(once + again + b"\x00")


def test_a_footer_that_would_take_long_to_read_is_refused() -> None:
    data = bytes(20 << 20) + (17 << 20).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(CorruptLog, match="footer"):
        parquet.FileBounds(10, 1 << 30).check(data)
