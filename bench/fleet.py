"""What a fleet costs beside its moves.

* ``fleet run`` of 500 small tables on local disk, against 500 bare moves at the same parallelism.
* A second scan of 500 unchanged tables, against the first one.

Run it with ``make bench``, or alone: ``python bench/fleet.py [RUNS]``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from support import tables
from support.measure import Bar, child, compare, counted, report

TABLES = 500
FILES = 4
PARALLEL = 4
RUN, SCAN = 1.3, 0.5


def lake(folder: Path, count: int) -> Path:
    """Write tables, all alike, in ten folders."""
    made = tables.write(folder / "made", FILES, checkpoint=False)
    for number in range(count):
        shutil.copytree(made, folder / "old" / str(number % 10) / f"t{number:04}")
    return folder


def planned(folder: Path, count: int) -> Path:
    """Write tables, and plan their moves in one wave."""
    fleet = _fleet(lake(folder, count))
    fleet.scan(str(folder / "old"))
    fleet.plan(to=str(folder / "new"))
    return folder


def _fleet(folder: Path):  # type: ignore[no-untyped-def]
    import lakeferry

    return lakeferry.Fleet(f"sqlite:///{folder}/fleet.sqlite", engine="local")


def fleet_run(argument: str) -> Callable[[], object]:
    """Move the tables of a fleet."""
    folder = Path(tempfile.mkdtemp(dir=argument))
    fleet = _fleet(planned(folder, TABLES))

    def work() -> object:
        ended = fleet.run(parallel=PARALLEL)
        assert len(ended.run.moved) == TABLES
        return len(ended.run.moved)

    return work


def bare_moves(argument: str) -> Callable[[], object]:
    """Move the same tables as a list does."""
    from lakeferry.api.move_list import Mover, Wanted, move_all

    folder = planned(Path(tempfile.mkdtemp(dir=argument)), TABLES)
    places = sorted(path for path in (folder / "old").glob("*/*"))
    wanted = [
        Wanted(0, str(place), str(folder / "new" / place.parent.name / place.name))
        for place in places
    ]

    def work() -> object:
        with Mover(engine="local") as mover:
            found = move_all(mover, wanted, parallel=PARALLEL)
        assert not found.failed
        return len(found.moves)

    return work


def first_scan(argument: str) -> Callable[[], object]:
    """Scan tables that nobody knows."""
    folder = lake(Path(tempfile.mkdtemp(dir=argument)), TABLES)
    fleet = _fleet(folder)
    return lambda: len(fleet.scan(str(folder / "old")).tables)


def second_scan(argument: str) -> Callable[[], object]:
    """Scan them again."""
    folder = lake(Path(tempfile.mkdtemp(dir=argument)), TABLES)
    fleet = _fleet(folder)
    fleet.scan(str(folder / "old"))
    return lambda: len(fleet.scan().tables)


def scan_calls(count: int, folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Return what a first and a second scan of so many tables ask of the store."""
    fleet = _fleet(lake(folder, count))
    with counted() as first:
        fleet.scan(str(folder / "old"))
    with counted() as second:
        fleet.scan()
    return first, second


RUNNERS = {each.__name__: each for each in (fleet_run, bare_moves, first_scan, second_scan)}


def main() -> int:
    child(RUNNERS)
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as place:
        costs = compare(__file__, [(name, place) for name in RUNNERS], runs)
    seconds = {name: cost.seconds for name, cost in costs.items()}
    return report(
        [
            Bar(
                f"fleet run, {TABLES} tables, to bare moves",
                seconds["fleet_run"],
                seconds["bare_moves"],
                "s",
                RUN,
            ),
            Bar(
                f"second scan of {TABLES} tables, to the first",
                seconds["second_scan"],
                seconds["first_scan"],
                "s",
                SCAN,
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
