"""Replaces tables in the text of a SQL statement."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from lakeferry.errors import RedirectNotFollowed
from lakeferry.spark.relations import (
    PLAIN_QUERIES,
    Nodes,
    Relation,
    RelationPlace,
    Statement,
    read_tree,
)
from lakeferry.spark.sql_tokens import (
    SqlToken,
    TokenKind,
    is_delta,
    path_of,
    spell_path,
    spell_string,
    spell_table,
    tokens,
)
from lakeferry.spark.table_locations import active, items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JVM_SAYS_NO = (Py4JError, PySparkException)
_TOO_DEEP = ("StackOverflowError", "FAILED_TO_PARSE_TOO_COMPLEX")
_COMMA_IN_A_NAME = re.compile(r"`[^`]*, [^`]*`|IDENTIFIER", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Text that stands from ``start`` to ``end`` instead."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text, the nodes of the plan that Spark's parser made of it, and the relations in it.

    The text is the one that was parsed: variables such as ``${name}`` have their values.
    """

    text: str
    nodes: Nodes
    statement: Statement

    def expression(self, relation: Relation) -> str | None:
        """Return the text of the expression that a name or a statement is computed by."""
        span = self._span(relation.route)
        return None if span is None else self.text[slice(*span)]

    def parameter(self, relation: Relation) -> int | None:
        """Return the number of the positional parameter that an expression consists of."""
        span = self._span(relation.route)
        if span is None or self.text[slice(*span)] != "?":
            return None
        at = self.statement.parameters
        return at.index(span[0]) if span[0] in at else None

    def option_path(self, relation: Relation) -> str | None:
        """Return the option ``path`` of a view that has options."""
        found = self._path_option(relation)
        return None if found is None else "".join(token.value for token in found)

    def edits(self, relation: Relation, place: str, name: Sequence[str] = ()) -> list[TextEdit]:
        """Return the edits after which the text names another place; none if that can't be.

        ``name`` is the table's whole name: columns may be called by it.
        """
        if relation.place is RelationPlace.STRING:
            return self._edit_string(relation, place)
        if relation.place is RelationPlace.COMPUTED:
            name = place if relation.literal == "table_changes_by_path" else spell_table(place)
            return self._edit_expression(relation, spell_string(name))
        path = path_of(relation.names[0])
        if path is not None:
            found = self._edit_path(path, place)
            if found:
                return found
        if relation.place is RelationPlace.STREAM:
            return []
        qualifiers = self._qualifiers(name)
        alias = self._alias(relation, name, qualifiers)
        found = [] if alias is None else self._edit_name(relation, place, alias)
        if found:
            found += [TextEdit(start, end, spell_path(str(alias))) for start, end in qualifiers]
        return found

    def edit_statement(self, relation: Relation, text: str) -> list[TextEdit]:
        """Return the edits after which EXECUTE IMMEDIATE or a cursor has another text."""
        if relation.place is not RelationPlace.CURSOR:
            return self._edit_expression(relation, spell_string(text))
        span, query = self._span(relation.route), relation.literal or ""
        # Nothing but FOR READ ONLY can follow the query in the cursor's declaration.
        start = -1 if span is None else self.text.rfind(query, *span)
        return [] if start < 0 else [TextEdit(start, start + len(query), text)]

    def _edit_expression(self, relation: Relation, text: str) -> list[TextEdit]:
        span = self._span(relation.route)
        return [] if span is None else [TextEdit(*span, text)]

    def _edit_path(self, path: str, place: str) -> list[TextEdit]:
        """Replace a path wherever it stands as a name, in front of a column too."""
        found = tokens(self.text)
        edits = []
        for at, token in enumerate(found):
            if token.kind is not TokenKind.QUOTED or token.value != path:
                continue
            before = [each.value.lower() for each in found[max(0, at - 2) : at]]
            after = [each.value for each in found[at + 1 : at + 2]]
            if before == ["delta", "."] or (before[-1:] != ["."] and after == ["."]):
                edits.append(TextEdit(token.start, token.end, spell_path(place)))
        return edits

    def _edit_name(self, relation: Relation, place: str, known_as: str) -> list[TextEdit]:
        span = self._span(relation.route)
        if span is None:
            span = self._find_name(relation.names)
            return [] if span is None else [TextEdit(*span, spell_table(place))]
        start, end = span
        table = spell_table(place)
        alias = spell_path(known_as)
        if relation.place is RelationPlace.TARGET:
            return [TextEdit(start, end, f"{table} AS {alias}")]
        if relation.place is RelationPlace.NAME or self._follows_keyword(start):
            return [TextEdit(start, end, table)]
        between = ""
        if relation.route[-1:] == ("relation",):
            # Time travel belongs to the table, and its alias comes after it.
            whole = self._span(relation.route[:-1])
            if whole is not None and whole[1] > end:
                between, end = self.text[end : whole[1]], whole[1]
        # In parentheses an alias of the user's own, a sample or a pivot may follow.
        return [TextEdit(start, end, f"({table}{between} AS {alias})")]

    def _qualifiers(self, name: Sequence[str]) -> list[tuple[int, int]]:
        """Return where columns are called by a table's name with its schema."""
        whole = [part.lower() for part in name]
        found = tokens(self.text)
        spans = []
        for length in range(len(whole), 1, -1):
            count = 2 * length - 1
            for at in range(len(found) - count - 1):
                pieces = found[at : at + count]
                parts = [piece.value.lower() for piece in pieces[::2] if piece.is_name]
                marks = [piece.value for piece in (*pieces[1::2], found[at + count])]
                is_first = at == 0 or found[at - 1].value != "."
                if is_first and parts == whole[-length:] and set(marks) == {"."}:
                    spans.append((pieces[0].start, pieces[-1].end))
        return spans

    def _alias(
        self, relation: Relation, name: Sequence[str], qualifiers: Sequence[tuple[int, int]]
    ) -> str | None:
        """Return what a table is called by where its new place stands in the text.

        That is its own name. If columns are called by the name with its schema, another
        table may have the same name in another schema: then it is both parts in one name.
        ``None`` if the text calls columns both ways, and the short one may mean another table.
        """
        short = relation.names[0][-1]
        if not qualifiers:
            return short
        found = tokens(self.text)
        meant = [*qualifiers, *self._spans_of(name)]
        alone, others = False, False
        for at, token in enumerate(found):
            if not token.is_name or token.value.lower() != short.lower():
                continue
            if any(start <= token.start < end for start, end in meant):
                continue
            is_first = at == 0 or found[at - 1].value != "."
            is_qualifier = found[at + 1 : at + 2] != [] and found[at + 1].value == "."
            if is_first and is_qualifier:
                alone = True
            else:
                others = True
        if not alone:
            return ".".join(name[-2:])
        return None if others else short

    def _spans_of(self, name: Sequence[str]) -> list[tuple[int, int]]:
        """Return where a table itself is named, by a part of its name or by the whole."""
        whole = [part.lower() for part in name]
        spans = [
            self._span(each.route)
            for each in self.statement.relations
            if len(each.names) == 1
            and whole[-len(each.names[0]) :] == [part.lower() for part in each.names[0]]
        ]
        return [span for span in spans if span is not None]

    def _edit_string(self, relation: Relation, place: str) -> list[TextEdit]:
        if relation.literal is not None:
            return self._edit_expression(relation, spell_string(spell_table(place)))
        if relation.route and relation.route[-1] == "options":
            option = self._path_option(relation)
            if option is None:
                return []
            return [TextEdit(option[0].start, option[-1].end, spell_string(place))]
        if relation.route[-2:-1] == ("functionArgs",):
            return self._edit_expression(relation, spell_string(place))
        return [
            TextEdit(token.start, token.end, spell_string(place))
            for token in tokens(self.text)
            if token.kind is TokenKind.STRING and token.value == relation.path
        ]

    def _path_option(self, relation: Relation) -> list[SqlToken] | None:
        """Return the strings that the option ``path`` of a view consists of, nearly always one."""
        start, end = self._span(relation.route[:-1]) or (0, len(self.text))
        found = [each for each in tokens(self.text) if start <= each.start < end]
        for at, token in enumerate(found):
            before = [each for each in found[max(0, at - 2) : at] if each.value != "="]
            if token.kind is TokenKind.STRING and before and before[-1].value.lower() == "path":
                following = itertools.takewhile(
                    lambda each: each.kind is TokenKind.STRING, found[at:]
                )
                return list(following)
        return None

    def _find_name(self, names: Sequence[tuple[str, ...]]) -> tuple[int, int] | None:
        """Return where a name stands first, behind the statement's first word."""
        found = tokens(self.text)
        for at in range(1, len(found)):
            for name in names:
                pieces = found[at : at + 2 * len(name) - 1]
                parts = tuple(piece.value for piece in pieces[::2] if piece.is_name)
                around = [found[at - 1], *found[at + len(pieces) : at + len(pieces) + 1]]
                if any(token.value == "." for token in around):
                    # It is a part of another name.
                    continue
                if parts == name and all(piece.value == "." for piece in pieces[1::2]):
                    return pieces[0].start, pieces[-1].end
        return None

    def _follows_keyword(self, start: int) -> bool:
        """Tell whether only a name may stand there, as in ``TABLE name``."""
        before = [token for token in tokens(self.text) if token.end <= start][-2:]
        while before and before[-1].value == "(" and len(before) > 1:
            before.pop()
        return bool(before) and before[-1].is_word("TABLE")

    def _span(self, route: tuple[Any, ...]) -> tuple[int, int] | None:
        try:
            origin = self.nodes.at(route).origin()
            start, stop = origin.startIndex(), origin.stopIndex()
            if start.isEmpty() or stop.isEmpty():
                return None
            return int(start.get()), int(stop.get()) + 1
        except (*_JVM_SAYS_NO, TypeError):
            return None


