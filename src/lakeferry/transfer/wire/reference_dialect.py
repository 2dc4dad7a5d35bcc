"""The dialect of the reference implementation.

Members are in snake case and in the order in which the reference writes them. An answer
that may be a refusal is ``{"Ok": …}`` or ``{"Err": {"Variant": {…}}}``; a tarball is an
array of the values of its bytes. Unknown members are ignored, a missing optional one is
``null``, any other missing one is an error. What is bounded before decoding, and what is
done with errors, is in ``dialects.py``, through which everybody else comes here.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from lakeferry.errors import InvalidInput
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.wire import failure_messages as f
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.json_values import (
    I32,
    U32,
    U64,
    Text,
    Time,
    array_of,
    bytes_of_array,
    hash_or_none,
    text_or_none,
    time_ms,
    time_of,
)


class ReferenceMembers(Struct):
    """Which of the members that tell messages apart a text has."""

    Ok: Raw | UnsetType = UNSET
    Err: Raw | UnsetType = UNSET
    details: Raw | UnsetType = UNSET
    object_files: Raw | UnsetType = UNSET
    new_blocks: Raw | UnsetType = UNSET
    blocks: Raw | UnsetType = UNSET
    transfer_plan: Raw | UnsetType = UNSET
    object_transfer_strategies: Raw | UnsetType = UNSET


class _Nothing(Struct):
    pass


class _Plan(Struct):
    num_blocks: U32
    num_objects: U32
    num_records: U64
    bytes_in_raw_blocks: U64
    bytes_in_raw_objects: U64

    def value(self) -> m.TransferPlan:
        return m.TransferPlan(*msgspec.structs.astuple(self))


class _Batch(Struct):
    num_blocks: U32
    media_type: str
    encoding: str
    payload: Raw

    def value(self) -> m.BlocksBatch:
        if self.media_type != m.TAR_GZIP or self.encoding != "raw":
            said = f"{self.media_type[:40]!r}, {self.encoding[:40]!r}"
            raise InvalidInput("unknown kind of blocks batch", cause=said)
        return m.BlocksBatch(self.num_blocks, bytes_of_array(self.payload))


class _Object(Struct):
    object_type: Literal["DataSlice", "Checkpoint"]
    physical_hash: str
    size: U64
    path: str | None = None

    def value(self) -> m.ObjectFile:
        kind = m.WireObjectKind(self.object_type)
        return m.ObjectFile(kind, Multihash.parse(self.physical_hash), self.size, self.path)


class _Header(Struct):
    name: str
    value: str


class _Parts(Struct):
    url: str
    part_bytes: U64
    missing: list[tuple[U64, str]]
    is_all: bool

    def value(self) -> m.UploadParts:
        return m.UploadParts(self.url, self.part_bytes, tuple(self.missing), self.is_all)


class _Url(Struct):
    url: str
    headers: list[_Header]
    expires_at: Time | None = None
    lakeferry_parts: _Parts | None = None

    def value(self) -> m.TransferUrl:
        headers = tuple((header.name, header.value) for header in self.headers)
        parts = None if self.lakeferry_parts is None else self.lakeferry_parts.value()
        return m.TransferUrl(self.url, headers, time_ms(self.expires_at), parts)


class _Download(Struct):
    object_file: _Object
    pull_strategy: Literal["HttpDownload"]
    download_from: _Url

    def value(self) -> m.ObjectDownload:
        return m.ObjectDownload(self.object_file.value(), self.download_from.value())


class _Upload(Struct):
    object_file: _Object
    push_strategy: Literal["SkipUpload", "HttpUpload"]
    upload_to: _Url | None = None

    def value(self) -> m.ObjectUpload:
        if self.push_strategy == "SkipUpload":
            return m.ObjectUpload(self.object_file.value(), None)
        if self.upload_to is None:
            raise InvalidInput("an upload without a URL")
        return m.ObjectUpload(self.object_file.value(), self.upload_to.value())


class _PullRequest(Struct):
    force_update_if_diverged: bool
    begin_after: str | None = None
    stop_at: str | None = None

    def value(self) -> m.PullRequest:
        begin_after, stop_at = hash_or_none(self.begin_after), hash_or_none(self.stop_at)
        return m.PullRequest(begin_after, stop_at, self.force_update_if_diverged)


class _PullPlan(Struct):
    transfer_plan: _Plan

    def value(self) -> m.PullPlan:
        return m.PullPlan(self.transfer_plan.value())


class _PullMetadata(Struct):
    blocks: _Batch

    def value(self) -> m.PullMetadata:
        return m.PullMetadata(self.blocks.value())


class _PullObjectsRequest(Struct):
    object_files: list[_Object]

    def value(self) -> m.PullObjectsRequest:
        return m.PullObjectsRequest(tuple(one.value() for one in self.object_files))


class _PullObjects(Struct):
    object_transfer_strategies: list[_Download]

    def value(self) -> m.PullObjects:
        return m.PullObjects(tuple(one.value() for one in self.object_transfer_strategies))


class _PushRequest(Struct):
    transfer_plan: _Plan
    force_update_if_diverged: bool
    visibility_for_created_dataset: Literal["Private", "Public", "private", "public"]
    current_head: str | None = None

    def value(self) -> m.PushRequest:
        return m.PushRequest(
            hash_or_none(self.current_head),
            self.transfer_plan.value(),
            self.force_update_if_diverged,
            m.PushVisibility(self.visibility_for_created_dataset.capitalize()),
        )


class _PushMetadata(Struct):
    new_blocks: _Batch

    def value(self) -> m.PushMetadata:
        return m.PushMetadata(self.new_blocks.value())


class _PushObjectsRequest(Struct):
    object_files: list[_Object]
    is_truncated: bool

    def value(self) -> m.PushObjectsRequest:
        objects = tuple(one.value() for one in self.object_files)
        return m.PushObjectsRequest(objects, self.is_truncated)


class _PushObjects(Struct):
    object_transfer_strategies: list[_Upload]

    def value(self) -> m.PushObjects:
        return m.PushObjects(tuple(one.value() for one in self.object_transfer_strategies))


class _Running(Struct):
    uploaded_objects_count: I32


class _Details(Struct):
    Running: _Running


class _Progress(Struct):
    details: _Details | Literal["Complete"]

    def value(self) -> m.UploadProgress:
        if isinstance(self.details, str):
            return m.UploadProgress(None)
        return m.UploadProgress(self.details.Running.uploaded_objects_count)


class _Interval(Struct):
    head: str
    tail: str


class _Heads(Struct):
    actual_head: str | None = None
    expected_head: str | None = None


class _Id(Struct):
    dataset_id: str


class _Alias(Struct):
    dataset_alias: str


class _Internal(Struct):
    error_message: str
    phase: Any = None
    code: str | None = None


class _Variants(Struct):
    InvalidInterval: _Interval | UnsetType = UNSET
    InvalidHead: _Heads | UnsetType = UNSET
    SeedBlockOverwriteRestricted: _Nothing | UnsetType = UNSET
    RefCollision: _Id | UnsetType = UNSET
    NameCollision: _Alias | UnsetType = UNSET
    Internal: _Internal | UnsetType = UNSET


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
    m.UploadProgress: msgspec.json.Decoder(_Progress),
}
MARKS: dict[type, str] = {
    m.PullPlan: "Ok",
    m.PullMetadata: "blocks",
    m.PullObjectsRequest: "object_files",
    m.PullObjects: "object_transfer_strategies",
    m.PushRequest: "transfer_plan",
    m.PushAccepted: "Ok",
    m.PushMetadata: "new_blocks",
    m.PushMetadataAccepted: "Ok",
    m.PushObjectsRequest: "object_files",
    m.PushObjects: "Ok",
    m.UploadProgress: "details",
}
"""By which member a message is known; an empty one is known by having none of them."""
EMPTY: dict[type, m.Message] = {
    m.PullMetadataRequest: m.PullMetadataRequest(),
    m.PushAccepted: m.PushAccepted(),
    m.PushMetadataAccepted: m.PushMetadataAccepted(),
    m.ProgressRequest: m.ProgressRequest(),
    m.PushComplete: m.PushComplete(),
    m.PushConfirmed: m.PushConfirmed(),
}
"""The messages that say nothing but that they are there."""
MEMBERS = msgspec.json.Decoder(ReferenceMembers)


def decode(kind: type, text: Text, members: ReferenceMembers) -> m.Message:
    """Return the message of that kind, which ``members`` show it to be."""
    content = text if members.Ok is UNSET else bytes(members.Ok)
    if kind in EMPTY:
        msgspec.json.decode(content, type=_Nothing)
        return EMPTY[kind]
    found: m.Message = _DECODERS[kind].decode(content).value()
    return found


def failure(members: ReferenceMembers) -> f.TransferFailure | None:
    """Return the refusal that a text is, if it is one; unknown variants are internal ones."""
    if members.Err is UNSET:
        return None
    raw = bytes(members.Err)
    try:
        found = msgspec.json.decode(raw, type=_Variants)
    except msgspec.ValidationError:
        return f.Internal(None, raw[:200].decode(errors="replace"))
    match found:
        case _Variants(InvalidInterval=_Interval(head=head, tail=tail)):
            return f.InvalidInterval(Multihash.parse(head), Multihash.parse(tail))
        case _Variants(InvalidHead=_Heads(actual_head=claimed, expected_head=actual)):
            return f.InvalidHead(hash_or_none(claimed), hash_or_none(actual))
        case _Variants(SeedBlockOverwriteRestricted=_Nothing()):
            return f.SeedOverwrite()
        case _Variants(RefCollision=_Id(dataset_id=dataset_id)):
            return f.RefCollision(dataset_id)
        case _Variants(NameCollision=_Alias(dataset_alias=alias)):
            return f.NameCollision(alias)
        case _Variants(Internal=_Internal(error_message=text, phase=phase, code=code)):
            return f.Internal(phase_of(phase), text, code)
    return f.Internal(None, raw[:200].decode(errors="replace"))


def phase_of(said: object) -> f.Phase | None:
    """Return the phase that ``{"Pull": "MetadataRequest"}`` and its like stand for."""
    if isinstance(said, dict) and len(said) == 1:
        [(direction, name)] = said.items()
        for phase in f.Phase:
            if phase.value == (direction, name):
                return phase
    return None


def document(message: m.Message) -> dict[str, Any]:
    """Return a message as what its JSON consists of, in the order of its members."""
    match message:
        case m.PullRequest(begin_after, stop_at, force):
            ends = {"begin_after": text_or_none(begin_after), "stop_at": text_or_none(stop_at)}
            return {**ends, "force_update_if_diverged": force}
        case m.PullPlan(plan):
            return {"Ok": {"transfer_plan": _plan(plan)}}
        case m.PullMetadata(blocks):
            return {"blocks": _batch(blocks)}
        case m.PullObjectsRequest(objects):
            return {"object_files": [_object(one) for one in objects]}
        case m.PullObjects(downloads):
            return {"object_transfer_strategies": [_download(one) for one in downloads]}
        case m.PushRequest(current_head, plan, force, visibility):
            return {
                "current_head": text_or_none(current_head),
                "transfer_plan": _plan(plan),
                "force_update_if_diverged": force,
                "visibility_for_created_dataset": visibility.value,
            }
        case m.PushMetadata(blocks):
            return {"new_blocks": _batch(blocks)}
        case m.PushAccepted() | m.PushMetadataAccepted():
            return {"Ok": {}}
        case m.PushObjectsRequest(objects, is_truncated):
            return {"object_files": [_object(one) for one in objects], "is_truncated": is_truncated}
        case m.PushObjects(uploads):
            return {"Ok": {"object_transfer_strategies": [_upload(one) for one in uploads]}}
        case m.UploadProgress(None):
            return {"details": "Complete"}
        case m.UploadProgress(uploaded):
            return {"details": {"Running": {"uploaded_objects_count": uploaded}}}
        case _:
            return {}


def failure_document(failure: f.TransferFailure) -> dict[str, Any]:
    """Return a refusal as what its JSON consists of."""
    return {"Err": _variant(failure)}


def _variant(failure: f.TransferFailure) -> dict[str, Any]:
    match failure:
        case f.InvalidInterval(head, tail):
            return {"InvalidInterval": {"head": head.text, "tail": tail.text}}
        case f.InvalidHead(claimed, actual):
            heads = {"actual_head": text_or_none(claimed), "expected_head": text_or_none(actual)}
            return {"InvalidHead": heads}
        case f.SeedOverwrite():
            return {"SeedBlockOverwriteRestricted": {}}
        case f.RefCollision(dataset_id):
            return {"RefCollision": {"dataset_id": dataset_id}}
        case f.NameCollision(alias):
            return {"NameCollision": {"dataset_alias": alias}}
        case f.Internal(phase, message, code):
            direction, name = (phase or f.Phase.PULL_REQUEST).value
            said: dict[str, Any] = {"phase": {direction: name}, "error_message": message}
            return {"Internal": said if code is None else {**said, "code": code}}


def _plan(plan: m.TransferPlan) -> dict[str, int]:
    return {
        "num_blocks": plan.num_blocks,
        "num_objects": plan.num_objects,
        "num_records": plan.num_records,
        "bytes_in_raw_blocks": plan.bytes_in_raw_blocks,
        "bytes_in_raw_objects": plan.bytes_in_raw_objects,
    }


def _batch(batch: m.BlocksBatch) -> dict[str, Any]:
    if batch.media_type != m.TAR_GZIP:
        raise InvalidInput("the reference dialect has no other batches", cause=batch.media_type)
    return {
        "num_blocks": batch.num_blocks,
        "media_type": m.TAR_GZIP,
        "encoding": "raw",
        "payload": array_of(batch.payload),
    }


def _object(one: m.ObjectFile) -> dict[str, Any]:
    if one.size_bytes is None:
        raise InvalidInput(f"the size of {one.physical_hash} isn't known")
    said = {
        "object_type": one.kind.value,
        "physical_hash": one.physical_hash.text,
        "size": one.size_bytes,
    }
    return said if one.path is None else {**said, "path": one.path}


def _url(url: m.TransferUrl) -> dict[str, Any]:
    headers = [{"name": name, "value": value} for name, value in url.headers]
    said = {"url": url.url, "headers": headers, "expires_at": time_of(url.expires_at_ms)}
    return said if url.parts is None else {**said, "lakeferry_parts": asdict(url.parts)}


def _download(one: m.ObjectDownload) -> dict[str, Any]:
    return {
        "object_file": _object(one.object),
        "pull_strategy": "HttpDownload",
        "download_from": _url(one.url),
    }


def _upload(one: m.ObjectUpload) -> dict[str, Any]:
    return {
        "object_file": _object(one.object),
        "push_strategy": "SkipUpload" if one.url is None else "HttpUpload",
        "upload_to": None if one.url is None else _url(one.url),
    }
