"""Hashes stand for values: equal ones have equal hashes, and others are found again."""

from __future__ import annotations

import pyarrow as pa

from lakeferry.log import fingerprints

TEXTS = pa.array([f"part-{number}" for number in range(40_000)])


def test_hashes_do_not_depend_on_how_values_are_divided() -> None:
    whole = fingerprints.of_texts(TEXTS)
    parts = [fingerprints.of_texts(TEXTS.slice(start, 9_999)) for start in range(0, 40_000, 9_999)]
    assert pa.concat_arrays(parts).equals(whole)
    assert whole.type == pa.int64()
    assert len(fingerprints.of_texts(TEXTS.slice(0, 0))) == 0


def test_rows_differ_if_any_of_their_values_does() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"path": ["a", "a", "a", "b"], "size": pa.array([1, 1, None, 1], pa.int64())}
    )
    first, second, third, fourth = fingerprints.of_rows(rows).to_pylist()
    assert first == second
    assert len({first, third, fourth}) == 3


def test_only_repeated_hashes_are_returned() -> None:
    hashes = fingerprints.of_texts(TEXTS)
    assert len(fingerprints.repeated([hashes])) == 0
    assert len(fingerprints.repeated([])) == 0
    again = fingerprints.repeated([hashes, hashes.slice(7, 2)])
    assert sorted(again.to_pylist()) == sorted(hashes.slice(7, 2).to_pylist())
