"""A dataset at a URL: requests and retries.

**Retries.** Temporary failures (a failed connection, an answer of 429 or 5xx, silence) are
retried after a wait that doubles, with a random part, so that many clients don't retry at the
same moment. A server that doesn't read what is sent to it counts as silent, too
(``request_body.py``).
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp
from yarl import URL

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    ObjectNotFound,
    StorageUnavailable,
    TimedOut,
)
from lakeferry.transfer.chain.hashes import LONGEST_TEXT, Multihash
from lakeferry.transfer.chain.odf_blocks import LARGEST_BLOCK_BYTES, ObjectKind
from lakeferry.transfer.client import trusted_hosts
from lakeferry.transfer.client.dataset_urls import parse_url
from lakeferry.transfer.client.rate_limit import Rate
from lakeferry.transfer.client.request_body import Connector, RequestBody, limited
from lakeferry.transfer.client.trusted_hosts import shown_url
from lakeferry.transfer.datasets.odf import FOLDERS
from lakeferry.transfer.session.machine import Pace
from lakeferry.transfer.wire import handshake
from lakeferry.transfer.wire.codec import LIMITS
from lakeferry.transfer.wire.handshake import Operation
from lakeferry.transfer.wire.messages import MessageDialect, TransferUrl

_T = TypeVar("_T")

_PASSING = {408, 425, 429, 500, 502, 503, 504}
_MOVED = {301, 302, 303, 307, 308}
_MOST_REDIRECTS = 4
_BODY_SHOWN_BYTES = 4096
_NOT_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"}
"""OpenSSL's errors for an answer that isn't TLS, depending on its version."""
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits for retries and waiting."""

    attempts: int = 6
    """Most attempts in a row without progress."""
    first_wait_s: float = 0.25
    longest_wait_s: float = 15.0
    connect_s: float = 30.0
    silence_s: float = 60.0
    """Limit for the next byte of an answer, and for a piece of a body to be read by the server."""

    async def wait(self, failures: int) -> None:
        """Wait after a number of failures in a row: a random time from half of the limit to it."""
        longest = min(self.longest_wait_s, self.first_wait_s * 2 ** min(failures - 1, 20))
        await asyncio.sleep(longest * random.uniform(0.5, 1))


@dataclass(frozen=True, slots=True)
class Terms:
    """The user's options of a transfer."""

    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    parallel: int = 16
    """How many objects are transferred concurrently."""
    force: bool = False
    visibility: str = "private"
    """Visibility of a dataset that a push creates: ``private`` or ``public``."""
    limit_rate: int | None = None
    """Most bytes of objects per second, all connections together."""
    page: int = 1000
    """For how many objects one message requests URLs."""
    patience: Patience = Patience()
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        if not 1 <= self.parallel <= 1000:
            raise InvalidInput(
                f"{self.parallel} objects can't be transferred at once", remedy="choose 1 to 1000"
            )
        if self.limit_rate is not None and self.limit_rate < 1:
            raise InvalidInput(
                f"the rate can't be {self.limit_rate} bytes per second", remedy="choose 1 or more"
            )
        if self.visibility not in ("private", "public"):
            raise InvalidInput(
                f"{self.visibility!r} isn't a visibility", remedy="use private or public"
            )
        for host in self.allowed_hosts:
            if not trusted_hosts.HOST_RULE.fullmatch(host.lower()):
                raise InvalidInput(
                    f"{host!r} isn't a host",
                    remedy="write store.example.com, store.example.com:9000 or *.example.com",
                )


class NoWebSocket(Exception):
    """A refused handshake, perhaps of a server that only has files; ``error`` is the reason."""

    def __init__(self, error: LakeferryError) -> None:
        super().__init__(str(error))
        self.error = error


