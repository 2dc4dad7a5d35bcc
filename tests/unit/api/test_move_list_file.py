"""Lists of moves: what cells mean, and what refuses the whole list."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.api.move_list import Wanted, read_moves
from lakeferry.errors import InvalidInput


def read(*lines: str, **defaults: object) -> tuple[Wanted, ...]:
    return read_moves([f"{line}\n" for line in lines], "moves.csv", defaults)


def test_cells_are_options_and_empty_ones_the_defaults() -> None:
    wanted = read(
        "Source, target ,mode,data,dialect,location,rule,to_existing,unverified",
        "s3a://b/x/,sql:a.b.c,writer-only,reference,"
        '"rfc, delta-spark",s3://b/y,"a:OPTIMIZE,MERGE;:VACUUM",,',
        "s3://b/z,s3://b/w,,,,,,Yes,1",
        mode="reader-writer",
        data="copy",
        rules=("b:X",),
    )
    assert wanted == (
        Wanted(
            2,
            "s3://b/x",
            "sql:a.b.c",
            {
                "mode": "writer-only",
                "data": "reference",
                "dialects": ("rfc", "delta-spark"),
                "location": "s3://b/y",
                "rules": ("a:OPTIMIZE,MERGE", ":VACUUM"),
            },
        ),
        Wanted(
            3,
            "s3://b/z",
            "s3://b/w",
            {
                "mode": "reader-writer",
                "data": "copy",
                "rules": ("b:X",),
                "to_existing": True,
                "unverified": True,
            },
        ),
    )


def test_paths_are_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (wanted,) = read("target,source", "new,./old")
    assert wanted == Wanted(2, f"{tmp_path.as_uri()}/old", f"{tmp_path.as_uri()}/new")


def test_rows_may_be_short_and_lines_empty() -> None:
    assert [each.line for each in read("source,target,mode", "/a,/b", "", ",,", "/c,/d,")] == [2, 5]


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        ([], [1]),
        (["source"], [1]),
        (["source,target,target"], [1]),
        (["source,target,mood"], [1]),
        (["source,target", "/a,/b", "/a,/c", "/d,/b"], [3, 4]),
        (["source,target", "s3://b/a,/b", "s3a://b/a/,/c"], [3]),
        (["source,target,location", "/a,sql:a.b.c,/x", "/b,/x,"], [3]),
        (["source,target", "/a", ",/b", "/c,/d,/e"], [2, 3, 4]),
        (["source,target", "ftp://a/b,/b", "/c,sql:d"], [2, 3]),
        (["source,target,mode", "/a,/b,slow"], [2]),
        (["source,target,data", "/a,/b,existing"], [2]),
        (["source,target,dialect", "/a,/b,latin"], [2]),
        (["source,target,rule", "/a,/b,OPTIMIZE"], [2]),
        (["source,target,to_existing", "/a,/b,perhaps"], [2]),
        (["source,target,unverified", "/a,/b,true"], [2]),
        (["source,target", '/a,"/b'], [2]),
    ],
)
def test_lines_that_make_no_sense_are_named(lines: list[str], numbers: list[int]) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(*lines)
    assert refused.value.fields["lines"] == numbers
    assert all(f"line {number}: " in str(refused.value) for number in numbers)


def test_a_message_names_the_first_of_many_lines() -> None:
    with pytest.raises(InvalidInput) as refused:
        read("source,target", *["/a"] * 50)
    assert "and 40 more" in str(refused.value)
    assert refused.value.fields["lines"] == list(range(2, 52))


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "moves.csv"
    path.write_bytes(b"source,target\n/a,/b\n/c,\xff\n")
    with path.open(encoding="utf-8") as lines, pytest.raises(InvalidInput, match="line"):
        read_moves(lines, "moves.csv")
