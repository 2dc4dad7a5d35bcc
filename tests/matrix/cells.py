"""What a run of the matrix found with one Spark: a cell for each thing that was tried, as JSON.

The page (``docs/compatibility.md``) is written from these files, so a run of one line of Spark
replaces its column and no other.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lakeferry.errors import LakeferryError

ENGINE = "`--engine spark`"
INSTALL_LOCKED = "`install`, reader-writer"
INSTALL = "`install`, writer-only"
STOCK_WITH_OPTION = "stock with the option, writer-only"
ENTRY_OF_3_3 = "stock with the option, writer-only, with the entry that Delta Lake 3.3 can parse"
BOUNDED = (ENGINE, INSTALL, STOCK_WITH_OPTION, ENTRY_OF_3_3)
"""The groups that every run of the tests tries with the oldest Spark."""

SOMETHING_BROKEN = 3
"""The suite's exit code if it ran to its end, but found a defect."""

RESULTS = Path(__file__).with_name("results")

_CODE = re.compile(r"\bDELTA_[A-Z][A-Z0-9_]+\b")
_WITHOUT_A_CODE = re.compile(r'Unrecognized field "\w+"')
"""Refusals of Delta Lake that have no code of their own."""
_MOST_SHOWN = 160


class Outcome(Enum):
    """What became of a caller."""

    WORKS = "works"
    FROZEN = "frozen"
    """It reads the frozen copy, and nothing says so."""
    REFUSED = "refused"
    BROKEN = "broken"
    """An internal error, wrong rows, or a write to the old place: a defect."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing that was tried, and what came of it."""

    group: str
    what: str
    outcome: Outcome
    detail: str = ""
    """The code or the message of a refusal or of a defect."""


@dataclass(frozen=True, slots=True)
class MatrixRun:
    """All cells of one Spark, and the versions that they were found with."""

    spark: str
    delta: str | None
    python: str
    pyarrow: str
    day: str
    cells: tuple[Cell, ...]
    reads: tuple[str, ...] = ()
    """The features for readers that its Delta Lake knows; it refuses the others."""
    writes: tuple[str, ...] = ()
    """The features that it knows when it writes."""

    @property
    def broken(self) -> tuple[Cell, ...]:
        """The cells that are defects."""
        return tuple(cell for cell in self.cells if cell.outcome is Outcome.BROKEN)

    def write(self, file: Path) -> None:
        """Write the run as JSON, one line for each cell."""
        cells = [
            {"group": each.group, "what": each.what, "outcome": each.outcome.value}
            | ({"detail": each.detail} if each.detail else {})
            for each in self.cells
        ]
        document = {
            "spark": self.spark,
            "delta": self.delta,
            "python": self.python,
            "pyarrow": self.pyarrow,
            "day": self.day,
            "reads": self.reads,
            "writes": self.writes,
        }
        lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in document.items()]
        rows = ",\n".join(f"  {json.dumps(cell)}" for cell in cells)
        text = "\n".join(["{", *lines, ' "cells": [', rows, " ]", "}"])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def read_run(file: Path) -> MatrixRun:
    """Read a run from its file."""
    found = json.loads(file.read_text())
    cells = tuple(
        Cell(cell["group"], cell["what"], Outcome(cell["outcome"]), cell.get("detail", ""))
        for cell in found.pop("cells")
    )
    reads, writes = (tuple(found.pop(name, ())) for name in ("reads", "writes"))
    return MatrixRun(**found, cells=cells, reads=reads, writes=writes)


def read_runs(folder: Path = RESULTS) -> list[MatrixRun]:
    """Read all runs that are kept, the oldest Spark first."""
    runs = [read_run(file) for file in folder.glob("*.json")]
    return sorted(runs, key=lambda run: [int(part) for part in run.spark.split(".")])


def refusal(failed: Exception) -> tuple[Outcome, str]:
    """Return the outcome of a call that raised an error: a refusal with its code, or a defect."""
    if isinstance(failed, LakeferryError) and failed.code != LakeferryError.code:
        return Outcome.REFUSED, failed.code
    text = str(failed)
    found = _CODE.search(text) or _WITHOUT_A_CODE.search(text)
    if found is not None:
        return Outcome.REFUSED, found.group()
    first = (text.strip().splitlines() or [""])[0]
    return Outcome.BROKEN, f"{type(failed).__name__}: {first}"[:_MOST_SHOWN]
