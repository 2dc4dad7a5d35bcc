"""``ui``: shows the console on this machine, for the user who starts it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import click

from lakeferry import config
from lakeferry.cli.exit_codes import DONE
from lakeferry.cli.options import Session, command, engine_option, storage_option
from lakeferry.cli.serve import Terminated, log_to_stderr, terminable

_STOPS_WITHIN_S = 7.0
_REQUESTS_END_WITHIN_S = 2.0


@command(
    examples=(
        ("lakeferry ui", "open the URL that it prints"),
        ("lakeferry ui --port 8471", "always the same port"),
        ("lakeferry ui --json", "the first line has the URL, for programs"),
    )
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="The port; 0 chooses a free one.",
)
@engine_option
@storage_option
def ui(session: Session, port: int, engine: str | None, storage_options: Mapping[str, str]) -> None:
    """Show the fleet in the browser, and run its moves. Runs until you stop it (Ctrl-C).

    The pages can be opened only on this machine, with the URL that the command prints: don't
    share that URL. For a team, 'lakeferry serve' has the same pages; users sign in with a token.
    """
    from lakeferry.server.running_server import RunningServer, listen
    from lakeferry.web.local_console import UI_HOST, local_console

    settings = config.load(storage_options=storage_options, engine=engine)
    session.output.after_interrupt = (
        "'lakeferry ui' opens it again; 'lakeferry fleet run' continues"
    )
    log_to_stderr(None)
    with listen(UI_HOST, port) as listener, terminable():
        console, app, url = local_console(settings, listener.getsockname()[1])
        # A wrong setting is told here, and not by every page. No connection is opened.
        _ = console.database
        server = RunningServer(listener, app, console=console)
        try:
            server.start()
            if session.output.json:
                session.output.document({"url": url})
            else:
                session.output.text(f"open {url}\n")
            server.wait()
        except Terminated:
            server.stop(requests_s=_REQUESTS_END_WITHIN_S, job_s=_STOPS_WITHIN_S)
        except BaseException:
            # Nothing is to be written after the error.
            logging.disable(logging.CRITICAL)
            server.stop(requests_s=0.3, job_s=_STOPS_WITHIN_S)
            raise
    # A move that hasn't stopped yet is continued by the next run.
    logging.shutdown()
    os._exit(DONE)
