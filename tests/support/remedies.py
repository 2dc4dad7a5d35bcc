"""The list of remedies in the source, and how a scenario proves that one works.

A remedy is a promise to the user: "do this, and it works". :func:`sites` reads every
``remedy=`` from the source. :class:`Case` says how the command line is brought to print one
of them and what the user then does. ``tests/scenario/test_remedies.py`` joins the two: a
remedy without a case, and without a reason why a program can't follow it, fails the tests.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.errors import LakeferryError
from tests.support.lake import Lake
from tests.support.serving import Serving
from tests.unit.cli.program import Ended

SOURCE = Path(lakeferry.__file__).parent
_VALUE = "{}"
_GROUPS = {"lakefs": "lakefs", "lakefs_on_s3": "lakefs", "spark": "spark"}


@dataclass(frozen=True, slots=True)
class Site:
    """A remedy in the source.

    ``module`` is the name of its file, with the folders if several files have that name. ``text``
    is the remedy with ``{}`` for each value in it. A remedy that isn't a text in the same module
    is named by its expression, in angle brackets.
    """

    module: str
    text: str

    @property
    def key(self) -> str:
        """The name under which cases and reasons know this remedy."""
        return f"{self.module}: {self.text}"

    def matches(self, remedy: str) -> bool:
        """Return True if a printed remedy is this one."""
        if self.text.startswith("<"):
            return bool(remedy)
        parts = (re.escape(part) for part in self.text.split(_VALUE))
        return re.fullmatch("(?s:.*)".join(parts), remedy) is not None


def sites(texts: Mapping[str, str] | None = None) -> dict[str, Site]:
    """Return every remedy that the source, or these texts of modules, can give, by its key."""
    if texts is None:
        # What 'doctor' says is about a machine, and of no error.
        files = sorted(set(SOURCE.rglob("*.py")) - {SOURCE / "cli" / "doctor.py"})
        texts = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in files}
    return _Reader(texts).read()


_Scope = ast.FunctionDef | ast.AsyncFunctionDef | None


class _Reader:
    """Finds the remedies in modules, however an error gets one.

    That is an argument, an attribute or a key called ``remedy``, the argument by its name or by
    its position. What is given may be a text, or lead to texts: by a constant, a variable, a
    table, or a function that returns them. What is handed on is found where it is given first.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._trees = {module: ast.parse(text) for module, text in texts.items()}
        self._names = {module: _defined(tree) for module, tree in self._trees.items()}
        self._places = dict(place for tree in self._trees.values() for place in _positions(tree))
        self._found: dict[str, Site] = {}
        names = Counter(module.rpartition("/")[2] for module in texts)
        self._labels = {
            module: name if names[name := module.rpartition("/")[2]] == 1 else module
            for module in texts
        }

    def read(self) -> dict[str, Site]:
        """Return each remedy by its key."""
        for module, tree in self._trees.items():
            self._visit(module, tree, None)
        return self._found

    def _visit(self, module: str, node: ast.AST, scope: _Scope) -> None:
        for value in self._given(node):
            for home, text in self._texts(module, value, scope, ()):
                site = Site(self._labels[home], text)
                self._found[site.key] = site
        inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else scope
        for child in ast.iter_child_nodes(node):
            self._visit(module, child, inner)

    def _given(self, node: ast.AST) -> Iterator[ast.expr]:
        """Yield what a node gives to something called remedy."""
        match node:
            case ast.Call(func=called, args=args, keywords=keywords):
                yield from (each.value for each in keywords if each.arg == "remedy")
                name = getattr(called, "attr", getattr(called, "id", ""))
                place = self._places.get(name)
                if place is not None and len(args) > place:
                    yield args[place]
            case ast.Assign(targets=[ast.Attribute(attr="remedy")], value=value):
                yield value
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "remedy":
                        yield value

    def _texts(
        self, module: str, value: ast.expr, scope: _Scope, above: tuple[ast.expr, ...]
    ) -> Iterator[tuple[str, str]]:
        """Yield the texts that an expression can be, each with the module that has it."""
        found = None if value in above else self._parts(module, value, scope)
        if found is None:
            yield module, f"<{ast.unparse(value)}>"
            return
        for home, part, inside in found:
            if isinstance(part, str):
                yield home, part
            else:
                yield from self._texts(home, part, inside, (*above, value))

    def _parts(
        self, module: str, value: ast.expr, scope: _Scope
    ) -> list[tuple[str, ast.expr | str, _Scope]] | None:
        """Return what an expression can be, or ``None`` where that isn't known."""

        def here(*parts: ast.expr | str) -> list[tuple[str, ast.expr | str, _Scope]]:
            return [(module, part, scope) for part in parts]

        match value:
            case (
                ast.Constant(value=None)
                | ast.Attribute(attr="remedy")
                | ast.Subscript(slice=ast.Constant(value="remedy"))
                | ast.Call(func=ast.Attribute(attr="decode"))
            ):
                # Handed on from an error that has it.
                return []
            case ast.Constant(value=str(text)):
                return here(text)
            case ast.JoinedStr(values=parts):
                return here(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else _VALUE
                        for part in parts
                    )
                )
            case ast.IfExp(body=body, orelse=orelse):
                return here(body, orelse)
            case ast.BoolOp(values=values) | ast.Dict(values=values):
                return here(*values)
            case ast.Call(func=ast.Attribute(attr="get", value=table), args=[_, default]):
                return here(table, default)
            case ast.Subscript(value=ast.Name() as table):
                return here(table)
            case ast.Name(id=name):
                if scope is not None:
                    if name in {
                        each.arg for each in ast.walk(scope.args) if isinstance(each, ast.arg)
                    }:
                        return [] if name == "remedy" else None
                    assigned = _assigned(scope, name)
                    if assigned:
                        return here(*assigned)
                return self._defined_as(module, name)
            case ast.Call(func=ast.Name(id=name)):
                return self._returned(module, name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)):
                if owner == "self":
                    return self._returned(module, name)
                home = self._module_of(module, owner)
                return None if home is None else self._returned(home, name)
        return None

    def _defined_as(
        self, module: str, name: str
    ) -> list[tuple[str, ast.expr | str, _Scope]] | None:
        found = self._find(module, name)
        if found is None or not isinstance(found[1], ast.expr):
            return None
        return [(found[0], found[1], None)]

    def _returned(self, module: str, name: str) -> list[tuple[str, ast.expr | str, _Scope]] | None:
        found = self._find(module, name)
        if found is None:
            return None
        home, function = found
        if not isinstance(function, ast.FunctionDef):
            return None
        returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
        return [(home, each, function) for each in returned if each is not None]

    def _find(self, module: str, name: str) -> tuple[str, ast.expr | ast.FunctionDef] | None:
        """Return what a name is, and the module where it is defined."""
        found = self._names.get(module, {}).get(name)
        if isinstance(found, tuple):
            source, original = found
            for home in (f"{source}.py", f"{source}/__init__.py"):
                if home in self._names and home != module:
                    return self._find(home, original)
            return None
        return None if found is None else (module, found)

    def _module_of(self, module: str, name: str) -> str | None:
        """Return the module that an imported name stands for."""
        found = self._names.get(module, {}).get(name)
        if not isinstance(found, tuple):
            return None
        path = "/".join(filter(None, found))
        homes = (f"{path}.py", f"{path}/__init__.py")
        return next((home for home in homes if home in self._names), None)


