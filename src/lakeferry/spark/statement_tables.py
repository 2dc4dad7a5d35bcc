"""Finds the tables that a SQL statement names, with Spark's own parser.

Spark parses the text and returns its tree as JSON in one call. The tree is complete: it includes
common table expressions, subqueries, parentheses, scripts, ``EXPLAIN`` and the tables that a
statement writes. Each relation has the way to its node in the JVM (``route``), and the node has
the position of its name in the text. Delta's own statements (``VACUUM``, ``OPTIMIZE``,
``RESTORE``, …) have no positions: for them the name is searched for among the text's tokens.

Names that the statement defines itself (``WITH name AS``) aren't relations within their scope.
The query of a permanent view is left out: the view keeps its text, and names in it are followed
or refused when the view is read.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lakeferry.spark.sql_tokens import is_delta_format, path_of

TreeStep = str | int
"""A child by its number (negative: ``-1`` is the first), a field by name, or an index."""
Tree = dict[str, Any]


class RelationPlace(Enum):
    """What the text of a relation can be replaced with."""

    QUERY = "query"
    """A relation in a query; without an alias it is known by its own name."""
    TARGET = "target"
    """A table of UPDATE, DELETE or MERGE without an alias."""
    NAME = "name"
    """A name that nothing else refers to."""
    STREAM = "stream"
    """``STREAM name``: Spark can't start a stream with a path there."""
    STRING = "string"
    """A path or a name in a string."""
    COMPUTED = "computed"
    """``IDENTIFIER(…)`` with an expression that is evaluated to get the name."""
    STATEMENT = "statement"
    """The text of ``EXECUTE IMMEDIATE``: a statement of its own."""
    CURSOR = "cursor"
    """The query of a cursor: Spark keeps its text, and parses it when the cursor is opened."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table that a statement names.

    ``names`` are the possible readings of the name, as parts; nearly always one. ``path`` is a
    path in a string literal. ``operations`` are the statement's commits to the table, as named
    in ``commitInfo``; none if it only reads.
    """

    place: RelationPlace
    route: tuple[TreeStep, ...]
    names: tuple[tuple[str, ...], ...] = ()
    path: str | None = None
    operations: tuple[str, ...] = ()
    literal: str | None = None
    """The text of a cursor's query, or of EXECUTE IMMEDIATE if it is a literal."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Statements about a catalog entry: they don't refer to the table's rows or its log.
_ABOUT_THE_CATALOG = _words(
    "RenameTable RefreshTable SetTableLocation RepairTable RecoverPartitions "
    "AddPartitions DropPartitions RenamePartitions ShowCreateTable AnalyzeTable AnalyzeColumn "
    "LoadData"
)
_PERMANENT_VIEWS = frozenset(["CreateView", "AlterViewAs"])
_FUNCTIONS = frozenset(["CreateUserDefinedFunction", "CreateSQLFunctionCommand"])
_NAMED = frozenset(["UnresolvedRelation", "UnresolvedTable", "UnresolvedTableOrView"])
_CREATES = {
    "CreateTable": "CREATE TABLE",
    "CreateTableAsSelect": "CREATE TABLE AS SELECT",
    "ReplaceTable": "REPLACE TABLE",
    "ReplaceTableAsSelect": "REPLACE TABLE AS SELECT",
}
# Statement, the field with the table that it changes, and the operations that it commits.
_COMMITS: dict[tuple[str, str], tuple[str, ...]] = {
    ("InsertIntoStatement", "table"): ("WRITE",),
    ("OverwriteByExpression", "table"): ("WRITE",),
    ("OverwritePartitionsDynamic", "table"): ("WRITE",),
    ("AppendData", "table"): ("WRITE",),
    ("MergeIntoTable", "targetTable"): ("MERGE",),
    ("UpdateTable", "table"): ("UPDATE",),
    ("DeleteFromTable", "table"): ("DELETE",),
    ("TruncateTable", "table"): ("TRUNCATE",),
    ("DeltaReorgTable", "target"): ("REORG",),
    ("OptimizeTableCommand", "child"): ("OPTIMIZE",),
    ("CloneTableStatement", "target"): ("CLONE",),
    ("SetTableProperties", "table"): ("SET TBLPROPERTIES",),
    ("CommentOnTable", "table"): ("SET TBLPROPERTIES",),
    ("UnsetTableProperties", "table"): ("UNSET TBLPROPERTIES",),
    ("AddColumns", "table"): ("ADD COLUMNS",),
    ("DropColumns", "table"): ("DROP COLUMNS",),
    ("RenameColumn", "table"): ("RENAME COLUMN",),
    ("AlterColumns", "table"): ("CHANGE COLUMN",),
    ("AlterColumn", "table"): ("CHANGE COLUMN",),
    ("ReplaceColumns", "table"): ("REPLACE COLUMNS",),
    ("AlterTableAddConstraint", "table"): ("ADD CONSTRAINT",),
    ("AlterTableDropConstraint", "table"): ("DROP CONSTRAINT",),
    ("AlterTableDropFeature", "table"): ("DROP FEATURE",),
    ("AlterTableClusterBy", "table"): ("CLUSTER BY",),
}
PLAIN_QUERIES = _words(
    "Project Filter Aggregate Sort GlobalLimit LocalLimit Distinct Join LateralJoin Except "
    "Intersect UnresolvedRelation SubqueryAlias UnresolvedHaving Pivot Unpivot "
    "Generate WithWindowDefinition Offset UnresolvedHint PipeOperator RelationTimeTravel"
)
"""The first nodes of statements that only read."""
_QUERIES = PLAIN_QUERIES | {"Union", "UnresolvedWith"}
"""First nodes of statements that may contain an INSERT, too."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What the parser says about a text."""

    relations: tuple[Relation, ...]
    is_query: bool
    """Whether it is a plain query, which reads nothing before its result is asked for."""
    is_script: bool
    views: frozenset[str]
    """Temporary views that the statement creates, in lower case."""
    changes_namespace: bool
    """Whether the statement has ``USE``, which changes the meaning of names without a schema."""
    functions: frozenset[str]
    """The functions that it calls, in lower case."""
    parameters: tuple[int, ...]
    """The positions of its positional parameters."""
    renamed: tuple[Relation, ...]
    """The tables that it renames or moves, or that its permanent views name."""
    created_functions: tuple[str, ...]
    """The queries of the functions that it creates."""
    computed_functions: tuple[Relation, ...] = ()
    """The names in expressions that are computed: ``IDENTIFIER('f' || 1)()``."""


