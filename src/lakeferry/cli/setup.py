"""``setup``: fetches the jars that Spark needs."""

from __future__ import annotations

import os
from typing import Any

import click

from lakeferry.cli import progress
from lakeferry.cli.options import Session, command, dry_run_option, group


@group(examples=(("lakeferry setup spark", "fetch Delta Lake's jars for Spark"),))
def setup() -> None:
    """Fetch what Lakeferry's engines need besides Python packages."""


@command(
    examples=(
        ("lakeferry setup spark --dry-run", "are they there?"),
        ("lakeferry setup spark --ivy-settings ivysettings.xml", "from a mirror"),
        ("lakeferry setup spark --json | jq -r .jars", "where are they?"),
    )
)
@click.option(
    "--ivy-settings",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A file that names the repositories to fetch from, as for Spark's spark.jars.ivySettings.",
)
@dry_run_option
def spark(session: Session, ivy_settings: str | None, dry_run: bool) -> None:
    """Fetch Delta Lake's jars for PySpark into the cache folder, each checked by its digest.

    Needs Java and PySpark, whose version decides which jars are fetched. The folder is
    LAKEFERRY_CACHE, by default lakeferry in the user's cache folder.
    """
    from lakeferry.engines.spark import spark_jars, spark_versions

    folder = spark_jars.jars_folder(os.environ)
    if dry_run:
        plan = [] if folder.is_dir() else [{"op": "fetch_jars", "folder": str(folder)}]
        _show_plan(session, plan)
        return
    with progress.waiting(session.output, "fetching Spark's jars"):
        changed = spark_jars.fetch(os.environ, ivy_settings=ivy_settings)
    document = {
        "jars": str(folder),
        "pyspark": spark_versions.installed_pyspark(),
        "delta_spark": spark_versions.installed_version("delta-spark"),
        "changed": changed,
    }
    if session.output.json:
        session.output.document(document)
        return
    page = session.output.page()
    page.facts([(name.replace("_", "-"), document[name]) for name in list(document)[:3]])
    page.line("fetched" if changed else "the jars were there already")


def _show_plan(session: Session, plan: list[dict[str, Any]]) -> None:
    if session.output.json:
        session.output.document({"dry_run": True, "plan": plan})
    elif plan:
        session.output.page().line(f"would fetch Spark's jars into {plan[0]['folder']}")
    else:
        session.output.page().line("Spark's jars are there already")


setup.add_command(spark)
