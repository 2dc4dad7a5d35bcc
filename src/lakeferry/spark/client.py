"""Follows redirects in the SQL of a Spark session, and checks what its data frames read.

A statement without redirected tables is returned unchanged, so Spark does what it would have done
without us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lakeferry.spark import stored_sql, table_locations
from lakeferry.spark.jvm_refusals import JVM_SAYS_NO
from lakeferry.spark.redirected_path import (
    NewPlace,
    computed_when_it_runs,
    needs_a_path,
    not_followed,
)
from lakeferry.spark.session_tables import SessionTables
from lakeferry.spark.sql_tokens import (
    path_of,
    spell_path,
    tokens,
)
from lakeferry.spark.statement_parameters import bound_text, parameters_in
from lakeferry.spark.statement_rewrite import Parsed, TextEdit, edited, parse_statement, tables_read
from lakeferry.spark.statement_tables import (
    CHANGE_FEEDS,
    Relation,
    RelationPlace,
    without_builtin,
)
from lakeferry.spark.stored_sql import SqlFunction, StoredSql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Names = tuple[tuple[str, ...], ...]
"""The possible readings of a name, as parts."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A SQL text with redirects followed.

    ``is_query`` means that nothing is read before the result is requested. ``known`` are the
    places of the tables in the text that were already checked.
    """

    text: str
    args: Any = None
    is_query: bool = False
    known: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Script:
    """The script that a text belongs to, with the definitions that affect names."""

    changes_namespace: bool
    views: frozenset[str]
    """Temporary views that it creates, in lower case."""

    @classmethod
    def of(cls, parsed: Parsed, around: _Script | None) -> _Script:
        """Return the script of a text's parts; ``around`` is the script that contains the text."""
        own = cls(parsed.statement.changes_namespace, parsed.statement.views)
        if around is None:
            return own
        return cls(around.changes_namespace or own.changes_namespace, around.views | own.views)

    def check_name(self, relation: Relation) -> None:
        """Refuse a name without a schema if the script may change the current schema."""
        if self.changes_namespace and any(len(name) == 1 for name in relation.names):
            raise computed_when_it_runs(".".join(relation.names[0]))