class Remote:
    """The dataset at a URL; :meth:`open` yields one and closes it at the end."""

    def __init__(self, url: str, terms: Terms, web: aiohttp.ClientSession) -> None:
        self.terms = terms
        self.rate = Rate(terms.limit_rate)
        self._web = web
        self._url = parse_url(url)
        self._token = dict(handshake.client_headers(MessageDialect.REFERENCE, terms.token))

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, terms: Terms) -> AsyncIterator[Remote]:
        """Yield a dataset; no request is sent before the first call."""
        parse_url(url)
        patience = terms.patience
        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(_refuse_redirect)
        async with aiohttp.ClientSession(
            # Half as many connections again, for other requests.
            connector=Connector(limit=terms.parallel + terms.parallel // 2 + 4),
            cookie_jar=aiohttp.DummyCookieJar(),
            # No compression: a small answer can't expand, and hashes are of the bytes sent.
            auto_decompress=False,
            headers={"accept-encoding": "identity", "user-agent": "lakeferry"},
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=patience.connect_s,
                sock_read=patience.silence_s,
            ),
            read_bufsize=_BUFFER_BYTES,
            trace_configs=[trace],
        ) as web:
            yield cls(url, terms, web)

    @property
    def url(self) -> str:
        """The dataset's URL without a slash at its end."""
        return str(self._url)

    def admit(self, text: str) -> URL:
        """Return a URL that may be requested, or refuse it (:mod:`.trusted_hosts`)."""
        return trusted_hosts.admitted_url(text, self._url, self.terms.allowed_hosts)

    # --- Files --------------------------------------------------------------------------

    async def head(self) -> Multihash | None:
        """Return the server's head; ``None`` if the server says that there is none."""
        try:
            text = await self._file("refs/head", LONGEST_TEXT + 2)
            return Multihash.parse(text.decode("ascii").strip())
        except ObjectNotFound:
            return None
        except (InvalidInput, UnicodeDecodeError) as error:
            raise StorageUnavailable(
                f"{self.url} isn't a dataset",
                cause="its refs/head isn't a hash",
                remedy="check the URL with the owner of the dataset",
            ) from error

    async def block(self, name: Multihash, limit_bytes: int = LARGEST_BLOCK_BYTES) -> bytes:
        """Return a block's bytes, or raise ``ObjectNotFound``; their hash isn't checked."""
        return await self._file(f"blocks/{name.text}", limit_bytes)

    def object_url(self, kind: ObjectKind, name: Multihash) -> TransferUrl:
        """Return the URL of an object for clients that read plain files."""
        url = f"{self.url}/{FOLDERS[kind]}/{name.text}"
        return TransferUrl(url, tuple(self._token.items()))

    async def _file(self, path: str, limit_bytes: int) -> bytes:
        url = TransferUrl(f"{self.url}/{path}", tuple(self._token.items()))

        async def get() -> bytes:
            async with self.request("GET", url) as response:
                if response.status != 200:
                    body = await shown_body(response)
                    raise handshake.handshake_error(
                        response.status, body, url.url, had_token="authorization" in self._token
                    )
                data = await response.content.read(limit_bytes + 1)
                while len(data) <= limit_bytes and (more := await response.content.readany()):
                    data += more
                if len(data) > limit_bytes:
                    raise LimitExceeded(f"{path} is too large", limit=limit_bytes)
                return data

        return await self.patiently(get)

    async def patiently(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of an attempt; retry it after temporary failures."""
        failures = 0
        while True:
            try:
                return await attempt()
            except (StorageUnavailable, TimedOut) as error:
                failures += 1
                if failures >= self.terms.patience.attempts or not is_passing(error):
                    raise
            await self.terms.patience.wait(failures)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: TransferUrl,
        headers: Mapping[str, str] | None = None,
        data: RequestBody | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request with the URL's own headers; network errors become errors of ours.

        A GET follows redirects to trusted hosts. The headers are sent to the first host only.
        The server has to read each piece of ``data`` in time.
        """
        sent = dict(url.headers)
        given = {name.lower() for name in sent}
        sent |= {key: value for key, value in (headers or {}).items() if key.lower() not in given}
        at = self.admit(url.url)
        patience = self.terms.patience
        with translated(at):
            for _ in range(_MOST_REDIRECTS):
                async with (
                    limited(data, patience.connect_s, patience.silence_s) as body,
                    self._web.request(
                        method, at, headers=sent, data=body, allow_redirects=False
                    ) as response,
                ):
                    if response.status not in _MOVED or method != "GET":
                        yield response
                        return
                    to = self.admit(_joined(at, response.headers.get("location", "")))
                if to.origin() != at.origin():
                    sent = dict(headers or {})
                at = to
        raise StorageUnavailable("too many redirects", cause=shown_url(url.url), passing=False)

    # --- The WebSocket ------------------------------------------------------------------

    async def connect(self, operation: Operation) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket to one of the two endpoints.

        ``NoWebSocket`` if the server may be one that only has files.
        """
        at = URL(f"{self.url}/{operation.value}", encoded=True)
        headers = {**self._token, handshake.EXTENDED_HEADER: "1"}
        try:
            with translated(at):
                async with asyncio.timeout(self.terms.patience.silence_s):
                    socket = await self._web.ws_connect(
                        at,
                        headers=headers,
                        timeout=aiohttp.ClientWSTimeout(ws_close=self.terms.pace.drain_ms / 1000),
                        autoclose=False,
                        heartbeat=None,
                        compress=0,
                        max_msg_size=LIMITS.blocks_message_bytes,
                    )
        except aiohttp.WSServerHandshakeError as refused:
            error = await self._refusal(at, refused.status)
            if is_passing(error) or error.code == "incompatible_version":
                raise error from refused
            raise NoWebSocket(error) from refused
        try:
            handshake.check_agreed(MessageDialect.REFERENCE, _headers_of(socket))
        except LakeferryError:
            await socket.close()
            raise
        return socket

    async def _refusal(self, at: URL, status: int) -> LakeferryError:
        """Return why a handshake was refused; for 400 and 401, repeat it as a GET for the text."""
        body = ""
        if status in (400, 401):
            key = base64.b64encode(os.urandom(16)).decode()
            headers = {
                **self._token,
                "upgrade": "websocket",
                "connection": "upgrade",
                "sec-websocket-version": "13",
                "sec-websocket-key": key,
            }
            with translated(at):
                async with self._web.get(at, headers=headers, allow_redirects=False) as response:
                    if response.status != status:
                        response.close()
                    else:
                        body = await shown_body(response)
        error = handshake.handshake_error(
            status, body, str(at), had_token="authorization" in self._token
        )
        if isinstance(error, StorageUnavailable):
            error.fields["passing"] = status in _PASSING
        return error


def is_passing(error: LakeferryError) -> bool:
    """Return True if a retry may succeed after this error."""
    if isinstance(error, TimedOut):
        return True
    return isinstance(error, StorageUnavailable) and error.fields.get("passing") is not False


async def shown_body(response: aiohttp.ClientResponse) -> str:
    """Return the beginning of a refusal's text."""
    return (await response.content.read(_BODY_SHOWN_BYTES)).decode(errors="replace")


class translated:  # noqa: N801 - used like a function
    """Context manager that converts aiohttp's exceptions into errors of ours."""

    def __init__(self, url: URL) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        where = f"{self._url.host}:{self._url.port}"
        match error:
            case aiohttp.WSServerHandshakeError():
                return
            case TimeoutError():
                raise TimedOut(
                    f"{where} didn't answer in time",
                    remedy="try again later, or from another network",
                ) from error
            case aiohttp.InvalidURL():
                raise InvalidInput("not a URL", cause=shown_url(str(self._url))) from error
            case aiohttp.ClientSSLError() if _speaks_plain_http(error):
                raise StorageUnavailable(
                    f"{where} doesn't speak https",
                    cause="it answers in plain http, or it isn't an HTTP server",
                    remedy="if you trust the network in between, give the URL with http:// "
                    "instead of https://; or give the port at which the server speaks https",
                    passing=False,
                ) from error
            case aiohttp.ClientConnectorError() if isinstance(error.os_error, ConnectionError):
                raise StorageUnavailable(
                    f"nothing answers at {where}",
                    cause=os.strerror(error.os_error.errno or 0),
                    remedy="check that a server is running there, and that host and port are "
                    "those that 'lakeferry serve' printed when it started",
                ) from error
            case aiohttp.ClientConnectorDNSError():
                raise StorageUnavailable(
                    f"the host {self._url.host} is unknown",
                    cause=error.os_error.strerror,
                    remedy="check the host's name in the URL with the server's owner",
                ) from error
            case aiohttp.ClientSSLError():
                # The server's identity can't be verified, and a retry doesn't change that.
                raise StorageUnavailable(
                    f"no secure connection to {where}",
                    cause=str(error),
                    remedy="ask the server's owner for the certificate of its authority, and set "
                    "SSL_CERT_FILE to that file",
                    passing=False,
                ) from error
            case aiohttp.ClientError() | OSError():
                cause = str(error) or type(error).__name__
                raise StorageUnavailable(
                    f"the connection to {where} failed",
                    cause=cause,
                    remedy="try again: what has arrived isn't transferred again",
                ) from error


def _speaks_plain_http(error: BaseException) -> bool:
    """Return True if the other end answered a TLS handshake with something that isn't TLS."""
    cause: BaseException | None = getattr(error, "os_error", None) or error.__cause__
    return getattr(cause, "reason", None) in _NOT_TLS


async def _refuse_redirect(*_: object) -> None:
    # Only a WebSocket handshake follows redirects by itself, to any host.
    error = Forbidden(
        "the server redirects to another place",
        cause="the answer to a WebSocket request is a redirect",
        remedy="use the current URL of the dataset",
    )
    raise NoWebSocket(error)


def _headers_of(socket: aiohttp.ClientWebSocketResponse) -> list[tuple[str, str]]:
    chosen = socket.protocol
    return [(handshake.SUBPROTOCOL_HEADER, chosen)] if chosen else []


def _joined(at: URL, location: str) -> str:
    """Return the URL that a redirect leads to."""
    try:
        return str(at.join(URL(location, encoded=True)))
    except ValueError as error:
        raise InvalidInput(
            "the server redirects to text that isn't a URL", cause=repr(location[:80])
        ) from error
