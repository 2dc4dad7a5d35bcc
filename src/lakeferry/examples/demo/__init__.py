"""``lakeferry demo``: a table moves and comes back while a writer appends to it.

Spark makes a table, delta-rs writes to it without a break, and Lakeferry moves it
and brings it back with the same commands that a user types. At the end every row
is counted, and a page tells what happened (``report.html``).

=============  =============================================================
``story``      what is done, measured and checked
``writer``     the process that writes by the old path, and counts
``spark``      Spark's own SQL shell, beside this process
``clients``    how delta-rs and Polars see a table
``stage``      where it is told as it goes
``findings``   what was found, for programs too
``report``     the page, and ``timeline`` the picture on it
=============  =============================================================
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lakeferry.cli import progress
from lakeferry.cli.options import Session, command
from lakeferry.errors import InvalidInput, NotEqual

if TYPE_CHECKING:
    from lakeferry.cli.output import Output
    from lakeferry.examples.demo.findings import Findings

REPORT = "report.html"
_MADE_HERE = ("old", "new", REPORT)


@command(
    examples=(
        ("lakeferry demo", "in a new folder, whose path is printed"),
        ("lakeferry demo --folder ./demo", "in a folder of your choice"),
        ("lakeferry demo --json | jq .writer", "for programs"),
    )
)
@click.option(
    "--folder", type=click.Path(file_okay=False), help="Make the tables and the report here."
)
def demo(session: Session, folder: str | None) -> None:
    """See a table move and come back on local disk, while somebody writes to it.

    Takes a minute or two, and leaves two tables and a report (report.html) in a
    folder. Needs the Spark extra, Java and delta-rs.
    """
    from lakeferry.examples.demo import spark

    with progress.waiting(session.output, "fetching Spark's jars, once (about 60 MB)"):
        spark.check_installed()
    with _workplace(folder, session.output) as place:
        from lakeferry.examples.demo import report
        from lakeferry.examples.demo.stage import DemoStage
        from lakeferry.examples.demo.story import Story

        found = Story(place, DemoStage(session.output)).tell()
        page = place / REPORT
        page.write_text(report.report_page(found), encoding="utf-8")
        if session.output.json:
            document = found.as_document()
            session.output.document({"folder": str(place), "report": str(page), **document})
        else:
            _sum_up(session.output, found, page)
    if found.failed:
        raise NotEqual(
            f"the demo found a problem: {found.failed[0].what}",
            cause=found.failed[0].detail,
            remedy=f"please report it, with {page}",
        )


def _sum_up(output: Output, found: Findings, report: Path) -> None:
    """Show the most important numbers at the end."""
    from lakeferry.examples.demo.report import summary

    output.text("\n")
    page = output.page()
    page.table("", ("result", ""), summary(found))
    for check in found.failed:
        page.line(f"wrong: {check.what}: {check.detail}", style="red")
    if not found.failed:
        page.line("No row was lost, and no row is there twice.", style="green")
    page.line(f"report: {report}")


@contextmanager
def _workplace(folder: str | None, output: Output) -> Iterator[Path]:
    """Yield the folder to work in; if it was made here, delete it after an interruption."""
    if folder is not None:
        place = Path(folder).absolute()
        for name in _MADE_HERE:
            if (place / name).exists():
                raise InvalidInput(
                    f"{place / name} already exists",
                    remedy="choose another folder with --folder",
                    path=str(place),
                )
        from lakeferry.storage import rights

        with rights.writing(place, f"the folder {place}"):
            place.mkdir(parents=True, exist_ok=True)
        output.after_interrupt = (
            "run 'lakeferry demo' again with another folder, or without --folder"
        )
        yield place
        return
    place = Path(tempfile.mkdtemp(prefix="lakeferry-demo-"))
    try:
        yield place
    except KeyboardInterrupt:
        shutil.rmtree(place, ignore_errors=True)
        raise
