"""Descriptors of deletion vectors, by the protocol's own examples."""

from __future__ import annotations

import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log.deletion_vectors import (
    DeletionVector,
    relative_descriptor,
    relative_path,
    z85_decode,
    z85_encode,
)

DESCRIPTOR = "ab^-aqEH.-t@S}K{vb[*k^"
PATH = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
INLINE = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"


def test_a_relative_descriptor_leads_to_its_path() -> None:
    assert relative_path(DESCRIPTOR) == PATH
    assert relative_descriptor(PATH) == DESCRIPTOR
    assert relative_path(DESCRIPTOR[2:]) == PATH[3:]


def test_a_prefix_is_encoded_as_paths_are() -> None:
    assert relative_path("a b" + DESCRIPTOR[2:]).startswith("a%20b/")


@pytest.mark.parametrize(
    ("folder", "encoded"),
    [
        ("v=1/a@b,c+d;e", "v=1/a@b,c+d;e"),
        ("a/10:30", "a/10:30"),
        ("10:30/a", "10%3A30/a"),
        ("s3:", "s3%3A"),
        ("100%/ü", "100%25/%C3%BC"),
        ("a/./b//c", "a/./b//c"),
    ],
)
def test_any_folder_leads_to_a_path_and_back(folder: str, encoded: str) -> None:
    path = f"{encoded}/{PATH[3:]}"
    assert relative_path(folder + DESCRIPTOR[2:]) == path
    assert relative_descriptor(path) == folder + DESCRIPTOR[2:]


@pytest.mark.parametrize(
    "path",
    ["x/y.bin", "deletion_vector_1.bin"]
    + [
        f"{folder}/{PATH[3:]}" for folder in ("", "%61", "%c3%bc", "ü", "a b", "s3:", "%FF", "100%")
    ],
)
def test_other_paths_have_no_relative_descriptor(path: str) -> None:
    assert relative_descriptor(path) is None


def test_the_inline_example_is_forty_bytes() -> None:
    assert len(z85_decode(INLINE)) == 40
    assert z85_encode(z85_decode(INLINE)) == INLINE
    assert z85_encode(b"\x86\x4f\xd2\x6f\xb5\x59\xf7\x5b") == "HelloWorld"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("abcd", "4 characters"),
        ("abcd~", "'~' isn't a character"),
        # Padding, to a library that some engines use; to others it is a number that wraps around.
        ("00000##093", "'##093' stands for more than four bytes"),
        ("abcd\u00e9", "'\u00e9' isn't a character"),
    ],
)
def test_text_that_is_no_base_85(text: str, why: str) -> None:
    with pytest.raises(CorruptLog, match=why) as refused:
        z85_decode(text)
    assert refused.value.remedy


@pytest.mark.parametrize("descriptor", ["", "short", "~" * 20, "#" * 20])
def test_descriptors_that_lead_nowhere(descriptor: str) -> None:
    with pytest.raises(CorruptLog):
        relative_path(descriptor)


def test_the_unique_id_has_the_offset_where_there_is_one() -> None:
    assert DeletionVector("u", DESCRIPTOR, 4, 40, 6).unique_id == f"u{DESCRIPTOR}@4"
    assert DeletionVector("u", DESCRIPTOR, 0, 40, 6).unique_id == f"u{DESCRIPTOR}@0"
    assert DeletionVector("i", INLINE, None, 40, 6).unique_id == f"i{INLINE}"
