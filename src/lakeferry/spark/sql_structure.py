"""How the tokens of a SQL text belong together: brackets, statements, names, scopes of WITH."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakeferry.spark.sql_tokens import SqlToken, TokenKind, parse_name

NameParts = tuple[str, ...]


class SqlStructure:
    """The tokens of a text, which are known by their numbers."""

    def __init__(self, found: Sequence[SqlToken], is_case_sensitive: bool) -> None:
        self.tokens = found
        self.definitions: set[int] = set()
        """Where ``WITH`` gives a name to a query."""
        self._fold = str if is_case_sensitive else str.lower
        self.opener, self.closer = self._brackets()
        self._hidden = list(self._scopes())

    def word(self, at: int) -> str:
        """Return a keyword in capitals, or a mark; empty for anything else."""
        if not 0 <= at < len(self.tokens):
            return ""
        token = self.tokens[at]
        if token.kind is TokenKind.WORD:
            return token.value.upper()
        return token.value if token.kind is TokenKind.MARK else ""

    def _brackets(self) -> tuple[list[int], dict[int, int]]:
        """Return the bracket around each token (-1: none), and where each bracket is closed."""
        opener, closer, waiting = [], {}, [-1]
        for at, token in enumerate(self.tokens):
            is_mark = token.kind is TokenKind.MARK
            if is_mark and token.value == ")" and len(waiting) > 1:
                closer[waiting.pop()] = at
            opener.append(waiting[-1])
            if is_mark and token.value == "(":
                waiting.append(at)
        return opener, closer

    def end_of_group(self, at: int) -> int:
        """Return where the bracket around a token closes, or where its statement ends."""
        around = self.opener[at]
        if around >= 0:
            return self.closer.get(around, len(self.tokens))
        return next(
            (each for each in range(at, len(self.tokens)) if self.word(each) == ";"),
            len(self.tokens),
        )

    def _end_of_query(self, at: int) -> int:
        """Return where the query that begins at a token ends; that of a loop ends at DO."""
        end = self.end_of_group(at)
        before = self.word(at - 3) if self.word(at - 1) == "AS" else self.word(at - 1)
        if before != "FOR":
            return end
        around = self.opener[at]
        return next(
            (
                each
                for each in range(at, end)
                if self.word(each) == "DO" and self.opener[each] == around
            ),
            end,
        )

    def _scopes(self) -> Iterator[tuple[str, int, int]]:
        """Yield the names that ``WITH`` defines, and the tokens between which they hide tables."""
        for start in range(len(self.tokens)):
            if self.word(start) != "WITH":
                continue
            at = start + 1
            is_recursive = self.word(at) == "RECURSIVE"
            at += is_recursive
            while at < len(self.tokens) and self.tokens[at].is_name:
                self.definitions.add(at)
                (name, *_), body = self._part(at)
                if self.word(body) == "(":
                    body = self.closer.get(body, len(self.tokens)) + 1
                if self.word(body) == "MAX":
                    body += 4
                if self.word(body) != "AS" or self.word(body + 1) != "(":
                    self.definitions.discard(at)
                    break
                end = self.closer.get(body + 1, len(self.tokens))
                hides_from = body + 1 if is_recursive else end
                yield self._fold(name), hides_from, self._end_of_query(start)
                if self.word(end + 1) != ",":
                    break
                at = end + 2

    def is_hidden(self, name: NameParts, at: int) -> bool:
        """Return True if a name at a token means a query that ``WITH`` defines."""
        return len(name) == 1 and any(
            self._fold(name[0]) == defined and start < at < end
            for defined, start, end in self._hidden
        )

    def name_at(self, at: int) -> tuple[NameParts, int]:
        """Return the parts of the name that begins at a token, and the token after it.

        A part may be ``IDENTIFIER('part')``. It is empty if it is computed in another way.
        """
        parts, at = self._part(at)
        while self.word(at) == "." and at + 1 < len(self.tokens) and self.tokens[at + 1].is_name:
            more, at = self._part(at + 1)
            parts += more
        return parts, at

    def _part(self, at: int) -> tuple[NameParts, int]:
        """Return what a token adds to a name, and the token after it."""
        end = self.closer.get(at + 1, at) + 1
        is_part = "." in (self.word(at - 1), self.word(end)) or at in self.definitions
        if self.word(at) != "IDENTIFIER" or self.word(at + 1) != "(" or not is_part:
            return (self.tokens[at].value,), at + 1
        inside = self.tokens[at + 2 : end - 1]
        if len(inside) != 1 or inside[0].kind is not TokenKind.STRING:
            return ("",), end
        return parse_name(inside[0].value) or ("",), end
