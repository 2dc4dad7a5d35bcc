"""Spells messages in JSON: one struct for each, and a table of what the dialects do differently.

A struct has the members of the reference implementation, in the order in which it writes them,
and converts itself to a value of ``messages.py`` and back. The published AsyncAPI document uses
other names: :data:`_PUBLISHED` has them and the members that may be missing there, and the
structs for that dialect are made from this table. Members that we need and the document doesn't
have (force, the visibility, an object's size, a URL's headers) are named in its casing; the
document permits additional members.

:class:`Spelling` has the other differences: the reference wraps answers that may be refusals,
and the document has no messages about progress. Unknown members are skipped without being
decoded. ``codec.py`` is the entry point, and checks limits first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from lakeferry.errors import InvalidInput
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.failure_spellings import FailureSpelling
from lakeferry.transfer.wire.json_values import (
    I32,
    U32,
    U64,
    Text,
    Time,
    array_of,
    base64_of,
    bytes_of_array,
    bytes_of_base64,
    hash_or_none,
    text_or_none,
    time_ms,
    time_of,
)
from lakeferry.transfer.wire.spelled_parts import (
    Respelling,
    SpelledPart,
    given,
    parts_of,
    respelled,
)

# --- One struct for each message, as the reference spells it ------------------------


class _Nothing(SpelledPart):
    @classmethod
    def of(cls, _: m.Message) -> Any:
        return cls()


class _Plan(SpelledPart):
    num_blocks: U32
    num_objects: U32
    num_records: U64
    bytes_in_raw_blocks: U64
    bytes_in_raw_objects: U64

    @classmethod
    def of(cls, plan: m.TransferPlan) -> Any:
        return cls(**asdict(plan))

    def value(self) -> m.TransferPlan:
        said = msgspec.structs.asdict(self)
        return m.TransferPlan(**{name: each or 0 for name, each in said.items()})


class _Batch(SpelledPart):
    num_blocks: U32
    media_type: str
    encoding: Literal["raw"]
    payload: Raw

    @classmethod
    def of(cls, batch: m.BlocksBatch) -> Any:
        if batch.media_type != m.TAR_GZIP:
            raise InvalidInput(
                "the reference dialect doesn't support this kind of batch", cause=batch.media_type
            )
        return cls(batch.num_blocks, batch.media_type, "raw", array_of(batch.payload))

    def value(self) -> m.BlocksBatch:
        if self.media_type != m.TAR_GZIP:
            raise InvalidInput("unknown kind of blocks batch", cause=repr(self.media_type[:40]))
        return m.BlocksBatch(self.num_blocks, bytes_of_array(self.payload))


class _PublishedBatch(SpelledPart, rename="camel"):
    """The one struct whose structure differs in the published document."""

    objects_count: U32
    object_type: Literal["MetadataBlock"]
    media_type: str
    encoding: Literal["base64"]
    payload: str

    @classmethod
    def of(cls, batch: m.BlocksBatch) -> Any:
        payload = base64_of(batch.payload)
        return cls(batch.num_blocks, "MetadataBlock", batch.media_type, "base64", payload)

    def value(self) -> m.BlocksBatch:
        if self.media_type not in (m.TAR, m.TAR_GZIP):
            raise InvalidInput("unknown kind of blocks batch", cause=repr(self.media_type[:40]))
        return m.BlocksBatch(self.objects_count, bytes_of_base64(self.payload), self.media_type)


class _Object(SpelledPart, kw_only=True):
    required = ("size",)

    object_type: Literal["DataSlice", "Checkpoint"]
    physical_hash: str
    size: U64 | UnsetType
    path: str | UnsetType | None = UNSET

    @classmethod
    def of(cls, one: m.ObjectFile) -> Any:
        size, path = cls._said("size", one.size_bytes), cls._said("path", one.path)
        return cls(
            object_type=one.kind.value, physical_hash=one.physical_hash.text, size=size, path=path
        )

    def value(self) -> m.ObjectFile:
        kind = m.WireObjectKind(self.object_type)
        return m.ObjectFile(
            kind, Multihash.parse(self.physical_hash), given(self.size), given(self.path)
        )


class _Header(SpelledPart):
    name: str
    value: str


class _Parts(SpelledPart):
    url: str
    part_bytes: U64
    missing: list[tuple[U64, str]]
    is_all: bool

    @classmethod
    def of(cls, parts: m.UploadParts) -> Any:
        return cls(**asdict(parts))

    def value(self) -> m.UploadParts:
        return m.UploadParts(self.url, self.part_bytes, tuple(self.missing), self.is_all)


class _Url(SpelledPart):
    url: str
    headers: list[_Header]
    expires_at: Time | None = None
    lakeferry_parts: _Parts | UnsetType | None = UNSET

    @classmethod
    def of(cls, url: m.TransferUrl) -> Any:
        parts = None if url.parts is None else parts_of(cls)["lakeferry_parts"].of(url.parts)
        return cls(
            url=url.url,
            headers=[_Header(name, value) for name, value in url.headers],
            expires_at=time_of(url.expires_at_ms),
            lakeferry_parts=cls._said("lakeferry_parts", parts),
        )

    def value(self) -> m.TransferUrl:
        headers = tuple((header.name, header.value) for header in self.headers)
        parts = None if not self.lakeferry_parts else self.lakeferry_parts.value()
        return m.TransferUrl(self.url, headers, time_ms(self.expires_at), parts)


class _Download(SpelledPart):
    object_file: _Object
    pull_strategy: Literal["HttpDownload"]
    download_from: _Url

    @classmethod
    def of(cls, one: m.ObjectDownload) -> Any:
        return cls(
            object_file=parts_of(cls)["object_file"].of(one.object),
            pull_strategy="HttpDownload",
            download_from=parts_of(cls)["download_from"].of(one.url),
        )

    def value(self) -> m.ObjectDownload:
        return m.ObjectDownload(self.object_file.value(), self.download_from.value())


class _Upload(SpelledPart):
    object_file: _Object
    push_strategy: Literal["SkipUpload", "HttpUpload"]
    upload_to: _Url | None = None

    @classmethod
    def of(cls, one: m.ObjectUpload) -> Any:
        return cls(
            object_file=parts_of(cls)["object_file"].of(one.object),
            push_strategy="SkipUpload" if one.url is None else "HttpUpload",
            upload_to=None if one.url is None else parts_of(cls)["upload_to"].of(one.url),
        )

    def value(self) -> m.ObjectUpload:
        if self.push_strategy == "SkipUpload":
            return m.ObjectUpload(self.object_file.value(), None)
        if self.upload_to is None:
            raise InvalidInput("an upload without a URL")
        return m.ObjectUpload(self.object_file.value(), self.upload_to.value())


class _Whole(SpelledPart):
    """A message that consists of one part, or of a list of parts."""

    kind: ClassVar[type[Any]]

    @classmethod
    def of(cls, message: Any) -> Any:
        [(name, part)] = parts_of(cls).items()
        [said] = [getattr(message, each.name) for each in fields(message)]
        many = isinstance(said, tuple)
        return cls(**{name: [part.of(one) for one in said] if many else part.of(said)})

    def value(self) -> Any:
        [name] = parts_of(type(self))
        said = getattr(self, name)
        if isinstance(said, list):
            return self.kind(tuple(one.value() for one in said))
        return self.kind(said.value())


class _PullPlan(_Whole):
    kind = m.PullPlan
    transfer_plan: _Plan


class _PullMetadata(_Whole):
    kind = m.PullMetadata
    blocks: _Batch


class _PullObjectsRequest(_Whole):
    kind = m.PullObjectsRequest
    object_files: list[_Object]


class _PullObjects(_Whole):
    kind = m.PullObjects
    object_transfer_strategies: list[_Download]


class _PushMetadata(_Whole):
    kind = m.PushMetadata
    new_blocks: _Batch


class _PushObjects(_Whole):
    kind = m.PushObjects
    object_transfer_strategies: list[_Upload]


class _PullRequest(SpelledPart, kw_only=True):
    unsaid = ("dataset_id",)

    begin_after: str | None = None
    stop_at: str | None = None
    force_update_if_diverged: bool
    dataset_id: str | UnsetType | None = UNSET

    @classmethod
    def of(cls, request: m.PullRequest) -> Any:
        return cls(
            begin_after=text_or_none(request.begin_after),
            stop_at=text_or_none(request.stop_at),
            force_update_if_diverged=request.force,
            dataset_id=cls._said("dataset_id", request.dataset_id),
        )

    def value(self) -> m.PullRequest:
        return m.PullRequest(
            hash_or_none(self.begin_after),
            hash_or_none(self.stop_at),
            self.force_update_if_diverged,
            given(self.dataset_id),
        )


class _PushRequest(SpelledPart, kw_only=True):
    unsaid = ("dataset_id",)

    current_head: str | None = None
    transfer_plan: _Plan
    force_update_if_diverged: bool
    visibility_for_created_dataset: Literal["Private", "Public", "private", "public"] | UnsetType
    dataset_id: str | UnsetType | None = UNSET

    @classmethod
    def of(cls, request: m.PushRequest) -> Any:
        return cls(
            current_head=text_or_none(request.current_head),
            transfer_plan=parts_of(cls)["transfer_plan"].of(request.plan),
            force_update_if_diverged=request.force,
            visibility_for_created_dataset=request.visibility.value,
            dataset_id=cls._said("dataset_id", request.dataset_id),
        )

    def value(self) -> m.PushRequest:
        visibility = self.visibility_for_created_dataset or "Private"
        return m.PushRequest(
            hash_or_none(self.current_head or None),
            self.transfer_plan.value(),
            self.force_update_if_diverged,
            m.PushVisibility(visibility.capitalize()),
            given(self.dataset_id),
        )


class _PushObjectsRequest(SpelledPart, kw_only=True):
    object_files: list[_Object]
    is_truncated: bool | UnsetType

    @classmethod
    def of(cls, message: m.PushObjectsRequest) -> Any:
        files = [parts_of(cls)["object_files"].of(one) for one in message.objects]
        return cls(object_files=files, is_truncated=cls._said("is_truncated", message.is_truncated))

    def value(self) -> m.PushObjectsRequest:
        objects = tuple(one.value() for one in self.object_files)
        # Without the member nothing marks the last page, so another page may follow.
        return m.PushObjectsRequest(objects, self.is_truncated is not False)


class _Running(Struct):
    uploaded_objects_count: I32


class _Details(Struct):
    Running: _Running


class _Progress(SpelledPart):
    details: _Details | Literal["Complete"]

    @classmethod
    def of(cls, progress: m.UploadProgress) -> Any:
        count = progress.uploaded
        return cls("Complete" if count is None else _Details(_Running(count)))

    def value(self) -> m.UploadProgress:
        if isinstance(self.details, str):
            return m.UploadProgress(None)
        return m.UploadProgress(self.details.Running.uploaded_objects_count)


_STRUCTS: dict[type, type[Any]] = {
    m.PullRequest: _PullRequest,
    m.PullPlan: _PullPlan,
    m.PullMetadataRequest: _Nothing,
    m.PullMetadata: _PullMetadata,
    m.PullObjectsRequest: _PullObjectsRequest,
    m.PullObjects: _PullObjects,
    m.PushRequest: _PushRequest,
    m.PushAccepted: _Nothing,
    m.PushMetadata: _PushMetadata,
    m.PushMetadataAccepted: _Nothing,
    m.PushObjectsRequest: _PushObjectsRequest,
    m.PushObjects: _PushObjects,
    m.ProgressRequest: _Nothing,
    m.UploadProgress: _Progress,
    m.PushComplete: _Nothing,
    m.PushConfirmed: _Nothing,
}


# --- Names in the published document ------------------------------------------------

_PUBLISHED: dict[type[Any], Respelling] = {
    _Plan: Respelling(optional={"num_records": UNSET}),
    _Object: Respelling(optional={"size": UNSET}),
    _Url: Respelling(optional={"headers": []}),
    _PullRequest: Respelling(
        optional={"force_update_if_diverged": False}, required=("dataset_id",)
    ),
    _PullPlan: Respelling(names={"transfer_plan": "sizeEstimation"}),
    _PushRequest: Respelling(
        names={"transfer_plan": "sizeEstimation"},
        optional={
            # The document requires it, so it can't express a push of a new dataset.
            "current_head": UNSET,
            "force_update_if_diverged": False,
            "visibility_for_created_dataset": UNSET,
        },
        required=("dataset_id",),
    ),
    _PushObjectsRequest: Respelling(optional={"is_truncated": UNSET}, unsaid=("is_truncated",)),
}
_IF_THERE: Any = Raw | UnsetType
_NO_PROGRESS = "the published dialect has no progress messages"


# --- Both dialects ------------------------------------------------------------------

_MARKS: dict[type, str] = {
    m.PullPlan: "transfer_plan",
    m.PullMetadata: "blocks",
    m.PullObjectsRequest: "object_files",
    m.PullObjects: "object_transfer_strategies",
    m.PushRequest: "transfer_plan",
    m.PushMetadata: "new_blocks",
    m.PushObjectsRequest: "object_files",
    m.PushObjects: "object_transfer_strategies",
    m.UploadProgress: "details",
}
"""The member that identifies each message."""
_ANSWERS = (m.PullPlan, m.PushAccepted, m.PushMetadataAccepted, m.PushObjects)
"""Messages that the reference wraps, because a refusal may come instead."""


class Spelling:
    """How one dialect spells messages; ``failures`` is how it spells refusals."""

    def __init__(self, *, published: bool) -> None:
        """Create the structs and decoders for the published document, or for the reference."""
        self.failures = FailureSpelling(published=published)
        self._wrapped = () if published else _ANSWERS
        self._structs = dict(_STRUCTS)
        if published:
            del self._structs[m.UploadProgress], self._structs[m.ProgressRequest]
            known: dict[type[Any], type[Any]] = {_Batch: _PublishedBatch}
            self._structs = {
                kind: respelled(each, _PUBLISHED, known) for kind, each in self._structs.items()
            }
        self._decoders = {kind: msgspec.json.Decoder(each) for kind, each in self._structs.items()}
        self.empty = frozenset(kind for kind, each in _STRUCTS.items() if each is _Nothing)
        """Messages without content."""
        self.marks = {
            kind: "Ok" if kind in self._wrapped else self._name(kind)
            for kind in self._structs
            if kind in _MARKS or kind in self._wrapped
        }
        """The member that identifies each message; an empty message has none of them."""
        names = sorted({*self.marks.values(), self.failures.mark})
        members = msgspec.defstruct("Members", [(name, _IF_THERE, UNSET) for name in names])
        self._members = msgspec.json.Decoder(members)

    def _name(self, kind: type) -> str:
        """Return the JSON name of a message's identifying member."""
        fields = msgspec.structs.fields(self._structs[kind])
        return next(each.encode_name for each in fields if each.name == _MARKS[kind])

    def members(self, text: Text) -> dict[str, Raw]:
        """Return the undecoded members of a text that identify its message."""
        found = msgspec.structs.asdict(self._members.decode(text))
        return {name: value for name, value in found.items() if value is not UNSET}

    def decode(self, kind: type, text: Text, members: Mapping[str, Raw]) -> m.Message:
        """Return the message of a kind, decoded from a text with these members."""
        if kind not in self._decoders:
            raise InvalidInput(_NO_PROGRESS)
        said = self._decoders[kind].decode(bytes(members["Ok"]) if "Ok" in members else text)
        message: m.Message = kind() if kind in self.empty else said.value()
        return message

    def document(self, message: m.Message) -> Any:
        """Return a message as the value that its JSON encodes."""
        kind = type(message)
        if kind not in self._structs:
            raise InvalidInput(_NO_PROGRESS)
        said = self._structs[kind].of(message)
        return {"Ok": said} if kind in self._wrapped else said


SPELLINGS = {
    m.MessageDialect.REFERENCE: Spelling(published=False),
    m.MessageDialect.PUBLISHED: Spelling(published=True),
}