def parse(spark: SparkSession, text: str) -> Parsed | None:
    """Return what Spark's parser makes of a text; ``None`` where it doesn't understand it.

    Queries whose plans are too deep to be looked through are ``None``, too: what they read
    is seen when they are analysed. Any other statement that is too deep is refused, because
    the stack that Spark has left when it runs the statement may be larger.
    """
    session: Any = spark
    try:
        # Settings, such as what double quotes mean, are those of the thread's active session.
        with active(spark):
            if "${" in text:
                text = _substituted(session._jvm, text)
            plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except _JVM_SAYS_NO as failed:
        if any(reason in str(failed) for reason in _TOO_DEEP):
            raise _too_deep() from failed
        return None
    try:
        tree = tree_of(plan)
    except _JVM_SAYS_NO as failed:
        if plan.getClass().getSimpleName() in PLAIN_QUERIES:
            return None
        raise _too_deep() from failed
    default = ""
    if "LOCATION" in text.upper():
        default = spark.conf.get("spark.sql.sources.default") or ""
    is_case_sensitive = False
    if "UnresolvedWith" in tree:
        is_case_sensitive = spark.conf.get("spark.sql.caseSensitive") == "true"
    nodes = Nodes(plan)
    statement = read_tree(
        tree,
        nodes.at,
        exact=not _COMMA_IN_A_NAME.search(text),
        default=default,
        is_case_sensitive=is_case_sensitive,
    )
    return Parsed(text, nodes, statement)


