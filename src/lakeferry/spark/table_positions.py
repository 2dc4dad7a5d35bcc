"""Decides by the words around a name in a SQL text, how the statement uses the table.

``FROM``, ``JOIN``, ``INTO`` and others come before a table. Such a list can miss a form of
statement; what is done about that says :mod:`lakeferry.spark.connect_sql`.
"""

from __future__ import annotations

import itertools

from lakeferry.spark.sql_structure import SqlStructure
from lakeferry.spark.statement_tables import RelationPlace

TablePosition = tuple[RelationPlace, tuple[str, ...]]
"""How a table is named there, and the operations that the statement commits to it."""


def _keywords(text: str) -> frozenset[str]:
    return frozenset(text.split())


QUERY_WORDS = _keywords("SELECT FROM TABLE VALUES WITH")
"""Words with which a query begins."""
RESERVED_WORDS = _keywords(
    "ALL AND ANY AS ASC BETWEEN BOTH BY CASE CAST CROSS DELETE DESC DISTINCT ELSE END EXCEPT "
    "EXISTS FALSE FROM FULL GROUP HAVING IN INNER INSERT INTERSECT INTO IS JOIN LEFT LIKE LIMIT "
    "NATURAL NOT NULL ON OR ORDER OUTER OVER RIGHT SELECT SET TABLE THEN TRUE UNION UPDATE USING "
    "VALUES WHEN WHERE WITH"
)
"""Words of SQL that name a table, if at all, behind one of the words that come before tables."""
_CLAUSES = _keywords(
    "SELECT FROM WHERE GROUP ORDER HAVING VALUES SET BY LIMIT WINDOW PARTITION CLUSTER DISTRIBUTE "
    "SORT VIEW PIVOT UNPIVOT INTO UPDATE QUALIFY"
)
"""Words after one of which a comma separates what that clause lists."""
_TAKE_FROM = _keywords("EXTRACT TRIM SUBSTRING SUBSTR OVERLAY POSITION")
"""Functions in whose arguments FROM is a word of their own."""
_NO_ALIAS = _keywords("SET WHERE USING ON WHEN")
_ABOUT_A_TABLE = _keywords(
    "DESCRIBE DESC DETAIL HISTORY EXTENDED FORMATTED CLONE TBLPROPERTIES LIKE"
)
_TABLE_STATEMENTS = {
    "TRUNCATE": ("TRUNCATE",),
    "REORG": ("REORG",),
    "RESTORE": ("RESTORE",),
    "ON": ("SET TBLPROPERTIES",),
}
"""Operations by the word before TABLE."""
_CATALOG_ONLY = _keywords("DROP REFRESH ANALYZE REPAIR UNDROP")
"""Words before TABLE of statements that only concern the catalog."""
_ALTERATIONS = {
    "ADD COLUMN": "ADD COLUMNS",
    "ADD COLUMNS": "ADD COLUMNS",
    "DROP COLUMN": "DROP COLUMNS",
    "DROP COLUMNS": "DROP COLUMNS",
    "RENAME COLUMN": "RENAME COLUMN",
    "ALTER COLUMN": "CHANGE COLUMN",
    "CHANGE COLUMN": "CHANGE COLUMN",
    "REPLACE COLUMNS": "REPLACE COLUMNS",
    "ADD CONSTRAINT": "ADD CONSTRAINT",
    "DROP CONSTRAINT": "DROP CONSTRAINT",
    "DROP FEATURE": "DROP FEATURE",
    "SET TBLPROPERTIES": "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES": "UNSET TBLPROPERTIES",
    "CLUSTER BY": "CLUSTER BY",
}


