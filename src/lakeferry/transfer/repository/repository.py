"""A root of datasets: finds, creates and removes them.

A dataset is a folder, ``name`` or ``account/name``. One with a ``_delta_log`` is a Delta table,
one with ``refs/head`` an ODF dataset. A renamed dataset keeps its folder, so wherever a
:class:`Repository` takes a name, it is that of the folder
(:mod:`lakeferry.transfer.repository.dataset_folders` finds it).

The server's files about all datasets are in the root's own ``.lakeferry``, and those about one
dataset in a ``.lakeferry`` inside its folder, so that they are deleted with it. Delta's cleaners
don't touch names that begin with a dot.

A dataset's name is checked in :mod:`lakeferry.transfer.repository.dataset_names`.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from weakref import WeakValueDictionary

import msgspec

from lakeferry.errors import (
    CommitConflict,
    CorruptLog,
    HashMismatch,
    InvalidInput,
    LimitExceeded,
    MissingFile,
    ObjectNotFound,
    StorageUnavailable,
)
from lakeferry.redirect.received_entries import RECEIVED
from lakeferry.storage import ObjectInfo, Store, open_store
from lakeferry.storage.uris import normalise, shell_safe, split
from lakeferry.table.delta_log import wall_clock
from lakeferry.table.misnamed import is_file
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import Seed
from lakeferry.transfer.datasets.block_ranges import BlockCache
from lakeferry.transfer.datasets.dataset import DatasetFormat
from lakeferry.transfer.datasets.delta.blocks_of_log import Choose
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.delta.publishing_commits import NEXT
from lakeferry.transfer.datasets.delta.root_checkpoints import CHAIN_FOLDER
from lakeferry.transfer.datasets.odf import FOLDERS, OdfDataset
from lakeferry.transfer.datasets.stored_chain import HEAD
from lakeferry.transfer.repository.dataset_folders import DatasetFolders
from lakeferry.transfer.repository.dataset_names import (
    DELTA_LOG,
    OWN_FOLDER,
    SEGMENT,
    WORDS_BEHIND,
    DatasetName,
)
from lakeferry.transfer.repository.push_records import NameClaim, claim_of, is_push_claimed
from lakeferry.transfer.repository.table_heads import Heads

ROOT_MARK = f"{OWN_FOLDER}/root.json"
"""The file that shows that a server was started on a root; see :func:`check_root`."""
_LARGEST_RECORD_BYTES = 4096
_MOST_TABLES = 1_000
_CACHED_BYTES = 48 << 20
_PARTS = frozenset({*FOLDERS.values(), "blocks", "refs"})
DAMAGED = (CorruptLog, HashMismatch, InvalidInput, LimitExceeded, MissingFile)
"""The errors of a chain that can't be followed."""
_LAST = "\U0010ffff"
_PROPOSALS = 3


class Visibility(Enum):
    """Whether clients without a token may read a dataset."""

    PRIVATE = "private"
    PUBLIC = "public"


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who may see a dataset. With a ``head``, it counts only if that is the dataset's head."""

    visibility: Visibility
    head: str | None = None


_RECORD_DECODER = msgspec.json.Decoder(_Record)


