"""A large fleet, written straight into its database: no table of it has to be there."""

from __future__ import annotations

import random
from pathlib import Path

_FEATURES = ("deletionVectors", "columnMapping", "timestampNtz", "v2Checkpoint")
_WRITERS = ("Apache-Spark/4.2.0 Delta-Lake/4.4.0", "delta-rs:py-1.6.6", "Trino 481")
_EVERY_SECOND, _EVERY_TENTH = 2, 10


def fill(home: Path, tables: int) -> None:
    """Record so many tables in the fleet of a user, every second one planned."""
    from lakeferry.fleet.fleet_database import FleetDatabase
    from lakeferry.fleet.inventory import (
        FleetProblem,
        FleetWriter,
        FoundTable,
        MovePlan,
        TableMark,
        TableSurvey,
    )
    from lakeferry.fleet.inventory_changes import InventoryChanges

    chance = random.Random(20261119)
    found, plans = [], []
    for number in range(tables):
        path = f"region_{number % 40:02}/domain_{number % 97:02}/table_{number:05}"
        uri = f"s3://warehouse/{path}"
        moment = 1_700_000_000_000 + number * 1_000
        name = _WRITERS[number % len(_WRITERS)]
        problem = FleetProblem("unsupported_feature", f"{path} has a feature", "drop it")
        problems = () if number % _EVERY_TENTH else (problem,)
        survey = TableSurvey(
            TableMark(chance.randrange(1, 5_000), moment, 900),
            f"00000000-0000-4000-8000-{number:012}",
            chance.randrange(1 << 20, 1 << 40),
            chance.randrange(1, 100_000),
            chance.random() * 200,
            tuple(chance.sample(_FEATURES, 2)),
            (FleetWriter(name, None, None, 40, 100, moment),),
            problems,
        )
        found.append((FoundTable(uri, "s3://warehouse"), survey))
        if number % _EVERY_SECOND:
            plans.append(MovePlan(uri, f"s3://new/{path}", 1 + number % 12))
    with FleetDatabase(url(home)) as database:
        changes = InventoryChanges(database)
        changes.record(found)
        changes.plan(plans)


def url(home: Path) -> str:
    """Return the fleet's database for a user with this home folder."""
    return f"sqlite:///{home}/fleet.sqlite"
