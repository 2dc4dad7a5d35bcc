"""One bounded request to a REST service.

An answer is a JSON object with a status of 2xx, 400, 404, 409 or 410 (or another one of
:attr:`Rest.meaningful`), which the caller interprets. Everything else is raised here: 401
and 403 as :class:`~lakeferry.errors.Unauthorized` and :class:`~lakeferry.errors.Forbidden`,
everything that isn't an answer (no connection, another status, something other
than JSON, too much of it, too late) as :attr:`Rest.unavailable_as`.

Requests are retried a few times if there is no connection or the service is busy,
so they must be idempotent. Another request (``once``) is retried only if the service
hasn't begun with it. Redirects aren't followed, as our credentials would be sent
along.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit

import msgspec

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    LakeferryError,
    StorageUnavailable,
    Unauthorized,
)

TIMEOUT_S = 30.0
PAUSES_S = (0.25, 0.5, 1.0)
LARGEST_ANSWER_BYTES = 16 << 20

_CHUNK_BYTES = 64 << 10
_SLOWEST_BYTES_PER_S = 64 << 10
_UNSATISFIABLE = 416
_TOO_MANY = 429
_BUSY = frozenset({_TOO_MANY, 502, 503, 504})
_NOT_BEGUN = frozenset({_TOO_MANY, 503})
"""Those that say that the request wasn't processed."""
_SHOWN_CHARACTERS = 500
_LESS_BUSY = "try again when the service is less busy"


@dataclass(frozen=True, slots=True)
class Answer:
    """The service's answer: a status and a JSON object."""

    status: int
    body: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return self.status < 300

    @property
    def problem(self) -> str:
        """The service's own error message."""
        error = self.body.get("error")
        if isinstance(error, dict):
            code, message = error.get("type"), error.get("message")
        else:
            code, message = self.body.get("error_code"), self.body.get("message")
        said = ": ".join(str(part) for part in (code, message) if part)
        return (said or f"status {self.status}")[:_SHOWN_CHARACTERS]


