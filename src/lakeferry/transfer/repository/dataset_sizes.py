"""Keeps the sizes of ODF datasets, so that a list of datasets reads no chain.

``<dataset>/.lakeferry/size.json`` has the bytes of all objects of a chain, and the chain's head. It
counts while that is the dataset's head. A server writes it after a push if it knew the size before
the push, or if the push brought the whole chain. A dataset that came another way has no known size.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from lakeferry.errors import LakeferryError, ObjectNotFound
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets.dataset import Judged
from lakeferry.transfer.repository.dataset_names import OWN_FOLDER, DatasetName
from lakeferry.transfer.repository.repository import Repository

_LARGEST_SIZE_FILE_BYTES = 4096


class _DatasetSize(msgspec.Struct, frozen=True):
    head: str
    bytes: int


_DATASET_SIZE_DECODER = msgspec.json.Decoder(_DatasetSize)


def kept_size(repository: Repository, folder: DatasetName, head: Multihash) -> int | None:
    """Return the bytes of a dataset's objects; ``None`` if they aren't known for this head."""
    try:
        data = repository.store.get_range(_path(folder), 0, _LARGEST_SIZE_FILE_BYTES)
        found = _DATASET_SIZE_DECODER.decode(data)
    except (ObjectNotFound, msgspec.MsgspecError):
        return None
    return found.bytes if found.head == head.text else None


def keep_size(
    repository: Repository,
    folder: DatasetName,
    before: Multihash | None,
    head: Multihash,
    judged: Judged,
) -> None:
    """Write the size of a dataset whose chain has grown; the size isn't worth an error."""
    with suppress(LakeferryError):
        known, there = 0, set()
        if before is not None and not judged.begins:
            kept = kept_size(repository, folder, before)
            if kept is None:
                return
            known = kept
            # A checkpoint that doesn't change is named again by the next block.
            dataset = repository.odf(folder)
            there = {ref.hash for ref in dataset.parse(dataset.block(before), before).objects}
        new = sum(ref.size_bytes for ref in judged.required if ref.hash not in there)
        data = msgspec.json.encode(_DatasetSize(head.text, known + new))
        repository.store.put(_path(folder), data)


def _path(folder: DatasetName) -> str:
    return f"{folder}/{OWN_FOLDER}/size.json"
