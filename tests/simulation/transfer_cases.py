"""What is true of a dataset's files at any time, said without the code that is tested.

Blocks are read by the FlatBuffers runtime, and hashed by the standard library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.transfer.chain.odf_blocks import Block, ObjectKind
from lakeferry.transfer.repository.garbage_collection import collect
from tests.support import odf
from tests.support.stores import DictStore

WEEKS_MS = 30 * 24 * 3600 * 1000

FOLDERS = {ObjectKind.DATA_SLICE: "data", ObjectKind.CHECKPOINT: "checkpoints"}


def name_of(data: bytes) -> str:
    return "f1620" + hashlib.sha3_256(data).hexdigest()


def chain_of(files: Mapping[str, bytes], head: str | None = None) -> list[Block]:
    """Return the blocks that lead to the head, newest first; each has its hash and its number."""
    current: str | None = head or files["refs/head"].decode()
    found: list[Block] = []
    while current is not None:
        data = files[f"blocks/{current}"]
        assert name_of(data) == current
        block = odf.naive(data)
        assert not found or block.sequence_number == found[-1].sequence_number - 1
        found.append(block)
        current = block.prev_hash.text if block.prev_hash else None
    assert found[-1].sequence_number == 0
    assert found[-1].seed is not None
    check_objects(files, found)
    return found


def objects_named(blocks: Sequence[Block]) -> set[str]:
    """Return the names of the objects that blocks name."""
    return {f"{FOLDERS[ref.kind]}/{ref.hash}" for block in blocks for ref in block.objects}


def check_objects(files: Mapping[str, bytes], blocks: Sequence[Block]) -> None:
    """See that every object that blocks name is there, with its size and its hash."""
    for block in blocks:
        for ref in block.objects:
            data = files[f"{FOLDERS[ref.kind]}/{ref.hash}"]
            assert (len(data), name_of(data)) == (ref.size_bytes, ref.hash.text)


def collect_weeks_later(disk: DictStore) -> None:
    """Run garbage collection on a server's root when every push that ended counts as dead."""
    now_ms = disk.clock() + WEEKS_MS
    engine = LocalEngine(lambda _: disk, parallel=1)
    collect(disk, lambda *_: engine, grace_ms=0, clock=lambda: now_ms)