def tree_of(plan: Any) -> str:
    """Return a plan of the JVM as JSON."""
    return str(plan.toJSON())


def _too_deep() -> RedirectNotFollowed:
    return RedirectNotFollowed(
        "which tables this statement reads can't be found out",
        cause="its expressions or queries are nested too deep for the stack of Spark's driver",
        remedy="divide it into several statements, or give the driver a larger stack "
        "(spark.driver.extraJavaOptions=-Xss16m)",
    )


def _substituted(jvm: Any, text: str) -> str:
    """Return a text in which variables such as ``${name}`` have their values."""
    return str(jvm.org.apache.spark.sql.internal.VariableSubstitution().substitute(text))


def edited(text: str, edits: Sequence[TextEdit]) -> str:
    """Return the text with its edits made; two for the same place are one."""
    pieces, end = [], 0
    for edit in sorted(set(edits), key=lambda each: (each.start, -each.end)):
        if edit.start >= end:
            pieces += [text[end : edit.start], edit.text]
            end = edit.end
    return "".join([*pieces, text[end:]])


def tables_read(plan: Any) -> Iterator[str]:
    """Yield the paths, as Spark has them, of the Delta tables that an analysed plan reads."""
    plans = [plan, *items(plan.subqueriesAll())]
    for leaf in (leaf for each in plans for leaf in items(each.collectLeaves())):
        kind = leaf.getClass().getSimpleName()
        if kind == "StreamingRelation":
            source = leaf.dataSource()
            path = source.options().get("path")
            if is_delta(source.className()) and path.isDefined():
                yield path.get()
        elif kind == "LogicalRelation":
            try:
                found = leaf.relation().location()
            except _JVM_SAYS_NO:
                # A relation without files of its own, as JDBC has them.
                continue
            if ".delta." in found.getClass().getName():
                yield found.path().toString()
        elif kind == "DataSourceV2Relation" and ".delta." in leaf.table().getClass().getName():
            yield leaf.table().path().toString()
