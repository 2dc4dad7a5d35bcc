"""One question to a REST service and its answer, both of them bounded.

An answer is a JSON object with a status of 2xx, 400, 404 or 409; whoever asked
knows what it means. All else is raised here: 401 and 403 as
:class:`~lakeferry.errors.Unauthorized` and :class:`~lakeferry.errors.Forbidden`,
everything that isn't an answer (no connection, another status, something other
than JSON, too much of it, too late) as
:class:`~lakeferry.errors.CatalogUnavailable`.

Questions are asked again, a few times, where nobody listens or the service says
that it is busy, so they must be harmless when they are asked twice. Redirects
aren't followed: the token would go along.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from lakeferry.errors import (
    CatalogUnavailable,
    Forbidden,
    InvalidInput,
    LakeferryError,
    Unauthorized,
)

TIMEOUT_S = 30.0
PAUSES_S = (0.25, 0.5, 1.0)
LARGEST_ANSWER_BYTES = 16 << 20

_CHUNK_BYTES = 64 << 10
_MEANINGFUL = frozenset({400, 404, 409})
_BUSY = frozenset({429, 502, 503, 504})
_SHOWN_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said: a status, and a JSON object."""

    status: int
    body: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether the service did what it was asked."""
        return self.status < 300

    @property
    def problem(self) -> str:
        """What the service says is wrong, in its own words."""
        code, message = self.body.get("error_code"), self.body.get("message")
        said = ": ".join(str(part) for part in (code, message) if part)
        return (said or f"status {self.status}")[:_SHOWN_CHARACTERS]


class Rest:
    """A service at an ``http`` or ``https`` address, asked with a bearer token or without.

    ``service`` is what messages call it; ``settings`` are the names of what says
    where it is and who we are, for remedies.
    """

    def __init__(
        self,
        service: str,
        root: str,
        token: str | None,
        *,
        settings: tuple[str, str],
        timeout_s: float = TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Check the address and the token; neither is repeated where it makes no sense."""
        self._url_setting, self._token_setting = settings
        self.root = _checked_root(root, self._url_setting)
        self.service = service
        self._token = _checked_token(token, self._token_setting)
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
    ) -> Answer:
        """Ask, again if need be, and return the answer; ``path`` is encoded already."""
        url = f"{self.root}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else msgspec.json.encode(body)
        for pause_s in (*PAUSES_S, None):
            try:
                status, content = self._send(method, url, data)
            except ConnectionError as error:
                status, content, cause = 0, b"", str(error) or type(error).__name__
            else:
                cause = f"status {status}"
            if status not in _BUSY and status != 0:
                return self._understood(status, content)
            if pause_s is not None:
                self._pause(pause_s)
        raise self.unavailable(cause, f"see that it runs, and check {self._url_setting}")

    def unavailable(self, cause: str, remedy: str | None = None) -> CatalogUnavailable:
        """Return the error for a service that doesn't answer, or not in a way that makes sense."""
        return CatalogUnavailable(
            f"{self.service} at {self.root} doesn't answer as it should",
            cause=cause,
            remedy=remedy or f"check {self._url_setting}, and the service's own log",
            catalog=self.root,
        )

    def _send(self, method: str, url: str, data: bytes | None) -> tuple[int, bytes]:
        """Return status and content; raises ``ConnectionError`` where asking again may help."""
        headers = {"Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(url, data, headers, method=method)
        deadline = monotonic() + self._timeout_s
        try:
            try:
                response = self._opener.open(request, timeout=self._timeout_s)
            except urllib.error.HTTPError as refused:
                response = refused
            with response:
                return response.status, self._content(response, deadline)
        except urllib.error.URLError as failed:
            if isinstance(failed.reason, ConnectionError):
                raise failed.reason from failed
            raise self._unreachable(failed.reason) from failed
        except ConnectionError:
            raise
        except (OSError, http.client.HTTPException) as failed:
            raise self._unreachable(failed) from failed

    def _content(self, response: Any, deadline: float) -> bytes:
        content = bytearray()
        # What has arrived, and not a full buffer: a slow service is noticed in time.
        while chunk := response.read1(_CHUNK_BYTES):
            content += chunk
            if len(content) > LARGEST_ANSWER_BYTES:
                raise self.unavailable(f"its answer has more than {LARGEST_ANSWER_BYTES:,} bytes")
            if monotonic() > deadline:
                raise TimeoutError
        return bytes(content)

    def _unreachable(self, reason: object) -> CatalogUnavailable:
        if isinstance(reason, TimeoutError):
            return self.unavailable(
                f"no answer within {self._timeout_s:g} seconds", "try again when it is less busy"
            )
        return self.unavailable(str(reason) or type(reason).__name__)

    def _understood(self, status: int, content: bytes) -> Answer:
        body = _decoded(content)
        answer = Answer(status, body or {})
        if status in (401, 403):
            raise self._refusal(answer)
        if status >= 300 and status not in _MEANINGFUL:
            raise self.unavailable(answer.problem)
        if body is None and (content or not answer.ok):
            raise self.unavailable(
                f"its answer (status {status}) is no JSON object",
                f"check {self._url_setting}: something else seems to be there",
            )
        return answer

    def _refusal(self, answer: Answer) -> LakeferryError:
        cause = answer.problem
        if answer.status == 401:
            with_one = "the token isn't accepted" if self._token else "there is no token"
            return Unauthorized(
                f"{self.service} at {self.root} doesn't know us",
                cause=f"{with_one}: {cause}",
                remedy=f"set {self._token_setting} to a token that is valid now",
                catalog=self.root,
            )
        return Forbidden(
            f"{self.service} at {self.root} doesn't allow it",
            cause=cause,
            remedy="ask the owner of the table or schema for the privilege",
            catalog=self.root,
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as the answer that it is."""

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
        # It isn't repeated: somebody may have put a password there.
        raise InvalidInput(
            f"{setting} isn't the address of a service", remedy="write https://host, or http://host"
        )
    return root.strip().rstrip("/")


def _checked_token(token: str | None, setting: str) -> str | None:
    token = (token or "").strip()
    if not token:
        return None
    if not token.isascii() or not token.isprintable():
        raise InvalidInput(f"{setting} can't be sent", cause="it has characters that no token has")
    return token
