"""Maps a server's refusals to errors, and errors to refusals.

The variants are the protocol's own. A refusal of the first request is a message instead of the
answer; every later one is in the Close frame, whose reason has at most 123 bytes (``codec.py``).
An internal failure may have a ``code`` beside its phase and its text: one of ours
(``errors.py``), from which our client derives the error's class; other clients ignore it. The
code determines the text, so that nothing internal, such as a path in the store, reaches the
peer. For the same reason no remedy is sent: the client derives it from code and phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from lakeferry.errors import (
    CommitConflict,
    Diverged,
    Forbidden,
    HashMismatch,
    IncompatibleVersion,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    MissingFile,
    StorageUnavailable,
    TimedOut,
    Unauthorized,
)
from lakeferry.transfer.chain.hashes import Multihash

INTERNAL_ERROR = "Internal error"
"""The reference server's text for every internal failure."""

REPLACE = (
    "if both are the same dataset, --force replaces the receiver's history by the "
    "sender's; a different dataset needs another place"
)
"""The remedy if histories differ: force doesn't replace another dataset."""

_RETRY = "run the same command again: what has arrived isn't transferred again"
_NEW_TOKEN = "ask the server's owner for a token that is valid now, then run the same command again"
_BOTH_VERSIONS = "compare the versions of Lakeferry at both ends"
_REMEDIES: dict[type[LakeferryError], str] = {
    CommitConflict: "pull first, then push again",
    Diverged: REPLACE,
    Forbidden: _NEW_TOKEN,
    Unauthorized: _NEW_TOKEN,
    IncompatibleVersion: _BOTH_VERSIONS,
    InvalidInput: f"{_BOTH_VERSIONS}; the server's log has the reason",
}
"""The remedy for a refusal that a retry doesn't change."""
_IN_THE_WAY = (
    "the server's log names the file that is in the way: if nobody needs it, ask the "
    "server's administrator to delete it, and push again"
)
_NEW_NAME = (
    "it was renamed or deleted while the push started: 'lakeferry ls' shows its name now; the same "
    "command pushes it as a new dataset under the old name"
)
_LOST_HERE = (
    "restore the missing data files of the newest version here; delete the table's "
    "_delta_log/_lakeferry/transfer/refs/head, so that Lakeferry looks for the files again; then "
    "push again"
)


class Phase(Enum):
    """The phase of the dialogue in which a failure happened; the values are the protocol's."""

    PULL_REQUEST = ("Pull", "InitialRequest")
    PULL_METADATA = ("Pull", "MetadataRequest")
    PULL_OBJECTS = ("Pull", "ObjectsRequest")
    PUSH_REQUEST = ("Push", "InitialRequest")
    PUSH_METADATA = ("Push", "MetadataRequest")
    PUSH_ENSURING = ("Push", "EnsuringTargetExists")
    PUSH_OBJECTS = ("Push", "ObjectsRequest")
    PUSH_PROGRESS = ("Push", "ObjectsUploadProgress")
    PUSH_COMPLETE = ("Push", "CompleteRequest")


@dataclass(frozen=True, slots=True)
class InvalidInterval:
    """A walk back from ``head`` doesn't meet ``tail``: diverged, or the client is ahead."""

    head: Multihash
    tail: Multihash


@dataclass(frozen=True, slots=True)
class InvalidHead:
    """The server's head isn't the one that the client expects.

    On the wire the two names are exchanged: ``actual_head`` is what the client claimed.
    """

    claimed: Multihash | None
    actual: Multihash | None


@dataclass(frozen=True, slots=True)
class SeedOverwrite:
    """The chain begins with the seed of another dataset, which force doesn't replace."""


@dataclass(frozen=True, slots=True)
class RefCollision:
    """The repository has a dataset with that id under another name."""

    dataset_id: str


@dataclass(frozen=True, slots=True)
class NameCollision:
    """The repository has another dataset with that name, or a first push holds it."""

    dataset_alias: str
    held_s: int | None = None
    """How long the name stays held if that push gives no other sign of life."""
    by_same_client: bool = False
    """True if the push that holds the name has the token of the one that is refused."""


@dataclass(frozen=True, slots=True)
class Internal:
    """Any other failure; ``phase`` is ``None`` if the peer's phase isn't known here."""

    phase: Phase | None
    message: str = INTERNAL_ERROR
    code: str | None = None


TransferFailure: TypeAlias = (
    InvalidInterval | InvalidHead | SeedOverwrite | RefCollision | NameCollision | Internal
)
"""All kinds of refusals."""

