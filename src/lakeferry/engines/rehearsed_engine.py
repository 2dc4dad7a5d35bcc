"""The engine of a dry run: it copies nothing, and answers as if it had.

Logs that were written in the dry run are in memory, at the places that ``open_place`` opens;
this process reads them itself. Everything else is read by the real engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import (
    NOTHING_COPIED,
    CheckPlan,
    CheckTotals,
    CopyForecaster,
    CopyPlan,
    CopyTotals,
    Engine,
    LogCopyPlan,
    NoForecasts,
    Observer,
    Replayed,
    ReplayPlan,
    unobserved,
)
from lakeferry.engines import local_copy, objects_to_copy
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.log_file_copy import rewritten_log_file
from lakeferry.log.segment import Segment
from lakeferry.storage import Store, StoreConfig
from lakeferry.storage.aliases import AliasStore
from lakeferry.storage.overlay import Overlay, ReferredObject

OpenPlace = Callable[[StoreConfig], Overlay]


class RehearsedEngine(LocalEngine):
    """Records copies instead of making them; ``real`` returns the engine that reads existing data.

    ``copies`` are those of the whole dry run: all engines of one dry run share it.
    """

    def __init__(
        self,
        real: Callable[[], Engine],
        open_place: OpenPlace,
        copies: list[CopyPlan],
        forecasts: CopyForecaster,
    ) -> None:
        """Store the arguments: an engine that isn't needed isn't started."""
        super().__init__(open_place, parallel=1)
        self._real = real
        self._place = open_place
        self._copies = copies
        self._forecasts = forecasts

    def replay(self, plan: ReplayPlan, observer: Observer = unobserved) -> Replayed:
        """Replay a log that has changed in memory; pass others to the real engine."""
        if self._is_changed(plan.store, plan.segment):
            return super().replay(plan, observer)
        return self._real().replay(plan, observer)

    def copy(self, plan: CopyPlan, observer: Observer = unobserved) -> CopyTotals:  # noqa: ARG002
        """Record what would be copied; it is counted only if somebody asks for a forecast."""
        self._copies.append(plan)
        return replace(NOTHING_COPIED, foreseen=partial(self._foreseen, plan))

    def _foreseen(self, plan: CopyPlan) -> Mapping[str, Any]:
        source, target = self._place(plan.source), self._place(plan.target)
        files = wanted = self._to_copy(plan)
        if plan.resumed:
            files = objects_to_copy.without_present(files, target)
        counts = _counts_of(files)
        told = dict(self._forecasts.of_files(source, target, files))
        if plan.compares != "nothing":
            compared = _counts_of(wanted if plan.compares == "all" else files)
            told |= self._forecasts.of_comparison((source, target), *compared)
        return {"files": counts[0], "bytes": counts[1]} | told

    def _to_copy(self, plan: CopyPlan) -> pa.Table:
        place: Store = self._place(plan.source)
        if plan.source.aliases:
            place = AliasStore(place, dict(plan.source.aliases))
        return objects_to_copy.to_copy(local_copy.references_of(plan, place))

    def copy_log(
        self,
        plan: LogCopyPlan,
        observer: Observer = unobserved,  # noqa: ARG002
    ) -> tuple[int, ...]:
        """Give log files their new names; their bytes are copied only when they are read."""
        source, target = self._place(plan.source), self._place(plan.target)
        for file in plan.files:
            change = None
            if plan.rewrite is not None:
                change = partial(
                    rewritten_log_file,
                    path=file.path,
                    rewrite=plan.rewrite,
                    sidecars=plan.sidecars,
                )
            copied = ReferredObject(source, file.path, file.size_bytes, change)
            target.refer(file.new_path, copied)
        return tuple(file.size_bytes for file in plan.files)

    def check(self, plan: CheckPlan, observer: Observer = unobserved) -> CheckTotals:
        """Assume that copied files are complete; check everything else."""
        if any(self._is_of(copy, plan) for copy in self._copies) or plan.there is not None:
            return CheckTotals(0, 0, (), 0, (), 0)
        if self._is_changed(plan.source, plan.segment) or self._copied_to(plan.target):
            return super().check(plan, observer)
        return self._real().check(plan, observer)

    def objects_at(self, place: StoreConfig) -> Iterator[pa.Table]:
        """Yield the objects that would have been copied there, and then the existing ones."""
        return chain(
            (self._names(copy) for copy in self._copied_to(place)), super().objects_at(place)
        )

    def _names(self, plan: CopyPlan) -> pa.Table:
        wanted = self._to_copy(plan)
        return wanted.select(objects_to_copy.LISTED.names).cast(objects_to_copy.LISTED)

    def _copied_to(self, place: StoreConfig) -> list[CopyPlan]:
        return [copy for copy in self._copies if copy.target.uri == place.uri]

    def _is_of(self, copy: CopyPlan, plan: CheckPlan) -> bool:
        """Return True if a check is for files that a copy has brought."""
        copied = (copy.source.uri, copy.target.uri, copy.rename)
        return copied == (plan.source.uri, plan.target.uri, plan.rename)

    def _is_changed(self, store: StoreConfig, segment: Segment) -> bool:
        """Return True if a part of a log differs from the one that the real engine would read."""
        place = self._place(store)
        return any(place.is_changed(file.path) for file in segment.files)


def _counts_of(files: pa.Table) -> tuple[int, int]:
    """Return the number of files, and their bytes."""
    return files.num_rows, pc.sum(files["size"]).as_py() or 0


def rehearsed(
    choose: Callable[..., Engine],
    open_place: OpenPlace,
    forecasts: CopyForecaster | None = None,
) -> Callable[..., Engine]:
    """Return a function that chooses the engines of one dry run, given the one for real engines."""
    copies: list[CopyPlan] = []

    def chosen(objects: int, size_bytes: int, urgent: bool = False) -> Engine:
        real = partial(choose, objects, size_bytes, urgent)
        return RehearsedEngine(real, open_place, copies, forecasts or NoForecasts())

    return chosen
