"""Reads newline-delimited actions: commits, compacted logs, JSON checkpoints.

Reads any number of such files in order into one :class:`Lines`: the few small actions as values,
the file actions as Arrow tables with each line's text beside its columns. Python objects exist
for one bounded block of lines at a time, so reading a file needs little more memory than its
bytes and these tables; without file actions, little more than its bytes.

A file action may differ slightly from the protocol, in ways that delta-spark's JSON library
accepts too: a whole number as ``1.0``, a partition value without quotes. A missing size isn't
accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import CorruptLog
from lakeferry.log import decoding, file_actions, file_identity, latest_actions
from lakeferry.log.actions import Action, CommitInfo, Json
from lakeferry.log.decoding import Int, Long
from lakeferry.log.latest_actions import LatestActions

_CHUNK_ROWS = 16_384
_CHUNK_BYTES = 256 * 1024 * 1024
"""At most so many bytes of lines become one batch: Arrow's strings have at most 2 GiB in each."""
_BLOCK_BYTES = 4 * 1024 * 1024
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


class _BareLine(msgspec.Struct, gc=False):
    metaData: msgspec.Raw = _ABSENT
    protocol: msgspec.Raw = _ABSENT


_DECODER = msgspec.json.Decoder(_Line)
_DECODER_OF_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_Kind = TypeVar("_Kind", _Add, _Remove)
_BARE_DECODER = msgspec.json.Decoder(_BareLine)
_SMALL = (
    "commitInfo",
    "txn",
    "metaData",
    "protocol",
    "domainMetadata",
    "sidecar",
    "checkpointMetadata",
)
ORDER = pa.field("lakeferry:order", pa.int64())
"""The position of a line among all lines read: of two actions on one file the later wins."""
_SCHEMAS = {
    name: schema.append(file_actions.RAW).append(ORDER)
    for name, schema in file_actions.SCHEMAS.items()
}


@dataclass(slots=True)
class Lines(LatestActions):
    """What was read from a run of files, oldest first.

    ``protocol`` and ``metadata`` are the newest seen. ``adds`` and ``removes``
    have the columns of :mod:`lakeferry.log.file_actions` plus its ``RAW`` and :data:`ORDER`;
    they stay empty unless ``keeps_files``.
    """

    keeps_files: bool = True
    cdc_count: int = 0
    _compacted: list[tuple[str, int, int]] = field(default_factory=list)
    """Compacted logs that were read, each with the first and last order of its lines."""
    _seen: set[tuple[str, str]] | None = None
    """Keys of the non-file actions in the compacted log that is being read."""
    _adds: _Columns = field(default_factory=lambda: _Columns("add"))
    _removes: _Columns = field(default_factory=lambda: _Columns("remove"))
    _order: int = 0

    @property
    def has_files(self) -> bool:
        """Whether any file action was read."""
        return not (self._adds.is_empty and self._removes.is_empty)

    @property
    def adds(self) -> pa.Table:
        """Every ``add`` that was read, in order."""
        return self._adds.table()

    @property
    def removes(self) -> pa.Table:
        """Every ``remove`` that was read, in order."""
        return self._removes.table()

    def read(self, data: bytes, path: str) -> None:
        """Add one more file; ``path`` is its name for error messages."""
        self.commit_info = None
        each_line(data, path, self._take)

    def read_compacted(self, data: bytes, path: str, first_version: int | None = None) -> None:
        """Add a compacted log; raise an error if it has two actions for one key.

        Two actions for one file are found by :meth:`check_compacted`. If ``first_version`` is
        given, an empty log is corrupt, and so is one that begins at version 0 without the
        protocol or the metadata, which that version has.
        """
        first = self._order
        if first_version is not None and not data.strip():
            raise _unusable(path, "it is empty, as if writing it had been interrupted")
        self._seen = set()
        try:
            self.read(data, path)
        finally:
            self._seen = None
        if first_version == 0 and (self.protocol is None or self.metadata is None):
            lacking = "protocol" if self.protocol is None else "metaData"
            raise _unusable(path, f"it begins at version 0 and has no {lacking} action")
        self._compacted.append((path, first, self._order))

    def check_compacted(self, root: str) -> None:
        """Raise an error if a compacted log has two actions for one file.

        A compacted log isn't reconciled, so the later action isn't known. This also applies to
        two spellings of one place, because only the commits show which files they mean. ``root``
        is the URI of the log's table.
        """
        if not self._compacted or not self.has_files:
            return
        tables = (self.adds, self.removes)
        for path, first, last in self._compacted:
            own = [
                table.filter((pc.field(ORDER.name) > first) & (pc.field(ORDER.name) <= last))
                for table in tables
            ]
            keys = pa.concat_arrays([file_identity.place_keys(table, root) for table in own])
            if pc.count_distinct(keys).as_py() < len(keys):
                why = "it has two actions of one file, and their order is unknown"
                raise _unusable(path, why)

    def keep(self, action: Action) -> None:
        """Add one action that isn't about a file."""
        if self._seen is not None and (key := latest_actions.key(action)) is not None:
            if key in self._seen:
                raise CorruptLog(f"a compacted log has two actions {' '.join(key).strip()}")
            self._seen.add(key)
        # Dataclasses with slots are new classes, which super() without arguments doesn't find.
        LatestActions.keep(self, action)

    def _take(self, line: bytes) -> None:
        try:
            decoded = _DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeError):
            odd = decoding.decode_odd(line)
            if odd is not None:
                if isinstance(odd, CommitInfo):
                    self.keep(odd)
                return
            decoded = _decode_leniently(line)
        self._order += 1
        present = 0
        if decoded.add is not None:
            present += 1
            if self.keeps_files:
                self._adds.append(decoded.add, line, self._order)
        if decoded.remove is not None:
            present += 1
            if self.keeps_files:
                self._removes.append(decoded.remove, line, self._order)
        for name in _SMALL:
            raw = getattr(decoded, name)
            if raw is not _ABSENT and (value := bytes(raw)) != b"null":
                present += 1
                self.keep(decoding.decode_value(name, value, line))
        if decoded.cdc is not _ABSENT and bytes(decoded.cdc) != b"null":
            present += 1
            self.cdc_count += 1
        if present > 1:
            raise CorruptLog("one line holds more than one action")


