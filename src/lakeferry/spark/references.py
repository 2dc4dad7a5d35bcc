"""Where a SQL text speaks of tables, so that other places can be put there.

Three things are looked for:

* a path, written ``delta.`/path` ``, wherever it stands, in front of a column too;
* a path as a string, where Delta's own statements and functions take one:
  ``VACUUM '/path'``, ``DESCRIBE HISTORY '/path'``, ``table_changes_by_path('/path', 0)``,
  ``CREATE TABLE t USING delta LOCATION '/path'``, and a whole name in ``IDENTIFIER('…')``;
* a name of the catalog, where a table's name is expected: after ``FROM`` and its
  commas, ``JOIN``, ``INTO``, ``UPDATE``, ``TABLE`` and so on. Whether it is one, the
  catalog knows; names that the text itself defines are left out.

Each :class:`Reference` says which operations it would commit, by their names in
``commitInfo``. What isn't understood isn't touched. The text of a persistent view
is left alone: it would keep a place that is right today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lakeferry.spark.tokens import (
    CATALOG,
    Kind,
    Token,
    parse_name,
    path_of,
    spell_path,
    spell_string,
    spell_table,
    tokens,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A table that a text speaks of.

    ``path`` is a place, or else ``name`` has the parts of a catalog's name.
    ``operations`` are what would be committed there; a table that is only read
    has none. ``spell`` gives the text that means another place, which stands
    from ``start`` to ``end`` instead.
    """

    start: int
    end: int
    spell: Callable[[str], str]
    path: str | None = None
    name: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()


def references(text: str) -> list[Reference]:
    """Return every table that the text speaks of, in the order of the text."""
    found: list[Reference] = []
    statement: list[Token] = []
    for token in [*tokens(text), Token(Kind.MARK, len(text), len(text), ";")]:
        if token.kind is Kind.MARK and token.value == ";":
            found += _Statement(text, statement).references()
            statement = []
        else:
            statement.append(token)
    return found


def replaced(text: str, places: Sequence[tuple[Reference, str]]) -> str:
    """Return the text with other places where these references are."""
    pieces, end = [], 0
    for reference, place in sorted(places, key=lambda each: each[0].start):
        pieces += [text[end : reference.start], reference.spell(place)]
        end = reference.end
    return "".join([*pieces, text[end:]])


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# After these words a table's name stands, or may stand.
_BEFORE_NAMES = _words(
    "FROM JOIN INTO OVERWRITE TABLE UPDATE OPTIMIZE VACUUM RESTORE CLONE DESCRIBE DESC DETAIL "
    "HISTORY EXTENDED FORMATTED EXISTS"
)
# Statements that name a table of the catalog as such, and mean neither its rows nor its log.
_ABOUT_THE_CATALOG = _words(
    "DROP SHOW USE SET RESET ANALYZE MSCK REFRESH CACHE UNCACHE COMMENT GRANT REVOKE CLEAR ADD "
    "LIST DECLARE LOAD CALL CONVERT"
)
_ENDS_FROM = _words(
    "WHERE GROUP HAVING ORDER SORT CLUSTER DISTRIBUTE LIMIT OFFSET WINDOW SELECT UNION EXCEPT "
    "MINUS INTERSECT SET WHEN"
)
_NO_ALIAS = _ENDS_FROM | _words(
    "JOIN INNER CROSS LEFT RIGHT FULL NATURAL SEMI ANTI OUTER ON USING LATERAL TABLESAMPLE PIVOT "
    "UNPIVOT INSERT VALUES MAP REDUCE FROM VERSION TIMESTAMP FOR WITH QUALIFY"
)
_NO_NAMES = _NO_ALIAS | _BEFORE_NAMES | {"IF", "NOT", "DIRECTORY", "LOCAL", "IDENTIFIER"}
_FUNCTIONS_WITH_FROM = _words("EXTRACT TRIM SUBSTR SUBSTRING OVERLAY POSITION")
_ALTERED = {
    ("SET", "TBLPROPERTIES"): "SET TBLPROPERTIES",
    ("UNSET", "TBLPROPERTIES"): "UNSET TBLPROPERTIES",
    ("ADD", "COLUMN"): "ADD COLUMNS",
    ("ADD", "COLUMNS"): "ADD COLUMNS",
    ("DROP", "COLUMN"): "DROP COLUMNS",
    ("DROP", "COLUMNS"): "DROP COLUMNS",
    ("RENAME", "COLUMN"): "RENAME COLUMN",
    ("ALTER", "COLUMN"): "CHANGE COLUMN",
    ("CHANGE", "COLUMN"): "CHANGE COLUMN",
    ("REPLACE", "COLUMNS"): "REPLACE COLUMNS",
    ("ADD", "CONSTRAINT"): "ADD CONSTRAINT",
    ("DROP", "CONSTRAINT"): "DROP CONSTRAINT",
    ("DROP", "FEATURE"): "DROP FEATURE",
    ("CLUSTER", "BY"): "CLUSTER BY",
}


