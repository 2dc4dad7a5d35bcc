"""Metadata blocks of ODF datasets: decodes what a transfer needs to know.

A block's file is a FlatBuffer ``Manifest`` around a FlatBuffer ``MetadataBlock``. Its name is
the sha3-256 of the file. Blocks are read and never written: encoders differ, and another encoding
would be another block. Of the thirteen events that a block may have, three matter for a
transfer: ``Seed`` begins a dataset, ``AddData`` and ``ExecuteTransform`` name objects (a data
slice, a checkpoint) and where they continue. The content of the others is ignored.

Bytes come from a peer. A value of :class:`Block` is within limits and well formed;
:mod:`lakeferry.transfer.chain.validation` checks whether it may follow another block.
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
"""Manifest versions with the layout below; the first version had another one."""

_MANIFEST_KIND = 0x400000
_TIMESTAMP = Struct("<iHxxII")
_EARLIEST_YEAR, _LATEST_YEAR = -262_143, 262_142
_DAY_S = 24 * 60 * 60
_SECOND_NS = 1_000_000_000
_DATASET_ID_PREFIX = b"\xed\x01"
_DATASET_ID_BYTES = len(_DATASET_ID_PREFIX) + 32
_EPOCH_DAY = 719_162  # 1970-01-01, counted from 0001-01-01


class EventKind(IntEnum):
    """The event of a block, by its number in the union of all events."""

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
    """The kind of an object; the value is the protocol's own word."""

    DATA_SLICE = "DataSlice"
    CHECKPOINT = "Checkpoint"


class DatasetKind(IntEnum):
    """Whether a dataset's rows come from outside or from other datasets."""

    ROOT = 0
    DERIVATIVE = 1


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object that a block names by its hash and exact size.

    Objects of a Delta table have a ``path`` in the table.
    """

    kind: ObjectKind
    hash: Multihash
    size_bytes: int
    path: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetInterval:
    """The row numbers of a data slice, both ends included; ``start <= end``."""

    start: int
    end: int

    @property
    def records(self) -> int:
        """The number of rows."""
        return self.end - self.start + 1


@dataclass(frozen=True, slots=True)
class Seed:
    """The identity of a dataset, which never changes. Two datasets with equal seeds are one."""

    dataset_id: bytes
    """The multicodec of an ed25519 key, and the key."""
    dataset_kind: DatasetKind

    @property
    def did(self) -> str:
        """The dataset's id as text."""
        return f"did:odf:f{self.dataset_id.hex()}"


@dataclass(frozen=True, slots=True)
class DataEvent:
    """The content of ``AddData`` and ``ExecuteTransform``: where they continue, and what is new.

    There is an interval exactly if there is a data slice.
    """

    prev_offset: int | None
    prev_checkpoint: Multihash | None
    new_data: ObjectRef | None
    new_offsets: OffsetInterval | None
    new_checkpoint: ObjectRef | None
    new_watermark_ns: int | None

    @property
    def last_offset(self) -> int | None:
        """The last row of the dataset after this event; ``None`` if it has no rows yet."""
        return self.new_offsets.end if self.new_offsets else self.prev_offset


@dataclass(frozen=True, slots=True)
class Block:
    """A metadata block, as far as transfer needs it; its bytes aren't kept."""

    hash: Multihash
    """The hash of the received bytes."""
    size_bytes: int
    manifest_version: int
    sequence_number: int
    prev_hash: Multihash | None
    time_ns: int
    """The time of writing, by the writer's clock: nanoseconds since 1970, UTC."""
    event: EventKind
    seed: Seed | None = None
    """Set exactly if the event is ``SEED``."""
    data: DataEvent | None = None
    """Set exactly if the event is ``ADD_DATA`` or ``EXECUTE_TRANSFORM``."""

    @property
    def objects(self) -> tuple[ObjectRef, ...]:
        """The objects that the block names: its data slice, then its checkpoint.

        A checkpoint that stays the same is named by each block again.
        """
        if self.data is None:
            return ()
        return tuple(ref for ref in (self.data.new_data, self.data.new_checkpoint) if ref)

    @property
    def records(self) -> int:
        """The number of rows that the block adds."""
        return self.data.new_offsets.records if self.data and self.data.new_offsets else 0


def parse_odf_block(data: bytes, expected: Multihash | None = None) -> Block:
    """Return the block that these bytes encode.

    ``expected`` is the name that they were received under; another hash is ``HashMismatch``.
    Malformed bytes are ``InvalidInput``, an unknown version or event is ``IncompatibleVersion``,
    and a block beyond the limits is ``LimitExceeded``.
    """
    if len(data) > LARGEST_BLOCK_BYTES:
        raise LimitExceeded(
            "a block is too large", cause=f"it has {len(data):,} bytes", limit=LARGEST_BLOCK_BYTES
        )
    name = Multihash.sha3_256(data)
    if expected is not None:
        hashes.check_hash(name, expected)
    try:
        return _parse(name, data)
    except InvalidInput as error:
        raise InvalidInput(
            f"the block {name} can't be read",
            cause=str(error),
            remedy="ask the owner of the dataset: this block is damaged, or it isn't a metadata "
            "block",
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
        # An unknown event might name objects, which wouldn't be transferred then.
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
# The two events have the same fields; a transform has its inputs before them.
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
    """Return a hash of bytes; only sha3-256 can be used to find an object."""
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
    # A leap second is written as the last second of a minute plus a second in nanoseconds.
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
        remedy="update Lakeferry: a newer version may know this format",
        hash=name.text,
    )