# Short: most of them must fit into 123 bytes together with their JSON.
_TEXTS: dict[type[LakeferryError], str] = {
    CommitConflict: "the head has moved",
    Diverged: "the chains diverged",
    HashMismatch: "a hash doesn't match",
    MissingFile: "an object is missing",
    LimitExceeded: "a limit was exceeded",
    InvalidInput: "a message is invalid",
    IncompatibleVersion: "unknown version",
    TimedOut: "too slow",
    Forbidden: "not allowed",
    Unauthorized: "the token is invalid",
}
_RENAMED = "the dataset was renamed"
_CLASSES: dict[str, type[LakeferryError]] = {kind.code: kind for kind in _TEXTS}


def failure_of(error: LakeferryError, phase: Phase) -> Internal:
    """Return the failure that is sent to the peer for an error."""
    if isinstance(error, CommitConflict) and phase is Phase.PUSH_ENSURING:
        return Internal(phase, _RENAMED, CommitConflict.code)
    for kind, text in _TEXTS.items():
        if isinstance(error, kind):
            return Internal(phase, text, kind.code)
    # The reference server refuses a commit of another history without a reason: send one.
    passes = phase is Phase.PUSH_COMPLETE
    return Internal(phase, code=StorageUnavailable.code if passes else None)


def error_of(failure: TransferFailure) -> LakeferryError:
    """Return a failure as the error that the user of the push or pull gets."""
    match failure:
        case InvalidInterval(head, tail):
            return Diverged(
                "the two ends have different histories",
                cause=f"{tail} isn't among the blocks before {head}",
                remedy=REPLACE,
                head=head.text,
                tail=tail.text,
            )
        case InvalidHead(claimed, actual):
            return CommitConflict(
                "somebody else pushed in the meantime",
                cause=f"the head there is {actual or 'none'}, not {claimed or 'none'}",
                remedy="pull first, then push again",
                claimed_head=claimed and claimed.text,
                actual_head=actual and actual.text,
            )
        case SeedOverwrite():
            return Diverged(
                "a different dataset is there",
                cause="its id or its kind differs, and a dataset is never replaced by a "
                "different one",
                remedy="choose another name for the dataset",
            )
        case RefCollision(dataset_id):
            return CommitConflict(
                "the repository has this dataset under another name",
                cause=f"its id is {dataset_id}",
                remedy="use the dataset's name in the repository",
                dataset_id=dataset_id,
            )
        case NameCollision(alias, int(held_s), by_same_client):
            whose = "your token" if by_same_client else "another token"
            return CommitConflict(
                f"the name {alias} is reserved by another push for {held_s} more seconds",
                cause=f"a push with {whose} has begun to create a dataset with this name, or with "
                "a name above or below it, and may still be running",
                remedy=f"wait until that push ends, or push again in {held_s} seconds",
                dataset_alias=alias,
                held_s=held_s,
                by_same_client=by_same_client,
            )
        case NameCollision(alias):
            return CommitConflict(
                f"the name {alias} isn't free in the repository",
                cause="a dataset has this name, or a name above or below it, or is being pushed "
                "there",
                remedy="choose another name for the dataset",
                dataset_alias=alias,
            )
        case Internal(Phase.PUSH_COMPLETE as phase, message, None):
            return CommitConflict(
                "the server refused to commit the pushed history",
                cause=f"it says {message!r}: the history breaks a rule of the server, or somebody "
                "else pushed in the meantime",
                remedy="the server's log has the reason; correct the dataset with the program that "
                "wrote it, or, if somebody else has pushed, pull first",
                phase=".".join(phase.value),
            )
        case Internal(phase, message, code):
            kind = _CLASSES.get(code or "", StorageUnavailable)
            return kind(
                "the server reported an error",
                cause=message,
                remedy=_remedy(kind, phase),
                phase=phase and ".".join(phase.value),
            )


def _remedy(kind: type[LakeferryError], phase: Phase | None) -> str:
    """Return the remedy; in the metadata phase a limit may mean that force sent too many blocks."""
    if kind is LimitExceeded and phase is Phase.PULL_METADATA:
        return "pull into an empty place: the table is then transferred in parts"
    if kind is LimitExceeded and phase is Phase.PUSH_METADATA:
        return "push to a new name: the table is then transferred in parts"
    if kind is CommitConflict and phase is Phase.PUSH_ENSURING:
        return _NEW_NAME
    if kind is Diverged and phase is Phase.PUSH_OBJECTS:
        return _IN_THE_WAY
    if kind is MissingFile and phase is Phase.PUSH_METADATA:
        return _LOST_HERE
    if kind is MissingFile and phase is not None and phase.value[0] == "Pull":
        return "ask the owner of the dataset to repair it: it lacks files"
    return _REMEDIES.get(kind, _RETRY)
