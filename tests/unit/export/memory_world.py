"""A table and the place of its export, both in memory, and what a test asks of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.export.exporter import Export, ExportContext, Exported
from lakeferry.storage import Store, StoreConfig
from lakeferry.table import DeltaLog
from tests.support.clock import DEFAULT_START_MS
from tests.support.history import Append, Checkpoint, Delete, History
from tests.support.stores import DictStore, FaultyStore

SOURCE, TARGET = "memory://lake/t", "memory://partner/t"
HINT = "_delta_log/_last_checkpoint"


def commit(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def checkpoint(version: int) -> str:
    return f"_delta_log/{version:020d}.checkpoint.parquet"


@dataclass
class World:
    """A source and a place to export to, each in memory."""

    source: DictStore
    target: DictStore = field(default_factory=lambda: DictStore(uri=TARGET))
    faulty: FaultyStore | None = None
    warned: list[str] = field(default_factory=list)
    run_id: str = "run"
    now_ms: int = DEFAULT_START_MS
    compares: bool = False

    def open(self, uri: str) -> Store:
        known: dict[str, Store] = {SOURCE: self.source, TARGET: self.faulty or self.target}
        return known[uri]

    def work(self) -> ExportContext:
        def open_config(config: StoreConfig) -> Store:
            return self.open(config.uri)

        engine = LocalEngine(open_config, parallel=1)
        return ExportContext(
            lambda *_: engine,
            self.open,
            warn=self.warned.append,
            compares=self.compares,
            clock=lambda: self.now_ms,
            new_id=lambda: self.run_id,
        )

    def run(self, **options: Any) -> Exported:
        return Export(self.work(), self.source, to=TARGET, **options).export()

    def log(self) -> dict[str, bytes]:
        return {
            name: data for name, data in self.target.objects.items() if "/_lakeferry/" not in name
        }

    def replace(self, history: History) -> None:
        """Let the source be as another history has it."""
        self.source = history.store(SOURCE)


def world(history: History) -> World:
    return World(history.store(SOURCE))


def names(world: World) -> set[str]:
    return set(world.log())


def paths_of(data: bytes) -> list[str]:
    found = (json.loads(line) for line in data.splitlines())
    return [value["path"] for line in found for value in line.values() if "path" in value]


def live(store: Store, version: int | None = None) -> list[str]:
    return sorted(DeltaLog(store).snapshot(version).files["path"].to_pylist())


PLAIN = History().then(Append(2), Append(1), Delete(1))
LONG = PLAIN.then(Checkpoint(), Append(1), Append(1))
