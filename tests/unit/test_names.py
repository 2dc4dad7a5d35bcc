"""One name, one thing: no two modules define the same public name.

A name without an underscore at the top of a module can be used anywhere, so a reader who meets it
has to know which one it is. What only its own module uses begins with an underscore.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import lakeferry

SOURCE = Path(lakeferry.__file__).parent
# Its functions have the names of Spark's own: read, write. They are called as spark.read.
LIKE_SPARK = "spark/__init__.py"


def defined(module: ast.Module) -> Iterator[str]:
    """Yield the public classes, functions and constants at the top of a module."""
    for node in module.body:
        names: list[str] = []
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names = [node.name]
            case ast.Assign():
                names = [each.id for each in node.targets if isinstance(each, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
        yield from (name for name in names if not name.startswith("_"))


def is_command(node: ast.stmt) -> bool:
    """Return True for the function of a command: it has the name of the operation that it runs."""
    return isinstance(node, ast.FunctionDef) and any(
        "command(" in ast.unparse(each) or "group(" in ast.unparse(each)
        for each in node.decorator_list
    )


def without_commands(module: ast.Module) -> ast.Module:
    body = [node for node in module.body if not is_command(node)]
    return ast.Module(body=body, type_ignores=[])


def defined_twice(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the public names that several modules define, with these modules."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, module in modules.items():
        for each in defined(module):
            found[each].add(name)
    return {name: sorted(where) for name, where in sorted(found.items()) if len(where) > 1}


def test_no_two_modules_define_the_same_public_name() -> None:
    modules = {}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        module = ast.parse(path.read_text())
        if name != LIKE_SPARK:
            modules[name] = without_commands(module) if name.startswith("cli/") else module
    found = defined_twice(modules)
    said = [f"{name}: {', '.join(where)}" for name, where in found.items()]
    assert not found, "\n".join(
        [*said, "give them names of their own, or an underscore if no other module uses them"]
    )


def test_names_that_are_defined_twice_are_found() -> None:
    a = "class Plan: ...\ndef read(): ...\nPAGE = 1\ndef _own(): ...\nfrom b import check\n"
    b = "Plan = list\nasync def read(): ...\nPAGE: int = 2\ndef _own(): ...\ndef check(): ...\n"
    assert defined_twice({"a": ast.parse(a), "b": ast.parse(b)}) == {
        "PAGE": ["a", "b"],
        "Plan": ["a", "b"],
        "read": ["a", "b"],
    }


def test_only_commands_may_have_the_name_of_what_they_run() -> None:
    text = "@command(examples=())\ndef push(): ...\n@redirect.command('list')\ndef list_(): ...\n"
    text += "@contextmanager\ndef watching(): ...\ndef counted(): ...\n"
    assert list(defined(without_commands(ast.parse(text)))) == ["watching", "counted"]
