"""``lakefs``: writes the action file that makes a lakeFS repository call our server."""

from __future__ import annotations

from collections.abc import Mapping

import click

from lakeferry import config
from lakeferry.api.serving import DEFAULT_HOST, DEFAULT_PORT
from lakeferry.cli import progress
from lakeferry.cli.options import Session, command, dry_run_option, group, storage_option

DEFAULT_URL = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"


@group(
    examples=(
        ("lakeferry lakefs init sales --url https://ferry.example.com", "export what is committed"),
        ("lakeferry lakefs init lakefs://sales/dev --dry-run", "what would be written?"),
    )
)
def lakefs() -> None:
    """Make a lakeFS repository call the server that exports its tables.

    LAKECTL_SERVER_ENDPOINT_URL, LAKECTL_CREDENTIALS_ACCESS_KEY_ID and
    LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY have the address of lakeFS and the credentials.
    """


@command(
    examples=(
        ("lakeferry lakefs init sales --url https://ferry.example.com", "on the default branch"),
        ("lakeferry lakefs init sales --branch dev", "on another; a server on this machine"),
        ("lakeferry lakefs init lakefs://sales/dev --dry-run", "what would be written?"),
    )
)
@click.argument("repository", metavar="REPO")
@click.option(
    "--branch",
    default=None,
    metavar="B",
    help="The branch; by default the repository's default branch.",
)
@click.option(
    "--url",
    default=DEFAULT_URL,
    show_default=True,
    metavar="URL",
    help="The address at which lakeFS reaches the server.",
)
@dry_run_option
@storage_option
def init(
    session: Session,
    repository: str,
    branch: str | None,
    url: str,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Write and commit the action file that makes REPO call the server.

    REPO is a repository's name, lakefs://repository or lakefs://repository/branch.
    lakeFS needs the server's secret in its own environment, as
    LAKEFSACTION_LAKEFERRY_WEBHOOK_SECRET. A branch with uncommitted changes is refused, because
    this commit would include them.
    """
    from lakeferry.server.lakefs import action_file

    settings = config.load(storage_options=storage_options)
    name, chosen = action_file.named_action(repository, branch)
    options = settings.storage_options(f"lakefs://{name}")
    with progress.waiting(session.output, "asking lakeFS"):
        done = action_file.install(name, chosen, url, options, dry_run=dry_run)
    where = f"{done.path} on {done.branch} of {done.repository}"
    if session.output.json and dry_run:
        step = {
            "op": "commit_action_file",
            "repository": done.repository,
            "branch": done.branch,
            "path": done.path,
        }
        session.output.document({"dry_run": True, "plan": [step] if done.changed else []})
    elif session.output.json:
        session.output.document(done.as_document())
    elif not done.changed:
        session.output.page().line(f"{where} is up to date")
    elif dry_run:
        session.output.page().line(f"would write and commit {where}")
    else:
        session.output.page().line(f"wrote {where}, commit {done.commit}")
        session.output.page().line(
            f"lakeFS needs the secret in its environment: {action_file.LAKEFS_SECRET_VARIABLE}"
        )


lakefs.add_command(init)
