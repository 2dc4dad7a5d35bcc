"""``catalog``: gives tables names and shows where names lead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from lakeferry import config
from lakeferry.cli import progress
from lakeferry.cli.options import (
    CATALOG_NAME,
    TABLE,
    Session,
    command,
    dry_run_option,
    group,
    storage_option,
)
from lakeferry.cli.output import Output

if TYPE_CHECKING:
    from lakeferry.api.table import names


@group(
    examples=(
        ("lakeferry catalog register sql:sales.eu.orders s3://warehouse/orders", "give it a name"),
        ("lakeferry inspect sql:sales.eu.orders", "use the name instead of a path"),
        ("lakeferry catalog move sql:sales.eu.orders s3://new/orders", "change where it leads"),
    )
)
def catalog() -> None:
    """Register names of tables, and show where names lead.

    A NAME is sql:cat.schema.t in Lakeferry's own catalog, which is a database, or
    unity:cat.schema.t in Unity Catalog. Without a prefix it is in Lakeferry's own. The environment
    variables LAKEFERRY_SQL_URL, UC_URL and UC_TOKEN say where the catalogs are.
    """


@command(
    examples=(
        ("lakeferry catalog show sql:sales.eu.orders", "where does it lead?"),
        ("lakeferry catalog show unity:main.sales.orders --json | jq -r .location", "for programs"),
    )
)
@click.argument("name", type=CATALOG_NAME)
def show(session: Session, name: str) -> None:
    """Show where NAME leads."""
    from lakeferry.api.table import names

    settings = config.load()
    with progress.waiting(session.output, "asking the catalog"):
        entry = names.show(name, settings.catalog_environment())
    if session.output.json:
        session.output.document(entry.as_document())
    else:
        pairs = [("name", entry.name), ("location", entry.location), ("table id", entry.table_id)]
        if entry.metastore_id is not None:
            pairs.append(("metastore id", entry.metastore_id))
        session.output.page().facts(pairs)


@command(
    examples=(
        ("lakeferry catalog register sql:sales.eu.orders ./orders", "a table on local disk"),
        ("lakeferry catalog register unity:main.sales.orders s3://lake/orders", "Unity Catalog"),
        ("lakeferry catalog register sql:sales.eu.orders ./orders --dry-run", "is the name free?"),
    )
)
@click.argument("name", type=CATALOG_NAME)
@click.argument("location", type=TABLE)
@dry_run_option
@storage_option
def register(
    session: Session, name: str, location: str, dry_run: bool, storage_options: Mapping[str, str]
) -> None:
    """Register NAME for the table at LOCATION.

    If NAME already leads elsewhere, it isn't changed, and the command fails.
    """
    from lakeferry.api.table import names

    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "asking the catalog"):
        entry = names.register(
            name,
            location,
            settings.storage_options(location),
            dry_run=dry_run,
            environment=settings.catalog_environment(),
            warn=session.output.warn,
        )
    _tell(session.output, entry, dry_run)


@command(
    examples=(
        ("lakeferry catalog move sql:sales.eu.orders s3://new/orders", "change where it leads"),
        (
            "lakeferry catalog move sql:sales.eu.orders s3://new/orders --dry-run",
            "where does it lead now?",
        ),
    )
)
@click.argument("name", type=CATALOG_NAME)
@click.argument("location", type=TABLE)
@dry_run_option
@storage_option
def move(
    session: Session, name: str, location: str, dry_run: bool, storage_options: Mapping[str, str]
) -> None:
    """Change NAME so that it leads to LOCATION.

    The table keeps its id, and no file is moved. Redirects to NAME then lead to LOCATION. Unity
    Catalog can't do this.
    """
    from lakeferry.api.table import names

    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "asking the catalog"):
        entry = names.move(
            name,
            location,
            settings.storage_options(location),
            dry_run=dry_run,
            environment=settings.catalog_environment(),
            warn=session.output.warn,
        )
    _tell(session.output, entry, dry_run)


def _tell(output: Output, entry: names.CatalogEntry, dry_run: bool) -> None:
    op = "register" if entry.was is None else "move"
    if output.json and dry_run:
        step = {"op": op, "name": entry.name, "from": entry.was, "location": entry.location}
        output.document({"dry_run": True, "plan": [step] if entry.changed else []})
    elif output.json:
        output.document({**entry.as_document(), "changed": entry.changed})
    elif not entry.changed:
        output.page().line(f"{entry.name} leads to {entry.location} already")
    else:
        before = f" instead of {entry.was}" if entry.was is not None else ""
        lead = f"would let {entry.name} lead" if dry_run else f"{entry.name} leads"
        output.page().line(f"{lead} to {entry.location}{before}")


for each in (register, move, show):
    catalog.add_command(each)
