"""Encodes and decodes messages in either dialect, with bounds.

The size of a text is checked before it is decoded, against the limit of its kind. Deeply nested
JSON ends in an error and not in a stack overflow. Unknown members are skipped without being
decoded. Only ``LakeferryError`` is ever raised: ``InvalidInput`` for a malformed message,
``LimitExceeded`` for one that is too large.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from lakeferry.errors import InvalidInput, LimitExceeded
from lakeferry.transfer.wire import failure_messages as f
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.failure_messages import Phase, TransferFailure
from lakeferry.transfer.wire.json_values import Text
from lakeferry.transfer.wire.message_spellings import SPELLINGS, Spelling
from lakeferry.transfer.wire.messages import Message, MessageDialect

CLOSE_REASON_BYTES = 123
"""Maximum length of the reason of a Close frame, by RFC 6455."""

_WITH_BLOCKS = (m.PullMetadata, m.PushMetadata)
_WITH_OBJECTS = (m.PullObjectsRequest, m.PushObjectsRequest)
_WITH_URLS = (m.PullObjects, m.PushObjects)


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Limits for what one end accepts from the other, and sends to it.

    The reference implementation reads 64 MiB in a message, at both ends, and 16 MiB in a frame;
    its client requests all objects at once.
    """

    blocks_message_bytes: int = 64 << 20
    objects_message_bytes: int = 16 << 20
    urls_message_bytes: int = 64 << 20
    """Smaller for requests: a signed URL is several times longer than the object's name."""
    message_bytes: int = 64 << 10
    objects: int = 50_000
    """Most objects in one message."""
    rounds: int = 10_000
    """Most requests for objects in one session."""
    texts: int = 200_000
    """Most messages of the peer in one session."""
    renewals: int = 20
    """How often one object may get a new URL because the last one wasn't used in time."""

    def bytes_of(self, kind: type) -> int:
        """Return the maximum size of a message of that kind."""
        if kind in _WITH_BLOCKS:
            return self.blocks_message_bytes
        if kind in _WITH_URLS:
            return self.urls_message_bytes
        return self.objects_message_bytes if kind in _WITH_OBJECTS else self.message_bytes


LIMITS = MessageLimits()
"""Limits that fit the reference implementation as a peer."""


def encode_message(
    dialect: MessageDialect, message: Message, limits: MessageLimits = LIMITS
) -> str:
    """Return a message as text; ``LimitExceeded`` if it is too large for the peer."""
    # Don't keep document, JSON and text at the same time: each may have tens of megabytes.
    data = msgspec.json.encode(SPELLINGS[dialect].document(message))
    text = data.decode()
    check_message_size(len(text), (type(message),), limits)
    return text


def encode_failure(dialect: MessageDialect, failure: TransferFailure) -> str:
    """Return a refusal as the text that is sent instead of the answer."""
    return msgspec.json.encode(SPELLINGS[dialect].failures.document(failure)).decode()


def decode_message(
    dialect: MessageDialect, expected: tuple[type, ...], text: Text, limits: MessageLimits = LIMITS
) -> Message | TransferFailure:
    """Return the message in a text, one of the ``expected`` kinds, or a refusal.

    If several kinds are expected, the members of the text tell which one it is.
    """
    check_message_size(len(text), expected, limits)
    spelling = SPELLINGS[dialect]
    try:
        members = spelling.members(text)
        failure = spelling.failures.failure(members)
        if failure is not None:
            return failure
        message = spelling.decode(_kind(spelling, expected, members), text, members)
    except RecursionError as error:
        raise LimitExceeded("a message is nested too deeply", cause=_names(expected)) from error
    except (msgspec.MsgspecError, ValueError) as error:  # surrogates are a ValueError
        raise _unexpected(expected, str(error)) from error
    _check_counts(message, limits)
    return message


def _kind(spelling: Spelling, expected: tuple[type, ...], known: Collection[str]) -> type:
    for kind in expected:
        mark = spelling.marks.get(kind)
        # A pull request has no mandatory member of its own.
        if mark in known or (mark is None and (not known or kind not in spelling.empty)):
            return kind
    marks = [spelling.marks.get(kind) for kind in expected]
    missing = " or ".join(mark for mark in marks if mark is not None)
    cause = f"it has {', '.join(sorted(known))}" if known else f"it has no {missing}"
    raise _unexpected(expected, cause)


def close_reason(dialect: MessageDialect, failure: TransferFailure, phase: Phase) -> str:
    """Return a refusal as the reason of a Close frame: complete JSON, at most 123 bytes.

    A refusal that doesn't fit becomes an internal failure of that phase, with its text cut.
    """
    if dialect is MessageDialect.PUBLISHED:
        # The text before this frame has the whole refusal.
        return close_text(f.error_of(failure).message)
    whole = encode_failure(dialect, failure)
    if len(whole.encode()) <= CLOSE_REASON_BYTES:
        return whole
    if not isinstance(failure, f.Internal):
        error = f.error_of(failure)
        failure = f.Internal(phase, error.message, error.code)
    longest = len(failure.message.encode())
    for code in (failure.code, None):
        for size in range(longest, -1, -1):
            shorter = f.Internal(failure.phase or phase, _cut(failure.message, size), code)
            text = encode_failure(dialect, shorter)
            if len(text.encode()) <= CLOSE_REASON_BYTES:
                return text
    raise AssertionError("an empty text fits into every phase")


def failure_in_close(reason: str) -> TransferFailure | None:
    """Return the refusal in the reason of a Close frame, if there is one."""
    try:
        spelling = SPELLINGS[MessageDialect.REFERENCE]
        return spelling.failures.failure(spelling.members(reason))
    except (msgspec.MsgspecError, ValueError, InvalidInput, RecursionError):
        return None


def close_text(message: str) -> str:
    """Return a message, cut to the length of a Close frame's reason."""
    return _cut(message, CLOSE_REASON_BYTES)


def _cut(text: str, size_bytes: int) -> str:
    return text.encode()[:size_bytes].decode(errors="ignore")


def check_message_size(size: int, kinds: tuple[type, ...], limits: MessageLimits = LIMITS) -> None:
    """Raise ``LimitExceeded`` if no message of these kinds may have this size."""
    most = max(limits.bytes_of(kind) for kind in kinds)
    if size > most:
        raise LimitExceeded(
            "a message is too large",
            cause=f"{_names(kinds)} of {size:,} bytes, but at most {most:,} are allowed",
            size_bytes=size,
        )


def _check_counts(message: Message, limits: MessageLimits) -> None:
    match message:
        case m.PullObjectsRequest(many) | m.PushObjectsRequest(many):
            count = len(many)
        case m.PullObjects(downloads):
            count = len(downloads)
        case m.PushObjects(uploads):
            count = len(uploads)
        case _:
            return
    if count > limits.objects:
        raise LimitExceeded(
            "too many objects in one message",
            cause=f"{count:,}, but at most {limits.objects:,} are allowed",
            remedy="ask for them in pages",
        )


def _names(kinds: tuple[type, ...]) -> str:
    return " or ".join(kind.__name__ for kind in kinds)


def _unexpected(expected: tuple[type, ...], cause: str) -> InvalidInput:
    return InvalidInput(f"a message isn't the {_names(expected)} that was expected", cause=cause)
