"""The documents that describe the tree: each module is listed with its docstring's first line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import lakeferry

SOURCE = Path(lakeferry.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__init__.py"]


def listed(page: str) -> dict[str, list[str]]:
    """Return the rows of the architecture page's tables, by folder."""
    found: dict[str, list[str]] = {}
    folder = ""
    for line in page.splitlines():
        if heading := re.fullmatch(r"`([a-z_/]+)/`", line):
            folder = heading[1]
        elif line.startswith("## "):
            named = re.match(r"## ([a-z]+)/", line)
            folder = named[1] if named else ""
        elif line.startswith("| `") and ".py`" in line:
            found.setdefault(folder, []).append(line)
    return found


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    return listed((DOCS / "architecture.md").read_text())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_the_architecture_lists_a_module_as_its_docstring_begins(
    path: Path, rows: dict[str, list[str]]
) -> None:
    said = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
    wanted = f"| `{path.name}` | {said.rstrip('.').replace('``', '`')} |"
    folder = path.parent.relative_to(SOURCE).as_posix().removeprefix(".")
    assert wanted in rows.get(folder, []), f"docs/architecture.md lacks, for {folder}/: {wanted}"


def test_the_architecture_lists_nothing_that_is_gone(rows: dict[str, list[str]]) -> None:
    assert sum(map(len, rows.values())) == len(MODULES)


def test_each_term_of_the_glossary_is_decided_in_a_module_that_is_there() -> None:
    text = (DOCS / "glossary.md").read_text()
    named = re.findall(r"\| `([a-z_/]+\.py)` \|", text)
    assert len(named) > 60
    assert [each for each in named if not (SOURCE / each).exists()] == []
