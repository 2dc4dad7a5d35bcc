"""The steps of the demo.

Everything is done with real engines and measured here; pages and reports show only results of
this run. Each claim is a :class:`DemoCheck`, with the expected and the actual value.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc

import lakeferry
from lakeferry.api.history import Commit
from lakeferry.api.table import Table
from lakeferry.cli import progress, render
from lakeferry.cli.redirect_pages import show_outcome, show_status
from lakeferry.examples.demo import clients, spark
from lakeferry.examples.demo.findings import DemoCheck, Findings, Sight, TimeSpan
from lakeferry.examples.demo.spark import SparkShell
from lakeferry.examples.demo.writer import FIRST_ID, Writer, orders

if TYPE_CHECKING:
    from lakeferry.examples.demo.stage import DemoStage

MADE = 1_000_000
DELETED = 250
ADDED = range(1_000_000, 1_000_010)
BY_REDIRECT = range(2_000_000, 2_000_005)
_NEVER = 3_000_000
"""The id of an order that must never be written."""
_STATEMENTS = (
    """CREATE TABLE {table} (id BIGINT, region STRING, amount DOUBLE) USING delta
       PARTITIONED BY (region) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')""",
    f"""INSERT INTO {{table}} SELECT id,
       element_at(array('north', 'east', 'south', 'west'), 1 + CAST(id % 4 AS INT)), id * 1.5
       FROM range(0, {MADE}, 1, 2)""",
    "UPDATE {table} SET amount = 0 WHERE id = 7",
    f"DELETE FROM {{table}} WHERE region = 'north' AND id < {4 * DELETED}",
)
_INSERT = "INSERT INTO {table} SELECT id, 'west', 1.0 FROM range({ids.start}, {ids.stop})"


