"""Copies the objects that a plan names, and compares them with the source's if the plan says so.

To compare, each object is read at both ends, after it was copied, and its SHA-256 is computed. So
what is compared is what the target will give its readers, whoever has copied it. Small objects
are copied many at a time where the target is faster that way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import LISTED_FINDINGS, Compared, CopyPlan, CopyTotals, Volume
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.object_copy import Copied, CopyPlaces, Gone, Hands
from lakeferry.engines.objects_to_copy import LISTED_MISSING, WANTED
from lakeferry.storage import Store

COPYING = "copying data"
COMPARING = "copying and comparing data"
_TIMES_MOVED = 3
"""An object that is compared is copied, and then read at both ends."""
_BATCH_ROWS = 1_024
_TOGETHER_OBJECTS = 256
_TOGETHER_BYTES = 8 * 1024 * 1024

_Row = tuple[str, str, int | None]
CopyFinding = Literal["equal", "unequal", "replaced", "unread"]
"""What a comparison has found; the fields of :class:`~lakeferry.engine.Compared` explain them."""


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """What became of one object: its path and size in the log, and what was copied or compared.

    ``copied`` is ``None`` if nothing was copied: the object is missing, or, if there is a
    ``finding``, it was at the target already.
    """

    path: str
    stated_bytes: int | None
    copied: Copied | None
    finding: CopyFinding | None = None
    compared_bytes: int = 0


def title_of(plan: CopyPlan) -> str:
    """Return the name of the activity for the observer."""
    return COPYING if plan.compares == "nothing" else COMPARING


def amount_of(plan: CopyPlan, objects: int, size_bytes: int) -> Volume:
    """Return how many bytes are moved in all, to copy and to compare objects."""
    return Volume(size_bytes * (1 if plan.compares == "nothing" else _TIMES_MOVED), objects)


def volume_of(plan: CopyPlan, table: pa.Table) -> Volume:
    """Return the same for rows of :data:`~lakeferry.engines.objects_to_copy.WANTED`."""
    return amount_of(plan, table.num_rows, pc.sum(table["size"]).as_py() or 0)


class ObjectCopier:
    """Copies objects of ``places`` to ``target``, several at a time."""

    def __init__(self, hands: Hands, places: CopyPlaces, target: Store, plan: CopyPlan) -> None:
        """Use ``hands`` for the work; ``plan`` says what is compared."""
        self._hands = hands
        self._places = places
        self._target = target
        self._compares = plan.compares
        self._replaces = plan.replaces

    def each(
        self, batches: Iterable[pa.RecordBatch], progress: CopyProgress
    ) -> Iterator[CopyOutcome]:
        """Copy all rows of :data:`WANTED`, and yield and report the result of each, in order."""
        rows = _rows(batches)
        groups: Iterable[list[_Row]] = ([row] for row in rows)
        if self._target.writes_together and self._hands.parallel > 1:
            groups = _groups(rows, min(_TOGETHER_BYTES, self._hands.small_bytes))
        for outcome in chain.from_iterable(self._hands.each(self._several, groups)):
            copied = outcome.copied
            progress.ended(outcome.stated_bytes or 0, copied.size_bytes if copied else None)
            yield outcome

    def _several(self, rows: Sequence[_Row]) -> list[CopyOutcome]:
        there: dict[str, CopyOutcome] = {}
        if self._compares == "all":
            found = ((row[1], self._at_target(row)) for row in rows)
            there = {name: outcome for name, outcome in found if outcome is not None}
        absent = [row for row in rows if row[1] not in there]
        done = self._together(absent) if len(absent) > 1 else {}
        return [there.get(row[1]) or self._copied(row, done) for row in rows]

    def _at_target(self, row: _Row) -> CopyOutcome | None:
        """Compare an object that is at the target; ``None`` if it isn't, or has another size."""
        path, new_name, size = row
        copy = self._hands.digest_of(self._target, new_name, size)
        if copy is None:
            return None
        store, name = self._places.find(path)
        original = self._hands.digest_of(store, name, size)
        if original is None:
            return CopyOutcome(path, size, None, "unread")
        if original == copy:
            return CopyOutcome(path, size, None, "equal", copy[0])
        if not self._replaces:
            if original[0] != copy[0]:
                return None
            return CopyOutcome(path, size, None, "unequal", copy[0])
        again = self._copied(row, {})
        return replace(again, finding="replaced") if again.finding == "equal" else again

    def _together(self, rows: Sequence[_Row]) -> Mapping[str, Copied]:
        table = self._places.table
        found = [(new, size or 0, self._places.find(path)) for path, new, size in rows]
        here = {new: name for new, _, (store, name) in found if store is table}
        sizes = {new: size for new, size, _ in found if new in here}
        return self._hands.copy_together(table, self._target, here, sizes)

    def _copied(self, row: _Row, done: Mapping[str, Copied]) -> CopyOutcome:
        path, new_name, size = row
        store, name = self._places.find(path)
        copied = done.get(new_name)
        if copied is None:
            try:
                copied = self._hands.copy(store, name, self._target, new_name, size)
            except Gone:
                return CopyOutcome(path, size, None)
        if self._compares == "nothing":
            return CopyOutcome(path, size, copied)
        original = self._hands.digest_of(store, name, size)
        if original is None:
            return CopyOutcome(path, size, copied, "unread")
        is_equal = self._hands.digest_of(self._target, new_name, size) == original
        return CopyOutcome(path, size, copied, "equal" if is_equal else "unequal", original[0])


