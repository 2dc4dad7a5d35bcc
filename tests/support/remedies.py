"""The list of remedies in the source, and how a scenario proves that one works.

A remedy is a promise to the user: "do this, and it works". :func:`sites` reads every
``remedy=`` from the source. :class:`Case` says how the command line is brought to print one
of them and what the user then does. ``tests/scenario/test_remedies.py`` joins the two: a
remedy without a case, and without a reason why a program can't follow it, fails the tests.
"""

from __future__ import annotations

import ast
import re
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

    ``text`` is the remedy with ``{}`` for each value in it. A remedy that isn't a text in the
    same module is named by its expression, in angle brackets.
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


def sites() -> dict[str, Site]:
    """Return every remedy that the source can give, by its key."""
    found: dict[str, Site] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        constants = _constants(tree)
        module = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(tree):
            for text in _remedies(node, constants):
                site = Site(module, text)
                found[site.key] = site
    return found


def _remedies(node: ast.AST, constants: dict[str, ast.expr]) -> Iterator[str]:
    if not isinstance(node, ast.Call):
        return
    for keyword in node.keywords:
        if keyword.arg == "remedy":
            yield from _texts(keyword.value, constants)


def _texts(value: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    """Yield the texts that an expression can be, one for each branch."""
    match value:
        case ast.Constant(value=None) | ast.Name(id="remedy"):
            # A parameter of that name is handed on; its value stands where it is given.
            return
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else _VALUE for part in parts
            )
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body, constants)
            yield from _texts(orelse, constants)
        case ast.BoolOp(values=values):
            for each in values:
                yield from _texts(each, constants)
        case ast.Name(id=name) if name in constants:
            yield from _texts(constants[name], constants)
        case _:
            yield f"<{ast.unparse(value)}>"


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the module's constants that are texts, by name."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = node.value
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
        groups = sorted({_GROUPS[name] for name in self.starts})
        found = [getattr(pytest.mark, group) for group in groups]
        return [*found, pytest.mark.xdist_group(groups[-1])] if groups else []

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