@dataclass(frozen=True, slots=True)
class Client(SessionTables):
    """Follows redirects in the statements and data frames of a Spark session."""

    def sql(self, text: str, args: Any = None, *, is_checked_later: bool = True) -> Followed:
        """Return a SQL text in which every redirected table is at its new place.

        Views and functions of a plain query are checked after Spark has analysed it
        (:meth:`check_read`); those of any other statement are checked here.

        Raises :class:`~lakeferry.errors.RedirectNotFollowed` if the statement would read a
        redirected table at its old place.
        """
        bound = self._bound(text, args)
        if bound is None:
            return self._followed(text, args, None, is_checked_later=is_checked_later)
        followed = self._followed(bound, None, None, is_checked_later=is_checked_later)
        return replace(followed, text=text, args=args) if followed.text == bound else followed

    def _followed(
        self,
        text: str,
        args: Any,
        script: _Script | None,
        *,
        is_checked_later: bool = False,
        is_inner: bool = False,
    ) -> Followed:
        """Return the result of :meth:`sql`.

        ``is_inner`` marks a text that ``EXECUTE IMMEDIATE`` or a cursor runs, as a part of
        ``script`` if there is one. Its parameters get their values later.
        """
        parsed = self._parsed(text, args)
        if parsed is None:
            if is_inner and parameters_in(tokens(text)):
                # With their values, Spark may understand it.
                raise computed_when_it_runs(text)
            # Spark reports what is wrong with the text. If it accepts it, the result is checked.
            return Followed(text, args, is_query=True)
        if is_inner:
            _refuse_parameters(parsed)
        is_later = is_checked_later and parsed.statement.is_query
        script = self._script_of(parsed, text, script)
        known = set[str]()
        moved: dict[tuple[Any, ...], NewPlace] = {}
        looked_up: dict[Relation, tuple[_Names, str, NewPlace | None]] = {}
        edits: list[TextEdit] = []
        for relation in parsed.statement.relations:
            if script is not None:
                script.check_name(relation)
            if relation.place in (RelationPlace.STATEMENT, RelationPlace.CURSOR):
                edits += self._edits_of_statement(parsed, relation, args, script)
                continue
            if not relation.operations and parsed.is_call(relation):
                self._check_computed_function(parsed, relation, args, script)
                continue
            same = relation
            if relation.place is not RelationPlace.COMPUTED and (relation.names or relation.path):
                same = replace(relation, route=())
            if same not in looked_up:
                looked_up[same] = self._found(parsed, relation, args, script, known)
            names, name, place = looked_up[same]
            if place is None:
                self._check_views(names, is_text_only=is_later)
                continue
            views = parsed.statement.views if script is None else script.views
            found = parsed.edits(relation, place, self._whole_name(relation))
            if not found and place.name and relation.place is RelationPlace.STRING:
                raise needs_a_path(name, place, "this statement")
            if not found or name.lower() in views:
                raise not_followed(name, place)
            if relation.names or relation.path is not None:
                moved[_key(relation)] = place
            edits += found
        changed = edited(parsed.text, edits) if edits else parsed.text
        if edits:
            self._check_changed(changed, moved)
        self._check_functions(parsed.statement.functions, known, is_text_only=is_later)
        if not is_later:
            for relation in parsed.statement.computed_functions:
                if parsed.is_call(relation):
                    self._check_computed_function(parsed, relation, args, script)
        args = without_replaced(parsed, edits, args)
        return Followed(changed, args, parsed.statement.is_query, frozenset(known))

    def _script_of(self, parsed: Parsed, text: str, around: _Script | None) -> _Script | None:
        """Return the script that a text belongs to, or is; refuse what it must not create."""
        if around is not None:
            self._check_part(parsed, text)
        elif not parsed.statement.is_script:
            return None
        script = _Script.of(parsed, around)
        self._check_created(parsed, script)
        return script

    def _found(
        self,
        parsed: Parsed,
        relation: Relation,
        args: Any,
        script: _Script | None,
        known: set[str],
    ) -> tuple[_Names, str, NewPlace | None]:
        """Return the possible names of a relation, the one that leads to a table, and its place."""
        names, path = self._named(parsed, relation, args, script)
        return names, *self._looked_up(names, path, relation.operations, known)

    def check_view(self, name: str, frame: DataFrame) -> None:
        """Refuse a view, or a data frame that uses it, if the view reads an old place."""
        parts = self.parts_of(name)
        if parts is not None and self._is_view(parts):
            self._check_view(parts)
            self.check_read(frame)

    def has_subquery(self, frame: DataFrame) -> bool:
        """Return True if an expression of a data frame contains a query."""
        session: Any = self.spark
        frame_of_jvm: Any = frame._jdf
        patterns = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        plan = frame_of_jvm.queryExecution().analyzed()
        return bool(plan.containsPattern(patterns.PLAN_EXPRESSION()))

    def check_read(self, frame: DataFrame, known: Set[str] = frozenset()) -> None:
        """Raise an error if a data frame reads a redirected table at its old place.

        This happens if a view or a function names the table. Tables in ``known`` were already
        checked.
        """
        frame_of_jvm: Any = frame._jdf
        self._check_plan(frame_of_jvm.queryExecution().analyzed(), known)

    def _check_views(self, names: _Names, *, is_text_only: bool) -> None:
        """Raise an error if a view reads a redirected table at its old place."""
        for name in names:
            if not name or not self._is_view(name):
                continue
            self._check_view(name)
            if not is_text_only:
                query = f"TABLE {'.'.join(map(spell_path, name))}"
                self._check_analysed(query, frozenset())

    def _check_functions(self, functions: Set[str], known: Set[str], *, is_text_only: bool) -> None:
        """Raise an error if a function in SQL reads a redirected table at its old place."""
        for name in sorted(functions):
            function = self._stored_function(name)
            if function is None:
                continue
            self._check_stored(function.body)
            if not is_text_only:
                # Analyse the call alone: where the original call stands, variables of a script may
                # be unknown, and some commands hide their queries after analysis.
                self._check_analysed(function.call, known)

    def _check_computed_function(
        self, parsed: Parsed, relation: Relation, args: Any, script: _Script | None
    ) -> None:
        """Raise an error if a function, whose name is computed, reads a table at its old place."""
        name = self._evaluated(parsed, relation, args, script)
        parts = self.parts_of(name) if name else None
        if parts is None:
            return
        function = ".".join(parts).lower()
        if without_builtin(function) in CHANGE_FEEDS:
            raise computed_when_it_runs(parsed.text)
        self._check_functions(frozenset([function]), frozenset(), is_text_only=False)

    def _check_view(self, name: tuple[str, ...]) -> None:
        stored = self._stored_view(name)
        if stored is not None:
            self._check_stored(stored)

    def _check_stored(self, stored: StoredSql) -> None:
        """Resolve each table that a stored query names.

        If delta-spark follows a redirect itself, only this check finds that the target was
        replaced: the plan has only the place that is read.
        """
        parsed = self._parsed(stored.query)
        for relation in parsed.statement.relations if parsed else ():
            assert parsed is not None
            names, path = self._named(parsed, relation, None, None)
            names = tuple(stored.qualified(name) for name in names)
            name, place = self._looked_up(names, path, relation.operations, set())
            if place is None:
                self._check_views(names, is_text_only=True)
            else:
                self._check_stored_name(name, names, place)
        if parsed is not None:
            self._check_functions(parsed.statement.functions, frozenset(), is_text_only=True)

    def _check_part(self, parsed: Parsed, text: str) -> None:
        """Raise an error if a text that a script runs changes the meaning of later names."""
        if parsed.statement.changes_namespace:
            raise computed_when_it_runs(text)
        for view in parsed.statement.views:
            place = self._moved((view,), ())
            if place is not None:
                raise not_followed(view, place)

    def _check_created(self, parsed: Parsed, script: _Script) -> None:
        """Raise an error if a script creates a view, function or name that leads to an old place.

        The script itself may read it, and it can't be checked before it exists.
        """
        found = [(parsed, relation) for relation in parsed.statement.renamed]
        for query in parsed.statement.created_functions:
            body = self._parsed(query)
            if body is not None:
                found += [(body, relation) for relation in body.statement.relations]
                self._check_functions(body.statement.functions, frozenset(), is_text_only=False)
        for text, relation in found:
            names, path = self._named(text, relation, None, script)
            name, place = self._looked_up(names, path, relation.operations, set())
            if place is not None:
                raise not_followed(name, place)
            self._check_views(names, is_text_only=False)

    def _check_analysed(self, query: str, known: Set[str]) -> None:
        plan = stored_sql.analysed(self.spark, query)
        if plan is not None:
            self._check_plan(plan, known)

    def _check_plan(self, plan: Any, known: Set[str]) -> None:
        for path in tables_read(plan):
            place = table_locations.uri_of_location(self.spark, path)
            if place is None or place in known:
                continue
            found = self._resolve(place, ())
            if found is not None and found.redirected:
                raise not_followed(path, self._new_place(found, path))

    def _check_changed(self, text: str, moved: Mapping[tuple[Any, ...], NewPlace]) -> None:
        """Check with Spark's parser that each moved table is named at its new place."""
        again = self._parsed(text)
        left = None if again is None else [_key(each) for each in again.statement.relations]
        for key, place in moved.items():
            name = ".".join(key[0][0]) if key[0] else str(key[1])
            if left is None or (key in left and (place.name or name != place.path)):
                raise not_followed(name, place)

    def _named(
        self, parsed: Parsed, relation: Relation, args: Any, script: _Script | None
    ) -> tuple[_Names, str | None]:
        """Return the possible names of a relation, or its path."""
        names, path = relation.names, relation.path
        if relation.place is RelationPlace.COMPUTED:
            value = self._evaluated(parsed, relation, args, script)
            if relation.literal == "table_changes_by_path":
                return (), value
            names = () if value is None else (self.parts_of(value) or (),)
        elif relation.place is RelationPlace.STRING and relation.literal is not None:
            names = (self.parts_of(relation.literal) or (),)
        elif relation.place is RelationPlace.STRING and path is None:
            path = parsed.option_path(relation)
        return names, path

    def _looked_up(
        self,
        names: _Names,
        path: str | None,
        operations: Sequence[str],
        known: set[str],
    ) -> tuple[str, NewPlace | None]:
        """Return the name of a table, and where it moved to, if it did."""
        for name in names:
            path = path_of(name) if path is None else path
            if path is None and name:
                place = self._moved(name, operations, known)
                if place is not None:
                    return ".".join(name), place
        if path is None:
            return "", None
        return path, self._place(path, operations, known)

    def _whole_name(self, relation: Relation) -> tuple[str, ...]:
        """Return the name of a table with its schema and catalog; empty for a path."""
        if len(relation.names) != 1 or path_of(relation.names[0]) is not None:
            return ()
        return self._qualified(relation.names[0])

    def _edits_of_statement(
        self, parsed: Parsed, relation: Relation, args: Any, script: _Script | None
    ) -> list[TextEdit]:
        """Return the edits that follow redirects in the text of EXECUTE IMMEDIATE or a cursor."""
        inner = relation.literal
        if inner is None:
            inner = self._evaluated(parsed, relation, args, script)
        if inner is None:
            return []
        followed = self._followed(inner, None, script, is_inner=True)
        if followed.text == inner:
            return []
        edits = parsed.edit_statement(relation, followed.text)
        if not edits:
            raise computed_when_it_runs(parsed.text)
        return edits

    def _parameter(self, parsed: Parsed, relation: Relation, args: Any) -> int | None:
        """Return the index of the positional argument that gives a computed name or statement."""
        if relation.place not in (
            RelationPlace.COMPUTED,
            RelationPlace.STATEMENT,
        ) or not isinstance(args, list | tuple):
            return None
        found = parsed.parameter(relation)
        return found if found is not None and found < len(args) else None

    def _evaluated(
        self, parsed: Parsed, relation: Relation, args: Any, script: _Script | None
    ) -> str | None:
        """Return the value of an expression; ``None`` if Spark will raise an error for it."""
        expression = parsed.expression(relation)
        if expression is None:
            raise computed_when_it_runs(parsed.text)
        position = self._parameter(parsed, relation, args)
        if script is not None and any(each.is_name for each in tokens(expression)):
            # The name may be a variable of the script, or a session variable that the script hides.
            raise computed_when_it_runs(expression)
        if position is not None:
            value = args[position]
        elif "?" in expression and isinstance(args, list | tuple):
            raise computed_when_it_runs(expression)
        else:
            value = self._value_of(expression, None if isinstance(args, list | tuple) else args)
        return value if isinstance(value, str) else None

    # --- What a session of another kind is asked in another way (spark/connect_client.py) ---

    def _bound(self, text: str, args: Any) -> str | None:
        """Return a text with its arguments in it; ``None`` if Spark parses it without them."""
        return bound_text(self.spark, text, args)

    def _parsed(self, text: str, args: Any = None) -> Parsed | None:
        """Return the tables of a text; ``None`` if Spark will report what is wrong with it."""
        del args  # Values that Spark's parser needs are in the text.
        return parse_statement(self.spark, text)

    def _is_view(self, name: Sequence[str]) -> bool:
        return table_locations.is_view(self.spark, name)

    def _qualified(self, name: Sequence[str]) -> tuple[str, ...]:
        return table_locations.qualified(self.spark, name)

    def _stored_view(self, name: Sequence[str]) -> StoredSql | None:
        return stored_sql.view(self.spark, name)

    def _stored_function(self, name: str) -> SqlFunction | None:
        return stored_sql.function(self.spark, name)

    def _check_stored_name(self, name: str, names: _Names, place: NewPlace) -> None:
        """Check a table that moved, and that a stored text names: by the analysed plan, later."""

    def _value_of(self, expression: str, named: Any) -> Any:
        """Return the value of an expression; ``None`` if Spark will raise an error for it."""
        try:
            return self.spark.sql(f"SELECT {expression}", args=named).collect()[0][0]
        except JVM_SAYS_NO:
            return None


def _key(relation: Relation) -> tuple[Any, ...]:
    """Return a key that is equal for relations that mean the same table."""
    return relation.names, relation.path, relation.place, relation.literal


def without_replaced(parsed: Parsed, edits: Sequence[TextEdit], args: Any) -> Any:
    """Return a statement's arguments without those whose positions in the text are replaced."""
    replaced = {
        at
        for at, start in enumerate(parsed.statement.parameters)
        if any(edit.start <= start < edit.end for edit in edits)
    }
    if not replaced or not isinstance(args, list | tuple):
        return args
    return [value for at, value in enumerate(args) if at not in replaced]


def _refuse_parameters(parsed: Parsed) -> None:
    """Raise an error if the name of a table is computed from parameters."""
    for relation in parsed.statement.relations:
        is_literal = relation.place is RelationPlace.STATEMENT and relation.literal is not None
        if relation.place not in (RelationPlace.COMPUTED, RelationPlace.STATEMENT) or is_literal:
            continue
        expression = parsed.expression(relation)
        if expression is None or parameters_in(tokens(expression)):
            raise computed_when_it_runs(expression or parsed.text)
