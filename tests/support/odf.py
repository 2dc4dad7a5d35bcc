"""Blocks of Open Data Fabric datasets, written with the FlatBuffers runtime, and read with it.

:func:`block` writes one in the canonical order: for every table first what it refers to, in
the order of its fields, then the table itself; so that its bytes, and its hash, are those that
the reference implementation makes of the same values. It writes anything that it is told,
sensible or not. :class:`Chain` makes chains of any shape. :func:`naive` is a second opinion
on what a block says: the runtime reads it, and checks nothing.

Golden blocks lie beside the repository, where there are any; ``LAKEFERRY_GOLDEN_ODF`` names
another folder of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from struct import Struct
from typing import Any, TypeAlias

import flatbuffers
from flatbuffers import number_types
from flatbuffers.table import Table

from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import (
    Block,
    DataEvent,
    DatasetKind,
    EventKind,
    ObjectKind,
    ObjectRef,
    OffsetInterval,
    Seed,
)

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "golden" / "odf"
GOLDEN_ODF = Path(os.environ.get("LAKEFERRY_GOLDEN_ODF", BESIDE))

MANIFEST_KIND = 0x400000
NOON_NS = 1_577_880_000_000_000_000
"""2020-01-01, 12:00 UTC."""
SECOND_NS = 1_000_000_000
TIMESTAMP = Struct("<iHxxII")
DATASET_ID = b"\xed\x01" + bytes(range(32))

Time: TypeAlias = int | bytes
"""Nanoseconds since 1970, or the bytes of a struct as they are."""
Hash: TypeAlias = Multihash | bytes
"""A hash, or whatever stands in its place."""


@dataclass(frozen=True, slots=True)
class Slice:
    physical_hash: Hash | None
    start: int
    end: int
    size: int
    logical_hash: Hash | None = None
    has_interval: bool = True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    physical_hash: Hash | None
    size: int


@dataclass(frozen=True, slots=True)
class AddData:
    prev_checkpoint: Hash | None = None
    prev_offset: int | None = None
    new_data: Slice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Time | None = None
    source_state: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True)
class ExecuteTransform:
    inputs: Sequence[bytes] = ()
    """The ids of the datasets that it reads."""
    prev_checkpoint: Hash | None = None
    prev_offset: int | None = None
    new_data: Slice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Time | None = None


@dataclass(frozen=True, slots=True)
class SeedEvent:
    dataset_id: bytes = DATASET_ID
    dataset_kind: int = 0


@dataclass(frozen=True, slots=True)
class SetInfo:
    description: str | None = None
    keywords: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class SetDataSchema:
    fields: Sequence[tuple[str, int]] = ()
    """Names, and the numbers of their types in the schema's union."""


@dataclass(frozen=True, slots=True)
class Other:
    """An event of any number, with nothing in it; or without a table at all."""

    number: int
    has_table: bool = True


Event: TypeAlias = AddData | ExecuteTransform | SeedEvent | SetInfo | SetDataSchema | Other


def hash_of(text: str) -> Multihash:
    """Return some hash, the same for the same text."""
    return Multihash.sha3_256(text.encode())


def timestamp(time: Time) -> bytes:
    if isinstance(time, bytes):
        return time
    seconds, nanoseconds = divmod(time, SECOND_NS)
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    of_day = when.hour * 3600 + when.minute * 60 + when.second
    return TIMESTAMP.pack(when.year, when.timetuple().tm_yday, of_day, nanoseconds)


def block(
    event: Event,
    *,
    prev: Hash | None = None,
    sequence_number: int = 0,
    time: Time | None = NOON_NS,
    version: int = 3,
    kind: int = MANIFEST_KIND,
) -> bytes:
    """Return a block's bytes."""
    writer = _Writer()
    prev_offset = writer.hash(prev)
    number, event_offset = writer.event(event)
    content = writer.finish(
        ("struct", time),
        ("offset", prev_offset),
        ("Uint64", sequence_number),
        ("Uint8", number),
        ("offset", event_offset),
    )
    return manifest(content, version=version, kind=kind)


def manifest(content: bytes | None, *, version: int = 3, kind: int = MANIFEST_KIND) -> bytes:
    writer = _Writer()
    offset = writer.bytes(content)
    return writer.finish(("Int64", kind), ("Int32", version), ("offset", offset))


def content_of(data: bytes) -> bytes:
    """Return the buffer that a good block's manifest contains."""
    content = _bytes(_root(data), 2)
    assert content is not None
    return content


