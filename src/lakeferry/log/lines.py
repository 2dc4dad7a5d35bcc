"""Newline-delimited actions, as commits, compacted logs and JSON checkpoints have them.

Reads any number of such files in order into one :class:`Lines`: the few
actions that a person reads as values, the file actions as Arrow tables with
each line's text beside its columns. Python objects for file actions exist for
one bounded chunk at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from lakeferry.errors import CorruptLog
from lakeferry.log import actions, files
from lakeferry.log.collected import Collected

_CHUNK_ROWS = 16_384
Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_ABSENT = msgspec.Raw(b"")


class _Vector(msgspec.Struct, gc=False):
    storageType: str
    pathOrInlineDv: str
    sizeInBytes: Int
    cardinality: Long
    offset: Int | None = None
    maxRowIndex: Long | None = None


class _Add(msgspec.Struct, gc=False):
    path: str
    size: Long
    partitionValues: dict[str, str | None] | None = None
    modificationTime: Long | None = None
    dataChange: bool | None = None
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletionVector: _Vector | None = None
    baseRowId: Long | None = None
    defaultRowCommitVersion: Long | None = None
    clusteringProvider: str | None = None


class _Remove(msgspec.Struct, gc=False):
    path: str
    deletionTimestamp: Long | None = None
    dataChange: bool | None = None
    extendedFileMetadata: bool | None = None
    partitionValues: dict[str, str | None] | None = None
    size: Long | None = None
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletionVector: _Vector | None = None
    baseRowId: Long | None = None
    defaultRowCommitVersion: Long | None = None


class _Line(msgspec.Struct, gc=False):
    add: _Add | None = None
    remove: _Remove | None = None
    cdc: msgspec.Raw = _ABSENT
    commitInfo: msgspec.Raw = _ABSENT
    txn: msgspec.Raw = _ABSENT
    metaData: msgspec.Raw = _ABSENT
    protocol: msgspec.Raw = _ABSENT
    domainMetadata: msgspec.Raw = _ABSENT
    sidecar: msgspec.Raw = _ABSENT
    checkpointMetadata: msgspec.Raw = _ABSENT


_DECODER = msgspec.json.Decoder(_Line)
_SMALL = (
    "commitInfo",
    "txn",
    "metaData",
    "protocol",
    "domainMetadata",
    "sidecar",
    "checkpointMetadata",
)
ORDER = pa.field("order", pa.int64())
"""The position of a line among all that were read: of two actions on one file the later wins."""


@dataclass(slots=True)
class Lines(Collected):
    """What was read from a run of files, oldest first.

    ``protocol`` and ``metadata`` are the newest seen. ``adds`` and ``removes``
    have the columns of :mod:`lakeferry.log.files` plus ``raw`` and ``order``.
    """

    cdc_count: int = 0
    _adds: _Columns = field(default_factory=lambda: _Columns("add"))
    _removes: _Columns = field(default_factory=lambda: _Columns("remove"))
    _order: int = 0

    @property
    def adds(self) -> pa.Table:
        """Every ``add`` that was read, in order."""
        return self._adds.table()

    @property
    def removes(self) -> pa.Table:
        """Every ``remove`` that was read, in order."""
        return self._removes.table()

    def read(self, data: bytes, path: str) -> None:
        """Take in one more file; ``path`` is its name, for the message if it can't be read."""
        self.commit_info = None
        for number, text in enumerate(data.split(b"\n"), 1):
            line = text.strip()
            if not line:
                continue
            try:
                self._take(line)
            except (
                msgspec.MsgspecError,
                UnicodeError,
                RecursionError,
                OverflowError,
                pa.ArrowException,
            ) as broken:
                raise _corrupt(path, number, str(broken)) from broken
            except CorruptLog as broken:
                raise _corrupt(path, number, str(broken)) from broken

    def _take(self, line: bytes) -> None:
        decoded = _DECODER.decode(line)
        self._order += 1
        present = 0
        if decoded.add is not None:
            present += 1
            self._adds.append(decoded.add, line, self._order)
        if decoded.remove is not None:
            present += 1
            self._removes.append(decoded.remove, line, self._order)
        for name in _SMALL:
            raw = getattr(decoded, name)
            if raw is not _ABSENT and (value := bytes(raw)) != b"null":
                present += 1
                self.keep(actions.decode_value(name, value, line))
        if decoded.cdc is not _ABSENT and bytes(decoded.cdc) != b"null":
            present += 1
            self.cdc_count += 1
        if present > 1:
            raise CorruptLog("one line holds more than one action")


def _corrupt(path: str, number: int, why: str) -> CorruptLog:
    return CorruptLog(
        f"line {number} of {path} can't be read",
        cause=why,
        remedy="restore that file from a copy; nothing was changed",
        path=path,
    )


class _Columns:
    """File actions of one kind on their way into Arrow, a bounded number at a time."""

    def __init__(self, name: str) -> None:
        self._schema = files.SCHEMAS[name].append(files.RAW).append(ORDER)
        self._rows: list[tuple[Any, bytes, int]] = []
        self._batches: list[pa.RecordBatch] = []

    def append(self, value: _Add | _Remove, line: bytes, order: int) -> None:
        self._rows.append((value, line, order))
        if len(self._rows) >= _CHUNK_ROWS:
            self._flush()

    def table(self) -> pa.Table:
        self._flush()
        return pa.Table.from_batches(self._batches, self._schema)

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = []
        for column in self._schema:
            name = column.name
            if name == "raw":
                values: list[Any] = [line for _, line, _ in self._rows]
            elif name == "order":
                values = [order for _, _, order in self._rows]
            else:
                values = [getattr(value, name) for value, _, _ in self._rows]
                if pa.types.is_map(column.type):
                    values = [None if value is None else list(value.items()) for value in values]
                elif pa.types.is_struct(column.type):
                    values = [
                        None if value is None else msgspec.structs.asdict(value) for value in values
                    ]
            try:
                columns.append(pa.array(values, column.type))
            except (pa.ArrowException, OverflowError, UnicodeError) as broken:
                raise CorruptLog(f"a value of {name} can't be kept", cause=str(broken)) from broken
        self._batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._rows = []
