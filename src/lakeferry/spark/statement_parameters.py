"""Puts the values of parameters into SQL texts, as Spark 4.1 and newer do before they parse them.

A parameter may then stand wherever SQL has a literal: ``LOCATION :path``, ``VERSION AS OF ?``.
Older lines of Spark bind parameters after parsing, in expressions only, and newer ones do so with
the setting :data:`BOUND_LATER`. A parser that an extension brings may also ignore the values (that
of Delta Lake does, https://github.com/delta-io/delta/issues/7640) or have rules of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakeferry.engines.spark.spark_calls import spark_line
from lakeferry.spark.jvm_refusals import JVM_SAYS_NO
from lakeferry.spark.redirected_path import computed_when_it_runs
from lakeferry.spark.sql_tokens import SqlToken, TokenKind
from lakeferry.spark.statement_tables import PLAIN_QUERIES
from lakeferry.spark.table_locations import active

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOUND_LATER = "spark.sql.legacy.parameterSubstitution.constantsOnly"
"""The setting with which Spark binds parameters after parsing, as before 4.1."""


def bound_text(spark: SparkSession, text: str, args: Any) -> str | None:
    """Return a text with the values of its parameters; ``None`` if Spark parses it without them.

    Raises :class:`~lakeferry.errors.RedirectNotFollowed` for a command that the session's own
    parser understands only with its parameters, in a way that we can't repeat.
    """
    if not args or not spark_line().binds_in_text or spark.conf.get(BOUND_LATER, None) == "true":
        return None
    session: Any = spark
    parser = session._jsparkSession.sessionState().sqlParser()
    # Settings are those of the thread's active session.
    with active(spark):
        try:
            values = _values(session, args)
        except JVM_SAYS_NO:
            # Spark reports what is wrong with a value.
            return None
        text = substituted(session, text)
        found = _replaced(session, text, values)
        if found is not None or _parses(parser.parsePlan, text) is not None:
            return found
        plan = _parses(parser.parsePlanWithParameters, text, values)
    # What a query reads is checked after its analysis.
    if plan is not None and plan.getClass().getSimpleName() not in PLAIN_QUERIES:
        raise computed_when_it_runs(text)
    return None


def substituted(session: Any, text: str) -> str:
    """Return a text in which variables such as ``${name}`` are replaced by their values."""
    if "${" not in text:
        return text
    variables = session._jvm.org.apache.spark.sql.internal.VariableSubstitution()
    return str(variables.substitute(text))


def parameters_in(found: Sequence[SqlToken]) -> list[tuple[int, str]]:
    """Return where parameters begin among a text's tokens, with their names; empty for ``?``.

    What follows a colon may also be a field of a value, or the type of one.
    """
    marks = []
    for at, token in enumerate(found):
        if token.kind is not TokenKind.MARK:
            continue
        if token.value == "?":
            marks.append((at, ""))
        elif token.value == ":" and found[at + 1 : at + 2] and found[at + 1].is_name:
            is_cast = at > 0 and found[at - 1].value == ":" and found[at - 1].end == token.start
            if not is_cast:
                marks.append((at, found[at + 1].value))
    return marks


def with_values(found: Sequence[SqlToken], args: Any) -> tuple[list[SqlToken], frozenset[int]]:
    """Return a text's tokens with one token for each parameter, and which have no known value.

    A parameter whose value is a string becomes a string; any other one is like a number.
    """
    marks = dict(parameters_in(found))
    values: Iterator[Any] = iter(args if isinstance(args, list | tuple) else ())
    named = args if isinstance(args, Mapping) else {}
    replaced: list[SqlToken] = []
    unknown = set()
    at = 0
    while at < len(found):
        token, name = found[at], marks.get(at)
        at += 1
        if name is not None:
            value = named.get(name) if name else next(values, None)
            last = found[at] if name else token
            at += 1 if name else 0
            is_text = isinstance(value, str)
            kind = TokenKind.STRING if is_text else TokenKind.NUMBER
            if not is_text:
                unknown.add(len(replaced))
            token = SqlToken(kind, token.start, last.end, str(value) if is_text else "")
        replaced.append(token)
    return replaced, frozenset(unknown)


def _values(session: Any, args: Any) -> Any:
    """Return what Spark's parser takes as the values of parameters."""
    from pyspark.sql.classic.column import _to_java_column
    from pyspark.sql.functions import lit

    jvm, made = session._jvm, session._jsparkSession
    contexts = jvm.org.apache.spark.sql.catalyst.parser
    names = list(args) if isinstance(args, dict) else [f"_pos_{at}" for at in range(len(args))]
    given = args.values() if isinstance(args, dict) else args
    expressions = jvm.java.util.HashMap()
    for name, value in zip(names, given, strict=True):
        expressions.put(name, made.expression(_to_java_column(lit(value))))
    known = made.resolveAndValidateParameters(jvm.PythonUtils.toScalaMap(expressions))
    if isinstance(args, dict):
        return contexts.NamedParameterContext(known)
    in_order = [known.apply(name) for name in names]
    return contexts.PositionalParameterContext(jvm.PythonUtils.toSeq(in_order))


def _replaced(session: Any, text: str, values: Any) -> str | None:
    """Return a text in which Spark replaced the parameters; ``None`` if it can't read it."""
    handler = session._jvm.org.apache.spark.sql.catalyst.parser.ParameterHandler
    found = _parses(handler.substituteParameters, text, values)
    return None if found is None else str(found._1())


def _parses(parse: Any, *given: Any) -> Any | None:
    try:
        return parse(*given)
    except JVM_SAYS_NO:
        return None
