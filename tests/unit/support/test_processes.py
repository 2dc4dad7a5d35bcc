"""Processes that work at once: what they find, and whom they were forked from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import processes

NAME = "LAKEFERRY_TEST_PROCESSES"


def found(name: str) -> tuple[str | None, bool, set[str]]:
    """A variable, whether delta-rs was imported, and the threads of whoever forked this process."""
    tasks = Path(f"/proc/{os.getppid()}/task")
    threads = {file.read_text().strip() for file in tasks.glob("*/comm")}
    return os.environ.get(name), "deltalake" in sys.modules, threads


def test_each_has_the_environment_of_now_and_the_modules_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value in ("first", "second"):
        monkeypatch.setenv(NAME, value)
        with processes.pool(2) as pool:
            told, has_imported, threads = pool.submit(found, NAME).result()
        assert told == value
        assert has_imported
        # A thread would be missing in the forks. The allocator's own knows of them.
        assert len(threads - {"jemalloc_bg_thd"}) == 1, threads


def end(code: int) -> None:
    os._exit(code)


def test_it_is_known_how_one_ended() -> None:
    ended = processes.process(end, 9)
    ended.start()
    ended.join()
    assert ended.exitcode == 9
