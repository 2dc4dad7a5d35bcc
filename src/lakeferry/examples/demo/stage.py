"""Prints the demo's progress."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from lakeferry.cli.output import Output
from lakeferry.cli.render import Cell


class DemoStage:
    """Tells people what happens, step by step; programs get the document at the end."""

    def __init__(self, output: Output) -> None:
        """Begin before the first step."""
        self.output = output
        self._steps = 0

    def step(self, title: str) -> None:
        """Begin a step of the story."""
        self._steps += 1
        if not self.output.json:
            self.output.text("\n")
            self.output.page().line(f"{self._steps}. {title}", style="bold")

    def command(self, *words: str | Path) -> None:
        """Show a command line as a user would type it."""
        self.line(f"$ lakeferry {shlex.join(map(str, words))}")

    def show(self, answer: Callable[[Output], None]) -> None:
        """Show what a command answers, as that command shows it."""
        if not self.output.json:
            answer(self.output)

    def line(self, words: str) -> None:
        """Tell a sentence."""
        if not self.output.json:
            self.output.page().line(words)

    def note(self, words: str) -> None:
        """Tell what a command warns of."""
        self.line(f"note: {words}")

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Tell names with their values."""
        if not self.output.json:
            self.output.page().facts(pairs)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Tell rows under column names."""
        if not self.output.json:
            self.output.page().table("", columns, rows)
