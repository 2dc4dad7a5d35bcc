"""``checkpoint``: writes a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import click

from lakeferry import config
from lakeferry.cli import progress
from lakeferry.cli.options import (
    TABLE,
    Session,
    command,
    dry_run_option,
    engine_option,
    storage_option,
    version_option,
)


@command(
    examples=(
        ("lakeferry checkpoint ./orders", "of the newest version"),
        ("lakeferry checkpoint ./orders --dry-run", "what would be written"),
        ("lakeferry checkpoint s3://warehouse/orders --version 40", "of an older version"),
    )
)
@click.argument("table", type=TABLE)
@version_option
@dry_run_option
@engine_option
@storage_option
def checkpoint(
    session: Session,
    table: str,
    version: int | None,
    dry_run: bool,
    engine: str | None,
    storage_options: Mapping[str, str],
) -> None:
    """Write a checkpoint of TABLE, unless the version already has a complete one.

    Its format is classic, or v2 if the table's property delta.checkpointPolicy is v2.
    """
    settings = config.load(storage_options=storage_options, engine=engine)
    with progress.waiting(session.output, "writing a checkpoint"):
        written = session.table(table, settings).checkpoint(version, dry_run=dry_run)
    step = {
        "op": "write_checkpoint",
        "version": written.version,
        "kind": written.kind,
        "files": list(written.files),
    }
    name = f"{written.kind} checkpoint of version {written.version}"
    if session.output.json:
        if dry_run:
            plan = [step] if written.created else []
            session.output.document({"dry_run": True, "plan": plan})
        else:
            del step["op"]
            session.output.document({**step, "changed": written.created})
    elif not written.created:
        session.output.page().line(f"the {name} is there already")
    elif dry_run:
        session.output.page().line(f"would write the {name}")
    else:
        session.output.page().line(f"wrote the {name}")
        for file in written.files:
            session.output.page().line(file, indent=2)
