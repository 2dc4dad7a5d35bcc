"""Multipart uploads to S3 by signed URLs.

S3 keeps an unfinished upload until it is completed or aborted, and knows which parts have
arrived. So Lakeferry stores nothing: a client that asks for the upload of an object finds the
unfinished one, and sends the missing parts. If two were begun at once, the older one is
used. Completing never replaces an object.

obstore doesn't have these requests one by one; they are made here, with our own signatures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from urllib.parse import urlsplit, urlunsplit
from xml.etree import ElementTree

from lakeferry.errors import InvalidInput, StorageUnavailable
from lakeferry.storage import http_pool
from lakeferry.storage.http_pool import HttpAnswer
from lakeferry.storage.object_parts import part_bytes
from lakeferry.storage.sigv4 import key_of, signed_anew
from lakeferry.storage.store import PartsUpload, StreamChunk

_LASTS_S = 600
_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)
"""While other parts are copied, a store may be busy for some seconds."""
_WAIT_S = 60.0
_JOIN_WAIT_S = 600.0
"""A store may need minutes to copy or to join large parts before it answers."""
_BUSY = frozenset({429, 500, 502, 503, 504})

Sign = Callable[[int], str]
"""Returns obstore's URL for a PUT of an object, valid for a number of seconds."""
SecretOf = Callable[[str], str | None]
"""Returns the secret of a key, if it is known."""


class S3Uploads:
    """The unfinished uploads of one object, or of all objects below a prefix."""

    def __init__(self, sign: Sign, secret_of: SecretOf, key: str) -> None:
        """Use the object ``key`` of the bucket; ``sign`` makes its URLs.

        Credentials may be renewed between two requests, so the secret is looked up for each.
        """
        self._sign = sign
        self._secret_of = secret_of
        self.key = key

    def find(self) -> list[str]:
        """Return the ids of the object's uploads, the oldest first."""
        found = [(begun, one) for key, one, begun in self.below(self.key) if key == self.key]
        return [one for _, one in sorted(found)]

    def below(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        """Yield key, id and time of every upload whose key begins with the prefix."""
        marks: dict[str, str] = {}
        while True:
            listed = self.ask("GET", {"uploads": "", "prefix": prefix, **marks}, of_bucket=True)
            for each in listed.findall("{*}Upload"):
                begun = datetime.fromisoformat(text_of(each, "Initiated"))
                milliseconds = int(begun.timestamp() * 1000)
                if upload := text_of(each, "UploadId"):
                    yield text_of(each, "Key"), upload, milliseconds
            if text_of(listed, "IsTruncated") != "true":
                return
            marks = {
                "key-marker": text_of(listed, "NextKeyMarker"),
                "upload-id-marker": text_of(listed, "NextUploadIdMarker"),
            }

    def begin(self) -> str:
        """Begin an upload, and return its id."""
        upload = text_of(self.ask("POST", {"uploads": ""}, body=b""), "UploadId")
        if not upload:
            # Without an id, requests about it would be about the object.
            raise StorageUnavailable(
                f"the store begins no upload of {self.key!r}",
                cause="its answer has no id for it",
                status=200,
            )
        return upload

    def complete(self, upload: str, tags: Mapping[int, str], *, if_absent: bool) -> None:
        """Join the parts, given their ETags, to one object; ``if_absent`` never replaces one.

        An unknown upload isn't an error, because somebody else may have completed it, or we have
        and the answer was lost. So the caller checks the object.
        """
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{_escaped(tag)}</ETag></Part>"
            for number, tag in sorted(tags.items())
        )
        self.ask(
            "POST",
            {"uploadId": upload},
            headers={"if-none-match": "*"} if if_absent else {},
            body=f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode(),
            # 412: the object is there.
            fine=(404, 412),
            wait_s=_JOIN_WAIT_S,
        )

    def abort(self, upload: str) -> None:
        """Abort an upload; an unknown upload isn't an error."""
        self.ask("DELETE", {"uploadId": upload}, fine=(404,))

    def urls(
        self,
        method: str,
        queries: Sequence[Mapping[str, str]],
        headers: Sequence[Mapping[str, str]],
        lasts_s: int,
        *,
        of_bucket: bool = False,
    ) -> list[str]:
        """Return signed URLs for requests about the object, or about its bucket."""
        url = self._sign(lasts_s)
        secret = self._secret_of(key_of(url) or "")
        if secret is None:
            raise StorageUnavailable(
                f"can't sign a request about {self.key!r}",
                cause="the secret of the key that is in use now isn't known",
                status=403,
            )
        if of_bucket:
            parts = urlsplit(url)
            bucket = "/".join(parts.path.split("/")[: -(self.key.count("/") + 1)])
            url = urlunsplit(parts._replace(path=bucket or "/"))
        return [
            signed_anew(url, secret, method, headers=sent, query=query)
            for query, sent in zip(queries, headers, strict=True)
        ]

    def ask(
        self,
        method: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        fine: Sequence[int] = (),
        of_bucket: bool = False,
        wait_s: float | None = None,
    ) -> ElementTree.Element:
        """Return the content of the answer, empty for a status in ``fine``."""
        url = self.urls(method, [query], [headers or {}], _LASTS_S, of_bucket=of_bucket)[0]
        given = _answer(method, url, headers or {}, body, wait_s or _WAIT_S)
        status, content = given.status, given.content
        if status in fine or (status < 300 and not content):
            return ElementTree.Element("Nothing")
        try:
            answer = ElementTree.fromstring(content) if status < 300 else None
        except ElementTree.ParseError:
            answer = None
        # S3 may say 200 first, and find out later that it failed.
        if answer is None or answer.tag.endswith("Error"):
            raise StorageUnavailable(
                f"the store refuses a request about {self.key!r}",
                cause=f"status {status}: {content[:300].decode(errors='replace')}",
                status=status,
            )
        return answer

    def head(self) -> HttpAnswer:
        """Ask for the object's headers, with its checksums if the store keeps some."""
        headers = {"x-amz-checksum-mode": "ENABLED"}
        url = self.urls("HEAD", [{}], [headers], _LASTS_S)[0]
        return _answer("HEAD", url, headers, None, _WAIT_S)


