"""How far a copy is, told within large objects too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakeferry.engines import object_copy
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.object_copy import Hands
from lakeferry.storage import open_store


def test_a_large_object_is_told_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", 10)
    monkeypatch.setattr(object_copy, "CHUNK_BYTES", 10)
    source, target = open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))
    sizes = {"large": 35, "small": 5}
    for name, size in sizes.items():
        source.put(name, os.urandom(size))
    told: list[tuple[int, int]] = []
    progress = CopyProgress(lambda size_bytes, count: told.append((size_bytes, count)))
    with Hands(1, progress.moved) as hands:
        for name, size in sizes.items():
            progress.ended(size, hands.copy(source, name, target, name, size))
    assert told == [(0, 0), (10, 0), (20, 0), (30, 0), (35, 0), (35, 1), (40, 2)]
    assert target.get("large") == source.get("large")
