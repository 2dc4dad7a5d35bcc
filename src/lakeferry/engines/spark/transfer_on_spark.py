"""Moves objects between a store and URLs in Spark's executors.

A task gets the numbers of its objects; their descriptions, about a page, are sent in the
function's closure. Tasks have a bounded size, so that progress is live, and may be repeated:
they move the same bytes again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lakeferry.engine import CarryPlan, Observer
from lakeferry.engines.spark.job_progress import task_slot, watched
from lakeferry.engines.spark.spark_session import EngineSession, map_in_arrow
from lakeferry.engines.spark.tasks import task_sizes
from lakeferry.engines.spark.tasks.task_failures import telling_the_driver


def carry(session: EngineSession, plan: CarryPlan, observer: Observer) -> Iterator[tuple[int, str]]:
    """Yield the result for each object, by its number."""
    if not plan.sizes:
        return
    numbered = {"number": range(len(plan.sizes)), "size": plan.sizes}
    parts = task_sizes.parts(pa.table(numbered), session.cores)
    numbers = [part["number"].to_pylist() for part in parts]
    carrier, tasks = plan.carrier, session.at_once(len(parts))

    count = len(parts)
    ids = session.spark.range(0, count, 1, count)
    with session.counters() as counters:

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with telling_the_driver(), task_slot(counters) as tell:
                for batch in batches:
                    for part in batch.column("id").to_pylist():
                        told = list(carrier.carry(numbers[part], tasks, tell))
                        columns = zip(*told, strict=True)
                        yield pa.RecordBatch.from_arrays(
                            [pa.array(values) for values in columns], names=["number", "outcome"]
                        )

        with watched(
            session.jobs, plan.title, count, observer, amount=plan.amount, counters=counters
        ):
            found = map_in_arrow(ids, run, "number long, outcome string").collect()
    yield from ((row["number"], row["outcome"]) for row in found)
