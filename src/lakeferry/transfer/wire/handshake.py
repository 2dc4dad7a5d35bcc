"""The headers and statuses of the handshake.

The checks are made in the reference server's order, because a client sees the order: a malformed
``Authorization`` (400), anonymous access where it isn't allowed (401), no such dataset (404; a
push may create it), an invalid token (401), a dataset that the token doesn't cover (404) or may
not write (403), a request that isn't a WebSocket's (426, 400), a version that is missing or not
a number (400), and for a push an anonymous client (401); then another version than 1 (400), and
a push that would create a dataset for another account (403).

The subprotocol chooses the dialect. Its published name has slashes, which RFC 6455 doesn't allow
in a token, so it is parsed here. A client that names none speaks the reference dialect, and must
not be sent one.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import msgspec

from lakeferry.errors import (
    Forbidden,
    IncompatibleVersion,
    InvalidInput,
    LakeferryError,
    ObjectNotFound,
    StorageUnavailable,
    Unauthorized,
)
from lakeferry.transfer.wire.messages import MessageDialect

VERSION = 1
VERSION_HEADER = "x-odf-smtp-version"
SUBPROTOCOL_HEADER = "sec-websocket-protocol"
SUBPROTOCOL = "odf/smart-transfer-protocol/v1"

EXTENDED_HEADER = "x-lakeferry-extended"
"""With ``1``: the client takes 412 as "it exists", and can send large objects in parts."""

INCOMPATIBLE = "Incompatible client version"

_FAMILY = SUBPROTOCOL.rpartition("/")[0] + "/"
_BEARER = re.compile(r"(?i:bearer) +([!-~]+)")
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")
_LONGEST_BODY = 200

Headers = Iterable[tuple[str, str]]


class Operation(Enum):
    """The endpoint of the request."""

    PULL = "pull"
    PUSH = "push"


class TokenState(Enum):
    """The state of the token that a client sent."""

    ABSENT = "absent"
    VALID = "valid"
    INVALID = "invalid"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class ClientRights:
    """What the server knows about a client and the dataset that it names."""

    token: TokenState
    dataset_exists: bool
    may_read: bool
    """If there is no dataset: True if the token covers its name, so that both look alike."""
    may_write: bool
    anonymous_allowed: bool = True
    """True if clients without a token are allowed at all."""
    may_create: bool = True
    """True if the token's account may create datasets under the name."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The WebSocket may be opened; ``subprotocol`` is sent back if there is one."""

    dialect: MessageDialect
    subprotocol: str | None = None
    extended: bool = False
    """True if the client sent :data:`EXTENDED_HEADER`."""


@dataclass(frozen=True, slots=True)
class HandshakeRefusal:
    """The answer to a refused request."""

    status: int
    body: str = ""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


def bearer_token(headers: Headers) -> str | HandshakeRefusal | None:
    """Return the token of a request, if any; a refusal if its header is malformed.

    The token's own format isn't checked: one in another format is as wrong as an unknown one.
    """
    values = _values(headers, "authorization")
    if not values:
        return None
    found = _BEARER.fullmatch(values[0].strip())
    if found is None or len(values) > 1:
        return HandshakeRefusal(400, "Invalid Bearer token header")
    return found[1]


def negotiate(
    operation: Operation, headers: Headers, access: ClientRights
) -> Agreement | HandshakeRefusal:
    """Return the agreement of a client and a server, or the answer that refuses the client."""
    headers = tuple(headers)
    token = bearer_token(headers)
    if isinstance(token, HandshakeRefusal):
        return token
    return (
        _check_access(operation, access)
        or _check_websocket(headers)
        or _check_version(operation, headers, access)
        or _choose(headers)
    )


def _check_access(operation: Operation, access: ClientRights) -> HandshakeRefusal | None:
    push = operation is Operation.PUSH
    if access.token is TokenState.ABSENT and not access.anonymous_allowed:
        return HandshakeRefusal(401, "Anonymous account is restricted")
    if not push and not access.dataset_exists:
        return HandshakeRefusal(404)
    if access.token in (TokenState.INVALID, TokenState.EXPIRED):
        return HandshakeRefusal(401, f"Authentication token {access.token.value}")
    if not access.may_read:
        return HandshakeRefusal(404)
    # A push without a token gets its 401 later, with the reason in it.
    if push and access.dataset_exists and not access.may_write:
        return HandshakeRefusal(403) if access.token is TokenState.VALID else None
    return None


def _check_websocket(headers: tuple[tuple[str, str], ...]) -> HandshakeRefusal | None:
    def tokens(name: str) -> list[str]:
        return [one.lower() for one in _listed(headers, name)]

    if "websocket" not in tokens("upgrade") or "upgrade" not in tokens("connection"):
        upgrade = (("upgrade", "websocket"), ("connection", "upgrade"))
        return HandshakeRefusal(426, "this is a WebSocket", headers=upgrade)
    if tokens("sec-websocket-version") != ["13"]:
        return HandshakeRefusal(
            426, "unknown version of WebSocket", headers=(("sec-websocket-version", "13"),)
        )
    keys = _values(headers, "sec-websocket-key")
    try:
        fits = len(keys) == 1 and len(b64decode(keys[0].strip(), validate=True)) == 16
    except ValueError:
        fits = False
    return None if fits else HandshakeRefusal(400, "Sec-WebSocket-Key isn't 16 bytes in base64")


