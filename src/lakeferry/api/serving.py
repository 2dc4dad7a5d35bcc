"""``serve`` and ``Server``: a server of datasets in this process.

The server runs in its own threads, so the caller's thread can wait, go on working or run an
event loop. Engines are opened for the first job that needs one (a digest or an export), and all
jobs share one Spark session.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from lakeferry.config import Config
from lakeferry.errors import InvalidInput, LakeferryError

if TYPE_CHECKING:
    from lakeferry.engines.engine_choice import Engines
    from lakeferry.server.lakefs.export_jobs import ExportTable
    from lakeferry.server.running_server import RunningServer as Running

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8470
JOB_ENDS_WITHIN_S = 7.0
"""How long a stopping server waits for the running export.

Service managers kill a service after a while, some after ten seconds.
"""
REQUESTS_END_WITHIN_S = 2.0

_LOG = logging.getLogger("lakeferry.server")


class ServerOptions(TypedDict, total=False):
    """The options of :class:`Server`, without its port."""

    storage_options: Mapping[str, str] | None
    host: str
    public_url: str | None
    anonymous_read: bool
    urls_last: str
    engine: str
    secret: str | None
    settings: Config | None
    console_places: Sequence[str]


class Server:
    """Serves the datasets below a root, as a context manager or between start and stop.

    ::

        with lakeferry.Server("./server", anonymous_read=True) as server:
            lakeferry.Table("./copy").pull(f"{server.url}/acme/orders")

    Port 0 selects any free port. ``public_url`` is the URL for clients, if it isn't the address;
    ``urls_last``, a duration, is the lifetime of objects' URLs. ``secret`` is lakeFS's secret,
    by default ``LAKEFERRY_WEBHOOK_SECRET``. ``settings`` are a command's, and replace
    ``storage_options`` and ``engine``. Below ``console_places`` the console's visitors with a token
    to write may scan tables, and move tables to. Nothing is contacted before the start.
    """

    def __init__(
        self,
        root: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        host: str = DEFAULT_HOST,
        port: int = 0,
        public_url: str | None = None,
        anonymous_read: bool = False,
        urls_last: str = "1h",
        engine: str = "auto",
        secret: str | None = None,
        settings: Config | None = None,
        console_places: Sequence[str] = (),
    ) -> None:
        """Store the settings of the server."""
        from lakeferry.engines.engine_choice import Engines
        from lakeferry.log.properties import duration_ms

        urls_last_ms = duration_ms(urls_last)
        if urls_last_ms is None:
            raise InvalidInput(
                f"{urls_last!r} isn't a duration",
                remedy="write a number and a unit, such as 15m or 1h",
            )
        self._root = root
        self._host = host
        self._port = port
        self._public_url = public_url
        self._anonymous_read = anonymous_read
        self._urls_last_s = urls_last_ms // 1000
        self._secret = secret
        self._console_places = tuple(console_places)
        self._settings = settings or Config(
            engine=engine, flags=dict(storage_options or {}), environment=dict(os.environ)
        )
        self._held = ExitStack()
        self._engines = Engines(self._settings.engine, _LOG.warning, shared=True)
        self._running: Running | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """The URL for clients; known after the start."""
        if self._url is None:
            raise LakeferryError(
                "the server wasn't started", remedy="call start(), or use it in a with statement"
            )
        return self._url

    def start(self) -> None:
        """Listen, open the root and start to answer, then return."""
        from lakeferry.server import running_server

        listener = self._held.enter_context(running_server.listen(self._host, self._port))
        url = running_server.url_of(listener, self._host, self._public_url)
        secret = self._secret or os.environ.get(running_server.SECRET_VARIABLE) or None
        self._running = running_server.open_server(
            self._settings,
            self._root,
            listener,
            _exporter(self._settings, self._engines),
            url=url,
            as_reached=self._public_url is None,
            secret=secret,
            anonymous_read=self._anonymous_read,
            urls_last_s=self._urls_last_s,
            choose=self._engines.choose,
            check_unused=_guard(self._settings),
            console_places=self._console_places,
        )
        self._running.start()
        self._url = url

    def wait(self) -> None:
        """Wait until the server is stopped; raise an error if it ends by itself."""
        running = self._running
        if running is not None:
            running.wait()
            if running is self._running:
                raise LakeferryError("the server has stopped answering", remedy="see its log")

    def stop(
        self,
        *,
        requests_s: float = REQUESTS_END_WITHIN_S,
        job_s: float = JOB_ENDS_WITHIN_S,
    ) -> bool:
        """Stop the server; return whether all work ended in the given time.

        If not, a thread is still running, and its engines stay open for it.
        """
        running, self._running = self._running, None
        with self._held:
            if running is not None and not running.stop(requests_s=requests_s, job_s=job_s):
                return False
            self._engines.close()
        return True

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop(requests_s=0.3, job_s=0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.stop():
            _LOG.warning("the running export continues in a thread; it is in the queue again")

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)


def serve(root: str, *, port: int = DEFAULT_PORT, **options: Unpack[ServerOptions]) -> None:
    """Serve the datasets below a root until Ctrl-C; ``options`` are those of :class:`Server`."""
    with Server(root, port=port, **options) as server:
        _LOG.info("serving at %s", server.url)
        server.wait()


def _guard(settings: Config) -> Callable[[str], None]:
    def check(uri: str) -> None:
        from lakeferry.api.deletion_guard import check_no_path_leads
        from lakeferry.catalogs.places import Places

        environment = settings.catalog_environment()
        places = Places(environment=environment, layered=settings.storage_options)
        check_no_path_leads(places, uri)

    return check


def _exporter(settings: Config, engines: Engines) -> ExportTable:
    def export(uri: str, *, table: str, ref: str, keep: int | None, register: str | None) -> Any:
        from lakeferry.api.table import Table

        environment = settings.catalog_environment()
        opened = Table(uri, settings.storage_options, environment=environment, warn=_LOG.warning)
        return opened.export(table=table, ref=ref, keep=keep, register=register, engine=engines)

    return export
