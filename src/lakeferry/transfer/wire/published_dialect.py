"""The dialect of the published AsyncAPI document.

Members are in camel case, a refusal is a ``DatasetError`` in the answer's place, a tarball
is text in base64. What the document has no member for and we can't do without (force, the
visibility, an object's size, a URL's headers) is written under the name that its casing
suggests, which the document permits, and may be missing from what is read. Pages of a push
follow each other until the push is complete, and nobody asks for progress. ``dialects.py``
has the bounds and is the way in.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from lakeferry.errors import InvalidInput
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.wire import failure_messages as f
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.json_values import (
    U32,
    U64,
    Text,
    Time,
    base64_of,
    bytes_of_base64,
    hash_or_none,
    text_or_none,
    time_ms,
    time_of,
)
from lakeferry.transfer.wire.reference_dialect import failure_document as reference_failure

_NO_PROGRESS = "the published dialect doesn't speak of progress"


class PublishedMembers(Struct):
    """Which of the members that tell messages apart a text has."""

    errorDetails: Raw | UnsetType = UNSET
    sizeEstimation: Raw | UnsetType = UNSET
    blocks: Raw | UnsetType = UNSET
    newBlocks: Raw | UnsetType = UNSET
    objectFiles: Raw | UnsetType = UNSET
    objectTransferStrategies: Raw | UnsetType = UNSET


class _Nothing(Struct):
    pass


class _Plan(Struct):
    numBlocks: U32
    numObjects: U32
    bytesInRawBlocks: U64
    bytesInRawObjects: U64
    numRecords: U64 = 0

    def value(self) -> m.TransferPlan:
        return m.TransferPlan(
            self.numBlocks,
            self.numObjects,
            self.numRecords,
            self.bytesInRawBlocks,
            self.bytesInRawObjects,
        )


class _Batch(Struct):
    objectsCount: U32
    objectType: Literal["MetadataBlock"]
    mediaType: str
    encoding: Literal["base64"]
    payload: str

    def value(self) -> m.BlocksBatch:
        if self.mediaType not in (m.TAR, m.TAR_GZIP):
            raise InvalidInput("unknown kind of blocks batch", cause=repr(self.mediaType[:40]))
        return m.BlocksBatch(self.objectsCount, bytes_of_base64(self.payload), self.mediaType)


class _Object(Struct):
    objectType: Literal["DataSlice", "Checkpoint"]
    physicalHash: str
    size: U64 | None = None
    path: str | None = None

    def value(self) -> m.ObjectFile:
        kind = m.WireObjectKind(self.objectType)
        return m.ObjectFile(kind, Multihash.parse(self.physicalHash), self.size, self.path)


class _Header(Struct):
    name: str
    value: str


class _Parts(Struct):
    url: str
    partBytes: U64
    missing: list[tuple[U64, str]]
    isAll: bool

    def value(self) -> m.UploadParts:
        return m.UploadParts(self.url, self.partBytes, tuple(self.missing), self.isAll)


class _Url(Struct):
    url: str
    expiresAt: Time | None = None
    headers: list[_Header] = []
    lakeferryParts: _Parts | None = None

    def value(self) -> m.TransferUrl:
        headers = tuple((header.name, header.value) for header in self.headers)
        parts = None if self.lakeferryParts is None else self.lakeferryParts.value()
        return m.TransferUrl(self.url, headers, time_ms(self.expiresAt), parts)


class _Download(Struct):
    objectFile: _Object
    pullStrategy: Literal["HttpDownload"]
    downloadFrom: _Url

    def value(self) -> m.ObjectDownload:
        return m.ObjectDownload(self.objectFile.value(), self.downloadFrom.value())


class _Upload(Struct):
    objectFile: _Object
    pushStrategy: Literal["SkipUpload", "HttpUpload"]
    uploadTo: _Url | None = None

    def value(self) -> m.ObjectUpload:
        if self.pushStrategy == "SkipUpload":
            return m.ObjectUpload(self.objectFile.value(), None)
        if self.uploadTo is None:
            raise InvalidInput("an upload without a URL")
        return m.ObjectUpload(self.objectFile.value(), self.uploadTo.value())


class _PullRequest(Struct):
    datasetId: str
    beginAfter: str | None = None
    stopAt: str | None = None
    forceUpdateIfDiverged: bool = False

    def value(self) -> m.PullRequest:
        begin_after, stop_at = hash_or_none(self.beginAfter), hash_or_none(self.stopAt)
        return m.PullRequest(begin_after, stop_at, self.forceUpdateIfDiverged, self.datasetId)


class _PullPlan(Struct):
    sizeEstimation: _Plan

    def value(self) -> m.PullPlan:
        return m.PullPlan(self.sizeEstimation.value())


class _PullMetadata(Struct):
    blocks: _Batch

    def value(self) -> m.PullMetadata:
        return m.PullMetadata(self.blocks.value())


class _PullObjectsRequest(Struct):
    objectFiles: list[_Object]

    def value(self) -> m.PullObjectsRequest:
        return m.PullObjectsRequest(tuple(one.value() for one in self.objectFiles))


class _PullObjects(Struct):
    objectTransferStrategies: list[_Download]

    def value(self) -> m.PullObjects:
        return m.PullObjects(tuple(one.value() for one in self.objectTransferStrategies))


class _PushRequest(Struct):
    datasetId: str
    sizeEstimation: _Plan
    # The document requires it, and so has no way to push what isn't there yet.
    currentHead: str | None = None
    forceUpdateIfDiverged: bool = False
    visibilityForCreatedDataset: Literal["Private", "Public"] = "Private"

    def value(self) -> m.PushRequest:
        return m.PushRequest(
            hash_or_none(self.currentHead or None),
            self.sizeEstimation.value(),
            self.forceUpdateIfDiverged,
            m.PushVisibility(self.visibilityForCreatedDataset),
            self.datasetId,
        )


class _PushMetadata(Struct):
    newBlocks: _Batch

    def value(self) -> m.PushMetadata:
        return m.PushMetadata(self.newBlocks.value())


class _PushObjectsRequest(Struct):
    objectFiles: list[_Object]

    def value(self) -> m.PushObjectsRequest:
        return m.PushObjectsRequest(tuple(one.value() for one in self.objectFiles), True)


class _PushObjects(Struct):
    objectTransferStrategies: list[_Upload]

    def value(self) -> m.PushObjects:
        return m.PushObjects(tuple(one.value() for one in self.objectTransferStrategies))


class _Extras(Struct):
    head: str | None = None
    tail: str | None = None
    actualHead: str | None = None
    expectedHead: str | None = None
    datasetId: str = ""
    datasetAlias: str = ""
    code: str | None = None
    phase: str | None = None


class _Details(Struct):
    errorCode: str
    description: str
    extras: Raw | UnsetType = UNSET


_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    m.PullRequest: msgspec.json.Decoder(_PullRequest),
    m.PullPlan: msgspec.json.Decoder(_PullPlan),
    m.PullMetadata: msgspec.json.Decoder(_PullMetadata),
    m.PullObjectsRequest: msgspec.json.Decoder(_PullObjectsRequest),
    m.PullObjects: msgspec.json.Decoder(_PullObjects),
    m.PushRequest: msgspec.json.Decoder(_PushRequest),
    m.PushMetadata: msgspec.json.Decoder(_PushMetadata),
    m.PushObjectsRequest: msgspec.json.Decoder(_PushObjectsRequest),
    m.PushObjects: msgspec.json.Decoder(_PushObjects),
}
MARKS: dict[type, str] = {
    m.PullPlan: "sizeEstimation",
    m.PullMetadata: "blocks",
    m.PullObjectsRequest: "objectFiles",
    m.PullObjects: "objectTransferStrategies",
    m.PushRequest: "sizeEstimation",
    m.PushMetadata: "newBlocks",
    m.PushObjectsRequest: "objectFiles",
    m.PushObjects: "objectTransferStrategies",
}
"""By which member a message is known; an empty one is known by having none of them."""
EMPTY: dict[type, m.Message] = {
    m.PullMetadataRequest: m.PullMetadataRequest(),
    m.PushAccepted: m.PushAccepted(),
    m.PushMetadataAccepted: m.PushMetadataAccepted(),
    m.PushComplete: m.PushComplete(),
    m.PushConfirmed: m.PushConfirmed(),
}
"""The messages that say nothing but that they are there."""
MEMBERS = msgspec.json.Decoder(PublishedMembers)


def decode(kind: type, text: Text, _members: PublishedMembers) -> m.Message:
    """Return the message of that kind, which ``members`` show it to be."""
    if kind in EMPTY:
        msgspec.json.decode(text, type=_Nothing)
        return EMPTY[kind]
    if kind not in _DECODERS:
        raise InvalidInput(_NO_PROGRESS)
    found: m.Message = _DECODERS[kind].decode(text).value()
    return found


def failure(members: PublishedMembers) -> f.TransferFailure | None:
    """Return the refusal that a text is, if it is one; unknown codes are internal ones."""
    if members.errorDetails is UNSET:
        return None
    details = msgspec.json.decode(bytes(members.errorDetails), type=_Details)
    try:
        raw = b"{}" if details.extras is UNSET else bytes(details.extras)
        extras = msgspec.json.decode(raw, type=_Extras)
    except msgspec.ValidationError:
        extras = _Extras()
    match details.errorCode:
        case "InvalidInterval" if extras.head is not None and extras.tail is not None:
            return f.InvalidInterval(Multihash.parse(extras.head), Multihash.parse(extras.tail))
        case "InvalidHead":
            return f.InvalidHead(hash_or_none(extras.actualHead), hash_or_none(extras.expectedHead))
        case "SeedBlockOverwriteRestricted":
            return f.SeedOverwrite()
        case "RefCollision":
            return f.RefCollision(extras.datasetId)
        case "NameCollision":
            return f.NameCollision(extras.datasetAlias)
    phases = {".".join(phase.value): phase for phase in f.Phase}
    return f.Internal(phases.get(extras.phase or ""), details.description, extras.code)


def document(message: m.Message) -> dict[str, Any]:
    """Return a message as what its JSON consists of."""
    match message:
        case m.PullRequest(begin_after, stop_at, force, dataset_id):
            said = {"datasetId": _id(dataset_id)}
            said |= {} if begin_after is None else {"beginAfter": begin_after.text}
            said |= {} if stop_at is None else {"stopAt": stop_at.text}
            return said | ({"forceUpdateIfDiverged": True} if force else {})
        case m.PullPlan(plan):
            return {"sizeEstimation": _plan(plan)}
        case m.PullMetadata(blocks):
            return {"blocks": _batch(blocks)}
        case m.PullObjectsRequest(objects) | m.PushObjectsRequest(objects):
            return {"objectFiles": [_object(one) for one in objects]}
        case m.PullObjects(downloads):
            return {"objectTransferStrategies": [_download(one) for one in downloads]}
        case m.PushRequest(current_head, plan, force, visibility, dataset_id):
            return {
                "datasetId": _id(dataset_id),
                "currentHead": text_or_none(current_head),
                "sizeEstimation": _plan(plan),
                **({"forceUpdateIfDiverged": True} if force else {}),
                "visibilityForCreatedDataset": visibility.value,
            }
        case m.PushMetadata(blocks):
            return {"newBlocks": _batch(blocks)}
        case m.PushObjects(uploads):
            return {"objectTransferStrategies": [_upload(one) for one in uploads]}
        case m.UploadProgress() | m.ProgressRequest():
            raise InvalidInput(_NO_PROGRESS)
        case _:
            return {}


def failure_document(failure: f.TransferFailure) -> dict[str, Any]:
    """Return a refusal as what its JSON consists of: the same variants, in other clothes."""
    [(name, said)] = reference_failure(failure)["Err"].items()
    description = said.pop("error_message", None) or f.error_of(failure).message
    extras = {_camel(key): value for key, value in said.items() if value is not None}
    if isinstance(failure, f.Internal):
        extras["phase"] = ".".join((failure.phase or f.Phase.PULL_REQUEST).value)
    details = {"errorCode": name, "description": description}
    return {"errorDetails": details | ({"extras": extras} if extras else {})}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _id(dataset_id: str | None) -> str:
    if dataset_id is None:
        raise InvalidInput(
            "the dataset's id isn't known",
            cause="the published dialect names a dataset by its id",
        )
    return dataset_id


def _plan(plan: m.TransferPlan) -> dict[str, int]:
    return {
        "numBlocks": plan.num_blocks,
        "numObjects": plan.num_objects,
        "bytesInRawBlocks": plan.bytes_in_raw_blocks,
        "bytesInRawObjects": plan.bytes_in_raw_objects,
        "numRecords": plan.num_records,
    }


def _batch(batch: m.BlocksBatch) -> dict[str, Any]:
    return {
        "objectsCount": batch.num_blocks,
        "objectType": "MetadataBlock",
        "mediaType": batch.media_type,
        "encoding": "base64",
        "payload": base64_of(batch.payload),
    }


def _object(one: m.ObjectFile) -> dict[str, Any]:
    said: dict[str, Any] = {
        "objectType": one.kind.value,
        "physicalHash": one.physical_hash.text,
    }
    if one.size_bytes is not None:
        said["size"] = one.size_bytes
    return said if one.path is None else {**said, "path": one.path}


def _url(url: m.TransferUrl) -> dict[str, Any]:
    said: dict[str, Any] = {"url": url.url}
    if url.expires_at_ms is not None:
        said["expiresAt"] = time_of(url.expires_at_ms)
    if url.headers:
        said["headers"] = [{"name": name, "value": value} for name, value in url.headers]
    if url.parts is not None:
        parts = url.parts
        said["lakeferryParts"] = {
            "url": parts.url,
            "partBytes": parts.part_bytes,
            "missing": parts.missing,
            "isAll": parts.is_all,
        }
    return said


def _download(one: m.ObjectDownload) -> dict[str, Any]:
    return {
        "objectFile": _object(one.object),
        "pullStrategy": "HttpDownload",
        "downloadFrom": _url(one.url),
    }


def _upload(one: m.ObjectUpload) -> dict[str, Any]:
    said = {"objectFile": _object(one.object)}
    if one.url is None:
        return {**said, "pushStrategy": "SkipUpload"}
    return {**said, "pushStrategy": "HttpUpload", "uploadTo": _url(one.url)}