def _check_version(
    operation: Operation, headers: tuple[tuple[str, str], ...], access: ClientRights
) -> HandshakeRefusal | None:
    versions = {value.strip() for value in _values(headers, VERSION_HEADER)}
    if len(versions) != 1 or not _NUMBER.fullmatch(version := versions.pop()):
        return HandshakeRefusal(400, f"{VERSION_HEADER} is missing, or isn't a number")
    push = operation is Operation.PUSH
    if push and access.token is TokenState.ABSENT:
        return _message(401, "A push needs a token")
    offered = [one for one in _listed(headers, SUBPROTOCOL_HEADER) if one.startswith(_FAMILY)]
    if int(version) != VERSION or (offered and SUBPROTOCOL not in offered):
        return _message(400, INCOMPATIBLE)
    if push and not access.dataset_exists and not (access.may_create and access.may_write):
        return HandshakeRefusal(403)
    return None


def _choose(headers: tuple[tuple[str, str], ...]) -> Agreement:
    extended = _values(headers, EXTENDED_HEADER) == ["1"]
    if SUBPROTOCOL in _listed(headers, SUBPROTOCOL_HEADER):
        return Agreement(MessageDialect.PUBLISHED, SUBPROTOCOL, extended)
    return Agreement(MessageDialect.REFERENCE, extended=extended)


def client_headers(dialect: MessageDialect, token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the headers that a client adds to those of every WebSocket."""
    headers = [(VERSION_HEADER, str(VERSION))]
    if token is not None:
        if not _BEARER.fullmatch(f"Bearer {token}"):
            raise InvalidInput("the token has characters that can't be in a token")
        headers.append(("authorization", f"Bearer {token}"))
    if dialect is MessageDialect.PUBLISHED:
        headers.append((SUBPROTOCOL_HEADER, SUBPROTOCOL))
    return tuple(headers)


def check_agreed(dialect: MessageDialect, headers: Headers) -> None:
    """Raise unless the server's 101 is for the dialect that the client requested."""
    wanted = [SUBPROTOCOL] if dialect is MessageDialect.PUBLISHED else []
    chosen = _listed(tuple(headers), SUBPROTOCOL_HEADER)
    if chosen != wanted:
        raise IncompatibleVersion(
            "the server uses another dialect",
            cause=f"its subprotocol is {', '.join(chosen)[:_LONGEST_BODY] or 'none'}",
        )


_MAKES_TOKENS = "the server's owner makes one with 'lakeferry token create --root ROOT"
_SOME_TOKEN = (
    "give a token with --token T or in the variable LAKEFERRY_TOKEN: "
    f"{_MAKES_TOKENS}', and with --scope write for a push"
)
_ANOTHER_TOKEN = (
    "give another token with --token T or in the variable LAKEFERRY_TOKEN: "
    f"the server doesn't know this token, or it has expired; {_MAKES_TOKENS}'"
)


def handshake_error(status: int, body: str, url: str, *, had_token: bool = True) -> LakeferryError:
    """Return the error for a refused push or pull; ``had_token``: the client sent a token."""
    said = _said(body)[:_LONGEST_BODY]
    kind: type[LakeferryError]
    kind, remedy = StorageUnavailable, "try again later"
    match status:
        case 400:
            kind = IncompatibleVersion if said == INCOMPATIBLE else InvalidInput
            remedy = "compare the versions of Lakeferry at both ends"
        case 401:
            kind, remedy = Unauthorized, _ANOTHER_TOKEN if had_token else _SOME_TOKEN
        case 403:
            kind = Forbidden
            remedy = f"use a token with the scope write: {_MAKES_TOKENS} --scope write'"
        case 404:
            kind, remedy = ObjectNotFound, "check the URL, and which datasets the token is for"
    cause = f"it answered {status} {said}".rstrip()
    return kind(f"the server refuses access to {url}", cause=cause, remedy=remedy, status=status)


def _said(body: str) -> str:
    """Return the text of a refusal: a member of a JSON object, or the whole body."""
    try:
        found = msgspec.json.decode(body[: 64 << 10], type=dict[str, object]).get("message")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        found = None
    return found if isinstance(found, str) else body


def _message(status: int, text: str) -> HandshakeRefusal:
    return HandshakeRefusal(
        status, msgspec.json.encode({"message": text}).decode(), "application/json"
    )


def _values(headers: Headers, name: str) -> list[str]:
    return [value for key, value in headers if key.lower() == name]


def _listed(headers: Headers, name: str) -> list[str]:
    """Return the items of a header that is a list, from all of its lines."""
    parts = (part.strip() for value in _values(headers, name) for part in value.split(","))
    return [part for part in parts if part]
