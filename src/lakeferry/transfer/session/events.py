"""The events that a machine takes and the actions that it returns.

Events come from the peer (a text, a frame, a Close), from the clock (``Tick``) or from the host,
as results of actions. Actions are executed by the socket (``Send``, ``Close``) or by the host;
the docstring of a result's class names its action.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from lakeferry.errors import LakeferryError
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.wire.failure_messages import TransferFailure
from lakeferry.transfer.wire.json_values import Text
from lakeferry.transfer.wire.messages import (
    BlocksBatch,
    ObjectDownload,
    ObjectFile,
    ObjectUpload,
    PullRequest,
    PushRequest,
    TransferPlan,
    TransferUrl,
)


class FrameKind(Enum):
    """A frame that isn't a text."""

    BINARY = "binary"
    PING = "ping"
    PONG = "pong"


@dataclass(frozen=True, slots=True)
class Received:
    """The peer sent a text, with all of its fragments: a string, or its UTF-8."""

    text: Text


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The peer announced a message of this size, which was refused and not read."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReceivedFrame:
    """The peer sent another frame. Pings are answered by the transport, and ignored here."""

    kind: FrameKind


@dataclass(frozen=True, slots=True)
class PeerClosed:
    """The peer closed, or the connection was lost (1006)."""

    code: int = 1006
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; ``Session.wake_ms`` says when the next one is needed."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The socket is open: a client may send."""


@dataclass(frozen=True, slots=True)
class PlanReady:
    """Answers ``MakePlan``."""

    plan: TransferPlan


@dataclass(frozen=True, slots=True)
class PushConsidered:
    """Answers ``ConsiderPush``: the head is the one that the client expects."""


@dataclass(frozen=True, slots=True)
class BlocksReady:
    """Answers ``LoadBlocks``."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True)
class BlocksTaken:
    """Answers ``TakeBlocks``: they were read and are valid."""


@dataclass(frozen=True, slots=True)
class DatasetReady:
    """Answers ``EnsureDataset``."""


@dataclass(frozen=True, slots=True)
class UrlsReady:
    """Answers ``SignUrls``: one for each object, ``None`` for an upload that isn't needed."""

    urls: tuple[TransferUrl | None, ...]


@dataclass(frozen=True, slots=True)
class ObjectsWanted:
    """Answers ``NextObjects``; with ``more``, others follow."""

    objects: tuple[ObjectFile, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class ObjectsMoved:
    """These objects, whose URLs the machine gave to the host, are at their places now."""

    objects: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True)
class Expired:
    """The URLs of these objects failed: they had expired, or the store refused them."""

    objects: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True)
class RunCommitted:
    """Answers ``CheckAndCommit``."""


@dataclass(frozen=True, slots=True)
class HeadIs:
    """Answers ``CheckHead``."""

    head: Multihash | None


@dataclass(frozen=True, slots=True)
class WorkRefused:
    """An action failed; at a client this ends the session at any time."""

    problem: TransferFailure | LakeferryError


HostEvent: TypeAlias = (
    Begin
    | PlanReady
    | PushConsidered
    | BlocksReady
    | BlocksTaken
    | DatasetReady
    | UrlsReady
    | ObjectsWanted
    | ObjectsMoved
    | Expired
    | RunCommitted
    | HeadIs
    | WorkRefused
)
PeerEvent: TypeAlias = Received | ReceivedFrame | TooLarge | PeerClosed | Tick
"""Events that no action causes; a ``Tick`` may mean that the peer is silent for too long."""
MachineEvent: TypeAlias = PeerEvent | HostEvent


@dataclass(frozen=True, slots=True)
class Send:
    """Send this as one text message."""

    text: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket with this; wait a few seconds for the peer's own Close, then drop it."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Find the requested interval of blocks, and its size."""

    request: PullRequest


@dataclass(frozen=True, slots=True)
class ConsiderPush:
    """Compare the head with the one that the client expects."""

    request: PushRequest


@dataclass(frozen=True, slots=True)
class LoadBlocks:
    """Pack the blocks of the interval."""


@dataclass(frozen=True, slots=True)
class TakeBlocks:
    """Unpack these blocks and check them back to the seed; store nothing."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True)
class EnsureDataset:
    """Create the dataset if it doesn't exist."""


@dataclass(frozen=True, slots=True)
class SignUrls:
    """Make URLs for these objects."""

    objects: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True)
class NextObjects:
    """Return the next objects to transfer: at most ``limit``, and none twice."""

    limit: int


@dataclass(frozen=True, slots=True)
class Download:
    """Get these; report ``Moved`` or ``Expired`` for each. The host decides which URLs to trust."""

    downloads: tuple[ObjectDownload, ...]


@dataclass(frozen=True, slots=True)
class Upload:
    """Put these; report ``Moved`` or ``Expired`` for each. Existing objects aren't included."""

    uploads: tuple[ObjectUpload, ...]


@dataclass(frozen=True, slots=True)
class CheckAndCommit:
    """Check that every object exists, store the blocks, and move the head."""


@dataclass(frozen=True, slots=True)
class CheckHead:
    """Ask the server for its head, by HTTP."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The session has ended; without an error it was successful.

    Running work can be cancelled, except a commit that has begun.
    """

    error: LakeferryError | None = None


MachineAction: TypeAlias = (
    Send
    | Close
    | MakePlan
    | ConsiderPush
    | LoadBlocks
    | TakeBlocks
    | EnsureDataset
    | SignUrls
    | NextObjects
    | Download
    | Upload
    | CheckAndCommit
    | CheckHead
    | Finished
)
