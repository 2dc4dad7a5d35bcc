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
        ("lakeferry inspect sql:sales.eu.orders", "use the name wherever a table is asked for"),
        ("lakeferry catalog move sql:sales.eu.orders s3://new/orders", "let it lead elsewhere"),
    )
)
def catalog() -> None:
    """Give tables names, and see where names lead.

    A NAME is sql:cat.schema.t, in a database of Lakeferry's own, or
    unity:cat.schema.t, in Unity Catalog; without the word before the colon it is
    the former. LAKEFERRY_SQL_URL, UC_URL and UC_TOKEN say where the catalogs are.
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
    """Let NAME lead to the table at LOCATION.

    A name that leads elsewhere is left as it is, and that is an error.
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
        ("lakeferry catalog move sql:sales.eu.orders s3://new/orders", "let it lead elsewhere"),
        ("lakeferry catalog move sql:sales.eu.orders s3://new/orders --dry-run", "from where?"),
    )
)
@click.argument("name", type=CATALOG_NAME)
@click.argument("location", type=TABLE)
@dry_run_option
@storage_option
def move(
    session: Session, name: str, location: str, dry_run: bool, storage_options: Mapping[str, str]
) -> None:
    """Let NAME lead to LOCATION from now on.

    The table's id stays, and no file is moved. Whoever is redirected to the name
    follows. Unity Catalog can't do it.
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
