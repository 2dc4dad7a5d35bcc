"""Metadata blocks of ODF datasets: decodes what a transfer needs to know.

A block's file is a FlatBuffer ``Manifest`` around a FlatBuffer ``MetadataBlock``. Its name is
the sha3-256 of the file as it is. Blocks are read and never written: encoders differ, and
another encoding would be another block. Of the thirteen events a block may carry, three
concern transfer: ``Seed`` begins a dataset, ``AddData`` and ``ExecuteTransform`` name objects
(a data slice, a checkpoint) and say where they continue. What the others say is not looked at.

Bytes come from a peer. A value of :class:`Block` means that everything in it was within
bounds and well formed; whether the block fits behind another is for
:mod:`lakeferry.transfer.chain.validation` to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from struct import Struct

from lakeferry.errors import IncompatibleVersion, InvalidInput, LimitExceeded
from lakeferry.transfer.chain import hashes
from lakeferry.transfer.chain.flatbuffers import FlatTable, Scalar, root
from lakeferry.transfer.chain.hashes import Algorithm, Multihash

LARGEST_BLOCK_BYTES = 8 << 20
"""Blocks have hundreds of bytes; those with a schema or with attached documents have more."""
READABLE_VERSIONS = (2, 3)
"""Manifest versions whose layout is the one below; the first one was another."""

_MANIFEST_KIND = 0x400000
_TIMESTAMP = Struct("<iHxxII")
_EARLIEST_YEAR, _LATEST_YEAR = -262_143, 262_142
_DAY_S = 24 * 60 * 60
_SECOND_NS = 1_000_000_000
_DATASET_ID_PREFIX = b"\xed\x01"
_DATASET_ID_BYTES = len(_DATASET_ID_PREFIX) + 32
_EPOCH_DAY = 719_162  # 1970-01-01, counted from 0001-01-01


class EventKind(IntEnum):
    """What a block says, by its number in the union of all events."""

    ADD_DATA = 1
    EXECUTE_TRANSFORM = 2
    SEED = 3
    SET_POLLING_SOURCE = 4
    SET_TRANSFORM = 5
    SET_VOCAB = 6
    SET_ATTACHMENTS = 7
    SET_INFO = 8
    SET_LICENSE = 9
    SET_DATA_SCHEMA = 10
    ADD_PUSH_SOURCE = 11
    DISABLE_PUSH_SOURCE = 12
    DISABLE_POLLING_SOURCE = 13


class ObjectKind(Enum):
    """What an object is; the value is the protocol's own word."""

    DATA_SLICE = "DataSlice"
    CHECKPOINT = "Checkpoint"


class DatasetKind(IntEnum):
    """Whether a dataset's rows come from outside or from other datasets."""

    ROOT = 0
    DERIVATIVE = 1


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object that a block names: found by its hash, and of exactly this size.

    Those of a Delta table are found by their ``path`` in it.
    """

    kind: ObjectKind
    hash: Multihash
    size_bytes: int
    path: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetInterval:
    """The numbers of the rows in a data slice; both ends are in it, and ``start <= end``."""

    start: int
    end: int

    @property
    def records(self) -> int:
        """How many rows there are."""
        return self.end - self.start + 1


@dataclass(frozen=True, slots=True)
class Seed:
    """What a dataset is, once and for all. Two datasets with equal seeds are one."""

    dataset_id: bytes
    """The multicodec of an ed25519 key, and the key."""
    dataset_kind: DatasetKind

    @property
    def did(self) -> str:
        """The dataset's id as text."""
        return f"did:odf:f{self.dataset_id.hex()}"


@dataclass(frozen=True, slots=True)
class DataEvent:
    """What ``AddData`` and ``ExecuteTransform`` say: where they continue, and what is new.

    An interval is there exactly when a data slice is.
    """

    prev_offset: int | None
    prev_checkpoint: Multihash | None
    new_data: ObjectRef | None
    new_offsets: OffsetInterval | None
    new_checkpoint: ObjectRef | None
    new_watermark_ns: int | None

    @property
    def last_offset(self) -> int | None:
        """The last row of the dataset after this event; ``None`` while there is none."""
        return self.new_offsets.end if self.new_offsets else self.prev_offset


