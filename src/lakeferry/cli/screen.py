"""Measures text in terminal cells and breaks lines between words.

Widths are counted in cells: a letter takes one, a Chinese character or an emoji two. Lines break
between words only.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakeferry.readable import one_line as one_line


def cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def longest_word(text: str) -> int:
    """Return how many cells the longest word takes."""
    return max(map(cells, text.split()), default=0)


def wrapped(text: str, width: int) -> list[str]:
    """Return a text as lines of at most ``width`` cells; a longer word has a line to itself."""
    return lines_of(text.split(), width)


def lines_of(words: Iterable[str], width: int) -> list[str]:
    """Return words as lines of at most ``width`` cells; a longer one has a line to itself."""
    lines: list[str] = []
    line, taken = "", 0
    for word in words:
        room = cells(word)
        if line and taken + 1 + room <= width:
            line, taken = f"{line} {word}", taken + 1 + room
            continue
        if line:
            lines.append(line)
        line, taken = word, room
    return [*lines, line] if line else lines


def without_middle(name: str, width: int) -> str:
    """Return a name, with an ellipsis for its middle where it takes more than ``width`` cells."""
    if cells(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{_beginning(name, width - 1 - end)}…{_beginning(name[::-1], end)[::-1]}"


def _beginning(name: str, width: int) -> str:
    """Return as many of the first characters as fit into ``width`` cells."""
    end = min(len(name), width)
    while cells(name[:end]) > width:
        end -= 1
    return name[:end]
