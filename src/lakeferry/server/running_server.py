"""Runs a server: the socket, the application's thread, the export worker.

The main thread stays free for the caller, for signals. A server that is told to stop accepts no
more requests, gives the running job some time to end, and otherwise gives it back to the queue.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import uvicorn

from lakeferry.config import Config
from lakeferry.errors import InvalidInput, TimedOut
from lakeferry.export.job_queue import QUEUE_FOLDER, Queue
from lakeferry.export.webhook import SECRET_VARIABLE as SECRET_VARIABLE
from lakeferry.server.http import access
from lakeferry.server.http.connection_timeouts import PatientProtocol
from lakeferry.server.http.dataset_admin import DatasetAdmin
from lakeferry.server.http.dataset_routes import Datasets
from lakeferry.server.http.http_app import create_app
from lakeferry.server.http.websockets import SessionSocket
from lakeferry.server.lakefs.export_jobs import Exporting, ExportTable
from lakeferry.server.lakefs.export_worker import Worker
from lakeferry.server.metrics import Metrics
from lakeferry.server.sessions.websocket_sessions import URLS_LAST_S, Sessions
from lakeferry.storage import open_store
from lakeferry.storage.lakefs import LakeFSStore
from lakeferry.storage.lakefs_api import LakeFSAccess
from lakeferry.storage.lakefs_write import LakeFSRepository
from lakeferry.storage.uris import split
from lakeferry.transfer.datasets.delta.blocks_of_log import Choose
from lakeferry.transfer.repository.access_tokens import Tokens
from lakeferry.transfer.repository.dataset_changes import CheckUnused, DatasetChanges
from lakeferry.transfer.repository.push_records import now_ms
from lakeferry.transfer.repository.repository import Repository, check_is_no_table, open_root
from lakeferry.transfer.repository.signed_urls import LONGEST_LIFE_MS, Links, Signer
from lakeferry.transfer.wire.codec import LIMITS
from lakeferry.web.console import Console, DatasetRoot
from lakeferry.web.server_console import server_console

MOST_CONNECTIONS = 1024
"""Most connections, sessions included; the objects of a session use further connections."""
STARTED_WITHIN_S = 30.0
_TICK_S = 0.01
_ALL_ADDRESSES = ("0.0.0.0", "::", "")
_SIGNALS_S = 0.5


class RunningServer:
    """The application and the worker, on a listening socket."""

    def __init__(
        self,
        listener: socket.socket,
        app: Callable[..., object],
        worker: Worker | None = None,
        sessions: Sessions | None = None,
        console: Console | None = None,
    ) -> None:
        """Use a socket; no request is answered before :meth:`start`."""
        self._listener = listener
        self._worker = worker
        self._sessions = sessions
        self._console = console
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=PatientProtocol,
                ws=SessionSocket,
                # Peers take a ping for an error; the protocol has its own keep-alive.
                ws_ping_interval=None,
                ws_per_message_deflate=False,
                # The limit before a session sets its own.
                ws_max_size=LIMITS.message_bytes,
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=1,
            )
        )
        # Outside of the main thread, uvicorn leaves signals alone.
        self._thread = threading.Thread(target=self._answer, name="http", daemon=True)
        # A signal that interrupts joining a thread makes Python consider the thread ended.
        self._ended = threading.Event()

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._uvicorn.server_state.connections)

    def _answer(self) -> None:
        try:
            self._uvicorn.run(sockets=[self._listener])
        finally:
            self._ended.set()

    def start(self) -> None:
        """Start the worker and the server; both are running on return."""
        if self._worker is not None:
            self._worker.start()
        self._thread.start()
        deadline = time.monotonic() + STARTED_WITHIN_S
        while not self._uvicorn.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise TimedOut("the server didn't start", remedy="see its log")
            time.sleep(_TICK_S)

    def wait(self) -> None:
        """Wait until the server has ended, or a signal interrupts."""
        # The system may deliver a signal to any thread, and Python handles it in this one, but
        # only when this thread runs.
        while not self._ended.wait(_SIGNALS_S):
            pass

    def stop(self, *, requests_s: float, job_s: float) -> bool:
        """Stop; return True if all running work has ended within the given time.

        If it returns False, the process should end: a thread may still be working.
        """
        deadline = time.monotonic() + requests_s + job_s
        if self._console is not None:
            # Connected pages would keep the server from ending, and moves need time to stop.
            self._console.ask_to_end()
        self._uvicorn.should_exit = True
        self._ended.wait(requests_s)
        have_ended = self._sessions is None or self._sessions.stop(job_s)
        # All waits share this time.
        if self._worker is not None:
            have_ended &= self._worker.stop(max(0.0, deadline - time.monotonic()))
        if self._console is not None:
            have_ended &= self._console.wait(max(0.0, deadline - time.monotonic()))
        return have_ended and self._ended.is_set()


def open_server(
    settings: Config,
    root: str,
    listener: socket.socket,
    export: ExportTable,
    *,
    url: str,
    secret: str | None,
    as_reached: bool = False,
    anonymous_read: bool = False,
    urls_last_s: int = URLS_LAST_S,
    choose: Choose | None = None,
    check_unused: CheckUnused = lambda _: None,
    console_places: Sequence[str] = (),
) -> RunningServer:
    """Return a server whose queue and datasets are below ``root``; its address is ``url``.

    With ``as_reached``, clients may reach it at other addresses, too, and a client's URLs have
    the address that it used (:mod:`lakeferry.server.http.public_url`). It is checked that the
    root can be read and written, and that only one of two writers wins. The engine that
    ``choose`` returns reads the files of tables that came without a push. ``check_unused`` refuses
    to delete a table that a redirect leads to. Below ``console_places`` the console's visitors with
    a token to write may scan tables, and move tables to.
    """
    if not 1 <= urls_last_s <= LONGEST_LIFE_MS // 1000:
        raise InvalidInput(
            f"URLs can't be valid for {urls_last_s:,} seconds", remedy="choose 1s to 7d"
        )
    store = open_root(root, settings.storage_options(root))
    next(store.list(QUEUE_FOLDER), None)
    check_is_no_table(store)
    queue = Queue(store)
    repository = Repository(store, choose)
    repository.probe()
    repository.mark()
    # An object store signs for itself, and its bytes don't come through here.
    signer = Signer.of(store) if split(store.uri).scheme == "file" else None
    tokens = Tokens(store)
    rules = access.DatasetAccess(repository, tokens, anonymous_read=anonymous_read)
    metrics = Metrics()
    sessions = Sessions(
        repository,
        rules,
        Links(store, signer, url),
        puts_prove=signer is not None,
        as_reached=as_reached,
        metrics=metrics,
        urls_last_s=urls_last_s,
    )
    worker = Worker(queue, _exporting(settings, export).run)
    served: list[RunningServer] = []
    datasets = Datasets(
        repository, rules, signer, connections=lambda: sum(each.connections for each in served)
    )
    changes = DatasetChanges(repository, check_unused, clock=now_ms)
    admin = DatasetAdmin(repository, rules, changes)
    root_of_datasets = DatasetRoot(store.uri, repository, tokens, changes, queue, url)
    console, pages = server_console(settings, root_of_datasets, url, console_places)
    app = create_app(
        queue,
        secret,
        wake=worker.wake,
        is_healthy=lambda: worker.is_alive,
        datasets=[*pages, *sessions.routes(), *admin.routes(), *datasets.routes()],
        metrics=metrics,
    )
    server = RunningServer(listener, app, worker, sessions, console)
    served.append(server)
    return server


def _exporting(settings: Config, export: ExportTable) -> Exporting:
    """Return what does export jobs, with the settings' options for each repository."""

    def open_ref(place: str) -> LakeFSStore:
        found = open_store(place, settings.storage_options(place))
        assert isinstance(found, LakeFSStore)
        return found

    def default_branch(repository: str) -> str:
        options = settings.storage_options(f"lakefs://{repository}")
        return LakeFSRepository(LakeFSAccess.find(options), repository).default_branch()

    return Exporting(open_ref, default_branch, export)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 means any free port."""
    try:
        address = ipaddress.ip_address(host)
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    except ValueError:
        family = socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except (OSError, OverflowError) as failed:
        raise InvalidInput(
            f"can't listen on port {port} of {host!r}",
            cause=getattr(failed, "strerror", None) or str(failed),
            remedy="choose another --port or address; port 0 chooses a free one",
            host=host,
            port=port,
        ) from failed


def _own_address(listener: socket.socket) -> str:
    """Return this machine's address in the network, or its loopback address if it has none."""
    is_six = listener.family == socket.AF_INET6
    with socket.socket(listener.family, socket.SOCK_DGRAM) as asked:
        try:
            # No packet is sent: the system only chooses the local address for a destination
            # that is reserved for documentation (RFC 5737, RFC 3849).
            asked.connect(("2001:db8::1" if is_six else "192.0.2.1", 9))
            own: str = asked.getsockname()[0]
        except OSError:
            return "::1" if is_six else "127.0.0.1"
    return own


def url_of(listener: socket.socket, host: str, public_url: str | None) -> str:
    """Return the address at which clients reach the server."""
    if public_url is None:
        host = _own_address(listener) if host in _ALL_ADDRESSES else host
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{listener.getsockname()[1]}"
    parts = urlsplit(public_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidInput(
            f"{public_url!r} isn't the address of a server",
            remedy="write https://host, or http://host",
        )
    return public_url.rstrip("/")
