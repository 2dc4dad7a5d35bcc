"""Writes the reference of errors: each code, when it happens, and what helps.

The codes are the classes of ``lakeferry.errors``. The problems and remedies are read from the
places that raise them; ``…`` stands for a value.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import lakeferry
from lakeferry import errors
from lakeferry.cli.exit_codes import exit_code
from lakeferry.errors import LakeferryError

SOURCE = Path(lakeferry.__file__).parent
_INTERNAL = "internal_error"


@dataclass(frozen=True, slots=True, order=True)
class RaisedError:
    """One way in which an error is raised. ``remedy`` is empty where none is a fixed text."""

    problem: str
    remedy: str


def classes() -> list[type[LakeferryError]]:
    """Return the classes that have a code, in the order of the module."""
    found = [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, LakeferryError) and "code" in vars(each)
    ]
    return [each for each in found if each is not LakeferryError]


def raised(texts: Mapping[str, str] | None = None) -> dict[str, list[RaisedError]]:
    """Return what the source, or these modules, raise, by the name of the class."""
    if texts is None:
        texts = {str(path): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    names = {each.__name__ for each in classes()}
    found: dict[str, set[RaisedError]] = defaultdict(set)
    for text in texts.values():
        tree = ast.parse(text)
        constants = _constants(tree)
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[problem, *_], keywords=keywords):
                    if name not in names:
                        continue
                    given = {each.arg: each.value for each in keywords}
                    for said in _texts(problem, constants):
                        for remedy in _texts(given.get("remedy"), constants) or [""]:
                            found[name].add(RaisedError(said, remedy))
    return {name: sorted(each) for name, each in found.items()}


def error_page() -> str:
    """Return the reference as Markdown."""
    found = raised()
    parts = []
    for each in classes():
        parts.append(f"## {each.code}\n")
        parts.append(f"{_first_paragraph(each)} The class is `lakeferry.errors.{each.__name__}`")
        parts.append(f"(exit code {exit_code(each(''))}).\n")
        sites = found.get(each.__name__, [])
        if sites:
            parts.append("| the message begins with | what helps |\n|---|---|")
            parts += [f"| {_cell(one.problem)} | {_cell(one.remedy)} |" for one in sites]
            parts.append("")
    parts.append(f"## {_INTERNAL}\n")
    parts.append(
        "A defect of Lakeferry: an exception that none of the classes describes (exit code 1). "
        "`LAKEFERRY_DEBUG=1` shows where it happened; please report it with that.\n"
    )
    return "\n".join(parts)


def _first_paragraph(each: type[LakeferryError]) -> str:
    paragraphs = " ".join((inspect.getdoc(each) or "").split())
    return paragraphs.replace("``", "`")


def _cell(text: str) -> str:
    for character in "\\<>*_[]|`":
        text = text.replace(character, f"\\{character}")
    # As code an option isn't broken into two lines.
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"`\g<0>`", text)


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                found[name] = value
    return found


def _texts(value: ast.expr | None, constants: Mapping[str, ast.expr]) -> list[str]:
    """Return the texts that an expression can be; none if that isn't seen in the module."""
    return [] if value is None else list(_each_text(value, constants))


def _each_text(value: ast.expr, constants: Mapping[str, ast.expr]) -> Iterator[str]:
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts
            )
        case ast.IfExp(body=body, orelse=orelse):
            yield from _each_text(body, constants)
            yield from _each_text(orelse, constants)
        case ast.Name(id=name) if isinstance(constants.get(name), ast.Constant | ast.JoinedStr):
            yield from _each_text(constants[name], {})
