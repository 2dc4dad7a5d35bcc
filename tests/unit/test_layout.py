"""Where things are: tests mirror the source, and no two modules have the same name.

A newcomer finds a module, and its tests, by its name alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import lakeferry

SOURCE = Path(lakeferry.__file__).parent
UNIT = Path(__file__).parent
SUPPORT = UNIT.parent / "support"
# These look at the whole package, or at the tree itself.
ABOUT_THE_WHOLE = {
    "cli/test_style.py": "what all commands print",
    "test_bench_counts.py": "the benchmarks' small forms",
    "test_bench_page.py": "the page of all ratios",
    "test_decoders.py": "all types that are decoded",
    "test_deep_nesting.py": "all that parses JSON",
    "test_documents.py": "the documentation",
    "test_imports.py": "all imports",
    "test_layout.py": "the tree of files",
    "test_matrix.py": "what was tried with each Spark",
    "test_names.py": "all public names",
    "test_package.py": "the installed package",
    "test_site.py": "the site of the documentation",
    "test_typing.py": "the types of the public API",
}
# Packages whose modules are called what something else is called.
NAMED_AFTER = {
    "cli": "the commands",
    "protection/features": "the table features of Delta Lake",
}


def unmirrored(tests: Iterable[str], sources: Iterable[str]) -> Iterator[str]:
    """Yield the tests whose folder has no module, in the source, that the name begins with.

    ``a/test_b.py`` and ``a/test_b_when_full.py`` belong to ``a/b.py``. ``a/test_a.py`` belongs to
    ``a/__init__.py``.
    """
    there = set(sources)
    for test in tests:
        folder, _, file = test.rpartition("/")
        words = file.removeprefix("test_").removesuffix(".py").split("_")
        names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
        inside = f"{folder}/" if folder else ""
        wanted = {f"{inside}{name}.py" for name in names}
        if folder.rpartition("/")[2] in names:
            wanted.add(f"{inside}__init__.py")
        if not wanted & there:
            yield test


def same_names(sources: Iterable[str], named_after: Iterable[str] = ()) -> list[list[str]]:
    """Return the modules that have the same file name, but for packages with names of others."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in sorted(sources):
        folder, _, file = source.rpartition("/")
        if file != "__init__.py" and folder not in named_after:
            found[file].append(source)
    return [each for each in found.values() if len(each) > 1]


def below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))


def test_each_unit_test_is_where_its_module_is_in_the_source() -> None:
    tests = [each for each in below(UNIT) if Path(each).name.startswith("test_")]
    sources = below(SOURCE) + [f"support/{each}" for each in below(SUPPORT)]
    assert set(unmirrored(tests, sources)) == set(ABOUT_THE_WHOLE)


def test_no_two_modules_have_the_same_name() -> None:
    assert same_names(below(SOURCE), NAMED_AFTER) == []


@pytest.mark.parametrize(
    ("test", "belongs"),
    [
        ("log/test_files.py", True),
        ("log/test_files_on_disk.py", True),
        ("log/test_log.py", True),
        ("log/test_file.py", False),
        ("table/test_files.py", False),
        ("test_files.py", False),
    ],
)
def test_a_test_belongs_to_the_module_that_its_name_begins_with(test: str, belongs: bool) -> None:
    found = list(unmirrored([test], ["log/__init__.py", "log/files.py", "table/__init__.py"]))
    assert found == ([] if belongs else [test])


def test_modules_of_the_same_name_are_found() -> None:
    sources = ["a/__init__.py", "b/__init__.py", "a/queue.py", "b/queue.py", "cli/queue.py"]
    assert same_names(sources, ["cli"]) == [["a/queue.py", "b/queue.py"]]
