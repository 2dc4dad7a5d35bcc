"""Compares two data files: their bytes and vectors, or their row counts.

Both engines use this for each row of a :class:`~lakeferry.engine.LookPlan`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

from lakeferry.engine import LOOKED, Look
from lakeferry.engines.object_copy import CopyPlaces, Gone, Hands
from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log import parquet
from lakeferry.log.deletion_vectors import relative_path, z85_decode
from lakeferry.table import load

BATCH_PAIRS = 256
# A vector in a file has its size before it and a checksum after it.
_VECTOR_SIZE_BYTES = 4

Pair = Mapping[str, Any]
ComparedFiles = dict[str, str | int | None]


class Looker:
    """Reads pairs of files of two tables, several at a time, in order."""

    def __init__(
        self,
        hands: Hands,
        a: CopyPlaces,
        b: CopyPlaces,
        what: Look,
        ended: Callable[[int, int | None], None] = lambda *_: None,
    ) -> None:
        """Read files of ``a`` and ``b``.

        ``ended`` is called for each file of which a digest is known, from any thread.
        """
        self._ended = ended
        self._hands = hands
        self._places = {"a": a, "b": b}
        self._what = what

    def each(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results for pairs, in batches of :data:`lakeferry.engine.LOOKED`."""
        act = self._digests if self._what == "digest" else self._rows
        found = self._hands.each(act, _pairs(batches))
        while rows := list(islice(found, BATCH_PAIRS)):
            yield pa.RecordBatch.from_pylist(rows, schema=LOOKED[self._what])

    def _digests(self, pair: Pair) -> ComparedFiles:
        found: ComparedFiles = {}
        for side, places in self._places.items():
            found[f"vector_digest_{side}"] = self._vector_digest(places, pair, side)
            if side == "b" and self._is_one_object(pair):
                found["digest_b"] = found["digest_a"]
                self._ended(pair["size_b"] or 0, None)
            else:
                found[f"digest_{side}"] = self._digest(places, pair, side)
        return found

    def _is_one_object(self, pair: Pair) -> bool:
        uris = {places.uri(pair[f"path_{side}"]) for side, places in self._places.items()}
        return len(uris) == 1

    def _digest(self, places: CopyPlaces, pair: Pair, side: str) -> str | None:
        store, name = places.find(pair[f"path_{side}"])
        size_bytes = pair[f"size_{side}"]
        try:
            size, digest = self._hands.fingerprint(store, name, size_bytes, hashlib.sha256)
        except Gone:
            self._ended(size_bytes or 0, None)
            return None
        self._ended(size, size)
        return digest.hex()

    def _vector_digest(self, places: CopyPlaces, pair: Pair, side: str) -> str | None:
        """Return the SHA-256 of a deletion vector, or ``None`` if there is none."""
        kind, text = pair[f"vector_kind_{side}"], pair[f"vector_{side}"]
        if kind is None:
            return None
        size = pair[f"vector_size_{side}"]
        if kind == "i":
            return hashlib.sha256(z85_decode(text)[:size]).hexdigest()
        store, name = places.find(relative_path(text) if kind == "u" else text)
        start = (pair[f"vector_offset_{side}"] or 0) + _VECTOR_SIZE_BYTES
        try:
            return hashlib.sha256(store.get_range(name, start, size)).hexdigest()
        except ObjectNotFound:
            return None

    def _rows(self, pair: Pair) -> ComparedFiles:
        return {
            f"rows_{side}": _count(places, pair[f"path_{side}"], pair[f"size_{side}"])
            for side, places in self._places.items()
        }


def _count(places: CopyPlaces, path: str | None, size_bytes: int | None) -> int | None:
    """Return the number of rows in a Parquet file's footer; ``None`` if it can't be read."""
    if path is None or size_bytes is None:
        return 0
    store, name = places.find(path)
    try:
        _, tail = load.fetch_footer(store, name, size_bytes)
        return parquet.read_footer(tail, size_bytes).num_rows
    except (ObjectNotFound, CorruptLog):
        return None


def _pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[Pair]:
    for batch in batches:
        for start in range(0, len(batch), BATCH_PAIRS):
            yield from batch.slice(start, BATCH_PAIRS).to_pylist()