class _Writer:
    """One FlatBuffer. A table is its fields in order: what kind each is of, and its value."""

    def __init__(self) -> None:
        self._builder: Any = flatbuffers.Builder(256)

    def finish(self, *fields: tuple[str, Any]) -> bytes:
        self._builder.Finish(self.table(*fields))
        return bytes(self._builder.Output())

    def table(self, *fields: tuple[str, Any]) -> int:
        builder = self._builder
        builder.StartObject(len(fields))
        for slot, (kind, value) in enumerate(fields):
            if value is None:
                continue
            if kind == "struct":
                builder.Prep(4, TIMESTAMP.size)
                for byte in reversed(timestamp(value)):
                    builder.Place(byte, number_types.Uint8Flags)
                builder.PrependStructSlot(slot, builder.Offset(), 0)
            elif kind == "offset":
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            elif kind == "optional":
                builder.PrependUint64Slot(slot, value, None)
            else:
                getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
        return int(builder.EndObject())

    def bytes(self, data: bytes | None) -> int | None:
        return None if data is None else int(self._builder.CreateByteVector(data))

    def hash(self, value: Hash | None) -> int | None:
        return self.bytes(value.encoded if isinstance(value, Multihash) else value)

    def text(self, value: str | None) -> int | None:
        return None if value is None else int(self._builder.CreateString(value))

    def offsets(self, offsets: Sequence[int | None]) -> int:
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return int(self._builder.EndVector())

    def event(self, event: Event) -> tuple[int, int | None]:
        match event:
            case AddData():
                return EventKind.ADD_DATA, self._add_data(event)
            case ExecuteTransform():
                return EventKind.EXECUTE_TRANSFORM, self._execute_transform(event)
            case SeedEvent():
                dataset_id = self.bytes(event.dataset_id)
                table = self.table(("offset", dataset_id), ("Int32", event.dataset_kind))
                return EventKind.SEED, table
            case SetInfo():
                description = self.text(event.description)
                keywords = None
                if event.keywords is not None:
                    keywords = self.offsets([self.text(word) for word in event.keywords])
                return EventKind.SET_INFO, self.table(("offset", description), ("offset", keywords))
            case SetDataSchema():
                fields = self.offsets([self._field(*field) for field in event.fields])
                schema = self.table(("offset", fields), ("offset", None))
                return EventKind.SET_DATA_SCHEMA, self.table(("offset", None), ("offset", schema))
            case Other():
                return event.number, self.table() if event.has_table else None

    def _field(self, name: str, type_number: int) -> int:
        offset, type_ = self.text(name), self.table()
        return self.table(("offset", offset), ("Uint8", type_number), ("offset", type_))

    def _slice(self, new_data: Slice | None) -> int | None:
        if new_data is None:
            return None
        logical = self.hash(new_data.logical_hash)
        physical = self.hash(new_data.physical_hash)
        interval = None
        if new_data.has_interval:
            interval = self.table(("Uint64", new_data.start), ("Uint64", new_data.end))
        fields = (("offset", logical), ("offset", physical), ("offset", interval))
        return self.table(*fields, ("Uint64", new_data.size))

    def _checkpoint(self, checkpoint: Checkpoint | None) -> int | None:
        if checkpoint is None:
            return None
        physical = self.hash(checkpoint.physical_hash)
        return self.table(("offset", physical), ("Uint64", checkpoint.size))

    def _add_data(self, event: AddData) -> int:
        prev_checkpoint = self.hash(event.prev_checkpoint)
        new_data = self._slice(event.new_data)
        new_checkpoint = self._checkpoint(event.new_checkpoint)
        state = None
        if event.source_state is not None:
            texts = [self.text(text) for text in event.source_state]
            state = self.table(*(("offset", text) for text in texts))
        return self.table(
            ("offset", prev_checkpoint),
            ("optional", event.prev_offset),
            ("offset", new_data),
            ("offset", new_checkpoint),
            ("struct", event.new_watermark),
            ("offset", state),
            ("offset", None),
        )

    def _execute_transform(self, event: ExecuteTransform) -> int:
        ids = [self.table(("offset", self.bytes(one))) for one in event.inputs]
        inputs = self.offsets(ids)
        prev_checkpoint = self.hash(event.prev_checkpoint)
        new_data = self._slice(event.new_data)
        new_checkpoint = self._checkpoint(event.new_checkpoint)
        return self.table(
            ("offset", inputs),
            ("offset", prev_checkpoint),
            ("optional", event.prev_offset),
            ("offset", new_data),
            ("offset", new_checkpoint),
            ("struct", event.new_watermark),
        )


class Chain:
    """A dataset's blocks, oldest first, each behind the last one unless it is told otherwise."""

    def __init__(self, dataset_id: bytes = DATASET_ID, dataset_kind: int = 0) -> None:
        self.blocks: list[tuple[Multihash, bytes]] = []
        self.objects: dict[Multihash, bytes] = {}
        """The content of every object that the blocks name."""
        self._rows = 0
        self._checkpoint: Checkpoint | None = None
        self.add(SeedEvent(dataset_id, dataset_kind))

    @property
    def head(self) -> Multihash:
        return self.blocks[-1][0]

    def add(self, event: Event, **changes: Any) -> Chain:
        """Add a block. ``changes`` are arguments of :func:`block` other than the right ones."""
        number = len(self.blocks)
        right: dict[str, Any] = {
            "prev": self.head if self.blocks else None,
            "sequence_number": number,
            "time": NOON_NS + number * SECOND_NS,
        }
        data = block(event, **(right | changes))
        self.blocks.append((Multihash.sha3_256(data), data))
        return self

    def append(self, rows: int = 10, *, checkpoint: str | None = None, **changes: Any) -> Chain:
        """Add rows, and a new checkpoint, or carry the last one on.

        ``changes`` are fields of the event other than the right ones.
        """
        event = AddData(
            prev_checkpoint=self._checkpoint.physical_hash if self._checkpoint else None,
            prev_offset=self._rows - 1 if self._rows else None,
            new_watermark=NOON_NS + len(self.blocks),
        )
        if rows:
            data = f"rows {self._rows} to {self._rows + rows - 1}".encode()
            interval = (self._rows, self._rows + rows - 1)
            event = replace(event, new_data=Slice(self._keep(data), *interval, len(data)))
        if checkpoint is not None:
            data = checkpoint.encode()
            self._checkpoint = Checkpoint(self._keep(data), len(data))
        self._rows += rows
        return self.add(replace(replace(event, new_checkpoint=self._checkpoint), **changes))

    def _keep(self, data: bytes) -> Multihash:
        name = Multihash.sha3_256(data)
        self.objects[name] = data
        return name


