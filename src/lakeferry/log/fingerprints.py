"""Hashes of many values, so that equal ones are found in little memory.

A million paths take 100 MB, and as much again while equal ones are looked for; their hashes take
8 MB. Python objects exist for one bounded block of values at a time. Hashes are those of this
process: other processes have others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

_AT_ONCE = 16_384


def of_texts(texts: pa.Array) -> pa.Array:
    """Return the hash of each text."""
    return pa.concat_arrays([pa.array([], pa.int64()), *_hashed(texts)])


def of_rows(batch: pa.RecordBatch) -> pa.Array:
    """Return the hash of each row of texts and numbers."""
    return pa.concat_arrays([pa.array([], pa.int64()), *_hashed_rows(batch)])


def repeated(hashes: Sequence[pa.Array]) -> pa.Array:
    """Return the hashes that occur more than once; nearly always there are none."""
    whole = pa.chunked_array(hashes, pa.int64())
    if pc.count_distinct(whole).as_py() == len(whole):
        return pa.array([], pa.int64())
    counted = pc.value_counts(whole)
    return counted.field("values").filter(pc.greater(counted.field("counts"), _ONE))


_ONE = pa.scalar(1, pa.int64())


def _hashed(texts: pa.Array) -> Iterator[pa.Array]:
    for start in range(0, len(texts), _AT_ONCE):
        some = texts.slice(start, _AT_ONCE).to_pylist()
        yield pa.array(map(hash, some), pa.int64())


def _hashed_rows(batch: pa.RecordBatch) -> Iterator[pa.Array]:
    for start in range(0, len(batch), _AT_ONCE):
        columns = [column.to_pylist() for column in batch.slice(start, _AT_ONCE).columns]
        yield pa.array(map(hash, zip(*columns, strict=True)), pa.int64())
