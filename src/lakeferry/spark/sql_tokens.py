"""Splits Spark's SQL into tokens.

Spark's own parser is in the JVM and returns plans, not text; we need less. The rules are those
of its lexer: comments, which may be nested, are skipped; strings have escapes unless they are
raw or between dollar signs; names may be quoted with backticks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<line>--(?:\\\n|[^\r\n])*)
  | (?P<block>/\*)
  | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
  | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<dollar>\$[A-Za-z_]*\$)
  | (?P<number>\d+(?![A-Za-z0-9_]))
  | (?P<word>\w+)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}

CATALOG = "spark_catalog"
"""Spark's name for the catalog with Delta's tables of a metastore."""
_DELTA = ("delta", "org.apache.spark.sql.delta.sources.deltadatasource")
"""Delta as a data source: its short name and its class."""


class TokenKind(Enum):
    """What a token is."""

    WORD = "word"
    QUOTED = "quoted"
    STRING = "string"
    NUMBER = "number"
    MARK = "mark"


@dataclass(frozen=True, slots=True)
class SqlToken:
    """A piece of the text; ``value`` is what it means, names and strings without quotes."""

    kind: TokenKind
    start: int
    end: int
    value: str

    def is_word(self, *words: str) -> bool:
        """Return True if it is one of these keywords, given in capitals."""
        return self.kind is TokenKind.WORD and self.value.upper() in words

    @property
    def is_name(self) -> bool:
        """Whether it can be a part of a name."""
        return self.kind in (TokenKind.WORD, TokenKind.QUOTED)


def tokens(text: str) -> list[SqlToken]:
    """Split a text into tokens without comments; a quote that isn't closed ends it."""
    found: list[SqlToken] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None
        kind, end = match.lastgroup, match.end()
        piece = match.group()
        if kind == "block":
            end = _end_of_comment(text, end)
        elif kind == "dollar":
            closing = text.find(piece, end)
            end = len(text) if closing < 0 else closing + len(piece)
            found.append(SqlToken(TokenKind.STRING, at, end, text[match.end() : end - len(piece)]))
        elif kind == "raw":
            found.append(SqlToken(TokenKind.STRING, at, end, piece[2:-1]))
        elif kind == "string":
            found.append(SqlToken(TokenKind.STRING, at, end, _unescaped(piece)))
        elif kind == "quoted":
            found.append(SqlToken(TokenKind.QUOTED, at, end, piece[1:-1].replace("``", "`")))
        elif kind == "mark" and piece in "'\"`":
            break
        elif kind not in ("space", "line"):
            assert kind is not None
            found.append(SqlToken(TokenKind(kind), at, end, piece))
        at = end
    return found


def _end_of_comment(text: str, at: int) -> int:
    """Return where a comment ends, given the end of its opening; comments may be nested.

    A hint in a comment doesn't open another one.
    """
    depth = 1
    for mark in re.finditer(r"/\*(?!\+)|\*/", text[at:]):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return at + mark.end()
    return len(text)


def _unescaped(literal: str) -> str:
    quote, inside = literal[0], literal[1:-1]

    def meant(match: re.Match[str]) -> str:
        escape = match.group(1)
        if len(escape) > 1:
            return chr(int(escape[1:], 16) if escape[0] in "uU" else int(escape, 8))
        # These two keep their backslash, for LIKE.
        return f"\\{escape}" if escape in "%_" else _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(meant, inside.replace(quote * 2, quote))


def with_backquotes(text: str) -> str:
    """Return a text in which names between double quotes have backquotes instead.

    This is for sessions whose setting says that double quotes are around names, not strings.
    """
    pieces, end = [], 0
    for token in tokens(text):
        if token.kind is TokenKind.STRING and text[token.start] == '"':
            name = text[token.start + 1 : token.end - 1].replace('""', '"')
            pieces += [text[end : token.start], spell_path(name)]
            end = token.end
    return "".join([*pieces, text[end:]])


def is_delta_format(source: str) -> bool:
    """Tell whether a data source, by its short name or its class, is Delta."""
    return source.lower() in _DELTA


def spell_path(place: str) -> str:
    """Return a place as the last part of a name."""
    return f"`{place.replace('`', '``')}`"


def spell_table(place: str) -> str:
    """Return a place as a table name."""
    return f"delta.{spell_path(place)}"


def spell_string(text: str) -> str:
    """Return a text as a string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def parse_name(text: str) -> tuple[str, ...] | None:
    """Return the parts of a table name as users write it, or ``None`` if it isn't a name."""
    found = tokens(text)
    parts = [token.value for token in found if token.is_name]
    marks = [token.value for token in found if not token.is_name]
    if not parts or marks != ["."] * (len(parts) - 1) or len(found) != len(parts) + len(marks):
        return None
    return tuple(parts)


def path_of(name: Sequence[str]) -> str | None:
    """Return the path in a name that begins with ``delta``; ``None`` for other names."""
    parts = list(name)
    if len(parts) == 3 and parts[0].lower() == CATALOG:
        parts = parts[1:]
    if len(parts) == 2 and parts[0].lower() == "delta" and _ABSOLUTE.match(parts[1]):
        return parts[1]
    return None
