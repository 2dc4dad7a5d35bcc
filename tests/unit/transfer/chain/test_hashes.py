"""Hashes as names: four spellings, one value, and nothing that only looks like one."""

from __future__ import annotations

import hashlib

import pytest

from lakeferry.errors import HashMismatch, InvalidInput
from lakeferry.transfer.chain.hashes import Algorithm, Digest, Multihash, check_hash, hash_stream

DATA = b"some bytes"
NAME = Multihash.sha3_256(DATA)
OTHER = Multihash.sha3_256(b"other bytes")
HEX = hashlib.sha3_256(DATA).hexdigest()


def test_our_spelling_is_the_one_of_the_protocol() -> None:
    assert NAME.text == str(NAME) == f"f1620{HEX}"
    assert len(NAME.text) == 69
    assert NAME.encoded == b"\x16\x20" + hashlib.sha3_256(DATA).digest()


@pytest.mark.parametrize("base", "fFzu")
@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_spelling_of_a_hash_is_the_same_hash(base: str, algorithm: Algorithm) -> None:
    for digest in (NAME.digest, bytes(32), b"\xff" * 32):
        name = Multihash(algorithm, digest)
        assert Multihash.parse(name.spelled(base)) == name
        assert Multihash.from_bytes(name.encoded) == name


def test_the_spellings_of_others() -> None:
    """Known texts of the sha2-256 of ``multihash``, from the multiformats' own documents."""
    digest = "9cbc07c3f991725836a3aa2a581ca2029198aa420b9d99bc0e131d9f3e2cbe47"
    name = Multihash(Algorithm.SHA2_256, bytes.fromhex(digest))
    assert hashlib.sha256(b"multihash").hexdigest() == digest
    assert Multihash.parse(f"F1220{digest.upper()}") == name
    assert Multihash.parse("zQmYtUc4iTCbbfVSDNKvtQqrfyezPPnFvE33wFmutw9PBBk") == name
    assert Multihash.parse("uEiCcvAfD-ZFyWDajqipYHKICkZiqQgudmbwOEx2fPiy-Rw") == name


LOOKS = {
    "nothing": "",
    "only f": "f",
    "only z": "z",
    "only u": "u",
    "no base": HEX,
    "half a byte more": f"f1620{HEX}0",
    "a byte more": f"f1620{HEX}00",
    "a byte less": f"f1620{HEX[:-2]}",
    "no digit": f"f1620{HEX[:-1]}g",
    "a space behind it": f"f1620{HEX} ",
    "a space before it": f" f1620{HEX}",
    "a space in it": f"f16 20{HEX[:-1]}",
    "a line's end": f"f1620{HEX}\n",
    "upper case as lower": f"f1620{HEX.upper()}",
    "lower case as upper": f"F1620{HEX}",
    "an unknown algorithm": f"f1720{HEX}",
    "a long digest": f"f1640{HEX}{HEX}",
    "a short digest": f"f1610{HEX[:32]}",
    "an algorithm with a byte more than it needs": f"f960020{HEX}",
    "another base": f"b1620{HEX}",
    "base64 with padding": f"{NAME.spelled('u')}=",
    "base64 with another letter": f"{NAME.spelled('u')[:20]}+{NAME.spelled('u')[20:]}",
    "base64 with loose bits": f"{NAME.spelled('u')[:-1]}x",
    "base58 with another letter": f"{NAME.spelled('z')}0",
    "base58 with a zero more": f"z1{NAME.spelled('z')[1:]}",
    "base58 of zeros": "z" + "1" * 34,
    "a path": "../refs/head",
    "an absolute path": "/etc/passwd",
    "a path behind it": f"f1620{HEX}/../x",
    "other digits": "f1620" + "٣" * 64,
    "a very long one": "z" * 1_000_000,
}


@pytest.mark.parametrize("text", LOOKS.values(), ids=LOOKS)
def test_what_only_looks_like_a_hash_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Multihash.parse(text)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "data",
    [b"", NAME.digest, NAME.encoded + b"\0", NAME.encoded[:-1], b"\x16\x1f" + NAME.digest[1:]],
)
def test_bytes_that_are_no_multihash_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        Multihash.from_bytes(data)


def test_a_digest_of_another_length_is_no_hash() -> None:
    with pytest.raises(InvalidInput):
        Multihash(Algorithm.SHA3_256, b"short")


def test_a_stream_has_the_hash_of_its_bytes_together() -> None:
    digest = Digest()
    for piece in (DATA[:3], bytearray(DATA[3:5]), memoryview(DATA[5:])):
        digest.update(piece)
    assert (digest.multihash(), digest.size_bytes) == (NAME, len(DATA))
    digest.check(NAME)
    assert hash_stream([DATA[:1], b"", DATA[1:]]) == NAME
    assert hash_stream([]) == Multihash.sha3_256(b"")


def test_a_view_of_wider_items_counts_in_bytes() -> None:
    digest = Digest()
    digest.update(memoryview(bytes(64)).cast("Q"))
    assert (digest.multihash(), digest.size_bytes) == (Multihash.sha3_256(bytes(64)), 64)


def test_sha2_256_can_be_checked_too_and_a_hash_of_rows_can_not() -> None:
    digest = Digest(Algorithm.SHA2_256)
    digest.update(DATA)
    assert digest.multihash().digest == hashlib.sha256(DATA).digest()
    with pytest.raises(InvalidInput):
        Digest(Algorithm.ARROW0_SHA3_256)


def test_other_bytes_are_a_mismatch_that_says_both_names() -> None:
    with pytest.raises(HashMismatch) as refused:
        check_hash(OTHER, NAME)
    assert refused.value.code == "hash_mismatch"
    assert refused.value.fields == {"expected": NAME.text, "actual": OTHER.text}
    # The same digest by another algorithm is another name.
    with pytest.raises(HashMismatch):
        check_hash(Multihash(Algorithm.SHA2_256, NAME.digest), NAME)
