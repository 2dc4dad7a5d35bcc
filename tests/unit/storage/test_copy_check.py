"""What headers of S3 say about an object and its copy."""

from __future__ import annotations

import pytest

from lakeferry.storage.copy_check import difference, marks_of, same_md5

MD5 = '"9e107d9d372bb6826bd81d3542a419d6"'
OTHER_MD5 = '"e4d909c290d0fb1ca068ffaddf22cbd0"'
FULL, PARTS = "FULL_OBJECT", "COMPOSITE"


def headers(
    size: int = 5, etag: str | None = None, kind: str | None = None, **more: str
) -> dict[str, str]:
    """Return headers as S3 sends them; ``crc32=…`` is a checksum, other words are headers."""
    found = {"content-length": str(size)}
    if etag is not None:
        found["etag"] = etag
    if kind is not None:
        found["x-amz-checksum-type"] = kind
    for name, value in more.items():
        lead = "x-amz-checksum-" if "_" not in name else "x-amz-server-side-"
        found[lead + name.partition("_")[0]] = value
    return found


def wrong(source: dict[str, str], copy: dict[str, str]) -> bool:
    return difference(marks_of(source), marks_of(copy)) is not None


EQUAL = [
    (headers(), headers()),
    (headers(crc32="AAAA"), headers(crc32="AAAA")),
    # Another algorithm, or none at one end.
    (headers(crc32="AAAA"), headers(sha256="BBBB")),
    (headers(crc32="AAAA"), headers()),
    # Parts of other sizes give another checksum of checksums.
    (headers(kind=PARTS, crc32="AAAA-2"), headers(kind=PARTS, crc32="BBBB-3")),
    (headers(crc32="AAAA-2"), headers(crc32="BBBB")),
    (headers(kind=PARTS, crc32="AAAA-2"), headers(kind=FULL, crc32="BBBB")),
    # An ETag of parts, or of an encrypted object, isn't a digest of its bytes.
    (headers(etag=MD5), headers(etag=MD5)),
    (headers(etag=MD5), headers(etag='"9e107d9d372bb6826bd81d3542a419d6-2"')),
    (headers(etag=MD5), headers(etag=OTHER_MD5, encryption_of="aws:kms")),
    (headers(etag=MD5), headers(etag="W/odd")),
    # A checksum says more than an ETag.
    (headers(etag=MD5, crc32="AAAA"), headers(etag=OTHER_MD5, crc32="AAAA")),
]
DIFFERENT = [
    (headers(5), headers(6)),
    (headers(kind=FULL, crc32="AAAA"), headers(kind=FULL, crc32="BBBB")),
    (headers(crc64nvme="AAAA"), headers(crc64nvme="BBBB")),
    (headers(crc32="AAAA", sha1="1"), headers(crc32="AAAA", sha1="2")),
    (headers(etag=MD5), headers(etag=OTHER_MD5)),
    (headers(etag=MD5, crc32="AAAA"), headers(etag=MD5, crc32="BBBB")),
    (headers(etag=MD5), headers(etag=OTHER_MD5, encryption_of="AES256")),
]


@pytest.mark.parametrize(("source", "copy"), EQUAL)
def test_what_can_not_be_compared_says_nothing(
    source: dict[str, str], copy: dict[str, str]
) -> None:
    assert not wrong(source, copy)
    assert not wrong(copy, source)


@pytest.mark.parametrize(("source", "copy"), DIFFERENT)
def test_a_wrong_copy_is_known(source: dict[str, str], copy: dict[str, str]) -> None:
    assert wrong(source, copy)
    assert wrong(copy, source)


def test_equal_digests_need_no_checksum() -> None:
    assert same_md5(marks_of(headers(etag=MD5)), marks_of(headers(etag=MD5)))
    for etag in (None, "W/odd", MD5.replace('6"', '6-2"')):
        assert not same_md5(marks_of(headers(etag=etag)), marks_of(headers(etag=etag)))
    assert not same_md5(marks_of(headers(etag=MD5)), marks_of(headers(etag=OTHER_MD5)))
