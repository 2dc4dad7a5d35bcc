"""Pages for people: tables on a terminal, plain lines in a pipe.

A plain page cuts nothing off and draws nothing: facts are ``name: value``, a
table is a line of column names and then a line for each row, columns separated
by tabs, so that ``cut`` and ``awk`` can take it from there. What a table's
writers wrote is shown as text: it can neither format a page nor steer a terminal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TextIO

from lakeferry.cli.output import one_line

if TYPE_CHECKING:
    from rich.console import Console

Cell = str | int | None
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def size(size_bytes: int | None) -> str:
    """Return a size as people say it."""
    if size_bytes is None:
        return "unknown"
    if size_bytes < 1024:
        return counted(size_bytes, "byte")
    power = min((size_bytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{size_bytes / 1024**power:.1f} {_UNITS[power - 1]}"


def moment(timestamp_ms: int) -> str:
    """Return a time as people say it; one that no calendar holds as its number."""
    try:
        when = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")


def counted(number: int | None, noun: str) -> str:
    """Return a number with its noun, as in ``1 file`` and ``2 files``."""
    if number is None:
        return f"an unknown number of {noun}s"
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def text(cell: Cell) -> str:
    """Return what a cell shows."""
    return "-" if cell is None else one_line(str(cell))


class Page(ABC):
    """Where a command puts what people read."""

    @abstractmethod
    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Show names with their values."""

    @abstractmethod
    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Show rows under column names; a table without rows is left out."""

    @abstractmethod
    def line(self, words: str, *, style: str = "") -> None:
        """Show one line."""


def page(stream: TextIO) -> Page:
    """Return the page that suits a stream."""
    return TerminalPage(stream) if stream.isatty() else PlainPage(stream)


class PlainPage(Page):
    """Lines for a pipe or a file."""

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

    def line(self, words: str, *, style: str = "") -> None:  # noqa: ARG002
        """Write the line."""
        self._write(one_line(words))

    def _write(self, line: str) -> None:
        data = f"{line}\n".encode(errors="backslashreplace")
        self._stream.write(data.decode())
        self._stream.flush()


class TerminalPage(Page):
    """Tables for a screen."""

    def __init__(self, stream: TextIO) -> None:
        """Draw on a terminal."""
        from rich.console import Console

        self._console: Console = Console(file=stream, highlight=False)

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Draw two columns without lines."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in pairs:
            grid.add_row(name, Text(text(value)))
        self._console.print(grid)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Draw a table with a head."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        content = [list(row) for row in rows]
        if not content:
            return
        drawn = Table(
            box=box.SIMPLE_HEAD,
            title=title or None,
            title_justify="left",
            title_style="bold",
            pad_edge=False,
        )
        for index, name in enumerate(columns):
            numbers = all(isinstance(row[index], int) for row in content)
            drawn.add_column(name, justify="right" if numbers else "left", overflow="fold")
        for row in content:
            drawn.add_row(*(Text(text(cell)) for cell in row))
        self._console.print(drawn)

    def line(self, words: str, *, style: str = "") -> None:
        """Draw one line, which may wrap."""
        from rich.text import Text

        self._console.print(Text(one_line(words), style=style))
