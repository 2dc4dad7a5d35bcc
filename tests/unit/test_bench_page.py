"""The page of all ratios: what is run again is replaced, everything else stays."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give the module that writes the page, as the benchmarks import it."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("support.page")
    for name in [name for name in sys.modules if name.partition(".")[0] == "support"]:
        del sys.modules[name]


def test_a_bar_is_replaced_by_the_bar_of_the_same_name(page: Any, tmp_path: Path) -> None:
    bar = page.Bar
    page.keep(
        "copy", "How fast.", [bar("a", 1.0, 2.0, "s", 1.0), bar("b", 1, 1, "", 1.0)], tmp_path
    )
    page.keep("replay", "How slow.", [bar("c", 3.0, 2.0, "s", 1.0)], tmp_path)
    page.keep("copy", "How fast.", [bar("a", 4.0, 2.0, "s", 1.5)], tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.index("## [copy](copy.py)") < text.index("## [replay](replay.py)")
    rows = [
        line.split(" | ") for line in text.splitlines() if line.startswith(("| a", "| b", "| c"))
    ]
    assert [row[:6] for row in rows] == [
        ["| a", "4.000 s", "2.000 s", "2.000", "1.50", "**missed**"],
        ["| b", "1", "1", "1.000", "1.00", "met"],
        ["| c", "3.000 s", "2.000 s", "1.500", "1.00", "**missed**"],
    ]


def test_the_page_in_the_repository_shows_what_was_kept(page: Any) -> None:
    assert (BENCH / "README.md").read_text() == page.page()