def _answer(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, wait_s: float
) -> HttpAnswer:
    """Send a request, again while the store is busy."""
    for pause_s in _PAUSES_S:
        given = http_pool.http_answer(method, url, headers, body, wait_s=wait_s)
        if given.status not in _BUSY:
            return given
        time.sleep(pause_s)
    return http_pool.http_answer(method, url, headers, body, wait_s=wait_s)


class S3PartsUpload(PartsUpload):
    """An unfinished upload of one object."""

    def __init__(self, uploads: S3Uploads, upload: str, size_bytes: int, part_bytes: int) -> None:
        self._uploads = uploads
        self._upload = upload
        self._size_bytes = size_bytes
        self.part_bytes = part_bytes
        self._tags: dict[int, str] = {}

    @classmethod
    def of(cls, uploads: S3Uploads, size_bytes: int, *, begin: bool) -> S3PartsUpload | None:
        """Return the unfinished upload of an object, or begin one."""
        size = part_bytes(size_bytes)
        if size is None:
            return None
        found = uploads.find()
        if not found and begin:
            uploads.begin()
            # Another process may have begun one as well: both use the older one.
            found = uploads.find()
        return cls(uploads, found[0], size_bytes, size) if found else None

    def missing(self) -> list[int]:
        """Ask the store which parts have arrived."""
        self._tags = {}
        marks: dict[str, str] = {}
        while True:
            listed = self._uploads.ask("GET", {"uploadId": self._upload, **marks})
            for each in listed.findall("{*}Part"):
                number = int(text_of(each, "PartNumber"))
                if int(text_of(each, "Size")) == self._length(number):
                    self._tags[number] = text_of(each, "ETag")
            if text_of(listed, "IsTruncated") != "true":
                break
            marks = {"part-number-marker": text_of(listed, "NextPartNumberMarker")}
        return [number for number in range(1, self._count + 1) if number not in self._tags]

    def sign(self, numbers: Sequence[int], expires_s: int) -> tuple[str, list[str]]:
        """Sign for each part and its length."""
        signed = [
            _split(url)
            for url in self._uploads.urls(
                "PUT",
                [{"partNumber": str(number), "uploadId": self._upload} for number in numbers],
                [{"content-length": str(self._length(number))} for number in numbers],
                expires_s,
            )
        ]
        return signed[0][0], [own for _, own in signed]

    def put(
        self,
        number: int,
        chunks: Iterator[StreamChunk],  # noqa: ARG002
        size_bytes: int,  # noqa: ARG002
    ) -> None:
        """Refuse: parts are put by their URLs."""
        raise InvalidInput("S3 takes parts by their URLs", cause=f"part {number}")

    def join(self, checked: Callable[[Iterator[bytes]], Iterator[bytes]]) -> None:  # noqa: ARG002
        """Complete the upload unless the name is taken; others of the same object are dropped."""
        self._uploads.complete(self._upload, self._tags, if_absent=True)
        for left in self._uploads.find():
            self._uploads.abort(left)

    @property
    def _count(self) -> int:
        return -(-self._size_bytes // self.part_bytes)

    def _length(self, number: int) -> int:
        return min(self.part_bytes, self._size_bytes - (number - 1) * self.part_bytes)


def _split(url: str) -> tuple[str, str]:
    """Split a part's URL into the text that all parts share and the text of this part."""
    before, _, query = url.partition("?")
    members = query.split("&")
    own = [one for one in members if one.startswith(("partNumber=", "X-Amz-Signature="))]
    return f"{before}?{'&'.join(one for one in members if one not in own)}", "&".join(own)


def text_of(element: ElementTree.Element, name: str) -> str:
    """Return the text of an element inside an answer, empty if it isn't there."""
    return element.findtext(f"{{*}}{name}") or ""


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
