"""The bytes of a Delta table's blocks.

A block's file is a line with the format's name, a line of JSON, and the version's commit, byte
for byte; its name is the sha3-256 of the whole::

    lakeferry-delta-block-1
    {"version":12,"previous":"f1620…","time_ms":1700000000000,"table_id":"…",
     "objects":[["part-00000-….parquet",1234,"1f…"],…],"commit_bytes":2048}
    {"commitInfo":…}

``objects`` lists the files that the commit adds: data files, files of deletion vectors, change
files. Each has its path, decoded and relative to the table, its size, and its sha3-256; there is
no digest if the file didn't exist any more when the block was made. A file that the same commit
removes and adds again, with another vector, isn't new and isn't listed.

A chain begins with version 0, or with a *root*: the oldest version that can be rebuilt. A root's
block also lists the files of that version's checkpoint as objects, and each data file's vector
file, because the checkpoint's hash doesn't tell them. A table whose content was replaced by force
has a root in the middle of its log; ``origin`` names the chain that replaced it.

Pure: no store, no clock. Bytes come from a peer. A value of :class:`DeltaBlock` is well formed;
:mod:`lakeferry.transfer.datasets.delta.block_checks` verifies that its commit names what the block
lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from lakeferry.errors import IncompatibleVersion, InvalidInput, LimitExceeded
from lakeferry.log import paths
from lakeferry.transfer.chain import hashes
from lakeferry.transfer.chain.hashes import Algorithm, Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectKind, ObjectRef
from lakeferry.transfer.datasets.delta.named_files import LATEST_MS, check_path

_MAGIC = b"lakeferry-delta-block-"
LARGEST_VERSION_BLOCK_BYTES = 128 << 20
"""A commit of a hundred thousand files with their statistics has about 60 MB."""

_FIRST_LINE = _MAGIC + b"1\n"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LARGEST_SIZE = 1 << 60
_LOG_NAME = re.compile(r"(?:_sidecars/)?[0-9A-Za-z][0-9A-Za-z_.-]{0,200}")
_MS_NS = 1_000_000
_MOST_OBJECTS = 300_000


class _Object(msgspec.Struct, array_like=True, frozen=True):
    path: str
    size: int
    digest: str | None
    vector: str | None = None


class _Root(msgspec.Struct, frozen=True, omit_defaults=True):
    files: tuple[_Object, ...]
    origin: str | None = None


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    version: int
    previous: str | None
    time_ms: int
    table_id: str
    objects: tuple[_Object, ...]
    commit_bytes: int | None
    root: _Root | None = None


_HEADER = msgspec.json.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class Root:
    """The beginning of a chain that doesn't begin with version 0."""

    files: tuple[ObjectRef, ...]
    """The checkpoint's files; the path of each is its name in the log."""
    vectors: dict[str, str] = field(default_factory=dict)
    """Each data file's deletion vector file, by the data file's path, if it has one."""
    origin: Multihash | None = None
    """The head of the chain whose content replaced the table's."""


@dataclass(frozen=True, slots=True)
class DeltaBlock:
    """One version of a Delta table, as a block."""

    hash: Multihash
    size_bytes: int
    sequence_number: int
    """The version."""
    prev_hash: Multihash | None
    time_ns: int
    table_id: str
    files: tuple[ObjectRef, ...]
    """The objects that the commit adds."""
    gone: tuple[str, ...]
    """Paths of added files that didn't exist any more when the block was made."""
    commit: bytes | None
    """The commit's exact bytes; a root may have none."""
    root: Root | None = None

    @property
    def objects(self) -> tuple[ObjectRef, ...]:
        """All objects that the block names, a root's checkpoint included."""
        return self.files if self.root is None else (*self.root.files, *self.files)

    @property
    def records(self) -> int:
        """Unknown for a Delta table."""
        return 0


@dataclass(frozen=True, slots=True)
class FoundObject:
    """What was found at a path when a block was made: size and digest, or nothing."""

    size_bytes: int
    digest: bytes | None


def is_version_block(data: bytes) -> bool:
    """Return True if the first bytes are those of a Delta table's block, not of an ODF block."""
    return data.startswith(_MAGIC)


def make(
    version: int,
    previous: Multihash | None,
    time_ms: int,
    table_id: str,
    commit: bytes | None,
    objects: Iterable[tuple[str, FoundObject]],
    root: Root | None = None,
) -> bytes:
    """Return the bytes of a block; equal values give equal bytes."""
    vectors = root.vectors if root is not None else {}
    listed = tuple(
        _Object(
            path,
            found.size_bytes,
            found.digest.hex() if found.digest is not None else None,
            vectors.get(path),
        )
        for path, found in sorted(objects)
    )
    begun = None
    if root is not None:
        names = tuple(
            _Object(ref.path or "", ref.size_bytes, ref.hash.digest.hex()) for ref in root.files
        )
        begun = _Root(names, root.origin.text if root.origin is not None else None)
    header = _Header(
        version,
        previous.text if previous is not None else None,
        time_ms,
        table_id,
        listed,
        None if commit is None else len(commit),
        begun,
    )
    data = _FIRST_LINE + msgspec.json.encode(header) + b"\n" + (commit or b"")
    if len(data) > LARGEST_VERSION_BLOCK_BYTES:
        raise LimitExceeded(
            f"version {version} is too large to be transferred",
            cause=f"its block would have {len(data):,} bytes",
            remedy="compact the table's small files (OPTIMIZE), then run 'lakeferry cleanup TABLE'",
            limit=LARGEST_VERSION_BLOCK_BYTES,
        )
    return data


