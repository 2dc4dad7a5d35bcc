"""``catalog``: gives tables names, shows where names lead, changes and removes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from lakeferry import config
from lakeferry.cli import progress
from lakeferry.cli.confirmation import confirm, may_ask, yes_option
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
        ("lakeferry catalog list unity:sales.eu", "what is there?"),
    )
)
def catalog() -> None:
    """Register, list, change and remove names of tables, and show where they lead.

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
    """Show where NAME leads.

    The id of a table, sql:ID or unity:ID, shows which name it has now.
    """
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
        if entry.managed:
            pairs.append(("managed", "yes: its catalog owns its files"))
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
    from lakeferry.api.table import name_changes

    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "asking the catalog"):
        entry = name_changes.register(
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
    from lakeferry.api.table import name_changes

    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "asking the catalog"):
        entry = name_changes.move(
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
        ("lakeferry catalog list sql:", "all names in Lakeferry's own catalog"),
        ("lakeferry catalog list unity:sales.eu", "names that begin with sales.eu"),
        ("lakeferry catalog list unity: --json | jq -r '.tables[].name'", "for programs"),
    ),
)
@click.argument("prefix", type=CATALOG_NAME, default="sql:", metavar="[NAME-PREFIX]")
def list_(session: Session, prefix: str) -> None:
    """List the tables whose names begin with NAME-PREFIX.

    Without it, these are all names in Lakeferry's own catalog; unity: lists all Delta tables in
    Unity Catalog that you may see.
    """
    from lakeferry.api.table import names

    settings = config.load()
    with progress.waiting(session.output, "asking the catalog"):
        found = names.list_entries(prefix, settings.catalog_environment())
    if session.output.json:
        session.output.document({"tables": [entry.as_document() for entry in found]})
        return
    rows = [
        (entry.name, entry.location, "managed" if entry.managed else "", entry.table_id)
        for entry in found
    ]
    session.output.page().table("tables", ("name", "location", "", "table id"), rows)


@command(
    examples=(
        ("lakeferry catalog rename sql:sales.eu.orders sales.eu.orders_2", "the same table"),
        ("lakeferry catalog rename unity:main.sales.t main.sales.u --dry-run", "is it free?"),
    )
)
@click.argument("name", type=CATALOG_NAME)
@click.argument("new", type=CATALOG_NAME)
@dry_run_option
def rename(session: Session, name: str, new: str, dry_run: bool) -> None:
    """Give the table NAME the name NEW in the same catalog.

    The table keeps its id and its location. Redirects to a table in Unity Catalog use the id, so
    they still work. Redirects to a name in Lakeferry's own catalog use the name: to keep them
    working, register the old name again with 'lakeferry catalog register'. Unity Catalog can
    rename a table only within its schema.
    """
    from lakeferry.api.table import name_changes

    output, settings = session.output, config.load()
    with progress.waiting(output, "asking the catalog"):
        environment = settings.catalog_environment()
        entry = name_changes.rename_in_catalog(name, new, dry_run=dry_run, environment=environment)
    if output.json and dry_run:
        step = {"op": "rename", "name": entry.was, "to": entry.name, "location": entry.location}
        output.document({"dry_run": True, "plan": [step] if entry.changed else []})
    elif output.json:
        output.document({**entry.as_document(), "was": entry.was, "changed": entry.changed})
    elif not entry.changed:
        output.page().line(f"the table is called {entry.name} already")
    else:
        done = "would be called" if dry_run else "is called"
        output.page().line(f"{entry.was} {done} {entry.name}")
        output.page().line(_after_rename(entry))


def _after_rename(entry: names.CatalogEntry) -> str:
    if entry.name.startswith("unity:"):
        return "redirects to it follow, as they have its id"
    return (
        f"redirects to {entry.was} don't follow; for them, give the table that name again: "
        f"{entry.registration}"
    )


@command(
    examples=(
        ("lakeferry catalog remove sql:sales.eu.orders", "its files stay"),
        ("lakeferry catalog remove unity:main.sales.orders --yes", "a managed table and its files"),
    )
)
@click.argument("name", type=CATALOG_NAME)
@click.option(
    "--force",
    is_flag=True,
    help="Drop a managed table also if an old path leads to it; what was written since it moved is "
    "lost.",
)
@dry_run_option
@yes_option
def remove(session: Session, name: str, force: bool, dry_run: bool, yes: bool) -> None:
    """Remove NAME from its catalog.

    The table's files stay, except for a managed table: Unity Catalog deletes its files. So the
    removal of a managed table must be confirmed (or use --yes), and is refused while an old path
    leads to the table (unless --force is given). Old paths that were redirected to it with
    --to-existing can't be found. After the removal, redirects to the table have no target:
    'lakeferry redirect disable SOURCE --abandon-target' makes their sources ordinary tables.
    """
    from lakeferry.api.table_removal import remove_named_table

    output, settings = session.output, config.load()
    environment = settings.catalog_environment()
    asked_about: str | None = None
    if not (yes or dry_run) and may_ask(output, yes=yes):
        with progress.waiting(output, "asking the catalog"):
            entry = remove_named_table(
                name, breaks_redirects=force, dry_run=True, environment=environment
            )
        if entry.managed:
            lost = (
                f"Drop the managed table {entry.name}? Its catalog deletes {entry.location} too. "
                "Old paths that were redirected to it with --to-existing can't be found, and would "
                "lead to no table."
            )
            confirm(output, lost, yes=yes)
            yes, asked_about = True, entry.table_id
    with progress.waiting(output, "asking the catalog"):
        entry = remove_named_table(
            name,
            table_id=asked_about,
            deletes_files=yes,
            breaks_redirects=force,
            dry_run=dry_run,
            environment=environment,
            warn=output.warn,
        )
    if output.json and dry_run:
        place = {"location": entry.location, "deletes_files": entry.managed}
        step = {"op": "remove", "name": entry.name, **place}
        output.document({"dry_run": True, "plan": [step] if entry.changed else []})
    elif output.json:
        output.document({**entry.as_document(), "changed": entry.changed})
    elif not entry.changed:
        output.page().line(f"the catalog has no {entry.name}")
    else:
        done = "would remove" if dry_run else "removed"
        files = "the catalog deletes its files" if entry.managed else "its files stay"
        output.page().line(f"{done} {entry.name}; {files} at {entry.location}")


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


list_.name = "list"
for each in (register, move, show, list_, rename, remove):
    catalog.add_command(each)
