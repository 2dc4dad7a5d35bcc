"""Computes digests of objects, for both engines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from lakeferry.engine import HASHED
from lakeferry.engines.object_copy import Gone, Hands
from lakeferry.storage import Store

BATCH_OBJECTS = 1_024


def hashed(
    hands: Hands,
    store: Store,
    batches: Iterable[pa.RecordBatch],
    ended: Callable[[int, int | None], None] = lambda *_: None,
) -> Iterator[pa.RecordBatch]:
    """Yield objects with their sha3-256, some at a time.

    ``ended`` is called with the size of each object that was read, from any thread.
    """

    def act(row: dict[str, Any]) -> tuple[str, int | None, bytes | None]:
        name: str = row["name"]
        try:
            size, digest = hands.fingerprint(store, name, row["size"], hashlib.sha3_256)
        except Gone:
            ended(row["size"] or 0, None)
            return name, row["size"], None
        ended(size, size)
        return name, size, digest

    found = hands.each(act, _rows(batches))
    while some := list(islice(found, BATCH_OBJECTS)):
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*some, strict=True), HASHED, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=HASHED)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for start in range(0, len(batch), BATCH_OBJECTS):
            yield from batch.slice(start, BATCH_OBJECTS).to_pylist()
