"""Counts what a command reads from files on local disk, in every store that it opens."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from lakeferry.storage import ObjectInfo
from lakeferry.storage.local_reading import LocalReader
from lakeferry.storage.local_store import LocalStore


@dataclass
class FileReads:
    """What was read of each file, by its URI."""

    spans: defaultdict[str, list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """The bytes that each read of a file returned."""
    lists: Counter[str] = field(default_factory=Counter)
    """How often each place and prefix was listed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, uri: str, start: int, length: int) -> None:
        """Add one read."""
        with self._lock:
            self.spans[uri].append((start, start + length))

    def listed(self, uri: str) -> None:
        """Add one listing."""
        with self._lock:
            self.lists[uri] += 1

    def again(self) -> dict[str, int]:
        """Return how many reads of each log file brought bytes that were known."""
        found: Counter[str] = Counter()
        for uri, spans in self.spans.items():
            known: list[tuple[int, int]] = []
            for start, end in spans:
                if any(start < other and before < end for before, other in known):
                    found[uri] += 1
                known.append((start, end))
        return {
            uri: count
            for uri, count in found.items()
            if "/_delta_log/" in uri and "/_lakeferry/" not in uri
        }

    @property
    def log_lists(self) -> int:
        """How often logs were listed."""
        return sum(count for uri, count in self.lists.items() if uri.endswith("/_delta_log/"))


def count_reads(monkeypatch: pytest.MonkeyPatch) -> FileReads:
    """Count from now on what is read from local disk."""
    reads = FileReads()

    class Counting(LocalStore):
        def list(self, prefix: str, **bounds: Any) -> Iterator[ObjectInfo]:
            reads.listed(f"{self.uri}/{prefix}")
            return super().list(prefix, **bounds)

    read_open = LocalReader.read_open

    def counted(self: LocalReader, fd: int, path: str, start: int, length: int | None) -> bytes:
        data = read_open(self, fd, path, start, length)
        reads.read(f"{self.errors.uri}/{path}", start, len(data))
        return data

    monkeypatch.setattr("lakeferry.storage.local_store.LocalStore", Counting)
    monkeypatch.setattr(LocalReader, "read_open", counted)
    return reads