def _defined(tree: ast.Module) -> dict[str, ast.expr | ast.FunctionDef | tuple[str, str]]:
    """Return the constants and functions of a module, and where imported names are from."""
    found: dict[str, ast.expr | ast.FunctionDef | tuple[str, str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name):
                found[name] = node
            case ast.ImportFrom(module=str(source), names=names) if source.startswith("lakeferry"):
                folder = source.replace(".", "/").removeprefix("lakeferry").removeprefix("/")
                found |= {each.asname or each.name: (folder, each.name) for each in names}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
    return found


def _positions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the functions and classes that take a remedy by position, with the position."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [each.arg for each in node.args.args if each.arg != "self"]
            if "remedy" in names:
                yield node.name, names.index("remedy")
        elif isinstance(node, ast.ClassDef):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            names = [each.target.id for each in fields if isinstance(each.target, ast.Name)]
            if "remedy" in names:
                yield node.name, names.index("remedy")


def _assigned(scope: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> list[ast.expr]:
    """Return what a function assigns to a variable."""
    found: list[ast.expr] = []
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            match target, node.value:
                case ast.Name(id=each), value if each == name:
                    found.append(value)
                case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                    pairs = zip(targets, values, strict=True)
                    found += [v for t, v in pairs if isinstance(t, ast.Name) and t.id == name]
                case ast.Tuple(elts=targets), value:
                    if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                        found.append(value)
    return found


@dataclass(slots=True)
class Witness:
    """Runs the program for a case, and remembers each remedy that it printed."""

    lake: Lake
    start_server: Callable[[], Serving]
    fixture: Callable[[str], Any]
    """Returns a fixture by its name; for those that the case says it starts."""
    remedies: list[str] = field(default_factory=list)
    followed: bool = False
    """Whether a command succeeded after the last remedy."""

    @property
    def server(self) -> Serving:
        """A running server, started when a case first asks for it and shared by all cases."""
        return self.start_server()

    def token(self, *words: str) -> str:
        """Return a new token for that server."""
        made = self.lake.run("token", "create", "--root", self.server.store.uri, *words)
        return str(made.document["token"])

    def refused(self, *words: object, **variables: str) -> dict[str, Any]:
        """Run the program, which has to refuse and print a remedy; return its error."""
        ended = self.lake.run(*words, **variables)
        assert ended.code in (1, 2), (words, ended)
        error = ended.error
        self.told(error)
        return error

    def told(self, error: Mapping[str, Any]) -> None:
        """Take an error that came in another way: a server's answer, or a failed job's."""
        assert error["remedy"], error
        self.remedies.append(error["remedy"])
        self.followed = False

    def raises(self, call: Callable[[], object]) -> LakeferryError:
        """Call Python code, which has to raise one of our errors with a remedy; return it.

        For remedies that only users of the Python package see.
        """
        with pytest.raises(LakeferryError) as raised:
            call()
        assert raised.value.remedy, raised.value
        self.remedies.append(raised.value.remedy)
        self.followed = False
        return raised.value

    def returns(self, call: Callable[[], object]) -> None:
        """Call Python code, which has to work."""
        call()
        self.followed = bool(self.remedies)

    def done(self, *words: object, **variables: str) -> Any:
        """Run the program, which has to succeed; return its document, if it prints one."""
        ended: Ended = self.lake.run(*words, **variables)
        assert ended.code == 0, (words, ended.err)
        self.followed = bool(self.remedies)
        return ended.document if len(ended.out.splitlines()) == 1 else None


@dataclass(frozen=True, slots=True)
class Case:
    """A way to provoke one or more remedies and to follow the last of them."""

    keys: tuple[str, ...]
    play: Callable[[Witness], None]
    starts: tuple[str, ...] = ()
    """The fixtures of costly servers that it uses, out of :data:`_GROUPS`."""

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """The markers of the test, which keep those that start the same on one worker."""
        names = sorted({_GROUPS[name] for name in self.starts})
        found = [getattr(pytest.mark, name) for name in names]
        # Which of the JVMs a test with Spark shares is chosen for all of them.
        shared = [pytest.mark.xdist_group("lakefs")] if names == ["lakefs"] else []
        return [*found, *shared]

    @property
    def name(self) -> str:
        """The name of the test."""
        return self.play.__name__


CASES: list[Case] = []
"""Every case, in the order in which the modules of ``tests/scenario/remedies`` define them."""


def follows(
    *keys: str, starts: tuple[str, ...] = ()
) -> Callable[[Callable[[Witness], None]], Callable[[Witness], None]]:
    """Register a function that provokes these remedies and does what the last one says."""

    def register(play: Callable[[Witness], None]) -> Callable[[Witness], None]:
        CASES.append(Case(keys, play, starts))
        return play

    return register


def retried(key: str, wrong: str, right: str, make: str = "t") -> None:
    """Register a command that is refused, and the same command as its remedy corrects it.

    In both, ``{lake}`` is the lake's root; a table is made there under the name ``make``.
    """

    def play(witness: Witness) -> None:
        if make:
            witness.lake.make(make)
        words = {"lake": witness.lake.root, "folder": str(witness.lake.folder)}
        witness.refused(*(word.format_map(words) for word in wrong.split("|")))
        witness.done(*(word.format_map(words) for word in right.split("|")))

    play.__name__ = re.sub(r"\W+", "_", f"{key} {wrong}").strip("_")
    CASES.append(Case((key,), play))


NEEDS_A_PERSON: dict[str, str] = {}
"""Remedies that a test can't follow, each with the reason."""


def provoked(why: str, by: str) -> str:
    """Return why a remedy isn't followed, with the test below ``tests`` that provokes its error."""
    return f"{why}: tests/{by}"
