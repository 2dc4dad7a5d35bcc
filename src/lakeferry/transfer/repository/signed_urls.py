"""Signs URLs for a root on local disk.

For a root in an object store, the store signs. On local disk the server makes its own URLs: the
address of an object with a query that says what is allowed, and a signature (HMAC-SHA-256) over
method, key, the maximum number of bytes, and expiry::

    …/account/name/data/f1620…?method=PUT&expires=1700000000000&size=1234&signature=…

A client with such a URL needs no token. Servers that share a root share the signing key, which
is in ``.lakeferry/signing.key``; to withdraw all URLs, delete it and restart the servers.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import quote, urlencode

from lakeferry.errors import (
    CorruptLog,
    Forbidden,
    HashMismatch,
    InvalidInput,
    ObjectNotFound,
    StorageError,
)
from lakeferry.storage import PartsUpload, Store
from lakeferry.transfer.chain.hashes import Digest, Multihash
from lakeferry.transfer.repository.dataset_names import OWN_FOLDER
from lakeferry.transfer.wire.messages import TransferUrl, UploadParts

KEY_PATH = f"{OWN_FOLDER}/signing.key"
KEY_BYTES = 32
METHODS = ("GET", "PUT")
LONGEST_LIFE_MS = 7 * 24 * 3600 * 1000

URL_BYTES = 1000
"""About the size of an object and its signed URL in a message."""
PART_URL_BYTES = 150
PARTS_AT_ONCE = 256
"""Most parts of an object for which one message has URLs."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_NUMBERS = ("size", "part", "whole")
_FIELDS = frozenset({"method", "expires", "size", "part", "whole", "by", "signature"})
_HOLDER = re.compile(r"[ -~]{0,100}")


@dataclass(frozen=True, slots=True)
class Permit:
    """What a signed URL allows: one method on one key, until a time.

    ``size_bytes`` is the maximum size of a PUT; a GET has ``None``. With a ``part`` it is for
    that part of an object of ``whole_bytes``. ``holder`` is the client that got a PUT's URL; the
    upload counts against this client's share.
    """

    method: str
    key: str
    expires_ms: int
    size_bytes: int | None = None
    part: int | None = None
    whole_bytes: int | None = None
    holder: str | None = None

    def signed_text(self) -> bytes:
        """Return the text that is signed; it differs for any two permits."""
        size = "" if self.size_bytes is None else str(self.size_bytes)
        parts = ["lakeferry-url-1", self.method, self.key, str(self.expires_ms), size]
        if self.part is not None:
            parts += [str(self.part), str(self.whole_bytes)]
        if self.holder is not None:
            parts += [f"by {self.holder}"]
        if any("\n" in part for part in parts):
            raise InvalidInput("a key to sign has a line break", cause=repr(self.key))
        return "\n".join(parts).encode()


