"""``serve``: runs the server of datasets and exports."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click

from lakeferry import config
from lakeferry.api.serving import DEFAULT_HOST, DEFAULT_PORT, Server
from lakeferry.cli import progress
from lakeferry.cli.exit_codes import DONE
from lakeferry.cli.options import Duration, Session, command, engine_option, storage_option

if TYPE_CHECKING:
    from lakeferry.server.logs import Format

# Of glibc's malloc.h.
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LOG = logging.getLogger("lakeferry.server")


class Terminated(BaseException):
    """The server was told to end by a signal."""


@command(
    examples=(
        ("lakeferry serve --root ./server", "on this machine, port 8470"),
        ("lakeferry serve --root s3://lake/server --host 0.0.0.0", "for other machines"),
        ("lakeferry serve --root ./server --anonymous-read", "everybody may read every dataset"),
        ("lakeferry serve --root ./server --port 0 --json", "any free port; the first line has it"),
    )
)
@click.option(
    "--root",
    required=True,
    metavar="URI",
    help="The folder of the datasets and of the server's own files.",
)
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port; 0 chooses a free one.",
)
@click.option(
    "--public-url",
    default=None,
    metavar="URL",
    help="The server's URL behind a proxy; by default the address that the client used.",
)
@click.option(
    "--anonymous-read", is_flag=True, help="Let everybody read every dataset, without a token."
)
@click.option(
    "--urls-last",
    "urls_last_ms",
    type=Duration(),
    default="1h",
    show_default=True,
    metavar="D",
    help="How long the URLs of objects are valid: 1s to 7d.",
)
@click.option(
    "--console-place",
    "console_places",
    multiple=True,
    metavar="URI",
    help="A folder or prefix. With a write token, the console may scan tables below it and move "
    "tables to it; may be repeated.",
)
@click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    default=None,
    help="The format of the log; by default text on a terminal, JSON elsewhere.",
)
@engine_option
@storage_option
def serve(
    session: Session,
    root: str,
    host: str,
    port: int,
    public_url: str | None,
    anonymous_read: bool,
    urls_last_ms: int,
    console_places: tuple[str, ...],
    log_format: Format | None,
    engine: str | None,
    storage_options: Mapping[str, str],
) -> None:
    """Serve the datasets below a root, and export the tables that commits to lakeFS change.

    Clients need a token ('lakeferry token create') for every dataset that isn't public. lakeFS has
    to send the secret in LAKEFERRY_WEBHOOK_SECRET; without a secret, no event is accepted.
    'lakeferry lakefs init' makes a repository call the server.
    """
    from lakeferry.server import running_server

    settings = config.load(storage_options=storage_options, engine=engine)
    session.output.after_interrupt = "start it again: jobs in its queue are kept"
    log_to_stderr(log_format)
    _have_memory_returned()
    server = Server(
        root,
        host=host,
        port=port,
        public_url=public_url,
        anonymous_read=anonymous_read,
        urls_last=f"{urls_last_ms} milliseconds",
        settings=settings,
        console_places=console_places,
    )
    with terminable():
        try:
            with progress.waiting(session.output, "reading the root"):
                server.start()
            if session.output.json:
                session.output.document({"url": server.url})
            else:
                session.output.text(f"serving at {server.url}\n")
            if not os.environ.get(running_server.SECRET_VARIABLE):
                _LOG.warning(
                    "%s isn't set: events of lakeFS are refused", running_server.SECRET_VARIABLE
                )
            server.wait()
        except Terminated:
            server.stop()
        except BaseException:
            # Nothing is to be written after the error.
            logging.disable(logging.CRITICAL)
            server.stop(requests_s=0.3, job_s=0)
            raise
    # Don't wait for running threads: an unfinished export is back in the queue, and work that only
    # reads can be dropped.
    logging.shutdown()
    os._exit(DONE)


def log_to_stderr(form: Format | None) -> None:
    """Write the log of this process's server to standard error."""
    from lakeferry.server import logs

    logs.write_to_stderr(form, debug=bool(os.environ.get("LAKEFERRY_DEBUG")))
    # Lakeferry logs the rest itself.
    for name in ("uvicorn", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _have_memory_returned() -> None:
    """Have the C library return freed memory to the system.

    glibc keeps an arena for each of a server's many threads, and by default it stops returning
    large blocks once one of them was freed. Other C libraries have no such call.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_ARENA_MAX, 2)
    mallopt(_M_MMAP_THRESHOLD, 4 << 20)


@contextmanager
def terminable() -> Iterator[None]:
    """End the work inside in an orderly way when the terminate signal arrives."""

    def terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        # Ignore further signals, so that the shutdown isn't disturbed.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
