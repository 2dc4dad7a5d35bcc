"""``completion``: prints the shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from lakeferry.cli.options import Session, command
from lakeferry.errors import InvalidInput

SHELLS = ("bash", "zsh", "fish")


@command(
    examples=(
        ('eval "$(lakeferry completion bash)"', "in ~/.bashrc"),
        ('eval "$(lakeferry completion zsh)"', "in ~/.zshrc"),
        ("lakeferry completion fish | source", "in ~/.config/fish/config.fish"),
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(session: Session, shell: str) -> None:
    """Print a shell script that completes commands, options and folders."""
    from lakeferry.cli.app import COMPLETION_VARIABLE, lakeferry

    kind = get_completion_class(shell)
    if kind is None:
        raise InvalidInput(f"there is no completion for {shell}")
    # The script alone: click's own source() would start the shell to ask its version.
    made = kind(lakeferry, {}, "lakeferry", COMPLETION_VARIABLE)
    script = made.source_template % made.source_vars()
    if session.output.json:
        session.output.document({"shell": shell, "script": script})
    else:
        session.output.text(f"{script}\n")
