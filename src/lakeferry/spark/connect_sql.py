"""Finds the tables that a SQL statement names, in its tokens, for sessions of Spark Connect.

A Connect server executes and explains statements, and parses none for its clients. So the tables
are found by the words before them: ``FROM``, ``JOIN``, ``INTO`` and others, with the scopes of
``WITH``. A list of words can miss a form of statement. That is why the result has every other
name in the text, too (:attr:`TokenParsed.others`): if one of them is a table that moved, the
server is asked whether its parser sees a table there (:func:`names_in_explanation`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakeferry.spark.redirected_path import NewPlace
from lakeferry.spark.sql_structure import NameParts, SqlStructure
from lakeferry.spark.sql_tokens import (
    SqlToken,
    TokenKind,
    is_delta_format,
    parse_name,
    path_of,
    tokens,
)
from lakeferry.spark.statement_parameters import with_values
from lakeferry.spark.statement_rewrite import Parsed, TextEdit
from lakeferry.spark.statement_tables import (
    CHANGE_FEEDS,
    Nodes,
    Relation,
    RelationPlace,
    Statement,
    TreeStep,
    without_builtin,
)
from lakeferry.spark.table_positions import QUERY_WORDS, RESERVED_WORDS, TablePositions

_TRAVELS = ("VERSION", "TIMESTAMP", "SYSTEM_VERSION", "SYSTEM_TIME")
_IN_EXPLANATION = re.compile(r"Unresolved\w*\s*\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class TokenParsed(Parsed):
    """A text, and the relations among its tokens; a relation's route begins with its span."""

    given: tuple[SqlToken, ...] = ()
    """The tokens of the text; a parameter whose value is known is one token."""
    others: tuple[NameParts, ...] = ()
    """The names in the text that aren't at the place of a table, as far as the words tell."""
    unclear: frozenset[int] = frozenset()
    """Where relations begin that can't be replaced, because it isn't clear where they end."""
    computed_paths: tuple[str, ...] = ()
    """Expressions with parameters that give a path, where their values aren't known."""

    def tokens(self) -> Sequence[SqlToken]:
        """Return the tokens of the text."""
        return self.given

    def edits(
        self, relation: Relation, place: NewPlace, name: Sequence[str] = ()
    ) -> list[TextEdit]:
        """Return the edits that make the text name another place; empty if that is impossible."""
        if relation.route and relation.route[0] in self.unclear:
            return []
        return Parsed.edits(self, relation, place, name)

    def _span(self, route: tuple[TreeStep, ...]) -> tuple[int, int] | None:
        numbers = [step for step in route if isinstance(step, int)]
        if len(numbers) < 2:
            return None
        # A third number is the end of the table with its time travel.
        is_whole = len(numbers) == 3 and route[-1:] != ("relation",)
        return numbers[0], numbers[2] if is_whole else numbers[1]


def token_statement(
    text: str, *, default: str = "", is_case_sensitive: bool = False, args: Any = None
) -> TokenParsed | None:
    """Return the tables of a text; ``None`` if it is empty.

    ``default`` is the data source of tables that are created without one. ``args`` are the values
    of parameters.
    """
    scan = _Scan(text, default, is_case_sensitive, args)
    if not scan.tokens:
        return None
    scan.run()
    words = [token.value.upper() for token in scan.tokens if token.kind is TokenKind.WORD]
    first = next((word for word in words if word != "EXPLAIN"), "")
    statement = Statement(
        relations=tuple(scan.found),
        is_query=first in QUERY_WORDS and "INSERT" not in words and "EXPLAIN" not in words[:1],
        is_script=first == "BEGIN",
        views=frozenset(scan.views),
        changes_namespace=scan.changes_namespace,
        functions=frozenset(scan.functions),
        parameters=tuple(
            token.start
            for token in tokens(text)
            if token.kind is TokenKind.MARK and token.value == "?"
        ),
        renamed=tuple(scan.renamed),
        created_functions=(),
        computed_functions=tuple(scan.computed_functions),
    )
    return TokenParsed(
        text,
        Nodes(None),
        statement,
        tuple(scan.tokens),
        tuple(dict.fromkeys(scan.others)),
        frozenset(scan.unclear),
        tuple(scan.computed_paths),
    )