def read_tree(
    text: str,
    node_at: Callable[[tuple[TreeStep, ...]], Any],
    *,
    exact: bool = True,
    default: str = "",
    is_case_sensitive: bool = False,
) -> Statement:
    """Return the contents of a statement, given Spark's tree as JSON.

    ``node_at`` returns the JVM's node at a route: some parts of a node aren't in the JSON.
    ``default`` is the data source of tables that are created without one.

    A name is given as ``[a, b]``, which is ambiguous if a part contains a comma. Unless
    ``exact`` is set, every reading is returned.
    """
    nodes = json.loads(text)
    root = _grown(nodes)
    walk = _Walk(node_at, exact, default, is_case_sensitive)
    walk.visit(root, (), frozenset(), _Around())
    while root["class"] == "UnresolvedWith":
        (root,) = root["children"]
    inserts = any(node["class"].endswith(".InsertIntoStatement") for node in nodes)
    return Statement(
        relations=tuple(walk.found),
        is_query=root["class"] in _QUERIES and not inserts,
        is_script=root["class"] == "CompoundBody",
        views=frozenset(walk.views),
        changes_namespace=walk.changes_namespace,
        functions=frozenset(walk.functions),
        parameters=tuple(sorted(set(walk.parameters))),
        renamed=tuple(walk.renamed),
        created_functions=tuple(walk.created_functions),
        computed_functions=tuple(walk.computed_functions),
    )


def _grown(nodes: list[Tree]) -> Tree:
    """Return a tree, given its nodes in preorder.

    Trees of generated statements are deep, so neither this function nor ``visit`` recurses from
    a node to its children.
    """
    grown = [{**node, "class": node["class"].rpartition(".")[2], "children": []} for node in nodes]
    unfinished: list[Tree] = []
    for node in grown:
        if unfinished:
            unfinished[-1]["children"].append(node)
        unfinished.append(node)
        while unfinished and len(unfinished[-1]["children"]) == unfinished[-1]["num-children"]:
            unfinished.pop()
    return grown[0]


@dataclass(frozen=True, slots=True)
class _Around:
    """The statement that a relation belongs to, and its field that holds the relation."""

    node: Mapping[str, Any] | None = None
    role: str = ""
    is_aliased: bool = False

    @property
    def statement(self) -> str:
        return "" if self.node is None else str(self.node["class"])


_BUILTIN = re.compile(r"(system\.)?builtin\.")
"""The schema of the functions that Spark and its extensions bring."""
CHANGE_FEEDS = ("table_changes", "table_changes_by_path")
"""Table functions whose first argument names a table, by its name or by its path."""