@dataclass(frozen=True, slots=True)
class Block:
    """A metadata block as transfer sees it; the bytes stay with whoever read them."""

    hash: Multihash
    """Of the bytes that were received."""
    size_bytes: int
    manifest_version: int
    sequence_number: int
    prev_hash: Multihash | None
    time_ns: int
    """When it was written, by its writer's clock: nanoseconds since 1970, UTC."""
    event: EventKind
    seed: Seed | None = None
    """There exactly when the event is ``SEED``."""
    data: DataEvent | None = None
    """There exactly when the event is ``ADD_DATA`` or ``EXECUTE_TRANSFORM``."""

    @property
    def objects(self) -> tuple[ObjectRef, ...]:
        """The objects that the block names: its data slice, then its checkpoint.

        A checkpoint that is carried on is named again by each block.
        """
        if self.data is None:
            return ()
        return tuple(ref for ref in (self.data.new_data, self.data.new_checkpoint) if ref)

    @property
    def records(self) -> int:
        """How many rows the block adds."""
        return self.data.new_offsets.records if self.data and self.data.new_offsets else 0


def parse(data: bytes, expected: Multihash | None = None) -> Block:
    """Return the block that these bytes are.

    With ``expected``, the name that they came under, it is checked first: ``HashMismatch``.
    Bytes that make no sense are ``InvalidInput``, a version or an event that isn't known is
    ``IncompatibleVersion``, and more than a block may have ``LimitExceeded``.
    """
    if len(data) > LARGEST_BLOCK_BYTES:
        raise LimitExceeded(
            "a block is too large", cause=f"it has {len(data):,} bytes", limit=LARGEST_BLOCK_BYTES
        )
    name = Multihash.sha3_256(data)
    if expected is not None:
        hashes.check(name, expected)
    try:
        return _parse(name, data)
    except InvalidInput as error:
        raise InvalidInput(
            f"the block {name} can't be read",
            cause=str(error),
            remedy="its writer's copy is damaged, or it isn't a metadata block",
            hash=name.text,
        ) from error


def objects_of(blocks: Iterable[Block]) -> Iterator[ObjectRef]:
    """Yield the objects that blocks name, in the blocks' order, each hash once."""
    seen: set[tuple[ObjectKind, bytes]] = set()
    for block in blocks:
        for ref in block.objects:
            if (key := (ref.kind, ref.hash.digest)) not in seen:
                seen.add(key)
                yield ref


def _parse(name: Multihash, data: bytes) -> Block:
    manifest = root(data)
    if (kind := manifest.number(0, Scalar.INT64)) != _MANIFEST_KIND:
        raise InvalidInput(f"a manifest of the unknown kind {kind:#x}")
    version = manifest.number(1, Scalar.INT32)
    if version not in READABLE_VERSIONS:
        raise _unknown(name, f"its manifest has version {version}")
    block = _required(manifest.nested(2), "content")
    number, found = block.union(3)
    event_kind = _EVENT_KINDS.get(number)
    if event_kind is None:
        # It might name objects, which would then be left behind.
        raise _unknown(name, f"it has an event of the unknown kind {number}")
    event = _required(found, "event")
    time_ns = _timestamp(block, 0)
    if time_ns is None:
        raise InvalidInput("it has no system time")
    return Block(
        hash=name,
        size_bytes=len(data),
        manifest_version=version,
        sequence_number=block.number(2, Scalar.UINT64),
        prev_hash=_hash(block, 1),
        time_ns=time_ns,
        event=event_kind,
        seed=_seed(event) if event_kind is EventKind.SEED else None,
        data=_data_event(event, _FIRST_FIELD[event_kind]) if event_kind in _FIRST_FIELD else None,
    )


_EVENT_KINDS = {kind.value: kind for kind in EventKind}
_DATASET_KINDS = frozenset(DatasetKind)
# The fields of the two events are the same, behind the inputs that a transform has before them.
_FIRST_FIELD = {EventKind.ADD_DATA: 0, EventKind.EXECUTE_TRANSFORM: 1}


