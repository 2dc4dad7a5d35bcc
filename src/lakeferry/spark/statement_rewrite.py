"""Replaces tables in the text of a SQL statement."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakeferry.errors import RedirectNotFollowed
from lakeferry.spark.jvm_refusals import JVM_SAYS_NO
from lakeferry.spark.redirected_path import NewPlace
from lakeferry.spark.sql_tokens import (
    CATALOG,
    SqlToken,
    TokenKind,
    is_delta_format,
    path_of,
    spell_path,
    spell_string,
    tokens,
)
from lakeferry.spark.statement_parameters import substituted
from lakeferry.spark.statement_tables import (
    PLAIN_QUERIES,
    Nodes,
    Relation,
    RelationPlace,
    Statement,
    read_tree,
)
from lakeferry.spark.table_locations import active, items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHANGES = "DeltaCDFRelation"
"""The class in which delta-spark reads the change feed of a table."""
_TOO_DEEP = ("StackOverflowError", "FAILED_TO_PARSE_TOO_COMPLEX")
_NO_ORIGIN: tuple[type[Exception], ...] = (*JVM_SAYS_NO, TypeError)
_COMMA_IN_A_NAME = re.compile(r"`[^`]*, [^`]*`|IDENTIFIER", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Replaces the text from ``start`` to ``end``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text, the nodes of its plan from Spark's parser, and the relations in it.

    ``text`` is the one that was parsed: variables such as ``${name}`` are already replaced.
    """

    text: str
    nodes: Nodes
    statement: Statement

    def tokens(self) -> Sequence[SqlToken]:
        """Return the tokens of the text."""
        return tokens(self.text)

    def expression(self, relation: Relation) -> str | None:
        """Return the text of the expression that computes a name or a statement."""
        span = self._expression_span(relation)
        return None if span is None else self.text[slice(*span)]

    def is_call(self, relation: Relation) -> bool:
        """Return True if a computed name is that of a function: ``IDENTIFIER(…)(…)``."""
        is_computed = relation.place is RelationPlace.COMPUTED and relation.literal is None
        span = self._expression_span(relation) if is_computed else None
        if span is None:
            return False
        following = [token.value for token in self.tokens() if token.start >= span[1]][:2]
        return following == [")", "("]

    def parameter(self, relation: Relation) -> int | None:
        """Return the index of the positional parameter, if the expression is just that."""
        span = self._expression_span(relation)
        if span is None or self.text[slice(*span)] != "?":
            return None
        at = self.statement.parameters
        return at.index(span[0]) if span[0] in at else None

    def option_path(self, relation: Relation) -> str | None:
        """Return the option ``path`` of a view that has options."""
        found = self._path_option(relation)
        return None if found is None else "".join(token.value for token in found)

    def edits(
        self, relation: Relation, place: NewPlace, name: Sequence[str] = ()
    ) -> list[TextEdit]:
        """Return the edits that make the text name another place; empty if that is impossible.

        ``name`` is the table's full name: columns may be qualified with it.
        """
        if place.travels and relation.place is not RelationPlace.QUERY:
            # Only a table in a query can be followed by a version.
            return []
        if relation.place is RelationPlace.STRING:
            return self._edit_string(relation, place)
        if relation.place is RelationPlace.COMPUTED:
            if relation.literal == "table_changes_by_path":
                return self._edit_changes_by_path(relation, place)
            found = self._edit_identifier(relation, place)
            return found or self._edit_expression(relation, spell_string(place.identifier))
        path = path_of(relation.names[0])
        if path is not None and not place.name:
            found = self._edit_path(path, place.path)
            if found:
                return found
        if relation.place is RelationPlace.STREAM:
            # A stream has a name and no path; the word STREAM stays.
            span = self._find_name(relation.names, self._span(relation.route))
            return [] if span is None or not place.name else [TextEdit(*span, place.identifier)]
        if path is not None and place.name:
            # The new name gets the path as its alias, so that columns can still be qualified.
            name = (CATALOG, "delta", path)
        qualifiers = self._qualifiers(name)
        alias = self._alias(relation, name, qualifiers)
        found = [] if alias is None else self._edit_name(relation, place, alias)
        if found:
            found += [TextEdit(start, end, spell_path(str(alias))) for start, end in qualifiers]
        return found

    def edit_statement(self, relation: Relation, text: str) -> list[TextEdit]:
        """Return the edits that give EXECUTE IMMEDIATE or a cursor another text."""
        if relation.place is not RelationPlace.CURSOR:
            return self._edit_expression(relation, spell_string(text))
        span, query = self._span(relation.route), relation.literal or ""
        # In a cursor's declaration only FOR READ ONLY can follow the query.
        start = -1 if span is None else self.text.rfind(query, *span)
        return [] if start < 0 else [TextEdit(start, start + len(query), text)]

    def _edit_expression(self, relation: Relation, text: str) -> list[TextEdit]:
        span = self._expression_span(relation)
        return [] if span is None else [TextEdit(*span, text)]

    def _edit_identifier(self, relation: Relation, place: NewPlace) -> list[TextEdit]:
        """Replace a whole ``IDENTIFIER(…)``: Spark 3.5 finds no table by a path that is in it."""
        span = self._span(relation.route)
        if span is None:
            return []
        found = self.tokens()
        before = [token for token in found if token.end <= span[0]][-2:]
        after = [token for token in found if token.start >= span[1]][:1]
        around = [token.value.upper() for token in (*before, *after)]
        if around != ["IDENTIFIER", "(", ")"]:
            return []
        return [TextEdit(before[0].start, after[0].end, place.identifier)]

    def _edit_path(self, path: str, place: str) -> list[TextEdit]:
        """Replace a path in all places where it is a name or qualifies a column."""
        found = self.tokens()
        edits = []
        for at, token in enumerate(found):
            if token.kind is not TokenKind.QUOTED or token.value != path:
                continue
            before = [each.value.lower() for each in found[max(0, at - 2) : at]]
            after = [each.value for each in found[at + 1 : at + 2]]
            if before == ["delta", "."] or (before[-1:] != ["."] and after == ["."]):
                edits.append(TextEdit(token.start, token.end, spell_path(place)))
        return edits

    def _edit_name(self, relation: Relation, place: NewPlace, known_as: str) -> list[TextEdit]:
        span = self._span(relation.route)
        if span is None:
            span = self._find_name(relation.names)
            return [] if span is None or place.travels else [TextEdit(*span, place.identifier)]
        start, end = span
        table = place.in_query
        alias = spell_path(known_as)
        if relation.place is RelationPlace.TARGET:
            return [TextEdit(start, end, f"{table} AS {alias}")]
        if relation.place is RelationPlace.NAME or self._follows_keyword(start):
            return [TextEdit(start, end, table)]
        between = ""
        if relation.route[-1:] == ("relation",):
            # Time travel is part of the table, and its alias follows it.
            whole = self._span(relation.route[:-1])
            if whole is not None and whole[1] > end:
                between, end = self.text[end : whole[1]], whole[1]
        # After parentheses the user's own alias, a sample or a pivot may follow.
        return [TextEdit(start, end, f"({table}{between} AS {alias})")]

    def _qualifiers(self, name: Sequence[str]) -> list[tuple[int, int]]:
        """Return the positions where columns are qualified with a table's name and schema."""
        whole = [part.lower() for part in name]
        found = self.tokens()
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
        """Return the alias to give the new place, so that columns can still be qualified.

        Usually this is the table's own name. If columns are qualified with name and schema,
        another schema may have a table of the same name, so the alias is both parts in one name.
        ``None`` if the text uses both forms and the short one may mean another table.
        """
        short = relation.names[0][-1]
        if not qualifiers:
            return short
        found = self.tokens()
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
        """Return the positions where a table itself is named, by its whole name or a part."""
        whole = [part.lower() for part in name]
        spans = [
            self._span(each.route)
            for each in self.statement.relations
            if len(each.names) == 1
            and whole[-len(each.names[0]) :] == [part.lower() for part in each.names[0]]
        ]
        return [span for span in spans if span is not None]

    def _edit_string(self, relation: Relation, place: NewPlace) -> list[TextEdit]:
        if relation.literal is not None:
            found = self._edit_identifier(relation, place)
            return found or self._edit_expression(relation, spell_string(place.identifier))
        if relation.route[-2:-1] == ("functionArgs",):
            return self._edit_changes_by_path(relation, place)
        is_option = relation.route[-1:] == ("options",)
        if place.name and (is_option or not relation.route):
            # An option or a LOCATION can be nothing but a path.
            return []
        new = place.identifier if place.name else spell_string(place.path)
        if is_option:
            option = self._path_option(relation)
            return [] if option is None else [TextEdit(option[0].start, option[-1].end, new)]
        return [
            TextEdit(pieces[0].start, pieces[-1].end, new)
            for pieces in _string_runs(self.tokens())
            if "".join(piece.value for piece in pieces) == relation.path
        ]

    def _edit_changes_by_path(self, relation: Relation, place: NewPlace) -> list[TextEdit]:
        """Replace the first argument of ``table_changes_by_path``.

        A table that has only a name is read by ``table_changes``.
        """
        if not place.name:
            return self._edit_expression(relation, spell_string(place.path))
        argument = self._span(relation.route)
        before = [each for each in self.tokens() if argument and each.end <= argument[0]][-2:]
        if argument is None or len(before) < 2 or not before[0].is_word("TABLE_CHANGES_BY_PATH"):
            return []
        start, end = before[0].start, before[0].end
        return [
            TextEdit(start, end, "table_changes"),
            TextEdit(*argument, spell_string(place.identifier)),
        ]

    def _path_option(self, relation: Relation) -> list[SqlToken] | None:
        """Return the string tokens of the option ``path`` of a view; nearly always one."""
        start, end = self._span(relation.route[:-1]) or (0, len(self.text))
        found = [each for each in self.tokens() if start <= each.start < end]
        for at, token in enumerate(found):
            before = [each for each in found[max(0, at - 2) : at] if each.value != "="]
            if token.kind is TokenKind.STRING and before and before[-1].value.lower() == "path":
                following = itertools.takewhile(
                    lambda each: each.kind is TokenKind.STRING, found[at:]
                )
                return list(following)
        return None

    def _find_name(
        self, names: Sequence[tuple[str, ...]], span: tuple[int, int] | None = None
    ) -> tuple[int, int] | None:
        """Return the first position of a name after the first word of the statement or span."""
        start, end = (0, len(self.text)) if span is None else span
        found = [each for each in self.tokens() if start <= each.start < end]
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
        """Return True if only a name can stand there, as in ``TABLE name``."""
        before = [token for token in self.tokens() if token.end <= start][-2:]
        while before and before[-1].value == "(" and len(before) > 1:
            before.pop()
        return bool(before) and before[-1].is_word("TABLE")

    def _expression_span(self, relation: Relation) -> tuple[int, int] | None:
        """Return where an expression is.

        In Spark 4.0 the text of EXECUTE IMMEDIATE has no position, only the statement has one:
        the text is a literal or a name, up to ``INTO``, ``USING`` or the statement's end.
        """
        span = self._span(relation.route)
        if relation.place is not RelationPlace.STATEMENT or relation.route[-1:] == ("sqlStmtStr",):
            return span
        if span is None:
            return None
        found = [each for each in self.tokens() if span[0] <= each.start < span[1]]
        starts = [at for at, each in enumerate(found) if each.is_word("IMMEDIATE")]
        if not starts:
            return None
        given = found[starts[0] + 1 :]
        is_end = (each.is_word("INTO", "USING") or each.value == ";" for each in given)
        given = given[: next((at for at, ends in enumerate(is_end) if ends), len(given))]
        return (given[0].start, given[-1].end) if given else None

    def _span(self, route: tuple[Any, ...]) -> tuple[int, int] | None:
        try:
            origin = self.nodes.at(route).origin()
            start, stop = origin.startIndex(), origin.stopIndex()
            if start.isEmpty() or stop.isEmpty():
                return None
            return int(start.get()), int(stop.get()) + 1
        except _NO_ORIGIN:
            return None


