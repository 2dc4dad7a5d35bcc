"""The oldest supported Spark, in an environment of its own: what the documentation says of it.

The newest one is what all other tests use; ``make matrix`` tries those between.
"""

from __future__ import annotations

import pytest

from tests.matrix import environments
from tests.matrix.cells import (
    BOUNDED,
    ENTRY_OF_3_3,
    INSTALL,
    RESULTS,
    SOMETHING_BROKEN,
    STOCK_WITH_OPTION,
    Cell,
    MatrixRun,
    read_run,
)
from tests.support import components

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark of its own")]

KEPT = read_run(RESULTS / f"{environments.OLDEST.pyspark}.json")


@pytest.fixture(scope="module")
def oldest_run(tmp_path_factory: pytest.TempPathFactory) -> MatrixRun:
    """What the suite finds now, in one JVM."""
    components.require("oldest-spark")
    folder = tmp_path_factory.mktemp("oldest")
    words = ["-m", "tests.matrix.suite", str(folder / "found.json"), str(folder), *BOUNDED]
    environments.run_in(environments.OLDEST, words, accepts=(0, SOMETHING_BROKEN))
    run = read_run(folder / "found.json")
    assert (run.spark, run.delta) == (KEPT.spark, KEPT.delta)
    return run


@pytest.fixture(scope="module")
def found(oldest_run: MatrixRun) -> dict[tuple[str, str], Cell]:
    return {(cell.group, cell.what): cell for cell in oldest_run.cells}


def test_it_knows_the_features_that_are_kept(oldest_run: MatrixRun) -> None:
    """A unit test compares these with the matrix of clients."""
    assert (oldest_run.reads, oldest_run.writes) == (KEPT.reads, KEPT.writes)
    assert KEPT.writes


def test_everything_is_as_the_page_says(found: dict[tuple[str, str], Cell]) -> None:
    page = {(cell.group, cell.what): cell for cell in KEPT.cells if cell.group in BOUNDED}
    assert found == page


def test_a_session_with_the_client_does_all_of_it(found: dict[tuple[str, str], Cell]) -> None:
    outcomes = {
        what: cell.outcome.value for (group, what), cell in found.items() if group == INSTALL
    }
    # Nothing in the JVM follows, so what a view reads can only be refused.
    assert outcomes.pop("view") == "refused"
    assert len(outcomes) >= 8
    assert set(outcomes.values()) == {"works"}


@pytest.mark.parametrize("caller", [STOCK_WITH_OPTION, ENTRY_OF_3_3])
def test_its_delta_lake_follows_no_entry_with_the_option(
    caller: str, found: dict[tuple[str, str], Cell]
) -> None:
    """Not even one that it can parse: docs/compatibility.md says why."""
    outcomes = {cell.outcome.value for (group, _), cell in found.items() if group == caller}
    assert outcomes == {"frozen", "refused"}
