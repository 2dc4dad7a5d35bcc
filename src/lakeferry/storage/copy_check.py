"""Compares what a store says about an object and its copy, without reading either.

S3 keeps checksums of objects, and returns them if a request asks for them. Two checksums can be
compared only if they have the same algorithm and are of the whole object: one that is composed of
the checksums of parts depends on the parts' sizes. An ETag can be compared if it is the MD5 of the
whole object: that of an object in parts isn't, nor that of an object that KMS encrypts. Where
nothing else can be compared, the sizes are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_CHECKSUM = "x-amz-checksum-"
_ALGORITHMS = ("crc64nvme", "crc32c", "crc32", "sha256", "sha1")
_MD5 = re.compile(r'"?[0-9a-f]{32}"?')
_PLAIN_ENCRYPTION = "AES256"
"""With this encryption, as without one, the ETag of an object in one part is its MD5."""


@dataclass(frozen=True, slots=True)
class ObjectMarks:
    """What a store says about one object.

    ``checksums`` has the checksums of the whole object, by their algorithms. ``md5`` is the ETag
    if that is known to be the MD5 of the whole object.
    """

    size_bytes: int
    etag: str | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    md5: str | None = None


def marks_of(headers: Mapping[str, str]) -> ObjectMarks:
    """Return what the headers of an answer to ``HEAD`` say; their names are in lower case."""
    found = {name: headers.get(_CHECKSUM + name, "") for name in _ALGORITHMS}
    # Not every gateway sends the type. A checksum of parts ends with their number.
    is_whole = headers.get(f"{_CHECKSUM}type", "FULL_OBJECT").upper() == "FULL_OBJECT"
    checksums = {
        name: value for name, value in found.items() if value and is_whole and "-" not in value
    }
    etag = headers.get("etag")
    encryption = headers.get("x-amz-server-side-encryption", _PLAIN_ENCRYPTION)
    by_customer = "x-amz-server-side-encryption-customer-algorithm" in headers
    is_md5 = encryption == _PLAIN_ENCRYPTION and not by_customer and _MD5.fullmatch(etag or "")
    md5 = etag.strip('"') if etag is not None and is_md5 else None
    return ObjectMarks(int(headers["content-length"]), etag, checksums, md5)


def same_md5(source: ObjectMarks, copy: ObjectMarks) -> bool:
    """Return whether the ETags are the same MD5. Others that look like one are never equal."""
    return source.etag == copy.etag and _MD5.fullmatch(source.etag or "") is not None


def difference(source: ObjectMarks, copy: ObjectMarks) -> str | None:
    """Return why a copy can't be a copy of the source; ``None`` if nothing says so."""
    if copy.size_bytes != source.size_bytes:
        return f"the copy has {copy.size_bytes} bytes instead of {source.size_bytes}"
    shared = source.checksums.keys() & copy.checksums.keys()
    for name in sorted(shared):
        if source.checksums[name] != copy.checksums[name]:
            return f"the store has another {name} checksum for the copy"
    if shared or source.md5 is None or copy.md5 is None or source.md5 == copy.md5:
        return None
    return "the copy has another ETag"
