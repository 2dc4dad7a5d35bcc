"""Blocks, chains and archives: what holds for all of them, and for whatever only looks like one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.errors import LakeferryError
from lakeferry.transfer.chain import odf_blocks, validation
from lakeferry.transfer.chain.hashes import Algorithm, Multihash
from lakeferry.transfer.chain.odf_blocks import Block
from lakeferry.transfer.wire import tarball
from tests.support import odf, transfer_fuzz
from tests.support.odf import AddData, Chain, Checkpoint, ExecuteTransform, SetInfo, Slice
from tests.support.shares import Share

CASES = 20_000
MEASURED_CASES = 2_000

numbers = st.integers(0, (1 << 63) - 1)
hashes = st.binary(min_size=32, max_size=32).map(
    lambda digest: Multihash(Algorithm.SHA3_256, digest)
)
times = st.builds(
    odf.TIMESTAMP.pack,
    st.integers(-262_143, 262_142),
    st.integers(1, 365),
    st.integers(0, 86_399),
    st.integers(0, 999_999_999),
)
slices = st.builds(
    lambda name, ends, size, logical: Slice(name, min(ends), max(ends), size, logical),
    hashes,
    st.tuples(numbers, numbers),
    numbers,
    st.none() | hashes,
)
data_fields: dict[str, st.SearchStrategy[Any]] = {
    "prev_checkpoint": st.none() | hashes,
    "prev_offset": st.none() | numbers,
    "new_data": st.none() | slices,
    "new_checkpoint": st.none() | st.builds(Checkpoint, hashes, numbers),
    "new_watermark": st.none() | times,
}
events = st.one_of(
    st.builds(AddData, **data_fields, source_state=st.none() | st.tuples(*[st.text()] * 3)),
    st.builds(
        ExecuteTransform, **data_fields, inputs=st.lists(st.just(odf.DATASET_ID), max_size=3)
    ),
    st.builds(odf.SeedEvent, st.binary(min_size=32, max_size=32).map(lambda key: b"\xed\1" + key)),
    st.builds(SetInfo, st.none() | st.text(), st.none() | st.lists(st.text(), max_size=3)),
    st.builds(odf.Other, st.integers(4, 13)),
)


@given(
    event=events,
    prev=st.none() | hashes,
    number=numbers,
    time=times,
    version=st.sampled_from(odf_blocks.READABLE_VERSIONS),
)
def test_a_block_is_read_as_the_runtime_reads_it(
    event: odf.Event, prev: Multihash | None, number: int, time: bytes, version: int
) -> None:
    data = odf.block(event, prev=prev, sequence_number=number, time=time, version=version)
    block = odf_blocks.parse_odf_block(data, Multihash.sha3_256(data))
    assert block == odf.naive(data)
    assert (block.prev_hash, block.sequence_number) == (prev, number)
    if isinstance(event, AddData | ExecuteTransform):
        parts = (event.new_data, event.new_checkpoint)
        assert [(ref.hash, ref.size_bytes) for ref in block.objects] == [
            (part.physical_hash, part.size) for part in parts if part
        ]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_block_or_an_error_with_a_code(data: bytes) -> None:
    for content in (data, odf.manifest(data)):
        with suppress(LakeferryError):
            assert odf_blocks.parse_odf_block(content) == odf.naive(content)


@given(st.text() | st.from_regex(r"[fFzu][0-9A-Za-z_-]{40,72}", fullmatch=True))
def test_any_text_is_a_hash_in_one_of_its_spellings_or_refused(text: str) -> None:
    with suppress(LakeferryError):
        assert text in map(Multihash.parse(text).spelled, "fFzu")


@given(hashes, st.sampled_from("fFzu"))
def test_a_hash_survives_each_of_its_spellings(name: Multihash, base: str) -> None:
    assert Multihash.parse(name.spelled(base)) == name == Multihash.from_bytes(name.encoded)


# --- Chains -----------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[Multihash, Block]]:
    """Draw a good chain: rows, checkpoints that are new or carried on, and other events."""
    made = Chain()
    for step in draw(st.lists(st.sampled_from(["info", "rows", "checkpoint", "none"]), max_size=8)):
        if step == "info":
            made.add(SetInfo(str(len(made.blocks))))
        else:
            checkpoint = str(len(made.blocks)) if step == "checkpoint" else None
            made.append(0 if step == "none" else draw(st.integers(1, 5)), checkpoint=checkpoint)
    return [(name, odf_blocks.parse_odf_block(data, name)) for name, data in made.blocks]


@given(chains(), st.data())
def test_a_chain_is_the_same_in_parts_as_in_one(
    made: list[tuple[Multihash, Block]], data: st.DataObject
) -> None:
    whole = validation.extend_all(None, made)
    assert whole is not None
    assert whole.head == validation.ChainHead.of(made[-1][1])
    cut = data.draw(st.integers(0, len(made)))
    assert validation.extend_all(validation.extend_all(None, made[:cut]), made[cut:]) == whole
    assert validation.state_at(block for _, block in reversed(made)) == whole


@given(chains(), st.data())
def test_blocks_in_any_other_order_are_no_chain(
    made: list[tuple[Multihash, Block]], data: st.DataObject
) -> None:
    """Nor with one of them twice, nor with one left out, the last one aside."""
    index = data.draw(st.integers(0, len(made) - 1))
    other = data.draw(st.permutations(made))
    again = [*made[: index + 1], *data.draw(st.permutations(made[: index + 1]))]
    without = [*made[:index], *made[index + 1 :]]
    for wrong in (other, again, without):
        if wrong == made[: len(wrong)]:
            continue
        with pytest.raises(LakeferryError) as refused:
            validation.extend_all(None, wrong)
        assert refused.value.code in ("invalid_input", "diverged")


# --- Archives ---------------------------------------------------------------------------------


@given(st.dictionaries(hashes, st.binary(max_size=2_000), max_size=8), st.booleans())
def test_an_archive_has_what_was_put_into_it(content: dict[Multihash, bytes], gzip: bool) -> None:
    entries = list(content.items())
    payload = b"".join(tarball.pack_blocks(entries, gzip=gzip))
    assert list(tarball.unpack(payload, gzip=gzip)) == entries
    assert payload == b"".join(tarball.pack_blocks(entries, gzip=gzip))


@given(st.binary(max_size=2_000), st.booleans())
def test_any_bytes_are_an_archive_or_an_error_with_a_code(data: bytes, gzip: bool) -> None:
    with suppress(LakeferryError):
        list(tarball.unpack(data, gzip=gzip))


# --- Damage -----------------------------------------------------------------------------------


def test_damage_is_refused_or_read_as_it_is(share: Share) -> None:
    cases = share.block(CASES)
    report = transfer_fuzz.run(cases.start, len(cases))
    assert not report.failures, "\n\n".join(report.failures[:10])
    # Cases that are all refused, or all read, would show nothing.
    for kind in transfer_fuzz.KINDS:
        assert report.outcomes[kind, "read"] >= 5 // share.of
        assert report.outcomes[kind, "invalid_input"] >= 1_000 // share.of
    seen = {code for _, code in report.outcomes}
    expected = {"read", "invalid_input", "limit_exceeded", "incompatible_version"}
    assert seen == expected if share.is_whole else seen <= expected


def test_damage_takes_no_memory(share: Share) -> None:
    cases = share.block(MEASURED_CASES)
    report = transfer_fuzz.run(CASES + cases.start, len(cases), measured=True)
    assert not report.failures, "\n\n".join(report.failures[:10])


def test_a_case_is_its_number() -> None:
    for seed in range(len(transfer_fuzz.KINDS)):
        assert transfer_fuzz.damaged(seed) == transfer_fuzz.damaged(seed)


def test_the_verdict_notices_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = transfer_fuzz.Case("block", transfer_fuzz.samples()[0])
    assert transfer_fuzz.verdict(whole) == ("read", None)
    parse = odf_blocks.parse_odf_block
    monkeypatch.setattr(
        odf_blocks, "parse_odf_block", lambda data: replace(parse(data), sequence_number=8)
    )
    outcome, wrong = transfer_fuzz.verdict(whole)
    assert outcome == "read"
    assert "the runtime says" in (wrong or "")

    def fail(data: bytes) -> Block:
        raise IndexError("out of range")

    monkeypatch.setattr(odf_blocks, "parse_odf_block", fail)
    outcome, wrong = transfer_fuzz.verdict(whole)
    assert outcome == "failed"
    assert "IndexError" in (wrong or "")


def test_the_verdict_notices_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_fuzz, "MEMORY_BYTES", 100)
    assert "bytes of memory" in transfer_fuzz.run(0, 1, measured=True).failures[0]
