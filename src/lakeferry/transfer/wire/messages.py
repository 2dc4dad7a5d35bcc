"""The messages of a push or a pull, as values.

Neither dialect tags its messages. The kind of a text follows from its position in the dialogue,
so the reader always passes the kinds that it expects (``codec.py``)::

    pull    PullRequest → PullPlan → PullMetadataRequest → PullMetadata
            → (PullObjectsRequest → PullObjects)* → Close
    push    PushRequest → PushAccepted → PushMetadata → PushMetadataAccepted
            → (PushObjectsRequest → PushObjects → (ProgressRequest → Progress)* → Progress)*
            → PushComplete → PushConfirmed → Close

A value here is the same in both dialects; a member that one of them doesn't have gets a default.
The blocks of a batch are bytes, which this module doesn't open. When the server refuses, a
``failures.Failure`` comes instead of its message.
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
"""Large enough for a bearer token."""

_LARGEST_PART_BYTES = 64 << 20

_QUERY = re.compile(r"[!-~]+")
_URL = re.compile(r"(?i:https?)://[!-~]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*")


class MessageDialect(Enum):
    """How messages are spelled.

    ``REFERENCE`` is what the reference implementation sends and accepts; ``PUBLISHED`` is the
    AsyncAPI document, which a client chooses by its subprotocol.
    """

    REFERENCE = "reference"
    PUBLISHED = "published"


class WireObjectKind(Enum):
    """The role of an object in its dataset; the values are the protocol's words."""

    DATA_SLICE = "DataSlice"
    CHECKPOINT = "Checkpoint"


class PushVisibility(Enum):
    """Who may read a dataset that a push creates."""

    PRIVATE = "Private"
    PUBLIC = "Public"


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The size of a transfer: an estimate, which nothing may rely on."""

    num_blocks: int
    num_objects: int = 0
    num_records: int = 0
    bytes_in_raw_blocks: int = 0
    bytes_in_raw_objects: int = 0


@dataclass(frozen=True, slots=True)
class BlocksBatch:
    """Metadata blocks in one tarball, oldest first; ``num_blocks`` is the sender's claim."""

    num_blocks: int
    payload: bytes
    media_type: str = TAR_GZIP


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """An object that blocks refer to. Only the published dialect omits its size.

    ``path`` is its path in a Delta table; objects of ODF datasets have none. Peers that don't
    know Delta tables ignore it.
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
        """The object's identity: two messages mean the same object, whatever sizes they state."""
        return self.kind, self.physical_hash, self.path


@dataclass(frozen=True, slots=True)
class UploadParts:
    """How to put an object in parts: what to add to a URL's query for each missing part.

    All have ``part_bytes`` but the last one; the first is number 1. ``is_all`` means that no
    other part is missing. Peers that don't know it ignore it, and use the URL for the whole
    object.
    """

    url: str
    part_bytes: int
    missing: tuple[tuple[int, str], ...]
    is_all: bool = True

    def __post_init__(self) -> None:
        if len(self.url) > LONGEST_URL or not _URL.fullmatch(self.url):
            raise InvalidInput("not a URL to put parts to", cause=repr(self.url[:80]))
        if not 1 <= self.part_bytes <= _LARGEST_PART_BYTES:
            raise InvalidInput("a part is too large to be held", cause=f"{self.part_bytes:,} bytes")
        for _, query in self.missing:
            if len(query) > LONGEST_HEADER or not _QUERY.fullmatch(query):
                raise InvalidInput("not the query of a part", cause=repr(query[:80]))

    def url_of(self, query: str) -> str:
        """Return the URL of a part."""
        return f"{self.url}{'&' if '?' in self.url else '?'}{query}"


@dataclass(frozen=True, slots=True)
class TransferUrl:
    """Where to send or get an object's bytes, with headers to send unchanged.

    It is HTTP, and neither the URL nor a header can inject anything into the request. The client
    decides whether it trusts the host.
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
        """Return True if a request that begins now should get a new URL first.

        If a URL had expired already when it was received, the two clocks differ: then only the
        store knows, and the URL is worth trying.
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
    """The client requests the blocks after ``begin_after`` up to and including ``stop_at``.

    ``None`` means from the seed, and up to the server's head. With ``force`` the server sends
    the whole chain if ``begin_after`` isn't part of it.
    """

    begin_after: Multihash | None = None
    stop_at: Multihash | None = None
    force: bool = False
    dataset_id: str | None = None
    """Only in the published dialect; the URL names the dataset."""


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What the pull will transfer; no blocks means that the client is up to date."""

    plan: TransferPlan


@dataclass(frozen=True, slots=True)
class PullMetadataRequest:
    """The client requests the blocks now."""


@dataclass(frozen=True, slots=True)
class PullMetadata:
    """The blocks; more than planned if the head has moved meanwhile."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True)
class PullObjectsRequest:
    """The client requests URLs for these objects; it may do so any number of times."""

    objects: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True)
class PullObjects:
    """One URL for each requested object."""

    downloads: tuple[ObjectDownload, ...]


@dataclass(frozen=True, slots=True)
class PushRequest:
    """The client wants to add blocks after ``current_head``, or replace it by force."""

    current_head: Multihash | None
    plan: TransferPlan
    force: bool = False
    visibility: PushVisibility = PushVisibility.PRIVATE
    dataset_id: str | None = None
    """Only in the published dialect; the URL names the dataset."""


@dataclass(frozen=True, slots=True)
class PushAccepted:
    """The server's head is the one that the client expects."""


@dataclass(frozen=True, slots=True)
class PushMetadata:
    """The new blocks."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True)
class PushMetadataAccepted:
    """The server could read the blocks; nothing is stored yet."""


@dataclass(frozen=True, slots=True)
class PushObjectsRequest:
    """A page of the objects to upload; ``is_truncated`` means that another page follows.

    The published dialect doesn't have it; ``is_truncated`` is true there.
    """

    objects: tuple[ObjectFile, ...]
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class PushObjects:
    """For each object of the page a URL, or ``None`` for one that the server has already."""

    uploads: tuple[ObjectUpload, ...]


@dataclass(frozen=True, slots=True)
class ProgressRequest:
    """The server is alive, and asks whether the client is."""


@dataclass(frozen=True, slots=True)
class UploadProgress:
    """How many objects of the page were uploaded; ``None`` means that the page is complete."""

    uploaded: int | None


@dataclass(frozen=True, slots=True)
class PushComplete:
    """All objects are uploaded: the server may commit."""


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
"""All messages except refusals."""
