"""Which way imports point: read from the source, so that a wrong one fails here by name.

The rule is the architecture's; a new module has to be given its place in it. The last tests
try the checks themselves on small trees that break each rule.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lakeferry
from tests.support.imports import Tree

SOURCE = Path(lakeferry.__file__).parent
ERRORS = {"errors", "version"}
TABLE = ERRORS | {"log", "storage", "table"}
ENGINE = {"engine", "engines"}
# How results look to people: in words, and as HTML.
SHOWN = {"readable", "html_tables"}
CAPABILITIES = {"redirect", "protection", "export", "transfer", "catalogs", "dataset"}
# Of a redirect, other capabilities see its entry and which entries count; no procedure.
REDIRECT = {
    f"redirect.{name}" for name in ("entry", "dialects", "read_entry", "states", "received_entries")
}

# What each part may import, besides itself. A part is a module, a package, or one inside it.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "packages": ERRORS,
    "readable": set(),
    "html_tables": {"readable"},
    "log": ERRORS,
    "storage": ERRORS | {"packages"},
    "table": ERRORS | {"log", "storage"},
    "engine": TABLE,
    "engines": TABLE | {"engine"},
    "catalogs": TABLE,
    # What is known of other clients: data, and questions to it.
    "clients": {"errors", "version", "log", "redirect.entry"},
    "redirect": TABLE | {"engine", "catalogs", "clients"} | SHOWN,
    "protection": TABLE | {"engine"} | REDIRECT,
    "export": TABLE | {"engine", "catalogs"} | REDIRECT,
    "dataset": TABLE | {"catalogs", "redirect.resolve"},
    "transfer": TABLE | {"engine"} | SHOWN,
    "transfer.chain": ERRORS,
    "transfer.wire": ERRORS | {"transfer.chain"},
    "transfer.session": ERRORS | {"transfer.chain", "transfer.wire"},
    "transfer.datasets": TABLE | {"engine", "transfer.chain", "transfer.wire"} | REDIRECT,
    "transfer.repository": TABLE
    | {"engine", "transfer.chain", "transfer.wire", "transfer.datasets"}
    | REDIRECT,
    "transfer.client": TABLE
    | {"engine", *(f"transfer.{name}" for name in ("chain", "wire", "session", "datasets"))}
    | SHOWN,
    "config": ERRORS | {"storage"},
    "api": TABLE | CAPABILITIES | ENGINE | {"clients", "config", "packages", "server"} | SHOWN,
    # It answers and waits; what it does for somebody is the API's, given to it by its host.
    "server": ERRORS | {"config", "export", "storage", "transfer", "web"},
    "server.lakefs": ERRORS | {"export", "storage", "server.logs"},
    "server.http": ERRORS
    | {
        "export",
        "storage",
        "transfer",
        "server.lakefs",
        "server.client_identity",
        "server.upload_slots",
        "server.metrics",
    },
    "server.sessions": ERRORS
    | {"storage", "transfer", "server.http"}
    | {
        f"server.{name}"
        for name in ("client_identity", "session_seats", "upload_slots", "logs", "metrics")
    },
    # It moves many tables as the API moves one, and knows what redirects do to clients.
    "fleet": TABLE | {"api", "catalogs", "clients", "engine", "redirect"} | SHOWN,
    # Pages about tables, the fleet and the datasets of a root.
    "web": ERRORS
    | {"api", "clients", "config", "engine", "export.job_queue", "fleet", "log", "storage"}
    | {"transfer.repository"}
    | SHOWN,
    # These stand on the API and choose the engine.
    # Where they write files of their own, they explain refusals as stores do.
    "cli": ERRORS
    | {"api", "config", "examples", "fleet", "packages", "readable", "server", "storage.rights"}
    | ENGINE,
    "cli.ui": ERRORS | {"api", "cli", "config", "server", "web"},
    "examples": ERRORS | {"api", "cli", "engines", "storage.rights"},
    "__main__": {"cli"},
    "jobs": ERRORS | {"cli", "config", "engines"},
    # Spark reads and writes tables by itself: all that it is told is where they are.
    "spark": ERRORS
    | {
        "packages",
        "redirect.resolve",
        "storage",
        "engines.spark.spark_calls",
        "engines.spark.spark_versions",
    },
    "": {"api", "dataset", "errors", "fleet", "packages", "spark", "version"},
}
# What decides and never does: no store, no network, no event loop.
PURE = ("log", "transfer.chain", "transfer.wire", "transfer.session")
DOES_IO = ("aiohttp", "asyncio", "obstore", "socket", "lakeferry.storage", "lakeferry.engine")
SPARK = ("pyspark", "delta", "py4j")
MAY_IMPORT_SPARK = ("engines.spark", "spark")


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree.read(SOURCE)


def test_a_module_imports_only_what_it_stands_on(tree: Tree) -> None:
    wrong = list(tree.wrong_directions(MAY_IMPORT))
    assert not wrong, "\n".join(
        [*wrong, "say in MAY_IMPORT what a part may import, and draw it in docs/architecture.md"]
    )


def test_no_module_imports_itself_by_way_of_others(tree: Tree) -> None:
    assert tree.cycles() == []


def test_what_decides_does_no_io(tree: Tree) -> None:
    def refused(module: str) -> tuple[str, ...]:
        return DOES_IO if tree.part_of(module, PURE) else ()

    assert list(tree.libraries(refused)) == []


def test_only_the_spark_engine_and_the_spark_client_import_pyspark(tree: Tree) -> None:
    def refused(module: str) -> tuple[str, ...]:
        # What executors run is plain Python, so that tests run it without a JVM.
        allowed = tree.part_of(module, MAY_IMPORT_SPARK)
        is_task = tree.part_of(module, ["engines.spark.tasks"])
        return () if allowed and not is_task else SPARK

    wrong = list(tree.libraries(refused))
    assert not wrong, "\n".join([*wrong, "a command that moves no data starts no JVM"])


def test_the_rules_cover_what_there_is(tree: Tree) -> None:
    assert {"errors", "log", "storage", "table", "engine", "engines"} <= tree.modules
    without_a_module = [part for part in MAY_IMPORT if part not in tree.modules]
    assert without_a_module == []


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("lakeferry", ("pyarrow", "pyspark", "obstore", "click", "msgspec")),
        ("lakeferry.cli.main", ("pyarrow", "pyspark", "obstore")),
        ("lakeferry.cli.app", ("starlette", "uvicorn", "yaml")),
        ("lakeferry.server", ("starlette", "uvicorn", "yaml")),
        ("lakeferry.cli.serve", ("pyarrow", "starlette", "uvicorn", "yaml")),
        ("lakeferry.api.serving", ("pyarrow", "starlette", "uvicorn", "yaml")),
        ("lakeferry.api.table", ("aiohttp", "pyspark", "starlette", "uvicorn", "yaml")),
        ("lakeferry.engine", ("pyspark",)),
        ("lakeferry.engines.local_engine", ("pyspark",)),
        ("lakeferry.engines.spark.tasks.log_rows", ("pyspark",)),
    ],
)
def test_importing_it_loads_nothing_heavy(module: str, unwanted: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & set(unwanted), f"importing {module} loads {loaded & set(unwanted)}"


def laid_out(folder: Path, files: dict[str, str]) -> Tree:
    """Return the tree of a package ``house`` with these modules."""
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree.read(folder / "house")


def test_an_import_in_the_wrong_direction_is_found(tmp_path: Path) -> None:
    house = laid_out(
        tmp_path,
        {
            "low.py": "def f():\n    from house import high\n",
            "high.py": "from house.low import f\nimport house.rooms.kitchen\n",
            "rooms/__init__.py": "",
            "rooms/kitchen.py": "import json\nfrom house.rooms import cellar\n",
            "rooms/cellar.py": "",
        },
    )
    rules: dict[str, set[str]] = {"low": set(), "high": {"low"}, "rooms": set()}
    assert list(house.wrong_directions(rules)) == [
        "high:2 imports house.rooms.kitchen: 'high' may import high, low",
        "low:2 imports house.high: 'low' may import low",
    ]
    rules |= {"rooms.kitchen": set(), "high": {"low", "rooms"}, "low": {"high"}}
    [wrong] = house.wrong_directions(rules)
    assert wrong.startswith("rooms.kitchen:2 imports house.rooms.cellar")
    del rules["low"]
    assert "low:2 imports house.high: None may import nothing" in house.wrong_directions(rules)


def test_a_cycle_is_found_even_through_a_function(tmp_path: Path) -> None:
    house = laid_out(
        tmp_path,
        {
            "a.py": "from house import b\n",
            "b.py": "from house.c import f\n",
            "c.py": "def f():\n    import house.a\n",
            "d.py": "from house import a\n",
            "e.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import house.f\n",
            "f.py": "import house.e\n",
        },
    )
    assert house.cycles() == [["a", "b", "c"]]


@pytest.mark.parametrize(
    "line",
    [
        "from house.rooms import hall",
        "import house.rooms.hall",
        "from . import hall",
        "from .hall import f",
        "from ..rooms.hall import f",
        "import importlib; importlib.import_module('house.rooms.hall')",
    ],
)
def test_an_import_in_a_function_that_closes_a_cycle_is_found(tmp_path: Path, line: str) -> None:
    files = {
        "rooms/__init__.py": "",
        "rooms/hall.py": "from house.rooms.stairs import climb\n\n\ndef f(): ...\n",
        "rooms/stairs.py": "def climb(): ...\n",
    }
    assert laid_out(tmp_path / "before", files).cycles() == []
    files["rooms/stairs.py"] = f"class Stairs:\n    def climb(self):\n        {line}\n"
    assert laid_out(tmp_path / "after", files).cycles() == [["rooms.hall", "rooms.stairs"]]


def test_a_library_is_found_where_it_is_refused(tmp_path: Path) -> None:
    house = laid_out(tmp_path, {"a.py": "import asyncio.queues\n", "b.py": "import asyncio\n"})
    found = list(house.libraries(lambda module: ("asyncio",) if module == "a" else ()))
    assert found == ["a:1 imports asyncio.queues"]
