"""Single HTTP requests over connections that are kept open.

For requests to S3 that obstore doesn't have. A new TLS connection for each would take longer than
the request itself. Redirects aren't followed, because a signature is for one host.
"""

from __future__ import annotations

import functools
import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError

from lakeferry.errors import StorageUnavailable

_CONNECT_S = 5.0
_KEPT_CONNECTIONS = 64
_LARGEST_ANSWER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a request; names of headers are in lower case."""

    status: int
    content: bytes
    headers: Mapping[str, str]


def http_answer(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, *, wait_s: float
) -> HttpAnswer:
    """Send a request, and return its answer.

    The server may be silent for ``wait_s`` seconds.

    It is sent again once if its connection breaks, as connections that were kept open do.
    """
    try:
        response = _pool(url).request(
            method,
            url,
            headers=dict(headers),
            body=body,
            redirect=False,
            # A status, also with Retry-After, is an answer that the caller decides about.
            retries=urllib3.Retry(
                total=1,
                redirect=0,
                status=0,
                allowed_methods=None,
                respect_retry_after_header=False,
            ),
            timeout=urllib3.Timeout(connect=_CONNECT_S, read=wait_s),
            preload_content=False,
        )
        try:
            content = response.read(_LARGEST_ANSWER_BYTES)
            response.drain_conn()
        finally:
            response.release_conn()
    except (HTTPError, OSError) as failed:
        # The outer error names the whole URL, with its signature.
        reason = failed.reason if isinstance(failed, MaxRetryError) else failed
        raise StorageUnavailable(
            "the store doesn't answer",
            cause=str(reason) or type(reason).__name__,
            remedy="check that it is running and that its endpoint is right, then try again",
        ) from failed
    found = {name.lower(): value for name, value in response.headers.items()}
    return HttpAnswer(response.status, content, found)


def _pool(url: str) -> urllib3.PoolManager:
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy is not None and urllib.request.proxy_bypass(parts.hostname or ""):
        proxy = None
    # A process that was forked must not use its parent's connections.
    return _pool_of(os.getpid(), proxy)


@functools.lru_cache(maxsize=4)
def _pool_of(_process: int, proxy: str | None) -> urllib3.PoolManager:
    if proxy is None:
        return urllib3.PoolManager(maxsize=_KEPT_CONNECTIONS)
    # As in urllib: the scheme may be missing, and the name and the password are part of the URL.
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    headers = None
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=user)
    where = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return urllib3.ProxyManager(where, maxsize=_KEPT_CONNECTIONS, proxy_headers=headers)