_Visit = tuple[Tree, tuple[TreeStep, ...], frozenset[str], _Around]
"""A node to visit: with its route, the scope of ``WITH``, and the statement around it."""
_SHORTENED = re.compile(r"\.\.\. \d+ more fields\]$")
"""The end of a list that is longer than ``spark.sql.debug.maxToStringFields``."""


class _Walk:
    """Visits a tree and collects its relations."""

    def __init__(
        self,
        node_at: Callable[[tuple[TreeStep, ...]], Any],
        exact: bool,
        default: str,
        is_case_sensitive: bool,
    ) -> None:
        self.found: list[Relation] = []
        self.renamed: list[Relation] = []
        self.created_functions: list[str] = []
        self.computed_functions: list[Relation] = []
        self.views: list[str] = []
        self.parameters: list[int] = []
        self.changes_namespace = False
        self.functions: set[str] = set()
        self._node_at = node_at
        self._exact = exact
        self._default = default
        self._is_case_sensitive = is_case_sensitive

    def visit(
        self, node: Tree, route: tuple[TreeStep, ...], scope: frozenset[str], around: _Around
    ) -> None:
        waiting: list[_Visit] = [(node, route, scope, around)]
        while waiting:
            waiting += reversed(self._visit_one(*waiting.pop()))

    def _visit_one(
        self, node: Tree, route: tuple[TreeStep, ...], scope: frozenset[str], around: _Around
    ) -> list[_Visit]:
        """Collect a node's own relations, and return its children, which must be visited."""
        kind = node["class"]
        if kind == "DropTable":
            return []
        is_view = kind == "CreateViewCommand"
        if kind in _PERMANENT_VIEWS or (is_view and "Persisted" in str(node.get("viewType"))):
            self._visit_view(node, route)
            return []
        if kind in _FUNCTIONS:
            self._note_function(node)
        if is_view:
            self.views.append(str(node["name"].get("table", "")).lower())
        elif kind == "PosParameter":
            self.parameters.append(node["pos"])
        elif kind in ("UnresolvedFunction", "UnresolvedTableValuedFunction"):
            field = "nameParts" if "nameParts" in node else "name"
            name = self._whole(str(node.get(field)), (*route, field))
            self.functions.add(name.strip("[]").replace(", ", ".").lower())
        elif kind == "ExpressionWithUnresolvedIdentifier":
            computed = (*route, "identifierExpr")
            self.computed_functions.append(Relation(RelationPlace.COMPUTED, computed))
        elif kind in ("SetCatalogAndNamespace", "SetNamespaceCommand", "SetCatalogCommand"):
            self.changes_namespace = True
        if kind == "UnresolvedWith":
            return [self._visit_with(node, route, scope)]
        self._emit(node, route, scope, around)
        if kind == "WithWindowDefinition":
            self._visit_windows(route, scope)
        elif kind in ("SetTableLocation", "CreateTableLike") and node.get("location"):
            self.renamed.append(Relation(RelationPlace.STRING, (), path=str(node["location"])))
        roles = {
            value: key
            for key, value in node.items()
            if type(value) is int and key != "num-children"
        }
        # A single statement's children are those of the plan in it.
        children = [] if kind == "SingleStatement" else node["children"]
        following: list[_Visit] = []
        for number, child in enumerate(children):
            inside = _Around(node, roles.get(number, ""))
            if kind == "SubqueryAlias":
                inside = _Around(around.node, around.role, is_aliased=True)
            elif kind == "TimeTravel":
                inside = around
            following.append((child, (*route, -1 - number), scope, inside))
        for name, value in node.items():
            if name not in ("class", "children"):
                # Common table expressions can't be written to, so they don't hide the table there.
                outside = frozenset() if (kind, name) in _COMMITS else scope
                inside = around if kind == "TimeTravel" else _Around(node, name)
                self._visit_value(value, (*route, name), outside, inside)
        return following

    def _visit_windows(self, route: tuple[TreeStep, ...], scope: frozenset[str]) -> None:
        """Visit the definitions of ``WINDOW name AS (…)``, which aren't in the JSON."""
        route = (*route, "windowDefinitions", "values", "toSeq")
        definitions = self._node_at(route)
        for number in range(definitions.size()):
            tree = _grown(json.loads(definitions.apply(number).toJSON()))
            self.visit(tree, (*route, number), scope, _Around())

    def _visit_view(self, node: Tree, route: tuple[TreeStep, ...]) -> None:
        """Collect the tables of a permanent view separately: its text isn't changed."""
        found, self.found = self.found, self.renamed
        for number, child in enumerate(node["children"]):
            self.visit(child, (*route, -1 - number), frozenset(), _Around(node))
        for name in ("query", "plan"):
            self._visit_value(node.get(name), (*route, name), frozenset(), _Around(node, name))
        self.found = found

    def _note_function(self, node: Tree) -> None:
        if node.get("queryText"):
            self.created_functions.append(str(node["queryText"]))
        elif node.get("exprText"):
            self.created_functions.append(f"SELECT {node['exprText']}")

    def _visit_value(
        self, value: Any, route: tuple[TreeStep, ...], scope: frozenset[str], around: _Around
    ) -> None:
        if isinstance(value, list):
            if value and isinstance(value[0], dict) and "class" in value[0]:
                self.visit(_grown(value), route, scope, around)
                return
            for number, each in enumerate(value):
                self._visit_value(each, (*route, number), scope, around)
        elif isinstance(value, dict) and "product-class" in value:
            for name, each in value.items():
                self._visit_value(each, (*route, name), scope, around)

    def _visit_with(self, node: Tree, route: tuple[TreeStep, ...], scope: frozenset[str]) -> _Visit:
        recursive = bool(node.get("allowRecursion"))
        for number, defined in enumerate(node["cteRelations"]):
            name = self._folded(str(defined["_1"]))
            inner = scope | {name} if recursive else scope
            self._visit_value(
                defined["_2"], (*route, "cteRelations", number, "_2"), inner, _Around()
            )
            scope = scope | {name}
        return node["children"][0], (*route, -1), scope, _Around()

    def _folded(self, name: str) -> str:
        """Return a name of a common table expression as Spark compares it."""
        return name if self._is_case_sensitive else name.lower()

    def _whole(self, written: str, route: tuple[TreeStep, ...]) -> str:
        """Return ``[a, b]`` with all parts, even if a setting makes Spark print only some."""
        if not _SHORTENED.search(written):
            return written
        parts = self._node_at(route)
        return f"[{', '.join(str(parts.apply(at)) for at in range(parts.size()))}]"

    def _emit(
        self, node: Tree, route: tuple[TreeStep, ...], scope: frozenset[str], around: _Around
    ) -> None:
        kind = node["class"]
        operations = _operations(node, around)
        if kind in _NAMED or (kind == "UnresolvedIdentifier" and around.statement in _CREATES):
            field = "multipartIdentifier" if "multipartIdentifier" in node else "nameParts"
            written = self._whole(str(node.get(field)), (*route, field))
            names = _readings(written, self._exact)
            if len(names[0]) == 1 and self._folded(names[0][0]) in scope:
                return
            if around.statement in _ABOUT_THE_CATALOG and path_of(names[0]) is None:
                if around.statement == "RenameTable":
                    self.renamed.append(Relation(RelationPlace.NAME, route, names))
                return
            place = RelationPlace.STREAM if node.get("isStreaming") else _place(kind, around)
            self.found.append(Relation(place, route, names, None, operations))
        elif kind.startswith("UnresolvedPathBased"):
            self.found.append(
                Relation(RelationPlace.STRING, route, path=node["path"], operations=operations)
            )
        elif kind == "PlanWithUnresolvedIdentifier":
            self.found.append(
                Relation(RelationPlace.COMPUTED, (*route, "identifierExpr"), operations=operations)
            )
        elif kind == "UnresolvedExecuteImmediate":
            self.found.append(
                Relation(
                    RelationPlace.STATEMENT,
                    (*route, "sqlStmtStr"),
                    literal=_text(node["sqlStmtStr"]),
                )
            )
        elif kind == "ExecuteImmediateQuery":
            # Spark 4.0, where the text is a literal or a variable, and no node of its own.
            given = self._node_at((*route, "query"))
            literal = str(given.value()) if given.isLeft() else None
            self.found.append(Relation(RelationPlace.STATEMENT, route, literal=literal))
        elif kind == "DeclareCursor":
            self.found.append(Relation(RelationPlace.CURSOR, route, literal=str(node["queryText"])))
        elif kind == "UnresolvedTableValuedFunction":
            self._emit_function(node, route)
        elif kind == "UnresolvedTableSpec":
            if node.get("location") and is_delta_format(str(node.get("provider", self._default))):
                self.found.append(
                    Relation(
                        RelationPlace.STRING,
                        (),
                        path=node["location"],
                        operations=("CREATE TABLE",),
                    )
                )
        elif kind == "CloneTableStatement" and node.get("targetLocation"):
            self.found.append(
                Relation(
                    RelationPlace.STRING, (), path=node["targetLocation"], operations=("CLONE",)
                )
            )
        elif kind == "CreateTempViewUsing":
            self.views.append(str(node["tableIdent"].get("table", "")).lower())
            if is_delta_format(str(node.get("provider", ""))):
                self.found.append(Relation(RelationPlace.STRING, (*route, "options")))

    def _emit_function(self, node: Tree, route: tuple[TreeStep, ...]) -> None:
        name = without_builtin(str(node["name"]).strip("[]").lower().replace(", ", "."))
        given = node["functionArgs"]
        if name not in CHANGE_FEEDS or not given:
            return
        where = (*route, "functionArgs", 0)
        text = _text(given[0])
        if text is None:
            self.found.append(Relation(RelationPlace.COMPUTED, where, literal=name))
        elif name == "table_changes":
            self.found.append(Relation(RelationPlace.STRING, where, literal=text))
        else:
            self.found.append(Relation(RelationPlace.STRING, where, path=text))


