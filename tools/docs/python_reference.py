"""Writes the reference of the Python package: what ``lakeferry`` exports, and what that returns.

Signatures and docstrings are read from the objects themselves. Options that a function takes as
``**options`` are listed by name, and classes that are returned are described below those that
return them. docs/decisions/0035-the-site.md says why no library does it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

import lakeferry
from lakeferry.errors import LakeferryError

_CLASSES = ("Table", "Fleet", "Server")
_ROLE = re.compile(r":(?:class|func|meth|data|mod|attr):`~?([\w.]+)`")
_WIDTH = 88


def python_page() -> str:
    """Return the reference as Markdown."""
    exported = {name: getattr(lakeferry, name) for name in lakeferry.__all__}
    functions = {name: each for name, each in exported.items() if inspect.isfunction(each)}
    classes = {name: exported[name] for name in _CLASSES}
    parts: list[str] = []
    for name, each in classes.items():
        parts += _class(name, each)
    parts.append("## Functions\n")
    for name, each in sorted(functions.items()):
        parts += _function(f"lakeferry.{name}", each)
    parts += _module("lakeferry.spark", lakeferry.spark)
    parts.append("## What they return\n")
    returned = dict(_returned([*classes.values(), *functions.values()]))
    shown = [each for each in exported.values() if inspect.isclass(each)]
    for each in [*shown, *returned.values()]:
        if each not in classes.values() and each is not LakeferryError:
            returned.setdefault(each.__name__, each)
    for name, each in sorted(returned.items()):
        if each not in classes.values():
            parts += _value(name, each)
    parts.append(
        "## LakeferryError\n\nThe superclass of all errors: `code`, `message`, `cause`, `remedy` "
        "and `fields`. [Errors](errors.md) lists the classes.\n"
    )
    return "\n".join(parts)


def methods(each: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, in the order of their source."""
    seen: set[str] = set()
    for owner in reversed(each.__mro__[:-1]):
        for name, member in vars(owner).items():
            is_member = inspect.isfunction(member) or isinstance(member, property)
            if is_member and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, getattr(each, name) if inspect.isfunction(member) else member


def _class(name: str, each: type) -> Iterator[str]:
    yield f"## {name}\n"
    yield _signature(f"lakeferry.{name}", each)
    yield _prose(each)
    yield from _options(each)
    for called, member in methods(each):
        if isinstance(member, property):
            yield f"### {name}.{called}\n"
            yield _prose(member)
        else:
            yield from _function(f"{name}.{called}", member)


def _function(name: str, each: Callable[..., Any]) -> Iterator[str]:
    yield f"### {name.removeprefix('lakeferry.')}\n"
    yield _signature(name.removeprefix("lakeferry.") if "." in name else name, each)
    yield _prose(each)
    yield from _options(each)


def _module(name: str, module: Any) -> Iterator[str]:
    yield f"## {name}\n"
    yield _prose(module)
    for called, each in vars(module).items():
        if inspect.isfunction(each) and each.__module__ == name and not called.startswith("_"):
            yield f"### spark.{called}\n"
            yield _signature(f"lakeferry.spark.{called}", each)
            yield _prose(each)
            yield from _options(each)


def _value(name: str, each: type) -> Iterator[str]:
    yield f"### {name}\n"
    yield _prose(each)
    fields: list[tuple[str, str]] = []
    if dataclasses.is_dataclass(each):
        fields = [(one.name, _shown(one.type)) for one in dataclasses.fields(each)]
    fields += [
        (called, _shown(inspect.signature(member.fget).return_annotation))
        for called, member in methods(each)
        if isinstance(member, property) and member.fget is not None
    ]
    if fields:
        yield "| field | type |\n|---|---|"
        yield from (f"| `{field}` | `{_cell(kind)}` |" for field, kind in fields if field[0] != "_")
        yield ""


def _signature(name: str, each: Callable[..., Any]) -> str:
    """Return the signature as a block of code, one parameter a line where it is long."""
    signature = inspect.signature(each)
    words = []
    star = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            words.append("*")
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = True
        words.append(_parameter(parameter))
    ending = _shown(signature.return_annotation)
    result = f" -> {ending}" if ending not in ("None", "") else ""
    line = f"{name}({', '.join(words)}){result}"
    if len(line) > _WIDTH:
        inside = "".join(f"    {word},\n" for word in words)
        line = f"{name}(\n{inside}){result}"
    return f"```python\n{line}\n```\n"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_shown(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        default = parameter.default
        # A function that does nothing is what is called by default.
        shown = "…" if inspect.isfunction(default) else repr(default)
        text += f" = {shown}"
    return text


def _shown(annotation: object) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def _options(each: Callable[..., Any]) -> Iterator[str]:
    """Yield the options that a function takes as a dictionary with known keys."""
    for parameter in inspect.signature(each).parameters.values():
        taken = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if taken is None:
            continue
        options = vars(sys.modules[each.__module__])[taken[1]]
        kinds = _annotations(options)
        yield f"`{parameter.name}` may be:\n"
        yield "| option | type |\n|---|---|"
        yield from (f"| `{name}` | `{_cell(kind)}` |" for name, kind in kinds.items())
        yield ""


def _annotations(options: Any) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for owner in reversed(getattr(options, "__orig_bases__", ())):
        if typing.is_typeddict(owner):
            kinds |= _annotations(owner)
    for name, kind in options.__annotations__.items():
        kinds[name] = kind.__forward_arg__ if isinstance(kind, typing.ForwardRef) else _shown(kind)
    return kinds


def _returned(places: list[Any]) -> Iterator[tuple[str, type]]:
    """Yield the classes of ours that are returned, and those of their fields."""
    todo = [one for place in places for one in _callables(place)]
    seen: set[type] = set()
    while todo:
        owner, text = todo.pop()
        for name in re.findall(r"\w+", text):
            found = vars(sys.modules[owner]).get(name) or _imported_for_types(owner, name)
            if not inspect.isclass(found) or found in seen:
                continue
            if not found.__module__.startswith("lakeferry.") or not dataclasses.is_dataclass(found):
                continue
            if found.__module__.startswith(("lakeferry.log.", "lakeferry.fleet.fleet_database")):
                continue
            seen.add(found)
            yield name, found
            todo += [(found.__module__, _shown(each.type)) for each in dataclasses.fields(found)]


def _imported_for_types(module: str, name: str) -> object:
    """Return what a module imports under a name for its annotations alone."""
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for each in node.names:
                if (each.asname or each.name) == name and node.module.startswith("lakeferry"):
                    return getattr(importlib.import_module(node.module), each.name, None)
    return None


def _callables(place: Any) -> Iterator[tuple[str, str]]:
    members = [m for _, m in methods(place)] if inspect.isclass(place) else [place]
    for member in members:
        if isinstance(member, functools.cached_property | property):
            continue
        yield member.__module__, _shown(inspect.signature(member).return_annotation)


def _prose(each: object) -> str:
    """Return a docstring as Markdown."""
    text = inspect.getdoc(each) or ""
    text = _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", text)
    text = re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)
    paragraphs = []
    lines = text.replace("::\n", "\n").split("\n\n")
    for paragraph in lines:
        if paragraph.startswith("    "):
            paragraphs.append(f"```python\n{inspect.cleandoc(paragraph)}\n```")
        elif paragraph.strip():
            paragraphs.append(paragraph.strip("\n"))
    return "\n\n".join(paragraphs) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