class TablePositions:
    """The places of a text at which tables are named."""

    def __init__(self, text: SqlStructure) -> None:
        self._text = text

    def of_name(self, at: int, end: int, start: int) -> TablePosition | None:
        """Return how the words before a name say that it is a table; ``None`` if they don't."""
        before = self._text.word(at - 1)
        if before == "TABLE" or (before == "EXISTS" and self._text.word(at - 2) in ("IF", "NOT")):
            return self._after_table(at, end)
        if before == "FROM":
            return self._after_from(at, end)
        if before == "JOIN" or (before in (",", "(") and self._is_in_from(at)):
            is_table = self._text.word(end) != "(" and self._text.word(at) not in QUERY_WORDS
            return (RelationPlace.QUERY, ()) if is_table else None
        if before == "STREAM" or (before == "(" and self._text.word(at - 2) == "STREAM"):
            return RelationPlace.STREAM, ()
        if before == "INTO":
            return self._after_into(at, end)
        if before == "OVERWRITE":
            return RelationPlace.NAME, ("WRITE",)
        if before == "UPDATE" and self._text.word(at) != "SET":
            return self._changed(end), ("UPDATE",)
        if before == "USING" and self._merges(at, start):
            return self._changed(end), ()
        if before == "VACUUM":
            return RelationPlace.NAME, self.vacuum(end)
        if before in ("OPTIMIZE", "RESTORE") and self._text.word(at) != "TABLE":
            return RelationPlace.NAME, (before,)
        if before in _ABOUT_A_TABLE and self._text.word(at) not in _ABOUT_A_TABLE | {"TABLE"}:
            return RelationPlace.NAME, ()
        return None

    def _after_table(self, at: int, end: int) -> TablePosition | None:
        table = self.table_word(at)
        if self._text.word(table) != "TABLE":
            return None
        before = self._text.word(table - 1)
        if before in ("INTO", "OVERWRITE"):
            return RelationPlace.NAME, ("WRITE",)
        if before in _CATALOG_ONLY or (self._text.word(table - 2), before) == ("SHOW", "CREATE"):
            return None
        if before in ("CREATE", "REPLACE", "EXTERNAL"):
            return RelationPlace.NAME, (self._creation(table, end),)
        if before == "ALTER":
            if self.is_moved(at, end):
                return None
            words = f"{self._text.word(end)} {self._text.word(end + 1)}"
            return RelationPlace.NAME, (_ALTERATIONS.get(words, "ALTER TABLE"),)
        return RelationPlace.NAME, _TABLE_STATEMENTS.get(before, ())

    def is_moved(self, at: int, end: int) -> bool:
        """Return True if a statement renames the table, or changes its place or its partitions."""
        table = self.table_word(at)
        if (self._text.word(table - 1), self._text.word(table)) != ("ALTER", "TABLE"):
            return False
        words = f"{self._text.word(end)} {self._text.word(end + 1)}"
        return words in ("RENAME TO", "SET LOCATION") or "PARTITION" in words

    def table_word(self, at: int) -> int:
        """Return where the word TABLE before a name is, if it is there."""
        table = at - 1
        while self._text.word(table) in ("EXISTS", "NOT", "IF"):
            table -= 1
        return table

    def _creation(self, table: int, end: int) -> str:
        """Return the operation of a statement that creates or replaces a table."""
        rest = [self._text.word(each) for each in range(end, self._text.end_of_group(table))]
        if "CLONE" in rest:
            return "CLONE"
        replaces = self._text.word(table - 1) == "REPLACE"
        verb = "CREATE OR REPLACE" if replaces and self._text.word(table - 2) == "OR" else "CREATE"
        if replaces and verb == "CREATE":
            verb = "REPLACE"
        selects = any(
            word == "AS" and following in QUERY_WORDS | {"("}
            for word, following in itertools.pairwise(rest)
        )
        return f"{verb} TABLE AS SELECT" if selects else f"{verb} TABLE"

    def _after_from(self, at: int, end: int) -> TablePosition | None:
        before = self._text.word(at - 2)
        if before == "DELETE":
            return self._changed(end), ("DELETE",)
        around = self._text.opener[at]
        if before == "DISTINCT" and self._text.word(at - 3) in ("IS", "NOT"):
            return None
        if around >= 0 and self._text.word(around - 1) in _TAKE_FROM:
            return None
        if before in ("COLUMNS", "PARTITIONS"):
            return RelationPlace.NAME, ()
        return None if self._text.word(end) == "(" else (RelationPlace.QUERY, ())

    def _after_into(self, at: int, end: int) -> TablePosition | None:
        before = self._text.word(at - 2)
        if before == "EVOLUTION":
            # WITH SCHEMA EVOLUTION
            before = self._text.word(at - 5)
        if before in ("INSERT", "COPY"):
            return RelationPlace.NAME, ("WRITE",)
        if before == "MERGE":
            return self._changed(end), ("MERGE",)
        return None

    def _changed(self, end: int) -> RelationPlace:
        """Return how UPDATE, DELETE and MERGE name a table: with an alias or without."""
        has_alias = end < len(self._text.tokens) and self._text.tokens[end].is_name
        if has_alias and self._text.word(end) not in _NO_ALIAS:
            return RelationPlace.NAME
        return RelationPlace.TARGET

    def _merges(self, at: int, start: int) -> bool:
        return any(self._text.word(each) == "MERGE" for each in range(start, at))

    def vacuum(self, end: int) -> tuple[str, ...]:
        """Return what VACUUM commits to the table whose name or path ends before a token."""
        rest = [self._text.word(each) for each in range(end, self._text.end_of_group(end - 1))]
        return () if "DRY" in rest else ("VACUUM START", "VACUUM END")

    def _is_in_from(self, at: int) -> bool:
        """Return True if a name after a comma or a bracket is in a list of tables."""
        here = at - 1
        while self._text.word(here) == "(":
            here -= 1
            if self._text.word(here) in ("FROM", "JOIN"):
                return True
        if self._text.word(here) != ",":
            return False
        around, each = self._text.opener[here], here - 1
        closed = {end: begin for begin, end in self._text.closer.items()}
        while each > around:
            each = closed.get(each, each)
            if self._text.word(each) in _CLAUSES:
                return self._text.word(each) == "FROM"
            each -= 1
        # A list in brackets after FROM: ``FROM (a JOIN b, c)``.
        return around >= 0 and self._is_in_from(around + 1)
