"""Access tokens: which dataset, read or write, until when.

A token is ``lf_<id>_<secret>``. The server stores what the token allows and the SHA-256 of the
secret, in ``.lakeferry/tokens/<id>.json`` below its root. The secret has 256 random bits, so a
slower hash isn't needed against guessing. It is shown once, when the token is created. To revoke
a token, delete its file.

A token may have a name and a note, for whoever looks at the list. They identify nothing, so two
tokens may have the same name, for example while one replaces the other. Files from before names
and notes have neither.

A running server reads a token's file when the token is used, and again after
:data:`KNOWN_FOR_S`: a new or revoked token takes effect within a second.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    ObjectNotFound,
    StorageUnavailable,
    Unauthorized,
)
from lakeferry.storage import Store
from lakeferry.storage.uris import shell_safe
from lakeferry.transfer.repository.dataset_names import OWN_FOLDER, DatasetName

TOKENS_FOLDER = f"{OWN_FOLDER}/tokens/"
KNOWN_FOR_S = 0.5
"""How long the content of a token's file is cached, or that there is no file."""
LONGEST_TOKEN = 200

_TOKEN = re.compile(r"lf_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_ID = re.compile(r"[0-9a-f]{16}")
_LARGEST_RECORD_BYTES = 4096
_REMEMBERED = 10_000
LONGEST_TOKEN_NAME = 100
LONGEST_TOKEN_NOTE = 500


class Scope(Enum):
    """What a token allows; write includes read."""

    READ = "read"
    WRITE = "write"


class TokenGrant(msgspec.Struct, frozen=True):
    """What a token allows: a scope, on one dataset or on all (``None``)."""

    scope: Scope
    dataset: str | None
    created_ms: int
    expires_ms: int | None

    def covers(self, name: DatasetName) -> bool:
        """Return True if the token is for that dataset."""
        return self.dataset is None or self.dataset == name.text

    @property
    def may_write(self) -> bool:
        """Return True if the token allows writing."""
        return self.scope is Scope.WRITE


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    sha256: str
    grant: TokenGrant
    name: str | None = None
    note: str | None = None


_RECORD_DECODER = msgspec.json.Decoder(_Record)


@dataclass(frozen=True, slots=True)
class StoredToken:
    """What the server stores of a token; it isn't enough to use the token."""

    id: str
    """The part between ``lf_`` and the next ``_``."""
    grant: TokenGrant
    name: str | None = None
    note: str | None = None

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``tokens`` in the output of ``token list``."""
        named = {"id": self.id, "name": self.name, "note": self.note}
        return {**named, **msgspec.to_builtins(self.grant)}


class Tokens:
    """The tokens below a server's root. Safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use a store; ``clock`` returns the time of day, ``ticks`` measures the cache's age."""
        self._store = store
        self._clock = clock
        self._ticks = ticks
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, _Record | None]] = {}

    def create(
        self,
        scope: Scope = Scope.READ,
        *,
        dataset: DatasetName | None = None,
        lasts_ms: int | None = None,
        name: str | None = None,
        note: str | None = None,
    ) -> str:
        """Create a token and return it; it can't be read again later.

        Without a ``dataset`` it is for all of them, without ``lasts_ms`` it doesn't expire.
        ``name`` and ``note`` are shown with it.
        """
        check_label(name, note)
        if lasts_ms is not None and lasts_ms <= 0:
            raise InvalidInput("the token would already have expired")
        now_ms = self._clock()
        id_, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        grant = TokenGrant(
            scope,
            dataset.text if dataset is not None else None,
            now_ms,
            None if lasts_ms is None else now_ms + lasts_ms,
        )
        data = msgspec.json.encode(_Record(_digest(secret), grant, name, note))
        if not self._store.put_if_absent(_path(id_), data) and self._store.get(_path(id_)) != data:
            raise InvalidInput("there is a token with this id", remedy="try again")
        return f"lf_{id_}_{secret}"

    def all(self) -> list[StoredToken]:
        """Return all stored tokens, expired ones included, the oldest first."""
        paths = [info.path for info in self._store.list(TOKENS_FOLDER)]
        names = [path.removeprefix(TOKENS_FOLDER).removesuffix(".json") for path in paths]
        found = [self.find(name) for name in names if _ID.fullmatch(name)]
        return sorted((one for one in found if one is not None), key=_age)

    def find(self, token: str) -> StoredToken | None:
        """Return a stored token, given the token or its id; ``None`` if there is none."""
        id_ = _id(self._store, token)
        try:
            data = self._store.get_range(_path(id_), 0, _LARGEST_RECORD_BYTES)
            record = _RECORD_DECODER.decode(data)
            return StoredToken(id_, record.grant, record.name, record.note)
        except (ObjectNotFound, msgspec.MsgspecError):
            return None

    def revoke(self, token: str) -> bool:
        """Delete a token, given the token or its id; return True if it existed."""
        path = _path(_id(self._store, token))
        try:
            self._store.head(path)
        except ObjectNotFound:
            return False
        self._store.delete_many([path])
        return True

    def check(self, token: str) -> TokenGrant:
        """Return what a token allows, or raise ``Unauthorized``, with ``expired`` if it has."""
        match = _TOKEN.fullmatch(token) if len(token) <= LONGEST_TOKEN else None
        if match is None:
            raise _invalid()
        record = self._record(match[1])
        # Always compare, so that the time that it takes reveals nothing.
        expected = record.sha256 if record is not None else _digest("")
        if not hmac.compare_digest(_digest(match[2]).encode(), expected.encode()) or record is None:
            raise _invalid()
        expires_ms = record.grant.expires_ms
        if expires_ms is not None and self._clock() >= expires_ms:
            raise Unauthorized("Authentication token expired", expired=True)
        return record.grant

    def label(self, token: str) -> str:
        """Return the name of a token, or its public part; no request if it was checked just now."""
        id_ = token_id(token) or ""
        record = self._record(id_) if id_ else None
        return f"token {id_[:8]}" if record is None or record.name is None else record.name

    def _record(self, id_: str) -> _Record | None:
        now = self._ticks()
        with self._lock:
            known = self._known.get(id_)
            if known is not None and now - known[0] < KNOWN_FOR_S:
                return known[1]
        try:
            data = self._store.get_range(_path(id_), 0, _LARGEST_RECORD_BYTES)
            record = _RECORD_DECODER.decode(data)
        except (ObjectNotFound, msgspec.MsgspecError):
            record = None
        except (Forbidden, Unauthorized) as error:
            # The store refused the server; that isn't the client's fault.
            raise StorageUnavailable("the tokens can't be read", cause=str(error)) from error
        with self._lock:
            self._known.pop(id_, None)
            self._known[id_] = (now, record)
            if len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
        return record


def token_id(token: str) -> str | None:
    """Return the public part of a token, as ``token list`` shows it; ``None`` if it is none."""
    match = _TOKEN.fullmatch(token) if len(token) <= LONGEST_TOKEN else None
    return None if match is None else match[1]


def check_label(name: str | None, note: str | None) -> None:
    """Refuse a name or a note that is empty, too long, or would disturb a terminal."""
    labels = (("name", name, LONGEST_TOKEN_NAME), ("note", note, LONGEST_TOKEN_NOTE))
    for what, text, longest in labels:
        if text is not None and not (0 < len(text) <= longest and text.isprintable()):
            raise InvalidInput(
                f"this can't be a token's {what}",
                cause=repr(text[:longest]),
                remedy=f"write 1 to {longest} printable characters in one line",
            )


def _path(id_: str) -> str:
    return f"{TOKENS_FOLDER}{id_}.json"


def _id(store: Store, token: str) -> str:
    """Return the id of a token, or the id itself; anything else is refused and never shown."""
    match = _TOKEN.fullmatch(token)
    id_ = token if match is None else match[1]
    if not _ID.fullmatch(id_):
        raise InvalidInput(
            "this is neither a token nor the id of one",
            remedy="an id is the 16 characters between lf_ and the next _: 'lakeferry token list "
            f"--root {shell_safe(store.uri)}' shows them",
        )
    return id_


def _age(token: StoredToken) -> tuple[int, str]:
    return token.grant.created_ms, token.id


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _invalid() -> Unauthorized:
    return Unauthorized("Authentication token invalid", expired=False)