class Story:
    """One run of the demo in a folder."""

    def __init__(self, place: Path, stage: DemoStage) -> None:
        """Begin with two places where nothing is."""
        self._place = place
        self._stage = stage
        self._old, self._new = place / "old" / "orders", place / "new" / "orders"
        self.found = Findings(self._old, self._new, _now_ms())

    def tell(self) -> Findings:
        """Make the table, move it, look at it from all sides, bring it back, and count."""
        with ExitStack() as stack:
            shell = stack.enter_context(SparkShell(self._place / "spark.log"))
            self._make(shell)
            writer = stack.enter_context(Writer(self._old, self._place / "writer.log"))
            self._begin(writer)
            self._move(writer)
            self._look_around(shell, writer)
            self._travel()
            self._come_back(writer)
            self._count(shell, writer)
        self.found.ended_ms = _now_ms()
        return self.found

    # --- The steps ----------------------------------------------------------

    def _make(self, shell: SparkShell) -> None:
        self._stage.step("Spark makes a table of orders, and delta-rs adds to it")
        table = spark.named_table(self._old)
        with progress.waiting(self._stage.output, "Spark is working"):
            shell.run(*(statement.format(table=table) for statement in _STATEMENTS))
            made = shell.count(table)
        self._check("Spark made the table", made, MADE - DELETED)
        import deltalake

        deltalake.write_deltalake(self._old, orders(ADDED, "south"), mode="append")
        seen = Table(str(self._old)).inspect()
        self._stage.facts(
            [
                ("table", seen.location),
                ("rows", f"{made + len(ADDED):,}, one changed and {DELETED} deleted before"),
                ("files", f"{seen.num_files}, {render.size(seen.size_bytes)}, in 4 partitions"),
                ("features", ", ".join(clients.features(self._old))),
                ("version", seen.version),
            ]
        )

    def _begin(self, writer: Writer) -> None:
        self._stage.step("A writer starts: delta-rs, by the old path, two commits a second")
        with progress.waiting(self._stage.output, "the writer is working"):
            writer.wait_for(4)
        self._stage.line(f"{writer.rows} rows are acknowledged, and the writer continues")

    def _move(self, writer: Writer) -> None:
        self._stage.step("The table moves, while the writer writes")
        self._stage.command("redirect", "enable", self._old, self._new, "--mode", "writer-only")
        with progress.watching(self._stage.output) as observer:
            outcome = self._table.redirect(str(self._new), mode="writer-only", observer=observer)
        assert outcome.version is not None
        self.found.enabled = outcome
        ready = outcome.version
        self.found.versions |= {"enabling": ready - 1, "ready": ready}
        moments = self._moments(self._old)
        self._span("enable", moments[ready - 1], moments[ready])
        self._stage.show(lambda output: show_outcome(output, outcome, ()))
        writer.wait_for(3)
        self._stage.command("redirect", "status", self._old)
        status = self._table.redirect_status()
        self._stage.show(lambda output: show_status(output, status))

    def _look_around(self, shell: SparkShell, writer: Writer) -> None:
        self._stage.step("What each client sees, while the writer continues")
        self._see_with_lakeferry()
        self._see_at_the_old_place()
        self._see_at_the_new_place()
        self._see_with_spark(shell, writer)
        self._stage.table(
            ("client", "path", "version", "rows", "may write"),
            [
                (each.client, each.path, each.version, f"{each.rows:,}", each.writes)
                for each in self.found.sights
            ],
        )
        self._stage.line(f"Spark's option is {spark.FOLLOW_OPTION}=true")
        self._stage.line(spark.HELD)

    def _see_with_lakeferry(self) -> None:
        place = lakeferry.resolve(str(self._old))
        self._check(
            "Lakeferry resolves the old path to the new place", place, Table(str(self._new)).uri
        )
        version = self._table.snapshot().version
        rows = lakeferry.open(str(self._old), version=version).count_rows()
        self._see("Lakeferry", self._old, version, rows, "yes, at the new place")

    def _see_at_the_old_place(self) -> None:
        refusal = clients.refusal(self._old, _NEVER)
        version, rows = clients.newest(self._old)
        self._see(
            "stock delta-rs", self._old, version, rows, f"no: {refusal}" if refusal else "yes"
        )
        before = clients.count(self._old, self.found.versions["enabling"] - 1)
        self._check(
            "stock delta-rs reads at the old path the version before the move", rows, before
        )
        self._check("stock delta-rs can't write there", refusal is not None, True)

    def _see_at_the_new_place(self) -> None:
        version, rows = clients.newest(self._new)
        self._see("stock delta-rs", self._new, version, rows, "yes")
        redirects = [name for name in clients.features(self._new) if "redirect" in name]
        self._check("features at the new place that only Lakeferry knows", redirects, [])
        by_polars = clients.count_with_polars(self._new, version)
        if by_polars is not None:
            self._see("Polars", self._new, version, by_polars, "yes")
            self._check("Polars counts the same rows there as delta-rs", by_polars, rows)

    def _see_with_spark(self, shell: SparkShell, writer: Writer) -> None:
        """Have stock Spark read and write by the old path.

        On local disk Spark first checks whether a version is free and then writes it, and
        another writer could take the version in between. So the writer pauses meanwhile.
        """
        table = spark.named_table(self._old)
        with progress.waiting(self._stage.output, "Spark reads and writes by the old path"):
            version, rows = clients.newest(self._new)
            read = shell.count(f"{table} VERSION AS OF {version}")
            with writer.held():
                held = _now_ms()
                before = clients.version(self._new)
                shell.run(_INSERT.format(table=table, ids=BY_REDIRECT))
                shell.wait()
                after = clients.version(self._new)
                self._span("held", held, _now_ms())
            read_again = shell.count(f"{table} VERSION AS OF {after}")
        name = "stock Spark, with one option"
        self._see(name, self._old, after, read_again, "yes, at the new place")
        self._check("Spark reads the new place by the old path", read, rows)
        self._check("Spark's commit by the old path is at the new place", after - before, 1)
        landed = clients.count(self._new, after) - clients.count(self._new, before)
        self._check("rows that Spark wrote by the old path", landed, len(BY_REDIRECT))
        ready = self.found.versions["ready"]
        self._check("the old log gets no new version", clients.version(self._old), ready)

    def _travel(self) -> None:
        self._stage.step("Time travel: a version means the same at both places")
        before = self.found.versions["enabling"] - 1
        for version in (1, before):
            self._compare(version)

    def _come_back(self, writer: Writer) -> None:
        self._stage.step("The table comes back, while the writer writes")
        self._stage.command("redirect", "disable", self._old)
        with progress.watching(self._stage.output) as observer:
            outcome = self._table.redirect_disable(observer=observer)
        assert outcome.version is not None
        self.found.disabled = outcome
        normal = outcome.version
        self.found.versions |= {"dropping": normal - 1, "normal": normal}
        self._stage.show(lambda output: show_outcome(output, outcome, ()))
        self._span(
            "disable", self._moments(self._new)[normal - 1], self._moments(self._old)[normal]
        )
        self._compare(normal - 2)
        ours, theirs = self._history(self._old), self._history(self._new)
        same = [version for version, commit in theirs.items() if ours.get(version) == commit]
        self._check("every version has the same number at both places", len(same), normal)
        writer.wait_for(3)

    def _count(self, shell: SparkShell, writer: Writer) -> None:
        self._stage.step("The writer stops, and every row is counted")
        with progress.waiting(self._stage.output, "counting"):
            writer.stop()
            self.found.acknowledged, self.found.refused = writer.acknowledged, writer.refused
            written = pc.field("id") >= FIRST_ID
            ids = lakeferry.open(str(self._old)).to_table(columns=["id"], filter=written)["id"]
            times = Counter(ids.to_pylist())
            self.found.lost = sum(each not in times for each in writer.ids)
            self.found.doubled = sum(count - 1 for count in times.values())
            self.found.rows = lakeferry.open(str(self._old)).count_rows()
            self.found.versions["last"] = clients.version(self._old)
            everybodys = [clients.count(self._old), shell.count(spark.named_table(self._old))]
        self._check("rows that were acknowledged and are lost", self.found.lost, 0)
        self._check("rows that are there twice", self.found.doubled, 0)
        self._check("rows that were never acknowledged", len(times) - len(writer.ids), 0)
        there = MADE - DELETED + len(ADDED) + len(BY_REDIRECT) + writer.rows
        self._check("rows in total", self.found.rows, there)
        self._check("delta-rs and Spark count the same", everybodys, [there, there])

    # --- What the steps are made of -----------------------------------------

    @property
    def _table(self) -> Table:
        return Table(str(self._old), warn=self._stage.note)

    def _check(self, what: str, found: object, expected: object) -> None:
        ok = found == expected
        detail = _shown(found) if ok else f"{_shown(found)} instead of {_shown(expected)}"
        self.found.checks.append(DemoCheck(what, ok, detail))

    def _see(self, client: str, path: Path, version: int, rows: int, writes: str) -> None:
        name = path.relative_to(self._place).as_posix()
        self.found.sights.append(Sight(client, name, version, rows, writes))

    def _compare(self, version: int) -> None:
        """Read a version with stock delta-rs at both places, and compare every row."""
        here, there = clients.rows(self._old, version), clients.rows(self._new, version)
        equal = here.equals(there)
        self._check(f"version {version} is the same at both places", equal, True)
        told = "the same" if equal else "NOT the same"
        self._stage.line(f"version {version}: {here.num_rows:,} rows, {told} at both places")

    def _moments(self, place: Path) -> dict[int, int]:
        return {each.version: each.timestamp for each in Table(str(place)).history(follow=False)}

    def _history(self, place: Path) -> dict[int, tuple[object, ...]]:
        return {each.version: _content(each) for each in Table(str(place)).history(follow=False)}

    def _span(self, name: str, from_ms: int, to_ms: int) -> None:
        self.found.spans.append(TimeSpan(name, from_ms, to_ms))


def _content(commit: Commit) -> tuple[object, ...]:
    return commit.operation, commit.operation_parameters, commit.engine_info, commit.txn_id


def _shown(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case list():
            return ", ".join(map(_shown, value)) or "none"
    return str(value)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
