from __future__ import annotations

from pathlib import Path

from lakeferry.engines.spark.tasks.counters import Counters, kept, slot


def test_tasks_keep_their_numbers_and_the_driver_adds_them_up() -> None:
    with kept() as counters:
        assert counters is not None
        assert counters.totals() == (0, 0)
        with slot(counters, 3) as third, slot(counters, 0) as first:
            third(10, 1)
            first(5, 2)
            third(30, 2)
            assert counters.totals() == (35, 4)
        with slot(counters, 3) as repeated:
            repeated(0, 0)
        assert counters.totals() == (5, 2)
    assert not Path(counters.path).exists()


def test_counters_that_are_out_of_reach_count_nothing(tmp_path: Path) -> None:
    for counters in (None, Counters(str(tmp_path / "elsewhere"))):
        with slot(counters, 0) as keep:
            keep(1, 1)
    assert Counters(str(tmp_path / "elsewhere")).totals() == (0, 0)
    assert not list(tmp_path.iterdir())
