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
:func:`check_version_block` verifies that its commit names what the block lists, and nothing
outside of the table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from lakeferry.errors import (
    CorruptLog,
    IncompatibleVersion,
    InvalidInput,
    LimitExceeded,
    UnsupportedFeature,
)
from lakeferry.log import decoding, features, paths, references
from lakeferry.log.actions import CommitInfo
from lakeferry.log.decoding import Long
from lakeferry.log.file_actions import identity, is_absolute_path
from lakeferry.log.lines import Lines, each_line
from lakeferry.storage.uris import decode_name, leads_outside
from lakeferry.transfer.chain import hashes
from lakeferry.transfer.chain.hashes import Algorithm, Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectKind, ObjectRef
from lakeferry.transfer.wire.messages import LONGEST_PATH

_MAGIC = b"lakeferry-delta-block-"
LARGEST_VERSION_BLOCK_BYTES = 128 << 20
"""A commit of a hundred thousand files with their statistics has about 60 MB."""

_FIRST_LINE = _MAGIC + b"1\n"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LARGEST_SIZE = 1 << 60
LATEST_MS = 1 << 60
"""The latest time that a block may have; the earliest is 1970."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
_LOG_NAME = re.compile(r"(?:_sidecars/)?[0-9A-Za-z][0-9A-Za-z_.-]{0,200}")
_MS_NS = 1_000_000
_RESERVED = frozenset({"", ".", "..", paths.LOG_DIR})
_OWN = ".lakeferry"
_LONGEST_SEGMENT = 255
_MOST_OBJECTS = 300_000
# Characters that a reader may take for an absolute path; each reader has its own rules.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NOWHERE = "file:///-"


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
            remedy="compact the table's small files, then clean up its log",
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


def check_path(path: str) -> None:
    """Refuse a path outside of the table, or in a folder that has other files."""
    segments = path.split("/")
    if (
        not 0 < len(path) <= LONGEST_PATH
        or _FORBIDDEN.search(path)
        or not all(map(_is_segment, segments))
        # A reader that decodes a name before testing for an absolute path would go elsewhere.
        or _SCHEME.fullmatch(segments[0])
        # In a repository, an ODF dataset has its files there.
        or segments[-2:] == ["refs", "head"]
    ):
        raise InvalidInput(
            "a path that no object of a table can have",
            cause=repr(path[:200]),
            remedy="rewrite that file under another name, with OPTIMIZE for example; then commit "
            "once more, and clean up the log before that: lakeferry cleanup TABLE --before VERSION "
            "--force",
        )


def _is_segment(name: str) -> bool:
    if name in _RESERVED or name.startswith(_OWN):
        return False
    # No character has more than four bytes.
    return len(name) * 4 <= _LONGEST_SEGMENT or len(name.encode()) <= _LONGEST_SEGMENT


def check_version_block(block: DeltaBlock, live: Live) -> Named | None:
    """Return what a block's commit names; refuse it if the block lists other objects.

    Also refuse a commit that can't be read, that names something outside of the table, or that
    enables a feature under which copying bytes doesn't copy the table. ``live`` has the files
    after the versions before; this version is added to it.
    """
    if block.root is not None:
        root_named = None
        if block.commit is not None:
            # A root's commit repeats part of the checkpoint, and readers of changes read it.
            root_named = commit_names(block.commit, block.sequence_number)
            _check_identity(block, root_named)
        live.begin(block)
        return root_named
    listed = {ref.path for ref in block.files} | set(block.gone)
    named = commit_names(block.commit or b"", block.sequence_number)
    _check_identity(block, named)
    if not listed <= named.added | named.changes:
        raise _broken(block, "it lists objects that its commit doesn't name")
    if unlisted := (named.added | named.changes) - listed - named.removed_paths:
        raise _broken(block, f"it doesn't list {sorted(unlisted)[0]!r}, which its commit adds")
    live.take(named)
    return named


def _check_identity(block: DeltaBlock, named: Named) -> None:
    if named.table_id is not None and named.table_id != block.table_id:
        raise _broken(block, f"its table is {named.table_id} instead of {block.table_id}")
    if block.sequence_number == 0 and (named.table_id is None or not named.has_protocol):
        raise _broken(block, "version 0 has a protocol and metadata")


@dataclass(frozen=True, slots=True)
class Named:
    """The files and settings that a commit names, by decoded paths."""

    adds: dict[str, str | None]
    """Data files, each with the file of its deletion vector."""
    sizes: dict[str, int | None]
    """Sizes of all added files, as the log states them."""
    removed_paths: frozenset[str]
    changes: frozenset[str]
    """Change files; they belong to no version's state."""
    table_id: str | None
    time_ms: int | None
    """The time of the commit, by its writer."""
    origin: Multihash | None
    has_protocol: bool = True
    configuration: Mapping[str, str] | None = None
    """The table's properties, if the commit sets them."""

    @property
    def added(self) -> set[str]:
        """Data files and files of vectors."""
        return set(self.adds) | {vector for vector in self.adds.values() if vector is not None}

    @property
    def new(self) -> dict[str, int | None]:
        """Objects that a block lists, with their sizes.

        All added files, except those that the commit only gives another vector.
        """
        kept = self.removed_paths
        return {name: size for name, size in self.sizes.items() if name not in kept}


class _Vector(msgspec.Struct, gc=False):
    storageType: str
    pathOrInlineDv: str


class _File(msgspec.Struct, gc=False):
    path: str
    size: Long | None = None
    deletionVector: _Vector | None = None


class _Line(msgspec.Struct, gc=False):
    add: _File | None = None
    remove: _File | None = None
    cdc: _File | None = None