def _string_runs(found: Sequence[SqlToken]) -> Iterator[list[SqlToken]]:
    """Yield the strings of a text; those that follow each other are one."""
    for is_string, run in itertools.groupby(found, lambda token: token.kind is TokenKind.STRING):
        if is_string:
            yield list(run)


def parse_statement(spark: SparkSession, text: str) -> Parsed | None:
    """Parse a text with Spark's parser; return ``None`` if the parser doesn't understand it.

    ``None`` is also returned for queries whose plans are too deep to search: the tables that
    they read are checked after analysis. Any other statement that is too deep is refused,
    because Spark may have more stack left when it runs the statement.
    """
    session: Any = spark
    try:
        # Settings, such as the meaning of double quotes, are those of the thread's active session.
        with active(spark):
            text = substituted(session, text)
            plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except JVM_SAYS_NO as failed:
        if any(reason in str(failed) for reason in _TOO_DEEP):
            raise _too_deep() from failed
        return None
    try:
        tree = tree_of(plan)
    except JVM_SAYS_NO as failed:
        if plan.getClass().getSimpleName() in PLAIN_QUERIES:
            return None
        raise _too_deep() from failed
    default = ""
    if "LOCATION" in text.upper() or "OPTIONS" in text.upper():
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
        "the tables that this statement reads can't be determined",
        cause="its expressions or queries are nested too deep for the stack of Spark's driver",
        remedy="divide it into several statements, or give the driver a larger stack "
        "(spark.driver.extraJavaOptions=-Xss16m)",
    )