# --- A second opinion ---------------------------------------------------------------------


def naive(data: bytes) -> Block:
    """Return what the FlatBuffers runtime reads in a block that is well formed."""
    outer, inner = _root(data), _root(content_of(data))
    event = _table(inner, 4)
    assert event is not None
    kind = EventKind(_number(inner, 3, number_types.Uint8Flags))
    seed, data_event = None, None
    if kind is EventKind.SEED:
        dataset_kind = DatasetKind(_number(event, 1, number_types.Int32Flags))
        seed = Seed(_bytes(event, 0) or b"", dataset_kind)
    elif kind in (EventKind.ADD_DATA, EventKind.EXECUTE_TRANSFORM):
        data_event = _naive_data_event(event, kind - EventKind.ADD_DATA)
    time_ns = _time_ns(inner, 0)
    assert time_ns is not None
    return Block(
        hash=Multihash.sha3_256(data),
        size_bytes=len(data),
        manifest_version=_number(outer, 1, number_types.Int32Flags),
        sequence_number=_number(inner, 2, number_types.Uint64Flags),
        prev_hash=_naive_hash(inner, 1),
        time_ns=time_ns,
        event=kind,
        seed=seed,
        data=data_event,
    )


def _naive_data_event(event: Any, first: int) -> DataEvent:
    new_data, offsets, new_checkpoint = None, None, None
    if (found := _table(event, first + 2)) is not None:
        new_data = _naive_object(found, ObjectKind.DATA_SLICE, 1, 3)
        interval = _table(found, 2)
        ends = [_number(interval, field, number_types.Uint64Flags) for field in (0, 1)]
        offsets = OffsetInterval(*ends)
    if (found := _table(event, first + 3)) is not None:
        new_checkpoint = _naive_object(found, ObjectKind.CHECKPOINT, 0, 1)
    return DataEvent(
        prev_offset=(
            _number(event, first + 1, number_types.Uint64Flags)
            if event.Offset(4 + 2 * (first + 1))
            else None
        ),
        prev_checkpoint=_naive_hash(event, first),
        new_data=new_data,
        new_offsets=offsets,
        new_checkpoint=new_checkpoint,
        new_watermark_ns=_time_ns(event, first + 4),
    )


def _naive_object(table: Any, kind: ObjectKind, hash_field: int, size_field: int) -> ObjectRef:
    found = _naive_hash(table, hash_field)
    assert found is not None
    return ObjectRef(kind, found, _number(table, size_field, number_types.Uint64Flags))


def _root(data: bytes) -> Any:
    return Table(data, int.from_bytes(data[:4], "little"))


def _number(table: Any, field: int, flags: Any) -> int:
    offset = table.Offset(4 + 2 * field)
    return int(table.Get(flags, table.Pos + offset)) if offset else 0


def _bytes(table: Any, field: int) -> bytes | None:
    offset = table.Offset(4 + 2 * field)
    if not offset:
        return None
    start, count = table.Vector(offset), table.VectorLen(offset)
    return bytes(table.Bytes[start : start + count])


def _table(table: Any, field: int) -> Any:
    offset = table.Offset(4 + 2 * field)
    return Table(table.Bytes, table.Indirect(table.Pos + offset)) if offset else None


def _naive_hash(table: Any, field: int) -> Multihash | None:
    data = _bytes(table, field)
    return None if data is None else Multihash.from_bytes(data)


def _time_ns(table: Any, field: int) -> int | None:
    offset = table.Offset(4 + 2 * field)
    if not offset:
        return None
    at = table.Pos + offset
    year, day, second, nanosecond = TIMESTAMP.unpack(table.Bytes[at : at + TIMESTAMP.size])
    # The calendar repeats itself every 400 years; datetime knows a few of them.
    cycles, year = divmod(year, 400)
    when = datetime(year + 400, 1, 1, tzinfo=UTC) + timedelta(days=day - 1, seconds=second)
    seconds = (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    return (seconds + int(cycles - 1) * 146_097 * 86_400) * SECOND_NS + int(nanosecond)
