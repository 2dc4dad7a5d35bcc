"""Statements as older Sparks parse them; the newest one's parser is asked in tests/compat."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

statement_rewrite = pytest.importorskip("lakeferry.spark.statement_rewrite", exc_type=ImportError)


@dataclass
class Option:
    value: int

    def isEmpty(self) -> bool:  # noqa: N802 - the name is Scala's
        return False

    def get(self) -> int:
        return self.value


@dataclass
class ExecuteImmediate:
    """The node of Spark 4.0: it has a position as a whole, and its text is no node."""

    text: str | None
    end: int

    def at(self, route: tuple[Any, ...]) -> Any:
        return self

    def isLeft(self) -> bool:  # noqa: N802
        return self.text is not None

    def value(self) -> str | None:
        return self.text

    def origin(self) -> Any:
        return self

    def startIndex(self) -> Option:  # noqa: N802
        return Option(0)

    def stopIndex(self) -> Option:  # noqa: N802
        return Option(self.end - 1)


@pytest.mark.parametrize(
    ("text", "literal", "expression", "expected"),
    [
        ("EXECUTE IMMEDIATE 'TABLE t'", "TABLE t", "'TABLE t'", "EXECUTE IMMEDIATE 'new'"),
        (
            "EXECUTE IMMEDIATE /* 'x' */ \"TABLE t\" INTO a USING 1",
            "TABLE t",
            '"TABLE t"',
            "EXECUTE IMMEDIATE /* 'x' */ 'new' INTO a USING 1",
        ),
        ("EXECUTE IMMEDIATE my.query USING 1", None, "my.query", "EXECUTE IMMEDIATE 'new' USING 1"),
    ],
)
def test_the_text_that_spark_4_0_executes_is_found_and_replaced(
    text: str, literal: str | None, expression: str, expected: str
) -> None:
    node = ExecuteImmediate(literal, len(text))
    kind = "org.apache.spark.sql.catalyst.plans.logical.ExecuteImmediateQuery"
    tree = json.dumps([{"class": kind, "num-children": 0, "query": None}])
    statement = statement_rewrite.read_tree(tree, node.at)
    (relation,) = statement.relations
    assert relation.literal == literal
    parsed = statement_rewrite.Parsed(text, node, statement)
    assert parsed.expression(relation) == expression
    found = statement_rewrite.edited(text, parsed.edit_statement(relation, "new"))
    assert found == expected