def without_builtin(function: str) -> str:
    """Return the name of a function, in lower case, without the schema of built-in ones."""
    return _BUILTIN.sub("", function, count=1) if _BUILTIN.match(function) else function


def _place(kind: str, around: _Around) -> RelationPlace:
    # The source of a MERGE must be a name or a query, not a relation in parentheses.
    is_of_merge = around.statement == "MergeIntoTable"
    if is_of_merge or around.statement in ("UpdateTable", "DeleteFromTable"):
        return RelationPlace.NAME if around.is_aliased else RelationPlace.TARGET
    if kind != "UnresolvedRelation":
        return RelationPlace.NAME
    is_command = (around.statement, around.role) in _COMMITS or around.statement in (
        "CacheTable",
        "UncacheTable",
        "RestoreTableStatement",
        "CloneTableStatement",
    )
    return RelationPlace.NAME if is_command else RelationPlace.QUERY


def _operations(node: Tree, around: _Around) -> tuple[str, ...]:
    statement = around.statement
    known = _COMMITS.get((statement, around.role))
    if known is not None:
        return known
    if around.node is not None and statement in _CREATES and around.role == "name":
        phrase = _CREATES[statement]
        return (f"CREATE OR {phrase}",) if around.node.get("orCreate") else (phrase,)
    if around.node is not None and statement == "VacuumTableCommand":
        return () if around.node.get("dryRun") else ("VACUUM START", "VACUUM END")
    if statement == "RestoreTableStatement":
        return ("RESTORE",)
    command = str(node.get("commandName", ""))
    if command.startswith("ALTER TABLE"):
        return (command.replace("ALTER TABLE ...", "").strip(". ") or "ALTER TABLE",)
    return ()


