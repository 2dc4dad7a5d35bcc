"""The table of what works with which Spark: it shows the runs that are kept, and no defect."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.engines.spark.spark_versions import NEWEST_WITH_DELTA, SPARK_LINES, SparkLine
from lakeferry.errors import LakeferryError, RedirectNotFollowed
from tests.matrix import environments
from tests.matrix.cells import Cell, MatrixRun, Outcome, read_run, read_runs, refusal
from tests.matrix.clients_page import replaced_clients
from tests.matrix.page import BEGIN, END, PAGE, replaced, table

OLD = MatrixRun(
    "3.5.9",
    "3.3.3",
    "3.11.2",
    "20.0",
    "2026-01-02",
    (
        Cell("a", "read", Outcome.FROZEN),
        Cell("a", "query", Outcome.FROZEN),
        Cell("a", "write", Outcome.REFUSED, "DELTA_X"),
    ),
)
NEW = MatrixRun(
    "4.0.5",
    None,
    "3.11.2",
    "20.0",
    "2026-01-03",
    (
        Cell("a", "read", Outcome.WORKS),
        Cell("a", "query", Outcome.WORKS),
        Cell("b", "new", Outcome.BROKEN, "E"),
    ),
)


def test_the_page_in_the_repository_shows_the_runs_that_are_kept() -> None:
    page = PAGE.read_text()
    assert replaced(page, read_runs()) == page


def test_the_page_shows_the_clients_of_the_data() -> None:
    page = PAGE.read_text()
    assert replaced_clients(page) == page


def test_every_line_of_spark_was_tried_and_nothing_is_broken() -> None:
    runs = read_runs()
    assert [(run.spark, run.delta) for run in runs] == [
        (line.pyspark, line.delta) for line in SPARK_LINES
    ]
    assert [run.broken for run in runs] == [()] * len(runs)


def test_rows_with_the_same_cells_are_one_row() -> None:
    assert table([OLD, NEW]).splitlines() == [
        "| caller | does | 3.5.9 / 3.3.3 | 4.0.5 |",
        "|---|---|---|---|",
        "| a | read, query | **frozen** | works |",
        "|  | write | refused: `DELTA_X` | – |",
        "| b | new | – | **broken**: `E` |",
    ]


def test_what_is_around_the_block_stays() -> None:
    text = replaced(f"before\n{BEGIN}\nold\n{END}\nafter\n", [OLD])
    assert text.startswith(f"before\n{BEGIN}\n| caller |")
    assert text.endswith(
        f"Tried on 2026-01-02, with Python 3.11.2 and pyarrow 20.0.\n{END}\nafter\n"
    )
    with pytest.raises(ValueError, match="make matrix"):
        replaced("no block", [OLD])


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    OLD.write(tmp_path / "run.json")
    assert read_run(tmp_path / "run.json") == OLD


@pytest.mark.parametrize(
    ("failed", "found"),
    [
        (RedirectNotFollowed("x", remedy="y"), (Outcome.REFUSED, "redirect_not_followed")),
        (RuntimeError("[DELTA_NO_X] no\nJVM stacktrace"), (Outcome.REFUSED, "DELTA_NO_X")),
        (
            RuntimeError('at x: Unrecognized field "sourcePath" (class'),
            (Outcome.REFUSED, 'Unrecognized field "sourcePath"'),
        ),
        (LakeferryError("x"), (Outcome.BROKEN, "LakeferryError: x")),
        (AttributeError("no y\nz"), (Outcome.BROKEN, "AttributeError: no y")),
        (RuntimeError("java.lang.NoSuchMethodError: f"), None),
    ],
)
def test_an_error_is_a_refusal_only_if_it_was_meant(
    failed: Exception, found: tuple[Outcome, str] | None
) -> None:
    if found is None:
        assert refusal(failed)[0] is Outcome.BROKEN
    else:
        assert refusal(failed) == found


@pytest.mark.parametrize("line", [line for line in SPARK_LINES if line is not NEWEST_WITH_DELTA])
def test_an_environment_has_all_packages_and_its_own_spark(
    line: SparkLine,
) -> None:
    text = environments.requirements(line)
    names = [name for name, _ in environments._entries(text)]
    assert names.count("pyspark") == 1
    assert {"click", "pyarrow", "py4j", "deltalake"} <= set(names)
    assert f"pyspark=={line.pyspark} \\\n" in text
    assert ("delta-spark" in names) == (line.delta is not None)
    # pip refuses packages without digests as soon as one has them.
    assert all("--hash=sha256:" in entry for _, entry in environments._entries(text))