@dataclass(slots=True)
class _Level:
    """What is known inside of one pair of parentheses."""

    opened_by: str = ""
    in_from: bool = False


class _Statement:
    """One statement, and the text that its tokens are of."""

    def __init__(self, text: str, found: Sequence[Token]) -> None:
        self._text = text
        self._tokens = found
        self._head = self._find_head()
        self._defined = self._find_defined()
        self._levels = [_Level()]

    def references(self) -> Iterator[Reference]:
        """Yield them one after the other."""
        if self._head == "DROP" or self._is_persistent_view():
            return
        at = 0
        while at < len(self._tokens):
            token = self._tokens[at]
            end = at + 1
            if token.kind is Kind.STRING:
                yield from self._in_string(at)
            elif token.is_name and not self._is_mark(at - 1, "."):
                end = self._end_of_name(at)
                yield from self._in_name(at, end)
            self._keep_level(at)
            at = end

    # What stands where.

    def _word(self, at: int) -> str:
        """Return the keyword at a position, in capitals; anything else is an empty one."""
        if not 0 <= at < len(self._tokens) or self._tokens[at].kind is not Kind.WORD:
            return ""
        return self._tokens[at].value.upper()

    def _is_mark(self, at: int, mark: str) -> bool:
        return 0 <= at < len(self._tokens) and (
            self._tokens[at].kind is Kind.MARK and self._tokens[at].value == mark
        )

    def _end_of_name(self, at: int) -> int:
        end = at + 1
        while self._is_mark(end, ".") and end + 1 < len(self._tokens):
            if not self._tokens[end + 1].is_name:
                break
            end += 2
        return end

    def _find_head(self) -> str:
        at = 0
        while self._is_mark(at, "("):
            at += 1
        if self._word(at) == "BEGIN":
            at += 1
        if self._word(at) == "EXPLAIN":
            at += 1
            at += self._word(at) in ("EXTENDED", "CODEGEN", "COST", "FORMATTED", "ANALYZE")
        return self._word(at)

    def _find_defined(self) -> frozenset[str]:
        """Return the names that the statement defines for itself: ``WITH name AS (``."""
        found = set()
        for at, token in enumerate(self._tokens):
            after_with = self._word(at - 1) in ("WITH", "RECURSIVE")
            if token.is_name and (after_with or self._is_mark(at - 1, ",")):
                end = at + 1
                if self._is_mark(end, "("):
                    while end < len(self._tokens) and not self._is_mark(end, ")"):
                        end += 1
                    end += 1
                if self._word(end) == "AS" and self._is_mark(end + 1, "("):
                    found.add(token.value.lower())
        return frozenset(found)

    def _is_persistent_view(self) -> bool:
        words = [self._word(at) for at in range(6)]
        if words[0] not in ("CREATE", "ALTER") or "VIEW" not in words:
            return False
        return not {"TEMP", "TEMPORARY"} & set(words[: words.index("VIEW")])

    def _keep_level(self, at: int) -> None:
        """Follow parentheses, and whether a comma would be one between tables."""
        if self._is_mark(at, "("):
            self._levels.append(_Level(self._word(at - 1)))
        elif self._is_mark(at, ")"):
            if len(self._levels) > 1:
                self._levels.pop()
        elif self._word(at) == "FROM" and self._begins_clause(at):
            self._levels[-1].in_from = True
        elif self._word(at) in _ENDS_FROM:
            self._levels[-1].in_from = False

    def _begins_clause(self, at: int) -> bool:
        """Tell the clause FROM from those in ``IS DISTINCT FROM`` and ``EXTRACT(… FROM …)``."""
        if self._levels[-1].opened_by in _FUNCTIONS_WITH_FROM:
            return False
        is_comparison = self._word(at - 2) in ("IS", "NOT") and self._word(at - 1) == "DISTINCT"
        return not is_comparison

    # What it means.

    def _in_name(self, at: int, end: int) -> Iterator[Reference]:
        parts = self._tokens[at:end:2]
        first = 1 if parts[0].value.lower() == CATALOG and len(parts) > 2 else 0
        pair = [part.value for part in parts[first : first + 2]]
        if path_of(pair) and parts[first + 1].kind is Kind.QUOTED:
            whole = len(parts) == first + 2
            token = parts[first + 1]
            yield Reference(
                token.start,
                token.end,
                spell_path,
                pair[1],
                operations=self._operations(at, end) if whole else (),
            )
        elif self._is_table_name(at, end):
            operations = self._operations(at, end)
            if operations == ("ALTER TABLE",):
                return
            last, spell = self._alias(at, end)
            name = tuple(part.value for part in parts)
            start, stop = parts[0].start, self._tokens[last - 1].end
            yield Reference(start, stop, spell, name=name, operations=operations)

    def _in_string(self, at: int) -> Iterator[Reference]:
        token = self._tokens[at]
        before, function = self._word(at - 1), self._word(at - 2)
        operations: tuple[str, ...] = ()
        spell: Callable[[str], str] = spell_string
        path: str | None = token.value
        name: tuple[str, ...] = ()
        if before in ("VACUUM", "OPTIMIZE") and before == self._head:
            operations = self._operations(at, at + 1)
        elif before == "LOCATION" and self._head in ("CREATE", "REPLACE"):
            if not self._creates_delta():
                return
            operations = ("CREATE TABLE",)
        elif self._is_mark(at - 1, "(") and function in ("TABLE_CHANGES", "IDENTIFIER"):
            parsed = parse_name(token.value) or ()
            path = path_of(parsed)
            name = parsed if path is None and function == "TABLE_CHANGES" else ()
            if path is None and not name:
                return
            operations = self._operations(at - 2, at + 2) if function == "IDENTIFIER" else ()
            spell = _spell_name_in_string
        elif not (
            (before in ("DETAIL", "HISTORY") and self._head in ("DESCRIBE", "DESC"))
            or (self._is_mark(at - 1, "(") and function == "TABLE_CHANGES_BY_PATH")
        ):
            return
        yield Reference(token.start, token.end, spell, path, name, operations)

    def _creates_delta(self) -> bool:
        words = [self._word(at) for at in range(len(self._tokens))]
        pairs = zip(words, [token.value.lower() for token in self._tokens[1:]], strict=False)
        return "TABLE" in words[:5] and ("USING", "delta") in pairs

    def _is_table_name(self, at: int, end: int) -> bool:
        token, before = self._tokens[at], self._word(at - 1)
        # In a query a name before parentheses is a function; elsewhere they hold columns.
        in_query = before in ("FROM", "JOIN", "USING") or self._is_mark(at - 1, ",")
        if self._head in _ABOUT_THE_CATALOG or (in_query and self._is_mark(end, "(")):
            return False
        is_known = token.is_word(*_NO_NAMES) or token.value.lower() in self._defined
        if end == at + 1 and is_known:
            return False
        if self._is_mark(at - 1, ","):
            return self._levels[-1].in_from
        if before == "FROM":
            return self._begins_clause(at - 1)
        if before in ("OPTIMIZE", "VACUUM", "RESTORE", "DESCRIBE", "DESC"):
            return before == self._head
        if before in ("DETAIL", "HISTORY", "EXTENDED", "FORMATTED"):
            return self._head in ("DESCRIBE", "DESC")
        if before == "USING":
            return any(self._word(earlier) == "MERGE" for earlier in range(at))
        if before == "EXISTS":
            return "TABLE" in (self._word(at - 3), self._word(at - 4))
        return before in _BEFORE_NAMES

    def _operations(self, at: int, end: int) -> tuple[str, ...]:
        """Return what the statement commits to the table whose name stands there."""
        verb = at - 1
        if self._word(verb) == "EXISTS":
            verb -= 3 if self._word(verb - 1) == "NOT" else 2
        is_table = self._word(verb) == "TABLE"
        verb -= is_table
        word = self._word(verb)
        if word == "INTO":
            earlier = {self._word(other) for other in range(max(0, verb - 4), verb)}
            return ("MERGE",) if "MERGE" in earlier else ("WRITE",)
        if word == "OVERWRITE":
            return ("WRITE",)
        if word == "FROM":
            return ("DELETE",) if self._word(verb - 1) == "DELETE" else ()
        if word == "VACUUM":
            dry = any(self._word(other) == "DRY" for other in range(end, len(self._tokens)))
            return () if dry else ("VACUUM START", "VACUUM END")
        if word in ("UPDATE", "OPTIMIZE", "RESTORE"):
            return (word,)
        if not is_table:
            return ()
        if word in ("TRUNCATE", "REORG"):
            return (word,)
        if word == "ALTER":
            return (_ALTERED.get((self._word(end), self._word(end + 1)), "ALTER TABLE"),)
        return self._created(verb, end)

    def _created(self, verb: int, end: int) -> tuple[str, ...]:
        first = verb
        while self._word(first - 1) in ("CREATE", "OR", "REPLACE"):
            first -= 1
        words = [self._word(other) for other in range(first, verb + 1)]
        if not {"CREATE", "REPLACE"} & set(words):
            return ()
        rest = range(end, len(self._tokens))
        if any(self._word(other) == "CLONE" for other in rest):
            return ("CLONE",)
        selects = any(
            self._word(other) == "AS"
            and (
                self._word(other + 1) in ("SELECT", "WITH", "FROM", "TABLE", "VALUES")
                or self._is_mark(other + 1, "(")
            )
            for other in rest
        )
        phrase = " ".join(word for word in words if word != "EXTERNAL")
        return (f"{phrase} TABLE AS SELECT" if selects else f"{phrase} TABLE",)

    def _alias(self, at: int, end: int) -> tuple[int, Callable[[str], str]]:
        """Return where the name ends with all that belongs to it, and how to spell it anew.

        Columns may be called by the table's name, so that a table in a query
        which has no alias gets its name for one.
        """
        before, name = self._word(at - 1), self._tokens[end - 1].value
        merges = before == "INTO" and self._operations(at, end) == ("MERGE",)
        if not (
            merges or before in ("FROM", "JOIN", "USING", "UPDATE") or self._is_mark(at - 1, ",")
        ):
            return end, spell_table
        last = self._end_of_time_travel(end)
        following = self._tokens[last] if last < len(self._tokens) else None
        if following is not None and following.is_name:
            if not following.is_word(*_NO_ALIAS) or following.is_word("TABLESAMPLE", "WITH"):
                return end, spell_table
            if last == end and following.is_word("VERSION", "TIMESTAMP", "FOR"):
                return end, spell_table
        between = self._text[self._tokens[end - 1].end : self._tokens[last - 1].end]
        return last, lambda place: f"{spell_table(place)}{between} AS {spell_path(name)}"

    def _end_of_time_travel(self, end: int) -> int:
        at = end + (self._word(end) == "FOR")
        if (
            self._word(at) in ("VERSION", "SYSTEM_VERSION", "TIMESTAMP", "SYSTEM_TIME")
            and (self._word(at + 1), self._word(at + 2)) == ("AS", "OF")
            and at + 3 < len(self._tokens)
            and self._tokens[at + 3].kind in (Kind.STRING, Kind.NUMBER)
        ):
            return at + 4
        return end


def _spell_name_in_string(place: str) -> str:
    return spell_string(spell_table(place))