def _groups(rows: Iterator[_Row], most_bytes: int) -> Iterator[list[_Row]]:
    """Put small objects together that follow each other; others stay alone."""
    group: list[_Row] = []
    size_bytes = 0
    for row in rows:
        is_small = row[2] is not None and 0 <= row[2] <= most_bytes // 8
        if group and (
            not is_small
            or len(group) == _TOGETHER_OBJECTS
            or size_bytes + (row[2] or 0) > most_bytes
        ):
            yield group
            group, size_bytes = [], 0
        if is_small:
            group.append(row)
            size_bytes += row[2] or 0
        else:
            yield [row]
    if group:
        yield group


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
    for batch in batches:
        for start in range(0, len(batch), _BATCH_ROWS):
            some = batch.slice(start, _BATCH_ROWS)
            columns = (some.column(name).to_pylist() for name in WANTED.names)
            yield from zip(*columns, strict=True)


@dataclass(slots=True)
class CopyTally:
    """Results so far; the first missing objects are named, and the first of each finding."""

    objects: int = 0
    size_bytes: int = 0
    by_store_bytes: int = 0
    skipped: int = 0
    missing_count: int = 0
    missing: list[str] = field(default_factory=list)
    compared_objects: int = 0
    compared_bytes: int = 0
    counts: dict[CopyFinding, int] = field(default_factory=dict)
    paths: dict[CopyFinding, list[str]] = field(default_factory=dict)

    def add(self, outcome: CopyOutcome) -> None:
        """Add the result of one object."""
        copied, finding = outcome.copied, outcome.finding
        if copied is not None:
            self.objects += 1
            self.size_bytes += copied.size_bytes
            self.by_store_bytes += copied.size_bytes if copied.by_store else 0
        elif finding is not None:
            self.skipped += 1
        else:
            self.missing_count += 1
            if len(self.missing) < LISTED_MISSING:
                self.missing.append(outcome.path)
        if finding is None:
            return
        if finding != "unread":
            self.compared_objects += 1
            self.compared_bytes += outcome.compared_bytes
        if finding != "equal":
            self.counts[finding] = self.counts.get(finding, 0) + 1
            named = self.paths.setdefault(finding, [])
            if len(named) < LISTED_FINDINGS:
                named.append(outcome.path)

    @property
    def compared(self) -> Compared:
        """What was read at both ends."""

        def told(finding: CopyFinding) -> tuple[int, tuple[str, ...]]:
            return self.counts.get(finding, 0), tuple(self.paths.get(finding, ()))

        return Compared(
            self.compared_objects,
            self.compared_bytes,
            *told("unequal"),
            *told("replaced"),
            *told("unread"),
        )

    def totals(self, skipped: int, renamed: int) -> CopyTotals:
        """Return the totals; ``skipped`` objects weren't looked at."""
        return CopyTotals(
            self.objects,
            self.size_bytes,
            skipped + self.skipped,
            self.missing_count,
            tuple(self.missing),
            renamed,
            self.by_store_bytes,
            self.compared,
        )
