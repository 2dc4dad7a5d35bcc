"""Blocks of Delta tables from peers who send anything: read whole, or refused with an error."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lakeferry.errors import LakeferryError
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets.delta import block_checks, version_blocks
from lakeferry.transfer.datasets.delta.block_checks import Live
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.delta.version_blocks import FoundObject
from tests.support import history as h
from tests.support.history import Append, Delete, DeleteRows, History, Layout
from tests.support.transfer_fuzz import damage

CASES = 6_000
PAST = History(Layout(deletion_vectors="u", partitioned=True)).then(
    Append(3), DeleteRows(2), h.Checkpoint(), Append(1), Delete(1)
)


def _blocks() -> list[bytes]:
    whole, cut = PAST.store(), PAST.store()
    cut.delete_many([f"_delta_log/{version:020d}.json" for version in (0, 1)])
    found = []
    for store in (whole, cut):
        dataset = DeltaDataset(store, "")
        head = dataset.current()
        assert head is not None
        found += [data for data, _ in dataset.walk(head)]
    return found


def test_bytes_that_were_changed_are_read_or_refused_and_nothing_else_happens() -> None:
    chosen = random.Random(16)
    originals = _blocks()
    read = 0
    for _ in range(CASES):
        data = damage(chosen, chosen.choice(originals))
        try:
            block = version_blocks.parse_version_block(data)
            block_checks.check_version_block(block, Live())
        except LakeferryError:
            continue
        read += 1
        for ref in block.objects:
            assert ref.path is not None
            assert not ref.path.startswith(("/", "_delta_log/"))
            assert ".." not in ref.path.split("/")
    assert read


@given(
    version=st.integers(1, 2**40),
    time_ms=st.integers(0, 2**50),
    names=st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=20),
        st.tuples(st.integers(0, 2**40), st.binary(min_size=32, max_size=32) | st.none()),
        max_size=5,
    ),
    commit=st.binary(max_size=50),
)
def test_what_is_made_is_what_is_read(
    version: int, time_ms: int, names: dict[str, tuple[int, bytes | None]], commit: bytes
) -> None:
    previous = Multihash.sha3_256(b"before")
    objects = [(name, FoundObject(*found)) for name, found in names.items()]
    data = version_blocks.make(version, previous, time_ms, "id", commit, objects)
    try:
        block = version_blocks.parse_version_block(data, Multihash.sha3_256(data))
    except LakeferryError:
        assert any(
            part in ("", ".", "..", "_delta_log") or "\\" in part or part.startswith(".lakeferry")
            for name in names
            for part in name.split("/")
        )
        return
    assert (block.sequence_number, block.prev_hash, block.commit) == (version, previous, commit)
    assert block.time_ns == time_ms * 1_000_000
    there = {ref.path: (ref.size_bytes, ref.hash.digest) for ref in block.files}
    assert there == {name: found for name, found in names.items() if found[1] is not None}
    assert set(block.gone) == {name for name, found in names.items() if found[1] is None}
