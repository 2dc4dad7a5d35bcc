"""The messages of a push or a pull, as values.

Neither dialect tags its messages: which one a text is follows from where it comes in the
dialogue, so that reading one always begins with what is expected (``codec.py``)::

    pull    PullRequest → PullPlan → PullMetadataRequest → PullMetadata
            → (PullObjectsRequest → PullObjects)* → Close
    push    PushRequest → PushAccepted → PushMetadata → PushMetadataAccepted
            → (PushObjectsRequest → PushObjects → (ProgressRequest → Progress)* → Progress)*
            → PushComplete → PushConfirmed → Close

A value here is the same in both dialects; what one of them can't say has a default that
stands for its silence. The blocks of a batch are bytes, which nothing here opens. Where the
server says no, a ``failures.Failure`` takes the place of its message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from lakeferry.errors import InvalidInput
from lakeferry.transfer.chain.hashes import Multihash

TAR = "application/tar"
TAR_GZIP = "application/tar+gzip"

LONGEST_URL = 16 << 10
LONGEST_PATH = 4096
MOST_HEADERS = 64
LONGEST_HEADER = 8 << 10
"""A bearer token may be in it."""

LARGEST_PART_BYTES = 64 << 20

_QUERY = re.compile(r"[!-~]+")
_URL = re.compile(r"(?i:https?)://[!-~]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*")


class MessageDialect(Enum):
    """How messages are spelled.

    ``REFERENCE`` is what the reference implementation sends and takes; ``PUBLISHED`` is the
    AsyncAPI document, which a client chooses by naming it as its subprotocol.
    """

    REFERENCE = "reference"
    PUBLISHED = "published"


class WireObjectKind(Enum):
    """What an object is to its dataset; the values are the protocol's words."""

    DATA_SLICE = "DataSlice"
    CHECKPOINT = "Checkpoint"


class PushVisibility(Enum):
    """Who may read a dataset that a push creates."""

    PRIVATE = "Private"
    PUBLIC = "Public"


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """How much there is to transfer: an estimate, which nothing may rely on."""

    num_blocks: int
    num_objects: int = 0
    num_records: int = 0
    bytes_in_raw_blocks: int = 0
    bytes_in_raw_objects: int = 0


@dataclass(frozen=True, slots=True)
class BlocksBatch:
    """Metadata blocks in one tarball, oldest first; ``num_blocks`` is what the sender says."""

    num_blocks: int
    payload: bytes
    media_type: str = TAR_GZIP


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """An object that blocks refer to. Only the published dialect leaves its size out.

    ``path`` is where it is in a Delta table, whose objects have names of their own; objects
    of ODF datasets have none. Peers that know nothing of Delta tables pass over it.
    """

    kind: WireObjectKind
    physical_hash: Multihash
    size_bytes: int | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        if self.path is not None and not 0 < len(self.path) <= LONGEST_PATH:
            raise InvalidInput("an object's path is too long, or empty")

    @property
    def key(self) -> tuple[WireObjectKind, Multihash, str | None]:
        """What makes two mentions one object, whatever size each of them says."""
        return self.kind, self.physical_hash, self.path


@dataclass(frozen=True, slots=True)
class UploadParts:
    """How to put an object in parts: what to add to a URL's query for each that is missing.

    All have ``part_bytes`` but the last one; the first is number 1. ``is_all`` says that
    nothing else is missing. Peers that know nothing of it pass over it, and use the URL that
    is for the whole.
    """

    url: str
    part_bytes: int
    missing: tuple[tuple[int, str], ...]
    is_all: bool = True

    def __post_init__(self) -> None:
        if len(self.url) > LONGEST_URL or not _URL.fullmatch(self.url):
            raise InvalidInput("not a URL to put parts to", cause=repr(self.url[:80]))
        if not 1 <= self.part_bytes <= LARGEST_PART_BYTES:
            raise InvalidInput("a part is too large to be held", cause=f"{self.part_bytes:,} bytes")
        for _, query in self.missing:
            if len(query) > LONGEST_HEADER or not _QUERY.fullmatch(query):
                raise InvalidInput("not the query of a part", cause=repr(query[:80]))

    def url_of(self, query: str) -> str:
        """Return the URL of a part."""
        return f"{self.url}{'&' if '?' in self.url else '?'}{query}"