def read_protocol_and_metadata(found: LatestActions, data: bytes, path: str) -> None:
    """Read a file's protocol and metadata, and ignore all other actions.

    This is for tables with unknown features, whose other actions may have any form.
    """

    def take(line: bytes) -> None:
        decoded = _BARE_DECODER.decode(line)
        for name, raw in (("protocol", decoded.protocol), ("metaData", decoded.metaData)):
            if raw is not _ABSENT and (value := bytes(raw)) != b"null":
                found.keep(decoding.decode_value(name, value, line))

    each_line(data, path, take)


def each_line(data: bytes, path: str, take: Callable[[bytes], None]) -> None:
    """Call ``take`` with each line that isn't empty; if it can't read one, the file is corrupt.

    A line that is only odd and decides nothing (:func:`decoding.decode_odd`) is skipped.
    """
    lines = (line for block in line_blocks(data) for line in block.split(b"\n"))
    for number, text in enumerate(lines, 1):
        line = text.strip()
        if not line:
            continue
        try:
            take(line)
        except (
            msgspec.MsgspecError,
            ValueError,
            RecursionError,
            OverflowError,
            pa.ArrowException,
            CorruptLog,
        ) as broken:
            if decoding.decode_odd(line) is None:
                raise _corrupt(path, number, str(broken)) from broken


def line_blocks(data: bytes) -> Iterator[bytes]:
    """Yield blocks of whole lines, of bounded size as far as the lines allow it.

    The line end between two blocks is in neither of them.
    """
    start = 0
    while (end := data.find(b"\n", start + _BLOCK_BYTES)) >= 0:
        yield data[start:end]
        start = end + 1
    yield data[start:] if start else data


def _decode_leniently(line: bytes) -> _Line:
    """Decode a line whose file action differs slightly from the protocol, or raise an error."""
    values = _DECODER_OF_NAMES.decode(line)
    named = {
        name: value
        for name, value in values.items()
        if name in _Line.__struct_fields__ and bytes(value) != b"null"
    }
    add, remove = named.pop("add", None), named.pop("remove", None)
    return _Line(
        None if add is None else _convert(add, _Add),
        None if remove is None else _convert(remove, _Remove),
        **named,
    )


def _convert(value: msgspec.Raw, kind: type[_Kind]) -> _Kind:
    converted = msgspec.convert(_decoded_numbers(bytes(value)), kind)
    # Text that isn't valid UTF-8 is found here, where the line is known.
    msgspec.json.encode(converted)
    return converted


def _decoded_numbers(value: bytes) -> Json:
    """Decode a file action: whole numbers as integers, partition values as text."""
    found = json.loads(value, parse_float=_Spelled)
    if not isinstance(found, dict):
        raise CorruptLog("a file action isn't an object")
    fields = decoding.with_whole_numbers(found)
    if isinstance(values := fields.get("partitionValues"), dict):
        fields["partitionValues"] = {key: _as_text(item) for key, item in values.items()}
    if isinstance(vector := fields.get("deletionVector"), dict):
        fields["deletionVector"] = decoding.with_whole_numbers(vector)
    return fields


class _Spelled(float):
    """A number with a fraction or an exponent that remembers its spelling."""

    text: str

    def __new__(cls, text: str) -> _Spelled:
        number = super().__new__(cls, text)
        number.text = text
        return number


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _Spelled):
        return value.text
    return str(value) if isinstance(value, int) else value


def _unusable(path: str, why: str) -> CorruptLog:
    return CorruptLog(
        f"compacted log {path} can't be used",
        cause=why,
        remedy="restore the commits that it covers from a copy",
        path=path,
    )


def _corrupt(path: str, number: int, why: str) -> CorruptLog:
    return CorruptLog(
        f"line {number} of {path} can't be read",
        cause=why,
        remedy="restore that file from a copy; nothing was changed",
        path=path,
    )


class _Columns:
    """Collects file actions of one kind and converts them to Arrow in bounded chunks."""

    def __init__(self, name: str) -> None:
        self._schema = _SCHEMAS[name]
        self._rows: list[tuple[Any, bytes, int]] = []
        self._bytes = 0
        self._batches: list[pa.RecordBatch] = []

    def append(self, value: _Add | _Remove, line: bytes, order: int) -> None:
        self._rows.append((value, line, order))
        self._bytes += len(line)
        if len(self._rows) >= _CHUNK_ROWS or self._bytes >= _CHUNK_BYTES:
            self._flush()

    @property
    def is_empty(self) -> bool:
        return not self._rows and not self._batches

    def table(self) -> pa.Table:
        self._flush()
        return pa.Table.from_batches(self._batches, self._schema)

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = []
        for column in self._schema:
            name = column.name
            if name == file_actions.RAW.name:
                values: list[Any] = [line for _, line, _ in self._rows]
            elif name == ORDER.name:
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
        self._rows, self._bytes = [], 0