_LINE = msgspec.json.Decoder(_Line)
ORIGIN = "lakeferryOrigin"
"""Key in the provenance of a forced commit: the head of the chain that replaced the content."""


def commit_names(commit: bytes, version: int) -> Named:
    """Return what a commit names; refuse files outside of the table, and unsupported features."""
    name = paths.commit(version)
    adds: dict[str, str | None] = {}
    sizes: dict[str, int | None] = {}
    removed: set[str] = set()
    changes: set[str] = set()

    def take(line: bytes) -> None:
        try:
            found = _decoded_line(line)
        except msgspec.ValidationError as error:
            raise CorruptLog("a file action can't be read", cause=str(error)) from error
        if found.add is not None:
            path, vector = decoded(found.add.path), _vector_of(found.add)
            adds[path] = vector
            sizes[path] = found.add.size
            if vector is not None:
                sizes.setdefault(vector, None)
        if found.remove is not None and not is_absolute_path(found.remove.path):
            removed.add(decoded(found.remove.path))
        if found.cdc is not None:
            path = decoded(found.cdc.path)
            changes.add(path)
            sizes[path] = found.cdc.size

    lines = Lines()
    lines.read(commit, name)
    each_line(commit, name, take)
    if lines.protocol is not None:
        features.check_carriable(lines.protocol)
    info = lines.commit_info
    said = info.values.get(ORIGIN) if info is not None else None
    return Named(
        adds,
        sizes,
        frozenset(removed),
        frozenset(changes),
        lines.metadata.id if lines.metadata is not None else None,
        _time_of(info),
        _origin_of(said),
        lines.protocol is not None,
        lines.metadata.configuration if lines.metadata is not None else None,
    )


def _decoded_line(line: bytes) -> _Line:
    try:
        return _LINE.decode(line)
    except msgspec.ValidationError:
        return decoding.convert_files(line, _Line)


def _origin_of(said: object) -> Multihash | None:
    try:
        return Multihash.parse(said) if isinstance(said, str) else None
    except InvalidInput:
        # Another writer's value, which means nothing here.
        return None


def _time_of(info: CommitInfo | None) -> int | None:
    """Return the time written inside a commit; unlike the file's time, a copy keeps it."""
    if info is None:
        return None
    plain = info.values.get("timestamp")
    fits = isinstance(plain, int) and 0 <= plain <= LATEST_MS
    own = info.in_commit_timestamp
    return own if own is not None and own >= 0 else plain if fits else None


def decoded(path: str) -> str:
    """Return the object that a path in the log refers to; refuse one outside of the table."""
    spelled = identity(path, _NOWHERE)
    is_elsewhere = leads_outside(spelled) or is_absolute_path(path) or _SCHEME.match(path)
    if is_elsewhere or path != path.strip():
        raise UnsupportedFeature(
            "the table's log names files outside of its folder",
            cause=path[:200],
            remedy="copy the table to a place of its own with 'lakeferry redirect enable', "
            "and transfer the copy",
            path=path[:200],
        )
    # An unusual spelling refers to the same file for all readers of the log.
    try:
        name = decode_name(spelled)
    except InvalidInput as bad:
        raise CorruptLog(
            "the log has a path that can't be the path of a file", cause=repr(path[:200])
        ) from bad
    check_path(name)
    return name


def _vector_of(file: _File) -> str | None:
    vector = file.deletionVector
    if vector is None:
        return None
    place = references.vector_path(vector.storageType, vector.pathOrInlineDv)
    return None if place is None else decoded(place)


class Live:
    """The objects that are live at the end of a run, of those that it named."""

    def __init__(self) -> None:
        """Start without files: versions before the run aren't known."""
        self.assumed: set[str] = set()
        """Files that a commit only gives another vector, and that the run didn't add."""
        self._vectors: dict[str, str | None] = {}
        self._uses: Counter[str] = Counter()

    def begin(self, block: DeltaBlock) -> None:
        """Add the files of a root."""
        assert block.root is not None
        vectors = block.root.vectors
        holds = set(vectors.values())
        for path in [*(ref.path or "" for ref in block.files), *block.gone]:
            if path not in holds:
                self._add(path, vectors.get(path))

    def take(self, named: Named) -> None:
        """Apply a commit."""
        for path in named.removed_paths:
            if path in named.adds and path not in self._vectors:
                self.assumed.add(path)
            self._remove(path)
        for path, vector in named.adds.items():
            self._remove(path)
            self._add(path, vector)

    def _add(self, path: str, vector: str | None) -> None:
        self._vectors[path] = vector
        if vector is not None:
            self._uses[vector] += 1

    def _remove(self, path: str) -> None:
        vector = self._vectors.pop(path, None)
        if vector is not None:
            self._uses[vector] -= 1

    def __contains__(self, path: str) -> bool:
        return path in self._vectors or self._uses[path] > 0

    def __iter__(self) -> Iterator[str]:
        yield from self._vectors
        yield from (path for path, uses in self._uses.items() if uses > 0)


def _unreadable(name: Multihash, cause: str) -> InvalidInput:
    return InvalidInput(
        f"the block {name} can't be read",
        cause=cause,
        remedy="ask the owner of the dataset: this block is damaged",
        hash=name.text,
    )


def _broken(block: DeltaBlock, cause: str) -> InvalidInput:
    return InvalidInput(
        f"the block of version {block.sequence_number} contradicts itself",
        cause=cause,
        remedy="ask the owner of the sender's dataset: its chain is damaged",
        hash=block.hash.text,
    )
