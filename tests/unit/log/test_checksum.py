"""Checksum files and ``_last_checkpoint``: helpers that are believed only as far as they go."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log.actions import DomainMetadata, Metadata, Protocol, Txn
from lakeferry.log.checksum import Checksum, decode_checksum, encode_checksum, successor
from lakeferry.log.last_checkpoint import (
    Hint,
    canonical_json,
    decode_hint,
    encode_hint,
    json_checksum,
)
from tests.support import history

EXAMPLE = b"""{"k0":"'v 0'", "checksum": "adsaskfljadfkjadfkj", "k1":{"k2": 2, "k3": ["v3", [1, 2],
{"k4": "v4", "k5": ["v5", "v6", "v7"]}]}}"""


def test_the_canonical_form_is_that_of_the_protocol_s_example() -> None:
    assert canonical_json(EXAMPLE) == (
        '"k0"="%27v%200%27","k1"+"k2"=2,"k1"+"k3"+0="v3","k1"+"k3"+1+0=1,"k1"+"k3"+1+1=2,'
        '"k1"+"k3"+2+"k4"="v4","k1"+"k3"+2+"k5"+0="v5","k1"+"k3"+2+"k5"+1="v6",'
        '"k1"+"k3"+2+"k5"+2="v7"'
    )
    assert json_checksum(EXAMPLE) == "6a92d155a59bf2eecbd4b4ec7fd1f875"


def test_a_hint_that_somebody_else_wrote() -> None:
    assert decode_hint(history.hint(5, 9, 100, 3, 2)) == Hint(5, 9, 2, 100, 3)
    assert decode_hint(b'{"version":5,"size":9,"later":{}}') == Hint(5, 9)
    assert encode_hint(Hint(5, 9, 2, 100, 3)) == history.hint(5, 9, 100, 3, 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"version":"5","size":1}',
        b'{"version":-1,"size":1}',
        b'{"version":1.5}',
        b"\xff\xfe",
        b'{"version":5,"size":1,"checksum":"wrong"}',
        b'{"version":5,"a":' + b"[" * 100_000,
    ],
)
def test_a_hint_that_can_t_be_trusted_is_none(data: bytes) -> None:
    assert decode_hint(data) is None


STATED = Checksum(
    100,
    2,
    Metadata("1", "{}"),
    Protocol(1, 2),
    txn_id="t",
    set_transactions=(Txn("a", 1),),
    domain_metadata=(DomainMetadata("d", "{}"),),
    more={"fileSizeHistogram": {"fileCounts": [2]}},
)


def test_a_checksum_file_as_engines_write_it() -> None:
    past = history.History(history.Layout(domains=True)).then(
        history.Stream("s", 4), history.Domain("d", "x"), history.Checksum(full=True)
    )
    found = decode_checksum(past.objects()["_delta_log/00000000000000000002.crc"])
    assert found.num_files == 1
    assert found.set_transactions == (Txn("s", 4),)
    assert found.domain_metadata == (DomainMetadata("d", "x"),)
    assert set(found.more) == {"fileSizeHistogram", "allFiles"}
    assert decode_checksum(encode_checksum(found)) == found


@pytest.mark.parametrize(
    "change",
    [
        {"numFiles": None},
        {"metadata": None},
        {"protocol": {}},
        {"metadata": {"id": 1}},
        {"setTransactions": [{"appId": "a"}]},
        {"tableSizeBytes": "1"},
    ],
)
def test_a_checksum_file_that_lacks_something_is_refused(change: dict[str, object]) -> None:
    value = json.loads(encode_checksum(STATED)) | change
    with pytest.raises(CorruptLog):
        decode_checksum(json.dumps(value).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_bytes_that_are_no_checksum_file(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        decode_checksum(data)


def test_the_next_version_keeps_what_its_commit_doesn_t_change() -> None:
    protocol = Protocol(1, 7, None, ("domainMetadata",))
    after = successor(
        STATED,
        metadata=STATED.metadata,
        protocol=protocol,
        txn_id="u",
        in_commit_timestamp=5,
        txns=(Txn("a", 2), Txn("b", 1)),
        domains=(DomainMetadata("d", "{}", removed=True), DomainMetadata("e", "1")),
    )
    assert after == replace(
        STATED,
        protocol=protocol,
        txn_id="u",
        in_commit_timestamp=5,
        set_transactions=(Txn("a", 2), Txn("b", 1)),
        domain_metadata=(DomainMetadata("e", "1"),),
    )


def test_what_a_checksum_file_didn_t_say_the_next_doesn_t_either() -> None:
    silent = replace(STATED, set_transactions=None, domain_metadata=None)
    after = successor(
        silent,
        metadata=silent.metadata,
        protocol=silent.protocol,
        txn_id=None,
        in_commit_timestamp=None,
        txns=(Txn("a", 2),),
        domains=(DomainMetadata("d", ""),),
    )
    assert (after.set_transactions, after.domain_metadata) == (None, None)
