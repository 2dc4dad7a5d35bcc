"""Decoders of our own types are made when their modules are imported, not when they are first used.

msgspec prepares a type when it is first decoded. Two threads that do so at the same moment crash
the process, because one of them uses what the other hasn't completed. Imports have a lock.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakeferry

SOURCE = Path(lakeferry.__file__).parent
# Types that need no preparation.
PLAIN = re.compile(
    r"\b(str|int|float|bool|bytes|object|dict|list|tuple|set|Any|None|msgspec|Raw)\b|\W"
)
DECODES = ("msgspec.json.decode", "msgspec.json.Decoder", "msgspec.convert")
# Where the type is prepared at the import in another way.
PREPARED = {
    "api/datasets.py": "where these types are defined",
    "catalogs/unity_delta_rest.py": "in unity_delta_messages.py",
    "log/decoding.py": "a decoder of each of these types is made at its top",
    "redirect/managed_target.py": "a decoder of the type is made at its top",
    "log/lines.py": "a decoder of the line, which has both types, is made at its top",
    "transfer/wire/failure_spellings.py": "its objects are made at imports",
    "transfer/wire/message_spellings.py": "its objects are made at its end",
}


def late_decoders(module: ast.Module) -> Iterator[int]:
    """Yield the lines of functions that prepare a type."""
    functions = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in DECODES:
                types = [ast.unparse(each.value) for each in node.keywords if each.arg == "type"]
                if not ast.unparse(node.func).endswith("decode"):
                    types += [ast.unparse(each) for each in node.args[-1:]]
                if any(PLAIN.sub("", each) for each in types):
                    yield node.lineno


def test_no_type_is_prepared_when_it_is_first_used() -> None:
    found = [
        f"{name}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := path.relative_to(SOURCE).as_posix()) not in PREPARED
        for line in late_decoders(ast.parse(path.read_text()))
    ]
    assert found == [], "make a msgspec.json.Decoder at the top of the module, and use that"


@pytest.mark.parametrize(
    ("text", "is_late"),
    [
        ("def f(x): return msgspec.json.decode(x, type=Point)", True),
        ("def f(x): return msgspec.json.decode(x, type=list[Point] | None)", True),
        ("def f(x): return msgspec.convert(x, Point)", True),
        ("f = lambda x: msgspec.json.Decoder(Point).decode(x)", True),
        ("def f(x): return msgspec.json.decode(x, type=dict[str, msgspec.Raw])", False),
        ("def f(x): return msgspec.json.decode(x)", False),
        ("D = msgspec.json.Decoder(Point)\ndef f(x): return D.decode(x)", False),
    ],
)
def test_a_decoder_that_is_made_late_is_found(text: str, is_late: bool) -> None:
    assert bool(list(late_decoders(ast.parse(text)))) is is_late
