"""``remote``: gives servers short names."""

from __future__ import annotations

import click

from lakeferry.cli.options import Session, command, dry_run_option, group


@group(
    examples=(
        ("lakeferry remote add acme https://data.acme.example", "name a server"),
        ("lakeferry push ./orders acme/orders", "use the name"),
        ("lakeferry ls acme", "what is there?"),
    )
)
def remote() -> None:
    """Name servers, list the names, and remove them.

    The names are kept in remotes.json in your own configuration folder. A file in a project can't
    define any.
    """


@command(
    examples=(
        ("lakeferry remote add acme https://data.acme.example", "a server"),
        (
            "lakeferry remote add acme https://data.acme.example --token-from-env ACME_TOKEN",
            "with a token of its own",
        ),
    )
)
@click.argument("name")
@click.argument("url")
@click.option(
    "--token-from-env",
    default=None,
    metavar="VARIABLE",
    help="The environment variable with the token for this server, instead of LAKEFERRY_TOKEN.",
)
@dry_run_option
def add(session: Session, name: str, url: str, token_from_env: str | None, dry_run: bool) -> None:
    """Give the server at URL a NAME.

    Where a command takes the URL of a dataset, NAME/DATASET means the dataset DATASET of that
    server.
    """
    from lakeferry.api import remotes

    changed = remotes.add_remote(name, url, token_from_env=token_from_env, dry_run=dry_run)
    output = session.output
    step = {"op": "add_remote", "name": name, "url": url.rstrip("/")}
    if output.json and dry_run:
        output.document({"dry_run": True, "plan": [step] if changed else []})
    elif output.json:
        output.document(
            {
                "name": name,
                "url": url.rstrip("/"),
                "token_from_env": token_from_env,
                "changed": changed,
            }
        )
    else:
        words = "would be" if dry_run else "is"
        output.page().line(f"{name} {words} {url}" if changed else f"{name} is {url} already")


@command(
    examples=(
        ("lakeferry remote list --json", "all names"),
        ("lakeferry remote list --json | jq -r '.remotes[].url'", "for programs"),
    )
)
def list_(session: Session) -> None:
    """List the names of servers."""
    from lakeferry.api import remotes

    found = [each.as_document() for each in remotes.list_remotes()]
    if session.output.json:
        session.output.document({"remotes": found})
        return
    columns = ("name", "url", "token from")
    rows = [(each["name"], each["url"], each["token_from_env"]) for each in found]
    session.output.page().table("remotes", columns, rows)


@command(examples=(("lakeferry remote remove acme", "the server stays as it is"),))
@click.argument("name")
@dry_run_option
def remove(session: Session, name: str, dry_run: bool) -> None:
    """Remove NAME. The server and its datasets stay as they are."""
    from lakeferry.api import remotes

    changed = remotes.remove_remote(name, dry_run=dry_run)
    output = session.output
    if output.json and dry_run:
        step = {"op": "remove_remote", "name": name}
        output.document({"dry_run": True, "plan": [step] if changed else []})
    elif output.json:
        output.document({"name": name, "changed": changed})
    else:
        words = "would remove" if dry_run else "removed"
        output.page().line(f"{words} {name}" if changed else f"there is no remote named {name}")


list_.name = "list"
for each in (add, list_, remove):
    remote.add_command(each)