class Repository:
    """The datasets below the root of a store."""

    def __init__(
        self,
        store: Store,
        choose: Choose | None = None,
        *,
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        """Use a store; ``choose`` returns the engine for digests. No request is sent yet."""
        self.store = store
        self.folders = DatasetFolders(store, clock)
        """Which name leads to which folder."""
        self._clock = clock
        self._choose = choose
        self.heads: Heads[DatasetName] = Heads(lambda name: self.delta(name).current())
        """Blocks of Delta tables, kept for a server with many clients."""
        # Weak: a table is kept while it is in use, so that all its users share one lock.
        self._tables: WeakValueDictionary[str, DeltaDataset] = WeakValueDictionary()
        self._lately: OrderedDict[str, DeltaDataset] = OrderedDict()
        self._tables_lock = threading.Lock()
        self._adopting = threading.Lock()
        self._has_adopted = False
        self._blocks = BlockCache(_CACHED_BYTES)

    def probe(self) -> None:
        """Check that the root can be written to and that the store obeys conditional writes.

        A store that lets two writers win would lose pushes, and is refused with
        ``StorageUnavailable``. The files written for the check are deleted.
        """
        store, name = self.store, f"{OWN_FOLDER}/probe-{uuid.uuid4().hex}"
        try:
            heeds = (
                store.swap(name, None, b"first")
                and not store.swap(name, None, b"second")
                and not store.put_if_absent(name, b"second")
                and not store.swap(name, b"other", b"second")
                and store.swap(name, b"first", b"third")
                and not store.swap(name, b"first", b"fourth")
                and store.get(name) == b"third"
            )
        finally:
            store.delete_many([name])
        if not heeds:
            raise StorageUnavailable(
                f"{store.uri} can't prevent one writer from overwriting another",
                cause="the store ignored the condition of a conditional put",
                remedy="use a store with working conditional puts (If-Match, If-None-Match)",
                uri=store.uri,
            )

    def mark(self) -> None:
        """Write a file that makes the root exist: an object store has no empty folders."""
        self.store.put_if_absent(ROOT_MARK, b"{}")

    def kind(self, name: DatasetName) -> DatasetFormat | None:
        """Return the kind of a dataset, or ``None`` if it doesn't exist."""
        if self.store.exists(f"{name}/{HEAD}"):
            return DatasetFormat.ODF
        if not is_table(self.store, name.text):
            return None
        if not is_only_marked(self.store, name.text):
            return DatasetFormat.DELTA
        # The mark of a push that was abandoned doesn't block the name. A push that continues
        # checks before its commit that the name is still free.
        return (
            DatasetFormat.DELTA if is_push_claimed(self.store, name.text, self._clock()) else None
        )

    def claim_of(self, name: DatasetName) -> NameClaim | None:
        """Return the claim of a name whose dataset doesn't exist yet, or ``None``."""
        if self.store.exists(f"{name}/{HEAD}") or not is_only_marked(self.store, name.text):
            return None
        return claim_of(self.store, name.text, self._clock())

    def odf(self, name: DatasetName) -> OdfDataset:
        """Return an ODF dataset, existing or not."""
        return OdfDataset(self.store, name.text, self._blocks)

    def delta(self, name: DatasetName) -> DeltaDataset:
        """Return a Delta table, existing or not; concurrent callers get the same object."""
        with self._tables_lock:
            table = self._tables.get(name.text)
            if table is None:
                table = DeltaDataset(self.store, name.text, self._choose, cache=self._blocks)
                self._tables[name.text] = table
            self._lately[name.text] = table
            self._lately.move_to_end(name.text)
            if len(self._lately) > _MOST_TABLES:
                self._lately.popitem(last=False)
            return table

    def dataset(self, name: DatasetName, kind: DatasetFormat) -> OdfDataset | DeltaDataset:
        """Return a dataset of a kind, existing or not."""
        return self.odf(name) if kind is DatasetFormat.ODF else self.delta(name)

    def visibility(self, name: DatasetName) -> Visibility:
        """Return who may see a dataset; private if the record is missing or unclear."""
        _, record = self._visibility_record(name)
        # Of a damaged head nobody knows whether it is the record's.
        with suppress(CorruptLog):
            if record is not None and self._counts(name, record):
                return record.visibility
        return Visibility.PRIVATE

    def _visibility_record(self, name: DatasetName) -> tuple[bytes | None, _Record | None]:
        try:
            data = self.store.get_range(_record(name), 0, _LARGEST_RECORD_BYTES)
        except ObjectNotFound:
            return None, None
        try:
            return data, _RECORD_DECODER.decode(data)
        except msgspec.MsgspecError:
            return data, None

    def _counts(self, name: DatasetName, record: _Record) -> bool:
        if record.head is None:
            return True
        heads = [self.odf(name).head(), self.delta(name).head()]
        return any(head is not None and head.text == record.head for head in heads)

    def propose_visibility(
        self, name: DatasetName, head: Multihash, visibility: Visibility
    ) -> None:
        """Write who may see a new dataset before its head is set; it counts if ``head`` wins.

        So a client that loses the race to create the dataset has no effect, and a crash between
        the two writes loses nothing. An existing dataset's record stays.
        """
        mine = msgspec.json.encode(_Record(visibility, head.text))
        for _ in range(_PROPOSALS):
            there, record = self._visibility_record(name)
            is_final = record is not None and record.head is None
            if there == mine or (is_final and self.kind(name) is not None):
                return
            if self.store.swap(_record(name), there, mine):
                return

    def confirm_visibility(self, name: DatasetName) -> None:
        """Make a proposal that counts permanent; call this before moving the head."""
        there, record = self._visibility_record(name)
        if record is not None and record.head is not None and self._counts(name, record):
            final = msgspec.json.encode(_Record(record.visibility))
            self.store.swap(_record(name), there, final)

    def set_visibility(self, name: DatasetName, visibility: Visibility) -> None:
        """Set who may see an existing dataset.

        For a new one, call it after its head is set: a client that loses the race must not.
        """
        self.store.put(_record(name), msgspec.json.encode(_Record(visibility)))

    def check_free(self, name: DatasetName, kind: DatasetFormat = DatasetFormat.ODF) -> None:
        """Refuse a new dataset inside another one, or around others, with ``CommitConflict``.

        Objects left by an unfinished push to the same name don't matter.
        """
        if name.account is not None:
            if self.kind(DatasetName(name.account)) is not None:
                cause = f"{name.account!r} is a dataset, and not an account"
                raise _taken(name, cause, DatasetName(name.account))
            return
        if kind is DatasetFormat.DELTA:
            self._check_no_account(name)
            return
        lead, after = f"{name}/", None
        while (found := next(self.store.list(lead, start_after=after), None)) is not None:
            below = found.path.removeprefix(lead).partition("/")[0]
            if below not in WORDS_BEHIND and below != OWN_FOLDER:
                cause = f"{name.text!r} is an account, or has {below!r} in it"
                inside = f"{name}/{below}"
                raise _taken(name, cause, DatasetName.parse(inside) if is_name(inside) else name)
            after = f"{lead}{below}/{_LAST}"

    def datasets_below(self, folder: DatasetName) -> Iterator[DatasetName]:
        """Yield the folders directly below a folder that are datasets."""
        for below in subfolders(self.store, f"{folder}/"):
            inside = f"{folder}/{below}"
            if is_name(inside) and self.kind(DatasetName(inside)) is not None:
                yield DatasetName(inside)

    def _check_no_account(self, name: DatasetName) -> None:
        """Refuse a table around datasets; its own files may have any names."""
        lead = f"{name}/"
        names = (found.path.removeprefix(lead) for found in self.store.list(lead))
        folders = {below for below, slash, _ in (path.partition("/") for path in names) if slash}
        for folder in sorted(folders):
            if not SEGMENT.fullmatch(folder) or folder in (*WORDS_BEHIND, DELTA_LOG):
                continue
            inside = DatasetName(f"{name}/{folder}")
            if self.kind(inside) is not None:
                raise _taken(name, f"{name.text!r} is an account with {folder!r} in it", inside)

    def claim_id(self, name: DatasetName, seed: Seed) -> None:
        """Record that a dataset has this name, or raise ``CommitConflict`` if it has another.

        The error's ``dataset_alias`` is that name. A claim holds as long as the dataset exists:
        a client that creates one claims its id before its head is set, and once more after it,
        to be sure that no other took it in between. Datasets that were copied below the root by
        hand are claimed before the first new one.
        """
        self._adopt()
        path, mine = _claim(seed), name.text.encode()
        if self.store.put_if_absent(path, mine):
            return
        there = self.store.get(path)
        if there == mine:
            return
        other = DatasetName.parse(there.decode())
        folders = self.folders.read()
        is_gone = other.text in folders.deleted or self.odf(other).seed() != seed
        if is_gone and self.store.swap(path, there, mine):
            return
        raise CommitConflict(
            "the repository has this dataset under another name",
            cause=f"its id is {seed.did}",
            dataset_id=seed.did,
            dataset_alias=folders.name_of(other.text),
        )

    def _adopt(self) -> None:
        """Claim the ids of datasets that weren't pushed, once per start of a server."""
        with self._adopting:
            if self._has_adopted:
                return
            claims = [found.path for found in self.store.list(f"{OWN_FOLDER}/ids/")]
            claimed = {name.decode(errors="replace") for name in self.store.get_many(claims)}
            deleted = self.folders.read().deleted
            for name in odf_folders(self.store):
                if name in deleted:
                    continue
                # A damaged dataset has no readable id.
                with suppress(*DAMAGED):
                    seed = None if name in claimed else self.odf(DatasetName(name)).seed()
                    if seed is not None:
                        self.store.put_if_absent(_claim(seed), name.encode())
            self._has_adopted = True


def odf_folders(store: Store) -> Iterator[str]:
    """Yield the folders that are ODF datasets, or that a push began to make one."""
    for first in _folders(store, ""):
        if not is_name(first) or is_table(store, first):
            continue
        inside = set(_folders(store, f"{first}/"))
        if inside & _PARTS:
            yield first
            continue
        for second in sorted(inside):
            name = f"{first}/{second}"
            if not is_name(name) or is_table(store, name):
                continue
            if not _PARTS.isdisjoint(_folders(store, f"{name}/")):
                yield name


def is_table(store: Store, folder: str) -> bool:
    """Return True if a folder has a Delta log."""
    return next(store.list(f"{folder}/{DELTA_LOG}/"), None) is not None


def is_only_marked(store: Store, folder: str) -> bool:
    """Return True if a folder's log has only what an unfinished first transfer left."""
    listed = (found.path for found in store.list(f"{folder}/{DELTA_LOG}/"))
    first = next((path for path in listed if path != f"{folder}/{RECEIVED}"), "")
    if not first.startswith(f"{folder}/{CHAIN_FOLDER}/"):
        return False
    kept = {found.path for found in store.list(f"{folder}/{CHAIN_FOLDER}/refs/")}
    return not kept & {f"{folder}/{NEXT}", f"{folder}/{CHAIN_FOLDER}/{HEAD}"}


def record_without_dataset(store: Store, folder: str, now_ms: int) -> str | None:
    """Return the path of what a first push recorded of a dataset that doesn't exist, if it did."""
    name = DatasetName.parse(folder)
    if Repository(store, clock=lambda: now_ms).kind(name) is not None:
        return None
    path = _record(name)
    return path if store.exists(path) else None


def id_claims(store: Store) -> Iterator[tuple[ObjectInfo, str]]:
    """Yield the claims of dataset ids, each with the name that it was claimed for."""
    for info in store.list(f"{OWN_FOLDER}/ids/"):
        with suppress(ObjectNotFound, UnicodeDecodeError):
            yield info, store.get(info.path).decode()


def marked_folders(store: Store) -> Iterator[str]:
    """Yield the folders that were to become Delta tables, and aren't yet."""
    for first in _folders(store, ""):
        if not is_name(first):
            continue
        if is_only_marked(store, first):
            yield first
        elif not is_table(store, first):
            names = (f"{first}/{second}" for second in _folders(store, f"{first}/"))
            yield from (name for name in names if is_name(name) and is_only_marked(store, name))


def is_name(text: str) -> bool:
    """Return True if a dataset could have this name."""
    try:
        DatasetName.parse(text)
    except InvalidInput:
        return False
    return True


def _folders(store: Store, lead: str) -> Iterator[str]:
    """Yield the non-empty folders directly below a folder, without listing their objects."""
    after: str | None = None
    while (found := next(store.list(lead, start_after=after), None)) is not None:
        below, slash, _ = found.path.removeprefix(lead).partition("/")
        after = f"{lead}{below}/{_LAST}" if slash else found.path
        if slash:
            yield below


def subfolders(store: Store, lead: str) -> Iterator[str]:
    """Yield the folders directly below a folder; on local disk empty ones, too, and no links."""
    found = store.folders(lead)
    if found is None:
        yield from _folders(store, lead)
        return
    # On local disk a folder's name need not be UTF-8.
    for each in sorted(found, key=os.fsencode):
        yield each.removeprefix(lead).rstrip("/")


def _claim(seed: Seed) -> str:
    return f"{OWN_FOLDER}/ids/{seed.dataset_id.hex()}"


def _record(name: DatasetName) -> str:
    return f"{name}/{OWN_FOLDER}/dataset.json"


def _taken(name: DatasetName, cause: str, other: DatasetName) -> CommitConflict:
    return CommitConflict(
        f"there can't be a dataset named {name}",
        cause=cause,
        dataset_alias=name.text,
        other=other.text,
    )


def check_root(store: Store) -> None:
    """Raise ``ObjectNotFound`` if there is no server's root: nothing exists, or a file.

    An empty folder is a root. In an object store a root exists once a server was started on it.
    """
    if next(store.list(""), None) is not None or (store.is_occupied() and not is_file(store)):
        check_is_no_table(store)
        return
    if is_file(store):
        raise ObjectNotFound(
            f"there is no server's root at {store.uri}",
            cause="it is a file",
            remedy="give the folder that is the --root of 'lakeferry serve'",
            location=store.uri,
        )
    raise ObjectNotFound(
        f"there is no server's root at {store.uri}",
        cause="nothing is there",
        remedy="use the --root of 'lakeferry serve'; a new root is made by 'lakeferry "
        f"serve --root {shell_safe(store.uri)}'",
        location=store.uri,
    )


def check_is_no_table(store: Store) -> None:
    """Refuse a Delta table as a root: its VACUUM would delete the datasets in it."""
    # Commits and checkpoints begin with twenty digits; a dataset may have the folder's name.
    first = next(store.list(f"{DELTA_LOG}/0"), None)
    if first is None or not first.path[len(DELTA_LOG) + 1 :][:20].isdecimal():
        return
    raise InvalidInput(
        f"{store.uri} can't be a server's root",
        cause="it is a Delta table, whose VACUUM would delete the datasets that are pushed there",
        remedy="give the folder above it, or another one: in a root each dataset has a folder of "
        "its own",
        location=store.uri,
    )


def open_root(root: str, storage_options: Mapping[str, str]) -> Store:
    """Return the store of a server's root; no request is sent yet."""
    uri = normalise(root)
    if split(uri).scheme == "lakefs":
        raise InvalidInput(
            f"{uri} is read-only, but a server writes below its root",
            remedy="give --root a folder, or a place in an object store",
        )
    return open_store(uri, storage_options)
