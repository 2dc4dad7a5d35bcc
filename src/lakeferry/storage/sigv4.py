"""Signs URLs for S3 (AWS Signature Version 4).

obstore's URLs sign a method, a name and a time. These also sign headers, which the client
then has to send unchanged, and more query parameters, with which S3 names the parts of an
upload. Server, spelling of the name, region, key and session token are taken from obstore's
URL, which is signed again.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

_ALGORITHM = "AWS4-HMAC-SHA256"
_SIGNATURE = "X-Amz-Signature"
_SIGNED_HEADERS = "X-Amz-SignedHeaders"
_UNSIGNED = "UNSIGNED-PAYLOAD"


def key_of(url: str) -> str | None:
    """Return the id of the key that a URL is signed with; ``None`` for one of another kind."""
    query = dict(parse_qsl(urlsplit(url).query))
    if query.get("X-Amz-Algorithm") != _ALGORITHM:
        return None
    return query.get("X-Amz-Credential", "").partition("/")[0] or None


def signed_anew(
    url: str,
    secret: str,
    method: str,
    *,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
) -> str:
    """Return a signed URL, signed for a method with headers and more parameters.

    ``secret`` belongs to the key that the URL names. The headers are signed too: without
    one of them, or with another value, the URL is invalid.
    """
    parts = urlsplit(url)
    signed = {"host": parts.netloc}
    signed |= {name.lower(): " ".join(value.split()) for name, value in (headers or {}).items()}
    names = ";".join(sorted(signed))
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    said.pop(_SIGNATURE, None)
    said |= {_SIGNED_HEADERS: names, **(query or {})}
    canonical = "&".join(sorted(f"{_quoted(name)}={_quoted(said[name])}" for name in said))
    request = "\n".join(
        (
            method,
            parts.path or "/",
            canonical,
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            names,
            _UNSIGNED,
        )
    )
    scope = said["X-Amz-Credential"].partition("/")[2]
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = "\n".join((_ALGORITHM, said["X-Amz-Date"], scope, digest))
    key = f"AWS4{secret}".encode()
    for step in scope.split("/"):
        key = hmac.digest(key, step.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return urlunsplit(parts._replace(query=f"{canonical}&{_SIGNATURE}={signature}"))


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