def names_in_explanation(explanation: str) -> list[str] | None:
    """Return the names of tables that Spark's parser found in a statement, in lower case.

    ``explanation`` is what EXPLAIN EXTENDED returns. A name's parts are separated by commas.
    ``None`` if it has no parsed plan: then the parser's view isn't known.
    """
    start, _, rest = explanation.partition("== Parsed Logical Plan ==")
    plan, found, _ = rest.partition("== Analyzed Logical Plan ==")
    if start.strip() or not found:
        return None
    return [match.group(1).lower() for match in _IN_EXPLANATION.finditer(plan)]


class _Scan:
    """Goes through the tokens of a text once, and collects its relations."""

    def __init__(self, text: str, default: str, is_case_sensitive: bool, args: Any) -> None:
        self.tokens, self._unknown = with_values(tokens(text), args)
        self.found: list[Relation] = []
        self.renamed: list[Relation] = []
        self.others: list[NameParts] = []
        self.views: list[str] = []
        self.functions: set[str] = set()
        self.unclear: set[int] = set()
        self.computed_paths: list[str] = []
        self.computed_functions: list[Relation] = []
        self.changes_namespace = False
        self._whole = text
        self._default = default
        self._text = SqlStructure(self.tokens, is_case_sensitive)
        self._positions = TablePositions(self._text)

    # --- The relations ---

    def run(self) -> None:
        """Collect everything."""
        at, start = 0, 0
        while at < len(self.tokens):
            token = self.tokens[at]
            word = self._text.word(at)
            if word == ";":
                start = at + 1
            elif word == "IDENTIFIER" and self._text.name_at(at)[1] > at + 1:
                at = self._name(at, start)
                continue
            elif word in ("IDENTIFIER", "IMMEDIATE") and self._computed(at, word, start):
                at = self._text.closer.get(at + 1, at + 1) if word == "IDENTIFIER" else at + 1
                at += 1
                continue
            elif token.kind is TokenKind.STRING:
                self._string(at, start)
            elif at in self._unknown:
                self._unknown_string(at, start)
            elif token.is_name and self._text.word(at - 1) != ".":
                at = self._name(at, start)
                continue
            at += 1

    def _add(self, relation: Relation, start: int) -> None:
        """Add a relation; texts that Spark stores are kept as they are."""
        (self.renamed if self._is_stored(start) else self.found).append(relation)

    def _is_stored(self, start: int) -> bool:
        """Return True if a statement creates a permanent view, or a function."""
        at = start
        while at < len(self.tokens) and self._text.word(at) not in (";", "AS"):
            if self._text.word(at) in ("CREATE", "ALTER"):
                kinds = {self._text.word(each) for each in range(at + 1, at + 6)}
                # The text of a materialized view is only read when it is refreshed, by others.
                is_other = kinds & {"TEMP", "TEMPORARY", "MATERIALIZED"}
                return "FUNCTION" in kinds or ("VIEW" in kinds and not is_other)
            at += 1
        return False

    def _name(self, at: int, start: int) -> int:
        """Collect the name that begins at a token; return the token after it."""
        name, end = self._text.name_at(at)
        word = self._text.word(at)
        if len(name) == 1 and word in ("USE", "CATALOG") and self._begins(at, word):
            self.changes_namespace = True
        path_parts = next((n for n in (3, 2) if path_of(name[:n]) is not None), 0)
        if path_parts and len(name) > path_parts:
            # A column, qualified with the table's path.
            return end
        if self._text.word(end) == "(" and not path_parts:
            self._call(".".join(name).lower(), end)
            if self._positions.of_name(at, end, start) is None:
                return end
        if self._is_new_view(at):
            self.views.append(name[-1].lower())
            return end
        if at in self._text.definitions or self._text.word(at - 1) == "AS":
            # A name that the statement itself gives.
            return end
        position = self._positions.of_name(at, end, start)
        if position is None and path_parts:
            before = self._text.word(self._positions.table_word(at) - 1)
            position = None if before == "DROP" else (RelationPlace.QUERY, ())
        if position is None:
            if self._positions.is_moved(at, end):
                self.renamed.append(Relation(RelationPlace.NAME, (), (name,)))
            if "" not in name and not (len(name) == 1 and word in RESERVED_WORDS):
                self.others.append(name)
            return end
        place, operations = position
        is_source = place is RelationPlace.QUERY or (
            place in (RelationPlace.NAME, RelationPlace.TARGET) and not operations
        )
        if is_source and self._text.is_hidden(name, at):
            return end
        route: tuple[TreeStep, ...] = (self.tokens[at].start, self.tokens[end - 1].end)
        if "" in name:
            self._add(Relation(RelationPlace.COMPUTED, route, operations=operations), start)
            return end
        if place is RelationPlace.QUERY:
            route = self._travelling(route, end)
        self._add(Relation(place, route, (name,), None, operations), start)
        return end

    def _begins(self, at: int, word: str) -> bool:
        """Return True if a statement begins with USE there, or has SET CATALOG."""
        before = self._text.word(at - 1)
        return (
            before == "SET"
            if word == "CATALOG"
            else before in ("", ";", "BEGIN", "THEN", "ELSE", "DO")
        )

    def _is_new_view(self, at: int) -> bool:
        before = self._text.word(at - 1)
        if before == "EXISTS" and self._text.word(at - 2) == "NOT":
            before = self._text.word(at - 4)
        return before == "VIEW"

    def _travelling(self, route: tuple[TreeStep, ...], end: int) -> tuple[TreeStep, ...]:
        """Return the route of a relation, with the end of its time travel if it has any."""
        at = end + (self._text.word(end) == "FOR")
        words = [self._text.word(each) for each in range(at, at + 3)]
        if words[0] not in _TRAVELS or words[1:] != ["AS", "OF"]:
            return route
        at += 3
        if self._text.word(at) in ("TIMESTAMP", "DATE"):
            at += 1
        last = at
        if at < len(self.tokens) and self.tokens[at].is_name:
            last = self._text.name_at(at)[1]
        last = self._text.closer.get(last, last if last == at else -1)
        if not at <= last < len(self.tokens):
            assert isinstance(route[0], int)
            self.unclear.add(route[0])
            return route
        return (*route, self.tokens[last].end, "relation")

    # --- What isn't a name ---

    def _call(self, name: str, bracket: int) -> None:
        """Note a function that is called, and the table in the arguments of some."""
        self.functions.add(name)
        name = without_builtin(name)
        if name not in CHANGE_FEEDS:
            return
        first, end = bracket + 1, self._text.closer.get(bracket, len(self.tokens))
        last = first
        while last < end and not (
            self._text.word(last) == "," and self._text.opener[last] == bracket
        ):
            last += 1
        if last == first:
            return
        where = (self.tokens[first].start, self.tokens[last - 1].end, "functionArgs", "0")
        token = self.tokens[first]
        if last > first + 1 or token.kind is not TokenKind.STRING:
            self.found.append(Relation(RelationPlace.COMPUTED, where, literal=name))
        elif name == "table_changes":
            self.found.append(Relation(RelationPlace.STRING, where, literal=token.value))
        else:
            self.found.append(Relation(RelationPlace.STRING, where, path=token.value))

    def _computed(self, at: int, word: str, start: int) -> bool:
        """Collect ``IDENTIFIER(…)`` or ``EXECUTE IMMEDIATE …``; False if it is neither."""
        if word == "IDENTIFIER":
            end = self._text.closer.get(at + 1) if self._text.word(at + 1) == "(" else None
            if end is None or end == at + 2:
                return False
            if self._text.word(at - 1) == "AS":
                # A name that the statement itself gives.
                return True
            first = self.tokens[at + 2]
            span = (first.start, self.tokens[end - 1].end)
            position = self._positions.of_name(at, end + 1, start)
            if position is None and self._text.word(end + 1) == "(":
                # What is called may be a function in SQL, or read the changes of a table.
                self.computed_functions.append(Relation(RelationPlace.COMPUTED, span))
                return True
            operations = () if position is None else position[1]
            found = Relation(RelationPlace.COMPUTED, span, operations=operations)
            if end == at + 3 and first.kind is TokenKind.STRING:
                name = parse_name(first.value) or ()
                if name and not operations and self._text.is_hidden(name, at):
                    # Lines of Spark differ in whether it means the query or the table.
                    self.others.append(name)
                    return True
                found = Relation(
                    RelationPlace.STRING, span, operations=operations, literal=first.value
                )
            self._add(found, start)
            return True
        if self._text.word(at - 1) != "EXECUTE" or at + 1 >= len(self.tokens):
            return False
        end, around = at + 1, self._text.opener[at]
        while end < len(self.tokens) and not (
            self._text.opener[end] == around and self._text.word(end) in ("INTO", "USING", ";", ")")
        ):
            end += 1
        token = self.tokens[at + 1]
        is_literal = end == at + 2 and token.kind is TokenKind.STRING
        self.found.append(
            Relation(
                RelationPlace.STATEMENT,
                (token.start, self.tokens[end - 1].end, "sqlStmtStr"),
                literal=token.value if is_literal else None,
            )
        )
        return True

    def _string(self, at: int, start: int) -> None:
        """Collect a path in a string, if the words before it say that it is a table's."""
        before, path = self._text.word(at - 1), self.tokens[at].value
        if before in ("VACUUM", "OPTIMIZE", "DETAIL", "HISTORY"):
            operations: tuple[str, ...] = () if before in ("DETAIL", "HISTORY") else (before,)
            if before == "VACUUM":
                operations = self._positions.vacuum(at + 1)
            self._add(Relation(RelationPlace.STRING, (), path=path, operations=operations), start)
        elif before == "LOCATION":
            # Strings beside each other are one.
            following = itertools.takewhile(
                lambda each: each.kind is TokenKind.STRING, self.tokens[at:]
            )
            self._location("".join(each.value for each in following), start)
        elif self._is_path_option(at) and self._provider(start):
            span = (self.tokens[start].start, len(self._whole), "options")
            self._add(Relation(RelationPlace.STRING, span), start)

    def _unknown_string(self, at: int, start: int) -> None:
        """Note a path that is given by a parameter whose value isn't known."""
        first = at
        while first > 0 and self.tokens[first - 1].kind is TokenKind.STRING:
            first -= 1
        before = self._text.word(first - 1)
        is_path = before in ("VACUUM", "OPTIMIZE", "DETAIL", "HISTORY") or (
            (before == "LOCATION" or self._is_path_option(first)) and self._provider(start)
        )
        if is_path:
            begin, end = self.tokens[first].start, self.tokens[at].end
            self.computed_paths.append(self._whole[begin:end])

    def _location(self, path: str, start: int) -> None:
        head = [self._text.word(each) for each in range(start, min(start + 8, len(self.tokens)))]
        words = {self._text.word(each) for each in range(start, self._text.end_of_group(start))}
        relation = Relation(RelationPlace.STRING, (), path=path)
        if "ALTER" in head or "LIKE" in words:
            self.renamed.append(relation)
        elif "TABLE" in head and "CLONE" in words:
            self._add(Relation(RelationPlace.STRING, (), path=path, operations=("CLONE",)), start)
        elif "TABLE" in head and self._provider(start):
            creates = Relation(RelationPlace.STRING, (), path=path, operations=("CREATE TABLE",))
            self._add(creates, start)

    def _provider(self, start: int) -> bool:
        """Return True if a statement creates something of Delta's."""
        for at in range(start, self._text.end_of_group(start)):
            if self._text.word(at) == "USING" and at + 1 < len(self.tokens):
                return is_delta_format(".".join(self._text.name_at(at + 1)[0]))
        return is_delta_format(self._default)

    def _is_path_option(self, at: int) -> bool:
        around = self._text.opener[at]
        name = at - 2 if self._text.word(at - 1) == "=" else at - 1
        is_named = name >= 0 and self.tokens[name].value.lower() == "path"
        return is_named and around >= 0 and self._text.word(around - 1) == "OPTIONS"


def may_have_a_query(expression: str) -> bool:
    """Return True if the text of an expression may have a query in it, or a computed name."""
    words = ("SELECT", "TABLE", "FROM", "IDENTIFIER")
    return "${" in expression or any(token.is_word(*words) for token in tokens(expression))


def functions_called(expression: str) -> frozenset[str]:
    """Return the functions that the text of an expression calls, in lower case."""
    found = token_statement(expression)
    return frozenset() if found is None else found.statement.functions