@dataclass(frozen=True, slots=True)
class TransferUrl:
    """Where an object's bytes go to or come from, with headers to be sent as they are.

    It is HTTP, and neither the URL nor a header can break out of the request that it is
    put into. Whether its host is one to talk to is for the client to decide.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    expires_at_ms: int | None = None
    parts: UploadParts | None = None

    def __post_init__(self) -> None:
        if len(self.url) > LONGEST_URL or not _URL.fullmatch(self.url):
            raise InvalidInput("not a URL to transfer an object with", cause=repr(self.url[:80]))
        if len(self.headers) > MOST_HEADERS:
            raise InvalidInput("too many headers for a URL", cause=f"{len(self.headers):,}")
        for name, value in self.headers:
            fits = _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)
            if not fits or len(value) > LONGEST_HEADER:
                raise InvalidInput("not a header to send with a URL", cause=repr(name[:80]))

    def is_stale(self, received_ms: int, now_ms: int, margin_ms: int) -> bool:
        """Tell whether a request that begins now should get a new URL first.

        A URL that was past its time when it came shows that the two clocks differ: then
        only the store knows, and the URL is worth trying.
        """
        if self.expires_at_ms is None or self.expires_at_ms <= received_ms:
            return False
        return now_ms + margin_ms >= self.expires_at_ms


@dataclass(frozen=True, slots=True)
class ObjectDownload:
    """An object, and where to get it."""

    object: ObjectFile
    url: TransferUrl


@dataclass(frozen=True, slots=True)
class ObjectUpload:
    """An object, and where to put it; without a URL the server has it already."""

    object: ObjectFile
    url: TransferUrl | None


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The client wants the blocks after ``begin_after`` up to and with ``stop_at``.

    ``None`` is from the seed, and up to the server's head. With ``force`` the server sends
    the whole chain where ``begin_after`` isn't part of it.
    """

    begin_after: Multihash | None = None
    stop_at: Multihash | None = None
    force: bool = False
    dataset_id: str | None = None
    """Only the published dialect has it; the dataset is the one that the URL names."""


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What the pull will bring; no blocks means that the client is up to date."""

    plan: TransferPlan


@dataclass(frozen=True, slots=True)
class PullMetadataRequest:
    """The client wants the blocks now."""


@dataclass(frozen=True, slots=True)
class PullMetadata:
    """The blocks: maybe more than were planned, for the head may have moved on."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True)
class PullObjectsRequest:
    """The client wants URLs for these; it may ask as often as it likes."""

    objects: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True)
class PullObjects:
    """One URL for each object that was asked for."""

    downloads: tuple[ObjectDownload, ...]


@dataclass(frozen=True, slots=True)
class PushRequest:
    """The client wants to put blocks on top of ``current_head``, or in its place by force."""

    current_head: Multihash | None
    plan: TransferPlan
    force: bool = False
    visibility: PushVisibility = PushVisibility.PRIVATE
    dataset_id: str | None = None
    """Only the published dialect has it; the dataset is the one that the URL names."""


@dataclass(frozen=True, slots=True)
class PushAccepted:
    """The server's head is what the client takes it for."""


@dataclass(frozen=True, slots=True)
class PushMetadata:
    """The new blocks."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True)
class PushMetadataAccepted:
    """The server could read the blocks; nothing is stored yet."""


@dataclass(frozen=True, slots=True)
class PushObjectsRequest:
    """A page of the objects to upload; ``is_truncated`` says that another page follows.

    The published dialect doesn't say it, and ``is_truncated`` is true there.
    """

    objects: tuple[ObjectFile, ...]
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class PushObjects:
    """For each object of the page a URL, or that it is there already."""

    uploads: tuple[ObjectUpload, ...]


@dataclass(frozen=True, slots=True)
class ProgressRequest:
    """The server shows that it is there, and wants the same of the client."""


@dataclass(frozen=True, slots=True)
class UploadProgress:
    """How many objects of the page were uploaded; ``None`` is that the page is complete."""

    uploaded: int | None


@dataclass(frozen=True, slots=True)
class PushComplete:
    """Every object is there: the server may commit."""


@dataclass(frozen=True, slots=True)
class PushConfirmed:
    """The commit was made."""


Message: TypeAlias = (
    PullRequest
    | PullPlan
    | PullMetadataRequest
    | PullMetadata
    | PullObjectsRequest
    | PullObjects
    | PushRequest
    | PushAccepted
    | PushMetadata
    | PushMetadataAccepted
    | PushObjectsRequest
    | PushObjects
    | ProgressRequest
    | UploadProgress
    | PushComplete
    | PushConfirmed
)
"""Everything that one end may say to the other when nothing is wrong."""
