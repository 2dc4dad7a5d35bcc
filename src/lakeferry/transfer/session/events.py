"""The events that a machine takes and the actions that it returns.

Events come from the peer (a text, a frame, a Close), from the clock (``Tick``) or from the
host, which answers what it was asked for. Actions go to the socket (``Send``, ``Close``) or
to the host; each of the latter names its answer's class in that class's docstring.
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
    """A frame that is no text."""

    BINARY = "binary"
    PING = "ping"
    PONG = "pong"


@dataclass(frozen=True, slots=True)
class Received:
    """The peer sent a text, here with all of its fragments: a string, or its UTF-8."""

    text: Text


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The peer announced a message of a size that was refused, and wasn't read."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReceivedFrame:
    """The peer sent something else. Pings are the transport's to answer, and mean nothing here."""

    kind: FrameKind


@dataclass(frozen=True, slots=True)
class PeerClosed:
    """The peer closed, or the connection is gone (1006)."""

    code: int = 1006
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; ``Session.wake_ms`` says when the next one is wanted."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The socket is open: a client may speak."""


@dataclass(frozen=True, slots=True)
class PlanReady:
    """Answers ``MakePlan``."""

    plan: TransferPlan


@dataclass(frozen=True, slots=True)
class PushConsidered:
    """Answers ``ConsiderPush``: the head is what the client takes it for."""


@dataclass(frozen=True, slots=True)
class BlocksReady:
    """Answers ``LoadBlocks``."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True)
class BlocksTaken:
    """Answers ``TakeBlocks``: they were read and make sense."""


@dataclass(frozen=True, slots=True)
class DatasetReady:
    """Answers ``EnsureDataset``."""


@dataclass(frozen=True, slots=True)
class UrlsReady:
    """Answers ``SignUrls``: one for each object, ``None`` for an upload that isn't needed."""

    urls: tuple[TransferUrl | None, ...]


@dataclass(frozen=True, slots=True)
class ObjectsWanted:
    """Answers ``NextObjects``; with ``more`` there will be others after these."""

    objects: tuple[ObjectFile, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class ObjectsMoved:
    """These of the objects that were handed out are at their place now."""

    objects: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True)
class Expired:
    """These objects' URLs are of no use any more: past their time, or refused because of it."""

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
    """What was asked for can't be done; at a client it ends the session at any time."""

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
"""What happens by itself; the passing of time is the peer's silence."""
MachineEvent: TypeAlias = PeerEvent | HostEvent


@dataclass(frozen=True, slots=True)
class Send:
    """Send this as one text message."""

    text: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket so; wait a few seconds for the peer's own Close, and then drop it."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Find the interval of blocks that is asked for, and what it amounts to."""

    request: PullRequest


@dataclass(frozen=True, slots=True)
class ConsiderPush:
    """Compare the head with what the client takes it for."""

    request: PushRequest


@dataclass(frozen=True, slots=True)
class LoadBlocks:
    """Pack the blocks of the interval."""


@dataclass(frozen=True, slots=True)
class TakeBlocks:
    """Unpack these blocks and check them, down to the seed; store nothing."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True)
class EnsureDataset:
    """Make the dataset if it isn't there."""


@dataclass(frozen=True, slots=True)
class SignUrls:
    """Make URLs for these objects."""

    objects: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True)
class NextObjects:
    """Name the next objects to transfer: at most so many, and none twice."""

    limit: int


@dataclass(frozen=True, slots=True)
class Download:
    """Get these; say ``Moved`` or ``Expired`` of each. Whether its URL is trusted is the host's."""

    downloads: tuple[ObjectDownload, ...]


@dataclass(frozen=True, slots=True)
class Upload:
    """Put these; say ``Moved`` or ``Expired`` of each. Those that are there aren't among them."""

    uploads: tuple[ObjectUpload, ...]


@dataclass(frozen=True, slots=True)
class CheckAndCommit:
    """Check that every object is there, store the blocks, and move the head."""


@dataclass(frozen=True, slots=True)
class CheckHead:
    """Ask the server for its head, by HTTP."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The session is over; without an error it did what it was for.

    What is under way can be dropped, but for a commit that has begun.
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
