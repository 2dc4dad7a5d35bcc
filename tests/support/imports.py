"""What modules import, read from their source, and what is wrong with it.

The functions know no rule of Lakeferry's. ``tests/unit/test_imports.py`` gives them the rules,
and tries them on small trees that break each rule.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Import:
    """One import. ``name`` is dotted; ``for_types`` if only type checkers execute it."""

    module: str
    line: int
    name: str
    for_types: bool = False

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.name}"


@dataclass(frozen=True, slots=True)
class Tree:
    """The modules of a package, by dotted names without the package's own, and their imports."""

    package: str
    modules: frozenset[str]
    imports: tuple[Import, ...]

    @classmethod
    def read(cls, source: Path) -> Tree:
        """Read the package in a folder."""
        paths = {_dotted(path.relative_to(source)): path for path in sorted(source.rglob("*.py"))}
        found = [each for name, path in paths.items() for each in _imports(source.name, name, path)]
        return cls(source.name, frozenset(paths), tuple(found))

    def within(self, each: Import) -> str | None:
        """Return the module of this package that an import leads to, if it leads to one."""
        first, _, rest = each.name.partition(".")
        if first != self.package:
            return None
        while rest not in self.modules:
            rest = rest.rpartition(".")[0]
        return rest

    def part_of(self, module: str, parts: Collection[str]) -> str | None:
        """Return the longest of ``parts`` that a module is, or is below."""
        fitting = [each for each in parts if f"{module}.".startswith(f"{each}.")]
        return max(fitting, key=len, default=None)

    def wrong_directions(self, may_import: Mapping[str, Collection[str]]) -> Iterator[str]:
        """Yield the imports from one part to another that the first part may not import.

        A part is a module or a package, and a part may have parts. It may import itself, what
        is below it, and what is listed. Whatever is in no part may be imported by nobody.
        """
        for each in self.imports:
            to = self.within(each)
            if to is None or to == "":
                continue
            part = self.part_of(each.module, may_import)
            allowed = {*may_import[part], part} if part is not None else set()
            if self.part_of(to, allowed) is None:
                yield f"{each}: {part!r} may import {', '.join(sorted(allowed)) or 'nothing'}"

    def libraries(self, wanted: Callable[[str], Collection[str]]) -> Iterator[str]:
        """Yield the imports of libraries that a module may not have: ``wanted`` says which."""
        for each in self.imports:
            refused = wanted(each.module)
            if any(f"{each.name}.".startswith(f"{name}.") for name in refused):
                yield str(each)

    def cycles(self) -> list[list[str]]:
        """Return the groups of modules that import each other, at whatever depth of the code."""
        graph: dict[str, set[str]] = {module: set() for module in self.modules}
        for each in self.imports:
            to = self.within(each)
            if to is not None and to != each.module and not each.for_types:
                graph[each.module].add(to)
        return [sorted(group) for group in _strongly_connected(graph) if len(group) > 1]


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(package: str, module: str, path: Path) -> Iterator[Import]:
    """Yield the imports of a module, in functions too: statements, and calls with a name."""
    folder = [package, *_packages_of(module, path)]
    tree = ast.parse(path.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield Import(module, node.lineno, name.name, node in for_types)
            case ast.ImportFrom(module=origin, names=names, level=level):
                above = folder[: len(folder) - level + 1] if level else []
                # Both may be a module: `from lakeferry import errors`.
                for name in names:
                    dotted = ".".join([*above, *([origin] if origin else []), name.name])
                    yield Import(module, node.lineno, dotted, node in for_types)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if (
                ast.unparse(function).rpartition(".")[2] == "import_module"
            ):
                yield Import(module, node.lineno, name, node in for_types)


def _packages_of(module: str, path: Path) -> list[str]:
    """Return the packages that a module is in, below the first one."""
    parts = module.split(".") if module else []
    return parts if path.name == "__init__.py" else parts[:-1]


def _strongly_connected(graph: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components of a graph (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    for root in graph:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        walk = [(root, iter(graph[root]))]
        while walk:
            node, ahead = walk[-1]
            for to in ahead:
                if to not in index:
                    index[to] = low[to] = len(index)
                    stack.append(to)
                    walk.append((to, iter(graph[to])))
                    break
                if to in stack:
                    low[node] = min(low[node], index[to])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[node])
                if low[node] == index[node]:
                    start = stack.index(node)
                    yield stack[start:]
                    del stack[start:]
