"""Draws tables on a terminal and plain lines in a pipe.

A plain page shortens nothing and draws nothing: facts are ``name: value``, a table is a line of
column names and then a line for each row, with tabs between columns, so that ``cut`` and ``awk``
can process it. Strings from a table are shown as plain text: they can't format a page or control
a terminal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, TextIO

from lakeferry.cli import terminal_drawing
from lakeferry.cli.screen import cells, longest_word, one_line, wrapped
from lakeferry.readable import counted as counted
from lakeferry.readable import moment as moment
from lakeferry.readable import size as size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Cell = str | int | None


def text(cell: Cell) -> str:
    """Return what a cell shows."""
    return "-" if cell is None else one_line(str(cell))


class Page(ABC):
    """The output of a command for people."""

    is_screen: ClassVar[bool]
    """Whether it is a terminal; a pipe gets the same columns whatever is in them."""

    @abstractmethod
    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Show names with their values."""

    @abstractmethod
    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Show rows under column names; a table without rows is left out."""

    @abstractmethod
    def line(self, words: str, *, style: str = "", indent: int = 0) -> None:
        """Show one line, ``indent`` cells from the left."""


def new_page(stream: TextIO) -> Page:
    """Return the page that suits a stream."""
    return TerminalPage(stream) if stream.isatty() else PlainPage(stream)


class PlainPage(Page):
    """Lines for a pipe or a file."""

    is_screen = False

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream."""
        self._stream = stream

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Write ``name: value`` lines."""
        for name, value in pairs:
            self._write(f"{name}: {text(value)}")

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:  # noqa: ARG002
        """Write tab-separated lines below a line of names."""
        for index, row in enumerate(rows):
            if index == 0:
                self._write("\t".join(columns))
            self._write("\t".join(text(cell) for cell in row))

    def line(self, words: str, *, style: str = "", indent: int = 0) -> None:  # noqa: ARG002
        """Write the line."""
        self._write(" " * indent + one_line(words))

    def _write(self, line: str) -> None:
        data = f"{line}\n".encode(errors="backslashreplace")
        with terminal_drawing.aside():
            self._stream.write(data.decode())
            self._stream.flush()


class TerminalPage(Page):
    """Tables for a screen.

    Lines break between words. Only a word that is longer than the screen, as a URI may be, is
    left to the terminal to fold: then it can still be copied in one piece.
    """

    is_screen = True

    def __init__(self, stream: TextIO) -> None:
        """Draw on a terminal."""
        from rich.console import Console

        self._console: Console = Console(file=stream, highlight=False)

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Draw two columns without lines."""
        from rich.text import Text

        shown = [(name, text(value)) for name, value in pairs]
        indent = max((cells(name) for name, _ in shown), default=0) + 2
        for name, value in shown:
            room = self._console.width - indent
            if longest_word(value) <= room:
                first, *others = wrapped(value, room) or [""]
                gap = " " * (indent - cells(name))
                self._print(Text.assemble((name, "bold"), gap, first))
                for line in others:
                    self._print(Text(" " * indent + line))
            else:
                self._print(Text(name, style="bold"))
                self.line(value, indent=2)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Draw a table with a head; one that is too wide as a block of facts for each row."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        content = [list(row) for row in rows]
        if not content:
            return
        shown = [[text(cell) for cell in row] for row in content]
        widths = _widths([columns, *shown], self._console.width)
        if widths is None:
            self._blocks(title, columns, content)
            return
        drawn = Table(
            box=box.SIMPLE_HEAD,
            title=title or None,
            title_justify="left",
            title_style="bold",
            pad_edge=False,
        )
        for index, (name, width) in enumerate(zip(columns, widths, strict=True)):
            numbers = all(isinstance(row[index], int) for row in content)
            drawn.add_column(name, justify="right" if numbers else "left", width=width)
        for row in shown:
            pairs = zip(row, widths, strict=True)
            drawn.add_row(*(Text("\n".join(wrapped(cell, width))) for cell, width in pairs))
        with terminal_drawing.aside():
            self._console.print(drawn)

    def _blocks(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self.line(title, style="bold")
        for row in rows:
            self.facts(zip(columns, row, strict=True))
            self.line("")

    def line(self, words: str, *, style: str = "", indent: int = 0) -> None:
        """Draw one line, which may wrap."""
        from rich.text import Text

        for each in wrapped(one_line(words), self._console.width - indent) or [""]:
            self._print(Text(" " * indent + each, style=style))

    def _print(self, line: Text) -> None:
        with terminal_drawing.aside():
            self._console.print(line, soft_wrap=True)


_GAP, _EDGES = 3, 2
"""What a drawn table has between two columns, and at both of its sides."""


def _widths(rows: Sequence[Sequence[str]], screen: int) -> list[int] | None:
    """Return the widths of a table's columns on a screen; ``None`` if a word would break."""
    columns = list(zip(*rows, strict=True))
    least = [max(map(longest_word, column)) for column in columns]
    most = [max(map(cells, column)) for column in columns]
    spare = screen - _EDGES - _GAP * (len(columns) - 1) - sum(least)
    if spare < 0:
        return None
    widths = list(least)
    # Columns that need little more width get it first.
    for index in sorted(range(len(widths)), key=lambda index: most[index] - least[index]):
        more = min(spare, most[index] - least[index])
        widths[index] += more
        spare -= more
    return widths