class Signer:
    """Signs and checks URLs with one key."""

    def __init__(
        self, key: bytes, *, clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        """Take a key of :data:`KEY_BYTES`."""
        if len(key) != KEY_BYTES:
            raise CorruptLog(f"a signing key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key
        self._clock = clock

    @classmethod
    def of(cls, store: Store) -> Self:
        """Return the signer of a server's root; the first call creates its key.

        On local disk only the server's own user can read the key. Call it before other threads
        write files: a file written meanwhile would get the same permissions.
        """
        try:
            return cls(store.get(KEY_PATH))
        except ObjectNotFound:
            pass
        before = os.umask(0o077)
        try:
            # Another server may create one at the same time: the stored one counts.
            store.put_if_absent(KEY_PATH, secrets.token_bytes(KEY_BYTES))
        finally:
            os.umask(before)
        return cls(store.get(KEY_PATH))

    def sign(
        self,
        base_url: str,
        method: str,
        key: str,
        *,
        lasts_ms: int,
        size_bytes: int | None = None,
        holder: str | None = None,
    ) -> tuple[str, int]:
        """Return the URL of an object below ``base_url``, and when it expires."""
        if method not in METHODS or (method == "PUT") != (size_bytes is not None):
            raise InvalidInput("a GET is signed, or a PUT with its size", cause=method)
        if not 0 < lasts_ms <= LONGEST_LIFE_MS:
            raise InvalidInput("a signed URL lasts for seven days at most")
        permit = Permit(method, key, self._clock() + lasts_ms, size_bytes, holder=holder)
        query: dict[str, str | int] = {"method": method, "expires": permit.expires_ms}
        if size_bytes is not None:
            query["size"] = size_bytes
        if holder is not None:
            query["by"] = holder
        query["signature"] = self._signature(permit)
        return f"{base_url.rstrip('/')}/{quote(key)}?{urlencode(query)}", permit.expires_ms

    def sign_parts(
        self,
        base_url: str,
        key: str,
        lengths: Mapping[int, int],
        whole_bytes: int,
        *,
        lasts_ms: int,
        holder: str | None = None,
    ) -> tuple[str, list[str]]:
        """Return a URL, and for each part the text to add to its query for putting it."""
        expires_ms = self._clock() + lasts_ms
        queries = []
        for part, size_bytes in lengths.items():
            permit = Permit("PUT", key, expires_ms, size_bytes, part, whole_bytes, holder)
            own = {"size": size_bytes, "part": part, "signature": self._signature(permit)}
            queries.append(urlencode(own))
        shared = {"method": "PUT", "expires": expires_ms, "whole": whole_bytes}
        alike = urlencode(shared if holder is None else {**shared, "by": holder})
        return f"{base_url.rstrip('/')}/{quote(key)}?{alike}", queries

    def check(self, method: str, key: str, query: Mapping[str, str]) -> Permit:
        """Return what a client's URL allows, or raise ``Forbidden``.

        ``method`` is the request's own; a HEAD is allowed where a GET is.
        """
        asked = "GET" if method == "HEAD" else method
        expires = query.get("expires", "")
        signature = query.get("signature", "")
        well_formed = (
            set(query) <= _FIELDS
            and _NUMBER.fullmatch(expires)
            and all(_NUMBER.fullmatch(query.get(name, "0")) for name in _NUMBERS)
            and ("part" in query) == ("whole" in query)
            and _SIGNATURE.fullmatch(signature)
            and _HOLDER.fullmatch(query.get("by", ""))
            and "\n" not in key
        )
        if not well_formed:
            raise _refused("it isn't one of ours", expired=False)
        size, part, whole = (int(query[name]) if name in query else None for name in _NUMBERS)
        permit = Permit(asked, key, int(expires), size, part, whole, query.get("by"))
        is_signed = hmac.compare_digest(self._signature(permit).encode(), signature.encode())
        # The request's method must be the signed one; a URL with another one was altered.
        if not is_signed or query.get("method") != asked:
            raise _refused("its signature is for something else", expired=False)
        if self._clock() >= permit.expires_ms:
            raise _refused("it has expired", expired=True)
        return permit

    def _signature(self, permit: Permit) -> str:
        return hmac.digest(self._key, permit.signed_text(), "sha256").hex()


class Links:
    """Makes URLs for objects of a root; a client needs nothing else to get or put them."""

    def __init__(
        self,
        store: Store,
        signer: Signer | None,
        base_url: str,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        holder: str | None = None,
    ) -> None:
        """Sign with ``signer`` for the server at ``base_url``; without one, let the store sign."""
        self._store = store
        self._signer = signer
        self._base_url = base_url
        self._clock = clock
        self._holder = holder

    def at(self, base_url: str) -> Links:
        """Return the same for a server that is reached at another address."""
        return Links(self._store, self._signer, base_url, clock=self._clock, holder=self._holder)

    def for_holder(self, holder: str) -> Links:
        """Return the same for one client, against whose share the PUTs count."""
        return Links(self._store, self._signer, self._base_url, clock=self._clock, holder=holder)

    def get(self, key: str, *, lasts_s: int, shown: str | None = None) -> TransferUrl:
        """Return a URL for getting an object.

        ``key`` is its name in the store, ``shown`` its name below the server's own address, if
        that differs.
        """
        if self._signer is not None:
            url, expires_ms = self._signer.sign(
                self._base_url, "GET", shown or key, lasts_ms=lasts_s * 1000
            )
            return TransferUrl(url, (), expires_ms)
        expires_ms = self._clock() + lasts_s * 1000
        return TransferUrl(self._store.sign("GET", key, lasts_s), (), expires_ms)

    def put(
        self, key: str, size_bytes: int, *, lasts_s: int, shown: str | None = None
    ) -> TransferUrl:
        """Return a URL for putting an object of that size; names as in :meth:`get`.

        If the store supports it (:meth:`~lakeferry.storage.Store.sign_put`), a PUT never replaces
        an object: one of a wrong size has to be deleted first.
        """
        if self._signer is not None:
            url, expires_ms = self._signer.sign(
                self._base_url,
                "PUT",
                shown or key,
                lasts_ms=lasts_s * 1000,
                size_bytes=size_bytes,
                holder=self._holder,
            )
            return TransferUrl(url, (), expires_ms)
        expires_ms = self._clock() + lasts_s * 1000
        signed = self._store.sign_put(key, size_bytes, lasts_s)
        return TransferUrl(signed.url, signed.headers, expires_ms)

    def put_parts(
        self,
        key: str,
        size_bytes: int,
        name: Multihash,
        *,
        lasts_s: int,
        shown: str | None = None,
    ) -> TransferUrl | None:
        """Return a URL as :meth:`put` does, with the information to put the object in parts.

        ``None`` if all parts existed and were joined now. If the store has no parts, or fails,
        the URL is for the whole object only.
        """
        whole = self.put(key, size_bytes, lasts_s=lasts_s, shown=shown)
        try:
            upload = self._store.parts_upload(key, size_bytes, begin=True)
            if upload is None:
                return whole
            missing = upload.missing()
            if not missing and _joined(upload, name):
                return None
            missing = missing or upload.missing()
        except StorageError:
            return whole
        now = missing[:PARTS_AT_ONCE]
        if self._signer is None:
            url, queries = upload.sign(now, lasts_s)
        else:
            each = upload.part_bytes
            lengths = {number: min(each, size_bytes - (number - 1) * each) for number in now}
            url, queries = self._signer.sign_parts(
                self._base_url,
                shown or key,
                lengths,
                size_bytes,
                lasts_ms=lasts_s * 1000,
                holder=self._holder,
            )
        parts = UploadParts(
            url,
            upload.part_bytes,
            tuple(zip(now, queries, strict=True)),
            is_all=len(now) == len(missing),
        )
        return replace(whole, parts=parts)

    def join_parts(self, key: str, size_bytes: int, name: Multihash) -> None:
        """Join the parts that were put, if all exist and their bytes have the right hash."""
        upload = self._store.parts_upload(key, size_bytes, begin=False)
        if upload is not None and not upload.missing():
            _joined(upload, name)


def _joined(upload: PartsUpload, name: Multihash) -> bool:
    """Join the parts; return False if their hash was wrong and they were deleted."""

    def checked(chunks: Iterator[bytes]) -> Iterator[bytes]:
        digest = Digest()
        for chunk in chunks:
            digest.update(chunk)
            yield chunk
        digest.check(name)

    try:
        upload.join(checked)
    except HashMismatch:
        return False
    return True


def _refused(cause: str, *, expired: bool) -> Forbidden:
    return Forbidden(
        "the signed URL doesn't allow this",
        cause=cause,
        expired=expired,
    )