def _readings(written: str, exact: bool) -> tuple[tuple[str, ...], ...]:
    """Return the names that ``[a, b]`` may mean."""
    pieces = written[1:-1].split(", ")
    lead = 2 if pieces[0].lower() == "spark_catalog" else 1
    if len(pieces) > lead and pieces[lead - 1].lower() == "delta":
        # Everything after it is a path, which may have commas.
        return ((*pieces[:lead], ", ".join(pieces[lead:])),)
    if exact or len(pieces) == 1:
        return (tuple(pieces),)
    found = []
    for cuts in itertools.product((True, False), repeat=len(pieces) - 1):
        parts = [pieces[0]]
        for cut, piece in zip(cuts, pieces[1:], strict=True):
            if cut:
                parts.append(piece)
            else:
                parts[-1] += f", {piece}"
        found.append(tuple(parts))
    return tuple(found)


def _text(tree: list[Tree]) -> str | None:
    """Return the text of a string literal."""
    (node, *more) = tree
    is_text = node["class"].endswith(".Literal") and node.get("dataType") == "string" and not more
    return str(node["value"]) if is_text else None


class Nodes:
    """The nodes of a plan in the JVM, by their routes; each step is taken once."""

    def __init__(self, plan: Any) -> None:
        self._found: dict[tuple[TreeStep, ...], Any] = {(): plan}

    def at(self, route: tuple[TreeStep, ...]) -> Any:
        """Return the node to which a route leads from the plan."""
        known = len(route)
        while route[:known] not in self._found:
            known -= 1
        here = self._found[route[:known]]
        for number in range(known, len(route)):
            here = _next(here, route[number])
            self._found[route[: number + 1]] = here
        return here


def _next(here: Any, step: TreeStep) -> Any:
    if isinstance(step, str):
        found = getattr(here, step)()
        return found.get() if found.getClass().getName() == "scala.Some" else found
    return here.children().apply(-1 - step) if step < 0 else here.apply(step)
