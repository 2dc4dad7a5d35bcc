"""Parses and authenticates the events that lakeFS sends.

A sender proves in one of two ways that it knows the secret: it sends the secret in a header,
which is the only way for lakeFS's actions, or it signs what it sends::

    X-Lakeferry-Secret: the secret
or
    X-Lakeferry-Timestamp: 1700000000                   seconds since the epoch
    X-Lakeferry-Signature: sha256=HMAC-SHA256(secret, timestamp + "." + body), in hex

The body is the event as lakeFS writes it (``pkg/actions/event.go``): what happened, when, in
which repository, to which branch or tag, and the commit. Events have no number, so all fields
together identify an event. lakeFS writes the current time into each event: an event with another
time is a replay.

This module does no I/O; the caller passes the time.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

import msgspec

from lakeferry.errors import InvalidInput, Unauthorized

SECRET_VARIABLE = "LAKEFERRY_WEBHOOK_SECRET"
SECRET_HEADER = "X-Lakeferry-Secret"
TIMESTAMP_HEADER = "X-Lakeferry-Timestamp"
SIGNATURE_HEADER = "X-Lakeferry-Signature"
LARGEST_BODY_BYTES = 1 << 20
"""A commit's message and metadata are in the body."""
WINDOW_MS = 15 * 60 * 1000
"""The largest difference between an event's time and ours, in both directions."""

BRANCH_EVENTS = ("post-commit", "post-merge", "post-revert", "post-cherry-pick")
TAG_EVENTS = ("post-create-tag",)

_SCHEME = "sha256="
_LONGEST_REF = 1024
_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
_BRANCH = re.compile(r"\w[-\w]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{6,64}")
_SECONDS = re.compile(r"[0-9]{1,12}")
_REMEDY = "let lakeFS send its own events: 'lakeferry lakefs init' writes the action for them"


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """A new commit on a branch, or a new tag, and lakeFS's time of the event."""

    kind: str
    repository: str
    ref: str
    """The branch or the tag."""
    commit: str
    time_ms: int
    identity: str
    """The same for each copy of one event; 64 hexadecimal digits."""

    @property
    def is_tag(self) -> bool:
        """Whether a tag was created, which changes no table and applies to all tables."""
        return self.kind in TAG_EVENTS

    def is_current(self, now_ms: int) -> bool:
        """Return True if the event's time is about now, so that we would recognize a replay."""
        return abs(now_ms - self.time_ms) <= WINDOW_MS


def sign(secret: str, timestamp_s: int, body: bytes) -> str:
    """Return the signature for a sender's header."""
    signed = str(timestamp_s).encode() + b"." + body
    return _SCHEME + hmac.new(secret.strip().encode(), signed, sha256).hexdigest()


def authenticate(secret: str | None, headers: Mapping[str, str], body: bytes, now_ms: int) -> None:
    """Raise ``Unauthorized`` unless the sender knows the secret.

    ``headers`` must have the names as spelled in this module. If we have no secret, all senders
    are rejected.
    """
    if is_known_by_head(secret, headers):
        return
    assert secret is not None
    timestamp_s = int((headers.get(TIMESTAMP_HEADER) or "").strip())
    if not _same(headers.get(SIGNATURE_HEADER) or "", sign(secret, timestamp_s, body).encode()):
        raise _unknown("the signature isn't right")
    if abs(now_ms - timestamp_s * 1000) > WINDOW_MS:
        raise _unknown("the signature is too old, or the clocks differ")


def is_known_by_head(secret: str | None, headers: Mapping[str, str]) -> bool:
    """Return True if a header has the secret; ``False`` if the sender signs the body.

    Raises ``Unauthorized`` for all others, before the body is read.
    """
    if secret is None or not secret.strip():
        raise Unauthorized(
            "the webhook isn't configured",
            cause=f"the server was started without {SECRET_VARIABLE}",
            remedy=f"set {SECRET_VARIABLE} to the secret that lakeFS sends, and start it again",
        )
    if headers.get(SIGNATURE_HEADER) is not None:
        if not _SECONDS.fullmatch((headers.get(TIMESTAMP_HEADER) or "").strip()):
            raise _unknown(f"{SIGNATURE_HEADER} needs {TIMESTAMP_HEADER} in seconds")
        return False
    given = headers.get(SECRET_HEADER)
    if not given:
        raise _unknown(f"{SECRET_HEADER} is missing or empty")
    if not _same(given, secret.strip().encode()):
        raise _unknown("the secret isn't right")
    return True


def _same(given: str, wanted: bytes) -> bool:
    """Compare in constant time; headers are bytes as Latin-1."""
    return hmac.compare_digest(given.strip().encode("latin-1", "replace"), wanted)


def _unknown(cause: str) -> Unauthorized:
    return Unauthorized(
        "the webhook can't authenticate the sender",
        cause=cause,
        remedy=f"give lakeFS the secret that the server has in {SECRET_VARIABLE}",
    )


class _Said(msgspec.Struct):
    """The fields of lakeFS's event that matter here."""

    event_type: str
    event_time: str
    repository_id: str
    commit_id: str = ""
    branch_id: str = ""
    tag_id: str = ""
    action_name: str = ""
    hook_id: str = ""


_SAID_DECODER = msgspec.json.Decoder(_Said)


def parse_event(body: bytes) -> CommitEvent:
    """Return the event; raise ``InvalidInput`` if it is invalid or doesn't lead to an export."""
    if len(body) > LARGEST_BODY_BYTES:
        raise _wrong(f"it has more than {LARGEST_BODY_BYTES:,} bytes")
    try:
        said = _SAID_DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as bad:
        raise _wrong(str(bad)) from bad
    if said.event_type in BRANCH_EVENTS:
        ref, what = said.branch_id, "branch_id"
        fits = _BRANCH.fullmatch(ref) is not None
    elif said.event_type in TAG_EVENTS:
        ref, what = said.tag_id, "tag_id"
        fits = _is_tag(ref)
    else:
        known = ", ".join((*BRANCH_EVENTS, *TAG_EVENTS))
        raise _wrong(f"event_type is {said.event_type[:50]!r}; exports follow {known}")
    if not fits or len(ref) > _LONGEST_REF:
        raise _wrong(f"{what} is {ref[:50]!r}")
    if not _REPOSITORY.fullmatch(said.repository_id):
        raise _wrong(f"repository_id is {said.repository_id[:70]!r}")
    if not _COMMIT.fullmatch(said.commit_id):
        raise _wrong(f"commit_id is {said.commit_id[:70]!r}")
    return CommitEvent(
        kind=said.event_type,
        repository=said.repository_id,
        ref=ref,
        commit=said.commit_id,
        time_ms=_time_ms(said.event_time),
        identity=sha256(msgspec.json.encode(msgspec.structs.astuple(said))).hexdigest(),
    )


def _is_tag(tag: str) -> bool:
    """Return True if lakeFS allows tags of that name, and it is valid as a folder name."""
    bare = tag.isprintable() and not any(character.isspace() for character in tag)
    return bare and tag not in ("", ".") and ".." not in tag and "/" not in tag


def _time_ms(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return int(when.timestamp() * 1000)
    except (ValueError, OverflowError) as bad:
        raise _wrong(f"event_time is {text[:50]!r}") from bad


def _wrong(cause: str) -> InvalidInput:
    return InvalidInput("that isn't an event of lakeFS", cause=cause, remedy=_REMEDY)