def parse_version_block(data: bytes, expected: Multihash | None = None) -> DeltaBlock:
    """Return the block that these bytes encode.

    ``expected`` is the name that they were received under; another hash is ``HashMismatch``.
    """
    if len(data) > LARGEST_VERSION_BLOCK_BYTES:
        raise LimitExceeded("a block is too large", limit=LARGEST_VERSION_BLOCK_BYTES)
    name = Multihash.sha3_256(data)
    if expected is not None:
        hashes.check_hash(name, expected)
    if not data.startswith(_FIRST_LINE):
        if is_version_block(data):
            raise IncompatibleVersion(
                f"the block {name} has an unknown format",
                remedy="update Lakeferry",
            )
        raise _unreadable(name, "it isn't a Delta table's")
    end = data.find(b"\n", len(_FIRST_LINE))
    if data.count(b"],[", 0, max(end, 0)) >= _MOST_OBJECTS:
        raise LimitExceeded(
            "a block names too many objects", cause=f"more than {_MOST_OBJECTS:,}", hash=name.text
        )
    try:
        header = _HEADER.decode(data[len(_FIRST_LINE) : end if end > 0 else len(data)])
        return _block(name, header, data, end + 1)
    except (msgspec.MsgspecError, InvalidInput, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(name, str(error)) from error


def _block(name: Multihash, header: _Header, data: bytes, start: int) -> DeltaBlock:
    commit = data[start:] if header.commit_bytes is not None else None
    if start == 0 or len(data) - start != (header.commit_bytes or 0):
        raise InvalidInput("its commit doesn't have the length that it says")
    if not 0 <= header.version <= paths.MAX_VERSION or not 0 <= header.time_ms <= LATEST_MS:
        raise InvalidInput("its version or time is out of bounds")
    if len(header.table_id) > 200:
        raise InvalidInput("its table's id is too long")
    if header.root is None and (header.previous is None) != (header.version == 0):
        raise InvalidInput("a chain has to begin with version 0 or a chain root")
    if header.root is not None and (header.previous is not None or not header.root.files):
        raise InvalidInput("a chain root needs a checkpoint, and can't have an earlier block")
    if commit is None and header.root is None:
        raise InvalidInput("it has no commit")
    names: set[str] = set()
    files, gone, vectors = [], [], {}
    for one in header.objects:
        check_path(one.path)
        if one.path in names:
            raise InvalidInput("it lists an object twice", cause=one.path)
        names.add(one.path)
        if one.vector is not None:
            vectors[one.path] = one.vector
        if one.digest is None:
            gone.append(one.path)
        else:
            files.append(_ref(ObjectKind.DATA_SLICE, one))
    root = None
    if header.root is not None:
        if not set(vectors.values()) <= names:
            raise InvalidInput("it doesn't list a deletion vector")
        origin = header.root.origin
        root = Root(
            tuple(_log_file(one) for one in header.root.files),
            vectors,
            Multihash.parse(origin) if origin is not None else None,
        )
    return DeltaBlock(
        name,
        len(data),
        header.version,
        Multihash.parse(header.previous) if header.previous is not None else None,
        header.time_ms * _MS_NS,
        header.table_id,
        tuple(files),
        tuple(gone),
        commit,
        root,
    )


def _ref(kind: ObjectKind, one: _Object) -> ObjectRef:
    if one.digest is None or not _DIGEST.fullmatch(one.digest):
        raise InvalidInput("not a digest", cause=repr(one.digest)[:80])
    if not 0 <= one.size <= _LARGEST_SIZE:
        raise InvalidInput("an object's size is out of bounds", cause=str(one.size))
    name = Multihash(Algorithm.SHA3_256, bytes.fromhex(one.digest))
    return ObjectRef(kind, name, one.size, one.path)


def _log_file(one: _Object) -> ObjectRef:
    if not _LOG_NAME.fullmatch(one.path):
        raise InvalidInput("not a checkpoint's name", cause=repr(one.path[:80]))
    is_sidecar = one.path.startswith("_sidecars/")
    found = paths.parse(f"{paths.LOG_DIR}/{one.path}")
    if not is_sidecar and (found is None or not found.kind.is_checkpoint):
        raise InvalidInput("not a checkpoint's name", cause=repr(one.path[:80]))
    return _ref(ObjectKind.CHECKPOINT, one)


def _unreadable(name: Multihash, cause: str) -> InvalidInput:
    return InvalidInput(
        f"the block {name} can't be read",
        cause=cause,
        remedy="ask the owner of the dataset: this block is damaged",
        hash=name.text,
    )