def _data_event(event: FlatTable, first: int) -> DataEvent:
    new_data, new_offsets = None, None
    if (slice_ := event.table(first + 2)) is not None:
        new_data = _object(slice_, ObjectKind.DATA_SLICE, 1, 3)
        interval = _required(slice_.table(2), "offset interval")
        new_offsets = OffsetInterval(
            interval.number(0, Scalar.UINT64), interval.number(1, Scalar.UINT64)
        )
        if new_offsets.end < new_offsets.start:
            raise InvalidInput("its offset interval ends before it begins")
    new_checkpoint = None
    if (checkpoint := event.table(first + 3)) is not None:
        new_checkpoint = _object(checkpoint, ObjectKind.CHECKPOINT, 0, 1)
    return DataEvent(
        prev_offset=event.optional(first + 1, Scalar.UINT64),
        prev_checkpoint=_hash(event, first),
        new_data=new_data,
        new_offsets=new_offsets,
        new_checkpoint=new_checkpoint,
        new_watermark_ns=_timestamp(event, first + 4),
    )


def _seed(event: FlatTable) -> Seed:
    dataset_id = event.vector(0) or b""
    if len(dataset_id) != _DATASET_ID_BYTES or not dataset_id.startswith(_DATASET_ID_PREFIX):
        raise InvalidInput(f"its dataset's id isn't an ed25519 key: {dataset_id[:40].hex()}")
    kind = event.number(1, Scalar.INT32)
    if kind not in _DATASET_KINDS:
        raise InvalidInput(f"its dataset is of the unknown kind {kind}")
    return Seed(dataset_id, DatasetKind(kind))


def _object(table: FlatTable, kind: ObjectKind, hash_field: int, size_field: int) -> ObjectRef:
    found = _hash(table, hash_field)
    if found is None:
        raise InvalidInput(f"a {kind.value} has no hash")
    size_bytes = table.number(size_field, Scalar.UINT64)
    if size_bytes >= 1 << 63:
        raise InvalidInput(f"a {kind.value} has {size_bytes:,} bytes")
    return ObjectRef(kind, found, size_bytes)


def _hash(table: FlatTable, field: int) -> Multihash | None:
    """Return a hash of bytes. Others than sha3-256 name nothing that could be looked for."""
    data = table.vector(field)
    if data is None:
        return None
    found = Multihash.from_bytes(data)
    if found.algorithm is not Algorithm.SHA3_256:
        raise InvalidInput(f"a hash was made with {found.algorithm.name}, not with SHA3_256")
    return found


def _timestamp(table: FlatTable, field: int) -> int | None:
    """Return a point in time as nanoseconds since 1970."""
    data = table.struct(field, _TIMESTAMP.size)
    if data is None:
        return None
    year, day, second, nanosecond = _TIMESTAMP.unpack(data)
    if not _EARLIEST_YEAR <= year <= _LATEST_YEAR:
        raise InvalidInput(f"a time is in the year {year}")
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    # A leap second is the last second of a minute with a second's nanoseconds more.
    nanoseconds = 2 * _SECOND_NS if second % 60 == 59 else _SECOND_NS
    if not (1 <= day <= 365 + is_leap and second < _DAY_S and nanosecond < nanoseconds):
        raise InvalidInput(f"no such time: {year}, day {day}, {second} s, {nanosecond} ns")
    before = year - 1
    days = 365 * before + before // 4 - before // 100 + before // 400 + day - 1 - _EPOCH_DAY
    return int((days * _DAY_S + second) * _SECOND_NS + nanosecond)


def _required(table: FlatTable | None, what: str) -> FlatTable:
    if table is None:
        raise InvalidInput(f"it has no {what}")
    return table


def _unknown(name: Multihash, cause: str) -> IncompatibleVersion:
    return IncompatibleVersion(
        f"the block {name} can't be read",
        cause=cause,
        remedy="another version of Lakeferry may know it",
        hash=name.text,
    )