def edited(text: str, edits: Sequence[TextEdit]) -> str:
    """Return the text with its edits applied; equal edits of one place are applied once."""
    pieces, end = [], 0
    for edit in sorted(set(edits), key=lambda each: (each.start, -each.end)):
        if edit.start >= end:
            pieces += [text[end : edit.start], edit.text]
            end = edit.end
    return "".join([*pieces, text[end:]])


def tables_read(plan: Any) -> Iterator[str]:
    """Yield the paths, as Spark spells them, of the Delta tables that an analysed plan reads.

    Tables that a catalog manages are left out: delta-spark opens them by their names only, so
    none of them is read at an old place.
    """
    plans = [plan, *items(plan.subqueriesAll())]
    for leaf in (leaf for each in plans for leaf in items(each.collectLeaves())):
        kind = leaf.getClass().getSimpleName()
        if kind == "StreamingRelation":
            source = leaf.dataSource()
            path = source.options().get("path")
            if is_delta_format(source.className()) and path.isDefined():
                yield path.get()
        elif kind == "LogicalRelation":
            try:
                found = leaf.relation().location()
            except JVM_SAYS_NO:
                # A relation without files of its own: the changes of a table, a JDBC table.
                yield from _table_of_changes(leaf.relation())
                continue
            if ".delta." in found.getClass().getName() and not _is_managed(found):
                yield found.path().toString()
        elif kind == "DataSourceV2Relation" and ".delta." in leaf.table().getClass().getName():
            table = leaf.table()
            if not _is_managed(table.initialSnapshot()):
                yield table.path().toString()


def _table_of_changes(relation: Any) -> Iterator[str]:
    """Yield the path of the table whose changes a relation reads."""
    if not relation.getClass().getName().endswith(_CHANGES):
        return
    snapshot = relation.snapshotWithSchemaMode().snapshot()
    if not _is_managed(snapshot):
        yield snapshot.path().getParent().toString()


def _is_managed(snapshot: Any) -> bool:
    """Return True if the catalog of a Delta table decides about its commits."""
    try:
        return bool(snapshot.isCatalogOwned())
    except JVM_SAYS_NO:
        # An older delta-spark, which can't open such tables.
        return False