class Rest:
    """A service at an ``http`` or ``https`` address, asked with an ``Authorization`` or without.

    ``service`` is its name in messages; ``settings`` are the names of the settings for its address
    and the credentials, for remedies. A subclass names its errors and its kind of credentials.
    """

    unavailable_as: ClassVar[type[LakeferryError]] = StorageUnavailable
    place_field: ClassVar[str] = "endpoint"
    """The field of an error that has the service's address."""
    credential: ClassVar[str] = "key"
    owner: ClassVar[str] = "ask the owner of the data for the permission"
    accepts: ClassVar[str] = "application/json"
    """The formats of answers to :meth:`ask`."""
    meaningful: ClassVar[frozenset[int]] = frozenset({400, 404, 409, 410})
    """Statuses besides 2xx that the caller interprets."""

    def __init__(
        self,
        service: str,
        root: str,
        authorization: str | None,
        *,
        settings: tuple[str, str],
        timeout_s: float = TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Check the address; an invalid one isn't repeated in the error."""
        self._url_setting, self._credential_setting = settings
        self.root = _checked_root(root, self._url_setting)
        self.service = service
        self._authorization = authorization
        self._timeout_s = timeout_s
        self._pause = pause
        self._opener = urllib.request.build_opener(_NoRedirects)

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        plain: bool = False,
        once: bool = False,
    ) -> Answer:
        """Send a request, with retries, and return the answer; ``path`` is encoded already.

        ``body`` is sent as JSON, or unchanged if it is bytes. ``plain`` accepts a 2xx answer
        that isn't JSON as one without content: the caller then has to check in another way
        whether it succeeded. ``once`` is for requests that aren't idempotent: a lost answer
        raises at once, and the service may have executed the request, or may do so later.
        """
        headers = {"Accept": self.accepts}
        data = None
        if isinstance(body, bytes):
            headers["Content-Type"] = "application/octet-stream"
            data = body
        elif body is not None:
            headers["Content-Type"] = "application/json"
            data = msgspec.json.encode(body)
        limit = LARGEST_ANSWER_BYTES
        status, content = self._heard(method, path, query, headers, data, limit, once=once)
        if plain and status < 300 and _decoded(content) is None:
            return Answer(status, {})
        return self._understood(status, content)

    def fetch(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        first: int = 0,
        length: int | None = None,
        limit_bytes: int,
    ) -> bytes | Answer:
        """Return the bytes at ``path``, all or ``length`` from ``first``, or why there are none.

        Beyond the end there are no bytes. At most ``limit_bytes`` are expected; the time limit
        depends on it.
        """
        headers = {} if length is None else {"Range": f"bytes={first}-{first + length - 1}"}
        limit_bytes = max(limit_bytes, LARGEST_ANSWER_BYTES)
        status, content = self._heard("GET", path, query, headers, None, limit_bytes)
        if status == _UNSATISFIABLE:
            return b""
        if status >= 300:
            return self._understood(status, content)
        if length is None:
            return content
        # A server without support for ranges sends everything.
        begin = first if status == 200 else 0
        return content[begin : begin + length]

    def body_of(self, answer: Answer) -> Mapping[str, Any]:
        """Return the content of an answer; raise unless it is a success."""
        if not answer.ok:
            raise self.unavailable(answer.problem)
        return answer.body

    def is_final(self, status: int, content: bytes) -> bool:  # noqa: ARG002
        """Return whether an answer with the status of a busy service is one to interpret."""
        return False

    def unavailable(self, cause: str, remedy: str | None = None) -> LakeferryError:
        """Return the error for a service that doesn't answer, or gives an invalid answer."""
        return self.unavailable_as(
            f"{self.service} at {self.root} gave an unexpected answer",
            cause=cause,
            remedy=remedy or f"check {self._url_setting}, and the service's own log",
            **{self.place_field: self.root},
        )

    def _heard(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        data: bytes | None,
        limit_bytes: int,
        *,
        once: bool = False,
    ) -> tuple[int, bytes]:
        """Send the request, with retries while the service is busy or unreachable."""
        url = f"{self.root}{path}" + (f"?{urlencode(query)}" if query else "")
        remedy = f"check that it is running, and check {self._url_setting}"
        for pause_s in (*PAUSES_S, None):
            try:
                status, content = self._send(method, url, headers, data, limit_bytes)
            except ConnectionError as error:
                cause = str(error) or type(error).__name__
                begun = not isinstance(error, ConnectionRefusedError)
            else:
                if status not in _BUSY or self.is_final(status, content):
                    return status, content
                cause, begun = f"status {status}", status not in _NOT_BEGUN
                if status == _TOO_MANY:
                    remedy = _LESS_BUSY
            if once and begun:
                break
            if pause_s is not None:
                self._pause(pause_s)
        raise self.unavailable(cause, remedy)

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        data: bytes | None,
        limit_bytes: int,
    ) -> tuple[int, bytes]:
        """Return status and content; raise ``ConnectionError`` if a retry may help."""
        sent = dict(headers)
        if self._authorization is not None:
            sent["Authorization"] = self._authorization
        request = urllib.request.Request(url, data, sent, method=method)
        more_s = max(0, limit_bytes - LARGEST_ANSWER_BYTES) / _SLOWEST_BYTES_PER_S
        deadline = monotonic() + self._timeout_s + more_s
        try:
            try:
                response = self._opener.open(request, timeout=self._timeout_s)
            except urllib.error.HTTPError as refused:
                response = refused
            with response:
                return response.status, self._content(response, deadline, limit_bytes)
        except urllib.error.URLError as failed:
            if isinstance(failed.reason, ConnectionError):
                raise failed.reason from failed
            raise self._unreachable(failed.reason) from failed
        except ConnectionError:
            raise
        except (OSError, http.client.HTTPException) as failed:
            raise self._unreachable(failed) from failed

    def _content(self, response: Any, deadline: float, limit_bytes: int) -> bytes:
        content = bytearray()
        # Read what has arrived instead of filling the buffer, so that a slow service is noticed in
        # time.
        while chunk := response.read1(_CHUNK_BYTES):
            content += chunk
            if len(content) > limit_bytes:
                raise self.unavailable(f"its answer has more than {limit_bytes:,} bytes")
            if monotonic() > deadline:
                raise TimeoutError
        promised = response.headers.get("Content-Length") or ""
        if promised.isdecimal() and len(content) < int(promised):
            raise ConnectionError("the answer ended early")
        return bytes(content)

    def _unreachable(self, reason: object) -> LakeferryError:
        if isinstance(reason, TimeoutError):
            return self.unavailable(
                f"no answer within {self._timeout_s:g} seconds",
                _LESS_BUSY,
            )
        return self.unavailable(str(reason) or type(reason).__name__)

    def _understood(self, status: int, content: bytes) -> Answer:
        body = _decoded(content)
        answer = Answer(status, body or {})
        if status in (401, 403):
            raise self._refusal(answer)
        if status >= 300 and status not in self.meaningful:
            raise self.unavailable(answer.problem)
        if body is None and (content or not answer.ok):
            raise self.unavailable(
                f"its answer (status {status}) isn't a JSON object",
                f"check {self._url_setting}: another program seems to answer there",
            )
        return answer

    def _refusal(self, answer: Answer) -> LakeferryError:
        cause, fields = answer.problem, {self.place_field: self.root}
        if answer.status == 401:
            what = self.credential
            said = f"the {what} isn't accepted" if self._authorization else f"there is no {what}"
            return Unauthorized(
                f"{self.service} at {self.root} doesn't accept the credentials",
                cause=f"{said}: {cause}",
                remedy=f"set {self._credential_setting} to a {what} that is valid now",
                **fields,
            )
        return Forbidden(
            f"{self.service} at {self.root} denies this request",
            cause=cause,
            remedy=self.owner,
            **fields,
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Returns a redirect as the answer, without following it."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


def _decoded(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object of an answer, or ``None`` where there is none."""
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None


def _checked_root(root: str, setting: str) -> str:
    try:
        parts = urlsplit(root.strip())
        fits = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and not parts.query
            and not parts.fragment
            and parts.username is None
            and root.strip().isprintable()
            and parts.port != 0
        )
    except ValueError:
        fits = False
    if not fits:
        # The address isn't repeated, because it may contain a password.
        raise InvalidInput(
            f"{setting} isn't the address of a service", remedy="write https://host, or http://host"
        )
    return root.strip().rstrip("/")
