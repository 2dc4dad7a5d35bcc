"""Which way imports point: read from the source, so that a wrong one fails here by name.

The rule is the architecture's; a new module has to be given its place in it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakeferry

SOURCE = Path(lakeferry.__file__).parent
ERRORS = {"errors"}
TABLE = ERRORS | {"log", "storage", "table"}
ENGINE = {"engine", "engines"}
CAPABILITIES = {
    *("redirect", "protection", "export", "transfer", "catalogs"),
    *("verify", "inspection", "dataset", "live_files"),
}

# What each part may import, besides itself and the package's own version.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "log": ERRORS,
    "storage": ERRORS,
    "table": ERRORS | {"log", "storage"},
    "engine": TABLE,
    "engines": TABLE | {"engine"},
    **{name: TABLE | CAPABILITIES | {"engine"} for name in CAPABILITIES},
    "config": ERRORS | {"storage"},
    "moves": TABLE | CAPABILITIES | ENGINE | {"config"},
    "many_moves": TABLE | CAPABILITIES | ENGINE | {"moves"},
    "transfers": ERRORS | {"log", "storage", "transfer"} | ENGINE,
    "api": TABLE | CAPABILITIES | ENGINE | {"config", "moves", "transfers"},
    # These stand on the API and choose the engine; two modules have values that it hands out.
    **dict.fromkeys(
        ("cli", "web"),
        ERRORS
        | {"api", "transfers", "hosting", "many_moves", "config", "inspection", "verify", "server"}
        | ENGINE,
    ),
    "__main__": {"cli"},
    # It answers and waits; what it does for somebody is the API's, given to it by its host.
    "server": ERRORS | {"api", "config", "export", "storage", "transfer"},
    "hosting": ERRORS | {"api", "config", "engines", "log", "server"},
    # Spark reads and writes tables by itself: all that it is told is where they are.
    "spark": ERRORS | {"redirect", "storage"},
    "__init__": {
        *("api", "dataset", "errors", "hosting", "inspection", "spark", "transfers", "verify"),
    },
}
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def part_of(module: Path) -> str:
    """Return the top-level name that a module belongs to."""
    return module.parts[0].removesuffix(".py")


def imported(module: Path) -> Iterator[tuple[int, str]]:
    """Yield every import of a module, wherever it stands, as (line, dotted name)."""
    for node in ast.walk(ast.parse((SOURCE / module).read_text())):
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield node.lineno, name.name
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                # Both may be a module: `from lakeferry import errors`.
                for name in names:
                    yield node.lineno, f"{origin}.{name.name}"


def parts_imported(module: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the parts of Lakeferry that a module imports, as (line, part, dotted name)."""
    known = {part_of(other) for other in MODULES}
    for line, name in imported(module):
        first, *rest = name.split(".")
        if first == "lakeferry" and rest and rest[0] in known:
            yield line, rest[0], name


def wants_pyspark(module: Path) -> bool:
    """Tell whether a module is one of those that may import pyspark."""
    if part_of(module) == "spark":
        return True
    # What executors run is plain Python, so that tests run it without a JVM.
    return module.match("engines/spark*.py")


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_imports_only_what_it_stands_on(module: Path) -> None:
    part = part_of(module)
    assert part in MAY_IMPORT, (
        f"lakeferry/{module} has no place in the architecture: "
        f"say in MAY_IMPORT what {part!r} may import, and draw it in docs/architecture.md"
    )
    wrong = [
        f"lakeferry/{module}:{line} imports {name}"
        for line, other, name in parts_imported(module)
        if other != part and other not in MAY_IMPORT[part]
    ]
    allowed = ", ".join(sorted(MAY_IMPORT[part])) or "nothing of lakeferry"
    assert not wrong, "\n".join([*wrong, f"{part!r} may import: {allowed}"])


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_only_the_spark_engine_and_the_spark_client_import_pyspark(module: Path) -> None:
    if wants_pyspark(module):
        return
    wrong = [
        f"lakeferry/{module}:{line} imports {name}"
        for line, name in imported(module)
        if name.split(".")[0] in ("pyspark", "delta", "py4j")
    ]
    remedy = "only engines/spark*.py and spark.py may: a command that moves no data starts no JVM"
    assert not wrong, "\n".join([*wrong, remedy])


def test_the_rule_covers_what_there_is() -> None:
    assert {"errors", "log", "storage", "table", "engine", "engines"} <= set(map(part_of, MODULES))


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("lakeferry", ("pyarrow", "pyspark", "obstore", "click", "msgspec")),
        ("lakeferry.cli.main", ("pyarrow", "pyspark", "obstore")),
        ("lakeferry.cli.app", ("starlette", "uvicorn", "yaml")),
        ("lakeferry.server", ("starlette", "uvicorn", "yaml")),
        ("lakeferry.cli.serve", ("pyarrow", "starlette", "uvicorn", "yaml")),
        ("lakeferry.hosting", ("pyarrow", "starlette", "uvicorn", "yaml")),
        ("lakeferry.api", ("aiohttp", "pyspark", "starlette", "uvicorn", "yaml")),
        ("lakeferry.engine", ("pyspark",)),
        ("lakeferry.engines.local", ("pyspark",)),
        ("lakeferry.engines.spark_jobs.log_rows", ("pyspark",)),
    ],
)
def test_importing_it_loads_nothing_heavy(module: str, unwanted: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & set(unwanted), f"importing {module} loads {loaded & set(unwanted)}"
